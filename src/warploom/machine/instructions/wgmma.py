"""Hopper's tensor core: `wgmma`, its groups, and when it reads and writes.

The four warps of a warpgroup issue the same instruction, together as a convoy or one after the other. Operands and
accumulators are read, and accumulators written, when the operation completes: what happens to a register or to shared
memory between issue and completion is seen, or lost, as on hardware. Operations of a warpgroup complete in order.

Where the schedule has convoys, operations wait for their commit and complete together, unless the kernel touches their
registers before; else each completes by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.hardware.matrix_descriptors import decode_shared_descriptor
from warploom.hardware.swizzles import GRANULE
from warploom.machine.copy.bulk import READERS, SMALL, Landing
from warploom.machine.core.async_operations import Operation
from warploom.machine.core.group import POISON, WARP, WARPGROUP, Waitable
from warploom.machine.core.participation import absent, whole_warps
from warploom.machine.core.registry import TOGETHER, Run, executes
from warploom.machine.memory.proxy_visibility import Sight
from warploom.machine.memory.shared_memory import RANK_SHIFT
from warploom.machine.observers.deferred import Again, Agents, OneOperation, Operations
from warploom.machine.observers.events import WORD, CommitGroup, Source, Touch, Triple, agent_of, warps_of
from warploom.machine.observers.layouts import layout_of_operand
from warploom.machine.observers.reporting import Issued
from warploom.machine.tensor.operands import footprint
from warploom.machine.tensor.register_rows import RowNames, Rows
from warploom.machine.tensor.wgmma_execution import FAMILY, Issue, execute, native_calls, read
from warploom.ptx.analysis.operand_registers import registers_of
from warploom.ptx.isa.table import BITS, Op

if TYPE_CHECKING:
    from warploom.machine.core.group import Group, Warpgroup
    from warploom.machine.engine.native import Routines
    from warploom.machine.routines.call_lists import Prepared

Array = npt.NDArray[Any]

_WARPS = WARPGROUP // WARP
_SCALARS = (bool, int)
_LANES = (1 << WARPGROUP) - 1
_HARMLESS = [False]
_MOST_KNOWN = 64
"""Sequences of instructions that are remembered."""
_ALL = f"the {_WARPS} warps of a warpgroup"
_EVERY = range(_WARPS)


class Pipeline(Waitable):
    """The wgmma operations of one warpgroup, counted from its first in the order of issue.

    `issued` counts them for each warp; `committed` holds for each warp how many it had issued at each commit that is
    not yet complete, `commits` how many commits there were; `submitted` is how many the grid knows of, `completed` how
    many are done, `flight` the others. To observers each warp's part is an operation; `reported` are those in flight.
    `fenced` are the registers of the warps in `seen` as their operations see them.
    """

    __slots__ = (
        "commits",
        "committed",
        "completed",
        "direct",
        "fenced",
        "flight",
        "hidden",
        "issued",
        "joint",
        "known",
        "last",
        "marks",
        "prefix",
        "reported",
        "reporter",
        "seen",
        "sights",
        "submitted",
        "together",
        "warpgroup",
    )  # fmt: skip

    def __init__(self, warpgroup: Warpgroup) -> None:
        super().__init__()
        self.warpgroup = warpgroup
        self.flight: deque[Issue] = deque()
        self.issued = [0] * _WARPS
        self.committed: list[deque[int]] = [deque() for _ in range(_WARPS)]
        self.commits = [0] * _WARPS
        self.reported: deque[list[Issued | Again]] = deque()
        self.known: dict[tuple[Issue, ...], Operations] = {}
        """Operations that were issued before, as they are reported."""
        self.sights: deque[list[Sight]] = deque()
        """The knowledge that the warps which have issued each of those in flight had then."""
        self.joint: tuple[tuple[Sight, ...], Sight | None] = (), None
        """The knowledge of each warp that issued the latest operation, and their joint knowledge."""
        self.marks: deque[tuple[int, int]] = deque()
        """In lockstep, for each of those in flight: the copies that native code had noted, and the latest operation."""
        self.hidden: dict[int, Array] = {}
        """Shared memory as operations see it that copies under way must not reach, by their number."""
        if warpgroup.cta.mode.lockstep is not None:
            warpgroup.cta.state.setdefault(READERS, []).append(self)
        self.fenced: Array | None = None
        self.seen: list[int] = []
        self.submitted = self.completed = 0
        self.direct = warpgroup.cta.mode.immediate
        self.together = self.direct or warpgroup.cta.mode.lockstep is not None
        self.reporter = warpgroup.cta.grid.reporter
        self.last: tuple[Operation, ...] = ()
        self.prefix = ""
        """The beginning of the names of operations."""

    def issue_whole(self, new: Issue) -> bool:
        """Issue for the whole warpgroup where operations complete at their commit; False where that is not so."""
        a, b, c, d = self.issued
        if not (self.together and a == b == c == d):
            return False
        if not self.direct:
            if id(new.multiply.op) in self.warpgroup.cta.program.unordered_wgmmas:
                self._look_unfenced(new)
            self._mark()
        self.flight.append(new)
        a += 1
        self.issued = [a, a, a, a]
        if self.reporter is not None:
            self._tell(_EVERY, new)
        return True

    def issue_one(self, group: Group, new: Issue) -> bool:
        """Issue as one warp, without observers, an instruction that may wait for its commit; False, and nothing is
        done, where that is not so. It is `issue` without what only other cases need.
        """
        mode, issued, flight, warp = group.cta.mode, self.issued, self.flight, group.first_lane // WARP
        if group.warps > 1 or self.reporter is not None or mode.lockstep is not None:
            return False
        if not mode.convoys and id(new.multiply.op) in group.cta.program.unordered_wgmmas:
            return False
        at = issued[warp] - self.completed
        if at == len(flight):
            flight.append(new)
        elif flight[at] is not new:
            return False
        issued[warp] += 1
        if group.cta.cluster.knowledge is not None:
            self._look(group.number, at)
        if not mode.convoys and self.submitted < min(issued):
            self._submit(self.submitted + 1)
        return True

    def issue_run(self, group: Group, new: tuple[Issue, ...]) -> bool:
        """Issue instructions as one warp, like `issue_one`, where they wait for their commit."""
        mode, flight, warp = group.cta.mode, self.flight, group.first_lane // WARP
        if self.reporter is not None or not mode.convoys or mode.lockstep is not None:
            return False
        at = self.issued[warp] - self.completed
        if at == len(flight):
            flight.extend(new)
        elif tuple(islice(flight, at, at + len(new))) != new:
            return False
        self.issued[warp] += len(new)
        return True

    def issue_several(self, new: tuple[Issue, ...]) -> bool:
        """Issue instructions for the whole warpgroup, like `issue_whole`."""
        a, b, c, d = self.issued
        if not (self.direct and a == b == c == d):
            return False
        if self.reporter is not None and not self._report_again(a, new):
            return False
        self.flight.extend(new)
        a += len(new)
        self.issued = [a, a, a, a]
        return True

    @property
    def may_commit(self) -> bool:
        """True if a commit for the whole warpgroup completes its operations."""
        flight = self.warpgroup.cta.mode.flight
        return self.direct and not flight.count and self.issued.count(self.issued[0]) == _WARPS

    def commit_whole(self) -> bool:
        """Commit for the whole warpgroup where that completes its operations; False where that is not so."""
        if not self.may_commit:
            return False
        issued, grid = self.issued[0], self.warpgroup.cta.grid
        if self.reporter is not None:
            if not self._acts_as_one(_EVERY):
                return False
            self.reporter.tell("issue", "commits", group=CommitGroup("wgmma", self.commits[0]))
        grid.effects += 1
        self._note_commits([count + 1 for count in self.commits])
        if issued > self.submitted:
            self._submit(issued)
        return True

    def _note_commits(self, commits: list[int]) -> None:
        """Let warps have committed so often, also for native code."""
        self.commits = commits
        if self.reporter is not None:
            self.warpgroup.flags[1] = commits[0] if self._counts_alike else -1

    def complete_at_once(self, new: tuple[Issue, ...], commit: Op, routines: Routines, calls: Prepared) -> bool:
        """Issue and commit instructions for the whole warpgroup by a list of native calls, where no other is under way;
        False, and nothing is done, where that is not so.
        """
        warpgroup, issued = self.warpgroup, self.issued[0]
        grid = warpgroup.cta.grid
        if self.flight or not warpgroup.cta.mode.immediate or not self.may_commit or grid.routines is not routines:
            return False
        if self.reporter is not None and (id(commit) not in grid.program.reports or not self._counts_alike):
            return False
        if not routines.calls.run(calls, warpgroup.cta.shared_memory, warpgroup.registers):
            return False
        if self.reporter is not None:
            reports, group = grid.program.reports[id(commit)], CommitGroup("wgmma", self.commits[0])
            self.reporter.again_committed(self._as_reported(new), group, reports.source, reports.declared["commits"])
        grid.effects += 3
        end = issued + len(new)
        self.issued, self.submitted, self.completed = [end, end, end, end], end, end
        self._note_commits([count + 1 for count in self.commits])
        self.notify()
        return True

    def issue(self, warps: Sequence[int], new: Issue, *, at_once: bool) -> None:
        """Some warps issue their next wgmma; `at_once` where it must not wait for its commit."""
        cta = self.warpgroup.cta
        mode, knowledge = cta.mode, cta.cluster.knowledge
        if len(warps) == _WARPS and self.issue_whole(new):
            if at_once:
                self._submit(self.issued[0])
            return
        for warp in warps:
            at = self.issued[warp] - self.completed
            if at == len(self.flight):
                if mode.lockstep is not None:
                    self._mark()
                self.flight.append(new)
            elif not self.flight[at].same(new):
                other = self.flight[at].multiply.op.instruction
                found = f"warp {warp} with another instruction or other operands than line {other.line} of the others"
                raise absent(new.multiply.op, f"{_ALL} to issue the same instruction with the same operands", found)
            self.issued[warp] += 1
            if knowledge is not None:
                self._look(cta.rank * len(cta.live) + self.warpgroup.index * _WARPS + warp, at)
            if not mode.convoys and id(new.multiply.op) in cta.program.unordered_wgmmas:
                self._read_unfenced(warp, new)
        if self.reporter is not None:
            self._tell(warps, new)
        if at_once:
            while self.submitted < min(self.issued):
                self._submit(self.submitted + 1)

    def _mark(self) -> None:
        """Note which copies are older than the operation that is issued; later ones of an open group are not."""
        cta = self.warpgroup.cta
        cta.state.pop((SMALL, self.warpgroup.index * _WARPS), None)
        self.marks.append((0 if cta.copies is None else cta.copies.issued, cta.mode.flight.issued))

    def hide(self, copies: Sequence[Landing], *, noted: bool) -> None:
        """Copies complete: operations that were issued while they were under way do not see them.

        They are known by their numbers among those that native code has `noted`, or as operations.
        """
        if not self.flight:
            return
        shared = self.warpgroup.cta.shared
        base = shared.base - shared.reserved
        for at, (issue, (before, latest)) in enumerate(zip(self.flight, self.marks, strict=True), self.completed):
            last = before if noted else latest + 1
            for number, first, end in copies:
                if number < last and at not in self.hidden:
                    for start, stop in issue.spans:
                        if start < end - base and first - base < stop:
                            self.hidden[at] = shared.async_whole.copy()

    def _registers(self, warp: int) -> Array:
        """The 32-bit registers of a warp, as [register, lane]: a view."""
        return self.warpgroup.files["a"][:, WARP * warp : WARP * (warp + 1)]

    def _fenced(self, warp: int) -> Array:
        """The registers of a warp as its wgmmas see them, [register, lane]: poison before its first fence."""
        if self.fenced is None:
            self.fenced = np.full_like(self.warpgroup.files["a"], POISON["a"])
        if warp not in self.seen:
            self.seen.append(warp)
        return self.fenced[:, WARP * warp : WARP * (warp + 1)]

    def fence(self, warps: Sequence[int]) -> None:
        """Let later wgmmas of some warps see what their registers hold now."""
        if len(warps) == _WARPS == len(self.seen) and self.fenced is not None:
            rows = self.warpgroup.cta.program.rows_of_wgmmas
            self.fenced[rows] = self.warpgroup.files["a"][rows]
            return
        for warp in warps:
            self._fenced(warp)[...] = self._registers(warp)

    def _look_unfenced(self, new: Issue) -> None:
        """Do what `_read_unfenced` does for each warp, if a register has changed."""
        words = self.warpgroup.files["a"]
        names = [each for each in (new.a, new.d if new.accumulate else None) if isinstance(each, RowNames)]
        for each in names:
            rows = each.selector
            if self.fenced is None or len(self.seen) < _WARPS or words[rows].tobytes() != self.fenced[rows].tobytes():
                for warp in _EVERY:
                    self._read_unfenced(warp, new)
                return

    def _read_unfenced(self, warp: int, new: Issue) -> None:
        """Give an operation the values of the last fence for registers that the warp has changed since.

        A copy of an ordered register counts as ordered: ptxas, which allocates the registers, moves it.
        """
        names = [(new.a, "a")] if isinstance(new.a, RowNames) else []
        names += [(new.d, "d")] if new.accumulate else []
        if names:
            op = new.multiply.op
            copied = self.warpgroup.cta.program.copied_behind_fence.get(id(op), frozenset())
            registers, fenced = self._registers(warp), self._fenced(warp)
            for each, slot in names:
                if copied:
                    of_names = zip(each.indices, registers_of(op.operands[slot]), strict=True)
                    ordered = [row for row, name in of_names if name in copied]
                    fenced[ordered] = registers[ordered]
                rows = each.selector
                if not np.array_equal(registers[rows], fenced[rows]):
                    self.warpgroup.cta.grid.unordered += 1
                    registers[rows] = fenced[rows]

    def _look(self, warp: int, at: int) -> None:
        """Note what a warp of the cluster knows at issue: an operation sees what each warp that issues it sees."""
        knowledge = self.warpgroup.cta.cluster.knowledge
        assert knowledge is not None
        if at == len(self.sights):
            self.sights.append([knowledge.sight(warp)])
        else:
            self.sights[at].append(knowledge.sight(warp))

    def _tell(self, warps: Sequence[int], new: Issue) -> None:
        """Let observers know of the parts that some warps have in their latest operation."""
        cta, reporter = self.warpgroup.cta, self.reporter
        assert reporter is not None
        touches = _touches(new, cta.index, cta.rank)
        if self._acts_as_one(warps) and self.issued.count(self.issued[0]) == _WARPS:
            self._note(self.issued[0], reporter.issue_one(touches, CommitGroup("wgmma", self.commits[0])))
            return
        for warp in warps:
            with self._as_warp(warp):
                part = reporter.issue_one(touches, CommitGroup("wgmma", self.commits[warp]))
            self._note(self.issued[warp], part)

    def _report_again(self, issued: int, new: tuple[Issue, ...]) -> bool:
        """Let observers know of operations that the whole warpgroup issues after so many others; False where the open
        groups of its warps have different numbers.
        """
        if not self._counts_alike:
            return False
        reporter, group = self.reporter, CommitGroup("wgmma", self.commits[0])
        assert reporter is not None
        made = reporter.again(self._as_reported(new), group, step=0, at_once=False)
        if reporter.completions:
            self._note(issued + 1, made)
            self.reported.extend([] for _ in new[1:])
        return True

    @property
    def _counts_alike(self) -> bool:
        """True if the open groups of all warps have the same number."""
        return self.commits.count(self.commits[0]) == _WARPS

    def _as_reported(self, new: tuple[Issue, ...]) -> Operations:
        """Operations that the whole warpgroup issues, as they are reported."""
        cta, found = self.warpgroup.cta, self.known.get(new)
        if found is None:
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            agents = warps_of(agent_of(cta.index, self.warpgroup.index * _WARPS), _LANES)
            placed = [(issue, cta.grid.source_of(issue.multiply.op)) for issue in new]
            made = partial(_as_reported, agents, placed, cta.index, cta.rank)
            found = self.known[new] = Operations(agents, len(new), made, (self.warpgroup.index, new))
        return found

    def _note(self, issued: int, part: Issued | Again | None) -> None:
        """Remember what was reported of an operation, or of several from it on, if its completion is to be reported."""
        if part is not None:
            at = issued - self.completed
            while at > len(self.reported):
                self.reported.append([])
            self.reported[at - 1].append(part)

    def _acts_as_one(self, warps: Sequence[int]) -> bool:
        """True if a convoy of all warps acts, whose open groups have the same number."""
        reporter = self.reporter
        return (
            reporter is not None
            and len(warps) == _WARPS
            and reporter.lanes == _LANES
            and reporter.actor.agent.warp == self.warpgroup.index * _WARPS
            and self._counts_alike
        )

    @contextmanager
    def _as_warp(self, warp: int) -> Iterator[None]:
        """Tell observers meanwhile of one warp of the warpgroup, where a convoy acts."""
        reporter = self.reporter
        assert reporter is not None
        lanes = reporter.lanes
        number = warp + self.warpgroup.index * _WARPS - reporter.actor.agent.warp
        reporter.narrow(lanes & WORD << WARP * number)
        yield
        reporter.narrow(lanes)

    def commit(self, warps: Sequence[int]) -> None:
        """Some warps close their open group."""
        reporter = self.reporter
        if reporter is not None and self._acts_as_one(warps):
            reporter.tell("issue", "commits", group=CommitGroup("wgmma", self.commits[0]))
            reporter = None
        for warp in warps:
            if reporter is not None:
                with self._as_warp(warp):
                    reporter.tell("issue", "commits", group=CommitGroup("wgmma", self.commits[warp]))
            self.commits[warp] += 1
            self.committed[warp].append(self.issued[warp])
            self.warpgroup.flags[0] = 1
        self._note_commits(self.commits)
        if self.together or self.warpgroup.cta.mode.convoys:
            ready = min(groups[-1] if groups else self.completed for groups in self.committed)
            if ready > self.submitted:
                self._submit(ready)

    def drained(self, warps: Sequence[int], leave: int) -> bool:
        """Return whether at most the `leave` latest groups of each of these warps are incomplete."""
        for warp in warps:
            groups = self.committed[warp]
            while groups and groups[0] <= self.completed:
                groups.popleft()
            if len(groups) > leave:
                return False
        return True

    def tell_drained(self, warps: Sequence[int], leave: int) -> None:
        """Tell observers that at most the `leave` latest groups of each of these warps are incomplete."""
        reporter = self.reporter
        assert reporter is not None
        if self._acts_as_one(warps):
            group = CommitGroup("wgmma", max(self.commits[0] - leave, 0))
            reporter.tell("wait", "drains", group=group, leave=leave)
            return
        for warp in warps:
            with self._as_warp(warp):
                group = CommitGroup("wgmma", max(self.commits[warp] - leave, 0))
                reporter.tell("wait", "drains", group=group, leave=leave)

    def _submit(self, end: int) -> None:
        """Let the operations up to the `end`th complete, in one go."""
        first, self.submitted = self.submitted, end
        grid, mode = self.warpgroup.cta.grid, self.warpgroup.cta.mode
        issues: tuple[Issued | Again, ...] = ()
        if self.reported:
            parts = (self.reported[number - self.completed] for number in range(first, end))
            issues = tuple(issued for part in parts for issued in part)
        if mode.immediate and not mode.flight.count:
            grid.effects += 2
            if self.reporter is not None and issues:
                self.reporter.effect(issues, lambda: self._complete(end - first))
            else:
                self._complete(end - first)
            self.notify()
            return
        if not self.prefix:
            self.prefix = f"{self.warpgroup.cta.name} {self.name}: wgmma.mma_async"
        operation = Operation(f"{self.prefix} {first}-{end - 1}", lambda: self._complete(end - first), self.last)
        self.last = (operation,)
        operation.then.append(self)
        if self.sights:
            issued = islice(self.sights, first - self.completed, end - self.completed)
            sights = tuple(chain.from_iterable(issued))
            if sights != self.joint[0]:  # of operations that follow each other they are seldom others
                self.joint = sights, Sight.joined(sights)
            operation.sight = self.joint[1]
        operation.issues = issues
        if (copies := self.warpgroup.cta.copies) is not None:
            operation.copies = copies.issued
        grid.submit(operation)

    def _complete(self, count: int) -> None:
        flight = self.flight
        if count == len(flight):
            batch = tuple(flight)
            flight.clear()
        else:
            batch = tuple([flight.popleft() for _ in range(count)])
        if self.sights:
            for _ in batch:
                self.sights.popleft()
        if self.reported:
            for _ in batch:
                self.reported.popleft()
        for _ in range(count if self.marks else 0):
            self.marks.popleft()
        self.completed += count
        if self.hidden:
            for at, issue in enumerate(batch, self.completed - count):
                execute(self.warpgroup, (issue,), self.hidden.pop(at, None))
        else:
            execute(self.warpgroup, batch)
        if self.fenced is not None:
            for names in {each.d for each in batch} if len(batch) > 1 else (batch[0].d,):
                rows = names.selector
                if len(self.seen) == _WARPS:
                    self.fenced[rows] = self.warpgroup.files["a"][rows]
                    continue
                for warp in self.seen:
                    self._fenced(warp)[rows] = self._registers(warp)[rows]

    @property
    def name(self) -> str:
        first = self.warpgroup.index * _WARPS
        return f"warps {first}-{first + _WARPS - 1}"

    def describe(self) -> str:
        text = f"wgmma groups of {self.name}: {self.completed} of {max(self.issued)} operations complete"
        first, most = self.warpgroup.index * _WARPS, max(self.issued)
        late = [f"warp {first + warp} has issued {count}" for warp, count in enumerate(self.issued) if count < most]
        return ", ".join([text, *late])


@lru_cache(maxsize=1024)
def _touches(issue: Issue, cta: Triple, rank: int) -> tuple[Touch, ...]:
    """The reads and writes of an operation. Any warp's part may read all of A and B; registers are each warp's own."""
    multiply, found = issue.multiply, []
    for form, value in ((multiply.a, issue.a), (multiply.b, issue.b)):
        if form is not None and isinstance(value, int):
            descriptor = decode_shared_descriptor(value, FAMILY)
            granules = footprint(descriptor, form.rows, form.k, form.element, mn_major=form.mn_major)
            layout = layout_of_operand(descriptor, form.element)
            found.append(Touch("reads", "shared", cta, "async", granules | rank << RANK_SHIFT, GRANULE, layout))
    if isinstance(issue.a, RowNames):
        found.append(_registers("reads", cta, issue.a))
    if issue.accumulate:
        found.append(_registers("reads", cta, issue.d))
    return (*found, _registers("writes", cta, issue.d))


def _as_reported(
    agents: Agents, issues: Sequence[tuple[Issue, Source]], cta: Triple, rank: int
) -> Iterator[OneOperation]:
    """Operations of a warpgroup, as they are reported."""
    for issue, source in issues:
        yield agents, source, _touches(issue, cta, rank)


def _registers(verb: str, cta: Triple, rows: RowNames) -> Touch:
    return Touch(verb, "register", cta, "async", np.array(rows.indices, np.int64), BITS["b32"] // 8)


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
    known, hazards = multiply.issues, list[bool]()

    def run(g: Group, mask: Array | None, d: Rows, a: Any, b: Any, scale_d: Any, *immediates: int) -> None:
        if mask is None is g.mask and b.__class__ is int and scale_d.__class__ in _SCALARS:
            # The usual case of a loop: the whole warpgroup or one warp, and operands that it has had before.
            kind = a.__class__
            of_a = a if kind is int else 0 if kind is Rows else -1
            before = known.get((of_a, b, scale_d, g.cta.shared_memory[1]))  # type: ignore[arg-type]  # 1 == True
            if before is not None and hazards == _HARMLESS:
                pipeline: Pipeline | None = g.warpgroup.state.get("wgmma")
                if pipeline is not None and (
                    pipeline.issue_whole(before) if g.warps == _WARPS else pipeline.issue_one(g, before)
                ):
                    return
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
        if not hazards:
            hazards.append(id(op) in g.cta.program.accessed_before_commit)
        at_once = hazards[0] or not (g.cta.mode.convoys or g.cta.mode.lockstep is not None)
        _pipeline(warpgroup).issue(_warps(g, chosen), issue, at_once=at_once)

    return run


class _Several:
    """Instructions that a convoy issues one after the other, and perhaps commits, by the values of their operands and
    the bytes of shared memory.
    """

    def __init__(self, count: int, commit: Op | None) -> None:
        self._count, self._commit = count, commit
        self._known: dict[tuple[int, tuple[int, ...]], tuple[Issue, ...]] = {}
        self._calls: dict[tuple[int, tuple[int, ...]], tuple[Routines, Prepared]] = {}
        """The calls of native code that complete them."""

    def __call__(self, g: Group, mask: Array | None, values: tuple[int, ...], commit: tuple[Any, ...]) -> bool:
        key = g.cta.shared_memory[1], values
        known = self._known.get(key)
        if known is None or mask is not None or g.warps not in (1, _WARPS):
            return False
        pipeline = _pipeline(g.warpgroup)
        if g.warps == 1:
            if g.mask is not None or not pipeline.issue_run(g, known):
                return False
            if self._commit is not None:
                g.grid.effects += 1
                pipeline.commit(_warps(g, None))
            return True
        if self._commit is None:
            return pipeline.issue_several(known)
        calls = self._calls.get(key)
        if calls is not None and pipeline.complete_at_once(known, self._commit, *calls):
            return True
        unseen = pipeline.reporter is None
        return unseen and pipeline.may_commit and pipeline.issue_several(known) and pipeline.commit_whole()

    def learn(self, g: Group, mask: Array | None, values: tuple[int, ...]) -> None:
        """Remember the instructions if they wait for their commit."""
        pipeline: Pipeline | None = g.warpgroup.state.get("wgmma")
        if pipeline is None or not g.cta.mode.immediate or mask is not None or g.warps != _WARPS:
            return
        if len(pipeline.flight) < self._count or pipeline.submitted > pipeline.completed:
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        latest, key = tuple(list(pipeline.flight)[-self._count :]), (g.cta.shared_memory[1], values)
        self._known[key] = latest
        routines = g.grid.routines
        calls = None if self._commit is None else native_calls(routines, latest)
        if routines is not None and calls is not None:
            if len(self._calls) >= _MOST_KNOWN:
                self._calls.clear()
            self._calls[key] = routines, calls


TOGETHER["wgmma.mma_async"] = "wgmma.commit_group", _Several


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
    """Order earlier register accesses with later wgmmas, which otherwise may read what registers held before.

    Under the eager schedule they are in order anyway.
    """

    def run(g: Group, mask: Array | None) -> None:
        chosen = whole_warps(g, mask, op)
        unordered = not g.cta.mode.convoys and g.cta.program.unordered_wgmmas
        if unordered and g.warpgroup.lanes == WARPGROUP:
            _pipeline(g.warpgroup).fence(_warps(g, chosen))

    return run


@executes("wgmma.commit_group")
def commit(op: Op) -> Run:
    """Close the group of the wgmmas issued since the last commit; an empty group counts too."""

    def run(g: Group, mask: Array | None) -> None:
        pipeline = _pipeline(g.warpgroup)
        if mask is None is g.mask and g.warps == _WARPS and pipeline.commit_whole():
            return
        g.grid.effects += 1
        chosen = whole_warps(g, mask, op)
        pipeline.commit(_warps(g, chosen))

    return run


@executes("wgmma.wait_group")
def wait(op: Op) -> Run:
    """Wait until at most so many of the latest groups are incomplete."""

    def run(g: Group, mask: Array | None, count: int) -> bool:
        pipeline, reporter = _pipeline(g.warpgroup), g.grid.reporter
        if mask is None is g.mask and g.warps == _WARPS and not any(pipeline.committed):
            if reporter is not None:
                pipeline.tell_drained(_EVERY, count)
            return True
        chosen = whole_warps(g, mask, op)
        warps = _warps(g, chosen)

        if pipeline.drained(warps, count) or g.grid.late.complete_for(g, lambda: pipeline.drained(warps, count)):
            if reporter is not None:
                pipeline.tell_drained(_warps(g, chosen), count)
            return True
        g.wait(pipeline)
        return False

    return run
