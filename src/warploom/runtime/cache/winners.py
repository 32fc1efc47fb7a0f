"""The fastest configurations that this user has measured, by GPU and problem: on disk, separate from the cubins.

Entries are small JSON files, written atomically; a damaged one counts as missing.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from time import monotonic
from typing import Any

from warploom.diagnostics import Diag
from warploom.runtime.cache.disk import DIRECTORY, SIZE, Cache, user_cache

SWITCH = "WARPLOOM_TUNED"
_FOLDER = "tuned"
_LOOK_SECONDS = 0.5
_LOOKED: dict[str, tuple[float, bool]] = {}
"""The folder that was last looked for, when, and whether it was there."""
_MOST_BYTES = 16 << 20
"""A limit of its own: a cubin can be assembled again quickly, while measuring takes long."""


def remember(gpu: str, problem: str, winner: dict[str, Any]) -> bool:
    """Store the winner of a problem, replacing an earlier one; return True if it was stored."""
    cache, text = _cache(), json.dumps(winner)
    if cache is None:
        return False
    cache.put(_key(gpu, problem), text.encode())
    _LOOKED.clear()
    kept: dict[str, Any] = json.loads(text)
    return recall(gpu, problem) == kept


def recall(gpu: str, problem: str) -> dict[str, Any] | None:
    """Return the winner of a problem on GPUs of that name, if one was measured."""
    cache = _cache()
    found = cache.get(_key(gpu, problem)) if cache is not None else None
    try:
        winner = None if found is None else json.loads(found)
    except ValueError:
        return None
    return winner if isinstance(winner, dict) else None


def has_any() -> bool:
    """Return whether this user has tuned anything; without it no problem needs to be looked up.

    What another process tunes is noticed within `_LOOK_SECONDS`: a look at the disk gives up Python's lock, and a call
    would wait until another thread returns it.
    """
    folder = _folder(os.environ.get(SWITCH, "1"), os.environ.get(DIRECTORY), os.environ.get(SIZE))
    if folder is None:
        return False
    now, (last, found) = monotonic(), _LOOKED.get(folder, (-_LOOK_SECONDS, False))
    if now - last >= _LOOK_SECONDS:
        found = os.path.isdir(folder)  # noqa: PTH112  several times as fast as pathlib's
        _LOOKED.clear()
        _LOOKED[folder] = (now, found)
    return found


@lru_cache(8)
def _folder(*environment: str | None) -> str | None:
    """Return the folder of the winners, which the environment decides."""
    cache = _cache()
    return None if cache is None else str(cache.folder)


def _key(gpu: str, problem: str) -> tuple[str, ...]:
    return ("winner", gpu, problem)


def _cache() -> Cache | None:
    """Return the cache of winners; None if the environment disables it."""
    switch = os.environ.get(SWITCH, "1")
    if switch not in ("0", "1"):
        raise Diag.BAD_SETTING.error(variable=SWITCH, value=switch, what="0 forgets what was tuned, 1 takes it")
    user = user_cache()
    return Cache(user.folder / _FOLDER, _MOST_BYTES) if switch == "1" and user.limit else None
