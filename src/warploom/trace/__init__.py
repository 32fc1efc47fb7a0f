"""Python in, PTX out: the author's function runs once, on symbols, and what it does is the kernel."""

from warploom.trace.control import While, loop, otherwise, when
from warploom.trace.instructions import At, emit
from warploom.trace.kernel import KernelFunction, kernel
from warploom.trace.memory import View, shared
from warploom.trace.values import Value, Variable, literal, select, special

__all__ = [
    "At",
    "KernelFunction",
    "Value",
    "Variable",
    "View",
    "While",
    "emit",
    "kernel",
    "literal",
    "loop",
    "otherwise",
    "select",
    "shared",
    "special",
    "when",
]
