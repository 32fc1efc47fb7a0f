"""The uses of each parameter of a kernel: loaded from, stored through, or used as a tensor map.

The analysis follows addresses through moves and additions, without regard to control flow: a guess for tools that
describe a kernel to its user, never a proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from warploom.ptx.syntax.model import Address, Instruction, Kernel, Operand, Register, Symbol, Vector

_ADDRESS_ARITHMETIC = ("mov", "cvta", "cvt", "add", "sub", "selp", "mad")
_VALUE_MOVES = ("mov", "selp", "shfl", "prmt")
_WRITES_FIRST = ("st", "red", "cp", "tensormap")
_TYPES = re.compile(r"\b([bsuf]8|[bsuf]16|[bsuf]32|[bsuf]64|bf16)(?:x2)?\b")
_RANK = re.compile(r"\.([1-5])d\b")


@dataclass(slots=True)
class ParameterUse:
    """The uses of one parameter. `types` are PTX types of the elements, those that arithmetic names first."""

    read: bool = False
    """The kernel loads the parameter or takes its address."""
    loads: bool = False
    stores: bool = False
    makes_maps: bool = False
    """`tensormap.replace` and its like work on memory that the parameter points to: it is scratch space for maps."""
    rank: int | None = None
    """The rank of the tensor copies that use it as a tensor map."""
    types: list[str] = field(default_factory=list)

    @property
    def is_pointer(self) -> bool:
        return self.loads or self.stores or self.makes_maps


def parameter_uses(kernel: Kernel) -> dict[str, ParameterUse]:
    """The uses of every parameter of a kernel, by name, in order."""
    uses = {param.name: ParameterUse() for param in kernel.params}
    origins = _origins(kernel, uses)
    defined, consumed = _value_types(kernel.instructions)
    for instruction in kernel.instructions:
        head = instruction.opcode.partition(".")[0]
        for position, operand in enumerate(instruction.operands):
            if not isinstance(operand, Address):
                continue
            for name in _of(operand.base, origins, uses):
                use = uses[name]
                if isinstance(operand.base, Symbol) and ".param" in instruction.opcode:
                    use.read = True
                elif operand.coordinates is not None:
                    _tensor_copy(use, instruction, position)
                else:
                    _access(use, instruction, head, position, defined, consumed)
    return uses


def _access(
    use: ParameterUse,
    instruction: Instruction,
    head: str,
    position: int,
    defined: dict[str, list[str]],
    consumed: dict[str, list[str]],
) -> None:
    if head in ("prefetch", "prefetchu"):
        return
    if head in ("tensormap", "fence") or ".tensormap" in instruction.opcode:
        use.makes_maps = True
        return
    writes = head == "atom" or (head in _WRITES_FIRST and position == 0)
    use.stores |= writes
    use.loads |= not writes
    votes = consumed if head in ("ld", "ldu") else defined
    registers = [name for each in instruction.operands for name in _registers(each) if not isinstance(each, Address)]
    named = [kind for name in registers for kind in votes.get(name, ())]
    # Arithmetic on the value says more than the access, which compilers often write with an untyped `.b32`.
    for kind in (*sorted(named, key=_is_untyped), *_TYPES.findall(instruction.opcode)[-1:]):
        if kind not in use.types:
            use.types.append(kind)


def _tensor_copy(use: ParameterUse, instruction: Instruction, position: int) -> None:
    found = _RANK.search(instruction.opcode)
    use.rank = int(found[1]) if found else use.rank
    use.read = True
    if "prefetch" not in instruction.opcode:
        use.stores |= position == 0
        use.loads |= position != 0


def _origins(kernel: Kernel, uses: dict[str, ParameterUse]) -> dict[str, set[str]]:
    """The parameters that each register's address may come from."""
    origins: dict[str, set[str]] = {}
    changed = True
    while changed:
        changed = False
        for instruction in kernel.instructions:
            head, _, rest = instruction.opcode.partition(".")
            if head == "ld" and rest.startswith("param"):
                sources: Iterable[Operand] = instruction.operands[1:]
            elif head == "mad":
                sources = instruction.operands[3:]
            elif head in _ADDRESS_ARITHMETIC:
                sources = instruction.operands[1:]
            else:
                continue
            found = {name for each in sources for name in _of(each, origins, uses)}
            for name in found:
                uses[name].read = True
            for target in _registers(instruction.operands[0]):
                known = origins.setdefault(target, set())
                if not found <= known:
                    known |= found
                    changed = True
    return origins


def _of(operand: Operand, origins: dict[str, set[str]], uses: dict[str, ParameterUse]) -> set[str]:
    match operand:
        case Register(name):
            return origins.get(name, set())
        case Symbol(name):
            return {name} & uses.keys()
        case Address(base):
            return _of(base, origins, uses)
        case _:
            return set()


def _value_types(instructions: Iterable[Instruction]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The types with which registers are computed, and those with which they are consumed; moves pass both on."""
    defined: dict[str, list[str]] = {}
    consumed: dict[str, list[str]] = {}
    moves: list[tuple[list[str], list[str]]] = []
    for instruction in instructions:
        head = instruction.opcode.partition(".")[0]
        if not instruction.operands or head in ("ld", "st", "cp", "mbarrier", "bar"):
            continue
        targets = list(_registers(instruction.operands[0]))
        sources = [name for each in instruction.operands[1:] for name in _registers(each)]
        if head in _VALUE_MOVES:
            moves.append((targets, sources))
            continue
        types = _TYPES.findall(instruction.opcode)
        for name in targets:
            defined.setdefault(name, []).extend(types[:1])
        for name in sources:
            consumed.setdefault(name, []).extend(types[-1:])
    for _ in range(3):  # a value goes through few moves between memory and arithmetic
        for targets, sources in moves:
            _pass_on(targets, sources, consumed)
            _pass_on(sources, targets, defined)
    return defined, consumed


def _pass_on(origin: list[str], to: list[str], types: dict[str, list[str]]) -> None:
    found = [kind for name in origin for kind in types.get(name, ())]
    for name in to:
        known = types.setdefault(name, [])
        known += [kind for kind in dict.fromkeys(found) if kind not in known]


def _registers(operand: Operand) -> Iterator[str]:
    match operand:
        case Register(name):
            yield name
        case Vector(items):
            yield from (item.name for item in items if isinstance(item, Register))


def _is_untyped(kind: str) -> bool:
    return kind.startswith("b") and kind != "bf16"
