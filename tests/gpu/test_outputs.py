"""Auxiliary outputs and gated GEMMs on a Hopper GPU: exact results, one kernel, graphs, the compiler."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom.ops as wl
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig

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
def test_outputs_of_a_user_epilogue(fields, n):
    m = 100 if fields.get("num_split_k") == 16 else 300  # all splits of all tiles are resident at once
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


def test_outputs_with_a_residual():
    x, w, residual = ints(1000, 512), ints(768, 512), ints(1000, 768)
    before = poisoned(1000, 768, dtype=torch.bfloat16)
    config = HopperConfig(tile=(128, 128), pingpong=True, residual_in_place=True)
    found = wl.linear(x, w, activation="relu", residual=residual, outputs={"pre_activation": before}, config=config)
    same(before, exact(x, w.T).bfloat16())
    same(found, (torch.relu(exact(x, w.T)) + residual).bfloat16())


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_gated_gemms_are_exact(m, n, k, dtype):
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
def test_gated_gemms_with_every_configuration(fields, how):
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


ENDS = [0, 300, 300, 301, 429, 560]
"""Ends of groups in 570 rows: empty groups, one row, a tile plus one row; some rows are after the last group."""


def in_groups(a, b, ends):
    """The grouped GEMM of the rows that belong to a group."""
    firsts = [0, *ends]
    return torch.cat([exact(a[first:end], each) for first, end, each in zip(firsts, ends, b, strict=False)])


def on_gpu(ends):
    return torch.tensor(ends, device="cuda", dtype=torch.int32)


GROUPED = [
    {"tile": (128, 96), "pingpong": True},
    {"tile": (128, 64), "num_output_stages": 1},
    {"tile": (64, 64), "consumers": 1},
    {"tile": (64, 24), "consumers": 1, "AB_swapped": True},
    {"tile": (128, 64), "cluster_shape": (2, 2, 1)},
    {"tile": (128, 64), "use_tma_store": False},
    None,
]


@pytest.mark.parametrize("fields", GROUPED, ids=str)
@pytest.mark.parametrize("n", [264, 261])
def test_outputs_of_grouped_gemms(fields, n):
    a, b, scale = ints(570, 520), ints(len(ENDS), 520, n), ints(570, 1)
    kept = {"pre_activation": poisoned(570, n), "scaled": poisoned(570, n, dtype=torch.float16)}
    out = poisoned(570, n, dtype=torch.bfloat16)
    options = {"epilogue": lambda acc, at, scale: {"out": acc + 1, "scaled": acc * scale}, "operands": {"scale": scale}}
    config = None if fields is None else HopperConfig(**fields)
    for _ in range(3):
        wl.grouped_matmul(a, b, on_gpu(ENDS), activation="relu", **options, outputs=kept, out=out, config=config)
    want = in_groups(a, b, ENDS)
    same(kept["pre_activation"][:560], want)
    same(kept["scaled"][:560], (torch.relu(want) * scale[:560]).half())
    same(out[:560], (torch.relu(want) + 1).bfloat16())
    assert all(each[560:].isnan().all() for each in (*kept.values(), out))


GATED = [
    *(fields for fields in PAIRED if fields["tile"][1] <= 128),
    {"tile": (64, 128), "cluster_shape": (2, 2, 1), "pingpong": True},
    None,
]


@pytest.mark.parametrize("fields", GATED, ids=str)
@pytest.mark.parametrize("how", ["halves", "columns in turn", "n by k"])
def test_gated_grouped_gemms(fields, how):
    n, a = 264, ints(570, 520)
    b = ints(len(ENDS), 520, 2 * n)
    gate, up = (b[..., 0::2], b[..., 1::2]) if how == "columns in turn" else b.chunk(2, 2)
    if how == "n by k":
        gate, up = b.mT.contiguous().mT.chunk(2, 2)
    kept = {"gate": poisoned(570, n), "up": poisoned(570, n, dtype=torch.bfloat16)}
    config = None if fields is None else HopperConfig(**fields)
    options = {"pair": times, "outputs": kept, "out_dtype": torch.float32, "config": config}
    for _ in range(3):
        found = wl.gated_grouped_matmul(a, gate, up, on_gpu(ENDS), **options)
    wanted = in_groups(a, gate, ENDS), in_groups(a, up, ENDS)
    same(kept["gate"][:560], wanted[0])
    same(kept["up"][:560], wanted[1].bfloat16())
    same(found[:560], wanted[0].float() * wanted[1].float())
    assert not found[560:].any()
    assert kept["gate"][560:].isnan().all()


@pytest.mark.parametrize("rows", [(1,), (1,) * 16, (1024,) * 8, (0, 5000, 3, 0, 129, 64, 63, 7)], ids=str)
@pytest.mark.parametrize(("n", "k"), [(512, 64), (1408, 1024)])
def test_groups_of_every_size(rows, n, k):
    ends = torch.tensor(rows).cumsum(0).tolist()
    a, gate, up = ints(ends[-1], k), ints(len(rows), k, n), ints(len(rows), k, n)
    found = wl.gated_grouped_matmul(a, gate, up, on_gpu(ends), pair=times, out_dtype=torch.float32)
    same(found, in_groups(a, gate, ends).float() * in_groups(a, up, ends).float())
    before = poisoned(ends[-1], n)
    found = wl.grouped_matmul(a, gate, on_gpu(ends), activation="relu", outputs={"pre_activation": before})
    same(before, in_groups(a, gate, ends))
    same(found, torch.relu(in_groups(a, gate, ends)).bfloat16())


def test_groups_of_a_column_major_operand():
    a, b = ints(520, 568).T, ints(len(ENDS), 520, 264)
    same(wl.grouped_matmul(a, b, on_gpu(ENDS))[:560], in_groups(a, b, ENDS).bfloat16())


@pytest.mark.parametrize("fields", [{"tile": (128, 64)}, {"tile": (256, 64)}, None], ids=str)
@pytest.mark.parametrize("n", [264, 261])
def test_outputs_of_blockwise_gemms(fields, n):
    a, b = ints(300, 384, dtype=torch.float8_e4m3fn), ints(n, 384, dtype=torch.float8_e4m3fn)
    a_scale, b_scale = (2.0 ** torch.randint(-2, 3, (rows, 3), device="cuda") for rows in (300, 3))
    wide = a.double() * a_scale.double().repeat_interleave(128, 1)
    wide_b = b.double() * b_scale.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)
    before, want = poisoned(300, n), wide @ wide_b.T
    config = None if fields is None else HopperBlockwiseConfig(**fields)
    options = {"activation": "relu", "outputs": {"pre_activation": before}, "config": config}
    found = wl.blockwise_matmul(a, b, a_scale, b_scale, **options, out_dtype=torch.float32)
    same(before, want)
    same(found, torch.relu(want))


def test_gradients_of_gated_grouped_gemms():
    """Compared with PyTorch's, group by group, in float64; rows after the last group get none."""
    ends, given = (
        [70, 70, 200, 201],
        [torch.randn(210, 128), torch.randn(4, 128, 96) / 11, torch.randn(4, 128, 96) / 11],
    )
    mine = [each.bfloat16().cuda().requires_grad_() for each in given]
    theirs = [each.detach().double().requires_grad_() for each in mine]
    gradient = torch.randn(210, 96, device="cuda").bfloat16()
    found = wl.gated_grouped_matmul(*mine, on_gpu(ends))
    found.backward(gradient)
    a, gate, up = theirs
    want = torch.nn.functional.silu(in_groups(a, gate, ends)) * in_groups(a, up, ends)
    want.backward(gradient[:201].double())
    torch.testing.assert_close(found[:201].double(), want, rtol=2e-2, atol=2e-2)
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=3e-2, atol=0.03 * float(other.grad.abs().max()))
    assert not mine[0].grad[201:].any()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_layer_of_experts_compiled_and_in_a_graph(backend):
    def layer(x, gate, up, down, ends):
        return wl.grouped_matmul(wl.gated_grouped_matmul(x, gate, up, ends), down, ends)

    gate, up, down = (
        torch.randn(4, *shape, device="cuda").bfloat16() / 16 for shape in ((128, 96), (128, 96), (96, 128))
    )
    compiled, x, ends = (
        torch.compile(layer, backend=backend, fullgraph=True),
        ints(300, 128),
        on_gpu([10, 10, 150, 300]),
    )
    with torch.no_grad():
        same(compiled(x, gate, up, down, ends), layer(x, gate, up, down, ends))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = layer(x, gate, up, down, ends)
        ends.copy_(on_gpu([200, 201, 201, 290]))  # only the device knows
        graph.replay()
        same(made, layer(x, gate, up, down, ends))
        assert not made[290:].any()
