"""Gated GEMMs with swapped operands, split-K and stream-K, and weights allocated separately, on a Hopper GPU: exact."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom as wl

pytestmark = needs_hopper

IN_MEMORY = {"split_in_cluster": False}
GATED = {
    "swapped": wl.HopperConfig(tile=(128, 16), consumers=1, AB_swapped=True),
    "swapped, two warpgroups": wl.HopperConfig(tile=(256, 32), AB_swapped=True),
    "swapped, ping-pong": wl.HopperConfig(tile=(128, 64), pingpong=True, AB_swapped=True),
    "splits in a cluster": wl.HopperConfig(tile=(128, 64), num_split_k=2),
    "splits in memory": wl.HopperConfig(tile=(128, 96), num_split_k=3, **IN_MEMORY),
    "swapped, splits in a cluster": wl.HopperConfig(tile=(128, 32), consumers=1, AB_swapped=True, num_split_k=2),
    "swapped, splits in memory": wl.HopperConfig(tile=(256, 48), AB_swapped=True, num_split_k=3, **IN_MEMORY),
    "stream-K": wl.HopperConfig(tile=(128, 64), stream_k=True),
    "stream-K, ping-pong": wl.HopperConfig(tile=(64, 128), pingpong=True, stream_k=True),
    "swapped, stream-K": wl.HopperConfig(tile=(256, 32), AB_swapped=True, stream_k=True),
}
SIZES = [(33, 200, 520), (1, 264, 1032), (300, 1000, 768), (16, 4096, 2048)]


def ints(*shape, dtype=None):
    return torch.randint(-2, 3, shape, device="cuda").to(dtype or torch.bfloat16)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("name", GATED)
def test_pairs(name, m, n, k):
    if "memory" in name and n > 300:  # the CTAs of splits in memory wait for each other: all must fit on the GPU
        n = 264
    x, gate, up, residual = ints(m, k), ints(n, k), ints(n, k), ints(m, n)
    want = (x.double() @ gate.double().T).relu() * (x.double() @ up.double().T) + 2 * residual.double()
    out = torch.full((m, n), torch.nan, device="cuda")
    for _ in range(3):  # counters and flags of one launch serve the next
        wl.gated_linear(x, gate, up, pair="reglu", residual=residual, beta=2.0, out=out, config=GATED[name])
        assert torch.equal(out, want.float())


@pytest.mark.parametrize("ids", [[2, 0, -1, 2], [0, 1, 2, 3]])
@pytest.mark.parametrize("config", [None, wl.HopperConfig(tile=(64, 24), consumers=1, AB_swapped=True)])
def test_weights_that_are_allocated_separately(ids, config):
    """The kernel makes a tensor map for each group, with `tensormap.replace` and its fence."""
    ends = [20, 21, 180, 300]
    for n, k in ((72, 136), (1024, 512)):
        a, weights = ints(300, k), [ints(k, n) for _ in range(4)]
        groups = torch.tensor(ends, dtype=torch.int32, device="cuda")
        experts = torch.tensor(ids, dtype=torch.int32, device="cuda")
        for _ in range(2):
            found = wl.grouped_matmul(
                a, weights, groups, expert_ids=experts, out_dtype=torch.float32, config=config, alpha=2.0
            )
            for start, end, expert in zip([0, *ends], ends, ids, strict=False):
                want = 2 * (a[start:end].double() @ weights[expert].double()) if expert >= 0 else 0 * found[start:end]
                assert torch.equal(found[start:end].double(), want.double())


def test_exact_float32_with_batches_and_an_epilogue():
    a, b = ints(3, 130, 264, dtype=torch.float32) * 4095, ints(3, 264, 200, dtype=torch.float32)
    bias, residual = ints(200, dtype=torch.float32), ints(3, 130, 200, dtype=torch.float32)
    found = wl.matmul(a, b, precision="tf32x3", bias=bias, activation="relu", residual=residual)
    want = (a.double() @ b.double() + bias.double()).relu() + residual.double()
    assert torch.equal(found.double(), want)
