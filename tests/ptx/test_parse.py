from __future__ import annotations

import operator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warploom.diagnostics import Loc, PtxError
from warploom.ptx import parse, print_module
from warploom.ptx.syntax.model import (
    Address,
    Arguments,
    BranchTargets,
    CallTable,
    Directive,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Negated,
    Note,
    Pair,
    Pragma,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
REGISTERS = ".reg .pred p, %q<3>; .reg .b32 %r<10>, a; .reg .b64 %rd<4>; .reg .f32 %f<4>;\n"
MODULE_NAMES = ".global .align 16 .b32 cells[8];\n.extern .shared .align 16 .b8 raw[];\n"


def kernel(body: str, *, before: str = MODULE_NAMES) -> Kernel:
    module = parse(f"{HEAD}{before}.visible .entry k(.param .u64 in)\n{{\n{REGISTERS}{body}\n}}\n")
    assert parse(print_module(module)) == module
    return module.kernels[-1]


def only(body: str) -> Instruction:
    (instruction,) = kernel(body + " LABEL: ").instructions
    return instruction


R = {f"r{n}": Register(f"%r{n}") for n in range(10)}
RD1, RD2, P, Q1 = Register("%rd1"), Register("%rd2"), Register("p"), Register("%q1")


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("add.s32 %r1, %r2, a;", (R["r1"], R["r2"], Register("a"))),
        ("mov.u32 %r1, %tid.x;", (R["r1"], Special("%tid.x"))),
        ("mov.u32 %r1, %cluster_ctarank;", (R["r1"], Special("%cluster_ctarank"))),
        ("mov.u32 %r1, %envreg3;", (R["r1"], Special("%envreg3"))),
        ("mov.u64 %rd1, %globaltimer;", (RD1, Special("%globaltimer"))),
        ("mov.u32 %r1, %lanemask_lt;", (R["r1"], Special("%lanemask_lt"))),
        ("mov.u32 %r1, %dynamic_smem_size;", (R["r1"], Special("%dynamic_smem_size"))),
        ("mov.u32 %r1, -1;", (R["r1"], Immediate(-1))),
        ("mov.u32 %r1, 0xFfU;", (R["r1"], Immediate(255))),
        ("mov.u32 %r1, 017;", (R["r1"], Immediate(15))),
        ("mov.u32 %r1, 0b101;", (R["r1"], Immediate(5))),
        ("mov.u64 %rd1, 18446744073709551615;", (RD1, Immediate(2**64 - 1))),
        ("mov.f32 %f1, 0f3F800000;", (Register("%f1"), Immediate(0x3F800000, "f32"))),
        ("mov.f64 %rd1, 0d3ff0000000000000;", (RD1, Immediate(0x3FF0000000000000, "f64"))),
        ("mov.f32 %f1, -1.5;", (Register("%f1"), Immediate(0xBFF8000000000000, "f64"))),
        ("mov.f32 %f1, 2e0;", (Register("%f1"), Immediate(0x4000000000000000, "f64"))),
        ("mov.u32 %r1, 2+3*(4-1)<<1|~0&8;", (R["r1"], Immediate(((2 + 3 * (4 - 1)) << 1) | (~0 & 8)))),
        ("mov.u32 %r1, 256 >> 2+2;", (R["r1"], Immediate(16))),
        ("mov.u32 %r1, WARP_SZ;", (R["r1"], Immediate(32))),
        ("mov.u32 %r1, WARP_SZ*4-1;", (R["r1"], Immediate(127))),
        ("mov.u64 %rd1, cells;", (RD1, Symbol("cells"))),
        ("mov.u64 %rd1, cells+4*2;", (RD1, Symbol("cells", 8))),
        ("mov.u64 %rd1, raw + -4;", (RD1, Symbol("raw", -4))),
        ("ld.u32 %r1, [%rd1];", (R["r1"], Address(RD1))),
        ("ld.u32 %r1, [ %rd1 + 0 ];", (R["r1"], Address(RD1))),
        ("ld.u32 %r1, [%rd1 + -16];", (R["r1"], Address(RD1, -16))),
        ("ld.u32 %r1, [%rd1+(4*4)];", (R["r1"], Address(RD1, 16))),
        ("ld.param.u64 %rd1, [in];", (RD1, Address(Symbol("in")))),
        ("ld.global.u32 %r1, [cells+12];", (R["r1"], Address(Symbol("cells"), 12))),
        ("ld.shared.u32 %r1, [0x10];", (R["r1"], Address(Immediate(16)))),
        ("st.v2.b32 [%rd1], {%r1, _};", (Address(RD1), Vector((R["r1"], Sink())))),
        ("mov.b64 %rd1, {%r1, 0};", (RD1, Vector((R["r1"], Immediate(0))))),
        ("mov.b64 {a,%r2}, %rd1;", (Vector((Register("a"), R["r2"])), RD1)),
        ("shfl.sync.idx.b32 %r1|%q1, %r2, 0, 31, -1;", (Pair(R["r1"], Q1), R["r2"], *map(Immediate, (0, 31, -1)))),
        ("elect.sync _|p, -1;", (Pair(Sink(), P), Immediate(-1))),
        ("setp.lt.and.s32 p | %q1, %r1, 3, !%q2;", (Pair(P, Q1), R["r1"], Immediate(3), Negated(Register("%q2")))),
        ("bra.uni LABEL;", (Symbol("LABEL"),)),
        ("ret;", ()),
        (
            "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, 4}], [%r3];",
            (Address(R["r1"]), Address(RD1, 0, Vector((R["r2"], Immediate(4)))), Address(R["r3"])),
        ),
        (
            "cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [%rd1, {%r1,%r2,%r3}], [%r4], {%r5};",
            (Address(RD1, 0, Vector((R["r1"], R["r2"], R["r3"]))), Address(R["r4"]), Vector((R["r5"],))),
        ),
        (
            "call (%r1), cells, (%r2, 4, raw);",
            (Arguments((R["r1"],)), Symbol("cells"), Arguments((R["r2"], Immediate(4), Symbol("raw")))),
        ),
        ("call cells;", (Symbol("cells"),)),
        ("call (%r1), %rd1, (), LABEL;", (Arguments((R["r1"],)), RD1, Arguments(()), Symbol("LABEL"))),
    ],
)
def test_operands(text, operands):
    instruction = only(text)
    assert instruction.operands == operands
    assert instruction.opcode == text.split(" ", 1)[0].rstrip(";")


def test_an_instruction_may_be_guarded_spaced_commented_and_spread_over_lines():
    body = "@ ! p /* a */ add\n.s32 // b\n%r1,\n\t%r2 , 4 ; @%q1 bra L; L: M: N: ret; "
    first, second, *labels, last = kernel(body).body
    assert first == Instruction("add.s32", (R["r1"], R["r2"], Immediate(4)), Guard(P, negated=True))
    assert second == Instruction("bra", (Symbol("L"),), Guard(Q1))
    assert labels == [Label("L"), Label("M"), Label("N")]
    assert last.opcode == "ret"
    assert (first.line, last.line) == (9, 12)


def test_registers_are_those_the_body_names_in_order_of_declaration():
    declared = ".reg .b32 %t<1000000000>; .reg .f32 z, y, x;"
    body = f"{declared} mov.b32 %t7, %r3; mov.b32 %t999999999, %r1; mov.f32 y, z; mov.u32 a, %r9;"
    assert kernel(body).registers == (
        ("%r1", "b32"),
        ("%r3", "b32"),
        ("%r9", "b32"),
        ("a", "b32"),
        ("%t7", "b32"),
        ("%t999999999", "b32"),
        ("z", "f32"),
        ("y", "f32"),
    )
    with pytest.raises(PtxError, match="UNDECLARED"):
        parse(f"{HEAD}.entry k()\n{{ .reg .b32 %r<5>;\n  mov.u32 %r5, 0; }}")


def test_scopes_are_flattened():
    body = """
    mov.u32 %r1, done$1;
    { .reg .pred done; .reg .b32 %r<2>;
      again: setp.ne.s32 done, %r1, %r5;
      @!done bra again;
      @done bra out;
      { .reg .b32 done; .shared .b32 word; mov.u32 done, 1; ld.shared.u32 done, [word]; bra again; }
      bra out2;
      out2: }
    { .reg .pred done; again: @done bra again; bra out; }
    out: mov.u32 %r1, %r5;
    """
    before = MODULE_NAMES + ".global .b32 done$1;\n"
    found = kernel(body, before=before)
    assert [s.text if isinstance(s, Instruction) else s.name for s in found.body or ()] == [
        "mov.u32 %r1, done$1",
        "again$1",
        "setp.ne.s32 done$1_, %r1$1, %r5",
        "@!done$1_ bra again$1",
        "@done$1_ bra out",
        "mov.u32 done$2, 1",
        "ld.shared.u32 done$2, [word$2]",
        "bra again$1",
        "bra out2$1",
        "out2$1",
        "again$3",
        "@done$3 bra again$3",
        "bra out",
        "out",
        "mov.u32 %r1, %r5",
    ]
    assert dict(found.registers) == {
        "%r1": "b32",
        "%r5": "b32",
        "done$1_": "pred",
        "%r1$1": "b32",
        "done$2": "b32",
        "done$3": "pred",
    }
    assert found.variables == (Variable("shared", "b32", "word$2"),)


def test_branch_tables_and_pragmas_and_notes():
    text = f"""{HEAD}//!wl role load warps 0-3
    // !wl not a note
    //!wlnot a note either
    .entry k() .maxntid 128, 1, 1 .pragma "first"; .reqnctapercluster 2 .explicitcluster
    {{ .reg .b32 %r<3>;
    {{ brx.idx %r1, T; T: .branchtargets A, B, out; A: .pragma "nounroll", "x"; B: }}
    //!wl barrier full 16 stride 8
    add.s32 %r1, //!wl inside
      %r1, 1; //!wl after
    out: ret; }} //!wl end"""
    module = parse(text)
    (found,) = module.kernels
    assert parse(print_module(module)) == module
    assert module.notes == (Note("role load warps 0-3"), Note("end"))
    assert found.directives == (
        Directive("maxntid", (128, 1, 1)),
        Directive("reqnctapercluster", (2,)),
        Directive("explicitcluster"),
    )
    assert found.directive("explicitcluster") == ()
    assert found.body == (
        Pragma("first"),
        Instruction("brx.idx", (R["r1"], Symbol("T$1"))),
        BranchTargets("T$1", ("A$1", "B$1", "out")),
        Label("A$1"),
        Pragma("nounroll"),
        Pragma("x"),
        Label("B$1"),
        Note("barrier full 16 stride 8"),
        Instruction("add.s32", (R["r1"], R["r1"], Immediate(1))),
        Note("inside"),
        Note("after"),
        Label("out"),
        Instruction("ret"),
    )


def test_variables():
    one, half = 0x3F800000, 0x3F000000
    text = f"""{HEAD}
    .visible .global .align 8 .u64 pointers[3] = {{generic(later)+4, later, 0}};
    .extern .shared .align 128 .b8 raw[]; .extern .shared .align 128 .b8 raw[];
    .const .f32 scale = 0f3F800000, halves[4] = {{0.5, 1.0}};
    .global .b32 later[2][3] = {{{{1}}, {{-4, 0x5}}}};
    .weak .global .v2 .f32 pairs[] = {{{{1.0, 0.5}}, {{0.5, 0f3F800000}}}};
    .global .b8 masked[3] = {{0xFF(later), 0xFF00(generic(later)), 300}};
    .global .attribute(.managed) .f64 wide = 0f3F800000;
    .extern .global .u32 defined; .global .u32 defined = 7; .extern .global .u32 defined;
    .common .global .s16 small;
    """
    module = parse(text)
    assert parse(print_module(module)) == module
    assert {v.name: v for v in module.variables} == {
        "pointers": Variable(
            "global", "u64", "pointers", 8, 3, (Symbol("generic(later)", 4), Symbol("later"), 0), "visible"
        ),
        "raw": Variable("shared", "b8", "raw", 128, 0, None, "extern"),
        "scale": Variable("const", "f32", "scale", 0, None, (one,)),
        "halves": Variable("const", "f32", "halves", 0, 4, (half, one)),
        "later": Variable("global", "b32", "later", 0, 6, (1, 0, 0, -4, 5)),
        "pairs": Variable("global", "v2.f32", "pairs", 0, 2, (one, half, half, one), "weak"),
        "masked": Variable(
            "global", "b8", "masked", 0, 3, (Symbol("0xFF(later)"), Symbol("0xFF00(generic(later))"), 44)
        ),
        "wide": Variable("global", "f64", "wide", 0, None, (0x3FF0000000000000,)),
        "defined": Variable("global", "u32", "defined", 0, None, (7,)),
        "small": Variable("global", "s16", "small", 0, None, None, "common"),
    }


def test_functions_are_announced_defined_aliased_and_called():
    text = f"""{HEAD}
    .func (.param .b32 out) late(.param .b32 _);
    .extern .func outside(.param .align 8 .b8 _[16]);
    .visible .func alias(.param .b32 x);
    .visible .entry first(.param .u64 .ptr .global .align 1 p, .param .align 64 .b8 map[128])
    {{ .reg .b64 %rd<2>; {{ .param .b32 x; .param .b32 r; call.uni (r), late, (x); }}
       {{ .param .b32 x; proto : .callprototype (.param .b32 _) _ (.param .b32 _); call (x), %rd1, (x), proto; }} }}
    .func (.reg .b32 r) quick(.reg .b32 s) {{ .reg .b32 t; add.s32 t, s, 1; mov.u32 r, t; ret; }}
    .func (.param .b32 out) late(.param .b32 x) .noreturn {{ call outside, (x); call late; }}
    .alias alias, quick;
    """
    module = parse(text)
    assert parse(print_module(module)) == module
    assert [(k.name, k.entry, k.linkage, k.body is None) for k in module.kernels] == [
        ("outside", False, "extern", True),
        ("alias", False, "visible", False),
        ("first", True, "visible", False),
        ("quick", False, "", False),
        ("late", False, "", False),
    ]
    outside, alias, first, quick, late = module.kernels
    assert replace(alias, name="quick", linkage="") == quick
    assert quick.params == (Variable("reg", "b32", "s"),)
    assert quick.results == (Variable("reg", "b32", "r"),)
    assert quick.registers == (("t", "b32"),)
    assert late.directives == (Directive("noreturn"),)
    assert first.params == (
        Variable("param", "u64", "p", pointer=".ptr .global .align 1"),
        Variable("param", "b8", "map", 64, 128),
    )
    assert outside.params[0].count == 16
    assert first.variables == tuple(Variable("param", "b32", name) for name in ("x$1", "r$1", "x$2"))
    assert isinstance(first.body[1], CallTable)
    assert first.body[1].name == "proto$2"
    assert first.body[2].operands[-1] == Symbol("proto$2")


def test_source_lines_come_from_loc_and_debug_sections_are_passed():
    text = f"""{HEAD.replace("sm_90a", "sm_90a, debug")}
    .entry k() {{ .reg .b32 %r<3>; mov.u32 %r1, 0;
    .loc 1 7 3
    {{ mov.u32 %r1, 1; .loc 2 9 1, function_name $info + 4, inlined_at 1 8 2
    }} mov.u32 %r1, 2; .loc 1 0 5
    mov.u32 %r1, 3; .loc 9 4 4
    mov.u32 %r1, 4; }}
    .entry j() {{ ret; }}
    .file 1 "C:\\\\src\\\\my \\"kernel\\".py" .file 2 "lib//x.py", 123, 456
    .section .debug_str {{ $info: .b8 1,2 {{ }} // }}
    }}
    .section .debug_info {{ }}
    """
    module = parse(text)
    path = 'C:\\src\\my "kernel".py'
    assert module.target == ("sm_90a",)
    assert module.files == ((1, path), (2, "lib//x.py"))
    assert [i.loc for i in module.kernels[0].instructions] == [
        None,
        Loc(path, 7, 3),
        Loc("lib//x.py", 9, 1),
        None,
        None,
    ]
    assert module.kernels[1].instructions[0].loc is None
    assert parse(print_module(module)) == module


OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "|": operator.or_,
    "&": operator.and_,
    "^": operator.xor,
    "<<": operator.lshift,
}


@st.composite
def expressions(draw, depth=0):
    """A constant expression as PTX text and its value by 64-bit arithmetic."""
    if depth > 4 or draw(st.booleans()):
        value = draw(st.integers(0, 2**20))
        return draw(st.sampled_from((str(value), hex(value), bin(value) + "U"))), value
    text, value = draw(expressions(depth + 1))
    symbol = draw(st.sampled_from(("+", "-", "*", "|", "&", "^", "<<", "-x", "~x")))
    if symbol.endswith("x"):
        return f"{symbol[0]}({text})", -value if symbol[0] == "-" else ~value
    right, other = (str(n := draw(st.integers(0, 20))), n) if symbol == "<<" else draw(expressions(depth + 1))
    return f"({text}) {symbol} ({right})", OPERATORS[symbol](value, other)


@settings(max_examples=100, deadline=None)
@given(expressions())
def test_constant_expressions_are_folded(expression):
    text, value = expression
    folded = only(f"mov.u64 %rd1, {text};").operands[1].value
    assert folded % 2**64 == value % 2**64
    assert -(2**63) <= folded < 2**64
