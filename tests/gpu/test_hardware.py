"""The corpus of foreign kernels on a GPU and on the machine: the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu.here import needs_hopper

pytestmark = needs_hopper
HERE = Path(__file__).parent


def test_hardware_gives_the_bits_of_the_machine(tmp_path):
    prepared = subprocess.run(
        (sys.executable, str(HERE / "prepare.py"), str(tmp_path)), capture_output=True, text=True, check=False
    )
    if prepared.returncode:  # other compilers write it, and they need not be on a machine that has a GPU
        pytest.skip(f"the corpus cannot be written here: {prepared.stderr.strip().splitlines()[-1]}")
    subprocess.run((sys.executable, str(HERE / "differential.py"), str(tmp_path)), check=True)
