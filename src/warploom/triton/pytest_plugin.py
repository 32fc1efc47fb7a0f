"""A pytest plugin: `pytest -p warploom.triton.pytest_plugin …` runs the Triton kernels of a test suite on the emulator.

It needs nothing of pytest: hooks are found by their names. Each test gets the properties `launches`, the number of
kernels that it ran, and `cpu_seconds`, which `--junitxml` writes.
"""

from __future__ import annotations

import atexit
import re
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from warploom.diagnostics import Diag
from warploom.triton import machine
from warploom.triton.children.environment import started_on_machine

_STACK = ExitStack()
_SESSIONS: list[Any] = []
_STARTED: list[float] = []
_AGAIN = 5.0
"""Seconds of CPU time until a test that catches the error of the time limit, and goes on, gets it again."""


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("warploom", "Triton kernels on the emulator")
    group.addoption("--triton-target", default="sm_90", help="the GPU to emulate (sm_90)")
    group.addoption("--triton-schedule", default="eager", help="schedule of asynchronous work (eager)")
    group.addoption("--triton-sms", type=int, help="number of SMs (default: those of the hardware)")
    group.addoption("--triton-timeout", type=float, help="most seconds of CPU time of one test")
    group.addoption("--triton-record", type=Path, help="directory for a folder of launch files for each test")


def pytest_load_initial_conftests(early_config: Any) -> None:
    """Make the emulator Triton's GPU before `conftest.py` is imported: many ask for the device where they begin."""
    _begin(early_config.known_args_namespace)


def pytest_configure(config: Any) -> None:
    """The same where a `conftest.py` names the plugin."""
    if not _SESSIONS:
        _begin(config.option)


def _begin(chosen: Any) -> None:
    options = {name: getattr(chosen, f"triton_{name}") for name in ("target", "schedule", "sms")}
    _SESSIONS.append(_STACK.enter_context(machine(**options)))
    _STACK.enter_context(started_on_machine(_SESSIONS[0]))
    atexit.register(_STACK.close)  # after an error in a `conftest.py`, pytest ends without `pytest_unconfigure`


def pytest_unconfigure(config: Any) -> None:
    _SESSIONS.clear()
    _STACK.close()


def pytest_runtest_setup(item: Any) -> None:
    """Start the test's clock: CPU time, so that a test does not time out because other programs use the CPU."""
    session, folder = _SESSIONS[0], item.config.getoption("--triton-record")
    if folder is not None:
        session.options = replace(session.options, record=folder / re.sub(r"[^A-Za-z0-9_.-]", "_", item.name)[:96])
    _STARTED[:] = [time.process_time()]
    seconds = item.config.getoption("--triton-timeout")
    if seconds and hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, lambda number, frame: _expire(seconds, frame))
        signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN)


def pytest_runtest_teardown(item: Any) -> None:
    """Stop the clock; a test that another plugin has skipped did not start it."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - _STARTED.pop() if _STARTED else 0.0
    item.user_properties.append(("launches", len(_SESSIONS[0].launches)))
    item.user_properties.append(("cpu_seconds", round(seconds, 2)))
    _SESSIONS[0].launches.clear()


def _expire(seconds: float, frame: FrameType | None) -> None:
    raise Diag.TIMEOUT.error(what="The test", seconds=seconds)
