"""Turning points: sizes at which a comparison that steers changes its result.

Some samples do not show that a comparison such as `steps == 1000` is the same for all sizes. Its operands are sums,
products, shifts and minima of a parameter, which only grow, so that the sizes at which it turns can be bisected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from warploom.checker.recurrence.loops import Expression, evaluate, params_of
from warploom.checker.recurrence.variants import Refused

LARGEST = 1 << 30
"""The largest value of a parameter that is looked at."""
_COMPARE = frozenset({"setp", "min", "max"})
_SCATTER = frozenset({"and", "or", "xor", "rem"})
"""Functions that do not only grow with an operand."""
_WIDE = ("64", "f32", "f64")
_WORD = 1 << 32
_MOST = 16
"""Turns of a comparison between two sizes that are followed."""

Values = Callable[[int], Mapping[str, int]]


def turns_of(value: Expression, name: str, values: Values, low: int, extra: Mapping[str, int]) -> set[int]:
    """The values of a parameter, from `low` on, at which a comparison in an expression has another result than before;
    `values` has all parameters for one of them, and `extra` those of registers. Remainders and bits of the parameter
    are taken to stay as they are.
    """
    found = set[int]()
    for node in _nodes(_fixed(value, name, {**values(low), **extra}), name):
        kind, *operands = node
        if kind.partition(".")[0] not in _COMPARE or len(operands) < 2:
            continue

        def sign(at: int, operands: list[Expression] = operands) -> int | None:
            one, other = (evaluate(each, {**values(at), **extra}) for each in operands[:2])
            return None if one is None or other is None else (one > other) - (one < other)

        points = [low]
        while points[-1] < LARGEST:
            points.append(min(2 * points[-1] + 1, LARGEST))
        for start, end in pairwise(points):
            found |= set(_flips(sign, start, end))
    return found


def _flips(sign: Callable[[int], int | None], start: int, end: int) -> Iterator[int]:
    """The places between two at which a sign is another one than before: two for an operand that grows."""
    last = sign(end)
    for _ in range(_MOST):
        if (now := sign(start)) == last:
            return
        low, high = start, end
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if sign(middle) == now else (low, middle)
        yield high
        start = high
    raise Refused("a comparison turns too often")


def is_irregular(value: Expression, name: str, sizes: Sequence[Mapping[str, int]], extra: Mapping[str, int]) -> bool:
    """True if a part of an expression, at these sizes, changes other than by growing, or is more than 32 bits hold."""
    for kind, *operands in _nodes(value, name):
        root, *modifiers = kind.split(".")
        found = {evaluate((kind, *operands), {**each, **extra}) for each in sizes}
        if root in _SCATTER and "pred" not in modifiers and len(found) > 1:
            return True
        is_word = not kind.endswith(_WIDE) and "wide" not in modifiers
        if is_word and any(each is not None and not -_WORD < each < _WORD for each in found):
            return True
    return False


def _fixed(value: Expression, name: str, values: Mapping[str, int]) -> Expression:
    """An expression with the present values of its remainders and bits."""
    if not isinstance(value, tuple) or name not in params_of(value) or value[0] == "param":
        return value
    root, *modifiers = value[0].split(".")
    if root in _SCATTER and "pred" not in modifiers and (now := evaluate(value, values)) is not None:
        return now
    return (value[0], *(_fixed(each, name, values) for each in value[1:]))


def _nodes(value: Expression, name: str) -> Iterator[tuple[str, ...]]:
    """The parts of an expression that are functions of a parameter."""
    if isinstance(value, tuple) and name in params_of(value) and value[0] != "param":
        yield value
        for each in value[1:]:
            yield from _nodes(each, name)
