"""Gluon programs on the emulator: the layouts are in the host's descriptors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon.language.nvidia.blackwell")

import triton.experimental.gluon.language as gl  # noqa: E402
from tests.corpus import kernels_gluon_blackwell as blackwell  # noqa: E402
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402

from warploom.triton import machine  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


def described(tensor, block, cga=()):
    layout = gl.NVMMASharedLayout(
        swizzle_byte_width=128, element_bitwidth=8 * tensor.element_size(), rank=2, cga_layout=cga
    )
    return TensorDescriptor.from_tensor(tensor, block, layout)


def integers(*shape):
    return torch.randint(-4, 5, shape, device="cuda").half()


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_a_ring_of_tma_loads_and_tcgen05(schedule):
    with machine(target="sm_100", schedule=schedule):
        a, b = integers(128, 320), integers(256, 320)
        c = torch.full((128, 256), float("nan"), dtype=torch.float16, device="cuda")
        arguments = (described(a, [128, 64]), described(b, [128, 64]), described(c, [128, 128]))
        blackwell.tcgen05_ring[(1, 2)](*arguments, STAGES=2, WARPS=4, VARIANT="32x32b", num_warps=4)
        assert torch.equal(c, (a.float() @ b.float().T).half())


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_a_pair_of_ctas(schedule):
    with machine(target="sm_100", schedule=schedule) as emulator:
        a, b = integers(256, 128), integers(128, 256)
        c = torch.full((256, 256), float("nan"), dtype=torch.float16, device="cuda")
        arguments = (
            described(a, [256, 64], [[1, 0]]),
            described(b, [64, 128], [[0, 1]]),
            described(c, [256, 128], [[1, 0]]),
        )
        blackwell.two_cta_matmul[(1, 2)](*arguments, num_ctas=2, num_warps=4)
        assert torch.equal(c, (a.float() @ b.float()).half())
    assert emulator.launches[0].grid == (2, 2, 1)
