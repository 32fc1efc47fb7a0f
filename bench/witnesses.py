"""Witnesses: how many findings of refuted mutants and of other projects' bugs a directed schedule confirms.

    python bench/witnesses.py --minutes 10 --count 60      # writes bench/results/witnesses.json

Only classes that a schedule of the emulator can show are counted (`replayable` in `checker/codes.py`), without faults and
hangs of the checked run itself, which are shown by definition; each finding gets at most five schedules.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

from checker_mutants import chosen, key, read, subject, whole  # noqa: E402
from pool import spread  # noqa: E402
from revision import revision  # noqa: E402

import warploom  # noqa: E402
from warploom.checker.codes import CODES  # noqa: E402

RESULTS = Path(os.environ.get("WITNESSES", Path(__file__).parent / "results" / "witnesses.json"))
_PER_FINDING, _FINDINGS = 5, 4


def findings_of(number: str, name: str, mutant: Any) -> dict[str, Any]:
    """The findings of a mutant that were tried, each with its outcome."""
    one = subject(name)
    report = warploom.check(
        mutant.applied(one.text), launch=one.options()[0], profile=one.profile, limit=whole(name)[1], sms=one.sms,
        budget=_PER_FINDING * _FINDINGS,
    )  # fmt: skip
    found = {}
    for at, finding in enumerate(report.remaining_under_lenient or report.findings):
        if finding.code in ("DEADLOCK", "FAULT") or not CODES[finding.code].replayable or finding.witness is None:
            continue
        if finding.witness.confirmed or finding.witness.tried >= _PER_FINDING:
            found[f"{number} {at}"] = {
                "code": finding.code, "kernel": name, "class": mutant.name, "confirmed": finding.witness.confirmed,
                "tried": finding.witness.tried, "by": finding.witness.found_by, "kind": finding.witness.kind,
                "revision": revision(),
            }  # fmt: skip
    return found


def _confirmed(given: tuple[str, str, Any]) -> tuple[str, dict[str, Any]]:
    return given[0], findings_of(*given)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, default=60, help="mutants (60)")
    parser.add_argument("--all", action="store_true", help="kernels for sm_100a too, which take longer")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    mutants = read()
    results: dict[str, Any] = (
        json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"mutants": [], "findings": {}}
    )
    end = time.monotonic() + 60 * options.minutes
    names = [name for name in mutants["whole"] if options.all or not name.startswith("sm_100a")]
    left = []
    for name, mutant in chosen(names, 2):
        number = key(name, mutant)
        row = mutants["mutants"].get(number)
        if row is None or row["verdict"] != "REFUTED" or number in results["mutants"]:
            continue
        if not set(row["codes"]) <= {"DEADLOCK", "FAULT"}:
            left.append((number, name, mutant))
    left = left[: max(options.count - len(results["mutants"]), 0)]
    for number, found in spread(_confirmed, left, options.processes, end):
        results["findings"] |= found
        results["mutants"].append(number)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")
        rows = list(results["findings"].values())
        print(len(results["mutants"]), f"{sum(row['confirmed'] for row in rows)} of {len(rows)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
