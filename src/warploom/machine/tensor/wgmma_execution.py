"""The completion of a `wgmma`: operands are read as matrices, products are added to registers.

Instructions that follow each other into the same accumulator are one run, and a run whose descriptors advance by a
fixed distance gathers its operands at once. How a sequence of instructions falls into runs is planned once; a loop
meets the same sequence again and again. Merging changes only how bytes are fetched: each instruction's product is made
and added by itself, so that every schedule gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc
from warploom.hardware.matrix_descriptors import decode_shared_descriptor
from warploom.hardware.mma_shapes import WGMMA, WGMMA_M
from warploom.hardware.swizzles import GRANULE
from warploom.machine.numerics.products import Factor, product, products_of_steps
from warploom.machine.routines.call_lists import Argument, Calls, Prepared, Sequence, base_of
from warploom.machine.routines.granule_kernels import Gather
from warploom.machine.tensor.operands import Located, Operand, OperandForm
from warploom.machine.tensor.register_rows import RowNames, Rows
from warploom.machine.tensor.wgmma_registers import (
    A_REGISTERS,
    ACCUMULATORS,
    Accumulator,
    a_granules,
    column_order,
    read_a,
    row_order,
)
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Immediate, Vector

if TYPE_CHECKING:
    from warploom.machine.core.group import Warpgroup
    from warploom.machine.engine.native import Routines

Array = npt.NDArray[Any]

FAMILY = "sm_90"
_IMMEDIATES = {"scale_a": (1, -1), "scale_b": (1, -1), "trans_a": (0, 1), "trans_b": (0, 1)}
"""The legal values of each immediate; the first where an instruction has none."""
_MOST_ISSUES = 256
"""Choices of operands that an instruction remembers: a loop has few, and where they never repeat none is worth it."""
_MOST_TOGETHER = 64
"""Instructions that are planned together."""


@dataclass(frozen=True, slots=True, eq=False)
class Multiply:
    """One wgmma.mma_async of a program: types, and how it reads its operands."""

    op: Op
    a: OperandForm | None
    """None where A is in registers."""
    a_type: str
    b: OperandForm
    accumulator: Accumulator
    negative: bool
    saturate: bool
    issues: dict[tuple[int, int, bool, int], Issue] = field(default_factory=dict)

    def kind(self) -> tuple[object, ...]:
        """The key that two instructions must share to be one run."""
        a, b = self.a, self.b
        return (
            self.a_type,
            b.element,
            a is None,
            a and a.mn_major,
            b.mn_major,
            self.accumulator,
            self.negative,
            self.saturate,
        )

    def issue(self, d: Rows, a: Rows | int, b: int, accumulate: bool, size: int) -> Issue:
        """The instruction with its operands, remembered for each choice of them; `size` bytes of memory exist."""
        key = (a if isinstance(a, int) else 0, b, accumulate, size)
        known = self.issues.get(key)
        if known is None:
            left = self._located("A", self.a, key[0], size) if self.a is not None else None
            right = self._located("B", self.b, b, size)
            if len(self.issues) >= _MOST_ISSUES:
                self.issues.clear()
            registers = a.names if isinstance(a, Rows) else a
            spans = tuple((each.first * GRANULE, each.end) for each in (left, right) if each is not None)
            known = self.issues[key] = Issue(self, d.names, registers, b, accumulate, left, right, spans)
        return known

    def _located(self, name: str, form: OperandForm, value: int, size: int) -> Located:
        located = form.locate(value)
        if located.end > size:
            raise Diag.OUT_OF_BOUNDS.error(
                notes=(f"descriptor {value:#x}: {decode_shared_descriptor(value, FAMILY).fields}",),
                what=f"Operand {name} from {located.start:#x} to {located.end:#x} ({size:#x} bytes exist)",
                space="shared",
            )
        return located


@dataclass(frozen=True, slots=True, eq=False)
class Issue:
    """An instruction with its operands."""

    multiply: Multiply
    d: RowNames
    a: RowNames | int
    b: int
    accumulate: bool
    left: Located | None
    right: Located
    spans: tuple[tuple[int, int], ...]
    """The first byte and the end of each operand in shared memory."""

    def same(self, other: Issue) -> bool:
        """Return whether the other is the same instruction with the same operands."""
        if self is other:
            return True
        mine, others = (self.a, self.b, self.accumulate), (other.a, other.b, other.accumulate)
        return self.multiply is other.multiply and mine == others

    def continues(self, first: Issue) -> bool:
        """Return whether it adds to what a run that began with `first` has accumulated."""
        return self.accumulate and self.d == first.d and self.multiply.kind() == first.multiply.kind()


_Part = tuple[int, int]
"""The matrix that a plan reads, by number, and the columns of it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Instructions that add to one accumulator: for each of them where A and B are."""

    multiply: Multiply
    d: RowNames
    accumulate: bool
    left: tuple[_Part | RowNames, ...]
    right: tuple[_Part, ...]
    together: tuple[int | None, int | None]
    """The matrices of A and of B, where the instructions read their columns in order."""


@dataclass(slots=True, eq=False)
class _Plan:
    """The matrices to read from shared memory, and the runs that use them."""

    reads: tuple[Located, ...]
    runs: tuple[_Run, ...]
    list: tuple[Calls, Prepared | None] | None = None
    """The calls of native code that do all of it, with what executes them; None where there are none."""
    span: tuple[int, int] = field(init=False)
    """The first byte that it reads from shared memory, and the end of the last."""

    def __post_init__(self) -> None:
        starts, ends = [each.first for each in self.reads], [each.end for each in self.reads]
        self.span = min(starts, default=0) * GRANULE, max(ends, default=0)

    def calls(self, routines: Routines) -> Prepared | None:
        """The calls of native code that do all of it, if native code takes all of it."""
        if self.list is None or self.list[0] is not routines.calls:
            self.list = routines.calls, _prepared(self, routines)
        return self.list[1]


def native_calls(routines: Routines | None, batch: tuple[Issue, ...]) -> Prepared | None:
    """The calls of native code that complete instructions in order; None where it does not complete all of them."""
    return None if routines is None or len(batch) > _MOST_TOGETHER else _plan(batch).calls(routines)


@lru_cache(maxsize=256)
def _plan(batch: tuple[Issue, ...]) -> _Plan:
    reads: dict[tuple[object, ...], Located] = {}
    runs: list[_Run] = []
    at = 0
    while at < len(batch):
        end = at + 1
        while end < len(batch) and batch[end].continues(batch[at]):
            end += 1
        run = batch[at:end]
        first = run[0]
        left: tuple[_Part | RowNames, ...] = tuple(issue.a for issue in run if isinstance(issue.a, RowNames))
        if first.multiply.a is not None:
            values = [issue.a for issue in run if isinstance(issue.a, int)]
            left = _parts(first.multiply.a, values, [issue.left for issue in run if issue.left is not None], reads)
        right = _parts(first.multiply.b, [issue.b for issue in run], [issue.right for issue in run], reads)
        together = _in_order(left), _in_order(right)
        runs.append(_Run(first.multiply, first.d, first.accumulate, left, right, together))
        at = end
    return _Plan(tuple(reads.values()), tuple(runs))


def _in_order(parts: Items[_Part | RowNames]) -> int | None:
    """The matrix of which the instructions of a run read one column after the other; None where there is none."""
    first = parts[0]
    if isinstance(first, RowNames) or any(part != (first[0], step) for step, part in enumerate(parts)):
        return None
    return first[0]


def _parts(
    form: OperandForm, values: Items[int], located: Items[Located], reads: dict[tuple[object, ...], Located]
) -> tuple[_Part, ...]:
    """Locate one operand of each instruction of a run; a matrix that several runs use is read once."""
    first, steps = located[0], len(located)
    advance = located[1].start - first.start if steps > 1 else 0
    regular = all(
        one.layout == first.layout and one.start == first.start + i * advance for i, one in enumerate(located)
    )
    merged = steps > 1 and advance > 0 and regular
    whole = [form.locate(values[0], steps, advance)] if merged else located
    slots: list[int] = []
    for one in whole:
        key = (id(one.index), one.first, one.element, form.mn_major)
        reads.setdefault(key, one)
        slots.append(list(reads).index(key))
    return tuple((slots[0], i) if merged else (slots[i], 0) for i in range(steps))


def execute(warpgroup: Warpgroup, batch: tuple[Issue, ...], seen: Array | None = None) -> None:
    """Complete instructions in order; `seen` is shared memory as they see it, if that is not as it is."""
    shared, sight = warpgroup.cta.shared, warpgroup.cta.grid.sight
    for first in range(0, len(batch), _MOST_TOGETHER):
        plan = _plan(batch[first : first + _MOST_TOGETHER])
        whole = shared.async_whole
        if seen is not None:
            whole = seen
        elif sight is not None and plan.reads:
            whole = shared.seen_by(sight, *plan.span)
        routines = warpgroup.cta.grid.routines
        calls = None if routines is None else plan.calls(routines)
        if routines is not None and calls is not None:
            base = warpgroup.cta.shared_memory if whole is shared.whole else base_of(whole)
            if routines.calls.run(calls, base, warpgroup.registers):
                continue
        granules = whole.view(np.complex128)
        operands = [_operand(located, granules, routines) for located in plan.reads]
        for run in plan.runs:
            _execute_run(warpgroup, run, operands)


_SHARED, _REGISTERS = 1, 2
"""The bases of the calls of a plan."""
_D_TYPES = {np.dtype(np.float32): "f32", np.dtype(np.int32): "s32", np.dtype(np.float16): "f16"}
_ROW_BYTES = 512
"""Bytes of a 32-bit register of all lanes of a warpgroup."""


def _prepared(plan: _Plan, routines: Routines) -> Prepared | None:
    """The calls of native code for a plan; None where the types, the order or the registers are not what it takes."""
    sequence = Sequence(bases=2)
    found: dict[tuple[object, bool], tuple[Argument, int] | None] = {}

    def operand(number: int, transposed: bool) -> tuple[Argument, int] | None:
        key = number, transposed
        if key not in found:
            found[key] = plan.reads[number].convert(routines.granules, sequence, _SHARED, transposed)
        return found[key]

    def fragments(names: tuple[RowNames, ...], element: str) -> tuple[Argument, int] | None:
        key = names, False
        if key not in found:
            found[key] = routines.granules.convert(sequence, _REGISTERS, 0, a_granules(names), Gather(element, False))
        return found[key]

    for run in plan.runs:
        multiply, d, (left, right) = run.multiply, run.d, run.together
        rows = tuple(part for part in run.left if isinstance(part, RowNames))
        d_type = _D_TYPES[multiply.accumulator.dtype]
        if d_type == "s32" and (multiply.saturate or multiply.negative):
            return None
        if len(d.indices) != multiply.accumulator.registers:  # native code writes as many
            return None
        if not d.adjacent or any(each.file != "a" for each in (d, *rows)):
            return None
        k, n, accumulate = multiply.b.k, multiply.b.rows, run.accumulate
        words: tuple[Argument, int] = (d.indices[0] * _ROW_BYTES, _REGISTERS), _ROW_BYTES // 4
        sequence.needs(_REGISTERS, (d.indices[-1] + 1) * _ROW_BYTES)
        pairs: list[tuple[tuple[Argument, int] | None, tuple[Argument, int] | None, int, int, int]] = []
        if right is not None and (left is not None or rows):
            a = operand(left, False) if left is not None else fragments(rows, multiply.a_type)
            pairs.append((a, operand(right, True), 0, 0, len(run.right)))
        else:
            for part, (b, b_step) in zip(run.left, run.right, strict=True):
                if isinstance(part, RowNames):
                    pairs.append((fragments((part,), multiply.a_type), operand(b, True), 0, b_step, 1))
                else:
                    pairs.append((operand(part[0], False), operand(b, True), part[1], b_step, 1))
        for a, b_, a_step, b_step, steps in pairs:
            if a is None or b_ is None:
                return None
            first, second = _moved(a, 8 * a_step * k), _moved(b_, 8 * b_step * k * b_[1])
            routines.products.multiply_fragments(
                sequence, first, second, (n, k, steps), words,
                accumulate=accumulate, negative=multiply.negative, d_type=d_type,
            )  # fmt: skip
            accumulate = True
    return sequence.prepared()


def _moved(matrix: tuple[Argument, int], distance: int) -> tuple[Argument, int]:
    """A part of a matrix, so many bytes further on."""
    place, stride = matrix
    assert isinstance(place, tuple)
    return (place[0] + distance, place[1]), stride


def _operand(located: Located, granules: Array, routines: Routines | None) -> Operand:
    gather = None if routines is None else partial(located.gather, routines.granules, granules)
    return Operand(lambda: Factor(located.read(granules), located.k, located.element), gather)


def _execute_run(warpgroup: Warpgroup, run: _Run, operands: list[Operand]) -> None:
    multiply, d = run.multiply, run.d
    accumulator, words = multiply.accumulator, warpgroup.rows(d)
    add, negative, saturate = accumulator.add, multiply.negative, multiply.saturate
    k = multiply.b.k
    routines = warpgroup.cta.grid.routines
    if routines is not None and accumulator.dtype == np.float32:
        accumulate = run.accumulate
        for left_part, right_part, steps in _operands(warpgroup, run, operands):
            routines.products.add_fragments(
                left_part, right_part, steps, words, accumulate=accumulate, negative=negative
            )
            accumulate = True
        _put_back(warpgroup, d, words)
        return
    total: Array | None = accumulator.load(words) if run.accumulate else None
    left, right = run.together
    if right is not None and (left is not None or multiply.a is None):
        if left is None:
            parts = [read_a(warpgroup.rows(part), multiply.a_type) for part in run.left if isinstance(part, RowNames)]
            a = Factor(np.concatenate(parts, axis=1), k, multiply.a_type)
        else:
            a = operands[left].factor()
        for each in products_of_steps(a, operands[right].factor(), len(run.right)):
            total = add(total, each if total is not None else each.copy(), negative, saturate)
    else:
        for part, (b, b_step) in zip(run.left, run.right, strict=True):
            if isinstance(part, RowNames):
                a, a_step = Factor(read_a(warpgroup.rows(part), multiply.a_type), k, multiply.a_type), 0
            else:
                a, a_step = operands[part[0]].factor(), part[1]
            total = add(total, product(a, operands[b].factor(), a_step, b_step), negative, saturate)
    assert total is not None
    accumulator.store(words, total)
    _put_back(warpgroup, d, words)


def _put_back(warpgroup: Warpgroup, d: RowNames, words: Array) -> None:
    """Write registers that are not adjacent, of which `words` is a copy."""
    if not d.adjacent:
        warpgroup.files[d.file][list(d.indices)] = words


def _operands(warpgroup: Warpgroup, run: _Run, operands: list[Operand]) -> Iterator[tuple[Array, Array, int]]:
    """A and the transposed B of a run in float64, with the number of instructions that multiply them."""
    multiply, k, (left, right) = run.multiply, run.multiply.b.k, run.together
    parts = [read_a(warpgroup.rows(part), multiply.a_type) for part in run.left if isinstance(part, RowNames)]
    if right is not None and (left is not None or parts):
        a = operands[left].wide() if left is not None else np.concatenate(parts, axis=1, dtype=np.float64)
        yield a, operands[right].right(), len(run.right)
        return
    for number, (part, (b, b_step)) in enumerate(zip(run.left, run.right, strict=True)):
        if isinstance(part, RowNames):
            a = parts[number].astype(np.float64)
        else:
            a = operands[part[0]].wide()[:, part[1] * k : part[1] * k + k]
        yield a, operands[b].right()[b_step * k : b_step * k + k], 1


def read(op: Op) -> Multiply:
    """The shape and the types of an instruction, if they exist together; all that is wrong comes in one error."""
    shape, d_type, a_type, b_type = op["shape"], op["d_type"], op["a_type"], op["b_type"]
    n, k = (int(part) for part in shape.removeprefix(f"m{WGMMA_M}n").split("k"))
    row = WGMMA[a_type]
    b_types = row.b_types or (a_type,)
    where = op.instruction.loc or Loc("<ptx>", op.instruction.line)
    rules = (
        (b_type in b_types, f"A of .{a_type} goes with B of {_list(b_types)}, not .{b_type}"),
        (d_type in row.d_types, f"A of .{a_type} goes with D of {_list(row.d_types)}, not .{d_type}"),
        (k == row.k, f"k of .{a_type} is {row.k}, not {k}"),
        (n in row.n, f"n of .{a_type} is one of {', '.join(map(str, row.n))}, not {n}"),
    )
    wrong = [text for holds, text in rules if not holds]
    if wrong:
        raise Diag.BAD_SHAPE.error(where, text=op.instruction.opcode, what="; ".join(wrong))
    accumulator = ACCUMULATORS[d_type](n)
    counts = {"d": accumulator.registers, "a": A_REGISTERS}
    lists = {name: operand for name in counts if isinstance(operand := op.operands[name], Vector)}
    options = {name: operand.value for name in _IMMEDIATES if isinstance(operand := op.operands.get(name), Immediate)}
    wrong = [
        f"{name} has {len(given.items)} registers and must have {counts[name]}"
        for name, given in lists.items()
        if len(given.items) != counts[name]
    ]
    wrong += [
        f"{name} is {value} and must be {' or '.join(map(str, _IMMEDIATES[name]))}"
        for name, value in options.items()
        if value not in _IMMEDIATES[name]
    ]
    if wrong:
        raise Diag.BAD_OPERANDS.error(where, text=op.instruction.text[:200], what="; ".join(wrong), takes=op.form.takes)
    order = column_order if accumulator.paired else np.arange
    a = None if "a" in lists else OperandForm(FAMILY, WGMMA_M, k, a_type, bool(options.get("trans_a")), row_order)
    b = OperandForm(FAMILY, n, k, b_type, bool(options.get("trans_b")), order)
    negative = options.get("scale_a", 1) != options.get("scale_b", 1)
    return Multiply(op, a, a_type, b, accumulator, negative, bool(op["satfinite"]))


def _list(types: tuple[str, ...]) -> str:
    return " or ".join(f".{name}" for name in types)
