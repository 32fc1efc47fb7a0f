"""Launches that may start before the previous kernel has ended: none reads or overwrites what that kernel still uses.

Every GEMM permutes columns exactly, reads what the launch before it wrote, and overwrites what that one read.
"""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom
from warploom import HopperConfig

pytestmark = needs_hopper
STEPS = 60
CONFIGS = {
    "the library's choice": None,
    "one consumer": {"tile": (64, 64), "consumers": 1},
    "splits in a cluster": {"tile": (64, 64), "consumers": 1, "num_split_k": 2},
    "ping-pong": {"tile": (128, 64), "pingpong": True},
    "multicast": {"tile": (128, 64), "cluster_shape": (2, 1, 1)},
    "splits in memory": {"tile": (64, 64), "consumers": 1, "num_split_k": 2, "split_in_cluster": False},
    "stream-K": {"tile": (128, 128), "stream_k": True},
}


class Chain:
    """GEMMs by permutation matrices between two buffers."""

    def __init__(self, fields, m=256, n=1024):
        self.config = None if fields is None else HopperConfig(**fields, dependent=True)
        self.orders = [torch.randperm(n, device="cuda") for _ in range(4)]
        self.weights = [torch.eye(n, device="cuda", dtype=torch.bfloat16)[order] for order in self.orders]
        self.start = torch.randint(-100, 101, (m, n), device="cuda").to(torch.bfloat16)
        self.buffers = [torch.empty_like(self.start) for _ in range(2)]

    def reset(self):
        self.buffers[0].copy_(self.start)
        self.buffers[1].fill_(float("nan"))

    def run(self, between=lambda chain, step: None):
        for step in range(STEPS):
            source, target = self.buffers[step % 2], self.buffers[1 - step % 2]
            options = {} if self.config is None else {"config": self.config}
            warploom.linear(source, self.weights[step % 4], out=target, **options)
            between(self, step)

    def check(self):
        want = self.start
        for step in range(STEPS):
            want = want[:, self.orders[step % 4]]
        assert torch.equal(self.buffers[STEPS % 2], want)


def poison(chain, step):
    chain.buffers[step % 2].fill_(float("nan"))  # what the GEMM has just read


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def chain(request):
    made = Chain(request.param)
    made.reset()
    made.run()  # assembles its kernel
    return made


@pytest.mark.parametrize("between", [lambda chain, step: None, poison], ids=["back to back", "with fills between"])
@pytest.mark.parametrize("where", ["the default stream", "another stream"])
def test_a_chain_in_a_stream(chain, between, where):
    stream = torch.cuda.default_stream() if where == "the default stream" else torch.cuda.Stream()
    for _ in range(5):
        with torch.cuda.stream(stream):
            chain.reset()
            chain.run(between)
        stream.synchronize()
        chain.check()


@pytest.mark.parametrize("between", [lambda chain, step: None, poison], ids=["back to back", "with fills between"])
def test_a_chain_in_a_graph(chain, between):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain.reset()
        chain.run(between)
    for _ in range(10):
        for buffer in chain.buffers:
            buffer.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        chain.check()


def test_branches_of_a_graph_that_join(chain):
    """A GEMM that follows two branches waits for both."""
    other = Chain(CONFIGS["one consumer"])
    other.reset()
    other.run()
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    joined = torch.empty_like(chain.start)
    with torch.cuda.graph(graph):
        chain.reset()
        joined.fill_(float("nan"))
        side.wait_stream(torch.cuda.current_stream())
        chain.run()
        with torch.cuda.stream(side):
            other.reset()
            other.run()
        torch.cuda.current_stream().wait_stream(side)
        options = {} if chain.config is None else {"config": chain.config}
        warploom.linear(other.buffers[STEPS % 2], chain.weights[0], out=joined, **options)
        chain.buffers[0].add_(joined)  # after both
    for _ in range(10):
        graph.replay()
        torch.cuda.synchronize()
        other.check()
        assert torch.equal(joined, other.buffers[STEPS % 2][:, chain.orders[0]])
