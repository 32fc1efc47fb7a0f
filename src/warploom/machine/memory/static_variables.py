"""The layout of declared variables: in shared, local and global memory, with their initial values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from warploom.machine.memory.byte_memory import Bytes, GlobalMemory, padded
from warploom.ptx.analysis.call_graph import function_addresses
from warploom.ptx.analysis.storage import aligned, element_bytes, size_of
from warploom.ptx.syntax.model import Kernel, Module, Symbol, Variable

_STATIC = ("global", "const")
# `x`, `generic(x)`, or one byte of either: `0xFF00(generic(x)+4)`.
_REFERENCE = re.compile(r"(?:0x(?P<mask>[0-9A-F]+)\()?(?:generic\()?(?P<name>[^()+]+)\)?(?:\+(?P<offset>-?\d+))?\)?")


def in_shared_memory(variables: Iterable[Variable], dynamic: int) -> tuple[dict[str, int], int]:
    """Offsets of shared variables, those of unknown size after all others, and the bytes they take together."""
    fixed: list[Variable] = []
    open_ended: list[Variable] = []
    for variable in variables:
        (open_ended if is_dynamic_shared(variable) else fixed).append(variable)
    symbols, offset = _in_sequence(fixed)
    symbols |= {variable.name: aligned(offset, variable) for variable in open_ended}
    return symbols, max([offset, *(symbols[variable.name] for variable in open_ended)]) + dynamic


def is_dynamic_shared(variable: Variable) -> bool:
    """True for a shared variable whose size only the launch knows (`shared_bytes`)."""
    return variable.space == "shared" and (variable.linkage == "extern" or variable.count == 0)


def on_the_stack(kernel: Kernel) -> tuple[dict[str, int], int]:
    """Addresses of local variables and of the parameters of inlined calls, private to each thread."""
    return _in_sequence(variable for variable in kernel.variables if variable.space in ("local", "param"))


def _in_sequence(variables: Iterable[Variable]) -> tuple[dict[str, int], int]:
    symbols: dict[str, int] = {}
    offset = 0
    for variable in variables:
        offset = aligned(offset, variable)
        symbols[variable.name] = offset
        offset += size_of(variable)
    return symbols, offset


def static_bytes(module: Module) -> int:
    """The bytes of the module's global and constant variables together."""
    return sum(size_of(variable) for variable in static_variables(module))


def static_variables(module: Module) -> list[Variable]:
    """The global and constant variables that a module defines."""
    return [v for v in module.variables if v.space in _STATIC and v.linkage != "extern"]


def map_static(module: Module, memory: GlobalMemory, kept: Mapping[str, Bytes]) -> dict[str, int]:
    """Put the module's variables into global memory with their initial values; where each, and each function, lies.

    The values of those that are `kept` in arrays are the arrays'.
    """
    symbols = function_addresses(module)
    fresh: list[tuple[Variable, Bytes]] = []
    for variable in static_variables(module):
        if variable.name in kept:
            symbols[variable.name] = memory.map_array(kept[variable.name], variable.name, at_host_address=True)
            continue
        data = padded(max(size_of(variable), 1), zero=True)[: max(size_of(variable), 1)]
        symbols[variable.name] = memory.add(data, variable.name).base
        fresh.append((variable, data))
    for variable, data in fresh:
        initialise(variable, data, symbols)
    return symbols


def initialise(variable: Variable, data: Bytes, symbols: Mapping[str, int]) -> None:
    """Write the initial value of a variable to memory that holds zeros; `symbols` has the addresses in it."""
    width = element_bytes(variable)
    words = [_initial(value, symbols) & ((1 << 8 * width) - 1) for value in variable.initial or ()]
    raw = b"".join(word.to_bytes(width, "little") for word in words)
    data[: len(raw)] = np.frombuffer(raw, np.uint8)


def _initial(value: int | Symbol, symbols: Mapping[str, int]) -> int:
    """An element's initial value; of what the module only declares, 0."""
    if not isinstance(value, Symbol):
        return value
    found = _REFERENCE.fullmatch(value.name)
    assert found is not None
    address = symbols.get(found["name"], 0) + int(found["offset"] or 0) + value.offset
    if found["mask"] is None:
        return address
    mask = int(found["mask"], 16)
    return (address & mask) // max(mask & -mask, 1)
