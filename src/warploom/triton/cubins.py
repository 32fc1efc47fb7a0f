"""Cubins of kernels that ran on the emulator: assembled by Triton's ptxas when a program asks for one, or for SASS."""

from __future__ import annotations

import re
import subprocess
import tempfile
from inspect import signature
from pathlib import Path
from typing import Any

from triton.backends.nvidia import compiler as nvidia
from triton.compiler import compiler

from warploom.diagnostics import Diag
from warploom.triton.patches import Patches

_TARGET = re.compile(r"^\.target\s+(sm_(\d+)\w*)", re.MULTILINE)
_ELF = b"\x7fELF"


def assemble_on_demand(patches: Patches) -> None:
    """Let `kernel.asm["cubin"]` and `kernel.asm["sass"]` give what they give on a GPU; the driver keeps the PTX."""
    initialise = compiler.CompiledKernel.__init__

    class Assembled(compiler.AsmDict):
        """The texts of a kernel; its binary is assembled at the first access."""

        def __getitem__(self, key: str) -> Any:
            held = super().__getitem__(key)
            if key == "cubin" and not held.startswith(_ELF):
                held = self[key] = assembled(held.decode())
            return held

    def with_cubin(kernel: Any, *args: Any, **kwargs: Any) -> None:
        initialise(kernel, *args, **kwargs)
        if "cubin" in kernel.asm:
            kernel.asm.__class__ = Assembled

    patches.set(compiler.CompiledKernel, "__init__", with_cubin)


def assembled(ptx: str) -> bytes:
    """The cubin of a PTX text, by the ptxas that Triton brings."""
    found = _TARGET.search(ptx)
    target, number = (found[1], int(found[2])) if found else ("sm_90", 90)
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx, "utf-8")
        command = [_ptxas(number), "-lineinfo", f"--gpu-name={target}", str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  Triton's own tool
        if done.returncode:
            raise Diag.NOT_ASSEMBLED.error(tool="ptxas", target=target, what=done.stderr.strip()[:200])
        return out.read_bytes()


def _ptxas(number: int) -> str:
    """The program that Triton uses for an architecture: it chose the PTX version for this one."""
    takes_number = bool(signature(nvidia.get_ptxas).parameters)  # not in 3.4 and 3.5
    tool = nvidia.get_ptxas(number) if takes_number else nvidia.get_ptxas()
    return str(tool[0] if isinstance(tool, tuple) else tool.path)  # 3.3 has a pair
