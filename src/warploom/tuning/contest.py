"""The comparison of candidates: build them, check their results against the default's, and time the right ones."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from warploom.diagnostics import Diag, WarploomError
from warploom.tuning.report import Row
from warploom.tuning.stopwatch import Bytes

EQUAL = 0.005
"""Smaller relative differences count as equal: medians differ this much without any change."""
_MOST_THREADS = 8
_LEAST_TOLERANCE = 2.0**-10
"""Tolerance for another order of summation, relative to the mean magnitude of the results."""


@dataclass(frozen=True)
class Result:
    """The contents of one array after a candidate ran."""

    dtype: str
    bits: Bytes


class Rig(Protocol):
    """The device that runs candidates: a GPU, or a test's replacement."""

    def prepared(self, made: Any) -> Any:
        """Return what `make` returned, assembled and loaded; called in threads."""
        ...

    def run(self, candidate: Any) -> Sequence[Result]:
        """Return what a candidate writes, on the original inputs."""
        ...

    def times(self, candidates: Sequence[Any], on_round: Callable[[int, int], None]) -> list[list[float]]:
        """Return the microseconds of a launch, by candidate and round."""
        ...


class OnProgress(Protocol):
    """A callback with the current step, the number of finished items, and their total."""

    def __call__(self, step: str, done: int, total: int, /) -> None: ...


def silent(step: str, done: int, total: int, /) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Contestant:
    """A configuration, its label in a table, and a function that makes its launch."""

    config: Any
    label: str
    make: Callable[[], Any]


def compete(
    contestants: Sequence[Contestant], rig: Rig, *, flops: float | None = None, on_progress: OnProgress = silent
) -> tuple[Row, ...]:
    """Time contestants, the first of which is the default; a failure does not stop the others."""
    failures: dict[int, str] = {}
    ready = _built(contestants, rig, failures, on_progress)
    if 0 in failures:
        raise Diag.NOTHING_TO_TUNE.error(what=f"the default, {contestants[0].label}, fails: {failures[0]}")
    wanted: Sequence[Result] = ()
    for done, number in enumerate(tuple(ready)):
        on_progress("check", done, len(ready))
        try:
            found = rig.run(ready[number])
        except WarploomError as error:
            if number == 0 or error.diag is not Diag.DRIVER_REFUSED:  # after a fault nothing else can run
                raise Diag.GPU_FAULT.error(what=f"while {contestants[number].label} ran, {sentence(error)}") from error
            failures[number] = sentence(error)
            continue
        wanted = wanted or found
        wrong = next((text for text in map(difference, found, wanted) if text), "")
        if wrong:
            failures[number] = wrong
    right = [number for number in ready if number not in failures]
    times = rig.times([ready[number] for number in right], lambda done, total: on_progress("measure", done, total))
    medians = dict(zip(right, map(statistics.median, times), strict=True))
    rows = [_row(contestants[number], us, medians[0], flops) for number, us in medians.items()]
    lost = [Row(contestants[at].config, contestants[at].label, failure=text) for at, text in sorted(failures.items())]
    return (*sorted(rows, key=lambda row: row.us or 0.0), *lost)


def winner(rows: Sequence[Row], default: Any) -> Any:
    """Return the fastest configuration if it beats the default by more than the noise, else the default."""
    first = next(row for row in rows if row.us is not None)
    return first.config if (first.ratio or 0.0) > 1 + EQUAL else default


def _row(contestant: Contestant, us: float, of_default: float, flops: float | None) -> Row:
    tflops = flops / us / 1e6 if flops else None
    return Row(contestant.config, contestant.label, us, tflops, of_default / us)


def _built(
    contestants: Sequence[Contestant], rig: Rig, failures: dict[int, str], on_progress: OnProgress
) -> dict[int, Any]:
    """Return the contestants that could be built, by number: traced one after another, assembled in parallel."""
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    under_way: dict[int, Future[Any]] = {}
    with ThreadPoolExecutor(threads, "warploom-tune") as pool:
        for number, each in enumerate(contestants):
            on_progress("build", number, len(contestants))
            try:
                under_way[number] = pool.submit(rig.prepared, each.make())
            except Exception as error:  # noqa: BLE001  an author's function may fail in any way
                failures[number] = sentence(error)
        ready = {}
        for number, future in under_way.items():
            try:
                ready[number] = future.result()
            except Exception as error:  # noqa: BLE001  as above
                failures[number] = sentence(error)
    return ready


def sentence(error: Exception) -> str:
    """Return an error as one line."""
    text = f"{error.code}: {error.what}" if isinstance(error, WarploomError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


def difference(found: Result, wanted: Result) -> str:
    """Describe a difference of results that the order of summation does not explain; empty if there is none."""
    if found.bits.shape == wanted.bits.shape and np.array_equal(found.bits, wanted.bits):
        return ""
    dtype = np.dtype(getattr(ml_dtypes, wanted.dtype, wanted.dtype))
    whole = wanted.bits.size // dtype.itemsize * dtype.itemsize
    values = [each.bits[:whole].view(dtype) for each in (found, wanted)]
    if dtype.kind in "iub":
        wrong = values[0] != values[1]
    else:
        with np.errstate(all="ignore"):
            mine, theirs = (each.astype(np.float32) for each in values)
            size = np.abs(theirs)
            usual = float(np.mean(size, where=np.isfinite(theirs))) if np.isfinite(theirs).any() else 0.0
            same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
            close = np.isfinite(theirs) & (np.abs(mine - theirs) <= _tolerance(dtype) * (size + usual))
            wrong = ~(same | close)
    count = int(np.count_nonzero(wrong))
    return f"wrong: {count} of {wrong.size} elements are not the default's" if count else ""


def _tolerance(dtype: np.dtype[Any]) -> float:
    limits: Any = ml_dtypes.finfo  # it has no type annotations
    return max(4 * float(limits(dtype).eps), _LEAST_TOLERANCE)
