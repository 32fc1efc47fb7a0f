"""The custom op with few arguments in compiled graphs: when it is used, its results, and its cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.backends.common import aot_autograd  # noqa: E402

import warploom.ops as wl  # noqa: E402
from warploom.torch import arguments, launch_cache, op_library  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(launch_cache, "CACHE", {})


def ints(*shape, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype)


def graphs_of(function, *given):
    """The warploom ops in the graphs that a backend receives after differentiation, and the result."""
    found = []

    def backend(module, inputs):
        ops = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
        found.append([op.split(".")[1] for op in ops if op.startswith("warploom.")])
        return module.forward

    made = torch.compile(function, backend=aot_autograd(fw_compiler=backend, bw_compiler=backend), fullgraph=True)(
        *given
    )
    return found, made


def test_compiled_gemms_have_few_arguments():
    x, w, bias, residual = ints(5, 16), ints(24, 16), ints(24), ints(5, 24)
    options = {"bias": bias, "residual": residual, "activation": "relu", "alpha": 0.5, "beta": -2.0}
    for given in ({}, options, {"out_dtype": torch.float32}):
        found, made = graphs_of(lambda x, w, given=given: wl.linear(x, w, **given), x, w)
        assert found == [["plain_matmul"]]
        assert torch.equal(made, wl.linear(x, w, **given))


def test_compiled_gradients_have_few_arguments():
    x, w = (each.requires_grad_() for each in (ints(5, 16, dtype=torch.float32), ints(24, 16, dtype=torch.float32)))
    found, made = graphs_of(wl.linear, x, w)
    made.backward(gradient := ints(5, 24, dtype=torch.float32))
    assert found == [["plain_matmul"], ["plain_matmul", "plain_matmul"]]
    assert torch.equal(x.grad, gradient @ w)
    assert torch.equal(w.grad, gradient.T @ x)


def test_user_epilogues_need_the_full_op():
    x, w = ints(5, 16), ints(24, 16)
    found, made = graphs_of(lambda x, w: wl.linear(x, w, epilogue=lambda acc, at: acc * 2), x, w)
    assert found == [["gemm"]]
    assert torch.equal(made, 2 * wl.linear(x, w))


PLAIN = arguments.plain_text(arguments.DEFAULT_NUMBERS, "", None)


@pytest.mark.parametrize(
    "given",
    [
        ([1.0, 1.0, 1.0], "", None),
        ([0.1, -0.0, 1.0], "activation=gelu_tanh", torch.float32),
        ([float("inf"), 1e-300, 1.0], "activation=relu target=sm_90a", torch.bfloat16),
    ],
)
def test_an_epilogue_survives_its_text_form(given):
    assert arguments.read_plain(arguments.plain_text(*given)) == given
    assert str(arguments.read_plain(arguments.plain_text(*given))) == str(given), "zeros have a sign"


def test_options_survive_their_text_form():
    for extras in (
        arguments.Extras(),
        arguments.Extras(names=(("activation", "relu"),)),
        arguments.Extras(names=(("pair", "glu"),), target="sm_90a", outputs=("gate", "up"), function="linear"),
    ):
        name = arguments.name_of(extras)
        assert arguments.is_text(name)
        assert arguments.extras_by(name) == extras
    for extras in (arguments.Extras(config=3), arguments.Extras(target="a b"), arguments.Extras(optional=("x",))):
        name = arguments.name_of(extras)
        assert not arguments.is_text(name)
        assert arguments.extras_by(name) == extras


def test_opcheck():
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    op = torch.ops.warploom.plain_matmul.default
    torch.library.opcheck(op, (ints(5, 16), ints(16, 24), None, None, PLAIN), test_utils=checks)
    given = (
        ints(3, 5, 16),
        ints(3, 16, 8),
        ints(8),
        ints(3, 5, 8),
        arguments.plain_text([2.0, 0.5, 1.0], "activation=relu", torch.float32),
    )
    torch.library.opcheck(op, given, test_utils=checks)


def test_calls_with_and_without_gradients_are_cached_separately(monkeypatch):
    """Their tensors differ in kind: a single cache entry would be replaced at every call."""
    plans, done = [], []

    def plan(*given, clears):
        assert not clears
        plans.append(given)
        prepared = SimpleNamespace(launch_at=lambda addresses, stream: done.append(addresses), count=3)
        return SimpleNamespace(prepared=prepared, stream=lambda: 0, copies=(), family=None, is_final=True)

    monkeypatch.setattr(op_library, "launch", plan)
    a, b = ints(5, 16), ints(16, 8)
    op = torch.ops.warploom.plain_matmul.default
    excluded = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCUDA) | torch._C.DispatchKeySet(
        torch._C.DispatchKey.AutogradCPU
    )
    for _ in range(3):
        op(a, b, None, None, PLAIN)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            op(a, b, None, None, PLAIN)
    assert (len(plans), len(done)) == (2, 4)
    assert {each[:2] for each in done} == {(a.data_ptr(), b.data_ptr())}


def test_calls_with_other_epilogue_inputs_are_cached_separately(monkeypatch):
    plans, done = [], []

    def plan(*given, clears):
        assert not clears
        plans.append(given)
        count = 3 + len(arguments.tensors_of(given[2]))
        prepared = SimpleNamespace(launch_at=lambda addresses, stream: done.append(len(addresses)), count=count)
        return SimpleNamespace(prepared=prepared, stream=lambda: 0, copies=(), family=None, is_final=True)

    monkeypatch.setattr(op_library, "launch", plan)
    a, b, bias, residual = ints(5, 16), ints(16, 8), ints(8), ints(5, 8)
    for _ in range(2):
        for addends in ((None, None), (bias, None), (None, residual), (bias, residual)):
            torch.ops.warploom.plain_matmul(a, b, *addends, PLAIN)
    assert len(plans) == 4
    assert done == [3, 4, 4, 5]


def test_another_version_is_compiled_again(monkeypatch):
    """The compiler caches compiled ops on disk, and does not notice that the library has changed."""
    from warploom.torch import dispatch as front

    names = []
    for version in ("one", "another", None):
        monkeypatch.setattr(front, "source_version", lambda version=version: version)
        names.append(front._of_this_version("linear"))
    assert len(set(names)) == 3
    x, w = ints(5, 16), ints(24, 16)
    for name in names:
        assert torch.equal(torch.ops.warploom.front(name, x, w), wl.linear(x, w))
