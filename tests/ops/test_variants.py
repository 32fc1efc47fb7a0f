"""Every family and variant of the SM100 structured kernels through its operation: exact, in one launch, under every schedule.

A variant draws a configuration and awkward sizes from a seed. Small integers make every result exact. Weights that are
allocated separately are in test_separate_weights.py, results that are quantised in test_grouped_block_scaled.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.references import BF16, E2M1, E4M3, E8M0, exact, poisoned, rounded

import warploom as wl
from warploom.host.program import text_of
from warploom.host.tensor_map import TensorMap
from warploom.structured.config import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, MatmulConfig
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig

SCHEDULES = ("eager", "lazy", "reverse", "random")
WGMMA = r"wgmma\.mma_async\.sync\.aligned"
FORMATS = {
    "MXFP8": (E4M3, E4M3, E8M0, 32, "mxf8f6f4"),
    "MXFP4": (E2M1, E2M1, E8M0, 32, "mxf4"),
    "NVFP4": (E2M1, E2M1, E4M3, 16, "mxf4nvf4"),
    "W4A8": (E4M3, E2M1, E8M0, 32, "mxf8f6f4"),
}
"""Types of A, B and their scales, the elements of a scale, and the kind of the MMA."""
SMALLEST_SCALES = 3 * 512
"""Bytes of the scales of three experts, whose chunks have 128 rows × 4."""
CODES = {E4M3: "e4m3", E2M1: "e2m1"}


def tcgen05(kind: str) -> str:
    return rf"tcgen05\.mma\.cta_group::[12]\.kind::{kind}"


@dataclass
class Case:
    """A call: its operation, arrays and options, the exact result, and what its PTX must contain."""

    operation: Any
    arrays: tuple[Any, ...]
    options: dict[str, Any]
    wanted: Any
    form: str
    out_dtype: Any = np.float32


class Draw:
    """Random configurations, sizes and arrays of one case."""

    def __init__(self, seed: int) -> None:
        self.random, self.rng = random.Random(seed), np.random.default_rng(seed)

    def of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def integers(self, *shape: int, dtype: Any = BF16, largest: int = 2) -> Any:
        return self.rng.integers(-largest, largest + 1, shape).astype(dtype)

    def powers(self, *shape: int, dtype: Any = np.float32) -> Any:
        return np.exp2(self.rng.integers(-1, 2, shape)).astype(dtype)

    def sizes(self, k: tuple[int, ...]) -> tuple[int, int, int]:
        """M, N and K: one, a prime, one past a tile, or between."""
        return self.of(1, 13, 65), self.of(8, 24, 72), self.of(*k)

    def groups(self, rows: int, experts: int) -> dict[str, Any]:
        """The ends of four groups, and their experts: inactive, repeated, in any order."""
        ends = np.sort(self.rng.integers(0, rows + 1, 4)).astype(np.int32)
        return {"ends": ends, "ids": self.rng.integers(-1, experts, 4).astype(np.int32)}


def by_groups(ends: Any, ids: Any, rows: Any, of_expert: Callable[[Any, int], Any], columns: int) -> Any:
    """The rows of each group by its expert; NaN where no group has them."""
    found, start = np.full((len(rows), columns), np.nan), 0
    for end, expert in zip(ends, ids, strict=True):
        if expert >= 0:
            found[start:end] = of_expert(rows[start:end], expert)
        start = end
    return found


def dense_shape(draw: Draw, **fields: Any) -> MatmulConfig:
    group, rows = draw.of((1, 64), (1, 128), (2, 128), (2, 256))
    return MatmulConfig(cta_group=group, mma_shape=(rows, draw.of(32, 64, 96), 16), c_type="f32", **fields)


def scaled(draw: Draw, name: str, *shape: int) -> tuple[Any, Any, Any, Any]:
    """One operand of a block-scaled format: elements and scales, for each of two types, and their products."""
    *types, scale, run, _ = FORMATS[name]
    made = []
    for dtype in types:
        values, scales = draw.integers(*shape, dtype=dtype), draw.powers(*shape[:-1], shape[-1] // run, dtype=scale)
        made.append((values, scales, exact(values) * np.repeat(exact(scales), run, -1)))
    return (*made,)


def scaled_config(draw: Draw, name: str, columns: int, *, group: int = 1, swapped: bool = False, **fields: Any) -> Any:
    a_type, b_type, *_, kind = FORMATS[name]
    types = (b_type, a_type) if swapped else (a_type, b_type)
    return BlockScaledMatmulConfig(
        cta_group=group,
        mma_shape=(128 * group, columns, 64 if kind.startswith("mxf4") else 32),
        a_type=CODES[types[0]],
        b_type=CODES[types[1]],
        scaling_kind=kind,
        c_type="f32",
        AB_swapped=swapped,
        **fields,
    )


def grouped_block_scaled(name: str) -> Callable[[Draw], Case]:
    def made(draw: Draw) -> Case:
        m, n, k = draw.sizes((128, 256))
        a, of_a, left = scaled(draw, name, m, k)[0]
        b, of_b, right = scaled(draw, name, 3, n, k)[1]
        groups, bias, factors = draw.groups(m, 3), draw.integers(3, n), draw.powers(3)
        residual = draw.integers(m, n)
        swapped = draw.of(False, True)
        columns = draw.of(8, 32, 64) if swapped else draw.of(32, 96, 128)
        config = draw.of(None, scaled_config(draw, name, columns, swapped=swapped))
        ends, ids = groups["ends"], groups["ids"]
        wanted = by_groups(ends, ids, left, lambda rows, e: rows @ right[e].T * factors[e] + exact(bias[e]), n)
        options = {"expert_ids": ids, "expert_scales": factors, "bias": bias, "activation": "relu", "config": config}
        options |= {"residual": residual, "target": "sm_100a"}
        wanted = np.maximum(wanted, 0) + exact(residual)
        form = rf"{tcgen05(FORMATS[name][4])}\.block_scale"
        return Case(wl.grouped_block_scaled_matmul, (a, b, of_a, of_b, ends), options, wanted, form)

    return made


def gated_grouped_block_scaled(draw: Draw) -> Case:
    name = draw.of(*FORMATS)
    m, n, k = draw.sizes((128, 256))
    a, of_a, left = scaled(draw, name, m, k)[0]
    (gate, of_gate, first), (up, of_up, second) = (scaled(draw, name, 3, n, k)[1] for _ in range(2))
    groups = draw.groups(m, 3)
    ends, ids = groups["ends"], groups["ids"]
    wanted = by_groups(ends, ids, left, lambda rows, e: (rows @ first[e].T) * (rows @ second[e].T), n)
    group = draw.of(1, 2)
    options = {"expert_ids": ids, "pair": lambda one, two: one * two, "target": "sm_100a"}
    options["config"] = draw.of(None, scaled_config(draw, name, 256, group=group))
    arrays = (a, gate, up, of_a, of_gate, of_up, ends)
    form = rf"{tcgen05(FORMATS[name][4])}\.block_scale"
    return Case(wl.gated_grouped_block_scaled_matmul, arrays, options, wanted, form)


def block_scaled(*, batch: tuple[int, ...] = (), **fields: Any) -> Callable[[Draw], Case]:
    """`fields` are functions of the draw."""

    def made(draw: Draw) -> Case:
        given = {name: choose(draw) for name, choose in fields.items()}
        name = draw.of(*FORMATS)
        m, n, k = draw.sizes((512, 640) if given.get("num_split_k") else (128, 256))
        swapped, columns, group = (
            given.pop(part, usual) for part, usual in (("swapped", False), ("columns", 64), ("group", 1))
        )
        if columns % 32 and 32 % columns:  # only the first tile has its scales in place
            m, n = (min(m, columns), n) if swapped else (m, min(n, columns))
        a, of_a, left = scaled(draw, name, *batch, m, k)[0]
        b, of_b, right = scaled(draw, name, *batch, n, k)[1]
        config = scaled_config(draw, name, columns, group=group, swapped=swapped, **given)
        options: dict[str, Any] = {"config": config}
        wanted = left @ right.swapaxes(-1, -2)
        if given.get("use_tma_epilogue_load"):
            options["residual"] = draw.integers(*batch, m, n, dtype=np.float32)
            wanted = wanted + options["residual"]
        form = rf"{tcgen05(FORMATS[name][4])}\.block_scale"
        return Case(wl.block_scaled_matmul, (a, b, of_a, of_b), options, wanted, form)

    return made


def blocks(values: Any, scales: Any, rows: int) -> Any:
    """Values times their scales, one for some rows × 128."""
    spread = np.repeat(np.repeat(exact(scales), rows, -2), 128, -1)
    return exact(values) * spread[..., : values.shape[-2], : values.shape[-1]]


def blockwise(
    config: Callable[[Draw], Any], *, batch: tuple[int, ...] = (), form: str = tcgen05("f8f6f4")
) -> Callable[[Draw], Case]:
    def made(draw: Draw) -> Case:
        m, n, k = draw.sizes((128, 272))
        a, b = draw.integers(*batch, m, k, dtype=E4M3), draw.integers(*batch, n, k, dtype=E4M3)
        scales = draw.powers(*batch, m, -(-k // 128)), draw.powers(*batch, -(-n // 128), -(-k // 128))
        wanted = blocks(a, scales[0], 1) @ blocks(b, scales[1], 128).swapaxes(-1, -2)
        return Case(wl.blockwise_matmul, (a, b, *scales), {"config": config(draw)}, wanted, form)

    return made


def grouped_blockwise(config: Callable[[Draw], Any], form: str) -> Callable[[Draw], Case]:
    def made(draw: Draw) -> Case:
        m, n, k = draw.sizes((128, 272))
        a, b = draw.integers(m, k, dtype=E4M3), draw.integers(3, n, k, dtype=E4M3)
        scales = draw.powers(m, -(-k // 128)), draw.powers(3, -(-n // 128), -(-k // 128))
        groups, bias, factors = draw.groups(m, 3), draw.integers(3, n), draw.powers(3)
        left, right = blocks(a, scales[0], 1), blocks(b, scales[1], 128)
        ends, ids = groups["ends"], groups["ids"]
        wanted = by_groups(ends, ids, left, lambda rows, e: rows @ right[e].T * factors[e] + exact(bias[e]), n)
        options = {"expert_ids": ids, "expert_scales": factors, "bias": bias, "config": config(draw)}
        return Case(wl.grouped_blockwise_matmul, (a, b, *scales, ends), options, wanted, form)

    return made


def grouped(config: Callable[[Draw], Any], form: str) -> Callable[[Draw], Case]:
    def made(draw: Draw) -> Case:
        m, n, k = draw.sizes((40, 136))
        a, b, groups = draw.integers(m, k), draw.integers(3, k, n), draw.groups(m, 3)
        bias, factors = draw.integers(3, n), draw.powers(3)
        ends, ids = groups["ends"], groups["ids"]
        wanted = by_groups(ends, ids, exact(a), lambda rows, e: rows @ exact(b[e]) * factors[e] + exact(bias[e]), n)
        options = {"expert_ids": ids, "expert_scales": factors, "bias": bias, "config": config(draw)}
        return Case(wl.grouped_matmul, (a, b, ends), options, wanted, form)

    return made


def gated(config: Callable[[Draw], Any], form: str) -> Callable[[Draw], Case]:
    def made(draw: Draw) -> Case:
        m, n, k = draw.sizes((264, 328))
        x, gate, up = (draw.integers(rows, k, largest=1) for rows in (m, n, n))
        residual = draw.integers(m, n, dtype=np.float32)
        wanted = (exact(x) @ exact(gate).T) * (exact(x) @ exact(up).T) + residual
        options = {"pair": lambda one, two: one * two, "residual": residual, "config": config(draw)}
        return Case(wl.gated_linear, (x, gate, up), options, wanted, form)

    return made


def split_batches(draw: Draw) -> Case:
    m, n, k = draw.sizes((264, 328))
    a, b = draw.integers(2, m, k), draw.integers(2, k, n)
    residual = draw.integers(2, m, n, dtype=np.float32)
    splits, swapped, loads = draw.of(2, 3), draw.of(False, True), draw.of(False, True)
    config = dense_shape(draw, num_split_k=splits, AB_swapped=swapped, use_tma_epilogue_load=loads)
    wanted = exact(a) @ exact(b) + residual
    return Case(wl.matmul, (a, b), {"residual": residual, "config": config}, wanted, tcgen05("f16"))


def float32(target: str, form: str) -> Callable[[Draw], Case]:
    def made(draw: Draw) -> Case:
        m, n, k = draw.sizes((36, 72))
        a, b = draw.integers(m, k, dtype=np.float32) * 8191, draw.integers(n, k, dtype=np.float32)
        return Case(wl.linear, (a, b), {"precision": "tf32x3", "target": target}, exact(a) @ exact(b).T, form)

    return made


def convolution(config: Callable[[Draw], Any]) -> Callable[[Draw], Case]:
    def made(draw: Draw) -> Case:
        images, channels, filters, extent = 2, draw.of(8, 24, 72), draw.of(8, 40, 72), draw.of(3, 5, 8)
        stride, taps = draw.of(1, 2), draw.of(1, 3)
        x, w = draw.integers(images, extent, extent, channels), draw.integers(filters, taps, taps, channels)
        padded = np.pad(exact(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), (1, 2))[:, ::stride, ::stride]
        sums = np.einsum("nhwcrs,krsc->nhwk", windows, exact(w))
        bias, residual = draw.integers(filters), draw.integers(*sums.shape, dtype=np.float32)
        options = {"stride": stride, "padding": 1, "bias": bias, "activation": "relu", "residual": residual}
        wanted = np.maximum(sums + exact(bias), 0) + residual
        form = r"cp\.async\.bulk\.tensor\.4d\.im2col\.shared::cluster\.global"
        return Case(wl.conv2d, (x, w), {**options, "config": config(draw)}, wanted, form)

    return made


def hopper(**fields: Any) -> Callable[[Draw], Any]:
    def made(draw: Draw) -> HopperConfig:
        swapped = draw.of(False, True)
        shapes = [(128, {"consumers": 1}), (256, {}), (128, {"pingpong": True})]
        rows, more = draw.of(*shapes[: 2 if "num_split_k" in fields else 3])  # ping-pong does not split K
        return HopperConfig(tile=(rows, draw.of(32, 64)), AB_swapped=swapped, **more, **fields)

    return made


def hopper_images(draw: Draw) -> HopperConfig:
    return draw.of(
        HopperConfig(tile=(128, 64), residual_in_place=True),
        HopperConfig(tile=(64, 64), pingpong=True),
        HopperConfig(tile=(64, 48), consumers=1, AB_swapped=True),
    )


VARIANTS: dict[str, Callable[[Draw], Case]] = {
    **{f"grouped block-scaled {name}": grouped_block_scaled(name) for name in FORMATS},
    "grouped block-scaled, gated": gated_grouped_block_scaled,
    "grouped blockwise": grouped_blockwise(
        lambda draw: BlockwiseFP8MatmulConfig(
            cta_group=(group := draw.of(1, 2)), mma_shape=(128 * group, draw.of(64, 96), 32), c_type="f32"
        ),
        tcgen05("f8f6f4"),
    ),
    "grouped blockwise, Hopper": grouped_blockwise(
        lambda draw: HopperBlockwiseConfig(tile=draw.of((128, 64), (128, 40))), WGMMA
    ),
    "grouped": grouped(lambda draw: dense_shape(draw, AB_swapped=draw.of(False, True)), tcgen05("f16")),
    "grouped, Hopper": grouped(lambda draw: HopperConfig(tile=draw.of((128, 64), (128, 128))), WGMMA),
    "batched blockwise": blockwise(lambda draw: None, batch=(3,)),
    "batched blockwise, Hopper": blockwise(lambda draw: HopperBlockwiseConfig(tile=(128, 64)), batch=(3,), form=WGMMA),
    "batched block-scaled": block_scaled(batch=(3,), group=lambda draw: draw.of(1, 2)),
    "block-scaled, decode": block_scaled(
        columns=lambda draw: draw.of(8, 16, 24, 32, 40, 48, 96), swapped=lambda draw: draw.of(False, True)
    ),
    "block-scaled, k-groups": block_scaled(k_group_size=lambda draw: 2, group=lambda draw: draw.of(1, 2)),
    "block-scaled, prefetch": block_scaled(
        prefetch_tiles_n=lambda draw: draw.of(1, 2), swapped=lambda draw: draw.of(False, True)
    ),
    "block-scaled, split-K": block_scaled(num_split_k=lambda draw: 2, group=lambda draw: draw.of(1, 2)),
    "block-scaled, residual": block_scaled(
        use_tma_epilogue_load=lambda draw: True, swapped=lambda draw: draw.of(False, True)
    ),
    "blockwise, wide": blockwise(
        lambda draw: BlockwiseFP8MatmulConfig(
            cta_group=(group := draw.of(1, 2)), mma_shape=(128 * group, 256, 32), AB_swapped=draw.of(False, True)
        )
    ),
    "blockwise, swapped": blockwise(
        lambda draw: BlockwiseFP8MatmulConfig(cta_group=1, mma_shape=(64, draw.of(8, 40), 32), AB_swapped=True)
    ),
    "gated, swapped": gated(lambda draw: dense_shape(draw, AB_swapped=True), tcgen05("f16")),
    "gated, 2-SM with M = 128": gated(
        lambda draw: MatmulConfig(cta_group=2, mma_shape=(128, draw.of(64, 96), 16), c_type="f32"), tcgen05("f16")
    ),
    "gated, split-K": gated(
        lambda draw: dense_shape(draw, num_split_k=2, use_tma_epilogue_load=draw.of(False, True)), tcgen05("f16")
    ),
    "gated, stream-K": gated(
        lambda draw: dense_shape(draw, stream_k=True, AB_swapped=draw.of(False, True)), tcgen05("f16")
    ),
    "gated, Hopper, swapped or not": gated(hopper(), WGMMA),
    "gated, Hopper, split-K": gated(hopper(num_split_k=2), WGMMA),
    "gated, Hopper, stream-K": gated(hopper(stream_k=True), WGMMA),
    "split-K with batches and epilogue loads": split_batches,
    "float32": float32("sm_100a", tcgen05("tf32")),
    "float32, Hopper": float32("sm_90a", rf"{WGMMA}\S*tf32"),
    "conv2d": convolution(lambda draw: dense_shape(draw, use_tma_epilogue_load=draw.of(False, True))),
    "conv2d, Hopper": convolution(hopper_images),
}


def allocated(launched: Any, case: Case) -> Iterator[Any]:
    """Arrays of a launch that are not the caller's: scales in the order of the tensor core, workspaces."""
    callers = [each for each in (*case.arrays, *case.options.values()) if isinstance(each, np.ndarray)]
    for each in launched.args:
        array = each.array if isinstance(each, TensorMap) else each
        if isinstance(array, np.ndarray) and not any(np.may_share_memory(array, one) for one in callers):
            yield array


def drawn(name: str, seed: int) -> tuple[Case, Any, Any]:
    """A case, its launch and its result, not yet computed."""
    case = VARIANTS[name](Draw(seed))
    out = poisoned(case.wanted.shape, case.out_dtype)
    case.options["out"] = out
    return case, case.operation.plan(*case.arrays, **case.options).single_launch(case.operation.__name__), out


def check(case: Case, out: Any, name: str, seed: int) -> None:
    np.testing.assert_array_equal(exact(out), rounded(case.wanted, case.out_dtype), err_msg=f"{name}, seed {seed}")


@pytest.mark.parametrize("name", VARIANTS)
def test_one_launch_is_exact_under_every_schedule(name):
    seed = random.randrange(1 << 32)
    case, launched, out = drawn(name, seed)
    assert re.search(case.form, text_of(launched.program)), f"{name}, seed {seed}"
    largest = max(each.size for each in case.arrays[:2])
    if "split" not in name and "stream" not in name:  # those have a workspace
        sizes = [each.size for each in allocated(launched, case)]
        assert all(size < max(largest, SMALLEST_SCALES + 1) for size in sizes), (name, seed, sizes, largest)
    for schedule in SCHEDULES:
        out[...] = np.nan
        wl.launch(launched, schedule=schedule, seed=seed)
        check(case, out, name, seed)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(list(VARIANTS)), st.integers(0, (1 << 32) - 1), st.sampled_from(SCHEDULES))
def test_any_configuration_of_any_variant(name, seed, schedule):
    case, launched, out = drawn(name, seed)
    wl.launch(launched, schedule=schedule, seed=seed)
    check(case, out, name, seed)
