"""Weight prefetch: loads of weights, which no previous grid writes, start before the previous grid has completed."""

from __future__ import annotations

from typing import Any

from warploom.structured.dependent_launch import wait_for_dependencies
from warploom.structured.pipelines.input_pipeline import InputTilePipeline
from warploom.structured.pipelines.pipeline import RingState
from warploom.trace.language.control import loop, when
from warploom.trace.language.operations import min_
from warploom.trace.language.values import Value, literal


def load_weights_first(inputs: InputTilePipeline, tile: Any, count: int, *weights: str) -> Value:
    """Load a tile's first stages, the weights of all of them before the other operands; return the number of stages.

    `weights` are parts of the payload: `b`, and its scale factors.

    The bytes of a stage are expected together with its weights, so that it is not full before the rest has arrived.
    """
    ahead = min_(tile.k_tiles, literal(count, "s32"))
    again = RingState(inputs.num_group_stages, 1)
    again.copy_from(inputs.pipeline.producer_side.state)
    others = tuple(name for name in inputs.payload.parts if name not in weights)
    for step in loop(ahead):
        with inputs.produce() as stage:
            stage.load(tile, tile.k_start + step, only=weights)
    wait_for_dependencies()
    for step in loop(ahead):
        with when(inputs.producer_role.elected):
            inputs.copy(again.stage, tile, tile.k_start + step, others)
        again.step()
    return ahead
