"""GEMMs of tensors in block formats: eager, compiled, grouped and quantised, against NumPy's front door."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.ops.test_grouped_block_scaled import ENDS, Gated, Problem  # noqa: E402
from tests.ops.test_grouped_blockwise import IDS, problem  # noqa: E402

import warploom as wl  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402
from warploom.ops import interleave_scales  # noqa: E402
from warploom.torch.scale_factors import interleaved  # noqa: E402


def tensor(array):
    """A tensor of the same bytes; 4-bit elements packed, as PyTorch has them."""
    name = array.dtype.name
    codes = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8 if array.itemsize == 1 else array.dtype))
    if name == "float4_e2m1fn":
        return (codes[..., ::2] & 15 | codes[..., 1::2] << 4).view(torch.float4_e2m1fn_x2)
    return codes.view(getattr(torch, name))


@pytest.mark.parametrize("ends", [None, [0, 3, 3, 140, 290], [300], []])
def test_scales_are_interleaved_as_by_numpy(ends):
    scales = np.random.default_rng().integers(0, 255, (300, 9), np.uint8)
    given = None if ends is None else np.array(ends, np.int64)
    wanted = interleave_scales(scales, given)
    found = interleaved(torch.from_numpy(scales), None if given is None else torch.from_numpy(given))
    assert torch.equal(found, torch.from_numpy(wanted))


@pytest.mark.parametrize("name", ["MXFP8", "NVFP4", "W4A8"])
def test_groups(name):
    case = Problem(name, 40, 128)
    given, ids = [tensor(each) for each in case.given], tensor(case.ids)
    wanted = torch.from_numpy(np.nan_to_num(case.sums)).float()
    got = wl.grouped_block_scaled_matmul(*given, expert_ids=ids, out_dtype=torch.float32)
    assert torch.equal(got, wanted)
    out = torch.full((167, 40), torch.nan)
    given[2] = interleaved(given[2], given[4])
    assert wl.grouped_block_scaled_matmul(*given, expert_ids=ids, out=out) is out
    assert torch.equal(out.nan_to_num(), wanted)
    assert torch.isnan(out[ENDS[-1] :]).all()


def test_batches_compiled():
    case = Problem("MXFP8", 40, 128, ends=[20], ids=[0], spare=0, experts=2)
    a, b, of_a, of_b, _ = (tensor(each) for each in case.given)
    call = torch.compile(lambda *each: wl.block_scaled_matmul(*each, alpha=2.0), backend="aot_eager", fullgraph=True)
    got = call(a, b, of_a, of_b)
    assert got.shape == (2, 20, 40)
    assert torch.equal(got[0], (2 * torch.from_numpy(case.sums)).bfloat16())


@pytest.mark.parametrize("format_", ["mxfp8", "nvfp4"])
def test_results_in_block_formats(format_):
    case = Gated("MXFP8", 64)
    options = {"pair": "reglu", "quantise_to": format_}
    wanted = wl.gated_grouped_block_scaled_matmul(*case.given, expert_ids=case.gate.ids, **options)
    given = [tensor(each) for each in case.given]
    made = wl.gated_grouped_block_scaled_matmul(*given, expert_ids=tensor(case.gate.ids), **options)
    for mine, other in ((made.values, wanted.values), (made.scales, wanted.scales)):
        assert torch.equal(mine.view(torch.uint8), torch.from_numpy(other.view(np.uint8)))
    assert made.scales.dtype == (torch.float8_e8m0fnu if format_ == "mxfp8" else torch.float8_e4m3fn)


def test_blocks_of_128_in_groups():
    given, sums = problem()
    tensors = [tensor(each) for each in given]
    wanted = torch.from_numpy(np.nan_to_num(sums)).float()
    got = wl.grouped_blockwise_matmul(*tensors, expert_ids=tensor(IDS), out_dtype=torch.float32)
    assert torch.equal(got, wanted)


def test_there_is_no_gradient():
    case = Problem("MXFP8", 40, 128)
    bias = torch.zeros(40, requires_grad=True)
    with pytest.raises(WarploomError, match="scaled operands"):
        wl.grouped_block_scaled_matmul(*map(tensor, case.given), expert_ids=tensor(case.ids), bias=bias)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16])
def test_tensors_are_quantised_as_arrays_are(of, dtype):
    x = torch.randn(7, 3, 96) * torch.exp2(torch.randint(-140, 120, (7, 3, 1)))
    x[0, 0, :32], x[1, 1, 5], x[2, 2, 40] = 0, torch.inf, torch.nan
    x = x.to(of)
    made = wl.quantise_mxfp8(x, getattr(torch, dtype))
    wanted = wl.quantise_mxfp8(x.float().numpy(), getattr(ml_dtypes, dtype))
    assert torch.equal(made.scales.view(torch.uint8), torch.from_numpy(wanted.scales.view(np.uint8)))
    numbers = made.values.float().numpy()
    np.testing.assert_array_equal(numbers, wanted.values.astype(np.float32))
    with pytest.raises(WarploomError, match="multiple of 32"):
        wl.quantise_mxfp8(x[..., :40])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(3, 5, 48), (16,), (70, 160), (0, 32)])
def test_nvfp4_of_tensors_is_that_of_arrays(shape, dtype):
    x = torch.randn(shape).to(getattr(torch, dtype)) * 2.0 ** torch.randint(-6, 6, shape)
    x.flatten()[::7] = 0.0
    x = x.to(getattr(torch, dtype))
    made, wanted = wl.quantise_nvfp4(x), wl.quantise_nvfp4(x.float().numpy())
    codes = wanted.values.view(np.uint8)
    packed = codes[..., 0::2] & 15 | (codes[..., 1::2] & 15) << 4
    assert (made.values.numpy() == packed).all()
    assert (made.scales.view(torch.uint8).numpy() == wanted.scales.view(np.uint8)).all()
    assert made.scale == wanted.scale


def test_nvfp4_of_tensors_refuses_what_it_refuses_of_arrays():
    for x, what in ((torch.full((16,), torch.inf), "must be finite"), (torch.zeros(8), "a multiple of 16")):
        with pytest.raises(WarploomError, match=what):
            wl.quantise_nvfp4(x)
    with pytest.raises(WarploomError, match="a tensor of float32"):
        wl.quantise_nvfp4(torch.zeros(16, dtype=torch.int32))
