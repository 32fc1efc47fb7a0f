"""GEMMs of narrow elements with scale factors: for blocks of 128, or for short runs along K; grouped too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT, PADDED_BOX
from warploom.hardware.tmem import SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.kernels.call import is_storable
from warploom.ops.dense import batched, broadcast_batches
from warploom.ops.grouped import groups_of
from warploom.ops.operation import operation
from warploom.ops.planning.arrays import (
    FP8_TYPES,
    ArrayDescriptor,
    Shape,
    Violations,
    aligned,
    check_array,
    check_arrays,
    dtype_name,
    is_tensor,
    padded,
)
from warploom.ops.quantise import interleave_scales, padded_rows
from warploom.ops.signatures import (
    BlockScaledOptions,
    BlockwiseOptions,
    GroupedBlockScaledOptions,
    GroupedBlockwiseOptions,
)
from warploom.trace.language.types import OF_NUMPY

if TYPE_CHECKING:
    from warploom.ops.signatures import (
        BlockScaledMatmul,
        BlockwiseMatmul,
        GroupedBlockScaledMatmul,
        GroupedBlockwiseMatmul,
    )

BLOCK = 128
"""Rows of B, and elements of K, that share a scale."""
_MATRICES, _MATRIX, _STACK = range(2, 65), range(2, 3), range(3, 4)
_E8M0, _E4M3 = "float8_e8m0fnu", "float8_e4m3fn"
FOUR_BITS = ("float4_e2m1fn", "float4_e2m1fn_x2", "uint8")
"""4-bit elements, one to an item or, as PyTorch has them and as bytes, two: the first in the low half."""
ELEMENTS = (*FP8_TYPES, *FOUR_BITS)


class _Format(NamedTuple):
    """An MMA kind, its scale type, and the length of a run."""

    scaling_kind: str
    scale_type: str
    vec_sf_size: int


_FORMATS = {
    (8, _E8M0): _Format("mxf8f6f4", "ue8m0", 32),
    (4, _E8M0): _Format("mxf4", "ue8m0", 32),
    (4, _E4M3): _Format("mxf4nvf4", "ue4m3", 16),
}
"""By the bits of the wider operand and the dtype of the scales."""


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
    extra = {name: batched(each, batch) for name, each in scales.items()}
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


def _grouped_blockwise_matmul(
    a: Any,
    b: Any,
    a_scale: Any,
    b_scale: Any,
    ends: Any,
    violations: Violations,
    *,
    expert_ids: Any = None,
    expert_scales: Any = None,
) -> dict[str, Any] | None:
    """FP8 rows of a (m, k) times the transpose of the matrix b[g] (n, k) of their group, with scales for blocks of 128.

    `a_scale` is (m, ⌈k/128⌉) and `b_scale` (experts, ⌈n/128⌉, ⌈k/128⌉), both float32 or both bfloat16. Groups, experts
    and biases are as in `grouped_matmul`; the keywords are those of `blockwise_matmul`.
    """
    found = len(violations)
    fine = check_array("a", a, violations, types=FP8_TYPES, ranks=_MATRIX)
    stacked = check_array("b", b, violations, types=FP8_TYPES, ranks=_STACK)
    if fine and stacked and a.shape[1] != b.shape[2]:
        violations.add("b", b, f"must be (experts, n, k), where k is that of `a`, {a.dtype} {tuple(a.shape)}")
    given = (a if fine else None, b if stacked else None, ends, "b", violations, expert_ids, expert_scales)
    groups = groups_of(*given)
    types = ("float32", "bfloat16")
    scaled = check_array("a_scale", a_scale, violations, types=types, ranks=_MATRIX)
    scaled &= check_array("b_scale", b_scale, violations, types=types, ranks=_STACK)
    if groups is None or not (fine and stacked and scaled):
        return None
    blocks, unit = -(-a.shape[1] // BLOCK), ADDRESS_ALIGNMENT // scale_bytes(a_scale)
    held = ((a.shape[0] // unit + int(ends.shape[0])) * unit, blocks)
    if tuple(a_scale.shape) not in ((a.shape[0], blocks), held):
        violations.add("a_scale", a_scale, f"must be {(a.shape[0], blocks)}, as `a` is {tuple(a.shape)}")
    wanted = (b.shape[0], -(-b.shape[1] // BLOCK), blocks)
    if tuple(b_scale.shape) != wanted:
        violations.add("b_scale", b_scale, f"must be {wanted}, as `b` is {tuple(b.shape)}")
    if dtype_name(b_scale) != dtype_name(a_scale):
        violations.add("b_scale", b_scale, f"must have the element type of `a_scale`, {a_scale.dtype}")
    if len(violations) > found:
        return None
    extra = {"a_scale": a_scale, "b_scale": b_scale}
    if isinstance(a_scale, np.ndarray) and a_scale.shape != held:
        places = padded_rows(ends, unit)
        rows = np.zeros(held, a_scale.dtype)
        rows[places] = a_scale[: len(places)]
        extra["a_scale"] = rows
    if not is_tensor(a_scale):
        extra = _blockwise_scales(extra["a_scale"], b_scale, blocks)
    fields, shape = {"scale_type": OF_NUMPY[dtype_name(a_scale)]}, (a.shape[0], b.shape[1])
    formed = {"a": a, "b": b, "kind": "grouped_blockwise", "shape": shape, "fields": fields}
    return {**formed, **groups, "extra": {**extra, **groups["extra"]}}


def scale_bytes(scales: Any) -> int:
    """Bytes of one scale of a blockwise GEMM."""
    return 2 if dtype_name(scales) == "bfloat16" else 4


def _block_scaled_matmul(a: Any, b: Any, a_scale: Any, b_scale: Any, violations: Violations) -> dict[str, Any] | None:
    """A (…, m, k) times the transpose of b (…, n, k), with a scale for each short run along k.

    MXFP8: float8 elements, float8_e8m0fnu scales for runs of 32; MXFP4: float4_e2m1fn with the same; NVFP4: with
    float8_e4m3fn scales for runs of 16. One operand may be of float8 and the other of float4, with scales of MXFP8 and
    a k that is a multiple of 128. float4 may be packed, two elements to a byte (uint8), the first in the low half.
    Scales are (…, m, k/run) and (…, n, k/run), as `quantise_mxfp8` and `quantise_nvfp4` return them, or as
    `interleave_scales` arranges them. Leading axes are batches, which broadcast; a scale has those of its matrix. The
    tensor core applies the scales; the keywords are those of `matmul`, and alpha is where the scale of a whole tensor
    goes.
    """
    found, fine = len(violations), _check_matrices(a, b, ELEMENTS, violations)
    format_ = _check_format(a if fine else None, b if fine else None, a_scale, b_scale, violations)
    if format_ is None:
        return None
    run = format_.vec_sf_size
    runs = -(-elements_of(a) // run)
    chunks = {
        name: _chunks(name, each, (*of.shape[:-1], runs), violations)
        for name, each, of in (("a_scale", a_scale, a), ("b_scale", b_scale, b))
    }
    if len(violations) > found:
        return None
    if not a.shape[-1] and not is_tensor(a):  # with an empty K a run of zeros is added up
        a, b = (np.zeros((*each.shape[:-1], run // packing_of(each)), each.dtype) for each in (a, b))
        a_scale, b_scale = (np.zeros((*each.shape[:-1], 1), a_scale.dtype) for each in (a, b))
        return _block_scaled_matmul(a, b, a_scale, b_scale, violations)
    operands = _elements(a, b)
    batch, formed = _batches(operands.pop("a"), operands.pop("b"))
    extra = {
        name: batched(each, batch, _core_rank(each, of))
        for (name, each), of in zip(chunks.items(), (a, b), strict=True)
    }
    fields = {**format_._asdict(), **operands.pop("fields")}
    return {**formed, **operands, "kind": "block_scaled", "fields": fields, "extra": extra}


def _grouped_block_scaled_matmul(
    a: Any,
    b: Any,
    a_scale: Any,
    b_scale: Any,
    ends: Any,
    violations: Violations,
    *,
    expert_ids: Any = None,
    expert_scales: Any = None,
) -> dict[str, Any] | None:
    """Rows of a (m, k) times the transpose of the matrix b[g] (n, k) of their group, with a scale for each short run.

    Formats are those of `block_scaled_matmul`: MXFP8, MXFP4, NVFP4, and float8 times float4. `a_scale` is (m, k/run),
    or as `interleave_scales(a_scale, ends)` arranges it; `b_scale` is (experts, n, k/run), or interleaved. Groups,
    experts and biases are as in `grouped_matmul`; `expert_scales` is where the scales of whole weights go, and alpha
    where that of the tokens goes.
    """
    return scaled_groups(a, {"b": b}, a_scale, {"b_scale": b_scale}, ends, violations, expert_ids, expert_scales)


blockwise_matmul: BlockwiseMatmul = operation(_blockwise_matmul, BlockwiseOptions)
grouped_blockwise_matmul: GroupedBlockwiseMatmul = operation(_grouped_blockwise_matmul, GroupedBlockwiseOptions)
block_scaled_matmul: BlockScaledMatmul = operation(_block_scaled_matmul, BlockScaledOptions)
grouped_block_scaled_matmul: GroupedBlockScaledMatmul = operation(
    _grouped_block_scaled_matmul, GroupedBlockScaledOptions
)


def scaled_groups(
    a: Any,
    weights: dict[str, Any],
    a_scale: Any,
    scales: dict[str, Any],
    ends: Any,
    violations: Violations,
    expert_ids: Any,
    expert_scales: Any,
) -> dict[str, Any] | None:
    """The operands of a grouped block-scaled GEMM: one matrix for each expert, or a gate and up pair, by name."""
    found, (name, b) = len(violations), next(iter(weights.items()))
    fine = check_array("a", a, violations, types=ELEMENTS, ranks=_MATRIX)
    stacked = check_array(name, b, violations, types=ELEMENTS, ranks=_STACK)
    if fine and stacked and elements_of(a) != elements_of(b):
        rule = f"must be (experts, n, k), where k is that of `a`, {a.dtype} {tuple(a.shape)}"
        violations.add(name, b, rule)
        fine = False
    for other, each in list(weights.items())[1:]:
        if stacked and check_array(other, each, violations, types=ELEMENTS, ranks=_STACK) and not _is_like(each, b):
            violations.add(other, each, f"must be like `{name}`, {b.dtype} {tuple(b.shape)}")
    left, right = (a, b) if fine and stacked else (None, None)
    named, b_scale = next(iter(scales.items()))
    format_ = _check_format(left, right, a_scale, b_scale, violations, name=named)
    given = (a if fine else None, b if stacked else None, ends, name, violations, expert_ids, expert_scales)
    groups = groups_of(*given)
    if format_ is None or groups is None:
        return None
    runs = -(-elements_of(a) // format_.vec_sf_size)
    extra = {"a_scale": _chunks("a_scale", a_scale, (a.shape[0], runs), violations, ends)}
    for (argument, each), field in zip(scales.items(), ("b_scale", "up_scale"), strict=False):
        if not check_array(argument, each, violations, types=(dtype_name(a_scale),), ranks=_MATRICES):
            continue
        extra[field] = _chunks(argument, each, (*b.shape[:-1], runs), violations)
    if len(violations) > found:
        return None
    formed = _elements(a, *weights.values())
    fields = {**format_._asdict(), **formed.pop("fields")}
    shape = (a.shape[0], b.shape[1])
    extra |= groups.pop("extra")
    return {**formed, **groups, "kind": "grouped_block_scaled", "shape": shape, "fields": fields, "extra": extra}


def _core_rank(scales: Any, of: Any) -> int:
    """Axes of an operand's scales without batches; tensors are interleaved when their kernel is launched."""
    if not is_tensor(scales):
        return 3
    return 2 if scales.ndim == of.ndim else 5


def _is_like(one: Any, other: Any) -> bool:
    return bool(tuple(one.shape) == tuple(other.shape) and one.dtype == other.dtype)


def packing_of(array: Any) -> int:
    """Elements in one item of an operand."""
    return 2 if dtype_name(array) in FOUR_BITS[1:] else 1


def elements_of(array: Any) -> int:
    """Elements along the last axis of an operand."""
    return int(array.shape[-1]) * packing_of(array)


def _bits(array: Any) -> int:
    return 4 if dtype_name(array) in FOUR_BITS else 8


def _check_matrices(a: Any, b: Any, types: tuple[str, ...], violations: Violations) -> bool:
    """Check that A and B are matrices of some types, or batches of them that broadcast, with the same k."""
    fine = check_arrays({"a": a, "b": b}, violations, types=types, ranks=_MATRICES)
    if fine and elements_of(a) != elements_of(b):
        violations.add("b", b, f"must be (…, n, k), where k is the last axis of `a`, {a.dtype} {tuple(a.shape)}")
        return False
    if fine and broadcast_batches(a.shape[:-2], b.shape[:-2]) is None:
        violations.add("b", b, f"must have batches that broadcast with those of `a`, {a.dtype} {tuple(a.shape)}")
        return False
    return fine


def _check_format(
    a: Any, b: Any, a_scale: Any, b_scale: Any, violations: Violations, *, name: str = "b_scale"
) -> _Format | None:
    """The format of two operands, which are None where they are invalid; None if there is none.

    `name` is the caller's name of b's scales.
    """
    fine = check_arrays({"a_scale": a_scale, name: b_scale}, violations, types=(_E8M0, _E4M3), ranks=_MATRICES)
    if not fine or a is None:
        return None
    if dtype_name(b_scale) != dtype_name(a_scale):
        violations.add(name, b_scale, f"must have the element type of `a_scale`, {a_scale.dtype}")
    bits = max(_bits(a), _bits(b))
    format_ = _FORMATS.get((bits, dtype_name(a_scale)))
    if format_ is None:
        allowed = " or ".join(scale for width, scale in _FORMATS if width == bits)
        rule = f"must have elements of type {allowed} for {a.dtype} times {b.dtype}"
        violations.add("a_scale", a_scale, rule)
        return None
    unit = format_.vec_sf_size if _bits(a) == _bits(b) else PADDED_BOX
    if elements_of(a) % unit:
        why = "" if unit != PADDED_BOX else ", in which TMA pads the 4-bit operand"
        violations.add("a", a, f"must have a k that is a multiple of {unit}{why}")
    return format_


def _elements(a: Any, *weights: Any) -> dict[str, Any]:
    """The operands as kernels read them, 4-bit elements packed, and the fields of a request that follow from them."""
    b = weights[0]
    fields = {f"{name}_type": "e2m1" for name, each in (("a", a), ("b", b)) if _bits(each) == 4}
    packing = tuple(2 if _bits(each) == 4 else 1 for each in (a, b))
    alignment = 32 if _bits(a) != _bits(b) else 1
    held = [each if is_tensor(each) else _packed(each, alignment) for each in (a, *weights)]
    if is_tensor(a):
        packing = (packing_of(a), packing_of(b))
    up = {"up": held[2]} if len(held) > 2 else {}
    return {"a": held[0], "b": held[1], **up, "fields": fields, "packing": packing}


def _batches(a: Any, b: Any) -> tuple[Shape, dict[str, Any]]:
    """The batches of two matrices, and the fields of a request for their GEMM."""
    batch = broadcast_batches(a.shape[:-2], b.shape[:-2]) or ()
    shape = (*batch, a.shape[-2], b.shape[-2])
    return batch, {"a": batched(a, batch), "b": batched(b, batch), "shape": shape, "batches": len(batch)}


def _chunks(name: str, scales: Any, shape: Shape, violations: Violations, ends: Any = None) -> Any:
    """Interleaved scales as 32-bit words, by groups if there are `ends`; the caller may have interleaved them."""
    *front, rows, runs = shape
    down, along = -(-rows // SCALE_CHUNK_ROWS), -(-runs // SCALE_CHUNK_FACTORS)
    if ends is not None:
        down = rows // SCALE_CHUNK_ROWS + int(ends.shape[0])
    chunked = (*front, down, along, 32, 4, SCALE_CHUNK_FACTORS)
    if tuple(scales.shape) not in (tuple(shape), chunked):
        violations.add(name, scales, f"must be {tuple(shape)}, or {chunked} interleaved")
        return None
    if is_tensor(scales):
        return scales
    words = _interleaved(scales, chunked, ends)
    words = words.reshape(*front, down, along, SCALE_CHUNK_ROWS * SCALE_CHUNK_FACTORS)
    return words.view(np.uint32) if words.size else words


def _interleaved(scales: Any, chunked: tuple[int, ...], ends: Any) -> Any:
    """The scales as the tensor core reads them, contiguous."""
    is_done = scales.shape == chunked
    if isinstance(scales, ArrayDescriptor):
        return scales.as_contiguous(scales.dtype) if is_done else scales.copied(*chunked)
    return np.ascontiguousarray(scales if is_done else interleave_scales(scales, ends))


def _packed(array: Any, alignment: int) -> Any:
    """An operand as kernels read it: 4-bit elements two to a byte, where TMA pads them at aligned addresses."""
    if dtype_name(array) in FOUR_BITS[1:]:
        packed = array.view(np.uint8)
    elif _bits(array) != 4:
        return array
    elif isinstance(array, ArrayDescriptor):
        packed = array.copied(*array.shape[:-1], -(-array.shape[-1] // 2)).view(np.uint8)
    else:
        codes = array.view(np.uint8) & 0xF
        packed = codes[..., ::2] | codes[..., 1::2] << 4
    return aligned(packed, alignment)
