"""The vector language as Python source on integers: registers that all lanes share.

Operands and results are non-negative integers within their widths, and bools for predicates. Floats and tables have no
text here: such forms run as arrays of one lane.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from warploom.machine.semantics.graph import GraphOps, Node, needed
from warploom.machine.semantics.vectors import WIDTHS, UnsupportedError

_OPERATORS = {"and": "&", "or": "|", "xor": "^", "udiv": "//", "urem": "%", "lshr": ">>"}
_WRAPPING = {"add": "+", "sub": "-", "mul": "*", "shl": "<<"}
_LONGEST = 6
"""The most operations of an expression; longer ones are functions."""
_NAME = re.compile(r"\w+(\[\d+\])?")
_TESTS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _ones(type_: str) -> int:
    return (1 << WIDTHS[type_]) - 1


class _Text:
    """The expressions of nodes, with the text of each operand."""

    def __init__(self, ops: GraphOps, results: tuple[int, ...], operands: Mapping[str, str], *, nested: bool) -> None:
        self.nodes, self._operands, self._nested = ops.nodes, operands, nested
        self.used = needed(ops.nodes, results)
        if any(not self.nodes[each].type.startswith("i") for each in self.used):
            raise UnsupportedError("floats")
        self.inner = [each for each in self.used if self.nodes[each].operation not in ("operand", "literal")]

    def name(self, number: int) -> str:
        node = self.nodes[number]
        if node.operation == "operand":
            return self._operands[str(node.detail)]
        if node.operation == "literal":
            return str(node.detail)
        return f"({self.expression(node)})" if self._nested else f"v{number}"

    def signed(self, number: int) -> str:
        """An operand as the number that its bits stand for."""
        node = self.nodes[number]
        top = 1 << (WIDTHS[node.type] - 1)
        if node.operation == "literal":
            return str((int(node.detail) ^ top) - top)
        return f"(({self.name(number)} ^ {top}) - {top})"

    def wide(self, number: int) -> str:
        """An operand whose upper bits do not matter, because the result is cut to its width."""
        node = self.nodes[number]
        if not self._nested or node.operation not in ("add", "sub", "mul", "sext"):
            return self.name(number)
        return f"({self.uncut(node)})"

    def uncut(self, node: Node) -> str:
        """The integer before it is cut to the width of its type."""
        if node.operation == "sext":
            return self.signed(node.operands[0])
        first, second = node.operands
        by = self.name(second) if node.operation == "shl" else self.wide(second)
        return f"{self.wide(first)} {_WRAPPING[node.operation]} {by}"

    def expression(self, node: Node) -> str:
        operation, operands = node.operation, node.operands
        if operation in _WRAPPING or operation == "sext":
            return f"({self.uncut(node)}) & {_ones(node.type)}"
        names = [self.name(each) for each in operands]
        if operation in _OPERATORS:
            return f"{names[0]} {_OPERATORS[operation]} {names[1]}"
        width = WIDTHS[self.nodes[operands[0]].type] if operands else 0
        match operation:
            case "ashr":
                return f"({self.signed(operands[0])} >> {names[1]}) & {_ones(node.type)}"
            case "compare":
                test = str(node.detail)
                if test not in ("eq", "ne"):
                    if test[0] == "s":
                        names = [self.signed(each) for each in operands]
                    test = test[1:]
                return f"{names[0]} {_TESTS[test]} {names[1]}"
            case "select" | "rarely":
                return f"{names[1]} if {names[0]} else {names[2]}"
            case "popcount":
                return f"{names[0]}.bit_count()"
            case "leading_zeros":
                return f"{width} - {names[0]}.bit_length()"
            case "reverse":
                return f"int(format({names[0]}, '0{width}b')[::-1], 2)"
            case "zext":
                return f"int({names[0]})" if width == 1 else names[0]
            case "trunc":
                return f"({names[0]} & 1) != 0" if node.type == "i1" else f"{names[0]} & {_ones(node.type)}"
        raise UnsupportedError(operation)


def scalar_code(ops: GraphOps, results: tuple[int, ...], names: list[str], name: str) -> Callable[..., Any]:
    """A function of Python integers that computes nodes of a graph; UnsupportedError if there is no text for one."""
    text = _Text(ops, results, dict(zip(names, names, strict=True)), nested=False)
    lines = [f"v{number} = {text.expression(text.nodes[number])}" for number in text.inner]
    returned = ", ".join(text.name(number) for number in results)
    source = "\n    ".join([f"def function({', '.join(names)}):", *lines, f"return {returned}"])
    found: dict[str, Any] = {}
    exec(compile(source, f"<{name} on integers>", "exec"), found)  # noqa: S102  (the source is this module's own)
    function: Callable[..., Any] = found["function"]
    return function


def scalar_expression(ops: GraphOps, result: int, operands: Mapping[str, str]) -> str | None:
    """A short expression for a node, given the texts of operands; None if it is long or would compute a part twice."""
    try:
        text = _Text(ops, (result,), operands, nested=True)
        if len(text.inner) > _LONGEST:
            return None
        uses = Counter(each for number in text.inner for each in text.nodes[number].operands)
        for number, count in uses.items():
            node = text.nodes[number]
            simple = node.operation == "literal" or (node.operation == "operand" and _NAME.fullmatch(text.name(number)))
            if count > 1 and not simple:
                return None
        return text.name(result)
    except UnsupportedError:
        return None
