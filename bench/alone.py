"""Time each side as a user meets it: alone at the power limit, and cool at the free clock.

    PYTHONPATH=src python3 bench/alone.py                                     the eleven shapes, cuBLAS and the shipped choice
    PYTHONPATH=src python3 bench/alone.py --shapes 4096x4096x4096 --screen 40 other configurations too
    PYTHONPATH=src python3 bench/alone.py --held-out --name alone_models      80 shapes of public models
    PYTHONPATH=src python3 bench/alone.py --fresh --name alone_fresh          64 others
    PYTHONPATH=src python3 bench/alone.py --seconds 300                       stop in time; run again to go on
    python3 bench/alone.py --ship                                             into the measurements; needs no GPU

Two kernels that alternate share one power budget, so the one that draws more energy borrows clock from its peer. Here
one side runs at a time:

- *alone*: back-to-back CUDA graphs of one side for `--settle` seconds, then timed for `--time` seconds;
- *cool*: bursts of a few milliseconds after an idle gap, when the clock is free.

The order of the sides is random in each of `--repeats` rounds, and medians are compared. SM clock, power and energy per
call are logged where the driver reports them. With `--screen N`, the N configurations that the heuristics rank first are
timed alone and cool, briefly; those whose lower ratio is best enter the final rounds. Inputs rotate over sets that exceed the L2 three times.
A result is checked, to the bit on small integers, before its side is timed. JSON goes to alone.json in bench/results;
shapes that it already holds are skipped unless `--again`. `--ship` gives the configurations that beat the shipped ones
by more than `MARGIN`, alone and cool, to hopper_configurations.json as rows with priority; `warploom tune --fit` then
writes them into the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from assembling import Assembler
from configurations import MEASURED, SETTLED_FLOPS, build, large_tiles, lines, problem, usable
from configurations import named as short_name
from dense import INPUTS, K_MAJOR, chosen, plain_arguments, plain_peer, wrong_plain
from inputs import Maker
from measuring import Side, call_of, graph_for, is_lost, machine, rotating, run_alone, run_cool
from model_shapes import FRESH, HELD_OUT
from protocol import Protocol, Sensors, Timed, add_protocol, order_of, ratios_to, take_turns
from shapes import LISTED, Shape, flops_of, label_of, parsed
from tables import RESULTS, GpuLostError, Row, Table, good

import warploom
from warploom.heuristics import EMULATED, rank
from warploom.heuristics.sm90.candidates import row_of as fields_of
from warploom.structured.config.sm90 import HopperConfig

PEER, OURS = "cublas", "shipped"
FINALISTS = 3
SCREENING_IDLE = 0.12
MARGIN = 0.01
SHORT_SETTLE = 0.1
PROCESSES = 14
"""That assemble kernels while others are timed."""


def candidates(shape: Shape, asked: argparse.Namespace) -> dict[str, HopperConfig]:
    """The configurations to screen, by name: those ranked first, and large tiles that move fewer bytes per FLOP."""
    if not asked.screen:
        return {}
    found: list[HopperConfig] = list(islice(rank(problem(shape), EMULATED["sm_90a"]), asked.screen))
    found += large_tiles()
    return {short_name(config): config for config in dict.fromkeys(found)}


def measured(shape: Shape, configs: dict[str, HopperConfig], asked: argparse.Namespace, sensors: Sensors) -> Row:
    wrong = wrong_plain(shape, "cuda")
    if wrong:
        return {"error": wrong}
    rng = order_of(asked.seed, label_of(shape))
    sets = rotating(lambda: plain_arguments(Maker("cuda"), shape))
    sides: dict[str, Side] = {PEER: plain_peer, OURS: call_of(warploom.matmul, sets[0])}
    screened: dict[str, float] = {}
    if configs:
        peer_graph = graph_for(plain_peer, sets, flops_of(shape))
        peer, cool_peer, since = 0.0, 0.0, 99
        order = rng.sample(list(configs), len(configs))
        for name in order:
            if since >= 8:  # the board warms up: the peer is measured often
                peer, since = run_alone(*peer_graph, 0.25, 0.15)[0], 0
                cool_peer = run_cool(*peer_graph, 1, SCREENING_IDLE)
            since += 1
            try:
                graph = graph_for(call_of(warploom.matmul, sets[0], config=configs[name]), sets, flops_of(shape))
                alone = peer / run_alone(*graph, 0.2, 0.12)[0]
                screened[name] = min(alone, cool_peer / run_cool(*graph, 1, SCREENING_IDLE))
                del graph
            except Exception as error:  # noqa: BLE001
                print(f"  {name}: {error}"[:200], flush=True)
        best = sorted(screened, key=screened.__getitem__, reverse=True)[:FINALISTS]
        for name in best:
            bad = wrong_plain(shape, "cuda", config=configs[name])
            if bad:
                print(f"  {name}: {bad}", flush=True)
            else:
                sides[name] = call_of(warploom.matmul, sets[0], config=configs[name])
    graphs = {name: Timed.of_graph(*graph_for(side, sets, flops_of(shape))) for name, side in sides.items()}
    protocol = Protocol.of(asked)
    if flops_of(shape) <= SETTLED_FLOPS:  # it stays below the power limit, and the clock does not change
        protocol = replace(protocol, settle=min(protocol.settle, SHORT_SETTLE), is_limited=False)
    take_turns(graphs, protocol, rng, sensors)
    return row_of(shape, graphs, screened, configs)


def row_of(shape: Shape, graphs: dict[str, Timed], screened: dict[str, float], configs: dict[str, HopperConfig]) -> Row:
    ratios = ratios_to(PEER, graphs)
    sides = {}
    for name, each in graphs.items():
        sides[name] = each.row() | ratios.get(name, {})
        if name in configs:
            sides[name]["config"] = dict(fields_of(configs[name], problem(shape)))
    worst = {name: min(each.values()) for name, each in ratios.items()}
    return {
        "config": short_name(chosen(shape)),
        "alone": ratios[OURS]["alone"],
        "cool": ratios[OURS]["cool"],
        "worst": worst[OURS],
        "best": max(worst, key=worst.__getitem__),
        "best_worst": max(worst.values()),
        "tflops": flops_of(shape) / graphs[OURS].alone_us / 1e6,
        "sides": sides,
        "screened": screened,
    }


def line_of(row: Row) -> str:
    if "error" in row:
        return f"{row['label']:20} FAILED: {row['error']}"
    text = f"{row['label']:20} alone {row['alone']:.3f} cool {row['cool']:.3f} {row['config']:24}"
    if row["best"] != OURS:
        each = row["sides"][row["best"]]
        text += f" best {row['best']:24} alone {each['alone']:.3f} cool {each['cool']:.3f}"
    return text


def summary(rows: list[Row]) -> Row:
    right = good(rows)
    found: Row = {"shapes": len(rows), "failed": len(rows) - len(right)}
    for name in ("alone", "cool", "worst", "best_worst"):
        if right:
            found[name] = statistics.geometric_mean(row[name] for row in right)
            found[f"lowest_{name}"] = min(row[name] for row in right)
    return found


def ship(rows: list[Row]) -> list[Row]:
    """Return the rows for the measurements: the best configuration of each shape that clearly beats the shipped one."""
    found = []
    for row in good(rows):
        best, peer = row["sides"][row["best"]], row["sides"][PEER]
        if row["best_worst"] > row["worst"] + MARGIN and "config" in best:
            about = {"kind": "dense", "shape": row["shape"], "count": 1, "a_type": "bf16", "config": best["config"]}
            found.append(
                {**about, "us": round(best["alone_us"], 3), "peer_us": round(peer["alone_us"], 3), "how": "alone"}
            )
    return found


def write_measurements(rows: list[Row]) -> None:
    """Replace the rows with priority of these shapes."""
    document = json.loads(MEASURED.read_text("utf-8"))
    shapes = [row["shape"] for row in rows]

    def is_replaced(row: Row) -> bool:
        plain = not any(row.get(mark) for mark in ("a_major", "b_major", "fused", "residual"))
        return (
            plain
            and row["a_type"] == "bf16"
            and row["kind"] == "dense"
            and row["shape"] in shapes
            and row["count"] == 1
        )

    document["one_by_one"] = [*rows, *(row for row in document["one_by_one"] if not is_replaced(row))]
    MEASURED.write_text(lines(document), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", help="MxNxK,… instead of the eleven listed ones")
    parser.add_argument("--held-out", action="store_true", help="the shapes of public models that nothing is fitted to")
    parser.add_argument(
        "--fresh", action="store_true", help="a second sample of them, of which nothing was known either"
    )
    parser.add_argument("--screen", type=int, default=0, help="how many other configurations to try per shape")
    add_protocol(parser)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no shape after this long")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the order of the sides")
    parser.add_argument("--again", action="store_true", help="measure shapes that the file already holds again")
    parser.add_argument("--name", default="alone", help="of the JSON file")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for JSON")
    parser.add_argument("--ship", action="store_true", help="put the results into hopper_configurations.json")
    asked = parser.parse_args()
    if asked.ship:
        rows = ship(json.loads((asked.out / f"{asked.name}.json").read_text("utf-8"))["rows"])
        write_measurements(rows)
        print(*(f"{label_of(row['shape'])}: {row['config']}" for row in rows), sep="\n")
        return 0
    started, sensors = time.monotonic(), Sensors()
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference must be exact
    about: dict[str, Any] = {
        "machine": machine(),
        "inputs": INPUTS,
        **Protocol.of(asked).about(),
    }
    table = Table(asked.name, about, line_of, summary, asked.out, 400, is_lost, adds=True)
    known = {row["label"] for row in good(table.rows)}
    shapes = (
        parsed(asked.shapes) if asked.shapes else HELD_OUT if asked.held_out else FRESH if asked.fresh else list(LISTED)
    )
    shapes = [shape for shape in shapes if asked.again or label_of(shape) not in known]
    wanted = {shape: candidates(shape, asked) for shape in shapes}
    assembler = Assembler(build, PROCESSES)
    for shape, configs in wanted.items():
        assembler.submit((config, (shape, K_MAJOR, config)) for config in (chosen(shape), *configs.values()))
    with torch.no_grad():
        for shape in shapes:
            if time.monotonic() - started > asked.seconds:
                break
            fine = usable(assembler, [chosen(shape), *wanted[shape].values()])
            configs = {name: config for name, config in wanted[shape].items() if config in fine}
            key = {"label": label_of(shape), "shape": shape}
            try:
                table.measure(key, lambda shape=shape, configs=configs: measured(shape, configs, asked, sensors))
            except GpuLostError as error:
                print(error)
                return 1
            torch.cuda.empty_cache()
    print(summary(table.rows))
    assembler.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
