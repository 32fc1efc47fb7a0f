"""Descriptors: where an operand lies in shared memory, and what a multiplication is, as tensor cores read them."""

from __future__ import annotations

from warploom.hardware.instruction_descriptors import encode_instruction_descriptor
from warploom.hardware.matrix_descriptors import encode_shared_descriptor
from warploom.hardware.targets import machine
from warploom.trace.builder import current
from warploom.trace.isa.emit import At
from warploom.trace.language.values import Value, literal

_ADDRESS_MASK = 0x3FFFF
_UNIT_SHIFT = 4


def matrix_descriptor(place: At, *, leading: int, stride: int, swizzle: str = "128B") -> Value:
    """The descriptor of a matrix that begins at a place; `leading` and `stride` in bytes.

    Adding `bytes // 16` to it moves its start: what a step along K inside one swizzle span does.
    """
    family = machine(current("matrix_descriptor()").target).family
    layout = encode_shared_descriptor(family, 0, leading, stride, swizzle)
    start = (place.address & _ADDRESS_MASK) >> _UNIT_SHIFT
    return start.to("u64") | layout


def instruction_descriptor(
    kind: str,
    m: int,
    n: int,
    a_type: str,
    b_type: str,
    d_type: str,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Value:
    """The shape and types of a Blackwell multiplication, as the instruction takes them."""
    bits = encode_instruction_descriptor(
        kind, m, n, a_type, b_type, d_type, transpose_a=transpose_a, transpose_b=transpose_b
    )
    return literal(bits, "u32")
