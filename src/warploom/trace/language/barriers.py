"""Barriers in shared memory that count arrivals and bytes, by name, so that reports can speak of them."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.trace.builder import current
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.control import leave_unless
from warploom.trace.language.values import Value
from warploom.trace.language.views import Index, View, shared

_BYTES = 8


@dataclass(frozen=True)
class Barrier:
    """One mbarrier of this CTA."""

    at: At

    def init(self, count: int) -> None:
        """Make it a barrier whose phase ends after `count` arrivals, and all bytes that were expected."""
        emit("mbarrier.init.shared::cta.b64", self.at, count)

    def arrive(self, count: int | None = None) -> None:
        """Arrive at the barrier, `count` times at once if it is given."""
        emit("mbarrier.arrive.shared::cta.b64", self.at, count, discard=True)

    def arrive_and_expect(self, bytes_: Value | int) -> None:
        """Arrive, and let the phase wait for bytes that copies will bring."""
        emit("mbarrier.arrive.expect_tx.shared::cta.b64", self.at, bytes_, discard=True)

    def expect(self, bytes_: Value | int) -> None:
        """Add to the bytes that the current phase expects (expect_tx), without an arrival."""
        emit("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", self.at, bytes_)

    def test(self, parity: Value | int) -> Value:
        """Return whether the phase of a parity has ended; the instruction may wait a while before it returns false."""
        return emit("mbarrier.try_wait.parity.shared::cta.b64", self.at, parity)[0]

    def wait(self, parity: Value | int) -> None:
        """Wait until the phase of a parity has ended."""
        builder = current("A barrier")
        again = builder.label("wait")
        builder.place(again)
        leave_unless(builder, self.test(parity), again)

    def remote(self, rank: Value | int) -> Value:
        """The address, in the cluster's shared memory, of the same barrier in another CTA."""
        return emit("mapa.shared::cluster.u32", self.at.address, rank)[0]


@dataclass(frozen=True)
class Barriers:
    """A row of barriers: `full[stage]`."""

    name: str
    view: View

    def __len__(self) -> int:
        return self.view.shape[0]

    def __getitem__(self, index: Index) -> Barrier:
        return Barrier(self.view.at(index))

    def init(self, count: int) -> None:
        """Initialise all of them; one thread does it, before a fence and a barrier of the CTA."""
        for index in range(len(self)):
            self[index].init(count)


def barriers(name: str, count: int = 1) -> Barriers:
    """A new row of barriers in shared memory, not yet initialised."""
    view = shared("u64", count, name=name, align=_BYTES)
    builder = current("barriers()")
    builder.note(f"barrier {name} {builder.shared[-1].name} {_BYTES} {count}")
    return Barriers(name, view)


def fence_barrier_init() -> None:
    """Make initialised barriers visible to TMA and to the cluster."""
    emit("fence.mbarrier_init.release.cluster")


def sync_threads() -> None:
    """Synchronise all threads of the CTA."""
    emit("bar.sync", 0)


def named_sync(number: int, threads: int) -> None:
    """Synchronise the threads of some warps at a numbered barrier."""
    emit("bar.sync", number, threads)


def named_arrive(number: int, threads: int) -> None:
    """Arrive at a numbered barrier without waiting."""
    emit("bar.arrive", number, threads)
