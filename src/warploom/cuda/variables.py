"""Variables of a module that a kernel may change: tables of constants, such as those of cuRAND, are only read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from warploom.ptx.syntax.model import (
    Address,
    Arguments,
    Guard,
    Instruction,
    Kernel,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)

_LOADS = ("ld.", "ldu.", "prefetch")


def changed_variables(module: Module, kernel: Kernel) -> set[str]:
    """Names of the global variables that a launch may write, by itself or through a function that it calls.

    An address that is stored, passed on or used by anything else than a load counts as written.
    """
    pointed = _pointed(module)
    changed = {name for each in _functions(module, kernel) for name in _written(each, pointed)}
    used = used_variables(module, kernel)
    return changed | {name for user in used for name in pointed[user] & pointed.keys()}


def used_variables(module: Module, kernel: Kernel) -> set[str]:
    """Names of the global variables that a launch may use."""
    found = {
        name
        for function in _functions(module, kernel)
        for each in _instructions(function)
        for name in _names(each.operands)
    }
    return found & _pointed(module).keys()


def _pointed(module: Module) -> dict[str, set[str]]:
    """The variables that the initial value of each global variable points to."""
    return {
        each.name: {part.name for part in each.initial or () if isinstance(part, Symbol)}
        for each in module.variables
        if each.space == "global" and not each.name.startswith(("$", "__"))
    }


def _functions(module: Module, kernel: Kernel) -> tuple[Kernel, ...]:
    return (kernel, *(each for each in module.kernels if not each.entry))


def _written(function: Kernel, names: Iterable[str]) -> set[str]:
    """Follow addresses of variables through registers, without regard to the order of instructions."""
    carried = {name: {name} for name in names}
    found, count = set[str](), -1
    while count != sum(map(len, carried.values())):
        count = sum(map(len, carried.values()))
        for each in _instructions(function):
            if each.opcode.startswith(_LOADS):
                continue
            is_computed = isinstance(each.operands[0], Register | Vector | Pair) if each.operands else False
            sources = each.operands[1:] if is_computed else each.operands
            led_to = {name for part in _names(sources) for name in carried.get(part, ())}
            if not led_to:
                continue
            if not is_computed or any(isinstance(part, Address | Arguments) for part in sources):
                found |= led_to
            for part in _names(each.operands[:1]) if is_computed else ():
                carried.setdefault(part, set()).update(led_to)
    return found


def _instructions(function: Kernel) -> Iterator[Instruction]:
    return (each for each in function.body or () if isinstance(each, Instruction))


def _names(operands: Iterable[Operand | Guard | None]) -> Iterator[str]:
    """The registers and symbols in operands."""
    for each in operands:
        if isinstance(each, Register | Symbol):
            yield each.name
        elif isinstance(each, Negated):
            yield each.register.name
        elif isinstance(each, Vector | Arguments):
            yield from _names(each.items)
        elif isinstance(each, Pair):
            yield from _names((each.first, each.second))
        elif isinstance(each, Address):
            yield from _names((each.base, each.coordinates))
