"""The picture of descriptors is drawn from the tables, and shows every field."""

from __future__ import annotations

import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

from warploom.hardware.instruction_descriptors import LAYOUT as INSTRUCTION
from warploom.hardware.matrix_descriptors import LAYOUT as MATRIX

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "descriptor_picture.py"))


def test_the_picture_is_that_of_the_tables():
    assert SCRIPT["FILE"].read_text("utf-8") == SCRIPT["picture"](), "run python bench/descriptor_picture.py"


@pytest.mark.parametrize("fields", [MATRIX["sm_90"], MATRIX["sm_100"], INSTRUCTION["f16"], INSTRUCTION["mxf4"]])
def test_every_bit_is_in_one_box(fields):
    bits = max(field.low + field.width for field in fields)
    drawn = [part for first in range(0, bits, 32) for part in SCRIPT["word"](fields, first, 0)]
    spans = [re.findall(r">(\d+)(?:-(\d+))?<", part) for part in drawn if 'class="bits"' in part]
    ranges = [range(int(low or high), int(high) + 1) for ((high, low),) in spans]
    assert sorted(bit for each in ranges for bit in each) == list(range(bits))


def test_the_first_granule_of_each_row_moves_by_one():
    drawn, _ = SCRIPT["swizzle"](0)
    firsts = [float(re.search(r' x="([\d.]+)"', part).group(1)) for part in drawn if 'class="first"' in part]
    steps = {round(after - before, 3) for before, after in pairwise(firsts)}
    assert (len(firsts), len(steps)) == (8, 1)
    assert steps != {0}
