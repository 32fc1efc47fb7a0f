"""Device control flow as Python statements: `loop`, `While`, `when` and `otherwise`.

`for k in loop(n)` runs its body once while tracing and n times on the device; `range` unrolls. Loops are iterators that
do nothing when Python closes them: a loop left by `break` stays open, which the end of the kernel notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from warploom.diagnostics import Diag
from warploom.ptx.syntax.model import Guard, Register, Symbol
from warploom.trace.builder import Builder, current, here
from warploom.trace.language.types import TYPES, Number
from warploom.trace.language.values import Value, compare, is_nonnegative, mark_nonnegative, unified, valued
from warploom.trace.language.variables import Variable
from warploom.trace.passes.hoisting import Landings


def loop(*bounds: Value | Number, step: int = 1, unroll: int = 1, peel: int = 0) -> Iterator[Value]:
    """Repeat the body on the device: `loop(stop)` or `loop(start, stop)`; yields the index.

    `unroll` puts that many copies of the body in one iteration, and the remainder after the loop. `peel` takes the
    first iterations out of the loop; their indices are known.
    """
    current("loop()")
    typed = next((side for side in bounds if isinstance(side, Value)), None)
    problems = [
        *([f"loop() with {len(bounds)} bounds"] if len(bounds) not in (1, 2) else []),
        *(["a loop with step 0"] if step == 0 else []),
        *([f"unroll={unroll}"] if unroll < 1 else []),
        *([f"peel={peel}"] if peel < 0 else []),
        *([f"a loop over .{typed.type}"] if typed is not None and not _counts(typed.type) else []),
        *(["a loop over floats"] if any(isinstance(side, float) for side in bounds) else []),
    ]
    if problems:
        raise Diag.TYPE_MISMATCH.error(here(), what="; ".join(problems))
    type_ = typed.type if typed is not None else "s32"
    sides = [valued(side, type_).get() for side in bounds]
    if len(sides) == 1:
        sides.insert(0, valued(0, sides[0].type))
    if sides[0].type != sides[1].type:
        sides = list(unified("loop", *sides))
    return _Loop(sides[0], sides[1], step, unroll).turns(peel)


def _counts(type_: str) -> bool:
    return TYPES[type_].kind in ("signed", "unsigned") and TYPES[type_].bits >= 16


@dataclass(frozen=True)
class _Loop:
    """A loop with its bounds."""

    start: Value
    stop: Value
    step: int
    unroll: int

    @property
    def trips(self) -> int | None:
        """The trip count, if it is known."""
        start, stop = self.start.literal, self.stop.literal
        if start is None or stop is None:
            return None
        return len(range(int(start), int(stop), self.step))

    def turns(self, peel: int) -> Iterator[Value]:
        builder = current("loop()")
        start, trips = self.start, self.trips
        for _ in range(peel if trips is None else min(peel, trips)):
            yield from self._peeled(builder, start)
            start = start + self.step
        rest = _Loop(start, self.stop, self.step, self.unroll)
        if rest.trips is None:
            if self.unroll > 1:
                yield from rest._unrolled_unknown(builder)
            else:
                yield from rest._device(builder, start, self.stop, 1)
            return
        whole = rest.trips - rest.trips % self.unroll
        middle = start + whole * self.step
        if whole:
            yield from rest._device(builder, start, middle, self.unroll)
        for number in range(rest.trips - whole):
            region = builder.open("loop turn")
            yield middle + number * self.step
            builder.close(region)

    def _peeled(self, builder: Builder, index: Value) -> Iterator[Value]:
        if self.trips is not None:
            region = builder.open("loop turn")
            yield index
            builder.close(region)
            return
        with when(self._more(index, self.stop)):
            yield index

    def _unrolled_unknown(self, builder: Builder) -> Iterator[Value]:
        """Run unrolled iterations while `unroll` steps fit, then the rest one by one."""
        index = Variable(self.start.type, self.start)
        yield from self._device(builder, index, self.stop, self.unroll, ahead=(self.unroll - 1) * self.step)
        yield from self._device(builder, index, self.stop, 1)

    def _device(self, builder: Builder, start: Value, stop: Value, copies: int, ahead: int = 0) -> Iterator[Value]:
        """A loop on the device, `copies` of the body in each iteration; `ahead` is how far the last of them looks."""
        index = start if isinstance(start, Variable) else Variable(start.type, start)
        top, end = builder.label("loop"), builder.label("done")
        once = _Loop(start, stop, self.step * copies, 1).trips == 1
        entered = self._more((index.get() if start.literal is None else start) + ahead, stop)
        before = len(builder.body)
        if entered.literal is None:
            leave_unless(builder, entered, end)
        builder.place(top)
        region = builder.open("loop")
        Landings.of(builder).open(region, before)
        held = start if once else index.get()
        for copy in range(copies):
            turn = builder.open("loop turn")
            at = held + copy * self.step
            if self.step > 0 and is_nonnegative(self.start):
                mark_nonnegative(at)
            yield at
            builder.close(turn)
        index += copies * self.step
        more = self._more(index.get() + ahead, stop)
        builder.close(region)
        if not once:
            branch(builder, more, top)
        builder.place(end)

    def _more(self, index: Value, stop: Value) -> Value:
        return compare("lt" if self.step > 0 else "gt", index, stop)


def While(condition: Callable[[], Value]) -> Iterator[None]:  # noqa: N802 - `while` is a word of Python
    """Repeat the body on the device as long as a condition holds, which is tested before each iteration.

    `for _ in While(lambda: x < 3):` asks again each time, because the condition is a function.
    """
    builder = current("While()")
    top, end = builder.label("while"), builder.label("done")
    before = len(builder.body)
    builder.place(top)
    region = builder.open("loop")
    Landings.of(builder).open(region, before)
    leave_unless(builder, _predicate("While()", condition()), end)
    yield
    builder.close(region)
    builder.add("bra", (Symbol(top),))
    builder.place(end)


def leave_unless(builder: Builder, condition: Value, target: str) -> None:
    """Jump where a condition does not hold."""
    operand = condition.read()
    if isinstance(operand, Register):
        builder.add("bra", (Symbol(target),), Guard(operand, negated=True))
    elif not condition.literal:
        builder.add("bra", (Symbol(target),))


def branch(builder: Builder, condition: Value, target: str) -> None:
    """Jump where a condition holds; a loop's own condition is of its body."""
    operand = condition.operand
    if isinstance(operand, Register):
        builder.add("bra", (Symbol(target),), Guard(operand))
    elif condition.literal:
        builder.add("bra", (Symbol(target),))


def _predicate(what: str, condition: Value | bool) -> Value:
    value = valued(condition, "pred")
    if value.type != "pred":
        raise Diag.TYPE_MISMATCH.error(here(), what=f"{what} of a .{value.type}; compare it first")
    return value


@contextmanager
def when(condition: Value | bool) -> Iterator[None]:
    """The device's `if`. Short bodies without synchronisation become guarded instructions at the end of the trace."""
    builder = current("when()")
    chosen = _predicate("when()", condition)
    end = builder.label("endif")
    leave_unless(builder, chosen, end)
    region = builder.open("branch")
    region.condition = chosen
    yield
    builder.close(region)
    builder.place(end)
    builder.last_branch = (len(builder.body), end)


def unless(condition: Value | bool) -> AbstractContextManager[None]:
    """Run the block where a condition does not hold: the rest of a kernel after `with when(condition): return`."""
    return when(~_predicate("when()", condition))


@contextmanager
def otherwise() -> Iterator[None]:
    """The device's `else`: directly after a `when`."""
    builder = current("otherwise()")
    position, name = builder.last_branch
    if position != len(builder.body):
        raise Diag.OTHERWISE_WITHOUT_WHEN.error(here())
    builder.body.pop()
    builder.ops.pop()
    end = builder.label("endif")
    builder.add("bra", (Symbol(end),))
    builder.place(name)
    region = builder.open("branch")
    yield
    builder.close(region)
    builder.place(end)
