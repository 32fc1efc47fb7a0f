"""Asynchronous copies of bytes: `cp.async` per thread, `cp.async.bulk` of a contiguous range, and their groups."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_OWN = "shared shared::cta"
_HINT = "L2::cache_hint"

_COPIED = (
    Effect("reads", "src", space="global", later=True),
    Effect("writes", "dst", space="shared", later=True),
)
for _family, _hint, _operands in (
    ("cp.async", "", "opt in source u32"),
    ("cp.async", ".{hint}", "opt in source u32; in policy b64"),
    ("cp.async.ignore", "{.hint?}", "pred ignored; opt in policy b64"),
):
    form(
        _family,
        f"cp.async.{{cache}}.{{space}}.global{_hint}{{.prefetch?}}",
        f"address dst; address src; immediate size; {_operands}",
        effects=_COPIED,
        cache="ca cg",
        space=_OWN,
        prefetch="L2::64B L2::128B L2::256B",
        hint=_HINT,
    )
form("cp.async.commit_group", "cp.async.commit_group", effects=(Effect("commits", detail="cp.async"),))
form(
    "cp.async.wait_group",
    "cp.async.wait_group",
    "immediate count",
    effects=(Effect("drains", detail="cp.async"),),
    blocks=True,
)
form("cp.async.wait_all", "cp.async.wait_all", effects=(Effect("drains", detail="cp.async"),), blocks=True)
form(
    "cp.async.mbarrier.arrive",
    "cp.async.mbarrier.arrive{.noinc?}{.space?}.b64",
    "address a",
    effects=(Effect("arrives", "a", space="shared", scope="cta", later=True, detail="{noinc}"),),
    space=_OWN,
)

_LOADED = (
    Effect("reads", "src", space="{src}", proxy="async", later=True),
    Effect("writes", "dst", space="shared", proxy="async", later=True),
    Effect("completes", "barrier", space="shared", scope="cluster", later=True),
)
_STORED = (
    Effect("reads", "src", space="shared", proxy="async", later=True),
    Effect("writes", "dst", space="global", proxy="async", later=True),
)
_TX = ".mbarrier::complete_tx::bytes"
for _cast, _mask in (("", ""), (".{multicast}", "in mask b16; ")):
    form(
        "cp.async.bulk.load",
        f"cp.async.bulk.{{dst}}.{{src}}{_TX}{_cast}{{.hint?}}",
        f"address dst; address src; in size u32; address barrier; {_mask}opt in policy b64",
        effects=_LOADED,
        version=(8, 0),
        targets="sm_90",
        dst="shared::cluster" if _cast else "shared::cluster shared::cta",
        src="global",
        multicast="multicast::cluster",
        hint=_HINT,
    )
form(
    "cp.async.bulk.send",
    f"cp.async.bulk.shared::cluster.{{src}}{_TX}",
    "address dst; address src; in size u32; address barrier",
    effects=_LOADED,
    version=(8, 0),
    targets="sm_90",
    src="shared::cta",
)
form(
    "cp.async.bulk.store",
    "cp.async.bulk.global.shared::cta.bulk_group{.hint?}",
    "address dst; address src; in size u32; opt in policy b64",
    effects=_STORED,
    version=(8, 0),
    targets="sm_90",
    hint=_HINT,
)
for _hint, _policy in (("", ""), (".{hint}", "in policy b64; ")):
    form(
        "cp.async.bulk.store.masked",
        f"cp.async.bulk.global.shared::cta.bulk_group{_hint}.cp_mask",
        f"address dst; address src; in size u32; {_policy}in mask b16",
        effects=_STORED,
        version=(8, 6),
        targets="sm_100",
        hint=_HINT,
    )

_ATOMIC = Effect("reads", "dst", proxy="async", later=True, detail="atomic")
for _op, _types in (("add", "u32 s32 u64"), ("min max", "u32 s32"), ("inc dec", "u32"), ("and or xor", "b32")):
    form(
        "cp.async.bulk.send",
        f"cp.reduce.async.bulk.shared::cluster.{{src}}{_TX}.{{op}}.{{type}}",
        "address dst; address src; in size u32; address barrier",
        effects=(*_LOADED, _ATOMIC),
        version=(8, 0),
        targets="sm_90",
        src="shared::cta",
        op=_op,
        type=_types,
    )
for _op, _rounding, _types in (
    ("add", "", "u32 s32 u64 f32 f64"),
    ("add", ".noftz", "f16 bf16"),
    ("min max", "", "u32 s32 u64 s64 f16 bf16"),
    ("inc dec", "", "u32"),
    ("and or xor", "", "b32 b64"),
):
    form(
        "cp.async.bulk.store",
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group{{.hint?}}.{{op}}{_rounding}.{{type}}",
        "address dst; address src; in size u32; opt in policy b64",
        effects=(*_STORED, _ATOMIC),
        version=(8, 0),
        targets="sm_90",
        op=_op,
        type=_types,
        hint=_HINT,
    )
form(
    "cp.async.bulk.prefetch",
    "cp.async.bulk.prefetch.L2.global{.hint?}",
    "address src; in size u32; opt in policy b64",
    version=(8, 0),
    targets="sm_90",
    hint=_HINT,
)
form(
    "cp.async.bulk.commit_group",
    "cp.async.bulk.commit_group",
    effects=(Effect("commits", detail="cp.async.bulk"),),
    version=(8, 0),
    targets="sm_90",
)
form(
    "cp.async.bulk.wait_group",
    "cp.async.bulk.wait_group{.read?}",
    "immediate count",
    effects=(Effect("drains", proxy="async", detail="{read}"),),
    blocks=True,
    version=(8, 0),
    targets="sm_90",
)
