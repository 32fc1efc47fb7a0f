"""NVIDIA's command-line tools: their paths and versions."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.ptx_releases import first_cuda
from warploom.runtime.cache.disk import user_cache

PTXAS, NVDISASM = "ptxas", "nvdisasm"
_VERSION = re.compile(r"\bV(\d+(?:\.\d+)+)")
_TOOLKIT = re.compile(r"cu(\d+)")
_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that can be run; `origin` says where it was found: `pip`, `PATH`, `Triton`, or a variable."""

    name: str
    path: Path
    origin: str
    version: str

    @property
    def cuda(self) -> tuple[int, int]:
        """The CUDA version that it belongs to; zeros if it does not say."""
        numbers = self.version.split(".")[:2]
        return (int(numbers[0]), int(numbers[1])) if len(numbers) > 1 and "".join(numbers).isdecimal() else (0, 0)

    def misfit(self, driver: tuple[int, int], version: tuple[int, int]) -> str:
        """Return why it cannot assemble a PTX version for a driver; an empty string if it can, or may."""
        if self.cuda[0] > driver[0]:
            return f"which is too old for the code of {self}"
        if (0, 0) < self.cuda < first_cuda(version):
            return f"since {self} is too old for PTX {version[0]}.{version[1]}"
        return ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def variable_of(name: str) -> str:
    """Return the environment variable that names another program, such as `WARPLOOM_PTXAS`."""
    return f"WARPLOOM_{name.upper()}"


def find(name: str) -> Tool:
    """Return the program that the environment variable names, or else pip's, the one on the PATH, or Triton's."""
    variable = variable_of(name)
    named = os.environ.get(variable)
    if named:
        program = shutil.which(named)
        if program is None:
            raise _missing(name, f"{variable} names {named}, which is not a program")
        return _tool(name, Path(program), variable)
    for path in _from_pip(name):
        return _tool(name, path, "pip")
    on_path = shutil.which(name)
    if on_path is not None:
        return _tool(name, Path(on_path), "PATH")
    for path in _installed(f"triton/backends/nvidia/bin/{name}"):
        return _tool(name, path, "Triton")
    raise _missing(name, "neither pip's packages nor the PATH has one")


def _from_pip(name: str) -> Iterator[Path]:
    """Yield programs from pip, the newest toolkit first: `nvidia/cu13/bin`, formerly `nvidia/cuda_nvcc/bin`."""
    found = _installed(f"nvidia/*/bin/{name}")

    def toolkit(path: Path) -> int:
        match = _TOOLKIT.fullmatch(path.parts[-3])
        return int(match[1]) if match else 0

    yield from sorted(found, key=toolkit, reverse=True)


def _installed(pattern: str) -> list[Path]:
    """Yield programs in the installed packages."""
    end = ".exe" if sys.platform == "win32" else ""
    found = [path for folder in sys.path for path in Path(folder or ".").glob(pattern + end)]
    return [path for path in found if os.access(path, os.X_OK)]


def _tool(name: str, path: Path, origin: str) -> Tool:
    facts = path.stat()
    try:
        version = _version(path, facts.st_size, facts.st_mtime_ns)
    except (OSError, subprocess.SubprocessError) as error:
        raise _missing(name, f"{path} does not run ({error})") from None
    return Tool(name, path, origin, version)


@functools.lru_cache
def _version(path: Path, size: int, changed: int) -> str:
    """Return the output of `--version`, cached until the file changes, because starting a program takes long."""
    cache, key = user_cache(), ("version", str(path), size, changed)
    known = cache.get(key)
    if known is None:
        known = _asked_version(path, size).encode()
        cache.put(key, known)
    return known.decode()


def _asked_version(path: Path, size: int) -> str:
    run = subprocess.run(  # noqa: S603  the path was found above
        [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE, check=True
    )
    match = _VERSION.search(run.stdout)
    return match[1] if match else f"of unknown version ({size} bytes)"


def _missing(name: str, what: str) -> WarploomError:
    return Diag.NO_TOOL.error(tool=name, what=what, variable=variable_of(name))
