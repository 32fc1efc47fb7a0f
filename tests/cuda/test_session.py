"""A session without a compiled program: its callbacks are called as the runtime calls them."""

from __future__ import annotations

import ctypes
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.cutedsl.test_machine import KERNEL

from warploom import launch
from warploom.cuda.build import Built, _fresh, _times
from warploom.cuda.memory import DeviceMemory
from warploom.cuda.options import Options
from warploom.cuda.session import Session
from warploom.diagnostics import ArgumentError, Fault
from warploom.host.launch import Launch

TILE = 0
"""cuTensorMapEncodeTiled: no interleave, no swizzle, no promotion, zero fill."""


@pytest.fixture
def session(tmp_path):
    return made(tmp_path)


def made(folder, **options):
    (folder / "kernel.ptx").write_text(KERNEL)
    chosen = Options.checked(target="sm_100a", **options)
    return Session(chosen, Built(folder / "program.so", folder / "runtime.so", (folder / "kernel.ptx",)))


def allocate(session, array):
    session.memory.note(array.ctypes.data, array.nbytes)
    return array.ctypes.data


def encode(session, address, extents=(8, 8), box=(8, 4)):
    room = ctypes.create_string_buffer(192)
    at = ctypes.addressof(room) + -ctypes.addressof(room) % 64
    wide = ctypes.c_uint64 * len(extents)
    narrow = ctypes.c_uint32 * len(extents)
    status = session._on_tiled(
        at, 2, len(extents), address, wide(*extents), wide(32), narrow(*box), narrow(1, 1), *[TILE] * 4
    )
    return status, ctypes.string_at(at, 128)


def start(session, *arguments, grid=2, name=b"scaled", dependent=0):
    held = [ctypes.create_string_buffer(raw, len(raw)) for raw in arguments]
    pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(each) for each in held])
    return session._on_launch(name, (ctypes.c_uint32 * 10)(grid, 1, 1, 32, 1, 1, 1, 1, 1, dependent), 0, pointers)


def scaled(session, factor=3, **options):
    """Run the kernel; its input, its output and the status."""
    source = np.random.default_rng().integers(-99, 99, (8, 8)).astype(np.int32)
    out = np.full((8, 8), 7777, np.int32)
    encoded, map_ = encode(session, allocate(session, source))
    assert encoded == 0
    return source, out, start(session, map_, struct.pack("<Qii", allocate(session, out), factor, 0), **options)


def test_memory_is_found_by_an_address_inside_it():
    memory, arrays = DeviceMemory(), [np.arange(count, dtype=np.uint8) for count in (64, 1, 4000)]
    for array in arrays:
        memory.note(array.ctypes.data, array.nbytes)
    for array in arrays:
        for at in (0, array.nbytes - 1):
            start_, found = memory.at(array.ctypes.data + at)
            assert start_ == array.ctypes.data
            assert np.shares_memory(found, array)
    assert memory.at(8) is None
    first = arrays[0].ctypes.data
    memory.note(first, 0)
    memory.note(first, 0)
    assert memory.at(first) is None
    assert len(memory.all()) == 2


def test_launches_run_on_the_memory_of_the_program(session):
    source, out, status = scaled(session)
    assert status == 0
    np.testing.assert_array_equal(out, 3 * source)
    assert [each.kernel for each in session.launches.ran] == ["scaled"]


def test_the_first_error_is_kept(session):
    _, _, status = scaled(session, grid=3)  # the third CTA writes beyond the output
    assert status != 0
    assert isinstance(session.error, Fault)
    first = session.error
    assert start(session, b"", name=b"missing") != 0
    assert session.error is first


@pytest.mark.parametrize("extents", [(8, 8), (8, 9)])
def test_a_map_of_memory_that_the_program_does_not_have_fails_when_it_is_used(session, extents):
    """A program may encode a map that its kernels change first."""
    small = np.zeros((8, 8), np.int32)
    status, map_ = encode(session, 4096 if extents == (8, 8) else allocate(session, small), extents=extents)
    assert status == 0
    assert session.error is None
    out = np.zeros((12, 8), np.int32)
    assert start(session, map_, struct.pack("<Qii", allocate(session, out), 3, 0), grid=3) != 0
    assert "its tensor lies nowhere" in str(session.error) or "The box at (0, 8) of a tensor copy" in str(session.error)


def test_a_map_that_the_driver_refuses_is_refused(session):
    status, _ = encode(session, allocate(session, np.zeros(256, np.int32)), box=(8, 300))
    assert status != 0
    assert "box: axis 0 has 300 elements, not 1 to 256" in str(session.error.notes)


def test_equal_launches_are_checked_once_and_repeats_are_skipped(tmp_path):
    session = made(tmp_path, check=True, repeats=2)
    source = np.ones((8, 8), np.int32)
    out = np.zeros_like(source)
    _, map_ = encode(session, allocate(session, source))
    where = allocate(session, out)
    for factor in (3, 3, 3, 3, 4):
        assert start(session, map_, struct.pack("<Qii", where, factor, 0)) == 0
    assert (out == 4).all()
    assert (len(session.launches.ran), session.skipped, len(session.launches.reports)) == (3, 2, 2)
    assert session.launches.refuted() is None


def test_a_dependent_launch_is_checked_as_one(tmp_path):
    session = made(tmp_path, check=True)
    for dependent in (0, 1):
        assert scaled(session, dependent=dependent)[2] == 0
    texts = ["\n".join(each.assumptions) for each in session.launches.reports]
    assert ["dependent-launch" in text for text in texts] == [False, True]


def test_a_recorded_launch_has_references_instead_of_addresses(tmp_path):
    session = made(tmp_path, record=tmp_path / "files")
    source, out, status = scaled(session)
    assert status == 0
    (file,) = (tmp_path / "files").glob("*.launch.json")
    map_, rest = json.loads(file.read_text())["args"]
    assert (map_["tensor_map"], map_["box"], map_["shape"]) == ("buffer0", [4, 8], [8, 8])
    assert rest["fields"][0] == {"at": 0, "value": {"pointer": "buffer1", "offset": 0}}
    replayed = Launch.load(file)
    assert launch(replayed).instructions == session.launches.ran[0].instructions
    assert np.array_equal(out, 3 * source)


def test_a_build_is_stale_when_a_header_changes(tmp_path):
    header, program = tmp_path / "a.h", tmp_path / "program.so"
    header.write_text("1")
    program.write_text("")
    stamp = {"command": ["nvcc"], "runtime": ""}
    times = _times(f"out.o: \\\n {header} \\\n missing.h\n")
    assert list(times) == [str(header)]
    (tmp_path / "build.json").write_text(json.dumps({**stamp, "times": times}))
    assert _fresh(tmp_path, stamp, program)
    assert not _fresh(tmp_path, {**stamp, "command": ["nvcc", "-O3"]}, program)
    times[str(header)] += 1
    (tmp_path / "build.json").write_text(json.dumps({**stamp, "times": times}))
    assert not _fresh(tmp_path, stamp, program)


def test_options_are_checked_together():
    with pytest.raises(ArgumentError) as caught:
        Options.checked(target="sm_1", repeats=0, budget=0, check="weak", sms=-1)
    for name in ("target", "repeats", "budget", "check", "sms"):
        assert f"`{name}`" in str(caught.value)


def test_the_runtime_is_part_of_the_package():
    assert (Path(Session.run.__code__.co_filename).parent / "runtime.c").is_file()
