"""The words that a loop polls: what it reads while it runs once, and whether that has changed since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from warploom.diagnostics import WarploomError
from warploom.machine.memory.byte_memory import FlatMemory, GlobalMemory

Memory = GlobalMemory | FlatMemory
MOST_WORDS = 256
"""A loop that reads more is woken by any change of memory."""


@dataclass(frozen=True, slots=True)
class Word:
    """Bytes of a memory and the value that a loop found there."""

    memory: Memory
    address: int
    width: int
    value: Any

    def now(self) -> Any:
        """The present value; None where the memory is gone."""
        try:
            return self.memory.load(self.address, self.width, None, "a polling loop")
        except WarploomError:
            return None

    @property
    def changed(self) -> bool:
        return bool(self.now() != self.value)

    def describe(self) -> str:
        """The place and its value: `byte 0 of `flags` (4 bytes), which holds 0`."""
        return f"{self.memory.describe(self.address).partition(' is ')[2]}, which holds {self.value}"


@dataclass(slots=True)
class Polled:
    """Collects the addresses that are read, by memory and width."""

    seen: dict[tuple[int, int, int], Memory] = field(default_factory=dict)

    def note(self, memory: Memory, address: Any, width: int, mask: Any) -> None:
        if isinstance(address, int):
            places = [address]
        else:
            places = np.unique(address if mask is None else address[mask]).tolist()
        for place in places:
            self.seen[id(memory), place, width] = memory

    def words(self) -> tuple[Word, ...]:
        """The words that were read, with their present values; nothing where it is too much to compare again and
        again.
        """
        if len(self.seen) > MOST_WORDS:
            return ()
        found = [Word(memory, address, width, None) for (_, address, width), memory in self.seen.items()]
        return tuple(Word(word.memory, word.address, word.width, word.now()) for word in found)


class Collector(Protocol):
    """Takes the addresses that are read."""

    def note(self, memory: Any, address: Any, width: int, mask: Any) -> None: ...


C = TypeVar("C", bound=Collector)


@contextmanager
def polling(memories: Sequence[Memory], polled: C) -> Iterator[C]:
    """Collect what is loaded from some memories, and what atomics look at in global memory, meanwhile."""
    for memory in memories:
        _watch(memory, polled)
    try:
        yield polled
    finally:
        for memory in memories:
            # The methods of the class again.
            for name in ("load", "locate"):
                vars(memory).pop(name, None)


def _watch(memory: Any, polled: Collector) -> None:
    load = memory.load
    inside = False

    def noted(address: Any, width: int, mask: Any, what: str) -> Any:
        nonlocal inside
        if inside:  # a load of some lanes is made of loads of fewer lanes
            return load(address, width, mask, what)
        polled.note(memory, address, width, mask)
        inside = True
        try:
            return load(address, width, mask, what)
        finally:
            inside = False

    memory.load = noted
    if isinstance(memory, GlobalMemory):
        locate = memory.locate

        def located(address: Any, width: int, what: str) -> Any:
            polled.note(memory, address, width, None)
            return locate(address, width, what)

        memory.locate = located  # type: ignore[method-assign]
