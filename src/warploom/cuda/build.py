"""CUDA C++ sources compiled to a library of host code, linked to the stand-in for the CUDA runtime, and to PTX."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from warploom.diagnostics import Diag

_UNDEFINED = re.compile(r"undefined reference to [`'\"‘]*([^`'\"’\s]+)")
_STAMP = "build.json"


@dataclass(frozen=True, slots=True)
class Built:
    """A program as a library whose `main` is its entry, the runtime that it calls, and its PTX."""

    program: Path
    runtime: Path
    texts: tuple[Path, ...]


def build(source: Path, folder: Path, *, target: str, flags: Sequence[str] = ()) -> Built:
    """Compile a program with nvcc into a folder; a build of the same source, headers and flags is used again."""
    if not source.is_file():
        raise Diag.UNREADABLE_FILE.error(file=str(source), what="does not exist, or is not a file")
    nvcc = _nvcc()
    folder.mkdir(parents=True, exist_ok=True)
    runtime, program, parts = folder / "libwarploom_cuda_runtime.so", folder / "program.so", folder / "parts"
    arch = target.replace("sm_", "compute_")
    command = [
        nvcc, "-std=c++17", "-O2", "-lineinfo", "-gencode", f"arch={arch},code={arch}", "-shared",
        "-Xcompiler", "-fPIC", "-cudart", "none", *flags, str(source.resolve()),
    ]  # fmt: skip
    stamp = {"command": command, "runtime": _runtime_text()}
    if _fresh(folder, stamp, program):
        return Built(program, runtime, tuple(sorted(parts.glob("*.ptx"))))
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    own = folder / "runtime.c"
    own.write_text(_runtime_text(), "utf-8")
    library = ["-shared", "-O1", "-cudart", "none", "-Xcompiler", "-fPIC,-w"]
    _call([nvcc, *library, str(own), "-o", str(runtime)])
    headers = _call([*command[:1], *(each for each in command[1:] if each != "-shared"), "-M"])
    _call([
        *command, "--keep", "--keep-dir", str(parts), "-o", str(program), str(runtime),
        "-Xlinker", "-z,defs", "-Xlinker", f"-rpath={folder.resolve()}",
    ])  # fmt: skip
    for each in parts.iterdir():
        if each.suffix != ".ptx":
            each.unlink()
    (folder / _STAMP).write_text(json.dumps({**stamp, "times": _times(headers)}), "utf-8")
    return Built(program, runtime, tuple(sorted(parts.glob("*.ptx"))))


def _nvcc() -> str:
    found = shutil.which(os.environ.get("NVCC", "nvcc"))
    if found is None:
        what = "`warploom cuda` needs nvcc of the CUDA toolkit, and finds none on the PATH; install it, or set NVCC"
        raise Diag.BAD_LAUNCH.error(what=what)
    return found


def _runtime_text() -> str:
    return resources.files("warploom.cuda").joinpath("runtime.c").read_text("utf-8")


def _fresh(folder: Path, stamp: Mapping[str, object], program: Path) -> bool:
    """True if the folder holds a program made by the same command from files that have not changed."""
    try:
        held = json.loads((folder / _STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    times: dict[str, int] = held.pop("times", {})
    same = held == stamp and program.is_file()
    return same and all(Path(file).is_file() and Path(file).stat().st_mtime_ns == at for file, at in times.items())


def _times(rule: str) -> dict[str, int]:
    """The files that a rule of make names after its colon, with the times of their last change."""
    names = rule.partition(":")[2].replace("\\\n", " ").split()
    return {name: Path(name).stat().st_mtime_ns for name in names if Path(name).is_file()}


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  the user's compiler
    if done.returncode == 0:
        return done.stdout
    missing = sorted(set(_UNDEFINED.findall(done.stderr)))
    if missing:
        what = f"The program calls functions that the stand-in for the CUDA runtime lacks ({', '.join(missing)}), and"
        raise Diag.NOT_MODELLED.error(what=what)
    lines = [
        line for line in done.stderr.splitlines() if "error" in line or "fatal" in line
    ] or done.stderr.splitlines()
    raise Diag.BAD_LAUNCH.error(what=f"nvcc failed (status {done.returncode})", notes=lines[:10])
