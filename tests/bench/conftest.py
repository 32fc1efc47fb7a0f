"""The benchmarks as modules, with a fake GPU: the emulator runs the launches, and the times are made up."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")
if BENCH not in sys.path:
    sys.path.append(BENCH)


PEERS = ("theirs", "peer", "cublas", "eager", "compiled")
"""Sides that are not run: PyTorch has some of them on GPUs only."""


@pytest.fixture
def fake_gpu(monkeypatch, tmp_path):
    """Replace the GPU of modules with a fake one of four SMs; their results go to the test's temporary folder."""
    torch = pytest.importorskip("torch")
    import inputs

    from warploom import launch

    class Prepared:
        def __init__(self, made, arrays=()):
            self.made = made

        def __call__(self, *arrays):
            launch(self.made)

    def timed(sides, sets, flops, options):
        for name, side in sides.items():
            if name not in PEERS:
                side(sets[0])
        return {name: 10.0 + number for number, name in enumerate(sides)}, 1.001

    stand_ins = {
        "Maker": lambda device, exact=False: inputs.Maker("cpu", exact),
        "Prepared": Prepared,
        "timed": timed,
        "rotating": lambda make: [make(), make()],
        "is_lost": lambda: False,
        "machine": lambda: {"gpu": "none"},
        "DEVICE": "cpu",
    }
    properties = SimpleNamespace(multi_processor_count=4, L2_cache_size=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def replace_in(*modules):
        for module in modules:
            for name, value in stand_ins.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, value)
        return tmp_path

    return replace_in
