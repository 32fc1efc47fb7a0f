"""Translation of one basic block: operands in, semantics called or inlined, results stored, the branch out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warploom.diagnostics import WarploomError
from warploom.machine.core.registry import MEANINGS, TOGETHER
from warploom.machine.translate import arithmetic as alu
from warploom.machine.translate import batches
from warploom.machine.translate.expressions import Lines, Names, Writer
from warploom.machine.translate.functions import fixed
from warploom.machine.translate.native_tables import NOTHING, WINDOWS, uniforms_read, uniforms_written
from warploom.machine.translate.register_layout import Place
from warploom.ptx.analysis import control_flow as flows
from warploom.ptx.analysis.control_flow import Block
from warploom.ptx.analysis.operand_registers import registers_of
from warploom.ptx.isa.table import BITS, Op, Slot
from warploom.ptx.syntax.model import Address, Arguments, Immediate, Pair, Register, Sink, Vector

if TYPE_CHECKING:
    from warploom.machine.translate.translator import Program

BLOCKED, ENDED, PARTED, SCATTERED = -1, -2, -3, -4
"""The codes that a block returns instead of the next one: the group waits, has left, parted its lanes, or broke into
warps."""

_OUTPUTS = ("out", "pair", "outs")
_RUN = 4
_SEVERAL = 2


@dataclass(frozen=True, slots=True)
class Together:
    """Instructions that are executed together where they were before: the arithmetic on uniform registers between them,
    which is executed first, the number of instructions that all of this covers, and how they are written.
    """

    between: list[Op]
    covered: int
    write: Callable[[], None]


class BlockWriter:
    """Writes the function of a block, or of some of its instructions."""

    def __init__(self, program: Program, names: Names, lines: Lines, masked: bool) -> None:
        self.program, self.names, self.lines, self.masked = program, names, lines, masked
        self.index = 0
        self.w = Writer(names, lines, masked, program.file)

    @property
    def exit(self) -> int:
        """The block where every path ends."""
        return self.program.flow.exit

    def begin(self, block: Block) -> None:
        """Begin with a block."""
        self.index = block.index

    def begin_function(self, name: str) -> None:
        """Begin a function."""
        self.lines.indent = " "
        self.lines.add(f"def {name}(G, u{', M' if self.masked else ''}):")
        self.lines.indent = "  "

    def write(self, block: Block) -> None:
        """Write the function of a block."""
        self.begin(block)
        self.begin_function(f"block_{block.index}")
        if self.has_preface(block):
            self.preface()
        if block.index != self.exit:
            self._body(block)

    def has_preface(self, block: Block) -> bool:
        """True if more is done at the start of a block than its instructions."""
        return block.index == self.exit or block.index in self.program.blocks_after_loads

    def preface(self) -> None:
        """Write the start of a block: the end of the kernel, or a wait for loads of TMEM."""
        self.lines.op = None
        if self.index == self.exit:
            self.lines.add(f"return {ENDED}")
            return
        self.lines.add(f"G.pc = {self.index}")
        reads = self.index in self.program.loads_read
        self.lines.add(f"if G.awaits_loads({reads}): return {BLOCKED}")

    def _body(self, block: Block) -> None:
        lines, at = self.lines, 0
        while at < len(block.ops):
            op = block.ops[at]
            lines.op = op
            skipped = self._moves(block.ops, at) or batches.write(self.w, block.ops, at)
            if skipped:
                at += skipped
                continue
            if op.family in flows.BRANCHES or op.family in ("ret", "exit"):
                self.branch(block, op)
                return
            self.instruction(op)
            at += 1
        lines.op = None
        lines.add(f"return {block.next if block.next is not None else self.program.flow.exit}")

    def together(self, ops: list[Op], at: int, is_uniform: Callable[[Writer, Op], bool]) -> Together | None:
        """The instructions from one on that are executed together, if there are several of its family."""
        first, found = ops[at], list[Op]()
        if first.family not in TOGETHER:
            return None
        between, waiting, read, covered = list[Op](), list[Op](), set[int](), 0
        for number, op in enumerate(ops[at:], 1):
            self.lines.op = op
            reads = uniforms_read(self.program.layout, op)
            if op.family == first.family and op.instruction.guard == first.instruction.guard and self._is_shared(op):
                found.append(op)
                read |= reads or set()
                between, waiting, covered = between + waiting, [], number
            elif not is_uniform(self.w, op) or uniforms_written(self.program.layout, op) & read:
                break
            else:
                waiting.append(op)
        if len(found) < _SEVERAL:
            return None
        following = ops[at + covered] if at + covered < len(ops) else None
        commit = None
        if following is not None and following.instruction.guard == first.instruction.guard:
            takes_part = following.family == TOGETHER[first.family][0] and self._is_shared(following)
            commit = following if takes_part else None
        return Together(between, covered + (commit is not None), lambda: self._write_together(found, commit))

    def _write_together(self, found: list[Op], commit: Op | None) -> None:
        first = found[0]
        self.lines.op = first
        numbers = self.program.numbers
        name = self.program.together(numbers[id(first)], len(found), -1 if commit is None else numbers[id(commit)])
        close = self.w.guard(first.instruction.guard)
        slots = [(op, slot) for op in found for slot in op.form.slots if slot.kind not in _OUTPUTS]
        texts = [self._argument(op, slot) for op, slot in slots]
        last = [] if commit is None else [self._argument(commit, slot) for slot in commit.form.slots]
        mask = self.w.mask or "None"
        self.w.emit(f"v = ({''.join(f'{text}, ' for text in texts if 'u[' in text)})")
        self.w.emit(f"if not {name}(G, {mask}, v, ({''.join(f'{text}, ' for text in last)})):")
        before, self.lines.indent = self.lines.indent, self.lines.indent + " "
        for op in found:
            self.lines.op = op
            self._call(op)
        self.lines.op = first
        self.w.emit(f"{name}.learn(G, {mask}, v)")
        if commit is not None:
            self.lines.op = commit
            self._call(commit)
        self.lines.indent = before
        close()

    def _is_shared(self, op: Op) -> bool:
        """True if an instruction has no operands but those that all lanes share, and lists of registers."""
        given = [(slot, op.operands[slot.name]) for slot in op.form.slots if slot.kind not in _OUTPUTS]
        return all(slot.kind == "rows" or value is None or self.w.uniform(value) for slot, value in given)

    def _moves(self, ops: list[Op], at: int) -> int:
        """A run of moves of one source into adjacent rows is one copy; the number of moves it covers."""
        first = ops[at]
        if first.family != "mov" or first.instruction.guard or self.masked:
            return 0
        source = first.operands["a"]
        rows: list[Place] = []
        for op in ops[at:]:
            out = op.operands.get("d")
            if (
                op.family != "mov"
                or op.instruction.guard
                or op.operands["a"] != source
                or not isinstance(out, Register)
            ):
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
        value = (
            self.w.scalar(source, first["type"]) if self.w.uniform(source) else self.w.array(source, first["type"], "u")
        )
        self.lines.add(f"{name}[...] = {value}")
        return len(rows)

    def instruction(self, op: Op) -> None:
        """Write one instruction."""
        try:
            self._write(op)
        except WarploomError as error:
            if error.loc is not None:
                raise
            raise type(error)(error.diag, self.w.where(), error.notes, error.fields) from None

    def _write(self, op: Op) -> None:
        close = self.w.guard(op.instruction.guard)
        self.w.of_first_lane = self.w.reduces(op)
        writer = WRITERS.get(op.family)
        if writer is not None:
            writer(self.w, op)
        elif op.family in MEANINGS:
            self._call(op)
        else:
            alu.write(self.w, op)
        self.w.of_first_lane = False
        close()

    def _call(self, op: Op) -> None:
        """Call the semantics of a family with its operands and store the results."""
        name = self.program.meaning(op)
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
                places = [Address(item) for item in items if not isinstance(item, Sink)]
                return "(" + "".join(f"{w.address(place)}, " for place in places) + ")"
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
        run, made = self.program.layout.run_of(vector), self.names.function(fixed("Rows"))
        if run is not None:
            file, low, high = run
            name = f"{file}{low}to{high}"
            self.names.bindings.setdefault(name, f"F{file}[{low}:{high}]")
            rows = f"{made}({name}, None, {file!r}, {tuple(range(low, high))})"
        else:
            places = [self.w.place(r) for r in vector.items if isinstance(r, Register)]
            parts = [self.names.row(place) for place in places]
            rows = f"{made}(None, ({', '.join(parts)},), {places[0].file!r}, {tuple(place.index for place in places)})"
        key = f"rows_{'_'.join(registers_of(vector))}"
        local = self.names.row_lists.setdefault(key, f"rows{len(self.names.row_lists)}")
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
                w.emit(f"copyto({name}, {self.names.function(fixed('as_rows'))}({call}){where})")
                return
            w.emit(f"x = {call}")
            for part, item in enumerate(operand.items):
                if isinstance(item, Register):
                    w.put(item, f"x[{part}]", self.w.place(item).bits)
        elif isinstance(operand, Sink):
            w.emit(call)
        else:
            w.put(operand, call, BITS[type_] if type_ else 32)

    def branch(self, block: Block, op: Op) -> None:
        """Write the end of a block."""
        guard, w, lines = op.instruction.guard, self.w, self.lines
        exit_, join = self.program.flow.exit, self.program.flow.reconvergence[block.index]
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


WRITERS: dict[str, Callable[[Writer, Op], None]] = {
    "mov.pack": alu.write_pack,
    "mov.unpack": alu.write_unpack,
    "cvta": _cvta,
    "ret": _nothing,
    "exit": _nothing,
    "bra": _nothing,
    "brx": _nothing,
    **dict.fromkeys(NOTHING, _nothing),
}
