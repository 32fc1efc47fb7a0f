"""PTX basic blocks become Python functions over the lanes of a group.

One source text per kernel: a `make` function binds the group's registers to local names and returns a function per
block. A block function runs to its end and returns the index of the next block, or one of the codes below. The masked
text, for lanes that run apart from the rest of their warp, is written only when a warp first diverges.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc
from warploom.machine.core.registry import MEANINGS, TOGETHER
from warploom.machine.translate import arithmetic as alu
from warploom.machine.translate.batches import row_lists
from warploom.machine.translate.blocks import WRITERS, BlockWriter
from warploom.machine.translate.expressions import Lines, Names
from warploom.machine.translate.functions import Recipe
from warploom.machine.translate.memory_access import Memory
from warploom.machine.translate.native_tables import SharedRecords, TableWriter
from warploom.machine.translate.records import Table
from warploom.machine.translate.register_layout import Layout, lay_out
from warploom.machine.translate.texts import StoredText, Text
from warploom.machine.translate.uniform_slots import UniformSlots, named_in
from warploom.ptx.analysis import control_flow as flows
from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.analysis.inlining import inline
from warploom.ptx.analysis.liveness import live_at_entry
from warploom.ptx.analysis.lockstep import Lockstep, lockstep
from warploom.ptx.analysis.polling_loops import polling_loops, repeated_blocks
from warploom.ptx.analysis.state_spaces import in_their_spaces
from warploom.ptx.analysis.tensor_loads import loads_read_by, uses_of_pending_loads
from warploom.ptx.analysis.uniformity import classify
from warploom.ptx.analysis.wgmma_hazards import accessed_before_commit, accesses_since_fence, asynchronous_registers
from warploom.ptx.isa.table import Op, decode_kernel
from warploom.ptx.syntax.model import Address, Kernel, Module, Register, Special, Symbol
from warploom.ptx.syntax.pickling import without_collection

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine

LANE_SPECIALS = frozenset(
    {"%tid.x", "%tid.y", "%tid.z", "%laneid", "%warpid"} | {f"%lanemask_{c}" for c in ("eq", "le", "lt", "ge", "gt")}
)
_VISIBLE = frozenset({"", "global", "shared"})
_UNMODELLED = ("%pm", "%envreg")
_MODELLED = frozenset({"%envreg1", "%envreg2"})
_NUMPY = [
    "add",
    "subtract",
    "multiply",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "minimum",
    "maximum",
    "left_shift",
    "right_shift",
    "invert",
    "logical_not",
    "logical_and",
    "greater",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater_equal",
    "copyto",
    "putmask",
    "full",
    "empty",
    "bool_",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex128",
]
_PART_BLOCKS, _PART_LINES = 256, 4096
"""The blocks that share one `make`: compile time grows with the product of its functions and names."""


_COUNTED_TOGETHER = 1 << 14
"""Instructions of warps for which the executions of kernels are counted together."""


@dataclass(frozen=True, slots=True, eq=False)
class Flavour:
    """A way of execution: NumPy alone, or native kernels (`engine`) with some of the accesses to memory (`memory`).

    Without an access every one is the reference's, as store buffers need it. For observers they are `logged`. A group
    that is `alone` has all threads of its CTA. Where operations complete `at_once` native code executes some of them.
    """

    engine: Engine | None = None
    memory: Memory = Memory.NONE
    logged: bool = False
    alone: bool = False
    at_once: bool = False

    @property
    def name(self) -> str:
        flags = {"logged": self.logged, "alone": self.alone, "at once": self.at_once}
        words = "".join(f", {word}" for word, holds in flags.items() if holds)
        return "" if self.engine is None else f" native {self.memory.value}{words}"


REFERENCE = Flavour()


@dataclass
class Program:
    """A kernel ready to run: its flow, register homes and translated blocks."""

    module: Module
    kernel: Kernel
    flow: Flow
    layout: Layout
    file: str
    functions: dict[str, Any] = field(default_factory=dict)
    recipes: dict[Recipe, str] = field(default_factory=dict)
    runs: dict[str, Op] = field(default_factory=dict)
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    """The instructions that are executed together: the first, how many, and the commit that ends them, or -1."""
    reports: dict[int, Any] = field(default_factory=dict)
    """The events of instructions, by the identity of their `Op`, as `observers/observation.py` works them out."""
    sources: dict[int, Any] = field(default_factory=dict)
    """The places of instructions for events, by the identity of the instruction, which they hold."""
    native_sites: dict[tuple[bool, bool], Any] = field(default_factory=dict)
    """The barriers and copies that native code executes, for launches with CTAs that act as a whole or not, and whose
    operations complete as they are issued or not.
    """
    synchronising: frozenset[int] | None = None
    """The instructions that may synchronise by memory alone, by the identity of their `Op`; None until a run asks."""
    stored: dict[str, StoredText] = field(default_factory=dict)
    """Whole texts as they are on disk."""
    longest: int = 0
    """The instructions that warps executed in the longest run."""
    _texts: dict[str, Text] = field(default_factory=dict)
    _unstored: set[str] = field(default_factory=set)
    _uncounted: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """Executions of blocks by warps that are not counted for kernels yet."""
    _shared_records: dict[tuple[Engine, bool], SharedRecords] = field(default_factory=dict)
    """The records that tables of several texts have in common, while a run writes them."""
    _needs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _values: dict[int, Callable[[list[Any]], Any]] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return self.module.target[0]

    def text(self, flavour: Flavour = REFERENCE, *, masked: bool = False) -> Text:
        """The blocks for whole warps, or with `masked` for some lanes of one."""
        name = self._name(flavour, masked)
        if name not in self._texts:
            with without_collection():
                found = self.stored[name].text(flavour.engine, self.ops) if name in self.stored else None
                if found is None:
                    found = self._written(name, flavour, masked)
                    self._unstored.add(name)
            self._texts[name] = found
        return self._texts[name]

    def count(self, blocks: npt.NDArray[np.int64], tables: Iterable[Table]) -> None:
        """Count executions of blocks by warps for the kernels of tables, many launches of a small program together."""
        self._uncounted = self._uncounted + blocks
        if int((self._uncounted * self.cost_array).sum(dtype=np.int64)) >= _COUNTED_TOGETHER:
            counted, self._uncounted = self._uncounted, np.zeros_like(blocks)
            for table in tables:
                table.count(counted)

    def end_run(self) -> None:
        """Forget what only the texts of one run share."""
        self._shared_records.clear()

    def alone(self, ops: Sequence[Op], *, masked: bool) -> Text:
        """Single instructions of a block by the reference, for native code that has left them."""
        listed = ", ".join(str(self.numbers[id(op)]) for op in ops)
        name = f"<{self.kernel.name} {'masked ' if masked else ''}instruction {listed}>"
        if name not in self._texts:
            names, body = self._names(), Lines()
            writer = BlockWriter(self, names, body, masked)
            writer.begin(next(block for block in self.flow.blocks if any(each is ops[0] for each in block.ops)))
            for number, op in enumerate(ops):
                body.op = op
                writer.begin_function(f"f{number}")
                writer.instruction(op)
            made = "".join(f"f{number}, " for number in range(len(ops)))
            self._texts[name] = self._compiled(name, [(names, body, f"({made})")])
        return self._texts[name]

    @property
    def has_new_texts(self) -> bool:
        """True if this process has written whole texts that are not stored."""
        return bool(self._unstored)

    def store_texts(self) -> bool:
        """Add the whole texts that this process has written to those that are stored; True if there are any."""
        written, self._unstored = self._unstored, set()
        self.stored |= {name: StoredText.of(self._texts[name], self.numbers) for name in written}
        return bool(written)

    def instruction_at(self, file: str, line: int) -> Op | None:
        """The instruction of a line of one of the texts; None for other files."""
        text = self._texts.get(file)
        return text.ops[line - 1] if text is not None and line <= len(text.ops) else None

    def _name(self, flavour: Flavour, masked: bool) -> str:
        return f"<{self.kernel.name}{flavour.name}{' masked' if masked else ''}>"

    def _names(self) -> Names:
        return Names(self.layout, self.functions, self.recipes, lane_specials=LANE_SPECIALS)

    def meaning(self, op: Op) -> str:
        """The name of the function that executes an instruction."""
        name = f"X{self.numbers[id(op)]}"
        if name not in self.functions:
            self.functions[name] = MEANINGS[op.family](op)
            self.runs[name] = op
        return name

    def together(self, first: int, count: int, commit: int) -> str:
        """The name of the function that executes several instructions together, by the number of the first; that of
        their commit is -1 if it does not execute one.
        """
        name = f"B{first}"
        if name not in self.functions:
            self.functions[name] = TOGETHER[self.ops[first].family][1](count, self.ops[commit] if commit >= 0 else None)
            self.batches.append((first, count, commit))
        return name

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """All instructions, in order."""
        return tuple(op for block in self.flow.blocks for op in block.ops)

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each instruction, by the identity of its `Op`."""
        return {id(op): at for at, op in enumerate(self.ops)}

    @cached_property
    def numbers_of_instructions(self) -> dict[int, int]:
        """The number of each instruction, by its identity."""
        return {id(op.instruction): at for at, op in enumerate(self.ops)}

    @cached_property
    def slots(self) -> UniformSlots:
        """The uniforms of native code."""
        return UniformSlots(self.kernel, self.layout, zip(self.ops, self._named_by_op, strict=True), LANE_SPECIALS)

    @cached_property
    def meets_alone(self) -> bool:
        """True if its named barriers are all of the kind that a CTA's only group passes without waiting."""
        families = {op.form.family for op in self.ops}
        return "bar.sync" in families and families.isdisjoint({"bar.arrive", "bar.red"})

    @cached_property
    def has_async_proxy(self) -> bool:
        """True if an instruction may access memory through another proxy than the generic one, or later."""
        effects = ((op, effect) for op in self.ops for effect in op.form.effects)
        return any(effect.later or _filled(op, effect.proxy) != "generic" for op, effect in effects)

    @cached_property
    def accessed_before_commit(self) -> frozenset[int]:
        """The `wgmma`s, by the identity of their `Op`, whose registers are touched before they are committed."""
        return accessed_before_commit(self.flow)

    @cached_property
    def unordered_wgmmas(self) -> frozenset[int]:
        """The `wgmma`s, by the identity of their `Op`, one of whose registers may have changed since the last fence."""
        found, fences = accesses_since_fence(self.flow), (op for op in self.ops if op.family == "wgmma.fence")
        if any(op.instruction.guard is not None for op in fences):
            return frozenset(found)
        return frozenset(op for op, each in found.items() if each.written or each.copied)

    @cached_property
    def rows_of_wgmmas(self) -> slice:
        """The rows of 32-bit registers that `wgmma`s use, and those between them."""
        names = {name for op in self.ops for name in asynchronous_registers(op) if op.family == "wgmma.mma_async"}
        rows = [place.index for name in names if (place := self.layout.places[name]).file == "a"]
        return slice(min(rows, default=0), max(rows, default=-1) + 1)

    @cached_property
    def lockstep(self) -> Lockstep | None:
        """The places where warps run one by one though every operation is late; None if they do so everywhere."""
        return lockstep(self.flow, {name for name, place in self.layout.places.items() if place.file == "u"})

    @cached_property
    def copied_behind_fence(self) -> dict[int, frozenset[str]]:
        """Registers of `wgmma`s, by the identity of their `Op`, that only copies have changed since the last fence."""
        found = accesses_since_fence(self.flow)
        return {op: each.copied - each.written for op, each in found.items() if each.copied - each.written}

    @cached_property
    def blocks_after_loads(self) -> frozenset[int]:
        """The blocks that begin with an instruction which waits for loads of TMEM, because it uses their registers."""
        waiting = uses_of_pending_loads(self.flow)
        waiting |= self._loads_read_by.keys() if waiting else frozenset()
        return frozenset(block.index for block in self.flow.blocks if block.ops and id(block.ops[0]) in waiting)

    @cached_property
    def _loads_read_by(self) -> dict[int, frozenset[int]]:
        return loads_read_by(self.flow)

    @cached_property
    def loads_read(self) -> dict[int, frozenset[int]]:
        """The loads of TMEM, by the identity of their `Op`, whose registers the first instruction of a block reads."""
        found = self._loads_read_by if self.blocks_after_loads else {}
        return {
            block.index: found[id(block.ops[0])]
            for block in self.flow.blocks
            if block.ops and id(block.ops[0]) in found
        }

    @cached_property
    def costs(self) -> tuple[int, ...]:
        """Instructions per block."""
        return tuple(len(block.ops) for block in self.flow.blocks)

    @cached_property
    def cost_array(self) -> npt.NDArray[np.int64]:
        """Instructions per block."""
        return np.array(self.costs, np.int64)

    @cached_property
    def tallies(self) -> tuple[tuple[Counter[str], dict[str, set[int]]], ...]:
        """The instructions of each block by family, and the lines that they come from by file."""
        found = []
        for block in self.flow.blocks:
            lines: dict[str, set[int]] = {}
            for op in block.ops:
                loc = op.instruction.loc or Loc(self.file, op.instruction.line)
                lines.setdefault(loc.file, set()).add(loc.line)
            found.append((Counter(op.family for op in block.ops), lines))
        return tuple(found)

    @cached_property
    def digest(self) -> str:
        """A digest of the kernel's instructions, without the lines that they come from."""
        text = "\n".join(op.instruction.text for block in self.flow.blocks for op in block.ops)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def polling_loops(self) -> frozenset[int]:
        """The blocks of loops in which warps may poll with an effect."""
        return polling_loops(self.flow)

    def shared_needs(self, block: int) -> tuple[int, ...]:
        """The uniform integers that a block or a later one may still read."""
        if block not in self._needs:
            alive = self._alive[block]
            self._needs[block] = tuple(index for index in range(self.layout.rows["u"]) if alive >> index & 1)
        return self._needs[block]

    def shared_values(self, block: int) -> Callable[[list[Any]], Any]:
        """A function of the uniform registers: the values of those that a block or a later one may still read."""
        if block not in self._values:
            needed = self.shared_needs(block)
            self._values[block] = itemgetter(*needed) if needed else lambda _: ()
        return self._values[block]

    @cached_property
    def unwritten(self) -> tuple[tuple[str, int, int], ...]:
        """The rows of registers that may be read before they are written, as runs: file, first and end."""
        names = list(self.layout.places)
        alive, found = live_at_entry(self.flow, names)[0], list[tuple[str, int, int]]()
        places = (self.layout.places[name] for at, name in enumerate(names) if alive >> at & 1)
        for file, row in sorted((place.file, place.index) for place in places if place.file != "u"):
            if found and found[-1][0] == file and found[-1][2] == row:
                found[-1] = (file, found[-1][1], row + 1)
            else:
                found.append((file, row, row + 1))
        return tuple(found)

    @cached_property
    def _alive(self) -> tuple[int, ...]:
        places = sorted((place.index, name) for name, place in self.layout.places.items() if place.file == "u")
        return live_at_entry(self.flow, [name for _, name in places])

    def is_uniform(self, address: Address) -> bool:
        """True if all lanes of a group have the same address."""
        return not isinstance(address.base, Register) or self.layout.places[address.base.name].file == "u"

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
        return frozenset(each.name for _, each in self._named if isinstance(each, Special))

    @cached_property
    def _symbols(self) -> dict[str, Op]:
        """The variables that are named, each with an instruction that does."""
        return {each.name: op for op, each in self._named if isinstance(each, Symbol)}

    @cached_property
    def _named(self) -> list[tuple[Op, Special | Symbol]]:
        """The special registers and variables that instructions name."""
        return [(op, each) for op, found in zip(self.ops, self._named_by_op, strict=True) for each in found]

    @cached_property
    def _named_by_op(self) -> list[list[Special | Symbol]]:
        """For each instruction the special registers and variables that it names."""
        return [named_in(op) for op in self.ops]

    def make(
        self, text: Text, wrap: Callable[[Op, Any], Any] | None = None
    ) -> Callable[..., tuple[Callable[..., int], ...]]:
        """The factory of a text; `wrap` wraps the semantics of every instruction for observers."""
        space: dict[str, Any] = {name: getattr(np, name) for name in _NUMPY}
        space |= {"select": np.where, "__name__": __name__}  # the name marks its frames as the library's
        space["isnan"] = math.isnan
        space |= self.functions
        if wrap is not None:
            used = text.names  # native code executes most of the others
            space |= {name: wrap(op, self.functions[name]) for name, op in self.runs.items() if name in used}
        factories: list[Callable[..., tuple[Callable[..., int], ...]]] = []
        for code in text.parts:
            exec(code, space)  # noqa: S102  (the source is this module's own)
            factories.append(space.pop("make"))  # a function among its own globals would keep them all alive
        if len(factories) == 1:
            return factories[0]
        return lambda *given: tuple(block for factory in factories for block in factory(*given))

    def _written(self, name: str, flavour: Flavour, masked: bool) -> Text:
        blocks, native = self.flow.blocks, None
        late = self.lockstep if flavour.memory is Memory.LATE else None
        apart = frozenset[int]() if late is None else late.apart_after
        if flavour.engine is not None:
            native = TableWriter(
                flavour.engine,
                self.layout,
                self.numbers,
                self.slots,
                target=self.target,
                memory=flavour.memory,
                logged=flavour.logged,
                masked=masked,
                alone=flavour.alone,
                at_once=flavour.at_once,
                apart_after=apart,
                repeated=repeated_blocks(self.flow),
                shared=self._shared_records.setdefault((flavour.engine, masked), {}),
            )
        parts: list[tuple[Names, Lines, str]] = []
        at = 0
        while at < len(blocks):
            names, body = self._names(), Lines()
            first, functions = at, 0 if native is None else native.functions
            writer = BlockWriter(self, names, body, masked)
            while at < len(blocks) and at - first < _PART_BLOCKS and len(body.text) < _PART_LINES:
                if native is None:
                    writer.write(blocks[at])
                else:
                    native.write(writer, blocks[at])
                at += 1
            made = range(first, at) if native is None else range(functions, native.functions)
            parts.append((names, body, "".join(f"{'block_' if native is None else 'f'}{number}, " for number in made)))
        text = self._compiled(name, [(names, body, f"({made})") for names, body, made in parts])
        return text if native is None else replace(text, table=native.table())

    def _compiled(self, name: str, parts: list[tuple[Names, Lines, str]]) -> Text:
        codes: list[CodeType] = []
        lines: list[str] = []
        ops: list[Op | None] = []
        for names, body, blocks in parts:
            header = ["def make(Fp, Fh, Fa, Fb, Fq, W, SPECIALS, LANES, SYMBOLS, ONE, FULL):"]
            header += [f" {local} = {expression}" for local, expression in names.bindings.items()]
            part = [*header, *body.text, f" return {blocks}"]
            # Leading empty lines keep the line numbers of the whole text.
            codes.append(compile("\n" * len(lines) + "\n".join(part) + "\n", name, "exec"))
            lines += part
            ops += [*[None] * len(header), *body.ops, None]
        return Text(tuple(codes), tuple(ops), "\n".join(lines) + "\n")


def translate(
    module: Module, kernel: Kernel, *, follow_x: int, preemptible: bool = False, file: str = "<ptx>"
) -> Program:
    """Verify a kernel and prepare its blocks."""
    kernel = inline(module, kernel, file)
    ops = in_their_spaces(decode_kernel(kernel, module.target[0], file), module, kernel, file)
    begins = _is_visible if preemptible else None
    flow = flows.build(kernel, file, ops, begins)
    read = dict[int, frozenset[int]]()
    if waiting := uses_of_pending_loads(flow):
        read = loads_read_by(flow)
        waiting |= read.keys()
        flow = flows.build(kernel, file, ops, lambda op: id(op) in waiting or (begins is not None and begins(op)))
    named = _check_modelled(flow, file)
    classes = classify(kernel, flow, follow_x=follow_x)
    lists = (each for block in flow.blocks for each in row_lists(block.ops, classes))
    program = Program(module, kernel, flow, lay_out(kernel, flow, classes, lists), file)
    # These analyses depend on instructions and paths, not on where blocks begin.
    after = frozenset(block.index for block in flow.blocks if block.ops and id(block.ops[0]) in waiting)
    program.__dict__ |= {"_named_by_op": named, "_loads_read_by": read, "blocks_after_loads": after}
    flow.forget_uses()
    return program


def _filled(op: Op, text: str) -> str:
    """A field of an effect, with the instruction's own choice where it names a modifier."""
    return op[text[1:-1]] if text.startswith("{") else text


def _is_visible(op: Op) -> bool:
    """True for an access to memory that other warps reach: a preemptible program has a block before each."""
    for effect in op.form.effects:
        space = _filled(op, effect.space)
        if effect.verb in ("reads", "writes") and not effect.later and space.partition("::")[0] in _VISIBLE:
            return True
    return False


def _check_modelled(flow: Flow, file: str) -> list[list[Special | Symbol]]:
    """Raise an error if an instruction or special register is not modelled; the names that each instruction uses."""
    found: list[list[Special | Symbol]] = []
    for block in flow.blocks:
        for op in block.ops:
            family = op.form.family
            if family not in MEANINGS and family not in WRITERS and family not in alu.FAMILIES:
                what = f"`{op.instruction.opcode}`"
                raise Diag.NOT_MODELLED.error(op.instruction.loc or Loc(file, op.instruction.line), what=what)
            found.append(named_in(op))
            for each in found[-1]:
                if isinstance(each, Special) and each.name not in _MODELLED and each.name.startswith(_UNMODELLED):
                    what = f"the special register `{each}`"
                    raise Diag.NOT_MODELLED.error(op.instruction.loc or Loc(file, op.instruction.line), what=what)
    return found
