"""Layouts: tiles that TMA copies with one swizzle or type, and that an MMA or a store reads with another."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.checker.kernels import codes
from tests.checker.test_equal_passes import same_reports

import warploom
from warploom import TensorMap
from warploom.hardware.instruction_descriptors import encode_instruction_descriptor
from warploom.hardware.matrix_descriptors import encode_shared_descriptor
from warploom.host.launch import Launch
from warploom.launcher import launch_of, prepare
from warploom.machine.core.schedule import Eager
from warploom.ptx.syntax.printer import print_module

LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [tiles+{at}], [%rd1, {{{x}, {y}}}], [full];"
HEAD = """.version 8.7
.target {target}
.address_size 64
.visible .entry k(.param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .u64 da, .param .u64 db, .param .u32 n)
.reqntid 128
{{
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
    .reg .f32 %f<8>;
    .reg .pred %p<8>;
    .shared .align 1024 .b8 tiles[{bytes}];
    .shared .align 8 .b64 full;
    .shared .align 8 .b64 done;
    .shared .align 16 .b8 place[16];
    mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; ld.param.u32 %r9, [n];
    setp.ne.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r2, 0;
    @%p1 bra begun;
    mbarrier.init.shared.b64 [full], 1; mbarrier.init.shared.b64 [done], 1;
    fence.mbarrier_init.release.cluster; fence.proxy.async;
begun:
    bar.sync 0;
    @%p1 bra loaded;
    mbarrier.arrive.expect_tx.shared.b64 _, [full], {moved};
    mov.b64 %rd1, a; {loads_a}
    mov.b64 %rd1, b; {loads_b}
loaded:
    mbarrier.try_wait.parity.shared.b64 %p3, [full], 0; @!%p3 bra loaded;
    bar.sync 0;
    mov.u32 %r3, tiles; shr.u32 %r3, %r3, 4; cvt.u64.u32 %rd2, %r3;
    ld.param.u64 %rd3, [da]; add.u64 %rd3, %rd3, %rd2; ld.param.u64 %rd4, [db]; add.u64 %rd4, %rd4, %rd2;
"""
WGMMA = """
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k{k}.f32.{type}.{type} {{%f0, %f1, %f2, %f3}}, %rd3, %rd4, 0, 1, 1{tail};
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    ret;
}}
"""
TCGEN05 = """
    @!%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [place], 32;
    bar.sync 0;
    ld.shared.u32 %r4, [place];
    @%p1 bra issued;
    setp.eq.u32 %p5, %r1, 999;
    {issue}
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];
issued:
    mbarrier.try_wait.parity.shared.b64 %p4, [done], 0; @!%p4 bra issued;
    tcgen05.fence::after_thread_sync;
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    @!%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;
    @!%p2 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
    ret;
}}
"""
MMA = "tcgen05.mma.cta_group::1.kind::{kind} [%r4], %rd3, %rd4, {instruction}, %p5;"
COPY = "tcgen05.cp.cta_group::1.128x128b [%r4], %rd3;"
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e2m1": 1, "e2m3": 1, "e3m2": 1}
B_PLACE = 16384


@dataclass(frozen=True)
class Tile:
    """A tile of an operand: its type in the map, the swizzles of the map and of the descriptor, and the matrix."""

    written: str = "128B"
    read: str = "128B"
    columns: int = 64
    """Of the box; the matrix has `width` times as many."""
    width: int = 2
    type: str = "f16"
    base_offset: int = 0
    stride: int = 0
    leading: int = 0

    def map(self, rows: int) -> TensorMap:
        elements = rows * self.columns * self.width
        array = np.zeros(8 * elements, np.uint8)
        box = (rows, self.columns)
        return TensorMap(array, dtype=self.type, shape=(rows, self.columns * self.width), box=box, swizzle=self.written)

    def descriptor(self, family: str, place: int) -> int:
        spans = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_32B_atom": 128}
        stride = self.stride or 8 * spans[self.read]
        value = encode_shared_descriptor(family, 0, self.leading, stride, self.read, self.base_offset)
        return value + place // 16


def launched(a: Tile, b: Tile, rows: tuple[int, int], text: str, *, target: str, **given: Any) -> Launch:
    """A kernel that loads a box of A and one of B, and executes a text."""
    maps = a.map(rows[0]), b.map(rows[1])
    loads = [LOAD.format(at=at, x=0, y=0) for at in (0, B_PLACE)]
    moved = sum(each.geometry.box_bytes for each in maps)
    head = HEAD.format(target=target, bytes=49152, moved=moved, loads_a=loads[0], loads_b=loads[1])
    family = target[:-1].removesuffix("a")
    descriptors = a.descriptor(family, 0), b.descriptor(family, B_PLACE)
    return launch_of(head + text.format(**given), grid=1, block=128, args=[*maps, *descriptors, 0])


def wgmma(a: Tile, b: Tile | None = None, type_: str = "f16") -> Launch:
    """D = A @ B.T for one step of K, on Hopper."""
    k, tail = 32 // BYTES[type_], ", 0, 0" if BYTES[type_] == 2 else ""
    return launched(a, b or Tile(), (64, 8), WGMMA, target="sm_90a", k=k, type=type_, tail=tail)


def tcgen05(a: Tile, b: Tile | None = None, kind: str = "f16", types: tuple[str, str] = ("f16", "f16")) -> Launch:
    """The same on Blackwell."""
    instruction = encode_instruction_descriptor(kind, 64, 8, *types)
    issue = MMA.format(kind=kind, instruction=instruction)
    return launched(a, b or Tile(), (64, 8), TCGEN05, target="sm_100a", issue=issue)


def copied(a: Tile) -> Launch:
    """A copy from shared memory to TMEM."""
    return launched(a, Tile(), (128, 8), TCGEN05, target="sm_100a", issue=COPY)


MAKERS = {"wgmma": wgmma, "tcgen05.mma": tcgen05, "tcgen05.cp": copied}


def checked(launch: Launch, **options: Any) -> warploom.Report:
    options.setdefault("budget", 0)
    return warploom.check(launch, **options)


def lints(report: warploom.Report) -> set[str]:
    return {each.code for each in report.lints if each.code.startswith("LAYOUT")}


FITTING = {
    "128B": Tile(),
    "64B": Tile("64B", "64B", columns=32),
    "32B": Tile("32B", "32B", columns=16),
    "a row that is narrower than the pattern": Tile("128B", "128B", columns=16),
    "no swizzle, and boxes of core matrices": Tile("none", "none", columns=8, leading=2048),
    "a map of words": Tile(type="u16"),
    "a map of bytes": Tile(type="u8", columns=128),
}


@pytest.mark.parametrize("reader", MAKERS)
@pytest.mark.parametrize("name", FITTING)
def test_tiles_in_one_layout_have_no_finding_and_no_lint(name: str, reader: str) -> None:
    report = checked(MAKERS[reader](FITTING[name]))
    assert codes(report) <= ({"UNINITIALISED"} if name.startswith("no swizzle") else set())  # half of K is not there
    assert lints(report) == set()


MISMATCHED = {
    "128B as 64B": Tile("128B", "64B"),
    "128B as 32B": Tile("128B", "32B"),
    "128B as core matrices": Tile("128B", "none", leading=128),
    "64B as 128B": Tile("64B", "128B", columns=32),
    "32B as 64B": Tile("32B", "64B", columns=16),
    "64B as core matrices": Tile("64B", "none", columns=32, leading=64),
    "windows without a swizzle as 128B": Tile("none", "128B"),
    "windows without a swizzle as 64B": Tile("none", "64B", columns=32, width=4),
    "the pattern begins in another line": Tile(base_offset=1),
    "narrow rows as 64B": Tile("128B", "64B", columns=16),
}


@pytest.mark.parametrize("reader", MAKERS)
@pytest.mark.parametrize("name", MISMATCHED)
def test_another_swizzle_is_found(name: str, reader: str) -> None:
    tile = MISMATCHED[name]
    report = checked(MAKERS[reader](tile), budget=3)
    assert "LAYOUT_MISMATCH" in codes(report)
    (finding,) = (each for each in report if each.code == "LAYOUT_MISMATCH")
    reads, writes = finding.parties
    assert reader.partition(".")[0] in reads.instruction
    assert "cp.async.bulk.tensor" in writes.instruction
    assert f"swizzle {tile.written}" in finding.sentence
    assert f"swizzle {tile.read}" in finding.sentence
    assert "are elsewhere" in finding.sentence
    assert finding.witness is not None
    assert not finding.witness.confirmed  # the numbers are wrong in every run


def test_the_operand_b_is_compared_too() -> None:
    report = checked(wgmma(Tile(), Tile("128B", "64B")))
    (finding,) = report
    assert finding.code == "LAYOUT_MISMATCH"
    assert f"tiles+{B_PLACE}" in finding.parties[1].instruction
    assert "its rows are elsewhere" in finding.sentence


def test_32_byte_atoms_are_another_layout() -> None:
    """TMA exchanges atoms of 32 bytes, and the descriptor names granules of 16."""
    assert codes(checked(tcgen05(Tile("128B_32B_atom", "128B")))) == {"LAYOUT_MISMATCH"}


@pytest.mark.parametrize("read", ["128B", "64B", "32B"])
def test_data_that_may_be_stored_as_they_are_read_are_a_lint(read: str) -> None:
    """The box is one piece of global memory: weights may have been arranged there for the descriptor."""
    report = checked(wgmma(Tile("none", read, width=1)))
    assert report.verdict == "PROVED"
    assert lints(report) == {"LAYOUT_REINTERPRETED"}
    (lint,) = (each for each in report.lints if each.code == "LAYOUT_REINTERPRETED")
    assert "swizzle none" in lint.sentence


def test_only_bytes_that_are_exchanged_count() -> None:
    """Both patterns leave the first line of 128 bytes as it is: rows of one line agree, eight lines do not."""
    for rows, is_same in ((1, True), (8, False)):
        report = checked(stored("128B", "none", rows))
        assert lints(report) == (set() if is_same else {"LAYOUT_REINTERPRETED"})


def stored(loads: str, stores: str, rows: int = 8) -> Launch:
    """A box that is loaded with one swizzle and stored with another."""
    body = """
    @%p1 bra ended;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd5, {{0, 0}}], [tiles];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
ended: ret;
}}
"""
    tiles = [Tile(written=each, columns={"64B": 32, "32B": 16}.get(each, 64)) for each in (loads, stores)]
    text = "mov.b64 %rd5, b;" + body
    maps = [each.map(rows) for each in tiles]
    load = LOAD.format(at=0, x=0, y=0)
    head = HEAD.format(target="sm_90a", bytes=49152, moved=maps[0].geometry.box_bytes, loads_a=load, loads_b="")
    return launch_of(head + text.format(), grid=1, block=128, args=[*maps, 0, 0, 0])


@pytest.mark.parametrize(
    ("loads", "stores", "found", "remarks"),
    [
        ("128B", "128B", set(), set()),
        ("none", "none", set(), set()),
        ("64B", "64B", set(), set()),
        ("128B", "none", set(), {"LAYOUT_REINTERPRETED"}),  # a kernel that arranges weights does this
        ("none", "128B", set(), {"LAYOUT_REINTERPRETED"}),
        ("64B", "32B", {"LAYOUT_MISMATCH"}, set()),
    ],
)
def test_stores_of_copied_tiles(loads: str, stores: str, found: set[str], remarks: set[str]) -> None:
    report = checked(stored(loads, stores))
    assert codes(report) == found
    assert lints(report) == remarks


def test_a_tile_that_threads_have_written_is_not_judged() -> None:
    """The swizzle of an ordinary store is in its addresses: nothing declares it."""
    launch = wgmma(Tile("128B", "64B"))
    text = str(launch.program)
    over = "mov.u32 %r10, tiles; shl.b32 %r11, %r1, 6; add.u32 %r10, %r10, %r11;" + "".join(
        f" st.shared.v4.u32 [%r10+{at}], {{%r1, %r1, %r1, %r1}};" for at in range(0, 64, 16)
    )
    text = text.replace("wgmma.fence", f"{over} fence.proxy.async; bar.sync 0; wgmma.fence", 1)
    report = checked(replace(launch, program=text))
    assert report.verdict == "PROVED"


TYPES = {
    # name: (the launch, what is found, what is remarked)
    "f16 as f16": (lambda: wgmma(Tile()), set(), set()),
    "bf16 as f16": (lambda: wgmma(Tile(type="bf16"), Tile()), set(), {"LAYOUT_REINTERPRETED"}),
    "words as bf16": (lambda: wgmma(Tile(type="u16"), Tile(type="u16"), "bf16"), set(), set()),
    "f32 as tf32": (lambda: wgmma(*[Tile(type="f32", columns=32)] * 2, "tf32"), set(), set()),
    "tf32 as tf32": (lambda: wgmma(*[Tile(type="tf32", columns=32)] * 2, "tf32"), set(), set()),
    "f32 as bf16": (
        lambda: wgmma(Tile(type="f32", columns=32), Tile(type="u16"), "bf16"),
        set(),
        {"LAYOUT_REINTERPRETED"},
    ),
    "tf32 as bf16": (
        lambda: wgmma(Tile(type="tf32", columns=32), Tile(type="u16"), "bf16"),
        {"LAYOUT_MISMATCH"},
        set(),
    ),
    "bytes as e4m3": (lambda: wgmma(*[Tile(type="u8", columns=128)] * 2, "e4m3"), set(), set()),
    "bf16 as e4m3": (
        lambda: wgmma(Tile(type="bf16"), Tile(type="u8", columns=128), "e4m3"),
        set(),
        {"LAYOUT_REINTERPRETED"},
    ),
    "padded values of 4 bits as e2m1": (lambda: padded("16u4_align16b", "e2m1"), set(), set()),
    "padded values of 6 bits as e3m2": (lambda: padded("16u6_align16b", "e3m2"), set(), set()),
    "padded values of 4 bits as e4m3": (lambda: padded("16u4_align16b", "e4m3"), {"LAYOUT_MISMATCH"}, set()),
    "padded values of 6 bits as e4m3": (lambda: padded("16u6_align16b", "e4m3"), {"LAYOUT_MISMATCH"}, set()),
    "padded values of 4 bits as e2m3": (lambda: padded("16u4_align16b", "e2m3"), {"LAYOUT_MISMATCH"}, set()),
    "bytes as padded values": (lambda: padded("u8", "e2m1"), set(), set()),
}


def padded(type_: str, element: str) -> Launch:
    """An MMA with elements of 4, 6 or 8 bits, each sixteen of which take 16 bytes."""
    tile = Tile(type=type_, columns=128)
    return tcgen05(tile, Tile(type="u8", columns=128), "f8f6f4", (element, "e4m3"))


@pytest.mark.parametrize("name", TYPES)
def test_types_that_cannot_be_meant_are_found(name: str) -> None:
    make, found, remarks = TYPES[name]
    report = checked(make())
    assert codes(report) == found
    assert lints(report) == remarks


def test_rows_that_share_bytes_are_a_lint() -> None:
    """A stride of 512 bytes between groups of eight rows, which take 1024."""
    report = checked(wgmma(Tile(stride=512)))
    assert report.verdict == "PROVED"
    assert lints(report) == {"LAYOUT_REINTERPRETED"}
    assert lints(checked(wgmma(Tile(stride=1024)))) == set()


LOOP = """
    mov.b32 %r8, 1; mov.b32 %r7, 0;
step: setp.eq.u32 %p4, %r7, %r9; mov.b64 %rd5, a; mov.b64 %rd6, b; selp.b64 %rd7, %rd6, %rd5, %p4;
    and.b32 %r6, %r7, 1; shl.b32 %r6, %r6, 13; mov.u32 %r5, tiles; add.u32 %r5, %r5, %r6;
    @%p1 bra wait;
    fence.proxy.async;
    mbarrier.arrive.expect_tx.shared.b64 _, [full], 8192;
    cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r5], [%rd7, {0, 0}], [full];
wait: mbarrier.try_wait.parity.shared.b64 %p3, [full], %r8; @!%p3 bra wait;
    xor.b32 %r8, %r8, 1; shr.u32 %r6, %r6, 4; cvt.u64.u32 %rd8, %r6; add.u64 %rd9, %rd3, %rd8;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd9, %rd9, 0, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    bar.sync 0;
    add.u32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, 96; @%p4 bra step;
    ret;
}
"""
"""Two stages in turn; step %r9 loads its tile with the other map, which has another swizzle."""


def looped(wrong: int, swizzle: str = "64B", grid: int = 1) -> Launch:
    one, other = Tile(), Tile(written=swizzle, columns=32 if swizzle == "64B" else 64)
    maps = (
        one.map(64),
        TensorMap(np.zeros(1 << 14, np.uint8), dtype="f16", box=(64, 64), shape=(64, 128), swizzle="none"),
    )
    if swizzle == "64B":
        maps = (
            maps[0],
            TensorMap(np.zeros(1 << 14, np.uint8), dtype="f16", box=(128, 32), shape=(128, 64), swizzle="64B"),
        )
    load = LOAD.format(at=0, x=0, y=0)
    head = HEAD.format(target="sm_90a", bytes=49152, moved=8192, loads_a=load, loads_b="")
    assert other.written == swizzle
    return launch_of(head + LOOP, grid=grid, block=128, args=[*maps, one.descriptor("sm_90", 0), 0, wrong])


@pytest.mark.parametrize("swizzle", ["64B", "none"])
@pytest.mark.parametrize("wrong", [999, 0, 1, 2, 50, 95])
def test_a_late_pass_with_another_map_is_found(wrong: int, swizzle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report, left_out = same_reports(looped(wrong, swizzle), "strict", monkeypatch)
    assert codes(report) == (set() if wrong == 999 else {"LAYOUT_MISMATCH"})
    if wrong == 999:
        assert any(left_out)


FILL = """
    @%p1 bra waitNAME;
    mbarrier.arrive.expect_tx.shared.b64 _, [full], 8192;
    cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r5], [%rd5, {0, 0}], [full];
waitNAME: mbarrier.try_wait.parity.shared.b64 %p3, [full], %r8; @!%p3 bra waitNAME;
    xor.b32 %r8, %r8, 1; bar.sync 0;
"""
RING = f"""
    mov.b32 %r8, 1; mov.b32 %r7, 0; mov.b64 %rd5, a; mov.u32 %r5, tiles;
    {"".join(FILL.replace("NAME", str(number)) + "add.u32 %r5, %r5, 8192;" for number in range(4))}
    mov.b64 %rd5, b;
step: and.b32 %r6, %r7, 3; shl.b32 %r6, %r6, 13; mov.u32 %r5, tiles; add.u32 %r5, %r5, %r6;
    shr.u32 %r6, %r6, 4; cvt.u64.u32 %rd8, %r6; add.u64 %rd9, %rd3, %rd8;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f0, %f1, %f2, %f3}}, %rd9, %rd9, 0, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    bar.sync 0;
    {FILL.replace("NAME", "in")}
    add.u32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, 96; @%p4 bra step;
    ret;
}}
"""
"""A ring of four tiles: the first map fills them, and each step reads one and loads it again with the second map."""


@pytest.mark.parametrize("swizzle", ["128B", "64B"])
def test_the_layout_of_a_tile_is_part_of_the_state_that_comes_again(
    swizzle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = looped(0, "64B")
    head, _, _ = str(launch.program).partition(LOOP)
    later = launch.args[1] if swizzle == "64B" else launch.args[0]
    launch = replace(launch, program=head + RING, args=(launch.args[0], later, *launch.args[2:]))
    report, left_out = same_reports(launch, "strict", monkeypatch)
    assert codes(report) == (set() if swizzle == "128B" else {"LAYOUT_MISMATCH"})
    assert any(left_out) == (swizzle == "128B")


@pytest.mark.parametrize("wrong", [None, 0, 5, 7])
def test_a_late_cluster_with_another_descriptor_is_found(wrong: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = replace(wgmma(Tile()), grid=(8, 1, 1))
    turn = "" if wrong is None else (
        f"mov.u32 %r4, %ctaid.x; setp.eq.u32 %p5, %r4, {wrong}; mov.b64 %rd5, {3 << 62 ^ 1 << 62}; "
        "selp.b64 %rd5, %rd5, 0, %p5; xor.b64 %rd3, %rd3, %rd5;"
    )  # fmt: skip
    text = str(launch.program).replace("wgmma.fence", f"{turn} wgmma.fence", 1)
    report, _ = same_reports(replace(launch, program=text), "strict", monkeypatch)
    assert codes(report) == (set() if wrong is None else {"LAYOUT_MISMATCH"})
    if report.findings:
        assert report.findings[0].parties[0].cta == (wrong, 0, 0)


def matmul(target: str) -> Launch:
    a, b = np.ones((256, 256), ml_dtypes.bfloat16), np.ones((256, 256), ml_dtypes.bfloat16)
    return warploom.matmul.bind(a, b, target=target)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_each_map_of_a_whole_kernel_with_another_swizzle_is_refuted(target: str) -> None:
    launch = matmul(target)
    assert checked(launch, budget=2).findings == ()
    assert lints(checked(launch)) == set()
    maps = [at for at, each in enumerate(launch.args) if isinstance(each, TensorMap)]
    inputs = [at for at in maps if launch.args[at].geometry.swizzle.name == "128B"][:2]
    for at in inputs:
        old = launch.args[at]
        shape = old.geometry
        new = TensorMap(
            old.array, box=shape.box, swizzle="none", shape=shape.shape, dtype=old.dtype, offset=old.offset,
            strides=(*shape.strides, 2),
        )  # fmt: skip
        mutant = replace(launch, args=(*launch.args[:at], new, *launch.args[at + 1 :]))
        assert "LAYOUT_MISMATCH" in codes(checked(mutant)), at


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_descriptors_of_a_whole_kernel_with_another_swizzle_are_refuted(target: str) -> None:
    launch = matmul(target)
    text = print_module(prepare(launch, Eager(), None, None, (), None).program.module)
    shift = 62 if target == "sm_90a" else 61
    own, other = (1 << 62, 2 << 62) if target == "sm_90a" else (2 << 61, 4 << 61)
    found = 0
    for value in {int(each) for each in re.findall(r"\b\d{18,20}\b", text)}:
        if value >> shift == own >> shift and value >> 46 & 0xF:
            mutant = text.replace(str(value), str(value ^ own ^ other))
            found += 1
            assert "LAYOUT_MISMATCH" in codes(checked(replace(launch, program=mutant))), value
    assert found or target == "sm_90a"
