"""One GEMM with one optimisation added at a time, from an unspecialised warpgroup to the library's kernel.

    python bench/ladder.py                          three shapes, every step
    python bench/ladder.py --quick                  one shape, few rounds
    python bench/ladder.py --shapes 4096x4096x4096 --rungs 0,2,7 --add
    python bench/ladder.py --machine                no GPU: every step, small, on the emulator, not timed

Measured like `bench/matmul.py`, each step against cuBLAS; a step is timed only if it is bit-exact. JSON goes to
ladder.json in bench/results; `python bench/pages.py` makes the table and the plot.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from dense import INPUTS, held, named, plain_arguments, plain_peer, plain_reference
from inputs import Maker
from ladder_kernels import RUNGS, Rung
from measuring import Arguments, Options, is_lost, machine, rotating, timed, wrong_bits
from shapes import Shape, flops_of, label_of, parsed
from tables import GpuLostError, Row, Table, folder_of, good

from warploom import launch
from warploom.host.launch import Launch
from warploom.runtime.gpu.prepared import Prepared

SHAPES: tuple[Shape, ...] = ((8192, 8192, 8192), (4096, 4096, 4096), (4096, 14336, 4096))
SMALL: tuple[Shape, ...] = ((200, 264, 328), (64, 128, 64))
"""For the emulator: ragged tiles, and a single tile."""


def bound(rung: Rung, each: Arguments, sms: int) -> tuple[Launch, tuple[torch.Tensor, ...]]:
    arrays = (each["a"], each["b"].t(), each["out"])
    return rung.launch(*arrays, sms), arrays


@dataclass(frozen=True)
class Case:
    """A shape with its inputs: those that are timed, and small integers with their reference."""

    shape: Shape
    sets: list[Arguments]
    exact: Arguments
    want: torch.Tensor

    @classmethod
    def of(cls, shape: Shape) -> Case:
        exact = plain_arguments(Maker("cuda", exact=True), shape)
        sets = rotating(lambda: plain_arguments(Maker("cuda"), shape))
        return cls(shape, sets, exact, plain_reference(exact))


def rung_row(rung: Rung, case: Case, options: Options) -> Row:
    """Time a step against cuBLAS, after a bit-exact check."""
    shape, exact = case.shape, case.exact
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    prepared = Prepared(*bound(rung, exact, sms))

    def run(each: Arguments) -> None:
        prepared(each["a"], each["b"].t(), each["out"])

    held(wrong_bits(lambda: run(exact), exact["out"], case.want))
    times, itself = timed({"cublas": plain_peer, "ours": run}, case.sets, flops_of(shape), options)
    return {
        "config": named(rung.config(shape)),
        "tflops": flops_of(shape) / times["ours"] / 1e6,
        "ratio": times["cublas"] / times["ours"],
        "us": times["ours"],
        "cublas_us": times["cublas"],
        "cublas_tflops": flops_of(shape) / times["cublas"] / 1e6,
        "cublas_against_itself": itself,
    }


def line_of(row: Row) -> str:
    text = f"{row['label']:16} {row['rung']:2} {row['adds']:62}"
    if "error" in row:
        return f"{text} FAILED: {row['error']}"
    return f"{text} {row['tflops']:5.0f} TFLOP/s  {row['ratio']:.3f} of cuBLAS"


def measured(table: Table, shapes: list[Shape], numbers: list[int], options: Options) -> None:
    for shape in shapes:
        case = Case.of(shape)
        for number in numbers:
            rung = RUNGS[number]
            key = {"label": label_of(shape), "shape": shape, "rung": number, "adds": rung.adds}
            table.measure(key, lambda rung=rung, case=case: rung_row(rung, case, options))


def on_the_emulator(numbers: list[int]) -> int:
    """Run every step, small, without a GPU."""
    failed = 0
    for shape in SMALL:
        given = plain_arguments(Maker("cpu", exact=True), shape)
        for number in numbers:
            made, _ = bound(RUNGS[number], given, 4)
            wrong = wrong_bits(lambda made=made: launch(made), given["out"], plain_reference(given), repeats=1)
            failed += bool(wrong)
            print(f"{label_of(shape):16} {number:2} {RUNGS[number].adds:62} {wrong or 'right'}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=parsed, default=list(SHAPES), help="MxNxK,…")
    parser.add_argument("--rungs", help="numbers, from 0 on; all of them if none is named")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--window", type=float, default=3000, help="microseconds of one graph")
    parser.add_argument("--limit", type=float, default=90, help="seconds after which a step counts as hung")
    parser.add_argument("--quick", action="store_true", help="4096³ alone, a few rounds")
    parser.add_argument("--out", type=Path, help="output directory; default bench/results, with --quick build/bench")
    parser.add_argument("--add", action="store_true", help="keep rows of earlier runs that are not measured again")
    parser.add_argument("--machine", action="store_true", help="the checks alone, small, on the emulator")
    asked = parser.parse_args()
    numbers = [int(each) for each in asked.rungs.split(",")] if asked.rungs else list(range(len(RUNGS)))
    if asked.machine:
        return 1 if on_the_emulator(numbers) else 0
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference must accumulate exactly
    options, shapes = Options(rounds=asked.rounds, window=asked.window), asked.shapes
    if asked.quick:
        options, shapes = options.hurried, [SHAPES[1]]
    about = {"machine": machine(), "inputs": INPUTS, "rounds": options.rounds}
    table = Table("ladder", about, line_of, folder=folder_of(asked), limit=asked.limit, is_lost=is_lost, adds=asked.add)
    with torch.no_grad():
        try:
            measured(table, shapes, numbers, options)
        except GpuLostError as error:
            print(error)
            return 1
    return 0 if len(good(table.rows)) == len(table.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
