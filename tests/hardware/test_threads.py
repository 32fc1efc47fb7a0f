"""Launches from several threads, which share the cache of modules and programs."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from warploom.machine.translate.prepared import Kept


@pytest.fixture
def eager_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_the_cache_is_used_by_several_threads():
    cache = Kept(40)

    def fill(first: int) -> None:
        for number in range(first, first + 2000):
            cache.put(number, number, 3)
            assert cache.get(number) in (None, number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(0, 8000, 2000)))
    kept = [number for number in range(8000) if cache.get(number) is not None]
    assert 0 < len(kept) <= 40 // 3
