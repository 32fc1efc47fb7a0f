"""Functions of PyTorch that a GPU has and the CPU has not, or not for all types."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import warploom.triton  # noqa: E402


@pytest.fixture(autouse=True)
def machine():
    with warploom.triton.machine() as held:
        yield held


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float32])
def test_histograms_of_integers(dtype):
    values = torch.randint(0, 9, (300,), device="cuda").to(dtype)
    for counts in (torch.histc(values, bins=9, max=8), values.histc(9, 0, 8)):
        assert counts.dtype == dtype
        assert torch.equal(counts.long(), torch.bincount(values.long(), minlength=9))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_equal_numbers_of_eight_bits(dtype):
    x = torch.randn(7, 5, device="cuda").to(dtype)
    assert torch.equal(x, x.clone())
    assert not x.equal((x.float() + 1).to(dtype))
    assert not torch.equal(x, x[1:])
    assert not torch.equal(torch.full_like(x, float("nan")), torch.full_like(x, float("nan")))


def test_products_with_a_wider_result():
    a = torch.randn(33, 40, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(2, 40, 24, device="cuda", dtype=torch.bfloat16)
    wide = a.float() @ b[0].float()
    for product in (
        torch.mm(a, b[0], out_dtype=torch.float32),
        torch.mm(a, b[0], torch.float32),
        torch.addmm(torch.zeros_like(wide), a, mat2=b[0], out_dtype=torch.float32),
    ):
        assert product.is_cuda
        assert torch.equal(product, wide)
    assert torch.equal(torch.bmm(b.mT, b, out_dtype=torch.float32), b.float().mT @ b.float())
    assert torch.mm(a, b[0]).dtype == torch.bfloat16
    assert torch.mm(a.cpu(), b[0].cpu()).device.type == "cpu"


@pytest.mark.parametrize("backend", sorted(set(SDPBackend.__members__) - {"ERROR", "OVERRIDEABLE"}))
def test_attention_with_a_backend_of_gpus(backend):
    q, k, v = torch.randn(3, 1, 2, 9, 16, device="cuda", dtype=torch.float16)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    torch.testing.assert_close(found.double(), exact, atol=5e-3, rtol=5e-3)
