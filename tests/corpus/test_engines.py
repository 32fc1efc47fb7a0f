"""PTX of other compilers on both engines: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.engine.mutants import engine

from .cases import CASES
from .compile import CompilerMissing
from .run import launched

pytest.importorskip("llvmlite")

_COUNT = 6


def test_results_do_not_depend_on_the_engine() -> None:
    """A sample of the corpus, another one in each run."""
    random, compared = np.random.default_rng(), 0
    for at in random.permutation(len(CASES)):
        try:
            prepared = CASES[at].prepare(seed=int(random.integers(1 << 16)))
        except CompilerMissing:
            continue
        found = []
        for name in ("numpy", "native"):
            with engine(name):
                arrays, run = launched(prepared)
                found.append(({key: array.tobytes() for key, array in arrays.items()}, run.counts, run.bytes_moved))
        assert found[0] == found[1], CASES[at].name
        compared += 1
        if compared == _COUNT:
            break
