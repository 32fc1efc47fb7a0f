"""The choice of Hopper configurations: valid, splits resident at once, measured tables first."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok

import warploom
from warploom.heuristics import EMULATED, Device, ProblemKey, choose, key_of, rank
from warploom.heuristics.sm90.candidates import FUSED_ACCUMULATORS, KINDS, build, row_of, rows_for
from warploom.heuristics.sm90.cost_model import CandidateArrays
from warploom.heuristics.sm90.cost_model import expected_times as times_by
from warploom.heuristics.sm90.device_data import TableKey, shipped
from warploom.heuristics.sm90.ranking import candidates_of
from warploom.structured.config.sm90 import HopperConfig

BENCH = Path(__file__).parents[2] / "bench"
H200 = EMULATED["sm_90a"]
(DATA,) = shipped()


def choose_hopper(m: int, n: int, k: int, batch: int = 1, *, device: Device = H200, **fields) -> HopperConfig:
    return choose(key_of("dense", m, n, k, batch, **fields), device)


def expected_times(candidates: CandidateArrays, problem: ProblemKey) -> np.ndarray:
    return times_by(candidates, problem, DATA.models, sms=132)


def ctas(config: HopperConfig, m: int, n: int) -> int:
    rows, columns = (n, m) if config.AB_swapped else (m, n)
    return ceil(rows / config.BM) * ceil(columns / config.BN) * config.num_split_k


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 70000), st.sampled_from([16, 114, 132]),
    st.sampled_from(["bf16", "f32", "e4m3"]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_choices_are_valid(m: int, n: int, k: int, sms: int, a_type: str, fused: bool, residual: bool) -> None:
    device = H200 if sms == 132 else Device("another", sms)
    config = choose_hopper(m, n, k, device=device, a_type=a_type, fused=fused or residual, residual=residual)
    assert config.violations() == []
    if fused or residual:
        assert config.accumulators <= FUSED_ACCUMULATORS
    if config.num_split_k > 1:
        assert ctas(config, m, n) <= sms or config.split_in_cluster
        assert ceil(k / config.BK) >= 2 * config.num_split_k


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["grouped", "blockwise"]), st.integers(1, 9000), st.integers(1, 20000), st.integers(1, 20000),
    st.integers(1, 300), st.booleans(),
)  # fmt: skip
def test_choices_of_grouped_and_blockwise_problems_are_valid(
    kind: str, m: int, n: int, k: int, groups: int, fused: bool
) -> None:
    config = choose(key_of(kind, m, n, k, groups if kind == "grouped" else 1, fused=fused), H200)
    assert type(config) is KINDS[kind].config
    assert config.violations() == []
    assert config.num_split_k == 1
    assert not fused or config.accumulators_held <= FUSED_ACCUMULATORS


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("m", "n", "tile"), [(1, 2112, (64, 16)), (16, 7168, (64, 64)), (2000, 7168, (128, 128))])
def test_blockwise_problems_of_few_rows_use_narrow_tiles(m, n, tile, fused) -> None:
    config = choose(key_of("blockwise", m, n, 4096, fused=fused), H200)
    assert (config.tile, config.mmas_in_flight) == (tile, 1)


def test_a_smaller_gpu_gets_no_split_that_would_deadlock() -> None:
    """128 CTAs that reduce through memory are resident on 132 SMs and not on 114."""
    problem = (256, 256, 65536)
    whole, smaller = choose_hopper(*problem), choose_hopper(*problem, device=Device("another", 114))
    assert ctas(whole, *problem[:2]) == 128
    assert not whole.split_in_cluster
    assert smaller.split_in_cluster or ctas(smaller, *problem[:2]) <= 114


def problem_of(key: TableKey) -> ProblemKey:
    kind, m, n, k, count, a_type, a_major, b_major, fused, residual, gated = key
    majors = {"a_major": a_major, "b_major": b_major}
    return key_of(
        kind,
        m,
        n,
        k,
        count,
        a_type=a_type,
        **majors,
        **({"gated": True} if gated else {}),
        fused=fused,
        residual=residual,
    )


@pytest.mark.parametrize("key", DATA.table, ids=lambda key: str(key)[:60])
def test_every_entry_of_the_table_is_chosen(key) -> None:
    entry, wanted = DATA.table[key], problem_of(key)
    config = choose(wanted, H200)
    assert config == build(entry.config, wanted)
    assert config.violations() == []
    assert entry.us > 0
    other = {"bf16": "f16", "e4m3": "e5m2"}[wanted.a_type]
    alike = tuple((name, other if name == "a_type" else value) for name, value in wanted.fields)
    assert choose(replace(wanted, fields=alike), H200).tile == config.tile


@pytest.mark.parametrize("majors", [("k", "mn"), ("mn", "k"), ("mn", "mn")])
@given(st.integers(1, 8192), st.integers(1, 2048).map(lambda n: 8 * n), st.integers(1, 2048).map(lambda k: 8 * k))
def test_mn_major_operands_are_loaded_in_lines(majors, m: int, n: int, k: int) -> None:
    """A line has 64 16-bit elements; narrower tiles are one piece."""
    config = choose_hopper(m, n, k, a_type="bf16", a_major=majors[0], b_major=majors[1])
    assert (config.b_major, config.a_major)[:: 1 if config.AB_swapped else -1] == majors
    if config.b_major == "mn":
        assert config.BN % 64 == 0 or config.BN in (8, 16, 32)


def test_entries_of_k_major_operands_are_not_used_for_others() -> None:
    wanted = key_of("dense", 8192, 8192, 8192, a_type="bf16")
    assert DATA.find(wanted)
    assert DATA.find(replace(wanted, fields=(*wanted.fields, ("a_major", "mn"), ("b_major", "mn")))) is None


def test_rows_that_do_not_begin_at_lines_cost_more_if_they_are_read_more_often() -> None:
    """Rows of B of 2000 elements begin at sectors, those of 2048 at lines."""

    def slower(swapped: bool) -> float:
        candidates = CandidateArrays.of_configs([HopperConfig(tile=(128, 128), AB_swapped=swapped)])
        odd, even = (key_of("dense", 2048, n, 2048, a_type="bf16", b_major="mn") for n in (2000, 2048))
        (longer,), (shorter,) = (expected_times(candidates, wanted).tolist() for wanted in (odd, even))
        return longer / shorter

    assert 1 < slower(swapped=True) < slower(swapped=False)


def test_the_shipped_table_has_the_listed_problems() -> None:
    assert DATA.device == Device("NVIDIA H200", 132, "sm_90a") == H200
    listed = [
        (8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (1024, 1024, 1024), (4096, 14336, 4096),
        (4096, 4096, 14336), (512, 4096, 16384), (128, 4096, 4096), (64, 14336, 4096), (16, 4096, 14336),
        (256, 256, 65536),
    ]  # fmt: skip
    assert all(DATA.find(key_of("dense", *sizes)) for sizes in listed)
    assert {key[0] for key in DATA.table} == {"dense", "grouped", "blockwise"}


def test_the_entry_of_a_plain_gemm_serves_an_epilogue_if_there_are_registers() -> None:
    plain, fused = choose_hopper(4096, 4096, 4096), choose_hopper(4096, 4096, 4096, fused=True)
    assert plain == fused
    wide = choose_hopper(8192, 8192, 8192)
    assert wide.accumulators > FUSED_ACCUMULATORS >= choose_hopper(8192, 8192, 8192, fused=True).accumulators


def test_a_residual_is_loaded_in_place_if_possible() -> None:
    config = choose_hopper(4096, 4096, 4096, fused=True, residual=True)
    assert config.residual_in_place
    assert not choose_hopper(4096, 4096, 4096, fused=True).residual_in_place
    assert not choose_hopper(4096, 4096, 4096, fused=True, residual=True, use_tma_store=False).residual_in_place


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("sizes", [(4096, 4097, 4096), (8191, 8191, 512), (300, 9001, 64)], ids=str)
def test_choices_without_tma_stores_assemble_without_spills(sizes, fused) -> None:
    """Rows of C that TMA cannot store: no spill, and no serialised wgmma."""
    config = choose_hopper(*sizes, use_tma_store=False, a_type="f16", fused=fused)
    a, b = np.zeros((130, 72), np.float16), np.zeros((72, 131), np.float16)
    launch = warploom.matmul.bind(a, b, config=config, target="sm_90a", activation="relu" if fused else None)
    assert assemble_ok(launch).kernel().spill_stores == 0


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(
    "sizes", [(730, 12400, 2112), (346, 9456, 120), (4346, 11880, 432), (2176, 1464, 9576), (1345, 2416, 3144)], ids=str
)
def test_choices_with_light_epilogues_assemble_without_spills(sizes, residual) -> None:
    """A bias, a fast activation and a residual in place are not problems of their own to tables and trees."""
    m, n, k = sizes
    wanted = key_of("dense", m, n, k, a_type="bf16", c_type="bf16", light_epilogue=True, residual=residual)
    config = choose(wanted, H200)
    a, b, c = (np.zeros(shape, ml_dtypes.bfloat16) for shape in ((m, 64), (64, n), (m, n)))
    more = {"bias": b[0], "activation": "gelu_tanh", **({"residual": c} if residual else {})}
    launch = warploom.matmul.bind(a, b.T.copy().T, config=config, target="sm_90a", **more)
    assert assemble_ok(launch).kernel().spill_stores == 0


LISTED = [
    (what, row)
    for what in ("plain", "fused", "mn_major")
    for row in json.loads((BENCH / "results" / f"matmul_{what}.json").read_text("utf-8"))["rows"]
]


@pytest.mark.parametrize(
    ("what", "row"), LISTED, ids=lambda each: each if isinstance(each, str) else str(each["shape"])
)
def test_published_measurements_are_of_the_configurations_that_are_chosen(what, row) -> None:
    """The numbers in the documentation are of configurations; a new model must not silently choose others."""
    marks = {"fused": {"fused": True, "residual": True}, "mn_major": {"b_major": "mn"}}.get(what, {})
    config = choose_hopper(*row["shape"], a_type="bf16", **marks)
    tile, *words = row["config"].split(" ", 1)
    assert tile == f"{config.BM}x{config.BN}"
    text = " ".join(words)
    assert ("ping-pong" in text, "stream-K" in text, "swapped" in text) == (
        config.pingpong,
        config.stream_k,
        config.AB_swapped,
    )
    assert (f"{config.num_split_k} splits" in text) == (config.num_split_k > 1)
    assert (f"cluster {config.cluster_shape[:2]}" in text) == (config.cluster_shape != (1, 1, 1))


def test_the_model_knows_that_a_residual_needs_narrower_subtiles() -> None:
    """Tiles of odd widths cost more with a residual."""
    odd, even = (HopperConfig(tile=(128, columns), pingpong=True) for columns in (176, 192))
    sizes = (3000, 3000, 128)
    lost = {}
    for residual in (False, True):
        wanted = replace(key_of("dense", *sizes), residual=residual)
        times = expected_times(CandidateArrays.of_configs([odd, even]), wanted)
        lost[residual] = times[0] / times[1]
    assert lost[True] > 1.1 * lost[False]


WANTED = [
    key_of("dense", 1000, 1000, 1000, a_type="bf16", c_type="f32", a_major="mn", b_major="k"),
    key_of("dense", 100, 4096, 4096, fused=True, residual=True, a_type="f16"),
    key_of("dense", 77, 1680, 10128, use_tma_store=False),
    key_of("grouped", 500, 4096, 512, 9, a_type="bf16"),
    key_of("blockwise", 4096, 4096, 4096, a_type="e5m2", scale_type="bf16"),
]


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_a_row_rebuilds_its_configuration(wanted) -> None:
    for config in rank(wanted, H200):
        row = row_of(config, wanted)
        assert build(row, wanted) == config
        assert row.get("tile", (128, 128)) == config.tile
        assert not {"a_type", "c_type", "a_major", "registers", "stage_columns"} & row.keys()


def test_a_row_may_leave_out_default_fields() -> None:
    """The winners of `warploom tune` leave out a tile of 128 × 128."""
    wanted = key_of("dense", 4096, 4096, 4096)
    rows = [{"pingpong": True}, {"AB_swapped": True, "tile": (128, 112)}, {}]
    found = list(candidates_of(rows, wanted, 132))
    assert [config.tile for config in found] == [(128, 128), (128, 112), (128, 128)]
    assert CandidateArrays.of(rows).subtile.tolist() == [config.stage_columns for config in found] == [64, 112, 128]


def test_candidates_are_ranked_by_the_model() -> None:
    wanted = key_of("dense", 3000, 5000, 700, 3)
    times = expected_times(CandidateArrays.of_configs(list(rank(wanted, H200))), wanted).tolist()
    assert times == sorted(times)
    assert len(times) > 40
    assert len(rows_for(key_of("grouped", 640, 512, 512, 40))) > len(KINDS["grouped"].rows)


@pytest.mark.parametrize(("m", "tiles"), [(11 * 128, 132), (13 * 128, 156), (22 * 128, 264)])
def test_stream_k_is_a_candidate_for_partial_waves(m: int, tiles: int) -> None:
    wanted = key_of("dense", m, 12 * 128, 8192)
    found = [each for each in rank(wanted, H200) if each.stream_k and each.tile == (128, 128)]
    shares = [each for each in found if each.cluster_shape == (1, 1, 1)]
    assert bool(shares) == (tiles % 132 != 0)
    for each in shares:
        streamed, whole = expected_times(CandidateArrays.of_configs([each, each.replace(stream_k=False)]), wanted)
        assert tiles / 264 < streamed / whole < 0.85


MEASURED = json.loads((BENCH / "results" / "hopper_configurations.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("kind", "a_type", "most"), [("grouped", "bf16", 0.05), ("blockwise", "e4m3", 0.05), ("dense", "e4m3", 0.08)]
)
def test_the_model_alone_chooses_well_among_measured_configurations(kind, a_type, most) -> None:
    """The table has these problems; here the model chooses alone."""
    rows = [row for row in MEASURED["rows"] if (row["kind"], row["a_type"]) == (kind, a_type)]
    assert len(rows) >= 3
    for row in rows:
        wanted = key_of(kind, *row["shape"], row["count"], a_type=a_type)
        us = {
            build({n: tuple(v) if isinstance(v, list) else v for n, v in MEASURED["configs"][name].items()}, wanted): us
            for name, us in row["us"].items()
        }
        times = dict(zip(us, expected_times(CandidateArrays.of_configs(list(us)), wanted), strict=True))
        assert us[min(times, key=times.__getitem__)] / min(us.values()) - 1 < most


def test_measured_clusters_of_splits_may_have_several_waves():
    wanted = key_of("dense", 16, 57344, 8192, a_type="bf16", gated=True)
    in_cluster = {"tile": (128, 16), "consumers": 1, "AB_swapped": True, "num_split_k": 2}
    rows = (in_cluster, {**in_cluster, "split_in_cluster": False})
    assert not list(candidates_of(rows, wanted, 132))
    assert [each.split_in_cluster for each in candidates_of(rows, wanted, 132, is_measured=True)] == [True]
