"""Blackwell's kernels for both of its compute capabilities: one text but for two lines, the same result, real code."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.assembly import assemble_ok

import warploom as wl
from warploom.diagnostics import WarploomError
from warploom.host.program import module_of, text_of
from warploom.runtime.gpu.bounded_waits import bounded
from warploom.structured.config import MatmulConfig

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def integers(rng, *shape, dtype=BF16):
    return rng.integers(-2, 3, shape).astype(dtype)


def quantised(rng, quantise):
    a, b = (quantise(rng.standard_normal((rows, 256), np.float32)) for rows in (130, 72))
    return (a[0], b[0], a[1], b[1]), {}


CASES = {
    "matmul": lambda rng: (wl.matmul, (integers(rng, 130, 72), integers(rng, 72, 136)), {}),
    "residual": lambda rng: (
        wl.linear,
        (integers(rng, 130, 72), integers(rng, 136, 72)),
        {"bias": integers(rng, 136), "activation": "relu", "residual": integers(rng, 130, 136)},
    ),
    "split-K": lambda rng: (
        wl.matmul,
        (integers(rng, 130, 512), integers(rng, 512, 136)),
        {"config": MatmulConfig(num_split_k=2)},
    ),
    "gated": lambda rng: (wl.gated_linear, tuple(integers(rng, rows, 72) for rows in (130, 136, 136)), {}),
    "grouped": lambda rng: (
        wl.grouped_matmul,
        (integers(rng, 130, 72), integers(rng, 3, 72, 136), np.array([50, 50, 130], np.int32)),
        {},
    ),
    "blockwise": lambda rng: (
        wl.blockwise_matmul,
        (
            *(integers(rng, rows, 160, dtype=E4M3) for rows in (130, 136)),
            *(rng.integers(1, 4, shape).astype(np.float32) for shape in ((130, 2), (2, 2))),
        ),
        {},
    ),
    "mxfp8": lambda rng: (wl.block_scaled_matmul, *quantised(rng, wl.quantise_mxfp8)),
    "nvfp4": lambda rng: (wl.block_scaled_matmul, *quantised(rng, wl.quantise_nvfp4)),
}


def without_target(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith((".version", ".target"))]


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_serves_both_compute_capabilities(name):
    operation, arguments, options = CASES[name](np.random.default_rng())
    first, second = (operation.bind(*arguments, **options, target=each) for each in ("sm_100a", "sm_103a"))
    texts = [text_of(each.program) for each in (first, second)]
    assert without_target(texts[0]) == without_target(texts[1])
    assert texts[1].startswith(".version 8.8\n.target sm_103a\n")
    assert (first.grid, first.shared_bytes) == (second.grid, second.shared_bytes)
    assert assemble_ok(texts[1]).target == "sm_103a"


@pytest.mark.parametrize("name", ["residual", "mxfp8"])
def test_the_emulator_runs_it_for_both(name):
    operation, arguments, options = CASES[name](np.random.default_rng())
    first, second = (operation(*arguments, **options, target=each) for each in ("sm_100a", "sm_103a"))
    assert np.isfinite(first.astype(np.float32)).all()
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["residual", "grouped"])
def test_a_debug_build_bounds_every_wait(name):
    """Bounded waits matter most on a GPU on which the kernels have not been run yet."""
    operation, arguments, options = CASES[name](np.random.default_rng())
    module = module_of(operation.bind(*arguments, **options, target="sm_103a").program)
    made, _, sites = bounded(module, module.kernels[0], 1_000_000)
    loops = [each for each in module.kernels[0].instructions if "try_wait" in each.opcode]
    assert len([site for site in sites if site.is_barrier]) == len(loops) > 0
    assemble_ok(made)


def test_block_scales_have_no_code_for_the_whole_family():
    """Why a compute capability has a target of its own here."""
    operation, arguments, _ = CASES["mxfp8"](np.random.default_rng())
    text = text_of(operation.bind(*arguments).program).replace(".target sm_100a", ".target sm_100f")
    with pytest.raises(WarploomError, match="scale_vec::1X"):
        assemble_ok(text.replace(".version 8.6", ".version 8.8"))
