"""Blackwell's tensor cores and TMEM.

The sparse forms (`.sp`) are not here: the manual shows the layout of their metadata in figures only.
"""

from __future__ import annotations

from warploom.hardware.fragments import TENSOR_MOVES
from warploom.ptx.isa.table import Effect, form

_TENSOR = "tensor"
_ENGINE = "tcgen05"
_GROUP = "cta_group::1 cta_group::2"
_USES = ("fill", "use", "lastuse", "discard")
_COLLECT_A = " ".join(f"collector::a::{use}" for use in _USES)
_COLLECT_B = " ".join(f"collector::b{buffer}::{use}" for buffer in range(4) for use in _USES)
_FAMILY, _OWN, _FIRST = "sm_100a sm_100f", "sm_100a sm_103a", "sm_100a"
"""Targets: of the whole family, of one compute capability, and without 10.3 (found with ptxas)."""
_PLAIN = (("kind::f16 kind::tf32 kind::f8f6f4", _FAMILY), ("kind::i8", _FIRST))
_VECTOR = "scale_vec::1X scale_vec::2X scale_vec::4X"
_SCALED = (
    ((8, 6), "kind::mxf8f6f4 kind::mxf4", "", "", _FAMILY),
    ((8, 6), "kind::mxf8f6f4 kind::mxf4", "{.vector}", _VECTOR, _OWN),
    ((8, 7), "kind::mxf4nvf4", "{.vector?}", _VECTOR, _OWN),
    ((8, 8), "kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4", "{.vector}", "block16 block32", _FAMILY),
)
"""The first version, kinds, vectors and targets of block scaling (PTX ISA 9.7.16.10.9.1, confirmed with ptxas)."""


def _row(
    family: str,
    template: str,
    slots: str = "",
    effects: tuple[Effect, ...] = (),
    *,
    issuer: str = "thread",
    result: str = "pure",
    blocks: bool = False,
    version: tuple[int, int] = (8, 6),
    targets: str = _FAMILY,
    **choices: str,
) -> None:
    """A row with the properties that all of them share; a choice without words is dropped."""
    form(
        family,
        template,
        slots,
        effects=effects,
        issuer=issuer,
        result=result,
        blocks=blocks,
        version=version,
        targets=targets,
        shared={name: words for name, words in choices.items() if words},
    )


def _tensor(verb: str, operand: str) -> Effect:
    """The effect of an operation on TMEM at its completion."""
    return Effect(verb, operand, _TENSOR, _ENGINE, later=True)


def _shared(operand: str) -> Effect:
    """The effect of an operation that reads shared memory through a descriptor, at its completion."""
    return Effect("reads", operand, "shared", "async", later=True)


_row(
    "tcgen05.alloc",
    "tcgen05.alloc.{group}.sync.aligned{.space?}.b32",
    "address d; in columns u32",
    (Effect("allocates", space=_TENSOR), Effect("writes", "d", space="shared")),
    issuer="warp",
    blocks=True,
    group=_GROUP,
    space="shared::cta",
)
_row(
    "tcgen05.dealloc",
    "tcgen05.dealloc.{group}.sync.aligned.b32",
    "in a b32; in columns u32",
    (Effect("frees", "a", space=_TENSOR),),
    issuer="warp",
    blocks=True,
    group=_GROUP,
)
_row("tcgen05.relinquish", "tcgen05.relinquish_alloc_permit.{group}.sync.aligned", issuer="warp", group=_GROUP)

for _a, _reads, _shift in (("in a b64", _shared("a"), ""), ("address a", _tensor("reads", "a"), "{.ashift?}")):
    _effects = (_reads, _shared("b"), _tensor("reads", "d"), _tensor("writes", "d"))
    _operands = f"address d; {_a}; in b b64; in i b32"
    for _kinds, _targets in _PLAIN:
        _row(
            "tcgen05.mma",
            f"tcgen05.mma.{{group}}.{{kind}}{_shift}{{.collector?}}",
            f"{_operands}; opt ins disable b32; pred p; opt immediate scale",
            _effects,
            targets=_targets,
            group=_GROUP,
            kind=_kinds,
            collector=_COLLECT_A,
        )
        _row(
            "tcgen05.mma.ws",
            "tcgen05.mma.ws.{group}.{kind}{.collector?}",
            f"{_operands}; pred p; opt in zero b64",
            _effects,
            targets=_targets,
            group="cta_group::1",
            kind=_kinds,
            collector=_COLLECT_B,
        )
    for _version, _kinds, _spelled, _vectors, _targets in _SCALED:
        _row(
            "tcgen05.mma.scaled",
            f"tcgen05.mma.{{group}}.{{kind}}.block_scale{_spelled}{{.collector?}}",
            f"{_operands}; address sfa; address sfb; pred p",
            (*_effects, _tensor("reads", "sfa"), _tensor("reads", "sfb")),
            version=_version,
            targets=_targets,
            group=_GROUP,
            kind=_kinds,
            vector=_vectors,
            collector=_COLLECT_A,
        )

for _multicast, _slots in (("", "address a"), (".multicast::cluster", "address a; in mask b16")):
    _row(
        "tcgen05.commit",
        f"tcgen05.commit.{{group}}.mbarrier::arrive::one{{.space?}}{_multicast}.b64",
        _slots,
        (Effect("arrives", "a", "shared", scope="cluster", later=True),),
        group=_GROUP,
        space="shared::cluster",
    )

_COUNTS = "x1 x2 x4 x8 x16 x32 x64 x128"
_SPLIT = "16x32bx2"
for _shape, _half in ((" ".join(name for name in TENSOR_MOVES if name != _SPLIT), ""), (_SPLIT, "; immediate half")):
    _row(
        "tcgen05.ld",
        "tcgen05.ld.sync.aligned.{shape}.{count}{.pack?}.b32",
        f"outs d b32; address a{_half}",
        (_tensor("reads", "a"),),
        issuer="warp",
        result="lane",
        shape=_shape,
        count=_COUNTS,
        pack="pack::16b",
    )
    _row(
        "tcgen05.st",
        "tcgen05.st.sync.aligned.{shape}.{count}{.unpack?}.b32",
        f"address a{_half}; ins b b32",
        (_tensor("writes", "a"),),
        issuer="warp",
        shape=_shape,
        count=_COUNTS,
        unpack="unpack::16b",
    )
_row(
    "tcgen05.wait",
    "tcgen05.wait::{what}.sync.aligned",
    "",
    (Effect("drains", space=_TENSOR, detail="{what}"),),
    issuer="warp",
    blocks=True,
    what="ld st",
)
_row(
    "tcgen05.cp",
    "tcgen05.cp.{group}.{shape}{.multicast?}{.to?}{.source?}",
    "address d; in a b64",
    (_shared("a"), _tensor("writes", "d")),
    group=_GROUP,
    shape="128x256b 4x256b 128x128b 64x128b 32x128b",
    multicast="warpx2::02_13 warpx2::01_23 warpx4",
    to="b8x16",
    source="b6x16_p32 b4x16_p64",
)
_row(
    "tcgen05.shift",
    "tcgen05.shift.{group}.down",
    "address a",
    (_tensor("reads", "a"), _tensor("writes", "a")),
    targets=_OWN,
    group=_GROUP,
)
_row(
    "tcgen05.fence",
    "tcgen05.fence::{side}",
    "",
    (Effect("fences", space=_TENSOR, detail="{side}"),),
    side="before_thread_sync after_thread_sync",
)
