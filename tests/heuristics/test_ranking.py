"""`rank` for both architectures, and the data that a device uses: matched by name, or extrapolated."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest

from warploom.heuristics import EMULATED, Device, choose, key_of, rank, shared, source_of
from warploom.heuristics.sm90 import ranking
from warploom.heuristics.sm90.cost_model import CandidateArrays, expected_times
from warploom.heuristics.sm90.dependent_launches import saved_times
from warploom.heuristics.sm90.device_data import data_for, read_data, shipped
from warploom.heuristics.sm100 import choose_config
from warploom.structured.config import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, HopperConfig, MatmulConfig
from warploom.tuning.data_file import data_text, table_entries

MEASURED = Path(__file__).parents[2] / "bench" / "results" / "hopper_configurations.json"
SHIPPED = Path(__file__).parents[2] / "src" / "warploom" / "heuristics" / "data"
H200, B200 = EMULATED["sm_90a"], EMULATED["sm_100a"]
H100 = Device("NVIDIA H100 80GB HBM3", 132)


def test_the_table_comes_first_then_the_order_of_the_model():
    problem = key_of("dense", 4096, 14336, 4096)
    first, *others = rank(problem, H200)
    assert (first.BN, first.pingpong) == (184, True)
    assert first == choose(problem, H200)
    assert first not in others
    assert len(others) > 500
    assert all(isinstance(each, HopperConfig) and not each.violations() for each in islice(others, 50))


@pytest.mark.parametrize("device", [H100, Device("NVIDIA H100 PCIe", 114), Device("NVIDIA H200", 66), Device("", 132)])
def test_a_gpu_that_was_not_measured_is_ranked_by_the_model_with_its_own_sms(device):
    """An H100 has as many SMs as an H200; only the name tells them apart."""
    for sizes in ((4096, 14336, 4096), (2100, 1500, 136), (333, 4096, 8192)):
        problem = key_of("dense", *sizes, a_type="bf16")
        order = list(islice(rank(problem, device), 200))
        arrays = CandidateArrays.of_configs(order)
        times = expected_times(arrays, problem, data_for(device).models, sms=device.sms) - saved_times(arrays, problem)
        assert times.tolist() == sorted(times.tolist())
        assert order != list(islice(rank(problem, H200), 200))
    assert source_of(device) == f"cost model with {device.sms} SMs, extrapolated from NVIDIA H200"


def test_sources():
    document = json.loads(MEASURED.read_text("utf-8"))
    problems = f"table of {len(table_entries([document]))} problems"
    day = document["when"].partition("T")[0]
    assert source_of(H200) == f"measured on NVIDIA H200 ({day}): {problems}, cost model, decision trees"
    assert source_of(B200) == "waves rule, not measured"


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("dense", MatmulConfig),
        ("grouped", MatmulConfig),
        ("blockwise", BlockwiseFP8MatmulConfig),
        ("block_scaled", BlockScaledMatmulConfig),
    ],
)
def test_blackwell_configurations_are_ranked_by_waves(kind, family):
    fields = {"gemm_kind": "gmm", "AB_swapped": True} if kind == "grouped" else {}
    problem = key_of(kind, 1000, 4096, 1024, 4 if kind == "grouped" else 1, **fields)
    found = list(rank(problem, B200))
    assert found[0] == choose(problem, B200)
    assert all(type(each) is family and not each.violations() for each in found)
    rows = 250 if kind == "grouped" else 1000
    assert found[0] == choose_config(rows, 4096, 1024, problem.count, family=family, **fields)

    def waves(config):
        m, n = (4096, rows) if config.AB_swapped else (rows, 4096)
        tiles = -(-m // config.MMA_M) * -(-n // config.MMA_N) * problem.count
        return -(-tiles // (B200.sms // config.cta_group))

    pairs = [waves(each) for each in found if each.cta_group == 2]
    assert pairs == sorted(pairs)


def test_if_nothing_fits_the_choice_says_why():
    wide = choose(key_of("dense", 64, 64, 64, num_pipeline_stages=99), H200)
    assert "shared memory" in wide.violations()[0]
    blackwell = choose(key_of("dense", 64, 64, 64, num_pipeline_stages=99), B200)
    assert "shared memory" in blackwell.violations()[0]


def test_the_shipped_data_are_made_from_the_measurements():
    document = json.loads(MEASURED.read_text("utf-8"))
    text = (SHIPPED / "h200.json").read_text("utf-8")
    data, parsed = read_data(json.loads(text)), json.loads(text)
    assert parsed["table"] == table_entries([document])
    assert data_text([document], data.models, {name: parsed[name] for name in ("trees", "power_bound_trees")}) == text


def test_each_data_file_names_its_device_and_origin():
    files = sorted(SHIPPED.glob("*.json"))
    assert len(files) == len(shipped()) == len({data.device for data in shipped()})
    for data in shipped():
        assert data.device.name
        assert data.device.sms > 0
        assert {"when", "driver", "cuda", "inputs"} <= data.provenance.keys()
        assert data.models.keys() == {"dense_16bit", "other"}


def test_a_problem_shares_the_choice_of_one_with_a_few_more_rows():
    wanted = {1: 1, 16: 16, 17: 24, 100: 104, 128: 128, 129: 136, 300: 304, 512: 512, 777: 784, 4097: 4104, 8000: 8000}
    for m, common in wanted.items():
        problem = key_of("dense", m, 4104, 4096, a_type="bf16", residual=True)
        assert shared(problem, H200) == key_of("dense", common, 4104, 4096, a_type="bf16", residual=True)


def test_a_measured_problem_keeps_its_own_choice():
    kind, m, n, k, count, *_ = next(
        key for key in data_for(H200).table if key[0] == "dense" and key[1] % 8 and key[1] > 16
    )
    problem = key_of(kind, m, n, k, count, a_type="bf16")
    assert shared(problem, H200) == problem
    assert shared(problem, H100).m > m


def test_a_configuration_serves_if_it_is_about_as_fast_as_the_choice():
    """Of others in random order, the fastest within 2 % by the order and times of `rank`; on a measured GPU and another."""
    for device in (H200, H100):
        problem = key_of("dense", 1000, 2056, 4104, a_type="bf16")
        order = list(islice(rank(problem, device), 40))
        times = ranking._corrected_times(CandidateArrays.of_configs(order), problem, device)
        near = [config for config, time in zip(order, times, strict=True) if time <= 1.02 * times[0]]
        far = [config for config, time in zip(order, times, strict=True) if time > 1.02 * times[0]]
        assert near
        assert far
        mixed = random.sample(order, len(order))
        assert ranking.as_fast_as_choice(problem, device, mixed) == order[0]
        assert ranking.as_fast_as_choice(problem, device, [near[-1], *far]) == near[-1]
        assert ranking.as_fast_as_choice(problem, device, far) is None
        assert ranking.as_fast_as_choice(problem, device, []) is None


def test_no_expectation_replaces_a_measured_choice():
    keys = [key_of(*key[:5], a_type="bf16") for key in data_for(H200).table if key[0] == "dense" and key[1] > 500]
    problem = next(key for key in keys if data_for(H200).find(key))
    assert ranking.as_fast_as_choice(problem, H200, list(islice(rank(problem, H200), 5))) is None
    assert ranking.as_fast_as_choice(problem, H100, list(islice(rank(problem, H100), 5))) is not None
