"""Short forms as text: a few calls of NumPy's ufuncs, the last of which can write its result to a row.

A form is short if its graph has at most three operations, each of them one ufunc. Minima and maxima, products of
extended operands, complements and sums of floats whose NaNs are settled afterwards are one ufunc too.
"""

from __future__ import annotations

from typing import NamedTuple

from warploom.machine.semantics.array_code import CALLS
from warploom.machine.semantics.floating import NAN_F32
from warploom.machine.semantics.graph import GraphOps, Node
from warploom.machine.semantics.numpy_ops import DTYPES
from warploom.machine.semantics.vectors import WIDTHS

_MOST_CALLS = 3
_EITHER = frozenset({"add", "sub", "mul", "and", "or", "xor", "shl"})
"""Operations whose bits do not depend on how integers are read."""
_EXTREMES = {"lt": "minimum", "le": "minimum", "gt": "maximum", "ge": "maximum"}


class Leaf(NamedTuple):
    """An operand by its name, or a literal: read as unsigned (`u`), signed (`s`), float (`f`) or predicate (`p`)."""

    name: str
    literal: int
    kind: str
    bits: int


class Call(NamedTuple):
    """A ufunc of operands, or `select`; kind and bits of its result, and the type it computes in if not theirs."""

    name: str
    operands: tuple[Leaf | Call, ...]
    kind: str
    bits: int
    dtype: str = ""
    settles: bool = False
    """True if NaNs of the result are made canonical afterwards."""

    @property
    def calls(self) -> int:
        return 1 + sum(each.calls for each in self.operands if isinstance(each, Call))


class _LongError(Exception):
    """A form that is not short."""


class _Reader:
    """Reads a graph from its result."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def leaf(self, number: int, kind: str) -> Leaf:
        node = self.nodes[number]
        if kind == "f":
            if node.operation != "bits":
                raise _LongError
            node = self.nodes[node.operands[0]]
        kind = "p" if node.type == "i1" else kind
        if node.operation == "operand":
            return Leaf(str(node.detail), 0, kind, WIDTHS[node.type])
        if node.operation == "literal" and kind in "us":
            return Leaf("", int(node.detail), kind, WIDTHS[node.type])
        raise _LongError

    def part(self, number: int, kind: str) -> Leaf | Call:
        """A node read as integers of a kind."""
        node = self.nodes[number]
        if node.operation in ("operand", "literal"):
            return self.leaf(number, kind)
        operands, bits = node.operands, WIDTHS[node.type]
        kind = "p" if node.type == "i1" else kind
        if node.operation in _EITHER:
            if node.operation == "mul" and (found := self._wide_product(node, kind)) is not None:
                return found
            last = self.nodes[operands[1]]
            ones = node.type == "i1" or last.detail == (1 << bits) - 1
            if node.operation == "xor" and last.operation == "literal" and last.detail and ones:
                return Call("logical_not" if kind == "p" else "invert", (self.part(operands[0], kind),), kind, bits)
            return Call(CALLS[node.operation], tuple(self.part(each, kind) for each in operands), kind, bits)
        if (node.operation, kind) in (("lshr", "u"), ("ashr", "s")):
            return Call("right_shift", tuple(self.part(each, kind) for each in operands), kind, bits)
        if node.operation == "compare":
            return self._comparison(node)
        if node.operation == "select":
            return self._choice(node, kind)
        raise _LongError

    def _wide_product(self, node: Node, kind: str) -> Call | None:
        """A product of operands that are both extended, which NumPy computes in the wider type."""
        extension = "sext" if kind == "s" else "zext"
        found = []
        for each in node.operands:
            inner = self.nodes[each]
            if inner.operation == extension and self.nodes[inner.operands[0]].type != "i1":
                found.append(self.leaf(inner.operands[0], kind))
            elif inner.operation == "literal":
                found.append(self.leaf(each, kind))
            elif inner.operation in ("sext", "zext"):
                raise _LongError
            else:
                return None
        if not any(leaf.name for leaf in found) or all(leaf.bits == WIDTHS[node.type] for leaf in found):
            return None
        dtype = f"{'int' if kind == 's' else 'uint'}{WIDTHS[node.type]}"
        return Call("multiply", tuple(found), kind, WIDTHS[node.type], dtype)

    def _comparison(self, node: Node) -> Call:
        test, type_ = str(node.detail), self.nodes[node.operands[0]].type
        kind = "f"
        if type_.startswith("i"):
            kind = "s" if test[0] == "s" else "u"
            test = test if test in ("eq", "ne") else test[1:]
        elif type_ != "f32":
            raise _LongError
        return Call(CALLS[test], tuple(self.leaf(each, kind) for each in node.operands), "p", 1)

    def _choice(self, node: Node, kind: str) -> Call:
        (condition, yes, no), bits = node.operands, WIDTHS[node.type]
        test = self.nodes[condition]
        if test.operation == "compare" and test.operands == (yes, no) and str(test.detail)[1:] in _EXTREMES:
            if str(test.detail)[0] != kind:
                raise _LongError
            return Call(_EXTREMES[str(test.detail)[1:]], (self.leaf(yes, kind), self.leaf(no, kind)), kind, bits)
        return Call("select", (self.leaf(condition, "p"), self.leaf(yes, kind), self.leaf(no, kind)), kind, bits)

    def settled(self, node: Node) -> Call:
        """A sum or product of f32 whose NaNs become the canonical one."""
        condition, nan, bits = (self.nodes[each] for each in node.operands)
        if (nan.operation, nan.detail) != ("literal", NAN_F32) or bits.operation != "bits":
            raise _LongError
        value = bits.operands[0]
        number = self.nodes[value]
        if condition != Node("compare", "i1", (value, value), "ne") or number.operation not in ("add", "sub", "mul"):
            raise _LongError
        if number.type != "f32":
            raise _LongError
        operands = tuple(self.leaf(each, "f") for each in number.operands)
        return Call(CALLS[number.operation], operands, "f", WIDTHS["f32"], settles=True)


def short_text(ops: GraphOps, result: int) -> Leaf | Call | None:
    """The calls that compute a node; an operand that is only moved, extended (`s` if by its sign) or cut; or None."""
    reader, node = _Reader(ops.nodes), ops.nodes[result]
    if node.operation in ("zext", "sext", "trunc") and node.type in DTYPES and ops.nodes[node.operands[0]].type != "i1":
        inner = ops.nodes[node.operands[0]]
        if inner.operation == "operand" and node.type != "i1":
            return reader.leaf(node.operands[0], "s" if node.operation == "sext" else "u")
        return None
    for kind in ("u", "s"):
        try:
            found = reader.settled(node) if node.operation == "rarely" else reader.part(result, kind)
        except _LongError:
            continue
        if isinstance(found, Leaf):
            return found if found.name else None
        return found if found.calls <= _MOST_CALLS and not _repeats(ops, result) else None
    return None


def _repeats(ops: GraphOps, result: int) -> bool:
    """True if the calls of a node would compute a part twice."""
    seen, open_ = set[int](), [result]
    if ops.nodes[result].operation == "rarely":
        return False
    while open_:
        node = ops.nodes[open_.pop()]
        for each in node.operands:
            if ops.nodes[each].operation in ("operand", "literal", "bits", "sext", "zext"):
                continue
            if each in seen:
                return True
            seen.add(each)
            open_.append(each)
    return False
