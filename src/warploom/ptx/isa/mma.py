"""Matrix multiply-accumulate by one warp, synchronous, from registers into registers.

The forms are those of `hardware.mma_shapes.WARP_SHAPES`. The block-scaled kinds of sm_120 are not among them.
"""

from __future__ import annotations

from warploom.hardware.mma_shapes import WARP_SHAPES
from warploom.ptx.isa.table import form

_ROOT = "mma.sync.aligned.{shape}.row.col"
_TYPES = ".{d_type}.{a_type}.{b_type}.{c_type}"
_LISTS = "outs d {type}; ins a {type}; ins b {type}; ins c {type}"


def _shapes(*types: str) -> str:
    return " ".join(dict.fromkeys(f"m{row.m}n{row.n}k{row.k}" for row in WARP_SHAPES if set(types) & set(row.types)))


_FLOATS = "f16 bf16 tf32 e4m3 e5m2"
form(
    "mma.sync",
    _ROOT + _TYPES,
    _LISTS.format(type="b32"),
    issuer="warp",
    result="lane",
    targets="sm_80",
    shape=_shapes(*_FLOATS.split()),
    d_type="f16 f32",
    c_type="f16 f32",
    a_type=_FLOATS,
    b_type=_FLOATS,
)
form(
    "mma.sync",
    "mma.sync.aligned.kind::f8f6f4.{shape}.row.col" + _TYPES,
    _LISTS.format(type="b32"),
    issuer="warp",
    result="lane",
    version=(8, 7),
    targets="sm_100a sm_100f sm_120a",
    shape="m16n8k32",
    d_type="f16 f32",
    c_type="f16 f32",
    a_type="e4m3 e5m2",
    b_type="e4m3 e5m2",
)
for _signed, _unsigned in (("s8", "u8"), ("s4", "u4")):
    for _template in ("{.satfinite?}" + _TYPES, _TYPES + ".{satfinite}"):
        form(
            "mma.sync",
            _ROOT + _template,
            _LISTS.format(type="b32"),
            issuer="warp",
            result="lane",
            targets="sm_80",
            shape=_shapes(_signed),
            d_type="s32",
            c_type="s32",
            a_type=f"{_signed} {_unsigned}",
            b_type=f"{_signed} {_unsigned}",
        )
form(
    "mma.sync",
    _ROOT + _TYPES + ".{bits}.popc",
    _LISTS.format(type="b32"),
    issuer="warp",
    result="lane",
    targets="sm_80",
    shape=_shapes("b1"),
    d_type="s32",
    c_type="s32",
    a_type="b1",
    b_type="b1",
    bits="xor and",
)
form(
    "mma.sync",
    _ROOT + _TYPES + "{.rn?}",
    _LISTS.format(type="f64"),
    issuer="warp",
    result="lane",
    targets="sm_80",
    shape=_shapes("f64"),
    d_type="f64",
    c_type="f64",
    a_type="f64",
    b_type="f64",
)
