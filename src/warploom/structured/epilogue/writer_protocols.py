"""Protocols of a tile writer's arguments: the writing role, the accumulators, the barrier and the configuration."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from warploom.structured.config.output import OutputPipelineConfig
from warploom.structured.tensor_cores.tmem import TmemFragments
from warploom.trace.language.values import Value


class AccumulatorStage(Protocol):
    """An accumulator in TMEM that the epilogue holds, and releases once."""

    @property
    def tmem(self) -> Any: ...

    def release(self) -> None: ...


@runtime_checkable
class RegisterAccumulator(Protocol):
    """An accumulator in registers, by subtile."""

    def subtile(self, index: int) -> TmemFragments: ...


class WriterRole(Protocol):
    """The four warps that write: a role, or a warpgroup of one."""

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
    """A barrier of the writing threads."""

    def sync(self) -> None: ...


class WriterConfig(Protocol):
    """The fields of a configuration, of any target, that a writer needs."""

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
