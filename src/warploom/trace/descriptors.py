"""Matrix descriptors: where an operand lies in shared memory, as tensor cores read it."""

from __future__ import annotations

from warploom.facts.descriptors import encode_shared_descriptor
from warploom.facts.machines import machine
from warploom.trace.builder import current
from warploom.trace.instructions import At
from warploom.trace.values import Value

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
