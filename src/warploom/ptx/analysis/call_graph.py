"""Who calls whom: the functions of a module, where their addresses lie, and what a call may reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from warploom.ptx.analysis.storage import size_of
from warploom.ptx.syntax.model import (
    Address,
    Arguments,
    CallTable,
    Instruction,
    Kernel,
    Module,
    Register,
    Symbol,
    Vector,
)

SYSTEM_FUNCTIONS = frozenset({"vprintf", "__assertfail", "malloc", "free"})
"""What the driver links into a kernel; their calls stay, and the machine gives them a meaning."""

DEEPEST = 64
"""Functions that may be in each other's places; a longer chain of calls is refused."""

_FIRST, _STEP = 0x0800_0000, 16
_WORD = re.compile(r"[\w$%.]+")


def function_addresses(module: Module) -> dict[str, int]:
    """A number for every function, by which a pointer names it; nothing can be loaded from there."""
    named = [kernel.name for kernel in module.kernels if not kernel.entry]
    return {name: _FIRST + _STEP * place for place, name in enumerate(dict.fromkeys(named))}


def is_call(instruction: Instruction) -> bool:
    """Whether an instruction is a call of any kind."""
    return instruction.opcode.partition(".")[0] == "call"


def lists_of(call: Instruction) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments of a call, and where its results go."""
    lists = [operand for operand in call.operands if isinstance(operand, Arguments)]
    first = bool(call.operands) and isinstance(call.operands[0], Arguments)
    return (lists[-1].items if len(lists) > first else ()), (lists[0].items if first else ())


class CallGraph:
    """The functions that have bodies, and the calls between them; a call by address reaches all of its signature."""

    def __init__(self, module: Module) -> None:
        self.functions = {kernel.name: kernel for kernel in module.kernels if kernel.body is not None}
        self.addresses = function_addresses(module)
        self._module = module

    def reached(self, caller: Kernel, call: Instruction) -> tuple[str, ...]:
        """The names that a call may reach; those of functions without a body too."""
        pointer = next((operand for operand in call.operands if isinstance(operand, Register | Symbol)), None)
        if isinstance(pointer, Symbol):
            return (pointer.name,)
        tables = {each.name: each.text for each in caller.body or () if isinstance(each, CallTable)}
        last = call.operands[-1]
        table = tables.get(last.name, "") if isinstance(last, Symbol) else ""
        if table.lstrip(".").startswith("calltargets"):
            return tuple(name for name in _WORD.findall(table) if name in self.functions)
        wanted = _shape_of(caller, call)
        return tuple(name for name in self._taken if _signature(self.functions[name]) == wanted)

    @cached_property
    def _taken(self) -> tuple[str, ...]:
        """The functions whose address is somewhere taken, in the order of the module."""
        found = {word for v in self._module.variables for each in v.initial or () if isinstance(each, Symbol)
                 for word in _WORD.findall(each.name)}  # fmt: skip
        for kernel in self._module.kernels:
            for instruction in kernel.instructions:
                if not is_call(instruction):
                    found |= {symbol.name for symbol in _symbols(instruction.operands)}
        return tuple(name for name in self.functions if name in found)

    @cached_property
    def recursive(self) -> frozenset[str]:
        """The functions from which a chain of calls leads back to themselves."""
        after = {name: self._called(function) for name, function in self.functions.items()}
        reach: dict[str, set[str]] = {}
        for name, called in after.items():
            seen, stack = set[str](), list(called)
            while stack:
                at = stack.pop()
                if at not in seen:
                    seen.add(at)
                    stack += after[at]
            reach[name] = seen
        return frozenset(name for name in after if name in reach[name])

    def _called(self, function: Kernel) -> list[str]:
        calls = (each for each in function.instructions if is_call(each))
        return [name for call in calls for name in self.reached(function, call) if name in self.functions]

    def length(self, function: Kernel, known: dict[str, int], depth: int = 0) -> int:
        """How many statements a function has with its calls in place; what calls itself is placed once."""
        if function.name not in known and depth <= DEEPEST:
            known[function.name] = 0
            inside = sum(self.length(self.functions[name], known, depth + 1) for name in self._called(function))
            known[function.name] = len(function.body or ()) + inside
        return known.get(function.name, 0)


def _signature(function: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of the parameters, and of the results."""
    return tuple(map(size_of, function.params)), tuple(map(size_of, function.results))


def _shape_of(caller: Kernel, call: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of what a call through a pointer gives, and of what it takes back."""
    sizes = {variable.name: size_of(variable) for variable in (*caller.variables, *caller.params, *caller.results)}
    given, results = lists_of(call)

    def bytes_of(items: tuple[object, ...]) -> tuple[int, ...]:
        return tuple(sizes.get(getattr(item, "name", ""), 0) for item in items)

    return bytes_of(given), bytes_of(results)


def _symbols(operands: tuple[object, ...]) -> Iterator[Symbol]:
    for operand in operands:
        if isinstance(operand, Symbol):
            yield operand
        elif isinstance(operand, Vector | Arguments):
            yield from _symbols(operand.items)
        elif isinstance(operand, Address) and isinstance(operand.base, Symbol):
            yield operand.base
