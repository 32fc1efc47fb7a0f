"""TMEM: allocation, the lanes that each warp can access, and every shape of load and store."""

from __future__ import annotations

import numpy as np
import pytest

from warploom import launch
from warploom.diagnostics import WarploomError

SHAPES = {"32x32b": (1, 1), "16x64b": (1, 2), "16x128b": (2, 4), "16x256b": (4, 8), "16x32bx2": (1, 1)}
"""Registers and columns of `.x1`."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
MOVES = [(shape, count) for shape, (registers, _) in SHAPES.items() for count in COUNTS if registers * count <= 128]

KERNEL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 p_in, .param .u64 p_out)
.reqntid {threads}, 1, 1
{{
  .reg .b32 %v<128>;
  .reg .b32 %r<16>;
  .reg .b32 %t, %warp, %rank, %taddr, %lanes;
  .reg .b64 %in, %out, %g;
  .reg .pred %p<4>;
  .shared .align 4 .b8 base[8];
  mov.u32 %t, %tid.x;
  shr.u32 %warp, %t, 5;
  shl.b32 %lanes, %warp, 21;
  ld.param.u64 %in, [p_in];
  ld.param.u64 %out, [p_out];
  mul.wide.u32 %g, %t, 1024;
  add.u64 %in, %in, %g;
  add.u64 %out, %out, %g;
  {body}
  ret;
}}
"""
ALLOCATE = """setp.ne.u32 %p0, %warp, 0;
  @%p0 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [base], {columns};
ALLOCATED:
  bar.sync 0;
  ld.shared.b32 %taddr, [base];
  add.u32 %lanes, %lanes, %taddr;"""
FREE = """bar.sync 0;
  setp.ne.u32 %p0, %warp, 0;
  @%p0 bra FREED;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %taddr, {columns};
FREED:"""


COLUMNS = 256


def run(
    body: str,
    source: np.ndarray | None = None,
    *,
    threads: int = 128,
    cluster: int = 1,
    free: bool = True,
    **options: object,
) -> np.ndarray:
    """Run a kernel; return 256 words per thread. Columns are allocated before the body and freed after it."""
    if free:
        body = f"{ALLOCATE.format(columns=COLUMNS)}\n  {body}\n  {FREE.format(columns=COLUMNS)}"
    out = np.zeros((threads, COLUMNS), np.uint32)
    words = np.zeros_like(out) if source is None else source
    text = KERNEL.format(body=body, threads=threads)
    shape = {"grid": (cluster, 1, 1), "block": (threads, 1, 1), "cluster": (cluster, 1, 1)}
    launch(text, args=[words, out], **shape, **options)
    return out


def fails(body: str, **options: object) -> WarploomError:
    with pytest.raises(WarploomError) as caught:
        run(body, **options)
    return caught.value


def registers(count: int) -> str:
    return "{" + ", ".join(f"%v{i}" for i in range(count)) + "}"


def load_words(count: int, at: int = 0) -> str:
    return "\n  ".join(f"ld.global.b32 %v{i}, [%in+{4 * (at + i)}];" for i in range(count))


def store_words(count: int, at: int = 0) -> str:
    return "\n  ".join(f"st.global.b32 [%out+{4 * (at + i)}], %v{i};" for i in range(count))


def fill() -> str:
    """Put the input's 256 words of each thread into the columns of its lane, by the simplest shape."""
    halves = [
        f"{load_words(128, at)}\n  tcgen05.st.sync.aligned.32x32b.x128.b32 [%lanes+{at}], {registers(128)};"
        for at in (0, 128)
    ]
    return "\n  ".join([*halves, "tcgen05.wait::st.sync.aligned;"])


def drain() -> str:
    """Copy the columns back."""
    halves = [
        f"tcgen05.ld.sync.aligned.32x32b.x128.b32 {registers(128)}, [%lanes+{at}];\n  {store_words(128, at)}"
        for at in (0, 128)
    ]
    return "\n  ".join(halves)


def fragment(shape: str, count: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """(lane, column) of every [register, lane of the warp], by the manual's figures."""
    register, lane = np.meshgrid(np.arange(SHAPES[shape][0] * count), np.arange(32), indexing="ij")
    match shape:
        case "32x32b":
            return lane, register
        case "16x64b":
            return lane // 4 + 8 * (lane % 2), 2 * register + lane // 2 % 2
        case "16x128b":
            return lane // 4 + 8 * (register % 2), 4 * (register // 2) + lane % 4
        case "16x256b":
            return lane // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (lane % 4) + register % 2
    return lane % 16, register + np.where(lane >= 16, split, 0)


def words(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, (128, COLUMNS), dtype=np.uint64).astype(np.uint32)


def expected_load(source: np.ndarray, shape: str, count: int, split: int, half: int, *, packed: bool) -> np.ndarray:
    lane, column = fragment(shape, count, 0 if packed else split)
    out = np.zeros((128, COLUMNS), np.uint32)
    for warp in range(4):
        mine = source[32 * warp + half : 32 * warp + 32]
        if packed:
            low = 2 * column + np.where(np.arange(32) >= 16, split, 0)
            values = mine[lane, low] & 0xFFFF | mine[lane, low + 1] << np.uint32(16)
        else:
            values = mine[lane, column]
        out[32 * warp : 32 * warp + 32, : len(values)] = values.T
    return out


@pytest.mark.parametrize(("shape", "count"), MOVES)
def test_loads_by_shape(shape, count):
    many = SHAPES[shape][0] * count
    split = count if shape == "16x32bx2" else 0
    half = 16 if shape != "32x32b" and count % 8 else 0
    source = words(count)
    operand = f", {split}" if split else ""
    load = f"tcgen05.ld.sync.aligned.{shape}.x{count}.b32 {registers(many)}, [%lanes+{half << 16}]{operand};"
    out = run(f"{fill()}\n  {load}\n  tcgen05.wait::ld.sync.aligned;\n  {store_words(many)}", source)
    np.testing.assert_array_equal(out, expected_load(source, shape, count, split, half, packed=False))


@pytest.mark.parametrize(("shape", "count"), MOVES)
def test_stores_by_shape(shape, count):
    many = SHAPES[shape][0] * count
    split = count if shape == "16x32bx2" else 0
    half = 16 if shape != "32x32b" and count % 8 else 0
    source = words(count + 1)
    operand = f", {split}" if split else ""
    store = f"tcgen05.st.sync.aligned.{shape}.x{count}.b32 [%lanes+{half << 16}]{operand}, {registers(many)};"
    body = f"{fill()}\n  {load_words(many)}\n  {store}\n  tcgen05.wait::st.sync.aligned;\n  {drain()}"
    expected = source.copy()
    lane, column = fragment(shape, count, split)
    for warp in range(4):
        expected[32 * warp + half : 32 * warp + 32][lane, column] = source[32 * warp : 32 * warp + 32, :many].T
    np.testing.assert_array_equal(run(body, source), expected)


PACKED = [("32x32b", 128), ("16x64b", 16), ("16x128b", 8), ("16x256b", 4), ("16x32bx2", 32)]


@pytest.mark.parametrize(("shape", "count"), PACKED)
def test_halves_are_packed_and_unpacked(shape, count):
    many = SHAPES[shape][0] * count
    split = 2 * count if shape == "16x32bx2" else 0
    operand = f", {split}" if split else ""
    source = words(9)
    load = f"tcgen05.ld.sync.aligned.{shape}.x{count}.pack::16b.b32 {registers(many)}, [%lanes]{operand};"
    out = run(f"{fill()}\n  {load}\n  tcgen05.wait::ld.sync.aligned;\n  {store_words(many)}", source)
    np.testing.assert_array_equal(out, expected_load(source, shape, count, split, 0, packed=True))
    store = f"tcgen05.st.sync.aligned.{shape}.x{count}.unpack::16b.b32 [%lanes]{operand}, {registers(many)};"
    back = run(f"{fill()}\n  {load}\n  {store}\n  tcgen05.wait::st.sync.aligned;\n  {drain()}", source)
    touched = back != source
    np.testing.assert_array_equal(back[touched], source[touched] & 0xFFFF)
    lanes = 128 if shape == "32x32b" else 64
    assert np.count_nonzero(touched) > 0.99 * lanes * 2 * SHAPES[shape][1] * count * (2 if split else 1)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
def test_a_store_is_visible_after_its_wait(schedule):
    source = words(3)
    np.testing.assert_array_equal(run(f"{fill()}\n  {drain()}", source, schedule=schedule), source)


def test_a_store_is_late_without_its_wait():
    source = words(3)
    out = run(f"{fill()}\n  {drain()}".replace("tcgen05.wait::st.sync.aligned;", ""), source, schedule="lazy")
    assert (out == 0xFFFFFFFF).all()


def test_a_store_reads_its_registers_at_issue():
    body = f"{load_words(1)}\n  tcgen05.st.sync.aligned.32x32b.x1.b32 [%lanes], {{%v0}};\n  mov.b32 %v0, 7;\n"
    body += "  tcgen05.wait::st.sync.aligned;\n  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v1}, [ %lanes + 0 ];\n"
    body += "  st.global.b32 [%out], %v1;"
    source = words(4)
    for schedule in ("eager", "lazy"):
        np.testing.assert_array_equal(run(body, source, schedule=schedule)[:, 0], source[:, 0])


@pytest.mark.parametrize("cluster", [1, 2])
def test_the_second_cta_of_a_pair_may_count_the_lanes_of_both(cluster):
    source = words(6)
    rank = "mov.u32 %v0, %cluster_ctarank; shl.b32 %v0, %v0, 23; add.u32 %lanes, %lanes, %v0;"
    np.testing.assert_array_equal(run(f"{rank}\n  {fill()}\n  {drain()}", source, cluster=cluster), source)
    assert "at lane 128: warp 0 reaches" in fails(f"{LOAD}[%lanes+8388608];", cluster=cluster).what


FRESH = f"tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v0}}, [%lanes];\n  {store_words(1)}"


def test_fresh_columns_are_poisoned():
    assert (run(FRESH)[:, 0] == 0xFFFFFFFF).all()
    again = FREE.format(columns=COLUMNS) + ALLOCATE.format(columns=COLUMNS)
    again = again.replace("FREED", "FREED_FIRST").replace("ALLOCATED", "ALLOCATED_AGAIN")
    body = f"{fill()}\n  {again}\n  sub.u32 %lanes, %lanes, %taddr;\n  {FRESH}"
    assert (run(body, words(5))[:, 0] == 0xFFFFFFFF).all()


LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, "
BAD_MOVES = {
    "another warp's lanes": (f"{LOAD}[%taddr];", "warp 1 reaches lanes 32 to 63 only"),
    "a lane in between": (f"{LOAD}[%lanes+65536];", "reaches lanes"),
    "half a quadrant further": (
        "tcgen05.ld.sync.aligned.16x64b.x1.b32 {%v0}, [%lanes+524288];",
        "begin at a multiple of 16",
    ),
    "columns that are not allocated": (f"{LOAD}[%lanes+256];", "touches columns 256 to 256"),
    "columns that do not exist": (f"{LOAD}[%lanes+600];", "touches columns 600 to 600"),
    "the second half": ("tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%lanes], 256, {%v0};", "touches columns 256"),
    "a half that is nowhere": (
        "tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%lanes], 4611686018427387904, {%v0};",
        "touches columns 4611686018427387904",
    ),
    "a half before the first": ("tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%lanes], -1, {%v0};", "touches columns -1"),
    "lanes that disagree": (f"add.u32 %lanes, %lanes, %t;\n  {LOAD}[%lanes];", "differs among the lanes"),
}


@pytest.mark.parametrize("name", BAD_MOVES)
def test_refused_loads_and_stores(name):
    body, what = BAD_MOVES[name]
    error = fails(body)
    assert error.code == "TENSOR_MEMORY"
    assert what in error.what
    assert error.loc is not None


@pytest.mark.parametrize("count", [3, 5])
def test_a_list_must_have_the_registers_of_its_shape(count):
    error = fails(f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {registers(count)}, [%lanes];")
    assert error.code == "BAD_OPERANDS"
    assert "4 registers" in error.advice


def test_a_list_has_at_most_128_registers():
    assert fails(f"tcgen05.ld.sync.aligned.16x256b.x64.b32 {registers(128)}, [%lanes];").code == "BAD_SHAPE"


def test_all_lanes_of_a_warp_must_participate():
    error = fails(f"setp.lt.u32 %p1, %t, 40;\n  @%p1 {LOAD}[%lanes];")
    assert error.code == "BAD_PARTICIPATION"


def allocate(size: object, group: int = 1, where: str = "[base]") -> str:
    return f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 {where}, {size};"


def deallocate(size: object, where: str = "%taddr", group: int = 1) -> str:
    return f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 {where}, {size};"


READ = "ld.shared.b32 %taddr, [base];"
BAD_ALLOCATIONS = {
    "too few": ("mov.u32 %r0, 16;\n  " + allocate("%r0"), "power of two from 32 to 512"),
    "no power of two": ("mov.u32 %r0, 96;\n  " + allocate("%r0"), "power of two"),
    "too many": ("mov.u32 %r0, 1024;\n  " + allocate("%r0"), "power of two"),
    "more than before": (allocate(32) + allocate(64), "sizes must not grow"),
    "after giving up": ("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" + allocate(32), "relinquish"),
    "never freed": (allocate(64), "ended without tcgen05.dealloc; of 512 columns 0-63 are allocated"),
    "freed twice": (allocate(32) + READ + deallocate(32) + deallocate(32), "frees no allocation"),
    "freed in part": (allocate(64) + READ + deallocate(32), "frees no allocation"),
    "freed at a lane": (
        allocate(64) + READ + "add.u32 %taddr, %taddr, 65536;" + deallocate(64),
        "an allocation begins at lane 0",
    ),
    "sizes that differ by lane": ("shl.b32 %r0, 32, %t;" + allocate("%r0"), "the column count differs"),
    "both groups": (allocate(64) + READ + deallocate(64, group=2), "mixed"),
}


@pytest.mark.parametrize("name", BAD_ALLOCATIONS)
def test_refused_allocations(name):
    body, what = BAD_ALLOCATIONS[name]
    error = fails(body, threads=32, free=False)
    assert error.code in ("TENSOR_MEMORY", "ASYNC_MISUSE"), str(error)
    assert what in error.what


def test_allocations_are_aligned_runs():
    body = [allocate(128) + READ + "mov.b32 %v0, %taddr;", allocate(64) + READ + "mov.b32 %v1, %taddr;"]
    body += [allocate(64, where="[base+4]") + "ld.shared.b32 %v2, [base+4];"]
    body += [deallocate(128, "%v0"), deallocate(64, "%v1"), allocate(32) + READ + "mov.b32 %v3, %taddr;"]
    body += [deallocate(64, "%v2"), deallocate(32, "%v3"), store_words(4)]
    out = run("\n  ".join(body), threads=32, free=False)
    assert out[:, :4].tolist() == [[0, 128, 192, 0]] * 32


def test_an_allocation_takes_a_generic_address():
    body = "mov.u32 %r0, base;\n  cvt.u64.u32 %g, %r0;\n  cvta.shared.u64 %g, %g;\n"
    body += f"  tcgen05.alloc.cta_group::1.sync.aligned.b32 [%g], 32;\n  {READ}{deallocate(32)}"
    run(body, threads=32, free=False)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
def test_an_allocation_waits_for_columns(schedule):
    """Warp 0 allocates everything and lets warp 1 ask; it frees when warp 1 can only be waiting."""
    body = f"""setp.ne.u32 %p0, %warp, 0;
  @%p0 bra SECOND;
  {allocate(512)}
  {READ}
  bar.sync 1, 64;
  {deallocate(512)}
  bra END;
SECOND:
  bar.sync 1, 64;
  {allocate(512, where="[base+4]")}
  ld.shared.b32 %v0, [base+4];
  {deallocate(512, "%v0")}
END:"""
    run(body, threads=64, free=False, schedule=schedule)


def test_waiting_for_columns_that_never_come_is_a_deadlock():
    error = fails(allocate(512) + allocate(512), threads=32, free=False)
    assert error.code == "DEADLOCK"
    assert any("of 512 columns 0-511 are allocated" in note for note in error.notes)


PAIR = f"""mov.u32 %rank, %cluster_ctarank;
  {allocate(64, 2)}
  {READ}
  mov.b32 %v0, %taddr;
  {allocate(32, 2)}
  {READ}
  mov.b32 %v1, %taddr;
  tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
  mul.wide.u32 %g, %rank, 32768;
  add.u64 %out, %out, %g;
  {store_words(2)}
  {deallocate(32, "%v1", 2)}
  {deallocate(64, "%v0", 2)}"""


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
def test_a_pair_of_ctas_allocates_the_same_columns(schedule):
    out = np.zeros((64, COLUMNS), np.uint32)
    text = KERNEL.format(body=PAIR, threads=32)
    shape = {"grid": (2, 1, 1), "block": (32, 1, 1), "cluster": (2, 1, 1)}
    launch(text, args=[out.copy(), out], schedule=schedule, seed=3, **shape)
    assert out[:, :2].tolist() == [[0, 64]] * 64


def test_one_cta_of_a_pair_cannot_allocate_alone():
    body = f"mov.u32 %rank, %cluster_ctarank;\n  setp.ne.u32 %p0, %rank, 0;\n  @%p0 bra END;\n  {allocate(64, 2)}\nEND:"
    error = fails(body, threads=32, cluster=2, free=False)
    assert error.code == "DEADLOCK"
    assert any("asked for by CTA rank [0]" in note for note in error.notes)


def test_ctas_of_a_pair_must_ask_for_the_same_size():
    body = f"mov.u32 %rank, %cluster_ctarank;\n  shr.b32 %r0, 64, %rank;\n  {allocate('%r0', 2)}"
    assert "ask for" in fails(body, threads=32, cluster=2, free=False).what


def test_a_deallocation_that_relies_on_not_waiting_for_the_peer_fails():
    """Table 48 of the manual: one CTA frees before the barrier of the cluster, the other after it."""
    free, meet = deallocate(64, group=2), "barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;"
    body = f"""mov.u32 %rank, %cluster_ctarank;
  {allocate(64, 2)}
  {READ}
  setp.ne.u32 %p0, %rank, 0;
  @%p0 bra SECOND;
  {meet}
  {free}
  bra END;
SECOND:
  {free}
  {meet}
END:"""
    run(body, threads=32, cluster=2, free=False)
    assert fails(body, threads=32, cluster=2, free=False, schedule="lazy").code == "DEADLOCK"
