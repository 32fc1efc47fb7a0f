"""The K loop of a load role: all K tiles of a tile, after the first of which an epilogue load may begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warploom.structured.pipelines.epilogue_load_pipeline import LoadOrderBarrier
from warploom.structured.pipelines.input_pipeline import InputTilePipeline
from warploom.structured.pipelines.weight_prefetch import load_weights_first
from warploom.trace.language.control import loop
from warploom.trace.language.operations import min_
from warploom.trace.language.values import Value, literal
from warploom.trace.language.views import Index


def load_tile(
    inputs: InputTilePipeline,
    tile: Any,
    order: LoadOrderBarrier | None = None,
    *,
    ahead: int = 0,
    weights: Sequence[str] = (),
) -> None:
    """Load the K tiles of a tile; `order` is signalled after the prologue, which waits for no MMA of this tile.

    The `weights` of the first `ahead` stages are loaded before the previous grid has completed.
    """
    first: Value = load_weights_first(inputs, tile, ahead, *weights) if ahead else literal(0, "s32")
    if order is not None:
        loaded, first = first, min_(tile.k_tiles, literal(inputs.num_group_stages, "s32"))
        _load(inputs, tile, loaded, first)
        order.arrive()
    _load(inputs, tile, first, tile.k_tiles)


def _load(inputs: InputTilePipeline, tile: Any, first: Index, end: Index) -> None:
    for step in loop(first, end):
        with inputs.produce() as stage:  # waits until the tensor core has read the slot
            stage.load(tile, tile.k_start + step)
