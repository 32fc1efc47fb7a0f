"""`grouped_matmul` with a list of weights: tensor maps that the kernel makes, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok
from tests.ops.references import BF16, exact, integers, poisoned

import warploom as wl
from warploom.diagnostics import LaunchError
from warploom.host.program import text_of
from warploom.ops.planning.arrays import ArrayDescriptor, Violations, leaves, mapped
from warploom.ops.planning.planner import plan
from warploom.ops.planning.prepare import launch_of
from warploom.runtime.gpu.driver import Gpu
from warploom.structured.config import HopperConfig, MatmulConfig

SCHEDULES = ["eager", "lazy", "reverse", "random"]
CONFIGS = {
    "one CTA": MatmulConfig(cta_group=1, mma_shape=(64, 32, 16)),
    "CTA pairs": MatmulConfig(cta_group=2, mma_shape=(256, 32, 16)),
    "swapped": MatmulConfig(cta_group=1, mma_shape=(128, 16, 16), AB_swapped=True),
    "Hopper": HopperConfig(tile=(64, 32), consumers=1),
    "Hopper, cluster": HopperConfig(tile=(128, 32), cluster_shape=(1, 2, 1)),
    "Hopper, ping-pong": HopperConfig(tile=(64, 64), pingpong=True),
    "Hopper, swapped": HopperConfig(tile=(64, 24), consumers=1, AB_swapped=True),
}


def bound_of(rows, n, k, ends, ids, config, *, transposed=False, largest=3, count=3):
    a = integers(rows, k, largest=largest)
    weights = [integers(n, k).T if transposed else integers(k, n) for _ in range(count)]
    out = poisoned((rows, n), np.float32)
    bound = wl.grouped_matmul.bind(a, weights, np.array(ends), expert_ids=np.array(ids), out=out, config=config)
    wanted = poisoned((rows, n), np.float32)
    for start, end, expert in zip((0, *ends), ends, ids, strict=False):
        if expert >= 0:
            wanted[start:end] = exact(a[start:end]) @ exact(weights[expert])
    return bound, out, wanted


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CONFIGS)
def test_ids_that_are_permuted_repeated_and_inactive(name, schedule):
    bound, out, wanted = bound_of(70, 72, 136, [20, 21, 40, 70], [2, 0, -1, 2], CONFIGS[name])
    wl.launch(bound, schedule=schedule, seed=1, sms=2)  # a CTA has tiles of several groups
    np.testing.assert_array_equal(out, wanted)
    text = text_of(bound.program)
    assert "tensormap.replace.tile.global_address" in text
    assert "fence.proxy.tensormap::generic.acquire.gpu" in text


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_groups(data):
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    ids = [data.draw(st.integers(-1, 2)) for _ in sizes]
    config, transposed = CONFIGS[data.draw(st.sampled_from(list(CONFIGS)))], data.draw(st.booleans())
    rows = sum(sizes) + data.draw(st.integers(1, 9))
    bound, out, wanted = bound_of(rows, 40, 72, np.cumsum(sizes).tolist(), ids, config, transposed=transposed)
    wl.launch(bound, schedule=data.draw(st.sampled_from(SCHEDULES)), sms=3)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("name", ["one CTA", "Hopper"])
def test_it_is_proved_and_assembles_without_a_spill(name):
    bound, *_ = bound_of(70, 40, 72, [20, 70], [1, 0], CONFIGS[name])
    report = wl.check(bound, profile="strict")
    assert report.verdict == "PROVED", str(report)
    assemble_ok(bound)


def test_weights_that_no_common_map_describes_are_refused():
    a, ends, first = integers(8, 32), np.array([3, 8]), integers(32, 16)
    cases = {
        r"`b\[1\]` must have the shape, type and strides of `b\[0\]`": [first, integers(32, 24)],
        r"`b\[1\]` must have 2 axes, not 1": [first, integers(32)],
        r"`b\[0\]` must be aligned to 16 bytes": [integers(32, 17)[:, :16], integers(32, 17)[:, :16]],
        "must have at least one matrix": [],
    }
    for message, weights in cases.items():
        with pytest.raises(LaunchError, match=message):
            wl.grouped_matmul(a, weights, ends)
    assert a.dtype == BF16


def test_arrays_of_a_gpu_are_planned_without_copies():
    given = {"a": integers(70, 64), "b": {str(at): integers(64, 40) for at in range(3)}, "ends": np.zeros(3, np.int32)}
    given["out"] = poisoned((70, 40), BF16)
    roots = {
        path: ArrayDescriptor(path, array.shape, array.strides, array.dtype, 4096 * number, "cuda:0")
        for number, (path, array) in enumerate(leaves(given), 1)
    }
    violations = Violations("grouped_matmul")
    described = mapped(given, lambda path, _: roots[path])
    request = wl.grouped_matmul.request(
        {**described, "target": "sm_90a"}, violations, gpu=Gpu("NVIDIA H200", (9, 0), 132, 1 << 37)
    )
    made = launch_of(plan(request, violations), "grouped_matmul", roots)
    assert set(roots) == {"a", "b.0", "b.1", "b.2", "ends", "out"}
    assert (made.copied, made.unused) == ((), ())
