"""PTX as data: operands, instructions, kernels, modules.

Scopes are flattened on reading: a register or label declared inside `{ }` gets a unique name (`complete` in the third
scope becomes `complete$3`), so that a kernel is one list of statements and one table of registers.
The position in the text (`line`) is not part of equality: `parse(print(m)) == m`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from warploom.diagnostics import Loc
from warploom.ptx.syntax.pickling import quickly_pickled


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register by its (flattened) name, `%r12` or `complete$3`."""

    name: str

    def __str__(self) -> str:
        return self.name


VECTOR_SPECIALS = frozenset(
    f"%{name}"
    for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
)
"""Special registers of four parts, x to w, of which an instruction names one; only `mov.v4` moves all."""

LONG_SPECIALS = frozenset({"%clock64", "%globaltimer", "%current_graph_exec"})
"""Special registers of 64 bits; `%gridid` is of 32 or 64, the others are not."""


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only hardware register such as `%tid.x` or `%cluster_ctarank`."""

    name: str

    def __str__(self) -> str:
        return self.name


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. `kind` is `int` (a Python integer, maybe negative), `f32` or `f64` (`value` is then the raw bits)."""

    value: int
    kind: str = "int"

    def __str__(self) -> str:
        if self.kind == "f32":
            return f"0f{self.value:08X}"
        if self.kind == "f64":
            return f"0d{self.value:016X}"
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable, parameter, function or label, with a byte offset where one is added."""

    name: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.offset}" if self.offset else self.name


@dataclass(frozen=True, slots=True)
class Sink:
    """The operand `_`: a result that is discarded."""

    def __str__(self) -> str:
        return "_"


@dataclass(frozen=True, slots=True)
class Negated:
    """`!%p`: a predicate read negated."""

    register: Register

    def __str__(self) -> str:
        return f"!{self.register}"


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, …}`: registers, immediates or sinks moved together."""

    items: tuple[Register | Immediate | Sink | Special | Symbol, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.items)) + "}"


@dataclass(frozen=True, slots=True)
class Pair:
    """`%r|%p`: two results of one instruction."""

    first: Register | Sink
    second: Register | Sink

    def __str__(self) -> str:
        return f"{self.first}|{self.second}"


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`, or `[base, {coordinates}]` where a tensor map is addressed (`coordinates` is then not None)."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: Vector | None = None

    def __str__(self) -> str:
        inner = f"{self.base}+{self.offset}" if self.offset else str(self.base)
        return f"[{inner}, {self.coordinates}]" if self.coordinates is not None else f"[{inner}]"


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(a, b, …)`: the parameters or results of a `call`."""

    items: tuple[Register | Symbol | Immediate | Sink, ...]

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.items)) + ")"


Operand = Register | Special | Immediate | Symbol | Sink | Negated | Vector | Pair | Address | Arguments


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Guard:
    """`@%p` or `@!%p` before an instruction."""

    register: Register
    negated: bool = False

    def __str__(self) -> str:
        return f"@{'!' if self.negated else ''}{self.register}"


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its whole dotted opcode, its operands, its guard and its source location."""

    opcode: str
    operands: tuple[Operand, ...] = ()
    guard: Guard | None = None
    loc: Loc | None = None
    line: int = field(default=0, compare=False)

    @property
    def text(self) -> str:
        head = f"{self.guard} {self.opcode}" if self.guard else self.opcode
        return f"{head} {', '.join(map(str, self.operands))}" if self.operands else head


_fields_of = attrgetter("opcode", "operands", "guard", "loc", "line")


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target."""

    name: str


@dataclass(frozen=True, slots=True)
class BranchTargets:
    """`name: .branchtargets a, b, …;` — the table that a `brx.idx` indexes."""

    name: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallTable:
    """`name: .callprototype …;` or `.calltargets …;` — the possible targets of an indirect call, kept as tokens."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Pragma:
    """`.pragma "…";` — kept, and ignored by the emulator."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A `//!wl …` line: a name for a barrier, role, region or watched register. ptxas reads it as a comment."""

    text: str


Statement = Instruction | Label | BranchTargets | CallTable | Pragma | Note


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable or parameter. `count` is None for a scalar and 0 for `name[]`; `initial` are the elements."""

    space: str
    type: str
    name: str
    align: int = 0
    count: int | None = None
    initial: tuple[int | Symbol, ...] | None = None
    linkage: str = ""
    pointer: str = ""

    def __post_init__(self) -> None:
        if self.align < 0:
            raise ValueError(self.align)


@dataclass(frozen=True, slots=True)
class Directive:
    """A performance or launch directive of a function such as `.reqntid 128, 1, 1`."""

    name: str
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """An `.entry` or a `.func`: parameters, directives, registers, variables and the statements of its body.

    `registers` maps every (flattened) register name to its type without the dot (`b32`, `pred`, `f32`, …), in order of
    declaration; it holds only registers that the body names. `body` is None for a declaration without a body.
    """

    name: str
    params: tuple[Variable, ...] = ()
    results: tuple[Variable, ...] = ()
    directives: tuple[Directive, ...] = ()
    registers: tuple[tuple[str, str], ...] = ()
    variables: tuple[Variable, ...] = ()
    body: tuple[Statement, ...] | None = ()
    entry: bool = True
    linkage: str = "visible"
    line: int = field(default=0, compare=False)

    def __getstate__(self) -> tuple[Any, ...]:
        """The fields, with a plain tuple for every instruction of the body, which pickles in a third of the time."""
        body: list[object] | None = None
        if self.body is not None:
            body = [_fields_of(each) if type(each) is Instruction else each for each in self.body]
        return tuple([body if name == "body" else getattr(self, name) for name in self.__slots__])

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            if name == "body" and value is not None:
                value = tuple([Instruction(*each) if type(each) is tuple else each for each in value])  # noqa: PLW2901
            object.__setattr__(self, name, value)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return tuple(s for s in self.body or () if isinstance(s, Instruction))

    def directive(self, name: str) -> tuple[int, ...] | None:
        """The values of a directive, or None if the kernel does not have it."""
        return next((d.values for d in self.directives if d.name == name), None)


@dataclass(frozen=True, slots=True)
class Module:
    """One PTX module."""

    version: tuple[int, int]
    target: tuple[str, ...]
    kernels: tuple[Kernel, ...] = ()
    variables: tuple[Variable, ...] = ()
    address_size: int = 64
    files: tuple[tuple[int, str], ...] = ()
    notes: tuple[Note, ...] = ()
