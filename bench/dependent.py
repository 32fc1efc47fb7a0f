"""Programmatic dependent launch: the same kernels with and without it, and cuBLAS, each alone and cool.

    PYTHONPATH=src python3 bench/dependent.py                    every shape of `SHAPES`
    PYTHONPATH=src python3 bench/dependent.py --seconds 120      stop in time; run again to go on

PyTorch launches cuBLAS without it. The launches of a side follow each other in a CUDA graph, over inputs that exceed the L2
three times. By default, short and memory-bound problems use it (heuristics/sm90/dependent_launches.py). JSON goes to
dependent.json in bench/results.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from assembling import Assembler
from configurations import SETTLED_FLOPS, build, usable
from configurations import named as short_name
from dense import INPUTS, K_MAJOR, chosen, plain_arguments, plain_peer, wrong_plain
from inputs import Maker
from measuring import call_of, graph_for, is_lost, machine, rotating
from protocol import Protocol, Sensors, Timed, add_protocol, order_of, ratios_to, take_turns
from shapes import LISTED, Shape, flops_of, label_of, parsed
from tables import RESULTS, GpuLostError, Row, Table, good

import warploom

PEER, WITHOUT, WITH = "cublas", "without", "dependent"
OTHERS = (
    "256x2560x3072,512x3072x3072,777x1024x2048,1024x1024x5120,1500x896x3584,256x1792x3584,128x4608x7168,512x2048x2048,"
    "300x6144x4096,1024x4096x1024,64x10240x8192,4x28672x8192,197x3072x768,32x4096x4096,8x4096x4096,1x4096x4096"
)
SHAPES = (*LISTED, *parsed(OTHERS))
PROCESSES = 14


def measured(shape: Shape, asked: argparse.Namespace, sensors: Sensors) -> Row:
    choice = chosen(shape)
    configs = {WITHOUT: choice.replace(dependent=False), WITH: choice.replace(dependent=True)}
    for config in configs.values():
        wrong = wrong_plain(shape, "cuda", config=config)
        if wrong:
            return {"error": wrong}
    sets = rotating(lambda: plain_arguments(Maker("cuda"), shape))
    sides = {
        PEER: plain_peer,
        **{name: call_of(warploom.matmul, sets[0], config=config) for name, config in configs.items()},
    }
    timed = {name: Timed.of_graph(*graph_for(side, sets, flops_of(shape))) for name, side in sides.items()}
    protocol = replace(Protocol.of(asked), is_limited=flops_of(shape) > SETTLED_FLOPS)
    take_turns(timed, protocol, order_of(asked.seed, label_of(shape)), sensors)
    ratios = ratios_to(PEER, timed)
    sides_of = {name: each.row() | ratios.get(name, {}) for name, each in timed.items()}
    return {"config": short_name(choice), "by_default": choice.dependent, "sides": sides_of}


def line_of(row: Row) -> str:
    if "error" in row:
        return f"{row['label']:20} FAILED: {row['error']}"
    ratios = (f"{name} {each['alone']:.3f} {each['cool']:.3f}" for name, each in row["sides"].items() if name != PEER)
    return f"{row['label']:20} {row['config']:16} {'  '.join(ratios)}{'  default' * row['by_default']}"


def summary(rows: list[Row]) -> Row:
    """Geometric means of the speed with it relative to that without it, of the shapes that use it by default."""
    sides = [row["sides"] for row in good(rows) if row["by_default"]]
    return {
        f"gain_{how}": statistics.geometric_mean(each[WITH][how] / each[WITHOUT][how] for each in sides)
        for how in ("alone", "cool")
        if sides
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", help="MxNxK,… instead of the listed ones")
    add_protocol(parser)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no shape after this long")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the order of the sides")
    parser.add_argument("--again", action="store_true", help="measure shapes that the file already holds again")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for JSON")
    asked = parser.parse_args()
    started, sensors = time.monotonic(), Sensors()
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference must be exact
    about = {"machine": machine(), "inputs": INPUTS, **Protocol.of(asked).about()}
    table = Table("dependent", about, line_of, summary, asked.out, 300, is_lost, adds=True)
    known = {row["label"] for row in good(table.rows)}
    shapes = [each for each in parsed(asked.shapes) if each] if asked.shapes else list(SHAPES)
    shapes = [shape for shape in shapes if asked.again or label_of(shape) not in known]
    assembler = Assembler(build, PROCESSES)
    for shape in shapes:
        configs = [chosen(shape).replace(dependent=each) for each in (False, True)]
        assembler.submit((config, (shape, K_MAJOR, config)) for config in configs)
    with torch.no_grad():
        for shape in shapes:
            if time.monotonic() - started > asked.seconds:
                break
            usable(assembler, [chosen(shape).replace(dependent=each) for each in (False, True)])
            try:
                table.measure(
                    {"label": label_of(shape), "shape": shape}, lambda shape=shape: measured(shape, asked, sensors)
                )
            except GpuLostError as error:
                print(error)
                return 1
            torch.cuda.empty_cache()
    print(summary(table.rows))
    assembler.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
