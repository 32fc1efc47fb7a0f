"""Hopper's tensor core: multiply-accumulate by a warpgroup, asynchronously, from shared memory into registers.

The valid combinations of shape and types are in `hardware.mma_shapes`; the emulator checks them when it reads a
program.
"""

from __future__ import annotations

from warploom.hardware.mma_shapes import WGMMA, WGMMA_M
from warploom.ptx.isa.table import Effect, form

_COUNTS = sorted({n for row in WGMMA.values() for n in row.n})
_DEPTHS = sorted({row.k for row in WGMMA.values()})
_SHAPES = " ".join(f"m{WGMMA_M}n{n}k{k}" for n in _COUNTS for k in _DEPTHS)
_REACHES = {
    "in a b64": Effect("reads", "a", space="shared", proxy="async", later=True),
    "rows a b32": Effect("reads", "a", space="register", proxy="async", later=True),
}
"""The effects of reading A, by how it is passed: as a descriptor, or in registers."""
_ALWAYS = (
    Effect("reads", "b", space="shared", proxy="async", later=True),
    Effect("writes", "d", space="register", proxy="async", later=True),
)
_SCALES = "pred scale_d; immediate scale_a; immediate scale_b"
_D_TYPES = "f16 f32 s32"
_NAME = "wgmma.mma_async.sync.aligned.{shape}"

for _a, _reads in _REACHES.items():
    _transposes = "immediate trans_a; immediate trans_b" if _a.startswith("in") else "immediate trans_b"
    for _types, _slots in (("f16 bf16", f"{_SCALES}; {_transposes}"), ("tf32 e4m3 e5m2", _SCALES)):
        form(
            "wgmma.mma_async",
            _NAME + ".{d_type}.{a_type}.{b_type}",
            f"rows d b32; {_a}; in b b64; {_slots}",
            effects=(_reads, *_ALWAYS),
            issuer="warpgroup",
            version=(8, 0),
            targets="sm_90a",
            a_type=_types,
            b_type=_types,
            shape=_SHAPES,
            d_type=_D_TYPES,
        )
    for _template in (
        ".{d_type}.{a_type}.{b_type}{.satfinite?}",
        ".{d_type}.{satfinite}.{a_type}.{b_type}",
        ".{satfinite}.{d_type}.{a_type}.{b_type}",
    ):
        form(
            "wgmma.mma_async",
            _NAME + _template,
            f"rows d b32; {_a}; in b b64; pred scale_d",
            effects=(_reads, *_ALWAYS),
            issuer="warpgroup",
            version=(8, 0),
            targets="sm_90a",
            a_type="s8 u8",
            b_type="s8 u8",
            shape=_SHAPES,
            d_type=_D_TYPES,
        )

form(
    "wgmma.fence",
    "wgmma.fence.sync.aligned",
    effects=(Effect("fences", space="register", proxy="async"),),
    issuer="warpgroup",
    version=(8, 0),
    targets="sm_90a",
)
form(
    "wgmma.commit_group",
    "wgmma.commit_group.sync.aligned",
    effects=(Effect("commits", detail="wgmma"),),
    issuer="warpgroup",
    version=(8, 0),
    targets="sm_90a",
)
form(
    "wgmma.wait_group",
    "wgmma.wait_group.sync.aligned",
    "immediate count",
    effects=(Effect("drains", "count", detail="wgmma"),),
    issuer="warpgroup",
    blocks=True,
    version=(8, 0),
    targets="sm_90a",
)
