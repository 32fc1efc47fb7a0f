"""Instructions that the lanes of a warp execute together."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_TOGETHER = (Effect("syncs", "members", scope="warp"),)

form(
    "shfl",
    "shfl.sync.{mode}.b32",
    "pair d b32; in a b32; in b b32; in c b32; in members b32",
    effects=_TOGETHER,
    result="lane",
    blocks=True,
    version=(6, 0),
    mode="up down bfly idx",
)
form(
    "vote",
    "vote.sync.{mode}.pred",
    "out d pred; pred a; in members b32",
    effects=_TOGETHER,
    result="warp",
    blocks=True,
    version=(6, 0),
    mode="all any uni",
)
form(
    "vote",
    "vote.sync.{mode}.b32",
    "out d b32; pred a; in members b32",
    effects=_TOGETHER,
    result="warp",
    blocks=True,
    version=(6, 0),
    mode="ballot",
)
form(
    "match.any",
    "match.any.sync.{type}",
    "out d b32; in a {type}; in members b32",
    effects=_TOGETHER,
    result="lane",
    blocks=True,
    version=(6, 0),
    type="b32 b64",
)
form(
    "match.all",
    "match.all.sync.{type}",
    "pair d b32; in a {type}; in members b32",
    effects=_TOGETHER,
    result="warp",
    blocks=True,
    version=(6, 0),
    type="b32 b64",
)
for _ops, _types in (("add min max", "u32 s32"), ("and or xor", "b32")):
    form(
        "redux",
        "redux.sync.{op}.{type}",
        "out d {type}; in a {type}; in members b32",
        effects=_TOGETHER,
        result="warp",
        blocks=True,
        version=(7, 0),
        op=_ops,
        type=_types,
    )
form(
    "redux",
    "redux.sync.{op}{.abs?}{.nan?}.{type}",
    "out d {type}; in a {type}; in members b32",
    effects=_TOGETHER,
    result="warp",
    blocks=True,
    version=(8, 6),
    targets="sm_100a sm_100f",
    op="min max",
    nan="NaN",
    type="f32",
)
form(
    "elect",
    "elect.sync",
    "pair d b32; in members b32",
    effects=_TOGETHER,
    result="lane",
    blocks=True,
    version=(8, 0),
    targets="sm_90",
)
form("activemask", "activemask.b32", "out d b32", result="warp", version=(6, 2))
form("bar.warp.sync", "bar.warp.sync", "in members b32", effects=_TOGETHER, blocks=True, version=(6, 0))
