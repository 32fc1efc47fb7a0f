"""mma.sync: every shape and type against the manual's register layouts, implemented here a second time."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from warploom import launch
from warploom.diagnostics import WarploomError

SCHEDULES = ("eager", "lazy", "reverse", "random")
DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "f64": np.float64,
    "f32": np.float32,
    "s32": np.int32,
}
WARPS = 4
LANES = np.arange(32)
GROUP, QUAD = LANES // 4, LANES % 4


def place(operand, index, element, m, per):
    """(row, column) of one element of one register for every lane; B as (k, n)."""
    if operand == "c":
        if m == 8:
            return GROUP, QUAD * 2 + index * per + element
        return GROUP + 8 * (index * per // 2), QUAD * 2 + (index * per + element) % 2
    if operand == "b":
        return QUAD * per + element + 4 * per * index, GROUP
    if m == 8:
        return GROUP, QUAD * per + element + 4 * per * index
    return GROUP + 8 * (index % 2), QUAD * per + element + 4 * per * (index // 2)


class Form:
    """One mma.sync and the arrays that its kernel reads and writes."""

    def __init__(self, shape, d, a, b, *, flags=""):
        self.shape, self.d, self.a, self.b, self.flags = shape, d, a, b, flags
        m, rest = shape[1:].split("n")
        n, k = rest.split("k")
        self.m, self.n, self.k = int(m), int(n), int(k)
        self.word = 8 if a == "f64" else 4
        self.sizes = {"a": (self.m, self.k), "b": (self.k, self.n), "c": (self.m, self.n)}
        self.types = {"a": a, "b": b, "c": d}

    def __str__(self):
        return f"{self.shape}.{self.d}.{self.a}.{self.b}{self.flags}"

    def count(self, operand):
        rows, columns = self.sizes[operand]
        return rows * columns * np.dtype(DTYPES[self.types[operand]]).itemsize // (32 * self.word)

    def registers(self, operand, matrices):
        """Registers [register, lane] of all warps, each holding its own matrix."""
        dtype = np.dtype(DTYPES[self.types[operand]])
        per = self.word // dtype.itemsize
        out = np.zeros((self.count(operand), WARPS, 32, per), dtype)
        for index in range(len(out)):
            for element in range(per):
                rows, columns = place(operand, index, element, self.m, per)
                out[index, :, :, element] = matrices[:, rows, columns]
        return out.view(f"u{self.word}").reshape(len(out), -1)

    def matrices(self, registers):
        dtype = np.dtype(DTYPES[self.d])
        per = self.word // dtype.itemsize
        values = registers.view(dtype).reshape(len(registers), WARPS, 32, per)
        out = np.zeros((WARPS, self.m, self.n), dtype)
        for index in range(len(values)):
            for element in range(per):
                rows, columns = place("c", index, element, self.m, per)
                out[:, rows, columns] = values[index, :, :, element]
        return out

    def kernel(self, instruction=None, before=""):
        bits, shift = self.word * 8, {4: 2, 8: 3}[self.word]
        lists = {name: [f"%{name}{i}" for i in range(self.count(name))] for name in "abc"}
        loads = "\n".join(
            f"ld.global.b{bits} {register}, [%p{name}+{i * 128 * self.word}];"
            for name, registers in lists.items()
            for i, register in enumerate(registers)
        )
        stores = "\n".join(f"st.global.b{bits} [%pd+{i * 128 * self.word}], %d{i};" for i in range(self.count("c")))
        braces = {name: "{" + ",".join(registers) + "}" for name, registers in lists.items()}
        d = "{" + ",".join(f"%d{i}" for i in range(self.count("c"))) + "}"
        name = f"mma.sync.aligned.{self.shape}.row.col{self.flags}.{self.d}.{self.a}.{self.b}.{self.d}"
        instruction = instruction or f"{name} {d}, {braces['a']}, {braces['b']}, {braces['c']};"
        return f"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
{{
    .reg .b{bits} %a<8>, %b<4>, %c<4>, %d<4>; .reg .b64 %pa, %pb, %pc, %pd, %w; .reg .b32 %t, %x; .reg .pred %q;
    ld.param.u64 %pa, [a]; ld.param.u64 %pb, [b]; ld.param.u64 %pc, [c]; ld.param.u64 %pd, [d];
    mov.u32 %t, %tid.x; shl.b32 %x, %t, {shift}; cvt.u64.u32 %w, %x;
    add.u64 %pa, %pa, %w; add.u64 %pb, %pb, %w; add.u64 %pc, %pc, %w; add.u64 %pd, %pd, %w;
    {loads}
    {"".join(f"mov.b{bits} %d{i}, 0;" for i in range(self.count("c")))}
    {before}
    {instruction}
    {stores}
    ret;
}}
"""

    def data(self, seed=0, *, exact=True):
        rng = np.random.default_rng(seed)
        out = {}
        for name, (rows, columns) in self.sizes.items():
            type_, shape = self.types[name], (WARPS, rows, columns)
            if type_ in ("s8", "u8"):
                limits = np.iinfo(DTYPES[type_])
                out[name] = rng.integers(limits.min, limits.max + 1, shape).astype(DTYPES[type_])
            else:
                whole = exact or type_ == "s32"
                out[name] = (rng.integers(-4, 5, shape) if whole else rng.standard_normal(shape)).astype(DTYPES[type_])
        return out

    def run(self, data, schedule="eager", **options):
        words = {name: self.registers(name, data[name]) for name in "abc"}
        out = np.zeros_like(words["c"])
        args = [words["a"], words["b"], words["c"], out]
        launch(self.kernel(**options), grid=(1, 1, 1), block=(32 * WARPS, 1, 1), args=args, schedule=schedule)
        return self.matrices(out)


def product(data):
    wide = {name: values.astype(np.float64) for name, values in data.items()}
    return wide["a"] @ wide["b"] + wide["c"]


FORMS = [
    Form("m16n8k16", "f32", "f16", "f16"),
    Form("m16n8k16", "f16", "f16", "f16"),
    Form("m16n8k16", "f32", "bf16", "bf16"),
    Form("m16n8k8", "f32", "f16", "f16"),
    Form("m16n8k8", "f16", "f16", "f16"),
    Form("m16n8k8", "f32", "bf16", "bf16"),
    Form("m16n8k8", "f32", "tf32", "tf32"),
    Form("m16n8k4", "f32", "tf32", "tf32"),
    Form("m16n8k32", "f32", "e4m3", "e5m2"),
    Form("m16n8k32", "f16", "e5m2", "e5m2"),
    Form("m16n8k16", "f32", "e5m2", "e4m3"),
    Form("m16n8k32", "s32", "s8", "s8"),
    Form("m16n8k32", "s32", "u8", "s8", flags=".satfinite"),
    Form("m16n8k16", "s32", "s8", "u8"),
    Form("m8n8k16", "s32", "u8", "u8"),
    Form("m8n8k4", "f64", "f64", "f64"),
    Form("m16n8k4", "f64", "f64", "f64"),
    Form("m16n8k8", "f64", "f64", "f64"),
    Form("m16n8k16", "f64", "f64", "f64"),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_small_integers_are_exact(form):
    data = form.data()
    for schedule in ("eager", "lazy"):
        np.testing.assert_array_equal(form.run(data, schedule).astype(np.float64), product(data))


@pytest.mark.parametrize("form", [f for f in FORMS if f.d.startswith("f") and f.a != "tf32"], ids=str)
def test_random_values(form):
    data = form.data(seed=1, exact=False)
    tolerance = {"f16": 2e-3, "f32": 1e-5, "f64": 1e-13}[form.d]
    np.testing.assert_allclose(form.run(data).astype(np.float64), product(data), rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_agree_bit_for_bit(schedule):
    form = Form("m16n8k16", "f32", "bf16", "bf16")
    data = form.data(seed=2, exact=False)
    np.testing.assert_array_equal(form.run(data, schedule), form.run(data))


def test_tf32_ignores_the_low_bits():
    form = Form("m16n8k8", "f32", "tf32", "tf32")
    data = form.data(seed=3, exact=False)
    cut = {
        name: data[name] if name == "c" else (data[name].view(np.uint32) & 0xFFFFE000).view(np.float32)
        for name in "abc"
    }
    np.testing.assert_allclose(form.run(data), product(cut), rtol=1e-5, atol=1e-5)
    assert not np.allclose(product(cut), product(data), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("flags", ["", ".satfinite"])
def test_integers_wrap_or_saturate(flags):
    form = Form("m16n8k32", "s32", "u8", "u8", flags=flags)
    data = form.data()
    data["c"][:] = np.iinfo(np.int32).max - 1000
    exact = product(data).astype(np.int64)
    assert (exact > np.iinfo(np.int32).max).all()
    wanted = np.minimum(exact, np.iinfo(np.int32).max) if flags else exact.astype(np.int32)
    np.testing.assert_array_equal(form.run(data), wanted)


def test_satfinite_may_be_at_the_end():
    form = Form("m8n8k16", "s32", "s8", "s8")
    data = form.data()
    text = form.kernel().replace("s8.s8.s32 ", "s8.s8.s32.satfinite ")
    assert "satfinite" in text
    words = {name: form.registers(name, data[name]) for name in "abc"}
    out = np.zeros_like(words["c"])
    launch(text, grid=(1, 1, 1), block=(128, 1, 1), args=[words["a"], words["b"], words["c"], out])
    np.testing.assert_array_equal(form.matrices(out), product(data))


def test_c_may_be_literals():
    form = Form("m16n8k16", "f32", "f16", "f16")
    data = form.data()
    two = "0f40000000"
    text = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%d0,%d1,%d2,%d3}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, "
    got = form.run(data, instruction=f"{text}{{{two},{two},{two},{two}}};")
    data["c"][:] = 2
    np.testing.assert_array_equal(got, product(data))


def test_d_may_be_c():
    form = Form("m16n8k16", "f32", "f16", "f16")
    data = form.data()
    c = "{%c0,%c1,%c2,%c3}"
    text = f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {c}, {{%a0,%a1,%a2,%a3}}, {{%b0,%b1}}, {c};"
    moves = "".join(f"mov.b32 %d{i}, %c{i};" for i in range(4))
    np.testing.assert_array_equal(form.run(data, instruction=text + text + moves), 2 * product(data) - data["c"])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_predicate_by_warp(schedule):
    form = Form("m16n8k16", "f32", "f16", "f16")
    data = form.data()
    plain = form.kernel()
    guarded = plain.replace("mma.sync", "setp.ge.u32 %q, %t, 64; @%q mma.sync")
    words = {name: form.registers(name, data[name]) for name in "abc"}
    out = np.zeros_like(words["c"])
    launch(
        guarded, grid=(1, 1, 1), block=(128, 1, 1), args=[words["a"], words["b"], words["c"], out], schedule=schedule
    )
    wanted = product(data)
    wanted[:2] = 0
    np.testing.assert_array_equal(form.matrices(out), wanted)


def fault(form, text, schedule="eager"):
    data = form.data()
    words = {name: form.registers(name, data[name]) for name in "abc"}
    with pytest.raises(WarploomError) as caught:
        launch(
            text,
            grid=(1, 1, 1),
            block=(128, 1, 1),
            args=[*words.values(), np.zeros_like(words["c"])],
            schedule=schedule,
        )
    return caught.value


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_part_of_a_warp(schedule):
    form = Form("m16n8k16", "f32", "f16", "f16")
    text = form.kernel().replace("mma.sync", "setp.ge.u32 %q, %t, 5; @%q mma.sync")
    assert fault(form, text, schedule).code == "BAD_PARTICIPATION"


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("f32.f16.f16.f32", "f32.f16.bf16.f32", "BAD_SHAPE", "does not go with"),
        ("f32.f16.f16.f32", "f16.f16.f16.f32", "BAD_SHAPE", "they must be the same"),
        ("f32.f16.f16.f32", "f16.bf16.bf16.f16", "BAD_SHAPE", "goes with D of .f32"),
        ("m16n8k16", "m16n8k4", "BAD_SHAPE", ".f16 has the shapes"),
        ("%b0,%b1", "%b0", "BAD_OPERANDS", "b has 1 registers"),
    ],
)
def test_illegal_forms(old, new, code, said):
    form = Form("m16n8k16", "f32", "f16", "f16")
    error = fault(form, form.kernel().replace(old, new))
    assert error.code == code
    assert said in str(error)


def test_doubles_are_a_chain_of_fused_multiply_adds():
    """From the first k on, one rounding each; an H200 gives these bits."""
    form = Form("m8n8k4", "f64", "f64", "f64")
    data = form.data(seed=4, exact=False)
    got = form.run(data)
    for warp, row, column in np.ndindex(WARPS, 8, 8):
        total = data["c"][warp, row, column].item()
        for k in range(4):
            total = float(
                Fraction(data["a"][warp, row, k].item()) * Fraction(data["b"][warp, k, column].item()) + Fraction(total)
            )
        assert got[warp, row, column] == total


@pytest.mark.parametrize("d_type", ["f16", "f32"])
def test_nan_is_that_of_the_hardware(d_type):
    form = Form("m16n8k16", d_type, "f16", "f16")
    data = form.data()
    data["a"][0, 3, 5] = np.nan
    data["a"][1, 0, 0], data["a"][1, 0, 1], data["b"][1, :2] = np.inf, -np.inf, 1
    got = form.run(data).view({"f16": np.uint16, "f32": np.uint32}[d_type])
    nan = {"f16": 0x7FFF, "f32": 0x7FFFFFFF}[d_type]
    assert (got[0, 3] == nan).all()
    assert (got[1, 0] == nan).all()
    assert (got == nan).sum() == 16
