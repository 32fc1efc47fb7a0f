"""Variables of modules, which outlive the launches of a program, by the PTX of small kernels."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
from tests.cuda.test_session import allocate, start

import warploom
from warploom.cuda.build import Built
from warploom.cuda.options import Options
from warploom.cuda.session import Session
from warploom.diagnostics import LaunchError
from warploom.host.launch import Launch
from warploom.launcher import _verify

PTX = """
.version 8.7
.target sm_90a
.address_size 64
.global .align 4 .b32 counter;
.const .align 4 .f32 weights[4] = {0f3F800000, 0f40000000, 0f40400000, 0f40800000};
.global .align 8 .u64 places[2] = {counter, generic(weights)+8};

.visible .entry count()
{
  .reg .b32 %r<2>;
  atom.global.add.u32 %r1, [counter], 1;
  ret;
}

.visible .entry look(.param .u64 out)
{
  .reg .b32 %r<4>; .reg .f32 %f<2>; .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [out];
  ld.global.u64 %rd2, [places];
  ld.u32 %r1, [%rd2];
  st.global.b32 [%rd1], %r1;
  ld.const.f32 %f1, [weights+4];
  st.global.f32 [%rd1+4], %f1;
  ret;
}
"""


@pytest.fixture
def session(tmp_path):
    return made(tmp_path)


def made(folder, **options):
    (folder / "kernels.ptx").write_text(PTX)
    built = Built(folder / "program.so", folder / "runtime.so", (folder / "kernels.ptx",))
    return Session(Options.checked(target="sm_90a", **options), built)


def held(session, name, dtype, count=1):
    """The present values of a variable, as the program's host code reaches them."""
    address = session._on_variable(name)
    assert address is not None
    return np.frombuffer(ctypes.string_at(address, count * np.dtype(dtype).itemsize), dtype)


def look(session):
    out = np.full(2, 0xFFFF_FFFF, np.uint32)
    assert start(session, struct.pack("<Q", allocate(session, out)), name=b"look", grid=1) == 0
    return int(out[0]), float(out[1:].view(np.float32)[0])


@pytest.mark.parametrize("options", [{}, {"schedule": "explore", "budget": 4}, {"check": True}])
def test_a_variable_keeps_its_value_from_one_launch_to_the_next(tmp_path, options):
    session = made(tmp_path, **options)
    for _ in range(3):
        assert start(session, name=b"count") == 0
    assert held(session, b"counter", np.uint32) == [3 * 64]
    assert look(session) == (3 * 64, 2.0)


def test_the_host_writes_a_constant_that_kernels_read(session):
    assert list(held(session, b"weights", np.float32, 4)) == [1, 2, 3, 4]
    ctypes.memmove(session._on_variable(b"weights") + 4, struct.pack("<f", 7.5), 4)
    assert look(session) == (0, 7.5)


def test_initial_values_are_addresses_of_other_variables(session):
    counter, weights = (session._on_variable(name) for name in (b"counter", b"weights"))
    assert list(held(session, b"places", np.uint64, 2)) == [counter, weights + 8]


def test_a_variable_that_no_module_defines_has_no_address(session):
    assert session._on_variable(b"missing") is None
    assert session._on_variable(b"count") is None
    assert session.error is None


def test_a_recorded_launch_begins_with_the_values_of_the_variables(tmp_path):
    session = made(tmp_path, record=tmp_path / "files")
    assert start(session, name=b"count") == 0
    ctypes.memmove(session._on_variable(b"weights") + 4, struct.pack("<f", -3.5), 4)
    expected = look(session)
    assert expected == (64, -3.5)
    file = max((tmp_path / "files").glob("*_look.launch.json"))
    replayed = Launch.load(file)
    (out,) = replayed.args
    warploom.launch(replayed)
    words = out.array.reshape(-1).view(np.uint32) if hasattr(out, "array") else np.asarray(out).view(np.uint32)
    assert (int(words[0]), float(words[1:2].view(np.float32)[0])) == expected


def test_variables_in_arrays_are_for_the_emulator():
    launch = Launch(PTX, (1, 1, 1), (32, 1, 1), (), "count", variables=(("counter", np.zeros(4, np.uint8)),))
    with pytest.raises(LaunchError, match="`variables` is for the emulator"):
        _verify(launch)
