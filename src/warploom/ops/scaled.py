"""GEMMs of narrow elements with scale factors: for blocks of 128, or for short runs along K."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.hardware.tmem import SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.kernels.call import is_storable
from warploom.ops.dense import batched, broadcast_batches
from warploom.ops.operation import operation
from warploom.ops.planning.arrays import (
    FP8_TYPES,
    ArrayDescriptor,
    Shape,
    Violations,
    check_arrays,
    dtype_name,
    is_tensor,
    padded,
)
from warploom.ops.quantise import interleave_scales
from warploom.ops.signatures import BlockScaledOptions, BlockwiseOptions
from warploom.trace.language.types import OF_NUMPY

if TYPE_CHECKING:
    from warploom.ops.signatures import BlockScaledMatmul, BlockwiseMatmul

BLOCK = 128
"""Rows of B, and elements of K, that share a scale."""
_MATRICES = range(2, 65)
_FP4 = "float4_e2m1fn"
_FORMATS = {
    ("float8_e4m3fn", "float8_e8m0fnu"): ("mxf8f6f4", "ue8m0", 32),
    ("float8_e5m2", "float8_e8m0fnu"): ("mxf8f6f4", "ue8m0", 32),
    (_FP4, "float8_e8m0fnu"): ("mxf4", "ue8m0", 32),
    (_FP4, "float8_e4m3fn"): ("mxf4nvf4", "ue4m3", 16),
}
"""By the dtypes of elements and scales: the MMA kind, the scale type, and the length of a run."""


def _blockwise_matmul(a: Any, b: Any, a_scale: Any, b_scale: Any, violations: Violations) -> dict[str, Any] | None:
    """FP8 a (…, m, k) times the transpose of b (…, n, k), with a scale for each block of 128 along k.

    `a_scale` is (…, m, ⌈k/128⌉) and `b_scale` (…, ⌈n/128⌉, ⌈k/128⌉), both float32 or both bfloat16, of any strides.
    Leading axes are batches, which broadcast; a scale has those of its matrix. The accumulator is float32; the keywords
    are those of `matmul`.
    """
    fine = _check_matrices(a, b, FP8_TYPES, violations)
    scales = {"a_scale": a_scale, "b_scale": b_scale}
    if not check_arrays(scales, violations, types=("float32", "bfloat16"), ranks=_MATRICES) or not fine:
        return None
    found, blocks = len(violations), -(-a.shape[-1] // BLOCK)
    wanted = {
        "a_scale": (*a.shape[:-1], blocks),
        "b_scale": (*b.shape[:-2], -(-b.shape[-2] // BLOCK), blocks),
    }
    for (name, shape), each, of in zip(wanted.items(), scales.values(), (a, b), strict=True):
        if tuple(each.shape) != shape:
            violations.add(name, each, f"must be {shape}, as `{name[0]}` is {tuple(of.shape)}")
    if dtype_name(b_scale) != dtype_name(a_scale):
        violations.add("b_scale", b_scale, f"must have the element type of `a_scale`, {a_scale.dtype}")
    if len(violations) > found:
        return None
    batch, formed = _batches(a, b)
    extra = {"a_scale": a_scale, "b_scale": b_scale}
    extra = {name: batched(each, batch) for name, each in extra.items()}
    if not is_tensor(a_scale):
        extra = _blockwise_scales(extra["a_scale"], extra["b_scale"], blocks)
    return {**formed, "kind": "blockwise", "fields": {"scale_type": OF_NUMPY[dtype_name(a_scale)]}, "extra": extra}


def _blockwise_scales(a_scale: Any, b_scale: Any, blocks: int) -> dict[str, Any]:
    """The scales as kernels read them: those of A with m contiguous."""
    if not blocks and isinstance(a_scale, np.ndarray):  # with an empty K one zero is added up, and it has a scale
        a_scale, b_scale = (np.zeros((*each.shape[:-1], 1), each.dtype) for each in (a_scale, b_scale))
    elif not blocks:
        b_scale = padded(b_scale)
    rows = a_scale.mT
    return {"a_scale": rows if rows.size and is_storable(rows) else padded(rows), "b_scale": b_scale}


def _block_scaled_matmul(a: Any, b: Any, a_scale: Any, b_scale: Any, violations: Violations) -> dict[str, Any] | None:
    """A (…, m, k) times the transpose of b (…, n, k), with a scale for each short run along k.

    MXFP8: float8 elements, float8_e8m0fnu scales for runs of 32; MXFP4: float4_e2m1fn with the same; NVFP4: with
    float8_e4m3fn scales for runs of 16. Scales are (…, m, k/run) and (…, n, k/run), as `quantise_mxfp8` and
    `quantise_nvfp4` return them, or as `interleave_scales` arranges them. Leading axes are batches, which broadcast; a
    scale has those of its matrix. The tensor core applies the scales; the keywords are those of `matmul`, and alpha is
    where the scale of a whole tensor goes.
    """
    fine = _check_matrices(a, b, (*FP8_TYPES, _FP4), violations)
    types = tuple(dict.fromkeys(scale for _, scale in _FORMATS))
    scales = {"a_scale": a_scale, "b_scale": b_scale}
    if not check_arrays(scales, violations, types=types, ranks=_MATRICES) or not fine:
        return None
    found = len(violations)
    if (a.dtype.name == _FP4) != (b.dtype.name == _FP4):
        violations.add("b", b, f"must have elements that multiply with those of `a`, {a.dtype}")
    if b_scale.dtype != a_scale.dtype:
        violations.add("b_scale", b_scale, f"must have the element type of `a_scale`, {a_scale.dtype}")
    kind, scale_type, run = _FORMATS.get((a.dtype.name, a_scale.dtype.name), ("", "", 0))
    if not kind:
        allowed = [scale for element, scale in _FORMATS if element == a.dtype.name]
        violations.add("a_scale", a_scale, f"must have elements of type {' or '.join(allowed)} for {a.dtype}")
        return None
    if a.shape[-1] % run:
        violations.add("a", a, f"must have a last axis that is a multiple of {run}")
    chunks = {
        name: _chunks(name, each, (*of.shape[:-1], -(-of.shape[-1] // run)), violations)
        for (name, each), of in zip(scales.items(), (a, b), strict=True)
    }
    if len(violations) > found:
        return None
    if not a.shape[-1]:  # with an empty K a run of zeros is added up
        a, b = (np.zeros((*each.shape[:-1], run), each.dtype) for each in (a, b))
        a_scale, b_scale = (np.zeros((*each.shape[:-1], 1), a_scale.dtype) for each in (a, b))
        return _block_scaled_matmul(a, b, a_scale, b_scale, violations)
    is_packed = a.dtype.name == _FP4
    fields = {"scaling_kind": kind, "scale_type": scale_type, "vec_sf_size": run}
    batch, formed = _batches(*((_packed(each) for each in (a, b)) if is_packed else (a, b)))
    return {
        **formed,
        "kind": "block_scaled",
        "fields": {**fields, **({"a_type": "e2m1", "b_type": "e2m1"} if is_packed else {})},
        "extra": {name: batched(each, batch, 3) for name, each in chunks.items()},
        "packing": 2 if is_packed else 1,
    }


blockwise_matmul: BlockwiseMatmul = operation(_blockwise_matmul, BlockwiseOptions)
block_scaled_matmul: BlockScaledMatmul = operation(_block_scaled_matmul, BlockScaledOptions)


def _check_matrices(a: Any, b: Any, types: tuple[str, ...], violations: Violations) -> bool:
    """Check that A and B are matrices of some types, or batches of them that broadcast, with the same k."""
    fine = check_arrays({"a": a, "b": b}, violations, types=types, ranks=_MATRICES)
    if fine and a.shape[-1] != b.shape[-1]:
        violations.add("b", b, f"must be (…, n, k), where k is the last axis of `a`, {a.dtype} {tuple(a.shape)}")
        return False
    if fine and broadcast_batches(a.shape[:-2], b.shape[:-2]) is None:
        violations.add("b", b, f"must have batches that broadcast with those of `a`, {a.dtype} {tuple(a.shape)}")
        return False
    return fine


def _batches(a: Any, b: Any) -> tuple[Shape, dict[str, Any]]:
    """The batches of two matrices, and the fields of a request for their GEMM."""
    batch = broadcast_batches(a.shape[:-2], b.shape[:-2]) or ()
    shape = (*batch, a.shape[-2], b.shape[-2])
    return batch, {"a": batched(a, batch), "b": batched(b, batch), "shape": shape, "batches": len(batch)}


def _chunks(name: str, scales: Any, shape: Shape, violations: Violations) -> Any:
    """Interleaved scales as 32-bit words; the caller may have interleaved them."""
    *front, rows, runs = shape
    down, along = -(-rows // SCALE_CHUNK_ROWS), -(-runs // SCALE_CHUNK_FACTORS)
    chunked = (*front, down, along, 32, 4, SCALE_CHUNK_FACTORS)
    if scales.shape not in (shape, chunked):
        violations.add(name, scales, f"must be {shape}, or {chunked} interleaved")
        return None
    words = _interleaved(scales, chunked).reshape(*front, down, along, SCALE_CHUNK_ROWS * SCALE_CHUNK_FACTORS)
    return words.view(np.uint32) if words.size else words


def _interleaved(scales: Any, chunked: tuple[int, ...]) -> Any:
    """The scales as the tensor core reads them, contiguous."""
    is_done = scales.shape == chunked
    if isinstance(scales, ArrayDescriptor):
        return scales.as_contiguous(scales.dtype) if is_done else scales.copied(*chunked)
    return np.ascontiguousarray(scales if is_done else interleave_scales(scales))


def _packed(array: Any) -> Any:
    """4-bit elements, two to a byte, the first in the low half."""
    if isinstance(array, ArrayDescriptor):
        return array.copied(*array.shape[:-1], -(-array.shape[-1] // 2)).view(np.uint8)
    codes = array.view(np.uint8) & 0xF
    return codes[..., ::2] | codes[..., 1::2] << 4
