"""Matrix multiply-accumulate by one warp, on fragments whose layout only wmma.load and wmma.store define.

The forms are those of `hardware.mma_shapes.WMMA_SHAPES`.
"""

from __future__ import annotations

from warploom.hardware.mma_shapes import WMMA_SHAPES
from warploom.ptx.isa.table import Effect, form

_SPACE = "global shared shared::cta shared::cluster"
_LAYOUT = "row col"
_SHAPES = " ".join(dict.fromkeys(f"m{row.m}n{row.n}k{row.k}" for row in WMMA_SHAPES))
_FACTORS, _SUMS = "f16 bf16 tf32 s8 u8 s4 u4 b1", "f16 f32 s32"

for _register, _factors, _sums in (("b32", _FACTORS, _SUMS), ("f64", "f64", "f64")):
    for _which, _types in (("a", _factors), ("b", _factors), ("c", _sums)):
        form(
            "wmma.load",
            "wmma.load.{which}.sync.aligned.{layout}.{shape}{.space?}.{type}",
            f"outs d {_register}; address a; opt in stride b32",
            effects=(Effect("reads", "a", space="{space}"),),
            issuer="warp",
            result="lane",
            version=(6, 0),
            targets="sm_70",
            which=_which,
            layout=_LAYOUT,
            shape=_SHAPES,
            space=_SPACE,
            type=_types,
        )
    form(
        "wmma.store",
        "wmma.store.{which}.sync.aligned.{layout}.{shape}{.space?}.{type}",
        f"address a; ins b {_register}; opt in stride b32",
        effects=(Effect("writes", "a", space="{space}"),),
        issuer="warp",
        version=(6, 0),
        targets="sm_70",
        which="d",
        layout=_LAYOUT,
        shape=_SHAPES,
        space=_SPACE,
        type=_sums,
    )
    for _bits, _template in (
        *((("", ".{d_type}.{c_type}{.rn?}{.satfinite?}"),) if _register == "b32" else ()),
        ("", ".{d_type}.{a_type}.{b_type}.{c_type}{.rn?}{.satfinite?}"),
        *(((".{bits}.popc", ".{d_type}.{a_type}.{b_type}.{c_type}"),) if _register == "b32" else ()),
    ):
        form(
            "wmma.mma",
            f"wmma.mma{_bits}.sync.aligned.{{a_layout}}.{{b_layout}}.{{shape}}{_template}",
            "; ".join(
                f"{kind} {name} {_register}" for kind, name in zip(("outs", "ins", "ins", "ins"), "dabc", strict=True)
            ),
            issuer="warp",
            result="lane",
            version=(6, 0),
            targets="sm_70",
            a_layout=_LAYOUT,
            b_layout=_LAYOUT,
            shape=_SHAPES,
            bits="xor and",
            d_type=_sums,
            c_type=_sums,
            a_type=_factors,
            b_type=_factors,
        )
