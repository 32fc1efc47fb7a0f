"""One of several processes that train swapped layers with a parallelism: `distributed_layers.py KIND RANK WORLD FILE`.

The layers run their kernels on the emulator, and every gradient is compared with the one of the whole model in float64.
"""

from __future__ import annotations

import copy
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import warploom
import warploom.torch.nn as layers

ROWS = 3


def ints(*shape):
    return torch.randint(-2, 3, shape).bfloat16()


def model():
    """A model with a fused activation, the same in every process."""
    torch.manual_seed(0)
    made = nn.Sequential(layers.Linear(16, 32, activation="relu"), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    made = made.bfloat16()
    with torch.no_grad():
        for each in made.parameters():
            each.copy_(ints(*each.shape))
    return made


def reference(swapped):
    first, *rest = swapped
    plain = nn.Linear(16, 32)
    plain.load_state_dict(first.state_dict())
    return nn.Sequential(plain, nn.ReLU(), *map(copy.deepcopy, rest)).double()


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(swapped, want, found, x, divided):
    torch.testing.assert_close(whole(found).double(), want(x.double()), rtol=2e-2, atol=4)
    for (name, mine), theirs in zip(swapped.named_parameters(), want.parameters(), strict=True):
        gradient = whole(mine.grad).double() * divided
        assert gradient.shape == theirs.grad.shape, name
        error = (gradient - theirs.grad).norm() / theirs.grad.norm()
        assert error < 2e-2, f"{name}: {error}"


def data_parallel(rank, world, wrap):
    """Each process has other rows; gradients are those of all rows, averaged."""
    swapped = model()
    want, names = reference(swapped), list(swapped.state_dict())
    warploom.nn.swap_linears(swapped)
    assert list(swapped.state_dict()) == names
    trained = wrap(swapped)
    torch.manual_seed(1)
    rows = ints(world * ROWS, 16)
    mine = rows[rank * ROWS : (rank + 1) * ROWS]
    found = trained(mine)
    found.float().square().sum().backward()
    want(rows.double()).square().sum().backward()
    compare(swapped, want, found, mine, divided=world)


def sharded_data_parallel(rank, world):
    def wrap(swapped):
        for layer in swapped:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(swapped)

    data_parallel(rank, world, wrap)


def tensor_parallel(rank, world):
    """Columns of one layer, then K of the next; the last is replicated."""
    swapped = model()
    want = reference(swapped)
    warploom.nn.swap_linears(swapped)
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(swapped, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    torch.manual_seed(1)
    x = ints(2 * ROWS, 16)
    found = swapped(x)
    found.float().square().sum().backward()
    want(x.double()).square().sum().backward()
    compare(swapped, want, found, x, divided=1)


def sharded_calls(rank, world):
    """Calls on distributed tensors: every placement gives the whole result, and the rules keep what can be kept."""
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(2)
    x, w, up, bias, residual = ints(6, 16), ints(8, 16), ints(8, 16), ints(8), ints(6, 8)
    product = x.double() @ w.double().T
    for of_x, of_w, kept in (
        (Replicate(), Replicate(), Replicate()),
        (Shard(0), Replicate(), Shard(0)),
        (Replicate(), Shard(0), Shard(1)),
        (Shard(1), Shard(1), None),
    ):
        a, b = distribute_tensor(x, mesh, [of_x]), distribute_tensor(w, mesh, [of_w])
        rest = {
            "bias": distribute_tensor(bias, mesh, [Replicate()]),
            "residual": distribute_tensor(residual, mesh, [Replicate()]),
        }
        found = warploom.linear(a, b, **rest, beta=2.0)
        assert (kept is None and found.placements[0].is_partial()) or found.placements == (kept,), found.placements
        torch.testing.assert_close(
            found.full_tensor().double(), product + bias + 2 * residual.double(), rtol=1e-2, atol=1
        )
        activated = warploom.linear(a, b, activation="relu")
        torch.testing.assert_close(activated.full_tensor().double(), product.relu(), rtol=1e-2, atol=0.5)
        gated = warploom.gated_linear(a, b, distribute_tensor(up, mesh, [of_w]))
        want = nn.functional.silu(product) * (x.double() @ up.double().T)
        torch.testing.assert_close(gated.full_tensor().double(), want, rtol=2e-2, atol=1)
    many, others = ints(2 * world, 3, 16), ints(2 * world, 16, 8)
    batches = warploom.matmul(*(distribute_tensor(each, mesh, [Shard(0)]) for each in (many, others)))
    assert batches.placements == (Shard(0),)
    torch.testing.assert_close(batches.full_tensor().double(), many.double() @ others.double(), rtol=1e-2, atol=0.5)
    for refused in ({"epilogue": lambda acc, at: acc}, {"out": a}):
        try:
            warploom.linear(a, b, **refused)
        except warploom.WarploomError as error:
            assert "distributed" in str(error)
        else:
            raise AssertionError(f"{refused} is not refused")


KINDS = {
    "ddp": lambda rank, world: data_parallel(rank, world, DistributedDataParallel),
    "fsdp2": sharded_data_parallel,
    "tensor": tensor_parallel,
    "calls": sharded_calls,
}


def main(kinds, rank, world, file):
    layers.has_kernel = lambda x, weight: True  # on the host too, where the emulator runs the kernels
    warnings.filterwarnings("error", message="FSDP2-wrapped module")  # a layer that returns a view
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    for kind in kinds.split(","):
        KINDS[kind](rank, world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
