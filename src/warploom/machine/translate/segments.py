"""Runs of instructions that native kernels execute: chosen, and written as one call each.

A segment is a run of consecutive instructions of a block that have kernels (`machine/engine`), together with the
arithmetic on uniform registers between them, which Python executes first: no instruction of the run writes a uniform
register, and one that would read a value which is overwritten later ends the segment. The text of a segment packs its
uniform operands into its table and calls the first kernel. If a kernel returns the number of a record, nothing of that
instruction has been executed, and the reference executes the block from there (`Group.resume`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.machine.engine.context import ITEM_BYTES, SPECIALS
from warploom.machine.engine.kernels import HEAD_WORDS, Arithmetic, Masks, Operand, Row, Scalar
from warploom.machine.engine.memory_kernels import Access
from warploom.machine.engine.semantics import semantics
from warploom.machine.memory.byte_memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from warploom.machine.translate import arithmetic as alu
from warploom.machine.translate.expressions import CLOCKS, Writer, kind_of, literal
from warploom.machine.translate.register_layout import Layout
from warploom.ptx.analysis import control_flow as flows
from warploom.ptx.isa.table import BITS, Op, Slot
from warploom.ptx.syntax.model import Address, Immediate, Negated, Pair, Register, Sink, Special, Symbol, Vector

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine
    from warploom.machine.translate.blocks import BlockWriter

WINDOWS = {"global": 0, "const": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
"""The base of each space's window of generic addresses."""
_FILES = frozenset("phab")
_PARTED = frozenset({"mov.pack", "mov.unpack", "cvta"})
_MEMORY = {"ld": False, "ldu": False, "st": True}
_LARGEST_ELEMENT = 8


@dataclass(frozen=True, slots=True)
class _Uniform:
    """A scalar operand that Python computes before the call."""

    expression: str


@dataclass(frozen=True, slots=True)
class _Constant:
    value: int


_Word = int | _Uniform | _Constant
"""A word of a record: a row, or a scalar operand that is placed after the records."""


@dataclass(frozen=True, slots=True)
class Record:
    """One instruction: its kernel, the words of its operands, and the effects on memory that it always has."""

    op: Op
    form: Arithmetic | Access
    words: tuple[_Word, ...]
    stores: int = 0


@dataclass(slots=True)
class Segment:
    """Records in order, and the position in their block after the last instruction that the segment covers."""

    block: int
    end: int
    records: list[Record]
    uniforms: dict[str, int] = field(default_factory=dict)

    def table(self, engine: Engine) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], int]:
        """The words of the segment with the addresses of its kernels, and the place of its uniform operands."""
        addresses = engine.addresses(record.form for record in self.records)
        constants = {
            word.value: number
            for number, word in enumerate(
                dict.fromkeys(word for record in self.records for word in record.words if isinstance(word, _Constant))
            )
        }
        length = sum(record.form.words for record in self.records)
        pool = length + 1
        variables = pool + len(constants)
        found = np.zeros(variables + len(self.uniforms), np.uint64)
        at = 0
        for number, record in enumerate(self.records):
            found[at], found[at + 1] = addresses[record.form], number + 1
            for place, word in enumerate(record.words, at + HEAD_WORDS):
                match word:
                    case _Constant(value):
                        found[place] = 8 * (pool + constants[value] - at)
                    case _Uniform(expression):
                        found[place] = 8 * (variables + self.uniforms[expression] - at)
                    case _:
                        found[place] = word
            at += record.form.words
        found[length] = engine.end
        for value, number in constants.items():
            found[pool + number] = value
        return found, variables


class NativeWriter:
    """Finds the segments of a text and writes their calls."""

    def __init__(self, engine: Engine, layout: Layout, *, memory: bool, masked: bool, first: int) -> None:
        self.engine, self.layout, self.memory, self.masked = engine, layout, memory, masked
        self.segments: list[Segment] = []
        self._first = first
        self._masks_ready = -1

    def take(self, blocks: BlockWriter, ops: list[Op], at: int) -> int:
        """Write the segment that begins at an instruction; the number of instructions that it covers."""
        w = blocks.w
        before: list[Op] = []
        records: list[Record] = []
        read: set[int] = set()
        end = done = at
        for op in ops[at:]:
            if op.family in flows.BRANCHES or op.family in ("ret", "exit") or op.form.blocks:
                break
            if self._is_uniform(w, op):
                if read & _uniforms_written(self.layout, op):
                    break
                before.append(op)
            else:
                w.lines.op = op
                record = self.record(w, op)
                if record is None:
                    break
                records.append(record)
                read |= _uniforms_read(self.layout, op)
                done = end + 1
            end += 1
        if not records:
            return 0
        segment = Segment(blocks.index, done, records)
        for record in records:
            for word in record.words:
                if isinstance(word, _Uniform):
                    segment.uniforms.setdefault(word.expression, len(segment.uniforms))
        number = self._first + len(self.segments)
        self.segments.append(segment)
        covered = {id(record.op) for record in records}
        for op in ops[at:done]:
            if id(op) not in covered:
                w.lines.op = op
                blocks.instruction(op)
        self._write(blocks, segment, number)
        return done - at

    def _write(self, blocks: BlockWriter, segment: Segment, number: int) -> None:
        lines, names = blocks.lines, blocks.names
        lines.op = segment.records[0].op
        names.bindings.setdefault("C", "CONTEXT.address")
        if self.masked and self._masks_ready != blocks.index:
            self._masks_ready = blocks.index
            names.bindings.setdefault("CM", "CONTEXT.mask")
            lines.add("copyto(CM, M)")
        if len(segment.uniforms) == 1:
            lines.add(f"T{number}[V{number}] = {next(iter(segment.uniforms))}")
        elif segment.uniforms:
            lines.add(f"P{number}(T{number}, 8 * V{number}, {', '.join(segment.uniforms)})")
        accesses = any(isinstance(record.form, Access) for record in segment.records)
        lines.add(f"{'x = ' if accesses else ''}RUN(C, R{number})")
        stores = sum(record.stores for record in segment.records)
        if stores:
            lines.add(f"G.grid.effects += {stores}")
        if any(isinstance(form := record.form, Access) and form.store and form.masks for record in segment.records):
            names.bindings.setdefault("CE", "CONTEXT.effects")
            lines.add("G.grid.effects += CE[0]")
            lines.add("CE[0] = 0")
        if accesses:
            lines.add(f"if x: return G.resume({number}, x - 1, u{', M' if self.masked else ''})")

    def functions(self) -> dict[str, Any]:
        """The names that the text of the segments uses."""
        # Kernels exist as long as their engine does.
        found: dict[str, Any] = {"RUN": self.engine.run, f"ENGINE{self._first}": self.engine}
        for number, segment in enumerate(self.segments, self._first):
            table, variables = segment.table(self.engine)
            # The memory view keeps the table alive as long as the program has the name.
            found |= {f"R{number}": table.ctypes.data, f"T{number}": table.data, f"V{number}": variables}
            if len(segment.uniforms) > 1:
                found[f"P{number}"] = struct.Struct(f"={len(segment.uniforms)}Q").pack_into
        return found

    def _is_uniform(self, w: Writer, op: Op) -> bool:
        """Arithmetic on uniform registers alone."""
        if op.family not in alu.FAMILIES and op.family not in _PARTED:
            return False
        guard = op.instruction.guard
        if guard is not None and w.place(guard.register).file != "u":
            return False
        for slot in op.form.slots:
            operand = op.operands[slot.name]
            parts: tuple[object, ...] = (operand,)
            if isinstance(operand, Pair):
                parts = operand.first, operand.second
            elif isinstance(operand, Vector):
                parts = tuple(operand.items)
            for part in parts:
                if part is not None and not isinstance(part, Sink) and not w.uniform(part):
                    return False
        return True

    def record(self, w: Writer, op: Op) -> Record | None:
        """An instruction as a record; None if the reference must execute it."""
        masks, guard = Masks(group=self.masked), op.instruction.guard
        last: tuple[_Word, ...] = ()
        if guard is not None:
            place = w.place(guard.register)
            if place.file != "p":
                return None
            masks, last = Masks(guard=True, group=self.masked), (place.index, int(guard.negated))
        if op.family in _MEMORY:
            record = self._access(w, op, masks, last) if self.memory else None
        elif op.family in alu.FAMILIES or op.family in _PARTED:
            record = self._arithmetic(w, op, masks, last)
        else:
            record = None
        if record is None or len(record.words) + HEAD_WORDS != record.form.words:
            return None
        return record if self.engine.supports(record.form) else None

    def _arithmetic(self, w: Writer, op: Op, masks: Masks, last: tuple[_Word, ...]) -> Record | None:
        family, modifiers = op.family, {name: text for name, text in op.modifiers.items() if text is not None}
        slots = [s for s in op.form.slots if s.kind in ("in", "pred", "immediate") and op.operands[s.name] is not None]
        given = [(op.operands[slot.name], _type_of(op, slot)) for slot in slots]
        targets = [(op.operands["d"], op.type_of(op.form.slots[0]))]
        match family:
            case "cvta":
                window = WINDOWS[op["space"].partition("::")[0]]
                family, modifiers = "sub" if op["to"] else "add", {"type": op["type"]}
                given.append((Immediate(window, "int"), op["type"]))
            case "mov.pack":
                items = op.operands["a"]
                assert isinstance(items, Vector)
                given = [(item, f"b{BITS[op['type']] // len(items.items)}") for item in items.items]
            case "mov.unpack":
                items = op.operands["d"]
                assert isinstance(items, Vector)
                targets = [(item, f"b{BITS[op['type']] // len(items.items)}") for item in items.items]
                modifiers["count"] = str(len(items.items))
            case "setp":
                d = op.operands["d"]
                targets = [(d.first, "pred"), (d.second, "pred")] if isinstance(d, Pair) else [(d, "pred")]
        if semantics(family, modifiers) is None:
            return None
        inputs: list[tuple[Operand, str]] = []
        words: list[_Word] = []
        for operand, type_ in given:
            found = self._operand(w, operand, type_)
            if found is None:
                return None
            inputs.append((found[0], "i1" if type_ == "pred" else f"i{BITS[type_]}"))
            words.append(found[1])
        outputs: list[tuple[str, bool] | None] = []
        for target, type_ in targets:
            if isinstance(target, Sink):
                outputs.append(None)
                continue
            if not isinstance(target, Register):
                return None
            place = w.place(target)
            bits = 1 if type_ == "pred" else BITS[type_]
            if place.file not in _FILES or (place.bits != bits and not (op.form.slots[0].wider and place.bits > bits)):
                return None
            outputs.append((place.file, kind_of(type_) == "s" and bits < place.bits))
            words.append(place.index * ITEM_BYTES[place.file])
        if not any(outputs):
            return None
        form = Arithmetic(family, tuple(sorted(modifiers.items())), tuple(inputs), tuple(outputs), masks)
        return Record(op, form, (*words, *last))

    def _operand(self, w: Writer, operand: object, type_: str) -> tuple[Operand, _Word] | None:
        """An operand that is read: a row, or a scalar."""
        if isinstance(operand, Immediate):
            value = int(bool(operand.value)) if type_ == "pred" else literal(operand, type_)
            return Scalar(), _Constant(value & ((1 << 64) - 1))
        if w.uniform(operand):
            if not isinstance(operand, Register | Negated | Special | Symbol):
                return None
            if isinstance(operand, Special) and operand.name in CLOCKS:  # every read counts
                return None
            text = w.scalar(operand, type_)
            return Scalar(), _Uniform(f"1 if {text} else 0" if type_ == "pred" else text)
        if isinstance(operand, Special):
            return None if type_ == "pred" else (Row("s"), SPECIALS.index(operand.name) * ITEM_BYTES["s"])
        register = operand.register if isinstance(operand, Negated) else operand
        if not isinstance(register, Register):
            return None
        place = w.place(register)
        if place.file not in _FILES or (place.file == "p") != (type_ == "pred"):
            return None
        return Row(place.file, isinstance(operand, Negated)), place.index * ITEM_BYTES[place.file]

    def _access(self, w: Writer, op: Op, masks: Masks, last: tuple[_Word, ...]) -> Record | None:
        """A load or store of global, shared or local memory, or by a generic address."""
        store, space, type_ = _MEMORY[op.family], op["space"].partition("::")[0], op["type"]
        space = "global" if space == "const" and not store else space
        element = BITS[type_] // 8
        if space not in ("", "global", "shared", "local") or op["space"] == "shared::cluster":
            return None
        address, data = op.operands["a"], op.operands["b" if store else "d"]
        if element > _LARGEST_ELEMENT or not isinstance(address, Address) or address.coordinates is not None:
            return None
        parts = data.items if isinstance(data, Vector) else (data,)
        if len(parts) != int(op["vec"][1:] or 1):
            return None
        words: list[_Word] = []
        if w.uniform(address):
            where: Row | Scalar = Scalar()
            words.append(_Uniform(w.address(address)))
        else:
            base = address.base
            if not isinstance(base, Register) or w.place(base).file not in "ab":
                return None
            place = w.place(base)
            where = Row(place.file)
            words += [place.index * ITEM_BYTES[place.file], address.offset & ((1 << 64) - 1)]
        items: list[Row | Scalar | None] = []
        for part in parts:
            if store:
                found = self._operand(w, part, type_)
                if found is None:
                    return None
                items.append(found[0])
                words.append(found[1])
            elif isinstance(part, Sink):
                items.append(None)
            elif isinstance(part, Register) and w.place(part).file in "hab" and w.place(part).bits >= 8 * element:
                items.append(Row(w.place(part).file))
                words.append(w.place(part).index * ITEM_BYTES[w.place(part).file])
            else:
                return None
        if not any(item is not None for item in items):
            return None
        form = Access(store, space, where, element, tuple(items), type_.startswith("s"), masks)
        # A generic store is one effect of its own, and one in the space that it falls in.
        counted = form.pieces * (1 if space else 2) if store and not masks else 0
        return Record(op, form, (*words, *last), counted)


def _type_of(op: Op, slot: Slot) -> str:
    if slot.kind == "immediate":
        return "b32"
    return "pred" if slot.kind == "pred" else op.type_of(slot)


def _registers(operand: object) -> list[str]:
    """The registers that an operand names."""
    match operand:
        case Register(name):
            return [name]
        case Negated(register):
            return [register.name]
        case Vector(items):
            return [name for item in items for name in _registers(item)]
        case Pair():
            return _registers(operand.first) + _registers(operand.second)
        case Address(base, _, _):
            return _registers(base)
    return []


def _uniforms_read(layout: Layout, op: Op) -> set[int]:
    """The uniform registers that an instruction names."""
    names = [name for operand in op.operands.values() for name in _registers(operand)]
    return {place.index for name in names if (place := layout.places[name]).file == "u"}


def _uniforms_written(layout: Layout, op: Op) -> set[int]:
    outputs = [op.operands[slot.name] for slot in op.form.slots if slot.kind in ("out", "pair", "outs")]
    names = [name for operand in outputs for name in _registers(operand)]
    return {place.index for name in names if (place := layout.places[name]).file == "u"}
