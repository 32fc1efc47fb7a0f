"""Runs of one arithmetic instruction on many registers, translated into one operation on many rows.

Compilers unroll an operation over the elements that a thread holds: 32 `ex2` follow each other. A NumPy call on 32 rows
takes little longer than one on a single row. Instructions are independent of each other in a run, unguarded, and have
the same form; their registers are given adjacent rows where that is possible, and are gathered otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from warploom.machine.core.registry import MEANINGS
from warploom.machine.semantics.array_text import Call, Leaf
from warploom.machine.translate import arithmetic as alu
from warploom.machine.translate.expressions import DTYPES, Writer, literal
from warploom.machine.translate.functions import column, fixed, on_arrays, row_numbers
from warploom.ptx.analysis.uniformity import CONVOY
from warploom.ptx.isa.table import BITS, Form, Op, Slot
from warploom.ptx.syntax.model import Immediate, Register, Special, Symbol

if TYPE_CHECKING:
    from warploom.machine.translate.register_layout import Place

_FEWEST, _MOST = 4, 128
_INPUTS = ("in", "pred", "immediate")
_SINGLE = (Register, Immediate, Special, Symbol)
_SHAPES: dict[int, bool] = {}
"""By the identity of a row of the table, which lives as long as the process."""
_WHOLE = frozenset({"u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64"})


def _inputs(op: Op) -> list[Slot]:
    return [slot for slot in op.form.slots if slot.kind in _INPUTS and op.operands[slot.name] is not None]


def _has_the_shape(op: Op) -> bool:
    """True for an unguarded arithmetic instruction with one register as its result."""
    form = op.form
    if op.instruction.guard is not None or not _may_have_the_shape(form) or type(op.operands["d"]) is not Register:
        return False
    if form.family == "setp" and (op["bool"] or alu.short_of(op, _inputs(op)) is None):
        return False
    return all(operand is None or isinstance(operand, _SINGLE) for operand in op.operands.values())


def _may_have_the_shape(form: Form) -> bool:
    """True for a row of an arithmetic instruction with one result."""
    known = _SHAPES.get(id(form))
    if known is None:
        outputs = [slot.name for slot in form.slots if slot.kind not in _INPUTS]
        known = form.family in alu.FAMILIES and form.family not in MEANINGS and outputs == ["d"]
        _SHAPES[id(form)] = known
    return known


def runs(ops: Sequence[Op], is_row: Callable[[str], bool]) -> Iterator[list[Op]]:
    """The runs of a block, in order; `is_row` is true for a register that lanes hold, false for a uniform one."""
    at = 0
    while at < len(ops):
        if at + 1 < len(ops) and ops[at + 1].form is not ops[at].form:  # most instructions stand alone
            at += 1
            continue
        found = run_at(ops, at, is_row)
        if len(found) >= _FEWEST:
            yield found
        at += max(len(found), 1)


def run_at(ops: Sequence[Op], at: int, is_row: Callable[[str], bool]) -> list[Op]:
    """The longest run that begins with an instruction; empty where it cannot be part of one."""
    first = ops[at]
    if not _has_the_shape(first) or not is_row(_name(first.operands["d"])):
        return []
    slots = _inputs(first)
    rows = [slot.name for slot in slots if _is_row(first.operands[slot.name], is_row)]
    if not rows:
        return []
    names = [slot.name for slot in slots if slot.name not in rows]
    found, written = [first], {_name(first.operands["d"])}
    for op in ops[at + 1 : at + _MOST]:
        if op.form is not first.form or op.modifiers != first.modifiers or not _has_the_shape(op):
            break
        out = _name(op.operands["d"])
        sources = [op.operands[name] for name in rows]
        if out in written or not is_row(out) or not all(_is_row(source, is_row) for source in sources):
            break
        if any(_name(source) in written for source in sources) or not all(
            _is_alike(op.operands[name], first.operands[name], first, name) for name in names
        ):
            break
        found.append(op)
        written.add(out)
    return found


def _name(operand: object) -> str:
    assert isinstance(operand, Register)
    return operand.name


def _is_row(operand: object, is_row: Callable[[str], bool]) -> bool:
    return isinstance(operand, Register) and is_row(operand.name)


def _is_alike(operand: object, other: object, op: Op, name: str) -> bool:
    """True for operands that are one value for the lanes, and either the same or literals of an ordinary slot."""
    if operand == other:
        return True
    kind = next(slot.kind for slot in op.form.slots if slot.name == name)
    return kind == "in" and isinstance(operand, Immediate) and isinstance(other, Immediate)


def row_lists(ops: Sequence[Op], classes: dict[str, int]) -> Iterator[list[str]]:
    """Lists of registers that should have adjacent rows: the results and the operands of each run of a block."""
    for run in runs(ops, lambda name: classes[name] != CONVOY):
        yield [_name(op.operands["d"]) for op in run]
        for slot in _inputs(run[0]):
            names = [operand.name for op in run if isinstance(operand := op.operands[slot.name], Register)]
            if len(set(names)) == len(run):
                yield names


@dataclass(frozen=True, slots=True)
class _Rows:
    """An operand of a run: an expression of [instruction, lane] or what NumPy broadcasts to it."""

    text: str
    whole: bool
    """False where it must be spread over the instructions, or over the lanes, before it is flat."""


def write(w: Writer, ops: Sequence[Op], at: int) -> int:
    """Write the run that begins with an instruction, if there is one; the number of instructions that it covers."""
    if w.masked:
        return 0
    run = run_at(ops, at, lambda name: w.names.layout.places[name].file != "u")
    slots = _inputs(ops[at])
    while len(run) >= _FEWEST:
        if _fits(w, run, slots):
            _Batch(w, run, slots).write()
            return len(run)
        run = run[: len(run) // 2]
    return 0


def _fits(w: Writer, run: list[Op], slots: list[Slot]) -> bool:
    """True if every register is as wide as the type that is read or written, and one file holds a slot's."""
    first = run[0]
    for slot in (first.form.slots[0], *slots):
        type_ = "pred" if slot.kind == "pred" else first.type_of(slot)
        if slot is first.form.slots[0] and first.family == "setp":
            type_ = "pred"
        places = [w.place(o) for op in run if isinstance(o := op.operands[slot.name], Register)]
        if any(place.bits != BITS.get(type_) for place in places if place.file != "u"):
            return False
        if len({place.file for place in places}) > 1:
            return False
    return True


class _Batch:
    """Writes one run."""

    def __init__(self, w: Writer, run: list[Op], slots: list[Slot]) -> None:
        self.w, self.run, self.slots, self.first = w, run, slots, run[0]
        self.count = len(run)

    def write(self) -> None:
        op, type_ = self.first, self.first["type"]
        out = [self.w.place(each.operands["d"]) for each in self.run if isinstance(each.operands["d"], Register)]
        family = op.family
        if family == "mov":
            self._put(out, self._operand(self.slots[0], "p" if type_ == "pred" else "u").text)
        elif (found := self._common_call()) is not None and found.name != "select":
            self._ufunc(found, out)
        elif found is not None:
            parts = [self._operand(self.slots[int(each.name[1:])], each.kind) for each in found.operands]
            self._put(out, f"select({', '.join(part.text for part in parts)})")
        else:
            self._call(out)

    def _common_call(self) -> Call | None:
        """The one call of NumPy that all instructions are, on their operands in order; None where there is none."""
        found: Call | None = None
        for op in self.run:
            call = alu.short_of(op, self.slots)
            if not isinstance(call, Call) or call.calls > 1 or call.dtype:
                return None
            if call.name != "select":
                for at, leaf in enumerate(call.operands):
                    assert isinstance(leaf, Leaf)
                    if leaf.name != f"x{at}" and leaf.literal != self._literal(op, at):
                        return None
            found = call
        return found

    def _literal(self, op: Op, at: int) -> int | None:
        """The literal that an operand of an instruction is."""
        operand = op.operands[self.slots[at].name] if at < len(self.slots) else None
        return operand.value if isinstance(operand, Immediate) else None

    def _rows(self, places: list[Place], kind: str) -> str | None:
        """The name of rows that are one slice of a file, read as unsigned, signed or floating; None where not."""
        names, first, step = self.w.names, places[0], places[1].index - places[0].index
        if step not in (1, -1) or any(b.index - a.index != step for a, b in pairwise(places)):
            return None
        low, high = min(first.index, places[-1].index), max(first.index, places[-1].index) + 1
        base = f"{first.file}{low}to{high}{'r' if step < 0 else ''}"
        names.bindings.setdefault(base, f"F{first.file}[{low}:{high}]{'[::-1]' if step < 0 else ''}")
        if kind in "up":
            return base
        names.bindings.setdefault(base + kind, f"{base}.view({DTYPES[kind, first.bits]})")
        return base + kind

    def _index(self, places: list[Place]) -> str:
        """The name of an array of row numbers."""
        numbers = tuple(place.index for place in places)
        return self.w.names.function(row_numbers(numbers))

    def _operand(self, slot: Slot, kind: str, type_: str = "") -> _Rows:
        w, first = self.w, self.first.operands[slot.name]
        type_ = type_ or ("pred" if slot.kind == "pred" else self.first.type_of(slot))
        given = [op.operands[slot.name] for op in self.run]
        if not w.uniform(first):
            places = [w.place(operand) for operand in given if isinstance(operand, Register)]
            if len({place.index for place in places}) == 1:
                return _Rows(w.array(first, type_, kind), whole=False)
            rows = self._rows(places, kind)
            if rows is not None:
                return _Rows(rows, whole=True)
            text = f"F{places[0].file}.take({self._index(places)}, 0)"
            return _Rows(text if kind in "up" else f"{text}.view({DTYPES[kind, places[0].bits]})", whole=True)
        if any(operand != first for operand in given):
            values = [literal(operand, type_) for operand in given if isinstance(operand, Immediate)]
            literals = column(tuple(values), BITS[type_], DTYPES[kind, BITS[type_]])
            return _Rows(w.names.function(literals), whole=False)
        return _Rows(w.array(first, type_, kind), whole=False)

    def _ufunc(self, call: Call, out: list[Place]) -> None:
        """One ufunc over all rows."""
        w, name, kind = self.w, call.name, call.kind
        parts = list[str]()
        for slot, leaf in zip(self.slots, call.operands, strict=True):
            assert isinstance(leaf, Leaf)
            # A literal is read in the type of the operation: the amount of a shift has another.
            type_ = "" if leaf.name else f"u{leaf.bits}"
            parts.append(self._operand(slot, leaf.kind, type_).text)
        operands = ", ".join(parts)
        rows = self._rows(out, "p" if out[0].bits == 1 else kind)
        if rows is None:
            w.emit(f"x = {name}({operands})")
            target = "x"
        else:
            w.emit(f"{name}({operands}, out={rows})")
            target = rows
        if call.settles:
            nan, settle = w.names.function(fixed("has_nan")), w.names.function(fixed("settle_nan"))
            w.emit(f"if {nan}({target}): {settle}({target}, None)")
        if rows is None:
            unsigned = "x" if kind in "up" or out[0].bits == 1 else f"x.view({DTYPES['u', out[0].bits]})"
            w.emit(f"F{out[0].file}[{self._index(out)}] = {unsigned}")

    def _call(self, out: list[Place]) -> None:
        """The function of the form, which takes flat arrays."""
        w, arguments = self.w, list[str]()
        types = tuple(alu.type_of(self.first, slot) for slot in self.slots)
        literals = list[int | None]()
        for slot, type_ in zip(self.slots, types, strict=True):
            operand = self.first.operands[slot.name]
            if slot.kind == "immediate":
                assert isinstance(operand, Immediate)
                literals.append(operand.value)
                continue
            literals.append(None)
            kind = "p" if type_ == "pred" else "u"
            rows = self._operand(slot, kind)
            if rows.whole:
                arguments.append(f"{rows.text}.reshape(-1)")
                continue
            spread = f"w{self.count}_{len(arguments)}_{BITS[type_]}"
            dtype = "bool_" if kind == "p" else DTYPES["u", BITS[type_]]
            w.names.bindings.setdefault(spread, f"empty(({self.count}, W), {dtype})")
            w.names.bindings.setdefault(f"{spread}f", f"{spread}.reshape(-1)")
            w.emit(f"{spread}[...] = {rows.text}")
            arguments.append(f"{spread}f")
        function = w.names.function(on_arrays(self.first.family, alu.signature_of(self.first), types, tuple(literals)))
        self._put(out, f"{function}({', '.join(arguments)}).reshape({self.count}, -1)")

    def _put(self, out: list[Place], text: str) -> None:
        rows = self._rows(out, "p" if out[0].bits == 1 else "u")
        if rows is None:
            self.w.emit(f"F{out[0].file}[{self._index(out)}] = {text}")
        else:
            self.w.emit(f"{rows}[...] = {text}")
