"""The start-up of a CTA before its roles branch: one thread initialises all barriers, then the CTA synchronises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from warploom.structured.cluster import Cluster
from warploom.trace import isa
from warploom.trace.builder import current
from warploom.trace.isa.emit import At
from warploom.trace.language.barriers import Barriers, fence_barrier_init, named_arrive, named_sync, sync_threads
from warploom.trace.language.control import otherwise, when
from warploom.trace.language.roles import Role
from warploom.trace.language.warps import elect, warp_index
from warploom.trace.parameters import TensorMapArgument


@dataclass
class StartUp:
    """The barriers and tensor maps of a kernel; arrival counts are computed after all signals have been declared."""

    cluster: Cluster | None = None
    is_remote: bool = False
    """True if other CTAs arrive at these barriers, so that the whole cluster must synchronise."""
    syncs_later: bool = False
    """True if the CTAs of the cluster synchronise later: here each only arrives at the cluster barrier."""
    role: Role | None = None
    """The role whose first warp initialises the barriers and arrives without waiting: the others wait for its data."""
    barriers: list[tuple[Barriers, Callable[[], int]]] = field(default_factory=list)
    maps: list[TensorMapArgument] = field(default_factory=list)

    def run(self) -> None:
        """Emit the start-up code, once, before the first role."""
        first = self.role.first if self.role is not None else 0
        with when(warp_index() == first), when(elect()):
            for tensor_map in dict.fromkeys(self.maps):
                isa.prefetch.tensormap(At(tensor_map.address))
            for row, count in self.barriers:
                row.init(count())
            fence_barrier_init()
        if self.cluster is not None and self.syncs_later:
            self.cluster.arrive()
        threads = current().threads
        if self.cluster is not None and self.is_remote:
            self.cluster.sync()
        elif self.role is not None and threads is not None:
            with when(warp_index() == first):
                isa.bar.warp_sync(-1)  # orders the initialisation before the other lanes of this warp
                named_arrive(0, threads)
            with otherwise():
                named_sync(0, threads)
        else:
            sync_threads()


def start_up() -> StartUp:
    """Return the start-up of the kernel being traced."""
    builder = current("A pipeline")
    if StartUp not in builder.parts:
        builder.parts[StartUp] = StartUp()
        builder.before_roles.append(builder.parts[StartUp].run)
    made: StartUp = builder.parts[StartUp]
    return made


def kernel_cluster(given: Cluster | None) -> Cluster:
    """Return the cluster of a pipeline: the given one, else the kernel's, else a single CTA."""
    setup = start_up()
    setup.cluster = given or setup.cluster or Cluster()
    return setup.cluster
