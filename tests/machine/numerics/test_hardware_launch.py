"""Results recorded on an H200, replayed by kernels: translated code has paths in addition to `numerics`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu.arithmetic import LANES as MANY_LANES
from tests.gpu.arithmetic import kernels
from tests.machine.numerics.numerics_reference import signature_of
from tests.machine.numerics.test_hardware import ROWS, decided_by_both, is_approximate, operands_of

import warploom as wl

LANES = 64
FAMILIES = {
    "add",
    "sub",
    "mul",
    "fma",
    "mad",
    "min",
    "max",
    "abs",
    "neg",
    "div",
    "rem",
    "rcp",
    "sqrt",
    "sad",
    "not",
    "cnot",
}
HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
REGISTERS = {16: "%h", 32: "%r", 64: "%d"}


def replayed() -> dict[str, list[tuple[str, np.ndarray]]]:
    """Rows whose operands and result have one type, by their operands."""
    found: dict[str, list[tuple[str, np.ndarray]]] = {}
    for opcode, sources, expected in ROWS:
        family, signature = signature_of(opcode)
        names = set(sources.partition("@")[0].split("|"))
        one_type = names == {signature.get("type")} and signature.get("mode") != "wide"
        if family in FAMILIES and one_type and not is_approximate(opcode):
            found.setdefault(sources, []).append((opcode, expected))
    return found


GROUPS = replayed()


def kernel(opcodes: list[str], count: int, bits: int, guard: str) -> str:
    """A kernel that loads a lane's operands, executes every opcode and stores the results, one row for each."""
    r = REGISTERS[bits]
    size = bits // 8
    lines = [f"mul.wide.u32 %a1, %l, {size}; ld.param.u64 %a0, [out]; add.u64 %a0, %a0, %a1; ld.param.u64 %a2, [in];"]
    lines += ["add.u64 %a2, %a2, %a1;"]
    lines += [f"ld.global.b{bits} {r}{n}, [%a2+{n * LANES * size}];" for n in range(count)]
    for row, opcode in enumerate(opcodes):
        lines += [f"mov.b{bits} {r}9, {0x5A5A};"]
        lines += [f"{guard}{opcode} {r}9, {', '.join(f'{r}{n}' for n in range(count))};"]
        lines += [f"st.global.b{bits} [%a0+{row * LANES * size}], {r}9;"]
    return f"""{HEAD}.visible .entry k(.param .u64 in, .param .u64 out)
{{ .reg .b16 %h<10>; .reg .b32 %r<10>; .reg .b64 %d<10>; .reg .b64 %a<3>; .reg .b32 %l; .reg .b32 %m; .reg .pred %p;
mov.u32 %l, %tid.x; and.b32 %m, %l, 1; setp.eq.u32 %p, %m, 0;
{chr(10).join(lines)}
ret; }}"""


@pytest.mark.parametrize("guard", ["", "@%p "], ids=["all lanes", "every other lane"])
@pytest.mark.parametrize("sources", GROUPS)
def test_kernels_match_an_h200_bit_for_bit(sources, guard):
    operands = operands_of(sources)
    dtype = operands[0].dtype
    out = np.full((len(GROUPS[sources]), LANES), 0xA5, dtype)
    text = kernel([opcode for opcode, _ in GROUPS[sources]], len(operands), 8 * dtype.itemsize, guard)
    wl.launch(text, grid=(1, 1, 1), block=(LANES, 1, 1), args=[np.stack(operands), out])
    executes = np.arange(LANES) % 2 == 0 if guard else np.ones(LANES, bool)
    wrong = []
    for got, (opcode, expected) in zip(out, GROUPS[sources], strict=True):
        differ = (got != expected.astype(dtype)) & executes & decided_by_both(opcode, operands)
        wrong += [
            f"{opcode} {[hex(o[i]) for o in operands]}: hardware {int(expected[i]):#x}, here {int(got[i]):#x}"
            for i in np.flatnonzero(differ)[:1]
        ]
        assert (got[~executes] == 0x5A5A).all()
    assert wrong == []


KERNELS = {each.name: each for each in kernels(int(np.random.default_rng().integers(1 << 32)))}


@pytest.mark.parametrize("name", KERNELS)
def test_every_recorded_form_through_a_launch(name):
    """Recorded lanes against the H200, lanes with fresh operands against `numerics`."""
    made = KERNELS[name]
    arrays, expected = made.arrays, made.expected
    wl.launch(made.ptx, grid=1, block=MANY_LANES, args=[arrays["x"], arrays["out"]])
    found = arrays["out"]
    if made.element:
        with np.errstate(all="ignore"):
            both = (found.astype(np.float64), expected.astype(np.float64))
            right = np.isclose(*both, rtol=made.rtol, atol=made.atol, equal_nan=True)
    else:
        right = found == expected
    wrong = [
        f"{row.opcode} {[hex(int(o[lane])) for o in row.operands]}: {found[at, lane]}, expected {expected[at, lane]}"
        for at, row in enumerate(made.rows)
        for lane in np.flatnonzero(~right[at])[:1]
    ]
    assert wrong == []


@pytest.mark.parametrize("opcode", ["add.f32", "sub.f32", "mul.f32", "add.rn.f32", "add.ftz.f32", "mul.rz.f32"])
def test_nan_of_uniform_operands(opcode):
    text = f"""{HEAD}.visible .entry k(.param .f32 x, .param .f32 y, .param .u64 out)
{{ .reg .b32 %r<4>; .reg .b64 %a; ld.param.f32 %r0, [x]; ld.param.f32 %r1, [y]; ld.param.u64 %a, [out];
{opcode} %r2, %r0, %r1; st.global.b32 [%a], %r2; ret; }}"""
    out = np.zeros(1, np.uint32)
    operands = np.array([0xFFC00000, 0x3F800000], np.uint32).view(np.float32)
    wl.launch(text, grid=(1, 1, 1), block=(1, 1, 1), args=[*operands, out])
    assert out[0] == 0x7FFFFFFF


def test_enough_instructions_are_replayed():
    assert {"f32|f32", "f64|f64", "f16|f16", "f32|f32|f32", "bf16x2|bf16x2"} <= set(GROUPS)
    assert sum(map(len, GROUPS.values())) > 200
    assert sum(len(each.rows) for each in KERNELS.values()) > 1150
