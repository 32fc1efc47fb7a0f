"""The call graph: the functions of a module, their addresses, and the possible targets of calls."""

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
"""Functions that the driver links into a kernel; calls to them stay, and the emulator implements them."""

DEEPEST = 64
"""The longest chain of calls that is inlined; a longer one is rejected."""

_FIRST, _STEP = 0x0800_0000, 16
_WORD = re.compile(r"[\w$%.]+")


def function_addresses(module: Module) -> dict[str, int]:
    """The address of every function, used by pointers; nothing can be loaded from it."""
    named = [kernel.name for kernel in module.kernels if not kernel.entry]
    return {name: _FIRST + _STEP * place for place, name in enumerate(dict.fromkeys(named))}


def is_call(instruction: Instruction) -> bool:
    """Return True for a call of any kind."""
    opcode = instruction.opcode
    return opcode.startswith("call") and opcode[4:5] in ("", ".")


def call_operands(call: Instruction) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments and the result operands of a call."""
    lists = [operand for operand in call.operands if isinstance(operand, Arguments)]
    first = bool(call.operands) and isinstance(call.operands[0], Arguments)
    return (lists[-1].items if len(lists) > first else ()), (lists[0].items if first else ())


class CallGraph:
    """The functions that have bodies, and the calls between them; an indirect call may reach all of its signature."""

    def __init__(self, module: Module) -> None:
        self.functions = {kernel.name: kernel for kernel in module.kernels if kernel.body is not None}
        self.addresses = function_addresses(module)
        self._module = module
        self._calls: dict[int, list[str]] = {}
        """The functions that a function may call, by its identity: those of the module, which live as long."""

    def reached(self, caller: Kernel, call: Instruction) -> tuple[str, ...]:
        """The possible targets of a call, including functions without a body."""
        pointer = next((operand for operand in call.operands if isinstance(operand, Register | Symbol)), None)
        if isinstance(pointer, Symbol):
            return (pointer.name,)
        if pointer is None:  # a call that names nothing, which inlining reports
            return ()
        tables = {each.name: each.text for each in caller.body or () if isinstance(each, CallTable)}
        last = call.operands[-1]
        table = tables.get(last.name, "") if isinstance(last, Symbol) else ""
        if table.lstrip(".").startswith("calltargets"):
            return tuple(name for name in _WORD.findall(table) if name in self.functions)
        wanted = _shape_of(caller, call)
        return tuple(name for name in self._taken if _signature(self.functions[name]) == wanted)

    @cached_property
    def _taken(self) -> tuple[str, ...]:
        """The functions whose address is taken, in the order of the module."""
        found = {word for v in self._module.variables for each in v.initial or () if isinstance(each, Symbol)
                 for word in _WORD.findall(each.name)}  # fmt: skip
        for kernel in self._module.kernels:
            for instruction in kernel.instructions:
                if not is_call(instruction):
                    found |= {symbol.name for symbol in _symbols(instruction.operands)}
        return tuple(name for name in self.functions if name in found)

    @cached_property
    def recursive(self) -> frozenset[str]:
        """The recursive functions."""
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
        if id(function) not in self._calls:
            calls = [each for each in function.instructions if is_call(each)]
            reached = [name for call in calls for name in self.reached(function, call) if name in self.functions]
            self._calls[id(function)] = reached
        return self._calls[id(function)]

    def size(self, kernel: Kernel) -> int:
        """The number of statements of a kernel and of the functions that it may call, each once."""
        seen, stack = {kernel.name: kernel}, [kernel]
        while stack:
            for name in self._called(stack.pop()):
                if name not in seen:
                    seen[name] = self.functions[name]
                    stack.append(seen[name])
        return sum(len(each.body or ()) for each in seen.values())

    def length(self, function: Kernel, known: dict[str, int], depth: int = 0) -> int:
        """The number of statements of a function after inlining; recursive functions count once."""
        if function.name not in known and depth <= DEEPEST:
            known[function.name] = 0
            inside = sum(self.length(self.functions[name], known, depth + 1) for name in self._called(function))
            known[function.name] = len(function.body or ()) + inside
        return known.get(function.name, 0)


def _signature(function: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The bytes of the parameters, and of the results."""
    return tuple(map(size_of, function.params)), tuple(map(size_of, function.results))


def _shape_of(caller: Kernel, call: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The bytes of the arguments and of the results of an indirect call."""
    sizes = {variable.name: size_of(variable) for variable in (*caller.variables, *caller.params, *caller.results)}
    given, results = call_operands(call)

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
