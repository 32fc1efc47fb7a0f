"""Chosen configurations on disk, valid as long as the library's source does not change."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from warploom.runtime.cache.disk import user_cache
from warploom.runtime.cache.fingerprint import source_version


def found_before(question: str, search: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the stored answer to a question, or the result of the search, which is then stored."""
    cache, version = user_cache(), source_version()
    if version is None:
        return search()
    key = ("choice", question, version)
    answer = _read(cache.get(key))
    if answer is None:
        text = json.dumps(search())
        cache.put(key, text.encode())
        answer = _read(text.encode()) or {}
    return answer


def _read(kept: bytes | None) -> dict[str, Any] | None:
    """Return a stored answer; None for anything else."""
    try:
        answer = None if kept is None else json.loads(kept)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
