"""Shared by all tests: goldens, one BLAS thread per worker, no deadlines, and the tiers (`slow`, `gpu`, `--torch`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

# Two workers share two cores; this must be set before NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import pytest  # noqa: E402

try:
    from hypothesis import settings
except ImportError:
    pass  # a machine with a GPU may not have it, and the tests in gpu/ do not use it
else:
    settings.register_profile("warploom", deadline=None, print_blob=True)
    settings.load_profile("warploom")

HERE = Path(__file__).parent
_NEEDS_TORCH = 'importorskip("torch")'


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")
    parser.addoption("--torch", action="store_true", help="run only files that need PyTorch; a skipped test fails")


@cache
def slow_tests() -> dict[str, frozenset[str]]:
    """The tests of `slow_tests.txt` by file; an empty name stands for all tests of the file."""
    found: dict[str, set[str]] = {}
    for line in (HERE / "slow_tests.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            file, _, name = line.partition("::")
            found.setdefault(file, set()).add(name)
    return {file: frozenset(names) for file, names in found.items()}


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
    """Mark the tests of `slow_tests.txt`."""
    for item in items:
        names = slow_tests().get(item.path.relative_to(HERE).as_posix())
        if names and ("" in names or getattr(item, "originalname", item.name) in names):
            item.add_marker("slow")


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
