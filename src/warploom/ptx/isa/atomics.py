"""Atomic operations on memory: `atom` returns the old value, `red` does not."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_SCOPE = "cta cluster gpu sys"
_SPACE = "global shared shared::cta shared::cluster"
_SEM = {"atom": "relaxed acquire release acq_rel", "red": "relaxed release"}
_BOTH = (
    Effect("reads", "a", space="{space}", scope="{scope}", detail="atomic"),
    Effect("writes", "a", space="{space}", scope="{scope}", detail="atomic"),
)
_HEAD = "{.sem?}{.scope?}{.space?}"

_SCALAR = (
    ("and or xor", "", "b32 b64"),
    ("exch", "", "b32 b64 b128"),
    ("add", "", "u32 s32 u64 f32 f64"),
    ("add", ".noftz", "f16 f16x2 bf16 bf16x2"),
    ("inc dec", "", "u32"),
    ("min max", "", "u32 s32 u64 s64"),
)
_VECTOR = (
    ("add", "", "v2 v4", "f32"),
    ("add min max", ".noftz", "v2 v4 v8", "f16 bf16"),
    ("add min max", ".noftz", "v2 v4", "f16x2 bf16x2"),
)

for _name in ("atom", "red"):
    for _ops, _noftz, _types in _SCALAR:
        if _ops == "exch" and _name == "red":
            continue
        form(
            _name,
            f"{_name}{_HEAD}.{{op}}{_noftz}{{.hint?}}.{{type}}",
            f"{'out d {type}; ' if _name == 'atom' else ''}address a; in b {{type}}; opt in policy b64",
            effects=_BOTH,
            result="lane",
            sem=_SEM[_name],
            scope=_SCOPE,
            space=_SPACE,
            op=_ops,
            hint="L2::cache_hint",
            type=_types,
        )
    for _ops, _noftz, _widths, _types in _VECTOR:
        form(
            f"{_name}.vector",
            f"{_name}{_HEAD}.{{op}}{_noftz}{{.hint?}}.{{vec}}.{{type}}",
            f"{'outs d {type}; ' if _name == 'atom' else ''}address a; ins b {{type}}; opt in policy b64",
            effects=_BOTH,
            result="lane",
            version=(8, 1),
            targets="sm_90",
            sem=_SEM[_name],
            scope=_SCOPE,
            space="global",
            op=_ops,
            hint="L2::cache_hint",
            vec=_widths,
            type=_types,
        )
form(
    "atom",
    f"atom{_HEAD}.{{op}}{{.hint?}}.{{type}}",
    "out d {type}; address a; in b {type}; in c {type}; opt in policy b64",
    effects=_BOTH,
    result="lane",
    sem=_SEM["atom"],
    scope=_SCOPE,
    space=_SPACE,
    op="cas",
    hint="L2::cache_hint",
    type="b16 b32 b64 b128",
)
