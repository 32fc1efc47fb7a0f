"""One Python function per PTX instruction, made from the instruction table.

`mbarrier.arrive_expect_tx(barrier, 4096)`: the name is the start of the opcode, operands are in the manual's order,
and every other word is a keyword named as in the table (`scope="cluster"`, `cta_group=2`, `ftz=True`). A required word
may also come after the name: `griddepcontrol.wait()`, `tcgen05.wait.ld()`. The types of operands, the rank of a tensor
and words without an alternative may be left out.
"""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from warploom.diagnostics import Diag
from warploom.ptx.isa.table import FORMS, KINDS, Form, Slot
from warploom.trace.builder import here
from warploom.trace.isa.emit import RESULTS, At, emit, suits
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value

_PART = re.compile(r"\{(\.?)([a-z0-9_]+)(\??)\}")
_UNNAMED = {"sync", "aligned", "approx", "rn", "sat", "relaxed", "cluster", "tile", "m8n8", "trans", "L1", "L2"}
"""Words at the start of an opcode that a name can do without."""
_MOST_OPTIONS = 8
_TRACED = ("bra", "brx", "call")
"""Instructions that `loop`, `when` and Python's own calls write."""
_TYPE_WORD = re.compile(r"b\d+|[us]\d+|f\d+|pred|v\d")
_VECTOR = re.compile(r"\.v(\d)\b")
_KEYWORDS = {"group": "cta_group", "dst": "dst_space", "src": "src_space"}
"""Choices whose keyword is not the table's name for them: PTX has a word of its own, or an operand is called so."""
_OTHER_PLACES = ("late_", "last_", "end_")
"""Choices of the table that put a word in another place of the opcode."""
_DOCUMENTED_PLACE = {"group": ("last_group", "late_group")}
"""Choices that the PTX ISA documents at a later place of the opcode than the one that carries their name."""
_IMPLIED = {"hint": "policy", "multicast": "mask"}
"""Words that stand in the opcode where an operand is given."""


@dataclass(frozen=True)
class InstructionFunction:
    """The forms of one instruction, callable; or the instructions that begin with a word, as attributes."""

    name: str
    forms: tuple[Form, ...] = ()
    members: Mapping[str, InstructionFunction] = field(default_factory=dict)
    chosen: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self, *operands: Any, guard: Value | None = None, results: int | None = None, **given: Any
    ) -> Value | tuple[Value, ...] | None:
        """One instruction at the author's line; gives its result, or several, or nothing.

        A keyword is a word of the opcode or an operand by its name. `results` is how many registers a list of results
        has where no word says it; 0 discards the results.
        """
        tries = [_Try(form, operands, {**self.chosen, **given}) for form in self.forms]
        fitting = min((each for each in tries if not each.problems), key=lambda each: each.stretched, default=None)
        if fitting is None:
            raise self._error(tries)
        counted = _VECTOR.search(fitting.opcode)
        count = results or (int(counted[1]) if counted else None)
        found = emit(fitting.opcode, *fitting.operands, count=count, guard=guard, discard=results == 0)
        return found[0] if len(found) == 1 else found or None

    def __getattr__(self, word: str) -> InstructionFunction:
        if word.startswith("_"):
            raise AttributeError(word)
        if word in self.members:
            return self.members[word]
        for form in self.forms:
            for name in verbs(form):
                if word.rstrip("_") in form.choices[name] and _keyword(name) not in self.chosen:
                    return replace(self, chosen={**self.chosen, _keyword(name): word.rstrip("_")}, members={})
        nearest = difflib.get_close_matches(word, dir(self), n=1, cutoff=0.0)
        raise AttributeError(f"no instruction `{self.name}.{word}`" + (f"; there is `{nearest[0]}`" if nearest else ""))

    def __dir__(self) -> list[str]:
        return sorted(
            {*self.members, *(word for form in self.forms for name in verbs(form) for word in form.choices[name])}
        )

    def _error(self, tries: list[_Try]) -> Exception:
        if not tries:
            return AttributeError(f"`{self.name}` begins the names of {', '.join(dir(self))}")
        best = min(tries, key=lambda each: (each.refused, len(each.problems)))
        what, takes = "; ".join(best.problems), _signature(best.form)
        return Diag.BAD_OPERANDS.error(here(), text=self.name, what=what, takes=takes)


def verbs(form: Form) -> Iterator[str]:
    """Return the choices whose words may come after the name: required ones other than types."""
    for _, name, optional in _PART.findall(form.template):
        if not optional and name in form.choices and not name.endswith("type") and _keyword(name):
            yield name


def _keyword(name: str) -> str:
    """Return the Python name of a choice; empty where only the table needs it."""
    return "" if name.startswith(_OTHER_PLACES) else _KEYWORDS.get(name, name)


def keywords(form: Form) -> dict[str, tuple[str, ...]]:
    """The words that keywords of a form can choose."""
    names = (name for _, name, _ in _PART.findall(form.template) if _keyword(name))
    return {_keyword(name): form.choices.get(name, (name,)) for name in names}


def inputs(form: Form) -> list[Slot]:
    return [slot for slot in form.slots if slot.kind not in RESULTS]


def _signature(form: Form) -> str:
    """Return the operands and keywords of a form, for messages."""
    operands = [f"{slot.name}?" if slot.optional else slot.name for slot in inputs(form)]
    optional = {_keyword(name): bool(maybe) for _, name, maybe in _PART.findall(form.template)}
    words = [
        f"{name}{'?' if optional[name] else ''}={_listed(options, between='|')}"
        for name, options in keywords(form).items()
    ]
    return f"({', '.join((*operands, *words))})"


def _listed(options: tuple[str, ...], like: str = "", between: str = ", ") -> str:
    """The options of a choice; of many only some, those most like a given word."""
    if len(options) <= _MOST_OPTIONS:
        return between.join(options)
    close = difflib.get_close_matches(like, options, n=_MOST_OPTIONS, cutoff=0.0) if like else options[:_MOST_OPTIONS]
    return between.join((*close, f"… ({len(options)} in all)"))


class _Try:
    """A call read by one form: the opcode and its operands, or what keeps them from fitting."""

    def __init__(self, form: Form, operands: tuple[Any, ...], given: dict[str, Any]) -> None:
        self.form, self.problems, self.stretched, self.refused = form, list[str](), 0, 0
        self.given = {name: value for name, value in given.items() if value is not None}
        self._left_out = {name for name, value in given.items() if value is None}
        self._by_slot = self._assigned(operands)
        names = [name for _, name, _ in _PART.findall(form.template)]
        self._moved = {
            last: name
            for name, places in _DOCUMENTED_PLACE.items()
            if name in names and (last := next((place for place in places if place in names), None))
        }
        self.opcode = _PART.sub(lambda part: self._part(*part.groups()), form.template)
        for width in _VECTOR.findall(self.opcode):
            lists = [each for each in self._by_slot.values() if isinstance(each, list | tuple)]
            self.problems += [f"{len(each)} values for `.v{width}`" for each in lists if len(each) != int(width)]
        self.problems += [f"it has no `{name}`" for name in self.given if name not in keywords(form)]

    @property
    def operands(self) -> list[Any]:
        return [self._by_slot.get(slot.name) for slot in inputs(self.form)]

    def _assigned(self, operands: tuple[Any, ...]) -> dict[str, Any]:
        """Operands by slot: those with a keyword first, the others in order."""
        slots, found = inputs(self.form), dict[str, Any]()
        cast = self.given.get("multicast", True)
        if any(slot.name == "mask" for slot in slots) and cast is not True and not isinstance(cast, str):
            self.given["mask"] = self.given.pop("multicast")
        left = [_settled(each) for each in operands]
        spare = len(left) - sum(not slot.optional and slot.name not in self.given for slot in slots)
        for slot in slots:
            if slot.name in self.given:
                argument = _settled(self.given.pop(slot.name))
            elif left and (not slot.optional or (spare > 0 and (left[0] is None or suits(slot, _fit(slot, left[0]))))):
                argument = left.pop(0)
                spare -= slot.optional
            else:
                argument = None
            if argument is not None:
                found[slot.name] = _fit(slot, argument)
                self.stretched += found[slot.name] is not argument
            if not slot.optional and argument is None:
                self.problems.append(f"`{slot.name}`, {KINDS[slot.kind]}, is missing")
            elif argument is not None and not suits(slot, found[slot.name]):
                self.problems.append(f"`{slot.name}` is {KINDS[slot.kind]}, not {argument!r:.40}")
        self.problems += [f"{each!r:.40} is one operand too many" for each in left]
        return found

    def _part(self, dot: str, name: str, optional: str) -> str:
        """Return the part of the opcode for a choice of the template."""
        if name in self._moved.values():
            return ""
        name = self._moved.get(name, name)
        options, keyword_ = self.form.choices.get(name, (name,)), _keyword(name)
        given = self.given.get(keyword_) if keyword_ else None
        if given is not None and given is not False:
            word = _word(options, given)
            if word is None:
                self.refused += 1
                self.problems.append(f"{keyword_}={given!r:.40} is not one of {_listed(options, str(given))}")
            return f"{dot}{word}"
        said_no = given is False or keyword_ in self._left_out
        word = None if said_no else self._implied(name, options, bool(optional))
        if word is None and not optional:
            self.problems.append(f"it needs {keyword_}=, one of {_listed(options)}")
        return f"{dot}{word}" if word else ""

    def _implied(self, name: str, options: tuple[str, ...], optional: bool) -> str | None:
        """The word that need not be said."""
        if name in _IMPLIED and optional:
            return options[0] if _IMPLIED[name] in self._by_slot else None
        if all(option.startswith("shared") for option in options):
            return "shared::cta" if name == "space" and "shared::cta" in options else options[0]
        if optional:
            return None
        if len(options) == 1:
            return options[0]
        if name == "rank":
            boxes = [each for each in self._by_slot.values() if isinstance(each, At) and each.coordinates is not None]
            return f"{len(boxes[0].coordinates or ())}d" if boxes else None
        if name == "vec":
            lists = [each for each in self._by_slot.values() if isinstance(each, list | tuple)]
            return f"v{len(lists[0])}" if lists else None
        return self._type(name, options)

    def _type(self, name: str, options: tuple[str, ...]) -> str | None:
        """The type of the operands that a choice types."""
        for slot in self.form.slots:
            argument = self._by_slot.get(slot.name)
            first = argument[0] if isinstance(argument, list | tuple) and argument else argument
            if slot.type == f"{{{name}}}" and isinstance(first, Value):
                if first.type in options:
                    return first.type
                bits = TYPES[first.type].bits
                return next((option for option in options if option == f"b{bits}"), None)
        return None


def _settled(argument: Any) -> Any:
    """An operand as instructions take it: a barrier, a view or a tensor map stands for its place."""
    for name in ("at", "place", "address"):
        if isinstance(argument, Value | At):
            break
        place = getattr(argument, name, None)
        argument = place if isinstance(place, Value | At) else argument
    return argument


def _fit(slot: Slot, argument: Any) -> Any:
    """An address may be given as the value that holds it, and the other way round."""
    if slot.kind == "address" and isinstance(argument, Value):
        return At(argument)
    if slot.kind == "in" and isinstance(argument, At) and argument.coordinates is None:
        return argument.address
    return argument


def _word(options: tuple[str, ...], given: Any) -> str | None:
    """The option that a keyword's value names: as it is spelled, by its last part, or by its number."""
    if given is True:
        return options[0] if len(options) == 1 else None
    text = str(given)
    if text in options:
        return text
    tails = {option: option.rpartition("::")[2] for option in options}
    if isinstance(given, int):
        tails = {option: re.sub(r"\D", "", tail) for option, tail in tails.items()}
    found = [option for option, tail in tails.items() if tail == text]
    return found[0] if len(found) == 1 else None


def name_of(form: Form) -> str:
    """The instruction that a form belongs to: what its opcode begins with, as far as the family's name goes."""
    family, run = form.family.split("."), list[str]()
    for word in form.template.partition("{")[0].split("."):
        if word.partition("::")[0] in ("", "global", "shared"):
            break
        run.append(word.rstrip(":").replace("::", "_"))
    shorter = min(len(run), len(family))
    if run[:shorter] == family[:shorter] and len(run) <= len(family):
        return form.family
    if run[0] != family[0] and len(run) == 1:
        return ".".join((run[0], *family[1:])) if family[0] == "bar" else run[0]
    known = shorter if run[:shorter] == family[:shorter] else 1
    unnamed = _UNNAMED | {"async"} if known == len(family) else _UNNAMED
    kept = (word for word in run[known:] if word not in unnamed and not _TYPE_WORD.fullmatch(word))
    return ".".join((*run[:known], *kept))


@cache
def functions() -> dict[str, InstructionFunction]:
    """All instructions by the first word of their names."""
    forms = dict[tuple[str, str], list[Form]]()
    for form in FORMS:
        root, _, rest = name_of(form).partition(".")
        if root in _TRACED:
            continue
        forms.setdefault((_python(root), _python(rest.replace(".", "_"))), []).append(form)
    found = dict[str, InstructionFunction]()
    for root in dict.fromkeys(root for root, _ in forms):
        members = {
            rest: InstructionFunction(f"{root}.{rest}", tuple(rows))
            for (first, rest), rows in forms.items()
            if first == root and rest
        }
        found[root] = InstructionFunction(root, tuple(forms.get((root, ""), ())), members)
    return found


def _python(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name
