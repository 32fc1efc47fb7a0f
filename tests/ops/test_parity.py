"""Every operation with every epilogue option on each target: all accept the same options and are bit-exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.ops.references import ACTIVATIONS, BF16, E4M3, E5M2, RNG, close, exact, integers, poisoned, rounded
from tests.ops.test_grouped import by_groups

from warploom import ops

TARGETS = ["sm_100a", "sm_90a"]
M, N = 67, 41
"""Prime numbers: more rows than a tile of 64, and rows that TMA cannot store."""
STORABLE = 48
F32 = np.float32


@dataclass
class Product:
    """A call without an epilogue, and its expected accumulators."""

    operation: Callable[..., Any]
    arguments: tuple[Any, ...]
    sums: Any
    others: tuple[Any, ...] = ()
    """The second accumulators of a gated GEMM."""
    more: dict[str, Any] = field(default_factory=dict)

    def call(self, target: str, **options: Any) -> Any:
        return self.operation(*self.arguments, **self.more, **options, target=target)

    def paired(self, *inputs: Any) -> Any:
        """The input of the activation: the accumulators plus epilogue inputs, or the gated value of both."""
        first = self.sums + sum(inputs)
        return np.maximum(first, 0) * self.others[0] if self.others else first


def dense(k: int, n: int = N) -> Product:
    x, w = integers(M, k), integers(n, k)
    return Product(ops.linear, (x, w), exact(x) @ exact(w).T)


def batched(k: int, n: int = N) -> Product:
    a, b = integers(2, M, k), integers(2, k, n)
    return Product(ops.matmul, (a, b), exact(a) @ exact(b))


def gated(k: int, n: int = N) -> Product:
    x, gate, up = (integers(rows, k, largest=1) for rows in (M, n, n))
    sums, others = (exact(x) @ exact(each).T for each in (gate, up))
    return Product(ops.gated_linear, (x, gate, up), sums, (others,), {"pair": "reglu"})


def grouped(k: int, n: int = N) -> Product:
    a, b, ends = integers(M, k), integers(3, k, n), np.array([5, 5, M], np.int32)
    return Product(ops.grouped_matmul, (a, b, ends), by_groups(a, b, ends))


def blockwise(k: int, n: int = N) -> Product:
    a, b = integers(M, k, dtype=E4M3), integers(n, k, dtype=E5M2)
    scales = [RNG.integers(1, 3, (rows, -(-k // 128))).astype(F32) for rows in (M, -(-n // 128))]
    rows = np.repeat(exact(scales[0]), 128, 1)[:, :k] * exact(a)
    columns = np.repeat(np.repeat(exact(scales[1]), 128, 0), 128, 1)[:n, :k] * exact(b)
    return Product(ops.blockwise_matmul, (a, b, *scales), rows @ columns.T)


PRODUCTS = {each.__name__: each for each in (dense, batched, gated, grouped, blockwise)}


def agree(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(exact(got), rounded(wanted, got.dtype))


def bias_of(product: Product, value: Any) -> dict[str, Any]:
    return {"gate_bias" if product.others else "bias": value}


def with_bias(product: Product) -> tuple[dict[str, Any], Any]:
    row = integers(product.sums.shape[-1])
    return bias_of(product, row), product.paired(exact(row))


def with_column(product: Product) -> tuple[dict[str, Any], Any]:
    column = integers(M, 1, dtype=F32)
    return bias_of(product, column), product.paired(exact(column))


def with_factors(product: Product) -> tuple[dict[str, Any], Any]:
    tile = integers(*product.sums.shape)
    if product.others:
        return {"residual": tile, "beta": -2.0}, product.paired() - 2 * exact(tile)
    return {"alpha": 0.5, "residual": tile, "beta": -2.0}, 0.5 * product.sums - 2 * exact(tile)


def with_residual_in_place(product: Product) -> tuple[dict[str, Any], Any]:
    tile = integers(*product.sums.shape)
    return {"residual": tile, "out": tile}, product.paired() + exact(tile)


def with_epilogue(product: Product) -> tuple[dict[str, Any], Any]:
    *_, rows, columns = product.sums.shape
    row, column, tile = integers(columns), integers(rows, 1, dtype=F32), integers(*product.sums.shape)
    operands = {"row": row, "column": column, "tile": tile, "scalar": 3}
    options = {
        "operands": operands,
        "epilogue": lambda acc, at, row, column, tile, scalar: acc * scalar + row - column * tile,
    }
    return options, product.paired() * 3 + exact(row) - exact(column) * exact(tile)


def with_everything(product: Product) -> tuple[dict[str, Any], Any]:
    row, tile, factor = integers(product.sums.shape[-1]), integers(*product.sums.shape), integers(M, 1, dtype=F32)
    options = {
        **bias_of(product, row),
        "operands": {"factor": factor},
        "epilogue": lambda acc, at, factor: acc + factor,
        "residual": tile,
        **({} if product.others else {"activation": "relu"}),
    }
    before = product.paired(exact(row))
    return options, (before if product.others else np.maximum(before, 0)) + exact(factor) + exact(tile)


FOLLOWING = {
    name.removeprefix("with_"): each
    for name, each in globals().copy().items()
    if name.startswith("with_") and callable(each)
}


LOADED = ("factors", "residual_in_place", "everything")
"""Epilogue inputs that TMA loads if their strides allow it."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("following", FOLLOWING)
@pytest.mark.parametrize("name", PRODUCTS)
def test_epilogue_inputs(name, following, target):
    product = PRODUCTS[name](65, STORABLE if following in LOADED else N)
    options, wanted = FOLLOWING[following](product)
    agree(product.call(target, **options), wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["grouped", "blockwise"])
def test_activations(name, target):
    product = PRODUCTS[name](33)
    got = product.call(target, activation="gelu_tanh", alpha=1 / 16, out_dtype=F32)
    assert close(got, ACTIVATIONS["gelu_tanh"](product.sums / 16), 33)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_auxiliary_outputs(name, target):
    product = PRODUCTS[name](33, STORABLE)
    kept = {"gate": product.sums} if product.others else {"pre_activation": product.sums}
    outputs = {each: poisoned(product.sums.shape, F32) for each in (*kept, "less")}
    got = product.call(target, outputs=outputs, epilogue=lambda acc, at: {"out": acc, "less": acc - 1.0})
    agree(got, product.paired())
    for each, wanted in {**kept, "less": product.paired() - 1}.items():
        agree(outputs[each], wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", sorted(PRODUCTS.keys() - {"gated", "batched"}))
def test_a_function_that_stores(name, target):
    product = PRODUCTS[name](33)
    out = poisoned((N, M), F32)
    product.call(target, store=lambda value, at, out: out.__setitem__((at.column, at.row), value), out=out)
    agree(out.T, product.sums)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float16, F32, E4M3, E5M2], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", ["gated", "grouped", "blockwise"])
def test_result_types(name, dtype, target):
    product = PRODUCTS[name](2, STORABLE)
    agree(product.call(target, out_dtype=dtype, alpha=0.25), product.paired() * (0.0625 if product.others else 0.25))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_k_extents_and_layouts(name, target):
    """K of one element, a tile plus one, and two tiles; operands and results in every layout."""
    for k in (1, 65, 128):
        product = PRODUCTS[name](k)
        product.arguments = tuple(turned(each) if RNG.random() < 0.5 else each for each in product.arguments)
        out = poisoned(product.sums.shape, BF16)
        out = turned(out) if RNG.random() < 0.5 else out
        assert product.call(target, out=out) is out
        agree(out, product.paired())


def turned(array: Any) -> Any:
    """The same array with its last two axes exchanged in memory."""
    return array if array.ndim < 2 else np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


@pytest.mark.parametrize("target", TARGETS)
def test_more_batches_than_the_grid_limit(target):
    many = np.broadcast_to(integers(8, 16), (70_000, 8, 16))
    bound = ops.matmul.bind(many, many.mT, target=target)
    assert bound.grid[1:] == (1, 1)
