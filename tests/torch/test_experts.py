"""Grouped GEMMs of tensors with expert ids, scales and biases, and batches of scaled ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import warploom as wl  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402

ENDS, IDS = torch.tensor([7, 7, 60, 75, 90]), torch.tensor([2, 0, -1, 2, 1], dtype=torch.int32)


def integers(*shape, dtype=torch.bfloat16):
    return torch.randint(-3, 4, shape).to(dtype)


def by_experts(a, b, bias, scales):
    found, start = torch.zeros(a.shape[0], b.shape[2]), 0
    for end, expert in zip(ENDS.tolist(), IDS.tolist(), strict=True):
        if expert >= 0:
            found[start:end] = a[start:end].float() @ b[expert].float() * scales[expert] + bias[expert].float()
        start = end
    return found


def test_experts_eagerly_and_compiled():
    a, b, bias, scales = integers(95, 40), integers(4, 40, 64), integers(4, 64), torch.tensor([1, 2, 0.5, 3])

    def call(a, b, ends, ids, scales, bias):
        return wl.grouped_matmul(a, b, ends, expert_ids=ids, expert_scales=scales, bias=bias, out_dtype=torch.float32)

    given, wanted = (a, b, ENDS, IDS, scales, bias), by_experts(a, b, bias, scales)
    assert torch.equal(call(*given), wanted)
    assert torch.equal(torch.compile(call, backend="aot_eager", fullgraph=True)(*given), wanted)
    out = torch.full((95, 64), torch.nan)
    assert wl.grouped_matmul(a, b, ENDS, expert_ids=IDS.long(), bias=bias, out=out) is out
    assert torch.isnan(out[7:60]).all()
    assert torch.equal(out[60:90], by_experts(a, b, bias, torch.ones(4))[60:90])


def test_experts_have_no_gradient_and_must_be_tensors():
    a, b = integers(95, 40, dtype=torch.float32).requires_grad_(), integers(4, 40, 64, dtype=torch.float32)
    with pytest.raises(WarploomError, match="`expert_ids`"):
        wl.grouped_matmul(a, b, ENDS, expert_ids=IDS)
    with pytest.raises(WarploomError, match="`expert_scales` must be a tensor"):
        wl.grouped_matmul(a, b, ENDS, expert_ids=IDS, expert_scales=3)


@pytest.mark.parametrize("activation", [None, "relu"])
def test_the_gradient_of_a_bias_for_each_group(activation):
    ends = [7, 7, 60, 90]
    a, b, bias = (integers(*shape, dtype=torch.float32).requires_grad_() for shape in ((95, 40), (4, 40, 24), (4, 24)))
    y = wl.grouped_matmul(a, b, torch.tensor(ends), bias=bias, activation=activation)
    starts = [0, *ends[:-1]]
    groups = [a[start:end] @ b[g] + bias[g] for g, (start, end) in enumerate(zip(starts, ends, strict=True))]
    wanted = torch.cat([*groups, torch.zeros(5, 24)])
    wanted = wanted if activation is None else torch.relu(wanted)
    assert torch.equal(y, wanted)
    gradient = integers(95, 24, dtype=torch.float32)
    for mine, other in zip(
        torch.autograd.grad(y, (a, b, bias), gradient), torch.autograd.grad(wanted, (a, b, bias), gradient), strict=True
    ):
        assert torch.equal(mine, other)


def test_batches_of_blocks():
    x, w = integers(2, 20, 130, dtype=torch.float8_e4m3fn), integers(40, 130, dtype=torch.float8_e4m3fn)
    of_x, of_w = torch.ones(2, 20, 2), torch.full((1, 2), 2.0)
    wanted = (2 * x.float() @ w.float().T).bfloat16()
    assert torch.equal(wl.blockwise_matmul(x, w, of_x, of_w), wanted)
    assert torch.equal(wl.blockwise_matmul(w, x, torch.full((40, 2), 2.0), torch.ones(2, 1, 2)), wanted.mT)
