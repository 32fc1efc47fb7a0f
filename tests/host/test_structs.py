"""Structures passed by value: pointers, tensor maps and numbers at their offsets, on the emulator and for a GPU."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from tests.machine.asynchronous import init, wait
from tests.runtime.fake_driver import FakeTensor

from warploom import Launch, Struct, TensorMap, launch
from warploom.diagnostics import LaunchError
from warploom.host.arrays import Pointers
from warploom.launch_file import load

KERNEL = f"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 p[256])
{{
 .reg .pred %p15, %first; .reg .b32 %r<9>; .reg .b64 %rd<9>;
 .shared .align 1024 .b8 data[1024];
 .shared .align 8 .b8 bars[8];
 mov.u32 %r0, %tid.x; setp.eq.u32 %first, %r0, 0;
 {init(1)}
 mov.b64 %rd0, p; add.u64 %rd0, %rd0, 64; cvta.param.u64 %rd1, %rd0;
 @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 128;
 @%first cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [data], [%rd1, {{0, 2}}], [bars];
 {wait("W")}
 ld.param.u64 %rd2, [p]; ld.param.u32 %r1, [p+12]; ld.param.u64 %rd3, [p+208]; ld.param.u64 %rd4, [p+200];
 ld.global.u64 %rd3, [%rd3+8]; ld.global.u32 %r2, [%rd3];
 shl.b32 %r3, %r0, 2; mov.u32 %r4, data; add.u32 %r4, %r4, %r3; ld.shared.u32 %r5, [%r4];
 mad.lo.u32 %r5, %r5, %r1, %r2; cvt.u32.u64 %r6, %rd4; add.u32 %r5, %r5, %r6;
 cvt.u64.u32 %rd5, %r3; add.u64 %rd2, %rd2, %rd5; st.global.u32 [%rd2], %r5;
 ret;
}}
"""


def arguments(rng):
    source = rng.integers(0, 1000, (8, 8), dtype=np.uint32)
    table = [rng.integers(0, 1000, 4, dtype=np.uint32), rng.integers(0, 1000, 3, dtype=np.uint32)]
    return source, table, np.zeros(32, np.uint32)


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_pointers_maps_and_numbers_reach_the_kernel(schedule):
    source, table, out = arguments(np.random.default_rng(4))
    inner = Struct(16, {0: None, 8: Pointers(table)})
    given = Struct(256, {0: out, 12: np.int32(7), 64: TensorMap(source, box=(4, 8)), 200: inner})
    launch(KERNEL, grid=1, block=32, args=[given], schedule=schedule)
    assert (out == source[2:6].reshape(-1) * 7 + table[1][0]).all()


def test_raw_bytes_and_a_map_in_the_hardwares_format():
    """A structure as another runtime writes it: host addresses, and a tensor map made of bits."""
    source, table, out = arguments(np.random.default_rng(5))
    addresses = np.array([0, table[1].ctypes.data], np.uint64)
    word = 1 << 4 | 2 << 7  # rank 2, elements of u32
    hardware = struct.pack(
        "<QI5I5II4B", source.ctypes.data, word, 32 >> 4, 0, 0, 0, 0, 7, 7, 0, 0, 0, (8 - 1) << 24, 4 - 1, 0, 0, 0
    )
    raw = bytearray(256)
    struct.pack_into("<QIi", raw, 0, out.ctypes.data, 0, -3)
    raw[64 : 64 + len(hardware)] = hardware
    struct.pack_into("<QQ", raw, 200, 5, addresses.ctypes.data)
    held = (out, source, addresses, table[1])
    launch(Launch(KERNEL, (1, 1, 1), (32, 1, 1), (bytes(raw),), at_host_address=held))
    assert (out == source[2:6].reshape(-1) * np.uint32(-3 & 0xFFFFFFFF) + table[1][0] + 5).all()


@pytest.mark.parametrize(
    ("data", "fields", "words"),
    [
        (16, {12: np.zeros(3)}, "byte 12: 8 bytes do not fit into 16"),
        (16, {0: np.zeros(3), 4: np.int32(3)}, "byte 4: it overlaps the field before it, which ends at byte 8"),
        (256, {32: TensorMap(np.zeros((8, 8), np.float32), box=(8, 8))}, "a tensor map begins at a multiple of 64"),
        (16, {0: 5}, "byte 0: a int is not an array"),
        (16, {-8: None}, "byte -8"),
        (0, {}, "at least one byte"),
        ("text", {}, "not from a str"),
    ],
)
def test_wrong_structures_are_reported(data, fields, words):
    with pytest.raises(LaunchError) as caught:
        Struct(data, fields)
    assert words in str(caught.value)


def test_a_structure_of_another_size_is_reported():
    with pytest.raises(LaunchError, match="a structure of 8 bytes, the parameter has 256"):
        launch(KERNEL, grid=1, block=32, args=[Struct(8)])


def test_arrays_of_the_host_and_of_a_gpu_do_not_mix():
    mixed = Struct(256, {0: np.zeros(4, np.uint32), 8: FakeTensor(0x1000, (4,), "float32")})
    with pytest.raises(LaunchError, match="some arrays are on the host and some on a GPU"):
        launch(KERNEL, grid=1, block=32, args=[mixed])


def document(**changes):
    fields = [
        {"at": 0, "value": {"pointer": "out"}},
        {"at": 12, "value": {"s32": 7}},
        {"at": 64, "value": {"tensor_map": "x", "box": [4, 8]}},
        {"at": 200, "value": {"struct": 16, "fields": [{"at": 8, "value": {"pointers": [None, "y"]}}]}},
    ]
    return {
        "ptx": "k.ptx",
        "grid": [1, 1, 1],
        "block": [32, 1, 1],
        "buffers": {
            "x": {"dtype": "uint32", "shape": [8, 8]},
            "y": {"dtype": "uint32", "shape": [3]},
            "out": {"dtype": "uint32", "shape": [32], "output": True},
        },
        "args": [{"struct": 256, "fields": fields} | changes],
        "compare": [{"expr": "out == reshape(x[2:6, :], 32) * 7 + y[0]"}],
    }


def test_a_launch_file_has_structures(tmp_path):
    (tmp_path / "k.ptx").write_text(KERNEL)
    (tmp_path / "k.launch.json").write_text(json.dumps(document()))
    file = load(tmp_path / "k.launch.json")
    buffers = file.allocate()
    launch(file.launch(buffers))
    assert file.check(buffers) == []
    buffers["out"][3] += 1
    assert file.check(buffers)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"struct": 16}, "byte 64: 128 bytes do not fit into 16"),
        ({"fields": [{"at": 0, "value": {"pointer": "z"}}]}, "fields[0]: there is no buffer `z`"),
        ({"fields": [{"at": 8, "value": {"s32": 1}}, {"at": 8, "value": {"s32": 2}}]}, "2 fields begin at byte 8"),
        ({"fields": [{"at": 8, "value": {"s32": 1 << 40}}]}, "is not a value of .s32"),
        ({"struct": 1 << 20}, "is above 4096"),
    ],
)
def test_wrong_structures_in_a_file(tmp_path, changes, words):
    (tmp_path / "k.ptx").write_text(KERNEL)
    (tmp_path / "k.launch.json").write_text(json.dumps(document(**changes)))
    with pytest.raises(Exception, match="wrong") as caught:
        load(tmp_path / "k.launch.json")
    assert words in str(caught.value)
