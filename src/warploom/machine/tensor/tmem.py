"""TMEM of a CTA and the allocation of its columns.

Every CTA has all columns for itself: allocations of CTAs that share an SM do not wait for each other here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.hardware.tmem import COLUMN_MASK, LANE_MASK, LANE_SHIFT
from warploom.machine.core.group import Waitable
from warploom.machine.memory import guard_pages
from warploom.machine.observers.events import Touch, Triple
from warploom.machine.routines.call_lists import base_of
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]

POISON = 0xFFFFFFFF
ENGINE = "tcgen05"
"""The proxy of TMEM, and the kind of its commit groups."""


class Tmem(Waitable):
    """Columns of 128 lanes, which of them are allocated, and in what pieces.

    `cells` is indexed [column, lane]: what warps load and store and what an MMA accumulates are then runs of whole
    columns. `words` is the same memory as [lane, column]. `settle` hands over what a tensor core has been given and the
    grid does not know of yet: every access to the memory calls it first.
    """

    __slots__ = (
        "allocations", "base", "cells", "columns", "cta", "largest", "origins", "owned", "permit", "settle", "words",
    )  # fmt: skip

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        machine = cta.grid.machine
        self.cta = cta
        self.columns = machine.tensor_columns
        self.cells: Words = guard_pages.empty((self.columns, machine.tensor_lanes), np.uint32)
        self.cells.fill(POISON)
        self.words: Words = self.cells.T
        self.base = base_of(self.cells)
        self.owned = 0
        self.allocations: dict[int, int] = {}
        self.origins: dict[int, Op] = {}
        self.permit = True
        self.largest = self.columns
        self.settle: Callable[[], None] = lambda: None

    def describe(self) -> str:
        return f"free columns of TMEM: {self.taken}"

    @property
    def taken(self) -> str:
        """The allocated columns, as a clause."""
        runs = ", ".join(f"{base}-{base + size - 1}" for base, size in sorted(self.allocations.items()))
        return f"of {self.columns} columns {runs or 'none'} are allocated"

    def is_free(self, base: int, size: int) -> bool:
        return not self.owned & _run(base, size)

    def take(self, base: int, size: int) -> None:
        """Allocate columns; nothing may be read from them before it is written."""
        self.owned |= _run(base, size)
        self.allocations[base] = size
        self.largest = size
        self.cells[base : base + size] = POISON
        _tell(self.cta, "alloc", "allocates", base, size)

    def give_back(self, base: int, size: int) -> None:
        """Free one allocation."""
        if self.allocations.get(base) != size:
            raise Diag.TENSOR_MEMORY.error(
                what=f"tcgen05.dealloc of {size} columns at {base} frees no allocation; {self.taken}."
            )
        del self.allocations[base]
        self.owned &= ~_run(base, size)
        _tell(self.cta, "free", "frees", base, size)
        self.notify()

    def holds(self, column: int, count: int) -> bool:
        """Return whether every column of an access is allocated."""
        return 0 <= column <= self.columns - count and not ((1 << count) - 1 << column) & ~self.owned

    def require(self, column: int, count: int, what: str) -> None:
        """Every column of an access must be allocated."""
        if not self.holds(column, count):
            raise Diag.TENSOR_MEMORY.error(
                what=f"{what} touches columns {column} to {column + count - 1}, "
                f"which are not all allocated; {self.taken}."
            )


def _run(base: int, size: int) -> int:
    """Columns as bits."""
    return (1 << size) - 1 << base


def tmem_of(cta: Cta) -> Tmem:
    """The CTA's TMEM, made when first used."""
    memory: Tmem | None = cta.state.get("tensor_memory")
    if memory is None:
        memory = cta.state["tensor_memory"] = Tmem(cta)
        cta.at_end.append(_check_freed)
    return memory


def _check_freed(cta: Cta) -> None:
    memory = tmem_of(cta)
    memory.settle()
    if memory.allocations:
        op = memory.origins[min(memory.allocations)]
        notes = (f"`{op.instruction.text}` allocated the first of them",)
        what = f"{cta.name} ended without tcgen05.dealloc; {memory.taken}."
        raise Diag.TENSOR_MEMORY.error(cta.grid.loc_of(op), notes, what=what)


def cell_addresses(lanes: Array, column: int) -> Array:
    """The cells of a column in some lanes."""
    return lanes.reshape(-1) << LANE_SHIFT | column


def cells(verb: str, cta: Triple, lanes: Array, column: int, count: int) -> Touch:
    """Columns of some lanes of a CTA's TMEM, for observers."""
    return Touch(verb, "tensor", cta, ENGINE, cell_addresses(lanes, column), 4 * count)


@lru_cache(maxsize=1 << 10)
def block_of_cells(verb: str, cta: Triple, lane: int, lanes: int, column: int, count: int) -> Touch:
    """Columns of lanes that follow each other in a CTA's TMEM, for observers."""
    return Touch(verb, "tensor", cta, ENGINE, cell_addresses(np.arange(lane, lane + lanes), column), 4 * count)


def _tell(cta: Cta, kind: str, verb: str, base: int, size: int) -> None:
    """Columns change hands."""
    if cta.grid.reporter is not None:
        lanes = cta.grid.machine.tensor_lanes
        cta.grid.reporter.tell(kind, verb, (block_of_cells(verb, cta.index, 0, lanes, base, size),))


def split_address(address: int) -> tuple[int, int]:
    """(lane, column) of a TMEM address."""
    return address >> LANE_SHIFT & LANE_MASK, address & COLUMN_MASK


def pair_of(cta: Cta) -> tuple[Cta, Cta]:
    """The two CTAs of a pair: ranks 2i and 2i + 1 of the cluster."""
    ctas, even = cta.cluster.ctas, cta.rank & ~1
    if even + 1 >= len(ctas):
        raise Diag.BAD_PARTICIPATION.error(
            text="cta_group::2", needs="a cluster with a peer CTA", found=f"a cluster of {len(ctas)}"
        )
    return ctas[even], ctas[even + 1]


def check_group(cta: Cta, group: int) -> None:
    """All tcgen05 instructions of a kernel name the same cta_group (PTX ISA 9.7.16.7)."""
    seen = cta.state.setdefault("cta_group", group)
    if seen != group:
        raise Diag.ASYNC_MISUSE.error(
            what=f"tcgen05 instructions of cta_group::{seen} and cta_group::{group} are mixed in one kernel."
        )


def group_of(op: Op) -> int:
    """The number of CTAs that an instruction's `.cta_group` names."""
    return int(op["group"][-1])
