"""Mutants of every kernel family of the library: what schedules find.

    python bench/mutants.py run --baseline CHECKOUT --minutes 30   # add mutants to bench/results/mutants.json
    python bench/mutants.py page                                    # write docs/mutants.md from them
    python bench/mutants.py show ID                                 # one mutant: its change and its outcomes
    python bench/mutants.py again                                   # explore those that survived once more
    python bench/mutants.py whole                                   # explore the whole kernels

A mutant is one change of one synchronisation instruction (`mutant_classes.py`) of a small launch of a family
(`mutant_cases.py`). It is found by a schedule if the run ends with an error or with another result than the whole kernel.
First come eager, lazy, reverse and random with five seeds, of another checkout where `--baseline` names one; then, for
those that all of these miss, the schedules of `explore`. The order is such that every prefix of it is a sample of all
families and classes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from mutant_cases import CASES  # noqa: E402
from mutant_classes import CLASSES, Mutant, mutants  # noqa: E402
from mutant_reasons import BY_THE_LETTER, reason  # noqa: E402
from mutant_runs import Job, job_of, made, outcome, outcomes  # noqa: E402

import warploom  # noqa: E402
from warploom.machine.core.exploration import portfolio  # noqa: E402
from warploom.ptx.syntax.printer import print_module  # noqa: E402

HERE = Path(__file__).parent
RESULTS = Path(os.environ.get("MUTANTS", HERE / "results" / "mutants.json"))
PAGE = HERE.parent / "docs" / "mutants.md"
OLD = (("eager", 0), ("lazy", 0), ("reverse", 0), *(("random", seed) for seed in range(5)))
BUDGET = 64
_PATIENCE = 40
"""A mutant may execute so many times the instructions of the whole kernel."""
Row = dict[str, Any]


@cache
def whole(name: str) -> tuple[str, Job]:
    """The text of a family's kernel, and its launch."""
    case = CASES[name]()
    text = print_module(case.launch.program)
    return text, job_of(case.launch, text, case.out, case.sms)


def key(name: str, mutant: Mutant) -> str:
    """A short name that is the same for the same change."""
    content = "\n".join((name, mutant.name, str(mutant.line), mutant.before, mutant.after))
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def all_mutants(families: list[str], most: int) -> list[tuple[str, Mutant]]:
    """At most so many mutants of each family and class, spread over the text, and in an order that mixes them."""
    chosen: list[tuple[int, str, str, Mutant]] = []
    for name in families:
        by_class = defaultdict[str, list[Mutant]](list)
        for mutant in mutants(whole(name)[0]):
            by_class[mutant.name].append(mutant)
        for found in by_class.values():
            found.sort(key=lambda mutant: key(name, mutant))
            chosen += [(rank, key(name, mutant), name, mutant) for rank, mutant in enumerate(found[:most])]
    return [(name, mutant) for *_, name, mutant in sorted(chosen, key=lambda each: each[:2])]


class Baseline:
    """The schedules of before, run by another checkout in a process of its own, or here."""

    def __init__(self, checkout: Path | None) -> None:
        self._process = None
        if checkout is not None:
            environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
            command = [sys.executable, str(HERE / "mutant_runs.py")]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, cwd=HERE)
        self._whole: dict[str, tuple[str, int, list[tuple[str, int]]]] = {}

    def _ask(self, *request: Any) -> list[tuple[str, int]]:
        if self._process is None:
            return outcomes(*request)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(request, self._process.stdin)
        self._process.stdin.flush()
        answer: list[tuple[str, int]] = pickle.load(self._process.stdout)
        return answer

    def schedules(self, name: str) -> tuple[str, int, list[tuple[str, int]]]:
        """(result, limit, schedules) of a whole kernel: those under which it is right within the limit."""
        if name not in self._whole:
            job = whole(name)[1]
            digest, executed = self._ask(job, [("eager", 0)], 50_000_000)[0]
            limit = _PATIENCE * executed
            usable = [each for each in OLD if self._ask(job, [each], limit)[0][0] == digest]
            self._whole[name] = digest, limit, usable
        return self._whole[name]

    def found_by(self, name: str, job: Job) -> str:
        """The first schedule that finds a mutant, with what it shows; empty for none."""
        digest, limit, usable = self.schedules(name)
        found = self._ask(job, usable, limit, digest)
        if found[-1][0] == digest:
            return ""
        schedule, seed = usable[len(found) - 1]
        return f"{schedule}{f' {seed}' if schedule == 'random' else ''}: {_shown(found[-1][0])}"


def _shown(found: str) -> str:
    return found if found.isupper() else "wrong result"


@cache
def expected(name: str) -> tuple[str, int]:
    """The result of a whole kernel, and a limit for its mutants."""
    digest, executed = outcome(whole(name)[1], "eager", 0, 50_000_000)
    return digest, _PATIENCE * executed


@cache
def executed(name: str) -> frozenset[int]:
    """The lines of a whole kernel that its launch executes."""
    job = whole(name)[1]
    lines = ["" if line.strip().startswith(".loc") else line for line in job["text"].split("\n")]
    ran = warploom.launch("\n".join(lines), **made(job)[0])
    return frozenset(line for found in ran.coverage.values() for line in found)


def judged(name: str, mutant: Mutant) -> str:
    """The reason why no run of the launch can tell a mutant from the whole kernel; empty if there is none."""
    changed = mutant.line if mutant.moved is None else mutant.moved
    if changed + 1 not in executed(name):
        return "the launch does not execute it"
    return reason(mutant.name, name, whole(name)[0], mutant.line)


def explored(name: str, job: Job, budget: int = BUDGET) -> tuple[str, int]:
    """The schedule of `explore` that finds a mutant, and the schedules tried."""
    digest, limit = expected(name)
    warps = -(-job["block"][0] // 32)
    tried = 0
    for schedule in schedules_of(job, limit, warps, budget):
        tried += 1
        found, _ = outcome(job, schedule, 0, limit)
        if found != digest:
            seed = f" {schedule.seed}" if hasattr(schedule, "seed") else ""
            return f"{schedule.name}{seed}: {_shown(found)}", tried
    return "", tried


def schedules_of(job: Job, limit: int, warps: int, budget: int) -> Iterator[Any]:
    """The schedules of `explore` for a mutant."""
    try:
        ran = warploom.launch(job["text"], limit=limit, **made(job)[0])
    except warploom.WarploomError:
        return
    yield from portfolio(ran.counts, warps, budget, ran.barriers)


def read() -> dict[str, Any]:
    if RESULTS.exists():
        found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
        return found
    return {"baseline": "", "revision": "", "budget": BUDGET, "most": 0, "whole": {}, "mutants": {}}


def write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def run(options: argparse.Namespace) -> None:
    """Add mutants to the results until the time is over."""
    results, end = read(), time.monotonic() + 60 * options.minutes
    results |= {"most": options.most, "budget": BUDGET}
    results |= {
        "baseline": options.baseline_name or results["baseline"],
        "revision": options.revision or results["revision"],
    }
    baseline, rows = Baseline(options.baseline), results["mutants"]
    chosen = all_mutants(options.family or list(CASES), options.most)
    for name, mutant in chosen:
        number = key(name, mutant)
        if number in rows or time.monotonic() > end:
            continue
        row: Row = {"family": name, "class": mutant.name, "line": mutant.line + 1, "before": mutant.before.strip()}
        row |= {"after": mutant.after.strip(), "old": baseline.found_by(name, _job(name, mutant))}
        row["equivalent"] = judged(name, mutant)
        rows[number] = row
        write(results)
    for name, mutant in chosen:
        row = rows.get(key(name, mutant), {"old": "not run"})
        if row["old"] or row["equivalent"] or "explore" in row or time.monotonic() > end:
            continue
        start = time.process_time()
        row["explore"], row["schedules"] = explored(name, _job(name, mutant))
        row["revision"] = results["revision"]
        if options.verbose:
            seconds = time.process_time() - start
            print(key(name, mutant), name, mutant.name, "->", row["explore"], row["schedules"], f"{seconds:.1f} s")
            sys.stdout.flush()
        write(results)


def _job(name: str, mutant: Mutant) -> Job:
    return {**whole(name)[1], "text": mutant.applied(whole(name)[0])}


def check_whole(_: argparse.Namespace) -> None:
    """Explore the whole kernels: none may fail."""
    results = read()
    for name in CASES:
        found, tried = explored(name, whole(name)[1])
        results["whole"][name] = found
        print(name, found or f"right under {tried} schedules")
        sys.stdout.flush()
        write(results)


def again(options: argparse.Namespace) -> None:
    """Explore the mutants that survived once more: the schedules may have changed since.

    A later call goes on where the last one with the same revision stopped. Mutants of texts that the library no longer
    writes are dropped.
    """
    results, end = read(), time.monotonic() + 60 * options.minutes
    results |= {"budget": BUDGET, "revision": options.revision or results["revision"]}
    known = {key(name, mutant): (name, mutant) for name, mutant in all_mutants(list(CASES), 1 << 20)}
    rows = results["mutants"] = {number: row for number, row in results["mutants"].items() if number in known}
    for number, row in rows.items():
        row["equivalent"] = judged(*known[number])
    for number, row in rows.items():
        missed = not row["old"] and (options.all or not row.get("explore"))
        is_done = "explore" in row and row.get("revision") == options.revision
        if not missed or is_done or time.monotonic() > end or (options.name and row["class"] not in options.name):
            continue
        if row["equivalent"]:
            continue
        name, mutant = known[number]
        row["explore"], row["schedules"] = explored(name, _job(name, mutant))
        row["revision"] = results["revision"]
        if options.verbose:
            print(number, name, mutant.name, mutant.before.strip()[:60], "->", row["explore"], row["schedules"])
            sys.stdout.flush()
        write(results)


def show(options: argparse.Namespace) -> None:
    """Print one mutant: its surroundings and its outcomes."""
    for name, mutant in all_mutants(list(CASES), 1 << 20):
        if key(name, mutant) == options.id:
            lines = mutant.applied(whole(name)[0]).split("\n")
            print(name, "|", mutant.name, "| line", mutant.line + 1)
            print("\n".join(lines[max(mutant.line - options.around, 0) : mutant.line]))
            print(f"-{mutant.before}\n+{mutant.after}")
            print("\n".join(lines[mutant.line + 1 : mutant.line + 1 + options.around]))
    print(read()["mutants"].get(options.id))


def page(_: argparse.Namespace) -> None:
    """Write the page."""
    results = read()
    rows: list[Row] = list(results["mutants"].values())
    missed = [row for row in rows if not row["old"]]
    equivalent = [row for row in missed if row["equivalent"]]
    real = [row for row in missed if not row["equivalent"]]
    tried = [row for row in real if "explore" in row]
    found = [row for row in tried if row["explore"]]
    left = [row for row in tried if not row["explore"]]
    share = f"{len(found)} of {len(tried)} ({100 * len(found) / max(len(tried), 1):.0f} %)"
    asked = [row for row in equivalent if row["equivalent"] in BY_THE_LETTER]
    revisions = Counter(row["revision"] for row in tried)
    by_revision = ", ".join(f"{count} with {name}" for name, count in revisions.most_common())
    chosen = "all" if len(tried) == len(real) else len(tried)
    strict = f"{len(found)} of {len(tried) + len(asked)} ({100 * len(found) / max(len(tried) + len(asked), 1):.0f} %)"
    baseline = f" of {results['baseline']}" if results["baseline"] else ""
    lines = [
        "# Mutants: what schedules find",
        "",
        "A *mutant* is a kernel of the library with one synchronisation instruction deleted, duplicated, weakened, moved or changed by one.",
        "`bench/mutants.py` makes them for every family and runs them on the emulator, in small launches in which each CTA computes several",
        "tiles where the kernel does that. A schedule finds a mutant if the run ends with an error or with another result than the whole kernel.",
        "This page is written by `python bench/mutants.py page` from [bench/results/mutants.json](../bench/results/mutants.json), which lists",
        "every mutant.",
        "",
        f"- {len(rows):,} mutants of {len({row['family'] for row in rows})} kernels: a sample, at most {results['most']} of each kernel and class.",
        f"- {len(rows) - len(missed)} are found by eager, lazy, reverse or random with five seeds{baseline}.",
        f"- {len(missed)} are missed by all of these. {len(equivalent)} of them no run can tell from the whole kernel; the reasons are below.",
        f"- Of the other {len(real)}, {chosen} were explored under {results['budget']} schedules ({by_revision}), which find {share}.",
        f"- That share depends on the judgements. {len(asked)} of the {len(equivalent)} lack an instruction that PTX or CUDA's guide asks for although no run",
        f"  shows it; counted as missed, they make it {strict}. Some rules were written after the first results were known.",
        f"- Of {len(results['whole'])} whole kernels, {sum(map(bool, results['whole'].values()))} fail under one of these schedules.",
        "",
        "## By class",
        "",
        "| class | mutants | found before | equivalent | explored | found by `explore` |",
        "|---|---|---|---|---|---|",
    ]
    for name in CLASSES:
        mine = [row for row in rows if row["class"] == name]
        if mine:
            counts = (
                len(mine),
                sum(bool(row["old"]) for row in mine),
                sum(row in equivalent for row in mine),
                sum(row in tried for row in mine),
                sum(row in found for row in mine),
            )
            lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    lines += [
        "",
        "## The schedules that find them",
        "",
        "| schedule | mutants that it is the first to find |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {count} |" for name, count in _by_kind(found).most_common()]
    lines += ["", "## Equivalent mutants", "", "Judgements, as rules in `bench/mutant_reasons.py`:", ""]
    lines += [f"- {count}: {text}" for text, count in Counter(row["equivalent"] for row in equivalent).most_common()]
    lines += ["", "## What is left", "", "No schedule of the portfolio shows these; a checker has to.", ""]
    lines += ["| class | kernel | line | instruction |", "|---|---|---|---|"]
    for row in sorted(left, key=lambda row: (row["class"], row["family"], row["line"])):
        text = row["before"][:80].replace("|", "\\|")
        lines.append(f"| {row['class']} | {row['family']} | {row['line']} | `{text}` |")
    PAGE.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{len(rows)} mutants, {len(missed)} missed before, {len(equivalent)} equivalent, explore finds {share}")


def _by_kind(found: list[Row]) -> Counter[str]:
    """Count by the kind of schedule: `hold:wgmma`, `starve`, `random`, `weak`."""
    names = (row["explore"].rpartition(": ")[0] for row in found)
    return Counter(name if name.startswith("hold:") else name.partition(":")[0].partition(" ")[0] for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("--baseline", type=Path, help="a checkout whose emulator runs the first eight schedules")
    command.add_argument("--baseline-name", default="", help="its name on the page")
    command.add_argument("--revision", default="", help="the name of this checkout on the page")
    command.add_argument("--minutes", type=float, default=10)
    command.add_argument("--most", type=int, default=3, help="mutants of each family and class (3)")
    command.add_argument("--family", nargs="+", choices=CASES)
    command.add_argument("--verbose", action="store_true")
    command.set_defaults(do=run)
    command = commands.add_parser("again")
    command.add_argument("--minutes", type=float, default=10)
    command.add_argument("--all", action="store_true", help="also those that explore has found")
    command.add_argument("--revision", default="", help="the name of this revision, for the page")
    command.add_argument("--name", nargs="+", choices=CLASSES)
    command.add_argument("--verbose", action="store_true")
    command.set_defaults(do=again)
    command = commands.add_parser("show")
    command.add_argument("id")
    command.add_argument("--around", type=int, default=12)
    command.set_defaults(do=show)
    commands.add_parser("page").set_defaults(do=page)
    commands.add_parser("whole").set_defaults(do=check_whole)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
