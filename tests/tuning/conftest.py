"""Fixtures of the tuning tests: a fake GPU and a private cache."""

from __future__ import annotations

import pytest
from tests.tuning.fake_gpu import TimingLibrary

from warploom.runtime.gpu import driver, loading
from warploom.tuning import stopwatch


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WARPLOOM_TUNED", raising=False)
    monkeypatch.delenv("WARPLOOM_TIMEOUT", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def gpu(monkeypatch):
    library = TimingLibrary()
    monkeypatch.setattr(driver, "load_library", lambda: library)
    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(loading, "_fitting_ptxas", lambda *_: None)  # the driver assembles, and takes no time
    monkeypatch.setattr(stopwatch, "_STREAMS", {})
    cached = (driver.driver, driver.device, driver.device_count)
    for each in cached:
        each.cache_clear()
    yield library
    for each in cached:
        each.cache_clear()
