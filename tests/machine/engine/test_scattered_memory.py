"""Native code where free memory is scattered: parts of an object that are 2 GB apart cannot refer to each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

PROGRAM = """
import ctypes, mmap, sys
from pathlib import Path
import warploom
from warploom.launch_file import load
from warploom.machine.engine import native

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
PRIVATE_ANONYMOUS_NORESERVE = 0x4022


def reserve(size):
    return libc.mmap(None, size, 0, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)


def fill():
    # The kernel fills gaps from the top; pages that follow each other downwards come from below all of them.
    last, run = reserve(mmap.PAGESIZE), 0
    while run < 1000:
        new = reserve(mmap.PAGESIZE)
        last, run = new, run + 1 if new == last - mmap.PAGESIZE else 0


linked, sizes = native.Engine._linked, []


def scattered(self, objects):
    fill()
    pages = [reserve(mmap.PAGESIZE) for _ in range(64)]
    reserve(4 << 30)
    fill()
    for page in pages[::2]:
        libc.munmap(page, mmap.PAGESIZE)
    sizes.extend(len(each.content) for each in objects.values())
    return linked(self, objects)


native.Engine._linked = scattered
file = load(Path(sys.argv[1]))
buffers = file.allocate()
warploom.launch(file.launch(buffers))
print(max(sizes))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fills the address space as Linux gives it out")
def test_kernels_run_where_free_memory_is_scattered(tmp_path):
    """The code of an object is longer than a page, and its constants are not: they find place 4 GB above it."""
    root = Path(__file__).parents[3]
    file = root / "tests" / "foreign" / "nvcc_wgmma_sm90.launch.json"
    environment = os.environ | {"WARPLOOM_ENGINE": "native", "WARPLOOM_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(file)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert int(done.stdout) > 2 * 4096
