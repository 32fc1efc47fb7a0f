"""Swapped layers under DDP, FSDP2 and tensor parallelism, and calls on distributed tensors, in two processes (gloo)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

WORLD = 2
SCRIPT = Path(__file__).with_name("distributed_layers.py")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch without torch.distributed")
def test_layers_and_calls_in_several_processes(tmp_path):
    """One start of the processes for all kinds: most of the time is that of their imports."""
    arguments = [sys.executable, str(SCRIPT), "ddp,fsdp2,tensor,calls"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*arguments, str(rank), str(WORLD), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
            env=settings,
        )
        for rank in range(WORLD)
    ]
    try:
        errors = [each.communicate(timeout=1800)[1] for each in running]
    finally:
        for each in running:
            each.kill()
    assert [each.returncode for each in running] == [0] * WORLD, "\n".join(error[-3000:] for error in errors)
