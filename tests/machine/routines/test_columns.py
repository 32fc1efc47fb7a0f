"""Operand A in TMEM, read by native code: the bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.engine.mutants import engine
from tests.machine.tensor_kernels import Product

from warploom.machine.routines import column_kernels
from warploom.machine.routines.call_lists import Sequence

pytest.importorskip("llvmlite")

CASES = (
    ("f16", "bf16", 128, 1, 0), ("f16", "f16", 64, 1, 16), ("tf32", "tf32", 128, 1, 0), ("f8f6f4", "e4m3", 64, 1, 0),
    ("f8f6f4", "e5m2", 256, 2, 0), ("f16", "bf16", 256, 2, 0), ("f16", "f16", 128, 2, 0),
    ("i8", "s8", 128, 1, 0), ("i8", "u8", 256, 2, 0), ("f8f6f4", "e2m1", 128, 1, 0), ("f8f6f4", "e2m3", 64, 1, 0),
    ("f8f6f4", "e3m2", 256, 2, 0), ("f16", "f16 into f16", 128, 1, 0), ("f8f6f4", "e3m2 into f16", 256, 2, 0),
)  # fmt: skip
FOLDED = (128, 2)
"""Rows and CTAs whose accumulator is folded: the reference compares the copies of A."""


@pytest.mark.parametrize(("kind", "element", "m", "group", "lane"), CASES)
def test_results_are_those_of_the_reference(
    kind: str, element: str, m: int, group: int, lane: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A and D are any bits; sums of integers wrap."""
    calls, convert = [], column_kernels.Columns.convert

    def counted(
        self: column_kernels.Columns, sequence: Sequence, words: tuple[int, int], *given: object
    ) -> tuple[object, int] | None:
        calls.append(words)
        return convert(self, sequence, words, *given)

    monkeypatch.setattr(column_kernels.Columns, "convert", counted)
    element, _, d_type = element.partition(" into ")
    d_type = d_type or ("s32" if kind == "i8" else "f32")
    product = Product(kind, element, element, m, 32, group, d_type, column=64, lane=lane, a_column=8)
    before = np.random.default_rng().integers(0, 1 << 32, (group, 128, 128), np.uint32)
    if (m, group) == FOLDED:
        before[:, 64:] = before[:, :64]
    found = []
    for name in ("numpy", "native"):
        with engine(name):
            bench = product.bench(accumulate=True)
            found.append(bench.run(before[..., : bench.columns]))
    assert np.array_equal(found[0], found[1])
    assert bool(calls) == ((m, group) != FOLDED)
