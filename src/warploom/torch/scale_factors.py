"""Scale factors of block formats on PyTorch tensors, in the order that the tensor core reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT
from warploom.hardware.tmem import QUADRANT, SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.ops.planning.arrays import Violations
from warploom.ops.planning.quantised import Quantised


def interleaved(scales: Tensor, ends: Tensor | None = None) -> Tensor:
    """Scales (…, rows, runs) in atoms of 128 rows by 4, as `interleave_scales` has them; `ends` are not read here."""
    *front, rows, runs = scales.shape
    along = -(-runs // SCALE_CHUNK_FACTORS)
    values = scales.view(torch.uint8)
    if ends is None:
        down = -(-rows // SCALE_CHUNK_ROWS)
        padded = values.new_zeros((*front, down * SCALE_CHUNK_ROWS, along * SCALE_CHUNK_FACTORS))
        padded[..., :rows, :runs] = values
    else:
        down = rows // SCALE_CHUNK_ROWS + ends.shape[0]
        padded = values.new_zeros((down * SCALE_CHUNK_ROWS + 1, along * SCALE_CHUNK_FACTORS))
        padded[_padded_rows(ends, rows, SCALE_CHUNK_ROWS, down * SCALE_CHUNK_ROWS), :runs] = values
        padded = padded[:-1]
    atoms = padded.reshape(*front, down, SCALE_CHUNK_ROWS // QUADRANT, QUADRANT, along, SCALE_CHUNK_FACTORS)
    return atoms.movedim((-2, -3), (-4, -3)).contiguous().view(scales.dtype)


def padded_by_groups(scales: Tensor, rows: int, ends: Tensor) -> Tensor:
    """Scales (rows, blocks) with rows contiguous, where each group starts at 16 bytes: itself, if it is so already."""
    unit = ADDRESS_ALIGNMENT // scales.element_size()
    held = (rows // unit + ends.shape[0]) * unit
    if scales.shape[0] == held and scales.mT.is_contiguous():
        return scales
    padded = scales.new_zeros((scales.shape[1], held + 1))
    padded[:, _padded_rows(ends, rows, unit, held)] = scales.mT
    return padded[:, :held].contiguous().mT


def _padded_rows(ends: Tensor, rows: int, unit: int, spare: int) -> Tensor:
    """The place of each row, where group g starts at unit ⌊start/unit⌋ + g; `spare` for a row that is in no group."""
    row = torch.arange(rows, device=ends.device)
    if not ends.shape[0]:
        return torch.full_like(row, spare)
    ends = ends.long()
    group = torch.searchsorted(ends, row, right=True).clamp(max=ends.shape[0] - 1)
    start = torch.cat((ends.new_zeros(1), ends[:-1]))[group]
    place = row - start + (start // unit + group) * unit
    return torch.where(row < ends[-1], place, spare)


_TOPS = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}
"""The largest exponent of each element type of MXFP8."""
_RUN, _INFINITE, _MANTISSA_BITS = 32, 255, 23


def quantise_mxfp8(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Quantised:
    """MXFP8 of a tensor on its device, the same as `warploom.quantise_mxfp8` of an array."""
    violations = Violations("quantise_mxfp8")
    if dtype not in _TOPS:
        violations.add("dtype", dtype, "must be float8_e4m3fn or float8_e5m2")
    _check_runs(x, _RUN, violations)
    violations.check()
    top, greatest = _TOPS[dtype], torch.finfo(dtype).max
    runs = x.detach().float().reshape(*x.shape[:-1], x.shape[-1] // _RUN, _RUN)
    bits = runs.contiguous().view(torch.int32) & 0x7FFFFFFF  # as integers, so that a NaN is the largest
    exponent = bits.amax(-1) >> _MANTISSA_BITS if x.numel() else bits.sum(-1, dtype=torch.int32)
    is_finite = exponent < _INFINITE
    code = exponent.clamp(min=top) - top
    inverse = ((_INFINITE - 1 - code) << _MANTISSA_BITS).view(torch.float32)
    values = (runs * inverse[..., None]).clamp(-greatest, greatest)
    values = torch.where(is_finite[..., None], values, torch.nan).to(dtype).reshape(x.shape)
    scales = torch.where(is_finite, code, _INFINITE).to(torch.uint8).view(torch.float8_e8m0fnu)
    made: Any = (values, scales)
    return Quantised(*made)


_NVFP4_RUN = 16
_GREATEST_E4M3, _GREATEST_E2M1 = 448.0, 6.0
_E2M1_STEPS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
"""Numbers from which the next larger e2m1 number is nearer, and whether a tie goes there."""


def quantise_nvfp4(x: Tensor) -> Quantised:
    """NVFP4 of a tensor on its device, the same as `warploom.quantise_nvfp4` of an array, packed in bytes."""
    violations = Violations("quantise_nvfp4")
    if _check_runs(x, _NVFP4_RUN, violations) and not bool(x.isfinite().all()):
        violations.add("x", x, "must be finite: e2m1 has no NaN and no infinity")
    violations.check()
    runs = x.detach().double().reshape(*x.shape[:-1], x.shape[-1] // _NVFP4_RUN, _NVFP4_RUN)
    largest = runs.abs().amax(-1) if x.numel() else runs.sum(-1)
    whole = (largest.max() / (_GREATEST_E4M3 * _GREATEST_E2M1)).float().item() if x.numel() else 0.0
    if whole == float("inf"):
        violations.add("x", x, "must be small enough for its tensor-wide scale to be a finite float32")
    violations.check()
    scale = whole if whole > 0 else 1.0
    scales = _odd_singles((largest / _GREATEST_E2M1 / scale).clamp(max=_GREATEST_E4M3)).to(torch.float8_e4m3fn)
    products = (scales.double() * scale)[..., None]
    ratio = torch.where(products > 0, runs / torch.where(products > 0, products, 1.0), 0.0)
    code = ratio.signbit().to(torch.uint8) << 3
    for step, takes_ties in _E2M1_STEPS:
        code += (ratio.abs() >= step) if takes_ties else (ratio.abs() > step)
    pairs = code.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    made: Any = (pairs[..., 0] | pairs[..., 1] << 4, scales, scale)
    return Quantised(*made)


def _check_runs(x: Tensor, run: int, violations: Violations) -> bool:
    """Check the type of a tensor, and that its last axis is whole runs."""
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        violations.add("x", x, "must be a tensor of float32, bfloat16 or float16")
    elif x.dim() < 1 or x.shape[-1] % run:
        violations.add("x", x, f"must have a last axis that is a multiple of {run}")
    else:
        return True
    return False


def _odd_singles(values: Tensor) -> Tensor:
    """Round to float32, to odd where bits are lost, so that a second rounding of the result sees every tie."""
    near = values.float()
    down = torch.where(near.double().abs() > values.abs(), torch.nextafter(near, torch.zeros_like(near)), near)
    odd = (down.view(torch.int32) | 1).view(torch.float32)
    return torch.where(near.double() == values, near, odd)
