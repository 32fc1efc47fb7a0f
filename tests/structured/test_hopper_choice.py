"""The choice of Hopper configurations: none breaks a rule, and CTAs that wait for each other all have room."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from warploom.structured.config.hopper_choice import TUNED, choose_hopper

RESULTS = Path(__file__).parents[2] / "bench" / "results" / "hopper_configurations.json"


def ctas(config: object, m: int, n: int) -> int:
    rows, columns = (n, m) if config.AB_swapped else (m, n)  # type: ignore[attr-defined]
    return ceil(rows / config.BM) * ceil(columns / config.BN) * config.num_split_k  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 70000), st.sampled_from([16, 114, 132]),
    st.sampled_from(["bf16", "f32", "e4m3"]), st.booleans(),
)  # fmt: skip
def test_what_is_chosen_fits(m: int, n: int, k: int, sms: int, a_type: str, fused: bool) -> None:
    config = choose_hopper(m, n, k, sms=sms, a_type=a_type, fused=fused)
    assert config.violations() == []
    if config.num_split_k > 1:
        assert ctas(config, m, n) <= sms or config.split_in_cluster
        assert ceil(k / config.BK) >= 2 * config.num_split_k


def test_a_smaller_gpu_gets_no_split_that_would_wait_for_ever() -> None:
    """128 CTAs that meet in memory have room on 132 multiprocessors and not on 114."""
    problem = (256, 256, 65536)
    whole, smaller = choose_hopper(*problem, sms=132), choose_hopper(*problem, sms=114)
    assert ctas(whole, *problem[:2]) == 128
    assert not whole.split_in_cluster
    assert smaller.split_in_cluster or ctas(smaller, *problem[:2]) <= 114


def test_the_table_s_problems_were_measured() -> None:
    measured = {tuple(row["shape"]) for row in json.loads(RESULTS.read_text("utf-8"))["rows"]}
    assert set(TUNED) <= measured
