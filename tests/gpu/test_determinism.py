"""The same bits every time on a Hopper GPU and, if batch-invariant, for a row in any batch and at any position."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom as wl

pytestmark = needs_hopper
ROWS = (*range(1, 18), 31, 33, 63, 64, 65, 127, 129, 192, 255, 257, 300, 511, 1000, 2048)


def normal(*shape, dtype="bfloat16"):
    return torch.randn(*shape, device="cuda").to(getattr(torch, dtype))


def same(one, other):
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(128, 4096, 4096), (16, 4096, 14336), (256, 256, 65536), (1024, 1024, 1024), (300, 520, 8200), (4100, 4100, 512)],
)
def test_every_kernel_gives_the_same_bits_each_time(m, n, k):
    x, w, bias, residual = normal(m, k), normal(n, k), normal(n), normal(m, n)
    other = torch.cuda.Stream()
    want = wl.linear(x, w), wl.linear(x, w, bias=bias, activation="gelu_tanh", residual=residual)
    for _ in range(8):
        with torch.cuda.stream(other):
            torch.mm(w, w.T)  # so that CTAs do not run in the same order
        found = wl.linear(x, w), wl.linear(x, w, bias=bias, activation="gelu_tanh", residual=residual)
        assert all(same(one, two) for one, two in zip(found, want, strict=True))
    torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn"])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (264, 8192), (1024, 520)])
def test_a_row_is_the_same_in_every_batch(n, k, dtype):
    x, w, bias = normal(max(ROWS), k, dtype=dtype), normal(n, k, dtype=dtype), normal(n)
    residual = normal(max(ROWS), n)
    options = {"bias": bias, "activation": "silu", "out_dtype": torch.bfloat16}
    with wl.determinism(batch_invariant=True), torch.no_grad():
        whole = wl.linear(x, w, out_dtype=torch.float32), wl.linear(x, w, residual=residual, **options)
        for m in ROWS:
            plain = wl.linear(x[:m], w, out_dtype=torch.float32)
            fused = wl.linear(x[:m], w, residual=residual[:m], **options)
            assert same(plain, whole[0][:m]), m
            assert same(fused, whole[1][:m]), m
        place = torch.randperm(300, device="cuda")
        taken = x.view(torch.uint8)[place].view(x.dtype)
        assert same(wl.linear(taken, w, out_dtype=torch.float32), whole[0][place])
    torch.cuda.synchronize()


def test_the_fastest_configuration_is_used_without_batch_invariance():
    x, w = normal(16, 14336), normal(4096, 14336)
    fast = wl.linear(x, w, out_dtype=torch.float32)
    with wl.determinism(batch_invariant=True):
        whole = wl.linear(x, w, out_dtype=torch.float32)
        again = wl.linear(x, w, out_dtype=torch.float32)
    assert same(whole, again)
    assert same(fast, wl.linear(x, w, out_dtype=torch.float32))
    assert not same(fast, whole), "no split was chosen, or its rounding does not show"
    torch.testing.assert_close(fast, whole, rtol=1e-3, atol=1e-2)


def test_a_row_is_the_same_in_every_group_and_block():
    a, b = normal(1024, 2048), normal(4, 2048, 512)
    narrow = normal(1024, 2048, dtype="float8_e4m3fn"), normal(520, 2048, dtype="float8_e4m3fn")
    factors = torch.rand(1024, 16, device="cuda"), torch.rand(5, 16, device="cuda")
    with wl.determinism(batch_invariant=True):
        want = wl.matmul(a, b[1], out_dtype=torch.float32)
        for ends in ([0, 1024, 1024, 1024], [3, 700, 700, 701], [500, 516, 600, 1024]):
            found = wl.grouped_matmul(a, b, torch.tensor(ends, device="cuda"), out_dtype=torch.float32)
            assert same(found[ends[0] : ends[1]], want[ends[0] : ends[1]])
        whole = wl.blockwise_matmul(*narrow, *factors, out_dtype=torch.float32)
        for m in ROWS:
            if m <= 1024:
                found = wl.blockwise_matmul(
                    narrow[0][:m], narrow[1], factors[0][:m], factors[1], out_dtype=torch.float32
                )
                assert same(found, whole[:m]), m
    torch.cuda.synchronize()
