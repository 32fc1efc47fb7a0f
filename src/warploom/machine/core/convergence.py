"""Lanes of a warp that reach one instruction on different paths and wait for each other there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, WarploomError
from warploom.machine.core.group import WARP, Waitable
from warploom.machine.core.lane_masks import lanes_named
from warploom.machine.observers.events import BarrierName
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]
Compute = Callable[..., Any]

EVERY = (1 << WARP) - 1


def lanes_of(bits: int) -> Array:
    """A bit mask as a boolean per lane of a warp."""
    return np.unpackbits(np.frombuffer(bits.to_bytes(4, "little"), np.uint8), bitorder="little").view(np.bool_)


def absent(op: Op, needed: int, found: int) -> WarploomError:
    """The fault of an instruction whose lanes are not those that it needs."""
    needs, took = (lanes_named(lanes_of(bits)) for bits in (needed, found))
    return Diag.BAD_PARTICIPATION.error(text=op.instruction.opcode, needs=needs, found=took)


@dataclass(frozen=True, slots=True)
class Purpose:
    """The reason for which lanes meet: a key that they share, and the computation of the result.

    `compute(lanes, live, *values)` gives the result from what all of them brought, one array of each dtype. Where
    `aligned` is given, coming apart for good is that instruction's fault rather than a deadlock.
    """

    key: Any
    text: str
    compute: Compute
    dtypes: tuple[npt.DTypeLike, ...] = ()
    aligned: Op | None = None


class Meeting(Waitable):
    """Lanes of one warp that wait for each other; the last arrival completes it. Exited lanes do not count."""

    __slots__ = ("arrived", "cta", "key", "members", "number", "over", "purpose", "result", "values", "warp")

    def __init__(self, cta: Cta, warp: int, purpose: Purpose, members: int) -> None:
        super().__init__()
        self.cta, self.warp, self.purpose, self.members = cta, warp, purpose, members
        self.key = (warp, purpose.key, members)
        self.number = cta.state["meetings made"] = cta.state.get("meetings made", -1) + 1
        self.arrived = 0
        self.over = False
        self.result: Any = None
        self.values: tuple[Array, ...] = ()

    @property
    def missing(self) -> int:
        """The lanes that have not arrived."""
        return self.members & self.cta.present[self.warp] & ~self.arrived

    def bring(self, bits: int, values: tuple[Any, ...]) -> None:
        """Record the arrival of some lanes with their values."""
        if not self.values:
            self.values = tuple(np.full(WARP, _poison(dtype), dtype) for dtype in self.purpose.dtypes)
        lanes = lanes_of(bits)
        for kept, value in zip(self.values, values, strict=True):
            np.copyto(kept, value, where=lanes)
        self.arrived |= bits
        self.settle()

    def settle(self) -> None:
        """Complete if no lane is missing."""
        if self.over or self.missing:
            return
        self.over = True
        del _meetings(self.cta)[self.key]
        self.result = self.purpose.compute(WARP, lanes_of(self.arrived), *self.values)
        self.notify()

    def tell(self, kind: str) -> None:
        """Report to observers that lanes have arrived, or proceed."""
        reporter = self.cta.grid.reporter
        if reporter is not None:
            name = BarrierName("warp", self.cta.index, self.warp, f"warp {self.warp}")
            reporter.tell(kind, "syncs", barrier=name, phase=self.number, count=self.members.bit_count())

    def describe(self) -> str:
        return f"{self.purpose.text}: {lanes_named(lanes_of(self.missing))} of warp {self.warp} still to come"

    def fault(self) -> WarploomError | None:
        op = self.purpose.aligned
        return None if op is None else absent(op, self.cta.present[self.warp], self.arrived)


def _poison(dtype: npt.DTypeLike) -> Any:
    return False if dtype is np.bool_ else np.iinfo(dtype).max


def _meetings(cta: Cta) -> dict[Any, Meeting]:
    """The meetings that are open in a CTA; lanes that leave may settle them."""
    found: dict[Any, Meeting] | None = cta.state.get("meetings")
    if found is None:
        found = cta.state["meetings"] = {}
        cta.at_leave.append(lambda: _look_again(cta))
    return found


def _look_again(cta: Cta) -> None:
    for meeting in list(_meetings(cta).values()):
        meeting.settle()


def bring(g: Group, purpose: Purpose, members: int, bits: int, values: tuple[Any, ...] = ()) -> Meeting:
    """Bring some lanes of a warp to the meeting of its kind."""
    meetings = _meetings(g.cta)
    meeting = meetings.get((g.first_warp, purpose.key, members))
    if meeting is None:
        meeting = Meeting(g.cta, g.first_warp, purpose, members)
        meetings[meeting.key] = meeting
    g.grid.count_local_effect()
    meeting.bring(bits, values)
    return meeting


def meet(g: Group, purpose: Purpose, members: int, bits: int, values: tuple[Any, ...] = ()) -> Meeting:
    """Bring some lanes of a warp to the meeting of its kind, and let the group wait if it is not complete."""
    meeting = bring(g, purpose, members, bits, values)
    if not meeting.over:
        g.token = meeting
        g.wait(meeting)
    return meeting
