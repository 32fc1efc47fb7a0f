"""Hopper's tensor core: `wgmma`, its groups, and when it reads and writes.

The four warps of a warpgroup issue the same instruction, together as a convoy or one after the other. Operands and
accumulators are read, and accumulators written, when the operation completes: what happens to a register or to shared
memory between issue and completion is seen, or lost, as on hardware. Operations of a warpgroup complete in order.

Where the schedule has convoys, operations wait for their commit and complete together; else each completes by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Loc
from warploom.facts.descriptors import decode_shared_descriptor
from warploom.machine.asynchrony import Operation
from warploom.machine.events import Event
from warploom.machine.group import WARP, WARPGROUP, Waitable
from warploom.machine.operands import footprint
from warploom.machine.participation import absent, whole_warps
from warploom.machine.registry import Run, executes
from warploom.machine.rows import Rows
from warploom.machine.wgmma_runs import FAMILY, Issue, execute, read
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.group import Group, Warpgroup

Array = npt.NDArray[Any]

_WARPS = WARPGROUP // WARP
_ALL = f"the {_WARPS} warps of a warpgroup"


class Pipeline(Waitable):
    """The wgmma operations of one warpgroup, counted from its first in the order of issue.

    `issued` counts them for each warp; `committed` holds for each warp how many it had issued at each commit that is
    not yet complete; `submitted` is how many the grid knows of, `completed` how many are done, `flight` the others.
    """

    __slots__ = ("committed", "completed", "flight", "issued", "last", "submitted", "warpgroup")

    def __init__(self, warpgroup: Warpgroup) -> None:
        super().__init__()
        self.warpgroup = warpgroup
        self.flight: deque[Issue] = deque()
        self.issued = [0] * _WARPS
        self.committed: list[deque[int]] = [deque() for _ in range(_WARPS)]
        self.submitted = self.completed = 0
        self.last: Operation | None = None

    def issue(self, warps: Sequence[int], new: Issue) -> None:
        """Some warps issue their next wgmma."""
        for warp in warps:
            at = self.issued[warp] - self.completed
            if at == len(self.flight):
                self.flight.append(new)
            elif self.flight[at] is not new:
                other = self.flight[at].multiply.op.instruction
                found = f"warp {warp} with another instruction or other operands than line {other.line} of the others"
                raise absent(new.multiply.op, f"{_ALL} to issue the same instruction with the same operands", found)
            self.issued[warp] += 1
        if not self.warpgroup.cta.grid.schedule.convoys:
            while self.submitted < min(self.issued):
                self._submit(self.submitted + 1)

    def commit(self, warps: Sequence[int]) -> None:
        """Some warps close their open group."""
        for warp in warps:
            self.committed[warp].append(self.issued[warp])
        if self.warpgroup.cta.grid.schedule.convoys:
            ready = min(groups[-1] if groups else self.completed for groups in self.committed)
            if ready > self.submitted:
                self._submit(ready)

    def drained(self, warp: int, leave: int) -> bool:
        """Whether at most the `leave` latest groups of a warp are incomplete."""
        groups = self.committed[warp]
        while groups and groups[0] <= self.completed:
            groups.popleft()
        return len(groups) <= leave

    def _submit(self, end: int) -> None:
        """Let the operations up to the `end`th complete, in one go."""
        first, self.submitted = self.submitted, end
        name = f"{self.warpgroup.cta.name} {self.name} wgmma {first}-{end - 1}"
        operation = self.last = Operation(name, lambda: self._complete(end - first), self.last)
        operation.then.append(self)
        self.warpgroup.cta.grid.submit(operation)

    def _complete(self, count: int) -> None:
        batch = tuple(self.flight.popleft() for _ in range(count))
        self.completed += count
        execute(self.warpgroup, batch)
        if self.warpgroup.cta.grid.observers:
            for issue in batch:
                _report(self.warpgroup, issue)

    @property
    def name(self) -> str:
        first = self.warpgroup.index * _WARPS
        return f"warps {first}-{first + _WARPS - 1}"

    def describe(self) -> str:
        text = f"wgmma groups of {self.name}: {self.completed} of {max(self.issued)} operations complete"
        first, most = self.warpgroup.index * _WARPS, max(self.issued)
        late = [f"warp {first + warp} has issued {count}" for warp, count in enumerate(self.issued) if count < most]
        return ", ".join([text, *late])


def _report(warpgroup: Warpgroup, issue: Issue) -> None:
    """Tell the observers what an operation read."""
    cta, multiply = warpgroup.cta, issue.multiply
    instruction = multiply.op.instruction
    loc = instruction.loc or Loc(cta.program.file, instruction.line)
    for form, value in ((multiply.a, issue.a), (multiply.b, issue.b)):
        if form is None or not isinstance(value, int):
            continue
        descriptor = decode_shared_descriptor(value, FAMILY)
        addresses = footprint(descriptor, form.rows, form.k, form.element, mn_major=form.mn_major)
        details = {"verb": "reads", "address": addresses, "registers": issue.d.indices}
        agent = (cta.index, warpgroup.index * _WARPS)
        cta.grid.emit(Event("complete", agent, (1 << WARPGROUP) - 1, loc, "shared", "async", details=details))


def _pipeline(warpgroup: Warpgroup) -> Pipeline:
    pipeline: Pipeline | None = warpgroup.state.get("wgmma")
    if pipeline is None:
        pipeline = warpgroup.state["wgmma"] = Pipeline(warpgroup)
    return pipeline


def _warps(g: Group, chosen: Array | None) -> Sequence[int]:
    """The executing warps by their number in the warpgroup."""
    first = g.first_lane // WARP
    if chosen is None:
        return range(first, first + g.warps)
    return [first + int(warp) for warp in np.flatnonzero(chosen)]


@executes("wgmma.mma_async")
def multiply_accumulate(op: Op) -> Run:
    """Issue D = A·B + D, or D = A·B where scale-d is false."""
    multiply = read(op)

    def run(g: Group, mask: Array | None, d: Rows, a: Any, b: Any, scale_d: Any, *immediates: int) -> None:
        chosen = whole_warps(g, mask, op)
        warpgroup = g.warpgroup
        if warpgroup.lanes != WARPGROUP:
            raise absent(op, _ALL, f"a warpgroup of {warpgroup.lanes // WARP} warps")
        if isinstance(a, np.ndarray):
            a = _same(a, chosen, op, "a-desc")
        if isinstance(b, np.ndarray):
            b = _same(b, chosen, op, "b-desc")
        if isinstance(scale_d, np.ndarray):
            scale_d = _same(scale_d, chosen, op, "scale-d")
        issue = multiply.issue(d, a, b, bool(scale_d), len(g.cta.shared.whole))
        _pipeline(warpgroup).issue(_warps(g, chosen), issue)

    return run


def _same(value: Array, chosen: Array | None, op: Op, what: str) -> int:
    """An operand that must be the same in every executing lane."""
    live = value if chosen is None else value[chosen.repeat(WARP)]
    one = live[0]
    if (live != one).any():
        raise absent(
            op, f"the same {what} in all threads of a warpgroup", f"threads with {len(np.unique(live))} values of it"
        )
    return int(one)


@executes("wgmma.fence")
def fence(op: Op) -> Run:
    """Order register accesses before it with the wgmmas behind it: here they are already in order."""

    def run(g: Group, mask: Array | None) -> None:
        whole_warps(g, mask, op)

    return run


@executes("wgmma.commit_group")
def commit(op: Op) -> Run:
    """Close the group of the wgmmas issued since the last commit; an empty group counts too."""

    def run(g: Group, mask: Array | None) -> None:
        chosen = whole_warps(g, mask, op)
        g.grid.effects += 1
        _pipeline(g.warpgroup).commit(_warps(g, chosen))

    return run


@executes("wgmma.wait_group")
def wait(op: Op) -> Run:
    """Wait until at most so many of the latest groups are incomplete."""

    def run(g: Group, mask: Array | None, count: int) -> bool:
        chosen = whole_warps(g, mask, op)
        pipeline = _pipeline(g.warpgroup)
        if all(pipeline.drained(warp, count) for warp in _warps(g, chosen)):
            return True
        g.wait(pipeline)
        return False

    return run
