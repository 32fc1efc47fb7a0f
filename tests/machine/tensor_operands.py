"""Operands of the Blackwell tests: small integers of every type, and the layout of their bytes in shared memory.

The layouts are implemented here a second time, granule by granule, from the manual.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_32B_atom": 128}
DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "s8": np.int8,
    "u8": np.uint8,
}
VALUES = {"e2m1": [-4, -3, -2, -1, 0, 1, 2, 3, 6], "u8": [0, 1, 2, 3, 5], "e2m3": [-7, -2, -1, 0, 1, 3, 5]}
"""Integers that a type represents exactly; the others represent -4 to 4."""


def numbers(rng: np.random.Generator, shape: tuple[int, ...], element: str) -> np.ndarray:
    """Small integers that an element type represents exactly."""
    return rng.choice(VALUES.get(element, list(range(-4, 5))), shape).astype(np.float32)


def pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of so many bits as bytes along the last axis, low bits first."""
    spread = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(*codes.shape[:-1], -1)
    return np.packbits(spread, axis=-1, bitorder="little")


def row_bytes(values: np.ndarray, element: str, *, packed: bool = False) -> np.ndarray:
    """The bytes of each row of a matrix [mn, k]: sixteen sub-byte elements and padding, or two to a byte."""
    raw = values.astype(DTYPES[element]).view(np.uint8).reshape(len(values), -1)
    bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(element)
    if bits is None:
        return raw
    if packed:
        return pack_bits(raw, bits)
    dense = pack_bits(raw.reshape(len(raw), -1, 16), bits)
    return np.pad(dense, ((0, 0), (0, 0), (0, 16 - dense.shape[-1]))).reshape(len(raw), -1)


def swizzled(address: int, swizzle: str) -> int:
    match swizzle:
        case "none":
            return address
        case "128B_32B_atom":
            return address ^ (address >> 7 & 3) << 5
    return address ^ (address >> 7 & SPANS[swizzle] // 16 - 1) << 4


@dataclass(frozen=True)
class Tile:
    """An operand in shared memory: its bytes, and its descriptor fields; `step` is the offset of one MMA along K."""

    image: np.ndarray
    leading: int
    stride: int
    swizzle: str
    step: int


def k_major(rows: np.ndarray, swizzle: str, step: int) -> Tile:
    """Rows of bytes along k, as many as the swizzle spans (any number without one)."""
    count, length = rows.shape
    span = SPANS[swizzle]
    stride = 8 * span if swizzle != "none" else 8 * length
    leading = 16 if swizzle != "none" else 128
    image = np.zeros(count * length, np.uint8)
    for row in range(count):
        for at in range(0, length, 16):
            if swizzle == "none":
                where = row % 8 * 16 + row // 8 * stride + at // 16 * leading
            else:
                assert length == span
                where = row % 8 * span + row // 8 * stride + at
            where = swizzled(where, swizzle)
            image[where : where + 16] = rows[row, at : at + 16]
    advance = step // 16 * leading if swizzle == "none" else step
    return Tile(image, leading, stride, swizzle, advance)


def mn_major(values: np.ndarray, element: str, swizzle: str, k: int) -> Tile:
    """A matrix [mn, all k] whose elements of one k follow each other; `k` is the K extent of one MMA."""
    lines = values.T.astype(DTYPES[element])
    size = lines.itemsize
    raw = np.ascontiguousarray(lines).view(np.uint8).reshape(len(lines), -1)
    depth, length = raw.shape
    span, group = SPANS[swizzle], 4 if swizzle == "128B_32B_atom" else 8
    chunk = span * group
    if swizzle == "none":
        leading, stride = chunk, chunk * (depth // group)
    else:
        stride, leading = chunk, chunk * (depth // group)
    image = np.zeros(raw.size, np.uint8)
    for line in range(depth):
        for at in range(0, length, 16):
            across = at // span * (stride if swizzle == "none" else leading)
            down = line // group * (leading if swizzle == "none" else stride)
            where = swizzled(at % span + across + line % group * span + down, swizzle)
            image[where : where + 16] = raw[line, at : at + 16]
    assert size * values.shape[0] % 16 == 0
    return Tile(image, leading, stride, swizzle, k // group * chunk)
