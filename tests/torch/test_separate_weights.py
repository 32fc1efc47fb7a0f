"""`grouped_matmul` with a list of tensors that are allocated separately, against PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import warploom as wl  # noqa: E402
from warploom.diagnostics import LaunchError  # noqa: E402

ENDS = torch.tensor([20, 21, 40, 70])
IDS = [2, 0, -1, 2]


def integers(*shape):
    return torch.randint(-3, 4, shape).to(torch.bfloat16)


def wanted(a, weights, ids, ends=ENDS):
    result = torch.zeros(a.shape[0], weights[0].shape[1])
    starts = [0, *ends.tolist()[:-1]]
    for start, end, expert in zip(starts, ends.tolist(), ids, strict=True):
        if expert >= 0:
            result[start:end] = a[start:end].float() @ weights[expert].float()
    return result


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_ids_that_are_permuted_repeated_and_inactive(target):
    a, weights = integers(75, 136), [integers(136, 72) for _ in range(3)]
    got = wl.grouped_matmul(
        a, weights, ENDS, expert_ids=torch.tensor(IDS), out_dtype=torch.float32, alpha=2.0, target=target
    )
    assert torch.equal(got, 2 * wanted(a, weights, IDS))


def test_transposed_weights_into_the_tensor_of_the_caller():
    a, weights = integers(70, 64), [integers(40, 64).T for _ in range(4)]
    out = torch.full((70, 40), torch.nan)
    assert wl.grouped_matmul(a, weights, ENDS, out=out) is out
    assert torch.equal(out, wanted(a, weights, range(4)))


def test_all_weights_must_be_alike():
    with pytest.raises(LaunchError, match=r"`b\[1\]` must have the shape, type and strides of `b\[0\]`"):
        wl.grouped_matmul(integers(70, 64), [integers(64, 40), integers(64, 48)], torch.tensor([9, 70]))


def test_gradients_are_refused_in_words():
    weights = [integers(64, 40).requires_grad_() for _ in range(4)]
    with pytest.raises(LaunchError, match="has no gradients as a list: stack the weights"):
        wl.grouped_matmul(integers(70, 64), weights, ENDS)
    with torch.no_grad():
        assert wl.grouped_matmul(integers(70, 64), weights, ENDS).shape == (70, 40)
