"""Rules of Hopper configurations: a case for every rule, and random configurations."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from warploom.diagnostics import LaunchError
from warploom.hardware.targets import MACHINES
from warploom.structured.config import HopperBlockwiseConfig, HopperConfig, MatmulConfig
from warploom.structured.config.base import field_names
from warploom.structured.config.fields import LISTS, SHAPES
from warploom.structured.config.sm90_rules import MAX_ACCUMULATORS

MACHINE = MACHINES["sm_90a"]
CLASSES = (HopperConfig, HopperBlockwiseConfig)
UNITS = {"tile": (128, 64), "num_split_k": 16}

CASES = [
    # types and majors
    (HopperConfig, {"b_type": "f16"}, "b_type='f16'", "must be bf16 with a_type='bf16'"),
    (HopperConfig, {"a_type": "e4m3", "b_type": "bf16"}, "b_type='bf16'", "must be e4m3 or e5m2"),
    (HopperConfig, {"a_type": "e4m3", "b_major": "mn"}, "b_major='mn'", "wgmma reads e4m3 K-major only"),
    (HopperConfig, {"a_type": "f32", "a_major": "mn"}, "a_major='mn'", "wgmma reads f32 K-major only"),
    # tiles and consumers
    (HopperConfig, {"tile": (128, 260)}, "tile (128, 260)", "has N = 260; wgmma of bf16 supports 8 to 256"),
    (HopperConfig, {"tile": (96, 64)}, "tile (96, 64)", "gives a consumer 48 rows"),
    (HopperConfig, {"tile": (192, 256), "pingpong": True}, "tile (192, 256)", "needs 384 accumulator registers per thread (max 208)"),
    (HopperConfig, {"pingpong": True, "consumers": 1}, "consumers=1", "must be 2 with pingpong=True"),
    (HopperConfig, {"tile": (192, 208), "consumers": 3}, "consumers=3", "at most 192 columns, but the tile has 208"),
    # clusters
    (HopperConfig, {"cluster_shape": (1, 1, 2)}, "cluster_shape (1, 1, 2)", "must have z = 1"),
    (HopperConfig, {"cluster_shape": (8, 4, 1)}, "cluster_shape (8, 4, 1)", "has 32 CTAs; sm_90a supports at most 16"),
    (HopperConfig, {"cluster_shape": (3, 1, 1)}, "cluster_shape (3, 1, 1)", "cannot divide a tile of 128 × 128"),
    # stages
    (HopperConfig, {"num_pipeline_stages": 2, "mmas_in_flight": 2}, "num_pipeline_stages=2", "must be more than mmas_in_flight, which is 2"),
    (HopperConfig, {"tile": (256, 192), "num_split_k": 2, "num_pipeline_stages": 2}, "num_pipeline_stages=2", "must be at least 3 to receive the partial"),
    (HopperConfig, {"num_pipeline_stages": 9}, "num_pipeline_stages=9", "bytes of shared memory; sm_90a has 232448"),
    # split-K and stream-K
    (HopperConfig, {"tile": (64, 40), "consumers": 1, "num_split_k": 3, "split_in_cluster": False, "use_tma_store": False}, "num_split_k=3", "20 accumulators"),
    (HopperConfig, {**UNITS, "split_in_cluster": False}, "num_split_k=16", "needs split_in_cluster=False and use_tma_store=False"),
    (HopperConfig, {**UNITS, "use_tma_store": False}, "num_split_k=16", "needs split_in_cluster=False and use_tma_store=False"),
    (HopperConfig, {"num_split_k": 2, "pingpong": True}, "num_split_k=2", "not supported with pingpong=True"),
    (HopperConfig, {"num_split_k": 2, "stream_k": True}, "stream_k=True", "not supported with num_split_k=2"),
    # gated GEMMs
    (HopperConfig, {"gated": True, "tile": (128, 24)}, "gated=True", "a multiple of 16 with cluster x = 1, but it is 24"),
    (HopperConfig, {"gated": True, "tile": (128, 48), "cluster_shape": (2, 1, 1)}, "gated=True", "a multiple of 32 with cluster x = 2"),
    (HopperConfig, {"gated": True, "AB_swapped": True}, "gated=True", "gives a consumer 64 rows; with AB_swapped they must be a multiple of 128"),
    (HopperConfig, {"gated": True, "tile": (128, 48), "num_split_k": 2}, "num_split_k=2", "a multiple of 16 columns of gate and of up, but a tile has 24"),
    # subtiles and outputs
    (HopperConfig, {"tile": (128, 88), "stage_columns": 16}, "stage_columns=16", "divides the tile's 88 columns"),
    (HopperConfig, {"tile": (128, 88), "stage_columns": 44}, "stage_columns=44", "must be a multiple of 8"),
    (HopperConfig, {"c_type": "e4m3", "stage_columns": 8}, "use_tma_store=True", "multiple of 16 bytes, but they have 8"),
    (HopperConfig, {"output_types": ("f32",), "use_tma_store": False}, "output_types ('f32',)", "need use_tma_store=True"),
    (HopperConfig, {"tile": (128, 8), "output_types": ("e4m3",)}, "output_types ('e4m3',)", "rows of 8 elements"),
    # residual in place
    (HopperConfig, {"residual_in_place": True, "use_tma_store": False}, "residual_in_place=True", "stored through shared memory"),
    (HopperConfig, {"residual_in_place": True, "num_output_stages": 3}, "num_output_stages=3", "must be 2 with residual_in_place"),
    (HopperConfig, {"residual_in_place": True, "tile": (256, 64), "num_output_stages": 3}, "num_output_stages=3", "must be 1 or 2"),
    # float32 in two parts
    (HopperConfig, {"precision": "tf32x3"}, "a_type='bf16'", "TMA must not round the operands"),
    (HopperConfig, {"precision": "tf32x3", "a_type": "f32", "pingpong": True}, "pingpong=True", "must be False with precision"),
    (HopperConfig, {"precision": "tf32x3", "a_type": "f32", "mmas_in_flight": 1}, "mmas_in_flight=1", "released together"),
    # block scales
    (HopperBlockwiseConfig, {"a_type": "bf16"}, "a_type='bf16'", "8-bit types"),
    (HopperBlockwiseConfig, {"scale_granularity": 12}, "scale_granularity=12", "must be a multiple of 8"),
    (HopperBlockwiseConfig, {"AB_swapped": True}, "AB_swapped=True", "row scales belong to A"),
    (HopperBlockwiseConfig, {"pingpong": True}, "pingpong=True", "the consumers share a tile"),
    (HopperBlockwiseConfig, {"num_split_k": 2}, "num_split_k=2", "must be 1 with block scales"),
    (HopperBlockwiseConfig, {"mmas_in_flight": 0}, "mmas_in_flight=0", "must be 1 for a consumer of 64 rows"),
    (HopperBlockwiseConfig, {"scale_granularity": 8}, "tile (128, 128)", "192 accumulator and 64 scale registers"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "fields", "named", "reason"), CASES, ids=lambda value: str(value)[:40])
def test_a_broken_rule_names_its_field_and_reason(family, fields, named, reason):
    found = family(**fields).violations()
    assert [line for line in found if line.startswith(f"{named} ") and reason in line], found
    with pytest.raises(LaunchError) as caught:
        family(**fields).validated()
    assert caught.value.code == "BAD_CONFIG"
    assert f"{len(found)} rule(s) violated" in str(caught.value)


def test_every_rule_is_broken_by_a_case():
    cases = [family(**fields) for family, fields, _, _ in CASES]
    broken = {rule for config in cases for rule in config.rules if list(rule(config))}
    assert broken == {rule for family in CLASSES for rule in family.rules}


@pytest.mark.parametrize("family", CLASSES)
def test_every_field_has_allowed_values(family):
    known = family.choices.keys() | family.minimums.keys() | LISTS.keys() | SHAPES.keys()
    assert set(field_names(family)) - known == {"registers"}


FIELDS = {
    **{name: st.sampled_from(list(values)) for name, values in HopperBlockwiseConfig.choices.items()},
    "tile": st.tuples(st.sampled_from([64, 96, 128, 192, 256]), st.integers(1, 33).map(lambda n: 8 * n)),
    "cluster_shape": st.tuples(
        st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 1, 2])
    ),
    "consumers": st.integers(1, 3),
    "num_split_k": st.integers(1, 8),
    "num_pipeline_stages": st.integers(1, 12),
    "num_output_stages": st.integers(0, 4),
    "stage_columns": st.integers(1, 16).map(lambda n: 8 * n),
    "mmas_in_flight": st.integers(0, 3),
    "swizzle_size": st.integers(0, 16),
    "output_types": st.lists(st.sampled_from(LISTS["output_types"]), max_size=2).map(tuple),
    "scale_granularity": st.sampled_from([8, 64, 96, 128]),
}


@st.composite
def configs(draw, most=5):
    family = draw(st.sampled_from(CLASSES))
    names = [name for name in field_names(family) if name in FIELDS]
    chosen = draw(st.lists(st.sampled_from(names), max_size=most, unique=True))
    return family(**{name: draw(FIELDS[name]) for name in chosen})


@settings(max_examples=300, deadline=None)
@given(configs())
def test_a_violation_names_its_field_and_value(config):
    for line in config.violations():
        name = re.match(r"\w+", line)[0]
        value = getattr(config, name)
        subject = f"{name} {value} " if isinstance(value, tuple) else f"{name}={value!r} "
        assert line.startswith(subject)
        assert len(line) > len(subject) + 8


@settings(max_examples=300, deadline=None)
@given(configs(most=3))
def test_valid_configurations_fit_into_the_hardware(config):
    assume(not config.violations())
    used = config.shared_bytes(config.num_pipeline_stages)
    assert config.num_pipeline_stages * (config.BM + config.BN) * 128 < used <= MACHINE.shared_per_block
    assert config.accumulators <= MAX_ACCUMULATORS
    assert config.threads <= MACHINE.threads_per_block
    assert config.consumer_rows % 64 == config.BN % 8 == 0
    assert type(config)(**config.given) == config


def test_a_repr_has_the_given_fields_only():
    config = HopperConfig(tile=(128, 256), pingpong=False)
    assert repr(config) == "HopperConfig(tile=(128, 256))"
    assert repr(MatmulConfig(a_type="f16")) == "MatmulConfig(a_type='f16')"
    assert repr(config.replace(num_split_k=2)) == "HopperConfig(num_split_k=2, tile=(128, 256))"
