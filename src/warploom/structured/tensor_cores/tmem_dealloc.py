"""The deallocation of TMEM, after the last read in every epilogue thread."""

from __future__ import annotations

from warploom.diagnostics import Diag
from warploom.structured.cluster import Cluster
from warploom.structured.pipelines.shared_types import SMemArray
from warploom.structured.pipelines.signals import remote_arrive
from warploom.structured.pipelines.start_up import start_up
from warploom.structured.tensor_cores.tmem import TmemAllocation
from warploom.trace import isa
from warploom.trace.builder import here
from warploom.trace.language.barriers import Barrier, Barriers, barriers
from warploom.trace.language.roles import Role


class TmemDeallocBarrier:
    """Signals the MMA role that no epilogue thread, in either CTA of a pair, reads TMEM any more."""

    def __init__(
        self, role: Role, cluster: Cluster, name: str = "tmem_dealloc", *, storage: SMemArray | None = None
    ) -> None:
        """Use your own barrier as `storage`, or allocate one."""
        self._cluster = cluster
        self.barriers = barriers(name) if storage is None else _own(storage)
        self.count = role.threads * cluster.cta_group
        start_up().barriers.append((self.barriers, lambda: self.count))
        start_up().is_remote |= cluster.cta_group > 1

    @property
    def barrier(self) -> Barrier:
        return self.barriers[0]

    def signal_peer(self) -> None:
        """Arrive, with each thread, at the other CTA of the pair, if there is one."""
        if self._cluster.cta_group > 1:
            remote = self._cluster.remote(self.barrier.at, self._cluster.peer_rank)
            remote_arrive(remote)

    def signal_self(self) -> None:
        """Arrive, with each thread, at this CTA's barrier."""
        self.barrier.arrive()

    def signal_complete(self) -> None:
        """Signal the peer, then this CTA: it may exit as soon as its own barrier completes."""
        self.signal_peer()
        self.signal_self()

    def wait(self) -> None:
        """Wait until all readers of TMEM have arrived."""
        self.barrier.wait(0)

    def complete_dealloc(self, tmem: TmemAllocation) -> None:
        """Relinquish the allocation permit, wait for all readers, and free TMEM."""
        tmem.release_lock()
        self.wait()
        isa.tcgen05.fence.after_thread_sync()
        tmem.deallocate()


def _own(storage: SMemArray) -> Barriers:
    if not isinstance(storage.storage, Barriers) or storage.size != 1:
        raise Diag.BAD_KERNEL.error(here(), what="`dealloc_mbar` must be one barrier")
    return storage.storage
