"""Blackwell's tensor core instructions: MMAs into TMEM, copies into it, commits and fences.

Operands are found by decoding the descriptors that the kernel encoded. An illegal one is a fault of the instruction
that carries it; what lies in memory is looked at when the operation completes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc
from warploom.hardware.matrix_descriptors import SharedDescriptor, decode_shared_descriptor
from warploom.hardware.mma_shapes import SCALE_VECTORS, SCALED_INPUT_KINDS, SCALED_INPUT_LIMIT
from warploom.hardware.swizzles import GRANULE
from warploom.hardware.tmem import COPY_SHAPES, DECOMPRESSED_SHIFT, QUADRANT, CopyShape
from warploom.hardware.zero_column_masks import decode_zero_columns
from warploom.machine.copy.bulk import count_bytes, issuers, multicast_targets, of_lane
from warploom.machine.core.registry import TOGETHER, Run, executes
from warploom.machine.instructions.mbarrier import barrier_at, barrier_touch, shared_address
from warploom.machine.instructions.tcgen05.load_store import fence_after
from warploom.machine.memory.shared_memory import OFFSET_MASK, RANK_SHIFT
from warploom.machine.observers.events import Touch
from warploom.machine.observers.layouts import layout_of_operand
from warploom.machine.tensor.accumulators import accumulator_view, tensor_copy
from warploom.machine.tensor.elements import expand_padded
from warploom.machine.tensor.operands import footprint
from warploom.machine.tensor.tensor_core import FAMILY, Issue, Plan, TensorCore, plan, reader_of, tensor_core, thread_of
from warploom.machine.tensor.tmem import cells, group_of, split_address, tmem_of
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Address, Immediate, Vector

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]

_OPEN = "whose direction the PTX manual leaves open,"


def _where(op: Op) -> Loc:
    return op.instruction.loc or Loc("<ptx>", op.instruction.line)


_MOST_MET = 256
"""Triples of descriptors that an instruction remembers."""


class _Mma:
    """One tcgen05.mma of a program: its modifiers, and the descriptors it has met, of which a loop has few."""

    def __init__(self, op: Op) -> None:
        self.op, self.text = op, f"`{op.instruction.opcode}`"
        self.kind, self.group = op["kind"].removeprefix("kind::"), group_of(op)
        self.stationary = op.family.endswith("ws")
        self.vectors = self._scale_vectors() if op.family.endswith("scaled") else 0
        self.a_in_memory = isinstance(op.operands["a"], Address)
        self._met: dict[tuple[int, int, int], tuple[Plan, SharedDescriptor | None, SharedDescriptor, int]] = {}
        self.lists: dict[tuple[object, ...], Any] = {}
        """Native calls for sequences of MMAs that begin with this instruction."""
        self._check_options()

    def _scale_vectors(self) -> int:
        given = self.op["vector"]
        found = SCALE_VECTORS.get((self.kind, given))
        if found is None:
            legal = ", ".join(f".{name}" for kind, name in SCALE_VECTORS if kind == self.kind and name)
            what = f"{f'.{given}' if given else 'no scale vector size'} with kind::{self.kind}, which has {legal}"
            raise Diag.BAD_SHAPE.error(_where(self.op), text=self.op.instruction.opcode, what=what)
        return found

    def _check_options(self) -> None:
        op, broken = self.op, []
        disable, scale = op.operands.get("disable"), op.operands.get("scale")
        if isinstance(disable, Vector) and len(disable.items) != 4 * self.group:
            broken.append(f"the disable-output-lane list has {len(disable.items)} words, not {4 * self.group}")
        if isinstance(scale, Immediate):
            if self.kind not in SCALED_INPUT_KINDS:
                broken.append(f"kind::{self.kind} has no scale-input-d, only {' and '.join(SCALED_INPUT_KINDS)} have")
            if not 0 <= scale.value <= SCALED_INPUT_LIMIT:
                broken.append(f"scale-input-d is {scale.value} and must be 0 to {SCALED_INPUT_LIMIT}")
        if broken:
            text = op.instruction.text[:200]
            raise Diag.BAD_OPERANDS.error(_where(op), text=text, what="; ".join(broken), takes=op.form.takes)
        if op["ashift"]:
            raise Diag.NOT_MODELLED.error(_where(op), what=f"{self.text}, {_OPEN}")

    def _decoded(self, a: int, b: int, i: int) -> tuple[Plan, SharedDescriptor | None, SharedDescriptor, int]:
        """The plan, the operands in shared memory, and the first byte after them."""
        made = plan(i, self.kind, self.group, self.vectors, weight_stationary=self.stationary)
        shape, left = made.shape, None
        right = decode_shared_descriptor(b, FAMILY)
        end = _end(right, shape.n // self.group, shape.k, shape.b_element, shape.transpose_b)
        if not self.a_in_memory:
            left = decode_shared_descriptor(a, FAMILY)
            end = max(end, _end(left, made.rows, shape.k, shape.a_element, shape.transpose_a))
        return made, left, right, end

    def issue(self, core: TensorCore, g: Group, lane: int, operands: tuple[Any, ...]) -> Issue:
        """One thread's issue, checked as far as possible before it completes."""
        d, a, b, i, p = [value if isinstance(value, int) else int(value[lane]) for value in operands]
        key = (0 if self.a_in_memory else a, b, i)
        met = self._met.get(key)
        if met is None:
            if len(self._met) >= _MOST_MET:
                self._met.clear()
            met = self._met[key] = self._decoded(*key)
        made, left, right, end = met
        if end > len(g.cta.shared.whole):
            self._outside(made, left, right, len(g.cta.shared.whole))
        at, column = split_address(d)
        if at not in made.placement.lane_bases:
            accumulator_view(tmem_of(g.cta).words, made.placement, at, column, made.shape.n)
        self._require(core, column, made.columns, "the accumulator")
        place = left or split_address(a)
        if isinstance(place, tuple):
            if place[0] != at:
                what = f"{self.text}: A begins at lane {place[0]} and the accumulator at lane {at}; they need the same."
                raise Diag.TENSOR_MEMORY.error(what=what)
            self._require(core, place[1], made.a_columns, "operand A")
        issue = Issue(g, self.op, thread_of(g, lane), made, (at, column), place, right, bool(p))
        issue.key = (self, d, a, b, i, bool(p))
        return issue

    def scales(self, core: TensorCore, made: Plan, places: tuple[int, int]) -> tuple[int, int]:
        """The columns of the scale factors of A and B."""
        found = []
        for name, address, count in zip("AB", places, made.scale_columns, strict=True):
            lane, column = split_address(address)
            if lane:
                what = f"{self.text}: the scale factors of {name} begin at lane {lane}, not at lane 0."
                raise Diag.TENSOR_MEMORY.error(what=what)
            self._require(core, column, count, f"the scale factors of {name}")
            found.append(column)
        return found[0], found[1]

    def _require(self, core: TensorCore, column: int, count: int, what: str) -> None:
        for cta in core.ctas:
            tmem_of(cta).require(column, count, f"{self.text}: {what}")

    def _outside(self, made: Plan, left: SharedDescriptor | None, right: SharedDescriptor, size: int) -> None:
        shape = made.shape
        ends = {"B": (right, _end(right, shape.n // self.group, shape.k, shape.b_element, shape.transpose_b))}
        if left is not None:
            ends["A"] = (left, _end(left, made.rows, shape.k, shape.a_element, shape.transpose_a))
        for name, (descriptor, end) in ends.items():
            if end > size:
                note = f"descriptor {descriptor.value:#x}: {descriptor.fields}"
                what = f"Operand {name} from {descriptor.start:#x} to {end:#x} ({size:#x} bytes exist)"
                raise Diag.OUT_OF_BOUNDS.error(notes=(note,), what=what, space="shared")


def _end(descriptor: SharedDescriptor, rows: int, k: int, element: str, mn_major: bool) -> int:
    """The first byte after an operand."""
    return int(footprint(descriptor, rows, k, element, mn_major=mn_major)[-1]) + GRANULE


def _core(g: Group, group: int) -> TensorCore:
    core = tensor_core(g.cta, group)
    if group == 2:
        core.require_pair()
    return core


@executes("tcgen05.mma")
def multiply_accumulate(op: Op) -> Run:
    """D = A·B + D·2^-scale for a tile, or D = A·B where the predicate is false; each executing thread issues one."""
    form = _Mma(op)

    def run(g: Group, mask: Array | None, d: Any, a: Any, b: Any, i: Any, disable: Any, p: Any, scale: Any) -> None:
        core = _core(g, form.group)
        for lane in issuers(g, mask):
            issue = form.issue(core, g, lane, (d, a, b, i, p))
            if scale:
                issue.scale, issue.key = scale, None
            if disable is not None:
                words = tuple(of_lane(word, lane) for word in disable)
                if any(words):
                    issue.disabled, issue.key = words, None
            core.issue(issue)

    return run


class _Several:
    """MMAs that one thread issues one after the other, and perhaps commits, by the values of their operands."""

    def __init__(self, count: int, commit: Op | None) -> None:
        self._count, self._commit = count, commit
        self._known: dict[tuple[Group, tuple[int, ...]], tuple[int, tuple[Issue, ...]]] = {}
        """The lane that has issued them, and the MMAs, which are the same in each CTA that the group serves."""

    def __call__(self, g: Group, mask: Array | None, values: tuple[int, ...], commit: tuple[Any, ...]) -> bool:
        found = self._known.get((g, values))
        if found is None or mask is None:
            return False
        live, (lane, issues) = mask.tobytes(), found
        if live.count(1) != 1 or live.index(1) != lane:
            return False
        core = tensor_core(g.cta, issues[0].plan.group)
        if self._commit is None:
            return core.repeat(issues)
        (address, *peers), cta = commit, g.cta
        barrier = cta.mbarriers.get(address & OFFSET_MASK)
        if barrier is None or address >> RANK_SHIFT != cta.rank or not barrier.valid or any(peers):
            return False
        reports = g.grid.program.reports.get(id(self._commit))
        if g.grid.reporter is not None and (reports is None or not barrier.pending or barrier.late):
            return False
        if not core.complete_at_once(issues):
            return False
        if reports is None or g.grid.reporter is None:
            g.grid.effects += 1
            barrier.arrive(1)
            return True
        core.commit_again(issues, barrier, reports)
        return True

    def learn(self, g: Group, mask: Array | None, values: tuple[int, ...]) -> None:
        """Remember the MMAs if one thread has issued them and they wait for their commit."""
        core: TensorCore | None = g.cta.state.get("tensor_core")
        live = b"" if mask is None else mask.tobytes()
        if core is None or not g.cta.mode.immediate or live.count(1) != 1:
            return
        issues = core.latest(self._count)
        if len(issues) == self._count and all(issue.g is g and issue.key is not None for issue in issues):
            if len(self._known) >= _MOST_MET:
                self._known.clear()
            self._known[g, values] = live.index(1), issues


TOGETHER["tcgen05.mma"] = "tcgen05.commit", _Several


@executes("tcgen05.mma.ws")
def multiply_stationary(op: Op) -> Run:
    """D = A·B + D where B may stay in the core, which nothing shows, and some of its columns may count as zero."""
    form = _Mma(op)

    def run(g: Group, mask: Array | None, d: Any, a: Any, b: Any, i: Any, p: Any, zero: Any) -> None:
        core = _core(g, form.group)
        for lane in issuers(g, mask):
            issue = form.issue(core, g, lane, (d, a, b, i, p))
            if zero is not None:
                shape = issue.plan.shape
                issue.key = None
                issue.zeroed = decode_zero_columns(of_lane(zero, lane), shape.m, shape.n)
            core.issue(issue)

    return run


@executes("tcgen05.mma.scaled")
def multiply_scaled(op: Op) -> Run:
    """D = (A·scales)·(B·scales) + D, with a scale factor for each block of a row."""
    form = _Mma(op)

    def run(g: Group, mask: Array | None, d: Any, a: Any, b: Any, i: Any, sfa: Any, sfb: Any, p: Any) -> None:
        core = _core(g, form.group)
        for lane in issuers(g, mask):
            issue = form.issue(core, g, lane, (d, a, b, i, p))
            issue.key = None
            issue.scales = form.scales(core, issue.plan, (of_lane(sfa, lane), of_lane(sfb, lane)))
            core.issue(issue)

    return run


@executes("tcgen05.commit")
def commit(op: Op) -> Run:
    """Arrive on barriers once every earlier asynchronous tcgen05 operation of the thread is done."""
    group = group_of(op)

    def run(g: Group, mask: Array | None, address: Any, peers: Any = None) -> None:
        core = _core(g, group)
        one = mask is not None and mask.tobytes().count(1) == 1
        if one and g.cta.mode.at_once and peers is None and address.__class__ is int:  # the usual case
            core.settle()
            g.grid.effects += 1
            barrier_at(g.cta, shared_address(address)).arrive(1)
            return
        if one and g.cta.mode.immediate and peers is None and address.__class__ is int:
            barrier, reports = barrier_at(g.cta, shared_address(address)), g.grid.program.reports[id(op)]
            if barrier.pending and not barrier.late:
                (lane,) = issuers(g, mask)
                core.settle()
                core.commit_at_once(g.cta, thread_of(g, lane), barrier, reports)
                return
        for lane in issuers(g, mask):
            where = shared_address(of_lane(address, lane))
            if peers is None:
                targets = [where]
            else:
                ctas = multicast_targets(g.cta, of_lane(peers, lane))
                targets = [cta.rank << RANK_SHIFT | where & OFFSET_MASK for cta in ctas]
            _commit(core, g, op, lane, targets)

    return run


def _commit(core: TensorCore, g: Group, op: Op, lane: int, targets: list[int]) -> None:
    def arrive() -> None:
        for target in targets:
            barrier_at(g.cta, target).arrive(1)

    def touches() -> tuple[Touch, ...]:
        return tuple(barrier_touch("arrives", g.cta, target) for target in targets)

    core.submit(g, op, thread_of(g, lane), arrive, touches)


@executes("tcgen05.cp")
def copy(op: Op) -> Run:
    """Copy shared memory to TMEM, after the thread's earlier operations."""
    name = f"{op['shape']}.{op['multicast']}" if op["multicast"] else op["shape"]
    group, source = group_of(op), op["source"]
    if name not in COPY_SHAPES or bool(op["to"]) != bool(source):
        parts = ".".join(part for part in (name, op["to"], source) if part)
        what = f"there is no copy .{parts}"
        raise Diag.BAD_SHAPE.error(_where(op), text=op.instruction.opcode, what=what)
    shape = COPY_SHAPES[name]

    def run(g: Group, mask: Array | None, address: Any, descriptor: Any) -> None:
        core = _core(g, group)
        for lane in issuers(g, mask):
            at, column = split_address(of_lane(address, lane))
            _check_target(op, shape, at)
            for cta in core.ctas:
                tmem_of(cta).require(column, shape.row_bytes // 4, f"`{op.instruction.opcode}`")
            read = decode_shared_descriptor(of_lane(descriptor, lane), FAMILY)
            _copy(core, g, op, lane, (shape, source), (at, column), read)

    return run


def _check_target(op: Op, shape: CopyShape, lane: int) -> None:
    """A copy to all lanes begins at lane 0; one to a lane of each quadrant begins in the first."""
    if lane and (shape.height > 1 or lane >= QUADRANT):
        legal = "lane 0" if shape.height > 1 else f"a lane below {QUADRANT}"
        raise Diag.TENSOR_MEMORY.error(what=f"`{op.instruction.opcode}` at lane {lane}: it begins at {legal}.")


def _copy(
    core: TensorCore,
    g: Group,
    op: Op,
    lane: int,
    what: tuple[CopyShape, str],
    place: tuple[int, int],
    read: SharedDescriptor,
) -> None:
    shape, source = what

    def move() -> None:
        core.require_pair()
        for cta in core.ctas:
            rows = reader_of(cta).read_bytes(read, shape.rows, shape.row_bytes)
            if source:
                rows = expand_padded(rows, source) << np.uint8(DECOMPRESSED_SHIFT[source])
            memory = tmem_of(cta)
            memory.require(place[1], shape.row_bytes // 4, f"`{op.instruction.opcode}`")
            tensor_copy(memory.words, shape, *place, rows)
            count_bytes(g, "shared->tensor", rows.nbytes)

    def touches() -> tuple[Touch, ...]:
        targets = np.concatenate([np.arange(shape.height) + target for group in shape.targets for target in group])
        found: list[Touch] = []
        for cta in core.ctas:
            addresses = footprint(read, shape.rows, shape.row_bytes, "u8") | cta.rank << RANK_SHIFT
            found.append(Touch("reads", "shared", cta.index, "async", addresses, GRANULE, layout_of_operand(read)))
            found.append(cells("writes", cta.index, targets + place[0], place[1], shape.row_bytes // 4))
        return tuple(found)

    core.submit(g, op, thread_of(g, lane), move, touches)


@executes("tcgen05.shift")
def shift(op: Op) -> Run:
    """Refused: the manual says that rows move down by one except the last, and not which end that is."""
    raise Diag.NOT_MODELLED.error(_where(op), what=f"`{op.instruction.opcode}`, {_OPEN}")


@executes("tcgen05.fence")
def fence(op: Op) -> Run:
    """Orders operations across threads, together with what synchronises the threads."""
    before = op["side"] == "before_thread_sync"

    def run(g: Group, mask: Array | None) -> None:
        if g.cta.mode.convoys:
            return
        if not before:
            fence_after(g)
        core: TensorCore | None = g.cta.state.get("tensor_core")
        if core is None:
            return
        threads = [thread_of(g, lane) for lane in issuers(g, mask)]
        if before:
            core.fence_before(threads)
        else:
            core.fence_after(threads)

    return run
