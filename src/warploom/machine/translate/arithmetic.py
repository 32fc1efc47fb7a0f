"""Translation of arithmetic into Python source.

Where every operand is uniform the result is a Python expression; short forms are calls of ufuncs, the last of them into
the destination row; everything else calls a function. All three are made from the semantics of the form.
"""

from __future__ import annotations

from typing import Any

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.semantics.array_text import Call, Leaf
from warploom.machine.semantics.functions import scalar_text, short
from warploom.machine.translate.expressions import BITS, Writer, kind_of, literal
from warploom.machine.translate.functions import fixed, on_arrays, on_scalars
from warploom.ptx.isa.table import Op, Slot
from warploom.ptx.syntax.model import Immediate, Pair, Register, Sink, Vector

_WHOLE = frozenset({"u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64"})
FAMILIES = frozenset(
    [
        "add",
        "sub",
        "mul",
        "mad",
        "mul24",
        "mad24",
        "sad",
        "div",
        "rem",
        "abs",
        "neg",
        "min",
        "max",
        "popc",
        "clz",
        "bfind",
        "brev",
        "bfe",
        "bfi",
        "fns",
        "bmsk",
        "szext",
        "prmt",
        "dp4a",
        "dp2a",
        *(f"v{name}{count}" for name in ("add", "sub", "avrg", "absdiff", "min", "max", "set") for count in (2, 4)),
        "and",
        "or",
        "xor",
        "not",
        "cnot",
        "lop3",
        "shl",
        "shr",
        "shf",
        "fma",
        "add.mixed",
        "sub.mixed",
        "mul.mixed",
        "fma.mixed",
        "rcp",
        "sqrt",
        "rsqrt",
        "ex2",
        "lg2",
        "sin",
        "cos",
        "tanh",
        "copysign",
        "testp",
        "setp",
        "set",
        "selp",
        "slct",
        "mov",
        "cvt",
        "cvt.pair",
        "cvt.pack",
    ]
)


def write(w: Writer, op: Op) -> None:
    """Write one arithmetic instruction."""
    slots = [
        slot
        for slot in op.form.slots
        if slot.kind in ("in", "pred", "immediate") and op.operands[slot.name] is not None
    ]
    out = op.operands["d"]
    if op.family == "setp":
        _setp(w, op)
        return
    if all(w.uniform(op.operands[slot.name]) for slot in slots):
        w.put_scalar(out, _scalar(w, op, slots))
    elif not _inline(w, op, slots):
        _call(w, op, slots, out)


def signature_of(op: Op) -> dict[str, Any]:
    """The modifiers of an instruction, without those that are absent."""
    return {name: text for name, text in op.modifiers.items() if text is not None}


def _bits_out(op: Op) -> int:
    slot = op.form.slots[0]
    return BITS[op.type_of(slot)]


def _call(w: Writer, op: Op, slots: list[Slot], out: object) -> None:
    types = tuple(type_of(op, slot) for slot in slots)
    literals = tuple(_literal(op.operands[slot.name], type_) for slot, type_ in zip(slots, types, strict=True))
    function = w.names.function(on_arrays(op.family, signature_of(op), types, literals))
    given = [slot for slot, literal in zip(slots, literals, strict=True) if literal is None]
    arguments = ", ".join(_argument(w, op, slot) for slot in given)
    type_ = op.type_of(op.form.slots[0])
    if isinstance(out, Register) and kind_of(type_) == "s" and BITS[type_] < w.place(out).bits:
        where = f", where={w.mask}" if w.mask else ""
        w.emit(f"copyto({w.names.row(w.place(out), 's')}, {function}({arguments}).view(int{BITS[type_]}){where})")
    else:
        w.put_array(out, f"{function}({arguments})", _bits_out(op))


def type_of(op: Op, slot: Slot) -> str:
    """The type of an operand, empty for one that can only be a literal."""
    if slot.kind == "immediate":
        return ""
    return "pred" if slot.kind == "pred" else op.type_of(slot)


def _literal(operand: object, type_: str) -> int | None:
    """The bits of an integer literal, for which a function of its own is made; None for other operands."""
    if not isinstance(operand, Immediate) or (type_ and type_ not in _WHOLE):
        return None
    return literal(operand, type_) if type_ else operand.value


def _argument(w: Writer, op: Op, slot: Slot) -> str:
    type_ = type_of(op, slot)
    return w.array(op.operands[slot.name], type_, "p" if type_ == "pred" else "u")


def _scalar(w: Writer, op: Op, slots: list[Slot]) -> str:
    """A Python expression for the result of uniform operands."""
    if op.family in ("mov", "cvta"):
        return w.scalar(op.operands[slots[0].name], op["type"])
    types = tuple(type_of(op, slot) for slot in slots)
    result = _scalar_text(w, op.family, signature_of(op), types, [op.operands[slot.name] for slot in slots])
    out, type_ = op.operands["d"], op.type_of(op.form.slots[0])
    if isinstance(out, Register) and kind_of(type_) == "s" and BITS[type_] < w.place(out).bits:
        top = 1 << (BITS[type_] - 1)
        return f"((({result} ^ {top}) - {top}) & {(1 << w.place(out).bits) - 1})"
    return result


def _scalar_text(
    w: Writer, family: str, signature: dict[str, Any], types: tuple[str, ...], operands: list[object]
) -> str:
    """The semantics of a form on uniform operands: a short expression, or the call of a function."""
    literals = tuple(_literal(operand, type_) for operand, type_ in zip(operands, types, strict=True))
    given = [
        w.scalar(operand, type_)
        for operand, type_, known in zip(operands, types, literals, strict=True)
        if known is None
    ]
    text = scalar_text(family, signature, types, literals, given)
    if text is not None:
        return text
    return f"{w.names.function(on_scalars(family, signature, types, literals))}({', '.join(given)})"


def _inline(w: Writer, op: Op, slots: list[Slot]) -> bool:
    """One ufunc, or a few, straight into the destination row, where the form is as short."""
    out = op.operands["d"]
    if not isinstance(out, Register):
        return False
    if op.family == "mov":
        type_ = op["type"]
        w.put_array(out, w.array(op.operands["a"], type_, "p" if type_ == "pred" else "u"), BITS[type_])
        return True
    found = short_of(op, slots)
    if found is None or (isinstance(found, Call) and found.bits != w.place(out).bits):
        return False
    if isinstance(found, Leaf):
        return _move(w, op, slots[int(found.name[1:])], out, found.kind)
    where = f", where={w.mask}" if w.mask else ""
    given = [(op.operands[slot.name], type_of(op, slot)) for slot in slots]
    if found.name == "select":
        w.put_array(out, _text(w, given, found), found.bits)
        return True
    target = w.names.row(w.place(out), found.kind)
    w.emit(_text(w, given, found, f", out={target}", where))
    if found.settles:
        # Squares never cancel: their sum is NaN only if a term is, in whatever order BLAS adds them.
        settle = w.names.function(fixed("settle_nan"))
        w.emit(f"if isnan({target}.dot({target})): {settle}({target}, {w.mask or None})")
    return True


def short_of(op: Op, slots: list[Slot]) -> Leaf | Call | None:
    """The calls of NumPy that an instruction is, if its form is short."""
    types = tuple(type_of(op, slot) for slot in slots)
    if not all(type_ == "pred" or not type_ or type_ in ELEMENT_TYPES for type_ in types):
        return None
    literals = tuple(_literal(op.operands[slot.name], type_) for slot, type_ in zip(slots, types, strict=True))
    return short(op.family, _plain(op) if op.family == "setp" else signature_of(op), types, literals)


def _text(w: Writer, given: list[tuple[object, str]], part: Leaf | Call, out: str = "", where: str = "") -> str:
    """The text of calls on operands, each with its type."""
    if isinstance(part, Call):
        dtype = f", dtype={part.dtype}" if part.dtype else ""
        operands = ", ".join(_text(w, given, each) for each in part.operands)
        return f"{part.name}({operands}{out}{dtype}{where})"
    if not part.name:
        return w.names.constant(part.literal, part.kind, part.bits)
    operand, type_ = given[int(part.name[1:])]
    return w.array(operand, type_, part.kind)


def _move(w: Writer, op: Op, slot: Slot, out: Register, kind: str) -> bool:
    """An operand in another width: extended by its sign if the kind is `s`."""
    destination, source = op.type_of(op.form.slots[0]), type_of(op, slot)
    place, operand = w.place(out), op.operands[slot.name]
    if BITS[destination] != place.bits:
        return False
    where = f", where={w.mask}" if w.mask else ""
    if BITS[source] < BITS[destination]:
        w.emit(f"copyto({w.names.row(place, kind)}, {w.array(operand, source, kind)}{where})")
    elif (
        isinstance(operand, Register)
        and w.place(operand).file not in "up"
        and w.place(operand).bits > BITS[destination]
    ):
        w.emit(f"copyto({w.names.row(place)}, {w.names.half(w.place(operand), 0, place.bits)}{where})")
    else:
        w.emit(f"copyto({w.names.row(place)}, {w.array(operand, source, 'u')}{where})")
    return True


def _setp(w: Writer, op: Op) -> None:
    """Compare; with `|` a second predicate takes the negated comparison, both combined with c where one is given."""
    type_ = op["type"]
    d = op.operands["d"]
    first, second = (d.first, d.second) if isinstance(d, Pair) else (d, Sink())
    a, b = op.operands["a"], op.operands["b"]
    if type_ in ("f16x2", "bf16x2"):
        _setp_packed(w, op, first, second)
        return
    if w.uniform(a) and w.uniform(b):
        raw, uniform = _scalar_text(w, "setp", _plain(op), (type_, type_), [a, b]), True
    elif (found := short_of(op, [slot for slot in op.form.slots if slot.name in ("a", "b")])) is not None:
        given = [(a, type_), (b, type_)]
        if isinstance(first, Register) and isinstance(second, Sink) and not op["bool"] and w.place(first).file != "u":
            where = f", where={w.mask}" if w.mask else ""
            w.emit(_text(w, given, found, f", out={w.names.row(w.place(first))}", where))
            return
        raw, uniform = _text(w, given, found), False
    else:
        function = w.names.function(on_arrays("setp", _plain(op), (type_, type_)))
        raw, uniform = f"{function}({w.array(a, type_, 'u')}, {w.array(b, type_, 'u')})", False
    _combine(w, op, raw, uniform, first, second)


def _setp_packed(w: Writer, op: Op, first: object, second: object) -> None:
    """Two comparisons at once: of the low halves into the first predicate, of the high halves into the second."""
    function = w.names.function(on_arrays("setp", _plain(op), (op["type"],) * 2))
    operator = {"and": "&", "or": "|", "xor": "^", "": ""}[op["bool"]]
    c = op.operands.get("c")
    w.emit(f"x0, x1 = {function}({', '.join(w.array(op.operands[name], op['type'], 'u') for name in 'ab')})")
    other = "" if c is None else f" {operator} {w.array(c, 'pred')}"
    for target, name in ((first, "x0"), (second, "x1")):
        if isinstance(target, Register) and w.place(target).file == "u":
            w.emit(f"u[{w.place(target).index}] = bool(({name}{other})[0])")
        elif isinstance(target, Register):
            w.put_array(target, f"({name}{other})", 1)


def _plain(op: Op) -> dict[str, Any]:
    return {name: text for name, text in signature_of(op).items() if name != "bool"}


def _combine(w: Writer, op: Op, raw: str, uniform: bool, first: object, second: object) -> None:
    operator = {"and": "&", "or": "|", "xor": "^", "": ""}[op["bool"]]
    c = op.operands.get("c")
    flat = uniform and (c is None or w.uniform(c))
    w.emit(f"x = {raw}")
    if not flat and uniform:
        w.emit("x = full(W, x)")
    other = "" if c is None else f" {operator} {w.scalar(c, 'pred') if flat else w.array(c, 'pred')}"
    results = [(first, f"(x{other})"), (second, f"((not x){other})" if flat else f"(logical_not(x){other})")]
    targets = [(target, text) for target, text in results if isinstance(target, Register)]
    if len(targets) == 2:
        for at, (_, text) in enumerate(targets):
            w.emit(f"x{at} = {text}")
        targets = [(target, f"x{at}") for at, (target, _) in enumerate(targets)]
    for target, text in targets:
        (w.put_scalar if flat else lambda o, t: w.put_array(o, t, 1))(target, text)


def write_pack(w: Writer, op: Op) -> None:
    """`mov.b64 %rd, {%r1, %r2}`: the first item is the lowest."""
    vector, out = op.operands["a"], op.operands["d"]
    assert isinstance(vector, Vector)
    total = BITS[op["type"]]
    bits = total // len(vector.items)
    if isinstance(out, Sink):
        return
    assert isinstance(out, Register)
    place = w.place(out)
    if place.file == "u":
        parts = [f"({w.scalar(item, f'b{bits}')} << {bits * i})" for i, item in enumerate(vector.items)]
        w.emit(f"u[{place.index}] = {' | '.join(parts)}")
        return
    where = f", where={w.mask}" if w.mask else ""
    sources = [w.array(item, f"b{bits}", "u") for item in vector.items]
    overlap = any(isinstance(item, Register) and w.place(item) == place for item in vector.items)
    for part, source in enumerate(sources):
        w.emit(f"copyto({w.names.half(place, part, bits)}, {source}{'.copy()' if overlap else ''}{where})")


def write_unpack(w: Writer, op: Op) -> None:
    """`mov.b64 {%r1, %r2}, %rd`."""
    vector, source = op.operands["d"], op.operands["a"]
    assert isinstance(vector, Vector)
    total = BITS[op["type"]]
    bits = total // len(vector.items)
    if w.uniform(source):
        w.emit(f"x = {w.scalar(source, op['type'])}")
        for part, item in enumerate(vector.items):
            w.put_scalar(item, f"(x >> {bits * part}) & {(1 << bits) - 1}")
        return
    where = f", where={w.mask}" if w.mask else ""
    if isinstance(source, Register) and w.place(source).bits == total:
        parts = [w.names.half(w.place(source), part, bits) for part in range(len(vector.items))]
    else:
        w.emit(f"x = {w.array(source, op['type'], 'u')}.view(uint{bits})")
        parts = [f"x[{part}::{len(vector.items)}]" for part in range(len(vector.items))]
    for view, item in zip(parts, vector.items, strict=True):
        if isinstance(item, Register) and w.place(item).file == "u":
            w.emit(f"u[{w.place(item).index}] = {view}[{'M.argmax()' if w.masked else 0}].item()")
        elif isinstance(item, Register):
            w.emit(f"copyto({w.names.row(w.place(item))}, {view}{where})")
