"""The tensor core of a CTA, or of a pair of CTAs: the operations issued to it, the order in which they complete, and
their arithmetic.

Operations of one thread complete in the order of issue. Across threads the schedule decides, unless a
`tcgen05.fence::before_thread_sync` of the one and a later `::after_thread_sync` of the other are between them.

Where the schedule has convoys, operations complete at once, except that MMAs wait for the next instruction that could
tell whether they have: a commit, a copy, any access to TMEM. Those that follow each other along k into one
accumulator then read their operands at once; each product is still made and added by itself, so that every schedule
gives the same bits. Everywhere else each is an operation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import WarploomError
from warploom.hardware.instruction_descriptors import InstructionDescriptor, decode_instruction_descriptor
from warploom.hardware.matrix_descriptors import SharedDescriptor, decode_shared_descriptor
from warploom.hardware.swizzles import GRANULE
from warploom.hardware.tmem import PLACEMENTS, QUADRANT, Placement
from warploom.machine.copy.bulk import require_live, submit
from warploom.machine.core.async_operations import Operation
from warploom.machine.core.group import WARP
from warploom.machine.instructions.mbarrier import Mbarrier, barrier_touch_of
from warploom.machine.memory.shared_memory import RANK_SHIFT
from warploom.machine.numerics.products import Factor, products_of_steps
from warploom.machine.observers.deferred import Agents, OneOperation, Operations
from warploom.machine.observers.events import Agent, CommitGroup, Source, Touch, Touches, Triple, agent_of
from warploom.machine.observers.layouts import layout_of_operand
from warploom.machine.tensor.accumulators import (
    accumulator_view,
    add_products,
    tensor_a,
    tensor_accumulate,
    tensor_scales,
)
from warploom.machine.tensor.elements import contained
from warploom.machine.tensor.operands import (
    Operand,
    OperandReader,
    footprint,
    multiply_scaled,
    scaled,
    scaled_columns,
)
from warploom.machine.tensor.tensor_calls import TensorCalls, prepare
from warploom.machine.tensor.tmem import ENGINE, cell_addresses, cells, check_group, pair_of, tmem_of
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.group import Group
    from warploom.machine.observers.observation import Reports

Array = npt.NDArray[Any]
FAMILY = "sm_100"
"""The CTA whose shared-memory descriptors these are."""
Place = tuple[int, int]
"""Lane and column."""

Known = dict[tuple[object, ...], Operand]
"""Operands that were read already, by what and where they are."""

_new = tuple.__new__  # the constructor of a named tuple takes twice as long
_MOST_LISTS = 256
"""Sequences of MMAs that an instruction remembers."""
_MOST_MET = 32
"""Sequences of the same issues that a core remembers: those of a pipeline, twice."""
_LONGEST_RUN = 8
"""MMAs whose operands are read together."""


class _Form(NamedTuple):
    """Reads an operand, or a run of them, through its descriptor."""

    rows: int
    k: int
    element: str
    mn_major: bool
    steps: int = 1
    advance: int = 0


@lru_cache(maxsize=1 << 9)
def _granules(descriptor: SharedDescriptor, form: _Form, rank: int) -> Array:
    """The granules of an operand in the shared memory of a CTA of the cluster."""
    return footprint(descriptor, form.rows, form.k, form.element, mn_major=form.mn_major) | rank << RANK_SHIFT


class Owner(NamedTuple):
    """A CTA as the touches of MMAs name it. The `Cta` itself may stand for another one when they are made."""

    cta: Triple
    rank: int
    lanes: int
    """The lanes of its TMEM."""


def _operand(owner: Owner, descriptor: SharedDescriptor, form: _Form) -> Touch:
    """An operand in a CTA's shared memory, for observers."""
    granules, layout = _granules(descriptor, form, owner.rank), layout_of_operand(descriptor, form.element)
    return Touch("reads", "shared", owner.cta, "async", granules, GRANULE, layout)


@lru_cache(maxsize=1 << 9)
def _accumulator(placement: Placement, lane: int, column: int) -> tuple[Array, Array]:
    """The lanes of an accumulator, and its cells in TMEM."""
    lanes = placement.pitch * np.arange(placement.blocks)[:, None] + np.arange(placement.height) + lane
    return lanes, cell_addresses(lanes, column)


@dataclass(frozen=True, eq=False)
class Plan:
    """The part of an MMA that does not depend on addresses: one for each instruction descriptor and form."""

    shape: InstructionDescriptor
    placement: Placement
    group: int
    vectors: int
    """Scale factors to a row; 0 without block scaling."""

    @cached_property
    def rows(self) -> int:
        """Rows of A and D in each CTA."""
        return self.shape.m // self.group

    @cached_property
    def columns(self) -> int:
        """Columns of TMEM that D takes."""
        return self.shape.n // self.placement.blocks if self.placement.folded else self.shape.n

    @cached_property
    def a_columns(self) -> int:
        """Columns that A takes if it is in TMEM."""
        return self.shape.k * contained(self.shape.a_element).bits // 32

    @cached_property
    def b_halves(self) -> bool:
        """Return whether each half of the lanes holds the scale factors of its half of B only."""
        return self.group == 2 and self.placement.folded

    @cached_property
    def scale_columns(self) -> tuple[int, int]:
        """Columns that the scale factors of A and of B take."""
        of_b = self.shape.n // 2 if self.b_halves else self.shape.n
        return -(-self.rows // QUADRANT), -(-of_b // QUADRANT)

    @cached_property
    def merges(self) -> bool:
        """Return whether MMAs may read their operands together: nothing but addition happens to D between them."""
        return not self.vectors and not self.shape.saturate


@lru_cache(maxsize=1 << 7)
def plan(value: int, kind: str, group: int, vectors: int, *, weight_stationary: bool = False) -> Plan:
    """The plan of an instruction descriptor, or the fault that it is illegal."""
    shape = decode_instruction_descriptor(
        value, kind, group, weight_stationary=weight_stationary, scale_vectors=vectors or None
    )
    return Plan(shape, PLACEMENTS[group, shape.m, weight_stationary], group, vectors)


@dataclass(slots=True, eq=False)
class Issue:
    """One MMA as issued: everything but the memory that it will read."""

    g: Group
    op: Op
    thread: int
    plan: Plan
    d: Place
    a: SharedDescriptor | Place
    b: SharedDescriptor
    accumulate: bool
    scale: int = 0
    disabled: tuple[int, ...] = ()
    """Four words for each CTA, a bit for each lane that keeps what it holds."""
    zeroed: Array | None = None
    """The columns of B that count as zero."""
    scales: tuple[int, int] = (0, 0)
    """The columns of the scale factors of A and B."""
    key: tuple[Any, ...] | None = None
    """The instruction, which remembers `lists`, and the values of its operands; None if it has other options."""

    def continues(self, first: Issue) -> bool:
        """Return whether it only adds to what `first` has left in the accumulator."""
        return (
            self.plan is first.plan
            and self.plan.merges
            and self.accumulate
            and not self.scale
            and self.thread == first.thread
            and self.d == first.d
            and self.disabled == first.disabled
            and self.zeroed is first.zeroed
            and not (isinstance(self.a, tuple) and self._overlaps(self.a))
        )

    def touches(self, owners: tuple[Owner, ...]) -> tuple[Touch, ...]:
        """Its reads and writes in each CTA, for observers."""
        made, shape, where = self.plan, self.plan.shape, self.plan.placement
        (lane, column), found = self.d, list[Touch]()
        lanes, places = _accumulator(where, lane, column)
        for number, owner in enumerate(owners):
            b_rows = shape.n // made.group
            found.append(_operand(owner, self.b, _Form(b_rows, shape.k, shape.b_element, shape.transpose_b)))
            if isinstance(self.a, SharedDescriptor):
                found.append(_operand(owner, self.a, _Form(made.rows, shape.k, shape.a_element, shape.transpose_a)))
            else:
                found.append(cells("reads", owner.cta, lanes, self.a[1], made.a_columns))
            if made.vectors:
                everywhere = np.arange(owner.lanes)
                factors = zip(self.scales, made.scale_columns, strict=True)
                found += [cells("reads", owner.cta, everywhere, at, count) for at, count in factors]
            disabled = _lanes(self.disabled, number)
            kept = places if disabled is None else cell_addresses(lanes[~disabled[lanes]], column)
            verbs = ("reads", "writes") if self.accumulate else ("writes",)
            found += [Touch(verb, "tensor", owner.cta, ENGINE, kept, 4 * made.columns) for verb in verbs]
        return tuple(found)

    def _overlaps(self, a: Place) -> bool:
        """Return whether A in TMEM shares columns with D."""
        return a[1] < self.d[1] + self.plan.columns and self.d[1] < a[1] + self.plan.a_columns


@lru_cache(maxsize=1 << 8)
def _spans(issues: tuple[Issue, ...]) -> tuple[tuple[int, int], ...]:
    """The columns of TMEM, with their number, that MMAs touch."""
    found = [(issue.d[1], issue.plan.columns) for issue in issues]
    found += [(issue.a[1], issue.plan.a_columns) for issue in issues if isinstance(issue.a, tuple)]
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1 << 14)
def _distance(before: int, after: int) -> int:
    """The distance in bytes from the start of one descriptor to that of another; -1 if they differ in more."""
    one, two = (decode_shared_descriptor(value, FAMILY) for value in (before, after))
    same = replace(one, start=0, value=0) == replace(two, start=0, value=0)
    return two.start - one.start if same else -1


def _advance(before: SharedDescriptor | Place, after: SharedDescriptor | Place, columns: int) -> int:
    """The distance from one operand to another, in bytes or columns; -1 if the two do not form a run."""
    if isinstance(before, SharedDescriptor) and isinstance(after, SharedDescriptor):
        return _distance(before.value, after.value)
    return columns if isinstance(before, tuple) and after == (before[0], before[1] + columns) else -1


@dataclass(slots=True, eq=False)
class Run:
    """MMAs that read their operands together: the first, how many, and how far A and B advance each time."""

    first: Issue
    steps: int = 1
    advance: tuple[int, int] = (0, 0)


def _runs(issues: Sequence[Issue]) -> Iterator[Run]:
    """Issues in runs, in order."""
    run: Run | None = None
    last = issues[0]
    for issue in issues:
        if run is not None and run.steps < _LONGEST_RUN and issue.continues(run.first):
            step = _advance(last.a, issue.a, issue.plan.a_columns), _advance(last.b, issue.b, 0)
            if min(step) >= 0 and (run.steps == 1 or step == run.advance):
                run.advance = step
                run.steps += 1
                last = issue
                continue
        if run is not None:
            yield run
        run, last = Run(issue), issue
    if run is not None:
        yield run


def reader_of(cta: Cta) -> OperandReader:
    """Reads a CTA's shared memory as the operation that completes sees it."""
    shared, grid = cta.shared, cta.grid
    view = (lambda first, end: shared.seen_by(grid.sight, first, end)) if shared.two_views else None
    return OperandReader(shared.async_whole, view)


Touched = dict[tuple[Any, ...], tuple[Touch, ...]]
"""The touches of MMAs, which come again with every pass of a pipeline."""


def _touches(owners: tuple[Owner, ...], touched: Touched, issue: Issue) -> tuple[Touch, ...]:
    """The reads and writes of an MMA, for observers; remembered."""
    a = issue.a if isinstance(issue.a, tuple) else issue.a.value
    key = (issue.plan, issue.d, a, issue.b.value, issue.accumulate, issue.disabled, issue.scales)
    found = touched.get(key)
    if found is None:
        if len(touched) >= _MOST_LISTS:
            touched.clear()
        found = touched[key] = issue.touches(owners)
    return found


def _as_reported(
    owners: tuple[Owner, ...], touched: Touched, agents: Agents, issues: tuple[tuple[Issue, Source], ...]
) -> list[OneOperation]:
    """MMAs of one thread, as they are reported."""
    return [(agents, source, _touches(owners, touched, issue)) for issue, source in issues]


class TensorCore:
    """Takes operations of the threads of one CTA or a pair, and hands them to the grid in order."""

    __slots__ = (
        "_counts",
        "_fenced",
        "_last",
        "_met",
        "_ordered_before",
        "_owners",
        "_queue",
        "_readers",
        "_reported",
        "_touched",
        "ctas",
    )  # fmt: skip

    def __init__(self, ctas: tuple[Cta, ...]) -> None:
        self.ctas = ctas
        self._owners = tuple([Owner(cta.index, cta.rank, cta.grid.machine.tensor_lanes) for cta in ctas])
        self._readers = [reader_of(cta) for cta in ctas]
        self._queue: list[Issue] = []
        self._met: dict[tuple[Issue, ...], tuple[object, TensorCalls | None]] = {}
        """The calls of the same MMAs, where they are issued again."""
        self._counts: dict[int, int] = {}
        self._last: dict[int, tuple[Operation, ...]] = {}
        self._fenced: list[Operation] = []
        self._ordered_before: dict[int, tuple[Operation, ...]] = {}
        self._reported: dict[tuple[Issue, ...], Operations] = {}
        """The reports of MMAs that were issued before."""
        self._touched: Touched = {}

    def require_pair(self) -> None:
        """An operation of a pair needs both CTAs alive."""
        for cta in self.ctas:
            require_live(cta, "A tcgen05 operation needs")

    def issue(self, issue: Issue) -> None:
        """Take one MMA."""
        if issue.g.cta.mode.convoys:
            if issue.g.grid.reporter is not None:
                self._report(self._made((issue,)), issue.thread)
            self._queue.append(issue)
        else:
            run = partial(self._multiply, Run(issue), {})
            self._hand_over(issue.g, issue.op, issue.thread, run, partial(_touches, self._owners, self._touched, issue))

    def latest(self, count: int) -> tuple[Issue, ...]:
        """The latest MMAs of those that were kept back."""
        return tuple(self._queue[-count:])

    def repeat(self, issues: tuple[Issue, ...]) -> bool:
        """Take MMAs that were issued before, where they are kept back; False where they must be examined again."""
        for cta in self.ctas:
            memory = tmem_of(cta)
            if not cta.live_threads or cta.state.get("tensor_core") is not self:
                return False
            for column, count in _spans(issues):
                if not memory.holds(column, count):
                    return False
        if self.ctas[0].grid.reporter is not None:
            self.report_again(issues)
        self._queue += issues
        return True

    def report_again(self, issues: tuple[Issue, ...]) -> None:
        """Let observers know of MMAs of one thread that were issued before."""
        self._report(self._operations(issues), issues[0].thread)

    def _report(self, operations: Operations, thread: int) -> None:
        reporter = self.ctas[0].grid.reporter
        assert reporter is not None
        reporter.again(operations, self._next_group(thread, operations.count), step=1, at_once=True)

    def _operations(self, issues: tuple[Issue, ...]) -> Operations:
        """MMAs that are issued again, as they are reported."""
        known = self._reported.get(issues)
        if known is None:
            if len(self._reported) >= _MOST_MET:
                self._reported.clear()
            known = self._reported[issues] = self._made(issues)
        return known

    def _made(self, issues: tuple[Issue, ...]) -> Operations:
        """MMAs of one thread as they are reported."""
        first, cta = issues[0], issues[0].g.cta
        agents = (self._agent(cta, first.thread),)
        placed = tuple([(issue, cta.grid.source_of(issue.op)) for issue in issues])
        made = partial(_as_reported, self._owners, self._touched, agents, placed)
        key = first.thread, len(self.ctas), *[issue.key for issue in issues]
        return Operations(agents, len(issues), made, None if None in key else key)

    def complete_at_once(self, issues: tuple[Issue, ...]) -> bool:
        """Do MMAs that were issued before, where none is kept back, by their list of native calls; False, and nothing
        is done, where there is none, and for faults.
        """
        if self._queue or any(cta.state.get("tensor_core") is not self for cta in self.ctas):
            return False
        return self._settled(issues)

    def submit(self, g: Group, op: Op, thread: int, run: Callable[[], None], touches: Touches | None = None) -> None:
        """Take another operation of a thread: it completes after the thread's earlier ones."""
        if g.cta.mode.convoys:
            self.settle()
            g.grid.effects += 1
            if g.grid.reporter is None:
                run()
            else:
                g.grid.reporter.at_once(touches, self._next_group(thread), run)
        else:
            self._hand_over(g, op, thread, run, touches)

    def _agent(self, cta: Cta, thread: int) -> tuple[Agent, int]:
        """A thread of a CTA as the agent of events: its warp, and its lane as bits."""
        return agent_of(cta.index, thread // WARP - cta.rank * len(cta.live)), 1 << thread % WARP

    def commit_at_once(self, cta: Cta, thread: int, barrier: Mbarrier, reports: Reports) -> None:
        """Let a thread of a CTA commit operations, which are complete, to a barrier of the CTA, and report that."""
        self._commit(self._agent(cta, thread), thread, barrier, reports, None)

    def commit_again(self, issues: tuple[Issue, ...], barrier: Mbarrier, reports: Reports) -> None:
        """The same for MMAs that were issued before, which are reported too."""
        before = self._operations(issues)
        self._commit(before.agents[0], issues[0].thread, barrier, reports, before)

    def _commit(
        self, agent: tuple[Agent, int], thread: int, barrier: Mbarrier, reports: Reports, before: Operations | None
    ) -> None:
        grid, phase = barrier.cta.grid, barrier.phase
        grid.effects += 1
        barrier.arrive_unreported()
        assert grid.reporter is not None
        if before is not None:
            self._counts[thread] = self._counts.get(thread, -1) + before.count
        group, name = self._next_group(thread), barrier.named
        touch, ends = barrier_touch_of("arrives", name.cta, name.address), barrier.phase != phase
        who = *agent, reports.source
        grid.reporter.committed(who, touch, reports.declared, group, name, phase, ends=ends, before=before)

    def _next_group(self, thread: int, count: int = 1) -> CommitGroup:
        """The number of a thread's next operation, the first of so many, for observers."""
        number = self._counts.get(thread, -1) + 1
        self._counts[thread] = number + count - 1
        return _new(CommitGroup, (ENGINE, number))

    def settle(self) -> None:
        """Do the MMAs that were kept back."""
        if self._queue:
            issues, self._queue = self._queue, []
            if self._settled(tuple(issues)):
                return
            known: Known = {}
            for run in _runs(issues):
                first = run.first
                try:
                    self._multiply(run, known)
                except WarploomError as error:
                    if error.loc is not None:
                        raise
                    notes = (first.op.instruction.text, f"issued by {first.g.cta.name}, {first.g.name}", *error.notes)
                    raise type(error)(error.diag, first.g.grid.loc_of(first.op), notes, error.fields) from None

    def _settled(self, issues: tuple[Issue, ...]) -> bool:
        """Do MMAs by one list of native calls; False, and nothing is done, where there is none, and for faults."""
        routines, first = self.ctas[0].grid.routines, issues[0].key
        if routines is None or first is None:
            return False
        met = self._met.get(issues)
        if met is None or met[0] is not routines:
            lists: dict[tuple[object, ...], tuple[object, TensorCalls | None]] = first[0].lists
            key = tuple([issue.key for issue in issues])
            found = lists.get(key)
            if found is None or found[0] is not routines:
                if len(lists) >= _MOST_LISTS:
                    lists.clear()
                plain = None not in key
                found = lists[key] = routines, prepare(self.ctas, _runs(issues), routines) if plain else None
            if len(self._met) >= _MOST_MET:
                self._met.clear()
            met = self._met[issues] = found
        return self._called(met)

    def _called(self, met: tuple[object, TensorCalls | None]) -> bool:
        """Execute a list of native calls; False, and nothing is done, where there is none, and for faults."""
        made, routines = met[1], self.ctas[0].grid.routines
        if made is None or routines is None:
            return False
        bases = [cta.shared_memory for cta in self.ctas]
        for cta in self.ctas:
            memory = tmem_of(cta)
            if not cta.live_threads:
                return False
            for column, count in made.columns:
                if not memory.holds(column, count):
                    return False
            bases.append(memory.base)
        return routines.calls.run(made.calls, *bases)

    def _hand_over(self, g: Group, op: Op, thread: int, run: Callable[[], None], touches: Touches | None) -> None:
        g.cta.state["issues tcgen05", g.first_warp] = True
        before = (*self._ordered_before.pop(thread, ()), *self._last.get(thread, ()))
        group = None if g.grid.reporter is None else self._next_group(thread)
        operation = submit(g, op, run, touches=touches, group=group, after=before)
        self._last[thread] = (operation,)

    def fence_before(self, threads: list[int]) -> None:
        """Make the operations that these threads have issued known to threads that synchronise with them."""
        mine = (one for thread in threads for one in self._last.get(thread, ()))
        self._fenced = [one for one in dict.fromkeys((*self._fenced, *mine)) if not one.done]

    def fence_after(self, threads: list[int]) -> None:
        """Order what these threads issue from now on after what they know of by synchronisation."""
        pending = tuple(one for one in self._fenced if not one.done)
        if pending:
            self._ordered_before |= dict.fromkeys(threads, pending)

    def _multiply(self, run: Run, known: Known) -> None:
        """Read operands through the async view and update every CTA's share of the accumulator."""
        first, shape = run.first, run.first.plan.shape
        self.require_pair()
        b = self._b(run, known)
        for number, cta in enumerate(self.ctas):
            memory = tmem_of(cta)
            lane, column = first.d
            memory.require(column, first.plan.columns, "The accumulator of an MMA")
            a, disabled = self._a(run, number, known), _lanes(first.disabled, number)
            plain = shape.d_type != "s32" and disabled is None and not first.scale
            if plain and self._added_by_routine(run, number, memory.words, a, b):
                continue
            products = self._products(run, number, a, b)
            if plain and shape.d_type == "f32":
                placement, accumulate = first.plan.placement, first.accumulate
                add_products(memory.words, placement, lane, column, products, accumulate=accumulate)
                continue
            for step, added in enumerate(products):
                tensor_accumulate(
                    memory.words,
                    first.plan.placement,
                    lane,
                    column,
                    added,
                    shape.d_type,
                    accumulate=first.accumulate or step > 0,
                    scale=first.scale if step == 0 else 0,
                    saturate=shape.saturate,
                    disabled=disabled,
                )

    def _added_by_routine(self, run: Run, number: int, words: Array, a: Operand, b: Operand) -> bool:
        """Add the products of a run by native code, if there is some and it takes them."""
        first, plan, shape = run.first, run.first.plan, run.first.plan.shape
        routines, placement, negative = self.ctas[0].grid.routines, plan.placement, shape.negate_a != shape.negate_b
        if routines is None:
            return False
        blocks = 1 if placement.folded else placement.blocks
        rows, columns = shape.n // (placement.blocks if placement.folded else 1), plan.rows // blocks
        if not routines.products.fit(rows, columns):
            return False
        target = accumulator_view(words, placement, *first.d, shape.n)
        left, right = b.wide(), a.right()
        if plan.vectors:
            of_b, of_a = self._scales(first, number)
            left = scaled(left, of_b, shape.scale_type or "")
            right = scaled_columns(right, of_a, shape.scale_type or "")
        for block, part in enumerate(target):
            up, across = (block * rows, 0) if placement.folded else (0, block * columns)
            routines.products.add(
                left[up : up + rows],
                right[:, across : across + columns],
                run.steps,
                part.T,
                accumulate=first.accumulate,
                negative=negative,
                d_type=shape.d_type,
            )
        return True

    def _products(self, run: Run, number: int, a: Operand, b: Operand) -> Iterator[Array]:
        """[rows, n] of each MMA, its rows next to each other in memory as lanes are; valid until the next."""
        first, shape = run.first, run.first.plan.shape
        found: Iterable[Array]
        if first.plan.vectors:
            left, right = b.factor().values, a.factor().values
            found = [multiply_scaled(left, right, *self._scales(first, number), shape.scale_type or "")]
        else:
            found = products_of_steps(b.factor(), a.factor(), run.steps)
        for each in found:
            added = each.T.astype(np.int32) if shape.d_type == "s32" else each.T
            yield np.negative(added, out=added) if shape.negate_a != shape.negate_b else added

    def _scales(self, first: Issue, number: int) -> tuple[Array, Array]:
        """The scale factors of B and of A."""
        plan, shape, words = first.plan, first.plan.shape, tmem_of(self.ctas[number]).words
        of_a, of_b = first.scales
        return (
            tensor_scales(words, of_b, shape.n, plan.vectors, shape.scale_b_id, folded=plan.b_halves),
            tensor_scales(words, of_a, plan.rows, plan.vectors, shape.scale_a_id),
        )

    def _a(self, run: Run, number: int, known: Known) -> Operand:
        a, plan, shape = run.first.a, run.first.plan, run.first.plan.shape
        if isinstance(a, SharedDescriptor):
            form = _Form(plan.rows, shape.k, shape.a_element, shape.transpose_a, run.steps, run.advance[0])
            return self._read(number, a, form, known)
        words = tmem_of(self.ctas[number]).words
        matrix = tensor_a(words, plan.placement, *a, shape.k * run.steps, shape.a_element)
        return Operand(lambda: Factor(_float32(matrix), shape.k, shape.a_element))

    def _b(self, run: Run, known: Known) -> Operand:
        """B[n, k]: each CTA of a pair holds half of its rows."""
        first, shape = run.first, run.first.plan.shape
        rows = shape.n // len(self.ctas)
        form = _Form(rows, shape.k, shape.b_element, shape.transpose_b, run.steps, run.advance[1])
        parts = [self._read(number, first.b, form, known) for number in range(len(self.ctas))]
        if len(parts) == 1 and first.zeroed is None:
            return parts[0]

        def read() -> Factor:
            b = np.concatenate([part.factor().values for part in parts])
            if first.zeroed is not None:
                b = np.where(first.zeroed[:, None], np.float32(0), b)
            return Factor(b, shape.k, shape.b_element)

        def gather(transposed: bool) -> Array | None:
            return None if transposed else np.concatenate([part.wide() for part in parts])

        return Operand(read, gather if first.zeroed is None else None)

    def _read(self, number: int, descriptor: SharedDescriptor, form: _Form, known: Known) -> Operand:
        """An operand in shared memory; read once where runs share it."""
        key = (number, descriptor.value, form)
        found = known.get(key)
        if found is None:
            rows, k, element, mn_major, steps, advance = form
            reader, routines = self._readers[number], self.ctas[0].grid.routines

            def read() -> Factor:
                matrix = reader.read(descriptor, rows, k, element, mn_major=mn_major, steps=steps, advance=advance)
                return Factor(_float32(matrix), k, element)

            def gather(transposed: bool) -> Array | None:
                if routines is None:
                    return None
                return reader.gather(
                    routines.granules,
                    descriptor,
                    rows,
                    k,
                    element,
                    mn_major=mn_major,
                    steps=steps,
                    advance=advance,
                    transposed=transposed,
                )

            found = known[key] = Operand(read, gather)
        return found


def _float32(matrix: Array) -> Array:
    return matrix if matrix.dtype == np.float32 else matrix.astype(np.float32)


def _lanes(disabled: tuple[int, ...], number: int) -> Array | None:
    """The lanes of a CTA that keep what they hold; None for none."""
    if not any(disabled):
        return None
    words = np.array(disabled[4 * number : 4 * number + 4], "<u4")
    return np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_)


def tensor_core(cta: Cta, group: int) -> TensorCore:
    """The tensor core that a CTA's instructions of a cta_group go to, made when first used."""
    core: TensorCore | None = cta.state.get("tensor_core")
    if core is None or len(core.ctas) != group:
        check_group(cta, group)
        core = TensorCore(pair_of(cta) if group == 2 else (cta,))
        for each in core.ctas:
            check_group(each, group)
            each.state["tensor_core"] = core
            tmem_of(each).settle = core.settle
    return core


def thread_of(g: Group, lane: int) -> int:
    """A thread's number among those of its cluster."""
    return (g.cta.rank * len(g.cta.live) + g.first_warp) * WARP + lane
