"""Variables of a program's modules (`__device__`, `__constant__`, `__managed__`): memory that outlives launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from warploom.cuda.memory import Bytes, DeviceMemory
from warploom.machine.memory.static_variables import initialise, static_variables
from warploom.ptx.analysis.call_graph import function_addresses
from warploom.ptx.analysis.storage import size_of
from warploom.ptx.syntax.model import Module
from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.printer import print_module

_ALIGNMENT = 512


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables of one module, and the values that they had at first."""

    module: Module
    arrays: Mapping[str, Bytes]
    first: Mapping[str, bytes]

    @staticmethod
    def of(text: str, memory: DeviceMemory) -> Variables:
        """Allocate the variables of a module, with their initial values."""
        module = parse(text)
        defined = static_variables(module)
        arrays = {each.name: _allocated(max(size_of(each), 1), memory) for each in defined}
        symbols = function_addresses(module) | {name: array.ctypes.data for name, array in arrays.items()}
        for each in defined:
            initialise(each, arrays[each.name], symbols)
        return Variables(module, arrays, {name: array.tobytes() for name, array in arrays.items()})

    def text(self, text: str) -> str:
        """The text of the module, in which the present values of the variables are their initial ones."""
        changed = {name: array.tobytes() for name, array in self.arrays.items()}
        changed = {name: now for name, now in changed.items() if now != self.first[name]}
        if not changed:
            return text
        variables = tuple(
            replace(each, type="b8", count=len(changed[each.name]), align=_ALIGNMENT, initial=tuple(changed[each.name]))
            if each.name in changed
            else each
            for each in self.module.variables
        )
        return print_module(replace(self.module, variables=variables))


class ProgramVariables:
    """The variables of all modules of a program, allocated when the first of a module is asked for."""

    def __init__(self, texts: Sequence[str], memory: DeviceMemory) -> None:
        self._texts, self._memory = texts, memory
        self._of: dict[str, Variables] = {}

    def of(self, text: str) -> Variables:
        """The variables of one module."""
        if text not in self._of:
            self._of[text] = Variables.of(text, self._memory)
        return self._of[text]

    def address(self, name: str) -> int | None:
        """The address of a variable, by its name in the PTX; None if no module defines it."""
        for text in self._texts:
            if name in text and (array := self.of(text).arrays.get(name)) is not None:
                return int(array.ctypes.data)
        return None


def _allocated(size: int, memory: DeviceMemory) -> Bytes:
    """Zeros in memory of their own, which is never given back."""
    whole = np.zeros(size + _ALIGNMENT, np.uint8)
    address = whole.ctypes.data + -whole.ctypes.data % _ALIGNMENT
    memory.keep(whole)
    memory.note(address, size)
    found = memory.at(address)
    assert found is not None
    return found[1]
