"""Name resolution inside a function: scopes, register ranges, special registers and forward labels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from warploom.diagnostics import Diag
from warploom.ptx.syntax.constants import NAMED
from warploom.ptx.syntax.lexer import Reader
from warploom.ptx.syntax.model import (
    VECTOR_SPECIALS,
    Address,
    Arguments,
    BranchTargets,
    Immediate,
    Instruction,
    Operand,
    Register,
    Sink,
    Special,
    Statement,
    Symbol,
    Vector,
)

_DEEPEST = 256
_MOST_DIGITS = 20
_AXES = "xyzw"
_SCALARS = (
    "laneid warpid nwarpid smid nsmid gridid is_explicit_cluster cluster_ctarank cluster_nctarank lanemask_eq "
    "lanemask_le lanemask_lt lanemask_ge lanemask_gt clock clock_hi clock64 globaltimer globaltimer_lo globaltimer_hi "
    "reserved_smem_offset_begin reserved_smem_offset_end reserved_smem_offset_cap reserved_smem_offset_0 "
    "reserved_smem_offset_1 total_smem_size aggr_smem_size dynamic_smem_size current_graph_exec"
)
SPECIALS = frozenset(
    [f"{name}{axis}" for name in VECTOR_SPECIALS for axis in ("", ".x", ".y", ".z", ".w")]
    + [f"%{name}" for name in _SCALARS.split()]
    + [f"%pm{index}{width}" for index in range(8) for width in ("", "_64")]
    + [f"%envreg{index}" for index in range(32)]
)

Name = Register | Special | Immediate | Symbol | Sink


@dataclass(frozen=True, slots=True)
class _Declared:
    """A declaration: the flattened name, the type (empty for a variable or parameter), its order and its token."""

    name: str
    type: str
    order: int
    index: int


@dataclass(frozen=True, slots=True)
class _Range:
    """`%r<count>`: registers that are created when they are first used."""

    count: int
    type: str
    order: int
    index: int


@dataclass(slots=True, eq=False)
class Scope:
    """One `{ }`: its declarations, and in `known` the operands that were already resolved."""

    parent: Scope | None
    number: int
    index: int
    depth: int
    declared: dict[str, _Declared] = field(default_factory=dict)
    ranges: dict[str, _Range] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    known: dict[str, Name] = field(default_factory=dict)
    vectors: dict[str, int] = field(default_factory=dict)

    def in_range(self, name: str) -> tuple[int, _Range] | None:
        """The range that covers a name, with the register's number in it."""
        start = len(name.rstrip("0123456789"))
        for cut in range(start, len(name)):
            found = self.ranges.get(name[:cut])
            digits = name[cut:]
            if (
                found
                and (digits == "0" or digits[0] != "0")
                and len(digits) < _MOST_DIGITS
                and int(digits) < found.count
            ):
                return int(digits), found
        return None


class Names:
    """The names of one function while its body is parsed."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.scope = Scope(None, 0, reader.at, 0)
        self.statement = 0
        self._opened = 0
        self._order = 0
        self._used: dict[str, tuple[int, int, str]] = {}
        self._parameters: set[str] = set()
        self._pending: list[tuple[Scope, str, int, int]] = []
        self.has_vectors = False
        """True if a vector was declared: a name of one token may then be several registers."""

    def open(self) -> None:
        """Enter a `{`, the token just taken."""
        self._opened += 1
        depth = self.scope.depth + 1
        if depth > _DEEPEST:
            raise self.reader.fail(f"scopes nested deeper than {_DEEPEST}", self.reader.at - 1)
        self.scope = Scope(self.scope, self._opened, self.reader.at - 1, depth)

    def close(self) -> bool:
        """Leave the scope; False if it was the function's outermost."""
        scope = self.scope
        if scope.ranges:
            for name, declared in scope.declared.items():
                if scope.in_range(name):
                    raise self.reader.error(Diag.DUPLICATE, declared.index, name=name)
            for prefix, declared_range in scope.ranges.items():
                covering = scope.in_range(f"{prefix}0")
                if covering and covering[1] is not declared_range:
                    raise self.reader.error(Diag.DUPLICATE, declared_range.index, name=f"{prefix}0")
        if scope.parent is None:
            return False
        self.scope = scope.parent
        return True

    def declare(self, name: str, type_: str, index: int) -> str:
        """Declare a register, or a variable if the type is empty; returns the flattened name."""
        scope = self.scope
        if name in scope.declared or name in scope.labels:
            raise self.reader.error(Diag.DUPLICATE, index, name=name)
        self._order += 1
        flat = self._flat(name, scope)
        scope.declared[name] = _Declared(flat, type_, self._order, index)
        scope.known.pop(name, None)
        return flat

    def declare_vector(self, name: str, length: int, type_: str, index: int) -> None:
        """Declare a vector: one register for each component."""
        scope, self.has_vectors = self.scope, True
        for axis in _AXES[:length]:
            part = f"{name}_{axis}"
            while part in self.reader.words:
                part += "_"
            flat = self.declare(part, type_, index)
            scope.declared[f"{name}.{axis}"] = scope.declared.pop(part)
            scope.declared[part] = replace(scope.declared[f"{name}.{axis}"], name=flat)
        scope.vectors[name] = length

    def vector(self, name: str) -> Vector | None:
        """The registers of a vector of this name."""
        scope: Scope | None = self.scope
        while scope is not None and name not in scope.vectors:
            scope = None if name in scope.declared else scope.parent
        if scope is None:
            return None
        found = [self.find(f"{name}.{axis}") for axis in _AXES[: scope.vectors[name]]]
        return Vector(tuple(each for each in found if each is not None))

    def parameter(self, name: str, type_: str, index: int) -> None:
        """Declare a parameter; one in a register (it has a type) is declared in the header, not with the registers."""
        self._parameters.add(self.declare(name, type_, index))

    def declare_range(self, prefix: str, count: int, type_: str, index: int) -> None:
        """Declare `prefix<count>`."""
        if prefix in self.scope.ranges:
            raise self.reader.error(Diag.DUPLICATE, index, name=f"{prefix}<{count}>")
        self._order += 1
        self.scope.known.clear()
        self.scope.ranges[prefix] = _Range(count, type_, self._order, index)

    def label(self, name: str, index: int) -> str:
        """Declare a label; returns the flattened name."""
        scope = self.scope
        if name in scope.declared or name in scope.labels:
            raise self.reader.error(Diag.DUPLICATE, index, name=name)
        flat = scope.labels[name] = self._flat(name, scope)
        return flat

    def resolve(self, name: str, index: int) -> Name:
        """Resolve an operand's token; an unknown name becomes a symbol that is looked up at the end of the body."""
        return self.find(name) or self.reference(name, index)

    def find(self, name: str) -> Name | None:
        """The declaration of a name in this scope or an outer one, or the special register or constant of PTX."""
        if (found := self._numbered(name)) is not None:
            return found
        scope: Scope | None = self.scope
        while scope is not None and found is None:
            found = scope.known.get(name) or self._declared(scope, name)
            scope = scope.parent
        found = found or self._constant(name)
        if found is not None:
            self.scope.known[name] = found
        return found

    def _numbered(self, name: str) -> Name | None:
        """A register of a range that is named for the first time, as most names are."""
        scope = self.scope
        stem = name.rstrip("0123456789")
        covering, digits = scope.ranges.get(stem), name[len(stem) :]
        if covering is None or not digits or digits[0] == "0" or len(digits) >= _MOST_DIGITS:
            return None
        number = int(digits)
        if number >= covering.count or name in scope.declared or name in scope.known:
            return None
        found = scope.known[name] = Register(self._flat(name, scope))
        self._used[found.name] = (covering.order, number, covering.type)
        return found

    def reference(self, name: str, index: int) -> Symbol:
        """A symbol that may be a later label, or a name of the module."""
        self._pending.append((self.scope, name, index, self.statement))
        return Symbol(name)

    def registers(self) -> tuple[tuple[str, str], ...]:
        """The registers that were named, in order of declaration."""
        rows = sorted((row, name) for name, row in self._used.items() if name not in self._parameters)
        return tuple((name, type_) for (_, _, type_), name in rows)

    def finish(self, body: list[Statement]) -> list[tuple[str, int]]:
        """Resolve symbols to the flattened names of their labels; returns those that only the module can resolve."""
        outside: list[tuple[str, int]] = []
        renames: dict[int, dict[str, str]] = {}
        for start, name, index, statement in self._pending:
            scope: Scope | None = start
            while scope is not None and name not in scope.labels:
                scope = scope.parent
            if scope is None:
                outside.append((name, index))
            elif scope.labels[name] != name:
                renames.setdefault(statement, {})[name] = scope.labels[name]
        for statement, names in renames.items():
            body[statement] = _renamed(body[statement], names)
        return outside

    def _declared(self, scope: Scope, name: str) -> Name | None:
        found: Name
        declared = scope.declared.get(name)
        if declared is not None:
            found = Register(declared.name) if declared.type else Symbol(declared.name)
            if declared.type:
                self._used[found.name] = (declared.order, 0, declared.type)
        elif scope.ranges and (covering := scope.in_range(name)):
            number, covered = covering
            found = Register(self._flat(name, scope))
            self._used[found.name] = (covered.order, number, covered.type)
        else:
            return None
        scope.known[name] = found
        return found

    def _constant(self, name: str) -> Name | None:
        if name in SPECIALS:
            return Special(name)
        return Sink() if name == "_" else NAMED.get(name)

    def _flat(self, name: str, scope: Scope) -> str:
        if scope.parent is None:
            return name
        flat = f"{name}${scope.number}"
        while flat in self.reader.words:
            flat += "_"
        return flat


def _renamed(statement: Statement, names: dict[str, str]) -> Statement:
    if isinstance(statement, BranchTargets):
        return replace(statement, targets=tuple(names.get(target, target) for target in statement.targets))
    if isinstance(statement, Instruction):
        return replace(statement, operands=tuple(_renamed_operand(operand, names) for operand in statement.operands))
    return statement


def _renamed_operand(operand: Operand, names: dict[str, str]) -> Operand:
    match operand:
        case Symbol():
            return _renamed_symbol(operand, names)
        case Address(Symbol() as base, offset, coordinates):
            return Address(_renamed_symbol(base, names), offset, coordinates)
        case Vector(items):
            return Vector(tuple(_renamed_symbol(item, names) if isinstance(item, Symbol) else item for item in items))
        case Arguments(items):
            return Arguments(
                tuple(_renamed_symbol(item, names) if isinstance(item, Symbol) else item for item in items)
            )
    return operand


def _renamed_symbol(symbol: Symbol, names: dict[str, str]) -> Symbol:
    return Symbol(names.get(symbol.name, symbol.name), symbol.offset)
