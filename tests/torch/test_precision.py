"""`precision="tf32x3"` of tensors: eager, compiled, and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import warploom as wl  # noqa: E402


def error(got, wanted):
    """The relative error of the whole result: that of one element near zero is as large as chance will have it."""
    return ((got.double() - wanted).norm() / wanted.norm()).item()


def test_results_and_gradients_have_the_precision_of_float32():
    x, w = torch.randn(33, 100, requires_grad=True), torch.randn(40, 100, requires_grad=True)
    wanted = x.double() @ w.double().T
    plain, precise = wl.linear(x, w), wl.linear(x, w, precision="tf32x3")
    assert error(precise, wanted) < 1e-5 < error(plain, wanted)
    weights = torch.randn(33, 40)
    (precise * weights).sum().backward()
    assert error(x.grad, weights.double() @ w.double()) < 1e-5
    assert error(w.grad, weights.double().T @ x.double()) < 1e-5


def test_compiled_calls_keep_it():
    a, b = torch.randn(17, 70), torch.randn(70, 24)
    compiled = torch.compile(lambda a, b: wl.matmul(a, b, precision="tf32x3"), fullgraph=True, backend="aot_eager")
    assert error(compiled(a, b), a.double() @ b.double()) < 1e-5


@pytest.mark.parametrize("is_compiled", [False, True])
def test_many_matrices_times_one(is_compiled):
    a, b = torch.randn(2, 5, 40), torch.randn(40, 24, requires_grad=True)
    function = torch.compile(wl.matmul, fullgraph=True, backend="aot_eager") if is_compiled else wl.matmul
    made = function(a, b, precision="tf32x3", activation="relu")
    wanted = torch.relu(a.double() @ b.double())
    assert error(made, wanted) < 1e-5
    made.sum().backward()
    assert error(b.grad, torch.autograd.grad(wanted.sum(), b)[0].double()) < 1e-5
    with pytest.raises((wl.WarploomError, RuntimeError), match="`precision` must be 'tf32' or 'tf32x3'"):
        wl.matmul(a, b, precision="tf64")
