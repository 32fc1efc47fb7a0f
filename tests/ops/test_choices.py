"""Configurations chosen by an earlier process: cached, equal to a new choice, and dropped with the library version."""

from __future__ import annotations

import random
from importlib import import_module

import pytest

from warploom.heuristics import Device, choose, key_of
from warploom.ops.planning import planner
from warploom.runtime.cache import choices
from warploom.runtime.cache.disk import user_cache
from warploom.runtime.gpu.driver import Gpu

fingerprints = import_module("warploom.runtime.cache.fingerprint")
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
    draw = random.Random()
    for _ in range(6):
        m, n, k = draw.randrange(1, 5000), 8 * draw.randrange(1, 600), 8 * draw.randrange(1, 600)
        kind = draw.choice(({}, {"fused": True}, {"residual": True}, {"a_type": "e4m3", "b_type": "e4m3"}))
        wanted = key_of("dense", m, n, k, **kind)
        first, second = planner._sm90_config(wanted, H200), planner._sm90_config(wanted, H200)
        assert first == second == choose(wanted, Device.of(H200))
        assert searches == [wanted]
        searches.clear()


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
