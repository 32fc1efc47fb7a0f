"""Small matrices between shared memory and the registers of a warp, and transposed within them."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_SPACE = "shared shared::cta"
_COUNTS = "x1 x2 x4"
_READ = (Effect("reads", "a", space="shared"),)
_WRITE = (Effect("writes", "a", space="shared"),)

form(
    "ldmatrix",
    "ldmatrix.sync.aligned.{shape}.{count}{.trans?}{.space?}.{type}",
    "outs d b32; address a",
    effects=_READ,
    issuer="warp",
    result="lane",
    version=(6, 5),
    targets="sm_75",
    shape="m8n8",
    count=_COUNTS,
    space=_SPACE,
    type="b16",
)
form(
    "ldmatrix",
    "ldmatrix.sync.aligned.{shape}.{count}.{trans}{.space?}.{type}",
    "outs d b32; address a",
    effects=_READ,
    issuer="warp",
    result="lane",
    version=(8, 6),
    targets="sm_100a sm_100f sm_120a",
    shape="m16n16",
    count="x1 x2",
    space=_SPACE,
    type="b8 b8x16.b6x16_p32 b8x16.b4x16_p64",
)
form(
    "ldmatrix",
    "ldmatrix.sync.aligned.{shape}.{count}{.space?}.{type}",
    "outs d b32; address a",
    effects=_READ,
    issuer="warp",
    result="lane",
    version=(8, 6),
    targets="sm_100a sm_100f sm_120a",
    shape="m8n16",
    count=_COUNTS,
    space=_SPACE,
    type="b8x16.b6x16_p32 b8x16.b4x16_p64",
)
form(
    "stmatrix",
    "stmatrix.sync.aligned.{shape}.{count}{.trans?}{.space?}.{type}",
    "address a; ins b b32",
    effects=_WRITE,
    issuer="warp",
    version=(7, 8),
    targets="sm_90",
    shape="m8n8",
    count=_COUNTS,
    space=_SPACE,
    type="b16",
)
form(
    "stmatrix",
    "stmatrix.sync.aligned.{shape}.{count}.{trans}{.space?}.{type}",
    "address a; ins b b32",
    effects=_WRITE,
    issuer="warp",
    version=(8, 6),
    targets="sm_100a sm_100f sm_120a",
    shape="m16n8",
    count=_COUNTS,
    space=_SPACE,
    type="b8",
)
form(
    "movmatrix",
    "movmatrix.sync.aligned.m8n8.trans.b16",
    "out d b32; in a b32",
    issuer="warp",
    result="lane",
    version=(7, 8),
    targets="sm_75",
)
