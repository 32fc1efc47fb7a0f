"""Kernels that spilled before epilogues had a rule for their registers, and a sample of all combinations."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest
from tests.assembly import assemble_ok

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "spills.py"))
CASES = {
    "grouped, chosen": ("grouped", "chosen", False, True),
    "one CTA of 128 × 256": ("dense", (1, 128, 256), False, True),
    "through shared memory": ("dense", (2, 256, 256), False, False),
    "through shared memory, swapped": ("dense", (1, 128, 256), True, False),
    "blockwise": ("blockwise", (1, 128, 192), False, True),
}


@pytest.mark.parametrize("name", CASES)
def test_long_epilogues_assemble_without_a_spill(name):
    case = SCRIPT["Case"](*CASES[name], c_type="bf16", activation="gelu", bias=True, residual=True)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(case.launch()).kernels)


def test_float32_through_shared_memory_swapped_assembles_without_a_spill():
    fields = {"c_type": "f32", "activation": "tanh", "bias": False, "residual": True}
    case = SCRIPT["Case"]("block_scaled", (1, 128, 256), swapped=True, by_registers=False, **fields)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(case.launch()).kernels)


def test_blockwise_through_shared_memory_assembles_without_a_spill():
    fields = {"c_type": "bf16", "activation": None, "bias": True, "residual": True}
    case = SCRIPT["Case"]("grouped_blockwise", (1, 128, 192), swapped=False, by_registers=False, **fields)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(case.launch()).kernels)


LATER = {
    "tf32x3": ("tf32x3", (1, 128, 256), False, True, "f32", "gelu_tanh", False, True),
    "a pair through shared memory": ("gated", (2, 256, 256), False, False, "f32", "swiglu", False, True),
    "a long pair": ("gated", (2, 128, 256), True, True, "bf16", "geglu", True, True),
    "blockwise, 64 rows": ("blockwise", (1, 64, 256), False, True, "f32", "gelu", False, False),
    "blockwise, transposed": ("blockwise", (1, 128, 128), True, False, "f32", "gelu_tanh", True, True),
}
"""Kernels that spilled in large samples."""


@pytest.mark.parametrize("name", LATER)
def test_kernels_of_the_large_sample_assemble_without_a_spill(name):
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(SCRIPT["Case"](*LATER[name]).launch()).kernels)


def test_a_sample_of_the_combinations_assembles_without_a_spill():
    chosen = random.Random(16).sample(list(SCRIPT["cases"]()), 8)
    results = [SCRIPT["assembled"](case) for case in chosen]
    assert any(results)
    assert all(spilled == 0 for _, spilled in filter(None, results))


def test_there_are_thousands_of_combinations_of_every_family():
    cases = list(SCRIPT["cases"]())
    assert len(cases) > 5000
    assert {case.family for case in cases} == set(SCRIPT["FAMILIES"])
    assert len(set(cases)) == len(cases)
