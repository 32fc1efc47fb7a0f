"""How wide strips are: they divide the tile, their rows lie in different banks, and few of them are left."""

from __future__ import annotations

import pytest

from warploom.hardware.swizzles import widest_swizzle
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_subtiles import swizzled_strip, wide_strip

WIDTHS = range(8, 257, 8)
WAYS = {"cooperative": (False, False), "ping-pong": (False, True), "swapped": (True, False)}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize(("swapped", "pingpong"), WAYS.values(), ids=WAYS)
def test_strips_divide_a_tile(columns, swapped, pingpong):
    strip = wide_strip(columns, swapped=swapped, pingpong=pingpong)
    assert columns % strip == strip % 8 == 0
    assert strip >= min(columns, 24)
    assert strip >= swizzled_strip(columns, 64)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("pingpong", [False, True])
def test_eight_rows_of_a_strip_begin_in_different_banks(columns, pingpong):
    """What one matrix instruction writes: eight pieces of 16 bytes, for which memory has 128."""
    strip = wide_strip(columns, swapped=False, pingpong=pingpong)
    if widest_swizzle(2 * strip) == "none":
        assert len({2 * strip * row % 128 // 16 for row in range(8)}) == 8


MEASURED = {
    (128, 176, True, False): (88, 1), (128, 208, True, False): (104, 2), (128, 128, True, False): (64, 2),
    (128, 256, False, False): (128, 1), (256, 128, False, False): (128, 1), (128, 112, False, True): (112, 1),
    (256, 208, False, True): (104, 2), (128, 160, True, False): (32, 2),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "pingpong", "swapped"), MEASURED)
def test_a_second_buffer_costs_no_stage_where_strips_are_few(rows, columns, pingpong, swapped):
    config = HopperConfig(tile=(rows, columns), pingpong=pingpong, AB_swapped=swapped)
    assert (config.stage_columns, config.num_output_stages) == MEASURED[rows, columns, pingpong, swapped]
    if config.num_output_stages == 1:
        assert config.replace(num_output_stages=2).num_pipeline_stages < config.num_pipeline_stages


def test_what_comes_into_buffers_or_shares_them_keeps_its_strips():
    tile = {"tile": (128, 176), "pingpong": True}
    assert HopperConfig(**tile, residual_in_place=True).stage_columns == 16
    assert HopperConfig(**tile, output_types=("bf16",)).stage_columns == 16
    assert HopperConfig(**tile, c_type="f32").stage_columns == 16
