"""Instructions that were decoded before: each is decoded as if it were the first."""

from __future__ import annotations

import random
import re

import pytest

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.machine import instructions as meanings  # noqa: F401  (the rows of every family)
from warploom.ptx.isa import table
from warploom.ptx.isa.table import FORMS, Form, Op, _spelled, decode_kernel
from warploom.ptx.syntax.parser import parse

TEXT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{{
 .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %d<8>; .reg .pred %p<8>;
 {}
}}
"""
LINES = (
    "add.u32 %r1, %r2, %r3;",
    "add.u32 %r1, %r2, 7;",
    "add.f32 %f1, %f2, 0f3F800000;",
    "@!%p1 add.u32 %r1, %r2, %r3;",
    "ld.global.u32 %r1, [%d1];",
    "ld.global.v2.u32 {%r1, %r2}, [%d1+8];",
    "ld.global.v2.u32 {%r1, _}, [%d1];",
    "shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;",
    "shfl.sync.idx.b32 %r1|%p1, %r2, 0, 31, -1;",
    "mov.b64 {%r1, %r2}, %d1;",
    "mov.b64 %d1, {%r1, %r2};",
    "mov.u32 %r1, %tid.x;",
    "setp.lt.and.u32 %p1, %r1, %r2, !%p2;",
    "selp.b32 %r1, %r2, 3, %p1;",
    "bar.sync 0;",
    "bar.sync 0, 64;",
)
WRONG = (
    "add.u32 %r1, %d2, %r3;",
    "add.u32 %r1, %r2, 0f3F800000;",
    "add.u32 %r1, %r2, 99999999999999999999;",
    "@%r1 add.u32 %r1, %r2, %r3;",
    "ld.global.u32 %r1, [%h1];",
    "ld.global.v2.u32 {%r1, %h2}, [%d1];",
    "mov.b64 {%r1, %h2}, %d1;",
    "mov.u32 %r1, %clock64;",
    "selp.b32 %r1, %r2, 3, %r4;",
)


def decoded(line: str) -> Op | str:
    """The instruction of a line, or its error."""
    try:
        (kernel,) = parse(TEXT.format(line)).kernels
        (op,) = decode_kernel(kernel, "sm_90a")
    except WarploomError as error:
        return str(error)
    return op


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_DECODED", {})


def test_a_spelling_is_decoded_alike_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [decoded(line) for line in LINES]
    assert all(isinstance(op, Op) for op in first)
    remembered = len(table._DECODED)
    assert remembered > len(LINES) // 2
    swapped = [line.translate(str.maketrans("123", "231")) for line in LINES]
    again = [decoded(line) for line in swapped]
    assert len(table._DECODED) == remembered
    monkeypatch.setattr(table, "_spelling", lambda *_: None)
    assert again == [decoded(line) for line in swapped]
    assert first == [decoded(line) for line in LINES]


@pytest.mark.parametrize("line", WRONG)
def test_errors_do_not_depend_on_the_lines_before(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    for each in LINES:
        decoded(each)
    found = decoded(line)
    monkeypatch.setattr(table, "_spelling", lambda *_: None)
    assert isinstance(found, str)
    assert found == decoded(line)


def test_spellings_are_forgotten_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_MOST_DECODED", 4)
    for line in LINES:
        decoded(line)
        assert len(table._DECODED) <= 4


@pytest.mark.parametrize("special", ["%ntid.y", "%laneid"])
def test_a_special_register_without_axes_has_no_parts(special):
    """Only `%tid` and the like are vectors, which `mov.v4` reads whole."""
    text = f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k()
{{
	.reg .b32 %r<2>;
	mov.v4.u32 {{%r1, _, _, _}}, {special};
	ret;
}}
"""
    with pytest.raises(WarploomError) as caught:
        launch(text, grid=(1, 1, 1), block=(1, 1, 1), args=[])
    assert caught.value.code in ("BAD_OPERANDS", "UNKNOWN_INSTRUCTION")


def by_expression(row: Form, opcode: str) -> dict[str, str | None] | None:
    """The modifiers of an opcode that a regular expression finds, which is made from the template of a row."""
    pattern, end = "", 0
    for part in re.finditer(r"\{(\.?)([a-z0-9_]+)(\??)\}", row.template):
        dot, name, maybe = part.groups()
        words = sorted(row.choices.get(name, (name,)), key=len, reverse=True)
        group = f"{re.escape(dot)}(?P<{name}>{'|'.join(map(re.escape, words))})"
        pattern += re.escape(row.template[end : part.start()]) + (f"(?:{group})?" if maybe else group)
        end = part.end()
    found = re.fullmatch(pattern + re.escape(row.template[end:]), opcode)
    return None if found is None else found.groupdict()


def test_opcodes_have_the_modifiers_that_their_templates_spell() -> None:
    """Random spellings of every row, also with a word too many, too few, cut or of another row."""
    others = [word for row in FORMS for words in row.choices.values() for word in words]
    matched = 0
    for row in FORMS:
        for _ in range(6):
            opcode = re.sub(
                r"\{(\.?)([a-z0-9_]+)(\??)\}",
                lambda part, row=row: (
                    ""
                    if part[3] and random.random() < 0.4
                    else part[1] + random.choice(row.choices.get(part[2], (part[2],)))
                ),
                row.template,
            )
            words = opcode.split(".")
            at = random.randrange(len(words))
            for each in (
                opcode,
                f"{opcode}.{random.choice(others)}",
                opcode[:-1],
                ".".join(words[:at] + words[at + 1 :]),
            ):
                expected = by_expression(row, each)
                assert _spelled(row.spelling, each) == expected, (row.template, each)
                matched += expected is not None
    assert matched >= 6 * len(FORMS)
