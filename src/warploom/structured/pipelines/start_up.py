"""What a CTA does before its roles part: one thread initialises all barriers, and everybody is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from warploom.structured.cluster import Cluster
from warploom.trace.builder import current
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.barriers import Barriers, fence_barrier_init, named_arrive, named_sync, sync_threads
from warploom.trace.language.control import otherwise, when
from warploom.trace.language.roles import Role
from warploom.trace.language.warps import elect, warp_index
from warploom.trace.parameters import TensorMapArgument


@dataclass
class StartUp:
    """Barriers and tensor maps that a kernel has; counts are asked for when everybody has declared his signals."""

    cluster: Cluster | None = None
    is_remote: bool = False
    """Whether other CTAs reach these barriers, so that all of them must be ready."""
    syncs_later: bool = False
    """Whether CTAs of the cluster meet later on: here each says that it is there, and goes on."""
    role: Role | None = None
    """Whose first warp initialises: it need not wait for the others, who will wait for what it brings."""
    barriers: list[tuple[Barriers, Callable[[], int]]] = field(default_factory=list)
    maps: list[TensorMapArgument] = field(default_factory=list)

    def run(self) -> None:
        """Write it: once, in front of the first role."""
        first = self.role.first if self.role is not None else 0
        with when(warp_index() == first), when(elect()):
            for tensor_map in dict.fromkeys(self.maps):
                emit("prefetch.tensormap", At(tensor_map.address))
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
                emit("bar.warp.sync", -1)  # its other lanes have only this to tell them that the barriers are there
                named_arrive(0, threads)
            with otherwise():
                named_sync(0, threads)
        else:
            sync_threads()


def start_up() -> StartUp:
    """That of the kernel being traced."""
    builder = current("A pipeline")
    if StartUp not in builder.parts:
        builder.parts[StartUp] = StartUp()
        builder.before_roles.append(builder.parts[StartUp].run)
    made: StartUp = builder.parts[StartUp]
    return made


def kernel_cluster(given: Cluster | None) -> Cluster:
    """The cluster that a pipeline works in: the one given, else the kernel's, else a CTA alone."""
    setup = start_up()
    setup.cluster = given or setup.cluster or Cluster()
    return setup.cluster
