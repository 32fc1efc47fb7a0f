"""The rows of the instruction set, and the decoding of instructions with them.

A row (`Form`) is written as a template and a list of operand slots:

    form("add", "add{.sat?}.{type}", "out d {type}; in a {type}; in b {type}", type="u32 s32 u64 s64")

In a template `{name}` is a required choice, `{.name?}` an optional one; a name without choices is literal.
In the slots a type is literal (`b32`) or the value of a choice (`{type}`); a `+` after it allows wider registers.
A slot's kind is one of KINDS. The semantics of a form are in the emulator, under the form's family.
"""

from __future__ import annotations

import difflib
import itertools
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

from warploom.diagnostics import Diag, Loc, PtxError
from warploom.ptx.isa.outside import why_outside
from warploom.ptx.syntax.model import (
    LONG_SPECIALS,
    VECTOR_SPECIALS,
    Address,
    Arguments,
    Immediate,
    Instruction,
    Kernel,
    Module,
    Negated,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from warploom.ptx.syntax.pickling import quickly_pickled

KINDS = {
    "out": "a register or `_`",
    "in": "a register, literal, special register or symbol",
    "inout": "a register that is read and written",
    "pred": "a predicate register, maybe negated",
    "pair": "`%r|%p`, or its first half alone",
    "address": "an address `[a+offset]`",
    "tensor": "a tensor address `[map, {coordinates}]`",
    "outs": "a brace list of registers that are written",
    "ins": "a brace list that is read",
    "rows": "a brace list of registers that are read and written, maybe later",
    "immediate": "an integer literal",
    "label": "a label",
    "arguments": "a list in parentheses",
}

_SIGNATURE = {
    **dict.fromkeys(("out", "in", "inout"), "{}"),
    "pred": ".pred",
    "pair": "{}|.pred",
    "address": "[address]",
    "tensor": "[map, {{coordinates}}]",
    **dict.fromkeys(("outs", "ins", "rows"), "{{{}, …}}"),
    "immediate": "integer literal",
    "label": "label",
    "arguments": "(arguments)",
}
"""The kinds as written in a form's signature, with the place of the type: `d {.b32, …}, a .b64, scale_d .pred`."""

BITS = {
    **{f"{kind}{bits}": bits for kind in "usb" for bits in (8, 16, 32, 64)},
    "pred": 1,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "f16x2": 32,
    "bf16x2": 32,
    "b128": 128,
    "f32x2": 64,
    "u16x2": 32,
    "s16x2": 32,
    "u8x4": 32,
    "s8x4": 32,
    "tf32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "e4m3x2": 16,
    "e5m2x2": 16,
    "e2m1x2": 8,
    "e2m3x2": 16,
    "e3m2x2": 16,
    "ue8m0x2": 16,
    "e4m3x4": 32,
    "e5m2x4": 32,
    "e2m1x4": 16,
    "e2m3x4": 32,
    "e3m2x4": 32,
}
_MOST_EXTENDED = 64
"""The widest register to which a narrower value is extended, or from which one is taken: the PTX ISA's rules for
operands wider than their type have no .b128, and ptxas leaves the upper half of a sign-extended one undefined."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect of an instruction other than its result registers, in terms that a check can use.

    `verb` is one of reads, writes, arrives, expects, completes, waits, fences, allocates, frees, commits, drains and
    syncs.
    `operand` names its slot; `proxy`, `space` and `scope` may name a choice of the template in braces.
    `later` marks effects at completion rather than at issue.
    """

    verb: str
    operand: str = ""
    space: str = ""
    proxy: str = "generic"
    scope: str = ""
    later: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """One operand of a form: its kind, name and type; the semantics check the number of items of a brace list."""

    kind: str
    name: str
    type: str = ""
    wider: bool = False
    optional: bool = False

    def __str__(self) -> str:
        text = f"{self.name} {_SIGNATURE[self.kind].format(f'.{self.type}' if self.type else '')}".strip()
        return f"[{text}]" if self.optional else text


@dataclass(frozen=True)
class Form:
    """A row of the table.

    `result` is used by the uniformity analysis: the results depend on the operands alone (`pure`), differ by lane
    (`lane`) or are the same in a warp (`warp`). `blocks` marks instructions in which a warp may wait, `steers` those
    that determine the next instruction. `issuer` is the unit that must execute it together: a `thread`, a `warp` or a
    `warpgroup`.
    """

    family: str
    template: str
    slots: tuple[Slot, ...]
    choices: dict[str, tuple[str, ...]] = field(hash=False)
    effects: tuple[Effect, ...] = ()
    issuer: str = "thread"
    result: str = "pure"
    blocks: bool = False
    version: tuple[int, int] = (1, 0)
    targets: tuple[str, ...] = ()
    steers: bool = False
    table: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        """A stored program names its rows by family and number."""
        return form_of, (self.family, [form is self for form in _of_family(self.family)].index(True))

    @cached_property
    def spelling(self) -> tuple[_Part, ...]:
        """The parts of its opcode; split at first use, because a program uses few of the 400 forms."""
        return _split(self.template, self.choices)

    @property
    def takes(self) -> str:
        return ", ".join(map(str, self.slots)) or "no operands"

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The slots whose registers are written."""
        return self._slots_of("out", "inout", "pair", "outs", "rows")

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The slots whose registers are read, except for those that hold rows of a matrix."""
        return self._slots_of("in", "pred", "address", "tensor", "ins", "inout")

    @cached_property
    def list_slots(self) -> tuple[str, ...]:
        """The slots that may be brace lists of several registers."""
        return self._slots_of("rows", "outs", "ins")

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The slots whose registers may be read."""
        return (*self.read, *self.rows)

    @cached_property
    def other_slots(self) -> tuple[str, ...]:
        """The slots that are neither read nor written."""
        return tuple(slot.name for slot in self.slots if slot.name not in {*self.written, *self.sources})

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The slots whose registers hold rows of a matrix, and may be read and written."""
        return self._slots_of("rows")

    def _slots_of(self, *kinds: str) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots if slot.kind in kinds)

    @property
    def is_idle(self) -> bool:
        """True if it only changes registers and does not branch: a loop of such rows can at most poll."""
        return not self.steers and all(effect.verb in _IDLE for effect in self.effects)

    def looks(self, modifiers: Mapping[str, str | None]) -> bool:
        """Return True if other threads may change its result: it tests an mbarrier, or its load is not weak."""
        asks = any(effect.verb == "waits" and effect.operand for effect in self.effects)
        return asks or (self.is_idle and modifiers.get("order") not in (None, "weak"))


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Op:
    """A decoded instruction: its row, the chosen modifiers and the operand of every slot (None if omitted)."""

    instruction: Instruction
    form: Form
    modifiers: dict[str, str | None]
    operands: dict[str, object]

    @property
    def family(self) -> str:
        return self.form.family

    def __getitem__(self, name: str) -> str:
        """A modifier's text; empty if the instruction does not have it."""
        return self.modifiers.get(name) or ""

    def type_of(self, slot: Slot) -> str:
        """The type of a slot with its choices filled in."""
        return self[slot.type[1:-1]] if slot.type.startswith("{") else slot.type


_IDLE = frozenset({"reads", "waits", "fences"})
"""Verbs of effects that no other thread can see."""
FORMS: list[Form] = []
_BY_ROOT: dict[str, list[Form]] = {}


def _of_family(family: str) -> list[Form]:
    return [form for form in FORMS if form.family == family]


@cache
def form_of(family: str, number: int) -> Form:
    """The row of a family with a number."""
    return _of_family(family)[number]


_PART = re.compile(r"\{(\.?)([a-z0-9_]+)(\??)\}")
_WORD = re.compile(r"\{\.?([a-z0-9_]+)(\??)\}|([A-Za-z0-9_:]+)")


def form(
    family: str,
    template: str,
    slots: str = "",
    *,
    effects: Iterable[Effect] = (),
    issuer: str = "thread",
    result: str = "pure",
    blocks: bool = False,
    version: tuple[int, int] = (1, 0),
    targets: str = "",
    steers: bool = False,
    shared: Mapping[str, str] | None = None,
    **choices: str,
) -> None:
    """Add a row to the table; `shared` are choices that several rows have."""
    split = {name: tuple(text.split()) for name, text in {**(shared or {}), **choices}.items()}
    row = Form(
        family,
        template,
        tuple(_slot(text) for text in slots.split(";") if text.strip()),
        split,
        tuple(effects),
        issuer,
        result,
        blocks,
        version,
        tuple(targets.split()),
        steers,
        sys._getframe(1).f_globals["__name__"].rpartition(".")[2],  # noqa: SLF001  the declaring module
    )
    FORMS.append(row)
    _BY_ROOT.setdefault(template.partition(".")[0].partition("{")[0], []).append(row)


def _slot(text: str) -> Slot:
    optional, *_ = parts = text.split()
    if optional == "opt":
        parts = parts[1:]
    kind, name, *rest = parts
    if kind not in KINDS:
        raise ValueError(f"slot kind {kind!r} in {text!r}")
    type_ = rest[0] if rest else ""
    return Slot(kind, name, type_.rstrip("+"), type_.endswith("+"), optional == "opt")


class _Part(NamedTuple):
    """A part of an opcode: a fixed text, and after it one of several words, which may be left out; the words have no
    name in the last part, which is the text alone.
    """

    text: str
    dot: str
    name: str
    words: tuple[str, ...]
    optional: bool


def _split(template: str, choices: dict[str, tuple[str, ...]]) -> tuple[_Part, ...]:
    found, end = list[_Part](), 0
    for part in _PART.finditer(template):
        dot, name, maybe = part.groups()
        words = tuple(sorted(choices.get(name, (name,)), key=len, reverse=True))
        found.append(_Part(template[end : part.start()], dot, name, words, bool(maybe)))
        end = part.end()
    return (*found, _Part(template[end:], "", "", (), False))


def _spelled(parts: tuple[_Part, ...], opcode: str, number: int = 0, at: int = 0) -> dict[str, str | None] | None:
    """The modifiers of an opcode that the parts from a number on spell from a place on, else None. Where there are
    several, longer words come first, and words that may be left out are not.
    """
    text, dot, name, words, optional = parts[number]
    if not opcode.startswith(text, at):
        return None
    at += len(text)
    if not name:
        return {} if at == len(opcode) else None
    if opcode.startswith(dot, at):
        begin = at + len(dot)
        for word in words:
            if opcode.startswith(word, begin):
                rest = _spelled(parts, opcode, number + 1, begin + len(word))
                if rest is not None:
                    return {name: word, **rest}
    rest = _spelled(parts, opcode, number + 1, at) if optional else None
    return None if rest is None else {name: None, **rest}


@lru_cache(maxsize=4096)
def match(opcode: str) -> tuple[tuple[Form, dict[str, str | None]], ...]:
    """Every row that matches an opcode, with its modifiers."""
    if len(opcode) > _LONGEST_MATCH:
        return ()
    words = opcode.split(".")
    rows = _BY_ROOT.get(words[0], ())
    spelled = ((row, _spelled(row.spelling, opcode)) for row in rows)
    found = tuple((row, modifiers) for row, modifiers in spelled if modifiers is not None)
    if found or words[0] not in _ANY_ORDER:
        return found
    return tuple((row, modifiers) for row in rows if (modifiers := _rearranged(row, words)) is not None)


_ANY_ORDER = frozenset((
    "atom", "red", "ld", "st", "fence", "bar", "barrier", "shfl", "vote", "match", "redux", "tcgen05", "ldmatrix",
    "stmatrix", "wmma", "add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos",
    "tanh", "abs", "neg", "min", "max", "cvt", "setp", "set", "prmt",
))  # fmt: skip
"""Instructions whose modifiers occur in more than one order; ptxas accepts all of them."""


def _rearranged(row: Form, words: list[str]) -> dict[str, str | None] | None:
    """The modifiers of an opcode whose words match a row in another order, else None."""
    left, modifiers = list(words), dict[str, str | None]()
    for name, optional, literal in _WORD.findall(row.template):
        options = row.choices.get(name, (name,)) if name else (literal,)
        word = next((word for word in left if word in options), None)
        if word is None and not optional:
            return None
        if word is not None:
            left.remove(word)
        if name:
            modifiers[name] = word
    return None if left else modifiers


_LONGEST_MATCH = 400
"""No form is spelled with more characters."""
_LONGEST_OPCODE = 100
"""The most characters of an unknown opcode that are compared with the table."""
_LONGEST_TEXT = 200
_MOST_WORDS = 6
_MOST_ERRORS = 8


def shortened(text: str) -> str:
    """A text as a message quotes it; the middle of a long one is left out."""
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[: _LONGEST_TEXT // 2]} … {text[-_LONGEST_TEXT // 4 :]}"


MOST_NEAREST = 64
"""Unknown opcodes of a module for which the nearest template is looked for."""


def nearest(opcode: str) -> str:
    """The template whose spelling is closest to an unknown opcode."""
    return _nearest(opcode).template


def _nearest(opcode: str) -> Form:
    """The row that has most of an unknown opcode's words, and of those the one that is spelled most like it."""
    opcode = opcode[:_LONGEST_OPCODE]  # the time of a comparison grows with the length of both texts
    root = opcode.partition(".")[0]
    rows = _BY_ROOT.get(root)
    if not rows:
        roots = difflib.get_close_matches(root, _BY_ROOT, n=1, cutoff=0.0)
        rows = _BY_ROOT[roots[0]]
    words = set(opcode.split("."))
    return max(
        rows,
        key=lambda row: (
            sum(not words.isdisjoint(options) for _, options, _ in _parts(row)),
            difflib.SequenceMatcher(None, opcode, row.template).ratio(),
        ),
    )


def _parts(row: Form) -> Iterable[tuple[str, tuple[str, ...], bool]]:
    """The words of a template: the name of the choice, what may be chosen, and whether it may be left out."""
    for name, optional, literal in _WORD.findall(row.template):
        yield (name, row.choices.get(name, (name,)), bool(optional)) if name else ("", (literal,), False)


def _unknown_word(opcode: str, row: Form) -> Iterable[str]:
    """A note on the first word of an opcode that does not fit the nearest row."""
    parts = list(_parts(row))
    for word in opcode[:_LONGEST_OPCODE].split("."):
        while parts and parts[0][2] and word not in parts[0][1]:
            parts.pop(0)
        if not parts or word not in parts[0][1]:
            break
        parts.pop(0)
    else:
        word = ""
    missing = next((part for part in parts if not part[2]), parts[0] if parts else None)
    if not word and missing is not None:
        yield f"the nearest form needs `{f'{{{missing[0]}}}' if missing[0] else missing[1][0]}` as well"
    elif word and missing is None:
        yield f"`.{word}` is one modifier too many for the nearest form"
    elif missing is not None:
        name, options, _ = missing
        close = difflib.get_close_matches(word, options, n=_MOST_WORDS, cutoff=0.0)
        listed = ", ".join(close) + (", …" if len(options) > len(close) else "")
        kind = f"a `{{{name}}}` of the nearest form, which can be" if name else "what the nearest form has there,"
        yield f"`.{word}` is not {kind} {listed}"


def decode(instruction: Instruction, registers: dict[str, str], file: str = "<ptx>") -> Op:
    """Decode an instruction with the table; raise an error if it does not match."""
    spelling = _spelling(instruction, registers)
    if (known := _DECODED.get(spelling)) is not None:
        row, modifiers, places = known
        given = *instruction.operands, None
        return Op(instruction, row, modifiers, {name: given[at] for name, at in places})
    op = _decoded(instruction, registers, file)
    if spelling is not None:
        at, found = 0, list[tuple[str, int]]()
        for name, operand in op.operands.items():
            found.append((name, -1 if operand is None else at))
            at += operand is not None
        if len(_DECODED) >= _MOST_DECODED:
            _DECODED.clear()
        _DECODED[spelling] = op.form, op.modifiers, tuple(found)
    return op


_DECODED: dict[object, tuple[Form, dict[str, str | None], tuple[tuple[str, int], ...]]] = {}
"""The row, modifiers and operands (each slot with the number of its operand, -1 without one) of instructions that were
decoded, by their spelling: programs repeat a few hundred."""
_MOST_DECODED = 1 << 14


def _spelling(instruction: Instruction, registers: dict[str, str]) -> object:
    """Everything that decoding an instruction depends on, apart from the names of registers; None where that is not
    known.
    """
    guard = instruction.guard
    kinds = tuple([_kind(operand, registers) for operand in instruction.operands])
    guarded = "" if guard is None else registers.get(guard.register.name, "pred")
    return None if None in kinds else (instruction.opcode, guarded, kinds)


def _kind(operand: object, registers: dict[str, str]) -> object:
    """Everything about an operand that decides whether it fits a slot; None where that is not known."""
    kind = type(operand)
    if kind is Register:
        return registers.get(operand.name)  # type: ignore[attr-defined]
    if isinstance(operand, Immediate):
        return _LITERALS[operand.kind] if -(1 << 63) <= operand.value < 1 << 64 else None
    if isinstance(operand, Address) and operand.coordinates is None:
        return (kind, registers.get(operand.base.name) if isinstance(operand.base, Register) else "")
    if isinstance(operand, Vector) and len(operand.items) > 1:
        items = tuple([_kind(item, registers) for item in operand.items])
        return None if None in items else items
    if isinstance(operand, Special):
        return operand.name
    return kind if isinstance(operand, Symbol | Sink) else None


_LITERALS = {kind: (Immediate, kind) for kind in ("int", "f32", "f64")}


def _decoded(instruction: Instruction, registers: dict[str, str], file: str) -> Op:
    where = instruction.loc or Loc(file, instruction.line)
    candidates = match(instruction.opcode)
    if not candidates and (kind := why_outside(instruction.opcode)):
        raise Diag.NOT_MODELLED.error(where, what=f"`{instruction.opcode}` ({kind})")
    if not candidates:
        row, text = _nearest(instruction.opcode), shortened(instruction.opcode)
        notes = _unknown_word(instruction.opcode, row) if instruction.opcode.partition(".")[0] in _BY_ROOT else ()
        raise Diag.UNKNOWN_INSTRUCTION.error(where, notes, text=text, nearest=row.template)
    # Of the rows that do not fit, the one that got furthest is what the author most likely meant.
    furthest, problem, meant = -1, "", candidates[0]
    for row, modifiers in candidates:
        assigned = _assign(instruction, row)
        if isinstance(assigned, _Misassigned):
            if assigned.fitting > furthest:
                furthest, problem, meant = assigned.fitting, assigned.problem, (row, modifiers)
            continue
        op = Op(instruction, row, modifiers, assigned)
        wrong = _check(op, registers)
        if not wrong:
            return op
        furthest, problem, meant = len(assigned), wrong, (row, modifiers)
    raise Diag.BAD_OPERANDS.error(where, text=shortened(instruction.text), what=problem, takes=_takes(*meant))


def _takes(row: Form, modifiers: dict[str, str | None]) -> str:
    """The signature of a row, with the types that an opcode chose."""
    text = row.takes
    for name, chosen in modifiers.items():
        text = text.replace(f"{{{name}}}", chosen or "")
    return text


@dataclass(frozen=True, slots=True)
class _Misassigned:
    """The reason why operands cannot be assigned to the slots of a row, and how many leading ones can."""

    fitting: int
    problem: str


def _assign(instruction: Instruction, row: Form) -> dict[str, object] | _Misassigned:
    given, needed = len(instruction.operands), sum(not slot.optional for slot in row.slots)
    if not needed <= given <= len(row.slots):
        pairs = zip(row.slots, instruction.operands, strict=False)
        fitting = sum(1 for _ in itertools.takewhile(lambda pair: _fits(*pair), pairs))
        takes = f"{needed}" if needed == len(row.slots) else f"{needed} to {len(row.slots)}"
        return _Misassigned(fitting, f"it has {given} operands instead of {takes}")
    spare, at = given - needed, 0
    operands: dict[str, object] = {}
    for slot in row.slots:
        operand: object = instruction.operands[at] if at < given else None
        if slot.kind in ("out", "in") and isinstance(operand, Vector) and len(operand.items) == 1:
            operand = operand.items[0]
        if slot.optional and (spare == 0 or operand is None or not _fits(slot, operand)):
            operands[slot.name] = None
            continue
        if operand is None or not _fits(slot, operand):
            return _Misassigned(at, f"operand {at + 1} (`{shortened(str(operand))}`) is not {KINDS[slot.kind]}")
        spare -= slot.optional
        operands[slot.name] = operand
        at += 1
    if at < given:
        return _Misassigned(at, f"operand {at + 1} (`{shortened(str(instruction.operands[at]))}`) is one too many")
    return operands


def _fits(slot: Slot, operand: object) -> bool:
    match slot.kind:
        case "out":
            return isinstance(operand, Register | Sink)
        case "inout":
            return isinstance(operand, Register)
        case "in":
            return isinstance(operand, Register | Immediate | Special | Symbol)
        case "pred":
            return isinstance(operand, Register | Negated | Immediate)
        case "pair":
            return isinstance(operand, Pair | Register | Sink)
        case "address":
            return isinstance(operand, Address) and operand.coordinates is None
        case "tensor":
            return isinstance(operand, Address) and operand.coordinates is not None
        case "outs" | "ins" | "rows":
            return isinstance(operand, Vector)
        case "immediate":
            return isinstance(operand, Immediate) and operand.kind == "int"
        case "label":
            return isinstance(operand, Symbol)
        case "arguments":
            return isinstance(operand, Arguments)
    return False


def _check(op: Op, registers: dict[str, str]) -> str:
    """The first register whose type does not fit its slot, as a sentence."""
    guard = op.instruction.guard
    if guard is not None and (have := registers.get(guard.register.name, "pred")) != "pred":
        return f"`{guard.register}` is a .{have} register where the guard is .pred"
    for slot in op.form.slots:
        operand = op.operands[slot.name]
        if operand is None:
            continue
        type_ = "pred" if slot.kind == "pred" else op.type_of(slot)
        if isinstance(operand, Pair):
            wrong = _misfit(operand.first, type_, slot, registers) or _misfit(operand.second, "pred", slot, registers)
        elif isinstance(operand, Vector):
            if not type_ and op.family in ("mov.pack", "mov.unpack"):
                type_ = f"b{BITS[op['type']] // max(len(operand.items), 1)}"
                if len(operand.items) not in (2, 4) or type_ not in BITS:
                    return f"{len(operand.items)} parts do not make a .{op['type']}"
            found = (_not_written(item, slot) or _misfit(item, type_, slot, registers) for item in operand.items)
            wrong = next(filter(None, found), "")
        elif isinstance(operand, Address):
            wrong = _address_misfit(operand, registers)
        else:
            wrong = _misfit(operand, type_, slot, registers)
        if wrong:
            return wrong
    return ""


def _not_written(item: object, slot: Slot) -> str:
    """Why an item of a brace list cannot receive a value, if the list does."""
    takes = {"outs": Register | Sink, "rows": Register}.get(slot.kind, object)
    return "" if isinstance(item, takes) else f"`{item}` in {slot.name} is not a register"


def _misfit(operand: object, type_: str, slot: Slot, registers: dict[str, str]) -> str:
    if isinstance(operand, Negated):
        operand = operand.register
    if isinstance(operand, Immediate):
        return _literal_misfit(operand, type_, slot)
    if isinstance(operand, Special) and operand.name in VECTOR_SPECIALS:
        return f"`{operand}` has four parts; name one, as in `{operand}.x`"
    if isinstance(operand, Special | Symbol) and type_ == "pred" and operand.name != "%is_explicit_cluster":
        return f"`{operand}` is not a predicate"
    if isinstance(operand, Special) and type_ in BITS and operand.name != "%gridid":
        is_long = operand.name in LONG_SPECIALS
        if is_long != (BITS[type_] == 64) and type_ != "pred":
            return f"`{operand}` has {64 if is_long else 32} bits where {slot.name} is .{type_}"
    if not isinstance(operand, Register) or not type_:
        return ""
    have = registers.get(operand.name)
    if have is None:
        return f"`{operand}` is not a register"
    need, got = BITS[type_], BITS.get(have, 0)
    widened = got > need and not (slot.wider and got <= _MOST_EXTENDED)
    if (have == "pred") != (type_ == "pred") or got < need or widened:
        return f"`{operand}` is a .{have} register where {slot.name} is .{type_}"
    return ""


def _address_misfit(address: Address, registers: dict[str, str]) -> str:
    base = address.base
    if not isinstance(base, Register):
        return ""
    have = registers.get(base.name)
    if have is None:
        return f"`{base}` is not a register"
    return "" if BITS.get(have, 0) in (32, 64) else f"`{base}` is a .{have} register; an address has 32 or 64 bits"


def _literal_misfit(operand: Immediate, type_: str, slot: Slot) -> str:
    if type_ and type_ != "pred" and operand.kind == "int" and not -(1 << 63) <= operand.value < 1 << 64:
        return f"`{operand}` does not fit in .{type_}"
    floating = type_.startswith(("f", "bf", "tf"))
    if operand.kind != "int" and not (floating or type_.startswith("b") or not type_):
        return f"`{operand}` is a floating-point literal where {slot.name} is .{type_}"
    return ""


def decode_kernel(kernel: Kernel, target: str, file: str = "<ptx>") -> tuple[Op, ...]:
    """Decode every instruction of a kernel; all problems are in one error."""
    registers = dict(kernel.registers)
    ops: list[Op] = []
    errors: list[PtxError] = []
    uncounted: set[str] = set()
    for instruction in kernel.instructions:
        if len(errors) > _MOST_ERRORS and not match(instruction.opcode):
            uncounted.add(instruction.opcode)  # finding the nearest form of each would take too long
            continue
        try:
            op = decode(instruction, registers, file)
            _check_target(op, target, file)
            ops.append(op)
        except PtxError as error:
            errors.append(error)
    if errors:
        first = errors[0]
        others = {e.what: e for e in reversed(errors) if e.what != first.what}
        more = [f"also: {what}  ({e.loc})" for what, e in list(reversed(others.items()))[:_MOST_ERRORS]]
        left = len(others) + len(uncounted - {e.fields.get("text") for e in errors}) - len(more)
        more += [f"and {left} more kinds"] if left else []
        raise type(first)(first.diag, first.loc, (*first.notes, *more), first.fields)
    return tuple(ops)


def _check_target(op: Op, target: str, file: str) -> None:
    targets = op.form.targets
    if targets and not any(_has(target, needed) for needed in targets):
        where = op.instruction.loc or Loc(file, op.instruction.line)
        needs = " or ".join(targets)
        raise Diag.WRONG_TARGET.error(where, text=op.instruction.opcode, needs=needs, target=target)


@cache
def _has(target: str, needed: str) -> bool:
    """Return True if a target satisfies `needed`: `sm_90` is that and newer, `sm_100f` its family, `sm_90a` itself."""
    have, want = (int(re.sub(r"\D", "", text) or 0) for text in (target, needed))
    if needed.endswith("a"):
        return target == needed
    if needed.endswith("f"):
        return target[-1] in "af" and have // 10 == want // 10 and have >= want
    return have >= want


def unsupported(module: Module) -> tuple[tuple[str, int, str], ...]:
    """Every opcode of a module that no row matches: (opcode, line of its first use, nearest template).

    The nearest templates of the first opcodes are enough for a reader, and looking for one takes a millisecond: the
    others have an empty text.
    """
    found: dict[str, int] = {}
    for kernel in module.kernels:
        for instruction in kernel.instructions:
            if not match(instruction.opcode):
                found.setdefault(shortened(instruction.opcode), instruction.line)
    listed = enumerate(found.items())
    return tuple((opcode, line, nearest(opcode) if at < MOST_NEAREST else "") for at, (opcode, line) in listed)
