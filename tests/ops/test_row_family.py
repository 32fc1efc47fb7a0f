"""Calls with other numbers of rows: resized plans equal those made from the start, and kernels are built later."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.fake_driver import FakeLibrary

from warploom.heuristics import Device, choose, rounded_rows
from warploom.heuristics.sm90 import ranking
from warploom.heuristics.sm90.cost_model import CandidateArrays
from warploom.ops import gated_linear, linear
from warploom.ops.determinism import determinism
from warploom.ops.planning import planner
from warploom.ops.planning.arrays import ArrayDescriptor, Violations
from warploom.ops.planning.prepare import launch_of
from warploom.ops.planning.row_family import RowFamily
from warploom.runtime import waits
from warploom.runtime.background import SWITCH, worker
from warploom.runtime.gpu import driver, loading
from warploom.runtime.gpu.prepared import Prepared
from warploom.structured.config import HopperConfig

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(autouse=True)
def gpu(monkeypatch, tmp_path):
    """A fake H200, and an assembler that returns nothing useful, but counts."""
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(SWITCH, raising=False)
    library = FakeLibrary()
    monkeypatch.setattr(driver, "load_library", lambda: library)
    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(loading, "_fitting_ptxas", lambda *_: "ptxas")
    monkeypatch.setattr(loading, "assemble", lambda *_, **__: SimpleNamespace(losses=(), cubin=b"cubin"))
    cached = (driver.driver, driver.device, driver.device_count)
    for each in cached:
        each.cache_clear()
    waits.reset()
    yield driver.device(0)
    assert worker().wait(60)
    for each in cached:
        each.cache_clear()


def array(name, *shape, at=1, dtype=BF16):
    strides = tuple(dtype.itemsize * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    return ArrayDescriptor(name, shape, strides, dtype, at << 32, "cuda:0")


def plan_of(gpu, operation, arguments, **options):
    """Return a function from m to the plan of a call from the start."""

    def plan(m):
        given = {
            name: array(name, *(m if e == "m" else e for e in shape), at=2 + at)
            for at, (name, shape) in enumerate(arguments.items())
        }
        violations = Violations(operation.__name__)
        request = operation.request({**given, **options, "target": gpu.target}, violations, gpu=gpu.gpu)
        made = launch_of(planner.plan(request, violations), operation.__name__, given)
        return made, Prepared(made.launch, tuple(made.arrays.values()), device=gpu)

    return plan


def family_of(gpu, plan, *sizes):
    family = RowFamily(gpu, plan)
    for m in sizes:
        family.add(m, *plan(m))
    return family


LINEAR = {"x": ("m", 512), "w": (384, 512), "out": ("m", 384)}
CALLS = {
    "plain": (linear, LINEAR, {}),
    "swapped": (linear, LINEAR, {"config": HopperConfig(tile=(128, 64), AB_swapped=True)}),
    "ping-pong": (linear, LINEAR, {"config": HopperConfig(tile=(128, 128), pingpong=True)}),
    "cluster": (linear, LINEAR, {"config": HopperConfig(tile=(128, 128), cluster_shape=(2, 1, 1))}),
    "split in a cluster": (linear, LINEAR, {"config": HopperConfig(tile=(128, 64), num_split_k=2)}),
    "split in memory": (
        linear,
        LINEAR,
        {"config": HopperConfig(tile=(128, 64), num_split_k=4, split_in_cluster=False)},
    ),
    "stream-K": (linear, LINEAR, {"config": HopperConfig(tile=(128, 128), stream_k=True)}),
    "stored by threads": (linear, {"x": ("m", 512), "w": (381, 512), "out": ("m", 381)}, {}),
    "bias, gelu, residual": (
        linear,
        {"x": ("m", 512), "w": (384, 512), "bias": (384,), "residual": ("m", 384), "out": ("m", 384)},
        {"activation": "gelu_tanh"},
    ),
    "column": (linear, {"x": ("m", 512), "w": (384, 512), "residual": ("m", 1), "out": ("m", 384)}, {}),
    "gated": (gated_linear, {"x": ("m", 512), "w_gate": (384, 512), "w_up": (384, 512), "out": ("m", 384)}, {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_resized_call_equals_one_that_is_planned_from_the_start(gpu, name):
    operation, arguments, options = CALLS[name]
    plan = plan_of(gpu, operation, arguments, **options)
    first = 200 if name == "split in memory" else random.choice([200, 300, 1000])
    family = family_of(gpu, plan, first)
    assert family._bases, "the call can be resized"
    config = next(iter(family._bases))
    for m in (2, 3, first - 1, first + 1, 127, 129, *random.sample(range(2, 300 if first == 200 else 1500), 3)):
        if m in (384, 512, 381) or not family._bases[config].takes(m):
            continue
        made, prepared = plan(m)
        if made.call.config == config:
            assert family._bases[config].resized(m).signature() == prepared.signature(), m


def test_other_calls_are_not_resized(gpu):
    """Copies, batches, one row, and an m that is also n or k."""
    batched = {"x": (3, "m", 512), "w": (384, 512), "out": (3, "m", 384)}
    copied = {"x": ("m", 511), "w": (384, 511), "out": ("m", 384)}
    for arguments, m in ((LINEAR, 1), (LINEAR, 384), (LINEAR, 512), (copied, 100), (batched, 100)):
        plan = plan_of(gpu, linear, arguments)
        family = family_of(gpu, plan)
        made, prepared = plan(m)
        family.add(m, made, prepared)
        assert not family._bases, (arguments, m)
        assert family.find(m + 1, may_substitute=True) is None


def test_an_m_of_a_known_class_gets_its_kernel_at_once(gpu):
    plan = plan_of(gpu, linear, LINEAR)
    family = family_of(gpu, plan, 1000)
    m = 999
    assert rounded_rows(m) == rounded_rows(1000)
    before = loading.loaded_count()
    found = family.find(m, may_substitute=False)
    assert found.is_final
    assert found.prepared.signature() == plan(m)[1].signature()
    assert loading.loaded_count() == before
    assert waits.summary().at_hand == 1


def test_a_new_class_runs_with_the_nearest_kernel_until_its_own_is_built(gpu):
    plan = plan_of(gpu, linear, LINEAR)
    family = family_of(gpu, plan, 1000, 6)
    own = plan(7)[0].call.config
    assert own != plan(1000)[0].call.config
    first = family.find(2000, may_substitute=True)
    assert not first.is_final
    assert first.prepared.loaded is plan(1000)[1].loaded
    assert worker().wait(60)
    later = family.find(2000, may_substitute=True)
    assert later.is_final
    assert later.prepared.signature() == plan(2000)[1].signature()
    assert family.find(1999, may_substitute=True).is_final  # of the same class
    assert waits.summary().substituted == 1


def test_a_call_that_cannot_be_resized_does_not_keep_its_substitute(gpu):
    """With as many rows as K has elements, two axes of an array look the same."""
    plan = plan_of(gpu, linear, LINEAR)
    family = family_of(gpu, plan, 6)
    assert plan(512)[0].call.config != plan(6)[0].call.config
    assert not family.find(512, may_substitute=True).is_final
    assert worker().wait(60)
    assert family.find(512, may_substitute=True) is None
    family.add(511, *plan(511))  # of the same class
    assert family.find(512, may_substitute=True).prepared.loaded is plan(512)[1].loaded


def test_without_substitutes_a_new_class_is_planned_by_the_caller(gpu, monkeypatch):
    family = family_of(gpu, plan_of(gpu, linear, LINEAR), 1000)
    assert family.find(2000, may_substitute=False) is None
    monkeypatch.setenv(SWITCH, "0")
    assert family.find(2000, may_substitute=True) is None
    assert waits.summary().substituted == 0


def test_a_build_that_fails_is_reported_and_the_substitute_stays(gpu):
    plan = plan_of(gpu, linear, LINEAR)
    family = family_of(gpu, plan, 1000)

    def fail(m):
        raise RuntimeError(f"no kernel for {m} rows")

    family._plan = fail
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert not family.find(2000, may_substitute=True).is_final
        assert worker().wait(60)
    assert [str(each.message).rpartition(": ")[2] for each in seen] == ["no kernel for 2000 rows"]
    found = family.find(2000, may_substitute=True)
    assert found.is_final
    assert found.prepared.loaded is plan(1000)[1].loaded


def test_a_setting_that_changes_meanwhile_is_not_mixed_in(gpu):
    """A family of split kernels gets none that was planned with `batch_invariant`, and the other way round."""
    plan = plan_of(gpu, linear, {"x": ("m", 8192), "w": (256, 8192), "out": ("m", 256)})
    family = family_of(gpu, plan, 100)
    assert next(iter(family._bases)).is_split
    with determinism(batch_invariant=True):
        family.find(1000, may_substitute=True)
        assert worker().wait(60)
    assert all(key.is_split for key in family._bases)
    assert rounded_rows(1000) not in family._choices


def test_splits_in_memory_take_only_as_many_rows_as_are_resident(gpu):
    config = HopperConfig(tile=(128, 64), num_split_k=4, split_in_cluster=False)
    family = family_of(gpu, plan_of(gpu, linear, LINEAR, config=config), 200)
    assert family.find(200, may_substitute=True).is_final
    assert family.find(4000, may_substitute=True) is None


def test_a_new_class_shares_a_loaded_kernel_that_is_about_as_fast(gpu):
    """Its own kernel is built only if it is expected to be more than 2 % faster."""
    plan = plan_of(gpu, linear, {"x": ("m", 4096), "w": (2048, 4096), "out": ("m", 2048)})
    family = family_of(gpu, plan, 700)
    device = Device(gpu.gpu.name, gpu.gpu.sms)
    shared, sizes = 0, random.sample(range(513, 1025), 24)
    for m in sizes:
        loaded = {config for config, base in family._bases.items() if base.takes(m)}
        family.find(m, may_substitute=True)
        assert worker().wait(60)
        key = replace(family._like, m=rounded_rows(m))
        own, found = choose(key, device), family._choices[rounded_rows(m)]
        times = ranking._corrected_times(CandidateArrays.of_configs([own, *loaded]), key, device)
        if found in loaded and found != own:
            shared += 1
            assert times[0] < min(times[1:]) <= 1.02 * times[0]
        elif own not in loaded:
            assert found == own
            assert min(times[1:]) > 1.02 * times[0]
    assert shared
    assert len(family._bases) < len({choose(replace(family._like, m=rounded_rows(m)), device) for m in (700, *sizes)})
