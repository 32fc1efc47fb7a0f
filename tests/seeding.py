"""Fresh inputs in every run, which one number repeats: `pytest --seed N`.

The random numbers of a test depend on the seed of the session and on the test's id only, not on the tests that ran
before it, nor on the worker of xdist. NumPy's unseeded generators share one stream; this stream and the global
generators of `random` and PyTorch start anew for every module that is collected, every fixture of a wider scope than a
test, and every test. Hypothesis gets its seed in the same way.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import random
import secrets
import shlex
import sys
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest


class Seeding:
    """A plugin of pytest that owns the random numbers of a session."""

    def __init__(self, config: pytest.Config) -> None:
        given: int | None = config.getoption("--seed")
        worker: dict[str, int] = getattr(config, "workerinput", {})
        self.seed = worker.get("seed", secrets.randbits(32) if given is None else given)
        self._stream, self._seeded, self._test = np.random.PCG64(), np.random.default_rng, ""

        @functools.wraps(self._seeded)
        def default_rng(seed: Any = None) -> np.random.Generator:
            return np.random.Generator(self._stream) if seed is None else self._seeded(seed)

        np.random.default_rng = default_rng

    def _start(self, name: str) -> int:
        """Start all streams anew for a test, fixture or module; returns its own seed."""
        own = int.from_bytes(hashlib.sha256(f"{self.seed} {name}".encode()).digest()[:8], "little")
        self._stream.state = np.random.PCG64(own).state
        random.seed(own)
        if torch := sys.modules.get("torch"):
            torch.default_generator.manual_seed(own)
        return own

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker of xdist the seed of the session."""
        node.workerinput["seed"] = self.seed

    def pytest_unconfigure(self) -> None:
        np.random.default_rng = self._seeded

    def pytest_report_header(self) -> str:
        return f"seed: {self.seed} (--seed {self.seed} repeats the inputs of this run)"

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> None:
        """Start before a module is imported; after PyTorch is, if the module needs it, for it brings its own seed."""
        if isinstance(collector, pytest.Module) and 'importorskip("torch")' in collector.path.read_text("utf-8"):
            with contextlib.suppress(ImportError):
                importlib.import_module("torch")
        self._start(collector.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """A fixture of a wider scope has the same values whichever test is the first to use it."""
        if fixturedef.scope == "function":
            return (yield)
        self._start(f"{request.node.nodeid} {fixturedef.argname} {getattr(request, 'param_index', 0)}")
        result = yield
        self._start(self._test)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = item.nodeid
        own, function = self._start(item.nodeid), getattr(item, "obj", None)
        if getattr(function, "is_hypothesis_test", False):
            sys.modules["hypothesis"].seed(own)(function)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A failing test says how to repeat it."""
        report = yield
        if report.failed:
            gpu = " -m gpu" if item.get_closest_marker("gpu") else ""
            command = f"python -m pytest{gpu} {shlex.quote(item.nodeid)} --seed {self.seed}"
            report.sections.append(("to repeat this failure", command))
        return report
