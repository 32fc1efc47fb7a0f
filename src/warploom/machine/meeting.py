"""Lanes of a warp that come to one instruction on different paths and wait for each other there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.machine.group import WARP, Waitable, lane_list

if TYPE_CHECKING:
    from warploom.machine.cta import Cta
    from warploom.machine.group import Group

Array = npt.NDArray[Any]
Compute = Callable[..., Any]

EVERY = (1 << WARP) - 1


def lanes_of(bits: int) -> Array:
    """A bit mask as a boolean per lane of a warp."""
    return np.unpackbits(np.frombuffer(bits.to_bytes(4, "little"), np.uint8), bitorder="little").view(np.bool_)


class Meeting(Waitable):
    """Lanes of one warp that wait for each other at one kind of instruction; the last to come settles it.

    Lanes that have left the kernel are not waited for. `compute(lanes, live, *values)` gives the result from what all
    of them brought.
    """

    __slots__ = ("arrived", "compute", "cta", "key", "members", "over", "result", "text", "values", "warp")

    def __init__(self, cta: Cta, warp: int, key: Any, text: str, members: int, compute: Compute) -> None:
        super().__init__()
        self.cta, self.warp, self.key, self.text, self.members, self.compute = cta, warp, key, text, members, compute
        self.arrived = 0
        self.over = False
        self.result: Any = None
        self.values: tuple[Array, ...] = ()

    @property
    def missing(self) -> int:
        """The lanes that must still come."""
        return self.members & self.cta.present[self.warp] & ~self.arrived

    def bring(self, bits: int, values: tuple[Any, ...], dtypes: tuple[npt.DTypeLike, ...]) -> None:
        """Some lanes have come with their values."""
        if not self.values:
            self.values = tuple(np.full(WARP, _poison(dtype), dtype) for dtype in dtypes)
        lanes = lanes_of(bits)
        for kept, value in zip(self.values, values, strict=True):
            np.copyto(kept, value, where=lanes)
        self.arrived |= bits
        self.settle()

    def settle(self) -> None:
        """Be over if nobody is missing."""
        if self.over or self.missing:
            return
        self.over = True
        del _meetings(self.cta)[self.key]
        self.result = self.compute(WARP, lanes_of(self.arrived), *self.values)
        self.notify()

    def describe(self) -> str:
        return f"{self.text}: lanes {lane_list(lanes_of(self.missing))} of warp {self.warp} have not come"


def _poison(dtype: npt.DTypeLike) -> Any:
    return False if dtype is np.bool_ else np.iinfo(dtype).max  # type: ignore[type-var]


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


def meet(
    g: Group, key: Any, text: str, members: int, bits: int, values: tuple[Any, ...], dtypes: tuple[npt.DTypeLike, ...], compute: Compute
) -> Meeting:
    """Bring some lanes of a warp to the meeting of its kind; a group that must wait there has been told so."""
    meetings, full_key = _meetings(g.cta), (g.first_warp, key, members)
    meeting = meetings.get(full_key)
    if meeting is None:
        meeting = meetings[full_key] = Meeting(g.cta, g.first_warp, full_key, text, members, compute)
    g.grid.effects += 1
    meeting.bring(bits, values, dtypes)
    if not meeting.over:
        g.token = meeting
        g.wait(meeting)
    return meeting
