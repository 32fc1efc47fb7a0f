"""Atomics against a thread-by-thread reference: every operation and type, collisions, spaces, orders and faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from tests.machine.simt import SCHEDULES, threads

from warploom import launch
from warploom.diagnostics import WarploomError

RNG = np.random.default_rng()
Array = npt.NDArray[Any]
by_schedule = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)

_TEXT = """
.version 8.7
.target {target}
.address_size 64
.visible .entry k(.param .u64 cells, .param .u64 operands, .param .u64 places, .param .u64 old)
{{
 .reg .b64 %rd<16>; .reg .b32 %r<16>; .reg .pred %p<4>; .reg .b{bits} %v<20>;
 .shared .align 16 .b8 sh[{bytes}];
 ld.param.u64 %rd1, [cells]; ld.param.u64 %rd2, [operands]; ld.param.u64 %rd3, [places]; ld.param.u64 %rd4, [old];
 mov.u32 %r1, %tid.x;
 mul.wide.u32 %rd5, %r1, 4; add.u64 %rd3, %rd3, %rd5; ld.global.u32 %r2, [%rd3];
 mul.wide.u32 %rd5, %r1, {size}; add.u64 %rd2, %rd2, %rd5; add.u64 %rd4, %rd4, %rd5;
 {fill}
 {body}
 {empty}
 ret;
}}
"""

_SHARED = {
    "fill": """
 mov.u32 %r5, sh; mov.u32 %r4, %r1;
 FILL: setp.ge.u32 %p1, %r4, {count}; @%p1 bra FILLED; mad.lo.u32 %r6, %r4, {size}, %r5; mul.wide.u32 %rd6, %r4, {size};
 add.u64 %rd6, %rd6, %rd1; ld.global.b{bits} %v9, [%rd6]; st.shared.b{bits} [%r6], %v9;
 add.u32 %r4, %r4, {threads}; bra FILL;
 FILLED: bar.sync 0; mad.lo.u32 %r6, %r2, {size}, %r5;""",
    "empty": """
 bar.sync 0; mov.u32 %r4, %r1;
 DRAIN: setp.ge.u32 %p1, %r4, {count}; @%p1 bra DRAINED;
 mad.lo.u32 %r6, %r4, {size}, %r5; mul.wide.u32 %rd6, %r4, {size};
 add.u64 %rd6, %rd6, %rd1; ld.shared.b{bits} %v9, [%r6]; st.global.b{bits} [%rd6], %v9;
 add.u32 %r4, %r4, {threads}; bra DRAIN;
 DRAINED:""",
}


def atomics(
    opcode: str,
    cells: Array,
    operands: Array,
    places: Array,
    *,
    space: str,
    returns: bool,
    extra: str = "",
    **options: Any,
) -> Array:
    """Run one atomic per thread on `cells` (in place); return the old values."""
    size, count, many = cells.dtype.itemsize, len(cells), len(places)
    bits = 8 * size
    values = {"size": size, "bits": bits, "count": count, "threads": many}
    into = {"global": "%rd7", "": "%rd7", "shared": "%r6", "shared::cluster": "%r6"}.get(space, "%rd7")
    moves = {"generic shared": "cvt.u64.u32 %rd7, %r6; cvta.shared.u64 %rd7, %rd7;"}.get(space, "")
    if not space.endswith(("shared", "shared::cluster")):
        moves = f"mul.wide.u32 %rd7, %r2, {size}; add.u64 %rd7, %rd7, %rd1;"
    out = "%v2, " if returns else ""
    body = f"{moves} ld.global.b{bits} %v1, [%rd2]; {opcode} {out}[{into}], %v1{extra};"
    body += f" st.global.b{bits} [%rd4], %v2;" if returns else ""
    parts = {key: text.format(**values) if "shared" in space else "" for key, text in _SHARED.items()}
    text = _TEXT.format(target="sm_90a", bytes=max(size * count, 16), body=body, **parts, **values)
    old = np.zeros(many, cells.dtype)
    args = [cells, operands, places.astype(np.uint32), old]
    launch(text, grid=(1, 1, 1), block=(many, 1, 1), args=args, limit=200_000, **options)
    return old


DTYPES: dict[str, Any] = {
    "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32, "b64": np.uint64,
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
}  # fmt: skip


def step(name: str, old: Any, b: Any) -> Any:
    """One atomic on Python integers or NumPy floats."""
    match name:
        case "add":
            return old + b
        case "and" | "or" | "xor":
            return {"and": old & b, "or": old | b, "xor": old ^ b}[name]
        case "min" | "max":
            return min(old, b) if name == "min" else max(old, b)
        case "inc":
            return 0 if old >= b else old + 1
        case "dec":
            return b if old == 0 or old > b else old - 1
    return b


def sequential(name: str, cells: Array, operands: Array, places: Array, order: list[int]) -> tuple[Array, Array]:
    """The cells and old values after the threads run in an order."""
    dtype, bits = cells.dtype, 8 * cells.dtype.itemsize
    after, old = cells.copy(), np.zeros(len(places), dtype)
    for t in order:
        at = int(places[t])
        old[t] = after[at]
        if dtype.kind in "iu":
            value = step(name, int(after[at]), int(operands[t])) & ((1 << bits) - 1)
            after[at] = np.array([value], np.uint64).astype(f"u{bits // 8}").view(dtype)[0]
        else:
            wide = np.float64 if dtype == np.float64 else np.float32
            after[at] = dtype.type(wide(after[at]) + wide(operands[t]))
    return after, old


INTEGERS = [
    *[(f"{op}.{type_}", type_) for op in ("and", "or", "xor", "exch") for type_ in ("b32", "b64")],
    ("add.u32", "u32"), ("add.s32", "s32"), ("add.u64", "u64"), ("inc.u32", "u32"), ("dec.u32", "u32"),
    *[(f"{op}.{type_}", type_) for op in ("min", "max") for type_ in ("u32", "s32", "u64", "s64")],
]  # fmt: skip


def random_values(type_: str, count: int) -> Array:
    dtype = np.dtype(DTYPES[type_])
    if dtype.kind in "iu":
        small = RNG.integers(0, 5, count).astype(dtype)
        wild = np.frombuffer(RNG.bytes(count * dtype.itemsize), dtype)
        return np.where(RNG.random(count) < 0.5, small, wild)
    return (RNG.standard_normal(count) * 10.0 ** RNG.integers(-3, 4, count)).astype(dtype)


@pytest.mark.parametrize(("name", "type_"), INTEGERS)
@pytest.mark.parametrize("space", ["global", "", "shared", "shared::cluster", "generic shared"])
def test_integers_with_collisions(name: str, type_: str, space: str) -> None:
    for many, count, returns in ((32, 1, True), (128, 7, True), (100, 128, False)):
        if name.startswith(("exch", "inc", "dec")) and not returns:
            continue
        cells, operands = random_values(type_, count), random_values(type_, many)
        places = RNG.integers(0, count, many)
        want, old = sequential(name.partition(".")[0], cells, operands, places, list(range(many)))
        suffix = "" if not space or space == "generic shared" else f".{space}"
        opcode = f"{'atom' if returns else 'red'}{suffix}.{name}"
        got = atomics(opcode, cells, operands, places, space=space, returns=returns)
        assert cells.tobytes() == want.tobytes(), (many, count)
        if returns:
            assert got.tobytes() == old.tobytes(), (many, count)


def lane_orders(many: int) -> list[list[int]]:
    """Within a warp, lanes run in ascending order from some lane; one warp runs before the other."""
    return [[(start + i) % many for i in range(many)] for start in range(many)]


@by_schedule
@pytest.mark.parametrize("type_", ["f32", "f64", "f16", "bf16"])
def test_floats_are_added_in_some_order_of_the_lanes(type_: str, schedule: str, seed: int) -> None:
    noftz = ".noftz" if type_ in ("f16", "bf16") else ""
    for space in ("global", "shared"):
        cells, operands = random_values(type_, 3), random_values(type_, 32)
        places = RNG.integers(0, 3, 32)
        wanted = [sequential("add", cells, operands, places, order) for order in lane_orders(32)]
        got = atomics(
            f"atom.{space}.add{noftz}.{type_}",
            cells,
            operands,
            places,
            space=space,
            returns=True,
            schedule=schedule,
            seed=seed,
        )
        found = [
            i
            for i, (want, old) in enumerate(wanted)
            if want.tobytes() == cells.tobytes() and old.tobytes() == got.tobytes()
        ]
        assert found
        if schedule == "eager":
            assert 0 in found
        if schedule == "reverse":
            assert 31 in found


@pytest.mark.parametrize("space", ["global", "shared"])
def test_subnormal_sums_are_flushed_in_global_memory_only(space: str) -> None:
    tiny = np.float32(2.0**-140)
    cells = np.array([tiny, -tiny, 2.0**-126, 1.0], np.float32)
    operands = np.array([tiny, -tiny, -(2.0**-127), tiny], np.float32)
    before = cells.copy()
    old = atomics(f"atom.{space}.add.f32", cells, operands, np.arange(4), space=space, returns=True)
    assert old.tobytes() == before.tobytes()
    flushed = [0.0, -0.0, 2.0**-126, 1.0]
    kept = [2.0**-139, -(2.0**-139), 2.0**-127, 1.0]
    assert cells.tobytes() == np.array(flushed if space == "global" else kept, np.float32).tobytes()


def test_intermediate_subnormal_sums_are_flushed() -> None:
    """The running sum passes through a subnormal number, which counts as zero from then on."""
    cells = np.array([2.0**-126], np.float32)
    operands = np.array([-(2.0**-126) * 1.5, 2.0**-126, 2.0**-126], np.float32)
    atomics("red.global.add.f32", cells, operands, np.zeros(3, np.int64), space="global", returns=False)
    assert cells[0] == np.float32(2.0**-125)


def test_nans_become_canonical() -> None:
    cells = np.array([1.0, np.inf, 2.0], np.float32)
    operands = np.array([0x7FC12345, 0xFF800000, 0x3F800000], np.uint32).view(np.float32)
    atomics("red.global.add.f32", cells, operands, np.arange(3), space="global", returns=False)
    assert cells.view(np.uint32).tolist() == [0x7FFFFFFF, 0x7FFFFFFF, 0x40400000]


@by_schedule
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_compare_and_swap_has_one_winner(bits: int, schedule: str, seed: int) -> None:
    dtype = np.dtype(f"u{bits // 8}")
    cells = np.array([7, 9], dtype)
    operands = np.full(64, 7, dtype)
    places = np.arange(64) % 2
    got = atomics(
        f"atom.global.cas.b{bits}",
        cells,
        operands,
        places,
        space="global",
        returns=True,
        extra=", 5000",
        schedule=schedule,
        seed=seed,
    )
    assert cells.tolist() == [5000, 9]
    assert (got[places == 0] == 7).sum() == 1
    assert (got[places == 0] == 5000).sum() == 31
    assert (got[places == 1] == 9).all()


@pytest.mark.parametrize("schedule", ["eager", "reverse"])
def test_128_bits(schedule: str) -> None:
    body = """
    mov.b64 %rd5, 3; cvt.u64.u32 %rd6, %r0; mov.b128 %q1, {%rd5, %rd6}; mov.u32 %r6, sh;
    setp.eq.u32 %p1, %r0, 0; mov.b64 %rd7, 0; mov.b128 %q2, {%rd7, %rd7};
    @%p1 st.shared.b128 [%r6], %q2; bar.warp.sync -1;
    atom.shared.exch.b128 %q3, [%r6], %q1; mov.b128 {%rd8, %rd9}, %q3; cvt.u32.u64 %r7, %rd8; cvt.u32.u64 %r8, %rd9;
    bar.warp.sync -1; add.u64 %rd10, %rd6, 100; mov.b128 %q4, {%rd10, %rd10};
    atom.shared.cas.b128 %q5, [%r6], %q1, %q4; bar.warp.sync -1; ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r6];
    st.global.v4.u32 [%rd0], {%r7, %r8, %r10, %r12};"""
    got = threads(body, 32, words=4, schedule=schedule)
    order = [*range(32)] if schedule == "eager" else [31, *range(31)]
    before = [None, *order]
    for at, lane in enumerate(order):
        assert got[lane, :2].tolist() == ([0, 0] if before[at] is None else [3, before[at]])
    assert (got[:, 2:] == 100 + order[-1]).all()


@by_schedule
def test_packed_halves(schedule: str, seed: int) -> None:
    for type_, dtype in (("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)):
        values = RNG.integers(-20, 20, (64, 2)).astype(dtype)
        body = f"""
        mov.u32 %r6, sh; and.b32 %r7, %r0, 3; mad.lo.u32 %r6, %r7, 4, %r6; st.shared.u32 [%r6], 0; bar.sync 0;
        red.shared.add.noftz.{type_} [%r6], %r1; bar.sync 0; ld.shared.u32 %r8, [%r6]; st.global.u32 [%rd0], %r8;"""
        got = threads(body, 64, source=values.view(np.uint32)[:, 0], schedule=schedule, seed=seed)
        for t in range(64):
            want = values[t % 4 :: 4].astype(np.float32).sum(axis=0).astype(dtype)
            assert got[t].view(dtype).tolist() == want.tolist()


@pytest.mark.parametrize("name", ["add", "min", "max"])
@pytest.mark.parametrize(
    ("vec", "type_"),
    [("v2", "f16"), ("v4", "bf16"), ("v8", "f16"), ("v2", "bf16x2"), ("v4", "f16x2"), ("v2", "f32"), ("v4", "f32")],
)
def test_vectors(name: str, vec: str, type_: str) -> None:
    if type_ == "f32" and name != "add":
        pytest.skip("float32 vectors only add")
    count, dtype = int(vec[1:]), DTYPES[type_.removesuffix("x2")]
    elements = count * (2 if type_.endswith("x2") else 1)
    size, bits = np.dtype(dtype).itemsize * elements, 8 * np.dtype(dtype).itemsize * (elements // count)
    # Sums of so many small integers are exact in bf16, in whatever order the warps add them.
    values = RNG.integers(-6, 7, (40, elements)).astype(dtype)
    cells = RNG.integers(-6, 7, (8, elements)).astype(dtype)
    places = RNG.integers(0, 8, 40)
    noftz = "" if type_ == "f32" else ".noftz"
    registers = ", ".join(f"%v{i}" for i in range(count))
    results = ", ".join(f"%v{i + 10}" for i in range(count))
    load = " ".join(f"ld.global.b{bits} %v{i}, [%rd2+{i * bits // 8}];" for i in range(count))
    keep = " ".join(f"st.global.b{bits} [%rd4+{i * bits // 8}], %v{i + 10};" for i in range(count))
    body = f"""{load} mul.wide.u32 %rd7, %r2, {size}; add.u64 %rd7, %rd7, %rd1; setp.lt.u32 %p2, %r1, 20; @%p2 bra ATOM;
    bar.sync 1, 64; red.global.{name}{noftz}.{vec}.{type_} [%rd7], {{{registers}}}; ret;
    ATOM: atom.global.{vec}.{type_}.{name}{noftz} {{{results}}}, [%rd7], {{{registers}}}; {keep} bar.sync 1, 64;"""
    body = body.replace("bar.sync 1, 64;", "barrier.sync 1, 64;")
    text = _TEXT.format(target="sm_90a", bytes=16, bits=bits, size=size, body=body, fill="", empty="")
    after, old = cells.copy(), np.zeros_like(values)
    got_old = np.zeros_like(values)
    rule: Callable[[Any, Any], Any] = {"add": lambda a, b: a + b, "min": np.minimum, "max": np.maximum}[name]
    for t in range(40):
        old[t] = after[places[t]] if t < 20 else 0
        after[places[t]] = rule(after[places[t]].astype(np.float32), values[t].astype(np.float32)).astype(dtype)
    launch(
        text, grid=(1, 1, 1), block=(40, 1, 1), args=[cells, values, places.astype(np.uint32), got_old], limit=100_000
    )
    assert cells.tobytes() == after.tobytes()
    assert got_old.tobytes() == old.tobytes()


@by_schedule
def test_tickets_are_all_different(schedule: str, seed: int) -> None:
    """Atomics of many CTAs on one counter: every value once, whatever the order."""
    body = """
    atom.global.gpu.acq_rel.add.u32 %r3, [%rd1], 1; atom.add.release.gpu.global.u32 %r4, [%rd1+4], %r0;
    st.global.v2.u32 [%rd0], {%r3, %r4};"""
    source = np.zeros(200, np.uint32)
    got = threads(body, 50, grid=4, words=2, source=source, schedule=schedule, seed=seed)
    assert sorted(got[:, 0].tolist()) == list(range(200))
    assert source[:2].tolist() == [200, 4 * sum(range(50))]
    assert 0 in got[:, 1]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("add.u64 %rd3, %rd1, 2; red.global.add.u32 [%rd3], 1;", "MISALIGNED"),
        ("red.global.add.u64 [%rd1+132], 1;", "MISALIGNED"),
        ("red.global.add.u32 [%rd1+128], 1;", "OUT_OF_BOUNDS"),
        ("mov.u64 %rd3, 64; atom.add.u32 %r3, [%rd3], 1;", "OUT_OF_BOUNDS"),
        ("atom.shared.add.u32 %r3, [sh+1024], 1;", "OUT_OF_BOUNDS"),
        ("mov.u32 %r6, sh; add.u32 %r6, %r6, %r0; atom.shared.add.u32 %r3, [%r6], 1;", "MISALIGNED"),
        (
            "mov.u32 %r6, sh; mapa.shared::cluster.u32 %r6, %r6, 3; red.shared::cluster.add.u32 [%r6], 1;",
            "OUT_OF_BOUNDS",
        ),
        ("add.u64 %rd3, %rd1, 8; red.global.add.v4.f32 [%rd3], {%f1, %f2, %f3, %f4};", "MISALIGNED"),
        ("red.global.add.v4.f32 [%rd1], {%f1, %f2};", "BAD_OPERANDS"),
        ("red.global.exch.b32 [%rd1], 1;", "UNKNOWN_INSTRUCTION"),
        ("atom.global.add.f16 %h1, [%rd1], %h2;", "UNKNOWN_INSTRUCTION"),
        ("atom.global.min.f32 %f1, [%rd1], %f2;", "UNKNOWN_INSTRUCTION"),
    ],
)
def test_faults(body: str, code: str) -> None:
    with pytest.raises(WarploomError) as caught:
        threads(body, 32, source=np.zeros(32, np.uint32))
    assert caught.value.code == code


def test_a_read_only_buffer_is_not_written() -> None:
    source = np.zeros(32, np.uint32)
    source.setflags(write=False)
    with pytest.raises(WarploomError) as caught:
        threads("red.global.add.u32 [%rd1], 1;", 32, source=source)
    assert caught.value.code == "READ_ONLY"


def test_lanes_may_point_into_different_buffers() -> None:
    """Even lanes add to the output, odd lanes to the input, through generic addresses."""
    body = """
    and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; selp.b64 %rd3, %rd0, %rd1, %p1; atom.add.u32 %r4, [%rd3], 5;"""
    source = np.full(32, 100, np.uint32)
    got = threads(body, 32, source=source)
    assert got[:, 0].tolist() == [5, 0] * 16
    assert source[0] == 100 + 5 * 16


CARRIES = """
 cvt.u64.u32 %rd3, %r1; mul.lo.u32 %r3, %r1, 0x9E3779B9; not.b32 %r4, %r3; xor.b32 %r5, %r1, 0xFFFF0000;
 add.cc.u32 %r10, %r1, %r3; addc.cc.u32 %r11, %r3, %r4; addc.cc.u32 %r12, %r4, %r5; addc.u32 %r13, %r5, %r1;
 sub.cc.u32 %r14, %r1, %r3; subc.cc.u32 %r15, %r3, %r4; subc.u32 %r16, %r4, %r5;
 mul.lo.u32 %r20, %r1, %r4; mul.hi.u32 %r21, %r1, %r4;
 mad.lo.cc.u32 %r21, %r3, %r4, %r21; madc.hi.u32 %r22, %r3, %r4, 0;
 mad.lo.cc.u32 %r21, %r1, %r5, %r21; madc.hi.cc.u32 %r22, %r1, %r5, %r22; addc.u32 %r23, 0, 0;
 mad.lo.cc.u32 %r22, %r3, %r5, %r22; madc.hi.u32 %r23, %r3, %r5, %r23;
 st.global.v4.u32 [%rd0], {%r10, %r11, %r12, %r13}; st.global.v4.u32 [%rd0+16], {%r14, %r15, %r16, %r20};
 st.global.v4.u32 [%rd0+32], {%r21, %r22, %r23, %r0};"""


@by_schedule
def test_wide_arithmetic_with_carries(schedule: str, seed: int) -> None:
    for size in (40, 128):
        values = RNG.integers(0, 1 << 32, size, dtype=np.uint32)
        got = threads(CARRIES, size, words=12, source=values, schedule=schedule, seed=seed)
        for t, value in enumerate(values.tolist()):
            a0, mask = value, 0xFFFFFFFF
            a1 = a0 * 0x9E3779B9 & mask
            b0 = ~a1 & mask
            b1 = a0 ^ 0xFFFF0000
            total = (a0 | a1 << 32 | b0 << 64 | b1 << 96) + (a1 | b0 << 32 | b1 << 64 | a0 << 96)
            less = (a0 | a1 << 32 | b0 << 64) - (a1 | b0 << 32 | b1 << 64)
            product = (a0 | a1 << 32) * (b0 | b1 << 32)
            want = [total >> 32 * i & mask for i in range(4)] + [less >> 32 * i & mask for i in range(3)]
            want += [product >> 32 * i & mask for i in range(4)] + [t]
            assert got[t].tolist() == want


def test_a_carry_survives_in_lanes_that_skip_a_branch() -> None:
    body = """
    mov.u32 %r3, 0xFFFFFFFF; and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 0; add.cc.u32 %r5, %r3, %r4; @%p1 bra EVEN;
    add.cc.u64 %rd3, 1, 2; EVEN: @%p1 add.cc.u32 %r5, %r3, 1; addc.u32 %r6, 0, 0; st.global.u32 [%rd0], %r6;"""
    for size in (32, 128):
        assert threads(body, size)[:, 0].tolist() == [1, 0] * (size // 2)


def test_a_subtraction_without_borrow_sets_the_carry() -> None:
    """Both use one adder: nvcc's division of 128-bit integers reads the flag of `subc.cc` with `addc`."""
    values = np.array([0, 1, 5, 6, 7, 0xFFFFFFFF] * 8, np.uint32)
    body = "sub.cc.u32 %r3, %r1, 6; addc.u32 %r4, 0, 0; st.global.v2.u32 [%rd0], {%r3, %r4};"
    got = threads(body, 48, words=2, source=values)
    assert got.tolist() == [[(v - 6) & 0xFFFFFFFF, int(v >= 6)] for v in values.tolist()]
