"""Subtile widths on Hopper: they divide the tile, their rows begin in different banks, and they are few."""

from __future__ import annotations

import pytest

from warploom.hardware.swizzles import widest_swizzle
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_subtiles import swizzled_subtile, wide_subtile

WIDTHS = range(8, 257, 8)
WAYS = {"cooperative": (False, False), "ping-pong": (False, True), "swapped": (True, False)}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize(("swapped", "pingpong"), WAYS.values(), ids=WAYS)
def test_subtiles_divide_a_tile(columns, swapped, pingpong):
    subtile = wide_subtile(columns, swapped=swapped, pingpong=pingpong)
    assert columns % subtile == subtile % 8 == 0
    assert subtile >= min(columns, 24)
    assert subtile >= swizzled_subtile(columns, 64)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("pingpong", [False, True])
def test_eight_rows_of_a_subtile_begin_in_different_banks(columns, pingpong):
    """One matrix instruction writes eight pieces of 16 bytes, which must hit different banks of the 128 bytes."""
    subtile = wide_subtile(columns, swapped=False, pingpong=pingpong)
    if widest_swizzle(2 * subtile) == "none":
        assert len({2 * subtile * row % 128 // 16 for row in range(8)}) == 8


MEASURED = {
    (128, 176, True, False): (88, 1), (128, 208, True, False): (104, 2), (128, 128, True, False): (64, 2),
    (128, 256, False, False): (128, 1), (256, 128, False, False): (128, 1), (128, 112, False, True): (112, 1),
    (256, 208, False, True): (104, 2), (128, 160, True, False): (32, 2),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "pingpong", "swapped"), MEASURED)
def test_few_subtiles_have_one_buffer_if_a_second_costs_an_input_stage(rows, columns, pingpong, swapped):
    config = HopperConfig(tile=(rows, columns), pingpong=pingpong, AB_swapped=swapped)
    assert (config.stage_columns, config.num_output_stages) == MEASURED[rows, columns, pingpong, swapped]
    if config.num_output_stages == 1:
        assert config.replace(num_output_stages=2).num_pipeline_stages < config.num_pipeline_stages


def test_residuals_and_auxiliary_outputs_have_swizzled_subtiles():
    tile = {"tile": (128, 176), "pingpong": True}
    assert HopperConfig(**tile, residual_in_place=True).stage_columns == 16
    assert HopperConfig(**tile, output_types=("bf16",)).stage_columns == 16
    assert HopperConfig(**tile, c_type="f32").stage_columns == 16
