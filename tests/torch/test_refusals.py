"""Invalid and unusual calls with PyTorch tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

import warploom as wl  # noqa: E402
from warploom.nn import Linear, swap_linears  # noqa: E402
from warploom.torch.launch_cache import launched  # noqa: E402

BF16 = torch.bfloat16


def integers(*shape, dtype=BF16):
    return torch.randint(-3, 4, shape).to(dtype)


A, B, W = integers(3, 4), integers(4, 5), integers(5, 4)
PRODUCT = A.double() @ B.double()


def equal(made, wanted):
    return torch.equal(made.double(), wanted.double())


def refused(call, code="BAD_ARGUMENTS") -> str:
    with pytest.raises(wl.WarploomError, match=code) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("pair", [None, 5, 1.5, ["swiglu"]])
def test_a_refused_gated_call_leaves_no_cache_entry(pair):
    """All plain calls share one cache key for their epilogue."""
    assert "`pair` must be one of" in refused(lambda: wl.gated_linear(A, W, W, pair=pair))
    assert equal(wl.matmul(A, B), PRODUCT)


WRITTEN = {
    "out": lambda to: wl.matmul(A, B, out=to),
    "outputs": lambda to: wl.matmul(A, B, outputs={"pre_activation": to}),
    "gated": lambda to: wl.gated_linear(A, W, W, out=to),
    "grouped": lambda to: wl.grouped_matmul(A, B[None], torch.tensor([3]), out=to),
    "store": lambda to: wl.matmul(A, B, store=lambda value, at, out: None, out=to),
}


@pytest.mark.parametrize("case", WRITTEN)
@pytest.mark.parametrize("grad", [True, False])
def test_backward_detects_tensors_modified_in_place(case, grad):
    x, kept = integers(3, 5).requires_grad_(), integers(3, 5)
    product = (x * kept).sum()
    with torch.set_grad_enabled(grad):
        WRITTEN[case](kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_inference_mode_has_no_version_counters():
    with torch.inference_mode():
        out = torch.empty(3, 5, dtype=BF16)
        wl.matmul(A, B, out=out, outputs={"pre_activation": torch.empty(3, 5, dtype=BF16)})
    assert equal(out, PRODUCT)


X, WEIGHTS = A.float(), W.float()
FORWARD = {
    "linear": lambda x: wl.linear(x, WEIGHTS),
    "activation": lambda x: wl.linear(x, WEIGHTS, activation="gelu"),
    "residual": lambda x: wl.matmul(WEIGHTS, WEIGHTS.T, residual=x[:1, :1]),
    "gated": lambda x: wl.gated_linear(x, WEIGHTS, WEIGHTS),
    "grouped": lambda x: wl.grouped_matmul(x, B[None].float(), torch.tensor([3])),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("case", FORWARD)
def test_forward_mode_gradients_are_refused_and_not_zero(case):
    run = FORWARD[case]
    assert "forward mode" in refused(lambda: torch.func.jvp(run, (X,), (torch.ones_like(X),)), "NO_DERIVATIVE")
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        assert "forward mode" in refused(lambda: run(dual), "NO_DERIVATIVE")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_tensors_without_a_tangent_work_in_forward_mode():
    _, tangent = torch.func.jvp(lambda x: x * wl.linear(X, WEIGHTS).sum(), (X,), (torch.ones_like(X),))
    assert equal(tangent, (X @ WEIGHTS.T).sum().expand_as(X))


def shapes(*tensors):
    return [torch.empty(each, dtype=torch.float32, device="meta", requires_grad=len(each) == 2) for each in tensors]


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_gradients_of_a_layer_on_meta_tensors(activation):
    x, w, bias = shapes((3, 4), (5, 4), (5,))
    wl.linear(x, w, bias=bias, activation=activation).sum().backward()
    assert x.grad.shape == x.shape
    assert w.grad.is_meta


def test_tensors_without_memory_do_not_overlap():
    x, w, out = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((3, 4), (5, 4), (3, 5)))
    kept = {"pre_activation": torch.empty_like(out)}
    assert wl.linear(x, w, out=out, outputs=kept) is out
    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        x, w, out = (mode.from_tensor(each) for each in (A, W, torch.empty(3, 5, dtype=BF16)))
        assert wl.linear(x, w, outputs={"pre_activation": out}).shape == (3, 5)


@pytest.mark.parametrize("place", ["meta", "fake"])
@pytest.mark.parametrize("asked", [wl.ptx_of, lambda operation, *given: operation.bind(*given)])
def test_ptx_of_tensors_without_memory_is_refused(place, asked):
    """Reading their memory used to crash the process."""
    if place == "meta":
        assert "meta" in refused(lambda: asked(wl.matmul, A.to("meta"), B.to("meta")), "BAD_LAUNCH")
        return
    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        a, b = mode.from_tensor(A), mode.from_tensor(B)
    assert "no elements" in refused(lambda: asked(wl.matmul, a, b), "BAD_LAUNCH")


def test_bind_refuses_lazily_negated_and_sparse_tensors():
    negated = torch.complex(torch.ones(3, 4), torch.ones(3, 4)).conj().imag
    assert negated.is_neg()
    assert "negative or conjugate bit" in refused(lambda: wl.matmul.bind(negated, B.float()), "BAD_LAUNCH")
    assert "not dense" in refused(lambda: wl.matmul.bind(A.float().to_sparse(), B.float()), "BAD_LAUNCH")
    assert equal(wl.matmul(negated, B.float()), negated.double() @ B.double())


def test_a_lazily_negated_out_is_refused():
    out = torch.complex(torch.ones(3, 5), torch.ones(3, 5)).conj().imag
    assert "negated view" in refused(lambda: wl.matmul(A, B, out=out))
    assert "negated view" in refused(lambda: wl.matmul(A, B, outputs={"pre_activation": out}))
    assert equal(out, -torch.ones(3, 5))


LAYOUTS = {
    "sparse": lambda: torch.ones(2, 3, 4).to_sparse().to(BF16),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], dtype=BF16),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], dtype=BF16, layout=torch.jagged),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_tensors_are_reported_in_every_argument(layout):
    other = LAYOUTS[layout]()
    for call in (
        lambda: wl.linear(other, W),
        lambda: wl.matmul(other, B),
        lambda: wl.linear(A, W, bias=other, residual="no"),
        lambda: wl.linear(A, W, out=other),
        lambda: wl.linear(A, W, outputs={"pre_activation": other}),
    ):
        assert "must be dense" in refused(call)


def test_all_invalid_arguments_are_reported_at_once():
    text = refused(
        lambda: wl.matmul(
            A, B, bias=torch.ones(9), alpha="x", activation=["relu"], target="sm_1", config=3, epilogue=5, outputs=3
        )
    )
    for name in ("bias", "alpha", "activation", "target", "config", "epilogue", "outputs"):
        assert f"\n  `{name}` " in text
    assert "MatmulConfig or MatmulConfig" not in text


def test_a_gates_bias_has_its_own_name():
    text = refused(lambda: wl.gated_linear(A, W, W, gate_bias=torch.ones(7), up_bias="no"))
    assert "\n  `gate_bias` must" in text
    assert "\n  `up_bias` must" in text


@pytest.mark.parametrize("number", [1e300, 10**400])
def test_a_number_outside_float32_is_reported(number):
    for name in ("alpha", "beta", "bias", "residual"):
        assert f"\n  `{name}` " in refused(lambda name=name: wl.matmul(A, B, **{"residual": 1.0, name: number}))


def test_an_out_with_overlapping_strides_is_refused():
    memory = torch.zeros(20, dtype=BF16)
    assert "overlapping strides" in refused(lambda: wl.matmul(A, B, out=memory.as_strided((3, 5), (1, 1))))
    assert not memory.any()


def test_results_may_be_columns_of_one_tensor():
    whole = torch.full((3, 16), torch.nan, dtype=BF16)
    wl.matmul(A, B, activation="relu", out=whole[:, 2:7], outputs={"pre_activation": whole[:, 7:12]})
    assert equal(whole[:, 2:7], PRODUCT.relu())
    assert equal(whole[:, 7:12], PRODUCT)


def test_ptx_accepts_dtypes_of_pytorch():
    assert wl.ptx_of(wl.matmul, A, B, out_dtype=torch.float32) != wl.ptx_of(wl.matmul, A, B)


def test_an_out_that_requires_a_gradient_is_refused_by_gated_calls():
    out = torch.zeros(3, 5, dtype=BF16, requires_grad=True)
    assert "`out`" in refused(lambda: wl.gated_linear(A, W, W, out=out), "NO_DERIVATIVE")
    assert not out.detach().any()


def test_a_gated_epilogue_that_captures_an_object_is_planned_each_time():
    settings = {"factor": 2.0}
    assert launched("gated_linear", (A, W, W), {"pair": lambda gate, up: gate * settings["factor"]}) == (None, None)
    for pair in ("glu", lambda gate, up: gate * up):
        assert launched("gated_linear", (A, W, W), {"pair": pair})[1] is not None


def test_a_swapped_layer_is_called_as_before():
    layer = nn.Linear(4, 5)
    x = torch.randn(3, 4)
    before = layer(input=x)
    assert torch.equal(swap_linears(layer)(input=x), before)
    assert isinstance(layer, Linear)


def test_a_layer_with_an_unknown_activation_is_refused():
    assert "`activation` must be one of" in refused(lambda: Linear(4, 5, activation=["relu"]))


def scaled(factor):
    def by_closure(acc, at):
        return acc * factor

    def by_default(acc, at, factor=factor):
        return acc * factor

    return by_closure, by_default


@pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="it compares no functions")
@pytest.mark.parametrize("way", [0, 1])
def test_a_compiled_call_with_another_function_of_the_same_code(way):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w, epilogue: wl.linear(x, w, epilogue=epilogue), fullgraph=True, backend="eager")
    for factor in (2.0, 3.0, 2.0):
        assert equal(compiled(A, W, scaled(factor)[way]), factor * (A.double() @ W.double().T))


def test_an_output_has_the_layout_that_the_kernel_writes():
    """A vector times a batch of matrices is one row per batch for the kernel."""
    a, b, kept = integers(7), integers(2, 7, 17), torch.full((2, 24), torch.nan, dtype=BF16)[:, :17]
    wl.matmul(a, b, outputs={"pre_activation": kept})
    assert equal(kept, a.double() @ b.double())
    other = torch.empty(2, 6, 5, dtype=BF16)[:, :3]
    assert "strides that make it a matrix" in refused(
        lambda: wl.linear(A.expand(2, 3, 4), W, outputs={"pre_activation": other})
    )
