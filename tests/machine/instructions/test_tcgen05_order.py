"""Completion and ordering of tcgen05 operations, and refused uses."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.machine.asynchronous import run
from tests.machine.tensor_kernels import LANES, Bench, Product, committed
from tests.machine.tensor_operands import row_bytes

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.hardware.matrix_descriptors import encode_shared_descriptor

SCHEDULES = ("eager", "lazy", "reverse", "random")
LATE = ("lazy", "reverse")


@pytest.mark.parametrize("schedule", LATE)
def test_a_thread_that_does_not_wait_for_the_commit_sees_the_old_contents(schedule):
    product = Product()
    bench = product.bench()
    bench.wait, bench.late = "", bench.wait
    np.testing.assert_array_equal(bench.run(schedule=schedule), 0)
    np.testing.assert_array_equal(product.result(bench.run(schedule="eager")), product.expected)


@pytest.mark.parametrize("schedule", LATE)
def test_operands_are_read_through_the_async_proxy(schedule):
    product = Product()
    bench = product.bench()
    bench.fence = ""
    assert not np.array_equal(product.result(bench.run(schedule=schedule)), product.expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_commit_signals_each_cta_of_its_mask(schedule):
    product = Product(m=256, n=32, group=2)
    bench = product.bench()
    one = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64"
    bench.commit = "\n  ".join(f"mapa.shared::cluster.u32 %r1, %bar, {rank};\n  {one} [%r1];" for rank in range(2))
    np.testing.assert_array_equal(product.result(bench.run(schedule=schedule)), product.expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_commit_takes_a_generic_address(schedule):
    product = Product()
    bench = product.bench()
    bench.commit = (
        "cvt.u64.u32 %d5, %bar;\n  cvta.shared.u64 %d5, %d5;\n"
        "  tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%d5];"
    )
    np.testing.assert_array_equal(product.result(bench.run(schedule=schedule)), product.expected)


def test_an_empty_commit_arrives():
    bench = Bench()
    np.testing.assert_array_equal(bench.run(schedule="lazy"), 0)


def copier_and_multiplier(product: Product) -> Bench:
    """Thread 32 copies A to TMEM, fences and arrives; thread 0 waits, fences and multiplies."""
    bench, copier = Bench(columns=128), Bench()
    at = product.place(bench)
    rows = row_bytes(product.a, "bf16")
    for half in range(0, rows.shape[1], 32):
        image = rows[:, half : half + 32].reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3).reshape(-1)
        copier.descriptor("%d2", bench.place(np.ascontiguousarray(image)), 128, 256, "none")
        copier.add(f"tcgen05.cp.cta_group::1.128x256b [%taddr+{half // 4}], %d2;")
    copier.add("tcgen05.fence::before_thread_sync;")
    copier.add("mbarrier.arrive.shared.b64 _, [%bar+8];")
    bench.add("WAIT_FOR_COPY:")
    bench.add("mbarrier.try_wait.parity.shared.b64 %p1, [%bar+8], 0;")
    bench.add("@!%p1 bra WAIT_FOR_COPY;")
    bench.add("tcgen05.fence::after_thread_sync;")
    for step in range(product.steps):
        product.issue(bench, at, step, accumulate=step > 0)
    start = "  setp.ne.u32 %p7, %t, 0;\n  setp.ne.or.u32"
    before, after = bench.source().split(start)
    work = "\n  ".join(copier.lines)
    text = f"{before}  setp.ne.u32 %p6, %t, 32;\n  @%p6 bra NOT_COPIER;\n  {work}\nNOT_COPIER:\n{start}{after}"
    bench.source = lambda: text
    return bench


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_fences_order_a_copy_and_the_mma_of_another_thread(schedule):
    product = Product(n=32, column=64, a_column=0)
    bench = copier_and_multiplier(product)
    np.testing.assert_array_equal(product.result(bench.run(schedule=schedule)), product.expected)


def test_without_fences_the_mma_of_another_thread_may_run_first():
    product = Product(n=32, column=64, a_column=0)
    bench = copier_and_multiplier(product)
    text = re.sub(r"tcgen05\.fence::\w+;", "", bench.source())
    bench.source = lambda: text
    with pytest.raises(WarploomError, match="after that CTA has exited") as caught:
        bench.run(schedule="reverse")
    assert "tcgen05.cp" in caught.value.notes[0]


@pytest.mark.parametrize("seed", range(6))
def test_merged_mmas_give_the_same_as_single_ones(seed):
    """Runs along k are merged under the eager schedule: the accumulators must be the same for any sequence."""
    rng = np.random.default_rng(seed)
    products = [Product(n=32, seed=1), Product(n=32, column=32, seed=2), Product(n=32, seed=3, b_swizzle="64B")]
    bench = Bench(columns=64)
    places = [product.place(bench) for product in products]
    expected = np.zeros((128, 64), np.float32)
    number, step = 0, 0
    for _ in range(24):
        number = int(rng.integers(3)) if rng.random() < 0.3 else number
        product = products[number]
        step = int(rng.integers(product.steps)) if rng.random() < 0.4 else (step + 1) % product.steps
        accumulate = bool(rng.random() < 0.9)
        product.issue(bench, places[number], step, accumulate=accumulate)
        k = slice(16 * step, 16 * step + 16)
        d = expected[:, product.column : product.column + 32]
        d[...] = product.a[:, k] @ product.b[:, k].T + (d if accumulate else 0)
    for schedule in ("eager", "random"):
        np.testing.assert_array_equal(bench.run(schedule=schedule, seed=seed)[0].view(np.float32), expected)


def test_observers_receive_reads_and_writes():
    class Log:
        def __init__(self):
            self.events = []

        def on_event(self, event):
            self.events.append(event)

    log, product = Log(), Product(n=32)
    np.testing.assert_array_equal(product.result(product.bench().run(observers=[log])), product.expected)
    done = [event for event in log.events if event.kind == "complete" and "tcgen05.mma" in event.source.text]
    assert len(done) == product.steps
    reads = [touch.bytes for touch in done[1].touches if (touch.verb, touch.space) == ("reads", "shared")]
    assert sorted(reads) == [32 * 32, 128 * 32]
    tensor = {(touch.verb, touch.bytes) for touch in done[1].touches if touch.space == "tensor"}
    assert tensor == {("reads", 128 * 32 * 4), ("writes", 128 * 32 * 4)}
    kinds = [event.kind for event in log.events if event.touches and event.touches[0].space == "tensor"]
    assert kinds[0] == "alloc"
    assert kinds[-1] == "free"


def broken(change, **keywords):
    """Run a GEMM with a changed bench; return its error."""
    product = Product(**keywords)
    bench = product.bench()
    change(bench)
    with pytest.raises(WarploomError) as caught:
        bench.run()
    return caught.value


def edit(old: str, new: str):
    """Replace text in the lines of a bench; it must occur."""

    def change(bench: Bench) -> None:
        lines = [line.replace(old, new) for line in bench.lines]
        assert lines != bench.lines
        bench.lines = lines

    return change


@pytest.mark.parametrize("bits", [1 << 47, 1 << 61, 1 << 52, 1 << 53])
def test_an_illegal_shared_descriptor_prints_its_fields(bits):
    constant = encode_shared_descriptor("sm_100", 0, 16, 1024, "128B")
    error = broken(edit(f"{constant:#x}", f"{constant ^ bits:#x}"))
    assert error.code == "BAD_DESCRIPTOR"
    assert "swizzle" in error.advice
    assert "tcgen05.mma" in error.notes[0]


INTEGERS = {"kind": "i8", "a_type": "s8", "b_type": "s8", "d_type": "s32"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"m": 112}, "M is 112"),
        ({"n": 48, "group": 2, "m": 64}, "M is 64"),
        ({"n": 8, "group": 2}, "N is 8"),
        ({**INTEGERS, "options": {"negate_a": True}}, "cannot negate"),
        ({"options": {"saturate": True}}, "saturate"),
        ({"d_type": "f16"}, "d_type f16 needs f16 operands"),
    ],
)
def test_all_errors_of_an_instruction_descriptor_are_reported(change, what):
    product = Product(group=change.get("group", 1))
    bench = product.bench()
    legal = product.descriptor()
    for name, value in change.items():
        setattr(product, name, value)
    bench.lines = [line.replace(f"{legal:#x}", f"{product.descriptor():#x}") for line in bench.lines]
    kind = change.get("kind", "f16")
    bench.lines = [line.replace("kind::f16", f"kind::{kind}") for line in bench.lines]
    with pytest.raises(WarploomError) as caught:
        bench.run()
    assert caught.value.code == "BAD_DESCRIPTOR"
    assert what in caught.value.what


FAULTS = {
    "columns that are not allocated": (edit("[%taddr+0]", "[%taddr+480]"), "TENSOR_MEMORY", "not all allocated"),
    "a lane in the middle": (edit("[%taddr+0]", "[%taddr+1048576]"), "TENSOR_MEMORY", "cannot begin at lane 16"),
    "outside shared memory": (edit("%smem, 0;", "%smem, 200000;"), "OUT_OF_BOUNDS", "Operand A"),
    "another cta_group": (edit("mma.cta_group::1", "mma.cta_group::2"), "ASYNC_MISUSE", "mixed"),
    "a mask of no CTA": (lambda bench: setattr(bench, "commit", committed(1, 4)), "ASYNC_MISUSE", "mask"),
    "a barrier that is none": (
        lambda bench: setattr(bench, "commit", committed(1).replace("%bar", "%smem")),
        "BARRIER_NOT_INITIALISED",
        "mbarrier",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name):
    change, code, what = FAULTS[name]
    error = broken(change)
    assert error.code == code, str(error)
    assert what in str(error)
    assert error.loc is not None


def test_an_mma_with_two_ctas_needs_a_cluster():
    words = np.zeros(1 << 16, np.uint32)
    with pytest.raises(WarploomError) as caught:
        launch(Bench(group=2).source(), grid=(1, 1, 1), block=(LANES, 1, 1), args=[words, words, words.copy()])
    assert caught.value.code == "BAD_PARTICIPATION"


REFUSED = {
    "tcgen05.mma.sp.cta_group::1.kind::f16 [%taddr], %d0, %d1, [%r1], %r0, %p0;": ("NOT_MODELLED", "sparse"),
    "tcgen05.shift.cta_group::1.down [%taddr];": ("NOT_MODELLED", "direction"),
    "tcgen05.shift.down.cta_group::1 [%taddr];": ("NOT_MODELLED", "direction"),
    "tcgen05.mma.cta_group::1.kind::f16.ashift [%taddr], [%r1], %d1, %r0, %p0;": ("NOT_MODELLED", "direction"),
    "tcgen05.mma.cta_group::1.kind::f8f6f4 [%taddr], %d0, %d1, %r0, %p0, 3;": ("BAD_OPERANDS", "no scale-input-d"),
    "tcgen05.mma.cta_group::1.kind::f16 [%taddr], %d0, %d1, %r0, %p0, 16;": ("BAD_OPERANDS", "0 to 15"),
    "tcgen05.mma.cta_group::1.kind::f16 [%taddr], %d0, %d1, %r0, {%r1, %r1}, %p0;": ("BAD_OPERANDS", "2 words, not 4"),
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [%taddr], %d0, %d1, %r0, [%r1], [%r1], %p0;": (
        "BAD_SHAPE",
        "no scale vector size",
    ),
    "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block16 [%taddr], %d0, %d1, %r0, [%r1], [%r1], %p0;": (
        "BAD_SHAPE",
        ".scale_vec::2X",
    ),
    "tcgen05.mma.ws.cta_group::2.kind::f16 [%taddr], %d0, %d1, %r0, %p0;": ("UNKNOWN_INSTRUCTION", "tcgen05.mma"),
    "tcgen05.cp.cta_group::1.32x128b [%taddr], %d0;": ("BAD_SHAPE", "there is no copy"),
    "tcgen05.cp.cta_group::1.128x128b.b8x16 [%taddr], %d0;": ("BAD_SHAPE", "there is no copy"),
    "tcgen05.cp.cta_group::1.128x128b [%taddr+65536], %d0;": ("TENSOR_MEMORY", "begins at lane 0"),
    "tcgen05.cp.cta_group::1.4x256b [%taddr+2097152], %d0;": ("TENSOR_MEMORY", "a lane below 32"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text):
    code, what = REFUSED[text]
    bench = Bench()
    bench.add("mov.b64 %d0, 0x400800010000;")
    bench.add(text)
    with pytest.raises(WarploomError) as caught:
        bench.run()
    assert caught.value.code == code, str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize("schedule", LATE)
def test_a_cta_that_exits_before_its_mma_is_found_by_a_late_schedule(schedule):
    product = Product()
    bench = product.bench()
    bench.wait = ""
    np.testing.assert_array_equal(product.result(bench.run()), product.expected)
    with pytest.raises(WarploomError, match="after that CTA has exited") as caught:
        bench.run(schedule=schedule)
    assert "tcgen05.mma" in caught.value.notes[0]


@pytest.mark.parametrize("schedule", LATE)
def test_columns_freed_before_the_mma_completes_are_found_by_a_late_schedule(schedule):
    product = Product()
    bench = product.bench()
    text = bench.source()
    wait = bench.wait
    assert text.count(wait) == 1
    text = text.replace(wait, "").replace("END:\n", f"END:\n  bar.sync 0;{wait}\n")
    bench.source = lambda: text
    with pytest.raises(WarploomError, match="not all allocated") as caught:
        bench.run(schedule=schedule)
    assert "tcgen05.mma" in caught.value.notes[0]


LOADED_LATE = """
 setp.ne.u32 %p1, %warp, 0; @%p1 bra MEET;
 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [data], 32;
 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
MEET: bar.sync 0; ld.shared.b32 %r1, [data]; shl.b32 %r2, %warp, 21; add.u32 %r2, %r2, %r1;
 mov.u32 %r3, 1; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%r3}}; tcgen05.wait::st.sync.aligned;
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r4}}, [%r2];
 {waits}
 mov.u32 %r5, 2; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%r5}}; tcgen05.wait::st.sync.aligned;
 tcgen05.wait::ld.sync.aligned;
 ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %thread, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r4;
 bar.sync 0; @%p1 bra END; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32; END:
"""


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random", "hold:tcgen05-ld", "hold:tcgen05-st"])
def test_a_load_reads_as_late_as_its_wait(schedule):
    """If loads are delayed, memory that is reused before `wait::ld` gives the load its new contents."""
    found = []
    for waits in ("tcgen05.wait::ld.sync.aligned;", ""):
        out = np.zeros(128, np.uint32)
        run(LOADED_LATE.format(waits=waits), "ptr:out", (out,), block=128, target="sm_100a", schedule=schedule)
        found.append(set(out.tolist()))
    assert found[0] == {1}
    if schedule in ("eager", "hold:tcgen05-ld"):
        assert found[1] == ({1} if schedule == "eager" else {2})


REUSED = """
 setp.ne.u32 %p1, %warp, 0; @%p1 bra MEET;
 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [data], 32;
 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
MEET: bar.sync 0; ld.shared.b32 %r1, [data]; and.b32 %r2, %warp, 3; shl.b32 %r2, %r2, 21; add.u32 %r2, %r2, %r1;
 setp.ge.u32 %p2, %warp, 4; @%p2 bra WRITE;
 mov.u32 %r3, 1; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%r3}}; tcgen05.wait::st.sync.aligned;
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r4}}, [%r2];
 {before} bar.arrive 1, 256;
 ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %thread, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r4;
 bra DONE;
WRITE: bar.sync 1, 256;
 mov.u32 %r5, 2; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%r5}}; tcgen05.wait::st.sync.aligned;
DONE: bar.sync 0; @%p1 bra END; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32; END:
"""
"""Warps 0 to 3 load from TMEM and tell warps 4 to 7, which reach the same lanes, that these may be written."""


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random", "hold:tcgen05-ld", "starve:warp 1"])
@pytest.mark.parametrize(
    ("before", "right"),
    [("tcgen05.wait::ld.sync.aligned;", True), ("add.u32 %r4, %r4, 0;", True), ("", False)],
    ids=["waited for", "used", "not waited for"],
)
def test_the_use_of_a_register_waits_for_its_load(before, right, schedule):
    """A load that is under way when its memory is reused gives the new contents to a later use of its register."""
    out = np.zeros(128, np.uint32)
    text = REUSED.format(before=before)
    run(text, "ptr:out", (out,), block=256, target="sm_100a", schedule=schedule)
    if right or schedule == "eager":
        assert set(out.tolist()) == {1}
    elif schedule == "hold:tcgen05-ld":
        assert set(out.tolist()) == {2}
