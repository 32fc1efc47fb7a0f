"""`warploom ptx matmul 4096x4096x4096`: the PTX of a library call, and its assembly."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warploom.commands.console import output
from warploom.commands.ptx import as_document, assembled, assembly_document, report
from warploom.commands.sizes import sizes_of
from warploom.diagnostics import Diag
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.ops import (
    block_scaled_matmul,
    blockwise_matmul,
    gated_linear,
    grouped_matmul,
    linear,
    matmul,
    ptx_of,
)
from warploom.ops.quantise import MXFP8_BLOCK, NVFP4_BLOCK
from warploom.ops.scaled import BLOCK
from warploom.ptx.syntax.parser import parse

Sizes = tuple[int, int, int]
Arrays = tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """The call whose PTX is shown: sizes and options."""

    sizes: str
    target: str | None = None
    dtype: str | None = None
    out_dtype: str | None = None
    bias: bool = False
    residual: bool = False
    activation: str | None = None


def _array(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    """An array of which only shape and dtype are read."""
    return np.empty(shape, ELEMENT_TYPES[dtype].values)


def _matmul(batch: tuple[int, ...], sizes: Sizes, dtype: str) -> Arrays:
    m, n, k = sizes
    return _array(dtype, *batch, m, k), _array(dtype, *batch, k, n)


def _linear(batch: tuple[int, ...], sizes: Sizes, dtype: str) -> Arrays:
    m, n, k = sizes
    return _array(dtype, *batch, m, k), _array(dtype, n, k)


def _gated(batch: tuple[int, ...], sizes: Sizes, dtype: str) -> Arrays:
    x, w = _linear(batch, sizes, dtype)
    return x, w, np.empty_like(w)


def _grouped(batch: tuple[int, ...], sizes: Sizes, dtype: str) -> Arrays:
    m, n, k = sizes
    groups = batch[0] if batch else 1
    ends = np.arange(1, groups + 1) * m // groups
    return _array(dtype, m, k), _array(dtype, groups, k, n), ends


def _blockwise(batch: tuple[int, ...], sizes: Sizes, dtype: str) -> Arrays:
    m, n, k = sizes
    blocks = -(-k // BLOCK)
    return *_linear((), sizes, dtype), _array("f32", m, blocks), _array("f32", -(-n // BLOCK), blocks)


def _block_scaled(batch: tuple[int, ...], sizes: Sizes, dtype: str) -> Arrays:
    m, n, k = sizes
    scale, run = ("ue4m3", NVFP4_BLOCK) if dtype == "e2m1" else ("ue8m0", MXFP8_BLOCK)
    return *_linear((), sizes, dtype), _array(scale, m, -(-k // run)), _array(scale, n, -(-k // run))


OPERATIONS: Mapping[str, tuple[Any, Callable[[tuple[int, ...], Sizes, str], Arrays], str]] = {
    "matmul": (matmul, _matmul, "bf16"),
    "linear": (linear, _linear, "bf16"),
    "gated_linear": (gated_linear, _gated, "bf16"),
    "grouped_matmul": (grouped_matmul, _grouped, "bf16"),
    "blockwise_matmul": (blockwise_matmul, _blockwise, "e4m3"),
    "block_scaled_matmul": (block_scaled_matmul, _block_scaled, "e4m3"),
}
"""By name: the operation, its arrays for given sizes, and their default dtype."""

_UNBATCHED = ("blockwise_matmul", "block_scaled_matmul")


def show(name: str, call: Call, *, registers: bool, sass: bool, as_json: bool) -> bool:
    """Print the PTX; return False if ptxas reports spills or slow code."""
    text = _text(name, call)
    if not as_json:
        return report(text, registers=registers, sass=sass, console=output())
    document: dict[str, object] = {"ptx": text, **as_document(parse(text), (), only_unsupported=False)}
    assembly, code = assembled(text, registers=registers, sass=sass)
    if assembly is not None:
        document["assembly"] = assembly_document(assembly, code)
    print(json.dumps(document, indent=1))  # noqa: T201
    return assembly is None or not assembly.losses


def _text(name: str, call: Call) -> str:
    if name not in OPERATIONS:
        what = f"`{name}` is not an operation; choose one of {', '.join(OPERATIONS)}"
        raise Diag.BAD_COMMAND.error(what=what, command="warploom ptx")
    operation, arrays_of, usual = OPERATIONS[name]
    batch, (m, n, k) = _sizes(call.sizes)
    if batch and name in _UNBATCHED:
        what = f"`{call.sizes}`: {name} has no batch dimension; write MxNxK"
        raise Diag.BAD_COMMAND.error(what=what, command="warploom ptx")
    dtype = call.dtype or usual
    options: dict[str, Any] = {"target": call.target}
    result = call.out_dtype or ("bf16" if ELEMENT_TYPES[dtype].bits <= 8 else dtype)
    options["out_dtype"] = ELEMENT_TYPES[result].values
    front = () if name == "grouped_matmul" else batch
    is_gated = operation is gated_linear
    if call.activation and is_gated:
        what = "--activation: gated_linear always computes silu(gate) * up"
        raise Diag.BAD_COMMAND.error(what=what, command="warploom ptx")
    if call.activation:
        options["activation"] = call.activation
    if call.bias:
        options |= {name: _array(result, n) for name in (("gate_bias", "up_bias") if is_gated else ("bias",))}
    if call.residual:
        options["residual"] = _array(result, *front, m, n)
    return ptx_of(operation, *arrays_of(batch, (m, n, k), dtype), **options)


def _sizes(text: str) -> tuple[tuple[int, ...], Sizes]:
    """Batches or groups, if any, then M, N and K."""
    sizes = sizes_of(text)
    if not sizes:
        what = f"`{text:.60}` is not a size" if text else "the sizes of the operation are missing"
        raise Diag.BAD_COMMAND.error(what=f"{what}: MxNxK, or BxMxNxK", command="warploom ptx")
    *batch, m, n, k = sizes
    return tuple(batch), (m, n, k)
