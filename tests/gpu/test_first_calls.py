"""First calls and repeated ones on a Hopper GPU: traces from another process, and tensors that change between calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom.ops as wl
from warploom.diagnostics import WarploomError
from warploom.ops.planning.prepare import plan_matmul

pytestmark = needs_hopper
ROOT = Path(__file__).parents[2]
FIRST = """
import sys, torch, warploom as wl
from warploom.trace import Array, f32, kernel, thread
from warploom.trace.kernel import KernelFunction
traced, own = [], KernelFunction._trace
KernelFunction._trace = lambda self, *args: traced.append(self.name) or own(self, *args)
torch.manual_seed(0)
def ints(*shape): return torch.randint(-2, 3, shape, device="cuda").to(torch.bfloat16)
factor = float(sys.argv[1])
a, b, bias, residual = ints(257, 136), ints(136, 264), ints(264), ints(257, 264)
made = wl.matmul(a, b, bias=bias, residual=residual, activation="relu", epilogue=lambda value, at: value * factor)
want = torch.relu(a.double() @ b.double() + bias.double()) * factor + residual.double()
assert torch.equal(made.double(), want.to(torch.bfloat16).double())
@kernel
def scaled(x: Array[f32]):
    x[thread()] = x[thread()] * factor
x = torch.arange(128, device="cuda", dtype=torch.float32)
wl.launch(scaled.bind(x, grid=(1, 1, 1), block=(128, 1, 1)))
assert torch.equal(x, torch.arange(128, device="cuda", dtype=torch.float32) * factor)
print(*traced)
"""


def ints(*shape):
    return torch.randint(-2, 3, shape, device="cuda").to(torch.bfloat16)


def test_another_process_traces_nothing(tmp_path):
    script = tmp_path / "first.py"
    script.write_text(FIRST)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "WARPLOOM_CACHE_DIR": str(tmp_path / "cache")}
    traced = []
    for factor in ("2", "2", "4", "2"):
        run = subprocess.run(
            [sys.executable, script, factor], env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        traced.append(run.stdout.split())
    assert [len(names) for names in traced] == [2, 0, 2, 0]


def test_short_lived_tensors_are_read_at_their_own_addresses():
    w, bias = ints(264, 136), ints(264)
    for turn in range(40):
        x, residual = ints(100 + turn % 3, 136), ints(100 + turn % 3, 264)
        options = {"bias": bias, "residual": residual} if turn % 2 else {"residual": residual, "bias": bias}
        want = x.double() @ w.double().T + bias.double() + residual.double()
        assert torch.equal(wl.linear(x, w, **options).double(), want.to(torch.bfloat16).double())


def test_weights_that_change_device_or_layout_are_noticed():
    x, w = ints(64, 128), ints(256, 128)
    want = wl.linear(x, w)
    with pytest.raises(WarploomError, match="on cpu"):
        wl.linear(x, w.cpu())
    assert torch.equal(wl.linear(x, w), want)
    square = ints(128, 128)
    before = wl.linear(x, square)
    square.t_()
    assert torch.equal(wl.linear(x, square).double(), (x.double() @ square.double().T).to(torch.bfloat16).double())
    assert not torch.equal(wl.linear(x, square), before)


def test_a_number_for_the_bias_and_a_residual_that_is_not_read():
    x, w, residual = ints(64, 128), ints(256, 128), ints(64, 256)
    product = x.double() @ w.double().T
    for _ in range(3):
        assert torch.equal(wl.linear(x, w, bias=2.0).double(), (product + 2).to(torch.bfloat16).double())
        found = wl.linear(x, w, residual=residual, beta=0.0)
        assert torch.equal(found.double(), product.to(torch.bfloat16).double())


@pytest.mark.parametrize(
    "change", [lambda x: x.t_(), lambda x: x.resize_(64, 128), lambda x: setattr(x, "data", x.half())]
)
def test_a_prepared_call_sees_in_place_changes(change):
    a, b, out = ints(128, 128), ints(128, 128), ints(128, 128)
    call = plan_matmul(a, b, out=out)
    for _ in range(2):
        call(a, b, out)
    assert torch.equal(out.double(), (a.double() @ b.double()).to(torch.bfloat16).double())
    change(a)
    with pytest.raises(WarploomError, match="should be"):
        call(a, b, out)
