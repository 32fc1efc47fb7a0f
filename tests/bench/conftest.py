"""The benchmarks as modules, and a GPU to pretend with: the machine runs what is launched, and every time is made up."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")
if BENCH not in sys.path:
    sys.path.append(BENCH)


PEERS = ("theirs", "peer", "cublas", "eager", "compiled")
"""PyTorch has some of them on GPUs only."""


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """Makes modules believe in a GPU of four multiprocessors; their results go to a folder of the test's."""
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

    def pretend(*modules):
        for module in modules:
            for name, value in stand_ins.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, value)
        return tmp_path

    return pretend
