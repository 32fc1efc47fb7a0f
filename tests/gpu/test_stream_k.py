"""Stream-K on a Hopper GPU: shared tiles are exact, in repeated launches and graphs, and deterministic."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom.ops as wl
from warploom.ops.planning.prepare import plan_matmul
from warploom.structured.config.sm90 import HopperConfig

pytestmark = [*needs_hopper, pytest.mark.filterwarnings("ignore")]

CONFIGS = {
    "cooperative": HopperConfig(tile=(128, 128), stream_k=True),
    "cooperative, wide": HopperConfig(tile=(128, 256), stream_k=True),
    "ping-pong": HopperConfig(tile=(128, 128), pingpong=True, stream_k=True),
    "ping-pong, wide": HopperConfig(tile=(128, 192), pingpong=True, stream_k=True),
    "pairs": HopperConfig(tile=(128, 128), pingpong=True, cluster_shape=(2, 1, 1), stream_k=True),
    "one consumer, swapped": HopperConfig(tile=(64, 64), consumers=1, AB_swapped=True, stream_k=True),
}
SHAPES = [
    (1, 8, 8),
    (128, 128, 64),
    (257, 136, 2056),
    (1920, 1152, 1024),  # 135 tiles of 128 x 128 on 132 SMs
    (1536, 2048, 768),  # 192
    (1152, 1408, 1000),  # 99
    (2816, 3072, 512),  # 528: four full waves
    (4096, 4096, 4096),
]
REPEATS = 10


def ints(*shape):
    return torch.randint(-2, 3, shape, device="cuda").bfloat16()


def poisoned(m, n, dtype=None):
    return torch.full((m, n), torch.nan, device="cuda", dtype=dtype or torch.bfloat16)


def product(m, n, k):
    a, b = ints(m, k), ints(n, k).t()
    return a, b, (a.float() @ b.float()).bfloat16()


@pytest.fixture(autouse=True)
def _exact_references():
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_repeated_launches_are_exact(m, n, k, name):
    a, b, want = product(m, n, k)
    outs = [poisoned(m, n) for _ in range(REPEATS)]
    for out in outs:
        wl.matmul(a, b, out=out, config=CONFIGS[name])
    assert all(torch.equal(out, want) for out in outs)


@pytest.mark.parametrize("name", CONFIGS)
def test_graphs(name):
    """Two launches in a graph that is replayed, and launches of the same call on the stream."""
    m, n, k = 1536, 2048, 768
    a, b, want = product(m, n, k)
    first, second, beside = (poisoned(m, n) for _ in range(3))
    call = plan_matmul(a, b, out=first, config=CONFIGS[name])
    call(a, b, first)
    assert torch.equal(first, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(a, b, first)
        call(a, b, second)
    for _ in range(REPEATS):
        a.copy_(ints(m, k))
        want = (a.float() @ b.float()).bfloat16()
        for out in (first, second, beside):
            out.fill_(torch.nan)
        graph.replay()
        call(a, b, beside)
        assert all(torch.equal(out, want) for out in (first, second, beside))


@pytest.mark.parametrize("name", ["cooperative", "ping-pong", "pairs"])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_epilogue_is_applied_once(name, in_place):
    m, n, k = 1664, 1536, 1024
    a, b, bias, residual = ints(m, k), ints(n, k).t(), ints(n), ints(m, n)
    config = CONFIGS[name].replace(residual_in_place=in_place, num_output_stages=None, num_pipeline_stages=None)
    want = (torch.relu(a.float() @ b.float() + bias.float()) + residual.float()).bfloat16()
    for _ in range(3):
        out = poisoned(m, n)
        wl.matmul(a, b, bias=bias, activation="relu", residual=residual, out=out, config=config)
        assert torch.equal(out, want)


@pytest.mark.parametrize("name", CONFIGS)
def test_reals_give_the_same_bits_every_time(name):
    m, n, k = 1920, 1152, 4096
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16().t()
    found = [wl.matmul(a, b, out_dtype=torch.float32, config=CONFIGS[name]) for _ in range(REPEATS)]
    assert all(torch.equal(each, found[0]) for each in found)
    torch.testing.assert_close(found[0].double(), a.double() @ b.double(), rtol=1e-3, atol=1e-2)


def test_concurrent_streams_share_nothing():
    m, n, k = 1536, 2048, 768
    a, b, want = product(m, n, k)
    sides = [torch.cuda.Stream() for _ in range(2)]
    outs = [[poisoned(m, n) for _ in range(REPEATS)] for _ in sides]
    torch.cuda.synchronize()
    for number in range(REPEATS):
        for side, mine in zip(sides, outs, strict=True):
            with torch.cuda.stream(side):
                wl.matmul(a, b, out=mine[number], config=CONFIGS["ping-pong"])
    torch.cuda.synchronize()
    assert all(torch.equal(out, want) for mine in outs for out in mine)
