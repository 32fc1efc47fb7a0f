"""Chosen configurations on disk, valid as long as the library's source does not change."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from warploom.runtime.cache.disk import user_cache
from warploom.runtime.cache.fingerprint import source_version

_KNOWN: dict[tuple[object, ...], dict[str, Any]] = {}
"""Answers of this process, by the place on disk and the key."""
_MOST = 4096


def found_before(question: str, search: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the stored answer to a question, or the result of the search, which is then stored."""
    cache, version = user_cache(), source_version()
    if version is None:
        return search()
    key = ("choice", question, version)
    known = (cache.folder, cache.limit, *key)
    if known in _KNOWN:
        return _KNOWN[known]
    answer = _read(cache.get(key))
    if answer is None:
        text = json.dumps(search())
        cache.put(key, text.encode())
        answer = _read(text.encode()) or {}
    if len(_KNOWN) >= _MOST:
        _KNOWN.clear()
    _KNOWN[known] = answer
    return answer


def _read(kept: bytes | None) -> dict[str, Any] | None:
    """Return a stored answer; None for anything else."""
    try:
        answer = None if kept is None else json.loads(kept)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
