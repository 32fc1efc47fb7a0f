"""Invalid and unusual calls on tensors: reported under the caller's names, or accepted."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.ops.references import E4M3, E8M0
from tests.runtime.fake_driver import FakeTensor

torch = pytest.importorskip("torch")

import warploom.ops as wl  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402
from warploom.launcher import launch  # noqa: E402


def ints(*shape, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype)


X, W = ints(5, 16), ints(24, 16)
CASES = {
    "`config` must be a MatmulConfig, got 3": lambda: wl.linear(X, W, config=3),
    "`target` must be one of sm_100a, sm_103a, sm_90a, got 'sm_1'": lambda: wl.linear(
        X, W, target="sm_1", out=torch.empty(5, 24)
    ),
    "`epilogue` must be a function, got 3": lambda: wl.linear(X, W, epilogue=3),
    "`epilogue` must take a value and its position": lambda: wl.linear(
        X, W, epilogue=lambda acc: acc, outputs={"pre_activation": torch.empty(5, 24)}
    ),
    "`bias` must have elements of type int8": lambda: wl.linear(X, W, bias=torch.ones(24, dtype=bool)),
    "`residual` must have elements of type int8": lambda: wl.linear(
        X, W, residual=torch.ones(5, 24, dtype=torch.complex64)
    ),
    "`out_dtype` must be a dtype, got 'float17'": lambda: wl.linear(X, W, out_dtype="float17"),
    "`out_dtype` must have a dtype of float16": lambda: wl.linear(X, W, out_dtype=torch.int32),
    "`out` must have a dtype of float16": lambda: wl.linear(X, W, out=torch.empty(5, 24, dtype=torch.int32)),
    "`out` must have the dtype of `out_dtype`, float16, not float32": lambda: wl.linear(
        X, W, out=torch.empty(5, 24), out_dtype=torch.float16
    ),
    "`operands` must not use the reserved names alpha, beta, bias": lambda: wl.linear(
        X, W, operands={"bias": ints(24)}, epilogue=lambda acc, at, bias: acc + bias
    ),
    "`operands` needs an `epilogue` or `store` function": lambda: wl.linear(X, W, operands={"s": 1}),
    "`operands` must be a mapping of names to arrays, got a list": lambda: wl.linear(X, W, operands=[1]),
    "`operands['s']` must broadcast to D, which is (5, 24), got torch.bfloat16 (3,)": lambda: wl.linear(
        X, W, operands={"s": ints(3)}, epilogue=lambda acc, at, s: acc + s
    ),
    "`out` has overlapping strides": lambda: wl.linear(X, W, out=torch.empty(24).expand(5, 24)),
    "`x` must be dense, not of layout torch.sparse_coo": lambda: wl.linear(X.float().to_sparse(), W.float()),
}


@pytest.mark.parametrize("words", CASES)
def test_errors_name_the_function_that_was_called(words):
    with pytest.raises(WarploomError) as caught:
        CASES[words]()
    assert words in str(caught.value)
    assert "linear(): invalid arguments" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, "float32", np.dtype("float32"), torch.float32], ids=str)
def test_a_dtype_of_numpy_is_accepted(dtype):
    assert wl.linear(X, W, out_dtype=dtype).dtype == torch.float32
    assert wl.linear(X, W, out_dtype=dtype, out=torch.empty(5, 24)).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda **options: wl.linear(X, W, **options), "swish"),
        (lambda **options: wl.linear(X, W, **options), "up_bias"),
        (lambda **options: wl.matmul(X, W.T, **options), "pair"),
        (lambda **options: wl.grouped_matmul(X, W.T[None], torch.tensor([5]), **options), "pair"),
        (lambda **options: wl.gated_linear(X, W, W, **options), "bias"),
        (lambda **options: wl.gated_grouped_matmul(X, *[W.T[None]] * 2, torch.tensor([5]), **options), "activation"),
    ],
)
def test_unknown_options(call, option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        call(**{option: None})


def test_arguments_may_come_in_any_order():
    want = X.double() @ W.double().T
    torch.testing.assert_close(wl.linear(bias=None, w=W, x=X).double(), want, rtol=0, atol=0)


def test_empty_tensors_have_an_empty_result():
    made = wl.linear(X.to("meta"), W.to("meta"), bias=ints(24).to("meta"))
    assert (made.device.type, made.shape, made.dtype) == ("meta", (5, 24), torch.bfloat16)


def test_lazily_negated_tensors():
    flipped = torch._neg_view(X.float())
    torch.testing.assert_close(wl.linear(flipped, W.float()).double(), -(X.double() @ W.double().T), rtol=0, atol=0)
    bias = torch._neg_view(torch.ones(24))
    torch.testing.assert_close(wl.linear(X, W, bias=bias).double(), X.double() @ W.double().T - 1, rtol=0, atol=0)


def test_host_tensors_can_be_bound():
    out = torch.full((5, 24), torch.nan, dtype=torch.bfloat16)
    launch(wl.linear.bind(X, W, out=out))
    torch.testing.assert_close(out.double(), X.double() @ W.double().T, rtol=0, atol=0)
    assert wl.ptx_of(wl.linear, X, W) == wl.ptx_of(wl.linear, x=X, w=W)
    assert ".target sm_90a" in wl.ptx_of(wl.linear, X, W, target="sm_90a")


def test_gpu_tensors_are_prepared_and_not_bound():
    a, b = FakeTensor(0x1000, (8, 32)), FakeTensor(0x10000, (32, 64))
    with pytest.raises(
        WarploomError,
        match=r"`a` is on a GPU, but `matmul.bind` takes arrays of the host; `warploom.ops.planning.prepare.plan",
    ):
        wl.matmul.bind(a, b)


def test_operands_must_be_tensors_like_the_first():
    elements, scales = np.ones((8, 64), E4M3), np.ones((8, 2), E8M0)
    tensors = torch.ones(8, 64).to(torch.float8_e4m3fn), torch.ones(8, 2).to(torch.float8_e8m0fnu)
    assert wl.block_scaled_matmul(elements, elements, scales, scales).shape == (8, 8)
    with pytest.raises(WarploomError, match="`b_scale` must be a tensor, got float8_e8m0fnu"):
        wl.block_scaled_matmul(tensors[0], tensors[0], tensors[1], scales)


def test_other_libraries_need_torch(monkeypatch):
    class Strange:
        shape, dtype, device = (5, 16), "float32", "cuda:0"

        def __dlpack__(self):
            raise NotImplementedError

    for name in [name for name in sys.modules if name.startswith("warploom.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("warploom.torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        WarploomError,
        match=r"`a` must be a NumPy array unless PyTorch, .* is installed, got float32 \(5, 16\) on cuda:0",
    ):
        wl.matmul(Strange(), Strange())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_compiled_calls_raise_the_same_error(dynamic):
    def wrong(x, w):
        return wl.linear(x, w[:, :9], activation="swish")

    torch._dynamo.reset()
    with pytest.raises(WarploomError, match=r"`w` must be"):
        torch.compile(wrong, backend="eager", dynamic=dynamic)(X, W)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="Observed exception") as caught:
        torch.compile(wrong, backend="eager", dynamic=dynamic, fullgraph=True)(X, W)
    for words in ("torch.bfloat16 (", "must be (n, k), where k is the last axis of `x`", "must be one of relu"):
        assert words in str(caught.value)
