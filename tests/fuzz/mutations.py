"""Mutations of valid PTX, reproducible by number: most change one token of an executed instruction."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from warploom.ptx.isa.table import FORMS, Form

_STATEMENT = re.compile(r"(?P<lead>\s*)(?P<guard>@!?[%\w$]+\s+)?(?P<opcode>[a-z][\w.:]*)(?P<rest>[^;]*);")
_OPERAND_TOKEN = re.compile(r"%[\w$]+(?:\.[xyzw])?|0[xXfFdD][0-9A-Fa-f]+|-?\d+|[A-Za-z_$][\w$]*|\S")
_REGISTER = re.compile(r"%[A-Za-z_]+\d+\b|%[a-z]+_?[a-z]*\b(?!\.)")
_NUMBER = re.compile(r"(?<![\w$%.])-?(?:0[xX][0-9A-Fa-f]+|\d+)(?![\w.:])")
_LABEL = re.compile(r"^\s*([$\w]+):", re.MULTILINE)
_DECLARATION = re.compile(
    r"^.*(?:\.reg|\.shared|\.local|\.global|\.const|\.param|\.reqntid|\.maxntid|\.maxnreg|\.version|\.target|\.address_size"
    r"|\.branchtargets|\.func|\.entry|\.reqnctapercluster|\.minnctapersm|\.pragma|\.loc|\.file)\b.*$",
    re.MULTILINE,
)
_TEMPLATE = re.compile(r"\{(\.?)([a-z0-9_]+)(\??)\}")
_SPECIALS = (
    "%tid.x",
    "%ntid.y",
    "%ctaid.x",
    "%laneid",
    "%clock64",
    "%cluster_ctarank",
    "%nsmid",
    "%lanemask_gt",
    "%envreg3",
)
_TYPES = (".b8", ".u16", ".b32", ".s32", ".f32", ".u64", ".b64", ".f64", ".pred", ".b128", ".f16x2", ".v4 .b32")
_WORDS = tuple(sorted({word for form in FORMS for choice in form.choices.values() for word in choice}))
_NOISE = "%$.,;:()[]{}<>@!|+-_*/\\\"' \t09azAZx\x00é"


@dataclass(frozen=True)
class Statement:
    """One instruction in the text of a line: where it begins and ends, and its parts."""

    start: int
    end: int
    guard: str
    opcode: str
    operands: tuple[str, ...]

    @property
    def text(self) -> str:
        return (
            f"{self.guard}{self.opcode} {', '.join(self.operands)};" if self.operands else f"{self.guard}{self.opcode};"
        )


@dataclass(frozen=True)
class Mutant:
    """A changed text, and what was changed in words."""

    text: str
    what: str


@dataclass
class Source:
    """A valid text and the lines of it (from 1) whose instructions were executed."""

    text: str
    lines: tuple[int, ...]
    _split: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._split = self.text.split("\n")

    @cached_property
    def registers(self) -> dict[str, tuple[str, ...]]:
        """The registers that the text names, by the letters before their number: mostly one type each."""
        found: dict[str, set[str]] = {}
        for line in self.lines:
            for name in _REGISTER.findall(self._split[line - 1]):
                found.setdefault(name.rstrip("0123456789"), set()).add(name)
        return {prefix: tuple(sorted(names)) for prefix, names in sorted(found.items())}

    @cached_property
    def all_registers(self) -> tuple[str, ...]:
        return tuple(name for names in self.registers.values() for name in names) or ("%r0",)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_LABEL.findall(self.text))) or ("NOWHERE",)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Symbols that can be an address or a target: variables, parameters and labels."""
        declared = re.findall(r"\.(?:[a-z]\d+|pred)\s+([$\w]+)(?:\[|\s*[,;)=])", self.text)
        return tuple(dict.fromkeys((*declared, *self.labels)))

    @cached_property
    def declarations(self) -> tuple[int, ...]:
        """Lines that declare something."""
        return tuple(n for n, line in enumerate(self._split, 1) if _DECLARATION.match(line))

    def mutant(self, number: int) -> Mutant:
        """Mutate an executed line as the number selects: in four of five cases one token or operand."""
        draw = random.Random(f"line {number}")
        table = _TOKENS if draw.random() < 0.85 else _LINES
        while True:
            name, change = _pick(table, draw)
            line = draw.choice(self.lines)
            found = change(self, line, draw)
            if found is not None and found != self.text:
                return Mutant(found, f"line {line}: {name}: {self._shown(found)}")

    def declaration(self, number: int) -> Mutant:
        """Mutate a declaration as the number selects."""
        draw = random.Random(f"declaration {number}")
        while True:
            line = draw.choice(self.declarations)
            found = _declared(self, line, draw)
            if found is not None and found != self.text:
                return Mutant(found, f"line {line}: declaration: {self._shown(found)}")

    def _shown(self, text: str) -> str:
        changed = [after for before, after in zip(self._split, text.split("\n"), strict=False) if before != after]
        return changed[0].strip()[:160] if changed else "(shorter)"

    def replaced(self, line: int, text: str | None) -> str:
        """The whole text with one line changed, or without it."""
        lines = self._split.copy()
        lines[line - 1 : line] = [] if text is None else [text]
        return "\n".join(lines)

    def line(self, number: int) -> str:
        return self._split[number - 1]

    def statement(self, line: int, draw: random.Random) -> Statement | None:
        """One of the instructions on a line."""
        found = list(_STATEMENT.finditer(self.line(line)))
        if not found:
            return None
        match = draw.choice(found)
        start = match.start() + len(match["lead"])
        operands = tuple(_operands(match["rest"]))
        return Statement(start, match.end(), match["guard"] or "", match["opcode"], operands)

    def with_statement(self, line: int, old: Statement, new: str) -> str:
        text = self.line(line)
        return self.replaced(line, text[: old.start] + new + text[old.end :])


def _operands(text: str) -> list[str]:
    """Operands between top-level commas."""
    out, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "{[(") - (char in "}])")
        if char == "," and not depth:
            out.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*out, last] if last or out else []


Change = Callable[[Source, int, random.Random], "str | None"]


def _pick(table: dict[str, tuple[int, Change]], draw: random.Random) -> tuple[str, Change]:
    names = list(table)
    name = draw.choices(names, [table[n][0] for n in names])[0]
    return name, table[name][1]


def _edited(edit: Callable[[Source, Statement, random.Random], str | None]) -> Change:
    """A change of one instruction, from a function that writes the new one."""

    def change(source: Source, line: int, draw: random.Random) -> str | None:
        statement = source.statement(line, draw)
        new = None if statement is None else edit(source, statement, draw)
        return None if statement is None or new is None else source.with_statement(line, statement, new)

    return change


def _with_operands(old: Statement, operands: list[str]) -> str:
    return Statement(0, 0, old.guard, old.opcode, tuple(operands)).text


def _token(pattern: re.Pattern[str], new: Callable[[Source, str, random.Random], str | None]) -> Change:
    """A change of one matching token among the operands."""

    def edit(source: Source, old: Statement, draw: random.Random) -> str | None:
        whole = ", ".join(old.operands)
        found = list(pattern.finditer(whole))
        if not found:
            return None
        match = draw.choice(found)
        text = new(source, match[0], draw)
        if text is None:
            return None
        return f"{old.guard}{old.opcode} {whole[: match.start()]}{text}{whole[match.end() :]};"

    return _edited(edit)


def _same_kind(source: Source, name: str, draw: random.Random) -> str | None:
    return draw.choice(source.registers.get(name.rstrip("0123456789"), (name,)))


def _other_kind(source: Source, name: str, draw: random.Random) -> str:
    return draw.choice(source.all_registers)


def _value(source: Source, text: str, draw: random.Random) -> str:
    """Another integer: an edge, a neighbour, a power of two, a flipped bit, or any 64 bits."""
    value = int(text, 0) if not re.fullmatch(r"-?0\d+", text) else 0
    return str(
        draw.choice(
            (
                0,
                1,
                -1,
                value + draw.choice((-8, -4, -2, -1, 1, 2, 4, 8, 16)),
                -value,
                value * 2,
                value // 2,
                value ^ 1 << draw.randrange(64),
                1 << draw.randrange(64),
                (1 << draw.randrange(1, 65)) - 1,
                -(1 << draw.randrange(64)),
                draw.getrandbits(32),
                draw.getrandbits(64),
                draw.randrange(256),
                draw.choice((31, 32, 33, 127, 128, 255, 256, 512, 1023, 1024, 4096, 65535, 65536, 232448, 232449)),
            )
        )
    )


def _swap(source: Source, old: Statement, draw: random.Random) -> str | None:
    if len(old.operands) < 2:
        return None
    operands = list(old.operands)
    a, b = draw.sample(range(len(operands)), 2)
    operands[a], operands[b] = operands[b], operands[a]
    return _with_operands(old, operands)


def _drop(source: Source, old: Statement, draw: random.Random) -> str | None:
    operands = list(old.operands)
    if operands:
        operands.pop(draw.randrange(len(operands)))
    return _with_operands(old, operands)


def _repeat(source: Source, old: Statement, draw: random.Random) -> str | None:
    operands = list(old.operands)
    given = [*operands, *source.all_registers[:4], "0", "_", "[%rd0]", "{%r0, %r1}", draw.choice(source.symbols)]
    operands.insert(draw.randrange(len(operands) + 1), draw.choice(given))
    return _with_operands(old, operands)


def _borrow(source: Source, old: Statement, draw: random.Random) -> str | None:
    """An operand of another executed instruction in the place of one of these."""
    other = source.statement(draw.choice(source.lines), draw)
    if other is None or not other.operands or not old.operands:
        return None
    operands = list(old.operands)
    operands[draw.randrange(len(operands))] = draw.choice(other.operands)
    return _with_operands(old, operands)


def _modifier(source: Source, old: Statement, draw: random.Random) -> str | None:
    """One word of the opcode replaced, dropped, added or moved."""
    words = old.opcode.split(".")
    if len(words) < 2:
        words.append(draw.choice(_WORDS))
    else:
        at = draw.randrange(1, len(words))
        match draw.randrange(5):
            case 0 | 1:
                words[at] = draw.choice(_alternatives(old.opcode, words[at]))
            case 2:
                words.pop(at)
            case 3:
                words.insert(at, draw.choice(_WORDS))
            case 4:
                other = draw.randrange(1, len(words))
                words[at], words[other] = words[other], words[at]
    return old.text.replace(old.opcode, ".".join(words), 1)


def _alternatives(opcode: str, word: str) -> tuple[str, ...]:
    """The words that some row of the table has in the place of this one."""
    root = opcode.partition(".")[0]
    rows = [form for form in FORMS if form.template.startswith(root)]
    found = {other for form in rows for choice in form.choices.values() if word in choice for other in choice}
    return tuple(sorted(found)) or _WORDS


def _spelling(form: Form, draw: random.Random) -> str:
    """An opcode that fits a row of the table."""

    def filled(part: re.Match[str]) -> str:
        dot, name, maybe = part.groups()
        if maybe and draw.random() < 0.6:
            return ""
        return dot + draw.choice(form.choices.get(name, (name,)))

    return _TEMPLATE.sub(filled, form.template)


def _sibling(source: Source, old: Statement, draw: random.Random) -> str | None:
    """Another instruction of the same root with the same operands."""
    root = old.opcode.partition(".")[0]
    rows = [form for form in FORMS if form.template.partition(".")[0].partition("{")[0] == root]
    return old.text.replace(old.opcode, _spelling(draw.choice(rows), draw), 1) if rows else None


def _unrelated(source: Source, old: Statement, draw: random.Random) -> str | None:
    """Any instruction that takes about as many operands."""
    rows = [form for form in FORMS if abs(len(form.slots) - len(old.operands)) <= 1]
    return old.text.replace(old.opcode, _spelling(draw.choice(rows), draw), 1) if rows else None


def _guard(source: Source, old: Statement, draw: random.Random) -> str | None:
    predicates = source.registers.get("%p", ()) or source.all_registers
    bare = old.text[len(old.guard) :]
    if not old.guard:
        return f"@{draw.choice(('', '!'))}{draw.choice(predicates)} {bare}"
    match draw.randrange(3):
        case 0:
            return bare
        case 1:
            return (old.guard.replace("@!", "@") if "!" in old.guard else old.guard.replace("@", "@!")) + bare
    return f"@{draw.choice(predicates)} {bare}"


def _target(source: Source, old: Statement, draw: random.Random) -> str | None:
    found = [at for at, operand in enumerate(old.operands) if operand in source.labels]
    if not found:
        return None
    operands = list(old.operands)
    operands[draw.choice(found)] = draw.choice(source.labels)
    return _with_operands(old, operands)


def _offset(source: Source, old: Statement, draw: random.Random) -> str | None:
    """An address moved: by a little, by far, or onto another base."""
    found = [at for at, operand in enumerate(old.operands) if operand.startswith("[") and "," not in operand]
    if not found:
        return None
    at = draw.choice(found)
    base = re.split(r"[+-]", old.operands[at].strip("[] "))[0]
    offset = int(_value(source, str(draw.choice((0, 4, 16, 128))), draw))
    base = draw.choice((base, base, base, draw.choice(source.all_registers), draw.choice(source.symbols or ("x",)), ""))
    operands = list(old.operands)
    operands[at] = f"[{base}+{offset}]" if base else f"[{abs(offset)}]"
    return _with_operands(old, operands)


def _braces(source: Source, old: Statement, draw: random.Random) -> str | None:
    """A brace list with an item more, less, doubled or moved."""
    found = [at for at, operand in enumerate(old.operands) if operand.startswith("{") and operand.endswith("}")]
    if not found:
        return None
    at = draw.choice(found)
    items = _operands(old.operands[at][1:-1])
    match draw.randrange(5):
        case 0 if items:
            items.pop(draw.randrange(len(items)))
        case 1:
            items.append(draw.choice(source.all_registers))
        case 2 if items:
            items[draw.randrange(len(items))] = draw.choice([*items, "_", "0", *source.all_registers[:3]])
        case 3:
            draw.shuffle(items)
        case _:
            items = items[: draw.randrange(len(items) + 1)]
    operands = list(old.operands)
    operands[at] = "{" + ", ".join(items) + "}"
    return _with_operands(old, operands)


def _retyped(source: Source, text: str, draw: random.Random) -> str:
    """A register in place of something else, or the other way round."""
    return draw.choice(
        (draw.choice(source.all_registers), draw.choice(source.symbols or ("x",)), "_", "0", draw.choice(_SPECIALS))
    )


_TOKENS: dict[str, tuple[int, Change]] = {
    "register of the same kind": (16, _token(_REGISTER, _same_kind)),
    "register of another kind": (8, _token(_REGISTER, _other_kind)),
    "number": (18, _token(_NUMBER, _value)),
    "operand of another sort": (6, _token(_OPERAND_TOKEN, _retyped)),
    "operands swapped": (5, _edited(_swap)),
    "operand dropped": (3, _edited(_drop)),
    "operand added": (3, _edited(_repeat)),
    "operand borrowed": (6, _edited(_borrow)),
    "modifier": (14, _edited(_modifier)),
    "opcode of the same root": (8, _edited(_sibling)),
    "opcode of any root": (3, _edited(_unrelated)),
    "guard": (10, _edited(_guard)),
    "target": (5, _edited(_target)),
    "address": (8, _edited(_offset)),
    "brace list": (5, _edited(_braces)),
}


def _deleted(source: Source, line: int, draw: random.Random) -> str | None:
    statement = source.statement(line, draw)
    return None if statement is None else source.with_statement(line, statement, "")


def _doubled(source: Source, line: int, draw: random.Random) -> str | None:
    statement = source.statement(line, draw)
    return None if statement is None else source.with_statement(line, statement, f"{statement.text} {statement.text}")


def _moved(source: Source, line: int, draw: random.Random) -> str | None:
    """An instruction exchanged with another executed one."""
    other = draw.choice(source.lines)
    mine, theirs = source.statement(line, draw), source.statement(other, draw)
    if mine is None or theirs is None or line == other:
        return None
    once = source.with_statement(line, mine, theirs.text)
    return Source(once, source.lines).with_statement(other, theirs, mine.text)


def _scratched(source: Source, line: int, draw: random.Random) -> str:
    """One to three characters replaced, inserted or lost."""
    text = list(source.line(line))
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text) + 1)
        match draw.randrange(3):
            case 0:
                text.insert(at, draw.choice(_NOISE))
            case 1:
                text[at : at + 1] = []
            case 2:
                text[at : at + 1] = [draw.choice(_NOISE)]
    return source.replaced(line, "".join(text))


def _cut(source: Source, line: int, draw: random.Random) -> str | None:
    return source.replaced(line, source.line(line)[: draw.randrange(len(source.line(line)) + 1)])


_LINES: dict[str, tuple[int, Change]] = {
    "deleted": (5, _deleted),
    "doubled": (3, _doubled),
    "moved": (5, _moved),
    "scratched": (4, _scratched),
    "cut": (1, _cut),
    "without the line": (1, lambda source, line, draw: source.replaced(line, None)),
}


def _declared(source: Source, line: int, draw: random.Random) -> str | None:
    """A declaration with another number, type or name, twice, or not at all."""
    text = source.line(line)
    match draw.randrange(7):
        case 0 | 1:
            found = list(re.finditer(r"(?<=[<\[ ,(={])\d+(?=[>\], ;)}])|(?<=[<\[])\d+", text))
            if not found:
                return None
            number = draw.choice(found)
            return source.replaced(
                line, text[: number.start()] + _value(source, number[0], draw) + text[number.end() :]
            )
        case 2:
            found = list(re.finditer(r"\.(?:[busf]\d+|pred)\b", text))
            if not found:
                return None
            type_ = draw.choice(found)
            return source.replaced(line, text[: type_.start()] + draw.choice(_TYPES) + text[type_.end() :])
        case 3:
            space = re.search(r"\.(?:reg|shared|local|global|const|param|entry|func|target)\b", text)
            other = draw.choice(
                (".reg", ".shared", ".local", ".global", ".const", ".param", ".extern .shared", ".func")
            )
            return None if space is None else source.replaced(line, text[: space.start()] + other + text[space.end() :])
        case 4:
            return source.replaced(line, f"{text}\n{text}")
        case 5:
            return source.replaced(line, None)
    return _scratched(source, line, draw)
