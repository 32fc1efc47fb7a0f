"""PTX basic blocks become Python functions over the lanes of a group.

One source text per kernel: a `make` function binds the group's registers to local names and returns a function per
block. A block function runs to its end and returns the index of the next block, or one of the codes below. The masked
text, for lanes that run apart from the rest of their warp, is written only when a warp first diverges.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np

from warploom.diagnostics import Diag, Loc, WarploomError
from warploom.machine import alu
from warploom.machine.layout import Layout, Place, lay_out
from warploom.machine.registry import MEANINGS
from warploom.machine.rows import Rows, as_rows
from warploom.machine.writer import Lines, Names, Writer
from warploom.ptx import flow as flows
from warploom.ptx.flow import Block, Flow
from warploom.ptx.inline import inline
from warploom.ptx.isa.table import BITS, Op, Slot, decode_kernel
from warploom.ptx.liveness import live_at_entry
from warploom.ptx.model import Address, Arguments, Immediate, Kernel, Module, Pair, Register, Sink, Special, Symbol, Vector
from warploom.ptx.uniformity import classify, registers_of

BLOCKED, ENDED, PARTED, SCATTERED = -1, -2, -3, -4
LANE_SPECIALS = frozenset(
    {"%tid.x", "%tid.y", "%tid.z", "%laneid", "%warpid"} | {f"%lanemask_{c}" for c in ("eq", "le", "lt", "ge", "gt")}
)
_OUTPUTS = ("out", "pair", "outs")
_UNMODELLED = ("%pm", "%envreg")
_MODELLED = frozenset({"%envreg1", "%envreg2"})
_NUMPY = ["add", "subtract", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor", "minimum", "maximum", "left_shift", "right_shift", "invert", "logical_not", "logical_and", "greater", "equal", "not_equal", "less", "less_equal", "greater_equal", "copyto", "putmask", "full", "empty", "bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex128"]
_RUN = 4
_PART = 256
"""Blocks that share one `make`: what Python takes to compile one grows with its functions times its names."""


@dataclass(frozen=True, slots=True)
class Text:
    """Compiled source, in parts, and for each of its lines the instruction behind it."""

    parts: tuple[CodeType, ...]
    ops: tuple[Op | None, ...]
    source: str


@dataclass
class Program:
    """A kernel ready to run: its flow, register homes and translated blocks."""

    module: Module
    kernel: Kernel
    flow: Flow
    layout: Layout
    file: str
    functions: dict[str, Any] = field(default_factory=dict)
    runs: dict[str, Op] = field(default_factory=dict)
    _needs: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return self.module.target[0]

    @cached_property
    def full(self) -> Text:
        return self._text(masked=False)

    @cached_property
    def masked(self) -> Text:
        return self._text(masked=True)

    @cached_property
    def costs(self) -> tuple[int, ...]:
        """Instructions per block."""
        return tuple(len(block.ops) for block in self.flow.blocks)

    def shared_needs(self, block: int) -> tuple[int, ...]:
        """The uniform integers that a block or a later one may still read."""
        if block not in self._needs:
            alive = self._alive[block]
            self._needs[block] = tuple(index for index in range(self.layout.rows["u"]) if alive >> index & 1)
        return self._needs[block]

    @cached_property
    def _alive(self) -> tuple[int, ...]:
        places = sorted((place.index, name) for name, place in self.layout.places.items() if place.file == "u")
        return live_at_entry(self.flow, [name for _, name in places])

    def check_symbols(self, known: Container[str]) -> None:
        """Every variable whose address is taken lies somewhere: the launch says where, by name."""
        for name, op in self._symbols.items():
            if name not in known:
                where = op.instruction.loc or Loc(self.file, op.instruction.line)
                if any(kernel.name == name for kernel in self.module.kernels):
                    raise Diag.NOT_MODELLED.error(where, what=f"the address of the function `{name}`")
                raise Diag.UNDECLARED.error(where, name=name)

    @cached_property
    def specials(self) -> frozenset[str]:
        """The special registers that are read."""
        ops = (op for block in self.flow.blocks for op in block.ops)
        return frozenset(
            leaf.name for op in ops for leaf in _leaves(op.operands.values()) if isinstance(leaf, Special)
        )

    @cached_property
    def _symbols(self) -> dict[str, Op]:
        """The variables that are named, each with an instruction that does."""
        ops = (op for block in self.flow.blocks for op in block.ops)
        named = ((op, slot.name) for op in ops for slot in op.form.slots if slot.kind != "label")
        return {
            leaf.name: op for op, name in named for leaf in _leaves((op.operands[name],)) if isinstance(leaf, Symbol)
        }

    def make(self, text: Text, wrap: Callable[[Op, Any], Any] | None = None) -> Callable[..., tuple[Callable[..., int], ...]]:
        """The factory of a text; `wrap` puts an observer around every meaning."""
        space: dict[str, Any] = {name: getattr(np, name) for name in _NUMPY}
        space["select"] = np.where
        space |= self.functions
        if wrap is not None:
            space |= {name: wrap(op, self.functions[name]) for name, op in self.runs.items()}
        factories: list[Callable[..., tuple[Callable[..., int], ...]]] = []
        for code in text.parts:
            exec(code, space)
            factories.append(space["make"])
        if len(factories) == 1:
            return factories[0]
        return lambda *given: tuple(block for factory in factories for block in factory(*given))

    def _text(self, *, masked: bool) -> Text:
        blocks = self.flow.blocks
        parts: list[CodeType] = []
        lines: list[str] = []
        ops: list[Op | None] = []
        for first in range(0, len(blocks), _PART):
            names, body = Names(self.layout, lane_specials=LANE_SPECIALS), Lines()
            some = blocks[first : first + _PART]
            for block in some:
                _BlockWriter(self, names, body, masked).write(block)
            header = ["def make(G, Fp, Fh, Fa, Fb, Fq, u, W, SPECIALS, LANES, SYMBOLS, ONE, FULL):"]
            header += [f" {name} = {expression}" for name, expression in names.bindings.items()]
            footer = f" return ({', '.join(f'block_{block.index}' for block in some)},)"
            self.functions |= names.functions
            part = [*header, *body.text, footer]
            # Empty lines in front keep the numbers of lines those of the whole text.
            parts.append(compile("\n" * len(lines) + "\n".join(part) + "\n", f"<{self.kernel.name}>", "exec"))
            lines += part
            ops += [*[None] * len(header), *body.ops, None]
        return Text(tuple(parts), tuple(ops), "\n".join(lines) + "\n")


def translate(module: Module, kernel: Kernel, *, lanes_follow_x: bool, file: str = "<ptx>") -> Program:
    """Verify a kernel and prepare its blocks."""
    kernel = inline(module, kernel, file)
    ops = decode_kernel(kernel, module.target[0], file)
    flow = flows.build(kernel, file, ops)
    _check_modelled(flow, file)
    classes = classify(kernel, flow, lanes_follow_x=lanes_follow_x)
    return Program(module, kernel, flow, lay_out(kernel, flow, classes), file)


def _check_modelled(flow: Flow, file: str) -> None:
    for block in flow.blocks:
        for op in block.ops:
            where = op.instruction.loc or Loc(file, op.instruction.line)
            if op.family not in MEANINGS and op.family not in _WRITERS and op.family not in alu.FAMILIES:
                raise Diag.NOT_MODELLED.error(where, what=f"`{op.instruction.opcode}`")
            for operand in _leaves(op.operands.values()):
                if not isinstance(operand, Special) or operand.name in _MODELLED:
                    continue
                if operand.name.startswith(_UNMODELLED):
                    raise Diag.NOT_MODELLED.error(where, what=f"the special register `{operand}`")


def _leaves(operands: Iterable[object]) -> Iterator[object]:
    """Operands, and what stands inside brace lists, argument lists and addresses."""
    for operand in operands:
        if isinstance(operand, Vector | Arguments):
            yield from operand.items
        elif isinstance(operand, Address):
            yield operand.base
            yield from operand.coordinates.items if operand.coordinates is not None else ()
        else:
            yield operand


class _BlockWriter:
    """Writes the function of one block."""

    def __init__(self, program: Program, names: Names, lines: Lines, masked: bool) -> None:
        self.program, self.names, self.lines, self.masked = program, names, lines, masked
        self.index = 0
        self.w = Writer(names, lines, masked, program.file)

    def write(self, block: Block) -> None:
        lines, self.index = self.lines, block.index
        lines.op, lines.indent = None, " "
        lines.add(f"def block_{block.index}({'M' if self.masked else ''}):")
        lines.indent = "  "
        if block.index == self.program.flow.exit:
            lines.add(f"return {ENDED}")
            return
        at = 0
        while at < len(block.ops):
            op = block.ops[at]
            lines.op = op
            skipped = self._moves(block.ops, at)
            if skipped:
                at += skipped
                continue
            if op.family in flows.BRANCHES or op.family in ("ret", "exit"):
                self._branch(block, op)
                return
            self._instruction(op)
            at += 1
        lines.op = None
        lines.add(f"return {block.next if block.next is not None else self.program.flow.exit}")

    def _moves(self, ops: list[Op], at: int) -> int:
        """A run of moves of one source into adjacent rows is one copy; the number of moves it covers."""
        first = ops[at]
        if first.family != "mov" or first.instruction.guard or self.masked:
            return 0
        source = first.operands["a"]
        rows: list[Place] = []
        for op in ops[at:]:
            out = op.operands.get("d")
            if op.family != "mov" or op.instruction.guard or op.operands["a"] != source or not isinstance(out, Register):
                break
            place = self.w.place(out)
            if place.file not in "ab" or out == source or (rows and place.index != rows[-1].index + 1):
                break
            rows.append(place)
        if len(rows) < _RUN or len({row.file for row in rows}) > 1:
            return 0
        file, low, high = rows[0].file, rows[0].index, rows[-1].index + 1
        name = f"{file}{low}to{high}"
        self.names.bindings.setdefault(name, f"F{file}[{low}:{high}]")
        value = self.w.scalar(source, first["type"]) if self.w.uniform(source) else self.w.array(source, first["type"], "u")
        self.lines.add(f"{name}[...] = {value}")
        return len(rows)

    def _instruction(self, op: Op) -> None:
        try:
            self._write(op)
        except WarploomError as error:
            if error.loc is not None:
                raise
            raise type(error)(error.diag, self.w.where(), error.notes, error.fields) from None

    def _write(self, op: Op) -> None:
        close = self.w.guard(op.instruction.guard)
        writer = _WRITERS.get(op.family)
        if writer is not None:
            writer(self.w, op)
        elif op.family in MEANINGS:
            self._call(op)
        else:
            alu.write(self.w, op)
        close()

    def _call(self, op: Op) -> None:
        """Call the meaning of a family with its operands and store what it returns."""
        name = f"X{id(op):x}"
        if name not in self.program.functions:
            self.program.functions[name] = MEANINGS[op.family](op)
            self.program.runs[name] = op
        mask = "None" if self.w.mask is None else "(None if mb == FULL else m)" if self.w.mask == "m" else "M"
        arguments = [self._argument(op, slot) for slot in op.form.slots if slot.kind not in _OUTPUTS]
        call = f"{name}(G, {mask}{''.join(f', {a}' for a in arguments)})"
        outputs = [slot for slot in op.form.slots if slot.kind in _OUTPUTS and op.operands[slot.name] is not None]
        if op.form.blocks:
            self._scatter(op)
            self.w.emit(f"G.pc = {self.index}")
            self.w.emit(f"x = {call}")
            self.w.emit(f"if {'x is None' if outputs else 'not x'}: return {BLOCKED}")
            call = "x"
        if not outputs:
            if not op.form.blocks:
                self.w.emit(call)
            return
        for slot in outputs:
            self._store(op, slot, call)

    def _scatter(self, op: Op) -> None:
        """A convoy whose warps would not all wait for the same thing breaks up before it waits."""
        if self.masked or any(effect.verb == "syncs" and effect.scope == "warp" for effect in op.form.effects):
            return
        inputs = [op.operands[slot.name] for slot in op.form.slots if slot.kind not in _OUTPUTS]
        if not all(self.w.uniform(operand) for operand in inputs if operand is not None):
            self.w.emit(f"if W != 32 and G.token is None: return G.scatter({self.index})")
        elif self.w.mask == "m":
            self.w.emit(f"if W != 32 and mb != FULL and G.token is None: return G.scatter({self.index})")

    def _argument(self, op: Op, slot: Slot) -> str:
        operand, w = op.operands[slot.name], self.w
        if operand is None or slot.kind == "label":
            return "None"
        type_ = "pred" if slot.kind == "pred" else op.type_of(slot)
        match operand:
            case Address(_, _, None):
                return w.address(operand)
            case Address(_, _, coordinates):
                assert coordinates is not None
                items = "".join(f"{w.value(item, 's32')}, " for item in coordinates.items)
                return f"{w.address(Address(operand.base, operand.offset))}, ({items})"
            case Arguments(items):
                return "(" + "".join(f"{w.address(Address(item))}, " for item in items) + ")"
            case Vector() if slot.kind == "rows":
                return self._rows(operand)
            case Vector(items):
                types = [type_ or self._type(item) for item in items]
                return "(" + "".join(f"{w.value(i, t)}, " for i, t in zip(items, types, strict=True)) + ")"
            case Immediate() if slot.kind == "immediate":
                return str(operand.value)
        return w.value(operand, type_ or self._type(operand))

    def _type(self, operand: object) -> str:
        if isinstance(operand, Register):
            type_ = self.w.place(operand).type
            return type_ if type_ == "pred" else f"b{self.w.place(operand).bits}"
        return "b32"

    def _rows(self, vector: Vector) -> str:
        run = self.program.layout.run_of(vector)
        if run is not None:
            file, low, high = run
            name = f"{file}{low}to{high}"
            self.names.bindings.setdefault(name, f"F{file}[{low}:{high}]")
            rows = f"Rows_({name}, None, {file!r}, {tuple(range(low, high))})"
        else:
            places = [self.w.place(r) for r in vector.items if isinstance(r, Register)]
            parts = [self.names.row(place) for place in places]
            rows = f"Rows_(None, ({', '.join(parts)},), {places[0].file!r}, {tuple(place.index for place in places)})"
        key = f"rows_{'_'.join(registers_of(vector))}"
        local = self.names.row_lists.setdefault(key, f"rows{len(self.names.row_lists)}")
        self.names.functions["Rows_"] = Rows
        self.names.bindings.setdefault(local, rows)
        return local

    def _store(self, op: Op, slot: Slot, call: str) -> None:
        operand, w = op.operands[slot.name], self.w
        type_ = op.type_of(slot)
        if isinstance(operand, Pair) or slot.kind == "pair":
            first, second = (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())
            w.emit(f"x, y = {call}")
            if isinstance(first, Register):
                w.put(first, "x", BITS[type_])
            if isinstance(second, Register):
                w.put(second, "y", 1)
        elif isinstance(operand, Vector):
            run = self.program.layout.run_of(operand)
            if run is not None:
                file, low, high = run
                name = f"{file}{low}to{high}"
                self.names.bindings.setdefault(name, f"F{file}[{low}:{high}]")
                where = f", where={w.mask}" if w.mask else ""
                self.names.functions["as_rows"] = as_rows
                w.emit(f"copyto({name}, as_rows({call}){where})")
                return
            w.emit(f"x = {call}")
            for part, item in enumerate(operand.items):
                if isinstance(item, Register):
                    w.put(item, f"x[{part}]", self.w.place(item).bits)
        elif isinstance(operand, Sink):
            w.emit(call)
        else:
            w.put(operand, call, BITS[type_] if type_ else 32)

    def _branch(self, block: Block, op: Op) -> None:
        guard, w, lines = op.instruction.guard, self.w, self.lines
        exit_, join = self.program.flow.exit, self.program.flow.joins[block.index]
        if op.family == "brx":
            self._table(block, op, join)
            return
        taken = block.targets[0] if op.family == "bra" else exit_
        if guard is None:
            lines.add(f"return {taken}")
            return
        fall = block.next if block.next is not None else exit_
        place = w.place(guard.register)
        if guard.negated:
            taken, fall = fall, taken
        if place.file == "u":
            lines.add(f"return {taken} if u[{place.index}] else {fall}")
        elif self.masked:
            lines.add(f"return G.part({self.names.row(place)}, M, {taken}, {fall}, {join})")
        else:
            row = self.names.row(place)
            lines.add(f"c = {row}.tobytes()")
            lines.add(f"if c == FULL: return {taken}")
            lines.add(f"if ONE not in c: return {fall}")
            lines.add(f"return G.part({row}, None, {taken}, {fall}, {join})")

    def _table(self, block: Block, op: Op, join: int) -> None:
        w, index = self.w, op.operands["index"]
        close = w.guard(op.instruction.guard)
        mask = w.mask or "None"
        targets = f"({', '.join(map(str, block.targets))},)"
        w.emit(f"return G.jump({w.value(index, 'u32')}, {mask}, {targets}, {join})")
        close()
        if op.instruction.guard is not None:
            self.lines.add(f"return {block.next}")


def _cvta(w: Writer, op: Op) -> None:
    """Between a space's own addresses and generic ones: the window's base is added or taken away."""
    from warploom.machine.addresses import WINDOWS

    window = WINDOWS[op["space"].partition("::")[0]]
    source, type_ = op.operands["a"], op["type"]
    sign = "-" if op["to"] else "+"
    if w.uniform(source):
        w.put_scalar(op.operands["d"], f"(({w.scalar(source, type_)} {sign} {window}) & {(1 << BITS[type_]) - 1})")
    else:
        offset = w.names.constant(window & ((1 << BITS[type_]) - 1), "u", BITS[type_])
        w.put_array(op.operands["d"], f"({w.array(source, type_, 'u')} {sign} {offset})", BITS[type_])


def _nothing(w: Writer, op: Op) -> None:
    """Hints and fences that change nothing a run can see."""
    w.emit("pass")


_WRITERS: dict[str, Callable[[Writer, Op], None]] = {
    "mov.pack": alu.write_pack,
    "mov.unpack": alu.write_unpack,
    "cvta": _cvta,
    "ret": _nothing,
    "exit": _nothing,
    "bra": _nothing,
    "brx": _nothing,
    **dict.fromkeys(("prefetch", "prefetch.tensormap", "discard", "applypriority", "pmevent", "nanosleep", "brkpt"), _nothing),
}
