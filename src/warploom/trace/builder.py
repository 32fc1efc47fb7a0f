"""The kernel being traced: registers, statements, open regions, and where in the author's source each came from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from warploom.diagnostics import Diag, Loc
from warploom.ptx.isa.table import Op, decode
from warploom.ptx.model import Guard, Instruction, Label, Note, Operand, Register, Statement, Variable

_AUTHORS = ("warploom.kernels",)
_MACHINERY = ("warploom", "contextlib", "functools")


def here() -> Loc:
    """The author's line: the innermost frame outside warploom itself; kernels that ship with it are author's code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_machinery(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return Loc(frame.f_code.co_filename, frame.f_lineno)


def _is_machinery(module: str) -> bool:
    mine = any(module == name or module.startswith(f"{name}.") for name in _MACHINERY)
    return mine and not module.startswith(_AUTHORS)


@dataclass(eq=False)
class Region:
    """A stretch of the kernel in which values live: the kernel, a loop, a branch, a role."""

    kind: str
    loc: Loc
    parent: Region | None = None
    start: int = 0
    known: dict[tuple[object, ...], tuple[object, ...]] = field(default_factory=dict)

    def holds(self, other: Region) -> bool:
        """Whether a value of this region may be used in another: it is this one or lies inside it."""
        at: Region | None = other
        while at is not None:
            if at is self:
                return True
            at = at.parent
        return False


class Builder:
    """Collects one kernel while the author's function runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.params: list[Variable] = []
        self.shared: list[Variable] = []
        self.registers: dict[str, str] = {}
        self.body: list[Statement] = []
        self.region = Region("kernel", here())
        self._counts: dict[str, int] = {}

    def fresh(self, prefix: str) -> str:
        """A name nobody has: `prefix` and a number."""
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        return f"{prefix}{number}"

    def register(self, type_: str) -> Register:
        """A new virtual register."""
        register = Register(self.fresh(f"%{_PREFIX.get(type_, type_ + '_')}"))
        self.registers[register.name] = type_
        return register

    def label(self, text: str) -> str:
        return self.fresh(f"${text}_")

    def add(self, opcode: str, operands: tuple[Operand, ...], guard: Guard | None = None) -> Op:
        """Append an instruction at the author's line; the instruction table must know it."""
        instruction = Instruction(opcode, operands, guard, here())
        op = decode(instruction, self.registers)
        self.body.append(instruction)
        return op

    def place(self, label: str) -> None:
        self.body.append(Label(label))

    def note(self, text: str) -> None:
        """A line for the machine's and the checker's sentences; ptxas reads it as a comment."""
        self.body.append(Note(text))

    def open(self, kind: str) -> Region:
        """Begin a region; what is known outside stays known inside."""
        self.region = Region(kind, here(), self.region, len(self.body), dict(self.region.known))
        return self.region

    def close(self, region: Region) -> None:
        """End a region; one that is still open inside it was left by `break` or `return`."""
        if self.region is not region:
            raise Diag.LEFT_LOOP_EARLY.error(self.region.loc, kind=self.region.kind)
        assert region.parent is not None
        self.region = region.parent

    def forget(self, register: Register) -> None:
        """A register got a new value: nothing computed from the old one is known any more."""
        at: Region | None = self.region
        while at is not None:
            at.known = {key: value for key, value in at.known.items() if register not in key}
            at = at.parent


_PREFIX = {"pred": "p", "b16": "h", "b32": "r", "b64": "rd", "f32": "f", "f64": "fd", "s32": "r", "u32": "r", "s64": "rd", "u64": "rd"}
_current: ContextVar[Builder | None] = ContextVar("builder", default=None)


def current(what: str = "This") -> Builder:
    """The kernel being traced; outside of one, an error that says so."""
    builder = _current.get()
    if builder is None:
        raise Diag.OUTSIDE_KERNEL.error(here(), what=what)
    return builder


@contextmanager
def building(builder: Builder) -> Iterator[Builder]:
    """Make a builder the current one."""
    token = _current.set(builder)
    try:
        yield builder
    finally:
        _current.reset(token)
