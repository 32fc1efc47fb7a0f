"""`cp.async` and `cp.async.bulk`: the bytes they move and fill, and waiting for their groups."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.machine.asynchronous import SCHEDULES, fault, init, run, wait

import warploom
from warploom.machine.core.schedule import Random, Recorded, family_of

RNG = np.random.default_rng()
POISON = 0xFFFFFFFF


def words(*shape):
    return RNG.integers(0, 1 << 32, shape, dtype=np.uint32)


POINTERS = """ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out];
    mul.wide.u32 %rd3, %thread, {size}; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
    mov.u32 %r1, data; mul.lo.u32 %r2, %thread, {size}; add.u32 %r1, %r1, %r2;"""
OUT = {
    4: "ld.shared.u32 %r10, [%r1]; st.global.u32 [%rd2], %r10;",
    8: "ld.shared.v2.u32 {%r10, %r11}, [%r1]; st.global.v2.u32 [%rd2], {%r10, %r11};",
    16: "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1]; st.global.v4.u32 [%rd2], {%r10, %r11, %r12, %r13};",
}


@pytest.mark.parametrize(("cache", "size"), [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
@pytest.mark.parametrize("block", [32, 128])
def test_every_lane_copies_its_bytes(cache, size, schedule, seed, block):
    source, out = words(block, size // 4), np.zeros((block, size // 4), np.uint32)
    body = f"""{POINTERS.format(size=size)}
    cp.async.{cache}.shared.global [%r1], [%rd1], {size};
    cp.async.commit_group; cp.async.wait_group 0; {OUT[size]}"""
    moved = run(body, "ptr:src ptr:out", (source, out), block=block, schedule=schedule, seed=seed).bytes_moved
    assert (out == source).all()
    assert moved["global->shared"] == block * size


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
def test_bytes_past_the_source_size_are_zero_and_not_read(schedule, seed):
    """Lane i copies i % 17 bytes; the last lane's 16 bytes would reach past the buffer."""
    source, out = RNG.integers(0, 256, 31 * 16 + 14, dtype=np.uint8), np.ones((32, 16), np.uint8)
    body = f"""{POINTERS.format(size=16)} rem.u32 %r5, %thread, 17;
    cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16, %r5; cp.async.wait_all; {OUT[16]}"""
    run(body, "ptr:src ptr:out", (source, out), schedule=schedule, seed=seed)
    for lane in range(32):
        count = lane % 17
        assert (out[lane, :count] == source[16 * lane : 16 * lane + count]).all()
        assert (out[lane, count:] == 0).all()


def test_an_ignored_source_is_not_read():
    source, out = words(16, 1), np.ones((32, 1), np.uint32)
    body = f"""{POINTERS.format(size=4)} setp.ge.u32 %p1, %thread, 16;
    cp.async.ca.shared.global [%r1], [%rd1], 4, %p1; cp.async.wait_all; {OUT[4]}"""
    run(body, "ptr:src ptr:out", (source, out))
    assert (out[:16] == source).all()
    assert (out[16:] == 0).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:4])
@pytest.mark.parametrize("ignored", [0, 1])
def test_a_source_that_all_lanes_ignore_together(ignored, schedule, seed):
    source, out = words(32, 1), np.ones((32, 1), np.uint32)
    body = f"""{POINTERS.format(size=4)} ld.param.u32 %r9, [ignored]; setp.ne.u32 %p1, %r9, 0;
    cp.async.ca.shared.global [%r1], [%rd1], 4, %p1; cp.async.wait_all; {OUT[4]}"""
    run(body, "ptr:src ptr:out int:ignored", (source, out, ignored), schedule=schedule, seed=seed)
    assert (out == (0 if ignored else source)).all()


PIPELINE = """ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out]; ld.param.u32 %r9, [n];
    mul.wide.u32 %rd3, %thread, 16; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
    mov.u32 %r1, data; shl.b32 %r2, %thread, 4; add.u32 %r1, %r1, %r2; mov.u32 %r3, 0; mov.u32 %r4, 0;
    cp.async.cg.shared.global [%r1], [%rd1], 16; cp.async.commit_group;
    cp.async.cg.shared.global [%r1+512], [%rd1+512], 16; cp.async.commit_group;
    LOOP: add.u32 %r5, %r3, 2; setp.lt.u32 %p1, %r5, %r9;
    rem.u32 %r6, %r5, 3; shl.b32 %r6, %r6, 9; add.u32 %r6, %r6, %r1;
    @%p1 cp.async.cg.shared.global [%r6], [%rd1+1024], 16; cp.async.commit_group;
    cp.async.wait_group 2;
    rem.u32 %r7, %r3, 3; shl.b32 %r7, %r7, 9; add.u32 %r7, %r7, %r1;
    ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r7]; st.global.v4.u32 [%rd2], {%r10, %r11, %r12, %r13};
    add.u64 %rd1, %rd1, 512; add.u64 %rd2, %rd2, 512;
    add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, %r9; @%p2 bra LOOP;"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_pipeline_of_three_groups(schedule, seed):
    source = words(9, 32, 4)
    out = np.zeros_like(source)
    run(PIPELINE, "ptr:src ptr:out int:n", (source, out, 9), schedule=schedule, seed=seed)
    assert (out == source).all()


def test_a_pipeline_that_waits_for_one_group_too_few_reads_early_under_lazy():
    source = words(9, 32, 4)
    out = np.zeros_like(source)
    body = PIPELINE.replace("wait_group 2", "wait_group 3") + "cp.async.wait_all;"
    run(body, "ptr:src ptr:out int:n", (source, out, 9), schedule="lazy")
    assert (out[0] == POISON).all()
    assert (out != source).any(axis=(1, 2)).all()


def test_groups_are_per_thread():
    """Odd lanes commit once more: with one group left open theirs is complete, that of the even lanes need not be."""
    source, out = words(32, 1), np.zeros((32, 1), np.uint32)
    body = f"""{POINTERS.format(size=4)} and.b32 %r5, %thread, 1; setp.eq.u32 %p1, %r5, 1;
    cp.async.ca.shared.global [%r1], [%rd1], 4; cp.async.commit_group;
    @%p1 bra ODD;
    cp.async.wait_group 1; {OUT[4]} bra END;
    ODD: cp.async.commit_group; cp.async.wait_group 1; {OUT[4].replace("%r10", "%r20")}
    END: cp.async.wait_all;"""
    run(body, "ptr:src ptr:out", (source, out), schedule="lazy")
    assert (out[1::2] == source[1::2]).all()
    assert (out[::2] == POISON).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(("noinc", "count"), [("", 64), (".noinc", 128)])
def test_copies_arrive_on_a_barrier(schedule, seed, noinc, count):
    """Warp 0 and 1 copy and arrive; with .noinc the barrier counts the copies' arrivals too."""
    source, out = words(64, 1), np.zeros((64, 1), np.uint32)
    body = f"""{init(count)} {POINTERS.format(size=4)}
    cp.async.ca.shared.global [%r1], [%rd1], 4; cp.async.mbarrier.arrive{noinc}.shared.b64 [bars];
    mbarrier.arrive.shared::cta.b64 _, [bars]; {wait("W")}
    mov.u32 %r3, data; xor.b32 %r4, %thread, 32; shl.b32 %r4, %r4, 2; add.u32 %r3, %r3, %r4;
    ld.shared.u32 %r10, [%r3]; st.global.u32 [%rd2], %r10;"""
    run(body, "ptr:src ptr:out", (source, out), block=64, schedule=schedule, seed=seed)
    assert (out == np.roll(source, 32, axis=0)).all()


COMMIT = "@%first cp.async.bulk.commit_group;"
BULK = "@%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [data], [%rd1], {size}, [bars];"


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("size", [16, 48, 4096])
def test_a_bulk_copy_round_trip(schedule, seed, size):
    source, out = words(size // 4), np.zeros(size // 4, np.uint32)
    body = f"""{init(1)} ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out];
    {BULK.format(size=size)} @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {size}; {wait("W")}
    @%first cp.async.bulk.global.shared::cta.bulk_group [%rd2], [data], {size}; {COMMIT}
    @%first cp.async.bulk.wait_group 0;"""
    moved = run(body, "ptr:src ptr:out", (source, out), schedule=schedule, seed=seed).bytes_moved
    assert (out == source).all()
    assert moved == {"global->shared": size, "shared->global": size}


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_every_lane_may_issue_its_own_bulk_copy(schedule, seed):
    source, out = words(32, 4), np.zeros((32, 4), np.uint32)
    body = f"""{init(1)} {POINTERS.format(size=16)}
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 512; bar.warp.sync -1;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [bars]; {wait("W")}
    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r1], 16;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""
    run(body, "ptr:src ptr:out", (source, out), schedule=schedule, seed=seed)
    assert (out == source).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_bulk_copy_to_a_peer_counts_on_its_barrier(schedule, seed):
    """CTA 0 sends its data to CTA 1, then adds it once more: CTA 1 holds the double."""
    source, out = words(64), np.zeros(64, np.uint32)
    body = f"""{init(1, 1)} ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out]; setp.ne.u32 %p1, %rank, 0;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; @%p1 bra RECEIVE;
    {BULK.format(size=256)} @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256; {wait("W")}
    mov.u32 %r1, data; mov.u32 %r2, bars; mapa.shared::cluster.u32 %r3, %r1, 1; mapa.shared::cluster.u32 %r4, %r2, 1;
    @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r3], [data], 256, [%r4];
    bra END;
    RECEIVE: @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256; {wait("R")}
    mov.u32 %r1, data; mapa.shared::cluster.u32 %r3, %r1, 1; mov.u32 %r4, bars; mapa.shared::cluster.u32 %r4, %r4, 1;
    @%first cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32
      [%r3], [data], 256, [%r4];
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256; {wait("A", parity=1)}
    @%first cp.async.bulk.global.shared::cta.bulk_group [%rd2], [data], 256; {COMMIT}
    @%first cp.async.bulk.wait_group 0;
    END: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
    run(body, "ptr:src ptr:out", (source, out), grid=2, cluster=2, schedule=schedule, seed=seed)
    assert (out == source * 2).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_bulk_copy_is_multicast(schedule, seed):
    source, out = words(64), np.zeros((4, 64), np.uint32)
    body = f"""{init(1)} ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out]; mul.wide.u32 %rd3, %rank, 256;
    add.u64 %rd2, %rd2, %rd3; mov.u16 %h1, 13; setp.eq.u32 %p1, %rank, 2; and.pred %p1, %p1, %first;
    setp.eq.u32 %p2, %rank, 1;
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
      [data], [%rd1], 256, [bars], %h1;
    @%p2 bra END; {wait("W")}
    @%first cp.async.bulk.global.shared::cta.bulk_group [%rd2], [data], 256; {COMMIT}
    @%first cp.async.bulk.wait_group 0;
    END: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
    run(body, "ptr:src ptr:out", (source, out), grid=4, cluster=4, schedule=schedule, seed=seed)
    assert (out[[0, 2, 3]] == source).all()
    assert (out[1] == 0).all()


REDUCTIONS = [
    ("add.u32", np.uint32, lambda a, b: a + b),
    ("add.f32", np.float32, lambda a, b: a + b),
    ("add.f64", np.float64, lambda a, b: a + b),
    ("add.noftz.bf16", ml_dtypes.bfloat16, lambda a, b: a + b),
    ("max.s32", np.int32, np.maximum),
    ("min.u64", np.uint64, np.minimum),
    ("dec.u32", np.uint32, lambda a, b: np.where((a == 0) | (a > b), b, a - 1)),
    ("and.b32", np.uint32, np.bitwise_and),
    ("xor.b64", np.uint64, np.bitwise_xor),
]


@pytest.mark.parametrize(("operation", "dtype", "combine"), REDUCTIONS, ids=[row[0] for row in REDUCTIONS])
def test_bulk_reductions(operation, dtype, combine):
    source, target = (RNG.integers(0, 6000, 64).astype(dtype) for _ in range(2))
    want, size = combine(target, source), source.nbytes
    body = f"""{init(1)} ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out];
    {BULK.format(size=size)} @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {size}; {wait("W")}
    @%first cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation} [%rd2], [data], {size}; {COMMIT}
    @%first cp.async.bulk.wait_group 0;"""
    run(body, "ptr:src ptr:out", (source, target), schedule="lazy")
    assert (target == want).all()


def test_the_plain_f32_addition_keeps_subnormal_numbers():
    source = np.array([1e-40, 2e-39, -3e-40, 1.0] * 4, np.float32)
    target = np.array([2e-40, 1e-38, 1e-40, -0.0] * 4, np.float32)
    want = source + target
    body = f"""{init(1)} ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out];
    {BULK.format(size=64)} @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 64; {wait("W")}
    @%first cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd2], [data], 64; {COMMIT}
    @%first cp.async.bulk.wait_group 0;"""
    run(body, "ptr:src ptr:out", (source, target))
    assert (target.view(np.uint32) == want.view(np.uint32)).all()
    assert (np.abs(want[:3]) > 0).all()


def test_a_byte_mask_selects_bytes_of_every_sixteen():
    source, out = RNG.integers(0, 256, 64, dtype=np.uint8), np.zeros(64, np.uint8)
    body = f"""{init(1)} ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out]; mov.u16 %h1, 0x8421;
    {BULK.format(size=64)} @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 64; {wait("W")}
    @%first cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd2], [data], 64, %h1; {COMMIT}
    @%first cp.async.bulk.wait_group 0;"""
    run(body, "ptr:src ptr:out", (source, out), target="sm_100a")
    chosen = np.isin(np.arange(64) % 16, (0, 5, 10, 15))
    assert (out == np.where(chosen, source, 0)).all()


GROUPS = """ld.param.u64 %rd2, [out]; mov.u32 %r1, 1; @!%first bra END;
    st.shared.v4.u32 [data], {%r1, %r1, %r1, %r1}; fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [data], 16; cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [%rd2+16], [data], 16; cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 1;
    ld.global.u32 %r3, [%rd2]; cp.async.bulk.wait_group 1; ld.global.u32 %r4, [%rd2]; ld.global.u32 %r5, [%rd2+16];
    cp.async.bulk.wait_group 0; st.global.v4.u32 [%rd2+32], {%r3, %r4, %r5, %r1};
    END:"""


def test_reading_a_source_comes_before_writing_and_groups_complete_in_order():
    """Lazily: after `.read 1` the first source is read and nothing written, after `1` the first group is written."""
    out = np.zeros(12, np.uint32)
    run(GROUPS, "ptr:out", (out,), schedule="lazy")
    assert out.tolist() == [1] * 8 + [0, 1, 0, 1]
    out[:] = 0
    run(GROUPS, "ptr:out", (out,), schedule="eager")
    assert out.tolist() == [1] * 12


def test_a_thread_that_issued_nothing_waits_for_nothing():
    out = np.zeros(36, np.uint32)
    body = f"""ld.param.u64 %rd2, [out];
    @%first cp.async.bulk.global.shared::cta.bulk_group [%rd2], [data], 16; {COMMIT}
    @%first bra LATER; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    mul.wide.u32 %rd3, %thread, 4; add.u64 %rd3, %rd3, %rd2; ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd3+16], %r1;
    LATER: @%first cp.async.bulk.wait_group 0;"""
    run(body, "ptr:out", (out,), schedule="lazy")
    assert out[:4].tolist() == [POISON] * 4
    assert (out[4:] == 0).all()


FAULTS = {
    "size": ("mov.u32 %r1, 24; " + BULK.format(size="%r1"), "MISALIGNED", "24 bytes"),
    "source alignment": (BULK.format(size=16).replace("[%rd1]", "[%rd1+8]"), "MISALIGNED", "16 bytes"),
    "destination alignment": (BULK.format(size=16).replace("[data]", "[data+8]"), "MISALIGNED", "16 bytes"),
    "source end": (BULK.format(size=512), "OUT_OF_BOUNDS", "global"),
    "destination end": (BULK.format(size=64).replace("[data]", "[bars+96]"), "OUT_OF_BOUNDS", "shared"),
    "no barrier": (BULK.format(size=64).replace("[bars]", "[bars+8]"), "BARRIER_NOT_INITIALISED", "barriers are bars"),
    "small copy": ("cp.async.ca.shared.global [data+2], [%rd1], 4;", "MISALIGNED", "4 bytes"),
    "small copy past the end": (
        "cp.async.ca.shared.global [data], [%rd1+256], 4;",
        "OUT_OF_BOUNDS",
        "first byte after",
    ),
    "source size": ("mov.u32 %r1, 17; cp.async.cg.shared.global [data], [%rd1], 16, %r1;", "BAD_SHAPE", "17 bytes"),
}


@pytest.mark.parametrize(("body", "code", "text"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_illegal_copies_are_faults_with_a_line(body, code, text, schedule):
    full = f"{init(1)} ld.param.u64 %rd1, [src]; {body} cp.async.wait_all;"
    error = fault(full, "ptr:src", (words(64),), schedule=schedule)
    assert error.code == code
    assert text in str(error)
    assert error.loc is not None
    assert any("cp.async" in note for note in error.notes)


TOGETHER = """ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [out]; mul.wide.u32 %rd3, %thread, 16; add.u64 %rd1, %rd1, %rd3;
 mov.u32 %r1, data; mul.lo.u32 %r2, %thread, 16; add.u32 %r1, %r1, %r2; add.u64 %rd2, %rd2, %rd3;
 cp.async.cg.shared.global [%r1], [%rd1], 16; {between} cp.async.cg.shared.global [%r1+512], [%rd1+{second}], 16;
 cp.async.commit_group; cp.async.wait_group 0;
 ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r1+512]; st.global.v4.u32 [%rd2], {{%r10, %r11, %r12, %r13}};"""


class Completions:
    """Count the operations that complete, as the schedule takes them."""

    def __init__(self):
        self.taken = []

    def on_event(self, event):
        if event.kind == "complete":
            self.taken.append(event.source.text)


@pytest.mark.parametrize(
    ("between", "operations"),
    [("", 1), ("cp.async.commit_group;", 2), ("cp.async.mbarrier.arrive.shared.b64 [bars];", 2)],
)
@pytest.mark.parametrize("observed", [False, True])
def test_copies_of_one_group_complete_together(between, operations, observed):
    """The choices are the same with an observer, which sees every copy complete."""
    source, out, watcher = words(64, 4), np.zeros((32, 4), np.uint32), Completions()
    recorded = Recorded(Random(3))
    body = init(64) + TOGETHER.format(between=between, second=512)
    options = {"observers": [watcher]} if observed else {}
    run(body, "ptr:src ptr:out", (source, out), schedule=recorded, **options)
    assert (out == source[32:]).all()
    names = {choice[3] for choice in recorded.choices if family_of(choice[3]) == "cp.async"}
    assert len(names) <= operations
    assert sum("cp.async.cg" in text for text in watcher.taken) == (2 if observed else 0)


def test_a_fault_of_copies_that_complete_together_names_its_own_instruction():
    body = TOGETHER.format(between="", second=1024)
    error = fault(body, "ptr:src ptr:out", (words(64, 4), words(32, 4)), schedule="lazy")
    assert error.code == "OUT_OF_BOUNDS"
    assert "[%rd1+1024]" in error.notes[0]


def test_a_wait_that_never_ends_reports_what_is_missing():
    """The copy's barrier expects more than it gets; the other warp waits for a group that no thread committed."""
    body = f"""{init(1)} ld.param.u64 %rd1, [src]; {BULK.format(size=64)}
    @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 128; {wait("W")}"""
    error = fault(body, "ptr:src", (words(64),), schedule="lazy")
    assert error.code == "DEADLOCK"
    assert "all arrivals are in, 64 bytes missing" in error.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r2], [%r1], 16, [%r3];",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r2], [%r1], 16, [%r3];",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r2], %r1, [%r3];",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r2], %r1, [%r3];",
    ],
)
@pytest.mark.parametrize("cluster", [1, 2])
def test_asynchronous_writes_in_a_cluster_need_a_launch_with_clusters(text, cluster):
    """Without one, an H200 ends such a kernel with `illegal instruction`, for the own CTA as for others."""
    kernel = f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k()
{{
    .reg .b32 %r<4>;
    .shared .align 128 .b8 data[64];
    mov.u32 %r1, data;
    add.u32 %r2, %r1, 16;
    add.u32 %r3, %r1, 32;
    mbarrier.init.shared.b64 [%r3], 1;
    {text}
    ret;
}}
"""
    if cluster == 1:
        with pytest.raises(warploom.WarploomError, match="cluster size"):
            warploom.launch(kernel, grid=1, block=1)
    else:
        warploom.launch(kernel, grid=2, block=1, cluster=2)
