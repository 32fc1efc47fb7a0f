"""How one side of a pipeline tells the other that it is done with a stage.

A signal knows who gives it and whom it reaches, so the count of a barrier is a sum over signals and is never typed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from warploom.structured.cluster import SELF, Cluster, Mask
from warploom.trace.builder import current
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.barriers import Barrier, Barriers
from warploom.trace.language.control import when
from warploom.trace.language.operations import min_
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, literal
from warploom.trace.language.warps import lane

REMOTE_ARRIVE = "mbarrier.arrive.shared::cluster.b64"


class Signal(Protocol):
    """One role's way to say that it is done with a stage."""

    @property
    def role(self) -> Role: ...

    def arrivals(self, cluster: Cluster) -> int:
        """Arrivals in one phase of one CTA's barrier, from all CTAs."""
        ...

    def reaches_others(self, cluster: Cluster) -> bool:
        """Whether it is said to other CTAs too."""
        ...

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Say it of a stage, in every thread of the role."""
        ...


@dataclass(frozen=True)
class Bytes:
    """Copies say it when their bytes are there: one arrival announces how many, and leaving the stage says nothing."""

    role: Role

    def arrivals(self, cluster: Cluster) -> int:
        return 1

    def reaches_others(self, cluster: Cluster) -> bool:
        """With pairs both CTAs' bytes count at the leader's."""
        return cluster.cta_group > 1

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Nothing: the bytes arrive."""


@dataclass(frozen=True)
class TensorCoreCommit:
    """The tensor core says it, when the multiplications issued so far are done, to every CTA of a mask."""

    role: Role
    peers: Mask

    def arrivals(self, cluster: Cluster) -> int:
        return cluster.reached(self.peers, leaders=True)

    def reaches_others(self, cluster: Cluster) -> bool:
        return cluster.size > 1

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        with when(self.role.elected):
            commit(row[stage], cluster, self.peers)


def commit(barrier: Barrier, cluster: Cluster, peers: Mask) -> None:
    """The commit itself; the thread that issued the multiplications must be the one that executes it."""
    group = f"cta_group::{cluster.cta_group}"
    if cluster.size == 1:
        emit(f"tcgen05.commit.{group}.mbarrier::arrive::one.shared::cluster.b64", barrier.at)
    else:
        opcode = f"tcgen05.commit.{group}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
        emit(opcode, barrier.at, cluster.mask(peers))


def remote_row(row: Barriers, cluster: Cluster, rank: Callable[[], Value], which: str) -> Barriers:
    """The same barriers in another CTA; their address is computed once, in front of everything."""
    builder = current("A barrier")
    known: dict[tuple[str, str], Barriers] = builder.parts.setdefault(Barriers, {})
    if (row.name, which) not in known:
        with builder.prologue():
            base = cluster.remote(At(row.view.base), rank()).address
        known[row.name, which] = Barriers(row.name, replace(row.view, base=base))
    return known[row.name, which]


@dataclass(frozen=True)
class _Arrivals:
    """Threads of a role arrive: at their own CTA's barrier, at the pair leader's, or at that of the cluster's first.

    Of a role whose warpgroups take turns, one in `turns` has a stage.
    """

    role: Role
    to: str = "self"
    alternating: int = 1

    @property
    def lanes(self) -> int:
        """How many lanes of a warp arrive."""
        raise NotImplementedError

    def arrivals(self, cluster: Cluster) -> int:
        senders = {"self": 1, "leader": cluster.cta_group, "first": cluster.size}[self.to]
        return self.role.count // self.alternating * self.lanes * senders

    def reaches_others(self, cluster: Cluster) -> bool:
        return self.to != "self" and cluster.size > 1

    def arrive_now(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """The executing lanes arrive.

        A remote arrival is spelled without qualifiers: `.release.cluster` costs a fence of the whole GPU, and what is
        told is that reads have ended.
        """
        if self.to == "self" or (self.to == "leader" and cluster.cta_group == 1) or cluster.size == 1:
            row[stage].arrive()
            return

        def rank() -> Value:
            return cluster.leader_rank if self.to == "leader" else literal(0, "u32")

        emit(REMOTE_ARRIVE, remote_row(row, cluster, rank, self.to)[stage].at, discard=True)

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        self.arrive_now(row, stage, cluster)


@dataclass(frozen=True)
class EveryThread(_Arrivals):
    """Each thread of the role arrives."""

    @property
    def lanes(self) -> int:
        return self.role.threads // self.role.count


@dataclass(frozen=True)
class OncePerWarp(_Arrivals):
    """One lane of each warp arrives, when all lanes of the warp are done."""

    @property
    def lanes(self) -> int:
        return 1

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        emit("bar.warp.sync", -1)
        with when(self.role.elected):
            self.arrive_now(row, stage, cluster)


@dataclass(frozen=True)
class FirstLanes(_Arrivals):
    """The first lanes of each warp arrive: as many as there are others to answer for."""

    first: int = 1

    @property
    def lanes(self) -> int:
        return self.first

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        emit("bar.warp.sync", -1)
        with when(lane() < self.first):
            self.arrive_now(row, stage, cluster)


@dataclass(frozen=True)
class CopyAsync(_Arrivals):
    """The first lanes of each warp arrive when their own asynchronous copies so far are done."""

    first: int = 32

    @property
    def lanes(self) -> int:
        return self.first

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        with when(lane() < self.first):
            emit("cp.async.mbarrier.arrive.noinc.shared::cta.b64", row[stage].at)


@dataclass(frozen=True)
class EachPeer(_Arrivals):
    """Each warp arrives at every CTA that fills its stages: lane i at CTA i, if a mask has it.

    The warp's multiplications are complete, so no lane waits for another.
    """

    peers: Mask = SELF

    @property
    def lanes(self) -> int:
        return 1

    def arrivals(self, cluster: Cluster) -> int:
        return self.role.count // self.alternating * cluster.reached(self.peers, leaders=False)

    def reaches_others(self, cluster: Cluster) -> bool:
        return cluster.size > 1 and self.peers is not cluster.alone

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        if not self.reaches_others(cluster):
            barrier = row[stage]
            with when(self.role.elected):
                barrier.arrive()
            return
        mine = (cluster.mask(self.peers).to("u32") >> lane()) & 1
        with when(mine != 0):
            last = literal(cluster.size - 1, "u32")
            emit(REMOTE_ARRIVE, remote_row(row, cluster, lambda: min_(lane(), last), "each")[stage].at, discard=True)
