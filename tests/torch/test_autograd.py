"""Gradients of eager calls: against float64, against the custom ops, and which of them bypass the dispatcher."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import warploom.ops as wl  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402
from warploom.torch import arguments, autograd, gradients  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
ACTIVATIONS = {"relu": torch.relu, "silu": torch.nn.functional.silu, None: lambda x: x}


def ints(*shape, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype)


def leaves(*tensors):
    return [each.detach().clone().requires_grad_() for each in tensors]


def is_short(made) -> bool:
    """Check whether a result was computed without a custom op."""
    return made.grad_fn is not None and made.grad_fn.name() == "_GemmBackward"


def close(found, want):
    assert found.shape == want.shape
    assert (found.double() - want).norm() <= 1e-2 * want.norm()


def linear(x, w, bias=None, residual=None, alpha=1.0, beta=1.0, activation=None):
    made = alpha * (x @ w.T) + (0 if bias is None else bias)
    return ACTIVATIONS[activation](made) + (0 if residual is None else beta * residual)


CASES = {
    "plain": ((5, 16), (24, 16), None, None, {}),
    "one row": ((16,), (24, 16), (24,), (24,), {}),
    "many axes": ((2, 3, 16), (24, 16), (24,), (3, 1), {"beta": 0.5}),
    "a residual for all": ((2, 7, 16), (8, 16), None, (8,), {"activation": "silu"}),
    "everything": ((7, 33), (24, 33), (24,), (7, 24), {"alpha": 2.0, "beta": 0.5, "activation": "silu"}),
    "a bias for all": ((7, 16), (24, 16), (1,), None, {"activation": "relu"}),
    "a matrix for a bias": ((7, 16), (24, 16), (7, 24), None, {}),
    "no rows": ((0, 16), (24, 16), (24,), None, {"activation": "relu"}),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_epilogue_inputs_and_operands(case):
    x, w, bias, residual, options = CASES[case]
    mine = leaves(*(ints(*shape) for shape in (x, w, bias, residual) if shape is not None))
    theirs = leaves(*(each.double() for each in mine))
    names = [name for name, shape in (("bias", bias), ("residual", residual)) if shape is not None]
    found = wl.linear(*mine[:2], **dict(zip(names, mine[2:], strict=True)), **options)
    want = linear(*theirs[:2], **dict(zip(names, theirs[2:], strict=True)), **options)
    assert is_short(found)
    close(found, want)
    gradient = ints(*found.shape)
    found.backward(gradient)
    want.backward(gradient.double())
    for own, other in zip(mine, theirs, strict=True):
        assert (own.grad.shape, own.grad.dtype) == (own.shape, own.dtype)
        close(own.grad, other.grad)


def test_matrices():
    a, b = leaves(ints(5, 16), ints(16, 8))
    made = wl.matmul(a, b, out_dtype=torch.float32)
    assert is_short(made)
    gradient = ints(5, 8, dtype=torch.float32)
    made.backward(gradient)
    torch.testing.assert_close(a.grad, gradient.bfloat16() @ b.detach().T, rtol=0, atol=0)
    torch.testing.assert_close(b.grad, a.detach().T @ gradient.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_results_match_the_custom_ops_bit_for_bit(activation, monkeypatch):
    given, gradient = (ints(9, 48), ints(24, 48) / 8, ints(24), ints(9, 24)), ints(9, 24)
    found = []
    for is_direct in (True, False):
        x, w, bias, residual = mine = leaves(*given)
        with monkeypatch.context() as patch:
            if not is_direct:
                patch.setattr(autograd, "is_observed", lambda: True)
            made = wl.linear(x, w, bias=bias, residual=residual, activation=activation)
        assert is_short(made) is is_direct
        made.backward(gradient)
        found.append([made, *(each.grad for each in mine)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_only_requested_gradients_are_computed(monkeypatch):
    done, product = [], gradients.gemm
    spy = lambda *given, **options: done.append(1) or product(*given, **options)  # noqa: E731
    monkeypatch.setattr(gradients, "gemm", spy)
    x, w, bias = ints(5, 16), ints(24, 16), ints(24)
    for number, products in ((0, 1), (1, 1), (2, 0)):
        mine = [each.clone().requires_grad_(at == number) for at, each in enumerate((x, w, bias))]
        done.clear()
        wl.linear(*mine[:2], bias=mine[2], activation="relu").sum().backward()
        assert len(done) == products
        assert [each.grad is not None for each in mine] == [at == number for at in range(3)]


def test_double_backward():
    given = ints(5, 16, dtype=torch.float32) / 2, ints(8, 16, dtype=torch.float32) / 4
    results = []
    for kind, function in ((torch.float32, wl.linear), (torch.float64, linear)):
        x, w = leaves(*(each.to(kind) for each in given))
        made = function(x, w, activation="silu")
        assert kind == torch.float64 or is_short(made)
        firsts = torch.autograd.grad(made.square().sum() + function(x, w).square().sum(), (x, w), create_graph=True)
        results.append(torch.autograd.grad(sum(each.square().sum() for each in firsts), (x, w)))
    for found, want in zip(*results, strict=True):
        close(found, want)


def test_saved_tensors_go_through_hooks_and_must_not_change():
    x, w = leaves(ints(5, 16), ints(24, 16))
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: packed.append(each.shape) or each, lambda each: each):
        wl.linear(x, w, activation="relu").sum().backward()
    assert packed == [(5, 16), (24, 16), (5, 24)]
    made = wl.linear(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()
    again = torch.utils.checkpoint.checkpoint(lambda x: wl.linear(x, w, activation="relu"), x, use_reentrant=False)
    x.grad = None
    again.sum().backward()
    assert x.grad is not None


def test_a_gradient_may_be_lazily_negative():
    x, w = leaves(ints(5, 16, dtype=torch.float32), ints(24, 16, dtype=torch.float32))
    gradient = ints(5, 24, dtype=torch.float32)
    wl.linear(x, w).backward(torch._neg_view(gradient))
    torch.testing.assert_close(x.grad, -gradient @ w.detach(), rtol=0, atol=0)


def test_autocast_with_gradients():
    given = ints(5, 16, dtype=torch.float32), ints(24, 16, dtype=torch.float32), ints(24, dtype=torch.float32)
    gradient, found = ints(5, 24), []
    for function in (lambda x, w, bias: wl.linear(x, w, bias=bias), torch.nn.functional.linear):
        mine = leaves(*given)
        with torch.autocast("cpu", torch.bfloat16):
            made = function(*mine)
        assert made.dtype == torch.bfloat16
        made.backward(gradient)
        assert all(each.grad.dtype == torch.float32 for each in mine)
        found.append((is_short(made), [made, *(each.grad for each in mine)]))
    (mine, ours), (_, theirs) = found
    assert mine
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


class Own(torch.Tensor):
    pass


class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_subclasses_modes_and_transforms_see_custom_ops():
    x, w = leaves(ints(5, 16), ints(24, 16))
    assert is_short(wl.linear(x, w))
    with Mode():
        assert not is_short(wl.linear(x, w))
    assert not is_short(wl.linear(x.as_subclass(Own), w))
    assert not is_short(wl.linear(x, w, epilogue=lambda acc, at: acc * 2))
    assert not is_short(wl.matmul(ints(2, 5, 16), w.T))
    with torch.no_grad():
        assert wl.linear(x, w).grad_fn is None
    assert wl.linear(x.detach(), w.detach()).grad_fn is None


def test_invalid_calls_are_reported_as_without_gradients():
    x, w = leaves(ints(5, 16), ints(24, 16))
    with pytest.raises(WarploomError, match=r"must be one of relu, .* got 'swish'"):
        wl.linear(x, w, activation="swish")
    with pytest.raises(WarploomError, match=r"`alpha` must be a number"):
        wl.linear(x, w, alpha="2", activation="relu")
    with pytest.raises(WarploomError, match=r"must be \(n, k\)"):
        wl.linear(x, w.T)
    with pytest.raises(TypeError, match="unexpected keyword argument 'gain'"):
        wl.linear(x, w, gain=2)


def graph_of(function, *given):
    """The ops that the compiler receives, before it differentiates them."""
    found = []

    def backend(module, inputs):
        found.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    torch._dynamo.reset()
    made = torch.compile(function, backend=backend, fullgraph=True)(*given)
    return found, made


def test_the_compiler_traces_only_calls_that_the_front_op_does_not_cover():
    x, w, bias, residual = ints(2, 5, 16), ints(24, 16), ints(24), ints(2, 5, 24)
    options = {"bias": bias, "residual": residual, "activation": "relu", "beta": 0.5}
    found, made = graph_of(lambda x, w: wl.linear(x, w, **options), x, w)
    assert found == ["warploom.front"]
    assert torch.equal(made, wl.linear(x, w, **options))
    for function in (
        lambda x, w: wl.linear(x, w, bias=1.0),
        lambda x, w: wl.linear(x, w, residual=residual[:1]),
        lambda x, w: wl.linear(x, w, bias=bias[None, None]),
        lambda x, w: wl.matmul(x, w.T),
        lambda x, w: wl.linear(x, w, alpha=2),
        lambda x, w: wl.linear(x, w, epilogue=lambda acc, at: acc * 2),
    ):
        found, made = graph_of(function, x, w)
        assert "warploom.front" not in found
        assert torch.equal(made, function(x, w))


def test_opcheck_of_the_front_op():
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for leaf in (None, 0):
        x, w, bias = ints(5, 16), ints(24, 16), ints(24)
        if leaf is not None:
            x.requires_grad_()
        for options in ({}, {"bias": bias, "activation": "gelu"}):
            op = torch.ops.warploom.front.default
            torch.library.opcheck(op, ("linear", x, w), options, test_utils=checks)


def test_ops_without_gradients_respect_modes_and_transforms():
    a, b = ints(5, 16, dtype=torch.float32), ints(16, 8, dtype=torch.float32)

    def gemm(a, b):
        return torch.ops.warploom.gemm(
            "matmul", a, b, [], *arguments.NO_INPUTS, [], arguments.DEFAULT_NUMBERS, "", None
        )

    with torch.no_grad():
        want = gemm(a, b)
        torch.testing.assert_close(gemm(torch._neg_view(a), b), -want, rtol=0, atol=0)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = gemm(mode.from_tensor(a), mode.from_tensor(b))
        assert isinstance(fake, torch._subclasses.FakeTensor)
        assert torch.equal(torch.func.functionalize(lambda a: gemm(a, b))(a), want)
    with torch.inference_mode():
        assert torch.equal(gemm(a.clone(), b), want)
