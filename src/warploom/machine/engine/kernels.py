"""Native kernels of arithmetic forms, as LLVM text: one function per form and kind of its operands.

A kernel is `i64 (context, record)`. It works on all lanes, and then jumps to the kernel of the next record. A record is
a sequence of words: the address of its kernel, its number, and one word for each operand: for a row the number of the
row times the bytes of an element, for a scalar its place (`constant_word`, `uniform_word`).

A register that is the same in all lanes is a word of 64 bits: a *uniform*. Arithmetic on uniforms alone is done once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warploom.machine.engine import access_log, context
from warploom.machine.engine.llvm_ops import SCALARS, Host, LlvmOps
from warploom.machine.semantics.forms import semantics
from warploom.machine.semantics.tables import ORDER
from warploom.machine.semantics.vectors import UnsupportedError, Value

HEAD_WORDS = 2
"""Words of a record before its operands: the kernel's address, and the number of the record plus one."""
ROW_TYPES = {"p": "i8", "h": "i16", "a": "i32", "b": "i64", "s": "i32"}
UNIFORM_BYTES = 8


def constant_word(distance: int) -> int:
    """The word of a scalar that lies so many bytes after the record."""
    return distance + 1


def uniform_word(number: int) -> int:
    """The word of a scalar that is a uniform."""
    return UNIFORM_BYTES * number


@dataclass(frozen=True, slots=True)
class Row:
    """An operand in a row of a register file."""

    file: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Scalar:
    """An operand that is the same in all lanes: a constant or a uniform."""

    negated: bool = False


Operand = Row | Scalar
OPERANDS: dict[str, Operand] = {
    **{file: Row(file) for file in "phabs"},
    "n": Row("p", negated=True),
    "k": Scalar(),
    "m": Scalar(negated=True),
}
"""The kinds of operands, each by a letter."""


@dataclass(frozen=True, slots=True)
class Masks:
    """The lanes that take part: those of a guard (one word for its row, one that is 1 to negate it), of the group's
    mask, of both, or all.
    """

    guard: bool = False
    group: bool = False

    @property
    def words(self) -> int:
        return 2 if self.guard else 0

    def __bool__(self) -> bool:
        return self.guard or self.group


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A kernel of an arithmetic form: operands with their types, and results with file, bits and sign."""

    family: str
    modifiers: tuple[tuple[str, str], ...]
    inputs: tuple[tuple[Operand, str], ...]
    outputs: tuple[tuple[str, bool] | None, ...]
    masks: Masks

    @property
    def words(self) -> int:
        return HEAD_WORDS + len(self.inputs) + sum(out is not None for out in self.outputs) + self.masks.words

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        """The kernel, and the tables that it looks up."""
        return _arithmetic(self, name, host)


@dataclass(frozen=True, slots=True)
class UniformArithmetic:
    """A kernel of an arithmetic form whose operands are all scalars: their types, and for each result that is written
    the bits of its register, and whether it is sign-extended to them.
    """

    family: str
    modifiers: tuple[tuple[str, str], ...]
    inputs: tuple[tuple[Scalar, str], ...]
    outputs: tuple[tuple[int, bool] | None, ...]

    @property
    def words(self) -> int:
        return HEAD_WORDS + len(self.inputs) + sum(out is not None for out in self.outputs)

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        """The kernel, and the tables that it looks up."""
        return _uniform_arithmetic(self, name, replace(host, lanes=1))


class Frame:
    """The function around a kernel: it finds the rows of a record before the loop over the lanes."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.entry: list[str] = []
        self._count = 0
        self._known: dict[str, str] = {}

    def emit(self, text: str) -> str:
        """Write an instruction of the entry and name its result."""
        self._count += 1
        name = f"%e{self._count}"
        self.entry.append(f"  {name} = {text}")
        return name

    def once(self, key: str, *texts: str) -> str:
        """Write instructions (each refers to the one before as `{}`) once per function."""
        if key not in self._known:
            found = ""
            for text in texts:
                found = self.emit(text.replace("{}", found))
            self._known[key] = found
        return self._known[key]

    def context(self, word: int, type_: str = "i64") -> str:
        """A word of the context."""
        return self.once(
            f"context {word} {type_}", f"getelementptr i64, ptr %context, i64 {word}", f"load {type_}, ptr {{}}"
        )

    def word(self, number: int) -> str:
        """A word of the record."""
        return self.once(f"word {number}", f"getelementptr i64, ptr %record, i64 {number}", "load i64, ptr {}")

    def row(self, file: str, word: int) -> str:
        """The address of a row of a file."""
        stride = self.context(context.SPECIAL_STRIDE if file == "s" else context.STRIDE)
        base = self.context(context.FILES[file], "ptr")
        offset = self.emit(f"mul i64 {self.word(word)}, {stride}")
        return self.emit(f"getelementptr i8, ptr {base}, i64 {offset}")

    def scalar(self, word: int, type_: str) -> str:
        """A scalar operand: an odd word is a distance from the record, plus one, and an even one from the uniforms."""
        given = self.word(word)
        far = self.once("constants", "getelementptr i8, ptr %record, i64 -1")
        odd = self.emit(f"trunc i64 {given} to i1")
        base = self.emit(f"select i1 {odd}, ptr {far}, ptr {self.context(context.UNIFORMS, 'ptr')}")
        value = self.emit(f"load i64, ptr {self.emit(f'getelementptr i8, ptr {base}, i64 {given}')}")
        return value if type_ == "i64" else self.emit(f"trunc i64 {value} to {SCALARS[type_]}")

    def uniform(self, word: int) -> str:
        """The address of a uniform that is written."""
        return self.emit(f"getelementptr i8, ptr {self.context(context.UNIFORMS, 'ptr')}, i64 {self.word(word)}")

    def tables(self, names: set[str]) -> None:
        """Load the addresses of tables that are looked up."""
        for table in sorted(names):
            number = ORDER[table]
            addresses = self.context(context.TABLES, "ptr")
            place = self.emit(f"getelementptr ptr, ptr {addresses}, i64 {number}")
            self.entry.append(f"  %table{number} = load ptr, ptr {place}")


def next_record(words: int) -> list[str]:
    """The jump to the next record's kernel."""
    return [
        f"  %next = getelementptr i64, ptr %record, i64 {words}",
        "  %kernel = load ptr, ptr %next",
        "  %result = musttail call i64 %kernel(ptr %context, ptr %next)",
        "  ret i64 %result",
    ]


def begin_entry(site: str, full: str, step: str = "-1") -> list[str]:
    """The start of an entry of the access log, `%entry_at`; a jump to `full` if none is free. `step` is the distance
    between the addresses of lanes, where it is the same between all.
    """
    return [
        f"  %log_at = getelementptr i64, ptr %context, i64 {context.LOG}",
        "  %log = load ptr, ptr %log_at",
        "  %entry_at = load ptr, ptr %log",
        f"  %log_end_at = getelementptr i64, ptr %log, i64 {access_log.END}",
        "  %log_end = load ptr, ptr %log_end_at",
        f"  %entry_end = getelementptr i64, ptr %entry_at, i64 {access_log.WORDS}",
        "  %log_full = icmp ugt ptr %entry_end, %log_end",
        f"  br i1 %log_full, label %{full}, label %enter",
        "enter:",
        f"  store i64 {site}, ptr %entry_at",
        f"  %agent_at = getelementptr i64, ptr %context, i64 {context.AGENT}",
        "  %agent = load i64, ptr %agent_at",
        f"  %entry_agent = getelementptr i64, ptr %entry_at, i64 {access_log.AGENT}",
        "  store i64 %agent, ptr %entry_agent",
        f"  %entry_step = getelementptr i64, ptr %entry_at, i64 {access_log.STEP}",
        f"  store i64 {step}, ptr %entry_step",
    ]


def entry_row() -> list[str]:
    """The place of an entry's addresses, `%log_addresses`."""
    return [
        f"  %log_start_at = getelementptr i64, ptr %log, i64 {access_log.ENTRIES}",
        "  %log_start = load i64, ptr %log_start_at",
        f"  %log_rows_at = getelementptr i64, ptr %log, i64 {access_log.ROWS}",
        "  %log_rows = load ptr, ptr %log_rows_at",
        "  %entry_place = ptrtoint ptr %entry_at to i64",
        "  %entry_offset = sub i64 %entry_place, %log_start",
        f"  %row_offset = mul i64 %entry_offset, {access_log.MOST_LANES // access_log.WORDS}",
        "  %log_addresses = getelementptr i8, ptr %log_rows, i64 %row_offset",
    ]


def end_entry(lanes: str, changes: str) -> list[str]:
    """The end of an entry: the lanes that take part and those that change memory, 128 bits each."""
    return [
        f"  %entry_lanes = getelementptr i64, ptr %entry_at, i64 {access_log.LANES}",
        f"  store i128 {lanes}, ptr %entry_lanes, align 8",
        f"  %entry_changes = getelementptr i64, ptr %entry_at, i64 {access_log.CHANGES}",
        f"  store i128 {changes}, ptr %entry_changes, align 8",
        "  store ptr %entry_end, ptr %log",
    ]


def _at(ops: LlvmOps, row: str, element: str) -> str:
    return ops.fresh(f"getelementptr {element}, ptr {row}, i64 %i")


def _loaded(ops: LlvmOps, row: str, file: str) -> Value:
    element = ROW_TYPES[file]
    place = _at(ops, row, element)
    found = ops.make(element, f"load {ops.vector(element)}, ptr {place}, align {int(element[1:]) // 8}")
    return found.trunc("i1") if file == "p" else found


def _mask(ops: LlvmOps, guard: tuple[str, str] | None, group: str | None) -> Value | None:
    """The lanes that take part, as a vector of the loop."""
    found: Value | None = None
    if guard is not None:
        row, flip = guard
        found = _loaded(ops, row, "p") ^ ops.splat("i1", flip)
    if group is not None:
        mine = _loaded(ops, group, "p")
        found = mine if found is None else found & mine
    return found


def _arithmetic(form: Arithmetic, name: str, host: Host) -> tuple[str, frozenset[str]]:
    function = semantics(form.family, dict(form.modifiers))
    if function is None:
        raise UnsupportedError(form.family)
    frame, ops = Frame(host), LlvmOps(host)
    word = HEAD_WORDS
    rows: list[tuple[str, str]] = []
    scalars: dict[int, Value] = {}
    before = LlvmOps(host)  # what is the same in every iteration
    for number, (operand, type_) in enumerate(form.inputs):
        if isinstance(operand, Row):
            rows.append((frame.row(operand.file, word), operand.file))
        else:
            rows.append(("", ""))
            splat = before.splat(type_, frame.scalar(word, type_))
            splat = ~splat if operand.negated else splat
            scalars[number] = Value(ops, type_, splat.ref.replace("%v", "%b"))
        word += 1
    targets: list[str] = []
    for out in form.outputs:
        if out is None:
            targets.append("")
            continue
        targets.append(frame.row(out[0], word))
        word += 1
    guard = (frame.row("p", word), frame.emit(f"trunc i64 {frame.word(word + 1)} to i1")) if form.masks.guard else None
    group = frame.context(context.MASK, "ptr") if form.masks.group else None
    lanes = frame.context(context.LANES)
    values: list[Value] = []
    for number, (operand, type_) in enumerate(form.inputs):
        if isinstance(operand, Row):
            row, file = rows[number]
            value = _loaded(ops, row, file)
            if type_ == "i1":
                values.append(~value if operand.negated else value)
            else:
                values.append(value.fit(type_))
        else:
            values.append(scalars[number])
    results = function(*values)
    mask = _mask(ops, guard, group)
    stored: list[tuple[str, str, Value]] = []
    for out, target, result in zip(form.outputs, targets, results, strict=False):
        if out is None:
            continue
        file, signed = out
        element = ROW_TYPES[file]
        value = result.zext("i8") if file == "p" else result.fit(element, signed=signed)
        if mask is not None:
            place = _at(ops, target, element)
            old = ops.make(element, f"load {ops.vector(element)}, ptr {place}, align {int(element[1:]) // 8}")
            value = mask.where(value, old)
        stored.append((target, element, value))
    for target, element, value in stored:
        place = _at(ops, target, element)
        ops.body.append(f"  store {ops.vector(element)} {value.ref}, ptr {place}, align {int(element[1:]) // 8}")
    frame.tables(ops.tables)
    lines = [
        *sorted(ops.declarations),
        f"define i64 @{name}(ptr %context, ptr %record) {{",
        "entry:",
        *frame.entry,
        *[line.replace("%v", "%b") for line in before.body],
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %j, %loop ]",
        *ops.body,
        f"  %j = add i64 %i, {host.lanes}",
        f"  %more = icmp ult i64 %j, {lanes}",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *next_record(form.words),
        "}",
    ]
    return "\n".join(lines) + "\n", frozenset(ops.tables)


def _uniform_arithmetic(form: UniformArithmetic, name: str, host: Host) -> tuple[str, frozenset[str]]:
    function = semantics(form.family, dict(form.modifiers))
    if function is None:
        raise UnsupportedError(form.family)
    frame, ops = Frame(host), LlvmOps(host)
    values: list[Value] = []
    word = HEAD_WORDS
    for operand, type_ in form.inputs:
        value = ops.splat(type_, frame.scalar(word, type_))
        values.append(~value if operand.negated else value)
        word += 1
    stores: list[str] = []
    for out, result in zip(form.outputs, function(*values), strict=False):
        if out is not None:
            bits, signed = out
            wide = (result if bits == 1 else result.fit(f"i{bits}", signed=signed)).zext("i64")
            stores.append(f"  store <1 x i64> {wide.ref}, ptr {frame.uniform(word)}, align 8")
            word += 1
    frame.tables(ops.tables)
    lines = [
        *sorted(ops.declarations),
        f"define i64 @{name}(ptr %context, ptr %record) {{",
        "entry:",
        *frame.entry,
        *ops.body,
        *stores,
        *next_record(form.words),
        "}",
    ]
    return "\n".join(lines) + "\n", frozenset(ops.tables)
