"""`device_print` and `device_assert` on a Hopper GPU: CUDA writes to the process's own streams, so each runs in a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu.here import needs_hopper

pytestmark = needs_hopper
START = "import torch\nfrom tests.gpu import kernels\nx = torch.arange(32, dtype=torch.int32, device='cuda')\n"


def run(program: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", START + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root, check=False)


def test_printed_text_appears_when_the_host_synchronises():
    done = run("kernels.printing[2, 32](x, 3)\ntorch.cuda.synchronize()\n")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("CTA")]
    assert sorted(lines) == [f"CTA {cta} element {i} is {i} of 100%" for cta in (0, 1) for i in range(3)]


@pytest.mark.parametrize("bound", [32, 31])
def test_a_failed_assertion_prints_its_message_and_ends_the_kernel(bound):
    done = run(f"kernels.asserting[1, 32](x, {bound})\ntorch.cuda.synchronize()\n")
    if bound == 32:
        assert done.returncode == 0, done.stderr[-2000:]
    else:
        assert done.returncode != 0
        assert "x must be below the bound" in done.stdout + done.stderr
        assert "kernels.py" in done.stdout + done.stderr
