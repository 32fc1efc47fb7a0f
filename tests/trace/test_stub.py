"""`isa.pyi`: what editors and mypy know of the instruction functions, made from the table and kept in step with it."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import warploom.trace
from warploom.trace.isa.emit import RESULTS
from warploom.trace.isa.functions import functions, inputs, keywords, verbs

STUB = Path(warploom.trace.__file__).with_name("isa") / "__init__.pyi"
HEAD = """# Made from the instruction table: `pytest tests/trace/test_stub.py --update-golden` writes it anew.
# ruff: noqa: A001, A002, N801, N815
# fmt: off
from typing import Any, Literal, TypeAlias

from warploom.trace.language.values import Value

_Operand: TypeAlias = Any
"""
LONGEST = 80
"""A choice whose words take more room than this is any text."""


def words_type(options):
    """The type of a keyword: its words or their last parts, or a number in them; one word is said by True."""
    if options is None:
        return "_Operand"
    if len(options) == 1:
        return "bool | str | None"
    spelled = dict.fromkeys((*options, *(option.rpartition("::")[2] for option in options)))
    text = "Literal[" + ", ".join(f'"{word}"' for word in spelled) + "]"
    if len(text) > LONGEST:
        return "str | int | None"
    return f"{text} | int | None" if any(word[-1:].isdigit() for word in options) else f"{text} | None"


def signature(function):
    """The parameters of a function: operands, then every keyword of any of its forms."""
    words, operands = {}, {}
    for form in function.forms:
        operands |= {slot.name: None for slot in inputs(form)}
        for name, options in keywords(form).items():
            words[name] = tuple(dict.fromkeys((*words.get(name, ()), *options)))
    if "mask" in operands:
        words["multicast"] = None
    named = [f"{name}: _Operand = ..." for name in operands]
    chosen = [f"{name}: {words_type(options)} = ..." for name, options in words.items() if not keyword.iskeyword(name)]
    return [*named, "*", *chosen, "guard: Value | None = ...", "results: int | None = ..."]


def result(function):
    """The result of a call, if all forms agree."""
    kinds = {tuple(slot.kind for slot in form.slots if slot.kind in RESULTS) for form in function.forms}
    return {(): "None", ("out",): "Value"}.get(next(iter(kinds)), "Any") if len(kinds) == 1 else "Any"


def definition(function):
    """`__call__`, wrapped between parameters."""
    text = "def __call__(self, " + ", ".join(signature(function)) + f") -> {result(function)}: ..."
    lines, line = [], "   "
    for word in re.split(r"(?<=,) (?=\w+:|\*)", text):
        if len(line) + 1 + len(word) > 120:
            lines.append(line)
            line = "       "
        line += f" {word}"
    return [*lines, line]


def class_of(name, function):
    lines = [f"class {name}:"]
    lines += definition(function) if function.forms else []
    chosen = {word for form in function.forms for verb in verbs(form) for word in form.choices[verb]}
    for word in sorted(chosen - set(function.members)):
        python = f"{word}_" if keyword.iskeyword(word) else word
        if python.isidentifier():
            lines.append(f"    {python}: {name}")
    lines += [f"    {member}: {name}_{member}" for member in function.members]
    return "\n".join(lines) + "\n"


def stub():
    """The text of the stub."""
    classes, names = [], []
    for root, function in functions().items():
        classes += [class_of(f"_{root}_{member}", each) for member, each in function.members.items()]
        classes.append(class_of(f"_{root}", function))
        names.append(f"{root}: _{root}")
    return HEAD + "\n" + "\n".join(classes) + "\n" + "\n".join(names) + "\n"


def test_the_stub_matches_the_table(request):
    text = stub()
    if request.config.getoption("--update-golden"):
        STUB.write_text(text, "utf-8")
    assert STUB.read_text("utf-8") == text, "the instruction table changed: run with --update-golden"
