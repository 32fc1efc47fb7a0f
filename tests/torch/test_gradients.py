"""Gradients of the operations on PyTorch tensors, against autograd in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import warploom.ops as wl  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
GROUPS = [[5, 5, 70, 133], [0, 0, 1], [137], [13, 137], [0], []]
"""Ends of groups in 137 rows: empty groups, one row, more than a K tile, all rows, none."""


def ints(*shape, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype)


def leaves(*tensors):
    return [each.detach().clone().requires_grad_() for each in tensors]


def by_loops(a, b, ends):
    """The grouped GEMM, group by group; rows after the last group are zero."""
    parts, start = [], 0
    for matrix, end in zip(b, ends.tolist(), strict=True):
        parts.append(a[start:end] @ matrix)
        start = end
    return torch.cat([*parts, a[start:] @ a.new_zeros(a.shape[1], b.shape[2])]) + 0 * b.sum()


def same(found, want):
    torch.testing.assert_close(found.double(), want.double(), rtol=0, atol=0)


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
@pytest.mark.parametrize("given", GROUPS, ids=str)
def test_grouped_gemms(given, target):
    ends = torch.tensor(given, dtype=torch.int64)
    mine = leaves(ints(137, 24), ints(len(given), 24, 40))
    theirs = leaves(*(each.double() for each in mine))
    gradient = torch.randint(-1, 2, (137, 40)).bfloat16()
    found, want = wl.grouped_matmul(*mine, ends, alpha=2.0, target=target), 2 * by_loops(*theirs, ends)
    same(found, want)
    found.backward(gradient)
    want.backward(gradient.double())
    for own, other in zip(mine, theirs, strict=True):
        assert own.grad.dtype == torch.bfloat16
        same(own.grad, other.grad.bfloat16())


@pytest.mark.usefixtures("poisoned_memory")
def test_epilogues_of_grouped_gemms():
    ends = torch.tensor([5, 5, 30], dtype=torch.int32)
    mine = leaves(ints(37, 24), ints(3, 24, 40) / 8, ints(40), ints(37, 40))
    theirs = leaves(*(each.double() for each in mine))
    gradient = ints(37, 40)
    found = wl.grouped_matmul(*mine[:2], ends, bias=mine[2], residual=mine[3], beta=0.5, activation="silu")
    is_in = (torch.arange(37) < 30)[:, None]
    want = torch.nn.functional.silu(by_loops(*theirs[:2], ends) + theirs[2]) + 0.5 * theirs[3]
    want = torch.where(is_in, want, 0)
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=2e-2)
    found.backward(gradient)
    want.backward(gradient.double())
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=2e-2, atol=0.25)
    assert not mine[3].grad[30:].any()


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the operation of every op."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.done += [args[0]] if function.namespace == "warploom" else []
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("activation", [None, "silu"])
def test_only_requested_gradients_are_computed(activation):
    """The input of an activation is saved, and not computed again."""
    ends, x, w = torch.tensor([5, 9]), ints(9, 16), ints(2, 16, 8)
    for leaf, op in ((x, "grouped_matmul"), (w, "grouped_weights")):
        leaf.requires_grad_()
        made = wl.grouped_matmul(x, w, ends, activation=activation)
        with Watch() as watch:
            made.sum().backward()
        leaf.requires_grad_(False)
        assert watch.done == [op]


@pytest.fixture
def poisoned_memory():
    """New tensors are NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


PAIRS = {
    "swiglu": torch.nn.functional.silu,
    "geglu": torch.nn.functional.gelu,
    "geglu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "reglu": torch.relu,
    "glu": torch.sigmoid,
}


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize(("pair", "target"), [(pair, "sm_90a") for pair in PAIRS] + [("swiglu", "sm_100a")])
def test_gated_grouped_gemms(pair, target):
    """Rows after the last group are not saved, and nothing depends on them."""
    ends = torch.tensor([5, 5, 30])
    gate, up = ints(3, 16, 24) / 8, ints(3, 16, 24) / 8
    mine = leaves(ints(37, 16), gate, up, ints(24), ints(24), ints(37, 24))
    theirs = leaves(*(each.double() for each in mine))
    gradient = ints(37, 24)
    a, gate, up, gate_bias, up_bias, residual = mine
    found = wl.gated_grouped_matmul(
        a, gate, up, ends, pair=pair, gate_bias=gate_bias, up_bias=up_bias, residual=residual, beta=0.5, target=target
    )
    a, gate, up, gate_bias, up_bias, residual = theirs
    both = by_loops(a, gate, ends) + gate_bias, by_loops(a, up, ends) + up_bias
    is_in = (torch.arange(37) < 30)[:, None]
    want = torch.where(is_in, PAIRS[pair](both[0]) * both[1] + 0.5 * residual, 0)
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=2e-2)
    found.backward(gradient)
    want.backward(gradient.double())
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=2e-2, atol=0.5)


@pytest.mark.usefixtures("poisoned_memory")
def test_double_backward_of_gated_grouped_gemms_and_activations():
    ends = torch.tensor([2, 4])
    given = [ints(5, 16, dtype=torch.float32) / 2, *(ints(2, 16, 8, dtype=torch.float32) / 4 for _ in range(2))]
    given += [ints(8, dtype=torch.float32), ints(5, 8, dtype=torch.float32)]
    results = []
    for kind in (torch.float32, torch.float64):
        a, b, u, bias, factor = leaves(*(each.to(kind) for each in given))
        if kind == torch.float32:
            made = wl.gated_grouped_matmul(a, b, u, ends, gate_bias=bias) + wl.grouped_matmul(
                a, b, ends, bias=bias, activation="tanh"
            )
        else:
            first, is_in = by_loops(a, b, ends) + bias, (torch.arange(5) < 4)[:, None]
            both = torch.nn.functional.silu(first) * by_loops(a, u, ends) + torch.tanh(first)
            made = torch.where(is_in, both, 0)
        firsts = torch.autograd.grad((made * factor).square().sum(), (a, b, u, bias), create_graph=True)
        results.append(torch.autograd.grad(sum(each.square().sum() for each in firsts), (a, b, u, bias, factor)))
    for found, want in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), want, rtol=2e-2, atol=1e-2 * float(want.abs().max()))


def test_double_backward():
    ends = torch.tensor([4, 9])
    mine = leaves(ints(9, 16), ints(2, 16, 8))
    theirs = leaves(*(each.double() for each in mine))
    weights = ints(9, 8), ints(9, 16), ints(2, 16, 8)
    results = []
    for (a, b), function in ((mine, wl.grouped_matmul), (theirs, by_loops)):
        w0, w1, w2 = (each.to(a.dtype) for each in weights)
        by_a, by_b = torch.autograd.grad((function(a, b, ends) * w0).sum(), (a, b), create_graph=True)
        results.append(torch.autograd.grad((by_a * w1).sum() + (by_b * w2).sum(), (a, b)))
    for found, want in zip(*results, strict=True):
        same(found, want)
    x, w = leaves(ints(5, 16), ints(8, 16))
    (by_x,) = torch.autograd.grad(wl.linear(x, w).sum(), x, create_graph=True)
    by_x.sum().backward()
    same(w.grad, torch.full((8, 16), 5.0))


def test_eight_bit_operands_have_no_gradient():
    narrow = torch.float8_e4m3fn
    a, b, a_scale, b_scale = ints(5, 16, dtype=narrow), ints(8, 16, dtype=narrow), torch.ones(5, 1), torch.ones(1, 1)
    bias, residual = leaves(ints(8, dtype=torch.float32), ints(5, 8, dtype=torch.float32))
    wl.blockwise_matmul(a, b, a_scale, b_scale, bias=bias, residual=residual, beta=3.0).sum().backward()
    same(bias.grad, torch.full((8,), 5.0))
    same(residual.grad, torch.full((5, 8), 3.0))
    made = wl.blockwise_matmul(a, b, a_scale.requires_grad_(), b_scale.requires_grad_())
    with pytest.raises(WarploomError, match=r"not supported for .*\(here `a_scale`, `b_scale`\)"):
        made.sum().backward()
    made = wl.linear(a.requires_grad_(), b)
    with pytest.raises(WarploomError, match="an FP8 operand"):
        made.sum().backward()


def dispatched(function):
    """The ops that a call and its backward pass dispatch."""
    done = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "warploom":
                done.append(function._opname)
            return function(*args, **(kwargs or {}))

    with Watch():
        function()
    return done


def test_the_input_of_an_activation_is_saved():
    x, w = leaves(ints(5, 16), ints(8, 16))
    both = ["activated_gemm", "plain_matmul", "plain_matmul"]
    assert dispatched(lambda: wl.linear(x, w, activation="silu").sum().backward()) == both
    with torch.no_grad():
        assert dispatched(lambda: wl.linear(x, w, activation="silu")) == ["plain_matmul"]
    assert dispatched(lambda: wl.linear(x.detach(), w.detach(), activation="silu")) == ["plain_matmul"]


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
@pytest.mark.parametrize("pair", PAIRS)
def test_gated_gemms(pair, target):
    mine = leaves(ints(2, 7, 16), ints(24, 16) / 8, ints(24, 16) / 8, ints(24), ints(24), ints(2, 7, 24))
    theirs = leaves(*(each.double() for each in mine))
    gradient = ints(2, 7, 24)
    x, w_gate, w_up, gate_bias, up_bias, residual = mine
    found = wl.gated_linear(
        x, w_gate, w_up, pair=pair, gate_bias=gate_bias, up_bias=up_bias, residual=residual, beta=0.5, target=target
    )
    x, w_gate, w_up, gate_bias, up_bias, residual = theirs
    gate, up = torch.nn.functional.linear(x, w_gate, gate_bias), torch.nn.functional.linear(x, w_up, up_bias)
    want = PAIRS[pair](gate) * up + 0.5 * residual
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=2e-2)
    found.backward(gradient)
    want.backward(gradient.double())
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=2e-2, atol=0.5)


def test_double_backward_of_gated_gemms_and_activations():
    x0, w0, u0 = ints(5, 16, dtype=torch.float32) / 2, ints(8, 16, dtype=torch.float32) / 4, torch.ones(8, 16) / 8
    results = []
    for kind in (torch.float32, torch.float64):
        x, w, u = leaves(*(each.to(kind) for each in (x0, w0, u0)))
        if kind == torch.float32:
            made = wl.gated_linear(x, w, u).sum() + wl.linear(x, w, activation="tanh").square().sum()
        else:
            made = (torch.nn.functional.silu(x @ w.T) * (x @ u.T)).sum() + torch.tanh(x @ w.T).square().sum()
        firsts = torch.autograd.grad(made, (x, w, u), create_graph=True)
        results.append(torch.autograd.grad(sum(each.square().sum() for each in firsts), (x, w, u)))
    for found, want in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), want, rtol=2e-2, atol=1e-2 * float(want.abs().max()))


def test_a_user_epilogue_of_a_gated_gemm_has_no_gradient():
    x, w, u = leaves(ints(5, 16), ints(8, 16), ints(8, 16))
    with pytest.raises(WarploomError, match="Autograd is not supported for"):
        wl.gated_linear(x, w, u, pair=lambda gate, up: gate * up)
