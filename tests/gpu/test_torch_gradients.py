"""Gradients, autocast and symbolic sizes on a Hopper GPU."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom.ops as wl

pytestmark = needs_hopper


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()


def ints(*shape, dtype=None):
    return torch.randint(-2, 3, shape, device="cuda").to(dtype or torch.bfloat16)


def leaves(*tensors):
    return [each.detach().clone().requires_grad_() for each in tensors]


def by_loops(a, b, ends):
    parts, start = [], 0
    for matrix, end in zip(b, ends.tolist(), strict=True):
        parts.append(a[start:end] @ matrix)
        start = end
    return torch.cat([*parts, a[start:] @ a.new_zeros(a.shape[1], b.shape[2])]) + 0 * b.sum()


def same(found, want):
    torch.testing.assert_close(found.double(), want.double(), rtol=0, atol=0)


@pytest.mark.parametrize("ends", [[0, 129, 129, 290], [1, 2, 3, 300], [0, 0, 0, 0], [300, 300, 300, 300]], ids=str)
@pytest.mark.parametrize(("k", "n"), [(128, 264), (40, 72), (513, 511)])
def test_grouped_gemms(ends, k, n):
    ends = torch.tensor(ends, device="cuda", dtype=torch.int32)
    mine = leaves(ints(300, k), ints(4, k, n))
    theirs = leaves(*(each.double() for each in mine))
    gradient = torch.randint(-1, 2, (300, n), device="cuda").bfloat16()
    wl.grouped_matmul(*mine, ends).backward(gradient)
    by_loops(*theirs, ends).backward(gradient.double())
    for own, other in zip(mine, theirs, strict=True):
        same(own.grad, other.grad.bfloat16())


def test_nothing_synchronises_and_graphs_capture_it():
    ends, gradient = torch.tensor([100, 100, 290], device="cuda"), ints(300, 264)
    a, b = leaves(ints(300, 128), ints(3, 128, 264))
    wl.grouped_matmul(a, b, ends).backward(gradient)  # allocates the gradients
    torch.cuda.set_sync_debug_mode("error")
    try:
        wl.grouped_matmul(a, b, ends).backward(gradient)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    a.grad = b.grad = None
    with torch.cuda.graph(graph):
        wl.grouped_matmul(a, b, ends).backward(gradient)
    for new in ([0, 7, 300], [300, 300, 300], [64, 128, 129]):
        ends.copy_(torch.tensor(new))
        graph.replay()
        theirs = leaves(a.double(), b.double())
        by_loops(*theirs, ends).backward(gradient.double())
        same(a.grad, theirs[0].grad.bfloat16())
        same(b.grad, theirs[1].grad.bfloat16())


def test_epilogues_of_grouped_gemms():
    ends = torch.tensor([100, 100, 170], device="cuda")
    given = torch.randn(200, 256), torch.randn(3, 256, 264) / 16, torch.randn(264), torch.randn(200, 264)
    mine = leaves(*(each.cuda().bfloat16() for each in given))
    theirs = leaves(*(each.double() for each in mine))
    gradient = torch.randn(200, 264, device="cuda").bfloat16()
    found = wl.grouped_matmul(*mine[:2], ends, bias=mine[2], residual=mine[3], activation="silu")
    found.backward(gradient)
    want = torch.nn.functional.silu(by_loops(*theirs[:2], ends) + theirs[2]) + theirs[3]
    want = torch.where((torch.arange(200, device="cuda") < 170)[:, None], want, 0)
    want.backward(gradient.double())
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=2e-2)
    for own, other in zip(mine, theirs, strict=True):
        assert (own.grad.double() - other.grad).norm() / other.grad.norm() < 1e-2


def test_gradients_of_the_epilogue_of_blockwise_gemms():
    narrow = ints(64, 256, dtype=torch.float8_e4m3fn), ints(128, 256, dtype=torch.float8_e4m3fn)
    factors = torch.ones(64, 2, device="cuda"), torch.ones(1, 2, device="cuda")
    bias, residual = leaves(ints(128), ints(64, 128))
    wl.blockwise_matmul(*narrow, *factors, bias=bias, residual=residual, beta=0.5).sum().backward()
    same(bias.grad, torch.full((128,), 64.0, device="cuda"))
    same(residual.grad, torch.full((64, 128), 0.5, device="cuda"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_matches_torch(dtype):
    x, w, bias = (ints(*shape, dtype=torch.float32) for shape in ((64, 256), (264, 256), (264,)))
    with torch.autocast("cuda", dtype=getattr(torch, dtype)):
        found, want = wl.linear(x, w, bias=bias), torch.nn.functional.linear(x, w, bias)
        assert found.dtype == want.dtype == getattr(torch, dtype)
        same(found, want)
        same(wl.matmul(x, w.T), torch.matmul(x, w.T))
        from warploom.torch.nn import Linear

        layer = Linear(256, 264, device="cuda")
        made = layer(x)
        assert made.dtype == want.dtype
        torch.testing.assert_close(made, torch.nn.functional.linear(x, layer.weight, layer.bias), rtol=2e-2, atol=2e-2)
    made.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_graph_serves_all_sizes(backend):
    from torch._dynamo.testing import CompileCounterWithBackend

    ends = torch.tensor([10, 10, 30], device="cuda")

    def loss(x, w, experts):
        made = wl.linear(x, w, activation="silu")
        return wl.grouped_matmul(made, experts, ends).float().square().mean()

    counter, counts = CompileCounterWithBackend(backend), set()
    compiled = torch.compile(loss, backend=counter, fullgraph=True, dynamic=True)
    for rows in (40, 100, 64):
        given, found = (ints(rows, 128), ints(264, 128) / 8, ints(3, 264, 72) / 8), []
        for function in (loss, compiled):
            mine = leaves(*given)
            function(*mine).backward()
            found.append([each.grad for each in mine])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
        counts.add(counter.frame_count)
    assert len(counts) == 1, "the first size may be compiled in two goes, but no other is"


def test_deterministic_algorithms():
    x, w, bias = leaves(ints(65, 256), ints(264, 256), ints(264))
    torch.use_deterministic_algorithms(True)
    try:
        wl.linear(x, w, bias=bias, activation="gelu").sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(each.grad.isfinite().all() for each in (x, w, bias))


class Interface:
    """An array that has `__cuda_array_interface__` and nothing else."""

    def __init__(self, tensor):
        self._tensor = tensor

    @property
    def __cuda_array_interface__(self):
        return self._tensor.__cuda_array_interface__


def test_arrays_with_the_cuda_array_interface():
    a, b = ints(64, 128, dtype=torch.float16), ints(128, 72, dtype=torch.float16)
    out = torch.full((64, 72), torch.nan, device="cuda", dtype=torch.float16)
    holder = Interface(out)
    assert wl.matmul(Interface(a), Interface(b), out=holder) is holder
    same(out, a.double() @ b.double())


GATED = {
    "swiglu": torch.nn.functional.silu,
    "geglu": torch.nn.functional.gelu,
    "geglu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "reglu": torch.relu,
    "glu": torch.sigmoid,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("m", "n"), [(1, 8), (3, 264), (257, 512), (5, 13)])
@pytest.mark.parametrize("pair", GATED)
def test_gated_gemms(pair, m, n, dtype):
    """Rows of 13 elements have no vectors: PyTorch computes their gradients."""
    mine = leaves(*(torch.randn(*shape, device="cuda").to(dtype) for shape in ((m, 64), (n, 64), (n, 64))))
    theirs = leaves(*(each.double() for each in mine))
    gradient = torch.randn(m, n, device="cuda").to(dtype)
    wl.gated_linear(*mine, pair=pair).backward(gradient)
    x, w_gate, w_up = theirs
    (GATED[pair](x @ w_gate.T) * (x @ w_up.T)).backward(gradient.double())
    for own, other in zip(mine, theirs, strict=True):
        assert (own.grad.double() - other.grad).norm() <= 2e-2 * other.grad.norm()


def test_gradients_of_a_pair_are_one_kernel(monkeypatch):
    from warploom.runtime.gpu.prepared import Prepared
    from warploom.torch.pair_gradients import pair_gradients

    launched, launch_at = [], Prepared.launch_at
    monkeypatch.setattr(Prepared, "launch_at", lambda self, *given: launched.append(1) or launch_at(self, *given))
    gradient, gate, up = (torch.randn(77, 264, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    with torch.no_grad():  # as in a backward pass
        found = pair_gradients("silu", torch.nn.functional.silu, gradient, gate, up)
    assert len(launched) == 1
    theirs = leaves(gate.double(), up.double())
    (torch.nn.functional.silu(theirs[0]) * theirs[1]).backward(gradient.double())
    for own, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(own.double(), other.grad, rtol=2**-7, atol=1e-4)


def test_a_swapped_mlp_is_trained_in_a_graph():
    import copy

    import warploom

    class Mlp(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = (torch.nn.Linear(128, 256, bias=False) for _ in range(2))
            self.down = torch.nn.Linear(256, 128, bias=False)

        def forward(self, x):
            return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))

    original = Mlp().to("cuda", torch.bfloat16)
    model = warploom.nn.swap_linears(warploom.nn.swap_gated_mlps(copy.deepcopy(original)))
    x, gradient = (torch.randn(300, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            model(x).backward(gradient)
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).backward(gradient)
    x.copy_(torch.randn_like(x))
    graph.replay()
    original(x).backward(gradient)
    for own, other in zip(model.parameters(), original.parameters(), strict=True):
        assert (own.grad.double() - other.grad.double()).norm() <= 2e-2 * other.grad.double().norm()
