"""PTX to cubin by NVIDIA's ptxas; spills and serialised wgmma are errors by default."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from warploom.diagnostics import Diag, Loc, WarploomError
from warploom.host.program import Ptx, text_of
from warploom.runtime.cache.disk import Cache
from warploom.runtime.toolchain.ptxas_log import Remark, Resources, in_ascii, remarks, resources, without_places
from warploom.runtime.toolchain.tools import PTXAS, Tool, find

Level = Literal[0, 1, 2, 3]
_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)
_PERFORMANCE_CODE = "C75"
_MOST_ERRORS = 20
_SPILL_ADVICE = (
    "Keep fewer values alive: a smaller tile, narrower subtiles, or more registers per thread (fewer warps)."
)
_REMARK_ADVICE = {
    "setmaxnreg": "Declare the kernel's threads and registers (`.reqntid`, `.maxnreg`), and those of each role.",
    "insufficient register": _SPILL_ADVICE,
    "gmma": "Do not access a register of a wgmma, accumulator or operand, between its issue and its wait_group.",
}
"""Advice for remarks that contain these words; the first match counts."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A cubin, the resources of its kernels, and the remarks of ptxas; `seconds` is the time that ptxas took."""

    target: str
    assembler: str
    cubin: bytes
    kernels: tuple[Resources, ...]
    remarks: tuple[Remark, ...]
    seconds: float

    def kernel(self, name: str | None = None) -> Resources:
        """Return the resources of the named kernel, or of the only one."""
        entries = {row.name: row for row in self.kernels if row.registers}
        if name is None and len(entries) == 1:
            return next(iter(entries.values()))
        if name not in entries:
            raise Diag.NO_SUCH_ENTRY.error(entry=name or "(none named)", entries=", ".join(entries) or "none")
        return entries[name]

    @property
    def losses(self) -> tuple[str, ...]:
        """Return a sentence for each kernel that spills and each performance remark (C75xx)."""
        return (*(_spill(row) for row in self._spilling), *(str(remark) for remark in self._slow))

    @property
    def _spilling(self) -> list[Resources]:
        return [row for row in self.kernels if row.spill_stores or row.spill_loads]

    @property
    def _slow(self) -> list[Remark]:
        return [remark for remark in self.remarks if remark.code.startswith(_PERFORMANCE_CODE)]

    def refuse_losses(self) -> None:
        """Raise one error with every spill and remark, and advice for each kind."""
        if not self.losses:
            return
        advice = [_SPILL_ADVICE] if self._spilling else []
        advice += [_advice(remark) for remark in self._slow]
        raise Diag.SLOW_CODE.error(
            next((remark.loc for remark in self._slow if remark.loc), None),
            self.losses[1:],
            target=self.target,
            what=self.losses[0].rstrip("."),
            advice=" ".join(dict.fromkeys(advice)),
        )


def assemble(
    program: Ptx,
    target: str | None = None,
    *,
    lineinfo: bool = True,
    opt: Level = 3,
    strict: bool = True,
    cache: Cache | None = None,
) -> Assembly:
    """Assemble for a target, by default the module's own.

    With `lineinfo` the cubin knows the author's lines, which costs nothing when it runs; without, it does not change
    when lines move. `strict` makes every spilled byte and every C75xx remark an error.
    """
    text = text_of(program)
    source = in_ascii(text if lineinfo else without_places(text))
    target = target or _target_of(text)
    tool = find(PTXAS)
    key = ("cubin", hashlib.sha256(source.encode()).hexdigest(), target, tool.name, tool.version, opt)
    kept = cache.get(key) if cache else None
    if kept is None:
        kept = _packed(*_run(tool, source, text, target, opt))
        if cache:
            cache.put(key, kept)
    log, seconds, cubin = _unpacked(kept)
    made = Assembly(target, str(tool), cubin, resources(log), remarks(log, text), seconds)
    if strict:
        made.refuse_losses()
    return made


def _target_of(text: str) -> str:
    match = _TARGET.search(text)
    if match is None:
        raise Diag.SYNTAX.error(what="the text has no `.target` line")
    return match[1]


def _run(tool: Tool, source: str, text: str, target: str, opt: Level) -> tuple[str, float, bytes]:
    """Run ptxas; return its output, the seconds it took, and the cubin."""
    with tempfile.TemporaryDirectory(prefix="warploom-") as folder:
        given, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        given.write_text(source, "utf-8")
        command = [str(tool.path), "-v", f"-O{opt}", f"-arch={target}", given.name, "-o", made.name]
        start = time.perf_counter()
        run = subprocess.run(  # noqa: S603  the program was found by `find`
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        seconds = time.perf_counter() - start
        log = (run.stdout + run.stderr).decode("utf-8", "replace")
        if run.returncode or not made.exists():
            raise _refusal(tool, log, text, target, run.returncode)
        return log, seconds, made.read_bytes()


def _refusal(tool: Tool, log: str, text: str, target: str, status: int) -> WarploomError:
    """Return an error with everything that ptxas reported, and the PTX lines."""
    errors = [remark for remark in remarks(log, text) if remark.is_error]
    lines = text.splitlines()
    messages = [f"{error} (`{_shown(lines, error.line)}`)" if error.line else str(error) for error in errors]
    if not errors:
        messages = [log.strip()[-500:].rstrip(".") or f"it ended with status {status} and said nothing"]
    first = next((error for error in errors if error.line), None)
    loc = (first.loc or Loc("kernel.ptx", first.line)) if first else None
    count = f"{len(messages)} errors, first " if len(messages) > 1 else ""
    if len(messages) > _MOST_ERRORS:
        messages[_MOST_ERRORS:] = [f"and {len(messages) - _MOST_ERRORS} more"]
    return Diag.NOT_ASSEMBLED.error(loc, messages[1:], tool=str(tool), target=target, what=count + messages[0])


def _shown(lines: list[str], number: int) -> str:
    return lines[number - 1].strip()[:120] if number <= len(lines) else ""


def _spill(row: Resources) -> str:
    stores, loads = row.spill_stores, row.spill_loads
    return f"`{row.name}` spills with {row.registers} registers: {stores} bytes stored, {loads} bytes loaded"


def _advice(remark: Remark) -> str:
    return next(
        (advice for words, advice in _REMARK_ADVICE.items() if words in remark.text.lower()),
        "Change what the remark names.",
    )


def _packed(log: str, seconds: float, cubin: bytes) -> bytes:
    return json.dumps({"log": log, "seconds": seconds}).encode() + b"\n" + cubin


def _unpacked(kept: bytes) -> tuple[str, float, bytes]:
    head, _, cubin = kept.partition(b"\n")
    facts = json.loads(head)
    return facts["log"], facts["seconds"], cubin
