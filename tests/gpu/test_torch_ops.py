"""Operations on PyTorch tensors on a Hopper GPU: results, graphs, the compiler, gradients, layers."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom.ops as wl
from warploom.ops.planning.planner import TARGETS

pytestmark = [
    *needs_hopper,
    pytest.mark.skipif("sm_90a" not in TARGETS, reason="there are no kernels for Hopper"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def _settings():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()


def ints(*shape, dtype=None):
    return torch.randint(-2, 3, shape, device="cuda").to(dtype or torch.bfloat16)


def exact(a, b):
    return a.double() @ b.double()


def same(found, want):
    torch.testing.assert_close(found.double(), want.double(), rtol=0, atol=0)


SHAPES = [
    (1, 8, 8),
    (128, 128, 64),
    (127, 129, 65),
    (257, 512, 136),
    (16, 4096, 1024),
    (1024, 1024, 1024),
    (64, 8, 4104),
]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_results_are_exact(m, n, k):
    a, b = ints(m, k), ints(k, n)
    same(wl.matmul(a, b, out_dtype=torch.float32), exact(a, b))
    w = ints(n, k)
    for _ in range(3):
        same(wl.linear(a, w, out_dtype=torch.float32), exact(a, w.T))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float32"])
def test_types(dtype):
    kind = getattr(torch, dtype)
    a, w = ints(200, 256, dtype=kind), ints(136, 256, dtype=kind)
    found = wl.linear(a, w)
    assert found.dtype == (torch.bfloat16 if dtype.startswith("float8") else kind)
    want = exact(a.double(), w.double().T).to(found.dtype)
    same(found, want)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_strides_of_every_kind(transposed):
    a = ints(200, 264).T.contiguous().T if transposed[0] else ints(200, 264)
    b = ints(264, 136).T.contiguous().T if transposed[1] else ints(264, 136)
    want = exact(a, b)
    same(wl.matmul(a, b, out_dtype=torch.float32), want)
    odd_a, odd_b = ints(200, 265)[:, 1:], ints(265, 137)[1:, 1:]
    same(wl.matmul(odd_a, odd_b, out_dtype=torch.float32), exact(odd_a, odd_b))
    out = torch.full((136, 200), torch.nan, device="cuda").T
    same(wl.matmul(a, b, out=out), want)
    out = torch.full((200, 137), torch.nan, device="cuda")[:, 1:]
    same(wl.matmul(a, b, out=out), want)


def test_batches():
    a, b = ints(3, 100, 72), ints(3, 72, 200)
    same(wl.matmul(a, b, out_dtype=torch.float32), exact(a, b))
    same(wl.matmul(a, b[0], out_dtype=torch.float32), exact(a, b[0]))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_epilogues_are_fused(activation):
    functions = {
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }
    x, w = torch.randn(4, 96, 512, device="cuda").bfloat16(), (torch.randn(264, 512, device="cuda") / 23).bfloat16()
    bias, residual = torch.randn(264, device="cuda").bfloat16(), torch.randn(4, 96, 264, device="cuda").bfloat16()
    want = functions[activation](exact(x, w.T) + bias) + 0.5 * residual
    found = wl.linear(x, w, bias=bias, residual=residual, activation=activation, beta=0.5)
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=1e-2)
    again = residual.clone()
    assert wl.linear(x, w, bias=bias, residual=again, activation=activation, beta=0.5, out=again) is again
    assert torch.equal(again, found)


def test_a_user_epilogue():
    x, w, scale = ints(100, 64), ints(136, 64), ints(100, 1)

    def scaled(factor):
        return lambda acc, at, scale, shift: acc * scale * factor + shift

    for factor in (2.0, 3.0):
        operands = {"scale": scale, "shift": 3.0}
        found = wl.linear(x, w, epilogue=scaled(factor), operands=operands, out_dtype=torch.float32)
        same(found, exact(x, w.T) * scale * factor + 3)


def test_nothing_synchronises_with_the_gpu():
    x, w, bias = ints(256, 512), ints(264, 512), ints(264)
    want = wl.linear(x, w, bias=bias, activation="relu")
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [wl.linear(x, w, bias=bias, activation="relu") for _ in range(3)]
        first = wl.linear(ints(64, 512), w)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert first.shape == (64, 264)
    assert all(torch.equal(each, want) for each in found)


def test_graphs():
    x, w, residual = ints(128, 512), ints(264, 512), ints(128, 264)
    out = torch.full((128, 264), torch.nan, device="cuda", dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = wl.linear(x, w, residual=residual, activation="relu")
        wl.linear(x, w, out=out)
    for _ in range(2):
        x.copy_(ints(128, 512))
        out.fill_(torch.nan)
        graph.replay()
        same(made, (torch.relu(exact(x, w.T)) + residual).bfloat16())
        same(out, exact(x, w.T).bfloat16())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_break(backend, dynamic):
    def layer(x, w, bias, residual):
        made = wl.linear(x * 2, w, bias=bias, activation="relu", residual=residual)
        return torch.sin(made) + 1

    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=dynamic)
    w, bias = ints(264, 128), ints(264)
    for rows in (100, 64, 200):
        x, residual = ints(rows, 128), ints(rows, 264)
        with torch.no_grad():
            torch.testing.assert_close(
                compiled(x, w, bias, residual), layer(x, w, bias, residual), rtol=2e-2, atol=2e-2
            )
    x, weight = ints(100, 128).requires_grad_(), w.clone().requires_grad_()
    compiled(x, weight, bias, ints(100, 264)).sum().backward()
    assert x.grad.isfinite().all()
    assert weight.grad.isfinite().all()


def test_compiled_with_cuda_graphs():
    layer = torch.compile(lambda x, w: wl.linear(x, w, activation="relu") + 1, mode="reduce-overhead", fullgraph=True)
    w = ints(264, 128)
    with torch.no_grad():
        for _ in range(4):
            x = ints(96, 128)
            same(layer(x, w).clone(), (torch.relu(exact(x, w.T)).bfloat16() + 1))


@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "silu"])
def test_gradients_match_autograd(activation):
    functions = {None: lambda x: x, "relu": torch.relu, "silu": torch.nn.functional.silu}
    functions["gelu_tanh"] = lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    x, w = torch.randn(2, 90, 256, device="cuda"), torch.randn(264, 256, device="cuda") / 16
    bias, residual, gradient = (torch.randn(*shape, device="cuda") for shape in ((264,), (2, 90, 264), (2, 90, 264)))
    mine = [each.bfloat16().requires_grad_() for each in (x, w, bias, residual)]
    theirs = [each.detach().double().requires_grad_() for each in mine]
    wl.linear(*mine[:2], bias=mine[2], residual=mine[3], activation=activation).backward(gradient.bfloat16())
    made = functions[activation](torch.nn.functional.linear(*theirs[:3])) + theirs[3]
    made.backward(gradient.bfloat16().double())
    for own, other in zip(mine, theirs, strict=True):
        error = (own.grad.double() - other.grad).norm() / other.grad.norm()
        assert error < 1e-2, error


def test_autocast():
    x, w = (
        torch.randn(64, 256, device="cuda", requires_grad=True),
        torch.randn(264, 256, device="cuda", requires_grad=True),
    )
    with torch.autocast("cuda", dtype=torch.bfloat16):
        made = wl.linear(x, w)
    assert made.dtype == torch.bfloat16
    made.float().sum().backward()
    assert (x.grad.dtype, w.grad.dtype) == (torch.float32, torch.float32)


def test_swapped_layers_of_a_model():
    from warploom.torch.nn import Linear, swap_linears

    model = (
        torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda().bfloat16()
    )
    x = torch.randn(33, 256, device="cuda").bfloat16()
    want = model(x)
    keys = list(model.state_dict())
    swap_linears(model)
    assert type(model[0]) is Linear
    assert list(model.state_dict()) == keys
    found = model(x)
    assert (found - want).norm() / want.norm() < 1e-2
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    before = found.float().square().mean()
    for _ in range(3):
        optimiser.zero_grad()
        model(x).float().square().mean().backward()
        optimiser.step()
    assert model(x).float().square().mean() < before


def test_prepared_matmuls():
    from warploom.ops.planning.prepare import plan_matmul

    sets = [
        (ints(256, 128), ints(136, 128).T, ints(136), torch.empty(256, 136, device="cuda", dtype=torch.bfloat16))
        for _ in range(8)
    ]
    a, b, bias, out = sets[0]
    call = plan_matmul(a, b, bias=bias, activation="relu", out=out)
    for each in sets:
        each[3].fill_(torch.nan)
        call(*each)
        same(each[3], torch.relu(exact(each[0], each[1]) + each[2]).bfloat16())


@pytest.mark.parametrize("library", ["cupy", "jax.numpy"])
def test_arrays_of_other_libraries(library):
    other = pytest.importorskip(library)
    a, b = ints(64, 128, dtype=torch.float16), ints(128, 72, dtype=torch.float16)
    found = wl.matmul(other.from_dlpack(a), other.from_dlpack(b))
    assert type(found).__module__.split(".")[0] in ("cupy", "jaxlib", "jax")
    same(torch.from_dlpack(found), exact(a, b).half())


def test_grouped():
    a, b = ints(300, 128), ints(4, 128, 264)
    ends = torch.tensor([0, 129, 129, 290], device="cuda", dtype=torch.int32)
    want = torch.zeros(300, 264, device="cuda", dtype=torch.float64)
    start = 0
    for group, end in enumerate(ends.tolist()):
        want[start:end] = exact(a[start:end], b[group])
        start = end
    same(wl.grouped_matmul(a, b, ends), want.bfloat16())


def test_blockwise():
    a = ints(200, 384, dtype=torch.float8_e4m3fn)
    b = ints(264, 384, dtype=torch.float8_e4m3fn)
    a_scale = 2.0 ** torch.randint(-2, 3, (200, 3), device="cuda")
    b_scale = 2.0 ** torch.randint(-2, 3, (3, 3), device="cuda")
    wide_a = a.double() * a_scale.double().repeat_interleave(128, 1)
    wide_b = b.double() * b_scale.double().repeat_interleave(128, 0)[:264].repeat_interleave(128, 1)
    found = wl.blockwise_matmul(a, b, a_scale, b_scale, out_dtype=torch.float32)
    same(found, wide_a @ wide_b.T)


def poisoned(*shape):
    """Fill the memory that PyTorch allocates next with values that are not a result."""
    torch.full(shape, torch.nan, device="cuda", dtype=torch.bfloat16)


def test_repeated_gated_grouped_and_blockwise_calls():
    for turn in range(4):
        x, gate, up = ints(96, 128), ints(136, 128), ints(136, 128)
        poisoned(96, 136)
        found = wl.gated_linear(x, gate, up, pair="reglu", out_dtype=torch.float32)
        same(found, torch.relu(exact(x, gate.T)) * exact(x, up.T))
        experts, ends = ints(3, 128, 136), torch.tensor([10, 10, 80], dtype=torch.int32, device="cuda")
        ends = ends.long() if turn == 2 else ends  # of another dtype, which needs a copy
        poisoned(96, 136)
        found = wl.grouped_matmul(x, experts, ends, bias=ints(136) * 0 + 1)
        want = torch.zeros(96, 136, dtype=torch.float64, device="cuda")
        want[:10], want[10:80] = exact(x[:10], experts[0]) + 1, exact(x[10:80], experts[2]) + 1
        same(found, want.to(torch.bfloat16))
        a, b = ints(96, 256, dtype=torch.float8_e4m3fn), ints(136, 256, dtype=torch.float8_e4m3fn)
        a_scale = torch.ones(2, 96, device="cuda").T * 2
        found = wl.blockwise_matmul(a, b, a_scale, torch.ones(2, 2, device="cuda"), out_dtype=torch.float32)
        same(found, 2 * exact(a.double(), b.double().T))


def test_one_call_with_and_without_gradients_and_compiled():
    """Each of these paths has its own cache entries."""
    from warploom.torch import arguments

    x, w = ints(64, 128), ints(136, 128)
    compiled = torch.compile(wl.linear, fullgraph=True)
    rest = (*arguments.NO_INPUTS, [], arguments.DEFAULT_NUMBERS, arguments.PLAIN, None)
    for _ in range(3):
        want = exact(x, w.T).to(torch.bfloat16)
        with torch.no_grad():
            same(wl.linear(x, w), want)
            same(compiled(x, w), want)
        same(torch.ops.warploom.gemm("matmul", x, w.T, [], *rest), want)
        leaf = w.clone().requires_grad_()
        for function in (wl.linear, compiled):
            leaf.grad = None
            made = function(x, leaf)
            same(made.detach(), want)
            made.backward(gradient := ints(64, 136))
            same(leaf.grad, exact(gradient.T, x).to(torch.bfloat16))
        x, w = ints(64, 128), ints(136, 128)
