"""What every test shares: goldens, one thread of BLAS per worker, no deadlines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

# Two workers share two cores; this must be said before NumPy is imported.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import pytest  # noqa: E402

try:
    from hypothesis import settings
except ImportError:
    pass  # a machine with a GPU may not have it, and the tests in gpu/ do without
else:
    settings.register_profile("warploom", deadline=None, print_blob=True)
    settings.load_profile("warploom")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with `golden/NAME` beside the test file; --update-golden writes it instead."""
    folder = Path(request.path).parent / "golden"

    def compare(name: str, text: str) -> None:
        file = folder / name
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
        expected = file.read_text("utf-8") if file.exists() else ""
        assert text == expected, f"{name} changed: read the difference, then run with --update-golden"

    return compare
