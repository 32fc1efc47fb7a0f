"""Time stamps of roles: on both targets and all schedules, without any code when there is no buffer."""

from __future__ import annotations

import json
from math import prod

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import accepted

import warploom as wl
from warploom.host.program import text_of
from warploom.kernels.call import Call
from warploom.kernels.sm90.binding import FAMILIES as HOPPER
from warploom.kernels.sm100.binding import FAMILIES as BLACKWELL
from warploom.structured import HopperConfig, MatmulConfig, Problem, Span, TimeStamps, chrome_trace, spans
from warploom.structured.epilogue.epilogue import Epilogue

CONFIGS = {
    "sm_100a": (BLACKWELL["gemm"], MatmulConfig(cta_group=1, mma_shape=(64, 32, 16))),
    "sm_100a, static": (BLACKWELL["gemm"], MatmulConfig(cta_group=2, mma_shape=(256, 32, 16), scheduler="static")),
    "sm_90a": (HOPPER["matmul"], HopperConfig(tile=(64, 32), consumers=1)),
    "sm_90a, ping-pong": (HOPPER["matmul"], HopperConfig(tile=(64, 32), pingpong=True)),
}
M, N, K = 130, 100, 136


def bound_of(name, tiles=0, sms=4):
    """A launch with room for some tiles of each role, the buffer, and the arrays."""
    family, config = CONFIGS[name]
    rng = np.random.default_rng()
    a, b = (rng.integers(-2, 3, (rows, K)).astype(ml_dtypes.bfloat16) for rows in (M, N))
    d = np.full((M, 104), np.nan, ml_dtypes.bfloat16)[:, :N]
    call = Call(config=config, problem=Problem(M, N, K), a=a, b=b, d=d)
    grid = family.grid(call, sms)
    trace = np.zeros((prod(grid), len(config.roles), tiles, 2), np.uint64)
    bound = family.kernel.bind(
        *family.arguments(call),
        grid=grid,
        block=(config.threads, 1, 1),
        cluster=config.cluster_shape,
        config=config,
        epilogue=Epilogue(),
        **({"trace": trace} if tiles else {}),
    )
    return bound, trace, d, a.astype(float) @ b.astype(float).T


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_role_records_its_tiles(name, schedule):
    bound, trace, d, wanted = bound_of(name, tiles=20)
    wl.launch(bound, schedule=schedule, seed=2, sms=4)
    assert (d.astype(float) == wanted.astype(d.dtype).astype(float)).all()
    config = CONFIGS[name][1]
    found = spans(trace, config.roles)
    tiles = prod(config.grid(Problem(M, N, K))) if isinstance(config, MatmulConfig) else 3 * 4
    for role in set(config.roles) - {"scheduler"}:  # of both warpgroups, where they alternate
        assert sum(each.role == role for each in found) == tiles, role
        numbers = {each.cta: set[int]() for each in found}
        for each in found:
            numbers[each.cta] |= {each.tile} if each.role == role else set()
        assert all(one == set(range(len(one))) for one in numbers.values())
    assert all(each.begin < each.end for each in found)
    last = {"sm_100a": "epilogue", "sm_90a": "consume"}[name[:7].rstrip(",")]
    for each in found:  # nothing is written before it was loaded
        if each.role == last and each.tile == 0:
            assert any(one.role == "load" and one.cta == each.cta and one.begin < each.end for one in found)


def test_tiles_that_do_not_fit_are_left_out():
    bound, trace, *_ = bound_of("sm_90a", tiles=1, sms=1)
    wl.launch(bound, sms=1)
    assert {each.tile for each in spans(trace, CONFIGS["sm_90a"][1].roles)} == {0}


@pytest.mark.parametrize("name", CONFIGS)
def test_ptxas_accepts_the_time_stamps(name):
    assert "mov.u64" in accepted(bound_of(name, tiles=2)[0])


@pytest.mark.parametrize("name", CONFIGS)
def test_without_a_buffer_the_kernel_is_the_same(name, monkeypatch):
    text = text_of(bound_of(name)[0].program)
    assert "globaltimer" not in text
    assert "globaltimer" in text_of(bound_of(name, tiles=2)[0].program)
    monkeypatch.setattr(TimeStamps, "each", lambda self, tiles: iter(tiles))
    assert text_of(bound_of(name)[0].program) == text


def test_chrome_shows_a_process_per_cta_and_a_thread_per_role():
    made = json.loads(chrome_trace([Span(3000, 5500, 1, "load", 0)]))
    assert made["traceEvents"] == [{"name": "tile 0", "ph": "X", "ts": 3.0, "dur": 2.5, "pid": 1, "tid": "load"}]


def test_a_kernel_with_time_stamps_is_proved():
    bound, *_ = bound_of("sm_100a", tiles=4)
    assert wl.check(bound, profile="strict").verdict == "PROVED"
