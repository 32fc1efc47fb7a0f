"""Suppression files: findings that are known and accepted, each with a reason.

[[suppress]]
code = "FENCE_TCGEN"
file = "*/triton_fence.py"   # optional, as are `line` and `kernel`; `*` stands for anything
line = 43
kernel = "matmul"
reason = "Triton relies on the order of the tcgen05 pipe"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from warploom.checker.codes import CODES
from warploom.checker.report import Finding, Report
from warploom.diagnostics import Diag


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """One entry; what it leaves out matches everything."""

    code: str
    reason: str
    file: str = "*"
    line: int | None = None
    kernel: str = "*"

    def matches(self, finding: Finding, kernel: str) -> bool:
        """True if any party of the finding is at this place."""
        if finding.code != self.code or not fnmatchcase(kernel, self.kernel):
            return False
        places = [party.loc for party in finding.parties] or [each for each in (finding.at,) if each is not None]
        if not places:
            return self.file == "*" and self.line is None
        return any(
            fnmatchcase(loc.file.replace("\\", "/"), self.file) and self.line in (None, loc.line) for loc in places
        )


def load_suppressions(path: Path) -> tuple[Suppression, ...]:
    """Read a suppression file, or raise one error that names everything wrong with it."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Diag.UNREADABLE_FILE.error(file=str(path), what=f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Diag.UNREADABLE_FILE.error(file=str(path), what=f"is not TOML: {error}") from None
    entries = document.get("suppress", [])
    problems = [f"unknown key `{name}`; entries are tables `[[suppress]]`" for name in document if name != "suppress"]
    if not isinstance(entries, list):
        problems, entries = [*problems, "`suppress` must be a list of tables: `[[suppress]]`"], []
    for number, entry in enumerate(entries, 1):
        problems += [f"entry {number}: {problem}" for problem in _problems(entry)]
    if problems:
        raise Diag.UNREADABLE_FILE.error(file=str(path), what=f"is not a suppression file: {'; '.join(problems)}")
    return tuple(Suppression(**entry) for entry in entries)


def _problems(entry: Any) -> list[str]:
    if not isinstance(entry, Mapping):
        return ["it must be a table"]
    names = {each.name for each in fields(Suppression)}
    found = [f"unknown key `{name}`" for name in entry if name not in names]
    found += [f"`{name}` is missing" for name in ("code", "reason") if name not in entry]
    for name in ("code", "reason", "file", "kernel"):
        if name in entry and not (isinstance(entry[name], str) and entry[name].strip()):
            found.append(f"`{name}` must be a non-empty string, got {entry[name]!r:.40}")
    if "line" in entry and type(entry["line"]) is not int:
        found.append(f"`line` must be an integer, got {entry['line']!r:.40}")
    if isinstance(entry.get("code"), str) and entry["code"].strip() and entry["code"] not in CODES:
        found.append(f"no code `{entry['code']:.40}`; codes are {', '.join(sorted(CODES))}")
    return found


def suppressed_in(report: Report, suppressions: Sequence[Suppression]) -> dict[int, Suppression]:
    """Return the positions of suppressed findings, with the first entry that matches each."""
    found = {}
    for at, finding in enumerate(report.findings):
        entry = next((each for each in suppressions if each.matches(finding, report.name)), None)
        if entry is not None:
            found[at] = entry
    return found
