"""A hang on the GPU is reported like a deadlock on the emulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.gpu import kernels
from tests.gpu.here import needs_hopper, torch

from warploom import launch
from warploom.diagnostics import WarploomError

pytestmark = needs_hopper
BLOCK = (160, 1, 1)
PROGRAM = """
import torch
from tests.gpu import kernels
from warploom import launch
x = torch.zeros(4, dtype=torch.int32, device="cuda").view(torch.uint32)
launch(kernels.ring.bind(x, 7, grid=(4, 1, 1), block=(160, 1, 1)), timeout=1.0)
print(x.tolist())
launch(kernels.ring.bind(x, 7, grid=(4, 1, 1), block=(160, 1, 1), releases=False), timeout=1.0)
"""


def test_a_planted_hang_is_reported_with_role_barrier_stage_phase_and_iteration():
    x = np.zeros(4, np.uint32)
    with pytest.raises(WarploomError) as caught:
        launch(kernels.ring.bind(x, 7, grid=(4, 1, 1), block=BLOCK, releases=False))
    assert caught.value.code == "DEADLOCK"
    machine = str(caught.value)
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, cwd=root, check=False
    )
    assert run.stdout.startswith("[28, 28, 28, 28]"), run.stderr[-2000:]
    gpu = run.stderr[run.stderr.index("DEADLOCK") :]
    print(machine, gpu, sep="\n")
    places = {
        role: next(line for line in machine.splitlines() if line.split()[:1] == [role]) for role in ("give", "take")
    }
    for role, line in places.items():
        (own,) = [each for each in gpu.splitlines() if each.split()[:1] == [role]]
        place = next(word for word in line.split() if word.startswith("kernels.py:"))
        name = line.split("waits for ")[1].split()[0]
        assert place in own
        assert f"waits for {name} phase of parity" in own
    assert "CTAs (0,0) (1,0) (2,0) (3,0)" in gpu


def test_bounded_waits_change_nothing_else():
    x = torch.zeros(132, dtype=torch.int32, device="cuda").view(torch.uint32)
    launch(kernels.ring.bind(x, 1000, grid=(132, 1, 1), block=BLOCK), timeout=5.0)
    assert set(x.tolist()) == {500500}
