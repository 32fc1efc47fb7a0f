"""Products of narrow elements with scale factors: for blocks of 128, or for short runs along K."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from warploom.hardware.tmem import SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.kernels.call import is_storable
from warploom.ops.planning.arrays import NARROW, Array, are_arrays, staged
from warploom.ops.planning.epilogue import Options
from warploom.ops.planning.epilogue_inputs import Result
from warploom.ops.planning.gemm import planned
from warploom.ops.planning.operation import Plan, operation
from warploom.ops.planning.request import Product
from warploom.ops.planning.violations import Faults
from warploom.ops.quantise import interleave_scales
from warploom.structured.config import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.trace.language.types import OF_NUMPY

BLOCK = 128
"""Rows of B, and elements of K, that share a scale."""
_MATRIX = range(2, 3)
_FP4 = "float4_e2m1fn"
_WORD = 4
_FORMATS = {
    ("float8_e4m3fn", "float8_e8m0fnu"): ("mxf8f6f4", "ue8m0", 32),
    ("float8_e5m2", "float8_e8m0fnu"): ("mxf8f6f4", "ue8m0", 32),
    (_FP4, "float8_e8m0fnu"): ("mxf4", "ue8m0", 32),
    (_FP4, "float8_e4m3fn"): ("mxf4nvf4", "ue4m3", 16),
}
"""By the dtypes of elements and scales: the kind of multiplication, the scales' type, and the length of a run."""


@operation
def blockwise_matmul(
    a: Any,
    b: Any,
    a_scale: Any,
    b_scale: Any,
    *,
    bias: Any = None,
    residual: Any = None,
    beta: float = 1.0,
    alpha: float = 1.0,
    activation: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    store: Callable[..., Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    out: Any = None,
    out_dtype: Any = None,
    config: BlockwiseFP8MatmulConfig | HopperBlockwiseConfig | None = None,
    target: str | None = None,
) -> Plan:
    """The product of 8-bit a (m, k) and the transpose of b (n, k), with a scale for each block of 128 along k.

    `a_scale` is (m, ⌈k/128⌉) and `b_scale` (⌈n/128⌉, ⌈k/128⌉), both float32 or both bfloat16, of any strides. The sum
    over blocks is in float32, and all that `matmul` has follows it.
    """
    faults = Faults("blockwise_matmul")
    options = Options(
        bias=bias, residual=residual, beta=beta, alpha=alpha, activation=activation, epilogue=epilogue, store=store,
        operands=operands, outputs=outputs, out=out, out_dtype=out_dtype, config=config, target=target,
    )  # fmt: skip
    return planned(_blockwise(a, b, a_scale, b_scale, faults), options, faults)


@operation
def block_scaled_matmul(
    a: Any,
    b: Any,
    a_scale: Any,
    b_scale: Any,
    *,
    bias: Any = None,
    residual: Any = None,
    beta: float = 1.0,
    alpha: float = 1.0,
    activation: str | None = None,
    epilogue: Callable[..., Any] | None = None,
    store: Callable[..., Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    out: Any = None,
    out_dtype: Any = None,
    config: BlockScaledMatmulConfig | None = None,
    target: str | None = None,
) -> Plan:
    """The product of a (m, k) and the transpose of b (n, k), with a scale for each short run along k.

    MXFP8: float8 elements, float8_e8m0fnu scales for runs of 32; MXFP4: float4_e2m1fn with the same; NVFP4: with
    float8_e4m3fn scales for runs of 16. Scales are (m, k/run) and (n, k/run), as `quantise_mxfp8` and
    `quantise_nvfp4` give them, or as `interleave_scales` makes them of those. The tensor core applies them,
    and all that `matmul` has follows: alpha is where the scale of a whole tensor goes.
    """
    faults = Faults("block_scaled_matmul")
    options = Options(
        bias=bias, residual=residual, beta=beta, alpha=alpha, activation=activation, epilogue=epilogue, store=store,
        operands=operands, outputs=outputs, out=out, out_dtype=out_dtype, config=config, target=target,
    )  # fmt: skip
    return planned(_block_scaled(a, b, a_scale, b_scale, faults), options, faults)


def _are_matrices(a: Any, b: Any, types: tuple[str, ...], faults: Faults) -> bool:
    """Whether both factors are matrices of such elements, with the same k."""
    fine = are_arrays({"a": a, "b": b}, faults, types=types, axes=_MATRIX)
    if fine and a.shape[1] != b.shape[1]:
        faults.add("b", b, f"it has {b.shape[1]} columns; `a`, {a.dtype} {a.shape}, has {a.shape[1]}")
        return False
    return fine


def _blockwise(a: Any, b: Any, a_scale: Any, b_scale: Any, faults: Faults) -> Product | None:
    fine = _are_matrices(a, b, NARROW, faults)
    scales = {"a_scale": a_scale, "b_scale": b_scale}
    if not are_arrays(scales, faults, types=("float32", "bfloat16"), axes=_MATRIX) or not fine:
        return None
    found, blocks = len(faults), -(-a.shape[1] // BLOCK)
    for name, each, shape in (
        ("a_scale", a_scale, (a.shape[0], blocks)),
        ("b_scale", b_scale, (-(-b.shape[0] // BLOCK), blocks)),
    ):
        if each.shape != shape:
            faults.add(name, each, f"it must be {shape}: `{name[0]}` is {(a if name[0] == 'a' else b).shape}")
    if b_scale.dtype != a_scale.dtype:
        faults.add("b_scale", b_scale, f"its elements must be those of `a_scale`, {a_scale.dtype}")
    if len(faults) > found:
        return None
    if not blocks:  # one zero is added up, and it is scaled
        a_scale, b_scale = (np.zeros((len(each), 1), each.dtype) for each in (a_scale, b_scale))
    rows = a_scale.mT
    return Product(
        a,
        b,
        Result((a.shape[0], b.shape[0]), 0, 1),
        "blockwise",
        {"scale_type": OF_NUMPY[a_scale.dtype.name]},
        {"a_scale": rows if rows.size and is_storable(rows) else staged(rows), "b_scale": b_scale},
    )


def _block_scaled(a: Any, b: Any, a_scale: Any, b_scale: Any, faults: Faults) -> Product | None:
    fine = _are_matrices(a, b, (*NARROW, _FP4), faults)
    types = tuple(dict.fromkeys(scale for _, scale in _FORMATS))
    scales = {"a_scale": a_scale, "b_scale": b_scale}
    if not are_arrays(scales, faults, types=types, axes=range(2, 6)) or not fine:
        return None
    found = len(faults)
    if (a.dtype.name == _FP4) != (b.dtype.name == _FP4):
        faults.add("b", b, f"its elements do not go with those of `a`, {a.dtype}")
    if b_scale.dtype != a_scale.dtype:
        faults.add("b_scale", b_scale, f"its elements must be those of `a_scale`, {a_scale.dtype}")
    kind, scale_type, run = _FORMATS.get((a.dtype.name, a_scale.dtype.name), ("", "", 0))
    if not kind:
        faults.add("a_scale", a_scale, f"{a.dtype} elements have no such scales")
        return None
    if a.shape[1] % run:
        faults.add("a", a, f"its last axis is not whole runs of {run}")
    chunks = {
        name: _chunks(name, each, (of.shape[0], -(-of.shape[1] // run)), faults)
        for (name, each), of in zip(scales.items(), (a, b), strict=True)
    }
    if len(faults) > found:
        return None
    if not a.shape[1]:  # a run of zeros is added up
        a, b = (np.zeros((len(each), run), each.dtype) for each in (a, b))
        a_scale, b_scale = (np.zeros((len(each), 1), a_scale.dtype) for each in (a, b))
        return _block_scaled(a, b, a_scale, b_scale, faults)
    packed = a.dtype.name == _FP4
    return Product(
        _packed(a) if packed else a,
        _packed(b) if packed else b,
        Result((a.shape[0], b.shape[0]), 0, 1),
        "block_scaled",
        {
            "scaling_kind": kind,
            "scale_type": scale_type,
            "vec_sf_size": run,
            **({"a_type": "e2m1", "b_type": "e2m1"} if packed else {}),
        },
        chunks,
        packing=2 if packed else 1,
    )


def _chunks(name: str, scales: Array, shape: tuple[int, int], faults: Faults) -> Array | None:
    """Scales in chunks, as words; they may come in chunks already."""
    down, along = -(-shape[0] // SCALE_CHUNK_ROWS), -(-shape[1] // SCALE_CHUNK_FACTORS)
    chunked = (down, along, 32, 4, SCALE_CHUNK_FACTORS)
    if scales.shape not in (shape, chunked):
        faults.add(name, scales, f"it must be {shape}, or {chunked} interleaved")
        return None
    held = np.ascontiguousarray(interleave_scales(scales) if scales.shape == shape else scales)
    words = held.reshape(down, along, SCALE_CHUNK_ROWS * SCALE_CHUNK_FACTORS)
    return words.view(np.uint32) if words.size else words


def _packed(array: Array) -> Array:
    """4-bit elements two to a byte, the first in the lower half."""
    codes = array.view(np.uint8) & 0xF
    return codes[:, ::2] | codes[:, 1::2] << 4
