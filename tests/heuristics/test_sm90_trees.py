"""Decision trees: evaluation, features, and better choices than the model alone."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from warploom.heuristics import EMULATED, Device, key_of, rank
from warploom.heuristics.sm90.cost_model import DENSE_16BIT, CandidateArrays, expected_times, is_dense_16bit
from warploom.heuristics.sm90.dependent_launches import saved_times
from warploom.heuristics.sm90.device_data import data_for
from warploom.heuristics.sm90.trees import FEATURES, features_of, read_trees
from warploom.structured.config.sm90 import HopperConfig
from warploom.tuning.fitting import load, regret_of

MEASURED = Path(__file__).parents[2] / "bench" / "results" / "hopper_configurations.json"
SHIPPED = json.loads((files("warploom.heuristics") / "data" / "h200.json").read_text("utf-8"))["trees"]
H200 = EMULATED["sm_90a"]
DATA = data_for(H200)
arrays = CandidateArrays.of_configs
ROWS, COLUMNS = [*FEATURES].index("rows"), [*FEATURES].index("columns")


def document(*trees, start=0.0, depth=2):
    return {"features": [*FEATURES], "start": start, "depth": depth, "trees": trees}


def test_a_tree_is_evaluated_to_its_leaves():
    stump = [[ROWS, -1, -1], [64.0, -0.1, 0.1], [1, 0, 0], [2, 0, 0]]
    deep = [[ROWS, COLUMNS, -1, -1, -1], [128.0, 96.0, 0.03, 0.01, 0.02], [1, 3, 0, 0, 0], [2, 4, 0, 0, 0]]
    trees = read_trees(document(stump, deep, start=0.005), 132)
    tiles = [(64, 96), (128, 96), (128, 112), (192, 96)]
    features = np.zeros((len(tiles), len(FEATURES)))
    features[:, [ROWS, COLUMNS]] = tiles
    np.testing.assert_allclose(trees.errors(features), [-0.085, 0.115, 0.125, 0.135])


def test_large_corrections_are_limited():
    trees = read_trees(document([[-1], [5.0], [0], [0]]), 132)
    assert trees.errors(np.zeros((1, len(FEATURES)))) == pytest.approx(0.3)


def test_the_shipped_trees_have_known_features_and_end_in_leaves():
    assert SHIPPED["features"] == [*FEATURES]
    trees = DATA.trees
    assert trees is not None
    for root, (asked, limits, below, above) in zip(trees.roots, SHIPPED["trees"], strict=True):
        ends = {0}
        for _ in range(SHIPPED["depth"]):
            ends = {way[at] if asked[at] >= 0 else at for at in ends for way in (below, above)}
        assert all(asked[at] < 0 for at in ends)
        assert max(asked) < len(FEATURES)
        assert trees.value[[root + at for at in ends]].tolist() == [limits[at] for at in ends]


@pytest.mark.parametrize(
    ("fields", "of_a", "of_b"),
    [
        ({"tile": (64, 112), "consumers": 1, "num_split_k": 2}, 16, 4),
        ({"tile": (64, 128), "consumers": 1, "AB_swapped": True, "num_split_k": 2}, 28, 2),
        ({"tile": (64, 128), "consumers": 1, "cluster_shape": (2, 1, 1)}, 14, 2),
        ({"tile": (64, 128), "consumers": 1, "AB_swapped": True, "cluster_shape": (2, 1, 1)}, 14, 2),
        ({"tile": (128, 128), "cluster_shape": (1, 2, 1)}, 7, 2),
    ],
)
def test_readers_of_each_operand(fields, of_a, of_b):
    """Tiles across the other dimension, less those that a multicast serves; splits read different parts of K."""
    problem, model = key_of("dense", 256, 1792, 3584, a_type="bf16"), DATA.models[DENSE_16BIT]
    features, _ = features_of(arrays([HopperConfig(**fields)]), problem, model, 132)
    found = dict(zip(FEATURES, features[0], strict=True))
    assert (found["readers_of_a"], found["readers_of_b"]) == (of_a, of_b)
    assert found["l2_excess"] > 1


def test_features_of_configurations_and_problems():
    wanted = key_of("dense", 300, 1000, 72)
    configs = [HopperConfig(tile=(128, 176), pingpong=True), HopperConfig(tile=(64, 16), consumers=1, AB_swapped=True)]
    model = DATA.models[DENSE_16BIT]
    features, times = features_of(arrays(configs), wanted, model, 132)
    by_name = dict(zip(FEATURES, features.T.tolist(), strict=True))
    assert (by_name["rows"], by_name["columns"]) == ([128, 64], [176, 16])
    assert (by_name["pingpong"], by_name["swapped"], by_name["subtile"]) == ([1, 0], [0, 1], [88, 16])
    assert (by_name["m"], by_name["n"], by_name["k"]) == ([300] * 2, [1000] * 2, [72] * 2)
    assert [by_name[f"pitch_of_{name}"] for name in "abc"] == [[16, 16], [16, 16], [8, 8]]
    assert (by_name["a_mn_major"], by_name["b_mn_major"]) == ([0, 0], [0, 0])
    others = features_of(arrays(configs), replace(wanted, fields=(("b_major", "mn"),)), model, 132)[0]
    by_name |= dict(zip(FEATURES, others.T.tolist(), strict=True))
    assert (by_name["a_mn_major"], by_name["b_mn_major"]) == ([0, 1], [1, 0])
    assert [by_name[f"pitch_of_{name}"] for name in "ab"] == [[16, 16], [16, 16]]
    assert by_name["tiles"] == [3 * 6, 16 * 19]
    assert by_name["expected"] == times.tolist()
    assert times.tolist() == expected_times(arrays(configs), wanted, DATA.models, sms=132).tolist()


def test_trees_choose_better_among_measured_configurations():
    """They were fitted to these; `warploom tune --fit … --cross-validate` shows the regret on other shapes."""
    measured, device = load([MEASURED])
    assert device == H200
    lost = {"model": [], "trees": []}
    for each in measured:
        if is_dense_16bit(each.problem) and len(each.us) >= 20:
            candidates = arrays(each.configs)
            for name, times in (
                ("model", expected_times(candidates, each.problem, DATA.models, sms=132)),
                ("trees", DATA.trees.times(candidates, each.problem, DATA.models)),
            ):
                lost[name].append(regret_of(each, times))
    assert len(lost["trees"]) > 400
    assert np.mean(lost["trees"]) < 0.7 * np.mean(lost["model"])


@pytest.mark.parametrize(
    ("wanted", "device"),
    [
        (key_of("dense", 900, 1000, 800), Device("NVIDIA H200", 114)),
        (key_of("dense", 900, 1000, 800), Device("NVIDIA H100 80GB HBM3", 132)),
        (key_of("dense", 900, 1000, 800, 3), H200),
    ],
    ids=str,
)
def test_other_devices_and_problems_are_ranked_by_the_model_alone(wanted, device):
    order = arrays(list(rank(wanted, device)))
    times = (expected_times(order, wanted, DATA.models, sms=device.sms) - saved_times(order, wanted)).tolist()
    assert times == sorted(times)


def test_the_first_candidates_of_the_model_are_ranked_again():
    wanted = key_of("dense", 2100, 1500, 136)
    order = list(rank(wanted, H200))
    by_model = expected_times(arrays(order), wanted, DATA.models, sms=132)
    by_trees = DATA.trees.times(arrays(order[:40]), wanted, DATA.models)
    assert by_trees.tolist() == sorted(by_trees.tolist())
    assert by_model[:40].tolist() != sorted(by_model[:40].tolist())
    assert by_model[:40].max() < by_model[80:].min()


def test_problems_that_may_reach_the_power_limit_have_trees_of_their_own():
    assert DATA.power_bound_trees is not DATA.trees
    for sizes, is_bound in (
        ((4096, 4096, 4096), True),
        ((128, 4096, 4096), True),
        ((127, 8192, 8192), False),
        ((1024, 1024, 1024), False),
    ):
        wanted = key_of("dense", *sizes, a_type="bf16", c_type="bf16")
        assert (DATA.trees_for(wanted) is DATA.power_bound_trees) is is_bound, sizes
    alone = replace(DATA, power_bound_document=None)
    assert alone.trees_for(key_of("dense", 4096, 4096, 4096, a_type="bf16")) is alone.trees
