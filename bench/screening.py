"""Compare configurations for the problems of bench/alone_families.py, each alone and cool: a short round, then a longer one.

    PYTHONPATH=src python3 bench/screening.py --out DIR                       every problem, in the order of `SCREENED`
    PYTHONPATH=src python3 bench/screening.py swiglu grouped --seconds 200    some families; begin no problem after this long
    PYTHONPATH=src python3 bench/screening.py --build                         only assemble: registers and spills; needs no GPU
    python3 bench/screening.py --ship                                         into the measurements; needs no GPU

Every configuration that is right and does not spill is timed briefly, all alone, then all cool; the first baseline is timed
again after every `PEER_EVERY`. The best by the lower of both ratios, and the library's choice, are timed longer, against the
baseline. Kernels are assembled by other processes meanwhile. JSON goes to screened.json; problems that it holds are skipped,
also one at which the process ended. `--ship` gives the configurations
that beat the library's choice by more than `MARGIN` to hopper_configurations.json as rows with priority; `warploom tune
--fit` then writes them into the table.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import assembling
import torch
from alone_families import BF16, FAMILIES, OURS, Family, graph_of, label_of, wrong
from assembling import Assembler, Describer, complaint_about
from configurations import MEASURED, lines
from dense import K_MAJOR, Majors, plain_arguments
from inputs import Maker
from measuring import Arguments, is_lost, machine, rotating, run_alone, run_cool
from protocol import WARM, Protocol, Sensors, Timed, order_of, ratios_to, take_turns
from tables import RESULTS, GpuLostError, Row, Table, good

import warploom
from warploom.heuristics.sm90.candidates import row_of as fields_of
from warploom.ops.planning import planner
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig

PEER = "peer"
PEER_EVERY = 6
FINALISTS = 3
MARGIN = 0.004
SHORT = Protocol(settle=0.1, time=0.1, repeats=1, bursts=1)
LONG = Protocol(settle=0.5, time=0.25, repeats=2, bursts=1)
BRIEF_SHORT = Protocol(settle=0.04, time=0.06, repeats=1, bursts=1)
BRIEF_LONG = Protocol(settle=0.15, time=0.15, repeats=2, bursts=1, is_limited=False)
"""For problems that stay below the power limit."""
IDLE_BEFORE_COOL = 0.5
SHORT_IDLE = 0.08


def dense_arguments(maker: Maker, m: int, n: int, k: int, majors: Majors = K_MAJOR) -> Arguments:
    return {name: value for name, value in plain_arguments(maker, (m, n, k), majors).items() if name != "out"}


ALL: Mapping[str, Family] = {
    **FAMILIES,
    "dense": Family(
        dense_arguments,
        lambda t: (warploom.matmul, t),
        {"mm": lambda t: torch.mm(t["a"], t["b"])}, {}, lambda t: 2.0 * t["a"].numel() * t["b"].shape[-1],
        ((2048, 2048, 2048), (4096, 4096, 14336), (512, 4096, 16384)),
    ),
    "input gradient": Family(
        partial(dense_arguments, majors=("k", "mn")),
        lambda t: (warploom.matmul, t),
        {"mm": lambda t: torch.mm(t["a"], t["b"])}, {}, lambda t: 2.0 * t["a"].numel() * t["b"].shape[-1],
        ((8192, 4096, 14336),),
    ),
    "weight gradient": Family(
        partial(dense_arguments, majors=("mn", "mn")),
        lambda t: (warploom.matmul, t),
        {"mm": lambda t: torch.mm(t["a"], t["b"])}, {}, lambda t: 2.0 * t["a"].numel() * t["b"].shape[-1],
        ((14336, 4096, 8192),),
    ),
}  # fmt: skip
"""The gradients of a linear layer have operands whose contiguous dimension is not K."""
FIELDS: Mapping[str, dict[str, Any]] = {
    "fp8": {"a_type": "e4m3", "b_type": "e4m3"},
    "fp8 by rows": {"a_type": "e4m3", "b_type": "e4m3"},
    "bias, gelu, residual": {"residual_in_place": True},
    "swiglu": {"gated": True},
    "input gradient": {"b_major": "mn"},
    "weight gradient": {"a_major": "mn", "b_major": "mn"},
}
"""Fields of the configurations of a family that follow from its arrays."""
_NAME = re.compile(
    r"(?P<way>pp|ps|sw|co|one)(?P<rows>\d+)x(?P<columns>\d+)(?:c(?P<x>\d)(?P<y>\d)?)?(?:k(?P<splits>\d+)(?P<where>[cg]))?"
    r"(?P<stream>st)?(?:s(?P<stages>\d+))?(?:b(?P<swizzle>\d+))?(?:i(?P<flight>\d+))?(?P<dependent>d)?(?:/(?P<subtile>\d+)x(?P<buffers>\d+))?"
)


def config_of(name: str, family: str) -> HopperConfig:
    """Return the configuration of a short name, as bench/configurations.py writes them.

    `i2` is `mmas_in_flight=2`, and `d` a dependent launch.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise SystemExit(f"{name}: not the name of a configuration")
    part = found.groupdict()
    rows, of_family = int(part["rows"]), FIELDS.get(family, {})
    is_swapped, is_pingpong = part["way"] in ("sw", "ps"), part["way"] in ("pp", "ps")
    of_one = 128 if is_swapped and of_family.get("gated") else 64
    fields: dict[str, Any] = {"tile": (rows, int(part["columns"])), **of_family}
    fields["consumers"] = 2 if is_pingpong else 1 if rows == of_one or part["way"] == "one" else 2
    if rows == 192 and not is_pingpong:
        fields["consumers"] = 3
    fields |= {"pingpong": is_pingpong, "AB_swapped": is_swapped, "stream_k": bool(part["stream"])}
    fields["dependent"] = bool(part["dependent"])
    if is_swapped and "b_major" in of_family:  # the caller's A and B, whose majors are given, are exchanged
        fields |= {"a_major": fields["b_major"], "b_major": of_family.get("a_major", "k")}
    if part["x"]:
        fields["cluster_shape"] = (int(part["x"]), int(part["y"] or 1), 1)
    if part["splits"]:
        fields |= {"num_split_k": int(part["splits"]), "split_in_cluster": part["where"] == "c"}
    numbers = {"num_pipeline_stages": "stages", "swizzle_size": "swizzle", "mmas_in_flight": "flight"}
    numbers |= {"stage_columns": "subtile", "num_output_stages": "buffers"}
    fields |= {of: int(part[group]) for of, group in numbers.items() if part[group]}
    return (HopperBlockwiseConfig if family == "blockwise" else HopperConfig)(**fields)


SCREENED = """
dense: 512x4096x16384: co128x128 sw128x256k2c sw128x256k2cd sw128x256k2cb8d sw128x256k2cb2d co128x256k2cd co256x128k2cd
    sw256x128k2cd pp128x128 ps128x128 ps128x128b4 ps64x256
weight gradient: 14336x4096x8192: co128x256 co128x256b8 co128x256c2b8 sw128x256 sw128x256b8 sw128x256c2 co256x192
    co256x192c2 sw256x192 sw256x192c2 pp128x192 pp128x192st sw256x192b8 co256x128c12
input gradient: 8192x4096x14336: co128x256 co128x256b8 co128x256c2b8 sw128x256 sw128x256b8 sw256x200 sw256x200c2
    sw256x208 sw256x192 pp128x192 pp128x192st co256x192 sw256x200b8
dense: 8192x14336x4096: pp128x184 pp128x200 pp128x192 sw256x200 sw256x200c2 co128x256c2b8 sw128x256 co128x256b8
    pp128x192st sw256x152c12 sw256x192c2 sw256x208
dense: 8192x4096x14336: pp128x184 pp128x200 sw256x200 sw256x200c2 co128x256c2b8 sw128x256 co128x256b8 sw128x256b8
    sw256x208 sw256x192c2 co128x256
weight gradient: 4096x14336x8192: co128x256 co128x256b8 co128x256c2b8 sw128x256 sw128x256b8 co256x192 co256x192c2
    sw256x192 sw256x192c2 pp128x192 pp128x192st co256x192b8
input gradient: 8192x14336x4096: co128x256 co128x256b8 co128x256c2b8 sw128x256 sw128x256b8 sw256x200 sw256x200c2
    sw256x192 pp128x192 pp128x192st co256x192 sw256x208
batched: 32x1024x128x4096: sw64x256 sw64x256d sw128x256 sw128x256d co256x128 co256x128d sw128x128 sw128x128d
    co128x128c2 co128x128c2d sw128x256c12d pp128x128d one64x128d
batched: 16x1024x1024x1024: pp128x128 pp128x128d co128x256b8 co128x256b8d sw128x256b8 sw128x256b8d pp128x176 pp128x176d
    pp128x192 pp128x192d pp128x208d
batched: 8x2048x2048x2048: co128x256b8 co128x256b8d sw128x256b8 sw128x256b8d sw128x256 sw128x256c2 sw256x208 sw256x200
    pp128x160 pp128x200 co256x128c12 pp128x192
bias, gelu, residual: 512x4096x14336: co128x128 co128x128b4 sw128x128b4 co128x256k2c sw128x256k2c co256x128k2c
    sw256x128k2c co128x256k2cb2
swiglu: 64x14336x4096: pp64x224 pp64x224d one64x112 one64x112d sw128x64 sw128x64d sw128x64c2 sw128x64c2d one64x224d
    one64x256d pp64x112d sw256x64d
swiglu: 16x28672x8192: sw128x16k2c sw128x16k2cd sw128x16 sw128x16d sw256x16 sw256x16d sw128x16std sw128x16c2d one64x256d
swiglu: 1x14336x4096: sw128x8c2 sw128x8c2d sw128x8 sw128x8d sw128x16k2cd sw256x8d sw128x16d sw128x8s12d
swiglu: 4096x14336x4096: pp128x192 pp128x176 pp128x160 pp128x208 co128x256c2b8 sw256x208 co256x160 sw256x200
weight gradient: 4096x4096x8192: co128x256 co128x256b8 co128x256c2b8 sw128x256 sw128x256b8 co256x192 sw256x192
    sw256x192c2 pp128x192
input gradient: 8192x4096x4096: co128x256 co128x256b8 co128x256c2b8 sw128x256 sw128x256b8 sw256x200 sw256x200c2
    sw256x192 pp128x192
fp8 by rows: 4096x14336x4096: co128x256 co128x256b8 co128x256c2 co128x256c2b8 co128x256c12 sw128x256 sw128x256b8
    sw128x256c2 sw128x256c12 co256x128c12 pp128x128st pp128x128 pp128x160 pp128x168/56x2 pp128x176/16x4
    co128x256c2stb8 pp128x160b8
fp8 by rows: 4096x4096x4096: co128x256 co128x256b8 co128x256c2 co128x256c2b8 co128x256c12 sw128x256 sw128x256b8
    sw128x256c2 sw128x256c12 co256x128c12 sw256x128c12 pp128x128 pp128x160 co128x256st pp128x176/16x4
fp8: 4096x14336x4096: co128x256 co128x256b8 co128x256c2 co128x256c2b8 co128x256c12 sw128x256 sw128x256b8 sw128x256c2
    sw128x256c12 co256x128c12 pp128x160 pp128x160b8 pp128x192 pp128x208 pp128x208b8 sw256x200 co128x256c2stb8
fp8: 4096x4096x4096: co128x256 co128x256b8 co128x256c2 co128x256c2b8 co128x256c12 sw128x256 sw128x256b8 sw128x256c2
    sw128x256c12 co256x128c12 sw256x128c12 pp128x128 pp128x160 pp128x176 pp128x208 pp128x208b4 pp128x208b8
    co128x256st sw256x176 co256x176
grouped: 1024,1024,1024,1024,1024,1024,1024,1024x4096x4096: co128x256 co128x256b8 co128x256c2 co128x256c2b8
    co128x256c12 sw128x256 sw128x256b8 co256x128 co256x128c12 pp128x128c2b8 pp128x128c12 pp128x160 pp128x176
    pp128x192/64x1 pp128x208 co256x208 sw256x208 co256x176
grouped: 1500,0,37,2048,129,0,640,1000,3,0,777,128,512,260,1,1157x4096x4096: co128x256 co128x256b8 co128x256c2b8
    co128x256c12 sw128x256 sw128x256b8 co256x128 pp128x128c2b8 pp128x160 pp128x176 pp128x192/64x1 pp128x208
    sw256x128 sw256x104 pp64x256 co256x176
blockwise: 4096x4096x4096: co128x128 co128x128/128x1 co128x128b8 co128x128b4 co128x128c2 co128x128c2b8 co128x128c12
    co128x128c12/128x1 co256x128/128x1 co256x128b8/128x1 co256x128c12/128x1 co256x128c2/128x1 co128x128/64x2
    co128x112 co256x104
dense: 2048x2048x2048: co128x256 co128x256b8 co128x256b4 co128x256b2 co128x256b1 sw128x256 sw128x256b8 sw128x256b4
    sw128x256b2 sw128x256b1 co128x256i2 sw128x256i2 co128x256/64x2 co128x256/128x1 co128x256/256x1 sw128x256/64x2
    sw128x256/128x1 sw128x256/128x2 sw128x256c12 co128x256c2b8 sw256x128 co256x128b4
dense: 4096x4096x14336: co128x256 co128x256b8 co128x256c2 co128x256c2b8 co128x256c12 sw128x256 sw128x256b8
    sw128x256c2 sw128x256c12 co128x256c2b4 co128x256b4 sw128x256b4 sw128x256i2 co128x256c2stb8 co256x208st
    sw256x208st co256x192st sw256x176 sw256x176b8 co256x128c12 sw256x128c12 co128x256c2b2 sw128x256c12b8
blockwise: 4096x7168x2048: co128x128 co128x128/128x1 co128x128b8 co128x128c2 co128x128c2b8 co128x128c12
    co128x128c12/128x1 co256x128/128x1 co256x128b8/128x1 co256x128c12/128x1 co128x112 co256x112
bias, gelu, residual: 4096x4096x4096: co128x256 co128x256b8 co128x256c2 co128x256c2b8 co128x256c12 co128x256st
    co128x256c2stb8 co256x128c12 pp128x128 pp128x128c2 pp128x176 pp128x160
bias, gelu, residual: 4096x14336x4096: co128x256 co128x256b8 co128x256c2 co128x256c2b8 co128x256c12 co128x256st
    co128x256c2stb8 pp128x160 pp128x176 pp128x184 pp128x184b8 pp128x192st co256x128c12
blockwise: 128x7168x4096: co128x64 co128x64c2 co128x64c12 one64x128 one64x64 co128x96 co128x48 co128x56 co128x64b4
    one64x112
fp8: 16x14336x4096: sw128x16 sw128x16st sw128x24 sw64x16 sw128x8 sw256x16 sw128x16c2 sw64x16c2 one64x112 one64x128
    sw128x16s10 sw64x16s12 sw192x16 sw128x32
fp8: 64x7168x4096: sw64x64 one64x64 one64x56 pp64x64 sw128x64k2c sw64x64k2c one64x112k2c one64x128k2c sw64x72
    one64x64c2 one64x64c12 sw64x64c2 one64x64s12
"""
"""A family, a shape and the names of configurations, the most important problems first; the rows of groups have commas."""


def listed(text: str) -> list[tuple[str, tuple[Any, ...], list[str]]]:
    """Parse `SCREENED`: indented lines continue the one before."""
    found = []
    for line in re.sub(r"\n +", " ", text.strip()).splitlines():
        family, shape, names = line.split(": ")
        sizes = [tuple(map(int, each.split(","))) if "," in each else int(each) for each in shape.split("x")]
        found.append((family, (*sizes,), names.split()))
    return found


@dataclass
class Problem:
    """A problem with its configurations by name; those that a rule forbids are left out."""

    family: str
    shape: tuple[Any, ...]
    configs: dict[str, HopperConfig] = field(default_factory=dict)

    @staticmethod
    def of(family: str, shape: tuple[Any, ...], names: Sequence[str]) -> Problem:
        made = {name: config_of(name, family) for name in dict.fromkeys(names)}
        return Problem(family, shape, {name: config for name, config in made.items() if not config.violations()})

    @property
    def label(self) -> str:
        return label_of(self.shape)

    @property
    def is_brief(self) -> bool:
        """True for the few rows of a decode step, which stay below the power limit."""
        rows = self.shape[0]
        return isinstance(rows, int) and rows <= 128 and len(self.shape) == 3


def planned(problem: Problem, config: HopperConfig | None) -> planner.Plan:
    """Plan the call of a problem for an H200, from the layouts of its arrays."""
    return assembling.planned(*described(problem), config)


def described(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """Return the operation of a problem, and tensors without memory for its arguments."""
    operation, given = ALL[problem.family].call(ALL[problem.family].make(Describer(), *problem.shape))
    rows, columns = next(iter(given.values())).shape[:-1], next(reversed(problem.shape[:-1]))
    return operation, {**given, "out": torch.empty((*rows, columns), dtype=BF16, device="meta")}


def build(job: tuple[Problem, str]) -> str:
    """Assemble a configuration into the cache; return why it cannot be used, or an empty string."""
    problem, name = job
    return complaint_about(*described(problem), problem.configs.get(name))


class Builder:
    """Assembles the configurations of problems in other processes."""

    def __init__(self, problems: Sequence[Problem], processes: int) -> None:
        self.assembler = Assembler(build, processes)
        self.assembler.submit(
            ((each.family, each.label, name), (each, name)) for each in problems for name in (OURS, *each.configs)
        )

    def wait(self, problem: Problem) -> dict[str, str]:
        """Return the complaints about the configurations of a problem, when all of them are assembled."""
        keys = [(problem.family, problem.label, name) for name in (OURS, *problem.configs)]
        found = {name: complaint for (*_, name), complaint in self.assembler.complaints(keys).items()}
        for name, complaint in found.items():
            if complaint:
                print(f"  {problem.family} {problem.label} {name}: {complaint}", flush=True)
        return {name: complaint for name, complaint in found.items() if complaint and name != OURS}


def short_round(sides: Mapping[str, Timed], protocol: Protocol, rng: random.Random) -> dict[str, dict[str, float]]:
    """Time all sides alone, then all cool; ratios are to the baseline's last time before."""
    names = [name for name in sides if name != PEER]
    found: dict[str, dict[str, float]] = {name: {} for name in names}

    def swept(how: str, run: Callable[[Timed], float]) -> None:
        peer = run(sides[PEER])
        for number, name in enumerate(rng.sample(names, len(names))):
            if number and number % PEER_EVERY == 0:
                peer = run(sides[PEER])
            found[name][how] = peer / run(sides[name])

    if protocol is SHORT:  # the power limit takes the clock down once more, about a second after a load begins
        run_alone(sides[PEER].graph, sides[PEER].calls, WARM, 0.01)
    swept("alone", lambda side: run_alone(side.graph, side.calls, protocol.settle, protocol.time)[0])
    time.sleep(IDLE_BEFORE_COOL)
    swept("cool", lambda side: run_cool(side.graph, side.calls, protocol.bursts, SHORT_IDLE))
    return found


def measured(problem: Problem, unusable: Mapping[str, str], asked: argparse.Namespace, sensors: Sensors) -> Row:
    family, rng = ALL[problem.family], order_of(asked.seed, f"{problem.family} {problem.label}")
    sets = rotating(lambda: family.make(Maker("cuda"), *problem.shape))
    flops, baseline = family.flops(sets[0]), next(iter(family.peers.values()))
    want = baseline(sets[0])
    runs: dict[str, Any] = {PEER: baseline, OURS: family.ours}
    rejected = dict(unusable)
    for name, config in problem.configs.items():
        if name in unusable:
            continue
        try:
            torch.full_like(want, float("nan"))  # the next result has its memory
            rejected[name] = wrong(family.ours(sets[0], config=config), want)
        except Exception as error:
            if is_lost():
                raise
            rejected[name] = str(error).splitlines()[0][:200]
        if rejected[name]:
            print(f"  {name}: {rejected[name]}", flush=True)
        else:
            runs[name] = partial(family.ours, config=config)
    sides = {side: graph_of(run, sets, flops) for side, run in runs.items()}
    short, long = (BRIEF_SHORT, BRIEF_LONG) if problem.is_brief else (SHORT, LONG)
    first = short_round(sides, short, rng)
    worst = {name: min(each.values()) for name, each in first.items()}
    best = sorted((name for name in worst if name != OURS), key=worst.__getitem__, reverse=True)[:FINALISTS]
    finals = {name: sides[name] for name in (PEER, OURS, *best)}
    take_turns(finals, long, rng, sensors)
    ratios = ratios_to(PEER, finals)
    lower = {name: min(each.values()) for name, each in ratios.items()}
    winner = max(lower, key=lower.__getitem__)
    return {
        **ratios[OURS],
        "worst": lower[OURS],
        "best": winner,
        "best_worst": lower[winner],
        "sides": {name: {**side.row(), **ratios.get(name, {})} for name, side in finals.items()},
        "screened": first,
        "rejected": {name: why for name, why in rejected.items() if why},
        "configs": {name: config.given for name, config in problem.configs.items() if name in finals},
        "shape": problem.shape,
    }


def transient(problem: Problem, sensors: Sensors, seconds: float = 2.5) -> Row:
    """Time the batches of a long run after idling: how long until the clock has settled, for both sides."""
    family = ALL[problem.family]
    sets = rotating(lambda: family.make(Maker("cuda"), *problem.shape))
    found: Row = {}
    sides = {PEER: next(iter(family.peers.values())), OURS: family.ours}
    for name in (*sides, *reversed(sides)):
        side = graph_of(sides[name], sets, family.flops(sets[0]))
        time.sleep(1)
        start, series = time.monotonic(), list[tuple[float, float]]()
        while time.monotonic() < start + seconds:
            us, begun, _ = run_alone(side.graph, side.calls, 0, 0.05)
            clock = sensors.between(begun, time.monotonic()) or (0, 0)
            series.append((round(begun - start, 3), round(us, 2), *map(round, clock)))
        found.setdefault(name, []).append(series)
    return found


def line_of(row: Row) -> str:
    title = f"{row['family']:20} {row['label']:34}"
    if "error" in row:
        return f"{title} FAILED: {row['error']}"
    if "best" not in row:
        return title
    text = f"{title} ours alone {row['alone']:.3f} cool {row['cool']:.3f}; best {row['best']} {row['best_worst']:.3f}; "
    top = sorted(row["screened"].items(), key=lambda item: -min(item[1].values()))[:6]
    return text + " ".join(f"{name} {each['alone']:.3f}/{each['cool']:.3f}" for name, each in top)


def summary(rows: list[Row]) -> Row:
    right = [row for row in good(rows) if "best" in row]
    if not right:
        return {}
    return {name: statistics.geometric_mean(row[name] for row in right) for name in ("worst", "best_worst")}


def ship(rows: Sequence[Row]) -> list[Row]:
    """Return rows with priority for the measurements: the best configuration of each problem that beats the choice."""
    found: list[Row] = []
    for row in good(list(rows)):
        if row.get("best", OURS) == OURS or row["best_worst"] < row["worst"] + MARGIN:
            continue
        shape = tuple(tuple(each) if isinstance(each, list) else each for each in row["shape"])
        problem = Problem.of(row["family"], shape, [row["best"]])
        key = planned(problem, None).key
        assert key is not None
        marks: Row = {name: True for name in ("fused", "residual") if getattr(key, name)}
        marks |= {f"{name}_major": "mn" for name, major in zip("ab", key.majors, strict=True) if major == "mn"}
        if dict(key.fields).get("gated"):
            marks["gated"] = True
        m, n, k, count = key.sizes
        best, peer = row["sides"][row["best"]], row["sides"][PEER]
        about = {"kind": key.kind, "shape": [m, n, k], "count": count, "a_type": key.a_type, **marks}
        config = json.loads(json.dumps(fields_of(problem.configs[row["best"]], key)))
        times = {"us": round(best["alone_us"], 3), "peer_us": round(peer["alone_us"], 3)}
        found.append({**about, "config": config, **times, "how": "screened"})
    return found


def write_measurements(rows: Sequence[Row]) -> None:
    """Put rows before those with priority so far, which they replace."""
    document = json.loads(MEASURED.read_text("utf-8"))
    names = ("kind", "shape", "count", "a_type", "a_major", "b_major", "fused", "residual", "gated")
    replaced = [[row.get(name) for name in names] for row in rows]
    kept = [row for row in document["one_by_one"] if [row.get(name) for name in names] not in replaced]
    document["one_by_one"] = [*rows, *kept]
    MEASURED.write_text(lines(document), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help=f"some of {', '.join(ALL)}")
    parser.add_argument(
        "--problems", default=SCREENED, help="other problems and configurations, written as SCREENED is"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no problem after this long")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the order of the sides")
    parser.add_argument("--processes", type=int, default=12, help="that assemble kernels")
    parser.add_argument("--build", action="store_true", help="only assemble; needs no GPU")
    parser.add_argument("--decode", action="store_true", help="only the few rows of decode steps")
    parser.add_argument("--transient", action="store_true", help="first time long runs of an 8-bit problem")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for JSON")
    parser.add_argument("--ship", action="store_true", help="put the results into hopper_configurations.json")
    asked = parser.parse_args()
    if asked.ship:
        rows = ship(json.loads((asked.out / "screened.json").read_text("utf-8"))["rows"])
        write_measurements(rows)
        print(*rows, sep="\n")
        return 0
    started = time.monotonic()
    problems = [Problem.of(*each) for each in listed(asked.problems) if not asked.families or each[0] in asked.families]
    problems = [each for each in problems if each.is_brief or not asked.decode]
    builder = Builder(problems, asked.processes)
    if asked.build:
        for problem in problems:
            print(problem.family, problem.label, len(problem.configs), len(builder.wait(problem)), flush=True)
        return 0
    sensors = Sensors()
    about = {"machine": machine(), "short": SHORT.about(), "long": LONG.about(), "brief": BRIEF_LONG.about()}
    table = Table("screened", about, line_of, summary, asked.out, 60, is_lost, adds=True)
    known = {(row["family"], row["label"]) for row in table.rows}
    with torch.no_grad():
        try:
            if asked.transient and not known:
                first = next(each for each in problems if each.family == "fp8")
                table.measure({"family": "transient", "label": first.label}, lambda: transient(first, sensors))
            for problem in problems:
                key = {"family": problem.family, "label": problem.label}
                if (*key.values(),) in known:
                    continue
                unusable = builder.wait(problem)
                if time.monotonic() - started > asked.seconds:
                    break
                table.begin(key)
                table.measure(key, partial(measured, problem, unusable, asked, sensors))
                torch.cuda.empty_cache()
        except GpuLostError as error:
            print(error)
            return 1
    print(summary(table.rows), f"{time.monotonic() - started:.0f} s")
    builder.assembler.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
