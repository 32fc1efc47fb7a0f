from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pace import cost

from warploom.diagnostics import PtxError, WarploomError
from warploom.ptx import parse, print_module
from warploom.ptx.isa.table import decode_kernel

TESTS = Path(__file__).parent.parent
FOREIGN = sorted((TESTS / "foreign").glob("*.ptx"))
TEXTS = [*FOREIGN, *sorted((TESTS / "machine" / "data").glob("*.ptx"))]
HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"


def refused(text: str) -> PtxError:
    with pytest.raises(PtxError) as caught:
        parse(text, file="some.ptx")
    assert caught.value.loc is not None
    assert caught.value.loc.file == "some.ptx"
    return caught.value


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("", "SYNTAX", 1, 1),
        ("// nothing\n", "SYNTAX", 2, 1),
        (".target sm_90a\n", "SYNTAX", 1, 1),
        (".version 9.5\n.target sm_90a", "SYNTAX", 1, 10),
        (".version 12\n.target sm_90a", "SYNTAX", 1, 10),
        (".version 8.0\n.entry k() {}", "SYNTAX", 2, 1),
        (HEAD + "ret;", "SYNTAX", 4, 1),
        (HEAD + ".entry k()\n{ ret; ", "SYNTAX", 5, 1),
        (HEAD + ".entry k()\n{ { ret; }", "SYNTAX", 5, 1),
        (HEAD + ".entry k() { ret; } }", "SYNTAX", 4, 21),
        (HEAD + ".entry k() { .reg .b32 a;\n mov.u32 a, 1\n ret; }", "SYNTAX", 6, 2),
        (HEAD + ".entry k() { ;ret; }", "SYNTAX", 4, 14),
        (HEAD + ".entry k() { .reg .b32 a;\n mov.u32 a, b; }", "UNDECLARED", 5, 13),
        (HEAD + ".entry k() {\n @p ret; }", "UNDECLARED", 5, 3),
        (HEAD + ".entry k(.param .u32 p) {\n @!p ret; }", "SYNTAX", 5, 4),
        (HEAD + ".entry k() {\n @; }", "SYNTAX", 5, 3),
        (HEAD + ".entry k() {\n bra L; { L: } }", "UNDECLARED", 5, 6),
        (HEAD + ".entry k() { .reg .b32 a;\n .reg .b64 a; }", "DUPLICATE", 5, 12),
        (HEAD + ".entry k() { .reg .b32 r<4>;\n .reg .b64 r<2>; }", "DUPLICATE", 5, 12),
        (HEAD + ".entry k() { .reg .b32 r<4>;\n .reg .b64 r3; }", "DUPLICATE", 5, 12),
        (HEAD + ".entry k() { .reg .b32 r<20>;\n .reg .b64 r1<2>; }", "DUPLICATE", 5, 12),
        (HEAD + ".entry k() { L:\n L: ret; }", "DUPLICATE", 5, 2),
        (HEAD + ".entry k(.param .u32 a, .param .u32 a) { }", "DUPLICATE", 4, 37),
        (HEAD + ".entry k() { }\n.entry k() { }", "DUPLICATE", 5, 8),
        (HEAD + ".global .b32 x;\n.global .b64 x;", "DUPLICATE", 5, 14),
        (HEAD + ".global .u64 x = y;", "UNDECLARED", 4, 18),
        (HEAD + ".global .f32 x = 3;", "SYNTAX", 4, 18),
        (HEAD + ".global .u32 x[2] = {1, 2, 3};", "SYNTAX", 4, 21),
        (HEAD + ".global .align 3 .b8 x;", "SYNTAX", 4, 16),
        (HEAD + ".global .b8 x[1000000000][1000000000];", "SYNTAX", 4, 13),
        (HEAD + ".entry k() { .reg .b64 a; mov.u64 a, 18446744073709551616; }", "SYNTAX", 4, 38),
        (HEAD + ".entry k() { .reg .b64 a; mov.u64 a, 09; }", "SYNTAX", 4, 38),
        (HEAD + ".entry k() { .reg .b64 a; mov.u64 a, 1_0; }", "SYNTAX", 4, 38),
        (HEAD + ".entry k() { .reg .b64 a; mov.u64 a, 1<<64; }", "SYNTAX", 4, 39),
        (HEAD + ".entry k() { .reg .b64 a; ld.u64 a, [a-8]; }", "SYNTAX", 4, 39),
        (HEAD + ".entry k() { .reg .b64 a; ld.u64 a, [%tid.x]; }", "SYNTAX", 4, 38),
        (HEAD + ".entry k() { .reg .b64 a; mov.u64 a, %tidy; }", "UNDECLARED", 4, 38),
        (HEAD + ".entry k() { ret; é }", "SYNTAX", 4, 19),
        (HEAD + ".entry k() { ret; \x00 }", "SYNTAX", 4, 19),
        (HEAD + ".entry k() { /* ret; }", "SYNTAX", 4, 14),
        (HEAD + '.entry k() { .pragma "x; }', "SYNTAX", 4, 22),
        (HEAD + ".entry k() .surprise 4 { }", "SYNTAX", 4, 12),
        (HEAD + ".alias f, g;", "UNDECLARED", 4, 8),
        (HEAD + ".section .debug_str { { }", "SYNTAX", 4, 21),
        (HEAD + ".global .attribute( .b8 x;", "SYNTAX", 4, 27),
        (HEAD + ".entry k() {" + " {" * 300, "SYNTAX", 4, 12 + 2 * 257),
        (HEAD + ".entry k() { .reg .b64 a; mov.u64 a, " + "(" * 300, "SYNTAX", 4, 38 + 65),
        (HEAD + "x" * 70000, "SYNTAX", 4, 1),
        (HEAD + '.file 1 "a"\n.file 1 "b"', "DUPLICATE", 5, 1),
    ],
)
def test_invalid_ptx_is_rejected_with_line_and_column(text, code, line, column):
    error = refused(text)
    assert (error.code, error.loc.line, error.loc.column) == (code, line, column), str(error)
    shown = text.split("\n")[line - 1][:160].strip()
    assert error.notes == ((shown,) if shown else ())


@pytest.mark.parametrize(
    "piece", ['"\\"', "/*", "{", "[", "(", "-", " ", ".section x {", "%r<", "a:", "//!wl x\n", "{a:}"]
)
def test_a_hostile_text_takes_no_longer_than_its_length(piece):
    openings = ("", HEAD, HEAD + ".entry k() { .reg .b32 a; ", HEAD + ".entry k() { .reg .b32 a; mov.u32 a, ")
    texts = [opening + piece * 30000 + "\n!" for opening in openings]
    assert cost(lambda: [refused(text) for text in texts], 2) < 600


EXTRA = [
    *'{}()[];,|@!<>=:-+_$"\\\0é',
    "0x",
    "9" * 5000,
    "/*",
    "//",
    ".reg",
    ".loc",
    ".section",
    ".param",
    "<<",
    "0f1",
    "1e999",
    "generic",
]


def mutated(text: str, seed: int) -> str:
    rng = random.Random(seed)
    tokens = re.findall(r"\s+|[\w$%.:]+|.", text, re.DOTALL)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(tokens))
        token = tokens[place]
        character = rng.randrange(len(token) or 1)
        tokens[place] = rng.choice(
            (
                "",
                token * 2,
                rng.choice(tokens),
                rng.choice(EXTRA),
                token[:character] + chr(rng.randrange(1, 300)) + token[character + 1 :],
            )
        )
    return "".join(tokens)


@pytest.mark.parametrize("path", [p for p in TEXTS if p.stat().st_size < 13000], ids=lambda path: path.stem)
def test_any_mutation_is_a_module_or_a_catalogued_error(path):
    text = path.read_text()
    read = 0
    for seed in range(150):
        try:
            module = parse(mutated(text, seed))
        except PtxError as error:
            assert error.loc is not None
            assert "\n  do: " in str(error)
        else:
            read += 1
            assert parse(print_module(module)) == module
    assert 0 < read < 150


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from('{}[]();,.:@!|<>%$_"/*\\+-~ \n019abrUxf'), max_size=60))
def test_any_characters_in_a_body_are_parsed_or_rejected(text):
    try:
        module = parse(f"{HEAD}.entry k() {{ .reg .b32 a, b, r<10>; {text} ret; }}")
    except PtxError:
        return
    assert parse(print_module(module)) == module


def decoding_error(body: str) -> WarploomError:
    """The error of decoding a kernel with this body."""
    text = f"{HEAD}.entry k() {{ .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .f32 %f<64>; .reg .pred %p; {body} ret; }}"
    with pytest.raises(WarploomError) as caught:
        decode_kernel(parse(text).kernels[0], "sm_90a")
    return caught.value


D = "{" + ", ".join(f"%f{number}" for number in range(64)) + "}"
WGMMA = "wgmma.mma_async.sync.aligned.{} {}, %rd1, %rd2, %p{};"


@pytest.mark.parametrize(
    ("opcode", "operands", "what", "takes"),
    [
        ("m64n128k16.f32.bf16.bf16", ", 1, 1, 0", "it has 7 operands instead of 8", "trans_a integer literal, trans_b"),
        ("m64n128k32.s32.s8.s8", ", 1, 1, 0, 0", "it has 8 operands instead of 4", "b .b64, scale_d .pred."),
        (
            "m64n128k32.f32.e4m3.e4m3",
            ", 1, %p",
            "operand 6 (`%p`) is not an integer literal",
            "scale_b integer literal.",
        ),
    ],
)
def test_operands_that_do_not_fit_are_reported_with_the_nearest_form(opcode, operands, what, takes):
    error = decoding_error(WGMMA.format(opcode, D, operands))
    assert error.code == "BAD_OPERANDS"
    assert error.what.endswith(f"{what}.")
    assert takes in error.advice
    assert len(str(error)) < 500


@pytest.mark.parametrize(
    ("opcode", "note"),
    [
        ("m64n127k16.f32.bf16.bf16", "`.m64n127k16` is not a `{shape}` of the nearest form, which can be"),
        ("m64n128k16.f32.f32.f32", "`.f32` is not a `{a_type}` of the nearest form, which can be f16, bf16"),
        ("m64n128k16.f32.bf16", "the nearest form needs `{b_type}` as well"),
    ],
)
def test_a_wrong_modifier_is_named_with_what_it_can_be(opcode, note):
    error = decoding_error(WGMMA.format(opcode, D, ", 1, 1, 0, 0"))
    assert error.code == "UNKNOWN_INSTRUCTION"
    assert error.notes[0].startswith(note)


def test_long_and_many_unknown_opcodes_give_a_short_error():
    long = decoding_error("".join(f"ld.{number}{'ab.cd' * 12000} %r0;" for number in range(5)))
    assert len(str(long)) < 3000
    many = decoding_error("".join(f"foo{number}.x %r0;" for number in range(3000)))
    assert len(str(many)) < 1500
    assert many.notes[-1] == "and 2991 more kinds"
