"""Fixtures of the runtime's tests: a fake driver and a private cache."""

from __future__ import annotations

import pytest

from warploom.runtime.gpu import driver as module
from warploom.runtime.gpu import launching as shaped
from warploom.runtime.gpu import loading


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """A temporary cache on disk."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def install(monkeypatch):
    """Put a library, or an error, in the place of NVIDIA's."""
    cached = (module.driver, module.device, module.device_count)

    def put(library):
        def load():
            if isinstance(library, Exception):
                raise library
            return library

        monkeypatch.setattr(module, "load_library", load)
        for each in cached:
            each.cache_clear()
        return library

    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(shaped, "_SHAPES", {})
    yield put
    for each in cached:
        each.cache_clear()
