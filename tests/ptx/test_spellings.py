"""Spellings that ptxas accepts, found in the kernels of other projects."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.simt import SCHEDULES

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.printer import print_module

TEXT = """.version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 out)
{{
 .reg .b32 %r<12>; .reg .f32 %f<8>; .reg .b64 %d<4>; .reg .b16 %h; .reg .pred %p<2>; .shared .align 16 .b8 data[64];
 ld.param.u64 %d0, [out];
 {body}
 ret;
}}
"""


def words(body: str, *, target: str = "sm_90a", count: int = 8, block: tuple[int, int, int] = (1, 1, 1), **how):
    """The output of a kernel, which must not change when the module is printed and parsed again."""
    out = np.zeros(count, np.uint32)
    module = parse(TEXT.format(body=body, target=target))
    assert parse(print_module(module)) == module
    launch(module, grid=(1, 1, 1), block=block, args=[out], **how)
    return out


def test_modifiers_are_accepted_in_any_order() -> None:
    """CUTLASS writes `fma.rn.f16x2.relu`, FlashInfer `cvt.rn.e4m3x2.f32.satfinite`."""
    got = words(
        """mov.f32 %f0, 1.5; mov.f32 %f1, -2.5; add.f32.rn %f2, %f0, %f1; fma.f32.ftz.rn %f3, %f0, %f1, %f0;
        cvt.s32.f32.rzi %r0, %f1; cvt.rn.e4m3x2.f32.satfinite %h, %f0, %f1; cvt.u32.u16 %r1, %h;
        mov.b32 %r2, 0x3C00BC00; fma.rn.f16x2.relu %r2, %r2, 0x3C003C00, 0; setp.f32.lt %p0, %f1, %f0; selp.b32 %r3, 7, 8, %p0;
        st.global.v2.f32 [%d0], {%f2, %f3}; st.global.v4.b32 [%d0+16], {%r0, %r1, %r2, %r3};"""
    )
    assert got[:2].view(np.float32).tolist() == [-1.0, -2.25]
    assert got[4:].tolist() == [0xFFFFFFFE, 0x3CC2, 0x3C000000, 7]


def test_a_space_may_precede_a_modifier() -> None:
    """TileLang writes a space before `.L2::cache_hint`."""
    got = words(
        "mov.b64 %d1, 0; st.global .L2::cache_hint.b32 [%d0], 5, %d1; ld.global\n .L2::128B .b32 %r0, [%d0]; st.global.b32 [%d0+4], %r0;"
    )
    assert got[:2].tolist() == [5, 5]


def test_vectors_of_registers_have_parts() -> None:
    """CUTLASS's top-k keeps two numbers in `.reg .v2 .f32`; an inner vector hides an outer one."""
    got = words(
        """.reg .v4 .b32 q; .reg .v2 .f32 two; mov.b32 q.x, 1; mov.b32 q.y, 2; mov.b32 q.z, 3; mov.b32 q.w, 4;
        mov.f32 two.x, 1.0; max.f32 two.y, two.x, 2.0; st.global.v4.b32 [%d0], q; st.global.v2.f32 [%d0+16], two;
        { .reg .v2 .b32 q; ld.global.v2.b32 q, [%d0+8]; add.u32 q.x, q.x, q.y; st.global.b32 [%d0+24], q.x; }
        st.global.b32 [%d0+28], q.x;"""
    )
    assert got.tolist() == [1, 2, 3, 4, 0x3F800000, 0x40000000, 7, 1]


def test_special_registers_of_four_parts_move_whole() -> None:
    """FlashInfer reads `%clusterid` this way."""
    got = words(
        """mov.v4.u32 {%r0, %r1, %r2, _}, %tid; mov.v4.b32 {%r3, %r4, %r5, %r6}, %ntid; mov.v4.u32 {%r7, _, _, _}, %nclusterid;
        setp.eq.u32 %p0, %r0, 4; setp.eq.and.u32 %p0, %r1, 2, %p0;
        @%p0 st.global.v4.u32 [%d0], {%r1, %r3, %r4, %r5}; @%p0 st.global.v2.u32 [%d0+16], {%r6, %r7};""",
        block=(5, 3, 1),
    )
    assert got[:6].tolist() == [2, 5, 3, 1, 0, 1]


@pytest.mark.parametrize(
    "body",
    [
        "mov.u32 %r0, %globaltimer;",
        "add.u32 %r0, %r1, %clock64;",
        "mov.u64 %d1, %tid.x;",
        "mov.b64 %d1, %globaltimer_lo;",
    ],
)
def test_special_registers_are_read_with_their_width(body: str) -> None:
    """As ptxas requires; a register of 32 bits may be read with 16."""
    with pytest.raises(WarploomError, match=r"has (32|64) bits where"):
        words(body)
    assert (
        words("mov.u64 %d1, %globaltimer; mov.u16 %h, %tid.x; cvt.u32.u16 %r0, %h; st.global.b32 [%d0], %r0;")[0] == 0
    )


@pytest.mark.parametrize(
    "body",
    ["ld.global.u64 wide, [%d0];", "ld.global.b128 wide, [%d0]; st.global.s8 [%d0], wide;", "cvt.u32.u64 low, wide;"],
)
def test_registers_of_128_bits_hold_no_narrower_value(body: str) -> None:
    """The PTX ISA has no rule for one; ptxas sign-extends into an undefined upper half."""
    with pytest.raises(WarploomError) as caught:
        words(f".reg .b128 wide; .reg .b32 low; {body}")
    assert caught.value.code == "BAD_OPERANDS"
    assert "is a .b128 register where" in str(caught.value)


def test_a_part_must_be_named() -> None:
    with pytest.raises(WarploomError) as caught:
        words("mov.u32 %r0, %tid;")
    assert caught.value.code == "BAD_OPERANDS"
    assert "%tid.x" in caught.value.what


@pytest.mark.parametrize("operands", ["%d2", "12, %d2"])
def test_a_copy_takes_a_policy_with_and_without_a_source_size(operands: str) -> None:
    """vLLM gives `cp.async` a policy and no size of the source."""
    got = words(
        f"""mov.b32 %r0, 9; st.global.v4.b32 [%d0], {{%r0, %r0, %r0, %r0}}; createpolicy.fractional.L2::evict_last.b64 %d2, 1.0;
        cp.async.cg.shared.global.L2::cache_hint.L2::256B [data], [%d0], 16, {operands}; cp.async.wait_all;
        ld.shared.v4.b32 {{%r1, %r2, %r3, %r4}}, [data]; st.global.v4.b32 [%d0+16], {{%r1, %r2, %r3, %r4}};"""
    )
    assert got[4:].tolist() == [9, 9, 9, 0 if "12" in operands else 9]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("space", [".shared::cta", ""])
def test_shared_memory_is_cleared_in_one_instruction(space: str, schedule: str, seed: int) -> None:
    """DeepGEMM and TileLang clear buffers with `st.bulk`; zero bytes are allowed."""
    address = "cvt.u64.u32 %d1, %r0;" if space else "cvt.u64.u32 %d1, %r0; cvta.shared.u64 %d1, %d1;"
    got = words(
        f"""mov.b32 %r1, 7; mov.u32 %r0, data; st.shared.v4.b32 [data], {{%r1, %r1, %r1, %r1}}; st.shared.v4.b32 [data+16], {{%r1, %r1, %r1, %r1}};
        add.u32 %r0, %r0, 8; {address} mov.b64 %d2, 16; st.bulk.weak{space} [%d1], %d2, 0; mov.b64 %d2, 0; st.bulk{space} [%d1+8], %d2, 0;
        ld.shared.v4.b32 {{%r2, %r3, %r4, %r5}}, [data]; st.global.v4.b32 [%d0], {{%r2, %r3, %r4, %r5}};
        ld.shared.v4.b32 {{%r2, %r3, %r4, %r5}}, [data+16]; st.global.v4.b32 [%d0+16], {{%r2, %r3, %r4, %r5}};""",
        target="sm_100a",
        schedule=schedule,
        seed=seed,
    )
    assert got.tolist() == [7, 7, 0, 0, 0, 0, 7, 7]


def test_half_words_are_not_cleared() -> None:
    with pytest.raises(WarploomError) as caught:
        words("mov.u64 %d1, data; mov.b64 %d2, 12; st.bulk.shared::cta [%d1], %d2, 0;", target="sm_100a")
    assert caught.value.code == "BAD_SHAPE"


def test_blackwell_names_the_kind_of_an_8_bit_mma() -> None:
    lists = "{%f1, %f2, %f3, %f4}, {%r0, %r0, %r0, %r0}, {%r0, %r0}, {%f0, %f0, %f0, %f0}"
    plain, named = (
        words(
            f"""mov.b32 %r0, 0x38383C3C; mov.f32 %f0, 0.5;
            mma.sync.aligned{kind}.m16n8k32.row.col.f32.e4m3.e5m2.f32 {lists};
            st.global.v4.f32 [%d0], {{%f1, %f2, %f3, %f4}};""",
            target="sm_100a",
            block=(32, 1, 1),
        )
        for kind in ("", ".kind::f8f6f4")
    )
    assert plain.any()
    assert plain.tolist() == named.tolist()
