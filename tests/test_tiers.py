"""The tiers of the suite: `slow_tests.txt` marks tests, and `--torch` lets no test skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDS_TORCH = "importorskip" + '("torch")'
"""Put together, because --torch looks for it in the text of a file."""
MISSING = "import sys\nsys.modules['torch'] = None\n"


def run(folder: Path, *options: str, **files: str) -> tuple[int, str]:
    """The exit status and output of pytest on a small suite with this suite's conftest."""
    tests = folder / "tests"
    tests.mkdir(exist_ok=True)
    for file in ("conftest.py", "seeding.py"):
        shutil.copy(HERE / file, tests)
    (tests / "slow_tests.txt").write_text("# a comment\ntest_slow.py::test_one\ntest_all_slow.py\n")
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  slow\n  gpu\naddopts = -m 'not gpu' -p no:cacheprovider\npythonpath = .\n"
    )
    for name, text in files.items():
        (tests / f"{name}.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options],
        cwd=folder / "tests" if any(each.endswith(".py") for each in options) else folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_slow_tests_are_measured(tmp_path):
    burn = "import time\ndef test_long():\n    end = time.process_time() + 0.3\n    while time.process_time() < end: pass\n"
    run(tmp_path, "--write-slow", "0.2", "test_new.py", test_new=f"{burn}def test_short(): pass\n", test_slow="")
    written = (tmp_path / "tests" / "slow_tests.txt").read_text().splitlines()
    assert written == ["# a comment", "test_all_slow.py", "test_new.py::test_long", "test_slow.py::test_one"]


def test_one_case_of_a_parametrised_test_is_fast(tmp_path):
    (tmp_path / "tests" / "below").mkdir(parents=True)
    text = "import pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_it(n): assert n == 2\n"
    (tmp_path / "tests" / "below" / "test_cases.py").write_text(text)
    status, out = run(tmp_path, "-m", "not slow and not gpu")
    assert (status, "1 passed, 4 deselected" in out) == (0, True)


def test_slow_tests_are_marked(tmp_path):
    two = "def test_one(): pass\ndef test_two(): pass\n"
    files = {"test_slow": two, "test_all_slow": two, "test_other": two}
    assert "6 passed" in run(tmp_path, **files)[1]
    status, out = run(tmp_path, "-m", "not slow and not gpu", **files)
    assert (status, "3 passed, 3 deselected" in out) == (0, True)


@pytest.mark.parametrize("inside", [True, False], ids=["a test", "a file"])
def test_a_skip_fails_where_torch_is_asked_for(tmp_path, inside):
    skip = f"import pytest\n{MISSING}"
    body = f"    pytest.{NEEDS_TORCH}\n" if inside else "    pass\n"
    text = skip + ("" if inside else f"pytest.{NEEDS_TORCH}\n") + f"def test_it():\n{body}"
    assert run(tmp_path, test_it=text)[0] in (0, 5)
    status, out = run(tmp_path, "--torch", test_it=text)
    assert status not in (0, 5)
    assert "skipped, although --torch is given" in out


def test_torch_runs_only_the_files_that_need_it(tmp_path):
    needs = f"# {NEEDS_TORCH}\ndef test_it(): pass\n"
    status, out = run(tmp_path, "--torch", test_needs=needs, test_other="def test_it(): assert False\n")
    assert (status, "1 passed" in out) == (0, True)
