"""PTX instructions as Python calls, typed by the instruction table.

`emit("mbarrier.init.shared::cta.b64", At(address), 1)` writes one instruction; the results that its row declares come
back as values. What the table does not know, or takes otherwise, is an error at the author's line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from warploom.diagnostics import Diag
from warploom.hardware.fragments import MATRIX_MOVES, TENSOR_MOVES
from warploom.host.tensor_map import BoxGeometry
from warploom.ptx.isa.table import BITS, Form, Slot, match, nearest
from warploom.ptx.syntax.model import (
    Address,
    Guard,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from warploom.trace.builder import Region, current, here
from warploom.trace.language.types import TYPES, Number
from warploom.trace.language.values import Value, check_scope, compute, literal, operand_of
from warploom.trace.language.variables import Variable

RESULTS = ("out", "pair", "outs")


@dataclass(frozen=True, slots=True)
class At:
    """A place in memory: a base address, or the name of a variable, and a byte offset; or a box of a tensor."""

    base: Value | str
    offset: int = 0
    coordinates: tuple[Value | int, ...] | None = None
    of: Any = field(default=None, compare=False, repr=False)
    """The view that begins here, or the tensor map of a box: a copy between the two is checked while tracing."""

    def __add__(self, bytes_: int) -> At:
        return At(self.base, self.offset + bytes_, self.coordinates)

    @property
    def address(self) -> Value:
        """The address as a value."""
        base = Value("u32", Symbol(self.base)) if isinstance(self.base, str) else self.base
        return base + self.offset


Argument = Value | Number | At | Sequence["Value | Number"] | None


def emit(
    opcode: str, *arguments: Argument, count: int | None = None, guard: Value | None = None, discard: bool = False
) -> tuple[Value, ...]:
    """Emit one instruction with its inputs in order; None leaves an optional one out. Return the results.

    `count` is the length of a list of results where the opcode does not say it. A list that is read and written takes
    variables. `discard` writes `_` for results that are not needed.
    """
    builder = current(f"`{opcode}`")
    rows = match(opcode)
    if not rows:
        raise Diag.UNKNOWN_INSTRUCTION.error(here(), text=opcode, nearest=nearest(opcode))
    given = [argument for argument in arguments if argument is not None]
    if ".tensor" in opcode:
        verify_box(opcode, given)
    if opcode.startswith(_OF_ONE_THREAD) and guard is None:
        verify_issuer(opcode)
    form, modifiers = next(((row, m) for row, m in rows if _accepts(row, given)), rows[0])
    results: list[Value] = []
    operands: list[Operand] = []
    left = iter(given)
    for slot in form.slots:
        type_ = (modifiers.get(slot.type[1:-1]) or "") if slot.type.startswith("{") else slot.type
        if slot.kind in RESULTS:
            operands.append(Sink() if discard else _result(slot, type_, count or _length(form, modifiers), results))
            continue
        argument = next(left, None)
        if argument is not None:
            operands.append(_operand(slot, type_, argument))
    operands += [_operand(form.slots[-1], "", argument) for argument in left] if form.slots else []
    builder.add(opcode, tuple(operands), _guard(guard))
    for argument in given:
        for item in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(item, Variable):
                item.written()
    return tuple(results)


_OF_ONE_THREAD = ("tcgen05.mma.", "tcgen05.commit.", "tcgen05.cp.")
"""Instructions that act once for each thread that executes them."""


def verify_issuer(opcode: str) -> None:
    """Raise an error if every lane of a role's warps executes an instruction that is for one thread."""
    for region in current().region.chain():
        if region.kind == "branch" and not _is_uniform(region):  # it may hold in one lane
            return
        if region.kind == "role":
            raise Diag.ISSUED_BY_EVERY_LANE.error(here(), what=".".join(opcode.split(".")[:2]), role=region.role)


_OF_THE_CTA = ("%ctaid", "%nctaid", "%cluster", "%ntid", "%nwarpid")
_UNIFORM, _OF_ONE_LANE = "ld.param.", "shfl.sync.idx."
_PURE = (
    "mov.",
    "setp.",
    "and.",
    "or.",
    "xor.",
    "not.",
    "add.",
    "sub.",
    "mul.",
    "mad.",
    "shl.",
    "shr.",
    "selp.",
    "cvt.",
)


def _is_uniform(branch: Region) -> bool:
    """Return True if every lane is known to take a branch: its condition is of the CTA, of parameters or broadcast."""
    if branch.uniform is None:
        branch.uniform = branch.condition is not None and _is_same_in_every_lane(branch.condition)
    return branch.uniform


def _is_same_in_every_lane(condition: Value) -> bool:
    written: dict[Operand, list[Instruction]] = {}
    for each in current().statements[0]:
        if isinstance(each, Instruction) and each.operands:
            first = each.operands[0]
            written.setdefault(first.first if isinstance(first, Pair) else first, []).append(each)
    left, seen = [condition.operand], set[Operand]()
    while left:
        operand = left.pop()
        if operand in seen or isinstance(operand, Immediate):
            continue
        seen.add(operand)
        if isinstance(operand, Special):
            if not operand.name.startswith(_OF_THE_CTA):
                return False
            continue
        writes = written.get(operand, ())
        if len(writes) != 1 or writes[0].guard is not None:  # another write may be in some lanes only
            return False
        if writes[0].opcode.startswith(_PURE):
            left += writes[0].operands[1:]
        elif writes[0].opcode.startswith(_OF_ONE_LANE):
            left.append(writes[0].operands[2])  # the lane that is read: a broadcast if all lanes name the same
        elif not writes[0].opcode.startswith(_UNIFORM):
            return False
    return True


def verify_box(opcode: str, arguments: Sequence[Any]) -> None:
    """Raise an error if a tensor copy moves a box of a map to or from a shared array that is laid out otherwise."""
    places = [each for each in arguments if isinstance(each, At) and each.of is not None]
    box = next((each.of for each in places if each.coordinates is not None), None)
    view = next((each.of for each in places if each.coordinates is None and each.of.space == "shared"), None)
    if box is None or view is None or any(word in opcode for word in ("gather4", "scatter4", ".prefetch.")):
        return
    problems = list(_box_problems(box.geometry, view))
    if problems:
        raise Diag.BOX_MISMATCH.error(here(), map=box.name, array=view.name or "array", what="; ".join(problems))


def _box_problems(box: BoxGeometry, view: Any) -> Iterator[str]:
    if box.interleave != "none" or box.element.padded:
        return
    row = TYPES[view.dtype]
    raw = row.kind == "unsigned" or box.element.name.startswith("u") or box.element.packed
    name = _ELEMENT_NAMES.get(box.element.name, box.element.name)
    if not raw and name != view.dtype:
        yield f"the map has elements of {box.element.name}, the array of {view.dtype}"
    elif not box.element.packed and row.bytes not in (1, box.element.shared_bytes):
        yield f"the map has elements of {box.element.shared_bytes} bytes, the array of {row.bytes}"
    if box.swizzle.name != view.swizzle.name:
        yield f"the map has swizzle {box.swizzle.name}, the array {view.swizzle.name}"
    rows = [row.bytes * prod(view.shape[axis:]) for axis in range(len(view.shape))]
    whole = box.pitch * prod(box.box[:-1])
    if rows[0] != whole or (len(view.shape) > 1 and box.pitch not in rows):
        pad = f" in rows of {box.pitch} bytes" if box.pitch != box.row_bytes else ""
        mapped = f"the map has boxes of {box.box}, which take {whole} bytes{pad}"
        yield f"{mapped}, the array has {view.shape}, {rows[0]} bytes"


_ELEMENT_NAMES = {"i32": "s32", "i64": "s64", "f32_ftz": "f32", "tf32": "f32", "tf32_ftz": "f32"}
"""Types of tensor maps whose elements are called otherwise in shared memory."""


def load_into(variable: Variable, opcode: str, place: At, condition: Value) -> None:
    """A load into a variable, which stays as it is where a condition does not hold."""
    current(f"`{opcode}`").add(opcode, (variable.register, _address(place)), _guard(condition))
    variable.written()


def _accepts(form: Form, given: list[Any]) -> bool:
    inputs = [slot for slot in form.slots if slot.kind not in RESULTS]
    needed = sum(not slot.optional for slot in inputs)
    if not needed <= len(given) <= len(inputs):
        return False
    return needed != len(given) or all(
        suits(slot, argument)
        for slot, argument in zip([slot for slot in inputs if not slot.optional], given, strict=True)
    )


def suits(slot: Slot, argument: Any) -> bool:
    """Return whether the Python type of an argument suits a slot."""
    if slot.kind in ("ins", "rows"):
        return isinstance(argument, list | tuple)
    if slot.kind in ("address", "tensor"):
        return isinstance(argument, At) and (argument.coordinates is not None) == (slot.kind == "tensor")
    return not isinstance(argument, list | tuple | At)


def _length(form: Form, modifiers: dict[str, str | None]) -> int:
    """Return how many registers a list of results has, from the words of the opcode."""
    vector, repeats, shape = modifiers.get("vec"), modifiers.get("count"), modifiers.get("shape") or ""
    if vector:
        return int(vector[1:])
    if not repeats:
        return 1
    move = TENSOR_MOVES.get(shape)
    each = move.registers if move else next((m.registers for key, m in MATRIX_MOVES.items() if key[0] == shape), 1)
    return int(repeats[1:]) * each


def _result(slot: Slot, type_: str, count: int, results: list[Value]) -> Operand:
    """New registers for a slot; what the table knows as bits only, or packed, comes back as an unsigned integer."""
    builder = current()

    def fresh(name: str) -> Register:
        typed = name if name in TYPES else f"u{max(BITS[name or 'b32'], 16)}"
        register = builder.register(typed)
        results.append(Value(typed, register, builder.region))
        return register

    if slot.kind == "outs":
        return Vector(tuple(fresh(type_) for _ in range(count)))
    if slot.kind == "pair" and type_ != "pred":
        return Pair(fresh(type_), fresh("pred"))
    return fresh(type_)


def _operand(slot: Slot, type_: str, argument: Argument) -> Operand:
    if isinstance(argument, At):
        return _address(argument)
    if isinstance(argument, list | tuple):
        return Vector(tuple(_item(slot, type_, item) for item in argument))
    operand: Operand = _item(slot, type_, argument)
    return operand


def _address(place: At) -> Address:
    base = Symbol(place.base) if isinstance(place.base, str) else place.base.read()
    if isinstance(base, Immediate):
        return Address(Immediate(base.value + place.offset))
    if not isinstance(base, Register | Symbol):
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`{base}` is not an address")
    items = place.coordinates
    slot = Slot("in", "coordinate")
    vector = None if items is None else Vector(tuple(_item(slot, "s32", item) for item in items))
    return Address(base, place.offset, vector)


def _item(slot: Slot, type_: str, item: Any) -> Any:
    if isinstance(item, Variable) and slot.kind in ("rows", "inout"):
        check_scope(item.region)
        return item.register
    if isinstance(item, Value):
        operand = operand_of(item)
        if isinstance(operand, Special | Symbol) and slot.kind in ("ins", "rows"):
            return compute(f"mov.{item.type}", item.type, item).operand
        return operand
    if isinstance(item, float):
        if type_ not in TYPES or TYPES[type_].kind != "float":
            raise Diag.TYPE_MISMATCH.error(
                here(), what=f"the number {item} for {slot.name}, which is .{type_ or 'b32'}"
            )
        return operand_of(literal(item, type_))
    if isinstance(item, int):
        return Immediate(int(item))
    raise Diag.TYPE_MISMATCH.error(here(), what=f"{item!r:.60} cannot be an operand")


def _guard(condition: Value | None) -> Guard | None:
    if condition is None:
        return None
    operand = condition.read()
    if condition.type != "pred" or not isinstance(operand, Register):
        raise Diag.TYPE_MISMATCH.error(here(), what="a guard is a predicate that only the device knows")
    return Guard(operand)
