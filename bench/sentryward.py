"""SentryWard (PyPI) on the bugs of `tests/checker/real_bugs`, before and after their fix: writes bench/results/sentryward.json.

    python -m venv DIR && DIR/bin/pip install sentryward
    python bench/sentryward.py DIR/bin/sentryward

It needs no GPU. A launch is given by its dimensions alone; its arrays stay symbolic.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE.parent / "tests" / "checker" / "real_bugs"
RESULTS = HERE / "results" / "sentryward.json"


def judged(program: str, ptx: Path, threads: int, ctas: int) -> dict[str, str]:
    """Its result for a kernel, and its first diagnostic."""
    launch = {"grid_dim": [ctas, 1, 1], "block_dim": [threads, 1, 1]}
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "input.json"
        given.write_text(json.dumps({"schema": "spverify.kernel-input/v1", "launch": launch}), "utf-8")
        command = [program, str(ptx), "--input", str(given), "--timeout", "60"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(ran.stdout)
    diagnostics = found.get("diagnostics") or [{}]
    return {"result": found["result"], "why": diagnostics[0].get("message", "")}


def main() -> int:
    program = sys.argv[1]
    version = subprocess.run(
        [str(Path(program).with_name("pip")), "show", "sentryward"], capture_output=True, text=True, check=False
    ).stdout
    number = next(line.split()[1] for line in version.splitlines() if line.startswith("Version"))
    rows = {}
    for name, bug in json.loads((FOLDER / "bugs.json").read_text("utf-8")).items():
        rows[name] = {
            when: judged(program, FOLDER / f"{name}.{when}.ptx", bug["threads"], bug.get("ctas", 1))
            for when in ("before", "after")
        } | {"issue": bug["issue"]}
        print(name, rows[name]["before"], rows[name]["after"])
    RESULTS.write_text(json.dumps({"version": number, "bugs": rows}, indent=1, sort_keys=True) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
