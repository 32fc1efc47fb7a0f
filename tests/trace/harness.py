"""Runs traced kernels on the emulator; each is parsed from its text again, and assembled if ptxas is installed."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from warploom import launch
from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.printer import print_module
from warploom.trace import cta_index, kernel, special, thread, when


@functools.cache
def find_ptxas():
    """pip's ptxas, else the one on the PATH."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec is not None else ():
        for found in Path(folder).glob("*/bin/ptxas"):
            return str(found)
    return shutil.which("ptxas")


@functools.cache
def assembled(text: str) -> str:
    """Return the output of ptxas for a text, after its exit status."""
    target = text.partition(".target ")[2].split()[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(text, "utf-8")
        command = [find_ptxas(), f"-arch={target}", "-v", str(file), "-o", str(Path(folder) / "kernel.cubin")]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{run.returncode}\n{run.stdout}{run.stderr}"


def accepted(launch_) -> str:
    """The text of a launch, after the parser has read it back and ptxas has assembled it."""
    text = print_module(launch_.program)
    assert parse(text) == launch_.program
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    verdict = assembled(text)
    assert verdict.startswith("0\n"), verdict
    assert "C75" not in verdict, verdict
    return text


def run(function, *arguments, grid=(1, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), schedule="eager", **constants):
    """Bind, check the text, and run on the emulator."""
    bound = function.bind(*arguments, grid=grid, block=block, cluster=cluster, **constants)
    launch(bound, schedule=schedule)
    return accepted(bound)


def body(text: str) -> list[str]:
    """The instructions and labels of a text, without places and declarations."""
    inside = text.partition("\n{\n")[2].rpartition("}")[0].splitlines()
    return [line.strip() for line in inside if line.strip() and not line.strip().startswith((".loc", ".reg"))]


def elementwise(functions, *inputs, dtype, target="sm_90a"):
    """The results, one row per function, of functions of the elements of some arrays."""
    size = inputs[0].size
    out = np.zeros((len(functions), size), dtype)

    def traced(*views):
        *sources, target_view = views
        index = (cta_index() * special("ntid.x") + thread()).to("s32")
        with when(index < size):
            values = [source[index] for source in sources]
            for row, function in enumerate(functions):
                target_view[row, index] = function(*values)

    run(
        kernel(target=target)(_with_parameters(traced, len(inputs))),
        *inputs,
        out,
        grid=(-(-size // 128), 1, 1),
        block=(128, 1, 1),
    )
    return out


def _with_parameters(traced, count):
    """A function with as many parameters as there are arrays."""
    if count == 1:

        def each(a, out):
            traced(a, out)
    elif count == 2:

        def each(a, b, out):
            traced(a, b, out)
    else:

        def each(a, b, c, out):
            traced(a, b, c, out)

    return each
