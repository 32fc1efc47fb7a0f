"""Soundness of the checker: random protocols as PTX, judged by `warploom.check` and by a search through all executions.

    python bench/soundness.py run --count 100000 --minutes 60   # go on where bench/results/soundness.json ends
    python bench/soundness.py show 4711                         # one protocol, with both answers

The search comes first. Where all executions agree, no verdict can be unsound, and the checker judges every eighth of these
protocols, for the rate of false alarms; it judges all others. A verdict is *unsound* if the checker says PROVED and some execution hangs, faults or has another outcome. Where the
report has the assumption `strong-order`, locations with strong accesses may differ, and no others. It is a *false alarm*
if the checker says REFUTED under `strict` and all executions have one outcome.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
sys.path[:0] = [str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from protocol_explorer import Result, explored  # noqa: E402
from protocols import Protocol, grid, initial, protocol, ptx  # noqa: E402

import warploom  # noqa: E402

RESULTS = Path(os.environ.get("SOUNDNESS", Path(__file__).parent / "results" / "soundness.json"))
_CHUNK = 500
_EVERY = 8
"""Of the protocols whose executions agree, one in so many is judged."""


def report_of(made: Protocol, profile: str = "strict") -> warploom.Report:
    """The checker's answer."""
    ctas, threads = grid(made)
    array = np.zeros((made.locations, 4), np.uint32)
    array[:] = np.array([initial(at) for at in range(made.locations)])[:, None]
    return warploom.check(
        ptx(made), launch={"grid": ctas, "block": threads, "args": [array]}, profile=profile, budget=0
    )


def is_unsound(report: warploom.Report, result: Result) -> bool:
    """True if the checker proved what some execution contradicts."""
    if report.verdict != "PROVED":
        return False
    assumed = any(each.startswith("strong-order") for each in report.assumptions)
    return result.is_wrong or (result.differs_strongly and not assumed)


def is_false_alarm(report: warploom.Report, result: Result) -> bool:
    """True if the checker refuted a protocol all of whose executions agree."""
    return report.verdict == "REFUTED" and result.is_complete and not result.is_wrong and not result.differs_strongly


def cause(report: warploom.Report) -> str:
    """The codes of a false alarm; those that `lenient` accepts apart."""
    remaining = sorted({finding.code for finding in report.remaining_under_lenient})
    return ", ".join(remaining) or "strict only: " + ", ".join(sorted({each.code for each in report.findings}))


def verdict_of(made: Protocol) -> warploom.Report:
    """The answer under `strict`; what `lenient` refutes, `strict` refutes as well."""
    report = report_of(made, "lenient")
    return report if report.verdict == "REFUTED" else report_of(made)


def judge(number: int) -> dict[str, Any]:
    """Both answers for the protocol of a number."""
    made = protocol(number)
    result = explored(made)
    agree = result.is_complete and not result.is_wrong and not result.differs_strongly
    found: dict[str, Any] = {
        "kind": made.kind,
        "executions": "too many" if not result.is_complete else "agree" if agree else "differ",
        "states": result.states,
        "verdict": "not judged",
    }
    if agree and number % _EVERY:
        return found
    report = report_of(made) if agree else verdict_of(made)
    return found | {
        "verdict": str(report.verdict),
        "unsound": is_unsound(report, result),
        "false alarm": cause(report) if is_false_alarm(report, result) else "",
        "reason": report.reasons[0].partition(" (")[0] if report.reasons and report.verdict == "INCOMPLETE" else "",
    }


def read() -> dict[str, Any]:
    if RESULTS.exists():
        found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
        return found
    return {"next": 0, "verdicts": {}, "unsound": [], "false alarms": {}, "examples": {}, "reasons": {},
            "states": 0, "seconds": 0.0, "revision": ""}  # fmt: skip


def write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def run(options: argparse.Namespace) -> int:
    """Judge further protocols until the count or the time is reached."""
    results, end = read(), time.monotonic() + 60 * options.minutes
    command = ["git", "rev-parse", "--short", "HEAD"]
    results["revision"] = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    verdicts, alarms = Counter(results["verdicts"]), Counter(results["false alarms"])
    reasons = Counter(results["reasons"])
    while results["next"] < options.count and time.monotonic() < end:
        start = time.process_time()
        gc.collect()
        gc.disable()  # a chunk makes no more garbage than memory holds
        first = results["next"]
        for number in range(first, min(first + _CHUNK, options.count)):
            found = judge(number)
            verdicts[f"{found['kind']} {found['verdict']} {found['executions']}"] += 1
            results["states"] += found["states"]
            if found.get("unsound"):
                results["unsound"].append(number)
                print(f"UNSOUND: {number}", flush=True)
            if found.get("false alarm"):
                alarms[found["false alarm"]] += 1
                results["examples"].setdefault(found["false alarm"], number)
            if found.get("reason"):
                reasons[found["reason"]] += 1
            results["next"] = number + 1
        results["seconds"] += time.process_time() - start
        results |= {"verdicts": dict(verdicts), "false alarms": dict(alarms), "reasons": dict(reasons)}
        write(results)
        print(
            f"{results['next']:,} protocols, {len(results['unsound'])} unsound, {alarms.total():,} false alarms",
            flush=True,
        )
    return 1 if results["unsound"] else 0


def show(number: int) -> None:
    """Print one protocol with both answers."""
    made = protocol(number)
    print(
        made.kind, "CTAs", made.ctas, "shared", made.shared, "of", made.locations, "counts", made.counts, set(made.late)
    )
    for warp, acts in enumerate(made.warps):
        for act in acts:
            fields = " ".join(f"{name}={value}" for name, value in act._asdict().items() if value not in (-1, ""))
            print(f"  warp {warp}: {fields}")
    print(explored(made))
    print(report_of(made))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--count", type=int, default=100_000, help="the number of protocols in all (100000)")
    running.add_argument("--minutes", type=float, default=60, help="the time (60)")
    showing = commands.add_parser("show")
    showing.add_argument("number", type=int)
    options = parser.parse_args()
    if options.command == "run":
        return run(options)
    show(options.number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
