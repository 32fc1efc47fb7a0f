"""The keywords and the types of the operations: tensors in, a tensor out; arrays in, an array out.

A keyword of the epilogue is declared here, checked and assembled in `planning/request.py`, and traced in
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
    from torch import Tensor

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "squared_relu"]
Gate = Literal["swiglu", "geglu", "geglu_tanh", "reglu", "glu"]
Target = Literal["sm_100a", "sm_103a", "sm_90a"]
NumpyArray = np.ndarray[Any, Any]


class Exported(Protocol):
    """An array of any library that shares its memory by DLPack."""

    def __dlpack__(self) -> Any: ...


Any_ = TypeVar("Any_", bound=Exported)
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
    """Keywords of `matmul`, `linear` and `grouped_matmul`."""

    config: MatmulConfig | HopperConfig | None


class GatedOptions(_Gates, _Epilogue, total=False):
    """Keywords of `gated_linear` and `gated_grouped_matmul`."""

    config: MatmulConfig | HopperConfig | None


class BlockwiseOptions(_Bias, _Epilogue, _Store, total=False):
    """Keywords of `blockwise_matmul`."""

    config: BlockwiseFP8MatmulConfig | HopperBlockwiseConfig | None


class BlockScaledOptions(_Bias, _Epilogue, _Store, total=False):
    """Keywords of `block_scaled_matmul`."""

    config: BlockScaledMatmulConfig | None


class Matmul(Operation, Protocol):
    """The type of `matmul`."""

    @overload
    def __call__(self, a: Tensor, b: Tensor, **options: Unpack[GemmOptions]) -> Tensor: ...
    @overload
    def __call__(self, a: NumpyArray, b: NumpyArray, **options: Unpack[GemmOptions]) -> NumpyArray: ...
    @overload
    def __call__(self, a: Any_, b: Any_, **options: Unpack[GemmOptions]) -> Any_: ...


class Linear(Operation, Protocol):
    """The type of `linear`."""

    @overload
    def __call__(self, x: Tensor, w: Tensor, **options: Unpack[GemmOptions]) -> Tensor: ...
    @overload
    def __call__(self, x: NumpyArray, w: NumpyArray, **options: Unpack[GemmOptions]) -> NumpyArray: ...
    @overload
    def __call__(self, x: Any_, w: Any_, **options: Unpack[GemmOptions]) -> Any_: ...


class GatedLinear(Operation, Protocol):
    """The type of `gated_linear`."""

    @overload
    def __call__(self, x: Tensor, w_gate: Tensor, w_up: Tensor, **options: Unpack[GatedOptions]) -> Tensor: ...
    @overload
    def __call__(
        self, x: NumpyArray, w_gate: NumpyArray, w_up: NumpyArray, **options: Unpack[GatedOptions]
    ) -> NumpyArray: ...
    @overload
    def __call__(self, x: Any_, w_gate: Any_, w_up: Any_, **options: Unpack[GatedOptions]) -> Any_: ...


class GroupedMatmul(Operation, Protocol):
    """The type of `grouped_matmul`."""

    @overload
    def __call__(self, a: Tensor, b: Tensor, ends: Tensor, **options: Unpack[GemmOptions]) -> Tensor: ...
    @overload
    def __call__(
        self, a: NumpyArray, b: NumpyArray, ends: NumpyArray, **options: Unpack[GemmOptions]
    ) -> NumpyArray: ...
    @overload
    def __call__(self, a: Any_, b: Any_, ends: Any_, **options: Unpack[GemmOptions]) -> Any_: ...


class GatedGroupedMatmul(Operation, Protocol):
    """The type of `gated_grouped_matmul`."""

    @overload
    def __call__(
        self, a: Tensor, b_gate: Tensor, b_up: Tensor, ends: Tensor, **options: Unpack[GatedOptions]
    ) -> Tensor: ...
    @overload
    def __call__(
        self, a: NumpyArray, b_gate: NumpyArray, b_up: NumpyArray, ends: NumpyArray, **options: Unpack[GatedOptions]
    ) -> NumpyArray: ...
    @overload
    def __call__(self, a: Any_, b_gate: Any_, b_up: Any_, ends: Any_, **options: Unpack[GatedOptions]) -> Any_: ...


class BlockwiseMatmul(Operation, Protocol):
    """The type of `blockwise_matmul`."""

    @overload
    def __call__(
        self, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, **options: Unpack[BlockwiseOptions]
    ) -> Tensor: ...
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
    def __call__(self, a: Any_, b: Any_, a_scale: Any_, b_scale: Any_, **options: Unpack[BlockwiseOptions]) -> Any_: ...


class BlockScaledMatmul(Operation, Protocol):
    """The type of `block_scaled_matmul`."""

    def __call__(
        self,
        a: NumpyArray,
        b: NumpyArray,
        a_scale: NumpyArray,
        b_scale: NumpyArray,
        **options: Unpack[BlockScaledOptions],
    ) -> NumpyArray: ...
