"""Tensor-core elements: packed bytes become float32 (or stay 8-bit integers).

A decoder takes an array whose last axis is memory in address order (16-byte granules or 32-bit words) and returns the
elements along that axis. Types narrower than a byte have three packings: `e2m1_packed`, two to a byte (kinds mxf4 and
mxf4nvf4); plain `e2m1`, `e2m3`, `e3m2` in shared memory, sixteen packed elements and then padding in every 16 bytes
(TMA's ALIGN16B types); and `…_byte`, one to a byte in TMEM and registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics.products import has_nan

Decode = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Element:
    """One element type in one packing: bits from one element to the next in memory, and how to read a row of them."""

    name: str
    bits: int
    decode: Decode


def _bf16(raw: NDArray[Any]) -> NDArray[Any]:
    words = raw.view(np.uint16).astype(np.uint32)
    words <<= 16
    return words.view(np.float32)


@cache
def _half_table() -> NDArray[np.float32]:
    """Every f16 as f32: NumPy's own conversion takes twice the time of a look-up."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _f16(raw: NDArray[Any]) -> NDArray[Any]:
    return _half_table().take(raw.view(np.uint16), mode="wrap")


def _tf32(raw: NDArray[Any]) -> NDArray[Any]:
    """The tensor core ignores the low 13 bits of an f32 (PTX ISA 9.7.15.5)."""
    return (raw.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@cache
def _table(dtype: type, bits: int, shift: int = 0) -> NDArray[np.float32]:
    """Every byte as the f32 value of the element in `bits` bits of it, `shift` bits up."""
    codes = np.arange(256, dtype=np.uint8) >> shift & (1 << bits) - 1
    return codes.astype(np.uint8).view(dtype).astype(np.float32)


@cache
def _pair_table(dtype: type) -> NDArray[np.complex64]:
    """Every two bytes as a pair of f32 values: half the look-ups."""
    single = _table(dtype, 8)
    codes = np.arange(1 << 16)
    return np.stack([single[codes & 0xFF], single[codes >> 8]], axis=1).view(np.complex64).reshape(-1)


@cache
def _nibble_table() -> NDArray[np.complex64]:
    """Every byte as the pair of f32 values of its two e2m1 halves, low half first."""
    codes = np.arange(256)
    single = _table(ml_dtypes.float4_e2m1fn, 4)
    return np.stack([single[codes & 15], single[codes >> 4]], axis=1).view(np.complex64).reshape(-1)


def _bytes_of(dtype: type) -> Decode:
    def decode(raw: NDArray[Any]) -> NDArray[Any]:
        return _pair_table(dtype).take(raw.view(np.uint16), mode="wrap").view(np.float32)

    return decode


def _contained(dtype: type, bits: int, shift: int = 0) -> Decode:
    def decode(raw: NDArray[Any]) -> NDArray[Any]:
        return _table(dtype, bits, shift).take(raw.view(np.uint8), mode="wrap")

    return decode


def _halves_of_bytes(dtype: type) -> Decode:
    """Two integers to a byte, the lower one first."""

    def decode(raw: NDArray[Any]) -> NDArray[Any]:
        both: NDArray[Any] = np.repeat(raw.view(dtype), 2, axis=-1)
        both[..., ::2] <<= 4
        both >>= 4
        return both

    return decode


def _single_bits(raw: NDArray[Any]) -> NDArray[Any]:
    return np.unpackbits(raw.view(np.uint8), axis=-1, bitorder="little")


def _nibbles(raw: NDArray[Any]) -> NDArray[Any]:
    return _nibble_table().take(raw.view(np.uint8), mode="wrap").view(np.float32)


def expand_padded(raw: NDArray[Any], source: str) -> NDArray[np.uint8]:
    """The sixteen elements of each 16 bytes of `b4x16_p64` or `b6x16_p32`, one to a byte in its low bits."""
    rows = raw.view(np.uint8)
    groups = rows.reshape(*rows.shape[:-1], -1, 16)
    if source == "b4x16_p64":
        packed = groups[..., :8]
        expanded = np.stack([packed & 15, packed >> 4], axis=-1)
    else:
        triples = groups[..., :12].reshape(*groups.shape[:-1], 4, 3).astype(np.uint32)
        word = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
        expanded = (word[..., None] >> np.arange(0, 24, 6, dtype=np.uint32) & 63).astype(np.uint8)
    return expanded.reshape(rows.shape)


def pack_six_bits(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes whose low six bits count, four to three bytes: what a store of a 6-bit tensor writes (`b6p2x16`)."""
    fours = values.reshape(-1, 4).astype(np.uint32) & 63
    word = fours[:, 0] | fours[:, 1] << 6 | fours[:, 2] << 12 | fours[:, 3] << 18
    return np.ascontiguousarray(word.view(np.uint8).reshape(-1, 4)[:, :3]).reshape(-1)


def round_to_tf32(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """f32 bits rounded to tf32, to nearest even; every NaN becomes the largest positive one."""
    rounded = (words + np.uint32(0xFFF) + (words >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(words << np.uint32(1) > np.uint32(0xFF000000), np.uint32(0x7FFFE000), rounded)


def _padded(dtype: type, bits: int, source: str) -> Decode:
    def decode(raw: NDArray[Any]) -> NDArray[Any]:
        return _table(dtype, bits).take(expand_padded(raw, source), mode="wrap")

    return decode


_E2M1, _E2M3, _E3M2 = ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn

ELEMENTS: dict[str, Element] = {
    element.name: element
    for element in (
        Element("bf16", 16, _bf16),
        Element("f16", 16, _f16),
        Element("tf32", 32, _tf32),
        Element("e4m3", 8, _bytes_of(ml_dtypes.float8_e4m3fn)),
        Element("e5m2", 8, _bytes_of(ml_dtypes.float8_e5m2)),
        Element("s8", 8, lambda raw: raw.view(np.int8)),
        Element("u8", 8, lambda raw: raw.view(np.uint8)),
        Element("s4", 4, _halves_of_bytes(np.int8)),
        Element("u4", 4, _halves_of_bytes(np.uint8)),
        Element("b1", 1, _single_bits),
        Element("e2m1_packed", 4, _nibbles),
        Element("e2m1", 8, _padded(_E2M1, 4, "b4x16_p64")),
        Element("e2m3", 8, _padded(_E2M3, 6, "b6x16_p32")),
        Element("e3m2", 8, _padded(_E3M2, 6, "b6x16_p32")),
        # PTX ISA 9.7.14.5.14 puts e2m1 in the central four bits of its byte, the 6-bit types in the low six.
        Element("e2m1_byte", 8, _contained(_E2M1, 4, 2)),
        Element("e2m3_byte", 8, _contained(_E2M3, 6)),
        Element("e3m2_byte", 8, _contained(_E3M2, 6)),
    )
}
"""Every element by name."""


def contained(name: str) -> Element:
    """The element as TMEM and registers hold it: sub-byte types of a byte kind sit in a byte each."""
    return ELEMENTS.get(f"{name}_byte", ELEMENTS[name])


@cache
def _scale_table(scale_type: str) -> NDArray[np.float64]:
    codes = np.arange(256, dtype=np.uint8)
    if scale_type == "ue8m0":
        return np.asarray(codes.view(ml_dtypes.float8_e8m0fnu), np.float64)
    return np.asarray((codes & 0x7F).view(ml_dtypes.float8_e4m3fn), np.float64)


def decode_scales(codes: NDArray[np.uint8], scale_type: str) -> NDArray[np.float64]:
    """Scale factors of type `ue8m0` or `ue4m3` (whose top bit is ignored)."""
    return _scale_table(scale_type).take(codes)


_NANS = {row.values: row for row in (ELEMENT_TYPES["f32"], ELEMENT_TYPES["f16"])}


def settle(values: NDArray[Any]) -> None:
    """Make every NaN of a float32 or float16 array the one that a tensor core writes, in place."""
    if values.dtype == np.float32 and not has_nan(values):
        return
    row = _NANS[values.dtype]
    bits = values.view(row.storage)
    magnitude = bits & bits.dtype.type(~row.sign & (1 << row.bits) - 1)
    if magnitude.max() > (row.infinity or 0):
        bits[magnitude > (row.infinity or 0)] = row.nan
