"""Tensor copies: boxes of a tensor that a tensor map describes, and the instructions that change such maps."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_RANKS = "1d 2d 3d 4d 5d"
_LOADED = (
    Effect("reads", "src", space="global", proxy="async", later=True),
    Effect("writes", "dst", space="shared", proxy="async", later=True),
    Effect("completes", "barrier", space="shared", scope="cluster", later=True),
)
_STORED = (
    Effect("reads", "src", space="shared", proxy="async", later=True),
    Effect("writes", "dst", space="global", proxy="async", later=True),
)
_HINT = "L2::cache_hint"

# The manual puts the mode after `.global` and the CTA group before the hint; compilers also write them directly after
# the rank, and the group after the hint.
_OLD_LOAD = "cp.async.bulk.tensor.{rank}{.mode?}.{dst}.global{.late_mode?}.mbarrier::complete_tx::bytes{.last_mode?}"
_NEW_LOAD = _OLD_LOAD.replace(".{dst}", "{.group?}.{dst}") + "{.late_group?}"
_OLD_MODES, _NEW_MODES = "tile im2col", "tile im2col tile::gather4 im2col::w im2col::w::128"
_GROUPS = "cta_group::1 cta_group::2"
for _targets, _template, _modes, _last, _end in (
    ("sm_90", _OLD_LOAD, _OLD_MODES, "", ""),
    ("sm_100", _NEW_LOAD, _NEW_MODES, "{.last_group?}", "{.end_group?}"),
):
    for _cast, _mask in (("", ""), (f".{{multicast}}{_last}", "in mask b16; ")):
        form(
            "cp.async.bulk.tensor.load",
            f"{_template}{_cast}{{.hint?}}{_end}",
            f"address dst; tensor src; address barrier; opt ins offsets b16; {_mask}opt in policy b64",
            effects=_LOADED,
            version=(8, 0),
            targets=_targets,
            rank=_RANKS,
            dst="shared::cluster" if _cast else "shared::cluster shared::cta",
            multicast="multicast::cluster",
            mode=_modes,
            late_mode=_modes,
            last_mode=_modes,
            group=_GROUPS,
            late_group=_GROUPS,
            last_group=_GROUPS,
            end_group=_GROUPS,
            hint=_HINT,
        )

for _targets, _modes in (("sm_90", "tile im2col_no_offs"), ("sm_100", "tile im2col_no_offs tile::scatter4")):
    form(
        "cp.async.bulk.tensor.store",
        "cp.async.bulk.tensor.{rank}{.mode?}.global.shared::cta{.late_mode?}.bulk_group{.last_mode?}{.hint?}",
        "tensor dst; address src; opt in policy b64",
        effects=_STORED,
        version=(8, 0),
        targets=_targets,
        rank=_RANKS,
        mode=_modes,
        late_mode=_modes,
        last_mode=_modes,
        hint=_HINT,
    )
for _order in (".{op}{.mode?}.bulk_group", ".bulk_group.{op}{.mode?}"):
    form(
        "cp.reduce.async.bulk.tensor",
        f"cp.reduce.async.bulk.tensor.{{rank}}.global.shared::cta{_order}{{.hint?}}",
        "tensor dst; address src; opt in policy b64",
        effects=(*_STORED, Effect("reads", "dst", space="global", proxy="async", later=True, detail="atomic")),
        version=(8, 0),
        targets="sm_90",
        rank=_RANKS,
        op="add min max inc dec and or xor",
        mode="tile im2col_no_offs",
        hint=_HINT,
    )
form(
    "cp.async.bulk.prefetch",
    "cp.async.bulk.prefetch.tensor.{rank}.L2.global{.mode?}{.hint?}",
    "tensor src; opt ins offsets b16; opt in policy b64",
    version=(8, 0),
    targets="sm_90",
    rank=_RANKS,
    mode=_NEW_MODES,
    hint=_HINT,
)

_FIELD = "tensormap.replace.tile.{field}{.space?}.b1024"
_CHANGED = (Effect("reads", "a", space="{space}"), Effect("writes", "a", space="{space}"))
for _fields, _type, _slots in (
    ("global_address", "b64", "address a; in value b64"),
    ("rank", "b32", "address a; in value b32"),
    ("global_stride", "b64", "address a; immediate ordinal; in value b64"),
    ("box_dim global_dim element_stride", "b32", "address a; immediate ordinal; in value b32"),
    ("elemtype interleave_layout swizzle_mode fill_mode", "b32", "address a; immediate value"),
):
    form(
        "tensormap.replace" if "ordinal" in _slots else "tensormap.replace.whole",
        f"{_FIELD}.{_type}",
        _slots,
        effects=_CHANGED,
        version=(8, 3),
        targets="sm_90a sm_100a sm_100f",
        field=_fields,
        space="global shared::cta",
    )
form(
    "tensormap.replace.whole",
    f"{_FIELD}.b32",
    "address a; immediate value",
    effects=_CHANGED,
    version=(8, 6),
    targets="sm_100a sm_100f",
    field="swizzle_atomicity",
    space="global shared::cta",
)
form(
    "tensormap.cp_fenceproxy",
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope}.sync.aligned",
    "address dst; address src; immediate size",
    effects=(
        Effect("reads", "src", space="shared"),
        Effect("writes", "dst", space="global"),
        Effect("fences", "dst", proxy="tensormap", scope="{scope}", detail="release"),
    ),
    issuer="warp",
    version=(8, 3),
    targets="sm_90",
    scope="cta cluster gpu sys",
)
