"""Files that were given to the wrong command: an error that names the right one."""

from __future__ import annotations

from pathlib import Path

from warploom.diagnostics import Diag, WarploomError

_KINDS = {
    ".ptx": (
        "PTX",
        "`warploom new-launch {file}` writes a launch file to edit; `warploom docs launch-files` describes it",
    ),
    ".py": (
        "a Python program",
        "`warploom triton {file}` runs a Triton or Gluon program on the emulator; add `--check` to check every launch",
    ),
    ".cu": (
        "a CUDA C++ program",
        "`warploom cuda {file}` compiles and runs it on the emulator; add `--check` to check every launch",
    ),
    ".json": ("a launch file", "`warploom run {file}` runs it, and `warploom check {file}` checks it"),
}
"""By suffix: the kind of file, and the command that takes it."""

_WANTED = {
    "run": (".json", "launch files, which name a kernel, its inputs and its outputs"),
    "check": (".json", "launch files and functions, MODULE:FUNCTION"),
    "triton": (".py", "Python programs"),
    "cuda": (".cu", "CUDA C++ programs"),
}


def wrong_kind(file: Path, command: str) -> WarploomError | None:
    """The error for a file that is known to be for another command; None for other files."""
    suffix, wanted = _WANTED[command]
    if file.suffix == suffix or file.suffix not in _KINDS or not file.is_file():
        return None
    kind, do = _KINDS[file.suffix]
    return Diag.WRONG_KIND_OF_FILE.error(
        file=file, kind=kind, command=f"warploom {command}", wanted=wanted, do=do.format(file=file)
    )
