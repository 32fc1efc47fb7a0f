"""3xTF32 and grouped blockwise FP8 on a Hopper GPU: exact on small integers, and as precise as float32."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom.ops as wl

pytestmark = [*needs_hopper, pytest.mark.filterwarnings("ignore")]

SIZES = [(1, 1, 1), (1, 129, 33), (65, 40, 130), (300, 256, 1000), (2048, 1024, 512)]


def ints(*shape, largest=2):
    return torch.randint(-largest, largest + 1, shape, device="cuda").float()


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_integers_that_tf32_rounds_are_exact(m, n, k):
    a, b = ints(m, k, largest=5000), ints(k, n, largest=3)
    out = torch.full((m, n), torch.nan, device="cuda")
    wl.matmul(a, b, precision="tf32x3", out=out)
    wanted = a.double() @ b.double()
    assert wanted.abs().max() < 1 << 24, "every partial sum is a float32"
    assert torch.equal(out.double(), wanted)


@pytest.mark.parametrize(("m", "n", "k"), SIZES[2:])
def test_the_error_is_that_of_float32(m, n, k):
    x, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    wanted = x.double() @ w.double().T

    def error(**options):
        return ((wl.linear(x, w, **options).double() - wanted).abs().mean() / wanted.abs().mean()).item()

    assert error(precision="tf32x3") < 1e-5 < error(precision="tf32")


@pytest.mark.parametrize(("ends", "ids"), [([3, 3, 20, 34, 163], [2, 0, -1, 2, 1]), ([128], [1]), ([1, 257], [0, 0])])
@pytest.mark.parametrize(("n", "k"), [(136, 200), (512, 1024)])
def test_grouped_blockwise(ends, ids, n, k):
    rows, blocks_n, blocks_k = ends[-1] + 4, -(-n // 128), -(-k // 128)
    a, b = ints(rows, k).to(torch.float8_e4m3fn), ints(3, n, k).to(torch.float8_e4m3fn)
    of_a = 2.0 ** torch.randint(-2, 3, (rows, blocks_k), device="cuda")
    of_b = 2.0 ** torch.randint(-2, 3, (3, blocks_n, blocks_k), device="cuda")
    as_tensor = {"dtype": torch.int32, "device": "cuda"}
    groups = torch.tensor(ends, **as_tensor), torch.tensor(ids, **as_tensor)
    out = torch.full((rows, n), torch.nan, device="cuda")
    wl.grouped_blockwise_matmul(a, b, of_a, of_b, groups[0], expert_ids=groups[1], out=out)
    left = a.double() * of_a.double().repeat_interleave(128, 1)[:, :k]
    right = b.double() * of_b.double().repeat_interleave(128, 1)[:, :n].repeat_interleave(128, 2)[:, :, :k]
    start = 0
    for end, expert in zip(ends, ids, strict=True):
        if expert >= 0:
            torch.testing.assert_close(out[start:end].double(), left[start:end] @ right[expert].T, rtol=0, atol=0)
        start = end
