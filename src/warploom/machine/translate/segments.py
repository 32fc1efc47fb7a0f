"""Runs of instructions that native kernels execute: chosen, and written as one call each.

A segment is a run of consecutive instructions of a block that have kernels (`machine/engine`), together with the
arithmetic on uniform registers between them, which Python executes first: no instruction of the run writes a uniform
register, and one that would read a value which is overwritten later ends the segment. The text of a segment packs its
uniform operands into its table and calls the first kernel. If a kernel returns the number of a record, nothing of that
instruction has been executed, and the reference executes the block from there (`Group.resume`).

A segment may go on through blocks that follow each other without a branch: a chain. Between two blocks it has a record
that returns when the group has had its turn, and it can be entered at each of its blocks. The arithmetic on uniform
registers of all blocks that are still to come is executed at each entry, so that only a block whose arithmetic gives
the same again can be part of a chain after its first block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.hardware.mma_shapes import WARP_D_TYPES, WARP_MIXES, WARP_SHAPES
from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine.context import ITEM_BYTES, SPECIALS
from warploom.machine.engine.control_kernels import Barrier, Boundary, Effect, Note
from warploom.machine.engine.kernels import Arithmetic, Masks, Operand, Row, Scalar
from warploom.machine.engine.matrix_kernels import MatrixMove
from warploom.machine.engine.memory_kernels import PIECE, Access
from warploom.machine.engine.mma_kernels import ELEMENTS, WarpMma
from warploom.machine.engine.semantics import semantics
from warploom.machine.engine.warp_kernels import Elect, Shuffle
from warploom.machine.memory.byte_memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from warploom.machine.translate import arithmetic as alu
from warploom.machine.translate.expressions import CLOCKS, Writer, kind_of, literal
from warploom.machine.translate.register_layout import Layout
from warploom.ptx.analysis import control_flow as flows
from warploom.ptx.analysis.control_flow import Block
from warploom.ptx.isa.table import BITS, Op, Slot
from warploom.ptx.syntax.model import Address, Immediate, Negated, Pair, Register, Sink, Special, Symbol, Vector

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine, Form, Kernel
    from warploom.machine.translate.blocks import BlockWriter

WINDOWS = {"global": 0, "const": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
"""The base of each space's window of generic addresses."""
_FILES = frozenset("phab")
_PARTED = frozenset({"mov.pack", "mov.unpack", "cvta"})
_MEMORY = {"ld": False, "ldu": False, "st": True}
_LARGEST_ELEMENT = 8
_ALL_LANES = (1 << WARP_LANES) - 1
_SHORTEST_CHAIN, LONGEST_CHAIN = 2, 128
"""Blocks of a chain."""
_NAMED_BARRIERS = 16
_MMA_ROWS = 16
_TOGETHER = frozenset({"shfl", "elect", "bar.sync"})
"""Instructions for which lanes may wait, and that native code executes where none has to."""
_ENDINGS = frozenset({*flows.BRANCHES, "ret", "exit"})
OPERANDS: dict[str, Operand] = {**{file: Row(file) for file in "phabs"}, "n": Row("p", negated=True), "k": Scalar()}
"""The kinds of operands, each by a letter."""


class Memory(Enum):
    """The instructions with effects that native code executes: none, those on memory that has one view, or all.

    Shared memory may have two views (`shared_memory`): then stores that may reach it, and loads that synchronise, are
    the reference's.
    """

    NONE = "arithmetic"
    ONE_VIEW = "one view"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class _Uniform:
    """A scalar operand that Python computes before the call."""

    expression: str


@dataclass(frozen=True, slots=True)
class _Constant:
    value: int


_Word = int | _Uniform | _Constant
"""A word of a record: a row, or a scalar operand that is placed after the records."""


@dataclass(slots=True)
class Record:
    """One instruction: its kernel, the words of its operands, and its block."""

    op: Op
    kernel: Kernel
    words: list[_Word]
    block: int = -1

    @property
    def returns(self) -> bool:
        """True if its kernel may return: the reference must execute the instruction, or the turn is over."""
        return isinstance(self.kernel.form, Access | MatrixMove | Note | Barrier | Boundary)

    @property
    def has_effects(self) -> bool:
        """True if its kernel counts effects on memory."""
        form = self.kernel.form
        return isinstance(form, Barrier | Effect) or (isinstance(form, Access) and form.store)


@dataclass
class Segment:
    """Records in order, and the position in their last block after the last instruction that the segment covers."""

    block: int
    end: int
    records: list[Record]
    entries: list[int] = field(default_factory=lambda: [0])
    """For each block of a chain its first record; the record before that is the boundary of the block."""
    uniforms: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for record in self.records:
            for word in record.words:
                if isinstance(word, _Uniform):
                    self.uniforms.setdefault(word.expression, len(self.uniforms))

    @property
    def first_block(self) -> int:
        return self.block - len(self.entries) + 1

    @cached_property
    def boundaries(self) -> dict[int, int]:
        """The records between two blocks, each with the block that it begins."""
        return {entry - 1: self.first_block + place for place, entry in enumerate(self.entries) if place}

    @cached_property
    def starts(self) -> list[int]:
        """The words at which the records begin."""
        return list(accumulate((record.kernel.words for record in self.records), initial=0))

    def table(self, engine: Engine) -> tuple[npt.NDArray[np.uint64], int]:
        """The words of the segment with the addresses of its kernels, and the place of its uniform operands."""
        engine.link(record.kernel for record in self.records)
        constants: dict[int, int] = {}
        for record in self.records:
            for word in record.words:
                if isinstance(word, _Constant):
                    constants.setdefault(word.value, len(constants))
        pool = sum(record.kernel.words for record in self.records) + 1
        variables = pool + len(constants)
        found: list[int] = []
        for number, record in enumerate(self.records):
            at = len(found)
            found += [record.kernel.address, number + 1]
            for word in record.words:
                if isinstance(word, int):
                    found.append(word)
                elif isinstance(word, _Constant):
                    found.append(8 * (pool + constants[word.value] - at))
                else:
                    found.append(8 * (variables + self.uniforms[word.expression] - at))
        found += [engine.end, *constants, *[0] * len(self.uniforms)]
        return np.array(found, np.uint64), variables


@dataclass(frozen=True, slots=True)
class _Shape:
    """An arithmetic instruction without its operands: family and modifiers as the engine knows them, and the types."""

    family: str
    modifiers: tuple[tuple[str, str], ...]
    given: tuple[tuple[str, str], ...]
    """The slots that are read, with their types."""
    out: str
    wider: bool
    """The register of the result may be wider than its type."""


_SHAPES: dict[tuple[int, str], _Shape | None] = {}
"""By the row of the table (which lives as long as the process) and the spelling of the instruction."""


def _shape_of(op: Op) -> _Shape | None:
    """The shape of an instruction; None if it has no kernel."""
    key = id(op.form), op.instruction.opcode
    if key not in _SHAPES:
        family, modifiers = op.family, {name: text for name, text in op.modifiers.items() if text is not None}
        slots = op.form.slots
        given = tuple((slot.name, _type_of(op, slot)) for slot in slots if slot.kind in ("in", "pred", "immediate"))
        if family == "cvta":
            family, modifiers = "sub" if op["to"] else "add", {"type": op["type"]}
        shape = _Shape(family, tuple(sorted(modifiers.items())), given, op.type_of(slots[0]), slots[0].wider)
        known = family == "mov.unpack" or semantics(family, modifiers) is not None
        _SHAPES[key] = shape if known else None
    return _SHAPES[key]


@dataclass(slots=True)
class _Covered:
    """A run of instructions from a place in a block on: those with records, and the uniform arithmetic between them."""

    records: list[Record]
    between: list[Op]
    end: int
    """The position after the last record; at the end of the block if everything is covered."""
    waiting: int
    """Uniform instructions after the last record."""


class NativeWriter:
    """Finds the segments of a text and writes their calls."""

    def __init__(
        self,
        engine: Engine,
        layout: Layout,
        numbers: dict[int, int],
        *,
        memory: Memory,
        logged: bool,
        masked: bool,
        alone: bool,
        parameters: frozenset[tuple[str, int]],
        first: int,
    ) -> None:
        self.engine, self.layout, self.memory, self.masked = engine, layout, memory, masked
        self._alone, self._parameters = alone, parameters
        self._names_of_parameters: dict[str, str] = {}
        self._numbers, self._logged = numbers, logged
        self.segments: list[Segment] = []
        self._first = first
        self._masks_ready = -1
        self._read: set[int] = set()
        """The uniform registers that the segment's instructions read."""

    @property
    def is_plain(self) -> bool:
        """True in texts for whole warps and memory with one view, without observers."""
        return self.memory is Memory.ALL and not self._logged and not self.masked

    def take(self, blocks: BlockWriter, ops: list[Op], at: int) -> int:
        """Write the segment that begins at an instruction; the number of instructions that it covers."""
        self._read = set[int]()
        found = self._covered(blocks.w, ops, at, blocks.index, None)
        if not found.records:
            return 0
        segment = Segment(blocks.index, found.end, found.records)
        for op in found.between[: len(found.between) - found.waiting]:
            self._arithmetic_between(blocks, op)
        self._write(blocks, segment)
        return found.end - at

    def chain(self, w: Writer, blocks: Sequence[Block]) -> tuple[Segment, list[list[Op]]] | None:
        """The chain that begins with the first of some blocks, with the uniform arithmetic of each of its blocks; None
        where it is one block only.
        """
        if self.masked:
            return None
        self._read = set[int]()
        records, between, entries = list[Record](), list[list[Op]](), list[int]()
        end, repeated = 0, set[int]()
        for block in blocks:
            found = self._covered(w, block.ops, 0, block.index, repeated if entries else None)
            whole = found.end == len(block.ops)
            if not found.records and not (whole and entries):
                break
            if entries:
                records.append(self._boundary(block))
            entries.append(len(records))
            records += found.records
            between.append(found.between if whole else found.between[: len(found.between) - found.waiting])
            end = found.end
            if not whole or block.next != block.index + 1:
                break
        if len(entries) < _SHORTEST_CHAIN:
            return None
        return Segment(blocks[0].index + len(entries) - 1, end, records, entries), between

    def write_chain(self, blocks: BlockWriter, segment: Segment, between: list[list[Op]]) -> None:
        """Write the arithmetic and the call of a chain."""
        lines = blocks.lines
        for place, ops in enumerate(between):
            if ops:
                lines.op = ops[0]
                lines.add(f"if at <= {place}:")
                lines.indent += " "
                for op in ops:
                    self._arithmetic_between(blocks, op)
                lines.indent = lines.indent[:-1]
        self._write(blocks, segment)

    def _covered(self, w: Writer, ops: list[Op], at: int, block: int, repeated: set[int] | None) -> _Covered:
        """The instructions of a block from one on that a segment can have.

        With `repeated` the uniform arithmetic must be repeatable: it may not write what these registers, read by
        arithmetic before it, and its own operands are; the registers that it reads are added.
        """
        between: list[Op] = []
        records: list[Record] = []
        done, waiting, whole = at, 0, True
        for op in ops[at:]:
            w.lines.op = op
            whole = False
            if op.family in _ENDINGS:
                break
            if self._is_parameter(op) or (op.family not in _MEMORY and self.is_uniform(w, op)):
                written = uniforms_written(self.layout, op)
                if self._read and self._read & written:
                    break
                if repeated is not None:
                    reads = uniforms_read(self.layout, op)
                    if reads is None or (repeated | reads) & written:
                        break
                    repeated |= reads
                between.append(op)
                waiting += 1
                whole = True
                if self._logged and op.family in _MEMORY:
                    records.append(self._parameter_note(w, op, block))
                    done, waiting = done + waiting, 0
                continue
            if op.form.blocks and op.family not in _TOGETHER:
                break
            record = self.record(w, op)
            if record is None:
                break
            if self._logged and op.family in ("shfl", "elect"):
                records.append(self._note(op, block))
            record.block = block
            records.append(record)
            if isinstance(record.kernel.form, MatrixMove) and record.kernel.form.store:
                records.append(Record(op, self._known(("effect",), Effect), [], block))
            done += waiting + 1
            waiting = 0
            whole = True
        return _Covered(records, between, done + waiting if whole else done, 0 if whole and records else waiting)

    def _arithmetic_between(self, blocks: BlockWriter, op: Op) -> None:
        """Write an instruction on uniform registers, which Python executes."""
        blocks.w.lines.op = op
        if op.family not in _MEMORY:
            blocks.instruction(op)
            return
        address, target = op.operands["a"], op.operands["d"]
        assert isinstance(address, Address)
        width, names = BITS[op["type"]] // 8, blocks.names
        text = f"CONTEXT.parameter({blocks.w.address(address)}, {width})"
        name = self._names_of_parameters.setdefault(text, f"parameter{len(self._names_of_parameters)}")
        names.bindings.setdefault(name, text)
        blocks.w.put_scalar(target, name)

    def _is_parameter(self, op: Op) -> bool:
        """True for a load of a whole parameter of the kernel into a uniform register, in code for whole warps."""
        if self.masked or self.memory is Memory.NONE or op.family != "ld" or op.instruction.guard is not None:
            return False
        if op["space"].partition("::")[0] != "param":
            return False
        address, target = op.operands["a"], op.operands["d"]
        if not isinstance(target, Register) or not isinstance(address, Address) or address.coordinates is not None:
            return False
        place = self.layout.places[target.name]
        if place.file != "u" or not isinstance(address.base, Symbol) or BITS[op["type"]] != place.bits:
            return False
        return any(
            name == address.base.name and 0 <= address.offset <= size - place.bits // 8
            for name, size in self._parameters
        ) and not address.offset % (place.bits // 8)

    def _parameter_note(self, w: Writer, op: Op, block: int) -> Record:
        address = op.operands["a"]
        assert isinstance(address, Address)
        words: list[_Word] = [self._numbers[id(op)], _Uniform(w.address(address))]
        return Record(op, self._known(("note", "address"), lambda: Note(address=True)), words, block)

    def _boundary(self, block: Block) -> Record:
        return Record(block.ops[0], self._known(("boundary",), Boundary), [], block.index)

    def _known(self, key: object, make: Callable[[], Form]) -> Kernel:
        """The kernel of a form that every processor has."""
        kernel = self._kernel(key, make)
        assert kernel is not None
        return kernel

    def _write(self, blocks: BlockWriter, segment: Segment) -> None:
        lines, names, number = blocks.lines, blocks.names, self._first + len(self.segments)
        self.segments.append(segment)
        chained = len(segment.entries) > 1
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
        if chained:
            names.bindings.setdefault("CB", "CONTEXT.blocks")
            lines.add("CB[0] = n")
        returns = any(record.returns for record in segment.records)
        start = f"E{number}[at]" if chained else f"R{number}"
        lines.add(f"{'x = ' if returns else ''}RUN(C, {start})")
        if any(record.has_effects for record in segment.records):
            names.bindings.setdefault("CE", "CONTEXT.effects")
            lines.add("if CE[0]:")
            lines.add(" G.grid.effects += CE[0]")
            lines.add(" CE[0] = 0")
        if chained:
            lines.add(f"if x: return G.interrupted({number}, x - 1, u)")
            lines.add(f"G.last = {segment.block}")
        elif returns:
            lines.add(f"if x: return G.resume({number}, x - 1, u{', M' if self.masked else ''})")

    def functions(self) -> dict[str, Any]:
        """The names that the text of the segments uses."""
        # Kernels exist as long as their engine does.
        found: dict[str, Any] = {"RUN": self.engine.run, f"ENGINE{self._first}": self.engine}
        for number, segment in enumerate(self.segments, self._first):
            table, variables = segment.table(self.engine)
            # The memory view keeps the table alive as long as the program has the name.
            start = table.ctypes.data
            found |= {f"R{number}": start, f"T{number}": table.data, f"V{number}": variables}
            if len(segment.entries) > 1:
                starts = segment.starts
                found[f"E{number}"] = tuple([start + 8 * starts[entry] for entry in segment.entries])
            if len(segment.uniforms) > 1:
                found[f"P{number}"] = struct.Struct(f"={len(segment.uniforms)}Q").pack_into
        return found

    def is_uniform(self, w: Writer, op: Op) -> bool:
        """Arithmetic on uniform registers alone."""
        d = op.operands.get("d")
        if isinstance(d, Register) and w.place(d).file != "u":
            return False
        if op.family not in alu.FAMILIES and op.family not in _PARTED:
            return False
        guard = op.instruction.guard
        if guard is not None and w.place(guard.register).file != "u":
            return False
        for operand in op.operands.values():
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
        guard, last = op.instruction.guard, list[_Word]()
        if guard is not None:
            place = w.place(guard.register)
            if place.file != "p":
                return None
            last = [place.index, int(guard.negated)]
        if op.family in _MEMORY:
            return self._access(w, op, last) if self._may_access(op) else None
        if op.family == "bar.sync":
            return None if last or self.masked or not self._alone else self._barrier(op)
        if op.family in ("ldmatrix", "stmatrix"):
            return None if last or self.masked else self._matrices(w, op)
        if op.family == "mma.sync":
            return None if last or self.masked else self._warp_mma(w, op)
        if op.family == "shfl":
            return None if last or self.masked or self.memory is Memory.NONE else self._shuffle(w, op)
        if op.family == "elect":
            return None if last or self.masked or self.memory is Memory.NONE else self._elect(w, op)
        if op.family in alu.FAMILIES or op.family in _PARTED:
            return self._arithmetic(w, op, last)
        return None

    def _may_access(self, op: Op) -> bool:
        if self._logged:
            uniform_store = _MEMORY[op.family] and self._has_one_address(op)
            bytes_ = BITS[op["type"]] // 8 * int(op["vec"][1:] or 1)
            if not op["space"] or bytes_ > PIECE or uniform_store:
                return False
        if self.memory is not Memory.ONE_VIEW:
            return self.memory is Memory.ALL
        return op["order"] in ("", "weak") and (not _MEMORY[op.family] or op["space"] in ("global", "local"))

    def _has_one_address(self, op: Op) -> bool:
        address = op.operands["a"]
        base = address.base if isinstance(address, Address) else None
        return not isinstance(base, Register) or self.layout.places[base.name].file == "u"

    def _note(self, op: Op, block: int) -> Record:
        """The entry in the log of an instruction that touches no memory."""
        return Record(op, self._known(("note",), Note), [self._numbers[id(op)]], block)

    def _barrier(self, op: Op) -> Record | None:
        """`bar.sync` of all threads, by a group that has all of them."""
        index = op.operands["a"]
        if not isinstance(index, Immediate) or not 0 <= index.value < _NAMED_BARRIERS or op.operands["b"] is not None:
            return None
        words: list[_Word] = [8 * int(index.value), *([self._numbers[id(op)]] if self._logged else [])]
        return Record(op, self._known(("bar", self._logged), lambda: Barrier(self._logged)), words)

    def _shuffle(self, w: Writer, op: Op) -> Record | None:
        """`shfl` of a row by all lanes of the warp."""
        members, d = op.operands["members"], op.operands["d"]
        if not isinstance(members, Immediate) or members.value & _ALL_LANES != _ALL_LANES:
            return None
        first, second = (d.first, d.second) if isinstance(d, Pair) else (d, Sink())
        if not isinstance(first, Register) or w.place(first).file != "a":
            return None
        found = [self._operand(w, op.operands[name], "b32") for name in "abc"]
        if found[0] is None or found[1] is None or found[2] is None or found[0][0] != "a":
            return None
        words = [found[0][1], found[1][1], found[2][1], w.place(first).index * ITEM_BYTES["a"]]
        predicate = isinstance(second, Register)
        if isinstance(second, Register):
            if w.place(second).file != "p":
                return None
            words.append(w.place(second).index)
        lane, bounds = found[1][0], found[2][0]
        if lane not in "ask" or bounds not in "ask":
            return None

        def make() -> Shuffle:
            return Shuffle(op["mode"], OPERANDS[lane], OPERANDS[bounds], predicate)

        kernel = self._kernel(("shfl", op["mode"], lane, bounds, predicate), make)
        return None if kernel is None else Record(op, kernel, words)

    def _elect(self, w: Writer, op: Op) -> Record | None:
        """`elect` by all lanes of the warp."""
        members, d = op.operands["members"], op.operands["d"]
        if not isinstance(members, Immediate) or members.value & _ALL_LANES != _ALL_LANES or not isinstance(d, Pair):
            return None
        if not isinstance(d.second, Register) or w.place(d.second).file != "p":
            return None
        words: list[_Word] = []
        if isinstance(d.first, Register):
            if w.place(d.first).file != "a":
                return None
            words.append(w.place(d.first).index * ITEM_BYTES["a"])
        result = bool(words)
        words.append(w.place(d.second).index)
        return Record(op, self._known(("elect", result), lambda: Elect(result)), words)

    def _matrices(self, w: Writer, op: Op) -> Record | None:
        """`ldmatrix` or `stmatrix` of 8 × 8 matrices in the CTA's own shared memory."""
        store = op.family == "stmatrix"
        if self.memory is Memory.NONE or (store and self.memory is not Memory.ALL):
            return None
        address, registers = op.operands["a"], op.operands["b" if store else "d"]
        if (op["shape"], op["type"]) != ("m8n8", "b16") or op["space"] not in ("shared", "shared::cta"):
            return None
        if not isinstance(address, Address) or not isinstance(address.base, Register):
            return None
        if not isinstance(registers, Vector) or len(registers.items) != int(op["count"][1:]):
            return None
        places = [w.place(item) for item in registers.items if isinstance(item, Register)]
        base = w.place(address.base)
        if base.file not in "ab" or len(places) != len(registers.items) or any(each.file != "a" for each in places):
            return None
        form = MatrixMove(store, bool(op["trans"]), len(places), base.file, self._logged)
        kernel = self._kernel((op.family, form.transposed, form.count, form.address, form.logged), lambda: form)
        if kernel is None:
            return None
        words: list[_Word] = [base.index * ITEM_BYTES[base.file], address.offset & ((1 << 64) - 1)]
        words += [each.index * ITEM_BYTES["a"] for each in places]
        words += [self._numbers[id(op)]] if self._logged else []
        return Record(op, kernel, words)

    def _warp_mma(self, w: Writer, op: Op) -> Record | None:
        """`mma.sync` of 16 rows with D of f32 or s32, all of whose operands but C differ by lane."""
        a_type, b_type, d_type = op["a_type"], op["b_type"], op["d_type"]
        shape = next(
            (row for row in WARP_SHAPES if f"m{row.m}n{row.n}k{row.k}" == op["shape"] and a_type in row.types), None
        )
        mixed = a_type == b_type or any({a_type, b_type} <= types for types in WARP_MIXES)
        if shape is None or shape.m != _MMA_ROWS or a_type not in ELEMENTS or not mixed:
            return None
        if d_type not in WARP_D_TYPES[a_type] or d_type not in ("f32", "s32") or op["c_type"] != d_type:
            return None
        counts, words, scalars = {"a": shape.a_registers, "b": shape.b_registers, "c": 4, "d": 4}, list[_Word](), 0
        for name, count in counts.items():
            given = op.operands[name]
            if not isinstance(given, Vector) or len(given.items) != count:
                return None
            for item in given.items:
                found = self._operand(w, item, "b32")
                if found is None or found[0] not in "ak" or (found[0] == "k" and name != "c"):
                    return None
                scalars += found[0] == "k"
                words.append(found[1])
        if scalars not in (0, counts["c"]):
            return None
        form = WarpMma(a_type, b_type, shape.b_registers, d_type == "s32", bool(op["satfinite"]), bool(scalars))
        kernel = self._kernel(form, lambda: form)
        return None if kernel is None else Record(op, kernel, words)

    def _kernel(self, key: object, make: Callable[[], Form]) -> Kernel | None:
        """The kernel of an instruction whose spelling and kinds of operands are the key."""
        known = self.engine.by_operands
        if key not in known:
            known[key] = self.engine.kernel(make())
        return known[key]

    def _masks(self, last: list[_Word]) -> Masks:
        return Masks(guard=bool(last), group=self.masked)

    def _arithmetic(self, w: Writer, op: Op, last: list[_Word]) -> Record | None:
        shape = _shape_of(op)
        if shape is None:
            return None
        given = [(op.operands[name], type_) for name, type_ in shape.given]
        targets = [(op.operands["d"], shape.out)]
        modifiers = shape.modifiers
        match op.family:
            case "cvta":
                window = WINDOWS[op["space"].partition("::")[0]]
                given.append((Immediate(window, "int"), op["type"]))
            case "mov.pack":
                items = op.operands["a"]
                assert isinstance(items, Vector)
                given = [(item, f"b{BITS[op['type']] // len(items.items)}") for item in items.items]
            case "mov.unpack":
                items = op.operands["d"]
                assert isinstance(items, Vector)
                targets = [(item, f"b{BITS[op['type']] // len(items.items)}") for item in items.items]
                modifiers = (("count", str(len(items.items))), *modifiers)
            case "setp":
                d = op.operands["d"]
                targets = [(d.first, "pred"), (d.second, "pred")] if isinstance(d, Pair) else [(d, "pred")]
        kinds: list[str] = []
        words: list[_Word] = []
        for operand, type_ in given:
            if operand is None:
                continue
            found = self._operand(w, operand, type_)
            if found is None:
                return None
            kinds.append(found[0])
            words.append(found[1])
        outputs: list[tuple[str, bool] | None] = []
        for target, type_ in targets:
            if isinstance(target, Sink):
                outputs.append(None)
                continue
            if not isinstance(target, Register):
                return None
            place, bits = w.place(target), BITS[type_]
            if place.file not in _FILES or (place.bits != bits and not (shape.wider and place.bits > bits)):
                return None
            outputs.append((place.file, bits < place.bits and kind_of(type_) == "s"))
            words.append(place.index * ITEM_BYTES[place.file])
        if not any(outputs):
            return None
        types = [type_ for operand, type_ in given if operand is not None]

        def make() -> Arithmetic:
            inputs = tuple((OPERANDS[kind], f"i{BITS[type_]}") for kind, type_ in zip(kinds, types, strict=True))
            return Arithmetic(shape.family, modifiers, inputs, tuple(outputs), self._masks(last))

        key = op.family, op.instruction.opcode, "".join(kinds), tuple(outputs), bool(last), self.masked
        kernel = self._kernel(key, make)
        return None if kernel is None else Record(op, kernel, words + last)

    def _operand(self, w: Writer, operand: object, type_: str) -> tuple[str, _Word] | None:
        """An operand that is read, as a key of OPERANDS and a word."""
        if isinstance(operand, Register):
            place = w.place(operand)
            if place.file == "u":
                self._read.add(place.index)
            elif place.file not in _FILES or (place.file == "p") != (type_ == "pred"):
                return None
            else:
                return place.file, place.index * ITEM_BYTES[place.file]
        elif isinstance(operand, Immediate):
            value = int(bool(operand.value)) if type_ == "pred" else literal(operand, type_)
            return "k", _Constant(value & ((1 << 64) - 1))
        elif isinstance(operand, Negated):
            place = w.place(operand.register)
            if place.file != "u":
                return None if place.file != "p" else ("n", place.index)
            self._read.add(place.index)
        elif isinstance(operand, Special):
            if not w.uniform(operand):
                return None if type_ == "pred" else ("s", SPECIALS.index(operand.name) * ITEM_BYTES["s"])
            if operand.name in CLOCKS:  # every read counts
                return None
        elif not isinstance(operand, Symbol):
            return None
        text = w.scalar(operand, type_)
        return "k", _Uniform(f"1 if {text} else 0" if type_ == "pred" else text)

    def _access(self, w: Writer, op: Op, last: list[_Word]) -> Record | None:
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
        base = address.base
        if w.uniform(address):
            if isinstance(base, Register):
                self._read.add(w.place(base).index)
            where = "k"
            words.append(_Uniform(w.address(address)))
        else:
            if not isinstance(base, Register) or w.place(base).file not in "ab":
                return None
            where = w.place(base).file
            words += [w.place(base).index * ITEM_BYTES[where], address.offset & ((1 << 64) - 1)]
        items: list[str] = []
        for part in parts:
            if store:
                found = self._operand(w, part, type_)
                if found is None:
                    return None
                items.append(found[0])
                words.append(found[1])
            elif isinstance(part, Sink):
                items.append("_")
            elif isinstance(part, Register) and w.place(part).file in "hab" and w.place(part).bits >= 8 * element:
                items.append(w.place(part).file)
                words.append(w.place(part).index * ITEM_BYTES[w.place(part).file])
            else:
                return None
        if not store and all(item == "_" for item in items):
            return None
        masks, signed = self._masks(last), type_.startswith("s")

        def make() -> Access:
            moved = tuple(None if item == "_" else OPERANDS[item] for item in items)
            return Access(store, space, OPERANDS[where], element, moved, signed, masks, self._logged)

        key = store, space, where, element, "".join(items), signed, bool(last), self.masked, self._logged
        kernel = self._kernel(key, make)
        if kernel is None:
            return None
        number: list[_Word] = [self._numbers[id(op)]] if self._logged else []
        return Record(op, kernel, words + last + number)


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


def uniforms_written(layout: Layout, op: Op) -> set[int]:
    outputs = [op.operands[slot.name] for slot in op.form.slots if slot.kind in ("out", "pair", "outs")]
    names = [name for operand in outputs for name in _registers(operand)]
    return {place.index for name in names if (place := layout.places[name]).file == "u"}


def uniforms_read(layout: Layout, op: Op) -> set[int] | None:
    """The uniform registers that an instruction reads; None where it reads more than registers (a clock)."""
    inputs = [op.operands[slot.name] for slot in op.form.slots if slot.kind not in ("out", "pair", "outs")]
    items = [item for each in inputs for item in (each.items if isinstance(each, Vector) else (each,))]
    if any(isinstance(item, Special) and item.name in CLOCKS for item in items):
        return None
    names = [name for operand in inputs for name in _registers(operand)]
    if op.instruction.guard is not None:
        names.append(op.instruction.guard.register.name)
    return {place.index for name in names if (place := layout.places[name]).file == "u"}
