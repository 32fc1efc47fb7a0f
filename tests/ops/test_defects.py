"""Defects of another system, by the numbers of tests/structured/test_defects.py, through the operations: what a caller sees.

Numbers 13 to 17 are of parts that authors use, 10, 12, 20, 21, 24 and 27 of the text of every kernel, and 33 of tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.references import BF16, E4M3, E8M0, exact, integers, poisoned, rounded

import warploom as wl
from warploom.diagnostics import WarploomError
from warploom.structured.config import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, MatmulConfig

RNG = np.random.default_rng()
ELSEWHERE = {10, 12, 13, 14, 15, 16, 17, 20, 21, 24, 27, 33}


def run(
    operation: Any,
    arrays: tuple[Any, ...],
    wanted: Any,
    *,
    dtype: Any = np.float32,
    schedule: str = "random",
    **options: Any,
) -> None:
    out = poisoned(wanted.shape, dtype)
    wl.launch(operation.bind(*arrays, out=out, **options), schedule=schedule, seed=int(RNG.integers(1 << 30)))
    np.testing.assert_array_equal(exact(out), rounded(wanted, dtype))


def dense(
    m: int, n: int, k: int, *, batch: tuple[int, ...] = (), then: Callable[[Any], Any] = lambda x: x, **options: Any
) -> None:
    a, b = integers(*batch, m, k), integers(*batch, k, n)
    run(wl.matmul, (a, b), then(exact(a) @ exact(b)), **options)


def small(rows: int = 64, columns: int = 16, group: int = 1, **fields: Any) -> MatmulConfig:
    return MatmulConfig(cta_group=group, mma_shape=(rows, columns, 16), **{"c_type": "f32", **fields})


def powers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.exp2(RNG.integers(-1, 2, shape)).astype(dtype)


def blockwise(m: int, n: int, k: int, config: Any, **options: Any) -> None:
    a, b = integers(m, k, dtype=E4M3, largest=2), integers(n, k, dtype=E4M3, largest=2)
    scales = powers(m, -(-k // 128)), powers(-(-n // 128), -(-k // 128))
    left = exact(a) * np.repeat(scales[0], 128, 1)[:, :k]
    right = exact(b) * np.repeat(np.repeat(scales[1], 128, 0)[:n], 128, 1)[:, :k]
    run(wl.blockwise_matmul, (a, b, *scales), left @ right.T, config=config, **options)


def block_scaled(m: int, n: int, k: int, config: Any, then: Callable[[Any], Any] = lambda x: x, **options: Any) -> None:
    a, b = integers(m, k, dtype=E4M3, largest=2), integers(n, k, dtype=E4M3, largest=2)
    scales = powers(m, k // 32, dtype=E8M0), powers(n, k // 32, dtype=E8M0)
    left, right = (exact(x) * np.repeat(exact(s), 32, 1) for x, s in zip((a, b), scales, strict=True))
    run(wl.block_scaled_matmul, (a, b, *scales), then(left @ right.T), config=config, **options)


def refused(words: str, operation: Any, *arrays: Any, **options: Any) -> None:
    with pytest.raises(WarploomError) as error:
        operation.bind(*arrays, **options)
    assert words in str(error.value)


def of_01() -> None:
    """Empty splits."""
    for tiles in (5, 9):
        dense(17, 24, 64 * tiles, config=small(num_split_k=4))
    refused("has 2 groups of K tiles", wl.matmul, integers(8, 128), integers(128, 8), config=small(num_split_k=4))


def of_02() -> None:
    """Layouts of the accumulators that are reduced."""
    for group, rows in ((1, 64), (2, 128)):
        dense(rows, 32, 128, config=small(rows, 32, group, num_split_k=2))


def of_03() -> None:
    """The workspace of a swapped grid."""
    dense(20, 200, 128, config=small(cluster_shape=(2, 2, 1), AB_swapped=True, num_split_k=2))


def of_04() -> None:
    """Coordinates of an epilogue through shared memory."""
    where = np.arange(45)[:, None] * 100.0 + np.arange(40)
    config = small(128, 32, register_based_epilogue=False)
    dense(
        45,
        40,
        16,
        config=config,
        epilogue=lambda acc, at: acc + (at.row * 100 + at.column).to("f32"),
        then=lambda x: x + where,
    )


def of_05() -> None:
    """A tile that spans three blocks of scales."""
    blockwise(9, 300, 128, BlockwiseFP8MatmulConfig(cta_group=1, mma_shape=(64, 152, 32)), dtype=BF16)


def of_06() -> None:
    """Groups of K tiles with scales."""
    block_scaled(20, 24, 416, BlockScaledMatmulConfig(cta_group=1, mma_shape=(128, 32, 32), k_group_size=2))
    a, s = integers(8, 128, dtype=E4M3), powers(8, 1)
    refused("k_group_size=2", wl.blockwise_matmul, a, a, s, s[:1], config=BlockwiseFP8MatmulConfig(k_group_size=2))


def of_07() -> None:
    """The last elements of a bias."""
    bias = integers(12, dtype=np.float32)
    config = small(64, 32, use_tma_epilogue_load=True, epilogue_is_1d=True, use_tma_store=False)
    dense(5, 12, 16, config=config, bias=bias, then=lambda x: x + bias)


def of_08() -> None:
    """A convolution with a residual times zero keeps the author's function, and does not read the residual."""
    x, w = integers(1, 4, 5, 16), integers(8, 1, 1, 16)
    wanted = 2 * (exact(x) @ exact(w[:, 0, 0]).T) + np.arange(8)
    options = {"residual": poisoned(wanted.shape, np.float32), "beta": 0.0, "target": "sm_100a"}
    run(wl.conv2d, (x, w), wanted, epilogue=lambda acc, at: acc * 2.0 + at.column.to("f32"), **options)


def of_09() -> None:
    """The epilogue of a block-scaled matmul."""
    config = BlockScaledMatmulConfig(cta_group=1, mma_shape=(128, 32, 32), register_based_epilogue=False)
    block_scaled(20, 24, 64, config, then=lambda x: 2 * x, epilogue=lambda acc, at: acc * 2.0)


def of_11() -> None:
    """Main loads that run ahead of the loads for the epilogue by many short tiles."""
    residual = integers(64, 112, dtype=np.float32)
    dense(64, 112, 64, config=small(use_tma_epilogue_load=True), residual=residual, then=lambda x: x + residual)


def of_18() -> None:
    """The batch in functions."""

    def then(x: Any) -> Any:
        return x + 16 * np.arange(3)[:, None, None]

    dense(20, 24, 64, batch=(3,), config=small(), epilogue=lambda acc, at: acc + at.batch.to("f32") * 16.0, then=then)


def of_19() -> None:
    """The order of function and residual."""
    residual = integers(70, 24, dtype=np.float32)
    for register in (True, False):
        config = small(register_based_epilogue=register)
        dense(
            70,
            24,
            64,
            config=config,
            residual=residual,
            epilogue=lambda acc, at: acc * 3.0,
            then=lambda x: 3 * x + residual,
        )


def of_22() -> None:
    """A residual of a folded accumulator."""
    residual = integers(70, 56, dtype=np.float32)
    for swapped in (False, True):
        config = small(128, 32, 2, AB_swapped=swapped, use_tma_epilogue_load=True)
        dense(70, 56, 64, config=config, residual=residual, then=lambda x: x + residual)


def of_23() -> None:
    """Clipped tiles of every type, in rows that TMA cannot store."""
    for dtype, code in ((BF16, "bf16"), (np.float32, "f32"), (E4M3, "e4m3")):
        a, b = integers(70, 16, largest=1), integers(16, 41, largest=1)
        run(wl.matmul, (a, b), exact(a) @ exact(b), dtype=dtype, config=small(64, 32, c_type=code, use_tma_store=False))


def of_25() -> None:
    """No swizzle."""
    for swapped in (False, True):
        dense(33, 40, 64, dtype=BF16, config=small(c_type="bf16", c_swizzle="none", AB_swapped=swapped))


def of_26() -> None:
    """A function that stores, swapped, with N % 16 == 8."""
    a, b, stored = integers(19, 64), integers(64, 72), poisoned((19, 72), np.float32)

    def store(value: Any, at: Any, out: Any) -> None:
        out[at.row, at.column] = value

    wl.matmul(a, b, store=store, out=stored, config=small(128, 16, AB_swapped=True))
    np.testing.assert_array_equal(stored, exact(a) @ exact(b))


def of_28() -> None:
    """All problems in one error."""
    wrong = {"num_accum_pipeline_stages": 3, "prefetch_tiles_n": 7, "num_pipeline_stages": 5, "k_group_size": 2}
    a, b = integers(64, 192), integers(192, 64)
    for words in ("overlap", "prefetch_tiles_n=7", "multiple of k_group_size", "has 2 groups of K tiles"):
        refused(words, wl.matmul, a, b, config=MatmulConfig(**wrong, num_split_k=3))


def of_29() -> None:
    """Arrivals that free an input stage of a cluster."""
    config = BlockwiseFP8MatmulConfig(
        cta_group=1, mma_shape=(64, 32, 32), cluster_shape=(2, 2, 1), num_pipeline_stages=2
    )
    blockwise(130, 40, 272, config, dtype=BF16)


def of_30() -> None:
    """Scales of narrow and odd widths."""
    for columns in (64, 96, 160, 192):
        config = BlockScaledMatmulConfig(cta_group=1, mma_shape=(128, columns, 32))
        block_scaled(20, columns + 8, 64, config, dtype=BF16)


def of_31() -> None:
    """No stages of work requests."""
    for group, rows in ((1, 64), (2, 256)):
        dense(rows + 3, 40, 104, config=small(rows, 32, group, num_clc_pipeline_stages=0))


def of_32() -> None:
    """Multicast masks of CTAs that are not the first."""
    config = BlockwiseFP8MatmulConfig(cta_group=1, mma_shape=(64, 32, 32), cluster_shape=(2, 2, 1))
    blockwise(130, 72, 208, config, dtype=BF16, schedule="reverse")


CALLS = {int(name[3:]): call for name, call in list(globals().items()) if name.startswith("of_")}


@pytest.mark.parametrize("number", CALLS)
def test_it_is_absent(number):
    CALLS[number]()


def test_every_number_is_here_or_elsewhere():
    assert sorted([*CALLS, *ELSEWHERE]) == list(range(1, 34))
