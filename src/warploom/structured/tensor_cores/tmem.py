"""TMEM under the names of the five pages: allocations, addresses, tensors and their fragments.

An address is a lane and a column. A warp can access the 32 lanes of its own quadrant, and a `16x256b` load or store
sixteen of them: the *upper* fragment starts at the quadrant's first lane, the *lower* one sixteen lanes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import ClassVar

from warploom.diagnostics import Diag, Loc
from warploom.hardware.fragments import TENSOR_MOVES, tensor_move
from warploom.hardware.targets import MACHINES
from warploom.hardware.tmem import LANE_ALIGNMENT, LANE_SHIFT, QUADRANT
from warploom.structured.config.output import OutputPipelineConfig
from warploom.trace import isa
from warploom.trace.builder import here
from warploom.trace.isa.emit import At
from warploom.trace.language.fragments import Fragment, tensor_load, tensor_store
from warploom.trace.language.values import Value
from warploom.trace.language.views import Index, View

MOVE = TENSOR_MOVES["16x256b"]
"""The load and store shape of every fragment: sixteen lanes, eight columns, four registers per thread and repeat."""


@dataclass(frozen=True)
class TmemAllocation:
    """The TMEM columns that a CTA has allocated, and their address. In a pair, both CTAs allocate."""

    addr: Value
    cta_group: int = 1
    columns: int = MACHINES["sm_100a"].tensor_columns

    max_columns: ClassVar[int] = MACHINES["sm_100a"].tensor_columns

    @classmethod
    def allocate(cls, slot: View, cta_group: int = 1, columns: int = max_columns) -> TmemAllocation:
        """Allocate columns, with one whole warp, which leaves the address in shared memory for the other warps."""
        isa.tcgen05.alloc(slot.place, columns, cta_group=cta_group)
        isa.bar.warp_sync(-1)
        return cls.from_shared(slot, cta_group, columns)

    @classmethod
    def from_shared(cls, slot: View, cta_group: int = 1, columns: int = max_columns) -> TmemAllocation:
        """Read the allocation of another warp, after a barrier that orders it."""
        return cls(slot[0], cta_group, columns)

    def split(self, *columns: int) -> list[TmemAddress]:
        """Return the addresses of parts with so many columns each, one after another."""
        wrong = [f"a part has {each} columns" for each in columns if each < 1]
        if sum(columns) > self.columns:
            listed = ", ".join(map(str, columns))
            wrong.append(f"parts of {listed} columns need {sum(columns)}, but {self.columns} are allocated")
        if wrong:
            raise Diag.BAD_KERNEL.error(here(), what="; ".join(wrong))
        return [TmemAddress(self.addr) + start for start in accumulate((0, *columns[:-1]))]

    def release_lock(self) -> None:
        """Relinquish the allocation permit: this CTA will not allocate again."""
        isa.tcgen05.relinquish_alloc_permit(cta_group=self.cta_group)

    def deallocate(self) -> None:
        """Free the columns, with one whole warp, after the last access."""
        isa.tcgen05.dealloc(self.addr, self.columns, cta_group=self.cta_group)


@dataclass(frozen=True)
class TmemAddress:
    """An address in TMEM, with loads and stores of the fragments there, sixteen lanes each."""

    addr: Value

    def __add__(self, columns: Index) -> TmemAddress:
        return TmemAddress(self.addr + columns)

    def of_warp(self, warp: Value) -> TmemAddress:
        """Return the same columns in the lanes that a warp of a warpgroup can access."""
        return TmemAddress(self.addr + warp * (QUADRANT << LANE_SHIFT))

    @property
    def upper_addr(self) -> At:
        return At(self.addr)

    @property
    def lower_addr(self) -> At:
        return At(self.addr + (LANE_ALIGNMENT << LANE_SHIFT))

    def load_upper(self, repeat: int, dtype: str = "f32") -> Fragment:
        """Load a fragment of the first 16 of the warp's lanes."""
        return tensor_load(self.upper_addr, MOVE.name, repeat, dtype)

    def load_lower(self, repeat: int, dtype: str = "f32") -> Fragment:
        """Load a fragment of the last 16 of the warp's lanes."""
        return tensor_load(self.lower_addr, MOVE.name, repeat, dtype)

    def store_upper(self, fragment: Fragment) -> None:
        """Store a fragment to the first 16 of the warp's lanes."""
        tensor_store(self.upper_addr, fragment, MOVE.name)

    def store_lower(self, fragment: Fragment) -> None:
        """Store a fragment to the last 16 of the warp's lanes."""
        tensor_store(self.lower_addr, fragment, MOVE.name)

    @staticmethod
    def wait_load() -> None:
        """Wait for all TMEM loads so far; before that their registers must not be read."""
        isa.tcgen05.wait.ld()

    @staticmethod
    def wait_store() -> None:
        """Wait for all TMEM stores so far."""
        isa.tcgen05.wait.st()


@dataclass(frozen=True)
class TmemFragments:
    """The registers of a thread of a subtile: the upper fragment, and the lower one if its warp has 32 rows."""

    upper: Fragment
    lower: Fragment | None = None

    def cast(self, dtype: str) -> TmemFragments:
        """Convert every value to another type."""
        return TmemFragments(self.upper.to(dtype), self.lower and self.lower.to(dtype))

    @property
    def by_place(self) -> dict[tuple[int, int], Value]:
        """The values by row and column, relative to the thread's first element."""
        halves = (fragment for fragment in (self.upper, self.lower) if fragment is not None)
        return {
            (row + half * LANE_ALIGNMENT, column): value
            for half, fragment in enumerate(halves)
            for (row, column), value in zip(places_of(len(fragment.values)), fragment.values, strict=True)
        }


def places_of(registers: int) -> Sequence[tuple[int, int]]:
    """Return the row and column of each register of a fragment, relative to the thread's first."""
    rows, columns = tensor_move(MOVE.name, registers // MOVE.registers).coordinates()
    return list(zip(rows[:, 0].tolist(), columns[:, 0].tolist(), strict=True))


@dataclass(frozen=True)
class TmemTensor:
    """M × N elements of an accumulator of one CTA, starting at a column."""

    dtype: str
    shape: tuple[int, int]
    cta_group: int
    col_addr: TmemAddress

    frag_size: ClassVar[int] = MOVE.registers

    @property
    def is_lower_required(self) -> bool:
        """True if a warp has 32 rows: always, except for the 64 rows of one CTA, sixteen in each quadrant."""
        return not (self.cta_group == 1 and self.shape[0] == 4 * LANE_ALIGNMENT)

    def load_fragments(self, rep: int) -> TmemFragments:
        """Load `8·rep` columns of the warp's rows; complete after `wait_load`."""
        upper = self.col_addr.load_upper(rep, self.dtype)
        return TmemFragments(upper, self.col_addr.load_lower(rep, self.dtype) if self.is_lower_required else None)

    def store_fragments(self, fragments: TmemFragments) -> None:
        """Store fragments; complete after `wait_store`."""
        self.col_addr.store_upper(fragments.upper)
        if fragments.lower is not None:
            self.col_addr.store_lower(fragments.lower)


@dataclass(frozen=True)
class TmemArrayType:
    """The type of `count` adjacent tensors; with a base, the tensors themselves."""

    dtype: str
    shape: tuple[int, int]
    count: int
    cta_group: int
    base: TmemAddress | None = field(default=None)

    def at(self, base: TmemAddress) -> TmemArrayType:
        """Return the tensors that start at an address."""
        return replace(self, base=base)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> TmemTensor:
        if self.base is None or not 0 <= index < self.count:
            raise IndexError(index)
        return TmemTensor(self.dtype, self.shape, self.cta_group, self.base + index * self.shape[1])


@dataclass(frozen=True)
class TmemStage:
    """One accumulator of a ring in TMEM."""

    config: OutputPipelineConfig
    base: Value
    index: Index
    acquired: tuple[int, Loc | None] | None = field(default=None, compare=False)
    """The statements of the kernel so far, and the author's line, where the stage was acquired."""

    @classmethod
    def from_offset(cls, config: OutputPipelineConfig, offset: Value, index: Index) -> TmemStage:
        """Return the stage with a known first column."""
        return cls(config, offset - index * config.stage_stride_cols, index)

    @property
    def offset(self) -> Value:
        """The address of its first column, lane 0."""
        return self.base + self.index * self.config.stage_stride_cols

    def address(self, warp: Value) -> TmemAddress:
        """Return the address of its first column, in the lanes of a warp."""
        return TmemAddress(self.offset).of_warp(warp)
