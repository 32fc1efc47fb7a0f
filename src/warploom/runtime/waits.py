"""Counts of first calls of a size: those that waited for their kernel to be traced and assembled, and the others."""

from __future__ import annotations

import threading
from dataclasses import dataclass

_LOCK = threading.Lock()
_MOST = 4096
_seconds: list[float] = []
_counts = {"waited": 0, "at_hand": 0, "substituted": 0}


@dataclass(frozen=True)
class Waits:
    """First calls of a size: those that waited for a kernel, and those that ran with a loaded one."""

    waited: int
    at_hand: int
    """Calls whose kernel was loaded."""
    substituted: int
    """Calls that ran with another kernel while theirs was chosen and built in the background."""
    total_ms: float
    p50_ms: float
    p99_ms: float
    most_ms: float

    def __str__(self) -> str:
        ran = f"{self.at_hand} ran with a loaded kernel, {self.substituted} with another one meanwhile"
        times = f"p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, at most {self.most_ms:.1f} ms"
        return f"first calls of a size: {self.waited} waited ({times}), {ran}"


def record_wait(seconds: float) -> None:
    """Count a call that waited for its kernel."""
    with _LOCK:
        _counts["waited"] += 1
        if len(_seconds) >= _MOST:
            del _seconds[: _MOST // 2]
        _seconds.append(seconds)


def record_found(*, is_substitute: bool) -> None:
    """Count a call that ran at once."""
    _counts["substituted" if is_substitute else "at_hand"] += 1


def summary() -> Waits:
    """Return the counts of this process so far; quantiles are of the latest waits."""
    with _LOCK:
        times = sorted(1e3 * each for each in _seconds)
    last = len(times) - 1
    p50, p99, most = (times[round(part * last)] if times else 0.0 for part in (0.5, 0.99, 1.0))
    return Waits(**_counts, total_ms=sum(times), p50_ms=p50, p99_ms=p99, most_ms=most)


def reset() -> None:
    """Start to count anew."""
    with _LOCK:
        _seconds.clear()
        _counts.update(dict.fromkeys(_counts, 0))
