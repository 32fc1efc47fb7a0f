"""Mutants of valid PTX on both engines: no crash, and the same results, instruction counts and error messages.

    python bench/engine_fuzz.py [--first 0] [--count 2000] [--kinds written foreign corpus] [--depth 1]
                                [--processes 1] [--seconds N] [--json FILE]

Mutants run in child processes, in which memories end at guard pages (docs/engine.md); one that dies is reported with the
number of the mutant that it was at. With a file the
chunks that it has of the same revision are not run again, and after `--seconds` no new chunk begins.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from revision import revision
from tests.fuzz.bases import KINDS, Plan
from tests.machine.engine.mutants import compared

from warploom.machine.memory import guard_pages

_CHUNK = 250


def work(pipe: Connection, plan: Plan, numbers: range) -> None:
    kernels = plan.bases()
    for number in numbers:
        pipe.send(number)
        pipe.send(compared(kernels, number, plan.depth))
    pipe.send(None)


class Campaign:
    """The chunks that are done, the outcomes of their mutants, and the failures."""

    def __init__(self, facts: dict[str, Any], file: Path | None) -> None:
        self.facts, self._file = facts, file
        self.done: list[int] = []
        self.outcomes, self.failures = Counter[str](), list[str]()
        self._lock, self._start = threading.Lock(), time.monotonic()
        if file is not None and file.exists():
            found = json.loads(file.read_text("utf-8"))
            if all(found.get(key) == value for key, value in facts.items()):
                self.done, self.failures = found["chunks"], found["failures"]
                self.outcomes = Counter(found["outcomes"])

    def chunk(self, plan: Plan, numbers: range) -> None:
        """Run a chunk, in as many processes as it takes."""
        outcomes, failures = Counter[str](), list[str]()
        spawn, at = multiprocessing.get_context("spawn"), numbers.start
        while at < numbers.stop:
            mine, theirs = spawn.Pipe()
            process = spawn.Process(target=work, args=(theirs, plan, range(at, numbers.stop)))
            process.start()
            theirs.close()
            try:
                while (number := mine.recv()) is not None:
                    at = number
                    code, failure = mine.recv()
                    outcomes[code] += 1
                    at += 1
                    if failure:
                        failures.append(f"mutant {number}: {failure}")
            except EOFError:
                process.join()
                failures.append(f"mutant {at}: the process died with status {process.exitcode}")
                at += 1
            process.join()
        with self._lock:
            self.done = sorted([*self.done, numbers.start])
            self.outcomes += outcomes
            self.failures += failures
            self.save()
            seconds = time.monotonic() - self._start
            total = sum(self.outcomes.values())
            print(*failures, sep="\n", end="\n" if failures else "")
            print(f"{total} mutants, {len(self.failures)} failures, {seconds:.0f} s", flush=True)

    def save(self) -> None:
        if self._file is None:
            return
        found = {
            **self.facts,
            "mutants": sum(self.outcomes.values()),
            "outcomes": dict(self.outcomes.most_common()),
            "failures": self.failures,
            "chunk": _CHUNK,
            "chunks": self.done,
        }
        self._file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--kinds", nargs="*", default=["written", "foreign"], choices=KINDS)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no chunk after so many")
    parser.add_argument("--revision", default=revision(), help="the commit, where the checkout does not say")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ[guard_pages.SWITCH] = "1"
    plan = Plan(tuple(options.kinds), options.depth)
    campaign = Campaign({"revision": options.revision, "kinds": options.kinds, "depth": options.depth}, options.json)
    waiting, end = SimpleQueue[range](), options.first + options.count
    for at in range(options.first, end, _CHUNK):
        if at not in campaign.done:
            waiting.put(range(at, min(end, at + _CHUNK)))
    until = time.monotonic() + options.seconds

    def serve() -> None:
        while time.monotonic() < until:
            try:
                campaign.chunk(plan, waiting.get_nowait())
            except Empty:
                return

    threads = [threading.Thread(target=serve) for _ in range(options.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(dict(campaign.outcomes.most_common()))
    campaign.save()
    sys.exit(bool(campaign.failures))


if __name__ == "__main__":
    main()
