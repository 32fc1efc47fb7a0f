"""Digests of the emulator's numerics, printed as JSON: `python host_numerics.py` under any BLAS and any CPU features.

Inputs come from integers alone. Their exponents go from -60 to 60 where the type has them, and most products of a sum
cancel, so that the order of summation matters even after rounding to float32.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.machine.instructions.mma import _doubles
from warploom.machine.numerics.products import Factor, product, products
from warploom.machine.semantics import transcendental
from warploom.machine.semantics.functions import array_function
from warploom.machine.semantics.numpy_ops import NumpyOps
from warploom.machine.semantics.vectors import Value
from warploom.machine.tensor.elements import ELEMENTS, settle
from warploom.machine.tensor.operands import multiply_scaled
from warploom.structured.config import HopperBlockwiseConfig, HopperConfig

RNG = np.random.default_rng(20)
FLOATS = {"bf16": 7, "f16": 10, "tf32": 10}
"""Bits of the fraction."""


def digest(*arrays):
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def settled(*arrays):
    """The digest of products with their NaNs as every accumulator stores them."""
    for array in arrays:
        settle(array)
    return digest(*arrays)


def wide_range(rows, k, fraction=52, low=-60, high=60):
    """Numbers with this many significant bits and exponents in a range."""
    exponents = RNG.integers(low, high + 1, (rows, k)).astype(np.int64)
    fractions = RNG.integers(0, 1 << fraction, (rows, k)).astype(np.int64) << (52 - fraction)
    signs = RNG.integers(0, 2, (rows, k)).astype(np.int64) << 63
    return (signs | (exponents + 1023 << 52) | fractions).view(np.float64)


def cancelling(a, b):
    """Two operands whose products of one half of k cancel those of the other half, but for two; k is shuffled."""
    k = a.shape[1]
    order = RNG.permutation(k)
    a, b = (
        np.concatenate([x[:, : k // 2], sign * x[:, : k // 2 - 1], x[:, -1:]], axis=1) for x, sign in ((a, -1), (b, 1))
    )
    return a[:, order].copy(), b[:, order].copy()


def operand(element, rows, k):
    """A matrix of a type as the emulator decodes it; of small types all finite values."""
    if element in FLOATS:
        low, high = (-14, 15) if element == "f16" else (-60, 60)
        return wide_range(rows, k, FLOATS[element], low, high).astype(np.float32)
    codes = RNG.integers(0, 256, (rows, k * ELEMENTS[element].bits // 8)).astype(np.uint8)
    if element == "e5m2":
        codes &= 0xFB  # neither infinities nor NaNs
    return np.ascontiguousarray(ELEMENTS[element].decode(codes)).astype(np.float32)


def product_digests() -> Iterator[tuple[str, str]]:
    pairs = [(one, one) for one in ("bf16", "f16", "tf32", "e4m3", "e5m2", "e2m1_packed", "e3m2_byte", "s8", "u8")]
    for a_type, b_type in [*pairs, ("e4m3", "e5m2"), ("e5m2", "e2m3_byte"), ("s8", "u8")]:
        k = 16 if a_type in FLOATS else 32
        parts = [(operand(a_type, 64, k), operand(b_type, 72, k)) for _ in range(2)]
        if a_type in (*FLOATS, "e5m2"):
            parts = [cancelling(*part) for part in parts]
        a, b = (np.concatenate(both, axis=1) for both in zip(*parts, strict=True))
        left, right = Factor(a, k, a_type), Factor(b, k, b_type)
        found = [product(left, right, step, step) for step in range(2)]
        few = product(Factor(a[5:8].copy(), k, a_type), Factor(b[:1].copy(), k, b_type))
        assert ((few == found[0][5:8, :1]) | np.isnan(few)).all(), "a row depends on the others"
        each = products(a.reshape(4, 16, -1)[:, :, :k], b.reshape(9, 8, -1)[:4, :, :k], a_type, b_type)
        yield f"product {a_type} {b_type}", settled(*found, each)
    near = (RNG.integers(-300, 300, (96, 16)) / 256).astype(np.float32)
    yield "product of near numbers", digest(product(Factor(near, 16, "f16"), Factor(near, 16, "f16")))
    odd = near.copy()
    odd[3, 4], odd[7, 1], odd[7, 2], odd[9, 0] = np.inf, np.inf, -np.inf, np.nan
    yield "product of infinities", settled(product(Factor(odd, 16, "f16"), Factor(near, 16, "f16")))
    for scale_type, low, high, vectors in (("ue8m0", 67, 188, 1), ("ue8m0", 0, 255, 2), ("ue4m3", 0, 0x7F, 4)):
        a, b = operand("e2m1_packed", 40, 64), operand("e2m1_packed", 24, 64)
        a[:, 32:63], b[:, 32:63] = -a[:, :31], b[:, :31]
        scales = (RNG.integers(low, high, (rows, vectors)).astype(np.uint8) for rows in (40, 24))
        yield f"product {scale_type} x{vectors}", digest(multiply_scaled(a, b, *scales, scale_type))
    a, b, c = wide_range(32, 4), wide_range(32, 4), wide_range(32, 8)
    yield "product f64", digest(_doubles(a.reshape(4, 8, 4), b.reshape(4, 8, 4), c.reshape(4, 8, 8), False))


def function_digests() -> Iterator[tuple[str, str]]:
    numbers = wide_range(64, 64).astype(np.float32).view(np.uint32).reshape(-1)
    words = np.concatenate([RNG.integers(0, 1 << 32, 1 << 14).astype(np.uint32), numbers])
    for name in ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt"):
        for ftz in (True, False):
            function = array_function(
                name, {"type": "f32", "rnd": "approx", **({"ftz": "ftz"} if ftz else {})}, ("f32",)
            )
            yield f"{name} f32{' ftz' * ftz}", digest(function(words))
    values = words.view(np.float32).astype(np.float64)
    values = values[np.isfinite(values)]
    for name in ("exp2", "log2", "sin", "cos", "tanh"):
        given = np.abs(values) if name == "log2" else values
        yield f"{name} in float64", digest(getattr(transcendental, name)(Value(NumpyOps(), "f64", given)).ref)
    halves = np.arange(1 << 16, dtype=np.uint16)
    for name in ("ex2", "tanh"):
        for type_name in ("f16", "bf16"):
            yield (
                f"{name} {type_name}",
                digest(array_function(name, {"type": type_name, "rnd": "approx"}, (type_name,))(halves)),
            )


def launch_digests() -> Iterator[tuple[str, str]]:
    a, b = cancelling(*(wide_range(rows, 128, 7, -30, 30) for rows in (70, 40)))
    a, b = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    bias = wide_range(1, 40, 7, -8, 0)[0].astype(ml_dtypes.bfloat16)
    configs = {"sm_90a": HopperConfig(tile=(64, 32), consumers=1), "sm_100a": wl.MatmulConfig()}
    for target, config in configs.items():
        for schedule in ("eager", "random"):
            out = np.full((70, 40), np.nan, np.float32)
            wl.launch(
                wl.linear.bind(a, b, bias=bias, activation="gelu_tanh", out=out, config=config), schedule=schedule
            )
            yield f"linear {target} {schedule}", digest(out)
    e4m3 = ml_dtypes.float8_e4m3fn
    a, b = (RNG.integers(0, 0x7E, (rows, 160)).astype(np.uint8).view(e4m3) for rows in (40, 24))
    of_a, of_b = (wide_range(rows, 2, 23, -4, 4).astype(np.float32) for rows in (40, 1))
    for target in ("sm_90a", "sm_100a"):
        config = {"config": HopperBlockwiseConfig()} if target == "sm_90a" else {"target": target}
        out = np.full((40, 24), np.nan, np.float32)
        wl.blockwise_matmul(a, b, of_a, of_b, out=out, **config)
        yield f"blockwise {target}", digest(out)
    of_a, of_b = (
        RNG.integers(120, 134, (rows, 5)).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu) for rows in (40, 24)
    )
    yield "block-scaled", digest(wl.block_scaled_matmul(a, b, of_a, of_b, out_dtype=np.float32))


@np.errstate(all="ignore")
def main() -> None:
    json.dump(dict([*product_digests(), *function_digests(), *launch_digests()]), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
