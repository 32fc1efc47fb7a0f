"""Counters, flags and locks that a launch leaves to the next one: their states repeat, so no number of launches is new.

Each case launches with the same scratch memory until the state that launches keep is the first one again. All results
on the way are compared to the bit, with fresh operands each time and NaN in the rest of the scratch memory.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warploom
from warploom import launch
from warploom.host.arrays import Scratch
from warploom.structured.config import HopperConfig, MatmulConfig

BF16 = ml_dtypes.bfloat16
FLIP = 1 << 31
SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
M, N = 40, 48
IN_MEMORY = {"consumers": 1, "split_in_cluster": False}
SPLITS = {splits: HopperConfig(tile=(64, 8 * splits), num_split_k=splits, **IN_MEMORY) for splits in (2, 3, 5, 6, 7)}
UNITS = HopperConfig(tile=(64, 24), num_split_k=6, use_tma_store=False, **IN_MEMORY)
"""Six splits of three slices of eight columns: each split writes two accumulators of a thread."""
SPLIT_IN_MEMORY = {f"{splits} splits": config for splits, config in SPLITS.items()} | {"6 splits, units": UNITS}
CLEARED = {
    "sm_90a stream-K": HopperConfig(tile=(64, 64), consumers=1, stream_k=True),
    "sm_90a stream-K, ping-pong": HopperConfig(tile=(64, 64), pingpong=True, stream_k=True),
    "sm_100a stream-K": MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), stream_k=True),
    **{
        f"sm_100a {splits} splits": MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=splits)
        for splits in (2, 3, 5, 6, 7)
    },
}
"""Configurations whose kernels leave their flags or locks at zero."""


class Repeated:
    """A product that is launched again and again with one scratch memory."""

    def __init__(self, config: Any) -> None:
        self.rng = np.random.default_rng()
        k = 64 * max(config.num_split_k, 3)
        self.a, self.b = (self.rng.integers(-2, 3, (rows, k)).astype(BF16) for rows in (M, N))
        self.d = np.full((M, N), np.nan, BF16)
        target = "sm_90a" if isinstance(config, HopperConfig) else "sm_100a"
        self.launch = warploom.matmul.bind(self.a, self.b.T, out=self.d, config=config, target=target)
        held = [each for each in self.launch.args if isinstance(each, Scratch)]
        (self.kept,) = (each for each in held if each.starts_at_zero)
        (self.found,) = (each for each in held if not each.starts_at_zero)

    @property
    def states(self) -> set[int]:
        return set(self.kept.view(np.uint32).tolist())

    def check(self, schedule: str, seed: int) -> None:
        """One launch on fresh operands; every element to the bit."""
        for array in (self.a, self.b):
            array[...] = self.rng.integers(-2, 3, array.shape)
        self.d[...] = np.nan
        self.found[...] = np.nan
        launch(self.launch, schedule=schedule, seed=seed)
        want = self.a.astype(np.float64) @ self.b.astype(np.float64).T
        np.testing.assert_array_equal(self.d.astype(np.float64), want.astype(BF16).astype(np.float64))


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("config", SPLIT_IN_MEMORY.values(), ids=SPLIT_IN_MEMORY)
def test_counters_of_splits_in_memory_have_two_states(config: HopperConfig, schedule: str, seed: int) -> None:
    """A counter that grew forever would wrap in the middle of a launch: 2³² is no multiple of 3, 5, 6 or 7."""
    made = Repeated(config)
    for after in (FLIP, 0):
        made.check(schedule, seed)
        assert made.states == {after}


def test_tiles_of_one_launch_may_be_in_different_states() -> None:
    made = Repeated(SPLITS[5])
    assert made.kept.size > 1
    made.kept[::2] = FLIP
    before = made.kept.copy()
    for _ in range(2):
        made.check("random", 3)
    np.testing.assert_array_equal(made.kept, before)


def test_a_counter_serves_any_numbers_of_splits_in_turn() -> None:
    counter = 0
    for splits in (3, 5, 2, 7, 6, 3):
        made = Repeated(SPLITS[splits])
        made.kept[...] = counter
        made.check("random", splits)
        (counter,) = made.states


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
@pytest.mark.parametrize("config", CLEARED.values(), ids=CLEARED)
def test_flags_and_locks_are_zero_again(config: Any, schedule: str, seed: int) -> None:
    made = Repeated(config)
    for _ in range(2):
        made.check(schedule, seed)
        assert made.states == {0}
