"""Random inputs depend on the session's seed and the test's id, and a failing test says how to repeat it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITE = """
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

RNG, AT_IMPORT = np.random.default_rng(), int(np.random.default_rng().integers(1 << 40))
DRAWN = []


def shown(*values):
    print("numbers", *values)


@pytest.fixture(scope="module")
def wide():
    return int(RNG.integers(1 << 40))


@pytest.fixture
def narrow():
    return int(RNG.integers(1 << 40))


@pytest.mark.parametrize("case", ["a b", "it's"])
def test_generators(case, narrow, wide):
    again = np.random.default_rng()
    assert again.integers(1 << 40) != np.random.default_rng().integers(1 << 40)
    assert np.random.default_rng(3).random() == np.random.default_rng(3).random()
    shown(AT_IMPORT, wide, narrow, int(RNG.integers(1 << 40)), int(again.integers(1 << 40)), random.getrandbits(40))


def test_fixture_after_others(wide):
    shown(wide, random.getrandbits(40))


@settings(max_examples=5)
@given(st.integers(0, 1 << 40))
def test_examples(number):
    DRAWN.append(number)


def test_of_examples():
    shown(*DRAWN)


def test_that_fails():
    shown(int(RNG.integers(1 << 40)))
    assert False
"""
TORCH = """
import pytest
torch = pytest.importorskip("torch")
W = torch.rand()


def test_torch():
    print("numbers", W, torch.rand())
"""
STAND_IN = """
import random


class Generator(random.Random):
    manual_seed = random.Random.seed


default_generator = Generator(0)
rand = default_generator.random
"""
"""The part of PyTorch that is used: PyTorch itself takes seconds to import."""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("conftest.py", "seeding.py"):
        shutil.copy(HERE / name, tests)
    (tests / "slow_tests.txt").touch()
    (tests / "test_it.py").write_text(SUITE)
    (tests / "test_torch.py").write_text(TORCH)
    (tmp_path / "torch.py").write_text(STAND_IN)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  slow\n  gpu\naddopts = -p no:cacheprovider\npythonpath = .\n"
    )
    return tmp_path


def run(suite: Path, *command: str) -> str:
    """The output of a command in the folder of the suite, with `python` for this interpreter."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    arguments = [sys.executable if each == "python" else each for each in command]
    done = subprocess.run(arguments, cwd=suite, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr  # one test fails
    return done.stdout


def numbers(out: str) -> dict[str, str]:
    """The numbers that each test printed, from the output of pytest."""
    return dict(re.findall(r"^_+ (test_\S.*?) _+$.*?^(numbers [^\n]*)$", out, re.MULTILINE | re.DOTALL))


def test_numbers_depend_on_the_seed_and_the_test_only(suite: Path) -> None:
    """In another order and with two workers they are the same; a session without a seed has others, and can be repeated."""
    pytest_ = ("python", "-m", "pytest", "-rA")
    seven = numbers(run(suite, *pytest_, "--seed", "7"))
    assert len(seven) == 6
    order = ("that_fails", "examples", "fixture_after_others", "generators", "of_examples")
    backwards = ("tests/test_torch.py", *(f"tests/test_it.py::test_{name}" for name in order))
    assert numbers(run(suite, *pytest_, "--seed", "7", "-n", "2", "--dist", "loadfile", *backwards)) == seven
    out = run(suite, *pytest_)
    fresh, seed = numbers(out), re.search(r"^seed: (\d+) ", out, re.MULTILINE)
    command = re.search(r"^-+ to repeat this failure -+\n(.*)$", out, re.MULTILINE)
    assert not {*fresh.values()} & {*seven.values()}
    assert seed
    assert command
    assert command[1] == f"python -m pytest tests/test_it.py::test_that_fails --seed {seed[1]}"
    assert numbers(run(suite, *shlex.split(command[1]))) == {"test_that_fails": fresh["test_that_fails"]}


def test_every_generator_is_seeded_or_repeatable() -> None:
    """No test draws from the operating system, nor from a generator that tests of a module share in their order."""
    own_entropy = r"Random\(\)|SeedSequence\(\)|PCG64\(\)|torch\.seed\(\)|urandom|secrets\.|from numpy\.random import"
    shared = r"^[A-Za-z_]+ = .*(default_rng|Random)\([^)]"
    files = [file for file in HERE.rglob("test_*.py") if file != Path(__file__)]
    found = [
        f"{file.relative_to(HERE)}: {line[0]}"
        for file in files
        for line in re.finditer(f"{own_entropy}|{shared}", file.read_text("utf-8"), re.MULTILINE)
    ]
    assert found == []
