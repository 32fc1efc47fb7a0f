"""wmma: load, multiply and store of every shape, type and layout, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.machine.observers.events import Event

RNG = np.random.default_rng()
TYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
    "f64": np.float64,
    "f32": np.float32,
    "s32": np.int32,
}
REGISTERS = {
    ("m16n16k16", "f16"): (8, 8), ("m32n8k16", "f16"): (8, 8), ("m8n32k16", "f16"): (8, 8),
    ("m16n16k16", "bf16"): (4, 4), ("m32n8k16", "bf16"): (8, 2), ("m8n32k16", "bf16"): (2, 8),
    ("m16n16k16", "s8"): (2, 2), ("m32n8k16", "s8"): (4, 1), ("m8n32k16", "u8"): (1, 4),
    ("m16n16k8", "tf32"): (4, 4), ("m8n8k4", "f64"): (1, 1),
}  # fmt: skip
"""Registers of A and of B, as Table 33 and its neighbours in the manual have them."""
FORMS = [
    (shape, a, c, d)
    for shape, a in REGISTERS
    for c, d in {"f16": [("f32", "f32"), ("f16", "f16"), ("f32", "f16")], "f64": [("f64", "f64")]}.get(
        a, [("s32", "s32")] if a in ("s8", "u8") else [("f32", "f32")]
    )
]
PADDING = 16


def count(shape: str, type_: str) -> int:
    """Registers of C or D."""
    return 2 if shape == "m8n8k4" else 4 if type_ == "f16" else 8


def text(shape: str, a: str, c: str, d: str, layouts: str, space: str) -> str:
    """Every warp multiplies the same A by its own B and C, maybe through shared memory."""
    names = {"r": "row", "c": "col"}
    first, second, third = (names[letter] for letter in layouts)
    word = "f64" if a == "f64" else "b32"
    registers = {"a": REGISTERS[shape, a][0], "b": REGISTERS[shape, a][1], "c": count(shape, c), "d": count(shape, d)}
    lists = {k: "{" + ", ".join(f"%{k}{i}" for i in range(n)) + "}" for k, n in registers.items()}
    types = f"{d}.{c}" if a == "f16" else f"{d}.{a}.{a}.{c}"
    declared = " ".join(f".reg .{word} %{k}<{n}>;" for k, n in registers.items())
    bank = "global" if space else ""
    where = f".{bank}" if bank else ""
    return f"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd, .param .u32 la, .param .u32 lb,
                  .param .u32 lc, .param .u32 sb, .param .u32 sc, .param .u32 sd)
{{
 {declared} .reg .b32 %r<16>; .reg .b64 %p<16>;
 ld.param.u64 %p0, [pa]; ld.param.u64 %p1, [pb]; ld.param.u64 %p2, [pc]; ld.param.u64 %p3, [pd];
 ld.param.u32 %r0, [la]; ld.param.u32 %r1, [lb]; ld.param.u32 %r2, [lc];
 ld.param.u32 %r3, [sb]; ld.param.u32 %r4, [sc]; ld.param.u32 %r6, [sd];
 mov.u32 %r5, %tid.x; shr.u32 %r5, %r5, 5;
 mul.wide.u32 %p4, %r5, %r3; add.u64 %p1, %p1, %p4; mul.wide.u32 %p4, %r5, %r4; add.u64 %p2, %p2, %p4;
 mul.wide.u32 %p4, %r5, %r6; add.u64 %p3, %p3, %p4;
 wmma.load.a.sync.aligned.{first}.{shape}{where}.{a} {lists["a"]}, [%p0], %r0;
 wmma.load.b.sync.aligned.{second}.{shape}{where}.{a} {lists["b"]}, [%p1], %r1;
 wmma.load.c.sync.aligned.{third}.{shape}{where}.{c} {lists["c"]}, [%p2], %r2;
 wmma.mma.sync.aligned.{first}.{second}.{shape}.{types} {lists["d"]}, {lists["a"]}, {lists["b"]}, {lists["c"]};
 wmma.store.d.sync.aligned.{third}.{shape}{where}.{d} [%p3], {lists["d"]}, %r2;
 ret;
}}"""


def stored(matrices: np.ndarray[Any, Any], layout: str, type_: str) -> np.ndarray[Any, Any]:
    """Matrices [warp, row, column] in memory order, with padding after every line."""
    lines = matrices if layout == "r" else matrices.transpose(0, 2, 1)
    out = np.zeros((*lines.shape[:2], lines.shape[2] + PADDING), TYPES[type_])
    out[:, :, :-PADDING] = lines.astype(TYPES[type_])
    return out


@pytest.mark.parametrize("form", FORMS, ids=".".join)
@pytest.mark.parametrize("layouts", ["rrr", "rcc", "crr", "ccc"])
@pytest.mark.parametrize(("schedule", "warps"), [("eager", 4), ("reverse", 1)])
def test_fragments_are_loaded_multiplied_and_stored(
    form: tuple[str, ...], layouts: str, schedule: str, warps: int
) -> None:
    shape, a_type, c_type, d_type = form
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    low = 0 if a_type == "u8" else -5
    a, b = RNG.integers(low, 6, (1, m, k)), RNG.integers(low, 6, (warps, k, n))
    c = RNG.integers(-50, 50, (warps, m, n))
    pa, pb, pc = stored(a, layouts[0], a_type), stored(b, layouts[1], a_type), stored(c, layouts[2], c_type)
    pd = stored(np.zeros_like(c), layouts[2], d_type)
    steps = [x.strides[0] for x in (pb, pc, pd)]
    launch(
        text(*form, layouts, "global" if schedule == "eager" else ""), grid=(1, 1, 1), block=(32 * warps, 1, 1),
        args=[pa, pb, pc, pd, pa.shape[2], pb.shape[2], pc.shape[2], *steps], schedule=schedule,
    )  # fmt: skip
    got = pd[:, :, :-PADDING].astype(np.int64)
    assert np.array_equal(got if layouts[2] == "r" else got.transpose(0, 2, 1), a @ b + c)
    assert not pd[:, :, -PADDING:].any()


def test_observers_receive_every_touched_line() -> None:
    seen: list[Event] = []

    class Watch:
        def on_event(self, event: Event) -> None:
            if event.kind == "access" and "wmma" in event.source.instruction.opcode:
                seen.append(event)

    pa, pb = (stored(np.ones((1, 16, 16), np.int64), layout, "f16") for layout in "rr")
    pc, pd = (stored(np.ones((1, 16, 16), np.int64), "r", "f32") for _ in "cd")
    args = [pa, pb, pc, pd, pa.shape[2], pb.shape[2], pc.shape[2], 0, 0, 0]
    launch(
        text("m16n16k16", "f16", "f32", "f32", "rrr", "global"),
        grid=(1, 1, 1), block=(32, 1, 1), args=args, observers=[Watch()],
    )  # fmt: skip
    assert [event.verb for event in seen] == ["reads", "reads", "reads", "writes"]
    for event, array in zip(seen, (pa, pb, pc, pd), strict=True):
        (touch,) = event.touches
        assert touch.width == 16 * array.itemsize
        assert np.diff(touch.addresses).tolist() == [array.strides[1]] * 15


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("{%a0, ", "{", "BAD_OPERANDS"),
        ("m16n16k16.f32.f32", "m16n16k8.f32.f32", "BAD_SHAPE"),
        (
            "wmma.load.a.sync.aligned.row.m16n16k16.global.f16",
            "wmma.load.a.sync.aligned.row.m16n16k32.global.s4",
            "UNKNOWN_INSTRUCTION",
        ),
    ],
)
def test_forms_that_no_gpu_has_are_refused(old: str, new: str, code: str) -> None:
    right = text("m16n16k16", "f16", "f32", "f32", "rrr", "global")
    assert old in right
    with pytest.raises(WarploomError) as caught:
        launch(
            right.replace(old, new), grid=(1, 1, 1), block=(32, 1, 1), args=[np.zeros(4096)] * 4 + [32] * 3 + [0] * 3
        )
    assert caught.value.code == code
