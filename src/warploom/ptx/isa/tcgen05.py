"""Blackwell's tensor cores and tensor memory."""

from __future__ import annotations

from warploom.ptx.isa.table import Effect, form

_GROUP = "cta_group::1 cta_group::2"
_TARGETS = "sm_100a"
_TM = "tensor"
_PLAIN = "kind::f16 kind::tf32 kind::f8f6f4 kind::i8"
_SCALED = "kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4"
_COLLECTOR = "collector::a::fill collector::a::use collector::a::lastuse collector::a::discard collector::a"
_VECTOR = "scale_vec::1X scale_vec::2X scale_vec::4X block16 block32"

form(
    "tcgen05.alloc",
    "tcgen05.alloc.{group}.sync.aligned{.space?}.b32",
    "address d; in columns u32",
    effects=(Effect("allocates", space=_TM), Effect("writes", "d", space="shared")),
    issuer="warp",
    blocks=True,
    targets=_TARGETS,
    version=(8, 6),
    group=_GROUP,
    space="shared::cta",
)
form(
    "tcgen05.dealloc",
    "tcgen05.dealloc.{group}.sync.aligned.b32",
    "in a b32; in columns u32",
    effects=(Effect("frees", "a", space=_TM),),
    issuer="warp",
    targets=_TARGETS,
    version=(8, 6),
    group=_GROUP,
)
form(
    "tcgen05.relinquish",
    "tcgen05.relinquish_alloc_permit.{group}.sync.aligned",
    issuer="warp",
    targets=_TARGETS,
    version=(8, 6),
    group=_GROUP,
)

for _a, _reads in (("in a b64", Effect("reads", "a", "shared", "async", later=True)), ("address a", Effect("reads", "a", _TM, "tcgen05", later=True))):
    _common = (
        _reads,
        Effect("reads", "b", "shared", "async", later=True),
        Effect("reads", "d", _TM, "tcgen05", later=True),
        Effect("writes", "d", _TM, "tcgen05", later=True),
    )
    for _order in ("{.collector?}{.ashift?}", "{.ashift?}{.collector?}"):
        form(
            "tcgen05.mma",
            f"tcgen05.mma.{{group}}.{{kind}}{_order}",
            f"address d; {_a}; in b b64; in i b32; opt ins disable b32; pred p; opt immediate scale",
            effects=_common,
            targets=_TARGETS,
            version=(8, 6),
            group=_GROUP,
            kind=_PLAIN,
            collector=_COLLECTOR,
        )
    form(
        "tcgen05.mma.scaled",
        "tcgen05.mma.{group}.{kind}.block_scale{.vector?}{.collector?}",
        f"address d; {_a}; in b b64; in i b32; address sfa; address sfb; pred p",
        effects=(*_common, Effect("reads", "sfa", _TM, "tcgen05", later=True), Effect("reads", "sfb", _TM, "tcgen05", later=True)),
        targets=_TARGETS,
        version=(8, 6),
        group=_GROUP,
        kind=_SCALED,
        vector=_VECTOR,
        collector=_COLLECTOR,
    )

form(
    "tcgen05.commit",
    "tcgen05.commit.{group}{.completion?}{.space?}{.multicast?}.b64",
    "address a; opt in mask b16",
    effects=(Effect("arrives", "a", "shared", "async", later=True),),
    targets=_TARGETS,
    version=(8, 6),
    group=_GROUP,
    completion="mbarrier::arrive::one",
    space="shared::cluster",
    multicast="multicast::cluster",
)

_SHAPES = "16x64b 16x128b 16x256b 32x32b"
_COUNTS = "x1 x2 x4 x8 x16 x32 x64 x128"
for _shape, _half in ((_SHAPES, ""), ("16x32bx2", "; immediate half")):
    for _list, _kind in (("outs d b32", "list"), ("out d b32", "one")):
        form(
            "tcgen05.ld",
            "tcgen05.ld.sync.aligned.{shape}.{count}{.pack?}.b32",
            f"{_list}; address a{_half}",
            effects=(Effect("reads", "a", _TM, "tcgen05"),),
            issuer="warp",
            result="lane",
            targets=_TARGETS,
            version=(8, 6),
            shape=_shape,
            count=_COUNTS,
            pack="pack::16b",
        )
    for _list in ("ins b b32", "in b b32"):
        form(
            "tcgen05.st",
            "tcgen05.st.sync.aligned.{shape}.{count}{.unpack?}.b32",
            f"address a{_half}; {_list}",
            effects=(Effect("writes", "a", _TM, "tcgen05", later=True),),
            issuer="warp",
            targets=_TARGETS,
            version=(8, 6),
            shape=_shape,
            count=_COUNTS,
            unpack="unpack::16b",
        )
form(
    "tcgen05.wait",
    "tcgen05.wait::{what}.sync.aligned",
    effects=(Effect("drains", detail="{what}", space=_TM),),
    issuer="warp",
    blocks=True,
    targets=_TARGETS,
    version=(8, 6),
    what="ld st",
)
for _order in ("{.shape}{.multicast?}", "{.multicast}{.shape}"):
    form(
        "tcgen05.cp",
        f"tcgen05.cp.{{group}}{_order}{{.to?}}{{.from?}}",
        "address d; in a b64",
        effects=(Effect("reads", "a", "shared", "async", later=True), Effect("writes", "d", _TM, "tcgen05", later=True)),
        targets=_TARGETS,
        version=(8, 6),
        group=_GROUP,
        shape="128x256b 4x256b 128x128b 64x128b 32x128b",
        multicast="warpx2::02_13 warpx2::01_23 warpx4",
        to="b8x16",
        **{"from": "b6x16_p32 b4x16_p64"},
    )
form(
    "tcgen05.fence",
    "tcgen05.fence::{side}",
    effects=(Effect("fences", detail="{side}", space=_TM),),
    targets=_TARGETS,
    version=(8, 6),
    side="before_thread_sync after_thread_sync",
)
