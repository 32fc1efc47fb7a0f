"""Integer, logic and floating-point arithmetic, comparison, selection and conversion."""

from __future__ import annotations

from warploom.ptx.isa.table import form

_INT = "u16 s16 u32 s32 u64 s64"
_BIN = "out d {type}; in a {type}; in b {type}"
_TRI = "out d {type}; in a {type}; in b {type}; in c {type}"
_UNARY = "out d {type}; in a {type}"
_RND = "rn rz rm rp"
_ORDERED = "eq ne lt le gt ge"
_COMPARABLE = (
    ("b16 b32 b64", "eq ne", ""),
    ("s16 s32 s64", _ORDERED, ""),
    ("u16 u32 u64", f"{_ORDERED} lo ls hi hs", ""),
    ("f32 f16 f16x2", f"{_ORDERED} equ neu ltu leu gtu geu num nan", "{.ftz?}"),
    ("f64 bf16 bf16x2", f"{_ORDERED} equ neu ltu leu gtu geu num nan", ""),
)
"""Types, their comparison operators, and whether `.ftz` is allowed."""
_HALF = "f16 f16x2 bf16 bf16x2"


def _integer() -> None:
    for name in ("add", "sub"):
        form(name, f"{name}.{{type}}", _BIN, type=_INT + " u16x2 s16x2")
        form(name, f"{name}{{.sat}}.{{type}}", _BIN, type="s32")
        form(f"{name}.cc", f"{name}.cc.{{type}}", _BIN, result="lane", type="u32 s32 u64 s64")
        form(f"{name}c", f"{name}c{{.cc?}}.{{type}}", _BIN, result="lane", type="u32 s32 u64 s64")
    for name, slots in (("mul", "in a {type}; in b {type}"), ("mad", "in a {type}; in b {type}; in c {type}")):
        form(name, f"{name}.{{mode}}.{{type}}", f"out d {{type}}; {slots}", mode="hi lo", type=_INT)
        form(f"{name}24", f"{name}24.{{mode}}.{{type}}", f"out d {{type}}; {slots}", mode="hi lo", type="u32 s32")
    form("mul", "mul.{mode}.{type}", "out d b32; in a {type}; in b {type}", mode="wide", type="u16 s16")
    form("mul", "mul.{mode}.{type}", "out d b64; in a {type}; in b {type}", mode="wide", type="u32 s32")
    form("mad", "mad.{mode}.{type}", "out d b32; in a {type}; in b {type}; in c b32", mode="wide", type="u16 s16")
    form("mad", "mad.{mode}.{type}", "out d b64; in a {type}; in b {type}; in c b64", mode="wide", type="u32 s32")
    for name in ("mad", "mad24"):
        form(name, f"{name}.{{mode}}{{.sat}}.{{type}}", _TRI, mode="hi", type="s32")
    form("mad.cc", "mad.{mode}.cc.{type}", _TRI, result="lane", mode="hi lo", type="u32 s32 u64 s64")
    form("madc", "madc.{mode}{.cc?}.{type}", _TRI, result="lane", mode="hi lo", type="u32 s32 u64 s64")
    form("sad", "sad.{type}", _TRI, type=_INT)
    for name in ("div", "rem"):
        form(name, f"{name}.{{type}}", _BIN, type=_INT)
    for name in ("abs", "neg"):
        form(name, f"{name}.{{type}}", _UNARY, type="s16 s32 s64")
    for name in ("min", "max"):
        form(name, f"{name}{{.relu?}}.{{type}}", _BIN, type=_INT + " u16x2 s16x2")
    for name in ("popc", "clz"):
        form(name, f"{name}.{{type}}", "out d u32; in a {type}", type="b32 b64")
    form("bfind", "bfind{.shiftamt?}.{type}", "out d u32; in a {type}", type="u32 s32 u64 s64")
    form("brev", "brev.{type}", _UNARY, type="b32 b64")
    form("bfe", "bfe.{type}", "out d {type}; in a {type}; in b u32; in c u32", type="u32 s32 u64 s64")
    form("bfi", "bfi.{type}", "out d {type}; in a {type}; in b {type}; in c u32; in n u32", type="b32 b64")
    form("fns", "fns.b32", "out d b32; in a b32; in b b32; in c b32")
    form("bmsk", "bmsk.{mode}.b32", "out d b32; in a u32; in b u32", mode="clamp wrap")
    form("szext", "szext.{mode}.{type}", "out d {type}; in a {type}; in b u32", mode="clamp wrap", type="u32 s32")
    form(
        "prmt",
        "prmt.b32{.mode?}",
        "out d b32; in a b32; in b b32; in c b32",
        mode="f4e b4e rc8 ecl ecr rc16",
    )
    form("dp4a", "dp4a.{atype}.{btype}", "out d b32; in a b32; in b b32; in c b32", atype="u32 s32", btype="u32 s32")
    form(
        "dp2a",
        "dp2a.{mode}.{atype}.{btype}",
        "out d b32; in a b32; in b b32; in c b32",
        mode="lo hi",
        atype="u32 s32",
        btype="u32 s32",
    )


def _video() -> None:
    """SIMD within a register."""
    slots, types = (
        "out d b32; in a b32; in b b32; in c b32",
        {"dtype": "u32 s32", "atype": "u32 s32", "btype": "u32 s32"},
    )
    for count in (2, 4):
        for name in ("add", "sub", "avrg", "absdiff", "min", "max"):
            for end in ("{.sat?}", ".{add}"):
                form(f"v{name}{count}", f"v{name}{count}.{{dtype}}.{{atype}}.{{btype}}{end}", slots, shared=types)
        form(f"vset{count}", f"vset{count}.{{atype}}.{{btype}}.{{cmp}}{{.add?}}", slots, cmp=_ORDERED, shared=types)


def _logic() -> None:
    for name in ("and", "or", "xor"):
        form(name, f"{name}.{{type}}", _BIN, type="b16 b32 b64 pred")
    form("not", "not.{type}", _UNARY, type="b16 b32 b64 pred")
    form("cnot", "cnot.{type}", _UNARY, type="b16 b32 b64")
    form("lop3", "lop3.b32", "out d b32; in a b32; in b b32; in c b32; immediate lut")
    form(
        "lop3.bool",
        "lop3.{bool}.b32",
        "pair d b32; in a b32; in b b32; in c b32; immediate lut; pred q",
        bool="or and",
    )
    form("shl", "shl.{type}", "out d {type}; in a {type}; in b u32", type="b16 b32 b64")
    form("shr", "shr.{type}", "out d {type}; in a {type}; in b u32", type="b16 b32 b64 " + _INT)
    form(
        "shf",
        "shf.{direction}.{mode}.b32",
        "out d b32; in a b32; in b b32; in c u32",
        direction="l r",
        mode="clamp wrap",
    )


def _floating() -> None:
    for name in ("add", "sub", "mul"):
        form(name, f"{name}{{.rnd?}}{{.ftz?}}{{.sat?}}.{{type}}", _BIN, rnd=_RND, type="f32")
        form(name, f"{name}{{.rnd?}}.{{type}}", _BIN, rnd=_RND, type="f64")
        form(name, f"{name}{{.rnd?}}{{.ftz?}}{{.sat?}}.{{type}}", _BIN, rnd="rn", type="f16 f16x2")
        form(name, f"{name}{{.rnd?}}.{{type}}", _BIN, rnd="rn", type="bf16 bf16x2")
        form(name, f"{name}{{.rnd?}}{{.ftz?}}.{{type}}", _BIN, rnd=_RND, type="f32x2", targets="sm_100")
        mixed = "out d f32; in a {atype}; in c f32" if name != "mul" else "out d f32; in a {atype}; in b {atype}"
        form(
            f"{name}.mixed",
            f"{name}{{.rnd?}}{{.sat?}}.{{type}}.{{atype}}",
            mixed,
            rnd=_RND,
            type="f32",
            atype="f16 bf16",
            targets="sm_100",
        )
    form("fma", "fma{.rnd?}{.ftz?}{.sat?}.{type}", _TRI, rnd=_RND, type="f32")
    form("fma", "fma{.rnd?}{.ftz?}.{type}", _TRI, rnd=_RND, type="f32x2", targets="sm_100")
    form("fma", "fma{.rnd?}.{type}", _TRI, rnd=_RND, type="f64")
    form("fma", "fma.rn{.ftz?}{.sat?}{.relu?}.{type}", _TRI, type=_HALF)
    form("fma", "fma.rn{.oob?}{.relu?}.{type}", _TRI, type=_HALF)
    form(
        "fma.mixed",
        "fma{.rnd?}{.sat?}.f32.{atype}",
        "out d f32; in a {atype}; in b {atype}; in c f32",
        rnd=_RND,
        atype="f16 bf16",
        targets="sm_100",
    )
    form("mad", "mad{.rnd?}{.ftz?}{.sat?}.{type}", _TRI, rnd=_RND, type="f32 f64")
    for name in ("min", "max"):
        form(
            name, f"{name}{{.ftz?}}{{.nan?}}{{.xorsign?}}.{{type}}", _BIN, nan="NaN", xorsign="xorsign.abs", type="f32"
        )
        form(name, f"{name}{{.ftz?}}{{.nan?}}{{.abs?}}.{{type}}", _TRI, nan="NaN", type="f32", targets="sm_100")
        form(name, f"{name}.{{type}}", _BIN, type="f64")
        form(
            name,
            f"{name}{{.ftz?}}{{.nan?}}{{.xorsign?}}.{{type}}",
            _BIN,
            nan="NaN",
            xorsign="xorsign.abs",
            type=_HALF,
        )
    for name in ("abs", "neg"):
        form(name, f"{name}{{.ftz?}}.{{type}}", _UNARY, type="f32 f64 " + _HALF)
    form("div", "div{.rnd?}{.ftz?}.{type}", _BIN, rnd=_RND + " approx full", type="f32 f64")
    form("rcp", "rcp{.rnd?}{.ftz?}.{type}", _UNARY, rnd=_RND + " approx", type="f32 f64")
    form("sqrt", "sqrt{.rnd?}{.ftz?}.{type}", _UNARY, rnd=_RND + " approx", type="f32 f64")
    form("rsqrt", "rsqrt.approx{.ftz?}.{type}", _UNARY, type="f32 f64")
    form("ex2", "ex2.approx{.ftz?}.{type}", _UNARY, type="f32 " + _HALF)
    for name in ("lg2", "sin", "cos"):
        form(name, f"{name}.approx{{.ftz?}}.{{type}}", _UNARY, type="f32")
    form("tanh", "tanh.approx.{type}", _UNARY, type="f32 " + _HALF)
    form("copysign", "copysign.{type}", _BIN, type="f32 f64")
    form(
        "testp",
        "testp.{test}.{type}",
        "out d pred; in a {type}",
        test="finite infinite number notanumber normal subnormal",
        type="f32 f64",
    )


def _select() -> None:
    numeric = "b16 b32 b64 " + _INT + " f32 f64 f16 f16x2 bf16 bf16x2"
    for types, comparisons, ftz in _COMPARABLE:
        given = {"cmp": comparisons, "type": types}
        made = {"dtype": "u32 s32 f32 f16 bf16 f16x2 bf16x2 u16 s16", **given}
        both, either = "in a {type}; in b {type}", "and or xor"
        form("setp", f"setp.{{cmp}}{ftz}.{{type}}", f"pair d pred; {both}", shared=given)
        form("setp", f"setp.{{cmp}}.{{bool}}{ftz}.{{type}}", f"pair d pred; {both}; pred c", shared=given, bool=either)
        form("set", f"set.{{cmp}}{ftz}.{{dtype}}.{{type}}", f"out d {{dtype}}; {both}", shared=made)
        form(
            "set",
            f"set.{{cmp}}.{{bool}}{ftz}.{{dtype}}.{{type}}",
            f"out d {{dtype}}; {both}; pred c",
            shared=made,
            bool=either,
        )
    form("selp", "selp.{type}", "out d {type}; in a {type}; in b {type}; pred c", type=numeric)
    form(
        "slct",
        "slct{.ftz?}.{type}.{ctype}",
        "out d {type}; in a {type}; in b {type}; in c {ctype}",
        type=numeric,
        ctype="s32 f32",
    )


def _move() -> None:
    plain = "b16 b32 b64 b128 " + _INT + " f32 f64 f16 bf16 f16x2 bf16x2 pred"
    form("mov", "mov.{type}", "out d {type}; in a {type}", type=plain)
    form("mov.pack", "mov.{type}", "out d {type}; ins a", type="b16 b32 b64 b128")
    form("mov.unpack", "mov.{type}", "outs d; in a {type}", type="b16 b32 b64 b128")
    form(
        "cvta",
        "cvta{.to?}{.space}.{type}",
        "out d {type}; in a {type}",
        to="to",
        type="u32 u64",
        space="global shared shared::cta shared::cluster local const param param::entry",
    )


def _convert() -> None:
    whole = "u8 u16 u32 u64 s8 s16 s32 s64"
    real = "f16 bf16 f32 f64"
    every = f"{whole} {real}"
    form(
        "cvt",
        "cvt{.rnd?}{.ftz?}{.sat?}.{dtype}.{atype}",
        "out d {dtype}+; in a {atype}+",
        rnd="rn rz rm rp rni rzi rmi rpi rna",
        dtype=every,
        atype=every,
    )
    form(
        "cvt",
        "cvt{.rnd?}{.relu?}{.satfinite?}.{dtype}.f32",
        "out d {dtype}; in a f32",
        rnd="rn rz rna",
        dtype="f16 bf16 tf32",
    )
    form(
        "cvt",
        "cvt{.rnd?}{.satfinite?}{.relu?}.{dtype}.f32",
        "out d {dtype}; in a f32",
        rnd="rn rz rna",
        dtype="f16 bf16 tf32",
    )
    for flags in ("{.relu?}{.satfinite?}", "{.satfinite?}{.relu?}"):
        form(
            "cvt.pair",
            f"cvt{{.rnd}}{flags}.{{dtype}}.{{atype}}",
            "out d {dtype}; in a f32; in b f32",
            rnd="rn rz",
            dtype="f16x2 bf16x2 e4m3x2 e5m2x2 e2m1x2 e2m3x2 e3m2x2",
            atype="f32",
        )
    form(
        "cvt.pair",
        "cvt{.rnd}{.satfinite?}.{dtype}.{atype}",
        "out d {dtype}; in a f32; in b f32",
        rnd="rz rp",
        dtype="ue8m0x2",
        atype="f32",
        targets="sm_100",
    )
    form(
        "cvt",
        "cvt{.rnd}{.satfinite?}{.relu?}.{dtype}.{atype}",
        "out d {dtype}; in a {atype}",
        rnd="rn rz",
        dtype="e4m3x2 e5m2x2 e2m1x2 e2m3x2 e3m2x2",
        atype="f16x2 bf16x2",
    )
    form(
        "cvt",
        "cvt{.rnd}{.satfinite?}.{dtype}.{atype}",
        "out d {dtype}; in a {atype}",
        rnd="rz rp",
        dtype="ue8m0x2",
        atype="bf16x2",
        targets="sm_100",
    )
    form(
        "cvt",
        "cvt{.rnd}{.relu?}.{dtype}.{atype}",
        "out d {dtype}; in a {atype}",
        rnd="rn",
        dtype="f16x2 bf16x2",
        atype="e4m3x2 e5m2x2 e2m1x2 e2m3x2 e3m2x2 ue8m0x2",
    )
    form(
        "cvt.pack",
        "cvt.pack.sat.{dtype}.{atype}",
        "out d b32; in a {atype}; in b {atype}",
        dtype="u16 s16",
        atype="s32",
    )
    form(
        "cvt.pack",
        "cvt.pack.sat.{dtype}.{atype}.{ctype}",
        "out d b32; in a {atype}; in b {atype}; in c {ctype}",
        dtype="u8 s8 u4 s4 u2 s2",
        atype="s32",
        ctype="b32",
    )


_integer()
_video()
_logic()
_floating()
_select()
_move()
_convert()
