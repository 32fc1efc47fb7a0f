"""Mutants of valid PTX on both engines: no crash, and the same results, instruction counts and error messages.

    python bench/engine_fuzz.py [--first 0] [--count 2000] [--kinds written foreign corpus] [--depth 1] [--json FILE]

Mutants run in child processes; one that dies is reported with the number of the mutant that it was at.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.fuzz.bases import KINDS, Plan
from tests.machine.engine.mutants import compared

_CHUNK = 500


def work(pipe: Connection, plan: Plan, numbers: range) -> None:
    kernels = plan.bases()
    for number in numbers:
        pipe.send(number)
        pipe.send(compared(kernels, number, plan.depth))
    pipe.send(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--kinds", nargs="*", default=["written", "foreign"], choices=KINDS)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    plan, outcomes, failures = Plan(tuple(options.kinds), options.depth), Counter[str](), list[str]()
    spawn, start = multiprocessing.get_context("spawn"), time.monotonic()
    at, end = options.first, options.first + options.count
    while at < end:
        mine, theirs = spawn.Pipe()
        process = spawn.Process(target=work, args=(theirs, plan, range(at, min(end, at + _CHUNK))))
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
                    print(failures[-1], flush=True)
        except EOFError:
            process.join()
            failures.append(f"mutant {at}: the process died with status {process.exitcode}")
            print(failures[-1], flush=True)
            at += 1
        process.join()
        print(f"{at - options.first} mutants, {len(failures)} failures, {time.monotonic() - start:.0f} s", flush=True)
    print(dict(outcomes.most_common()))
    if options.json:
        facts = {"first": options.first, "count": options.count, "kinds": options.kinds, "depth": options.depth}
        found = {**facts, "outcomes": dict(outcomes.most_common()), "failures": failures}
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
