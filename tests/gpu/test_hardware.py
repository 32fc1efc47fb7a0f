"""The corpus of foreign kernels on a GPU and on the emulator: the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu.here import needs_hopper

pytestmark = needs_hopper
HERE = Path(__file__).parent


def test_hardware_and_emulator_agree_bit_for_bit(tmp_path):
    prepared = subprocess.run(
        (sys.executable, str(HERE / "prepare.py"), str(tmp_path)), capture_output=True, text=True, check=False
    )
    if prepared.returncode:  # it is written by other compilers, which a host with a GPU need not have
        pytest.skip(f"the corpus cannot be written here: {prepared.stderr.strip().splitlines()[-1]}")
    subprocess.run((sys.executable, str(HERE / "differential.py"), str(tmp_path)), check=True)
