"""Fresh cases of the reference's matrix: none is wrong."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "reference_matrix.py"))


def test_fresh_cases_are_not_wrong():
    chosen = {section: random.randrange(1 << 30) for section in random.sample(list(SCRIPT["SECTIONS"]), 2)}
    found = {section: SCRIPT["outcome"](section, seed) for section, seed in chosen.items()}
    assert not any(result.startswith("wrong") for result in found.values()), (found, chosen)


def test_a_wrong_result_is_noticed():
    def wrong(draw):
        operation, arrays, options, exact = SCRIPT["dense"](draw)
        return operation, arrays, options, exact + 1

    sections = SCRIPT["outcome"].__globals__["SECTIONS"]
    sections["wrong"] = wrong
    try:
        found = {SCRIPT["outcome"]("wrong", seed) for seed in range(2)}
    finally:
        del sections["wrong"]
    assert "wrong" in found
    assert "exact" not in found
