"""Loads, stores, prefetches, address-space queries and cache policies."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_TYPES = "b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f16 bf16 f16x2 bf16x2 f32 f64"
_SPACES = "global shared shared::cta shared::cluster local const param param::entry param::func"
_ORDER = "weak volatile relaxed acquire mmio mmio.relaxed"
_CACHE = "ca cg cs lu cv nc wb wt"
_SCOPE = "cta cluster gpu sys"
_HINTS = {
    "l1": "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate",
    "l2": "L2::evict_normal L2::evict_first L2::evict_last",
    "hint": "L2::cache_hint",
    "prefetch": "L2::64B L2::128B L2::256B",
}
_LD = "{.order?}{.scope?}{.space?}{.cache?}{.nc?}{.l1?}{.l2?}{.hint?}{.prefetch?}"
_READ = Effect("reads", "a", space="{space}", scope="{scope}", detail="{order}")
_WRITE = Effect("writes", "a", space="{space}", scope="{scope}", detail="{order}")

for _vector, _slot in (("", "out d {type}+"), (".{vec}", "outs d {type}+")):
    form(
        "ld",
        f"ld{_LD}{_vector}.{{type}}",
        f"{_slot}; address a; opt in policy b64",
        effects=(_READ,),
        order=_ORDER,
        scope=_SCOPE,
        space=_SPACES,
        cache=_CACHE,
        vec="v2 v4 v8",
        type=_TYPES,
        shared=_HINTS,
    )
    form(
        "ldu",
        f"ldu{{.space?}}{_vector}.{{type}}",
        f"{_slot}; address a",
        effects=(_READ,),
        space=_SPACES,
        vec="v2 v4",
        type=_TYPES,
    )
for _vector, _slot in (("", "in b {type}+"), (".{vec}", "ins b {type}+")):
    form(
        "st",
        f"st{{.order?}}{{.scope?}}{{.space?}}{{.cache?}}{{.l1?}}{{.l2?}}{{.hint?}}{_vector}.{{type}}",
        f"address a; {_slot}; opt in policy b64",
        effects=(_WRITE,),
        order="weak volatile relaxed release mmio mmio.relaxed",
        scope=_SCOPE,
        space=_SPACES,
        cache=_CACHE,
        vec="v2 v4 v8",
        type=_TYPES,
        shared=_HINTS,
    )

form(
    "st.bulk",
    "st.bulk{.weak?}{.space?}",
    "address a; in size b64; immediate value",
    effects=(Effect("writes", "a", space="shared"),),
    version=(8, 6),
    targets="sm_100",
    space="shared::cta",
)

form(
    "prefetch",
    "prefetch{.space?}.{level}",
    "address a",
    space="global local const",
    level="L1 L2 L2::evict_last L2::evict_normal",
)
form("prefetch", "prefetchu.L1", "address a")
form("prefetch.tensormap", "prefetch{.space?}.tensormap", "address a", space="param const")

form(
    "isspacep",
    "isspacep.{space}",
    "out d pred; in a b64",
    space="global shared shared::cta shared::cluster local const param param::entry",
)

_PRIMARY = "L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged"
_SECONDARY = "L2::evict_first L2::evict_unchanged"
form(
    "createpolicy",
    "createpolicy.fractional.{primary}{.secondary?}.b64",
    "out d b64; opt in f f32",
    version=(7, 4),
    primary=_PRIMARY,
    secondary=_SECONDARY,
)
form(
    "createpolicy",
    "createpolicy.range{.global?}.{primary}{.secondary?}.b64",
    "out d b64; address a; in b u32; in c u32",
    version=(7, 4),
    primary=_PRIMARY,
    secondary=_SECONDARY,
)
form("createpolicy", "createpolicy.cvt.L2.b64", "out d b64; in a b64", version=(7, 4))
form("discard", "discard{.global?}.L2", "address a; immediate size", version=(7, 4))
form("applypriority", "applypriority{.global?}.L2::evict_normal", "address a; immediate size", version=(7, 4))
