"""One mutant of a valid kernel on both engines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tests.fuzz.bases import Base, Trial, trial

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.host.arrays import Pointers, is_array, numpy_of
from warploom.host.tensor_map import TensorMap


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Select an engine for a while."""
    before = os.environ.get("WARPLOOM_ENGINE")
    os.environ["WARPLOOM_ENGINE"] = name
    try:
        yield
    finally:
        os.environ.pop("WARPLOOM_ENGINE")
        if before is not None:
            os.environ["WARPLOOM_ENGINE"] = before


def _arrays(args: tuple[Any, ...]) -> Iterator[np.ndarray[Any, Any]]:
    for arg in args:
        if isinstance(arg, TensorMap):
            yield numpy_of(arg.array)
        elif isinstance(arg, Pointers):
            yield from (numpy_of(each) for each in arg.arrays if each is not None)
        elif is_array(arg):
            yield numpy_of(arg)


def _outcome(made: Trial) -> tuple[str, Any]:
    """The code of an error and its message, or the bytes that a run left and its instructions."""
    bound = made.base.launch(made.mutant.text)
    try:
        run = launch(bound, schedule=made.schedule, seed=made.seed, limit=made.base.limit)
    except WarploomError as error:
        return error.code, str(error)
    return "a run", (run.instructions, tuple(array.tobytes() for array in _arrays(bound.args)))


def compared(kernels: tuple[Base, ...], number: int, depth: int = 1) -> tuple[str, str]:
    """(outcome, difference): what a mutant gives on the reference, and how the native engine differs."""
    made = trial(kernels, number, depth)
    found = []
    for name in ("numpy", "native"):
        with engine(name):
            found.append(_outcome(made))
    (code, reference), native = found
    if native == (code, reference):
        return code, ""
    if isinstance(reference, str) or isinstance(native[1], str):
        return code, f"{made.mutant.what}: {reference!r:.600} → {native!r:.600}"
    return code, f"{made.mutant.what}: other bytes or counts ({reference[0]} and {native[1][0]} instructions)"
