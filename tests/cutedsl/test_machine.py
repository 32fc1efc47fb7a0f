"""CuTe DSL's launches: a host program calls the library as compiled host code does; CuTe DSL itself is not needed."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import struct
import sys

import numpy as np
import pytest
from tests.machine.asynchronous import init, wait

from warploom.cutedsl import machine
from warploom.diagnostics import ArgumentError, Fault, LaunchError, UnsupportedError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)

KERNEL = f"""
.version 8.7
.target sm_100a
.address_size 64
.visible .entry scaled(.param .align 64 .b8 map[128], .param .align 8 .b8 rest[16])
{{
 .reg .pred %p15, %first; .reg .b32 %r<9>; .reg .b64 %rd<9>;
 .shared .align 1024 .b8 data[1024];
 .shared .align 8 .b8 bars[8];
 mov.u32 %r0, %tid.x; setp.eq.u32 %first, %r0, 0;
 {init(1)}
 mov.b64 %rd0, map; cvta.param.u64 %rd1, %rd0; mov.u32 %r7, %ctaid.x; shl.b32 %r7, %r7, 2;
 @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 128;
 @%first cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [data], [%rd1, {{0, %r7}}], [bars];
 {wait("W")}
 ld.param.u64 %rd2, [rest]; ld.param.u32 %r1, [rest+8];
 shl.b32 %r3, %r0, 2; mov.u32 %r4, data; add.u32 %r4, %r4, %r3; ld.shared.u32 %r5, [%r4]; mul.lo.u32 %r5, %r5, %r1;
 mad.lo.u32 %r3, %r7, 32, %r3; cvt.u64.u32 %rd5, %r3; add.u64 %rd2, %rd2, %rd5; st.global.u32 [%rd2], %r5;
 ret;
}}
"""
CLUSTER = 4


class HostCode:
    """The calls of CuTe DSL's compiled host code: it loads a library, encodes a map, launches by a configuration."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ["CUTE_DSL_LIBS"])
        self.kernel, module = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.library._cudaLibraryLoadData(ctypes.byref(module), b"cubin") == 0
        assert self.library._cudaLibraryGetKernel(ctypes.byref(self.kernel), module, b"scaled") == 0

    def encode(self, address, extents, strides, box, swizzle=0):
        room = ctypes.create_string_buffer(192)
        at = -ctypes.addressof(room) % 64
        rank = len(extents)
        status = self.library._cuTensorMapEncodeTiled(
            ctypes.byref(room, at), 2, rank, ctypes.c_void_p(address), (ctypes.c_uint64 * rank)(*extents),
            (ctypes.c_uint64 * (rank - 1))(*strides), (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank), 0, swizzle, 0, 0,
        )  # fmt: skip
        return status, room.raw[at : at + 128]

    def launch(self, *arguments, grid=1, cluster=1):
        held = [ctypes.create_string_buffer(raw, len(raw)) for raw in arguments]
        pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(each) for each in held])
        attribute = ctypes.create_string_buffer(struct.pack("<I4x3I", CLUSTER, cluster, 1, 1), 72)
        shape = struct.pack("<6IQQQI4x", grid, 1, 1, 32, 1, 1, 0, 0, ctypes.addressof(attribute), 1)
        return self.library._cudaLaunchKernelEx(ctypes.create_string_buffer(shape, len(shape)), self.kernel, pointers)


def scale(host, source, out, factor, rows=4, **options):
    """Encode, pack and launch, for arrays at addresses."""
    status, map_ = host.encode(source, (8, 2 * rows), (32,), (8, rows))
    return status, host.launch(map_, struct.pack("<Qii", out, factor, 0), **options)


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_launches_run_on_the_emulator(tmp_path, schedule):
    source = np.random.default_rng(1).integers(0, 1000, (8, 8), dtype=np.uint32)
    out = np.zeros((8, 8), np.uint32)
    before = dict(os.environ)
    with machine(schedule=schedule, ptx=tmp_path) as session:
        (tmp_path / "dump").mkdir()
        (tmp_path / "dump" / "kernel.ptx").write_text(KERNEL + "\0")
        assert os.environ["CUTE_DSL_KEEP_PTX"] == "1"
        assert os.environ["CUTE_DSL_ARCH"] == "sm_100a"
        session.hold(source, out)
        assert scale(HostCode(), source.ctypes.data, out.ctypes.data, 7, grid=2, cluster=2) == (0, 0)
    assert (out == source * 7).all()
    assert [(each.kernel, each.grid) for each in session.launches] == [("scaled", (2, 1, 1))]
    assert dict(os.environ) == before


def test_tensors_of_pytorch_are_found_and_mapped_to_the_host(tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "kernel.ptx").write_text(KERNEL)
    with machine(ptx=tmp_path, sms=3):
        source = torch.randint(0, 1000, (8, 8), device="cuda", dtype=torch.int32)
        out = torch.zeros(8, 8, device="cuda", dtype=torch.int32)
        assert torch.cuda.get_device_capability() == (10, 0)
        host, count = HostCode(), ctypes.c_int()
        host.library._cudaDeviceGetAttribute(ctypes.byref(count), 16, 0)
        assert count.value == 3
        gc.collect()
        assert scale(host, source.data_ptr(), out.data_ptr(), 5, grid=2) == (0, 0)
        assert torch.equal(out, source * 5)


def act(folder, program, *arrays, target="sm_100a"):
    """Run a program in the block of a machine."""
    with machine(target, ptx=folder) as session:
        session.hold(*arrays)
        program(HostCode())


def test_a_fault_is_raised_at_the_end_of_the_block(tmp_path):
    (tmp_path / "kernel.ptx").write_text(KERNEL)
    source, out, statuses = np.zeros((8, 8), np.uint32), np.zeros(8, np.uint32), []

    def program(host):
        statuses.extend(scale(host, source.ctypes.data, out.ctypes.data, 7)[1] for _ in range(2))
        assert (out == 1).all(), "the comparison of the program, which fails"

    with pytest.raises(Fault, match="OUT_OF_BOUNDS"):
        act(tmp_path, program, source, out)
    assert all(statuses), "no launch runs after a fault"


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        (lambda host: host.library._cudaMalloc(), UnsupportedError, "`cudaMalloc`"),
        (lambda host: host.encode(0x1000, (8, 8), (32,), (8, 8)), LaunchError, "in no known array"),
        (lambda host: host.launch(bytes(128), bytes(16)), LaunchError, "has the kernel `scaled`"),
    ],
)
def test_calls_that_cannot_work_are_reported(tmp_path, program, error, words):
    with pytest.raises(error, match=words):
        act(tmp_path, program)


def test_illegal_maps_are_reported(tmp_path):
    source = np.zeros((8, 8), np.uint32)
    with pytest.raises(LaunchError, match="BAD_TENSOR_MAP"):
        act(tmp_path, lambda host: host.encode(source.ctypes.data, (8, 8), (24,), (8, 8)), source)


def test_blocks_do_not_nest_and_options_are_checked(tmp_path):
    with machine(), pytest.raises(LaunchError, match="do not nest"):
        machine().__enter__()
    with pytest.raises(ArgumentError, match=r"`target` is 'sm_42'.*`sms` is 0.*a folder that exists"):
        machine(target="sm_42", sms=0, ptx=tmp_path / "absent").__enter__()
