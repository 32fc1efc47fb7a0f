"""Stream-K on Blackwell: tiles of the last wave are divided among CTAs, plain and gated, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok
from tests.ops.references import exact, integers, plan_on, poisoned

import warploom as wl
from warploom.runtime.gpu.driver import Gpu
from warploom.structured.config import MatmulConfig, Problem
from warploom.structured.schedulers.tile_scheduler import launch_grid

SCHEDULES = ["eager", "lazy", "reverse", "random"]


def config_of(group=1, rows=64, columns=32, **fields):
    return MatmulConfig(cta_group=group, mma_shape=(rows, columns, 16), c_type="f32", stream_k=True, **fields)


def planned(config, m, n, k, *, sms, gated=False, batch=()):
    """A launch for a GPU with so many SMs, its result, and what that must be."""
    out, residual = poisoned((*batch, m, n), np.float32), integers(*batch, m, n, dtype=np.float32)
    options = {"residual": residual, "config": config, "out": out, "target": "sm_100a"}
    gpu = Gpu("", (10, 0), sms, 0)
    if gated:
        x, gate, up = (integers(rows, k, largest=1) for rows in (m, n, n))
        plan = plan_on(gpu, wl.gated_linear, x, gate, up, pair=lambda one, two: one * two, **options)
        return plan.launch, out, (exact(x) @ exact(gate).T) * (exact(x) @ exact(up).T) + residual
    a, b = integers(*batch, m, k), integers(*batch, k, n)
    return plan_on(gpu, wl.matmul, a, b, **options).launch, out, exact(a) @ exact(b) + residual


def check(launched, out, wanted, schedules, *, sms, seed=0):
    for schedule in schedules:
        out[...] = np.nan
        wl.launch(launched, schedule=schedule, seed=seed, sms=sms)
        np.testing.assert_array_equal(out, wanted)


CASES = {
    "a tile for several CTAs": (config_of(), 20, 24, 520, {"sms": 5}),
    "three tiles, two CTAs": (config_of(), 130, 24, 200, {"sms": 2}),
    "whole waves, then parts": (config_of(), 300, 40, 136, {"sms": 3}),
    "CTA pairs": (config_of(2, 256), 130, 72, 264, {"sms": 6}),
    "gated": (config_of(columns=64), 70, 72, 264, {"sms": 4, "gated": True}),
    "gated, swapped": (config_of(AB_swapped=True), 20, 200, 264, {"sms": 3, "gated": True}),
    "gated, folded pairs": (config_of(2, 128, 64), 70, 40, 264, {"sms": 6, "gated": True}),
    "batches in clusters": (config_of(cluster_shape=(2, 2, 1)), 130, 40, 136, {"sms": 8, "batch": (2,)}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_schedule(name):
    config, m, n, k, options = CASES[name]
    check(*planned(config, m, n, k, **options), SCHEDULES, sms=options["sms"])


@st.composite
def configurations(draw):
    group, rows = draw(st.sampled_from([(1, 64), (1, 128), (2, 128), (2, 256)]))
    fields = {"AB_swapped": draw(st.booleans()), "k_group_size": draw(st.sampled_from([1, 2]))}
    return config_of(group, rows, draw(st.sampled_from([32, 64])), **fields)


@settings(max_examples=8, deadline=None)
@given(configurations(), st.integers(1, 140), st.integers(1, 12), st.integers(1, 60), st.integers(1, 9), st.booleans(),
       st.sampled_from(SCHEDULES))  # fmt: skip
def test_any_configuration(config, m, n, k, sms, gated, schedule):
    check(*planned(config, m, 8 * n, 8 * k, sms=sms, gated=gated), [schedule], sms=sms)


@pytest.mark.parametrize("name", ["three tiles, two CTAs", "gated"])
def test_it_is_proved_and_assembles_without_a_spill(name):
    config, m, n, k, options = CASES[name]
    launched, *_ = planned(config, m, n, k, **options)
    assert wl.check(launched).verdict == "PROVED"
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(launched).kernels)


def test_every_cta_has_work():
    """As many CTAs as the GPU has, also for one tile, but no more than there are K tiles."""
    assert launch_grid(config_of(), Problem(20, 24, 520), 148) == (9, 1, 1)
    assert launch_grid(config_of(), Problem(130, 24, 520), 5) == (5, 1, 1)


def test_a_batch_invariant_result_is_not_streamed():
    with wl.determinism(batch_invariant=True), pytest.raises(wl.WarploomError, match="stream_k=True"):
        wl.matmul(integers(8, 64), integers(64, 8), config=config_of())
