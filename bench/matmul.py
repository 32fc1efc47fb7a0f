"""GEMMs against PyTorch's on a Hopper GPU, through the public operations: plain, fused, random shapes, every family.

    python bench/matmul.py                                  everything
    python bench/matmul.py --what plain,fused --quick       a few shapes, a few rounds
    python bench/matmul.py --what plain --shapes 4096x4096x4096,16x4096x14336 --add
    python bench/matmul.py --what random --seed 7
    python bench/matmul.py --machine                        no GPU: small shapes on the emulator, not timed

Launches are captured in CUDA graphs, inputs rotate over sets that together exceed three times the L2, the sides
alternate in one run after a settling time, medians are compared, and the baseline is also compared with itself. Sides
that alternate share one power budget: see docs/hopper.md, "Numbers". A shape is timed only if its result is right:
bit-exact on small integers, within a tolerance with an activation. A failure is reported and counted, and the rest
continues. Tables go to the terminal, JSON to matmul_*.json in bench/results.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from compiled import warmed
from dense import (
    INPUTS,
    fused_row,
    mn_major_row,
    plain_row,
    wrong_fused,
    wrong_mn_major,
    wrong_plain,
)
from families import FAMILIES
from front_door import family_row, wrong_family
from measuring import Options, is_lost, machine, mean_of
from shapes import LISTED, ODD, RANDOM_SHAPES, SMALL, Shape, label_of, parsed, random_shapes
from tables import GpuLostError, Row, Table, folder_of, good, worded

ABOVE_US = 100
"""Microseconds from which a fused GEMM is compared with the plain one."""
ASKED: dict[str, tuple[float, float]] = {"plain": (1.04, 1.0), "random": (0.97, 0.8), "fused": (1.25, 0.0)}
"""Goals for the geometric mean of the ratios and the lowest ratio; for families, each at least `OF_FAMILIES`."""
OF_FAMILIES, OF_COMPILED, OF_PLAIN = 1.02, 1.10, 1.06
DENSE: dict[str, Callable[..., Row]] = {
    "plain": plain_row,
    "odd": plain_row,
    "random": plain_row,
    "fused": fused_row,
    "mn_major": mn_major_row,
}

CHECKS: dict[str, Callable[[Shape, str], str]] = {
    "fused": wrong_fused,
    "mn_major": wrong_mn_major,
}


def line_of(kind: str, row: Row) -> str:
    if "error" in row:
        return f"{kind:9} {row['label']:32} FAILED: {row['error']}"
    text = f"{kind:9} {row['label']:32} {row['ratio']:6.3f}  {row['us']:9.2f} µs {row['tflops']:5.0f} TFLOP/s"
    return f"{text}  ({worded(row, 'ratio', 'us', 'tflops', 'label', 'shape')})"


def summary(kind: str, rows: list[Row]) -> Row:
    """Summarise the rows, next to the goals."""
    right = good(rows)
    found: Row = {"shapes": len(rows), "failed": len(rows) - len(right)}
    if not right:
        return found
    mean, least = ASKED.get(kind, (0.0, OF_FAMILIES if kind in FAMILIES else 0.0))
    found |= {"geometric_mean": mean_of(right), "lowest": min(row["ratio"] for row in right)}
    found |= {name: value for name, value in (("asked_mean", mean), ("asked_lowest", least)) if value}
    itself = [abs(row[name] - 1) for row in right for name in row if name.endswith("against_itself")]
    found["spread_of_the_peer"] = max(itself)
    if kind == "fused":
        long = [row["of_plain_cublas"] for row in right if row["cublas_us"] >= ABOVE_US]
        found |= {"asked_mean_to_compiled": OF_COMPILED, "asked_most_of_plain": OF_PLAIN}
        found |= {"most_of_plain": max(long)} if long else {}
    for peer in ("compiled", "third", "plain"):
        compared = [row for row in right if f"ratio_to_{peer}" in row]
        found |= {f"mean_to_{peer}": mean_of(compared, f"ratio_to_{peer}")} if compared else {}
    return found


def cases_of(kind: str, asked: argparse.Namespace) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """List the labels and shapes of a table."""
    if kind in FAMILIES:
        cases = FAMILIES[kind].cases[: 1 if asked.quick else None]
        yield from ((case.label, case.small if asked.machine else case.shape) for case in cases)
        return
    if asked.machine:
        shapes = list(SMALL)
    elif kind == "random":
        shapes = random_shapes(asked.seed, 8 if asked.quick else RANDOM_SHAPES)
    elif asked.shapes:
        shapes = parsed(asked.shapes)
    else:
        shapes = list(ODD if kind == "odd" else LISTED)[1 if asked.quick else 0 :: 3 if asked.quick else 1]
    yield from ((label_of(shape), shape) for shape in shapes)


def measured(kind: str, asked: argparse.Namespace, options: Options) -> Table:
    """Measure a table, until the GPU is lost."""
    about = {
        "machine": machine(),
        "inputs": INPUTS,
        "rounds": options.rounds,
        "settled_s": options.settled,
        "seed": asked.seed if kind == "random" else None,
    }
    table = Table(
        f"matmul_{kind}",
        about,
        lambda row: line_of(kind, row),
        lambda rows: summary(kind, rows),
        folder_of(asked),
        asked.limit,
        is_lost,
        asked.add,
    )
    row_of = DENSE.get(kind) or (lambda shape, options: family_row(kind, shape, options))
    for label, shape in cases_of(kind, asked):
        table.measure({"label": label, "shape": shape}, lambda shape=shape: row_of(shape, options))
    return table


def on_the_emulator(kinds: list[str], asked: argparse.Namespace) -> int:
    """Run the checks of every table, small, without a GPU."""
    failed = 0
    for kind in kinds:
        for label, shape in cases_of(kind, asked):
            check = CHECKS.get(kind, wrong_plain)
            wrong = wrong_family(kind, shape, "cpu") if kind in FAMILIES else check(shape, "cpu")
            failed += bool(wrong)
            print(f"{kind:9} {label:32} {wrong or 'right'}", flush=True)
    return failed


def loaded(path: Path) -> Callable[..., Any]:
    """Load `bind(a, b, out)` of a Python file: it returns a call of a third kernel, or None if there is none for the shape."""
    spec = spec_from_file_location("third", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    bind: Callable[..., Any] = module.bind
    return bind


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ", ".join((*DENSE, *FAMILIES))
    parser.add_argument("--what", default="all", help=f"some of {kinds}; families for the last four; all")
    parser.add_argument("--shapes", help="MxNxK,… instead of the listed ones")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--window", type=float, default=3000, help="microseconds of one graph")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the random shapes")
    parser.add_argument("--quick", action="store_true", help="a few shapes and rounds")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a shape counts as hung")
    parser.add_argument("--compiled", type=float, default=45, help="seconds of torch.compile for a shape; 0: without")
    parser.add_argument("--warm", type=float, default=150, help="seconds to compile its candidates ahead; 0: do not")
    parser.add_argument("--third", type=Path, help="a Python file with bind(a, b, out), measured next to plain")
    parser.add_argument("--out", type=Path, help="output directory; default bench/results, with --quick build/bench")
    parser.add_argument("--add", action="store_true", help="keep rows of earlier runs that are not measured again")
    parser.add_argument("--machine", action="store_true", help="the checks alone, small, on the emulator")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    groups = {"all": [*DENSE, *FAMILIES], "families": list(FAMILIES)}
    kinds = [kind for name in asked.what.split(",") for kind in groups.get(name, [name])]
    unknown = [kind for kind in kinds if kind not in (*DENSE, *FAMILIES)]
    if unknown:
        print(f"there is no {', '.join(unknown)}")
        return 2
    if asked.machine:
        return 1 if on_the_emulator(kinds, asked) else 0
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference must accumulate exactly
    third = loaded(asked.third) if asked.third else None
    options = Options(rounds=asked.rounds, window=asked.window, third=third, compiled=asked.compiled)
    if "fused" in kinds and asked.compiled and asked.warm:
        shapes = [shape for _, shape in cases_of("fused", asked)]
        how = warmed(shapes, asked.warm)
        print(
            "torch.compile, ahead:", ", ".join(f"{label_of(shape)} {each}" for shape, each in how.items()), flush=True
        )
    print(json.dumps(machine()), f"seed {asked.seed}", flush=True)
    found: dict[str, Row] = {}
    with torch.no_grad():
        for kind in kinds:
            try:
                table = measured(kind, asked, options.hurried if asked.quick else options)
                found[kind] = summary(kind, table.rows)
            except GpuLostError as error:
                print(error)
                return 1
    for kind, row in found.items():
        print(f"{kind:9} {worded(row)}")
    return 1 if any(row["failed"] for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
