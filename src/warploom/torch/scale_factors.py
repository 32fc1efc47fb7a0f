"""Scale factors of block formats on PyTorch tensors, in the order that the tensor core reads."""

from __future__ import annotations

import torch
from torch import Tensor

from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT
from warploom.hardware.tmem import QUADRANT, SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS


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
