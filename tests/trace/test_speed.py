"""Tracing is fast enough to be done on every call of a new shape."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
from tests.pace import cost

from warploom.hardware.fragments import wgmma_d
from warploom.ptx.syntax.printer import print_module
from warploom.trace import Fragment, kernel, literal, loop, relu, s32, select, unpack, warp_roles, when


def traced():
    @kernel
    def epilogue(x, out, n: s32):
        roles = warp_roles(multiply=4, load=4)
        with roles.multiply:
            for t in loop(n):
                at = Fragment(tuple(literal(0.0, "f32") for _ in range(128)), wgmma_d(256))
                a = Fragment(tuple(x[r + t * 64, c] for r, c in zip(at.rows, at.columns, strict=True)), at.layout)
                b = (a * 2.0 + 1.0).apply(relu).apply(lambda v: select(v < 3.0, v, 3.0))
                for i, pair in enumerate((b * b).pairs("bf16x2")):
                    with when(at.rows[2 * i] < n):
                        out.store(unpack(pair), at.rows[2 * i], at.columns[2 * i])

    arrays = np.zeros((512, 256), np.float32), np.zeros((512, 256), ml_dtypes.bfloat16)
    launch = epilogue.bind(*arrays, 3, grid=(1, 1, 1), block=(256, 1, 1))
    print_module(launch.program)
    assert len(launch.program.kernels[0].instructions) > 800


def test_a_large_kernel_is_traced_and_printed_quickly():
    assert cost(traced) < 80


def test_the_functions_of_instructions_cost_nothing_until_one_is_used():
    code = (
        "import warploom.trace, warploom.trace.isa;"
        "from warploom.trace.isa.functions import functions; assert functions.cache_info().currsize == 0;"
        "from warploom.trace.isa import tcgen05;"
        "assert functions.cache_info().currsize == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
