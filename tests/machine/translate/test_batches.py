"""Runs of one instruction become one operation on many rows: the same bits as one by one, in any order of registers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.simt import threads

from warploom import launch
from warploom.host.launch import Launch
from warploom.launcher import prepare
from warploom.machine.core.schedule import Eager

FORMS = (
    "add.u32 {d}, {a}, {b}", "sub.s32 {d}, {a}, 77", "mul.lo.s32 {d}, {a}, {b}", "and.b32 {d}, {a}, {i}",
    "or.b32 {d}, {i}, {a}", "xor.b32 {d}, {a}, {b}", "min.s32 {d}, {a}, {b}", "max.u32 {d}, {a}, {b}",
    "shl.b32 {d}, {a}, {s}", "shr.s32 {d}, {a}, {s}", "shr.u32 {d}, {a}, {s}", "mov.b32 {d}, {a}", "not.b32 {d}, {a}",
    "mad.lo.u32 {d}, {a}, {b}, {c}", "lop3.b32 {d}, {a}, {b}, {c}, 0x5A", "prmt.b32 {d}, {a}, {b}, 0x3120",
    "add.f32 {d}, {a}, {b}", "sub.f32 {d}, {a}, {b}", "mul.f32 {d}, {a}, {b}", "add.ftz.f32 {d}, {a}, {b}",
    "fma.rn.f32 {d}, {a}, {b}, {c}", "fma.rn.f32 {d}, {a}, %r40, %r41", "ex2.approx.ftz.f32 {d}, {a}",
    "rcp.approx.f32 {d}, {a}", "max.f32 {d}, {a}, {b}", "min.NaN.f32 {d}, {a}, {b}", "neg.f32 {d}, {a}",
    "abs.f32 {d}, {a}", "div.full.f32 {d}, {a}, {b}", "cvt.rn.bf16x2.f32 {d}, {a}, {b}", "cvt.rn.f32.s32 {d}, {a}",
    "cvt.rzi.s32.f32 {d}, {a}", "fma.rn.f16x2 {d}, {a}, {b}, {c}", "add.rn.bf16x2 {d}, {a}, {b}",
    "selp.b32 {d}, {a}, {b}, %p2", "mul.hi.u32 {d}, {a}, {b}", "bfe.u32 {d}, {a}, 3, 9", "popc.b32 {d}, {a}",
)  # fmt: skip
LENGTH = 9


def lines(form: str, rng: np.random.Generator) -> list[str]:
    """A run of nine: results and operands ascending, descending or in any order, some of them read or written twice."""
    orders = [list(range(8, 17)), list(range(16, 7, -1)), rng.permutation(np.arange(8, 26))[:LENGTH].tolist()]
    orders.append(rng.integers(8, 26, LENGTH).tolist())
    d, a, b, c = (orders[rng.integers(len(orders))] for _ in range(4))
    made = []
    for at in range(LENGTH):
        values = {"i": int(rng.integers(1 << 31)), "s": int(rng.integers(32))}
        registers = {name: f"%r{order[at]}" for name, order in zip("dabc", (d, a, b, c), strict=True)}
        made.append(form.format(**registers, **values) + ";")
    return made


def body(forms: list[str], rng: np.random.Generator) -> str:
    """Registers 8 to 25 from the input, several runs, and all registers to memory; odd lanes do it apart from even."""
    text = ["mov.u32 %r40, %r1; xor.b32 %r41, %r1, 0x40490fdb; setp.lt.s32 %p2, %r1, 0;"]
    text += [
        f"mad.lo.u32 %r{r}, %r1, {int(rng.integers(1 << 31)) | 1}, {int(rng.integers(1 << 31))};" for r in range(8, 26)
    ]
    text += [line for form in forms for line in lines(form, rng)]
    text += [f"st.global.b32 [%rd0+{4 * at}], %r{8 + at};" for at in range(18)]
    return "\n".join(text)


SPECIAL = np.array(
    [0, 1, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x007FFFFF, 0x3F800000], np.uint32
)


@pytest.mark.parametrize("form", FORMS)
def test_a_run_has_the_bits_of_its_instructions(form):
    rng = np.random.default_rng()
    text = body([form, *rng.choice(FORMS, 2)], rng)
    # Two lanes of a warp that part execute the instructions one by one, under a mask.
    apart = f"and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 1; @%p1 bra ODD;\n{text}\nbra.uni END;\nODD:\n{text}\nEND:"
    source = np.concatenate([SPECIAL, rng.integers(0, 1 << 32, 96 - len(SPECIAL), np.uint32)])
    together = threads(text, 96, words=18, source=source, fill=7)
    assert (together == threads(apart, 96, words=18, source=source, fill=7)).all(), text


def test_a_run_is_one_call():
    ptx = (
        """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out)
{
 .reg .b32 %r<80>; .reg .b64 %rd<4>;
 ld.param.u64 %rd0, [out];
 mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1;
"""
        + "\n".join(f" add.u32 %r{8 + at}, %r0, {at * at};" for at in range(16))
        + """
"""
        + "\n".join(f" ex2.approx.f32 %r{40 + at}, %r{23 - at};" for at in range(16))
        + """
 st.global.b32 [%rd0], %r55;
 ret;
}
"""
    )
    out = np.zeros(32, np.uint32)
    source = (
        prepare(Launch(ptx, (1, 1, 1), (32, 1, 1), args=(out,)), Eager(), None, None, (), None).program.text().source
    )
    assert sum("reshape(16, -1)" in line for line in source.splitlines()) == 1
    launch(ptx, grid=1, block=32, args=[out])
    assert (out == np.float32(1).view(np.uint32)).all()
