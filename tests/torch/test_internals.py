"""The private symbols of PyTorch: listed here, each with a fallback, and used in one module."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from warploom.torch import internals  # noqa: E402

SOURCE = Path(internals.__file__).parents[1]
PRIVATE = {
    "_C.DispatchKey.AutogradCUDA",
    "_C.DispatchKey.CPU",
    "_C.DispatchKey.CUDA",
    "_C._FunctionBase.apply",
    "_C._after_autograd_keyset",
    "_C._dispatch_tls_is_dispatch_key_excluded",
    "_C._dynamo.guards._empty_strided_cuda",
    "_C._functorch.peek_interpreter_stack",
    "_C._functorch.unwrap_if_dead",
    "_C._get_tracing_state",
    "_C._is_any_autocast_enabled",
    "_C._len_torch_dispatch_stack",
    "_dynamo.assume_constant_result: _dynamo_marked_constant",
    "_library.autograd.make_autograd_impl",
    "autograd.forward_ad._current_level",
}


def test_the_list_of_private_symbols():
    assert set(internals.SYMBOLS) == PRIVATE


def test_no_other_module_uses_private_symbols():
    found = {}
    for file in SOURCE.rglob("*.py"):
        text = file.read_text("utf-8")
        lines = [line for line in text.splitlines() if re.search(r"\btorch\._[A-Za-z]|forward_ad\._", line)]
        if lines and file.name != "internals.py" and "triton" not in file.parts:
            found[file.relative_to(SOURCE).as_posix()] = lines
    assert set(found) == {"runtime/gpu/driver.py", "runtime/gpu/tensor_signature.py"}, found


WITHOUT = """
import functools, sys
from warploom.torch import internals
import torch

real = functools.reduce
def without(function, path, start):
    if start is torch:
        raise AttributeError(path)
    return real(function, path, start)

source = open(internals.__file__).read()
module = type(sys)("warploom.torch.internals")
module.__file__ = internals.__file__
functools.reduce = without
source = source.replace("from torch._library.autograd import", "from torch._none import")
source = source.replace("KEEPS_MARK = ", "KEEPS_MARK = False and ")
exec(compile(source, "internals", "exec"), module.__dict__)
functools.reduce = real
assert not any(value for name, value in module.SYMBOLS.items() if "forward_ad" not in name), module.SYMBOLS
for name in [name for name in sys.modules if name.startswith("warploom.torch")]:
    del sys.modules[name]
import warploom
sys.modules["warploom.torch.internals"] = module

x = torch.randint(-2, 3, (5, 16)).bfloat16().requires_grad_()
w = torch.randint(-2, 3, (24, 16)).bfloat16()
made = warploom.linear(x, w, activation="relu", bias=torch.ones(24))
assert torch.equal(made.double(), torch.relu(x.double() @ w.double().T + 1)), "result"
made.sum().backward()
want = x.detach().clone().requires_grad_()
torch.relu(want @ w.T + 1).sum().backward()
assert torch.equal(x.grad, want.grad), "gradient"
with torch.no_grad():
    out = torch.empty(5, 24, dtype=torch.bfloat16)
    assert warploom.linear(x, w, out=out) is out
"""


@pytest.mark.filterwarnings("ignore")
def test_results_and_gradients_are_the_same_without_private_symbols():
    """Run in a process in which PyTorch has none of the symbols."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


FIRST_CALL = """
import sys, torch
before = set(sys.modules)
import warploom
x = torch.randint(-2, 3, (5, 16)).bfloat16()
w = torch.randint(-2, 3, (8, 16)).bfloat16().requires_grad_()
made = warploom.linear(x, w, bias=torch.ones(8))
assert torch.equal(made.double(), x.double() @ w.double().T + 1)
made.backward(torch.ones_like(made))
warploom.nn.swap_linears(torch.nn.Sequential(torch.nn.Linear(4, 4)))
found = [name for name in sys.modules.keys() - before if name.startswith(("torch._dynamo", "torch._inductor"))]
assert not found, sorted(found)
"""


@pytest.mark.filterwarnings("ignore")
def test_a_first_eager_call_does_not_import_pytorchs_compiler():
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_mark_of_constant_functions_is_that_of_pytorch():
    def function():
        return 1

    theirs, ours = torch.compiler.assume_constant_result(lambda: 1), internals.constant(function)
    assert vars(theirs) == vars(ours)
    assert ours is function
