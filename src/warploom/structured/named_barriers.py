"""Named barriers of a CTA between some of its warps, numbered in the order of their creation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warploom.diagnostics import Diag
from warploom.hardware.targets import machine
from warploom.trace import isa
from warploom.trace.builder import current, here
from warploom.trace.language.barriers import named_arrive, named_sync
from warploom.trace.language.values import Value


@dataclass
class _Numbers:
    taken: int = 0


def _most() -> int:
    """Return the number of named barriers of a CTA; barrier 0 is reserved for all of its threads."""
    return machine(current("A barrier").target).named_barriers


def _taken(count: int) -> int:
    """Reserve `count` consecutive barrier numbers and return the first."""
    numbers = current("A barrier").parts.setdefault(_Numbers, _Numbers())
    first: int = numbers.taken + 1
    numbers.taken += count
    if numbers.taken >= _most():
        raise Diag.BAD_KERNEL.error(here(), what=f"named barrier {numbers.taken}; a CTA has {_most()}")
    return first


class WarpGroupBarrier:
    """A barrier of `num_threads` threads; `arrive` arrives without waiting."""

    def __init__(self, num_threads: int, id: int | None = None) -> None:  # noqa: A002 - the seed's name
        self.num_threads, self.id = num_threads, _taken(1) if id is None else id
        if not 0 <= self.id < _most():
            raise Diag.BAD_KERNEL.error(here(), what=f"named barrier {self.id}; a CTA has {_most()}")

    def arrive(self) -> None:
        """Arrive without waiting (`barrier.arrive`)."""
        named_arrive(self.id, self.num_threads)

    def wait(self) -> None:
        """Arrive and wait for all threads of the barrier (`barrier.sync`)."""
        named_sync(self.id, self.num_threads)

    sync = wait


class WarpgroupBarriers:
    """Several barriers, selected by an index that is known on the device only."""

    def __init__(self, num_threads: int, count: int) -> None:
        self.num_threads, self._first = num_threads, _taken(count)

    def arrive(self, number: Value) -> None:
        isa.bar.arrive(number + self._first, self.num_threads)

    def wait(self, number: Value) -> None:
        isa.bar.sync(number + self._first, self.num_threads)


class OwnBarrier:
    """The barrier of the executing warpgroup, one of several."""

    def __init__(self, row: WarpgroupBarriers, number: Callable[[], Value]) -> None:
        self._row, self._number = row, number
        self.num_threads = row.num_threads

    def sync(self) -> None:
        self._row.wait(self._number())

    wait = sync
