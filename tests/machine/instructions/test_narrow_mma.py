"""mma.sync and wmma of four- and one-bit numbers: the manual's register layouts, implemented here a second time."""

from __future__ import annotations

import numpy as np
import pytest

from warploom import launch
from warploom.diagnostics import WarploomError

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
SHAPES = [
    (f"m{m}n8k{k}", m, k, types, end)
    for types, depths, ends in (
        (("s4", "s4"), ((16, 64), (16, 32), (8, 32)), ("",)),
        (("u4", "s4"), ((16, 64), (8, 32)), ("", ".satfinite")),
        (("u4", "u4"), ((16, 32),), ("",)),
        (("b1", "b1"), ((16, 256), (16, 128), (8, 128)), (".xor.popc", ".and.popc")),
    )
    for m, k in depths
    for end in ends
]


def numbers(rng: np.random.Generator, rows: int, k: int, type_: str) -> np.ndarray:
    low, high = {"s4": (-8, 8), "u4": (0, 16), "b1": (0, 2)}[type_]
    return rng.integers(low, high, (rows, k))


def words(values: np.ndarray, type_: str) -> np.ndarray:
    """Rows of numbers as 32-bit words, the first number lowest."""
    bits = 1 if type_ == "b1" else 4
    fields = values.reshape(len(values), -1, 32 // bits) & (1 << bits) - 1
    return (fields << np.arange(0, 32, bits)).sum(2).astype(np.uint32)


def product(a: np.ndarray, b: np.ndarray, end: str) -> np.ndarray:
    if "xor" in end:
        return (a[:, None, :] ^ b[None, :, :]).sum(2)
    return a @ b.T


@pytest.mark.parametrize(("shape", "m", "k", "types", "end"), SHAPES)
def test_mma_matches_the_reference(shape: str, m: int, k: int, types: tuple[str, str], end: str) -> None:
    rng = np.random.default_rng(k + m)
    a, b = numbers(rng, m, k, types[0]), numbers(rng, 8, k, types[1])
    c = rng.integers(-99, 99, (m, 8)).astype(np.int32)
    group, quad = np.arange(32) // 4, np.arange(32) % 4
    across = words(a, types[0]).shape[1] // 4
    a_places = [(group + 8 * half, quad + 4 * word) for word in range(across) for half in range(m // 8)]
    b_places = [(group, quad + 4 * word) for word in range(across)]
    c_places = [(group + 8 * half, 2 * quad + side) for half in range(m // 8) for side in range(2)]
    given = [words(a, types[0])[at] for at in a_places] + [words(b, types[1])[at] for at in b_places]
    given += [c[at].view(np.uint32) for at in c_places]
    table, out = np.stack(given, 1), np.full((32, len(c_places)), -1, np.int32)
    names = iter(f"%r{i}" for i in range(len(given)))
    lists = ["{" + ", ".join(next(names) for _ in places) + "}" for places in (a_places, b_places, c_places)]
    kind = f"{end}.s32.{types[0]}.{types[1]}.s32" if end == ".satfinite" else f".s32.{types[0]}.{types[1]}.s32{end}"
    text = f"""{HEAD}.visible .entry k(.param .u64 in, .param .u64 out) {{
 .reg .b32 %r<20>; .reg .b32 %d<4>; .reg .b64 %p<4>; .reg .b32 %t;
 mov.u32 %t, %tid.x; ld.param.u64 %p0, [in]; ld.param.u64 %p1, [out];
 mad.wide.u32 %p0, %t, {4 * len(given)}, %p0; mad.wide.u32 %p1, %t, {4 * len(c_places)}, %p1;
 {" ".join(f"ld.global.u32 %r{i}, [%p0+{4 * i}];" for i in range(len(given)))}
 mma.sync.aligned.{shape}.row.col{kind} {{{", ".join(f"%d{i}" for i in range(len(c_places)))}}}, {", ".join(lists)};
 {" ".join(f"st.global.u32 [%p1+{4 * i}], %d{i};" for i in range(len(c_places)))}
 ret; }}"""
    launch(text, grid=(1, 1, 1), block=(32, 1, 1), args=[table, out])
    want = product(a, b, end) + c
    got = np.empty((m, 8), np.int32)
    for place, at in enumerate(c_places):
        got[at] = out[:, place]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("shape", "type_", "before", "k"),
    [("m8n8k32", "s4", "", 32), ("m8n8k32", "u4", "", 32), ("m8n8k128", "b1", ".xor.popc", 128), ("m8n8k128", "b1", ".and.popc", 128)],
)  # fmt: skip
def test_wmma_matches_the_reference(shape: str, type_: str, before: str, k: int) -> None:
    rng = np.random.default_rng(3)
    a, b = numbers(rng, 8, 2 * k, type_), numbers(rng, 8, 3 * k, type_)
    c, out = rng.integers(-99, 99, (8, 8)).astype(np.int32), np.full((8, 8), -1, np.int32)
    text = f"""{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {{
 .reg .b32 %r<8>; .reg .b64 %p<4>;
 ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [c]; ld.param.u64 %p3, [d];
 wmma.load.a.sync.aligned.row.{shape}.global.{type_} {{%r0}}, [%p0], {2 * k};
 wmma.load.b.sync.aligned.col.{shape}.global.{type_} {{%r1}}, [%p1], {3 * k};
 wmma.load.c.sync.aligned.row.{shape}.global.s32 {{%r2, %r3}}, [%p2];
 wmma.mma{before}.sync.aligned.row.col.{shape}.s32.{type_}.{type_}.s32 {{%r4, %r5}}, {{%r0}}, {{%r1}}, {{%r2, %r3}};
 wmma.store.d.sync.aligned.row.{shape}.global.s32 [%p3], {{%r4, %r5}};
 ret; }}"""
    launch(text, grid=(1, 1, 1), block=(32, 1, 1), args=[words(a, type_), words(b, type_), c, out])
    np.testing.assert_array_equal(out, product(a[:, :k], b[:, :k], before) + c)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%r0}, {%r0}, {%r0}, {%r0}, %r0, 0;", "sparse"),
        ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%r0}, %p0, %p0, %r0, 0, 1, 1, 1, 0, 0;", "sparse"),
        ("multimem.red.relaxed.sys.global.add.u32 [%p0], %r0;", "several GPUs"),
        ("alloca.u64 %p0, %p0, 16;", "known at run time only"),
        ("vmad.s32.s32.s32 %r0, %r0, %r0, %r0;", "video"),
    ],
)
def test_unsupported_forms_are_reported_with_the_reason(text: str, why: str) -> None:
    body = f"{HEAD}.visible .entry k() {{ .reg .b32 %r<2>; .reg .b64 %p<2>; {text} ret; }}"
    with pytest.raises(WarploomError) as caught:
        launch(body, grid=(1, 1, 1), block=(32, 1, 1))
    assert caught.value.code == "NOT_MODELLED"
    assert why in caught.value.what
