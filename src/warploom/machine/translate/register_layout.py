"""The place of each register: a row of a register file, or a slot of the uniform integers.

Registers of one brace list sit in adjacent rows, so that a tensor-core instruction reads its accumulators as one slice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.analysis.uniformity import CONVOY
from warploom.ptx.isa.table import BITS
from warploom.ptx.syntax.model import Kernel, Register, Vector
from warploom.ptx.syntax.pickling import quickly_pickled

FILES: dict[str, npt.DTypeLike] = {"p": np.bool_, "h": np.uint16, "a": np.uint32, "b": np.uint64, "q": np.complex128}
_FILE_OF_BITS = {1: "p", 8: "h", 16: "h", 32: "a", 64: "b", 128: "q"}


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Place:
    """A register's home: `file` is a key of FILES, or `u` for a uniform integer."""

    file: str
    index: int
    bits: int
    type: str


_fields_of = attrgetter("file", "index", "bits", "type")


@dataclass(slots=True)
class Layout:
    """The homes of all registers and how many rows each file has."""

    places: dict[str, Place] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*FILES, "u"), 0))
    uniform: list[int] = field(default_factory=list)
    """The initial values of the uniform registers: False for predicates, else 0."""

    def __getstate__(self) -> tuple[Any, ...]:
        """The fields, with a plain tuple for every place, which pickles faster."""
        return tuple(self.places), [_fields_of(each) for each in self.places.values()], self.rows, self.uniform

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        names, places, self.rows, self.uniform = state
        self.places = {name: Place(*each) for name, each in zip(names, places, strict=True)}

    def run_of(self, vector: Vector) -> tuple[str, int, int] | None:
        """(file, first row, end row) where a brace list is one slice of a file, else None."""
        places = [self.places[item.name] for item in vector.items if isinstance(item, Register)]
        if not places or len(places) != len(vector.items):
            return None
        first = places[0]
        adjacent = all(p.file == first.file and p.index == first.index + i for i, p in enumerate(places))
        return (first.file, first.index, first.index + len(places)) if adjacent and first.file != "u" else None


def lay_out(kernel: Kernel, flow: Flow, classes: dict[str, int], lists: Iterable[list[str]] = ()) -> Layout:
    """Give every register a home; the registers of each of `lists` are adjacent where brace lists allow."""
    layout = Layout()
    types = dict(kernel.registers)
    places, rows = layout.places, layout.rows

    def place(names: Iterable[str]) -> None:
        for name in names:
            if name not in places:
                type_ = types[name]
                bits = BITS.get(type_, 32)
                file = "u" if classes[name] == CONVOY and bits <= 64 else _FILE_OF_BITS[bits]
                places[name] = Place(file, rows[file], bits, type_)
                rows[file] += 1
                if file == "u":
                    layout.uniform.append(False if bits == 1 else 0)

    for vector in _brace_lists(flow):
        names = [item.name for item in vector.items if isinstance(item, Register)]
        if places.keys().isdisjoint(names):
            place(names)
    for names in sorted(lists, key=len, reverse=True):
        if places.keys().isdisjoint(names):
            place(names)
    place(types)
    return layout


def _brace_lists(flow: Flow) -> list[Vector]:
    """The brace lists worth a slice, longest first."""
    found: list[Vector] = []
    for block in flow.blocks:
        for op in block.ops:
            for name in op.form.list_slots:
                operand = op.operands[name]
                if isinstance(operand, Vector) and len(operand.items) > 1:
                    found.append(operand)
    return sorted(found, key=lambda vector: -len(vector.items))
