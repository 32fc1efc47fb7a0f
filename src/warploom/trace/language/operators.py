"""The operators of device values, by name: what each does is in `values`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warploom.trace.language.types import Number

if TYPE_CHECKING:
    from warploom.trace.language.values import Value


class Operators:
    """Python's operators as operations with names; `mirrored` where the value stands on the right."""

    __slots__ = ()
    __hash__ = object.__hash__

    def _binary(self, family: str, other: Value | Number, *, mirrored: bool = False) -> Value:
        raise NotImplementedError

    def _compare(self, relation: str, other: object) -> Value:
        raise NotImplementedError

    def _divide(self, other: Value | Number, *, whole: bool, mirrored: bool = False) -> Value:
        raise NotImplementedError

    def __add__(self, other: Value | Number) -> Value:
        return self._binary("add", other)

    def __radd__(self, other: Number) -> Value:
        return self._binary("add", other, mirrored=True)

    def __sub__(self, other: Value | Number) -> Value:
        return self._binary("sub", other)

    def __rsub__(self, other: Number) -> Value:
        return self._binary("sub", other, mirrored=True)

    def __mul__(self, other: Value | Number) -> Value:
        return self._binary("mul", other)

    def __rmul__(self, other: Number) -> Value:
        return self._binary("mul", other, mirrored=True)

    def __mod__(self, other: Value | Number) -> Value:
        """Return Python's remainder, with the sign of the divisor."""
        return self._binary("rem", other)

    def __rmod__(self, other: Number) -> Value:
        return self._binary("rem", other, mirrored=True)

    def __and__(self, other: Value | Number) -> Value:
        return self._binary("and", other)

    def __rand__(self, other: Number) -> Value:
        return self._binary("and", other, mirrored=True)

    def __or__(self, other: Value | Number) -> Value:
        return self._binary("or", other)

    def __ror__(self, other: Number) -> Value:
        return self._binary("or", other, mirrored=True)

    def __xor__(self, other: Value | Number) -> Value:
        return self._binary("xor", other)

    def __rxor__(self, other: Number) -> Value:
        return self._binary("xor", other, mirrored=True)

    def __lshift__(self, other: Value | Number) -> Value:
        return self._binary("shl", other)

    def __rlshift__(self, other: Number) -> Value:
        return self._binary("shl", other, mirrored=True)

    def __rshift__(self, other: Value | Number) -> Value:
        return self._binary("shr", other)

    def __rrshift__(self, other: Number) -> Value:
        return self._binary("shr", other, mirrored=True)

    def __truediv__(self, other: Value | Number) -> Value:
        return self._divide(other, whole=False)

    def __rtruediv__(self, other: Number) -> Value:
        return self._divide(other, whole=False, mirrored=True)

    def __floordiv__(self, other: Value | Number) -> Value:
        """Return Python's quotient, rounded down."""
        return self._divide(other, whole=True)

    def __rfloordiv__(self, other: Number) -> Value:
        return self._divide(other, whole=True, mirrored=True)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._compare("eq", other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self._compare("ne", other)

    def __lt__(self, other: Value | Number) -> Value:
        return self._compare("lt", other)

    def __le__(self, other: Value | Number) -> Value:
        return self._compare("le", other)

    def __gt__(self, other: Value | Number) -> Value:
        return self._compare("gt", other)

    def __ge__(self, other: Value | Number) -> Value:
        return self._compare("ge", other)
