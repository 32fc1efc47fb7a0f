"""What the model misses: trees say what they were told, of what they know, and choose better than the model alone."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from warploom.heuristics.problem_key import sought
from warploom.heuristics.sm90.cost_model import expected_times, is_single, outlines_of
from warploom.heuristics.sm90.ranking import ranked
from warploom.heuristics.sm90.trees import FEATURES, features_of, read, trees_for
from warploom.structured.config.sm90 import HopperConfig
from warploom.tuning.fitting import cost_of, load

MEASURED = Path(__file__).parents[2] / "bench" / "results" / "hopper_configurations.json"
SHIPPED = json.loads((files("warploom.heuristics") / "data" / "h200.trees.json").read_text("utf-8"))
ROWS, COLUMNS = [*FEATURES].index("rows"), [*FEATURES].index("columns")


def document(*trees, start=0.0, depth=2):
    return {"measured_on": {"sms": 132}, "features": [*FEATURES], "start": start, "depth": depth, "trees": trees}


def test_a_tree_is_walked_to_its_leaves():
    stump = [[ROWS, -1, -1], [64.0, -0.1, 0.1], [1, 0, 0], [2, 0, 0]]
    deep = [[ROWS, COLUMNS, -1, -1, -1], [128.0, 96.0, 0.03, 0.01, 0.02], [1, 3, 0, 0, 0], [2, 4, 0, 0, 0]]
    trees = read(document(stump, deep, start=0.005))
    tiles = [(64, 96), (128, 96), (128, 112), (192, 96)]
    features = np.zeros((len(tiles), len(FEATURES)))
    features[:, [ROWS, COLUMNS]] = tiles
    np.testing.assert_allclose(trees.missed(features), [-0.085, 0.115, 0.125, 0.135])


def test_trees_that_claim_much_are_not_believed():
    trees = read(document([[-1], [5.0], [0], [0]]))
    assert trees.missed(np.zeros((1, len(FEATURES)))) == pytest.approx(0.3)


def test_the_shipped_trees_ask_about_what_is_known_and_end():
    assert SHIPPED["features"] == [*FEATURES]
    trees = trees_for(SHIPPED["measured_on"]["sms"])
    assert trees is not None
    for root, (asked, limits, below, above) in zip(trees.roots, SHIPPED["trees"], strict=True):
        ends = {0}
        for _ in range(SHIPPED["depth"]):
            ends = {way[at] if asked[at] >= 0 else at for at in ends for way in (below, above)}
        assert all(asked[at] < 0 for at in ends)
        assert max(asked) < len(FEATURES)
        assert trees.value[[root + at for at in ends]].tolist() == [limits[at] for at in ends]


def test_questions_are_of_the_configuration_and_the_problem():
    wanted = sought("dense", 300, 1000, 72)
    configs = [HopperConfig(tile=(128, 176), pingpong=True), HopperConfig(tile=(64, 16), consumers=1, AB_swapped=True)]
    features, times = features_of(outlines_of(configs), wanted, 132)
    by_name = dict(zip(FEATURES, features.T.tolist(), strict=True))
    assert (by_name["rows"], by_name["columns"]) == ([128, 64], [176, 16])
    assert (by_name["pingpong"], by_name["swapped"], by_name["strip"]) == ([1, 0], [0, 1], [88, 16])
    assert (by_name["m"], by_name["n"], by_name["k"]) == ([300] * 2, [1000] * 2, [72] * 2)
    assert [by_name[f"pitch_of_{name}"] for name in "abc"] == [[16, 16], [16, 16], [8, 8]]
    assert (by_name["a_mn_major"], by_name["b_mn_major"]) == ([0, 0], [0, 0])
    others = features_of(outlines_of(configs), replace(wanted, fields=(("b_major", "mn"),)), 132)[0]
    by_name |= dict(zip(FEATURES, others.T.tolist(), strict=True))
    assert (by_name["a_mn_major"], by_name["b_mn_major"]) == ([0, 1], [1, 0])
    assert [by_name[f"pitch_of_{name}"] for name in "ab"] == [[16, 16], [16, 16]]
    assert by_name["tiles"] == [3 * 6, 16 * 19]
    assert by_name["expected"] == times.tolist() == expected_times(outlines_of(configs), wanted).tolist()


def test_trees_choose_better_among_what_was_measured():
    """They were fitted to it; what they are worth on other shapes, `bench/trees.py --judge` tells."""
    measured, sms = load([MEASURED])
    trees = trees_for(sms)
    assert trees is not None
    lost = {"model": [], "trees": []}
    for each in measured:
        if is_single(each.sought) and len(each.us) >= 20:
            of = outlines_of(each.configs)
            for name, times in (
                ("model", expected_times(of, each.sought, sms=sms)),
                ("trees", trees.times(of, each.sought)),
            ):
                lost[name].append(cost_of(each, times))
    assert len(lost["trees"]) > 400
    assert np.mean(lost["trees"]) < 0.7 * np.mean(lost["model"])


@pytest.mark.parametrize(
    ("wanted", "sms"), [(sought("dense", 900, 1000, 800), 114), (sought("dense", 900, 1000, 800, 3), 132)]
)
def test_other_machines_and_products_are_left_to_the_model(wanted, sms):
    assert trees_for(114) is None
    times = expected_times(outlines_of(ranked(wanted, sms=sms)), wanted, sms=sms).tolist()
    assert times == sorted(times)


def test_the_first_of_the_model_come_first_in_another_order():
    wanted = sought("dense", 2100, 1500, 136)
    order = ranked(wanted)
    by_model = expected_times(outlines_of(order), wanted)
    by_trees = trees_for(132).times(outlines_of(order[:40]), wanted)
    assert by_trees.tolist() == sorted(by_trees.tolist())
    assert by_model[:40].tolist() != sorted(by_model[:40].tolist())
    assert by_model[:40].max() < by_model[80:].min()
