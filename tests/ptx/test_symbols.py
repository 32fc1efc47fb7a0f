"""Names of kernels in reports."""

from __future__ import annotations

import pytest

from warploom.ptx.syntax.symbols import readable


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("matmul_kernel", "matmul_kernel"),
        ("_Z5scalePKfPfif", "scale"),
        ("_Z8reversedILi128EEvPKfPfb", "reversed<…>"),
        ("_ZN7cutlass13device_kernelINS_4gemm6kernelEEEvNT_6ParamsE", "cutlass::device_kernel<…>"),
        ("_ZN12_GLOBAL__N_16kernelEv", "(anonymous)::kernel"),
        ("_Z", "_Z"),
        ("_Z99short", "_Z99short"),
        ("", ""),
        ("x" * 200, "x" * 80 + "…"),
    ],
)
def test_readable(symbol, name):
    assert readable(symbol) == name
