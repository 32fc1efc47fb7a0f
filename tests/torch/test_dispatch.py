"""Operations on host tensors of PyTorch: results, gradients, the compiler, and refused calls."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import warploom.ops as wl  # noqa: E402
import warploom.torch.dispatch as front  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402

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
def test_matmul_matches_torch(left, right):
    a, b = ints(*left), ints(*right)
    found = wl.matmul(a, b)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact(a, b), rtol=0, atol=0)


def test_every_epilogue_option():
    x, w, bias, residual = ints(3, 5, 40), ints(24, 40), ints(24), ints(3, 5, 24)
    found = wl.linear(x, w, bias=bias, activation="relu", residual=residual, alpha=2.0, beta=-1.0)
    want = torch.relu(2 * exact(x, w.T) + bias) - residual
    torch.testing.assert_close(found.double(), want, rtol=0, atol=0)


def test_a_user_epilogue():
    x, w, scale = ints(9, 16), ints(24, 16), ints(9, 1)
    found = wl.linear(
        x, w, epilogue=lambda acc, at, scale, shift: acc * scale + shift, operands={"scale": scale, "shift": 3.0}
    )
    torch.testing.assert_close(found.double(), exact(x, w.T) * scale + 3, rtol=0, atol=0)


def test_strides_that_are_not_tma_compatible():
    a, b = ints(13, 33)[:, 1:24], ints(23, 7)
    torch.testing.assert_close(wl.matmul(a, b).double(), exact(a, b), rtol=0, atol=0)
    torch.testing.assert_close(wl.linear(a, b.T).double(), exact(a, b), rtol=0, atol=0)


def test_out():
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


def test_empty_tensors():
    assert wl.matmul(ints(0, 16), ints(16, 24)).shape == (0, 24)
    assert wl.linear(ints(2, 0, 16), ints(24, 16)).shape == (2, 0, 24)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_gradients_match_autograd(activation):
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


def test_only_requested_gradients_are_computed():
    x, w = ints(5, 16), ints(24, 16).requires_grad_()
    wl.linear(x, w).sum().backward()
    torch.testing.assert_close(w.grad.double(), x.double().sum(0).expand(24, 16), rtol=0, atol=0)
    batched, bias = ints(3, 5, 16).requires_grad_(), ints(1, 8).requires_grad_()
    wl.matmul(batched, ints(3, 16, 8), bias=bias).sum().backward()
    assert batched.grad.shape == (3, 5, 16)
    torch.testing.assert_close(bias.grad, torch.full((1, 8), 15.0, dtype=torch.bfloat16))


def test_operations_without_gradients_are_refused():
    x, w = ints(5, 16).requires_grad_(), ints(24, 16)
    made = wl.linear(x, w, epilogue=lambda acc, at: acc)
    with pytest.raises(WarploomError, match="not supported for `epilogue` and `store`"):
        made.sum().backward()
    with pytest.raises(WarploomError, match="not supported for `out`"):
        wl.linear(x, w, out=torch.empty(5, 24, dtype=torch.bfloat16))
    with torch.no_grad():
        wl.linear(x, w, out=torch.empty(5, 24, dtype=torch.bfloat16))


SCALE = 3


def test_compiled_without_a_break():
    def layer(x, w, bias, residual):
        first = wl.linear(x, w, bias=bias, activation="relu", residual=residual)
        return wl.matmul(first, w, epilogue=lambda acc, at, s: acc * SCALE + s, operands={"s": bias[:16]}) + 1

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
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
    assert "warploom.plain_matmul.default" in calls


def refused(function, *args, **options):
    with pytest.raises(WarploomError) as caught:
        function(*args, **options)
    assert caught.value.code == "BAD_ARGUMENTS"
    return str(caught.value)


def test_all_invalid_arguments_are_reported_at_once():
    x, w = ints(5, 16), ints(24, 16)
    text = refused(
        wl.linear,
        x,
        w,
        bias=ints(23),
        residual=ints(24, 4).T,
        out=torch.empty(3, 3),
        alpha="two",
        activation="swish",
    )
    for words in (
        "linear(): invalid arguments: `alpha`, `activation`, `bias`, `residual`, `out`",
        "`bias` must broadcast to D, which is (5, 24), got torch.bfloat16 (23,)",
        "`residual` must broadcast to D, which is (5, 24), got torch.bfloat16 (4, 24), strides (1, 4)",
        "`out` must have the result's shape, (5, 24), got torch.float32 (3, 3)",
        "`alpha` must be a number, got 'two'",
        "`activation` must be one of relu, ",
    ):
        assert words in text, text
    text = refused(wl.linear, x, w.to("meta"), bias=ints(1).to("meta"), out=[1])
    assert "`w` must be on cpu like `x`, not on meta, got torch.bfloat16 (24, 16) on meta" in text
    assert "`bias` must be on cpu like `x`, not on meta" in text
    assert "`out` must be a tensor, got a list" in text
    assert "must be a tensor" in refused(wl.matmul, x, [1, 2])
    assert "must have 16 rows" in refused(wl.matmul, x, w)
    assert "must have batches that broadcast" in refused(wl.matmul, ints(2, 5, 16), ints(3, 16, 4))
    text = refused(wl.matmul, x.double(), w.T.to(torch.int8), bias=ints(3).to("meta"))
    for words in ("`a` must have elements of type bfloat16", "got torch.int8 (16, 24)", "on meta"):
        assert words in text, text
    assert "must have the element type of `a`, torch.bfloat16" in refused(wl.matmul, x, w.T.half())


def test_invalid_arguments_of_grouped_and_blockwise_calls():
    text = refused(wl.grouped_matmul, ints(5, 16), ints(2, 17, 8), torch.ones(3), bias=ints(1).to("meta"))
    for words in ("`b` must be (groups, k, n)", "got torch.float32 (3,)", "`bias`"):
        assert words in text, text
    narrow = ints(5, 200, dtype=torch.float8_e4m3fn)
    text = refused(wl.blockwise_matmul, narrow, narrow, torch.ones(5, 1), torch.ones(2, 2))
    assert "`a_scale` must be (5, 2)" in text
    assert "`b_scale` must be (1, 2)" in text


def test_every_epilogue_option_of_grouped_and_blockwise_calls():
    a, b, ends = ints(9, 16), ints(2, 16, 8), torch.tensor([4, 7])
    bias, residual, scale = ints(8), ints(9, 8), ints(9, 1)
    follows = {"bias": bias, "residual": residual, "alpha": 2.0, "beta": -1.0, "activation": "relu"}
    more = {"epilogue": lambda acc, at, scale, shift: acc * scale + shift, "operands": {"scale": scale, "shift": 1.0}}
    want = torch.cat((exact(a[:4], b[0]), exact(a[4:7], b[1])))
    want = (torch.relu(2 * want + bias) * scale[:7] + 1) - residual[:7]
    out = torch.full((9, 8), 7.0, dtype=torch.bfloat16)
    assert wl.grouped_matmul(a, b, ends, **follows, **more, out=out) is out
    torch.testing.assert_close(out[:7].double(), want, rtol=0, atol=0)
    assert (out[7:] == 7).all()
    turned = torch.full((8, 9), 7.0, dtype=torch.bfloat16).T
    wl.grouped_matmul(a, b, ends, **follows, **more, out=turned)
    assert torch.equal(turned, out)
    narrow = ints(9, 16, dtype=torch.float8_e4m3fn), ints(8, 16, dtype=torch.float8_e4m3fn)
    factors = torch.full((9, 1), 0.5), torch.full((1, 1), 4.0)
    found = wl.blockwise_matmul(*narrow, *factors, **follows, **more, out_dtype=torch.float32)
    want = (torch.relu(4 * exact(narrow[0], narrow[1].double().T) + bias) * scale + 1) - residual
    torch.testing.assert_close(found.double(), want, rtol=0, atol=0)


def test_deterministic_algorithms():
    x, w, bias = ints(5, 16).requires_grad_(), ints(24, 16).requires_grad_(), ints(24).requires_grad_()
    experts = ints(2, 24, 8).requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        made = wl.linear(x, w, bias=bias, activation="gelu")
        wl.grouped_matmul(made, experts, torch.tensor([2, 5])).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(each.grad.isfinite().all() for each in (x, w, bias, experts))


class Other:
    """An array of another library, which supports DLPack and nothing else."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **options):
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


class OnGpu:
    """An array of a GPU that has `__cuda_array_interface__` and nothing else."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.shape, self.dtype = tuple(tensor.shape), "float16"

    @property
    def __cuda_array_interface__(self):
        strides = tuple(stride * self.tensor.element_size() for stride in self.tensor.stride())
        place = (self.tensor.data_ptr(), False)
        return {"shape": self.shape, "typestr": "<f2", "data": place, "strides": strides, "version": 3}


def test_arrays_of_other_libraries():
    a, b, out = ints(5, 16), ints(16, 24), torch.empty(5, 24, dtype=torch.bfloat16)
    torch.testing.assert_close(wl.matmul(Other(a), Other(b)).double(), exact(a, b), rtol=0, atol=0)
    holder = Other(out)
    assert wl.matmul(Other(a), Other(b), out=holder) is holder
    torch.testing.assert_close(out.double(), exact(a, b), rtol=0, atol=0)
    bias, scale = ints(24), ints(5, 1)
    found = wl.linear(
        Other(a),
        Other(b.T.contiguous()),
        bias=Other(bias),
        epilogue=lambda acc, at, scale: acc * scale,
        operands={"scale": Other(scale)},
    )
    torch.testing.assert_close(found.double(), (exact(a, b) + bias) * scale, rtol=0, atol=0)
    ends, experts = torch.tensor([2, 5]), ints(2, 16, 24)
    found = wl.grouped_matmul(Other(a), b=Other(experts), ends=Other(ends))
    assert torch.equal(found, wl.grouped_matmul(a, experts, ends))


def test_arrays_with_the_cuda_array_interface(monkeypatch):
    a, b = ints(5, 16, dtype=torch.float16), ints(16, 24, dtype=torch.float16)
    seen = []

    def shared(value, device):
        seen.append((value, device))
        return value.tensor

    monkeypatch.setattr(torch, "as_tensor", shared)
    monkeypatch.setattr(front, "device_of", lambda name, address: SimpleNamespace(index=address - a.data_ptr() and 1))
    first, second = OnGpu(a), OnGpu(b.T.contiguous().T)
    torch.testing.assert_close(wl.matmul(first, second).double(), exact(a, b), rtol=0, atol=0)
    assert seen == [(first, "cuda:0"), (second, "cuda:1")]


def test_arrays_that_cannot_be_shared():
    class Strange(Other):
        shape, dtype = (5, 16), "complex3"

        def __dlpack__(self, **options):
            raise BufferError("no such type")

    text = refused(wl.matmul, Strange(ints(1)), b=Strange(ints(1)), bias=3.0)
    assert text.count("must share its memory with PyTorch, which refuses it (no such type)") == 2
    assert "`a` must" in text
    assert "`b` must" in text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_matches_torch(dtype):
    x, w, bias = (ints(*shape, dtype=torch.float32) for shape in ((5, 16), (24, 16), (24,)))
    with torch.autocast("cpu", dtype=dtype):
        for mine, theirs in (
            (wl.linear(x, w, bias=bias), torch.nn.functional.linear(x, w, bias)),
            (wl.matmul(x, w.T), torch.matmul(x, w.T)),
            (wl.linear(x.bfloat16(), w), torch.nn.functional.linear(x.bfloat16(), w)),
            (wl.matmul(ints(2, 5, 16), ints(2, 16, 8, dtype=torch.float32)), torch.empty(2, 5, 8, dtype=dtype)),
        ):
            assert mine.dtype == theirs.dtype == dtype
            assert mine.shape == theirs.shape
        assert torch.equal(wl.linear(x, w, bias=bias), torch.nn.functional.linear(x, w, bias))
        assert wl.grouped_matmul(x, ints(1, 16, 8).float(), torch.tensor([5])).dtype == dtype
        with torch.autocast("cpu", enabled=False):
            assert wl.linear(x, w).dtype == torch.float32
    assert wl.linear(x, w).dtype == torch.float32


def test_a_user_kernel_takes_tensors():
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
