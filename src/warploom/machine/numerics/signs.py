"""Instructions on the sign and class of a float: abs, neg, copysign, testp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics.bits import Array, ArrayFunction, Signature, constant, element_of, per_element
from warploom.machine.numerics.floats import flush, flushes


def change(name: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of `abs` or `neg` of floats.

    A NaN becomes the canonical one, and of f64 it passes quieted with its sign kept: the ISA leaves this open.
    """

    def make(signature: Signature) -> ArrayFunction:
        type_name = signature["type"]
        element = element_of(type_name)
        sign = constant(element.sign, element.storage)
        infinity, ftz = constant(element.infinity_code, element.storage), flushes(element.name, signature)
        canonical = constant(element.nan_code, element.storage)
        quiet = constant(1 << (element.mantissa - 1), element.storage)

        def whole(bits: Array) -> Array:
            operand = flush(bits, element.name) if ftz else bits
            size = operand & ~sign
            result: Array = size if name == "abs" else operand ^ sign
            nan = size > infinity
            if np.count_nonzero(nan):
                result = np.where(nan, bits | quiet if element.name == "f64" else canonical, result)
            return result

        return per_element(whole, type_name)

    return make


def copysign(signature: Signature) -> ArrayFunction:
    """(a, b) → b with the sign of a."""
    element = ELEMENT_TYPES[signature["type"]]
    sign = constant(element.sign, element.storage)
    return lambda a, b: (a & sign) | (b & ~sign)


def testp(signature: Signature) -> ArrayFunction:
    """(a) → whether a float has a property; zeros count as normal."""
    element = ELEMENT_TYPES[signature["type"]]
    sign = constant(element.sign, element.storage)
    infinity, normal = (constant(code or 0, element.storage) for code in (element.infinity, element.smallest_normal))
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": lambda size: size < infinity,
        "infinite": lambda size: size == infinity,
        "number": lambda size: size <= infinity,
        "notanumber": lambda size: size > infinity,
        "normal": lambda size: (size == 0) | ((size >= normal) & (size < infinity)),
        "subnormal": lambda size: (size != 0) & (size < normal),
    }
    test = tests[signature["test"]]
    return lambda a: test(a & ~sign)
