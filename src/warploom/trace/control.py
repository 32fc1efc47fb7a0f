"""Device control flow as Python statements: `loop`, `While`, `when` and `otherwise`.

`for k in loop(n)` runs its body once while tracing and n times on the device; `range` unrolls. A short `when` without
branches or waits inside becomes predication, as a careful person would write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from warploom.diagnostics import Diag
from warploom.ptx.isa.table import match
from warploom.ptx.model import Guard, Instruction, Register, Symbol
from warploom.trace.builder import Builder, Region, current, here
from warploom.trace.values import Number, Value, Variable, literal

_PREDICATED = 8


class Loop:
    """Not a generator: Python swallows errors raised while one is being closed."""

    def __init__(self, start: Value | Number, stop: Value | Number, step: int) -> None:
        if step == 0:
            raise Diag.TYPE_MISMATCH.error(here(), what="a loop with step 0")
        typed = next((side for side in (stop, start) if isinstance(side, Value)), None)
        type_ = typed.type if typed is not None else "s32"
        self._stop = stop if isinstance(stop, Value) else literal(stop, type_)
        self._index = Variable(type_, start)
        self._step = step
        self._region: Region | None = None
        self._top = self._end = ""

    def __iter__(self) -> Iterator[Value]:
        return self

    def __next__(self) -> Value:
        builder = current("loop()")
        if self._region is None:
            self._top, self._end = builder.label("loop"), builder.label("done")
            _leave_unless(builder, self._more(), self._end)
            builder.place(self._top)
            self._region = builder.open("loop")
            self._region.known.clear()
            return self._index.get()
        self._index.set(self._index.get() + self._step)
        more = self._more()
        builder.close(self._region)
        _branch(builder, more, self._top)
        builder.place(self._end)
        builder.region.known.clear()
        raise StopIteration

    def _more(self) -> Value:
        return self._index.get() < self._stop if self._step > 0 else self._index.get() > self._stop


def loop(*bounds: Value | Number, step: int = 1) -> Loop:
    """Repeat the body on the device: `loop(stop)` or `loop(start, stop)`."""
    if len(bounds) not in (1, 2):
        raise Diag.TYPE_MISMATCH.error(here(), what=f"loop() with {len(bounds)} bounds")
    start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds
    return Loop(start, stop, step)


class While:
    """`for _ in While(lambda: condition):` repeats the body on the device while the condition holds."""

    def __init__(self, condition: Callable[[], Value]) -> None:
        self._condition = condition
        self._region: Region | None = None
        self._top = self._end = ""

    def __iter__(self) -> Iterator[None]:
        return self

    def __next__(self) -> None:
        builder = current("While()")
        if self._region is None:
            self._top, self._end = builder.label("while"), builder.label("done")
            builder.place(self._top)
            self._region = builder.open("loop")
            self._region.known.clear()
            _leave_unless(builder, self._condition(), self._end)
            return
        builder.close(self._region)
        builder.add("bra", (Symbol(self._top),))
        builder.place(self._end)
        builder.region.known.clear()
        raise StopIteration


def _leave_unless(builder: Builder, condition: Value, target: str) -> None:
    operand = condition.read()
    if condition.literal is not None:
        if not condition.literal:
            builder.add("bra", (Symbol(target),))
        return
    assert isinstance(operand, Register)
    builder.add("bra", (Symbol(target),), Guard(operand, negated=True))


def _branch(builder: Builder, condition: Value, target: str) -> None:
    operand = condition.operand
    if condition.literal is not None:
        if condition.literal:
            builder.add("bra", (Symbol(target),))
        return
    assert isinstance(operand, Register)
    builder.add("bra", (Symbol(target),), Guard(operand))


class _Branch:
    """What `otherwise` continues."""

    def __init__(self, condition: Value, end: str) -> None:
        self.condition, self.end = condition, end
        self.position = -1


_LAST: dict[int, _Branch] = {}


@contextmanager
def when(condition: Value) -> Iterator[None]:
    """The device's `if`."""
    if condition.type != "pred":
        raise Diag.TYPE_MISMATCH.error(here(), what=f"when() of a .{condition.type}; compare it first")
    builder = current("when()")
    branch = _Branch(condition, builder.label("endif"))
    position = len(builder.body)
    _leave_unless(builder, condition, branch.end)
    region = builder.open("branch")
    yield
    builder.close(region)
    builder.place(branch.end)
    _predicate(builder, position, condition)
    branch.position = len(builder.body)
    _LAST[id(builder)] = branch


@contextmanager
def otherwise() -> Iterator[None]:
    """The device's `else`: directly behind a `when`."""
    builder = current("otherwise()")
    branch = _LAST.get(id(builder))
    if branch is None or branch.position != len(builder.body):
        raise Diag.OTHERWISE_WITHOUT_WHEN.error(here())
    with when(~branch.condition):
        yield


def _predicate(builder: Builder, position: int, condition: Value) -> None:
    """Turn a short branch into guarded instructions."""
    guard = condition.operand
    branch, *inside, end = builder.body[position:]
    if not isinstance(guard, Register) or not isinstance(branch, Instruction) or len(inside) > _PREDICATED:
        return
    for statement in inside:
        if not isinstance(statement, Instruction) or statement.guard is not None:
            return
        rows = match(statement.opcode)
        if statement.opcode.startswith(("bra", "brx", "ret")) or any(row.blocks for row, _ in rows):
            return
    builder.body[position:] = [replace(s, guard=Guard(guard)) for s in inside if isinstance(s, Instruction)]
    assert end is not None
