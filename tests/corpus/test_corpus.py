"""PTX of other compilers gives the right numbers under every schedule."""

from __future__ import annotations

import pytest

from .case import Case
from .cases import CASES
from .compile import CompilerMissing
from .run import run

ADVERSARIAL = {
    "all": (("lazy", 0), ("reverse", 0), ("random", 1), ("random", 2)),
    "few": (("lazy", 0), ("random", 1)),
    "one": (("random", 1),),
    "none": (),
}

RUNS = [
    pytest.param(case, schedule, seed, id=f"{case.name}-{schedule}{seed or ''}")
    for case in CASES
    for schedule, seed in (("eager", 0), *ADVERSARIAL[case.schedules])
]


@pytest.mark.parametrize(("case", "schedule", "seed"), RUNS)
def test_the_emulator_matches_the_reference(case: Case, schedule: str, seed: int) -> None:
    try:
        prepared = case.prepare(seed=seed + 100)
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    case.check(prepared.arrays, run(prepared, schedule=schedule, seed=seed))


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
