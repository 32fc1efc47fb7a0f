"""The vector language as NumPy source: a function of arrays, one operation a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warploom.machine.semantics.graph import GraphOps, Node
from warploom.machine.semantics.numpy_ops import DTYPES, NumpyOps
from warploom.machine.semantics.tables import TABLES
from warploom.machine.semantics.vectors import WIDTHS, Value

CALLS: dict[str, str] = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "udiv": "floor_divide", "urem": "remainder",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "shl": "left_shift", "lshr": "right_shift",
    "sqrt": "sqrt", "rint": "rint", "floor": "floor", "ceil": "ceil", "trunc_float": "trunc", "fabs": "absolute",
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
_SIGNED = {name: np.dtype(f"i{dtype.itemsize}") for name, dtype in DTYPES.items() if name[0] == "i" and name != "i1"}
_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


def _leading_zeros(bits: Any) -> Any:
    """The zeros above the highest one: the exponent of a float that cannot round up, since its bits stand alone."""
    one = bits.dtype.type(1)
    exponents = ((bits & ~(bits >> one)).astype(np.float64).view(np.uint64) >> np.uint64(52)).astype(bits.dtype)
    width = 8 * bits.itemsize
    return np.where(bits == 0, bits.dtype.type(width), bits.dtype.type(width - 1 + 1023) - exponents)


def _reverse(bits: Any) -> Any:
    whole = np.ascontiguousarray(bits)
    return _REVERSED[whole.view(np.uint8)].view(whole.dtype).byteswap()


def _all_results(function: Callable[[Value], Value], type_: str) -> Any:
    """The results of a function for all operands of a type, in order."""
    every = np.arange(1 << WIDTHS[type_]).astype(DTYPES[type_])
    with np.errstate(all="ignore"):
        return function(NumpyOps().value(every)).ref


_TABULATED: dict[str, Any] = {}
"""Tables of functions, by their names."""
_NAMES: dict[str, Any] = {
    **{name: getattr(np, name) for name in CALLS.values()},
    "where": np.where, "bitwise_count": np.bitwise_count, "count_nonzero": np.count_nonzero, "full": np.full,
    "d_f16": np.dtype(np.float16),
    "leading_zeros": _leading_zeros, "reverse": _reverse,
}  # fmt: skip


class _Text:
    """The lines of a function, and the objects that they name."""

    def __init__(self, ops: GraphOps) -> None:
        self.nodes, self.globals, self.lines = ops.nodes, dict(_NAMES), list[str]()
        self.functions = ops.functions
        for type_, dtype in DTYPES.items():
            self.globals[f"d_{type_}"] = dtype
        for type_, dtype in _SIGNED.items():
            self.globals[f"s_{type_}"] = dtype

    def name(self, number: int) -> str:
        node = self.nodes[number]
        if node.operation == "operand":
            return str(node.detail)
        if node.operation == "literal":
            name = f"k{number}"
            if name not in self.globals:
                self.globals[name] = np.array(node.detail, DTYPES[node.type])
            return name
        return f"v{number}"

    def signed(self, number: int) -> str:
        """An integer operand, read as signed."""
        node = self.nodes[number]
        if node.operation == "literal":
            self.globals[f"k{number}i"] = np.array(node.detail, DTYPES[node.type]).view(_SIGNED[node.type])
            return f"k{number}i"
        return f"{self.name(number)}.view(s_{node.type})"

    def expression(self, node: Node) -> str:
        operation, operands = node.operation, node.operands
        names = [self.name(each) for each in operands]
        match operation:
            case "ashr":
                return f"right_shift({self.signed(operands[0])}, {self.signed(operands[1])}).view(d_{node.type})"
            case "compare":
                test, kind = str(node.detail), self.nodes[operands[0]].type
                if kind.startswith("i") and test not in ("eq", "ne"):
                    if test[0] == "s":
                        names = [self.signed(each) for each in operands]
                    test = test[1:]
                return f"{CALLS[test]}({', '.join(names)})"
            case "select":
                return f"where({', '.join(names)})"
            case "popcount":
                return f"bitwise_count({names[0]}).astype(d_{node.type})"
            case "leading_zeros" | "reverse":
                return f"{operation}({names[0]})"
            case "bits":
                return f"{names[0]}.view(d_{node.type})"
            case "sext" | "from_signed":
                return f"{self.signed(operands[0])}.astype(d_{node.type})"
            case "to_signed":
                return f"{names[0]}.astype(s_{node.type}).view(d_{node.type})"
            case "trunc" if node.type.startswith("i"):
                if node.type == "i1":
                    return f"bitwise_and({names[0]}, 1).astype(d_i1)"
                return f"{names[0]}.astype(d_{node.type})"
            case "zext" | "extend" | "round" | "from_unsigned" | "to_unsigned":
                return f"{names[0]}.astype(d_{node.type})"
            case "from_half":
                return f"{names[0]}.view(d_f16).astype(d_f32)"
            case "to_half":
                return f"{names[0]}.astype(d_f16).view(d_i16)"
            case "tabulated":
                function = str(node.detail)
                table = f"t{len(self.globals)}"
                if function not in _TABULATED:
                    _TABULATED[function] = _all_results(self.functions[function], self.nodes[operands[0]].type)
                self.globals[table] = _TABULATED[function]
                return f"{table}.take({names[0]})"
            case "look_up":
                table = f"t{len(self.globals)}"
                self.globals[table] = TABLES[str(node.detail)]().view(DTYPES[node.type])
                return f"{table}[{names[0]}]"
        called = CALLS["trunc_float" if operation == "trunc" else operation]
        return f"{called}({', '.join(names)})"

    def write(self, number: int, done: set[int], indent: str) -> None:
        """Write the lines of a node after those of its operands, unless they are `done`."""
        node = self.nodes[number]
        if number in done or node.operation in ("operand", "literal"):
            return
        if node.operation == "rarely":
            condition, yes, no = node.operands
            self.write(condition, done, indent)
            self.write(no, done, indent)
            self.lines += [f"{indent}v{number} = {self.name(no)}", f"{indent}if count_nonzero({self.name(condition)}):"]
            self.write(yes, set(done), f"{indent}    ")
            chosen = ", ".join(self.name(each) for each in node.operands)
            self.lines.append(f"{indent}    v{number} = where({chosen})")
        else:
            for each in node.operands:
                self.write(each, done, indent)
            self.lines.append(f"{indent}v{number} = {self.expression(node)}")
        done.add(number)

    def root(self, number: int) -> str:
        """The operation whose memory a node has: views have that of others."""
        node = self.nodes[number]
        if node.operation == "bits":
            return self.root(node.operands[0])
        return self.root(node.operands[2]) if node.operation == "rarely" else node.operation


def array_code(ops: GraphOps, results: tuple[int, ...], names: list[str], name: str) -> Callable[..., Any]:
    """A function of arrays, one for each name, that computes nodes of a graph: a new array, or a tuple of them.

    Literals as results are spread and operands copied: a caller may write into the arrays that it gets.
    """
    text = _Text(ops)
    found, done = list[str](), set[int]()
    for number in results:
        text.write(number, done, "")
        expression = text.name(number)
        if ops.nodes[number].operation == "literal":
            expression = f"full({names[0]}.shape, {expression})"
        elif text.root(number) == "operand":
            expression = f"{expression}.copy()"
        found.append(expression)
    returned = found[0] if len(found) == 1 else f"({', '.join(found)})"
    source = "\n    ".join([f"def function({', '.join(names)}):", *text.lines, f"return {returned}"])
    exec(compile(source, f"<{name} on arrays>", "exec"), text.globals)  # noqa: S102  (the source is this module's own)
    function: Callable[..., Any] = text.globals["function"]
    return function
