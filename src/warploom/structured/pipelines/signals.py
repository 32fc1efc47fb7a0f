"""Signals, by which one side of a pipeline commits or releases a stage.

A signal knows which threads or units arrive and which CTAs they reach, so that arrival counts are derived from signals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from warploom.structured.cluster import SELF, Cluster, Mask
from warploom.trace import isa
from warploom.trace.builder import current
from warploom.trace.isa.emit import At
from warploom.trace.language.barriers import Barrier, Barriers
from warploom.trace.language.control import when
from warploom.trace.language.operations import min_
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, literal
from warploom.trace.language.warps import lane


def remote_arrive(barrier: At) -> None:
    """Arrive at a barrier of another CTA; a remote arrival returns no state."""
    isa.mbarrier.arrive(barrier, space="shared::cluster", results=0)


class Signal(Protocol):
    """The way in which one role signals that it is done with a stage."""

    @property
    def role(self) -> Role: ...

    def arrivals(self, cluster: Cluster) -> int:
        """Return the arrivals per phase of one CTA's barrier, from all CTAs."""
        ...

    def reaches_others(self, cluster: Cluster) -> bool:
        """Return whether it arrives at barriers of other CTAs too."""
        ...

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Signal a stage; called by every thread of the role."""
        ...


@dataclass(frozen=True)
class Bytes:
    """The bytes of copies complete the stage: one arrival expects them, and releasing the stage adds no arrival."""

    role: Role

    def arrivals(self, cluster: Cluster) -> int:
        """Return 1: the arrival that expects the bytes."""
        return 1

    def reaches_others(self, cluster: Cluster) -> bool:
        """Return True with CTA pairs: the bytes of both CTAs complete on the leader's barrier."""
        return cluster.cta_group > 1

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Do nothing: the bytes complete the phase."""


@dataclass(frozen=True)
class TensorCoreCommit:
    """The tensor core arrives, in every CTA of a mask, when the MMAs issued so far are complete."""

    role: Role
    peers: Mask

    def arrivals(self, cluster: Cluster) -> int:
        """Return the commits per phase, from all CTAs that signal this one."""
        return cluster.reached(self.peers, leaders=True)

    def reaches_others(self, cluster: Cluster) -> bool:
        """Return whether the commit is multicast to other CTAs."""
        return cluster.size > 1

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Commit with one elected thread: the barrier completes when the earlier MMAs have."""
        with when(self.role.elected):
            commit(row[stage], cluster, self.peers)


def commit(barrier: Barrier, cluster: Cluster, peers: Mask) -> None:
    """Issue a tcgen05 commit, in the thread that issued the MMAs: it tracks the MMAs of the executing thread."""
    mask = cluster.mask(peers) if cluster.size > 1 else None
    isa.tcgen05.commit(barrier.at, mask=mask, cta_group=cluster.cta_group)


def remote_row(row: Barriers, cluster: Cluster, rank: Callable[[], Value], which: str) -> Barriers:
    """Return the same barriers in another CTA; their address is computed once, in the prologue."""
    builder = current("A barrier")
    known: dict[tuple[str, str], Barriers] = builder.parts.setdefault(Barriers, {})
    if (row.name, which) not in known:
        with builder.prologue():
            base = cluster.remote(At(row.view.base), rank()).address
        known[row.name, which] = Barriers(row.name, replace(row.view, base=base))
    return known[row.name, which]


@dataclass(frozen=True)
class _Arrivals:
    """Threads of a role arrive at their own CTA's barrier, the pair leader's, or that of the first CTA of the cluster.

    `alternating` is the number of warpgroups that consume stages alternately (ping-pong): each stage has one of them.
    """

    role: Role
    to: str = "self"
    alternating: int = 1

    @property
    def lanes(self) -> int:
        """The number of lanes of a warp that arrive."""
        raise NotImplementedError

    def arrivals(self, cluster: Cluster) -> int:
        senders = {"self": 1, "leader": cluster.cta_group, "first": cluster.size}[self.to]
        return self.role.count // self.alternating * self.lanes * senders

    def reaches_others(self, cluster: Cluster) -> bool:
        return self.to != "self" and cluster.size > 1

    def arrive_now(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Arrive with the executing lanes.

        A remote arrival has no `.release.cluster`: that would cost a fence at GPU scope, and an arrival here only says
        that reads have completed.
        """
        if self.to == "self" or (self.to == "leader" and cluster.cta_group == 1) or cluster.size == 1:
            row[stage].arrive()
            return

        def rank() -> Value:
            return cluster.leader_rank if self.to == "leader" else literal(0, "u32")

        remote_arrive(remote_row(row, cluster, rank, self.to)[stage].at)

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        self.arrive_now(row, stage, cluster)


@dataclass(frozen=True)
class EveryThread(_Arrivals):
    """Each thread of the role arrives."""

    @property
    def lanes(self) -> int:
        return self.role.threads // self.role.count


@dataclass(frozen=True)
class EveryReader(EveryThread):
    """Each thread of the role arrives after a proxy fence: TMA refills the stage that it has read with plain loads.

    The barrier orders the threads, not the proxies (PTX ISA, 8.9.5): without the fence the next copy may overtake the
    loads.
    """

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Arrive with every thread, after a fence that orders its reads before later asynchronous writes."""
        isa.fence.proxy_async(space="shared::cta")
        self.arrive_now(row, stage, cluster)


@dataclass(frozen=True)
class OncePerWarp(_Arrivals):
    """One lane of each warp arrives, after all lanes of the warp are done."""

    @property
    def lanes(self) -> int:
        return 1

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Arrive with one elected lane, after the warp has synchronised."""
        isa.bar.warp_sync(-1)
        with when(self.role.elected):
            self.arrive_now(row, stage, cluster)


@dataclass(frozen=True)
class FirstLanes(_Arrivals):
    """The first `first` lanes of each warp arrive, for a warp that reads with plain loads a stage that TMA refills."""

    first: int = 1

    @property
    def lanes(self) -> int:
        return self.first

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Arrive with each of the first lanes, after a proxy fence of every lane and a barrier of the warp."""
        isa.fence.proxy_async(space="shared::cta")
        isa.bar.warp_sync(-1)
        with when(lane() < self.first):
            self.arrive_now(row, stage, cluster)


@dataclass(frozen=True)
class CopyAsync(_Arrivals):
    """The first `first` lanes of each warp arrive when their own `cp.async` copies so far are complete."""

    first: int = 32

    @property
    def lanes(self) -> int:
        return self.first

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Arrive with each of the first lanes when its earlier cp.async copies have completed."""
        with when(lane() < self.first):
            isa.cp.async_mbarrier_arrive(row[stage].at, noinc=True)


@dataclass(frozen=True)
class EachPeer(_Arrivals):
    """Each warp arrives at every CTA that fills its stages: lane i at CTA i, if the mask contains it.

    The warp's MMAs are complete at this point, so that the lanes need no synchronisation.
    """

    peers: Mask = SELF

    @property
    def lanes(self) -> int:
        return 1

    def arrivals(self, cluster: Cluster) -> int:
        """Return the arrivals per phase, from all CTAs that signal this one."""
        return self.role.count // self.alternating * cluster.reached(self.peers, leaders=False)

    def reaches_others(self, cluster: Cluster) -> bool:
        """Return whether it arrives at barriers of other CTAs too."""
        return cluster.size > 1 and self.peers is not cluster.alone

    def arrive(self, row: Barriers, stage: Value, cluster: Cluster) -> None:
        """Arrive once at the barrier of each CTA in the mask of peers."""
        if not self.reaches_others(cluster):
            barrier = row[stage]
            with when(self.role.elected):
                barrier.arrive()
            return
        mine = (cluster.mask(self.peers).to("u32") >> lane()) & 1
        with when(mine != 0):
            last = literal(cluster.size - 1, "u32")
            remote_arrive(remote_row(row, cluster, lambda: min_(lane(), last), "each")[stage].at)
