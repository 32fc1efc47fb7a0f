"""The PyTorch front door, on the host's tensors: results, derivatives, the compiler, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import warploom.ops as wl  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402
from warploom.ops import nn as wnn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
"""PyTorch's compiler warns of what it will change."""
ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "squared_relu": lambda x: torch.relu(x).square(),
}


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(torch.seed())
    torch._dynamo.reset()


def ints(*shape, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype)


def exact(a, b):
    return a.double() @ b.double()


@pytest.mark.parametrize(
    ("left", "right"),
    [((37, 48), (48, 24)), ((48,), (48, 24)), ((37, 48), (48,)), ((3, 9, 16), (3, 16, 8)), ((2, 3, 9, 16), (16, 8))],
    ids=str,
)
def test_matmul_is_torchs(left, right):
    a, b = ints(*left), ints(*right)
    found = wl.matmul(a, b)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact(a, b), rtol=0, atol=0)


def test_all_that_may_follow():
    x, w, bias, residual = ints(3, 5, 40), ints(24, 40), ints(24), ints(3, 5, 24)
    found = wl.linear(x, w, bias=bias, activation="relu", residual=residual, alpha=2.0, beta=-1.0)
    want = torch.relu(2 * exact(x, w.T) + bias) - residual
    torch.testing.assert_close(found.double(), want, rtol=0, atol=0)


def test_a_function_of_the_callers():
    x, w, scale = ints(9, 16), ints(24, 16), ints(9, 1)
    found = wl.linear(
        x, w, epilogue=lambda acc, at, scale, shift: acc * scale + shift, operands={"scale": scale, "shift": 3.0}
    )
    torch.testing.assert_close(found.double(), exact(x, w.T) * scale + 3, rtol=0, atol=0)


def test_strides_that_the_copy_engine_cannot_step_through():
    a, b = ints(13, 33)[:, 1:24], ints(23, 7)
    torch.testing.assert_close(wl.matmul(a, b).double(), exact(a, b), rtol=0, atol=0)
    torch.testing.assert_close(wl.linear(a, b.T).double(), exact(a, b), rtol=0, atol=0)


def test_results_go_where_they_are_wanted():
    a, b, residual = ints(9, 16), ints(16, 24), ints(9, 24)
    want = exact(a, b) + residual
    out = torch.full((9, 24), torch.nan, dtype=torch.float32)
    assert wl.matmul(a, b, residual=residual, out=out) is out
    torch.testing.assert_close(out.double(), want, rtol=0, atol=0)
    assert wl.matmul(a, b, residual=residual, out=residual) is residual
    torch.testing.assert_close(residual.double(), want, rtol=0, atol=0)
    square = ints(16, 16)
    want = exact(square, square)
    assert wl.matmul(square, square, out=square) is square
    torch.testing.assert_close(square.double(), want, rtol=0, atol=0)
    turned = torch.empty(24, 9, dtype=torch.bfloat16).T
    wl.matmul(a, b, out=turned)
    torch.testing.assert_close(turned.double(), exact(a, b), rtol=0, atol=0)
    assert wl.matmul(a, b, out_dtype=torch.float32).dtype == torch.float32


def test_nothing_to_do():
    assert wl.matmul(ints(0, 16), ints(16, 24)).shape == (0, 24)
    assert wl.linear(ints(2, 0, 16), ints(24, 16)).shape == (2, 0, 24)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_gradients_are_autograds(activation):
    x, w, bias, residual = ints(2, 7, 16), ints(24, 16) / 8, ints(24), ints(2, 7, 24)
    mine = [each.clone().requires_grad_() for each in (x, w, bias, residual)]
    theirs = [each.double().requires_grad_() for each in (x, w, bias, residual)]
    gradient = ints(2, 7, 24)
    found = wl.linear(mine[0], mine[1], bias=mine[2], residual=mine[3], activation=activation, beta=0.5)
    found.backward(gradient)
    after = torch.nn.functional.linear(*theirs[:3])
    want = (ACTIVATIONS[activation](after) if activation else after) + 0.5 * theirs[3]
    want.backward(gradient.double())
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=1e-2)
    for own, other in zip(mine, theirs, strict=True):
        assert own.grad.dtype == own.dtype
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=2e-2, atol=0.25)


def test_only_what_is_asked_for_is_derived():
    x, w = ints(5, 16), ints(24, 16).requires_grad_()
    wl.linear(x, w).sum().backward()
    torch.testing.assert_close(w.grad.double(), x.double().sum(0).expand(24, 16), rtol=0, atol=0)
    batched, bias = ints(3, 5, 16).requires_grad_(), ints(1, 8).requires_grad_()
    wl.matmul(batched, ints(3, 16, 8), bias=bias).sum().backward()
    assert batched.grad.shape == (3, 5, 16)
    torch.testing.assert_close(bias.grad, torch.full((1, 8), 15.0, dtype=torch.bfloat16))


def test_what_has_no_derivative_says_so():
    x, w = ints(5, 16).requires_grad_(), ints(24, 16)
    made = wl.linear(x, w, epilogue=lambda acc, at: acc)
    with pytest.raises(WarploomError, match="`epilogue` and `store` can have no derivative"):
        made.sum().backward()
    with pytest.raises(WarploomError, match="`out` can have no derivative"):
        wl.linear(x, w, out=torch.empty(5, 24, dtype=torch.bfloat16))
    with torch.no_grad():
        wl.linear(x, w, out=torch.empty(5, 24, dtype=torch.bfloat16))


SCALE = 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_break(dynamic):
    def layer(x, w, bias, residual):
        first = wl.linear(x, w, bias=bias, activation="relu", residual=residual)
        return wl.matmul(first, w, epilogue=lambda acc, at, s: acc * SCALE + s, operands={"s": bias[:16]}) + 1

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (5, 9):
        x, w, bias, residual = ints(rows, 16), ints(24, 16), ints(24), ints(rows, 24)
        torch.testing.assert_close(compiled(x, w, bias, residual), layer(x, w, bias, residual), rtol=0, atol=0)


def test_compiled_with_gradients_and_results_in_place():
    def layer(x, w, out):
        made = wl.linear(x, w, activation="silu")
        wl.linear(x.detach(), w.detach(), residual=out, out=out)
        return made.sum() + out.sum()

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    results = []
    x0, w0, out0 = ints(5, 16), ints(24, 16), ints(5, 24)
    for function in (layer, compiled):
        x, w, out = x0.clone().requires_grad_(), w0.clone().requires_grad_(), out0.clone()
        value = function(x, w, out)
        value.backward()
        results.append((value, out, x.grad, w.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_pytorchs_own_checks_of_an_op():
    a, b, bias, residual = ints(5, 16), ints(16, 24), ints(24), ints(5, 24)
    arguments = (bias, residual, [], [], 1.0, 1.0, "relu")
    op = torch.ops.warploom
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(op.matmul.default, (a, b, *arguments, torch.float32, ""), test_utils=tests)
    torch.library.opcheck(op.matmul.default, (a.clone().requires_grad_(), b, *arguments, None, ""), test_utils=tests)
    torch.library.opcheck(op.matmul_into.default, (torch.empty(5, 24), a, b, *arguments, ""), test_utils=tests)


def test_fake_tensors_and_autocast():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        made = wl.linear(torch.empty(5, 16, dtype=torch.float8_e4m3fn), torch.empty(24, 16, dtype=torch.float8_e4m3fn))
        assert (made.shape, made.dtype) == ((5, 24), torch.bfloat16)
    x, w = ints(5, 16, dtype=torch.float32).requires_grad_(), ints(24, 16, dtype=torch.float32).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = wl.linear(x, w)
    assert made.dtype == torch.bfloat16
    made.float().sum().backward()
    assert (x.grad.dtype, w.grad.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(made.double(), exact(x, w.T), rtol=0, atol=0)


def test_transforms_see_the_op():
    x, w = ints(3, 5, 16), ints(24, 16)
    calls = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch(), torch.no_grad():
        wl.linear(x, w)
    assert "warploom.matmul.default" in calls


def test_what_is_wrong_is_told_at_once():
    x, w = ints(5, 16), ints(24, 16)
    with pytest.raises(WarploomError) as caught:
        wl.linear(x, w, bias=ints(23), residual=ints(4, 24), out=torch.empty(3, 3))
    text = str(caught.value)
    for words in (
        "bias, torch.bfloat16 (23,)",
        "residual, torch.bfloat16 (4, 24)",
        "out, torch.float32 (3, 3)",
        "(5, 24)",
    ):
        assert words in text, text
    with pytest.raises(WarploomError, match="it is on meta, and `x` is on cpu"):
        wl.linear(x, w.to("meta"))
    with pytest.raises(WarploomError, match="it is no tensor"):
        wl.matmul(x, [1, 2])
    with pytest.raises(WarploomError, match="has 16 columns"):
        wl.matmul(x, w)
    with pytest.raises(WarploomError, match="its batches do not broadcast"):
        wl.matmul(ints(2, 5, 16), ints(3, 16, 4))
    with pytest.raises(WarploomError):
        wl.matmul(x.double(), w.T.double())


class Other:
    """An array of another library: it has DLPack and nothing else."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **options):
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


def test_arrays_of_other_libraries():
    a, b, out = ints(5, 16), ints(16, 24), torch.empty(5, 24, dtype=torch.bfloat16)
    torch.testing.assert_close(wl.matmul(Other(a), Other(b)).double(), exact(a, b), rtol=0, atol=0)
    holder = Other(out)
    assert wl.matmul(Other(a), Other(b), out=holder) is holder
    torch.testing.assert_close(out.double(), exact(a, b), rtol=0, atol=0)


def test_layers_are_swapped_where_they_are():
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 24),
        torch.nn.ReLU(),
        torch.nn.Sequential(torch.nn.Linear(24, 8, bias=False)),
        torch.nn.Bilinear(8, 8, 2),
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters, x = list(model.parameters()), torch.randn(5, 16)
    want = model[:3](x)
    first = model[0]
    assert wnn.swap_linears(model, only=lambda name, layer: name != "2.0") is model
    assert (type(model[0]), type(model[2][0])) == (wnn.Linear, torch.nn.Linear)
    wnn.swap_linears(model)
    assert model[0] is first
    assert type(model[2][0]) is wnn.Linear
    assert type(model[3]) is torch.nn.Bilinear
    assert list(model.state_dict()) == list(before)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    model.load_state_dict(before)
    torch.testing.assert_close(model[:3](x), want)
    assert "in_features=16, out_features=24" in repr(model[0])


def test_a_layer_with_what_follows():
    layer = wnn.Linear(16, 24, activation="gelu_tanh", dtype=torch.float64)
    assert "activation=gelu_tanh" in repr(layer)
    x, residual = torch.randn(5, 16, dtype=torch.float64), torch.randn(5, 24, dtype=torch.float64)
    want = ACTIVATIONS["gelu_tanh"](torch.nn.functional.linear(x, layer.weight, layer.bias)) + residual
    torch.testing.assert_close(layer(x, residual), want)
    with pytest.raises(WarploomError, match="there are relu"):
        wnn.Linear(4, 4, activation="swish")


def test_a_kernel_of_ones_own_takes_tensors():
    from warploom import TensorMap, launch
    from warploom.trace import Array, f32, kernel, s32, thread, when

    @kernel(target="sm_90a")
    def scale(a: TensorMap, x: Array[f32], n: s32):
        with when(thread().to(s32) < n):
            x[thread()] = x[thread()] * 2.0

    x = torch.arange(40, dtype=torch.float32)
    part = x[4:36]
    tensor_map = TensorMap(ints(16, 64), box=(8, 64))
    launch(scale.bind(tensor_map, part, 30, grid=(1, 1, 1), block=(32, 1, 1)))
    want = torch.arange(40, dtype=torch.float32)
    want[4:34] *= 2
    assert torch.equal(x, want)
