"""Block formats of tensors on a Hopper GPU: the elements and scales of the same tensors on the host, to the bit."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom as wl

pytestmark = needs_hopper


@pytest.mark.parametrize("name", ["quantise_mxfp8", "quantise_nvfp4"])
@pytest.mark.parametrize("shape", [(1, 32), (130, 96), (3, 70, 256)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_are_quantised_where_they_are(name, shape, dtype):
    x = torch.randn(shape, device="cuda") * torch.exp2(torch.randint(-9, 9, shape, device="cuda"))
    x = x.to(getattr(torch, dtype))
    x[..., :16] = 0
    on_gpu, on_host = (getattr(wl, name)(each) for each in (x, x.cpu()))
    for part in ("values", "scales"):
        found, wanted = (getattr(each, part) for each in (on_gpu, on_host))
        assert found.is_cuda
        assert torch.equal(found.cpu().view(torch.uint8), wanted.view(torch.uint8))
    assert on_gpu.scale == on_host.scale
