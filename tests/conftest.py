"""Shared by all tests: goldens, seeds, one BLAS thread per worker, no deadlines, and the tiers (`slow`, `gpu`, `--torch`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# Two workers share two cores; this must be set before NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("WARPLOOM_BACKGROUND", "0")  # a second call of a size has the kernel, and the bits, of the first
if find_spec("llvmlite") is not None:
    os.environ.setdefault("WARPLOOM_ENGINE", "native")  # forms that are executed once are compiled as well

import pytest  # noqa: E402
from tests.seeding import Seeding  # noqa: E402

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    pass  # a machine with a GPU may not have it, and the tests in gpu/ do not use it
else:
    slow = [HealthCheck.too_slow]  # a matter of the host
    settings.register_profile("warploom", deadline=None, print_blob=True, suppress_health_check=slow)
    settings.load_profile("warploom")

HERE = Path(__file__).parent
SLOW = HERE / "slow_tests.txt"
_NEEDS_TORCH = 'importorskip("torch")'


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")
    parser.addoption(
        "--write-slow", type=float, metavar="SECONDS", help="write tests that take more CPU time to slow_tests.txt"
    )
    parser.addoption("--seed", type=int, metavar="N", help="repeat the random inputs of the run that printed this seed")
    parser.addoption("--torch", action="store_true", help="run only files that need PyTorch; a skipped test fails")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Seeding(config))


@cache
def slow_tests() -> frozenset[tuple[str, str]]:
    """The file and name of the tests in `slow_tests.txt`; an empty name means all tests of the file."""
    lines = SLOW.read_text("utf-8").splitlines()
    found = (line.partition("::") for line in lines if line and not line.startswith("#"))
    return frozenset((file, name) for file, _, name in found)


def _key(item: pytest.Item) -> tuple[str, str]:
    """The file and the name of a test, without its parameters."""
    return item.path.relative_to(HERE).as_posix(), getattr(item, "originalname", None) or item.name


@cache
def _needs_torch(file: Path) -> bool:
    """True if a test of the file, or a fixture of its folder, is skipped without PyTorch."""
    shared = file.with_name("conftest.py")
    return any(
        _NEEDS_TORCH in each.read_text("utf-8")
        for each in (file, shared)
        if each != HERE / "conftest.py" and each.is_file()
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which no test is selected before they are imported: PyTorch alone takes seconds."""
    if collection_path == HERE / "gpu" and "not gpu" in config.getoption("markexpr"):
        return True
    if config.getoption("--torch") and collection_path.name.startswith("test_") and collection_path.is_file():
        return None if _needs_torch(collection_path) else True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow the tests of `slow_tests.txt`, and all cases of a test but the middle one.

    Structural tests, in `tests/` itself, keep all their cases.
    """
    cases: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        file, name = _key(item)
        if {(file, name), (file, "")} & slow_tests():
            item.add_marker("slow")
        elif "/" in file:
            cases.setdefault((item.parent, name), []).append(item)
    for listed in cases.values():
        for item in listed:
            if item is not listed[len(listed) // 2]:
                item.add_marker("slow")


_seconds: dict[tuple[str, str], float] = {}
"""The most CPU time that a case of each test took, for --write-slow."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the CPU time of a test and of its processes."""
    before = sum(os.times()[:4])
    result = yield
    _seconds[_key(item)] = max(sum(os.times()[:4]) - before, _seconds.get(_key(item), 0.0))
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Rewrite the lines of `slow_tests.txt` for the tests that ran; run it with -n 0."""
    bound = session.config.getoption("--write-slow")
    if bound is None:
        return
    heads = [line for line in SLOW.read_text("utf-8").splitlines() if line.startswith("#")]
    kept = {key for key in slow_tests() if key not in _seconds}
    slow = {key for key, seconds in _seconds.items() if seconds > bound} | kept
    lines = [f"{file}::{name}" if name else file for file, name in sorted(slow)]
    SLOW.write_text("\n".join([*heads, *lines]) + "\n", "utf-8")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """With --torch, fail for a file that is skipped: its `importorskip` found no PyTorch."""
    report = yield
    if collector.config.getoption("--torch") and report.outcome == "skipped":
        report.outcome, report.longrepr = "failed", f"skipped, although --torch is given: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With --torch, fail for a test that is skipped."""
    report = yield
    if item.config.getoption("--torch") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped, although --torch is given: {report.longrepr}"
    return report


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with `golden/NAME` next to the test file; --update-golden writes it instead."""
    folder = Path(request.path).parent / "golden"

    def compare(name: str, text: str) -> None:
        file = folder / name
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
        expected = file.read_text("utf-8") if file.exists() else ""
        assert text == expected, f"{name} changed: read the difference, then run with --update-golden"

    return compare
