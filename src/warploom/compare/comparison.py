"""A comparison of buffers: typed and bounded when it is parsed, computed after the kernel has run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np

import warploom.compare.arithmetic
import warploom.compare.shaping  # noqa: F401  both enter their functions into the table
from warploom.compare.grammar import Call, Index, Name, Node, Number, Text, bad, parse
from warploom.compare.table import ARRAY, BOOLEAN, CHEAP, COUNT, FUNCTIONS, INTEGER, REAL, WORD, Array, Type, wants

LARGEST_VALUES = 1 << 29  # elements of all intermediate results together: four gibibytes
LONGEST_SECONDS = 60.0

_KINDS = {"b": BOOLEAN, "i": INTEGER, "u": INTEGER}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference between the two sides of a comparison: number of elements, first position and largest error."""

    comparison: Comparison
    count: int
    total: int
    where: tuple[int, ...]
    left: float | int | bool
    right: float | int | bool
    largest_error: float

    def __str__(self) -> str:
        at = f" at [{', '.join(map(str, self.where))}]" if self.where else ""
        return (
            f"`{self.comparison.text}` does not hold for {self.count} of {self.total} elements: first{at}, "
            f"left {self.left!r}, right {self.right!r}; largest error {self.largest_error:.6g} "
            f"(rtol {self.comparison.rtol:g}, atol {self.comparison.atol:g})"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left == right`, element by element: |left - right| <= atol + rtol * |right|."""

    text: str
    left: Node
    right: Node
    rtol: float = 0.0
    atol: float = 0.0
    equal_nan: bool = False

    @staticmethod
    def read(
        text: str, types: Mapping[str, Type], *, rtol: float = 0.0, atol: float = 0.0, equal_nan: bool = False
    ) -> Comparison:
        """Parse a comparison over buffers of these types; one that cannot be computed or costs too much is an error."""
        left, right = parse(text)
        typing = _Typing(text, types)
        left_type, right_type = typing.of(left), typing.of(right)
        if right_type.shape not in ((), left_type.shape):
            raise bad(text, f"the left side has the shape {left_type.shape}, the right side {right_type.shape}")
        return Comparison(text, left, right, rtol, atol, equal_nan)

    def mismatch(self, buffers: Mapping[str, Array], initial: Callable[[str], Array]) -> Mismatch | None:
        """Compute both sides; None if they agree. `initial` gives a buffer as it was before the kernel ran."""
        evaluation = _Evaluation(self.text, buffers, initial)
        with np.errstate(all="ignore"):
            left = evaluation.of(self.left)
            right = np.broadcast_to(evaluation.of(self.right), left.shape)
            error = np.abs(left.astype(np.float64) - right.astype(np.float64))
            near = np.isfinite(error) & (error <= self.atol + self.rtol * np.abs(right.astype(np.float64)))
            differ = (left != right) & ~near if self.rtol or self.atol else left != right
            if self.equal_nan:
                differ &= ~(np.isnan(left) & np.isnan(right))
        count = int(np.count_nonzero(differ))
        if not count:
            return None
        where = tuple(map(int, np.unravel_index(int(np.argmax(differ)), left.shape)))
        largest = float(np.max(np.where(np.isnan(error), np.inf, error), where=differ, initial=0.0))
        return Mismatch(self, count, left.size, where, left[where].item(), right[where].item(), largest)


class Shaped(Protocol):
    """An array, or the type of one that has not been computed yet."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


def type_of(array: Shaped) -> Type:
    """The type that a buffer has in a comparison."""
    return Type(array.shape, _KINDS.get(array.dtype.kind, REAL))


def _bind(call: Call, text: str) -> list[Node | int | str | None]:
    """The arguments in the order of the function's parameters: nodes, integers and words, defaults included."""
    if call.function not in FUNCTIONS:
        close = get_close_matches(call.function, FUNCTIONS, n=1)
        hint = f"; did you mean `{close[0]}`?" if close else ""
        raise bad(text, f"there is no function `{call.function}`{hint}", call.column)
    parameters = FUNCTIONS[call.function].parameters
    names = ", ".join(parameter.name for parameter in parameters)
    try:
        bound = inspect.Signature(parameters).bind(*call.arguments, **dict(call.keywords))
    except TypeError:
        raise bad(text, f"`{call.function}` takes ({names})", call.column) from None
    bound.apply_defaults()
    given: list[Node | int | str | None] = []
    for parameter in parameters:
        value = bound.arguments[parameter.name]
        items = value if parameter.kind is inspect.Parameter.VAR_POSITIONAL else (value,)
        given += [_literal(item, parameter, call, text) for item in items]
    return given


def _literal(
    item: Node | int | str | None, parameter: inspect.Parameter, call: Call, text: str
) -> Node | int | str | None:
    """An argument as its parameter expects it: an expression, an integer or a word."""
    wanted = wants(parameter)
    match item:
        case Text(word) if wanted == WORD:
            return word
        case Number(int(value)) if wanted == COUNT:
            return value
        case Call("negative", (Number(int(value)),)) if wanted == COUNT:
            return -value
        case Number() | Name() | Index() | Call() if wanted == ARRAY:
            return item
        case None | int() | str():
            return item
    raise bad(text, f"`{parameter.name}` of `{call.function}` must be {wanted}", call.column)


class _Typing:
    """Finds the type of every subexpression, and rejects those that would take too much memory or time."""

    def __init__(self, text: str, types: Mapping[str, Type]) -> None:
        self.text = text
        self.types = types
        self.values = 0
        self.seconds = 0.0

    def of(self, node: Node) -> Type:
        nanoseconds = CHEAP
        match node:
            case Number(value):
                return Type((), INTEGER if isinstance(value, int) else REAL)
            case Text():
                raise bad(self.text, f'"{node.value}" is a word, not a number')
            case Name(name):
                if name not in self.types:
                    known = ", ".join(self.types) or "none"
                    raise bad(self.text, f"there is no buffer `{name}`; the file has {known}", node.column)
                found = self.types[name]
                nanoseconds *= found.size
            case Index(operand):
                found = self._indexed(node, self.of(operand))
                nanoseconds = 0.0
            case Call():
                arguments = [self.of(item) if isinstance(item, Node) else item for item in _bind(node, self.text)]
                row = FUNCTIONS[node.function]
                try:
                    found = row.result(*arguments)
                    nanoseconds = row.nanoseconds(*arguments)
                except ValueError as error:
                    raise bad(self.text, _sentence(error), node.column) from None
        self._charge(found, nanoseconds)
        return found

    def _indexed(self, node: Index, operand: Type) -> Type:
        """The shape that indexing gives, found with an array whose strides are all zero, which takes no memory."""
        try:
            return Type(np.broadcast_to(np.empty(()), operand.shape)[node.key].shape, operand.number)
        except (IndexError, ValueError) as error:
            raise bad(self.text, _sentence(error), node.column) from None

    def _charge(self, found: Type, nanoseconds: float) -> None:
        self.values += found.size
        self.seconds += nanoseconds * 1e-9
        if self.values > LARGEST_VALUES:
            raise bad(self.text, f"it needs more than {LARGEST_VALUES} intermediate values")
        if self.seconds > LONGEST_SECONDS:
            raise bad(
                self.text, f"it would take about {self.seconds:.0f} s; at most {LONGEST_SECONDS:.0f} s are allowed"
            )


class _Evaluation:
    """Computes a tree that `_Typing` has accepted."""

    def __init__(self, text: str, buffers: Mapping[str, Array], initial: Callable[[str], Array]) -> None:
        self.text = text
        self.buffers = buffers
        self.initial = initial

    def of(self, node: Node) -> Array:
        match node:
            case Number(value):
                return np.asarray(value, np.int64 if isinstance(value, int) else np.float64)
            case Name(name, initial):
                array = self.initial(name) if initial else self.buffers[name]
                kind = type_of(array).number
                return array.astype({BOOLEAN: np.bool_, INTEGER: np.int64, REAL: np.float64}[kind])
            case Index(operand):
                return np.asarray(self.of(operand)[node.key])
            case Call():
                arguments = [self.of(item) if isinstance(item, Node) else item for item in _bind(node, self.text)]
                return np.asarray(FUNCTIONS[node.function].compute(*arguments))
            case Text():
                raise AssertionError(node)


def _sentence(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
