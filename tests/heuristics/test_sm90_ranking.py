"""The choice of Hopper configurations: none breaks a rule, CTAs that wait for each other have room, tables are taken."""

from __future__ import annotations

import json
import runpy
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
from warploom.heuristics.problem_key import Sought, sought
from warploom.heuristics.sm90.candidates import FUSED_ACCUMULATORS, KINDS, made, row_of, rows_for
from warploom.heuristics.sm90.cost_model import Outlines, expected_times, outlines_of
from warploom.heuristics.sm90.ranking import candidates_of, choose, choose_hopper, ranked
from warploom.heuristics.table import Place, table_for, tables
from warploom.structured.config.sm90 import HopperConfig

BENCH = Path(__file__).parents[2] / "bench"
ENTRIES = [(table, place) for table in tables() for place in table.entries]


def ctas(config: HopperConfig, m: int, n: int) -> int:
    rows, columns = (n, m) if config.AB_swapped else (m, n)
    return ceil(rows / config.BM) * ceil(columns / config.BN) * config.num_split_k


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 70000), st.sampled_from([16, 114, 132]),
    st.sampled_from(["bf16", "f32", "e4m3"]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_what_is_chosen_fits(m: int, n: int, k: int, sms: int, a_type: str, fused: bool, residual: bool) -> None:
    config = choose_hopper(m, n, k, sms=sms, a_type=a_type, fused=fused or residual, residual=residual)
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
def test_the_other_kinds_are_chosen_too(kind: str, m: int, n: int, k: int, groups: int, fused: bool) -> None:
    wanted = sought(kind, m, n, k, groups if kind == "grouped" else 1, fused=fused)
    config = choose(wanted)
    assert type(config) is KINDS[kind].config
    assert config.violations() == []
    assert config.num_split_k == 1
    assert not fused or config.accumulators_held <= FUSED_ACCUMULATORS


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("m", "n", "tile"), [(1, 2112, (64, 16)), (16, 7168, (64, 64)), (2000, 7168, (128, 128))])
def test_few_rows_with_factors_are_multiplied_by_as_many_ctas_as_find_room(m, n, tile, fused) -> None:
    config = choose(sought("blockwise", m, n, 4096, fused=fused))
    assert (config.tile, config.depth) == (tile, 1)


def test_a_smaller_gpu_gets_no_split_that_would_wait_for_ever() -> None:
    """128 CTAs that meet in memory have room on 132 multiprocessors and not on 114."""
    problem = (256, 256, 65536)
    whole, smaller = choose_hopper(*problem, sms=132), choose_hopper(*problem, sms=114)
    assert ctas(whole, *problem[:2]) == 128
    assert not whole.split_in_cluster
    assert smaller.split_in_cluster or ctas(smaller, *problem[:2]) <= 114


def sought_of(place: Place) -> Sought:
    kind, m, n, k, count, a_type, a_major, b_major, fused, residual = place
    majors = {"a_major": a_major, "b_major": b_major}
    return sought(kind, m, n, k, count, a_type=a_type, **majors, fused=fused, residual=residual)


@pytest.mark.parametrize(("table", "place"), ENTRIES, ids=lambda each: str(each)[:60])
def test_every_entry_of_the_tables_is_what_is_chosen(table, place) -> None:
    entry, wanted = table.entries[place], sought_of(place)
    config = choose(wanted, sms=table.sms, gpu=table.gpu)
    assert config == made(entry.config, wanted)
    assert config.violations() == []
    assert entry.us > 0
    other = {"bf16": "f16", "e4m3": "e5m2"}[wanted.a_type]
    alike = tuple((name, other if name == "a_type" else value) for name, value in wanted.fields)
    assert choose(replace(wanted, fields=alike)).tile == config.tile


@pytest.mark.parametrize("majors", [("k", "mn"), ("mn", "k"), ("mn", "mn")])
@given(st.integers(1, 8192), st.integers(1, 2048).map(lambda n: 8 * n), st.integers(1, 2048).map(lambda k: 8 * k))
def test_operands_whose_k_is_not_contiguous_come_in_lines(majors, m: int, n: int, k: int) -> None:
    """Of 64 16-bit elements; tiles that are narrower are one piece."""
    config = choose_hopper(m, n, k, a_type="bf16", a_major=majors[0], b_major=majors[1])
    assert (config.b_major, config.a_major)[:: 1 if config.AB_swapped else -1] == majors
    if config.b_major == "mn":
        assert config.BN % 64 == 0 or config.BN in (8, 16, 32)


def test_what_was_measured_with_k_contiguous_is_not_taken_for_other_arrays() -> None:
    (table,) = tables()
    wanted = sought("dense", 8192, 8192, 8192, a_type="bf16")
    assert table.find(wanted)
    assert table.find(replace(wanted, fields=(*wanted.fields, ("a_major", "mn"), ("b_major", "mn")))) is None


def test_rows_that_begin_at_no_line_take_longer_where_they_are_read_more_often() -> None:
    """Rows of B of 2000 elements begin at sectors, those of 2048 at lines."""

    def slower(swapped: bool) -> float:
        of = outlines_of([HopperConfig(tile=(128, 128), AB_swapped=swapped)])
        odd, even = (sought("dense", 2048, n, 2048, a_type="bf16", b_major="mn") for n in (2000, 2048))
        (longer,), (shorter,) = (expected_times(of, wanted).tolist() for wanted in (odd, even))
        return longer / shorter

    assert 1 < slower(swapped=True) < slower(swapped=False)


def test_tables_have_the_problems_that_are_asked_for() -> None:
    (table,) = tables()
    assert (table.gpu, table.sms) == ("NVIDIA H200", 132)
    listed = [
        (8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (1024, 1024, 1024), (4096, 14336, 4096),
        (4096, 4096, 14336), (512, 4096, 16384), (128, 4096, 4096), (64, 14336, 4096), (16, 4096, 14336),
        (256, 256, 65536),
    ]  # fmt: skip
    assert all(table.find(sought("dense", *sizes)) for sizes in listed)
    assert {place[0] for place in table.entries} == {"dense", "grouped", "blockwise"}
    assert table_for("NVIDIA H200", 7) is table_for("another", 132) is table
    assert table_for("another", 114) is None


def test_the_shipped_table_is_what_was_measured() -> None:
    script = runpy.run_path(str(BENCH / "shipped_table.py"))
    document = json.loads(script["MEASURED"].read_text("utf-8"))
    assert script["TABLE"].read_text("utf-8") == script["table"](document)


def test_a_table_does_not_hold_for_a_gpu_with_other_multiprocessors() -> None:
    entry = (4096, 14336, 4096)
    assert choose_hopper(*entry).num_pipeline_stages == 5
    assert choose_hopper(*entry, sms=114) == ranked(sought("dense", *entry), sms=114)[0]


def test_a_product_takes_its_entry_with_an_epilogue_if_there_are_registers() -> None:
    plain, fused = choose_hopper(4096, 4096, 4096), choose_hopper(4096, 4096, 4096, fused=True)
    assert plain == fused
    wide = choose_hopper(8192, 8192, 8192)
    assert wide.accumulators > FUSED_ACCUMULATORS >= choose_hopper(8192, 8192, 8192, fused=True).accumulators


def test_a_residual_comes_in_place_where_it_can() -> None:
    config = choose_hopper(4096, 4096, 4096, fused=True, residual=True)
    assert config.residual_in_place
    assert not choose_hopper(4096, 4096, 4096, fused=True).residual_in_place
    assert not choose_hopper(4096, 4096, 4096, fused=True, residual=True, use_tma_store=False).residual_in_place


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("sizes", [(4096, 4097, 4096), (8191, 8191, 512), (300, 9001, 64)], ids=str)
def test_what_threads_store_assembles_without_loss(sizes, fused) -> None:
    """Rows of C that the copy engine cannot reach: no spill, and no multiplication that waits for the one before."""
    config = choose_hopper(*sizes, use_tma_store=False, a_type="f16", fused=fused)
    a, b = np.zeros((130, 72), np.float16), np.zeros((72, 131), np.float16)
    launch = warploom.matmul.bind(a, b, config=config, target="sm_90a", activation="relu" if fused else None)
    assert assemble_ok(launch).kernel().spill_stores == 0


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(
    "sizes", [(730, 12400, 2112), (346, 9456, 120), (4346, 11880, 432), (2176, 1464, 9576), (1345, 2416, 3144)], ids=str
)
def test_what_follows_a_product_assembles_without_loss(sizes, residual) -> None:
    """A bias, a fast activation and a residual in place, which are no problem of their own to tables and trees."""
    m, n, k = sizes
    wanted = sought("dense", m, n, k, a_type="bf16", c_type="bf16", followed=True, residual=residual)
    config = choose(wanted)
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
def test_what_was_measured_of_the_listed_shapes_is_what_is_chosen(what, row) -> None:
    """The numbers on the pages are of configurations; another model must not silently take others."""
    marks = {"fused": {"fused": True, "residual": True}, "mn_major": {"b_major": "mn"}}.get(what, {})
    config = choose_hopper(*row["shape"], a_type="bf16", **marks)
    tile, *words = row["config"].split(" ", 1)
    assert tile == f"{config.BM}x{config.BN}"
    told = " ".join(words)
    assert ("ping-pong" in told, "stream-K" in told, "swapped" in told) == (
        config.pingpong,
        config.stream_k,
        config.AB_swapped,
    )
    assert (f"{config.num_split_k} splits" in told) == (config.num_split_k > 1)
    assert (f"cluster {config.cluster_shape[:2]}" in told) == (config.cluster_shape != (1, 1, 1))


def test_a_residual_comes_through_narrower_strips() -> None:
    """Which the model knows: tiles of odd widths cost more with one."""
    odd, even = (HopperConfig(tile=(128, columns), pingpong=True) for columns in (176, 192))
    sizes = (3000, 3000, 128)
    lost = {}
    for residual in (False, True):
        wanted = replace(sought("dense", *sizes), residual=residual)
        times = expected_times(outlines_of([odd, even]), wanted)
        lost[residual] = times[0] / times[1]
    assert lost[True] > 1.1 * lost[False]


WANTED = [
    sought("dense", 1000, 1000, 1000, a_type="bf16", c_type="f32", a_major="mn", b_major="k"),
    sought("dense", 100, 4096, 4096, fused=True, residual=True, a_type="f16"),
    sought("dense", 77, 1680, 10128, use_tma_store=False),
    sought("grouped", 500, 4096, 512, 9, a_type="bf16"),
    sought("blockwise", 4096, 4096, 4096, a_type="e5m2", scale_type="bf16"),
]


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_a_configuration_is_told_by_its_row(wanted) -> None:
    for config in ranked(wanted):
        row = row_of(config, wanted)
        assert made(row, wanted) == config
        assert row.get("tile", (128, 128)) == config.tile
        assert not {"a_type", "c_type", "a_major", "registers", "stage_columns"} & row.keys()


def test_a_row_may_leave_out_what_is_usual() -> None:
    """As the winners of `warploom tune` do: a tile of 128 × 128 is not told."""
    wanted = sought("dense", 4096, 4096, 4096)
    rows = [{"pingpong": True}, {"AB_swapped": True, "tile": (128, 112)}, {}]
    found = list(candidates_of(rows, wanted, 132))
    assert [config.tile for config in found] == [(128, 128), (128, 112), (128, 128)]
    assert Outlines.of(rows).strip.tolist() == [config.stage_columns for config in found] == [64, 112, 128]


def test_candidates_are_ranked_by_the_model() -> None:
    wanted = sought("dense", 3000, 5000, 700, 3)
    times = expected_times(outlines_of(ranked(wanted)), wanted).tolist()
    assert times == sorted(times)
    assert len(times) > 40
    assert len(rows_for(sought("grouped", 640, 512, 512, 40))) > len(KINDS["grouped"].rows)


@pytest.mark.parametrize(("m", "tiles"), [(11 * 128, 132), (13 * 128, 156), (22 * 128, 264)])
def test_stream_k_is_for_waves_that_are_not_full(m: int, tiles: int) -> None:
    wanted = sought("dense", m, 12 * 128, 8192)
    found = [each for each in ranked(wanted) if each.stream_k and each.tile == (128, 128)]
    shares = [each for each in found if each.cluster_shape == (1, 1, 1)]
    assert bool(shares) == (tiles % 132 != 0)
    for each in shares:
        streamed, whole = expected_times(outlines_of([each, each.replace(stream_k=False)]), wanted)
        assert tiles / 264 < streamed / whole < 0.85


MEASURED = json.loads((BENCH / "results" / "hopper_configurations.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("kind", "a_type", "most"), [("grouped", "bf16", 0.05), ("blockwise", "e4m3", 0.05), ("dense", "e4m3", 0.08)]
)
def test_the_model_alone_chooses_well_among_what_was_measured(kind, a_type, most) -> None:
    """Problems of the table would be found in it; the model is asked as if they were not there."""
    rows = [row for row in MEASURED["rows"] if (row["kind"], row["a_type"]) == (kind, a_type)]
    assert len(rows) >= 3
    for row in rows:
        wanted = sought(kind, *row["shape"], row["count"], a_type=a_type)
        us = {
            made({n: tuple(v) if isinstance(v, list) else v for n, v in MEASURED["configs"][name].items()}, wanted): us
            for name, us in row["us"].items()
        }
        times = dict(zip(us, expected_times(outlines_of(list(us)), wanted), strict=True))
        assert us[min(times, key=times.__getitem__)] / min(us.values()) - 1 < most
