"""The scheduler on cluster launch control (CLC): a running cluster takes over clusters that have not started yet.

The grid is launched with a CTA for every tile. One warp of each cluster's first CTA requests the next cluster with
`try_cancel`; the response is written to all CTAs of the cluster, into a ring of 16-byte slots that every role reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from warploom.diagnostics import Diag
from warploom.hardware.synchronisation import WORK_RESPONSE_BYTES
from warploom.structured.cluster import Cluster
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.signals import Bytes, EveryThread
from warploom.structured.schedulers.base import GridScheduler, Tile
from warploom.structured.schedulers.raster import RasterOrder
from warploom.trace import isa
from warploom.trace.builder import current, here
from warploom.trace.language.barriers import Barrier
from warploom.trace.language.control import While, when
from warploom.trace.language.roles import Role, Roles
from warploom.trace.language.values import Value, special
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import Index, shared
from warploom.trace.language.warps import lane

_AXES: tuple[Literal["x", "y", "z"], ...] = ("x", "y", "z")


class ClcScheduler(GridScheduler):
    """The first tile is the CTA's own; with `num_stages` 0 it is the only one.

    The role `scheduler` sends the requests; `workers` are the roles that iterate over the tiles, by default all others.
    The role `paced_by`, by default `load`, throttles it: the next cluster is requested when that role has started on
    the last one, because a request that is too early takes work away from idle clusters.
    """

    all_threads = True

    def __init__(
        self,
        roles: Roles,
        *,
        cluster: Cluster,
        k_tiles: Index,
        num_stages: int,
        paced_by: Role | None = None,
        workers: Sequence[Role] | None = None,
        splits: int = 1,
        order: str = RasterOrder.ALONG_M,
        block_swizzle: int = 0,
    ) -> None:
        super().__init__(cluster=cluster, k_tiles=k_tiles, splits=splits, order=order, block_swizzle=block_swizzle)
        self._grid = (special("nctaid.x"), special("nctaid.y"))
        self._ring: _Ring | None = None
        if num_stages:
            others = [role for role in roles if role is not roles.scheduler] if workers is None else workers
            self._ring = _Ring(num_stages, roles.scheduler, paced_by or roles.load, tuple(others), cluster)

    def _iterate(self) -> Iterator[Tile]:
        place = [Variable("u32", special(f"ctaid.{axis}")) for axis in _AXES]
        if self._ring is None:
            yield self._of(place)
            return
        more = Variable("pred", True)
        for _ in While(more.get):
            self._ring.pace()
            yield self._of(place)
            self._ring.fetch(more, place)

    def _of(self, place: Sequence[Value]) -> Tile:
        x, y = self.cluster.shape
        m, n, z = (at.get() for at in place)
        return self._tile(m // x, n // y, z, (self._grid[0] // x, self._grid[1] // y))


class _Ring:
    """The ring of CLC responses from the hardware to all roles, and the throttle of the requests."""

    def __init__(self, num_stages: int, asker: Role, pacer: Role, workers: tuple[Role, ...], cluster: Cluster) -> None:
        self._asker, self._pacer, self._cluster = asker, pacer, cluster
        problems = [
            *([f"role `{asker.name}` requests tiles and cannot also be a worker"] if asker in workers else []),
            *([f"role `{pacer.name}` throttles the requests but is not a worker"] if pacer not in workers else []),
        ]
        if problems:
            raise Diag.BAD_KERNEL.error(here(), what="; ".join(problems))
        self._slots = shared("b128", num_stages, name="clc_response")
        self._answers = ProducerConsumerPipeline(
            num_stages,
            producer=Bytes(asker),
            consumer=(*(EveryThread(role, "first") for role in workers), EveryThread(asker)),
            cluster=cluster,
            name="clc",
        )
        self._throttle = ProducerConsumerPipeline(
            num_stages,
            producer=EveryThread(pacer),
            consumer=EveryThread(asker),
            cluster=cluster,
            name="clc_throttle",
        )
        current().before_roles.append(self._run)
        self._loc = here()

    def pace(self) -> None:
        """Signal that the throttling role has started on a tile; other roles do nothing."""
        if current().region.role == self._pacer.name:
            with when(self._cluster.is_first):
                self._throttle.producer_signal_and_step()

    def fetch(self, more: Variable, place: Sequence[Variable]) -> None:
        """Read the next response: whether a cluster was taken over, and its coordinates."""
        with self._answers.consume() as stage:
            answer = self._slots[stage.index()]
            granted = isa.clusterlaunchcontrol.query_cancel_is_canceled(answer)
            more.set(granted)
            with when(granted):
                for axis, at in zip(_AXES, place, strict=True):
                    at.set(isa.clusterlaunchcontrol.query_cancel_get_first_ctaid(answer, axis=axis))
            isa.fence.proxy_async(space="shared::cta")  # orders this read before the next response

    def _run(self) -> None:
        """Emit the scheduler role: request clusters until none is left, then wait until the last has been read."""
        builder = current()
        builder.place_all_at(self._loc)
        with self._asker, when(self._cluster.is_first):
            more, place = Variable("pred", True), [Variable("u32", 0) for _ in _AXES]
            for _ in While(more.get):
                self._throttle.consumer_signal_and_step()
                self._ask()
                self.fetch(more, place)
            self._answers.drain_producer()
        builder.place_all_at(None)

    def _ask(self) -> None:
        """Expect a response in every CTA, and send one request for all of them."""
        size = self._cluster.size
        with self._answers.produce() as stage:
            slot, barrier = self._slots.at(stage.index()), stage.mbar()
            if size == 1:
                with when(self._asker.elected):
                    stage.expect_bytes(WORK_RESPONSE_BYTES)
                    isa.clusterlaunchcontrol.try_cancel(slot, barrier.at)
                return
            with when(lane() < size):
                _expect_at(barrier, self._cluster, lane())
            with when(self._asker.elected):
                isa.clusterlaunchcontrol.try_cancel(slot, barrier.at, multicast=True)


def _expect_at(barrier: Barrier, cluster: Cluster, rank: Value) -> None:
    """Expect the bytes of a response at another CTA's barrier."""
    remote = cluster.remote(barrier.at, rank)
    isa.mbarrier.arrive_expect_tx(remote, WORK_RESPONSE_BYTES, space="shared::cluster", results=0)
