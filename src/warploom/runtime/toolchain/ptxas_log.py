"""The output of ptxas as data: the resources of each kernel, and messages about lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from warploom.diagnostics import Loc

_MESSAGE = re.compile(
    r"ptxas (?:.*?, line (?P<line>\d+); )?(?P<severity>info|warning|error|fatal)\s*: "
    r"(?:\((?P<code>C\d+)\) )?(?P<text>.*)"
)
_COMPILING = re.compile(r"Compiling entry function '(.+?)' for")
_PROPERTIES = re.compile(r"Function properties for (.+)")
_STACK = re.compile(r"\s+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_NEAR_LINE = re.compile(r"\bline (\d+)\b")
_USUAL = re.compile(r"\d+ bytes gmem|Compile time = ")
_SUMMARY = "Ptx assembly aborted due to errors"

_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)(?:\s+(\d+))?")
_FUNCTION = re.compile(r"(?:\.\w+\s+)*\.(?:entry|func)\b")


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a thread or CTA of a kernel; a function that kernels call has no registers of its own."""

    name: str
    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack_frame: int = 0
    shared_bytes: int = 0
    barriers: int = 0


@dataclass(frozen=True, slots=True)
class Remark:
    """A message of ptxas; `line` is the PTX line (0 if none is named), `loc` the source location if the PTX has it."""

    severity: str
    code: str
    text: str
    line: int = 0
    loc: Loc | None = None

    @property
    def is_error(self) -> bool:
        return self.severity in ("error", "fatal")

    def __str__(self) -> str:
        places = [str(self.loc)] if self.loc else []
        places += [f"PTX line {self.line}"] if self.line else []
        head = f"{', '.join(places)}: " if places else ""
        return f"{head}{self.code + ' ' if self.code else ''}{self.text}"


def resources(log: str) -> tuple[Resources, ...]:
    """Return the kernels that `ptxas -v` lists, by name."""
    found: dict[str, Resources] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := _COMPILING.search(line):
            entry = match[1]
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif match := _STACK.fullmatch(line):
            stack, stores, loads = map(int, match.groups())
            row = found.get(function, Resources(function))
            found[function] = replace(row, stack_frame=stack, spill_stores=stores, spill_loads=loads)
        elif match := _USED.search(line):
            row = found.get(entry, Resources(entry))
            found[entry] = replace(
                row, registers=int(match[1]), barriers=_number(_BARRIERS, line), shared_bytes=_number(_SHARED, line)
            )
    return tuple(sorted(found.values(), key=lambda row: row.name))


def remarks(log: str, ptx: str) -> tuple[Remark, ...]:
    """Return all messages other than the resource table, with their locations."""
    places = Places(ptx)
    return tuple(replace(remark, loc=places.of(remark.line)) for remark in _remarks(log))


def _remarks(log: str) -> Iterator[Remark]:
    for line in log.splitlines():
        match = _MESSAGE.fullmatch(line)
        if match is None:
            continue
        text = match["text"].strip()
        table = (_COMPILING, _PROPERTIES, _USED, _USUAL)
        if text == _SUMMARY or (match["severity"] == "info" and any(usual.match(text) for usual in table)):
            continue
        where = int(match["line"]) if match["line"] else _number(_NEAR_LINE, text)
        yield Remark(match["severity"], match["code"] or "", text, where)


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else 0


class Places:
    """Source locations of the lines of a PTX text, from its `.file` and `.loc` lines."""

    def __init__(self, ptx: str) -> None:
        self._lines = ptx.splitlines()
        self._files = {int(m[1]): m[2].replace("\\\\", "\\") for line in self._lines if (m := _FILE.match(line))}

    def of(self, number: int) -> Loc | None:
        """Return the location of the last `.loc` before the line, inside the same function."""
        for line in reversed(self._lines[: max(number, 0)]):
            if match := _LOC.match(line):
                file, row, column = (int(part or 0) for part in match.groups())
                return Loc(self._files[file], row, column) if row and file in self._files else None
            if _FUNCTION.match(line):
                return None
        return None


def without_places(ptx: str) -> str:
    """Return the text with blank `.file` and `.loc` lines, so that all other lines keep their numbers."""
    return "".join("\n" if _FILE.match(line) or _LOC.match(line) else line for line in ptx.splitlines(keepends=True))


def in_ascii(ptx: str) -> str:
    """Return the text as assemblers accept it, line by line: in ASCII, and without quotes in file names."""
    if ptx.isascii() and '\\"' not in ptx:
        return ptx
    plain = ptx.encode("ascii", "replace").decode()
    return _FILE.sub(lambda named: named[0].replace('\\"', "'"), plain)
