"""`mma.sync` in native code: the bits of the reference, for every pattern of the operands."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.engine.mutants import engine

from warploom import launch
from warploom.machine.instructions import mma

pytest.importorskip("llvmlite")

FORMS = (
    ("m16n8k16", "f32", "f16", "f16"),
    ("m16n8k8", "f32", "bf16", "bf16"),
    ("m16n8k16", "f32", "bf16", "bf16"),
    ("m16n8k8", "f32", "tf32", "tf32"),
    ("m16n8k4", "f32", "tf32", "tf32"),
    ("m16n8k32", "f32", "e4m3", "e5m2"),
    ("m16n8k16", "f32", "e5m2", "e4m3"),
    ("m16n8k32", "s32", "s8", "u8"),
    ("m16n8k16", "s32", "u8", "s8"),
    ("m16n8k32.row.col.satfinite", "s32", "s8", "s8"),
    ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k8", "f16", "f16", "f16"),
)
LANES = 96
TEXT = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 given, .param .u64 found)
{{
    .reg .b32 %a<8>, %b<4>, %c<4>, %d<4>, %t, %x; .reg .b64 %p, %q, %w;
    ld.param.u64 %p, [given]; ld.param.u64 %q, [found];
    mov.u32 %t, %tid.x; shl.b32 %x, %t, 2; cvt.u64.u32 %w, %x; add.u64 %p, %p, %w; add.u64 %q, %q, %w;
    {loads}
    {name} {{{d}}}, {{{a}}}, {{{b}}}, {{{c}}};
    {stores}
    ret;
}}
"""


def registers(letter: str, count: int) -> list[str]:
    return [f"%{letter}{number}" for number in range(count)]


def counted(form: tuple[str, str, str, str]) -> int:
    """The registers of C and D."""
    return 2 if form[1] == "f16" else 4


def kernel(form: tuple[str, str, str, str], c: list[str], d: list[str]) -> str:
    """A kernel that loads all registers from rows of a buffer, and stores D."""
    shape, d_type, a_type, b_type = form
    k, bits = int(shape.split("k")[1].split(".")[0]), {"f16": 16, "bf16": 16, "tf32": 32}.get(a_type, 8)
    a, b = registers("a", 16 * k * bits // 1024), registers("b", 8 * k * bits // 1024)
    loads = [
        f"ld.global.b32 {register}, [%p+{4 * LANES * row}];"
        for row, register in enumerate([*registers("a", 8), *registers("b", 4), *registers("c", 4)])
    ]
    return TEXT.format(
        loads="\n".join(loads),
        name=f"mma.sync.aligned.{shape if '.' in shape else f'{shape}.row.col'}.{d_type}.{a_type}.{b_type}.{d_type}",
        stores="\n".join(f"st.global.b32 [%q+{4 * LANES * row}], {register};" for row, register in enumerate(d)),
        **{name: ", ".join(part) for name, part in zip("abcd", (a, b, c, d), strict=True)},
    )


def given(random: np.random.Generator, kind: str) -> np.ndarray:
    """Words of all registers: any bits, or numbers with a sum that rounds."""
    if kind == "any":
        return random.integers(0, 1 << 32, (16, LANES), np.uint32)
    halves = (random.standard_normal((16, LANES, 2)) * 2.0 ** random.integers(-9, 8, (16, 1, 2))).astype(np.float16)
    words = np.ascontiguousarray(halves).view(np.uint32).reshape(16, LANES)
    words[12:] = random.standard_normal((4, LANES)).astype(np.float32).view(np.uint32)
    return words


@pytest.mark.parametrize("form", FORMS, ids=".".join)
@pytest.mark.parametrize("kind", ["any", "numbers"])
def test_results_are_those_of_the_reference(form: tuple[str, str, str, str], kind: str) -> None:
    """Also where D replaces other registers, and where C is a constant; three warps are one group and a part of one."""
    random = np.random.default_rng()
    c, count = registers("c", 4), counted(form)
    for c_list, d_list in ((c, registers("d", 4)), (c, [c[2], c[0], c[3], c[1]]), (["0", "1", "0x3f800000", "0"], c[::-1]),
                           (c, ["%a1", "%b0", "%a0", "%c2"])):  # fmt: skip
        lists = c_list[:count], d_list[:count]
        text, words, found = kernel(form, *lists), given(random, kind), []
        for name in ("numpy", "native"):
            with engine(name):
                out = np.zeros((4, LANES), np.uint32)
                launch(text, grid=(1, 1, 1), block=(LANES, 1, 1), args=[words, out])
                found.append(out)
        assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("form", FORMS, ids=".".join)
def test_native_code_executes_them(form: tuple[str, str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is not called."""

    def fail(*_: object) -> None:
        raise AssertionError("the reference multiplies")

    monkeypatch.setattr(mma, "combined", lambda op: fail)
    text = kernel(form, registers("c", counted(form)), registers("d", counted(form))).replace(
        "entry k(", "entry alone("
    )
    words, out = given(np.random.default_rng(), "numbers"), np.zeros((4, LANES), np.uint32)
    with engine("native"):
        launch(text, grid=(1, 1, 1), block=(LANES, 1, 1), args=[words, out])
    assert out.any()
