"""Winners on disk: stored by GPU and problem, atomically, with priority over shipped data."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from warploom.diagnostics import WarploomError
from warploom.heuristics import EMULATED, Device, choose, key_of, rank
from warploom.heuristics.sm90.candidates import row_of
from warploom.ops import linear
from warploom.ops.planning import planner
from warploom.runtime.cache import winners
from warploom.runtime.cache.winners import has_any, recall, remember

H200 = "NVIDIA H200"
DEVICE = EMULATED["sm_90a"]


def ranked(problem):
    return list(rank(problem, DEVICE))


@dataclass(frozen=True)
class Hardware:
    name: str = H200
    sms: int = 132


@pytest.fixture
def on_h200():
    return Hardware()


def test_a_winner_is_stored_by_gpu_and_problem():
    assert recall(H200, "one") is None
    assert remember(H200, "one", {"tile": (128, 96), "band": 3})
    assert remember(H200, "two", {})
    assert recall(H200, "one") == {"tile": [128, 96], "band": 3}
    assert recall(H200, "two") == {}
    assert recall("NVIDIA H100", "one") is None
    assert remember(H200, "one", {"band": 4})
    assert recall(H200, "one") == {"band": 4}


@pytest.mark.parametrize(("name", "value"), [("WARPLOOM_TUNED", "0"), ("WARPLOOM_CACHE_SIZE", "0")])
def test_the_environment_disables_them(monkeypatch, name, value):
    assert remember(H200, "one", {"band": 3})
    monkeypatch.setenv(name, value)
    assert recall(H200, "one") is None
    assert not remember(H200, "one", {"band": 4})
    monkeypatch.delenv(name)
    assert recall(H200, "one") == {"band": 3}


def test_an_invalid_setting_is_reported(monkeypatch):
    monkeypatch.setenv("WARPLOOM_TUNED", "maybe")
    with pytest.raises(WarploomError, match="WARPLOOM_TUNED has the invalid value `maybe`"):
        recall(H200, "one")


def files(cache: Path) -> list[Path]:
    return [file for file in cache.rglob("*") if file.is_file()]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"band": 4}', b"\xff" * 300])
def test_a_corrupt_file_counts_as_none(cache, content):
    remember(H200, "one", {"band": 3})
    (file,) = files(cache)
    file.write_bytes(content)
    assert recall(H200, "one") is None
    assert remember(H200, "one", {"band": 5})
    assert recall(H200, "one") == {"band": 5}


def test_nothing_fails_if_nothing_can_be_written(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(blocked))
    assert not remember(H200, "one", {"band": 3})
    assert recall(H200, "one") is None


WRITER = """
import sys
from warploom.runtime.cache import winners
from warploom.runtime.cache.winners import has_any, recall, remember
for turn in range(12):
    assert remember("gpu", "shared", {"who": sys.argv[1], "turn": turn, "again": [sys.argv[1]] * 500}) in (True, False)
    found = recall("gpu", "shared")
    assert found is None or found["again"] == [found["who"]] * 500, found
    remember("gpu", f"own {sys.argv[1]} {turn}", {"turn": turn})
"""


def test_many_processes_write_whole_entries(cache):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, who]) for who in "ab"]
    assert [each.wait(60) for each in writers] == [0, 0]
    assert recall("gpu", "shared")["turn"] == 11
    assert all(recall("gpu", f"own {who} {turn}") == {"turn": turn} for who in "ab" for turn in range(12))
    assert not [file for file in files(cache) if file.suffix == ".part"]


FIELDS = {"a_type": "bf16", "b_type": "bf16", "c_type": "bf16", "a_major": "k", "b_major": "k", "use_tma_store": True}


def test_stored_winners_come_before_shipped_data_and_those_before_the_model(on_h200):
    wanted = key_of("dense", 1024, 1024, 1024, **FIELDS)
    by_model, shipped = choose(wanted, Device("another", 132)), choose(wanted, DEVICE)
    assert shipped.swizzle_size == 4 != by_model.swizzle_size
    assert planner._sm90_config(wanted, on_h200) == shipped
    unknown = replace(wanted, n=1032)
    assert planner._sm90_config(unknown, on_h200) == ranked(unknown)[0]
    other = next(each for each in ranked(wanted) if each not in (by_model, shipped))
    remember(H200, str(wanted), row_of(other, wanted))
    assert planner._sm90_config(wanted, on_h200) == other
    assert planner._sm90_config(replace(wanted, m=1032), on_h200) != other
    assert planner._sm90_config(replace(wanted, fused=True), on_h200) == choose(replace(wanted, fused=True), DEVICE)


def wanted_by(**epilogue):
    """Return the key of a Hopper GEMM."""
    x, w = np.ones((1024, 1024), ml_dtypes.bfloat16), np.ones((1024, 1024), ml_dtypes.bfloat16)
    return linear.plan(x, w, target="sm_90a", **epilogue).key


def test_a_light_epilogue_is_tuned_separately(on_h200):
    bias = np.ones(1024, ml_dtypes.bfloat16)
    plain, light = wanted_by(), wanted_by(bias=bias, activation="gelu_tanh")
    assert plain == replace(light, light_epilogue=False) != light
    assert wanted_by(activation="relu") == wanted_by(bias=bias) == light
    assert wanted_by(bias=bias, epilogue=lambda acc, at: acc + 1) == replace(plain, fused=True)
    assert planner._sm90_config(light, on_h200) == planner._sm90_config(plain, on_h200) == choose(plain, DEVICE)
    assert set(ranked(light)) == set(ranked(plain))  # those without registers for a bias come last

    one, other = ranked(plain)[5:7]
    remember(H200, str(plain), row_of(one, plain))
    assert planner._sm90_config(light, on_h200) == planner._sm90_config(plain, on_h200) == one
    remember(H200, str(light), row_of(other, light))
    assert planner._sm90_config(plain, on_h200) == one
    assert planner._sm90_config(light, on_h200) == other


def test_a_winner_is_used_on_the_same_kind_of_gpu_only(on_h200):
    wanted = key_of("dense", 640, 640, 640, **FIELDS)
    other = ranked(wanted)[3]
    remember("NVIDIA H100 PCIe", str(wanted), row_of(other, wanted))
    assert planner._sm90_config(wanted, on_h200) == choose(wanted, DEVICE)
    assert planner._sm90_config(wanted, None) == choose(wanted, DEVICE)


@pytest.mark.parametrize("row", [{"of another": "version"}, {"tile": [1, 2]}, {"tile": [128, 256], "pingpong": True}])
def test_a_winner_that_is_no_longer_valid_is_ignored(on_h200, row):
    wanted = key_of("dense", 640, 640, 640, **FIELDS)
    remember(H200, str(wanted), row)
    assert planner._sm90_config(wanted, on_h200) == choose(wanted, DEVICE)


def test_a_winner_that_would_deadlock_is_ignored(on_h200):
    wanted = key_of("dense", 256, 256, 65536, **FIELDS)
    remember("small", str(wanted), row_of(choose(wanted, DEVICE), wanted))
    assert planner.tuned(wanted, Hardware("small", 132)) == choose(wanted, DEVICE)
    assert planner.tuned(wanted, Hardware("small", 114)) is None


def test_a_residual_is_loaded_as_it_was_measured(on_h200):
    wanted = key_of("dense", 640, 640, 640, fused=True, residual=True, **FIELDS)
    late = next(each for each in ranked(wanted) if not each.residual_in_place)
    remember(H200, str(wanted), row_of(late, wanted))
    assert planner._sm90_config(wanted, on_h200) == late


def test_the_first_winner_is_noticed_at_once_and_that_of_another_process_soon(monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path / "own"))
    assert not has_any()
    assert remember(H200, "a problem", {"tile": [128, 128]})
    assert has_any()
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path / "other"))
    now = [100.0]
    monkeypatch.setattr(winners, "monotonic", lambda: now[0])
    assert not has_any()
    (tmp_path / "other" / "tuned").mkdir(parents=True)
    now[0] += 1.0
    assert has_any()
