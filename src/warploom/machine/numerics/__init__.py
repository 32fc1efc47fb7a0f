"""Double precision on NumPy arrays that the vector language of instruction semantics does not have.

Values travel as bits in arrays of uint64, one element per lane. A family's factory takes the modifiers of an
instruction once, in the spelling of the instruction table, and returns the function of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from warploom.machine.numerics import doubles
from warploom.machine.numerics.bits import ArrayFunction, Factory, Signature, unknown

ARRAY_OPS: Mapping[str, Factory] = MappingProxyType(
    {
        **{name: doubles.arithmetic(name) for name in ("add", "sub", "mul", "fma")},
        "mad": doubles.arithmetic("fma"),
        **{name: doubles.function(name) for name in ("div", "rcp", "sqrt", "rsqrt")},
    }
)


def array_function(family: str, signature: Signature) -> ArrayFunction:
    """The function of an instruction on arrays of lanes, or the error that it has none."""
    try:
        return ARRAY_OPS[family](signature)
    except KeyError:
        raise unknown(family, signature) from None
