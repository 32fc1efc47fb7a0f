"""PTX instructions as Python calls, typed by the instruction table.

`emit("mbarrier.init.shared::cta.b64", address, 1)` writes one instruction; the results that its row declares come back as
values. What the table does not know, or takes otherwise, is an error at the author's line.
"""

from __future__ import annotations

from dataclasses import dataclass

from warploom.diagnostics import Diag
from warploom.ptx.isa.table import Form, Op, Slot, match, nearest
from warploom.ptx.model import Address, Guard, Immediate, Operand, Pair, Register, Sink, Symbol, Vector
from warploom.trace.builder import current, here
from warploom.trace.values import Number, Value

_RESULTS = ("out", "pair", "outs")


@dataclass(frozen=True, slots=True)
class At:
    """A place in memory: a base address and a byte offset, with the coordinates of a tensor where it is one."""

    base: Value | str
    offset: int = 0
    coordinates: tuple[Value | int, ...] | None = None


Argument = Value | Number | At | list["Value"] | tuple["Value | Number", ...] | None


def emit(opcode: str, *arguments: Argument, count: int = 1, guard: Value | None = None) -> tuple[Value, ...]:
    """One instruction; `count` is the length of a list of results."""
    builder = current(f"`{opcode}`")
    rows = match(opcode)
    if not rows:
        raise Diag.UNKNOWN_INSTRUCTION.error(here(), text=opcode, nearest=nearest(opcode))
    form, modifiers = next(((f, m) for f, m in rows if _accepts(f, len(arguments))), rows[0])
    reading = Op(None, form, modifiers, {})  # type: ignore[arg-type]
    results: list[Value] = []
    operands: list[Operand] = []
    given = iter(arguments)
    for slot in form.slots:
        if slot.kind in _RESULTS:
            operands.append(_result(slot, reading.type_of(slot), count, results))
            continue
        argument = next(given, None)
        if argument is None:
            continue
        operands.append(_operand(slot, argument))
    builder.add(opcode, tuple(operands), _guard(guard))
    return tuple(results)


def _accepts(form: Form, arguments: int) -> bool:
    inputs = [slot for slot in form.slots if slot.kind not in _RESULTS]
    return sum(not slot.optional for slot in inputs) <= arguments <= len(inputs)


def _result(slot: Slot, type_: str, count: int, results: list[Value]) -> Operand:
    builder = current()
    register_type = type_ or "b32"

    def fresh(kind: str) -> Register:
        register = builder.register(_REGISTER_OF.get(kind, kind))
        results.append(Value(kind, register, builder.region))
        return register

    if slot.kind == "outs":
        return Vector(tuple(fresh(register_type) for _ in range(count)))
    if slot.kind == "pair":
        if register_type == "pred":
            return fresh("pred")
        return Pair(fresh(register_type), fresh("pred"))
    return fresh(register_type)


_REGISTER_OF = {"s16": "b16", "u16": "b16", "s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64", "f16x2": "b32", "bf16x2": "b32", "b8": "b16", "u8": "b16", "s8": "b16"}


def _operand(slot: Slot, argument: Argument) -> Operand:
    match argument:
        case Value():
            operand = argument.read()
            if slot.kind == "address":
                return Address(operand) if isinstance(operand, Register | Symbol | Immediate) else Address(_moved(argument))
            return operand
        case At(base, offset, coordinates):
            root = Symbol(base) if isinstance(base, str) else base.read()
            vector = None if coordinates is None else Vector(tuple(_item(c) for c in coordinates))
            if not isinstance(root, Register | Symbol | Immediate):
                raise Diag.TYPE_MISMATCH.error(here(), what=f"`{root}` is not an address")
            return Address(root, offset, vector)
        case list() | tuple():
            return Vector(tuple(_item(item) for item in argument))
        case bool() | int():
            return Immediate(int(argument))
        case float():
            raise Diag.TYPE_MISMATCH.error(here(), what=f"the number {argument} needs a type: literal(number, type)")
    return Sink()


def _moved(value: Value) -> Register:
    raise Diag.TYPE_MISMATCH.error(here(), what=f"`{value.operand}` is not an address")


def _item(value: Value | Number) -> Register | Immediate:
    if isinstance(value, Value):
        operand = value.read()
        if isinstance(operand, Register | Immediate):
            return operand
    elif not isinstance(value, float):
        return Immediate(int(value))
    raise Diag.TYPE_MISMATCH.error(here(), what=f"{value!r} cannot stand in a list")


def _guard(condition: Value | None) -> Guard | None:
    if condition is None:
        return None
    operand = condition.read()
    if condition.type != "pred" or not isinstance(operand, Register):
        raise Diag.TYPE_MISMATCH.error(here(), what="a guard is a predicate that only the device knows")
    return Guard(operand)
