"""Kernels that apply every arithmetic form recorded on an H200 to rows of operands, for the differential.

Of each form, the first lanes have the recorded operands and results; the others have fresh operands, and the results of
the functions on arrays, which a launch reaches by paths of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.machine.numerics.numerics_reference import extended, random_bits, run, signature_of
from tests.machine.numerics.test_hardware import (
    COUNTS,
    GRANTED,
    GRANTED_HALF,
    ROWS,
    decided_by_both,
    is_approximate,
    operands_of,
)

from warploom.hardware.dtypes import ELEMENT_TYPES, storage_of
from warploom.ptx.isa.table import BITS, Form, match

Array = np.ndarray[Any, Any]
LANES = 256
_SHIFTS = {"sh": 70, "sh2": 40, "sh5": 32, "off": 20}
"""Operands that count positions or bits, with a limit for the fresh ones."""
_REGISTERS = {1: "%p", 16: "%h", 32: "%r", 64: "%d"}
_RESULT = 9
"""The number of the result's register."""


@dataclass(frozen=True)
class Row:
    """A form with its operands and results, one of each for every lane."""

    opcode: str
    types: tuple[str, ...]
    operands: tuple[Array, ...]
    results: Array


@dataclass(frozen=True)
class Kernel:
    """Forms that take operands of the same types, and how far their results may be apart (nothing: not at all)."""

    name: str
    rows: tuple[Row, ...]
    element: str = ""
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def arrays(self) -> dict[str, Array]:
        """The operands as [row, operand, lane] and room for the results, with eight bytes for each number."""
        x = np.stack([np.stack([each.astype(np.uint64) for each in row.operands]) for row in self.rows])
        return {"x": x, "out": np.zeros((len(self.rows), LANES), self._dtype)}

    @property
    def _dtype(self) -> np.dtype[Any]:
        return ELEMENT_TYPES[self.element].values if self.element else np.dtype(np.uint64)

    @property
    def expected(self) -> Array:
        results = np.stack([row.results for row in self.rows])
        return results.astype(storage_of(self.element)).view(self._dtype) if self.element else results

    @property
    def ptx(self) -> str:
        """The kernel: every lane executes every form on its own operands."""
        size, lines = self._dtype.itemsize, list[str]()
        for number, row in enumerate(self.rows):
            lines += self._loads(number, row)
            bits = _bits_of_result(row)
            result = f"{_REGISTERS[bits]}{_RESULT}"
            names = [f"{_REGISTERS[max(BITS[kind], 16)]}{at}" for at, kind in enumerate(row.types)]
            lines.append(f"{row.opcode} {', '.join((result, *names))};")
            if bits == 1:
                bits, result = 32, f"%r{_RESULT}"
                lines.append(f"selp.u32 {result}, 1, 0, %p{_RESULT};")
            lines.append(f"st.global.b{bits} [%out+{number * LANES * size}], {result};")
        registers = " ".join(f".reg .{'pred' if bits == 1 else f'b{bits}'} {r}<10>;" for bits, r in _REGISTERS.items())
        text = "\n".join(lines)
        return f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry arithmetic(.param .u64 x, .param .u64 out)
{{
{registers} .reg .b64 %x, %out, %at; .reg .b32 %lane;
ld.param.u64 %x, [x]; ld.param.u64 %out, [out]; mov.u32 %lane, %tid.x;
mul.wide.u32 %at, %lane, 8; add.u64 %x, %x, %at;
mul.wide.u32 %at, %lane, {size}; add.u64 %out, %out, %at;
{text}
ret;
}}
"""

    def _loads(self, number: int, row: Row) -> Iterator[str]:
        for at, kind in enumerate(row.types):
            place = 8 * LANES * (number * len(row.types) + at)
            loaded = kind if BITS[kind] == 8 else f"b{BITS[kind]}"
            yield f"ld.global.{loaded} {_REGISTERS[max(BITS[kind], 16)]}{at}, [%x+{place}];"


def _form(opcode: str, operands: int) -> tuple[Form, dict[str, str | None]]:
    """The row of the instruction table for an opcode with one result."""
    return next(
        (form, chosen) for form, chosen in match(opcode) if sum(slot.kind == "in" for slot in form.slots) == operands
    )


def _bits_of_result(row: Row) -> int:
    form, chosen = _form(row.opcode, len(row.types))
    first = form.slots[0]
    kind = (chosen.get(first.type[1:-1]) or "") if first.type.startswith("{") else first.type
    if first.kind == "outpred" or kind == "pred":
        return 1
    return max(BITS[kind], 16)


def _replaced(values: Array, wrong: Array) -> Array:
    """The values with those of the first good lane in place of the bad ones."""
    return np.where(wrong, values[np.argmin(wrong)], values)


def _row(opcode: str, sources: str, recorded: Array, rng: np.random.Generator) -> Row:
    names = sources.partition("@")[0].split("|")
    types = tuple(COUNTS.get(name, name) for name in names)
    given = operands_of(sources)
    operands = []
    for name, kind, known in zip(names, types, given, strict=True):
        fresh = random_bits(rng, kind, LANES - len(known))
        if name in _SHIFTS:
            fresh = rng.integers(0, _SHIFTS[name], len(fresh)).astype(fresh.dtype)
        operands.append(np.concatenate([known, fresh.astype(known.dtype)]))
    results = run(opcode, *operands)
    family, signature = signature_of(opcode)
    if signature.get("dtype") in ("s8", "u8") and family == "cvt":
        results = extended(results, signature["dtype"], np.uint16)
    results = results.astype(np.uint64)
    results[: len(recorded)] = recorded
    wrong = ~decided_by_both(opcode, operands)
    if opcode.startswith(("sin", "cos")):
        wrong |= np.abs(operands[0].view(np.float32)) > np.pi
    return Row(opcode, types, tuple(_replaced(each, wrong) for each in operands), _replaced(results, wrong))


def kernels(seed: int) -> Iterator[Kernel]:
    """The kernels of all forms: exact ones by the types of their operands, approximations by function and type."""
    rng = np.random.default_rng(seed)
    exact, close = dict[tuple[str, ...], list[Row]](), dict[tuple[str, str], list[Row]]()
    with np.errstate(all="ignore"):
        for opcode, sources, recorded in ROWS:
            row = _row(opcode, sources, recorded, rng)
            if not is_approximate(opcode):
                exact.setdefault(row.types, []).append(row)
            elif not opcode.endswith("f64"):
                close.setdefault((opcode.partition(".")[0], opcode.rpartition(".")[2]), []).append(row)
    for types, rows in exact.items():
        yield Kernel(f"arithmetic_{'_'.join(types)}", tuple(rows))
    for (root, element), rows in close.items():
        granted = GRANTED_HALF.get(element, GRANTED[root])
        absolute = granted if root in ("lg2", "sin", "cos") else 2.0**-24 if element == "f16" else 0.0
        yield Kernel(f"arithmetic_{root}_approx_{element}", tuple(rows), element, granted, absolute)
