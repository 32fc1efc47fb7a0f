"""Releases of Triton: the table, and a program run by every release that `WARPLOOM_TRITONS` leads to.

`WARPLOOM_TRITONS` is a path list of directories, each made by `pip install --no-deps --target DIR triton==VERSION`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warploom.diagnostics import WarploomError
from warploom.triton.releases import RELEASES, release_of

DIRECTORIES = [path for path in os.environ.get("WARPLOOM_TRITONS", "").split(os.pathsep) if path]
PROGRAM = """
import sys
import torch, triton
import triton.language as tl
from warploom.triton import machine

def integers(*shape):
    return torch.randint(-4, 5, shape, device="cuda").half()

with machine(target=sys.argv[1]):
    from tests.triton import kernels  # Triton 3.3 asks for the driver where a kernel is decorated

    x, out = torch.randn(500, device="cuda"), torch.full((500,), float("nan"), device="cuda")
    kernels.add[(2,)](x, x, out, 500, BLOCK=256)
    assert torch.equal(out, 2 * x)
    a, b, c = integers(70, 64), integers(64, 90), torch.full((70, 90), float("nan"), device="cuda")
    kernels.matmul[(2, 2)](a, b, c, 70, 90, 64, 64, 90, 90, BM=64, BN=64, BK=32)
    assert torch.equal(c, a.float() @ b.float())
    kernels.weighted[(1,)]((x, (x, 7)), out, (2.0, -3.0), 50, BLOCK=64)
    torch.testing.assert_close(out[:50], 7 - x[:50])
    rows = [torch.randn(64, device="cuda") for _ in range(3)]
    gathered = torch.full((3, 64), float("nan"), device="cuda")
    kernels.gather_rows[(3,)](torch.tensor([row.data_ptr() for row in rows], device="cuda"), gathered, BLOCK=64)
    assert torch.equal(gathered, torch.stack(rows))
    total = torch.zeros(500, device="cuda")
    kernels.tuned_accumulate[lambda meta: (triton.cdiv(500, meta["BLOCK"]),)](x, total, 500)
    assert torch.equal(total, x)
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 4):
        from triton.tools.tensor_descriptor import TensorDescriptor
        a, b, c = integers(64, 128), integers(64, 128), torch.full((64, 64), float("nan"), device="cuda").half()
        made = [TensorDescriptor.from_tensor(each, [64, 64]) for each in (a, b, c)]
        kernels.descriptor_matmul[(1, 1)](*made, 64, 64, 128, BM=64, BN=64, BK=64)
        assert torch.equal(c, (a.float() @ b.float().T).half())
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        c.fill_(float("nan"))
        kernels.device_descriptor_matmul[(1,)](a, b, c, 64, 64, 128, BM=64, BN=64, BK=64)
        assert torch.equal(c, (a.float() @ b.float().T).half())
print(triton.__version__)
"""


def test_the_table_is_ordered():
    firsts = [row.first for row in RELEASES]
    assert firsts == sorted(set(firsts))


@pytest.mark.parametrize(
    ("version", "first"),
    [("3.3.1", (3, 3)), ("3.4.0", (3, 4)), ("3.6.0", (3, 5)), ("3.7.0", (3, 7)), ("3.9.0", (3, 7)), ("4.0", (3, 7))],
)
def test_a_version_finds_its_row(version, first):
    assert release_of(version).first == first


def test_an_old_version_is_an_error():
    with pytest.raises(WarploomError, match=r"Triton 3\.2\.0 is too old"):
        release_of("3.2.0")


@pytest.mark.slow
@pytest.mark.skipif(not DIRECTORIES, reason="WARPLOOM_TRITONS names no other release of Triton")
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("directory", DIRECTORIES or [None])
def test_another_release(directory, target, tmp_path):
    root = Path(__file__).parents[2]
    path = os.pathsep.join((directory, str(root / "src"), str(root)))
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, target], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (Path(directory) / f"triton-{done.stdout.strip()}.dist-info").exists()
