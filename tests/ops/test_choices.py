"""Configurations chosen by an earlier process: cached, equal to a new choice, and dropped with the library version."""

from __future__ import annotations

import random
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest

from warploom.heuristics import Device, choose, key_of, shared
from warploom.ops.dense import matmul
from warploom.ops.planning import planner
from warploom.ops.planning.arrays import ArrayDescriptor, Violations
from warploom.runtime.cache import choices
from warploom.runtime.cache.disk import user_cache
from warploom.runtime.gpu.driver import Gpu

fingerprints = import_module("warploom.runtime.cache.fingerprint")
BF16 = np.dtype(ml_dtypes.bfloat16)
H200 = Gpu("NVIDIA H200", (9, 0), 132, 140 << 30)


@pytest.fixture(autouse=True)
def searches(monkeypatch, tmp_path):
    """Record the searches, on a fake GPU with an empty cache."""
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fingerprints, "_IMPORTED", 1 << 62)
    version = fingerprints.source_version
    version.cache_clear()
    asked = []
    monkeypatch.setattr(planner, "choose", lambda wanted, device: asked.append(wanted) or choose(wanted, device))
    yield asked
    version.cache_clear()


def test_a_choice_is_made_once_and_is_the_same(searches):
    for n in random.sample(range(8, 4800, 8), 6):  # no two alike: a choice that is known is not searched for
        m, k = random.randrange(1, 5000), 8 * random.randrange(1, 600)
        kind = random.choice(({}, {"fused": True}, {"residual": True}, {"a_type": "e4m3", "b_type": "e4m3"}))
        wanted = key_of("dense", m, n, k, **kind)
        first, second = planner._sm90_config(wanted, H200), planner._sm90_config(wanted, H200)
        common = shared(wanted, Device.of(H200))
        assert first == second == choose(common, Device.of(H200))
        assert searches == [common]
        choices._KNOWN.clear()  # as in another process
        assert planner._sm90_config(wanted, H200) == first
        assert searches == [common]
        searches.clear()


def test_most_sizes_share_the_choice_of_another(searches):
    sizes = [random.randrange(513, 641) for _ in range(100)]
    for m in sizes:
        planner._sm90_config(key_of("dense", m, 512, 1024), H200)
    assert {each.m for each in searches} == {-(-m // 8) * 8 for m in sizes}
    assert len(searches) <= 16


def described(m, n, k):
    shapes = {"a": (m, k), "b": (k, n), "out": (m, n)}
    strides = {"b": (2, 2 * k)}
    return {
        name: ArrayDescriptor(name, shape, strides.get(name, (2 * shape[1], 2)), BF16, 1 << 20, "cuda:0")
        for name, shape in shapes.items()
    }


def test_a_shared_choice_that_does_not_fit_is_made_for_the_exact_sizes(searches, monkeypatch):
    """Splits of 24 rows that wait for each other may be resident; those of 17 are planned by themselves."""
    exact = choose(key_of("dense", 17, 512, 1024), Device.of(H200))
    unfit = exact.replace(num_split_k=999)
    choose_real = planner.choose
    monkeypatch.setattr(planner, "choose", lambda key, on: unfit if key.m == 24 else choose_real(key, on))
    request = matmul.request(described(17, 512, 1024) | {"target": "sm_90a"}, Violations("matmul"), gpu=H200)
    planned = planner.plan(request, Violations("matmul"))
    assert [each.m for each in searches] == [17]
    assert planned.launch is not None


def test_other_gpus_and_versions_choose_again(searches, monkeypatch):
    wanted = key_of("dense", 333, 512, 1024)
    planner._sm90_config(wanted, H200)
    planner._sm90_config(wanted, Gpu("another", (9, 0), 78, 1))
    monkeypatch.setattr(choices, "source_version", lambda: "another")
    planner._sm90_config(wanted, H200)
    planner._sm90_config(wanted, H200)
    assert len(searches) == 3
    monkeypatch.setattr(choices, "source_version", lambda: None)
    planner._sm90_config(wanted, H200)
    assert len(searches) == 4


@pytest.mark.parametrize("junk", [b"", b"[]", b"\xff", b"{"])
def test_a_damaged_cache_entry_is_replaced(junk):
    user_cache().put(("choice", "what", fingerprints.source_version()), junk)
    for answer in ({"tile": [1, 2]}, {"tile": [3, 4]}):
        assert choices.found_before("what", lambda answer=answer: answer) == {"tile": [1, 2]}
