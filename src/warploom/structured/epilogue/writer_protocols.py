"""What a tile writer is given, as far as it looks: who writes, what is read, and how C is divided and staged."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from warploom.structured.config.output import OutputPipelineConfig
from warploom.structured.tensor_cores.tmem import TmemFragments
from warploom.trace.language.values import Value


class AccumulatorStage(Protocol):
    """What is read: an accumulator that the epilogue holds, and gives back once."""

    @property
    def tmem(self) -> Any: ...

    def release(self) -> None: ...


@runtime_checkable
class RegisterAccumulator(Protocol):
    """What is read where the sums are in registers: each strip of them."""

    def subtile(self, index: int) -> TmemFragments: ...


class WriterRole(Protocol):
    """Who writes: four warps, a role or a part of one."""

    first: int
    count: int

    @property
    def threads(self) -> int: ...

    @property
    def warp(self) -> Value: ...

    @property
    def thread(self) -> Value: ...

    @property
    def elected(self) -> Value: ...

    @property
    def first_thread(self) -> Value: ...


class GroupBarrier(Protocol):
    """Where those who write wait for each other."""

    def sync(self) -> None: ...


class WriterConfig(Protocol):
    """A configuration of any target: the shapes of accumulators and of what is staged of them."""

    @property
    def a_type(self) -> str: ...

    @property
    def c_type(self) -> str: ...

    @property
    def accum_type(self) -> str: ...

    @property
    def epilogue_dtype(self) -> str: ...

    @property
    def block_tile_shape(self) -> tuple[int, int, int]: ...

    @property
    def mma_shape(self) -> tuple[int, int, int]: ...

    @property
    def output(self) -> OutputPipelineConfig: ...

    @property
    def output_tile_shape(self) -> tuple[int, int]: ...

    @property
    def num_output_stages(self) -> int: ...

    @property
    def c_swizzle(self) -> str: ...

    @property
    def epi_load_swizzle(self) -> str: ...

    @property
    def transpose_c(self) -> bool: ...

    @property
    def register_based_epilogue(self) -> bool: ...
