"""Several outputs and pairs on a Hopper GPU: exact results, one kernel, graphs, the compiler."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom.ops as wl
from warploom.structured.config.hopper import HopperConfig

pytestmark = [*needs_hopper, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _settings():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()


def ints(*shape, dtype=None):
    return torch.randint(-2, 3, shape, device="cuda").to(dtype or torch.bfloat16)


def poisoned(*shape, dtype=None):
    return torch.full(shape, torch.nan, device="cuda", dtype=dtype or torch.float32)


def exact(a, b):
    return a.double() @ b.double()


def same(found, want):
    torch.testing.assert_close(found.double(), want.double(), rtol=0, atol=0)


def times(gate, up):
    return gate * up


SHAPES = [
    (1, 8, 8),
    (128, 128, 64),
    (127, 129, 65),
    (257, 520, 136),
    (16, 4096, 1024),
    (1024, 1024, 1024),
    (64, 8, 4104),
]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_the_value_before_the_activation(m, n, k):
    x, w, bias = ints(m, k), ints(n, k), ints(n)
    want = exact(x, w.T) + bias
    for dtype in (torch.float32, torch.bfloat16):
        before = poisoned(m, n, dtype=dtype)
        found = wl.linear(
            x, w, bias=bias, activation="relu", outputs={"pre_activation": before}, out_dtype=torch.float32
        )
        same(found, torch.relu(want))
        same(before, want.to(dtype))


CONFIGS = [
    {"tile": (128, 96), "pingpong": True},
    {"tile": (128, 64), "num_output_stages": 1},
    {"tile": (64, 24), "consumers": 1, "AB_swapped": True},
    {"tile": (128, 64), "cluster_shape": (2, 1, 1)},
    {"tile": (64, 64), "consumers": 1, "num_split_k": 2},
    {"tile": (128, 64), "num_split_k": 4, "split_in_cluster": False},
    {"tile": (128, 64), "num_split_k": 16, "split_in_cluster": False, "use_tma_store": False},
]


@pytest.mark.parametrize("fields", CONFIGS, ids=str)
@pytest.mark.parametrize("n", [256, 257])
def test_outputs_of_the_callers_function(fields, n):
    m = 100 if fields.get("num_split_k") == 16 else 300  # all splits of all tiles find a place at once
    a, b, scale = ints(m, 1100), ints(1100, n), ints(m, 1)
    kept = {
        "pre_activation": poisoned(m, n),
        "doubled": poisoned(m, n, dtype=torch.bfloat16),
        "scaled": poisoned(m, n, dtype=torch.float16),
    }

    def widened(acc, at, scale):
        return {"out": acc + 1, "doubled": acc * 2, "scaled": acc * scale}

    options = {"epilogue": widened, "operands": {"scale": scale}, "outputs": kept, "activation": "relu"}
    for _ in range(3):
        found = wl.matmul(a, b, **options, out_dtype=torch.float32, config=HopperConfig(**fields))
    want = exact(a, b)
    same(kept["pre_activation"], want)
    same(found, torch.relu(want) + 1)
    same(kept["doubled"], (2 * torch.relu(want)).bfloat16())
    same(kept["scaled"], (scale * torch.relu(want)).half())


def test_outputs_beside_a_residual():
    x, w, residual = ints(1000, 512), ints(768, 512), ints(1000, 768)
    before = poisoned(1000, 768, dtype=torch.bfloat16)
    config = HopperConfig(tile=(128, 128), pingpong=True, residual_in_place=True)
    found = wl.linear(x, w, activation="relu", residual=residual, outputs={"pre_activation": before}, config=config)
    same(before, exact(x, w.T).bfloat16())
    same(found, (torch.relu(exact(x, w.T)) + residual).bfloat16())


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_pairs_are_exact(m, n, k, dtype):
    x, w = ints(m, k, dtype=getattr(torch, dtype)), ints(2 * n, k, dtype=getattr(torch, dtype))
    bias = ints(n)
    gate, up = exact(x.double(), w[:n].double().T) + bias, exact(x.double(), w[n:].double().T)
    found = wl.gated_linear(x, w[:n], w[n:], gate_bias=bias, pair=times, out_dtype=torch.float32)
    same(found, (gate.float() * up.float()))


PAIRED = [
    {"tile": (128, 192), "pingpong": True},
    {"tile": (128, 128), "pingpong": True, "cluster_shape": (2, 1, 1)},
    {"tile": (128, 256)},
    {"tile": (256, 128), "cluster_shape": (1, 2, 1)},
    {"tile": (64, 80), "consumers": 1},
    {"tile": (128, 64), "use_tma_store": False},
]


@pytest.mark.parametrize("fields", PAIRED, ids=str)
@pytest.mark.parametrize("how", ["halves", "in turn", "k by n"])
def test_pairs_of_every_configuration(fields, how):
    x, n = ints(700, 520), 392
    w = ints(2 * n, 520)
    gate, up = w.chunk(2) if how == "halves" else (w[0::2], w[1::2])
    if how == "k by n":
        gate, up = w.T.contiguous().T.chunk(2)
    kept = {"gate": poisoned(700, n), "up": poisoned(700, n, dtype=torch.bfloat16)}
    config = HopperConfig(**fields)
    same(
        wl.gated_linear(x, gate, up, pair=times, out_dtype=torch.float32, config=config),
        exact(x, gate.T) * exact(x, up.T),
    )
    if fields["tile"][1] <= 128:
        wl.gated_linear(x, gate, up, outputs=kept, config=config)
        same(kept["gate"], exact(x, gate.T))
        same(kept["up"], exact(x, up.T).bfloat16())


def test_swiglu_is_close():
    x, w = torch.randn(4, 96, 512, device="cuda").bfloat16(), (torch.randn(2 * 264, 512, device="cuda") / 23).bfloat16()
    residual = torch.randn(4, 96, 264, device="cuda").bfloat16()
    want = torch.nn.functional.silu(exact(x, w[:264].T)) * exact(x, w[264:].T) + residual
    torch.testing.assert_close(wl.gated_linear(x, *w.chunk(2), residual=residual).double(), want, rtol=1e-2, atol=1e-2)


def test_graphs():
    x, w = ints(128, 512), ints(528, 512)
    gate = poisoned(128, 264)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = wl.gated_linear(x, *w.chunk(2), pair=times, outputs={"gate": gate}, out_dtype=torch.float32)
    for _ in range(2):
        x.copy_(ints(128, 512))
        gate.fill_(torch.nan)
        graph.replay()
        same(gate, exact(x, w[:264].T))
        same(made, exact(x, w[:264].T) * exact(x, w[264:].T))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_break(backend, dynamic):
    def layer(x, gate, up, bias):
        before = torch.empty(x.shape[0], 264, device="cuda")
        made = wl.linear(x * 2, gate, bias=bias, activation="relu", outputs={"pre_activation": before})
        return wl.gated_linear(x, gate, up, pair="swiglu") + 1, made, before

    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=dynamic)
    gate, up, bias = ints(264, 128), ints(264, 128), ints(264)
    with torch.no_grad():
        for rows in (100, 64, 200):
            x = ints(rows, 128)
            for found, want in zip(compiled(x, gate, up, bias), layer(x, gate, up, bias), strict=True):
                torch.testing.assert_close(found, want, rtol=2e-2, atol=2e-2)
