"""Bugs of other projects, rebuilt in the same pattern and compiled by nvcc: refuted before their fix, proved after it.

The comment at the head of each source names the issue; `// here` marks the line that a finding has to name.
`bench/real_bugs.py` makes the PTX anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import warploom

FOLDER = Path(__file__).parent / "real_bugs"
BUGS = json.loads((FOLDER / "bugs.json").read_text("utf-8"))


def report(name: str, version: str, budget: int = 0) -> warploom.Report:
    bug = BUGS[name]
    arrays = [np.arange(bug["inputs"], dtype=np.int32), np.zeros(bug["outputs"], np.int32)]
    text = (FOLDER / f"{name}.{version}.ptx").read_text("utf-8")
    ctas = bug.get("ctas", 1)
    launch = {"grid": ctas, "cluster": ctas, "block": bug["threads"], "args": arrays}
    return warploom.check(text, launch=launch, profile=bug["profile"], budget=budget)


def test_every_source_is_judged() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.cu")) == sorted(BUGS)


@pytest.mark.parametrize("name", BUGS)
def test_before_the_fix_it_is_refuted(name: str) -> None:
    source = (FOLDER / f"{name}.cu").read_text("utf-8").split("\n")
    line = 1 + next(at for at, text in enumerate(source) if text.endswith("// here"))
    found = report(name, "before")
    assert found.verdict == "REFUTED"
    named = [finding for finding in found if finding.code == BUGS[name]["code"]]
    assert any(f"{name}.cu:{line}" in str(finding) for finding in named), str(found)


@pytest.mark.parametrize("name", BUGS)
def test_after_the_fix_it_is_proved(name: str) -> None:
    found = report(name, "after")
    assert found.verdict == "PROVED", str(found)
    assert found.findings == ()


@pytest.mark.parametrize("name", sorted(name for name, bug in BUGS.items() if "unseen" not in bug))
def test_a_schedule_shows_it(name: str) -> None:
    found = report(name, "before", budget=8)
    assert any(finding.witness is not None and finding.witness.confirmed for finding in found), str(found)
