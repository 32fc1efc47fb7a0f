"""Control flow, uniformity, liveness and the control slice of small kernels with obvious answers."""

from __future__ import annotations

from warploom.machine import instructions as meanings  # noqa: F401  (the rows of every family)
from warploom.ptx.analysis.control_flow import Flow, build
from warploom.ptx.analysis.control_slice import control_slice
from warploom.ptx.analysis.liveness import live_at_entry
from warploom.ptx.analysis.uniformity import CONVOY, LANE, LANE_ID, THREAD_ID, WARP, WARP_ID, classify, follows_x
from warploom.ptx.syntax.model import Kernel
from warploom.ptx.syntax.parser import parse

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u32 n)\n{\n"
REGISTERS = ".reg .pred %p<8>; .reg .b32 %r<24>; .reg .b64 %rd<8>; .reg .f32 %f<8>; .shared .b32 slot[4];\n"


def kernel(body: str) -> tuple[Kernel, Flow]:
    (made,) = parse(HEAD + REGISTERS + body + "\n}").kernels
    return made, build(made)


def classes(body: str) -> dict[str, int]:
    return classify(*kernel(body))


DIAMOND = """
    mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 7; @%p0 bra LEFT;
    mov.u32 %r1, 1; bra JOIN;
LEFT: mov.u32 %r1, 2;
JOIN: add.u32 %r2, %r1, 1; ret;
"""


def test_the_arms_of_a_branch_reconverge():
    _, flow = kernel(DIAMOND)
    assert [block.successors for block in flow.blocks] == [(2, 1), (3,), (3,), (4,), ()]
    assert flow.reconvergence[0] == 3
    assert flow.region(0) == {1, 2}
    assert flow.back_edges == frozenset()


def test_a_loop_reconverges_at_its_exit():
    text = "mov.u32 %r0, 0;\nTOP: add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 9; @%p0 bra TOP; mov.u32 %r1, 1; bar.sync 0; ret;"
    _, flow = kernel(text)
    assert flow.back_edges == {(1, 1)}
    assert flow.reconvergence[1] == 2


def test_blocking_instructions_start_a_block():
    _, flow = kernel("mov.u32 %r0, 0; bar.sync 0; mov.u32 %r1, 1; ret;")
    assert [[op.family for op in block.ops] for block in flow.blocks] == [["mov"], ["bar.sync", "mov", "ret"], []]


def test_values_of_the_grid_are_uniform_and_those_of_threads_are_not():
    found = classes("""
        mov.u32 %r0, %ctaid.x; ld.param.u32 %r1, [n]; mad.lo.u32 %r2, %r0, %r1, 3; ld.shared.u32 %r3, [slot];
        mov.u32 %r4, %tid.x; add.u32 %r5, %r4, %r2; mov.u32 %r6, %laneid; xor.b32 %r7, %r6, 1;
        elect.sync %r8|%p0, -1; ret;""")
    assert {name: found[name] for name in ("%r0", "%r1", "%r2", "%r3")} == dict.fromkeys(
        ("%r0", "%r1", "%r2", "%r3"), CONVOY
    )
    assert found["%r4"] == THREAD_ID
    assert {found["%r5"], found["%r7"], found["%p0"]} == {LANE}


def test_the_warp_index_is_one_value_per_warp_however_it_is_made():
    found = classes("""
        mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; setp.eq.u32 %p0, %r2, 1;
        setp.lt.u32 %p1, %r0, 64; and.b32 %r3, %r0, 96; setp.lt.u32 %p2, %r0, 65; shr.u32 %r4, %r0, 4; ret;""")
    assert {found[name] for name in ("%p0", "%p1", "%r3")} == {WARP}
    assert {found[name] for name in ("%r1", "%r2")} == {WARP_ID}
    assert {found["%p2"], found["%r4"]} == {LANE}


def test_the_warpgroup_index_is_one_value_for_the_group_however_it_is_made():
    found = classes("""
        mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 7; and.b32 %r2, %r0, -128; setp.lt.u32 %p0, %r0, 256;
        shr.u32 %r3, %r0, 5; shfl.sync.idx.b32 %r4, %r3, 0, 31, -1; shr.u32 %r5, %r4, 2; setp.gt.u32 %p1, %r4, 3;
        and.b32 %r6, %r4, 12; add.u32 %r7, %r4, 4; add.u32 %r8, %r4, 1; setp.gt.u32 %p2, %r4, 4; shr.u32 %r9, %r4, 1;
        add.u32 %r10, %r0, 128; add.u32 %r11, %r0, 32; add.u32 %r12, %r0, 1; setp.eq.u32 %p3, %r4, 4; ret;""")
    shared = ("%r1", "%r2", "%p0", "%r5", "%p1", "%r6")
    assert {name: found[name] for name in shared} == dict.fromkeys(shared, CONVOY)
    assert {found["%r4"], found["%r7"]} == {WARP_ID}
    assert {found[name] for name in ("%r8", "%p2", "%r9", "%p3")} == {WARP}
    assert [found[name] for name in ("%r10", "%r11", "%r12")] == [THREAD_ID, LANE_ID, LANE]


def test_a_comparison_that_is_combined_with_another_predicate_is_not_shared():
    found = classes("""
        mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; setp.eq.u32 %p0, %r1, 3;
        setp.lt.and.u32 %p1, %r1, 4, %p0; setp.lt.and.u32 %p2, %r0, 128, %p0; ret;""")
    assert found["%p1"] == WARP
    assert found["%p2"] == LANE


def test_registers_of_one_block_are_shared_after_lanes_diverge():
    text = """
        mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 7; @%p0 bra LEFT;
        mov.u32 %r1, 1; bra JOIN;
    LEFT: mov.u32 %r2, 5; add.u32 %r3, %r2, 1; add.u32 %r4, %r4, 1; @%p0 mov.u32 %r5, 1; add.u32 %r1, %r3, 2;
    JOIN: add.u32 %r6, %r1, %r5; ret;"""
    found = classes(text)
    assert {found["%r2"], found["%r3"]} == {CONVOY}
    assert found["%r4"] == LANE  # it is read before it is written
    assert {found["%r1"], found["%r5"]} == {LANE}  # another block reads them


def test_values_are_divergent_after_lanes_diverge_and_uniform_after_warps_diverge():
    assert classes(DIAMOND)["%r1"] == LANE
    by_warp = DIAMOND.replace("setp.lt.u32 %p0, %r0, 7", "setp.lt.u32 %p0, %r0, 32")
    assert classes(by_warp)["%r1"] == CONVOY


def test_lanes_that_only_exit_cause_no_divergence():
    found = classes("mov.u32 %r0, %tid.x; setp.gt.u32 %p0, %r0, 5; @%p0 ret; mov.u32 %r1, 4; ret;")
    assert found["%r1"] == CONVOY


def test_lanes_do_not_follow_x_in_a_narrow_block():
    made, flow = kernel("mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; ret;")
    assert classify(made, flow, follow_x=0)["%r1"] == LANE
    assert classify(made, flow, follow_x=32)["%r1"] == WARP
    assert [follows_x((*block, 1)) for block in ((96, 1), (128, 2), (96, 2), (33, 1), (33, 2))] == [
        128,
        128,
        32,
        128,
        0,
    ]


def test_a_register_lives_until_its_last_read_and_through_a_guarded_write():
    _, flow = kernel("""
        mov.u32 %r0, 1; mov.u32 %r1, 2; setp.eq.u32 %p0, %r0, 1;
        @%p0 bra NEXT;
        mov.u32 %r1, 5;
    NEXT: @%p0 mov.u32 %r2, 7; add.u32 %r3, %r1, %r2; ret;""")
    names = ("%p0", "%r0", "%r1", "%r2", "%r3")
    live = [{name for bit, name in enumerate(names) if bits >> bit & 1} for bits in live_at_entry(flow, names)]
    assert live[:3] == [{"%r2"}, {"%p0", "%r2"}, {"%p0", "%r1", "%r2"}]


def test_the_control_slice_contains_control_and_no_data():
    _, flow = kernel("""
        ld.param.u64 %rd0, [out]; ld.param.u32 %r0, [n]; mov.u32 %r1, 0; mov.f32 %f0, 0f00000000;
    TOP: add.f32 %f0, %f0, 0f3F800000; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd2, %rd0, %rd1; st.global.f32 [%rd2], %f0;
        ld.shared.u32 %r2, [slot]; add.u32 %r1, %r1, %r2; setp.lt.u32 %p0, %r1, %r0; @%p0 bra TOP; ret;""")
    found = control_slice(flow)
    assert found.registers == {"%rd0", "%rd1", "%rd2", "%r0", "%r1", "%r2", "%p0"}
    assert [op.family for op in found.loads] == ["ld", "ld", "ld"]


def test_labels_that_no_branch_names_begin_no_block():
    text = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k()
{
 .reg .pred %p<2>; .reg .b32 %r<4>;
 mov.u32 %r1, %tid.x;
$L__tmp0:
 add.u32 %r1, %r1, 1;
 setp.eq.u32 %p1, %r1, 3;
 @%p1 bra END;
$L__tmp1:
 add.u32 %r1, %r1, 1;
$L__tmp2:
 add.u32 %r1, %r1, 1;
END:
 add.u32 %r2, %r1, 1;
$L__tmp3:
 ret;
}
"""
    flow = build(parse(text).kernels[0])
    assert [len(block.ops) for block in flow.blocks] == [4, 2, 2, 0]
    assert flow.blocks[0].targets == [2]
