"""Clusters: barriers, addresses of peer CTAs, and stores that complete on a remote mbarrier."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

form(
    "barrier.cluster.arrive",
    "barrier.cluster.arrive{.sem?}{.aligned?}",
    effects=(Effect("arrives", scope="cluster", detail="{sem}"),),
    version=(7, 8),
    targets="sm_90",
    sem="release relaxed",
)
form(
    "barrier.cluster.wait",
    "barrier.cluster.wait{.sem?}{.aligned?}",
    effects=(Effect("waits", scope="cluster", detail="{sem}"),),
    blocks=True,
    version=(7, 8),
    targets="sm_90",
    sem="acquire",
)
form(
    "mapa",
    "mapa{.space?}.{type}",
    "out d {type}; in a {type}; in b u32",
    version=(7, 8),
    targets="sm_90",
    space="shared::cluster",
    type="u32 u64",
)
form(
    "getctarank",
    "getctarank{.space?}.{type}",
    "out d u32; in a {type}",
    version=(7, 8),
    targets="sm_90",
    space="shared::cluster",
    type="u32 u64",
)

_COMPLETES = Effect("completes", "barrier", space="shared::cluster", scope="cluster", later=True)
_WRITES = Effect("writes", "a", space="shared::cluster", scope="cluster", later=True)
_READS = Effect("reads", "a", space="shared::cluster", scope="cluster", later=True)
_ON_BARRIER = "{.space?}.mbarrier::complete_tx::bytes"
for _vector, _slot, _types in (
    ("", "in b {type}", "b32 b64 u32 u64 s32 s64 f32 f64"),
    (".v2", "ins b {type}", "b32 b64 u32 u64 s32 s64 f32 f64"),
    (".v4", "ins b {type}", "b32 u32 s32 f32"),
):
    form(
        "st.async",
        f"st.async{{.sem?}}{_ON_BARRIER}{_vector}.{{type}}",
        f"address a; {_slot}; address barrier",
        effects=(_WRITES, _COMPLETES),
        version=(8, 1),
        targets="sm_90",
        sem="weak",
        space="shared::cluster",
        type=_types,
    )
for _ops, _types in (("inc dec", "u32"), ("min max", "u32 s32"), ("and or xor", "b32"), ("add", "u32 s32 u64 s64")):
    form(
        "red.async",
        f"red.async.relaxed.cluster{_ON_BARRIER}.{{op}}.{{type}}",
        "address a; in b {type}; address barrier",
        effects=(_READS, _WRITES, _COMPLETES),
        version=(8, 1),
        targets="sm_90",
        space="shared::cluster",
        op=_ops,
        type=_types,
    )
form(
    "st.async.global",
    "st.async{.mmio?}.release.{scope}{.space?}.{type}",
    "address a; in b {type}+",
    effects=(Effect("writes", "a", space="global", scope="{scope}", later=True, detail="release"),),
    version=(8, 7),
    targets="sm_100",
    scope="gpu sys",
    space="global",
    type="b8 b16 b32 b64 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64",
)
form(
    "red.async.global",
    "red.async{.mmio?}.release.{scope}{.space?}.{op}.{type}",
    "address a; in b {type}",
    effects=(
        Effect("reads", "a", space="global", scope="{scope}", later=True, detail="release"),
        Effect("writes", "a", space="global", scope="{scope}", later=True, detail="release"),
    ),
    version=(8, 7),
    targets="sm_100",
    scope="gpu sys cluster",
    space="global",
    op="add",
    type="u32 s32 u64 s64",
)
