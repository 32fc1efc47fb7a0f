"""Every arithmetic form with native code against `machine/numerics`: corner and random operands, differences counted.

    python bench/engine_forms.py [--families WORD …] [--lanes 1048576] [--most 40] [--seed 0] [--json FILE]

Forms that differ only in modifiers which change little are many (`cvt`, `set`, `setp`): `--most` bounds the forms of a
family that are drawn; 0 compares all of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.machine.engine.every_form import cases, results

from warploom.machine.engine.native import Engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="*", default=[])
    parser.add_argument("--lanes", type=int, default=1 << 20)
    parser.add_argument("--most", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine, random = Engine(), np.random.default_rng(options.seed)
    rows = []
    for family, group in itertools.groupby(sorted(cases(), key=str), key=lambda case: case.family):
        if options.families and family not in options.families:
            continue
        forms = list(group)
        if options.most and len(forms) > options.most:
            forms = [forms[at] for at in random.choice(len(forms), options.most, replace=False)]
        start, native, wrong = time.process_time(), 0, []
        for case in forms:
            found = results(engine, case, options.lanes, random)
            native += found.native is not None
            if difference := found.differences():
                wrong.append(f"{case}: {difference}")
        seconds = time.process_time() - start
        rows.append(
            {"family": family, "forms": len(forms), "native": native, "wrong": wrong, "seconds": round(seconds, 1)}
        )
        print(f"{family:12} {len(forms):5} forms, {native:5} native, {len(wrong)} differ, {seconds:.1f} s", flush=True)
        for line in wrong:
            print(f"  {line}")
    if options.json:
        facts = {"lanes": options.lanes, "seed": options.seed, "host": repr(engine.host), "families": rows}
        options.json.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
