"""The uniforms of native code: the registers that all lanes of a group share, and after them the values of special
registers, addresses of variables and kernel parameters that instructions name, each in a word of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.machine.translate.expressions import CLOCKS, CTA_SPECIALS
from warploom.machine.translate.register_layout import Layout
from warploom.ptx.isa.table import BITS, Op
from warploom.ptx.syntax.model import Address, Arguments, Immediate, Kernel, Register, Special, Symbol, Vector

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta

Uniforms = npt.NDArray[np.uint64]
_WORD = (1 << 64) - 1


def named_in(op: Op) -> list[Special | Symbol]:
    """The special registers and variables that an instruction names, also in brace lists and addresses; no labels."""
    found: list[Special | Symbol] = []
    for name, operand in op.operands.items():
        kind = type(operand)
        if kind is Register or kind is Immediate or operand is None:
            continue
        if isinstance(operand, Special | Symbol):
            if not any(slot.name == name and slot.kind == "label" for slot in op.form.slots):
                found.append(operand)
        elif isinstance(operand, Vector | Arguments):
            found += [item for item in operand.items if isinstance(item, Special | Symbol)]
        elif isinstance(operand, Address):
            items = (operand.base, *(() if operand.coordinates is None else operand.coordinates.items))
            found += [item for item in items if isinstance(item, Special | Symbol)]
    return found


class UniformSlots:
    """The numbers of a program's uniforms."""

    def __init__(
        self,
        kernel: Kernel,
        layout: Layout,
        ops: Iterable[tuple[Op, list[Special | Symbol]]],
        lane_specials: frozenset[str],
    ) -> None:
        """`ops` are the instructions, each with the special registers and variables that it names."""
        self._layout = layout
        self._parameters = {each.name: BITS[each.type] // 8 * (each.count or 1) for each in kernel.params}
        self._known: dict[tuple[Any, ...], int] = {}
        self._loads: dict[int, int] = {}
        for number, (op, named) in enumerate(ops):
            for each in named:
                if isinstance(each, Symbol):
                    self._number("symbol", each.name, each.offset)
                elif each.name not in lane_specials and each.name not in CLOCKS:
                    self._number("special", each.name)
            if (found := self._parameter(op)) is not None:
                name, offset, width = found
                self._number("symbol", name, offset)
                self._loads[number] = self._number("parameter", name, offset, width)
        self.count = layout.rows["u"] + len(self._known)
        self.of_ctas = [
            (number, key[1]) for key, number in self._known.items() if key[0] == "special" and key[1] in CTA_SPECIALS
        ]
        """The uniforms that differ between CTAs of the same rank, with the names of their special registers."""

    def _number(self, *key: Any) -> int:
        return self._known.setdefault(key, self._layout.rows["u"] + len(self._known))

    def special(self, name: str) -> int:
        """The uniform of a special register."""
        return self._known["special", name]

    def symbol(self, symbol: Symbol) -> int:
        """The uniform of an address."""
        return self._known["symbol", symbol.name, symbol.offset]

    def parameter(self, number: int) -> int | None:
        """The uniform of the parameter that the instruction with this number loads; None for every other one."""
        return self._loads.get(number)

    def _parameter(self, op: Op) -> tuple[str, int, int] | None:
        """The name, offset and bytes of a whole parameter of the kernel that is loaded into a uniform register."""
        if op.form.family != "ld" or op.instruction.guard is not None or op["space"].partition("::")[0] != "param":
            return None
        address, target = op.operands["a"], op.operands["d"]
        if not isinstance(target, Register) or not isinstance(address, Address) or address.coordinates is not None:
            return None
        place, base = self._layout.places[target.name], address.base
        if place.file != "u" or not isinstance(base, Symbol) or BITS[op["type"]] != place.bits:
            return None
        width, offset = place.bits // 8, base.offset + address.offset
        if not 0 <= offset <= self._parameters.get(base.name, 0) - width or offset % width:
            return None
        return base.name, offset, width

    def template(self, cta: Cta, parameter: Callable[[int, int], int]) -> Uniforms:
        """The uniforms of the groups of a CTA at their start."""
        found = np.zeros(self.count, np.uint64)
        for (kind, name, *more), number in self._known.items():
            if kind == "special":
                found[number] = cta.specials[name]
            elif kind == "symbol":
                found[number] = (cta.symbols[name] + more[0]) & _WORD
            else:
                found[number] = parameter(cta.symbols[name] + more[0], more[1])
        return found
