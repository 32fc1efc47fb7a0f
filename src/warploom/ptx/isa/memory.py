"""Loads, stores, atomics, prefetches and address-space queries."""

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
        **_HINTS,
    )
    form("ldu", f"ldu{{.space?}}{_vector}.{{type}}", f"{_slot}; address a", effects=(_READ,), space=_SPACES, vec="v2 v4", type=_TYPES)
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
        **_HINTS,
    )

_ATOM = "{.sem?}{.scope?}{.space?}.{op}{.noftz?}{.hint?}"
_ATOM_CHOICES = {
    "sem": "relaxed acquire release acq_rel",
    "scope": _SCOPE,
    "space": "global shared shared::cta shared::cluster",
    "op": "and or xor exch add inc dec min max",
    "hint": "L2::cache_hint",
    "type": "b32 b64 b128 u32 s32 u64 s64 f32 f64 f16 f16x2 bf16 bf16x2",
}
_BOTH = (
    Effect("reads", "a", space="{space}", scope="{scope}", detail="atomic"),
    Effect("writes", "a", space="{space}", scope="{scope}", detail="atomic"),
)
for _name, _out in (("atom", "{out} d {type}; "), ("red", "")):
    form(
        _name,
        f"{_name}{_ATOM}.{{type}}",
        f"{_out.format(out='out', type='{type}')}address a; in b {{type}}; opt in policy b64",
        effects=_BOTH,
        result="lane",
        **_ATOM_CHOICES,
    )
    form(
        f"{_name}.vector",
        f"{_name}{{.sem?}}{{.scope?}}{{.space?}}.{{op}}{{.noftz?}}{{.hint?}}.{{vec}}.{{type}}",
        f"{_out.format(out='outs', type='{type}')}address a; ins b {{type}}; opt in policy b64",
        effects=_BOTH,
        result="lane",
        vec="v2 v4 v8",
        **{**_ATOM_CHOICES, "space": "global", "op": "add min max"},
    )
form(
    "atom.cas",
    "atom{.sem?}{.scope?}{.space?}.cas{.hint?}.{type}",
    "out d {type}; address a; in b {type}; in c {type}; opt in policy b64",
    effects=_BOTH,
    result="lane",
    sem="relaxed acquire release acq_rel",
    scope=_SCOPE,
    space="global shared shared::cta shared::cluster",
    hint="L2::cache_hint",
    type="b16 b32 b64 b128 u32 s32 u64 s64",
)

form("prefetch", "prefetch{.space?}.{level}", "address a", space="global local const", level="L1 L2 L2::evict_last L2::evict_normal")
form("prefetch", "prefetchu.L1", "address a")
form("prefetch.tensormap", "prefetch{.space?}.tensormap", "address a", space="param const")
form("discard", "discard{.global?}.L2", "address a; immediate size")
form("applypriority", "applypriority{.global?}.L2::evict_normal", "address a; immediate size")
form("createpolicy", "createpolicy.fractional.{primary}{.secondary?}.b64", "out d b64; opt in f f32",
     primary="L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged", secondary="L2::evict_first L2::evict_unchanged")
form("createpolicy", "createpolicy.range{.global?}.{primary}{.secondary?}.b64", "out d b64; address a; in b u32; in c u32",
     primary="L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged", secondary="L2::evict_first L2::evict_unchanged")
form("mapa", "mapa{.space?}.{type}", "out d {type}; in a {type}; in b u32", space="shared::cluster", type="u32 u64")
form("getctarank", "getctarank{.space?}.{type}", "out d u32; in a {type}", space="shared::cluster", type="u32 u64")
form("membar", "membar.{level}", effects=(Effect("fences", detail="{level}"),), level="cta gl sys")
form(
    "fence",
    "fence{.sem?}.{scope}",
    effects=(Effect("fences", scope="{scope}", detail="{sem}"),),
    sem="sc acq_rel acquire release",
    scope=_SCOPE,
)
