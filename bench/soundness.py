"""Soundness of the checker: random protocols as PTX, judged by `warploom.check` and by a search through all executions.

    python bench/soundness.py run --start 0 --count 50000 --processes 8 a.json   # go on where a.json ends
    python bench/soundness.py merge a.json b.json                               # add up into bench/results/soundness.json
    python bench/soundness.py show 4711                                         # one protocol, with both answers

The search comes first. Where all executions agree, no verdict can be unsound, and the checker judges every fourth of these
protocols, for the rate of false alarms; it judges all others. A verdict is *unsound* if the checker says PROVED and some
execution hangs, faults or has another outcome. Where the report has the assumption `strong-order`, locations with strong
accesses may differ, and no others. It is a *false alarm* if the checker says REFUTED under `strict` and all executions have
one outcome. The number of a protocol is its seed; parts of a campaign that run at the same time start at different numbers.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
sys.path[:0] = [str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from pool import spread  # noqa: E402
from protocol_explorer import Result, explored  # noqa: E402
from protocols import Protocol, grid, initial, protocol, ptx  # noqa: E402
from revision import revision  # noqa: E402

import warploom  # noqa: E402

RESULTS = Path(os.environ.get("SOUNDNESS", Path(__file__).parent / "results" / "soundness.json"))
_CHUNK = 250
_EVERY = 4
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


def read(path: Path) -> dict[str, Any]:
    """The results of a part of the campaign, empty if there is none."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return found
    return _nothing()


def _nothing() -> dict[str, Any]:
    return {"verdicts": {}, "unsound": [], "false alarms": {}, "examples": {}, "reasons": {},
            "states": 0, "seconds": 0.0, "revision": "", "ranges": []}  # fmt: skip


def write(path: Path, results: dict[str, Any]) -> None:
    """Replace the results in one step, so that an interrupted run loses no more than a chunk."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
    partial.replace(path)


def run(options: argparse.Namespace) -> int:
    """Judge further protocols until the count or the time is reached."""
    results, end = read(options.part), time.monotonic() + 60 * options.minutes
    results["revision"] = results["revision"] or revision()
    start = results["ranges"][0][0] if results["ranges"] else options.start
    following, last = results["ranges"][0][1] if results["ranges"] else start, start + options.count
    chunks = [range(at, min(at + _CHUNK, last)) for at in range(following, last, _CHUNK)]
    for found in spread(_judged, chunks, options.processes, end, in_order=True):
        _add(results, found)
        results["ranges"] = [[start, found["ranges"][0][1]]]
        write(options.part, results)
        wrong = len(results["unsound"])
        done = results["ranges"][0][1] - start
        print(f"{done:,} protocols, {wrong} unsound, {results['seconds']:.0f} s", flush=True)
    return 1 if results["unsound"] else 0


def _judged(numbers: range) -> dict[str, Any]:
    """The answers for some protocols."""
    began = time.process_time()
    gc.collect()
    gc.disable()  # a chunk makes no more garbage than memory holds
    results = _nothing()
    verdicts, alarms, reasons = Counter[str](), Counter[str](), Counter[str]()
    for number in numbers:
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
    results |= {"verdicts": dict(verdicts), "false alarms": dict(alarms), "reasons": dict(reasons)}
    return results | {"seconds": time.process_time() - began, "ranges": [[numbers.start, numbers.stop]]}


def _add(total: dict[str, Any], part: dict[str, Any]) -> None:
    """Add a part to the results, without its range and revision."""
    for name in ("verdicts", "false alarms", "reasons"):
        total[name] = dict(Counter(total[name]) + Counter(part[name]))
    total["unsound"] += part["unsound"]
    total["examples"] = part["examples"] | total["examples"]
    total["states"] += part["states"]
    total["seconds"] += part["seconds"]


def merge(parts: list[Path]) -> int:
    """Add up the parts of a campaign, which must have no protocol twice."""
    everything = [read(part) for part in parts]
    revisions = Counter[str]()
    for part in everything:
        revisions[part["revision"]] += sum(end - start for start, end in part["ranges"])
    names = ", ".join(f"{name} ({number:,})" for name, number in revisions.most_common())
    ranges = sorted(each for part in everything for each in part["ranges"])
    for (_, end), (start, _) in pairwise(ranges):
        if start < end:
            raise SystemExit(f"protocols {start} to {end - 1} are in two parts")
    total = _nothing() | {"revision": names, "ranges": ranges}
    for part in everything:
        _add(total, part)
    write(RESULTS, total)
    count = sum(end - start for start, end in ranges)
    print(f"{count:,} protocols at {names}, {len(total['unsound'])} unsound")
    return 1 if total["unsound"] else 0


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
    running.add_argument("part", type=Path, help="the file with the results of this part of the campaign")
    running.add_argument("--start", type=int, default=0, help="the number of the first protocol (0)")
    running.add_argument("--count", type=int, default=100_000, help="the number of protocols (100000)")
    running.add_argument("--minutes", type=float, default=60, help="the time (60)")
    running.add_argument("--processes", type=int, default=1)
    merging = commands.add_parser("merge")
    merging.add_argument("parts", type=Path, nargs="+")
    showing = commands.add_parser("show")
    showing.add_argument("number", type=int)
    options = parser.parse_args()
    if options.command == "run":
        return run(options)
    if options.command == "merge":
        return merge(options.parts)
    show(options.number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
