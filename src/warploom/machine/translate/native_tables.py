"""Programs as tables of records for native code (`machine/engine`), with the instructions that Python executes.

The table has the instructions of all blocks in order. A block ends with a record that continues with the next one, so
that native code goes on until the group has had its turn, or until an instruction without a kernel: its record returns,
Python executes the instruction, and native code goes on after it. The same happens where a kernel cannot execute its
instruction, for a fault most often: nothing of it has been done then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.hardware.mma_shapes import WARP_D_TYPES, WARP_MIXES, WARP_SHAPES
from warploom.hardware.threads import WARP_LANES
from warploom.machine.core.registry import TOGETHER
from warploom.machine.engine.addresses import address_of
from warploom.machine.engine.context import ITEM_BYTES, SPECIALS
from warploom.machine.engine.control_kernels import Barrier, Branch, Effect, Escape, Goto, Note, Skip
from warploom.machine.engine.kernels import (
    OPERANDS,
    Arithmetic,
    Masks,
    Scalar,
    UniformArithmetic,
    constant_word,
    uniform_word,
)
from warploom.machine.engine.matrix_kernels import MatrixMove
from warploom.machine.engine.memory_kernels import PIECE, Access
from warploom.machine.engine.mma_kernels import ELEMENTS, WarpMma
from warploom.machine.engine.warp_kernels import Elect, Shuffle
from warploom.machine.memory.byte_memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from warploom.machine.semantics.forms import semantics
from warploom.machine.translate import arithmetic as alu
from warploom.machine.translate.expressions import CLOCKS, Writer, kind_of, literal
from warploom.machine.translate.memory_access import Memory
from warploom.machine.translate.native_copies import COPIES, LATE
from warploom.machine.translate.records import (
    IN_TABLE,
    NAMED_BARRIERS,
    BlockAt,
    Constant,
    Record,
    RecordAt,
    Table,
    Word,
    weights_of,
)
from warploom.machine.translate.register_layout import Layout
from warploom.machine.translate.uniform_slots import UniformSlots
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
_WORD = (1 << 64) - 1
_MMA_ROWS = 16
NOTHING = frozenset({"prefetch", "prefetch.tensormap", "discard", "applypriority", "pmevent", "nanosleep", "brkpt"})
"""Hints, which change nothing that a run can see."""
_FENCES = frozenset({"fence", "fence.tensormap", "fence.proxy.async", "griddepcontrol"})
"""Instructions that change nothing where memory has one view."""
_ARITHMETIC = frozenset({*alu.FAMILIES, *_PARTED})
_LEAVING = flows.BRANCHES | {"ret", "exit"}
_IN_ORDER = frozenset({"wgmma.fence", "tcgen05.fence"})
_NOTED = frozenset({"fence", "fence.proxy.async", *_IN_ORDER})
"""Instructions that whole warps execute, and that change nothing where operations complete at once."""


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


SharedRecords = dict[int, tuple[()] | tuple["Kernel", list[Word]]]
"""The kernels and words of arithmetic instructions by the identity of their `Op`; nothing for one without a kernel."""

_Parts = tuple[list[tuple[Any, str]], list[tuple[Any, str]], tuple[tuple[str, str], ...]]

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


class TableWriter:
    """Writes the table of a program, and the text of the instructions that Python executes."""

    def __init__(
        self,
        engine: Engine,
        layout: Layout,
        numbers: dict[int, int],
        slots: UniformSlots,
        *,
        target: str,
        memory: Memory,
        logged: bool,
        masked: bool,
        alone: bool,
        at_once: bool,
        apart_after: frozenset[int],
        repeated: frozenset[int],
        shared: SharedRecords,
    ) -> None:
        self.target, self._at_once, self._apart_after, self._repeated = target, at_once, apart_after, repeated
        self.engine, self.layout, self.slots, self.memory, self.masked = engine, layout, slots, memory, masked
        self._alone, self._numbers, self.logged, self._shared = alone, numbers, logged, shared
        self.records: list[Record] = []
        self.entries: list[int] = []
        self._waiting: list[int] = []
        self.functions = 0
        """The functions that were written."""
        self._first: Op | None = None
        """The first instruction of the block."""
        self._open = False
        """True if the last function takes further instructions."""

    def number_of(self, op: Op) -> int:
        """The number of an instruction."""
        return self._numbers[id(op)]

    def site(self, op: Op) -> list[Word]:
        """The word of an instruction's number, for the entries of a log."""
        return [self._numbers[id(op)]] if self.logged else []

    @property
    def is_plain(self) -> bool:
        """True in texts for whole warps and memory with one view, without observers."""
        return self.memory is Memory.ALL and not self.logged and not self.masked

    def write(self, blocks: BlockWriter, block: Block) -> None:
        """Write a block."""
        self.entries.append(len(self.records))
        self._waiting.append(-1)
        self._first, self._open = block.ops[0] if block.ops else None, False
        blocks.begin(block)
        if blocks.has_preface(block):
            self._escape(blocks, None, blocks.preface)
        if block.index == blocks.exit:
            return
        at = 0
        while at < len(block.ops):
            op = block.ops[at]
            blocks.lines.op = op
            family = op.form.family
            if family in _LEAVING:
                self._branch(blocks, block, op)
                return
            together = None
            if self._at_once and family in TOGETHER:
                together = blocks.together(block.ops, at, self.is_uniform)
            if together is not None:
                for each in together.between:
                    self._instruction(blocks, each)
                self._escape(blocks, op, together.write)
                at += together.covered
                continue
            self._instruction(blocks, op)
            at += 1
        following = block.next if block.next is not None else blocks.exit
        self._add(None, self._known(("goto",), Goto), [*self._leaving(block), following, BlockAt(following)])

    def _add(self, op: Op | None, kernel: Kernel, words: list[Word]) -> Record:
        record = Record(op, kernel, words, len(self.entries) - 1)
        self.records.append(record)
        self._open = False
        return record

    def _leaving(self, block: Block) -> list[Word]:
        return [8 * block.index, len(block.ops)]

    def _branch(self, blocks: BlockWriter, block: Block, op: Op) -> None:
        guard, exit_ = op.instruction.guard, blocks.exit
        if op.family == "brx":
            self._escape(blocks, op, lambda: blocks.branch(block, op))
            return
        taken = block.targets[0] if op.family == "bra" else exit_
        if guard is None:
            self._add(op, self._known(("goto",), Goto), [*self._leaving(block), taken, BlockAt(taken)])
            return
        fall = block.next if block.next is not None else exit_
        if guard.negated:
            taken, fall = fall, taken
        place = self.layout.places[guard.register.name]
        lanes, masked = place.file != "u", place.file != "u" and self.masked
        kernel = self._known(("branch", lanes, masked), lambda: Branch(lanes, masked))
        condition = place.index if lanes else uniform_word(place.index)
        words: list[Word] = [*self._leaving(block), taken, BlockAt(taken), fall, BlockAt(fall), condition]
        record = self._add(op, kernel, words)
        if lanes:
            record.function = self._function(blocks, lambda: blocks.branch(block, op))

    def _function(self, blocks: BlockWriter, write: Callable[[], None]) -> int:
        """Write a function; its number."""
        blocks.begin_function(f"f{self.functions}")
        begun = len(blocks.lines.text)
        write()
        if len(blocks.lines.text) == begun:  # an instruction without a result
            blocks.lines.add("pass")
        self.functions += 1
        return self.functions - 1

    def _escape(self, blocks: BlockWriter, op: Op | None, write: Callable[[], None]) -> None:
        """Let Python execute an instruction, in the function of the one before where that is Python's too."""
        blocks.lines.op = op
        if self._open:
            write()
            return
        record = self._add(op, self._known(("escape",), Escape), [])
        if op is None or op is self._first:
            self._waiting[-1] = len(self.records) - 1
        record.function = self._function(blocks, write)
        # Groups go on after an instruction that they have waited for.
        self._open = op is None or not op.form.blocks

    def _instruction(self, blocks: BlockWriter, op: Op) -> None:
        """Write an instruction other than a branch."""
        w, guard, skip = blocks.w, op.instruction.guard, RecordAt()
        w.lines.op = op
        place = None if guard is None else self.layout.places[guard.register.name]
        made = self._made(w, op)
        if made is None:
            # Where no lane executes it, Python has nothing to do.
            guarded = not self._open and guard is not None
            if guarded and guard is not None and place is not None:
                self._skip(op, place.index, place.file, guard.negated, skip)
            self._escape(blocks, op, lambda: blocks.instruction(op))
            self._open = self._open and not guarded
        elif made:
            if guard is not None and place is not None and place.file == "u":
                self._skip(op, place.index, "u", guard.negated, skip)
            for record in made:
                record.block = len(self.entries) - 1
                self.records.append(record)
            self._open = False
        skip.number = len(self.records)

    def _skip(self, op: Op, index: int, file: str, negated: bool, skip: RecordAt) -> None:
        lanes = file != "u"
        kernel = self._known(("skip", lanes, lanes and self.masked), lambda: Skip(lanes, lanes and self.masked))
        self._add(op, kernel, [index if lanes else uniform_word(index), int(negated), skip])

    def _made(self, w: Writer, op: Op) -> list[Record] | None:
        """The records of an instruction, without a guard that all lanes share; None if Python must execute it."""
        family, guard, last = op.form.family, op.instruction.guard, list[Word]()
        if family in _ARITHMETIC:
            known = self._shared.get(id(op))
            if known is None:
                made = self._arithmetic_record(w, op)
                known = self._shared[id(op)] = () if made is None else (made.kernel, made.words)
            return [Record(op, *known)] if known else None
        if family in NOTHING or (family in _FENCES and self.is_plain):
            return []
        plain = guard is None and not self.masked
        if family in _IN_ORDER and self._at_once and plain and not self.logged:
            return []
        if self.logged and self._at_once and plain and family in _NOTED and len(op.form.effects) == 1:
            return [self._note(op)]
        if self._is_parameter(op):
            return self._parameter(op)
        if guard is not None and (place := self.layout.places[guard.register.name]).file == "p":
            last = [place.index, int(guard.negated)]
        record = self.record(w, op, last)
        if record is None:
            return None
        found = [record]
        if self.logged and family in ("shfl", "elect"):
            found.insert(0, self._note(op))
        if isinstance(record.kernel.form, MatrixMove) and record.kernel.form.store:
            found.append(Record(op, self._known(("effect",), Effect), []))
        return found

    def _arithmetic_record(self, w: Writer, op: Op) -> Record | None:
        """The record of an arithmetic instruction: the same in all texts for whole warps, and in all others."""
        guard, last = op.instruction.guard, list[Word]()
        if guard is not None and (place := self.layout.places[guard.register.name]).file == "p":
            last = [place.index, int(guard.negated)]
        if self.is_uniform(w, op):
            return None if last else self._uniform_arithmetic(w, op)
        return self._arithmetic(w, op, last)

    def table(self) -> Table:
        """The table of all blocks that were written."""
        records = self.records
        weights = weights_of(records, self._repeated)
        self.engine.link_records(weights)
        escape = self.engine.escape
        constants: dict[int, int] = {}
        starts = list(accumulate((record.kernel.words for record in records), initial=0))
        found: list[int] = []
        for number, record in enumerate(records):
            at = len(found)
            found += (record.kernel.address or escape, number + 1)
            for word in record.words:
                if type(word) is int:
                    found.append(word & _WORD)
                elif isinstance(word, Constant):
                    place = constants.setdefault(word.value, len(constants))
                    found.append(constant_word(8 * (starts[-1] + place - at)))
                else:
                    assert isinstance(word, BlockAt | RecordAt)
                    target = self.entries[word.block] if isinstance(word, BlockAt) else word.number
                    found.append(8 * (starts[target] - at) & _WORD)
            record.words = IN_TABLE
        words = np.array([*found, *constants], np.uint64)
        first = address_of(words)
        starts = [first + 8 * at for at in starts]
        return Table(
            records, self.entries, words, starts, self.engine, self._waiting, list(weights.values()), self._repeated
        )

    def _is_parameter(self, op: Op) -> bool:
        """True for a load of a whole parameter of the kernel into a uniform register, in code for whole warps."""
        if self.masked or self.memory is Memory.NONE:
            return False
        return self.slots.parameter(self._numbers[id(op)]) is not None

    def _parameter(self, op: Op) -> list[Record]:
        """A load of a parameter: a copy of the uniform that holds it."""
        slot, target, bits = self.slots.parameter(self._numbers[id(op)]), op.operands["d"], BITS[op["type"]]
        assert slot is not None
        assert isinstance(target, Register)
        found: list[Record] = []
        if self.logged:
            address = op.operands["a"]
            assert isinstance(address, Address)
            assert isinstance(address.base, Symbol)
            place = self.slots.symbol(Symbol(address.base.name, address.base.offset + address.offset))
            words: list[Word] = [self._numbers[id(op)], uniform_word(place)]
            found.append(Record(op, self._known(("note", "address"), lambda: Note(address=True)), words))
        form = UniformArithmetic("mov", (("type", f"b{bits}"),), ((Scalar(), f"i{bits}"),), ((bits, False),))
        words = [uniform_word(slot), uniform_word(self.layout.places[target.name].index)]
        found.append(Record(op, self._known(form, lambda: form), words))
        return found

    def _known(self, key: object, make: Callable[[], Form]) -> Kernel:
        """The kernel of a form that every processor has."""
        kernel = self._kernel(key, make)
        assert kernel is not None
        return kernel

    def is_uniform(self, w: Writer, op: Op) -> bool:
        """Arithmetic on uniform registers alone."""
        places, d = self.layout.places, op.operands.get("d")
        if isinstance(d, Register) and places[d.name].file != "u":
            return False
        if op.form.family not in _ARITHMETIC:
            return False
        guard = op.instruction.guard
        if guard is not None and places[guard.register.name].file != "u":
            return False
        for operand in op.operands.values():
            if operand is None or type(operand) is Immediate:
                continue
            if type(operand) is Register and not w.of_first_lane:
                if places[operand.name].file != "u":
                    return False
                continue
            parts: tuple[object, ...] = (operand,)
            if isinstance(operand, Pair):
                parts = operand.first, operand.second
            elif isinstance(operand, Vector):
                parts = tuple(operand.items)
            for part in parts:
                if part is not None and not isinstance(part, Sink) and not w.uniform(part):
                    return False
        return True

    def record(self, w: Writer, op: Op, last: list[Word]) -> Record | None:
        """An instruction as a record, with the words of its guard; None if the reference must execute it."""
        family = op.form.family
        if family in _MEMORY:
            return self._access(w, op, last) if self._may_access(op) else None
        if family in _WHOLE_WARPS:
            return None if last or self.masked else _WHOLE_WARPS[family](self, w, op)
        if family in LATE and self.memory is Memory.LATE:
            usual = self._alone and not (last or self.logged or self.masked)
            return LATE[family](self, w, op) if usual else None
        if self._at_once and family in COPIES:
            return COPIES[family](self, w, op, last)
        return None

    def made(self, op: Op, form: Form, words: list[Word]) -> Record | None:
        """A record with the kernel of a form."""
        kernel = self._kernel(form, lambda: form)
        return None if kernel is None else Record(op, kernel, words)

    def _may_access(self, op: Op) -> bool:
        if self.logged:
            uniform_store = _MEMORY[op.family] and self._has_one_address(op)
            bytes_ = BITS[op["type"]] // 8 * int(op["vec"][1:] or 1)
            if not op["space"] or bytes_ > PIECE or uniform_store:
                return False
        if self.memory is not Memory.ONE_VIEW:
            return self.memory.has_stores
        return op["order"] in ("", "weak") and (not _MEMORY[op.family] or op["space"] in ("global", "local"))

    def _has_one_address(self, op: Op) -> bool:
        address = op.operands["a"]
        base = address.base if isinstance(address, Address) else None
        return not isinstance(base, Register) or self.layout.places[base.name].file == "u"

    def _note(self, op: Op) -> Record:
        """The entry in the log of an instruction that touches no memory."""
        return Record(op, self._known(("note",), Note), [self._numbers[id(op)]])

    def barrier(self, w: Writer, op: Op) -> Record | None:
        """`bar.sync` of all threads, by a group that has all of them."""
        index = op.operands["a"]
        if not self._alone or id(op) in self._apart_after:
            return None
        if not isinstance(index, Immediate) or not 0 <= index.value < NAMED_BARRIERS or op.operands["b"] is not None:
            return None
        words: list[Word] = [8 * int(index.value), *self.site(op)]
        return Record(op, self._known(("bar", self.logged), lambda: Barrier(self.logged)), words)

    def shuffle(self, w: Writer, op: Op) -> Record | None:
        """`shfl` of a row by all lanes of the warp."""
        members, d = op.operands["members"], op.operands["d"]
        if self.memory is Memory.NONE or not isinstance(members, Immediate) or members.value & _ALL_LANES != _ALL_LANES:
            return None
        first, second = (d.first, d.second) if isinstance(d, Pair) else (d, Sink())
        if not isinstance(first, Register) or w.place(first).file != "a":
            return None
        found = [self.operand(w, op.operands[name], "b32") for name in "abc"]
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

    def elect(self, w: Writer, op: Op) -> Record | None:
        """`elect` by all lanes of the warp."""
        members, d = op.operands["members"], op.operands["d"]
        if self.memory is Memory.NONE:
            return None
        if not isinstance(members, Immediate) or members.value & _ALL_LANES != _ALL_LANES or not isinstance(d, Pair):
            return None
        if not isinstance(d.second, Register) or w.place(d.second).file != "p":
            return None
        words: list[Word] = []
        if isinstance(d.first, Register):
            if w.place(d.first).file != "a":
                return None
            words.append(w.place(d.first).index * ITEM_BYTES["a"])
        result = bool(words)
        words.append(w.place(d.second).index)
        return Record(op, self._known(("elect", result), lambda: Elect(result)), words)

    def matrices(self, w: Writer, op: Op) -> Record | None:
        """`ldmatrix` or `stmatrix` of 8 × 8 matrices in the CTA's own shared memory."""
        store = op.family == "stmatrix"
        if self.memory is Memory.NONE or (store and not self.memory.has_stores):
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
        form = MatrixMove(store, bool(op["trans"]), len(places), base.file, self.logged)
        kernel = self._kernel((op.family, form.transposed, form.count, form.address, form.logged), lambda: form)
        if kernel is None:
            return None
        words: list[Word] = [base.index * ITEM_BYTES[base.file], address.offset]
        words += [each.index * ITEM_BYTES["a"] for each in places]
        words += self.site(op)
        return Record(op, kernel, words)

    def warp_mma(self, w: Writer, op: Op) -> Record | None:
        """`mma.sync` of 16 rows with D of f32, f16 or s32, all of whose operands but C differ by lane."""
        a_type, b_type, d_type = op["a_type"], op["b_type"], op["d_type"]
        shape = next(
            (row for row in WARP_SHAPES if f"m{row.m}n{row.n}k{row.k}" == op["shape"] and a_type in row.types), None
        )
        mixed = a_type == b_type or any({a_type, b_type} <= types for types in WARP_MIXES)
        if shape is None or shape.m != _MMA_ROWS or a_type not in ELEMENTS or not mixed:
            return None
        if d_type not in WARP_D_TYPES[a_type] or op["c_type"] != d_type:
            return None
        held = 2 if d_type == "f16" else 4
        counts, words, scalars = {"a": shape.a_registers, "b": shape.b_registers, "c": held, "d": held}, list[Word](), 0
        for name, count in counts.items():
            given = op.operands[name]
            if not isinstance(given, Vector) or len(given.items) != count:
                return None
            for item in given.items:
                found = self.operand(w, item, "b32")
                if found is None or found[0] not in "ak" or (found[0] == "k" and name != "c"):
                    return None
                scalars += found[0] == "k"
                words.append(found[1])
        if scalars not in (0, counts["c"]):
            return None
        form = WarpMma(a_type, b_type, shape.b_registers, d_type, bool(op["satfinite"]), bool(scalars))
        kernel = self._kernel(form, lambda: form)
        return None if kernel is None else Record(op, kernel, words)

    def _kernel(self, key: object, make: Callable[[], Form]) -> Kernel | None:
        """The kernel of an instruction whose spelling and kinds of operands are the key."""
        known = self.engine.by_operands
        if key not in known:
            known[key] = self.engine.kernel(make())
        return known[key]

    def masks(self, last: list[Word]) -> Masks:
        """The masks of an instruction whose guard has these words."""
        return Masks(guard=bool(last), group=self.masked)

    def _parts(self, op: Op, shape: _Shape) -> _Parts:
        """The operands of an arithmetic instruction with their types, its targets with theirs, and its modifiers."""
        given = [(op.operands[name], type_) for name, type_ in shape.given]
        targets: list[tuple[Any, str]] = [(op.operands["d"], shape.out)]
        modifiers = shape.modifiers
        match op.form.family:
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
        return [each for each in given if each[0] is not None], targets, modifiers

    def _inputs(self, w: Writer, given: Iterable[tuple[Any, str]]) -> tuple[list[str], list[Word]] | None:
        """The kinds of operands and their words; None if native code does not read one of them."""
        kinds: list[str] = []
        words: list[Word] = []
        places = self.layout.places
        for operand, type_ in given:
            if type(operand) is Register and (place := places[operand.name]).file in "hab":
                kinds.append(place.file)
                words.append(place.index * ITEM_BYTES[place.file])
                continue
            found = self.operand(w, operand, type_)
            if found is None:
                return None
            kinds.append(found[0])
            words.append(found[1])
        return kinds, words

    def _arithmetic(self, w: Writer, op: Op, last: list[Word]) -> Record | None:
        shape = _shape_of(op)
        if shape is None or w.reduces(op):
            return None
        given, targets, modifiers = self._parts(op, shape)
        inputs = self._inputs(w, given)
        if inputs is None:
            return None
        kinds, words = inputs
        outputs: list[tuple[str, bool] | None] = []
        for target, type_ in targets:
            if isinstance(target, Sink):
                outputs.append(None)
                continue
            if not isinstance(target, Register):
                return None
            place, bits = self.layout.places[target.name], BITS[type_]
            if place.file not in _FILES or (place.bits != bits and not (shape.wider and place.bits > bits)):
                return None
            outputs.append((place.file, bits < place.bits and kind_of(type_) == "s"))
            words.append(place.index * ITEM_BYTES[place.file])
        if not any(outputs):
            return None

        def make() -> Arithmetic:
            types = tuple((OPERANDS[kind], f"i{BITS[type_]}") for kind, (_, type_) in zip(kinds, given, strict=True))
            return Arithmetic(shape.family, modifiers, types, tuple(outputs), self.masks(last))

        key = op.form.family, op.instruction.opcode, "".join(kinds), tuple(outputs), bool(last), self.masked
        kernel = self._kernel(key, make)
        return None if kernel is None else Record(op, kernel, words + last)

    def _uniform_arithmetic(self, w: Writer, op: Op) -> Record | None:
        """Arithmetic on uniform registers alone; its guard is another record."""
        shape = _shape_of(op)
        if shape is None:
            return None
        given, targets, modifiers = self._parts(op, shape)
        inputs = self._inputs(w, given)
        if inputs is None:
            return None
        kinds, words = inputs
        outputs: list[tuple[int, bool] | None] = []
        for target, type_ in targets:
            if not isinstance(target, Register):
                outputs.append(None)
                continue
            place, bits = w.place(target), BITS[type_]
            if place.file != "u" or (place.bits != bits and not (shape.wider and place.bits > bits)):
                return None
            outputs.append((place.bits, bits < place.bits and kind_of(type_) == "s"))
            words.append(uniform_word(place.index))

        def make() -> UniformArithmetic:
            scalars = tuple(Scalar(negated=kind == "m") for kind in kinds)
            types = tuple((each, f"i{BITS[type_]}") for each, (_, type_) in zip(scalars, given, strict=True))
            return UniformArithmetic(shape.family, modifiers, types, tuple(outputs))

        key = "uniform", op.form.family, op.instruction.opcode, "".join(kinds), tuple(outputs)
        kernel = self._kernel(key, make)
        return None if kernel is None else Record(op, kernel, words)

    def operand(self, w: Writer, operand: object, type_: str) -> tuple[str, Word] | None:
        """An operand that is read, as a key of OPERANDS and a word."""
        match operand:
            case Register():
                place = w.place(operand)
                if place.file == "u":
                    return "k", uniform_word(place.index)
                if place.file not in _FILES or (place.file == "p") != (type_ == "pred"):
                    return None
                return place.file, place.index * ITEM_BYTES[place.file]
            case Immediate():
                value = int(bool(operand.value)) if type_ == "pred" else literal(operand, type_)
                return "k", Constant(value & _WORD)
            case Negated(register):
                place = w.place(register)
                if place.file == "u":
                    return "m", uniform_word(place.index)
                return None if place.file != "p" else ("n", place.index)
            case Special(name):
                if type_ == "pred" or name in CLOCKS:  # every read of a clock counts
                    return None
                if not w.uniform(operand):
                    return "s", SPECIALS.index(name) * ITEM_BYTES["s"]
                return "k", uniform_word(self.slots.special(name))
            case Symbol():
                return None if type_ == "pred" else ("k", uniform_word(self.slots.symbol(operand)))
        return None

    def _access(self, w: Writer, op: Op, last: list[Word]) -> Record | None:
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
        base = address.base
        found = self.operand(w, base, "b64")
        if found is None or found[0] not in "kab":
            return None
        where, wraps = found[0], found[0] == "k" and isinstance(base, Register) and w.place(base).bits == 32
        words: list[Word] = [found[1], address.offset]
        items: list[str] = []
        for part in parts:
            if store:
                found = self.operand(w, part, type_)
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
        masks, signed = self.masks(last), type_.startswith("s")

        def make() -> Access:
            moved = tuple(None if item == "_" else OPERANDS[item] for item in items)
            return Access(store, space, OPERANDS[where], element, moved, signed, masks, wraps, self.logged)

        key = store, space, where, wraps, element, "".join(items), signed, bool(last), self.masked, self.logged
        kernel = self._kernel(key, make)
        if kernel is None:
            return None
        return Record(op, kernel, words + last + self.site(op))


_WHOLE_WARPS: dict[str, Callable[[TableWriter, Writer, Op], Record | None]] = {
    "bar.sync": TableWriter.barrier,
    "ldmatrix": TableWriter.matrices,
    "stmatrix": TableWriter.matrices,
    "mma.sync": TableWriter.warp_mma,
    "shfl": TableWriter.shuffle,
    "elect": TableWriter.elect,
}
"""Instructions of whole warps without a guard of lanes."""


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
