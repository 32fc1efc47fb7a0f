"""Every arithmetic form with native code against its function on arrays: corner and random operands, differences counted.

    python bench/engine_forms.py [--families WORD …] [--lanes 1048576] [--most 40] [--seed 0] [--processes 1]
                                 [--seconds N] [--json FILE]

Forms that differ only in modifiers which change little are many (`cvt`, `set`, `setp`): `--most` bounds the forms of a
family that are drawn; 0 compares all of them. With a file the forms that it has of the same revision are not compared
again, and after `--seconds` no new one begins.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from revision import revision
from tests.machine.engine.every_form import Case, cases, results

from warploom.machine.engine.native import Engine


@cache
def engine() -> Engine:
    return Engine()


def compare(task: tuple[Case, int, int, float]) -> dict[str, Any] | None:
    """Compare a form: if it is native, its difference and the CPU time; None when the time is over."""
    case, lanes, seed, until = task
    if time.time() > until:
        return None
    # The operands of a form do not depend on the forms before it.
    random, start = np.random.default_rng([seed, zlib.crc32(str(case).encode())]), time.process_time()
    found = results(engine(), case, lanes, random)
    differs = found.differences() or ""
    seconds = round(time.process_time() - start, 2)
    return {"form": str(case), "native": found.native is not None, "differs": differs, "seconds": seconds}


def drawn(families: list[str], most: int, seed: int) -> Iterator[Case]:
    """The forms to compare."""
    random = np.random.default_rng(seed)
    for family, group in itertools.groupby(sorted(cases(), key=str), key=lambda case: case.family):
        if families and family not in families:
            continue
        forms = list(group)
        if most and len(forms) > most:
            forms = [forms[at] for at in random.choice(len(forms), most, replace=False)]
        yield from forms


def table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results by family."""
    rows = []
    for family, group in itertools.groupby(
        sorted(found, key=lambda each: each["form"]), lambda each: each["form"].split()[0]
    ):
        forms = list(group)
        wrong = [f"{each['form']}: {each['differs']}" for each in forms if each["differs"]]
        native = sum(each["native"] for each in forms)
        seconds = round(sum(each["seconds"] for each in forms), 1)
        rows.append({"family": family, "forms": len(forms), "native": native, "wrong": wrong, "seconds": seconds})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="*", default=[])
    parser.add_argument("--lanes", type=int, default=1 << 20)
    parser.add_argument("--most", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no form after so many")
    parser.add_argument("--revision", default=revision(), help="the commit, where the checkout does not say")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    facts = {"revision": options.revision, "lanes": options.lanes, "seed": options.seed, "host": repr(engine().host)}
    found: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        before = json.loads(options.json.read_text("utf-8"))
        if all(before.get(key) == value for key, value in facts.items()):
            found = before["forms"]
    done = {each["form"] for each in found}
    chosen = list(drawn(options.families, options.most, options.seed))
    until = time.time() + options.seconds
    tasks = [(case, options.lanes, options.seed, until) for case in chosen if str(case) not in done]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for each in pool.imap_unordered(compare, tasks):
            if each is not None:
                found.append(each)
                if each["differs"]:
                    print(f"{each['form']}: {each['differs']}", flush=True)
    rows = table(found)
    for row in rows:
        print(
            f"{row['family']:12} {row['forms']:5} forms, {row['native']:5} native, {len(row['wrong'])} differ, "
            f"{row['seconds']} s"
        )
    print(f"{len(found)} forms of {len(chosen)}, {sum(bool(each['differs']) for each in found)} differ")
    if options.json:
        forms = sorted(found, key=lambda each: each["form"])
        text = json.dumps({**facts, "drawn": len(chosen), "families": rows}, indent=1)
        lines = ",\n".join("  " + json.dumps(each) for each in forms)
        options.json.write_text(f'{text[:-2]},\n "forms": [\n{lines}\n ]\n}}\n', "utf-8")
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
