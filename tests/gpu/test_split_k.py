"""Split-K on a Hopper GPU: exact from every state of the counters in memory, and in clusters of large tiles."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

from warploom.ops.planning.prepare import plan_matmul
from warploom.structured.config.sm90 import HopperConfig

pytestmark = [*needs_hopper, pytest.mark.filterwarnings("ignore")]

FLIP = -(1 << 31)
"""The top bit of a counter, as int32; between launches a counter is 0 or this."""
IN_MEMORY = {"split_in_cluster": False}
CONFIGS = {
    "2 splits": HopperConfig(tile=(128, 64), num_split_k=2, **IN_MEMORY),
    "3 splits": HopperConfig(tile=(128, 96), num_split_k=3, **IN_MEMORY),
    "5 splits": HopperConfig(tile=(128, 80), num_split_k=5, **IN_MEMORY),
    "6 splits": HopperConfig(tile=(128, 96), num_split_k=6, **IN_MEMORY),
    "7 splits": HopperConfig(tile=(128, 168), AB_swapped=True, num_split_k=7, **IN_MEMORY),
    "6 splits, units": HopperConfig(tile=(64, 24), consumers=1, num_split_k=6, use_tma_store=False, **IN_MEMORY),
    "16 splits, units": HopperConfig(tile=(128, 64), num_split_k=16, use_tma_store=False, **IN_MEMORY),
    "6 splits, dependent launches": HopperConfig(tile=(128, 96), num_split_k=6, dependent=True, **IN_MEMORY),
}
M, N = 130, 136
IN_A_ROW, ROUNDS = 16, 20
"""Launches between which the stream has no other work, and how often they are repeated, with fresh data."""


def ints(*shape):
    return torch.randint(-2, 3, shape, device="cuda").bfloat16()


def exact(a, b):
    return (a.float() @ b.float()).bfloat16()


def counters(call):
    """The counters of a call on the current stream, as int32 on the GPU."""
    block = call._counters[torch.cuda.current_stream().cuda_stream, None]
    return block.owner.view(torch.int32)


def prepared(config):
    """A call that has been launched once, so that its counters exist, and its K extent."""
    k = 64 * (config.num_split_k + 3) - 8  # uneven shares
    a, b, out = ints(M, k), ints(N, k).t(), torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    call = plan_matmul(a, b, out=out, config=config)
    call(a, b, out)
    assert torch.equal(out, exact(a, b))
    return call, k


@pytest.fixture(autouse=True)
def _exact_references():
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("start", [0, FLIP])
@pytest.mark.parametrize("name", CONFIGS)
def test_results_are_exact_from_every_state_of_the_counters(name, start):
    """There are only two states: each launch flips the top bit and leaves the others at zero."""
    call, k = prepared(CONFIGS[name])
    states = counters(call)
    used = states != 0  # after one launch; padding for alignment stays zero
    assert used.any()
    assert (states[used] == FLIP).all()
    states[used] = start
    for _ in range(ROUNDS):
        factors = [(ints(M, k), ints(N, k).t()) for _ in range(IN_A_ROW)]
        want = [exact(a, b) for a, b in factors]
        outs = [torch.full((M, N), torch.nan, device="cuda", dtype=torch.bfloat16) for _ in factors]
        for (a, b), out in zip(factors, outs, strict=True):
            call(a, b, out)
        assert all(torch.equal(out, each) for out, each in zip(outs, want, strict=True))
        assert (states[used] == start).all(), "an even number of launches"
        assert not states[~used].any()


@pytest.mark.parametrize("name", ["3 splits", "6 splits, dependent launches"])
def test_graphs_of_an_odd_number_of_launches(name):
    """Each replay finds the counters in the other state; launches on the stream have their own counters."""
    call, k = prepared(CONFIGS[name])
    a, b = ints(M, k), ints(N, k).t()
    outs = [torch.empty(M, N, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    call(a, b, outs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs[:3]:
            call(a, b, out)
    for _ in range(ROUNDS):
        a.copy_(ints(M, k))
        want = exact(a, b)
        for out in outs:
            out.fill_(torch.nan)
        graph.replay()
        call(a, b, outs[3])
        assert all(torch.equal(out, want) for out in outs)


@pytest.mark.parametrize("name", ["3 splits", "7 splits"])
def test_streams_have_their_own_counters(name):
    call, k = prepared(CONFIGS[name])
    sides = [torch.cuda.Stream() for _ in range(2)]
    factors = [(ints(M, k), ints(N, k).t()) for _ in range(IN_A_ROW)]
    want = [exact(a, b) for a, b in factors]
    outs = [[torch.full((M, N), torch.nan, device="cuda", dtype=torch.bfloat16) for _ in factors] for _ in sides]
    torch.cuda.synchronize()
    for number, (a, b) in enumerate(factors):
        for turn, (side, mine) in enumerate(zip(sides, outs, strict=True)):
            with torch.cuda.stream(side):
                for _ in range(1 + turn):  # the streams' counters are in different states
                    call(a, b, mine[number])
    torch.cuda.synchronize()
    assert all(torch.equal(out, each) for mine in outs for out, each in zip(mine, want, strict=True))


LARGE = {
    "2 splits": HopperConfig(tile=(128, 256), num_split_k=2),
    "2 splits, swapped": HopperConfig(tile=(128, 256), num_split_k=2, AB_swapped=True, dependent=True),
    "2 splits of 256 rows": HopperConfig(tile=(256, 128), num_split_k=2),
    "4 splits": HopperConfig(tile=(128, 256), num_split_k=4),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_tiles_are_exchanged_where_their_stages_were(name):
    config, (m, n) = LARGE[name], (300, 520)
    assert config.receives_in_stages
    k = 64 * (9 * config.num_split_k + 1) - 8  # uneven shares, and more K tiles than stages
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    call = plan_matmul(ints(m, k), ints(n, k).t(), out=out, config=config)
    for _ in range(ROUNDS):
        factors = [(ints(m, k), ints(n, k).t()) for _ in range(IN_A_ROW)]
        want = [exact(a, b) for a, b in factors]
        outs = [torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16) for _ in factors]
        for (a, b), each in zip(factors, outs, strict=True):
            call(a, b, each)
        assert all(torch.equal(each, right) for each, right in zip(outs, want, strict=True))
