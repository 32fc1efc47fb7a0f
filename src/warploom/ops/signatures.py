"""The keywords and the types of the operations: arrays of a library in, an array of that library out.

A keyword of the epilogue has its type here, its row in `planning/keywords.py`, and its computation in
`structured/epilogue/epilogue.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

import numpy as np

from warploom.ops.operation import Operation
from warploom.structured.config import (
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    HopperBlockwiseConfig,
    HopperConfig,
    MatmulConfig,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "squared_relu"]
Gate = Literal["swiglu", "geglu", "geglu_tanh", "reglu", "glu"]
BlockFormat = Literal["mxfp8", "nvfp4"]
Precision = Literal["tf32", "tf32x3"]
Target = Literal["sm_100a", "sm_103a", "sm_90a"]
NumpyArray = np.ndarray[Any, Any]


class Exported(Protocol):
    """An array of any library that shares its memory by DLPack."""

    def __dlpack__(self) -> Any: ...


A = TypeVar("A", bound=Exported)
"""Arrays of one library: tensors give a tensor."""
EpilogueFunction = Callable[..., Any]


class _Bias(TypedDict, total=False):
    bias: Exported | float | None
    activation: Activation | None


class _Gates(TypedDict, total=False):
    pair: Gate | EpilogueFunction
    gate_bias: Exported | float | None
    up_bias: Exported | float | None


class _Epilogue(TypedDict, total=False):
    residual: Exported | float | None
    beta: float
    alpha: float
    epilogue: EpilogueFunction | None
    operands: Mapping[str, Any] | None
    outputs: Mapping[str, Any] | None
    out: Any
    out_dtype: npt.DTypeLike | torch.dtype | None
    target: Target | None


class _Store(TypedDict, total=False):
    store: EpilogueFunction | None


class GemmOptions(_Bias, _Epilogue, _Store, total=False):
    """Keywords of all GEMMs."""

    config: MatmulConfig | HopperConfig | None


class DenseOptions(GemmOptions, total=False):
    """Keywords of `matmul` and `linear`."""

    precision: Precision


class Conv2dOptions(GemmOptions, total=False):
    """Keywords of `conv2d`."""

    stride: int | tuple[int, int]
    padding: int | tuple[int, int]
    dilation: int | tuple[int, int]


class GatedOptions(_Gates, _Epilogue, total=False):
    """Keywords of `gated_linear`."""

    config: MatmulConfig | HopperConfig | None


class _Experts(TypedDict, total=False):
    expert_ids: Exported | None
    expert_scales: Exported | None


class GroupedOptions(GemmOptions, _Experts, total=False):
    """Keywords of `grouped_matmul`."""


class GatedGroupedOptions(GatedOptions, _Experts, total=False):
    """Keywords of `gated_grouped_matmul`."""


class BlockwiseOptions(_Bias, _Epilogue, _Store, total=False):
    """Keywords of `blockwise_matmul`."""

    config: BlockwiseFP8MatmulConfig | HopperBlockwiseConfig | None


class BlockScaledOptions(_Bias, _Epilogue, _Store, total=False):
    """Keywords of `block_scaled_matmul`."""

    config: BlockScaledMatmulConfig | None


class GroupedBlockwiseOptions(BlockwiseOptions, _Experts, total=False):
    """Keywords of `grouped_blockwise_matmul`."""


class GroupedBlockScaledOptions(BlockScaledOptions, _Experts, total=False):
    """Keywords of `grouped_block_scaled_matmul`."""


class GatedGroupedBlockScaledOptions(_Gates, _Epilogue, _Experts, total=False):
    """Keywords of `gated_grouped_block_scaled_matmul`."""

    quantise_to: BlockFormat | None
    quantise_scale: float
    config: BlockScaledMatmulConfig | None


class Matmul(Operation, Protocol):
    """The type of `matmul`."""

    @overload
    def __call__(self, a: NumpyArray, b: NumpyArray, **options: Unpack[DenseOptions]) -> NumpyArray: ...
    @overload
    def __call__(self, a: A, b: A, **options: Unpack[DenseOptions]) -> A: ...


class Linear(Operation, Protocol):
    """The type of `linear`."""

    @overload
    def __call__(self, x: NumpyArray, w: NumpyArray, **options: Unpack[DenseOptions]) -> NumpyArray: ...
    @overload
    def __call__(self, x: A, w: A, **options: Unpack[DenseOptions]) -> A: ...


class Conv2d(Operation, Protocol):
    """The type of `conv2d`."""

    @overload
    def __call__(self, x: NumpyArray, w: NumpyArray, **options: Unpack[Conv2dOptions]) -> NumpyArray: ...
    @overload
    def __call__(self, x: A, w: A, **options: Unpack[Conv2dOptions]) -> A: ...


class GatedLinear(Operation, Protocol):
    """The type of `gated_linear`."""

    @overload
    def __call__(
        self, x: NumpyArray, w_gate: NumpyArray, w_up: NumpyArray, **options: Unpack[GatedOptions]
    ) -> NumpyArray: ...
    @overload
    def __call__(self, x: A, w_gate: A, w_up: A, **options: Unpack[GatedOptions]) -> A: ...


class GroupedMatmul(Operation, Protocol):
    """The type of `grouped_matmul`."""

    @overload
    def __call__(
        self, a: NumpyArray, b: NumpyArray, ends: NumpyArray, **options: Unpack[GroupedOptions]
    ) -> NumpyArray: ...
    @overload
    def __call__(self, a: A, b: A, ends: A, **options: Unpack[GroupedOptions]) -> A: ...


class GatedGroupedMatmul(Operation, Protocol):
    """The type of `gated_grouped_matmul`."""

    @overload
    def __call__(
        self,
        a: NumpyArray,
        b_gate: NumpyArray,
        b_up: NumpyArray,
        ends: NumpyArray,
        **options: Unpack[GatedGroupedOptions],
    ) -> NumpyArray: ...
    @overload
    def __call__(self, a: A, b_gate: A, b_up: A, ends: A, **options: Unpack[GatedGroupedOptions]) -> A: ...


class BlockwiseMatmul(Operation, Protocol):
    """The type of `blockwise_matmul`."""

    @overload
    def __call__(
        self,
        a: NumpyArray,
        b: NumpyArray,
        a_scale: NumpyArray,
        b_scale: NumpyArray,
        **options: Unpack[BlockwiseOptions],
    ) -> NumpyArray: ...
    @overload
    def __call__(self, a: A, b: A, a_scale: A, b_scale: A, **options: Unpack[BlockwiseOptions]) -> A: ...


class BlockScaledMatmul(Operation, Protocol):
    """The type of `block_scaled_matmul`."""

    @overload
    def __call__(
        self,
        a: NumpyArray,
        b: NumpyArray,
        a_scale: NumpyArray,
        b_scale: NumpyArray,
        **options: Unpack[BlockScaledOptions],
    ) -> NumpyArray: ...
    @overload
    def __call__(self, a: A, b: A, a_scale: A, b_scale: A, **options: Unpack[BlockScaledOptions]) -> A: ...


class GroupedBlockwiseMatmul(Operation, Protocol):
    """The type of `grouped_blockwise_matmul`."""

    @overload
    def __call__(
        self,
        a: NumpyArray,
        b: NumpyArray,
        a_scale: NumpyArray,
        b_scale: NumpyArray,
        ends: NumpyArray,
        **options: Unpack[GroupedBlockwiseOptions],
    ) -> NumpyArray: ...
    @overload
    def __call__(
        self, a: A, b: A, a_scale: A, b_scale: A, ends: A, **options: Unpack[GroupedBlockwiseOptions]
    ) -> A: ...


class GroupedBlockScaledMatmul(Operation, Protocol):
    """The type of `grouped_block_scaled_matmul`."""

    @overload
    def __call__(
        self,
        a: NumpyArray,
        b: NumpyArray,
        a_scale: NumpyArray,
        b_scale: NumpyArray,
        ends: NumpyArray,
        **options: Unpack[GroupedBlockScaledOptions],
    ) -> NumpyArray: ...
    @overload
    def __call__(
        self, a: A, b: A, a_scale: A, b_scale: A, ends: A, **options: Unpack[GroupedBlockScaledOptions]
    ) -> A: ...


class GatedGroupedBlockScaledMatmul(Operation, Protocol):
    """The type of `gated_grouped_block_scaled_matmul`."""

    @overload
    def __call__(
        self,
        a: NumpyArray,
        b_gate: NumpyArray,
        b_up: NumpyArray,
        a_scale: NumpyArray,
        b_gate_scale: NumpyArray,
        b_up_scale: NumpyArray,
        ends: NumpyArray,
        **options: Unpack[GatedGroupedBlockScaledOptions],
    ) -> NumpyArray: ...
    @overload
    def __call__(
        self,
        a: A,
        b_gate: A,
        b_up: A,
        a_scale: A,
        b_gate_scale: A,
        b_up_scale: A,
        ends: A,
        **options: Unpack[GatedGroupedBlockScaledOptions],
    ) -> A: ...
