"""Mutants of synchronisation for the checker: its verdict on each, and a proof for those that it does not refute.

    python bench/checker_mutants.py run --minutes 30 --most 3      # go on with bench/results/checker_mutants.json
    python bench/checker_mutants.py prove --minutes 10             # the survivors: other paths, and schedules
    python bench/checker_mutants.py merge FILE …                   # add the results of runs with another $CHECKER_MUTANTS
    python bench/checker_mutants.py show ID                        # one mutant with its report

The mutants are those of `mutant_classes.py`, of the library's families (`mutant_cases.py`, profile `strict`) and of
kernels of other compilers (launch files, `lenient`, under which the whole kernels are clean). A mutant that survives is
*redundant* if every pair of accesses that the changed instruction ordered has another path, which is listed, and if 64
schedules of `explore` and twenty seeds agree with the whole kernel; every other survivor that is executed counts as missed. A row has the revision at
which it was judged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
sys.path[:0] = [str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from mutant_cases import CASES  # noqa: E402
from mutant_classes import Mutant, mutants  # noqa: E402
from mutant_runs import job_of, made  # noqa: E402
from pool import spread  # noqa: E402
from revision import revision  # noqa: E402

import warploom  # noqa: E402
from warploom.checker.redundancy import Orders, Replay  # noqa: E402
from warploom.launch_file import load  # noqa: E402
from warploom.launcher import launch_of  # noqa: E402
from warploom.machine.core.exploration import portfolio  # noqa: E402
from warploom.machine.core.schedule import Random, Weak  # noqa: E402
from warploom.ptx.syntax.printer import print_module  # noqa: E402

HERE = Path(__file__).parent
RESULTS = Path(os.environ.get("CHECKER_MUTANTS", HERE / "results" / "checker_mutants.json"))
_PATIENCE = 20
"""A mutant may execute so many times the instructions of the whole kernel."""
_SEEDS = 20
"""Seeds of the schedules that draw their decisions."""
_PARTS = 6
"""Jobs into which the schedules of a survivor are divided."""
_FOREIGN = (HERE.parent / "tests" / "foreign", HERE.parent / "tests" / "checker" / "triton_fence")
Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A whole kernel: its text, and how it is launched."""

    name: str
    text: str
    profile: str
    job: dict[str, Any] | None = None
    file: Path | None = None

    @property
    def sms(self) -> int | None:
        return None if self.job is None else self.job["sms"]

    def options(self) -> tuple[dict[str, Any], list[Any]]:
        """The keywords of `launch` over fresh memory, and the arrays that a run may write."""
        if self.job is not None:
            options, out = made(self.job)
            options.pop("sms")
            return options, [out]
        assert self.file is not None
        file = load(self.file)
        buffers = file.allocate()
        launch = file.launch(buffers)
        names = ("grid", "block", "cluster", "shared_bytes", "entry", "args")
        return {name: getattr(launch, name) for name in names}, list(buffers.values())

    def outcome(self, text: str, schedule: Any, limit: int) -> tuple[str, Any]:
        """A digest of the memory after a run or the code of its error, and the run."""
        options, arrays = self.options()
        try:
            ran = warploom.launch(text, schedule=schedule, limit=limit, sms=self.sms, **options)
        except warploom.WarploomError as error:
            return error.code, None
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16], ran


def subjects() -> dict[str, Any]:
    """The kernels by name, made when they are needed."""
    found: dict[str, Any] = dict.fromkeys(CASES)
    for folder in _FOREIGN:
        for path in sorted(folder.glob("*.launch.json")):
            if folder.name == "foreign" or any(release in path.name for release in ("380", "390")):
                found[path.name.removesuffix(".launch.json")] = path
    return found


@cache
def subject(name: str) -> Subject:
    path = subjects()[name]
    if path is None:
        case = CASES[name]()
        text = print_module(case.launch.program)
        return Subject(name, text, "strict", job_of(case.launch, text, case.out, case.sms))
    ptx = path.with_name(path.name.removesuffix(".launch.json") + ".ptx").read_text("utf-8")
    return Subject(name, ptx, "lenient", file=path)


@cache
def whole(name: str) -> tuple[str, int]:
    """The result of a whole kernel, and a limit for its mutants."""
    one = subject(name)
    digest, ran = one.outcome(one.text, "eager", 50_000_000)
    return digest, _PATIENCE * ran.instructions


def key(name: str, mutant: Mutant) -> str:
    content = "\n".join((name, mutant.name, str(mutant.line), mutant.before, mutant.after))
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def chosen(names: list[str], most: int) -> Iterator[tuple[str, Mutant]]:
    """At most so many mutants of each kernel and class, in an order that mixes them."""
    found: list[tuple[int, str, str, Mutant]] = []
    for name in names:
        by_class = defaultdict[str, list[Mutant]](list)
        for mutant in mutants(subject(name).text):
            by_class[mutant.name].append(mutant)
        for each in by_class.values():
            each.sort(key=lambda mutant: key(name, mutant))
            found += [(rank, key(name, mutant), name, mutant) for rank, mutant in enumerate(each[:most])]
    for *_, name, mutant in sorted(found, key=lambda each: each[:2]):
        yield name, mutant


def report_of(one: Subject, text: str) -> warploom.Report:
    """The verdict under the kernel's profile; what `lenient` refutes, `strict` refutes as well."""
    _, limit = whole(one.name)
    asks = "clusterlaunchcontrol" in one.text  # other answers are further runs
    settings: dict[str, Any] = {"budget": 2, "limit": limit} if asks else {"budget": 0, "limit": limit, "sms": one.sms}
    report = warploom.check(text, launch=one.options()[0], profile="lenient", **settings)
    if one.profile == "lenient" or report.verdict == "REFUTED":
        return report
    return warploom.check(text, launch=one.options()[0], profile="strict", **settings)


@cache
def replayed(name: str) -> tuple[Replay, frozenset[int]]:
    """The whole kernel's run, and the lines of the PTX that have an effect in it."""
    one = subject(name)
    replay = Replay(launch_of(one.text, **one.options()[0]), one.profile, None, one.sms)
    return replay, frozenset(event.source.line for event in replay.events)


def judge(name: str, mutant: Mutant) -> Row:
    """The verdict on a mutant."""
    one = subject(name)
    row: Row = {"kernel": name, "class": mutant.name, "line": mutant.line + 1, "before": mutant.before.strip()}
    row["revision"] = revision()
    row["after"] = mutant.after.strip()
    try:
        report = report_of(one, mutant.applied(one.text))
    except warploom.WarploomError as error:
        return row | {"verdict": "REJECTED", "codes": [error.code]}
    remaining = sorted({finding.code for finding in report.remaining_under_lenient})
    row |= {"verdict": str(report.verdict), "codes": sorted({finding.code for finding in report.findings})}
    row |= {"strict only": report.verdict == "REFUTED" and not remaining}
    if report.verdict == "INCOMPLETE":
        row["reason"] = report.reasons[0].partition(" (")[0]
    if report.verdict != "REFUTED":
        lines = replayed(name)[1]
        row["executed"] = mutant.line + 1 in lines or (mutant.moved is not None and mutant.moved + 1 in lines)
    return row


def by_line(orders: Orders) -> dict[tuple[int, int], Counter[int]]:
    """The paths by lines of the PTX, which a change of one line leaves as they are."""
    lines = {number: source.line for number, source in orders.sources.items()} | {-1: -1}
    found: dict[tuple[int, int], Counter[int]] = {}
    for pair, paths in orders.paths.items():
        mine = found.setdefault((lines[pair.old], lines[pair.new]), Counter())
        for number, count in paths.items():
            mine[lines[number]] += count
    return found


def paths(name: str, mutant: Mutant) -> tuple[bool, list[str]]:
    """For each pair of accesses that the changed instruction ordered, the path that orders it in the mutant."""
    one = subject(name)
    text = mutant.applied(one.text)
    before = by_line(replayed(name)[0].judged().orders)
    after_run = Replay(launch_of(text, **one.options()[0]), one.profile, whole(name)[1], one.sms)
    after = by_line(after_run.judged().orders)
    changed = {mutant.line + 1, *(() if mutant.moved is None else (mutant.moved + 1,))}
    texts = text.split("\n")
    found, whole_proof = [], True
    for pair, old in sorted(before.items()):
        new = after.get(pair, Counter())
        if not changed & set(old) and set(old) == set(new):
            continue
        ways = [
            f"{line} `{texts[line - 1].strip()[:60]}`" if line > 0 else "an earlier synchronisation"
            for line in sorted(new)
        ]
        if not ways and pair[0] not in changed and pair[1] not in changed:
            whole_proof = False
        found.append(f"{pair[0]} before {pair[1]}: {' or '.join(ways) or 'nothing'}")
    return whole_proof, found


def schedules(name: str, ran: Any, budget: int) -> list[Any]:
    """The schedules of `explore`, and twenty seeds of those that have seeds."""
    block = subject(name).options()[0]["block"]
    warps = -(-(block if isinstance(block, int) else math.prod(block)) // 32)
    explore = list(portfolio(ran.counts, warps, budget, ran.barriers))
    known = {(type(each), each.seed) for each in explore if hasattr(each, "seed")}
    seeds = [kind(seed) for kind in (Random, Weak) for seed in range(_SEEDS) if (kind, seed) not in known]
    return [*explore, *seeds]


def explored(name: str, mutant: Mutant, budget: int, part: int) -> tuple[str, int]:
    """For one part of the schedules: the first that shows the mutant, or nothing, and the schedules tried."""
    one, (digest, limit) = subject(name), whole(name)
    text = mutant.applied(one.text)
    found, ran = one.outcome(text, "eager", limit)
    if found != digest:
        return f"eager: {found}", 1
    tried = 0
    for schedule in schedules(name, ran, budget)[part::_PARTS]:
        tried += 1
        found, _ = one.outcome(text, schedule, limit)
        if found != digest:
            return f"{schedule.name}: {found if found.isupper() else 'another result'}", tried
    return "", tried


def read() -> dict[str, Any]:
    if RESULTS.exists():
        found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
        return found
    return {"whole": {}, "mutants": {}}


def write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def _whole(name: str) -> tuple[str, Row]:
    """The verdict on a whole kernel."""
    start = time.process_time()
    report = report_of(subject(name), subject(name).text)
    return name, {
        "verdict": str(report.verdict), "codes": sorted({finding.code for finding in report.findings}),
        "profile": subject(name).profile, "reason": report.reasons[0].partition(" (")[0] if report.reasons else "",
        "seconds": round(time.process_time() - start, 2),
    }  # fmt: skip


def _judged(given: tuple[str, Mutant]) -> tuple[str, Row]:
    return key(*given), judge(*given)


def run(options: argparse.Namespace) -> None:
    """Judge mutants until the time is over."""
    results, end = read(), time.monotonic() + 60 * options.minutes
    names = options.kernel or list(subjects())
    missing = [name for name in names if name not in results["whole"]]
    for name, row in spread(_whole, missing, options.processes, end):
        results["whole"][name] = row
        write(results)
    usable = [name for name in names if results["whole"].get(name, {}).get("verdict") == "PROVED"]
    print(f"{len(usable)} of {len(names)} whole kernels are PROVED", flush=True)
    left = [given for given in chosen(usable, options.most) if key(*given) not in results["mutants"]]
    for done, (number, row) in enumerate(spread(_judged, left, options.processes, end)):
        results["mutants"][number] = row
        if row["verdict"] not in ("REFUTED", "REJECTED"):
            print(number, row["kernel"], row["class"], row["line"], row["before"][:60], row["verdict"], flush=True)
        if done % 20 == 0:
            write(results)
    write(results)
    print(dict(Counter(row["verdict"] for row in results["mutants"].values())))


def again(options: argparse.Namespace) -> None:
    """Judge all mutants, or the survivors, once more: the checker may have changed since."""
    results, end = read(), time.monotonic() + 60 * options.minutes
    left = [
        given
        for given in chosen(list(results["whole"]), 1 << 20)
        if (row := results["mutants"].get(key(*given)))
        and (options.all or row["verdict"] not in ("REFUTED", "REJECTED"))
    ]
    for number, row in spread(_judged, left, options.processes, end):
        before = results["mutants"][number]
        if row["verdict"] != before["verdict"]:
            print(number, row["kernel"], row["class"], before["verdict"], row["verdict"], row["codes"], flush=True)
        if row["verdict"] not in ("REFUTED", "REJECTED"):
            row |= {name: before[name] for name in ("is ordered", "paths", "shown by", "schedules") if name in before}
        results["mutants"][number] = row
        write(results)


def _paths(given: tuple[str, Mutant]) -> tuple[str, bool, list[str]]:
    return key(*given), *paths(*given)


def _explored(given: tuple[str, Mutant, int, int]) -> tuple[str, str, int]:
    return key(*given[:2]), *explored(*given)


def prove(options: argparse.Namespace) -> None:
    """Look for other paths and for schedules that show a survivor, those of small kernels first."""
    results, end = read(), time.monotonic() + 60 * options.minutes
    rows = results["mutants"]
    known = [name for name in subjects() if name in results["whole"]]
    survivors = [
        given
        for given in chosen(known, 1 << 20)
        if (row := rows.get(key(*given), {})).get("verdict") in ("PROVED", "INCOMPLETE")
        and row.get("executed") is not False
    ]
    survivors.sort(key=lambda given: (results["whole"][given[0]]["seconds"], key(*given)))
    for number, ordered, listed in spread(
        _paths, [given for given in survivors if "paths" not in rows[key(*given)]], options.processes, end
    ):
        rows[number] |= {"is ordered": ordered, "paths": listed}
        write(results)
    left = [
        given
        for given in survivors
        if rows[key(*given)].get("schedules", 0) < options.schedules and not rows[key(*given)].get("shown by")
    ]
    print(f"{len(survivors)} survivors, {len(left)} to explore", flush=True)
    parts = defaultdict[str, list[tuple[str, int]]](list)
    jobs = [(*given, options.schedules, part) for given in left for part in range(_PARTS)]
    for number, shown, tried in spread(_explored, jobs, options.processes, end):
        row, mine = rows[number], parts[number]
        mine.append((shown, tried))
        first = next((each for each, _ in mine if each), "")
        if len(mine) < _PARTS and not first:
            continue
        row |= {"shown by": first, "schedules": sum(count for _, count in mine), "revision": revision()}
        write(results)
        print(number, row["kernel"], row["class"], row["before"][:50], row["is ordered"], row["schedules"], first)
        sys.stdout.flush()


def merge(options: argparse.Namespace) -> None:
    """Add other results; of two rows of one mutant, the one with more schedules or of the later file stays."""
    results = read()
    for file in options.files:
        found = json.loads(file.read_text("utf-8"))
        results["whole"] |= found["whole"]
        for number, row in found["mutants"].items():
            if row.get("schedules", 0) >= results["mutants"].get(number, {}).get("schedules", 0):
                results["mutants"][number] = row
    write(results)
    print(len(results["mutants"]), dict(Counter(row["verdict"] for row in results["mutants"].values())))


def show(options: argparse.Namespace) -> None:
    results = read()
    for name, mutant in chosen(list(results["whole"]), 1 << 20):
        if key(name, mutant) == options.id:
            lines = mutant.applied(subject(name).text).split("\n")
            print("\n".join(lines[max(mutant.line - 12, 0) : mutant.line]))
            print(f"-{mutant.before}\n+{mutant.after}")
            print("\n".join(lines[mutant.line + 1 : mutant.line + 13]))
            print(report_of(subject(name), mutant.applied(subject(name).text)))
    print(json.dumps(results["mutants"].get(options.id), indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("--minutes", type=float, default=10)
    command.add_argument("--most", type=int, default=2, help="mutants of each kernel and class (2)")
    command.add_argument("--kernel", nargs="+", choices=list(subjects()))
    command.add_argument("--processes", type=int, default=1)
    command.set_defaults(do=run)
    command = commands.add_parser("prove")
    command.add_argument("--minutes", type=float, default=10)
    command.add_argument("--schedules", type=int, default=64, help="schedules of explore (64)")
    command.add_argument("--processes", type=int, default=1)
    command.set_defaults(do=prove)
    command = commands.add_parser("merge")
    command.add_argument("files", nargs="+", type=Path)
    command.set_defaults(do=merge)
    command = commands.add_parser("again")
    command.add_argument("--minutes", type=float, default=10)
    command.add_argument("--all", action="store_true", help="the refuted ones too")
    command.add_argument("--processes", type=int, default=1)
    command.set_defaults(do=again)
    command = commands.add_parser("show")
    command.add_argument("id")
    command.set_defaults(do=show)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
