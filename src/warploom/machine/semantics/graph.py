"""The vector language as a graph: equal operations are one node, and those on literals are computed at once.

A lowering that writes text takes the nodes in order: the operands of a node come before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from warploom.machine.semantics.numpy_ops import NumpyOps
from warploom.machine.semantics.vectors import WIDTHS, Ops, UnsupportedError, Value

Literal = int | float | bool


class Node(NamedTuple):
    """An operation: its name, the type of its result, the numbers of its operands, and what else it takes.

    `detail` is the value of a literal, the name of an operand, a comparison, a table or a function.
    """

    operation: str
    type: str
    operands: tuple[int, ...] = ()
    detail: Literal | str = ""


@dataclass
class GraphOps(Ops):
    """Enters operations into `nodes`; the `ref` of a value is the number of its node."""

    nodes: list[Node] = field(default_factory=list)
    functions: dict[str, Callable[[Value], Value]] = field(default_factory=dict)
    """The functions of nodes that are tables, by their names."""
    _numbers: dict[tuple[Node, str], int] = field(default_factory=dict)
    _values: dict[int, Value] = field(default_factory=dict)
    """Literals as arrays of no dimension, by their nodes."""

    def operand(self, name: str, type_: str) -> Value:
        """A value that is given when the text runs."""
        return self._enter(Node("operand", type_, (), name))

    def _enter(self, node: Node) -> Value:
        # 0.0 and -0.0 are equal, and so are 1 and True: the text of a literal tells them apart.
        number = self._numbers.setdefault((node, repr(node.detail)), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return Value(self, node.type, number)

    def literal(self, value: Value) -> Literal | None:
        """The number that a node is, if it is a literal."""
        node = self.nodes[value.ref]
        return node.detail if node.operation == "literal" else None

    def constant(self, type_: str, value: float) -> Value:
        made = _FOLDING.constant(type_, value)
        found = self._enter(Node("literal", type_, (), made.ref.item()))
        self._values[found.ref] = made
        return found

    def _folded(self, compute: Callable[..., Value], *values: Value) -> Value | None:
        """The result of an operation on literals, computed by NumPy as the text would."""
        if not all(value.ref in self._values for value in values):
            return None
        with np.errstate(all="ignore"):
            made = compute(*[self._values[value.ref] for value in values])
        found = self._enter(Node("literal", made.type, (), made.ref.item()))
        self._values[found.ref] = made
        return found

    def binary(self, name: str, a: Value, b: Value) -> Value:
        folded = self._folded(lambda x, y: _FOLDING.binary(name, x, y), a, b)
        return folded or self._simpler(name, a, b) or self._enter(Node(name, a.type, (a.ref, b.ref)))

    def _simpler(self, name: str, a: Value, b: Value) -> Value | None:
        """The simpler form of an operation on integers, where a literal or equal operands allow one."""
        if not a.type.startswith("i"):
            return None
        if name in ("and", "or", "xor", "add", "mul") and self.literal(a) is not None:
            a, b = b, a
        literal, ones = self.literal(b), (1 << a.width) - 1 if a.type != "i1" else True
        if a.ref == b.ref and name in ("and", "or", "xor", "sub"):
            return a if name in ("and", "or") else self.constant(a.type, 0)
        if literal is None:
            return self._complement(a, b) if name == "xor" else None
        if literal == 0 and name in ("or", "xor", "add", "sub", "shl", "lshr", "ashr"):
            return a
        if literal == 0 and name in ("and", "mul"):
            return b
        if literal == ones and name == "and":
            return a
        if literal == ones and name == "or":
            return b
        if name == "xor":
            node = self.nodes[a.ref]
            if node.operation == "xor":
                inner = [Value(self, a.type, ref) for ref in node.operands]
                if self.literal(inner[1]) is not None:
                    return inner[0] ^ (inner[1] ^ b)
        return self._enter(Node(name, a.type, (a.ref, b.ref)))

    def _complement(self, a: Value, b: Value) -> Value | None:
        """X xor (x xor literal) is the literal."""
        for one, other in ((a, b), (b, a)):
            node = self.nodes[other.ref]
            if node.operation == "xor" and node.operands[0] == one.ref:
                rest = Value(self, a.type, node.operands[1])
                if self.literal(rest) is not None:
                    return rest
        return None

    def unary(self, name: str, a: Value) -> Value:
        folded = self._folded(lambda x: _FOLDING.unary(name, x), a)
        return folded or self._enter(Node(name, a.type, (a.ref,)))

    def compare(self, name: str, a: Value, b: Value) -> Value:
        folded = self._folded(lambda x, y: _FOLDING.compare(name, x, y), a, b)
        return folded or self._enter(Node("compare", "i1", (a.ref, b.ref), name))

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        known = self.literal(condition)
        if known is not None:
            return yes if known else no
        if yes.ref == no.ref:
            return yes
        return self._enter(Node("select", yes.type, (condition.ref, yes.ref, no.ref)))

    def select_rarely(self, condition: Value, yes: Value, no: Value) -> Value:
        found = self.select(condition, yes, no)
        node = self.nodes[found.ref]
        return self._enter(node._replace(operation="rarely")) if node.operation == "select" else found

    def from_half(self, a: Value) -> Value:
        return self._enter(Node("from_half", "f32", (a.ref,)))

    def to_half(self, a: Value) -> Value:
        return self._enter(Node("to_half", "i16", (a.ref,)))

    def convert(self, name: str, a: Value, type_: str) -> Value:
        folded = self._folded(lambda x: _FOLDING.convert(name, x, type_), a)
        if folded is not None:
            return folded
        node = self.nodes[a.ref]
        if name == "bits" and node.operation == "bits":
            inner = Value(self, self.nodes[node.operands[0]].type, node.operands[0])
            return inner if inner.type == type_ else self._enter(Node(name, type_, node.operands))
        if name == "trunc" and node.operation in ("zext", "sext"):
            inner = Value(self, self.nodes[node.operands[0]].type, node.operands[0])
            if inner.type == type_:
                return inner
            if WIDTHS[type_] < inner.width:
                return inner.trunc(type_)
        return self._enter(Node(name, type_, (a.ref,)))

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        raise UnsupportedError("neither NumPy nor Python has a fused multiply-add on all hosts")

    def tabulated(self, name: str, compute: Callable[[Value], Value], index: Value, type_: str) -> Value:
        self.functions[name] = compute
        return self._enter(Node("tabulated", type_, (index.ref,), name))

    def look_up(self, table: str, index: Value, type_: str) -> Value:
        return self._enter(Node("look_up", type_, (index.ref,), table))


_FOLDING = NumpyOps()


def needed(nodes: list[Node], results: tuple[int, ...]) -> list[int]:
    """The numbers of the nodes on which results depend, in order."""
    found, open_ = set(results), list(results)
    while open_:
        for each in nodes[open_.pop()].operands:
            if each not in found:
                found.add(each)
                open_.append(each)
    return sorted(found)
