"""A new keyword of the epilogue touches three files: proved by adding two, in a copy of the package."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from warploom.ops.planning.keywords import NUMBERS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "warploom"
PATCHES = {
    "ops/planning/keywords.py": [
        (
            "    bias: Any = field(",
            """    gain: Any = field(default=1.0, metadata=_is(NUMBER, of=ACCUMULATOR))
    offset: Any = field(default=0.0, metadata=_is(NUMBER))
    bias: Any = field(""",
        )
    ],
    "ops/signatures.py": [("    alpha: float\n", "    alpha: float\n    gain: float\n    offset: float\n")],
    "structured/epilogue/epilogue.py": [
        ("    bias: Operand | None = None\n", "    gain: Number | Value = 1.0\n    offset: Number | Value = 0.0\n{}"),
        ("self._linear(_times(value, scale),", "self._linear(_times(_times(value, scale), self.gain),"),
        ("self._linear(_times(up, scale),", "self._linear(_times(_times(up, scale), self.gain),"),
        ("        return (value, *(kept[name]", '        value = value + valued(self.offset, "f32")\n{}'),
    ],
}
"""By file, what a contributor writes: a text, and what stands in its place; {} is the text itself."""
PROGRAM = """
import inspect, numpy as np, torch, warploom as wl

def ints(*shape, dtype=torch.float32):
    return torch.randint(-2, 3, shape).to(dtype)

assert inspect.signature(wl.linear).parameters["gain"].default == 1.0
x, w, up, bias = ints(5, 16), ints(8, 16), ints(8, 16), ints(8)
want = 6 * (x @ w.T) + bias + 3
options = {"alpha": 2.0, "gain": 3.0, "offset": 3.0, "bias": bias}
arrays = {name: each.numpy() if isinstance(each, torch.Tensor) else each for name, each in options.items()}
for target in ("sm_100a", "sm_90a"):
    assert (wl.linear(x.numpy(), w.numpy(), target=target, **arrays) == want.numpy()).all(), "NumPy"
    assert torch.equal(wl.linear(x, w, target=target, **options), want), "eager"
out = torch.full((5, 8), torch.nan)
assert torch.equal(wl.linear(x, w, out=out, **options), want) and torch.equal(out, want), "out"
assert torch.equal(wl.linear(x, w, gain=-1), -(x @ w.T)), "an integer"

compiled = torch.compile(wl.linear, backend="aot_eager", fullgraph=True)
assert torch.equal(compiled(x, w, **options), want), "compiled"
function = torch.compile(lambda x, w: wl.linear(x, w, gain=2.0, epilogue=lambda acc, at: acc + 1), backend="aot_eager")
assert torch.equal(function(x, w), 2 * (x @ w.T) + 1), "compiled, with a function"

def gradients(call):
    leaves = [each.clone().requires_grad_() for each in (x, w, bias)]
    call(*leaves).backward(torch.ones(5, 8))
    return [each.grad for each in leaves]

theirs = gradients(lambda x, w, b: torch.relu(6 * (x @ w.T) + b))
ours = {"alpha": 2.0, "gain": 3.0, "activation": "relu"}
for run in (wl.linear, compiled, lambda x, w, **rest: wl.matmul(x[None], w.T[None], **rest)[0]):
    for mine, other in zip(gradients(lambda x, w, b: run(x, w, bias=b, **ours)), theirs, strict=True):
        assert torch.equal(mine, other), run

leaves = [each.clone().requires_grad_() for each in (x, w, up)]
wl.gated_linear(*leaves, pair="reglu", gain=2.0).sum().backward()
mine = [each.grad.clone() for each in leaves]
for each in leaves:
    each.grad = None
x_, w_, up_ = leaves
(torch.relu(2 * (x_ @ w_.T)) * (2 * (x_ @ up_.T))).sum().backward()
for found, leaf in zip(mine, leaves, strict=True):
    torch.testing.assert_close(found, leaf.grad, rtol=2e-3, atol=0.1)

for run in (wl.linear, compiled):
    try:
        run(x, w.clone().requires_grad_(), offset=1.0).sum().backward()
    except Exception as error:
        assert "not supported for `offset`" in str(error), error
    else:
        raise AssertionError("a number that is not a factor has no gradient")
for wrong, rule in (("2", "must be a number"), (1e300, "must be in the range of float32")):
    for first, second in ((x, w), (x.numpy(), w.numpy())):
        try:
            wl.linear(first, second, gain=wrong)
        except wl.WarploomError as error:
            assert f"`gain` {rule}" in str(error) + "".join(getattr(error, "__notes__", ())), error
        else:
            raise AssertionError(f"{wrong!r} is not refused")
print("added")
"""


def test_a_keyword_added_in_three_files_works_everywhere(tmp_path):
    """NumPy, eager PyTorch, its compiler and autograd; on both architectures."""
    copy = tmp_path / "warploom"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, edits in PATCHES.items():
        text = (copy / name).read_text("utf-8")
        for old, new in edits:
            assert text.count(old) == 1, f"{name}: {old}"
            text = text.replace(old, new.replace("{}", old))
        (copy / name).write_text(text, "utf-8")
    assert len(PATCHES) == 3
    settings = {"PYTHONPATH": str(tmp_path), "WARPLOOM_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.stdout == "added\n", done.stderr[-3000:]


ALLOWED = {("torch/dispatch.py", "quantise_scale"), ("ops/planning/request.py", "quantise_scale")}
"""A result in a block format holds the scale of the whole tensor."""
KNOWING = ("ops/planning/keywords.py", "ops/signatures.py")


def spelled(file: Path) -> set[str]:
    """The identifiers and texts of a module, without those inside a sentence."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        names = (getattr(node, name, None) for name in ("id", "attr", "arg", "name", "value"))
        found |= {name for name in names if isinstance(name, str)}
    return found


def test_no_other_module_names_a_number():
    """PyTorch's package, the operations, the kernels and the heuristics read the table."""
    packages = ("torch", "ops", "kernels", "heuristics", "tuning", "commands")
    files = [file for name in packages for file in (SOURCE / name).rglob("*.py")]
    found = {
        (file.relative_to(SOURCE).as_posix(), name)
        for file in files
        for name in spelled(file) & set(NUMBERS)
        if file.relative_to(SOURCE).as_posix() not in KNOWING
    }
    assert found == ALLOWED
    assert "alpha" in spelled(SOURCE / "ops/signatures.py"), "the test finds none"
