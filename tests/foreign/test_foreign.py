"""Other compilers' PTX gives the right numbers under every kind of schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

from warploom import launch
from warploom.launch_file import load

FILES = sorted(Path(__file__).parent.glob("*.launch.json"))
SCHEDULES = [("eager", 0), ("lazy", 0), ("reverse", 0), *(("random", seed) for seed in range(5))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".launch.json"))
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES, ids=str)
def test_the_numbers_are_right(path: Path, schedule: str, seed: int) -> None:
    file = load(path, seed=100 + seed)
    buffers = file.allocate()
    launch(file.launch(buffers), schedule=schedule, seed=seed, limit=2_000_000)
    assert file.check(buffers) == []
