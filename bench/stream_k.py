"""Stream-K against the fastest configurations without it, and against cuBLAS, for shapes with a partial last wave.

    python bench/stream_k.py
    python bench/stream_k.py --quick --shapes 1920x1152x8192
    python bench/stream_k.py --machine          no GPU: a small shape on the emulator, not timed

Measured like bench/matmul.py. `warploom tune --fit` reads bench/results/stream_k.json with the other measurements.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dense import INPUTS, chosen, held, named, plain_arguments, plain_peer, wrong_plain
from inputs import Maker
from measuring import Options, Side, call_of, is_lost, machine, mean_of, rotating, timed
from shapes import Shape, flops_of, label_of, parsed
from tables import GpuLostError, Row, Table, folder_of, good

import warploom
from warploom.heuristics import EMULATED, ProblemKey, key_of, rank
from warploom.heuristics.sm90.candidates import row_of
from warploom.structured.config.sm90 import HopperConfig

SHAPES: tuple[Shape, ...] = (
    (1152, 1408, 8192),
    (1920, 1152, 8192),
    (1536, 1536, 4096),
    (1280, 2048, 8192),
    (1536, 2048, 4096),
    (2304, 2048, 4096),
    (3072, 3072, 3072),
    (4096, 4096, 4096),
    (4096, 4096, 14336),
    (512, 4096, 16384),
)
"""With tiles of 128 x 128 on 132 SMs: 0.75, 1.02, 1.09, 1.21, 1.45, 2.18, 4.36, 7.76, 7.76, 0.97 waves."""
SMALL: Shape = (300, 200, 300)
OTHERS = 4
"""Configurations without stream-K that the model ranks first, in addition to the chosen one."""


def key_for(shape: Shape) -> ProblemKey:
    return key_of("dense", *shape, a_type="bf16", c_type="bf16", use_tma_store=shape[1] % 8 == 0)


def compared(shape: Shape) -> dict[str, HopperConfig]:
    """List the measured configurations by name: all with stream-K, and some without."""
    found = list(rank(key_for(shape), EMULATED["sm_90a"]))
    whole = [each for each in (chosen(shape), *found) if not each.stream_k][: OTHERS + 1]
    return {named(config): config for config in (*whole, *(each for each in found if each.stream_k))}


def measured(shape: Shape, options: Options) -> Row:
    configs, wrong = compared(shape), dict[str, str]()
    for name, config in configs.items():
        if config.stream_k:
            wrong[name] = wrong_plain(shape, "cuda", config=config)
    held("; ".join(f"{name}: {what}" for name, what in wrong.items() if what))
    sets = rotating(lambda: plain_arguments(Maker("cuda"), shape))
    calls = {name: call_of(warploom.matmul, sets[0], config=config) for name, config in configs.items()}
    sides: dict[str, Side] = {"cublas": plain_peer, **calls}
    times, itself = timed(sides, sets, flops_of(shape), options)
    peer = times.pop("cublas")
    best = {
        streams: min((name for name in times if configs[name].stream_k == streams), key=times.__getitem__)
        for streams in (False, True)
    }
    return {
        "us": times,
        "peer_us": peer,
        "cublas_against_itself": itself,
        "whole": best[False],
        "streamed": best[True],
        "ratio": times[best[False]] / times[best[True]],
        "ratio_to_cublas": peer / times[best[True]],
        "tflops": flops_of(shape) / times[best[True]] / 1e6,
    }


def line_of(row: Row) -> str:
    if "error" in row:
        return f"{row['label']:18} FAILED: {row['error']}"
    sides = f"{row['streamed']}: {row['us'][row['streamed']]:.2f} µs, {row['whole']}: {row['us'][row['whole']]:.2f} µs"
    return f"{row['label']:18} {row['ratio']:6.3f} to whole tiles, {row['ratio_to_cublas']:6.3f} to cuBLAS  ({sides})"


def summary(rows: list[Row]) -> Row:
    right = good(rows)
    found: Row = {"shapes": len(rows), "failed": len(rows) - len(right)}
    return found | ({"mean_to_whole": mean_of(right)} if right else {})


def on_the_emulator() -> int:
    """Check that every stream-K configuration is bit-exact on a shape."""
    wrong = 0
    for name, config in compared((1920, 1152, 8192)).items():
        if config.stream_k:
            found = wrong_plain(SMALL, "cpu", config=config)
            wrong += bool(found)
            print(f"{name:40} {found or 'right'}", flush=True)
    return wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=parsed, default=list(SHAPES), help="MxNxK,…")
    parser.add_argument("--quick", action="store_true", help="a few rounds")
    parser.add_argument("--machine", action="store_true", help="no GPU: on the emulator, not timed")
    parser.add_argument("--out", type=Path, help="output directory")
    asked = parser.parse_args(arguments)
    if asked.machine:
        return 1 if on_the_emulator() else 0
    options = Options().hurried if asked.quick else Options()
    configs: dict[str, Any] = {}
    for shape in asked.shapes:
        configs |= {name: dict(row_of(config, key_for(shape))) for name, config in compared(shape).items()}
    about = {"machine": machine(), "inputs": INPUTS, "configs": configs}
    table = Table("stream_k", about, line_of, summary, folder_of(asked), is_lost=is_lost)
    try:
        for shape in asked.shapes:
            key = {"label": label_of(shape), "kind": "dense", "shape": list(shape), "count": 1, "a_type": "bf16"}
            table.measure(key, lambda shape=shape: measured(shape, options))
    except GpuLostError as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if any("error" in row for row in table.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
