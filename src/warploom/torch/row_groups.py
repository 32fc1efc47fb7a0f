"""Rows of groups moved so that each group begins with a K tile, for the gradient of grouped weights."""

from __future__ import annotations

import torch
from torch import Tensor

from warploom.structured.config.sm90 import ROW_BYTES


def in_whole_tiles(a: Tensor, d: Tensor, ends: Tensor) -> dict[str, Tensor]:
    """The arguments of `padded_weights` for groups of rows of `a` and `d`: only the device knows where groups end."""
    starts, rows, is_filling = _whole_tiles(ends, a.shape[0], ROW_BYTES // a.element_size())
    a, d = (each.index_select(0, rows).masked_fill_(is_filling[:, None], 0) for each in (a, d))
    return {"a": a, "d": d, "starts": starts}


def _whole_tiles(ends: Tensor, count: int, tile: int) -> tuple[Tensor, Tensor, Tensor]:
    """Groups padded to whole tiles of rows, one at least: the tile where each begins, the row at every place, and which
    places are padding.

    There are as many places as any group ends can need: the host does not read them.
    """
    groups = ends.shape[0]
    firsts = torch.cat((ends.new_zeros(1), ends[:-1])).long()
    tiles = ((ends - firsts + tile - 1) // tile).clamp(min=1)
    starts = torch.cat((tiles.new_zeros(1), tiles.cumsum(0)))
    place = torch.arange((count // tile + groups) * tile, device=ends.device)
    group = torch.searchsorted(starts[1:] * tile, place, right=True).clamp(max=groups - 1)
    rows = place - starts[group] * tile + firsts[group]
    return starts.to(torch.int32), rows.clamp(max=count - 1), rows >= ends[group]
