"""The kernel being traced: registers, statements, open regions, and where in the author's source each came from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from warploom.diagnostics import Diag, Loc
from warploom.hardware.targets import machine
from warploom.ptx.isa.table import Op, decode
from warploom.ptx.syntax.model import Guard, Instruction, Kernel, Label, Note, Operand, Register, Statement, Variable
from warploom.trace.early_exits import exit_of_loop, verify_exit
from warploom.trace.language.types import TYPES

if TYPE_CHECKING:
    from warploom.trace.language.values import Value

_WITH_STATEMENTS = ("branch", "role")
"""Kinds of region that a `with` statement opens and closes."""
_REGISTER_UNIT = 8
_AUTHORS = "warploom.kernels"
_MACHINERY = ("warploom", "contextlib", "functools", "numpy", "torch")


def author_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame, from this one outwards, of the author's code: outside warploom or in its kernels."""
    while frame.f_back is not None and _is_machinery(frame.f_globals.get("__name__") or ""):
        frame = frame.f_back
    return frame


def here() -> Loc:
    """Return the author's line."""
    frame = author_frame(sys._getframe(1))  # noqa: SLF001 - what `inspect.currentframe` returns, without its import
    return Loc(frame.f_code.co_filename, frame.f_lineno)


def _owners() -> list[FrameType]:
    """Return the frames whose `with` statement may be opening or closing a region now.

    That is the author's frame and, if it belongs to a context manager of the author's own, the frame that uses it.
    """
    found = [author_frame(sys._getframe(1))]  # noqa: SLF001
    while _is_context_manager(found[-1].f_code) and found[-1].f_back is not None:
        found.append(author_frame(found[-1].f_back))
    return [frame for frame in found if not (frame.f_globals.get("__name__") or "").startswith("warploom.")]


def _is_context_manager(code: CodeType) -> bool:
    return code.co_name in ("__enter__", "__exit__") or bool(code.co_flags & CO_GENERATOR)


_WRAPPED = ("function", "func", "__func__", "__wrapped__")


def place_of(function: Any) -> Loc:
    """Return the place of an author's function, whatever wraps it, or else the author's line."""
    while (inner := next((getattr(function, name) for name in _WRAPPED if hasattr(function, name)), None)) is not None:
        function = inner
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return Loc(code.co_filename, code.co_firstlineno) if code else here()


@cache
def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in _MACHINERY and not module.startswith(_AUTHORS)


@dataclass(eq=False)
class Region:
    """A stretch of the kernel in which values live: the kernel, a loop, a branch, a role.

    `known` are the pure expressions that were computed here; `snapshots` what variables held when they were last read.
    `condition` is what a branch depends on; `at_close` is called inside the region, the last first, before it ends.
    """

    kind: str
    loc: Loc
    parent: Region | None = None
    role: str = ""
    condition: Value | None = None
    uniform: bool | None = None
    """True if all lanes are known to take a branch; None until that is asked."""
    at_close: list[Callable[[], None]] = field(default_factory=list)
    known: dict[tuple[object, ...], Value] = field(default_factory=dict)
    snapshots: dict[Register, Value] = field(default_factory=dict)
    opened: list[tuple[int, int]] = field(default_factory=list)
    """Frames that opened it, by identity, and the instruction at which each was."""

    def chain(self) -> Iterator[Region]:
        """Return this region and those around it, from inside out."""
        at: Region | None = self
        while at is not None:
            yield at
            at = at.parent

    def holds(self, other: Region) -> bool:
        """Return whether a value of this region may be used in another: in this one or one inside it."""
        return any(region is self for region in other.chain())


@dataclass(frozen=True, slots=True)
class SharedArray:
    """One array of the kernel's shared memory, before it has a place."""

    name: str
    bytes: int
    align: int


class Builder:
    """Collects one kernel while the author's function runs."""

    def __init__(self, name: str, target: str, threads: int | None = None, maxnreg: int | None = None) -> None:
        self.name, self.target = name, target
        self.threads, self.maxnreg = threads, maxnreg
        """`threads` of the block may be None until `warp_roles` says it."""
        self.params: list[Variable] = []
        self.shared: list[SharedArray] = []
        self.registers: dict[str, str] = {}
        self.body: list[Statement] = []
        self.ops: list[Op | None] = []
        self._front = Region("kernel", here())
        self.region = self.root = Region("kernel", here(), self._front)
        self._prologue: tuple[list[Statement], list[Op | None]] = ([], [])
        self.sums: dict[Operand, tuple[Value, int]] = {}
        """Registers that hold another value plus a known integer."""
        self.registers_at_launch = 0
        self.before_roles: list[Callable[[], None]] = []
        """Functions that write code for all threads before the first role."""
        self.at_end: list[Callable[[], None]] = []
        """Functions that write code for all threads at the end of the kernel."""
        self.parts: dict[type, Any] = {}
        """Objects of which a kernel has one each."""
        self.last_branch: tuple[int, str] = (-1, "")
        self.variables: list[Variable] = []
        """Local variables, and parameters of calls."""
        self.functions: dict[str, Kernel] = {}
        """Declarations of functions that the driver links."""
        self.texts: dict[str, str] = {}
        """Names of texts in global memory."""
        self._counts: dict[str, int] = {}
        self._loc: Loc | None = None
        if threads is not None:
            self.set_threads(threads)

    def set_threads(self, threads: int) -> None:
        """Set the threads of the block, and with them the registers that a thread has at launch."""
        hardware = machine(self.target)
        self.threads = threads
        budget = hardware.registers_per_sm // max(threads, 1) // _REGISTER_UNIT * _REGISTER_UNIT
        self.registers_at_launch = self.maxnreg or min(budget, hardware.setmaxnreg.stop or budget)

    def place_all_at(self, loc: Loc | None) -> None:
        """Give all instructions one line, or again the author's."""
        self._loc = loc

    def fresh(self, prefix: str) -> str:
        """Return an unused name: `prefix` and a number."""
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        return f"{prefix}{number}"

    def register(self, type_: str) -> Register:
        """Return a new virtual register for a value of a type."""
        row = TYPES[type_]
        register = Register(self.fresh(row.prefix))
        self.registers[register.name] = row.register
        return register

    def text(self, text: str) -> str:
        """Return the name of a zero-terminated text in global memory."""
        return self.texts.setdefault(text, f"{self.name}_text{len(self.texts)}")

    def reserve_local(self, name: str, size: int, align: int) -> None:
        """Declare bytes of local memory, or enlarge those of the name."""
        old = next((each for each in self.variables if each.name == name), None)
        if old is not None:
            self.variables.remove(old)
            size = max(size, old.count or 0)
        self.variables.append(Variable("local", "b8", name, align, size))

    def label(self, text: str) -> str:
        return self.fresh(f"${text}_")

    def add(self, opcode: str, operands: tuple[Operand, ...], guard: Guard | None = None) -> Op:
        """Append an instruction at the author's line; the instruction table must know it."""
        op = decode(Instruction(opcode, operands, guard, self._loc or here()), self.registers)
        self.body.append(op.instruction)
        self.ops.append(op)
        return op

    def place(self, label: str) -> None:
        self.body.append(Label(label))
        self.ops.append(None)

    def note(self, text: str) -> None:
        """Add a line that gives reports of the emulator a name; ptxas reads it as a comment."""
        self.body.append(Note(text))
        self.ops.append(None)

    @contextmanager
    def prologue(self) -> Iterator[None]:
        """Write before the body, where every thread passes: values that never change are read there once.

        It is a region of its own around the body's, so that it uses nothing which the body computes.
        """
        kept = self.body, self.ops, self.region
        (self.body, self.ops), self.region = self._prologue, self._front
        try:
            yield
        finally:
            self.body, self.ops, self.region = kept

    @property
    def statements(self) -> tuple[list[Statement], list[Op | None]]:
        """All statements, and their rows of the instruction table."""
        return self._prologue[0] + self.body, self._prologue[1] + self.ops

    def open(self, kind: str, role: str = "") -> Region:
        """Begin a region."""
        self.region = Region(kind, here(), self.region, role or self.region.role)
        if kind in _WITH_STATEMENTS:
            self.region.opened = [(id(frame), frame.f_lasti) for frame in _owners()]
        return self.region

    def close(self, region: Region) -> None:
        """End a region; one that is still open inside it was left by `break` or `return`."""
        if region.opened and self.region is region:
            self._verify_exit(region)
        self._settle(region)
        assert region.parent is not None
        self.region = region.parent

    def start_roles(self) -> None:
        """Write the code that comes before the first role."""
        while self.before_roles:
            self.before_roles.pop(0)()

    def end(self) -> None:
        """End the kernel: all regions must be closed; write the code that comes last."""
        self.start_roles()
        for last in self.at_end:
            last()
        self._settle(self.root)

    def _verify_exit(self, region: Region) -> None:
        """Raise an error if the author's `with` block ended by `return`, `break` or `continue`.

        A frame that is still at the instruction which opened the region has executed no block in between.
        """
        opened = dict(region.opened)
        for frame in _owners():
            start = opened.get(id(frame), frame.f_lasti)
            if start != frame.f_lasti:
                verify_exit(frame, start, region.kind, region.loc)

    def _settle(self, region: Region) -> None:
        if self.region is not region:
            left = self.region
            exit_ = exit_of_loop(left.loc)
            loc = left.loc if exit_ is None else Loc(left.loc.file, exit_.line)
            statement = "`break` or `return`" if exit_ is None else f"`{exit_.word}`"
            kind = "loop" if left.kind == "loop turn" else left.kind
            raise Diag.LEFT_LOOP_EARLY.error(loc, statement=statement, kind=kind, opened=left.loc)
        for last in reversed(region.at_close):
            last()

    def known(self, key: tuple[object, ...]) -> Value | None:
        """Return the value of a pure expression that was computed here or in a region around."""
        return next((region.known[key] for region in self.region.chain() if key in region.known), None)

    def snapshot(self, variable: Register) -> Value | None:
        """Return the value a variable was last seen with; what it held outside a loop says nothing about the inside."""
        for region in self.region.chain():
            if variable in region.snapshots:
                return region.snapshots[variable]
            if region.kind == "loop":
                break
        return None

    def assigned(self, variable: Register) -> None:
        """Record that a variable got a new value: its snapshots are out of date."""
        for region in self.region.chain():
            region.snapshots.pop(variable, None)


_current: ContextVar[Builder | None] = ContextVar("builder", default=None)


def current(what: str = "This") -> Builder:
    """Return the kernel being traced; outside of a kernel, raise an error."""
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
