"""Gluon programs on the emulator: the layouts are in the host's descriptors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon.language.nvidia.blackwell")

import triton.experimental.gluon.language as gl  # noqa: E402
from tests.corpus import kernels_gluon_blackwell as blackwell  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma  # noqa: E402
from triton.experimental.gluon.nvidia import hopper  # noqa: E402
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402

from warploom.cli import main  # noqa: E402
from warploom.triton import machine  # noqa: E402


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


@gluon.jit
def column(image, out, top: gl.constexpr, left: gl.constexpr, h, w):
    """The pixels under one tap of a filter, as one tile."""
    tile = gl.allocate_shared_memory(image.dtype, image.block_shape, image.layout)
    barrier = mbarrier.allocate_mbarrier()
    mbarrier.init(barrier, count=1)
    mbarrier.expect(barrier, image.block_type.nbytes)
    tma.async_load_im2col(image, [0, h, w, 0], [top, left], barrier, tile)
    mbarrier.wait(barrier, phase=0)
    mbarrier.invalidate(barrier)
    tma.async_store(out, [0, 0], tile)
    tma.store_wait(pendings=0)


@pytest.mark.skipif(not hasattr(hopper, "TensorDescriptorIm2Col"), reason="needs a Gluon with im2col descriptors")
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_im2col_descriptors(target, tmp_path):
    """A 3 by 3 filter with padding 1 and stride 2 over two images of 7 by 6 pixels, and the launches recorded."""
    with machine(target=target, record=tmp_path, schedule="lazy"):
        image = torch.randint(1, 99, (2, 7, 6, 64), device="cuda").half()
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
        padded = torch.nn.functional.pad(image, (0, 0, 1, 1, 1, 1))
        described_image = hopper.TensorDescriptorIm2Col.from_tensor(
            image, [32, 64], layout, element_strides=[1, 2, 2, 1], pixel_box_lower_corner=[-1, -1],
            pixel_box_upper_corner=[-1, -1],
        )  # fmt: skip
        for top, left in ((0, 0), (2, 1)):
            out = torch.full((32, 64), float("nan"), device="cuda").half()
            column[(1,)](described_image, described(out, [32, 64]), top, left, -1, -1, num_warps=4)
            taps = padded[:, top : top + 7 : 2, left : left + 6 : 2].reshape(-1, 64)
            assert torch.equal(out[: len(taps)], taps)
            assert (out[len(taps) :] == 0).all()
    assert main(["run", "--schedule", "eager", *sorted(str(file) for file in tmp_path.glob("*.launch.json"))]) == 0
