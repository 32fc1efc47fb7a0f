"""Convolutions of tensors, NCHW in channels_last, against PyTorch's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import warploom as wl  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402


def ints(*shape, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype).contiguous(memory_format=torch.channels_last)


def convolved(x, w, **options):
    return torch.nn.functional.conv2d(x.float(), w.float(), **options)


@pytest.mark.parametrize(
    ("filters", "options"),
    [
        ((16, 24, 3, 3), {"padding": 1}),
        ((40, 24, 2, 3), {"stride": (1, 2), "padding": (2, 0), "dilation": (2, 1)}),
        ((13, 24, 1, 1), {"stride": 3}),
    ],
)
def test_sizes(filters, options):
    x, w = ints(2, 24, 7, 9), ints(*filters)
    wanted = convolved(x, w, **options)
    got = wl.conv2d(x, w, out_dtype=torch.float32, **options)
    assert torch.equal(got, wanted)
    assert got.is_contiguous(memory_format=torch.channels_last)
    out = torch.full_like(wanted, torch.nan)
    assert wl.conv2d(x.contiguous(), w.contiguous(), out=out, **options) is out  # NCHW in memory: by way of a copy
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_epilogue(is_compiled):
    x, w, bias, residual = ints(2, 16, 6, 5), ints(24, 16, 3, 3), torch.ones(24) * 2, ints(2, 24, 6, 5)

    def call(*given):
        return wl.conv2d(*given[:2], bias=given[2], residual=given[3], beta=-1.0, activation="relu", padding=1)

    made = torch.compile(call, backend="aot_eager", fullgraph=True) if is_compiled else call
    wanted = torch.relu(convolved(x, w, padding=1) + 2.0 * torch.ones(24, 1, 1)) - residual.float()
    assert torch.equal(made(x, w, bias, residual), wanted.bfloat16())


def test_outputs_have_the_layout_of_the_result():
    x, w = ints(1, 16, 4, 4), ints(8, 16, 3, 3)
    kept = torch.full((1, 8, 2, 2), torch.nan).contiguous(memory_format=torch.channels_last)
    got = wl.conv2d(x, w, activation="relu", outputs={"pre_activation": kept}, out_dtype=torch.float32)
    assert torch.equal(kept, convolved(x, w))
    assert torch.equal(got, torch.relu(kept))


def test_wrong_arguments_and_gradients():
    x, w = ints(1, 16, 4, 4), ints(8, 16, 3, 3)
    with pytest.raises(WarploomError) as error:
        wl.conv2d(x[0], w, stride=0, activation="soft")
    for name in ("x", "stride", "activation"):
        assert f"`{name}` must" in str(error.value)
    with pytest.raises(WarploomError, match="`w` must be a tensor"):
        wl.conv2d(x, 3, padding=1)
    with pytest.raises(TypeError, match=r"conv2d\(\) got an unexpected keyword argument 'groups'"):
        wl.conv2d(x, w, groups=2)
    with pytest.raises(WarploomError, match="a convolution"):
        wl.conv2d(x, w.requires_grad_())


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_timeline_takes_tensors_as_the_operation_does(target):
    x, w = torch.randint(-2, 3, (2, 16, 9, 9)).bfloat16(), torch.randint(-2, 3, (24, 16, 3, 3)).bfloat16()
    x, w = (each.contiguous(memory_format=torch.channels_last) for each in (x, w))
    out = torch.full((2, 24, 9, 9), torch.nan, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    assert wl.timeline(wl.conv2d, x, w, padding=1, out=out, target=target)
    assert torch.equal(out, torch.nn.functional.conv2d(x.float(), w.float(), padding=1).bfloat16())
