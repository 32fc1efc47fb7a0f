"""The fit of the cost model: planted constants are recovered, choices do not get worse, invalid files are rejected."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from warploom.cli import main
from warploom.diagnostics import WarploomError
from warploom.heuristics import EMULATED, key_of, rank
from warploom.heuristics.sm90.cost_model import CandidateArrays, is_dense_16bit, work_of
from warploom.heuristics.sm90.device_data import data_for, read_data
from warploom.structured.config.sm90 import HopperConfig
from warploom.tuning import tree_fitting
from warploom.tuning.fitting import Measured, fit, load, regret
from warploom.tuning.measurements import compared_times, fitted_times

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "hopper_configurations.json"
SMS = 132
H200 = EMULATED["sm_90a"]
MODEL, OTHERS = (data_for(H200).models[name] for name in ("dense_16bit", "other"))
PLANTED = replace(MODEL, launch=3.5, flops=4.0e6, one_consumer=0.6, cluster=2.5, split_element=3e-4)


def synthetic(model, count, noise, seed):
    """Yield times of a model for candidates of random problems, with noise."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        m, n, k = (int(8 * 2 ** rng.uniform(*span)) for span in ((0, 10), (3, 11), (3, 11)))
        wanted = key_of("dense", m, n, k if rng.integers(2) else -(-k // 64) * 64)
        found = list(rank(wanted, H200))
        configs = tuple(found[at] for at in rng.choice(len(found), min(25, len(found)), replace=False))
        times = model.times(work_of(CandidateArrays.of_configs(configs), wanted, SMS))
        yield Measured(wanted, configs, times * np.exp(rng.normal(0, noise, len(configs))))


def test_planted_constants_are_found_again():
    measured = list(synthetic(PLANTED, 60, 0.01, 5))
    found = fit(measured, start=MODEL, sms=SMS, rounds=1)
    assert found.problems == 60
    assert found.after[0] < 0.01 < found.before[0]
    found_start, planted_start = (model.launch + model.latency for model in (found.model, PLANTED))
    assert found_start == pytest.approx(planted_start, rel=0.1)  # only their sum can be determined
    for name in ("flops", "one_consumer", "cluster", "split_element"):
        assert getattr(found.model, name) == pytest.approx(getattr(PLANTED, name), rel=0.15), name
        assert getattr(MODEL, name) != pytest.approx(getattr(PLANTED, name), rel=0.15), name


def test_a_fit_generalises_to_other_problems():
    found = fit(list(synthetic(PLANTED, 40, 0.02, 5)), start=MODEL, sms=SMS, rounds=1)
    others = list(synthetic(PLANTED, 20, 0.0, 77))
    assert regret(found.model, others, SMS)[0] < 0.5 * regret(MODEL, others, SMS)[0]


def test_regret_of_a_choice():
    wanted = key_of("dense", 512, 512, 512)
    likely = list(rank(wanted, H200))[:3]
    times = MODEL.times(work_of(CandidateArrays.of_configs(likely), wanted, SMS))
    configs = tuple(likely[at] for at in np.argsort(times))
    assert regret(MODEL, [Measured(wanted, configs, np.array([12.0, 10.0, 30.0]))], SMS) == pytest.approx((0.2, 0.2))
    assert regret(MODEL, [Measured(wanted, configs, np.array([10.0, 12.0, 30.0]))], SMS) == (0.0, 0.0)


def test_the_shipped_constants_fit_the_measurements():
    measured, device = load([RESULTS])
    assert device == H200
    sms = device.sms
    single = [each for each in measured if is_dense_16bit(each.problem) and len(each.us) > 1]
    mean, most = regret(MODEL, single, sms)
    assert mean < 0.035
    assert most < 0.45
    again = fit(single, start=MODEL, sms=sms, rounds=0)
    assert again.after[0] <= mean + 0.004
    others = [each for each in measured if not is_dense_16bit(each.problem)]
    assert len(others) > 10
    assert regret(OTHERS, others, sms)[1] < 0.25


def test_the_command_prints_constants_and_writes_them(capsys, tmp_path):
    document = json.loads(RESULTS.read_text("utf-8"))
    (few := tmp_path / "few.json").write_text(json.dumps({**document, "rows": document["rows"][::12]}), "utf-8")
    data = tmp_path / "data.json"
    assert main(["tune", "--fit", str(few), "--data", str(data)]) == 0
    printed = capsys.readouterr().out
    constants = re.findall(r"^    (\w+): ([\d.e+-]+)$", printed, re.MULTILINE)
    assert [name for name, _ in constants] == 2 * list(asdict(MODEL))
    assert re.findall(r"^(.+), \d+ problems", printed, re.MULTILINE) == ["dense_16bit", "other"]
    assert re.search(r"^  before +\d+\.\d+% +\d+\.\d+%$", printed, re.MULTILINE)
    written = read_data(json.loads(data.read_text("utf-8")))
    assert [value for model in written.models.values() for value in asdict(model).values()] == [
        float(value) for _, value in constants
    ]
    assert written.device == H200
    assert len(written.table) > 20


def broken(change):
    document = json.loads(RESULTS.read_text("utf-8"))
    change(document)
    return json.dumps(document)


BROKEN = {
    "no JSON": "{",
    "a list": "[]",
    "no rows": "{}",
    "an unknown name": broken(lambda each: each["rows"][0]["us"].update(nothing=1.0)),
    "no machine": broken(lambda each: each.pop("machine")),
    "an unknown field": broken(lambda each: each["configs"].update(pp128x128={"tail": [1, 2]})),
    "a text for a time": broken(lambda each: each["rows"][0]["us"].update(pp128x128="fast")),
    "an unknown kind": broken(lambda each: each["rows"][0].update(kind="odd")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_without_measurements_are_rejected(tmp_path, capsys, name):
    file = tmp_path / "file.json"
    file.write_text(BROKEN[name], "utf-8")
    assert main(["tune", "--fit", str(file)]) == 3
    assert capsys.readouterr().err.startswith(f"BAD_MEASUREMENTS: {file} does not contain measurements")


def test_a_missing_file_and_mixed_gpus_are_rejected(tmp_path):
    with pytest.raises(WarploomError, match="cannot be read"):
        load([tmp_path / "nothing"])
    other = tmp_path / "other.json"
    other.write_text(broken(lambda each: each["machine"].update(sms=114)), "utf-8")
    with pytest.raises(WarploomError, match=r"different GPUs: NVIDIA H200 \(114 SMs\) and NVIDIA H200 \(132 SMs\)"):
        load([RESULTS, other])


def test_times_at_the_free_clock_are_fitted_and_the_longer_ones_compared():
    row = {"us": {"x": 10.0, "y": 12.0}, "peer_us": 12.0, "cool_us": {"x": 10.0, "y": 9.0}, "cool_peer_us": 10.0}
    assert fitted_times(row) == pytest.approx({"x": 12.0, "y": 10.8})
    assert compared_times(row) == pytest.approx({"x": 12.0, "y": 12.0})
    del row["us"]
    assert compared_times(row) == fitted_times(row) == pytest.approx({"x": 12.0, "y": 10.8})
    turns = {"us": {"x": 3.0}}
    assert compared_times(turns) == fitted_times(turns) == {"x": 3.0}


def test_trees_are_fitted_to_cool_times_in_place_of_those_alone():
    problem, other = (key_of("dense", m, 4096, 4096, a_type="bf16") for m in (4096, 2048))
    configs = (HopperConfig(tile=(128, 128)), HopperConfig(tile=(128, 256)))
    alone, cool, elsewhere, turns = (
        Measured(each, configs, np.array([1.0, 2.0]), how)
        for each, how in ((problem, "alone"), (problem, "cool"), (other, "alone"), (problem, ""))
    )
    measured, small = [alone, cool, elsewhere, turns], key_of("dense", 64, 256, 256, a_type="bf16")
    for name in ("trees", "power_bound_trees"):
        assert [*map(id, tree_fitting._fitted_to(measured, name))] == [id(cool), id(elsewhere), id(turns)]
    weights = tree_fitting._WEIGHTS["power_bound_trees"]
    assert tree_fitting._weight_of(cool, weights) > tree_fitting._weight_of(elsewhere, weights)
    assert (
        tree_fitting._weight_of(turns, weights) < 1 == tree_fitting._weight_of(replace(turns, problem=small), weights)
    )
