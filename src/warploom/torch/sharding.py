"""Sharding rules of the ops for PyTorch's distributed tensors (`DTensor`): tensor parallelism of layers and calls.

A GEMM of sharded operands is a GEMM of their local parts: rows of A and columns of B are independent, and parts of K
give a `Partial` result. The rules are registered when the first call with distributed tensors is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch

from warploom.ops.planning.keywords import INPUTS

_MODULE = "torch.distributed.tensor"
SHARDED = ("matmul", "linear", "gated_linear")
"""The functions that take distributed tensors."""
UNSHARDED_OPTIONS = ("epilogue", "store", "operands", "outputs", "out")
"""Options that they do not take with them: a function sees positions, which differ between a part and the whole."""


def is_distributed(tensors: Iterable[Any]) -> bool:
    """Return whether there are distributed tensors, for which the rules are registered now."""
    module = sys.modules.get(_MODULE)
    if module is None or not any(isinstance(each, module.DTensor) for each in tensors):
        return False
    _register()
    return True


@cache
def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    ops = torch.ops.warploom
    register: Callable[[Any], Callable[[Any], Any]] = register_sharding
    register(ops.gemm.default)(lambda *given: _of_gemm(given[1], given[2], given[4 : 4 + len(INPUTS)]))
    register(ops.plain_matmul.default)(lambda a, b, *given: _of_gemm(a, b, given[:-1]))
    register(ops.activated_gemm.default)(lambda *given: _of_saving(given[1:3], given[4 : 4 + len(INPUTS)], results=2))
    register(ops.gated_gemm.default)(
        lambda *given: _of_saving(given[1:4], given[5 : 5 + len(INPUTS)], results=3, column_axis=0)
    )


Rules = list[tuple[list[Any], list[Any]]]
"""Placements of results and operands that go together, on one dimension of a mesh."""


def _placements() -> tuple[Any, Any, Any]:
    module = sys.modules[_MODULE]
    return module.Replicate, module.Shard, module.Partial


def _of_gemm(a: Any, b: Any, inputs: Sequence[Any]) -> Rules:
    """Rows, columns, batches or parts of K; the op has no activation, which a `Partial` result would not allow."""
    _, shard, partial = _placements()
    rules = [([of_result], [*operands, *placed]) for of_result, operands, placed in _whole(a, (b,), inputs)]
    inner = [shard(a.ndim - 1), shard(b.ndim - 2)]
    return [*rules, ([partial()], [*inner, *(None if each is None else partial() for each in inputs)])]


def _of_saving(
    operands: Sequence[Any], inputs: Sequence[Any], *, results: int, column_axis: int | None = None
) -> Rules:
    """The result, and the values that are saved for backward; weights are (k, n), or have their columns elsewhere."""
    first, *weights = operands
    found = _whole(first, weights, inputs, column_axis)
    return [([of_result] * results, [*placed, *of_inputs]) for of_result, placed, of_inputs in found]


def _whole(
    a: Any, weights: Sequence[Any], inputs: Sequence[Any], column_axis: int | None = None
) -> list[tuple[Any, list[Any], list[Any]]]:
    """The placements with a whole K: of the result, of the operands, and of the epilogue inputs."""
    replicate, shard, _ = _placements()
    rank = a.ndim
    columns = weights[0].ndim - 1 if column_axis is None else column_axis
    of_weights = [replicate()] * len(weights)
    axes: dict[int | None, list[Any]] = {
        None: [replicate(), *of_weights],
        rank - 2: [shard(rank - 2), *of_weights],
        rank - 1: [replicate(), *(shard(columns) for _ in weights)],
    }
    if rank > 2:
        axes |= {axis: [shard(axis)] * (1 + len(weights)) for axis in range(rank - 2)}
    found = []
    for axis, operands in axes.items():
        of_result = replicate() if axis is None else shard(axis)
        found.append((of_result, operands, [_of_input(each, axis, rank) for each in inputs]))
    return found


def _of_input(given: Any, axis: int | None, rank: int) -> Any:
    """The placement of an epilogue input, which broadcasts against the result."""
    if given is None:
        return None
    replicate, shard, _ = _placements()
    own = None if axis is None else axis - (rank - given.ndim)
    return replicate() if own is None or own < 0 or given.shape[own] == 1 else shard(own)
