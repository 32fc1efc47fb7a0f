"""Accesses and calls that name a variable: its state space must be theirs, as for ptxas."""

from __future__ import annotations

import subprocess
from functools import cache

import numpy as np
import pytest

from warploom import WarploomError, launch
from warploom.runtime.toolchain.tools import find

ACCESSES = ("global", "const", "shared", "shared::cta", "local", "param", "")
SPACES = ("global", "const", "shared", "local", "param")

KERNEL = """
.version 8.6
.target sm_90a
.address_size 64
{module}
.visible .entry k(.param .u64 out{param})
{{
    .reg .b32 %r1;
    .reg .b64 %rd1;
    {local}
    ld.param.u64 %rd1, [out];
    ld{space}.b32 %r1, [v];
    st.global.b32 [%rd1], %r1;
    ret;
}}
"""

UNNAMED = """
.version 8.6
.target sm_90a
.address_size 64
.shared .align 4 .b32 v[4];
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    .local .align 4 .b32 w[4];
    ld.param.u64 %rd1, [out];
    mov.u32 %r2, %tid.x;
    st.b32 [w+4], %r2;
    st.volatile.b32 [v], 5;
    bar.sync 0;
    atom.relaxed.cta.add.u32 %r1, [v], 3;
    bar.sync 0;
    ld.relaxed.gpu.b32 %r1, [v];
    ld.b32 %r3, [w+4];
    add.u32 %r1, %r1, %r3;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd1, %rd1, %rd2;
    st.global.b32 [%rd1], %r1;
    ret;
}
"""

CALL = """
.version 8.6
.target sm_90a
.address_size 64
.func (.param .b32 result) twice(.param .b32 count)
{
    .reg .b32 %r;
    ld.param.b32 %r, [count];
    add.u32 %r, %r, %r;
    st.param.b32 [result], %r;
    ret;
}
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r1;
    .reg .b64 %rd1;
    ld.param.u64 %rd1, [out];
    {
    .param .b32 given;
    .SPACE .b32 got;
    st.param.b32 [given], 21;
    call.uni (got), twice, (given);
    ld.SPACE.b32 %r1, [got];
    }
    st.global.b32 [%rd1], %r1;
    ret;
}
"""


def runs(text: str, *more: int) -> bool:
    """Return True if a kernel runs, False if its text is refused."""
    try:
        launch(text, grid=1, block=32, args=[np.zeros(32, np.int32), *more])
    except WarploomError as error:
        assert error.code == "BAD_OPERANDS", error
        return False
    return True


@cache
def ptxas() -> str:
    """The path of ptxas; empty if there is none."""
    try:
        return str(find("ptxas").path)
    except WarploomError:
        return ""


def assembles(text: str, folder) -> bool:
    file = folder / "kernel.ptx"
    file.write_text(text)
    command = [ptxas(), "-arch", "sm_90a", str(file), "-o", str(folder / "kernel.cubin")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("declared", SPACES)
@pytest.mark.parametrize("named", ACCESSES)
def test_accesses_are_refused_as_by_ptxas(named, declared, tmp_path):
    text = KERNEL.format(
        module=f".{declared} .align 4 .b32 v[4];" if declared in ("global", "const", "shared") else "",
        param=", .param .b32 v" if declared == "param" else "",
        local=".local .align 4 .b32 v[4];" if declared == "local" else "",
        space=f".{named}" if named else "",
    )
    expected = declared in ("global", "shared", "local") if not named else named.startswith(declared)
    assert runs(text, *[3] * (declared == "param")) == expected
    if ptxas():
        assert assembles(text, tmp_path) == expected


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "weak"])
def test_an_access_without_a_space_is_in_that_of_its_variable(schedule):
    out = np.full(32, -1, np.int32)
    launch(UNNAMED, grid=1, block=32, args=[out], schedule=schedule)
    assert np.array_equal(out, 5 + 3 * 32 + np.arange(32))


@pytest.mark.parametrize("space", ["param", "shared", "local"])
def test_calls_pass_parameters_only(space, tmp_path):
    text = CALL.replace("SPACE", space)
    assert runs(text) == (space == "param")
    if ptxas():
        assert assembles(text, tmp_path) == (space == "param")
