"""Matrix products of the tensor cores: the same bits on every host, whatever its BLAS, its threads and the shape.

Definition. One instruction multiplies rows of A by rows of B, k elements each. Every product of two elements is exact
in float64. The k products are added in float64 from +0 on, in ascending order of k, and the sum is rounded to float32:
once for each instruction, before it is added to the accumulator. An element of the result depends on its row of A and
its row of B alone.

Most sums need no order at all. Where all elements of A are integers up to p times one power of two, and those of B
integers up to q times another, every partial sum of k products is an integer up to k * p * q: if that is at most 2^53,
no addition rounds in float64, and any order gives these bits. Such sums are left to BLAS; `_size` measures p and q. The
others (wide ranges of exponents, infinities, NaNs) are added by element-wise operations, which IEEE 754 defines and
NumPy does not contract.

This module and `transcendental` are the only ones of the emulator that may call BLAS, or a function that IEEE 754 does
not define to the bit; tests/machine/numerics/test_host_independence.py checks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan, isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_LARGEST_CALL = 1 << 18
"""Multiply-adds of one call of BLAS: OpenBLAS starts its threads above that many, and they cost more than they save."""
_EXACT, _EXACT_F32 = 1 << 53, 1 << 24
"""Integers up to here are exact in float64 and in float32."""
_UNBOUNDED = 1 << 1000
"""The size of elements among which is an infinity or a NaN: above every limit."""

SIZES = {"b1": 1, "s4": 8, "u4": 15, "s8": 128, "u8": 255, "e2m1": 12, "e2m3": 60, "e3m2": 448, "e4m3": 448 << 9}
"""The size of all values of an element type, where that is so small that nothing need be measured.

e4m3 has NaNs and no infinities: a sum with a NaN is a NaN in any order.
"""
_FRACTION_BITS = {"bf16": 7, "f16": 10, "tf32": 10, "e5m2": 2}
"""Bits of the fraction of the other types."""


class _Format(NamedTuple):
    """The layout of a binary format in its word."""

    word: type[np.unsignedinteger[Any]]
    signed: type[np.signedinteger[Any]]
    fraction: int
    """Bits of the fraction."""
    magnitude: int
    infinity: int


_FORMATS = {
    np.dtype(np.float32): _Format(np.uint32, np.int32, 23, 0x7FFF_FFFF, 0x7F80_0000),
    np.dtype(np.float64): _Format(np.uint64, np.int64, 52, 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
}


def _size(values: Array, fraction_bits: int | None = None) -> int:
    """A number such that all elements are integers up to it, times one power of two.

    From the largest element, the smallest exponent but zero's, and the lowest bit that a fraction may have: the
    elements' type has so many, or else the lowest that any of them has.
    """
    word, signed, fraction, magnitude, infinity = _FORMATS[values.dtype]
    bits = values.view(word) & word(magnitude)
    if fraction_bits is None:
        used = int(np.bitwise_or.reduce(bits, axis=None)) & (1 << fraction) - 1 | 1 << fraction
        unit = used & -used
    else:
        unit = 1 << fraction - fraction_bits
    bits -= word(1)  # a zero becomes the largest word, or -1
    flat = bits.ravel(order="K")
    largest = int(np.maximum.reduce(flat.view(signed))) + 1
    if largest >= infinity:
        return _UNBOUNDED
    smallest = int(np.minimum.reduce(flat)) + 1
    exponents = max(largest >> fraction, 1) - max(smallest >> fraction, 1)
    significand = largest & (1 << fraction) - 1 | 1 << fraction
    return (significand << max(exponents, 0)) // unit


def _sizes(values: Array, axis: tuple[int, ...]) -> Array:
    """The size of the elements along some axes, `_size` of each, as float64."""
    word, _, _, magnitude, _ = _FORMATS[values.dtype]
    bits = values.view(word) & word(magnitude)
    largest, used = np.maximum.reduce(bits, axis=axis), np.bitwise_or.reduce(bits, axis=axis)
    bits -= word(1)
    return _sizes_from(largest, used, np.minimum.reduce(bits, axis=axis), _FORMATS[values.dtype])


def _sizes_from(largest: Array, used: Array, less_one: Array, format_: _Format) -> Array:
    """Sizes from the largest words, all bits that are set, and the smallest words less one."""
    word, _, fraction, _, infinity = format_
    one, implicit = word(1), word(1 << fraction)
    used = used & (implicit - one) | implicit
    smallest = less_one + one
    high, low = (np.maximum(each >> word(fraction), one).astype(np.int32) for each in (largest, smallest))
    significand = (largest & (implicit - one) | implicit) // (used & (~used + one))
    sizes = np.ldexp(significand.astype(np.float64), np.maximum(high - low, 0))
    return np.where(largest >= word(infinity), np.inf, sizes)


class Factor:
    """A matrix [rows, k * steps] of float32 (or float64) whose every k columns one instruction multiplies.

    `element` is the type of its elements; without it, they have at most 26 significant bits and lie in 2^±500.
    """

    __slots__ = ("_element", "_right", "_row_sizes", "_size", "_step_sizes", "_wide", "k", "small", "values")

    def __init__(self, values: Array, k: int, element: str = "") -> None:
        self.values = values
        self.k = k
        self._element = element
        self._size: int | None = SIZES.get(element.partition("_")[0])
        self.small = self._size is not None
        self._wide: Array | None = None
        self._right: Array | None = None
        self._row_sizes: Array | None = None
        self._step_sizes: list[float] | None = None

    @property
    def size(self) -> int:
        """The size of all elements."""
        if self._size is None:
            self._size = _size(self.values, _FRACTION_BITS.get(self._element))
        return self._size

    def wide(self) -> Array:
        """The matrix in float64, row after row."""
        if self._wide is None:
            self._wide = self.values.astype(np.float64, order="C")
        return self._wide

    def right(self) -> Array:
        """The transposed matrix in float64, [k * steps, rows]: BLAS reads a right operand faster that way."""
        if self._right is None:
            self._right = self.values.T.astype(np.float64, order="C")
        return self._right

    def step_sizes(self) -> list[float]:
        """The size of all elements of one instruction, by instruction: closer than that of the whole matrix."""
        if self._step_sizes is None:
            word, _, _, magnitude, _ = _FORMATS[self.values.dtype]
            bits = self.values.view(word) & word(magnitude)
            steps = (-1, self.k)
            # By column first: NumPy reduces whole rows at once.
            largest = np.maximum.reduce(np.maximum.reduce(bits, axis=0).reshape(steps), axis=1)
            used = np.bitwise_or.reduce(np.bitwise_or.reduce(bits, axis=0).reshape(steps), axis=1)
            bits -= word(1)
            least = np.minimum.reduce(np.minimum.reduce(bits, axis=0).reshape(steps), axis=1)
            self._step_sizes = _sizes_from(largest, used, least, _FORMATS[self.values.dtype]).tolist()
        return self._step_sizes

    def row_sizes(self) -> Array:
        """The size of each row's elements in one instruction, [instruction, row]."""
        if self._row_sizes is None:
            rows, columns = self.values.shape
            by_k = self.values.T.reshape(columns // self.k, self.k, rows)
            self._row_sizes = _sizes(np.ascontiguousarray(by_k), (1,))
        return self._row_sizes


def product(a: Factor, b: Factor, a_step: int = 0, b_step: int = 0) -> Array:
    """The float32 product [rows of A, rows of B] that one instruction adds."""
    k = a.k
    at, bt = slice(a_step * k, a_step * k + k), slice(b_step * k, b_step * k + k)
    largest = k * a.size * b.size
    if largest <= _EXACT_F32 and a.small and b.small:
        return _any_order(a.values[:, at], b.values[:, bt])
    left, right = a.wide()[:, at], b.wide()[:, bt]
    total = _any_order(left, right)
    if largest > _EXACT:
        a_sizes, b_sizes = a.row_sizes()[a_step], b.row_sizes()[b_step]
        if not k * a_sizes.max() * b_sizes.max() < _EXACT:
            limit = isqrt(_EXACT // k)
            a_long, b_long = a_sizes > limit, b_sizes > limit
            total[a_long] = _in_order(left[a_long], right)
            rest = ~a_long
            total[np.ix_(rest, b_long)] = _in_order(left[rest], right[b_long])
    return _rounded(total)


def products_of_steps(a: Factor, b: Factor, steps: int) -> Iterator[Array]:
    """The float32 products of the first `steps` instructions, each valid until the next is asked for."""
    k = a.k
    largest = k * a.size * b.size
    if (largest <= _EXACT_F32 and a.small and b.small) or _splits(len(a.values), len(b.values), k):
        for step in range(steps):
            yield product(a, b, step, step)
        return
    left, right = a.wide(), b.right()
    total = np.empty((len(left), right.shape[1]))
    found = np.empty(total.shape, np.float32)
    for step in range(steps):
        # The comparison is false for infinities too.
        if largest > _EXACT and not k * a.step_sizes()[step] * b.step_sizes()[step] < _EXACT:
            yield product(a, b, step, step)
            continue
        at = step * k
        np.matmul(left[:, at : at + k], right[at : at + k], out=total)
        found[...] = total
        found += _ZERO
        yield found


def has_nan(values: Array) -> bool:
    """True if a float array has a NaN: squares never cancel, so that their sum is NaN only if one is, in any order."""
    flat = values if values.ndim == 1 else values.ravel(order="K")
    return isnan(flat.dot(flat))


def products(a: Array, b: Array, a_element: str, b_element: str) -> Array:
    """The float32 products [matrix, rows of A, rows of B] of matrices [matrix, rows, k] of float32."""
    k = a.shape[2]
    known = k * SIZES.get(a_element, _UNBOUNDED) * SIZES.get(b_element, _UNBOUNDED)
    a_bits, b_bits = _FRACTION_BITS.get(a_element), _FRACTION_BITS.get(b_element)
    if known <= _EXACT_F32:
        return _any_order_each(a, b)
    left, right = a.astype(np.float64), b.astype(np.float64)
    total = _any_order_each(left, right)
    if known > _EXACT and not _fit_together(a, b, a_bits, b_bits) and k * _size(a, a_bits) * _size(b, b_bits) > _EXACT:
        long = ~(k * _sizes(a, (1, 2)) * _sizes(b, (1, 2)) < _EXACT)
        total[long] = _in_order(left[long], right[long])
    return _rounded(total)


def _fit_together(a: Array, b: Array, a_bits: int | None, b_bits: int | None) -> bool:
    """True if sums are exact by the size of all elements of both, which is measured faster than that of each."""
    if a_bits is None or a_bits != b_bits:
        return False
    size = _size(np.concatenate((a.ravel(), b.ravel())), a_bits)
    return size * size <= _EXACT // int(a.shape[2])


def _rounded(total: Array) -> Array:
    """Sums as float32; zeros are +0, however BLAS came to them."""
    found = total.astype(np.float32)
    found += _ZERO
    return found


_ZERO = np.zeros((), np.float32)


def _splits(rows: int, columns: int, k: int) -> bool:
    """True if a product takes more than one call of BLAS."""
    return rows * columns * k > _LARGEST_CALL


def _any_order(a: Array, b: Array) -> Array:
    """Rows of A times rows of B where no addition rounds, in calls that are too small for BLAS to start threads."""
    rows, columns, transposed = len(a), len(b), b.T
    together = max(_LARGEST_CALL // (columns * a.shape[1]), 1)
    if rows <= together:
        whole: Array = np.matmul(a, transposed)
        return whole
    total = np.empty((rows, columns), a.dtype)
    for first in range(0, rows, together):
        np.matmul(a[first : first + together], transposed, out=total[first : first + together])
    return total


def _any_order_each(a: Array, b: Array) -> Array:
    """Products of many small matrices where no addition rounds."""
    total: Array = np.matmul(a, b.transpose(0, 2, 1))
    return total


def _in_order(a: Array, b: Array) -> Array:
    """Rows of A times rows of B in float64, their products added in ascending order of k."""
    total = np.zeros((*a.shape[:-1], b.shape[-2]))
    term = np.empty_like(total)
    for k in range(a.shape[-1]):
        np.multiply(a[..., :, k, None], b[..., None, :, k], out=term)
        total += term
    return total
