"""Time stamps of each role in a buffer of global memory: when it began and ended each tile, for timelines.

Without a buffer nothing is emitted. On a GPU the unit is a nanosecond of `%globaltimer`; the emulator counts its steps,
which order events but measure no time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from warploom.trace.builder import current
from warploom.trace.language.control import when
from warploom.trace.language.roles import Roles
from warploom.trace.language.values import Value, literal, special
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import View

Work = TypeVar("Work")
_IN_TURN = 2


class Alternating(Protocol):
    """Warps of a role that take its tiles in turn with others: which they are, and one thread of them."""

    @property
    def number(self) -> Value: ...

    @property
    def first_thread(self) -> Value: ...


class TimeStamps:
    """Records the tiles of each role in a buffer u64 (CTAs, roles, tiles, 2); tiles that do not fit are left out."""

    def __init__(self, buffer: View | None, roles: Roles) -> None:
        self._buffer, self._roles = buffer, {role.name: (number, role) for number, role in enumerate(roles)}

    def each(self, tiles: Iterable[Work], turns: Alternating | None = None) -> Iterator[Work]:
        """Iterate over the tiles of the role being traced, and record the begin and the end of each.

        `turns` are warps that have every other tile: they record those.
        """
        if self._buffer is None:
            yield from tiles
            return
        count = Variable("u32", 0 if turns is None else turns.number.to("u32"))
        for tile in tiles:
            self._record(count, 0, turns)
            yield tile
            self._record(count, 1, turns)
            count.set(count + (1 if turns is None else _IN_TURN))

    @contextmanager
    def only_tile(self) -> Iterator[None]:
        """Record the begin and the end of a block in which the role being traced works on its only tile."""
        if self._buffer is not None:
            self._record(literal(0, "u32"), 0)
        yield
        if self._buffer is not None:
            self._record(literal(0, "u32"), 1)

    def _record(self, tile: Value, which: int, turns: Alternating | None = None) -> None:
        (number, role), buffer = self._roles[current("A time stamp").region.role], self._buffer
        assert buffer is not None
        cta = (special("ctaid.z") * special("nctaid.y") + special("ctaid.y")) * special("nctaid.x") + special("ctaid.x")
        with when((turns or role).first_thread & (tile.to("s32") < buffer.shape[2])):
            buffer[cta.to("s32"), number, tile.to("s32"), which] = special("globaltimer", "u64")


@dataclass(frozen=True, order=True)
class Span:
    """A tile of a role: begin and end, in the units of the buffer."""

    begin: int
    end: int
    cta: int
    role: str
    tile: int


def spans(buffer: Any, roles: Mapping[str, int]) -> list[Span]:
    """Return what a launch has recorded, in the order of time; `roles` are those of its configuration.

    The buffer, an array on the host, was zero before the launch.
    """
    names = list(roles)
    found = (
        Span(int(begin), int(end), cta, names[role], tile)
        for cta, of_cta in enumerate(buffer)
        for role, of_role in enumerate(of_cta)
        for tile, (begin, end) in enumerate(of_role)
        if end
    )
    return sorted(found)


def chrome_trace(recorded: Iterable[Span]) -> str:
    """Return spans as JSON that Chrome's `chrome://tracing` and Perfetto show: a process per CTA, a thread per role."""
    events = [
        {
            "name": f"tile {each.tile}",
            "ph": "X",
            "ts": each.begin / 1000,
            "dur": (each.end - each.begin) / 1000,
            "pid": each.cta,
            "tid": each.role,
        }
        for each in recorded
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
