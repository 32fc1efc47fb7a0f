"""Mutants of valid PTX: native code gives what the reference gives, an error included.

`python bench/engine_fuzz.py` runs any number of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.fuzz.bases import written
from tests.machine.engine.mutants import compared, engine

from warploom import launch
from warploom.diagnostics import WarploomError

pytest.importorskip("llvmlite")

_COUNT = 30


def test_mutants_end_alike_on_both_engines() -> None:
    """Other mutants in each run; their numbers reproduce them."""
    random, kernels = np.random.default_rng(), tuple(written())
    found = {int(number): compared(kernels, int(number)) for number in random.integers(0, 1 << 30, _COUNT)}
    assert {number: difference for number, (_, difference) in found.items() if difference} == {}
    assert len({code for code, _ in found.values()}) > 1  # of 30, at most two in five run: never all alike


def test_a_predicate_as_a_coordinate_is_a_number() -> None:
    """ptxas refuses it; here it is 0 or 1, also where it is the same in all lanes."""
    base = next(each for each in written() if "bulk_group [%rd12, {%r12, 6}]" in each.text)
    text = base.text.replace("bulk_group [%rd12, {%r12, 6}]", "bulk_group [%rd12, {%p2, 6}]")
    found = []
    for name in ("numpy", "native"):
        with engine(name), pytest.raises(WarploomError, match=r"coordinates \(1, 6\)") as error:
            launch(base.launch(text))
        found.append(str(error.value))
    assert found[0] == found[1]
