"""Configurations of both architectures: derived fields, and `replace` in its three spellings."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

import warploom
from warploom.structured.config import (
    DERIVED,
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    GemmConfig,
    HopperBlockwiseConfig,
    HopperConfig,
    MatmulConfig,
)
from warploom.structured.config.base import field_names

CLASSES = (MatmulConfig, BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, HopperConfig, HopperBlockwiseConfig)
PAIR = MatmulConfig(mma_shape=(256, 256, 16))


def by_method(config, **changes):
    return config.replace(**changes)


def by_protocol(config, **changes):
    """Call what `copy.replace` of Python 3.13 calls."""
    return config.__replace__(**changes)


SPELLINGS = [by_method, dataclasses.replace, by_protocol]
if hasattr(copy, "replace"):
    SPELLINGS.append(copy.replace)
spellings = pytest.mark.parametrize("replace", SPELLINGS)


def test_both_classes_are_exported_and_share_a_base():
    assert warploom.MatmulConfig is MatmulConfig
    assert warploom.HopperConfig is HopperConfig
    assert {"MatmulConfig", "HopperConfig"} <= set(warploom.__all__)
    assert all(issubclass(each, GemmConfig) for each in CLASSES)


@pytest.mark.parametrize("family", CLASSES)
def test_every_field_has_a_value(family):
    config = family()
    assert None not in {getattr(config, name) for name in field_names(family)}
    assert config.violations() == []
    assert config.validated() is config


@pytest.mark.parametrize("family", CLASSES)
def test_fields_are_keywords_and_frozen(family):
    with pytest.raises(TypeError):
        family("bf16")
    with pytest.raises(dataclasses.FrozenInstanceError):
        family().num_split_k = 2


@spellings
def test_replacing_a_field_derives_its_dependants_again(replace):
    narrow = replace(PAIR, mma_shape=(256, 128, 16))
    assert (PAIR.num_pipeline_stages, narrow.num_pipeline_stages) == (6, 8)
    assert replace(PAIR, c_type="f32").output_tile_shape == (128, 32)
    assert replace(PAIR, AB_swapped=True).output_tile_shape == (32, 128)
    assert replace(narrow, mma_shape=(256, 256, 16)) == PAIR


@spellings
@pytest.mark.parametrize("tile", [(128, 256), (64, 256), (128, 96)])
def test_a_replaced_hopper_tile_has_its_own_stages_subtiles_and_registers(replace, tile):
    wide = replace(HopperConfig(), tile=tile)
    assert wide == HopperConfig(tile=tile)
    assert wide.shared_bytes(wide.num_pipeline_stages) <= 227 * 1024
    assert replace(wide, tile=(128, 128)) == HopperConfig()


@spellings
def test_given_values_stay(replace):
    given = MatmulConfig(mma_shape=(256, 256, 16), num_pipeline_stages=6, c_swizzle="none")
    narrow = replace(given, mma_shape=(256, 128, 16))
    assert (narrow.num_pipeline_stages, narrow.c_swizzle) == (6, "none")
    assert replace(narrow, num_pipeline_stages=DERIVED).num_pipeline_stages == 8
    assert replace(replace(PAIR, num_pipeline_stages=3), c_type="f32").num_pipeline_stages == 3
    hopper = HopperConfig(num_pipeline_stages=3, stage_columns=32)
    assert (replace(hopper, tile=(128, 64)).num_pipeline_stages, replace(hopper, tile=(128, 64)).stage_columns) == (
        3,
        32,
    )


@spellings
def test_a_value_equal_to_the_derived_one_can_be_given(replace):
    base = MatmulConfig()
    config = replace(base, cta_group=1, cluster_shape=base.cluster_shape, a_type="f16", c_type=base.c_type)
    assert (config.cluster_shape, config.c_type, config.mma_shape) == ((2, 1, 1), "bf16", (128, 128, 16))
    assert replace(replace(config, cta_group=2), cta_group=1) == config
    stages = HopperConfig().num_pipeline_stages
    wide = replace(HopperConfig(), tile=(128, 256), num_pipeline_stages=stages)
    assert wide.num_pipeline_stages == stages > HopperConfig(tile=(128, 256)).num_pipeline_stages
    assert "num_pipeline_stages" not in dict(wide.derived)


@pytest.mark.parametrize("family", CLASSES)
def test_given_fields_make_an_equal_configuration(family):
    config = family(num_pipeline_stages=3, AB_swapped=True)
    assert family(**config.given) == config
    assert config.given["num_pipeline_stages"] == 3
    assert not config.given.keys() & dict(config.derived).keys()
    assert family(**config.given).derived == config.derived


@pytest.mark.parametrize("family", CLASSES)
def test_equal_values_are_equal_configurations(family):
    derived = family()
    given = family(num_pipeline_stages=derived.num_pipeline_stages)
    assert given == derived
    assert hash(given) == hash(derived)
    assert given != derived.replace(num_pipeline_stages=derived.num_pipeline_stages - 1)


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_copies_are_equal_and_still_know_what_was_derived(family, duplicate):
    config = family(num_split_k=2)
    other = duplicate(config)
    assert other == config
    assert other.derived == config.derived
    assert other.replace(num_split_k=1) == family()


def test_exactly_keeps_derived_values():
    config = HopperConfig()
    other = config.exactly(tile=(128, 256))
    assert other.num_pipeline_stages == config.num_pipeline_stages
    assert other.stage_columns == config.stage_columns
    assert "shared memory" in other.violations()[0]
