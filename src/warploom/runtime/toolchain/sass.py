"""SASS of a cubin, disassembled by nvdisasm: instructions, counts, and suspicious ones."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from warploom.diagnostics import Diag, Loc
from warploom.runtime.toolchain.tools import NVDISASM, find

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_PLACE = re.compile(r'\s*//## File "(.*)", line (\d+)')
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?P<text>(?:@!?\w+\s+)?(?P<opcode>[A-Z][\w.:]*)[^;]*?)\s*;")

LINTS = {
    "MEMBAR": "waits until every earlier access is visible; an acquire or release that guards nothing can go",
    "CCTL": "empties the L1 cache; an acquire that guards nothing can go",
    "LDL": "loads local memory, which is global memory",
    "STL": "stores to local memory, which is global memory",
}
"""Instructions that a fast kernel should have only for a reason."""


@dataclass(frozen=True, slots=True)
class SassInstruction:
    """One instruction: its full dotted opcode, its text, and the source line if the cubin has it."""

    opcode: str
    text: str
    loc: Loc | None = None

    @property
    def mnemonic(self) -> str:
        return self.opcode.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Sass:
    """The listing of a cubin, and its instructions by kernel."""

    text: str
    kernels: dict[str, tuple[SassInstruction, ...]]

    @property
    def instructions(self) -> tuple[SassInstruction, ...]:
        return tuple(each for kernel in self.kernels.values() for each in kernel)

    @property
    def counts(self) -> Counter[str]:
        """Return the number of instructions by mnemonic (the opcode before its first dot)."""
        return Counter(each.mnemonic for each in self.instructions)

    def count(self, mnemonic: str, *modifiers: str) -> int:
        """Return the number of instructions with the mnemonic and all the modifiers: `count("UTCHMMA", "2CTA")`."""
        wanted = set(modifiers)
        return sum(each.mnemonic == mnemonic and wanted <= set(each.opcode.split(".")) for each in self.instructions)

    @property
    def lints(self) -> tuple[str, ...]:
        """Return a sentence for each kind of suspicious instruction, with its source lines."""
        return tuple(self._lint(name, why) for name, why in LINTS.items() if self.count(name))

    def _lint(self, name: str, why: str) -> str:
        found = [each for each in self.instructions if each.mnemonic == name]
        places = ", ".join(dict.fromkeys(str(each.loc) for each in found if each.loc))
        return f"{len(found)} × {name}{f' ({places})' if places else ''}: {why}"


def disassemble(cubin: bytes) -> Sass:
    """Disassemble a cubin."""
    tool = find(NVDISASM)
    with tempfile.TemporaryDirectory(prefix="warploom-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        run = subprocess.run(  # noqa: S603  the program was found by `find`
            [str(tool.path), "-c", "-g", file.name],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    if run.returncode:
        said = run.stderr.decode("utf-8", "replace").strip().rstrip(".")
        raise Diag.NOT_DISASSEMBLED.error(what=said or f"it ended with status {run.returncode}")
    return read(run.stdout.decode("utf-8", "replace"))


def read(listing: str) -> Sass:
    """Parse a listing of nvdisasm; functions that a kernel calls are in its section and count with it."""
    kernels: dict[str, list[SassInstruction]] = {}
    body: list[SassInstruction] = []
    loc: Loc | None = None
    for line in listing.splitlines():
        if match := _SECTION.match(line):
            body, loc = kernels.setdefault(match[1], []), None
        elif match := _PLACE.match(line):
            loc = Loc(match[1], int(match[2]))
        elif match := _INSTRUCTION.match(line):
            body.append(SassInstruction(match["opcode"], match["text"], loc))
    return Sass(listing, {name: tuple(instructions) for name, instructions in kernels.items()})
