"""Deprecated names of configuration fields: accepted with a warning, in every way to make a configuration."""

from __future__ import annotations

import copy
import dataclasses
import warnings

import pytest

from warploom.heuristics.sm90.device_data import fields_of_json, read_data
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.config.sm100 import MatmulConfig

CASES = {
    "band": (HopperConfig, "swizzle_size", 3),
    "depth": (HopperConfig, "mmas_in_flight", 2),
    "depth of blockwise": (HopperBlockwiseConfig, "mmas_in_flight", 1),
    "paired on Hopper": (HopperConfig, "gated", True),
    "paired": (MatmulConfig, "gated", True),
}


def ways(kind, changes):
    """Every way to make a configuration with these fields."""
    yield lambda: kind(**changes)
    yield lambda: kind().replace(**changes)
    yield lambda: kind().exactly(**changes)
    yield lambda: dataclasses.replace(kind(), **changes)
    if hasattr(copy, "replace"):
        yield lambda: copy.replace(kind(), **changes)


@pytest.mark.parametrize("case", CASES)
def test_a_deprecated_name_is_the_field(case):
    (kind, new, value), old = CASES[case], case.split()[0]
    for old_way, new_way in zip(ways(kind, {old: value}), ways(kind, {new: value}), strict=True):
        with pytest.warns(DeprecationWarning, match=f"`{old}` is called `{new}`"):
            made = old_way()
        assert made == new_way()
        assert made.given == new_way().given
        with pytest.warns(DeprecationWarning, match=f"`{old}` is called `{new}`"):
            assert getattr(made, old) == value


def test_the_warning_is_at_the_line_of_the_caller():
    for made in (lambda: HopperConfig(band=2), lambda: HopperConfig().replace(band=2), lambda: HopperConfig().band):
        with pytest.warns(DeprecationWarning, match="`band` is called") as caught:
            made()
        assert [each.filename for each in caught] == [__file__]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_both_names_are_an_error():
    for changes in ({"band": 2, "swizzle_size": 3}, {"swizzle_size": 3, "band": 2}):
        for way in ways(HopperConfig, changes):
            with pytest.raises(TypeError, match="are one field; give it once, as `swizzle_size`"):
                way()


def test_current_names_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HopperConfig(swizzle_size=4, mmas_in_flight=2).replace(gated=False).exactly(swizzle_size=2)


def test_data_files_of_0_1_are_read_without_a_warning():
    assert fields_of_json({"tile": [128, 96], "band": 4, "depth": 2, "paired": False}) == {
        "tile": (128, 96),
        "swizzle_size": 4,
        "mmas_in_flight": 2,
        "gated": False,
    }
    row = {"kind": "dense", "sizes": [8, 8, 8], "a_type": "bf16", "config": {"band": 4}, "us": 1.0}
    device = {"name": "a GPU", "sms": 4, "target": "sm_90a"}
    data = read_data({"device": device, "measured": "", "models": {}, "table": [row]})
    assert [entry.config for entry in data.table.values()] == [{"swizzle_size": 4}]
