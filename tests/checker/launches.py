"""Functions that make launches, for sweeps and for `warploom check module:function`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
from tests.checker.kernels import kernel

import warploom
from warploom.host.launch import Launch

RACE = "st.shared.u32 [%r2], %r1; ld.shared.u32 %r7, [%r2]; st.global.u32 [%rd3], %r7;"
CLEAN = "st.shared.u32 [%r5], %r1; ld.shared.u32 %r7, [%r5]; st.global.u32 [%rd3], %r7;"


def made(body: str) -> Launch:
    return warploom.Launch(kernel(body), (1, 1, 1), (64, 1, 1), (np.zeros(64, np.uint32),), "k")


def clean() -> Launch:
    return made(CLEAN)


def race() -> Launch:
    return made(RACE)


def both() -> dict[str, Launch]:
    return {"clean": clean(), "race": race()}


def broken() -> Launch:
    raise RuntimeError("no such size")


def number() -> int:
    return 3


def dies_once(marker: str) -> Launch:
    """Kill the worker process at the first call, and work at the second."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return clean()


def dies() -> Launch:
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return clean()


def no_launches() -> list[Launch]:
    return []


def nothing() -> None:
    return None


def exits() -> Launch:
    raise SystemExit(3)
