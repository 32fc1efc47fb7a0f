"""Times of Hopper configurations on random shapes, next to cuBLAS: the data that the cost model is fitted to.

    PYTHONPATH=src python3 bench/configurations.py --out FILE.json                        40 shapes, 48 configurations each
    PYTHONPATH=src python3 bench/configurations.py --shapes 7079x136x232,6365x120x200 --most 200 --out FILE.json
    PYTHONPATH=src python3 bench/configurations.py --below 0.95 matmul_random.json … --out FILE.json     the slow ones of a run
    PYTHONPATH=src python3 bench/configurations.py --most 8 --vary num_pipeline_stages=12,16 --out FILE.json
    PYTHONPATH=src python3 bench/configurations.py --models --alone --most 9 --others 3 --out FILE.json   shapes of models
    PYTHONPATH=src python3 bench/configurations.py --models --alone --cool --rows 128 --gflop 3 --most 7 --others 0 --out FILE.json
                                                          also at the free clock, of those that the clock matters to
    PYTHONPATH=src python3 bench/configurations.py --majors k,mn --out FILE.json          with B as K × N
    python3 bench/configurations.py --add FILE.json …     into bench/results/hopper_configurations.json; needs no GPU.
                                                          Also files of bench/matmul.py, with the chosen configurations
    python3 -m warploom.cli tune --fit bench/results/hopper_configurations.json --data src/warploom/heuristics/data/h200.json
                                                          table, constants and trees of the package; needs no GPU

The model's likeliest configurations are measured, and some others at random, so that the model also learns where it is
wrong. With `--cool`, each is also timed in short bursts after idle gaps, and the likeliest of a model with the free clock are
measured too: the L2 has a clock of its own, and a choice that is bound by it gains nothing from a faster SM. All are assembled first, in parallel processes; nothing else runs during timing. Needs PyTorch. The names of
configurations are explained in hopper_configurations.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import torch
from assembling import Assembler, Describer, complaint_about
from dense import INPUTS, K_MAJOR, Majors, plain_arguments, plain_peer
from dense import named as long_name
from inputs import Maker
from measuring import Options, call_of, graph_for, machine, rotating, run_alone, run_cool, timed
from model_shapes import FITTED, LATER_FITTED, LATEST_FITTED, MORE_FITTED
from protocol import WARM
from shapes import STEP, Shape, flops_of, label_of, parsed, random_shapes
from tables import RESULTS

import warploom
from warploom.heuristics import EMULATED, ProblemKey, key_of, rank
from warploom.heuristics.sm90.candidates import DENSE, row_of, rows_for
from warploom.heuristics.sm90.candidates import build as build_row
from warploom.heuristics.sm90.cost_model import DENSE_16BIT, CandidateArrays, work_of
from warploom.heuristics.sm90.dependent_launches import is_dependent
from warploom.heuristics.sm90.device_data import POWER_BOUND_FLOPS, data_for, fields_of_json
from warploom.heuristics.sm90.ranking import candidates_of
from warploom.structured.config.sm90 import HopperConfig

MEASURED = RESULTS / "hopper_configurations.json"
FREE_CLOCK = 1.33
"""The clock of an idle H200 (1980 MHz) relative to that at its power limit, which the model's constants hold for."""
COOL_IDLE, COOL_BURSTS = 0.08, 2
FINALISTS = 6
"""Configurations that are timed alone, of those that are fastest at the free clock."""
PEER_EVERY = 6
"""Configurations between two measurements of cuBLAS, where each runs alone."""
SETTLED_FLOPS = 4e9
"""Floating-point operations of a GEMM from which some shapes reach the power limit when they run alone: the clock then needs
time to settle."""
MODEL_SHAPES = {"fitted": FITTED, "more": MORE_FITTED, "later": LATER_FITTED, "latest": LATEST_FITTED}
TURNS = 12
"""Configurations whose graphs alternate with cuBLAS's; more would need too much memory."""


def named(config: HopperConfig) -> str:
    """Shorten the name as far as it stays unique: there are thousands of rows."""
    x, y = config.cluster_shape[:2]
    way = "sw" if config.AB_swapped else "co" if config.consumers > 1 else "one"
    if config.pingpong:
        way = "ps" if config.AB_swapped else "pp"
    cluster = "" if config.num_split_k > 1 or (x, y) == (1, 1) else f"c{x}" if y == 1 else f"c{x}{y}"
    split = f"k{config.num_split_k}{'c' if config.split_in_cluster else 'g'}" if config.num_split_k > 1 else ""
    stored = ("stage_columns", "num_output_stages")
    usual = config.replace(**dict.fromkeys(stored), num_pipeline_stages=None)
    is_usual = all(getattr(config, name) == getattr(usual, name) for name in stored)
    strips = "" if is_usual else f"/{config.stage_columns}x{config.num_output_stages}"
    stages = config.num_pipeline_stages
    more = "" if stages == config.replace(num_pipeline_stages=None).num_pipeline_stages else f"s{stages}"
    more += "" if config.swizzle_size == HopperConfig().swizzle_size else f"b{config.swizzle_size}"
    return f"{way}{config.BM}x{config.BN}{cluster}{split}{'st' if config.stream_k else ''}{more}{strips}"


def problem(shape: Shape, majors: Majors = K_MAJOR) -> ProblemKey:
    a, b = majors
    return key_of("dense", *shape, a_type="bf16", c_type="bf16", a_major=a, b_major=b)


def large_tiles() -> list[HopperConfig]:
    """Tiles that move few bytes per FLOP: they keep a higher clock at the power limit."""
    tiles: tuple[dict[str, Any], ...] = (
        {"tile": (128, 256)},
        {"tile": (128, 256), "swizzle_size": 8},
        {"tile": (128, 256), "cluster_shape": (2, 1, 1)},
        {"tile": (128, 256), "cluster_shape": (2, 1, 1), "swizzle_size": 8},
        {"tile": (128, 256), "cluster_shape": (1, 2, 1)},
        {"tile": (128, 256), "stream_k": True},
        {"tile": (128, 256), "cluster_shape": (2, 1, 1), "stream_k": True, "swizzle_size": 8},
        {"tile": (256, 128)},
        {"tile": (256, 128), "cluster_shape": (1, 2, 1)},
        {"tile": (256, 128), "cluster_shape": (2, 1, 1)},
        {"tile": (256, 128), "stream_k": True},
        {"tile": (256, 200), "AB_swapped": True},
        {"tile": (128, 256), "AB_swapped": True},
    )
    found = [HopperConfig(**fields) for fields in tiles]
    return [config for config in found if not config.violations()]


def square_tiles() -> list[HopperConfig]:
    """Tiles with few bytes per FLOP for problems that do not fill all SMs with larger ones."""
    clusters = ((1, 1, 1), (2, 1, 1), (1, 2, 1))
    return [HopperConfig(tile=(128, 128), cluster_shape=each) for each in clusters]


def tried(wanted: ProblemKey, asked: argparse.Namespace, rng: random.Random) -> list[HopperConfig]:
    """Pick the likeliest configurations, large tiles for large problems, and some of the rest."""
    order: list[Any] = list(rank(wanted, EMULATED["sm_90a"]))
    rest = order[asked.most : len(order) // 2]
    large = large_tiles()[: asked.large_tiles] if wanted.flops > POWER_BOUND_FLOPS else []
    cool = [*likeliest_cool(wanted, asked.most), *square_tiles()] if asked.cool else []
    others = rng.sample(rest, min(asked.others, len(rest)))
    found = [*order[: asked.most], *cool, *large, *of_each_kind(order, asked.kinds), *others]
    return list(dict.fromkeys(each.replace(dependent=is_dependent(vars(each), wanted)) for each in found))


def of_each_kind(order: Sequence[HopperConfig], most: int) -> list[HopperConfig]:
    """Pick the likeliest of each kind: rows of the tile, swapped or not, splits in a cluster or in memory, clusters."""
    found: dict[tuple[Any, ...], HopperConfig] = {}
    for each in order:
        where = each.num_split_k > 1 and (each.split_in_cluster, each.num_split_k > 2)
        is_clustered = not where and each.cluster_shape != (1, 1, 1)
        found.setdefault((each.BM, each.pingpong, each.AB_swapped, each.stream_k, where, is_clustered), each)
    return list(found.values())[:most]


def likeliest_cool(wanted: ProblemKey, most: int) -> list[HopperConfig]:
    """Pick the likeliest configurations of the cost model at the free clock; L2 and DRAM are no faster then."""
    device = EMULATED["sm_90a"]
    rows = rows_for(wanted)
    model = data_for(device).models[DENSE_16BIT]
    work = work_of(CandidateArrays.of(rows), wanted, device.sms)
    times = replace(model, flops=model.flops * FREE_CLOCK).times(work)
    return list(islice(candidates_of([rows[at] for at in times.argsort()], wanted, device.sms), most))


def varied(configs: list[HopperConfig], variations: list[str]) -> list[HopperConfig]:
    """Add variants with other values of a field: `num_pipeline_stages=12,16`."""
    found = list(configs)
    numbers = sorted(name for name, value in vars(HopperConfig()).items() if type(value) is int)
    for name, _, values in (each.partition("=") for each in variations):
        if name not in numbers or not all(value.isdecimal() for value in values.split(",")):
            raise SystemExit(f"--vary {name}={values}: FIELD=NUMBER,… with a field of {', '.join(numbers)}")
        made_so = (config.replace(**{name: int(value)}) for config in configs for value in values.split(","))
        found += [config for config in made_so if not config.violations()]
    return list(dict.fromkeys(found))


def build(job: tuple[Shape, Majors, HopperConfig]) -> str:
    """Assemble a configuration into the cache; return why it cannot be used, or an empty string."""
    shape, majors, config = job
    return complaint_about(warploom.matmul, plain_arguments(Describer(), shape, majors), config)


def usable(assembler: Assembler, configs: Sequence[HopperConfig]) -> list[HopperConfig]:
    """Return the configurations that could be assembled, when all of them are done."""
    complaints = assembler.complaints(configs)
    for config, complaint in complaints.items():
        if complaint:
            print(f"  {named(config)}: {complaint}", flush=True)
    return [config for config in configs if not complaints[config]]


def row_for(shape: Sequence[int], majors: Majors, peer: float, us: dict[str, float]) -> dict[str, Any]:
    others = {name: major for name, major in zip(("a_major", "b_major"), majors, strict=True) if major != "k"}
    times = {name: round(each, 3) for name, each in us.items()}
    about = {"kind": "dense", "shape": [*shape], "count": 1, "a_type": "bf16", **others}
    return {**about, "dependent": True, "peer_us": round(peer, 3), "us": times}


def measured(shape: Shape, majors: Majors, configs: list[HopperConfig], options: Options) -> dict[str, Any]:
    """Return microseconds by configuration name, scaled to cuBLAS's median, because the clock differs between turns."""
    sets = rotating(lambda: plain_arguments(Maker("cuda"), shape, majors))
    found: dict[str, float] = {}
    peers: list[float] = []
    for at in range(0, len(configs), TURNS):
        part = configs[at : at + TURNS]
        sides = {named(each): call_of(warploom.matmul, sets[0], config=each) for each in part}
        times, _ = timed({"cublas": plain_peer, **sides}, sets, flops_of(shape), options)
        peers.append(times.pop("cublas"))
        found |= {name: us / peers[-1] for name, us in times.items()}
    peer = sorted(peers)[len(peers) // 2]
    return row_for(shape, majors, peer, {name: ratio * peer for name, ratio in found.items()})


def measured_alone(
    shape: Shape, majors: Majors, configs: list[HopperConfig], rng: random.Random, *, cool: bool
) -> dict[str, Any]:
    """Return microseconds of configurations that ran one at a time, relative to cuBLAS shortly before.

    The clock needs time to settle only where a GEMM reaches the power limit. With `cool`, all are timed at the free clock
    first, and then alone only the fastest `FINALISTS` and the choice.
    """
    sets = rotating(lambda: plain_arguments(Maker("cuda"), shape, majors))
    settle, duration = (0.25, 0.1) if flops_of(shape) > SETTLED_FLOPS else (0.02, 0.03)
    flops = flops_of(shape)
    peer_graph = graph_for(plain_peer, sets, flops)
    graphs = {
        named(each): graph_for(call_of(warploom.matmul, sets[0], config=each), sets, flops)
        for each in rng.sample(configs, len(configs))
    }
    of_cool: dict[str, Any] = {}
    if cool:
        time.sleep(COOL_IDLE)
        peer, us = _relative_to_peer(graphs, peer_graph, lambda graph: run_cool(*graph, COOL_BURSTS, COOL_IDLE))
        of_cool = {"cool_peer_us": round(peer, 3), "cool_us": {name: round(each, 3) for name, each in us.items()}}
        best = sorted(us, key=us.__getitem__)[:FINALISTS]
        graphs = {name: graph for name, graph in graphs.items() if name in (*best, named(configs[0]))}
    if flops > SETTLED_FLOPS:  # the power limit takes the clock down once more, about a second after a load begins
        run_alone(*peer_graph, WARM, 0.01)
    peer, us = _relative_to_peer(graphs, peer_graph, lambda graph: run_alone(*graph, settle, duration)[0])
    return {**row_for(shape, majors, peer, us), "how": "alone", **of_cool}


Graph = tuple[torch.cuda.CUDAGraph, int]


def _relative_to_peer(
    graphs: dict[str, Graph], peer_graph: Graph, run: Callable[[Graph], float]
) -> tuple[float, dict[str, float]]:
    """Return the median of cuBLAS's times, and each configuration's time relative to the last of them, times that."""
    found: dict[str, float] = {}
    peers: list[float] = []
    for number, (name, graph) in enumerate(graphs.items()):
        if number % PEER_EVERY == 0:
            peers.append(run(peer_graph))
        found[name] = run(graph) / peers[-1]
    peer = sorted(peers)[len(peers) // 2]
    return peer, {name: ratio * peer for name, ratio in found.items()}


def same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Compare rows as configurations: a given field may equal its derived value."""
    wanted = problem((512, 512, 4096))
    return build_row(fields_of_json(row), wanted) == build_row(fields_of_json(other), wanted)


def measurements_in(document: dict[str, Any]) -> dict[str, Any]:
    """Read measurements as `main` writes them, or a file of bench/matmul.py, which has only the chosen configurations."""
    if "configs" in document:
        return document
    wanted = problem((512, 512, 4096))
    of_names = {long_name(config): config for row in DENSE if (config := build_row(row, wanted))}
    rows = [row for row in document["rows"] if row.get("config") in of_names]
    found = [of_names[row["config"]] for row in rows]
    return {
        "when": document["when"],
        "configs": {named(config): row_of(config, wanted) for config in found},
        "rows": [
            row_for(row["shape"], K_MAJOR, row["cublas_us"], {named(config): row["us"]})
            for row, config in zip(rows, found, strict=True)
        ],
    }


def lines(document: dict[str, Any]) -> str:
    """Write JSON with one line per configuration and per problem, for readable diffs."""

    def encoded(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    parts = []
    for name, value in document.items():
        if isinstance(value, list):
            body = "[\n" + ",\n".join(map(encoded, value)) + "\n]"
        elif name == "configs":
            body = "{\n" + ",\n".join(f"{encoded(each)}: {encoded(row)}" for each, row in value.items()) + "\n}"
        else:
            body = encoded(value)
        parts.append(f"{encoded(name)}: {body}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def add(files: list[Path]) -> None:
    """Append measurements to those of earlier runs."""
    whole = json.loads(MEASURED.read_text("utf-8"))
    for document in (measurements_in(json.loads(file.read_text("utf-8"))) for file in files):
        known = whole["configs"]
        other = [name for name, row in document["configs"].items() if name in known and not same(row, known[name])]
        if other:
            raise SystemExit(f"{', '.join(other)}: the name of another configuration")
        whole["configs"] = document["configs"] | known
        whole["rows"] += document["rows"]
        whole["when"] = document["when"]
    whole["configs"] = dict(sorted(whole["configs"].items()))
    MEASURED.write_text(lines(whole), "utf-8")


def majors_of(text: str) -> Majors:
    a, _, b = text.partition(",")
    if not {a, b} <= {"k", "mn"}:
        raise SystemExit(f"--majors {text}: k or mn for A, a comma, and k or mn for B")
    return a, b


def slow_shapes(below: float, files: list[Path]) -> list[Shape]:
    rows = [row for file in files for row in json.loads(file.read_text("utf-8"))["rows"]]
    slow = sorted((row for row in rows if row.get("ratio", 1) < below), key=lambda row: row["ratio"])
    return [(row["shape"][0], row["shape"][1], row["shape"][2]) for row in slow]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="", help="MxNxK,…")
    parser.add_argument("--count", type=int, default=40, help="shapes drawn at random, where none are named")
    parser.add_argument("--seed", type=int, default=torch.seed() % 1_000_000)
    parser.add_argument(
        "--models",
        choices=MODEL_SHAPES,
        nargs="?",
        const="fitted",
        help="shapes of public models that the heuristics are fitted to: the first sample, or one of those after it",
    )
    parser.add_argument("--alone", action="store_true", help="time one configuration at a time, as it runs for a user")
    parser.add_argument("--cool", action="store_true", help="with --alone: also at the free clock")
    parser.add_argument("--rows", type=int, default=1, help="with --models: only shapes with at least so many rows")
    parser.add_argument("--gflop", type=float, default=0, help="with --models: only shapes of at least so many GFLOP")
    parser.add_argument("--large-tiles", type=int, default=99, help="how many of the large tiles to add")
    parser.add_argument("--kinds", type=int, default=0, help="how many kinds of configurations to add the likeliest of")
    parser.add_argument("--below", type=float, help="with FILES: shapes whose ratio to cuBLAS is less")
    parser.add_argument("files", type=Path, nargs="*", help="output files of bench/matmul.py")
    parser.add_argument("--most", type=int, default=32, help="the likeliest configurations")
    parser.add_argument("--others", type=int, default=16, help="configurations at random")
    parser.add_argument(
        "--vary", action="append", default=[], help="FIELD=VALUE,…: each also with other values of a field"
    )
    parser.add_argument("--majors", default="k,k", help="contiguous dimension of A and of B: k or mn each")
    parser.add_argument("--seconds", type=float, default=540, help="time after which no new shape is started")
    parser.add_argument("--processes", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--out", type=Path, default=Path("configurations.json"))
    parser.add_argument("--add", action="store_true", help="only add FILES to the stored measurements")
    asked = parser.parse_args()
    if asked.add:
        add(asked.files)
        return 0
    started, rng = time.monotonic(), random.Random(asked.seed)
    shapes = parsed(asked.shapes) if asked.shapes else random_shapes(asked.seed, asked.count)
    if asked.models:
        drawn = MODEL_SHAPES[asked.models]
        shapes = [each for each in drawn if each[0] >= asked.rows and flops_of(each) >= asked.gflop * 1e9]
    if asked.below is not None:
        shapes = slow_shapes(asked.below, asked.files)
    majors = majors_of(asked.majors)
    if majors[0] == "mn":  # TMA needs rows of whole 16-byte pieces
        shapes = [(ceil(m / STEP) * STEP, n, k) for m, n, k in shapes]
    wanted = {shape: varied(tried(problem(shape, majors), asked, rng), asked.vary) for shape in shapes}
    assembler = Assembler(build, asked.processes)
    for shape, configs_of_it in wanted.items():
        assembler.submit((config, (shape, majors, config)) for config in configs_of_it)
    print(f"{len(assembler.jobs)} configurations for {len(shapes)} shapes", flush=True)
    rows: list[dict[str, Any]] = []
    configs: dict[str, Any] = {}
    about = {
        "what": "microseconds of configurations, and of cuBLAS (torch.mm)",
        "when": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        "machine": machine(),
        "inputs": INPUTS,
        "seed": asked.seed,
    }
    for shape, all_of_them in wanted.items():
        if time.monotonic() - started > asked.seconds:
            print("out of time", flush=True)
            break
        fitting = usable(assembler, all_of_them)
        if not fitting:
            print(f"{label_of(shape):20} nothing fits", flush=True)
            continue
        if asked.alone:
            row = measured_alone(shape, majors, fitting, rng, cool=asked.cool)
        else:
            row = measured(shape, majors, fitting, Options(rounds=3, window=1000, settled=0))
        rows.append(row)
        configs |= {named(each): row_of(each, problem(shape, majors)) for each in fitting}
        first, best = named(fitting[0]), min(row["us"], key=row["us"].__getitem__)
        ratios = " ".join(f"{row['peer_us'] / row['us'][name]:.3f} {name};" for name in (first, best))
        if "cool_us" in row:
            worst = {
                name: max(us / row["peer_us"], row["cool_us"][name] / row["cool_peer_us"])
                for name, us in row["us"].items()
            }
            best = min(worst, key=worst.__getitem__)
            ratios += f" lower of alone and cool {1 / worst[first]:.3f} {first}; {1 / worst[best]:.3f} {best};"
        print(f"{label_of(shape):20} cuBLAS {row['peer_us']:8.2f} µs  {ratios}", flush=True)
        asked.out.write_text(json.dumps(about | {"configs": configs, "rows": rows}, ensure_ascii=False) + "\n", "utf-8")
    assembler.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
