"""Make the PTX of the kernels in tests/checker/real_bugs: bugs of other projects, before and after their fix.

python bench/real_bugs.py compile    # compile every .cu twice with nvcc: as it is, and with -DFIXED
python bench/real_bugs.py check      # check them; writes bench/results/real_bugs.json
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from revision import revision

import warploom

RESULTS = Path(__file__).parent / "results" / "real_bugs.json"
FOLDER = Path(__file__).parents[1] / "tests" / "checker" / "real_bugs"


def compile_(source: Path, *, fixed: bool) -> str:
    """The PTX of a source, with the lines of the source and without its folder."""
    command = ["nvcc", "-arch=sm_90a", "-ptx", "-lineinfo", *(["-DFIXED"] if fixed else []), source.name, "-o", "-"]
    made = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=True).stdout
    return re.sub(r'(\.file\s+\d+ ")[^"]*/([^/"]+")', r"\1\2", made)


def report(name: str, version: str, budget: int) -> warploom.Report:
    bug = json.loads((FOLDER / "bugs.json").read_text("utf-8"))[name]
    arrays = [np.arange(bug["inputs"], dtype=np.int32), np.zeros(bug["outputs"], np.int32)]
    text = (FOLDER / f"{name}.{version}.ptx").read_text("utf-8")
    ctas = bug.get("ctas", 1)
    launch = {"grid": ctas, "cluster": ctas, "block": bug["threads"], "args": arrays}
    return warploom.check(text, launch=launch, profile=bug["profile"], budget=budget)


def check() -> None:
    """Judge every bug before and after its fix."""
    results = {}
    for name, bug in json.loads((FOLDER / "bugs.json").read_text("utf-8")).items():
        before, after = report(name, "before", 8), report(name, "after", 0)
        source = (FOLDER / f"{name}.cu").read_text("utf-8")
        shown = next((each.witness for each in before if each.witness is not None and each.witness.confirmed), None)
        results[name] = {
            "issue": bug["issue"], "profile": bug["profile"], "what": _what(source),
            "before": str(before.verdict), "codes": sorted({finding.code for finding in before}),
            "after": str(after.verdict), "witness": shown.text if shown is not None else bug.get("unseen", ""),
            "schedules": shown.tried if shown is not None else 0, "revision": revision(),
        }  # fmt: skip
        print(name, results[name]["before"], results[name]["codes"], results[name]["after"])
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")


def _what(source: str) -> str:
    """The comment at the head of a source, without the name of the issue."""
    lines = [line.removeprefix("// ") for line in source.split("\n") if line.startswith("// ")]
    return " ".join(lines).partition(": ")[2]


def main() -> int:
    if sys.argv[1:] == ["check"]:
        check()
        return 0
    for source in sorted(FOLDER.glob("*.cu")):
        for name, fixed in (("before", False), ("after", True)):
            source.with_name(f"{source.stem}.{name}.ptx").write_text(compile_(source, fixed=fixed), "utf-8")
        print(source.stem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
