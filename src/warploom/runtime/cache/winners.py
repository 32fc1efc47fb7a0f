"""What this user has measured to be fastest, by GPU and problem: kept on disk, beside the cubins and apart from them.

Entries are small files of JSON, written whole or not at all; one that is not what was written counts as none.
"""

from __future__ import annotations

import json
import os
from typing import Any

from warploom.diagnostics import Diag
from warploom.runtime.cache.disk import Cache, user_cache

SWITCH = "WARPLOOM_TUNED"
_FOLDER = "tuned"
_MOST_BYTES = 16 << 20
"""Apart from the limit of what can be assembled again in a moment: measuring takes longer."""


def remember(gpu: str, problem: str, winner: dict[str, Any]) -> bool:
    """Keep the winner of a problem, in the place of an earlier one; says whether it is kept."""
    cache, text = _cache(), json.dumps(winner)
    if cache is None:
        return False
    cache.put(_key(gpu, problem), text.encode())
    kept: dict[str, Any] = json.loads(text)
    return recall(gpu, problem) == kept


def recall(gpu: str, problem: str) -> dict[str, Any] | None:
    """The winner of a problem on such a GPU, if one was measured."""
    cache = _cache()
    found = cache.get(_key(gpu, problem)) if cache is not None else None
    try:
        winner = None if found is None else json.loads(found)
    except ValueError:
        return None
    return winner if isinstance(winner, dict) else None


def _key(gpu: str, problem: str) -> tuple[str, ...]:
    return ("winner", gpu, problem)


def _cache() -> Cache | None:
    """Where winners are; None where the environment says that none are to be kept."""
    switch = os.environ.get(SWITCH, "1")
    if switch not in ("0", "1"):
        raise Diag.BAD_SETTING.error(variable=SWITCH, value=switch, what="0 forgets what was tuned, 1 takes it")
    user = user_cache()
    return Cache(user.folder / _FOLDER, _MOST_BYTES) if switch == "1" and user.limit else None
