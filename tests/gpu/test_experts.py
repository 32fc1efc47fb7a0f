"""Grouped GEMMs with expert ids, scales and biases, and batched blockwise GEMMs, on a Hopper GPU: exact results."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom.ops as wl

pytestmark = [*needs_hopper, pytest.mark.filterwarnings("ignore")]


def ints(*shape, dtype=None):
    return torch.randint(-2, 3, shape, device="cuda").to(dtype or torch.bfloat16)


CASES = [
    ([70, 70, 133], [2, 0, 1]),
    ([1, 128, 129, 400], [1, 1, -1, 0]),
    ([64], [2]),
    ([0, 0, 257], [0, -1, 1]),
]


@pytest.mark.parametrize(("ends", "ids"), CASES)
@pytest.mark.parametrize(("n", "k"), [(96, 64), (264, 136), (1024, 512)])
def test_experts(ends, ids, n, k):
    experts = 3
    rows = ends[-1]
    a, b, bias = ints(rows, k), ints(experts, k, n), ints(experts, n)
    scales = torch.tensor([0.5, 2.0, -1.0], device="cuda")
    as_tensor = {"dtype": torch.int32, "device": "cuda"}
    out = torch.full((rows, n), torch.nan, device="cuda")
    wl.grouped_matmul(
        a, b, torch.tensor(ends, **as_tensor), expert_ids=torch.tensor(ids, **as_tensor), expert_scales=scales,
        bias=bias, out=out,
    )  # fmt: skip
    start = 0
    for end, expert in zip(ends, ids, strict=True):
        found = out[start:end].double()
        if expert >= 0:
            want = (a[start:end].double() @ b[expert].double()) * scales[expert].double() + bias[expert].double()
            torch.testing.assert_close(found, want, rtol=0, atol=0)
        start = end


@pytest.mark.parametrize(("count", "m", "n", "k"), [(3, 128, 128, 256), (2, 257, 384, 128), (5, 1, 128, 512)])
def test_batched_blockwise(count, m, n, k):
    a, b = ints(count, m, k, dtype=torch.float8_e4m3fn), ints(count, n, k, dtype=torch.float8_e4m3fn)
    powers = torch.tensor([0.5, 1.0, 2.0], device="cuda")
    a_scale = powers[torch.randint(0, 3, (count, m, k // 128), device="cuda")]
    b_scale = powers[torch.randint(0, 3, (count, n // 128, k // 128), device="cuda")]
    found = wl.blockwise_matmul(a, b, a_scale, b_scale, out_dtype=torch.float32)
    wide_a = a.double() * a_scale.double().repeat_interleave(128, 2)
    wide_b = b.double() * b_scale.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    torch.testing.assert_close(found.double(), wide_a @ wide_b.transpose(1, 2), rtol=0, atol=0)
