"""The comparison of candidates on a fake device: winners, reported failures, and that failures stop no others."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warploom.diagnostics import Diag, WarploomError
from warploom.tuning.contest import EQUAL, Contestant, Result, compete, difference, winner

RIGHT = np.arange(1, 200, dtype=np.float32)


@dataclass
class Planted:
    """A rig that tells planted times and results, by the candidate's name."""

    us: dict[str, float]
    results: dict[str, np.ndarray] = field(default_factory=dict)
    refused: dict[str, Exception] = field(default_factory=dict)
    threads: set[str] = field(default_factory=set)
    timed: list[str] = field(default_factory=list)

    def prepared(self, made):
        self.threads.add(threading.current_thread().name)
        if isinstance(made, Exception):
            raise made
        return made

    def run(self, candidate):
        if candidate in self.refused:
            raise self.refused[candidate]
        values = self.results.get(candidate, RIGHT)
        return [Result(values.dtype.name, values.view(np.uint8).reshape(-1))]

    def times(self, candidates, on_round):
        self.timed = list(candidates)
        on_round(1, 1)
        return [[self.us[each] * spread for spread in (5.0, 1.0, 0.99)] for each in candidates]


def contestants(*names, **making):
    return [Contestant(name, f"the {name}", making.get(name, lambda name=name: name)) for name in names]


def failing(error):
    def make():
        raise error

    return make


def test_the_fastest_wins_and_ratios_are_to_the_default():
    rig = Planted({"a": 10.0, "b": 8.0, "c": 20.0})
    rows = compete(contestants("a", "b", "c"), rig, flops=16e6)
    assert [(row.config, row.us, row.ratio) for row in rows] == [("b", 8.0, 1.25), ("a", 10.0, 1.0), ("c", 20.0, 0.5)]
    assert rows[0].tflops == pytest.approx(2.0)
    assert winner(rows, "a") == "b"
    assert "8.00 µs" in str(rows[0])


@pytest.mark.parametrize(("us", "best"), [(10 / (1 + EQUAL) - 0.01, "b"), (10 / (1 + EQUAL) + 0.01, "a")])
def test_the_default_stays_where_nothing_is_clearly_faster(us, best):
    assert winner(compete(contestants("a", "b"), Planted({"a": 10.0, "b": us})), "a") == best


def test_a_candidate_that_cannot_be_made_assembled_or_launched_does_not_stop_others():
    rig = Planted({"a": 10.0, "e": 9.0})
    rig.refused["d"] = Diag.DRIVER_REFUSED.error(what="to launch `d`", sentence="too many resources")
    making = {
        "b": failing(Diag.BAD_CONFIG.error(count=1, what="tile=(1, 1): no")),
        "c": lambda: ValueError("assembled badly\nvery"),
    }
    rows = compete(contestants("a", "b", "c", "d", "e", **making), rig)
    assert [row.config for row in rows] == ["e", "a", "b", "c", "d"]
    assert rig.timed == ["a", "e"]
    told = {row.config: row.failure for row in rows}
    assert told["b"].startswith("BAD_CONFIG: Invalid configuration, 1 rule(s) violated")
    assert told["c"] == "ValueError: assembled badly very"
    assert "too many resources" in told["d"]
    assert all(row.us is None for row in rows[2:])


def test_a_wrong_result_is_reported_and_not_timed():
    wrong = RIGHT.copy()
    wrong[[3, 7]] = np.nan, 80.0
    rig = Planted({"a": 10.0, "b": 1.0, "c": 9.0}, {"b": wrong, "c": RIGHT * np.float32(1 + 2e-4)})
    rows = compete(contestants("a", "b", "c"), rig)
    assert rig.timed == ["a", "c"]
    assert rows[-1].failure == "wrong: 2 of 199 elements are not the default's"
    assert winner(rows, "a") == "c"


def test_a_default_that_fails_is_an_error():
    with pytest.raises(WarploomError, match="the default, the a, fails: KeyError"):
        compete(contestants("a", "b", a=failing(KeyError("x"))), Planted({"b": 1.0}))


def test_after_a_fault_nothing_else_is_tried():
    rig = Planted({"a": 1.0}, refused={"b": Diag.GPU_FAULT.error(what="an illegal memory access (700)")})
    with pytest.raises(WarploomError, match="while the b ran, GPU_FAULT") as told:
        compete(contestants("a", "b", "c"), rig)
    assert told.value.diag is Diag.GPU_FAULT


def test_assembly_happens_in_threads_and_progress_is_reported():
    seen = []
    rig = Planted({"a": 1.0, "b": 2.0})
    compete(contestants("a", "b"), rig, on_progress=lambda step, done, total: seen.append((step, done, total)))
    assert all(name.startswith("warploom-tune") for name in rig.threads)
    assert seen == [("build", 0, 2), ("build", 1, 2), ("check", 0, 2), ("check", 1, 2), ("measure", 1, 1)]


def bits(values, dtype):
    made = np.asarray(values).astype(getattr(ml_dtypes, dtype, dtype))
    return Result(dtype, made.view(np.uint8).reshape(-1))


@given(st.sampled_from(["bfloat16", "float16", "float32", "float8_e4m3fn"]), st.integers(0, 2**32))
def test_rounding_differences_are_accepted_and_a_missing_term_is_not(dtype, seed):
    rng = np.random.default_rng(seed)
    exact = rng.standard_normal(97).astype(np.float32) * 16
    assert not difference(bits(exact, dtype), bits(exact * (1 + 1e-6), dtype))
    wrong = exact.copy()
    wrong[rng.integers(97)] += 60
    assert "1 of 97" in difference(bits(wrong, dtype), bits(exact, dtype))


def test_nan_equals_only_nan():
    values = np.array([1.0, np.nan, np.inf, -np.inf, 3.0])
    assert not difference(bits(values, "bfloat16"), bits(values * np.float64(1.001), "bfloat16"))
    for at in range(5):
        other = values.copy()
        other[at] = 0.0
        assert difference(bits(other, "float32"), bits(values, "float32"))


def test_integers_are_compared_exactly():
    assert "1 of 3" in difference(bits([1, 2, 4], "int32"), bits([1, 2, 3], "int32"))
