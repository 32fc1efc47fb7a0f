"""Our products beside PyTorch's on a Hopper GPU, by the front door: plain, fused, of random shapes, of every family.

    python bench/matmul.py                                  everything
    python bench/matmul.py --what plain,fused --quick       a few shapes, a few rounds
    python bench/matmul.py --what plain --shapes 4096x4096x4096,16x4096x14336
    python bench/matmul.py --what random --seed 7
    python bench/matmul.py --machine                        no GPU: small shapes on the CPU machine, not timed

Every launch sits in a CUDA graph, inputs rotate over sets that together exceed the L2 three times, the sides take turns
in one run, medians are compared, and the peer is also compared with itself. A shape is timed only after its result was
right: to the bit on small integers, and within a tolerance where an activation follows. What fails is told and counted,
and the rest goes on. Tables go to the terminal, JSON to bench/results/matmul_*.json.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from families import ALPHA, FAMILIES, Maker
from measuring import Arguments, Options, Row, call_of, is_lost, machine, mean_of, one_line, rotating, timed, wrong_bits
from torch.nn import functional

import warploom
from warploom.structured.config.hopper import HopperConfig
from warploom.structured.config.hopper_choice import choose_hopper

RESULTS = Path(__file__).parent / "results"
Shape = tuple[int, int, int]

LISTED: tuple[Shape, ...] = (
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (4096, 14336, 4096),
    (4096, 4096, 14336),
    (512, 4096, 16384),
    (128, 4096, 4096),
    (64, 14336, 4096),
    (16, 4096, 14336),
    (256, 256, 65536),
)
"""M, N and K; B is N × K."""
ODD: tuple[Shape, ...] = (
    (1, 14336, 4096),
    (7, 4096, 4096),
    (33, 5120, 13824),
    (100, 32000, 4096),
    (129, 11008, 4096),
    (777, 1333, 2048),
    (1000, 1000, 1000),
    (1024, 1024, 1021),
    (2047, 2049, 2056),
    (3000, 12288, 3072),
    (4096, 4097, 4096),
    (5000, 5000, 5000),
    (8191, 4096, 1024),
)
"""Sizes that no tile divides; rows that the copy engine cannot step through among them."""
RANDOM_SHAPES, MOST_ROWS, MOST_OTHERS, LEAST_OTHERS, STEP = 60, 8192, 16384, 64, 8
SMALL: tuple[Shape, ...] = ((130, 136, 200), (16, 200, 72), (33, 61, 50))
"""For the CPU machine."""
TOLERANCE = 2.0**-7
ABOVE_US = 100
"""A fused product is held against the plain one where that takes at least so long."""
INPUTS = "A ~ N(0, 1), B ~ N(0, 1) / sqrt(K), bias and residual ~ N(0, 1), rounded to bfloat16; fresh in every run"


def plain_arguments(maker: Maker, shape: Shape) -> Arguments:
    m, n, k = shape
    a, b = maker.values(m, k, dtype=torch.bfloat16), maker.values(n, k, dtype=torch.bfloat16)
    return {"a": a, "b": (b if maker.exact else b * k**-0.5).t(), "out": maker.out(m, n)}


def fused_arguments(maker: Maker, shape: Shape) -> Arguments:
    m, n, _ = shape
    given = plain_arguments(maker, shape)
    out = given.pop("out")
    added = {
        "bias": maker.values(n, dtype=torch.bfloat16),
        "activation": "gelu_tanh",
        "residual": maker.values(m, n, dtype=torch.bfloat16),
    }
    return {**given, **added, "out": out}


def plain_peer(each: Arguments) -> torch.Tensor:
    return torch.mm(each["a"], each["b"], out=each["out"])


def fused_peer(each: Arguments) -> torch.Tensor:
    return fused(each["a"], each["b"], each["bias"], each["residual"])


def fused(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(a, b.t(), bias), approximate="tanh") + residual


def family_arguments(name: str, tensors: dict[str, torch.Tensor]) -> tuple[Any, Arguments]:
    """The operation that is a family, and its arguments."""
    if name in ("fp8", "batched"):
        scaled = {"alpha": ALPHA} if name == "fp8" else {}
        return warploom.matmul, {"a": tensors["a"], "b": tensors["b"].mT, **scaled, "out": tensors["out"]}
    if name == "grouped":
        return warploom.grouped_matmul, {**tensors, "b": tensors["b"].mT}
    return warploom.blockwise_matmul, tensors


def wrong_plain(shape: Shape, device: str) -> str:
    given = plain_arguments(Maker(device, exact=True), shape)
    run = call_of(warploom.matmul, given)
    want = (given["a"].float() @ given["b"].float()).to(torch.bfloat16)
    return wrong_bits(lambda: run(given), given["out"], want)


def wrong_fused(shape: Shape, device: str) -> str:
    given = fused_arguments(Maker(device), shape)
    names = ("a", "b", "bias", "residual")
    want = fused(*(given[name].float() for name in names))
    call_of(warploom.matmul, given)(given)
    error = ((given["out"].float() - want).abs() / (want.abs() + 1)).max().item()
    return "" if error <= TOLERANCE else f"WRONG: off by {error:.3g}"


def wrong_family(name: str, shape: tuple[Any, ...], device: str) -> str:
    tensors = FAMILIES[name].make(Maker(device, exact=True), *shape)
    operation, given = family_arguments(name, tensors)
    run = call_of(operation, given)
    return wrong_bits(lambda: run(given), tensors["out"], FAMILIES[name].reference(tensors).to(torch.bfloat16))


def label_of(config: HopperConfig) -> str:
    parts = [
        f"{config.BM}x{config.BN}",
        "ping-pong" if config.pingpong else "cooperative" if config.consumers > 1 else "one consumer",
        *(["swapped"] if config.AB_swapped else []),
        *([f"cluster {config.cluster_shape[:2]}"] if config.cluster_shape[:2] != (1, 1) else []),
    ]
    if config.num_split_k > 1:
        parts.append(f"{config.num_split_k} splits in {'cluster' if config.split_in_cluster else 'memory'}")
    return " ".join(parts)


def plain_row(shape: Shape, options: Options) -> Row:
    m, n, k = shape
    wrong = wrong_plain(shape, "cuda")
    if wrong:
        raise ValueError(wrong)
    sets = rotating(lambda: plain_arguments(Maker("cuda"), shape))
    sides = {"cublas": plain_peer, "ours": call_of(warploom.matmul, sets[0])}
    if options.beside is not None:
        bound = {id(each): options.beside(each["a"], each["b"].t(), each["out"]) for each in sets}
        if all(bound.values()):
            sides["beside"] = lambda each: bound[id(each)]()
    times, itself = timed(sides, sets, 2.0 * m * n * k, options)
    tma = n % 8 == 0
    row = {
        "config": label_of(choose_hopper(m, n, k, a_type="bf16", c_type="bf16", use_tma_store=tma)),
        "ratio": times["cublas"] / times["ours"],
        "us": times["ours"],
        "cublas_us": times["cublas"],
        "cublas_against_itself": itself,
        "tflops": 2e-6 * m * n * k / times["ours"],
        "sets": len(sets),
    }
    if "beside" in times:
        row |= {"beside_us": times["beside"], "ratio_to_beside": times["beside"] / times["ours"]}
    return row


def fused_row(shape: Shape, options: Options) -> Row:
    m, n, k = shape
    wrong = wrong_fused(shape, "cuda")
    if wrong:
        raise ValueError(wrong)
    sets = rotating(lambda: fused_arguments(Maker("cuda"), shape))
    sides = {"eager": fused_peer, "cublas": plain_peer, "ours": call_of(warploom.matmul, sets[0])}
    refusal = ""
    if options.compiled:
        try:
            sides["compiled"] = compiled_peer(sets[0])
        except Exception as error:  # noqa: BLE001  (a peer that fails is told, and the others are measured)
            refusal = one_line(error)
    times, itself = timed(sides, sets, 2.0 * m * n * k, options)
    ours = times["ours"]
    row = {
        "ratio": times["eager"] / ours,
        "us": ours,
        "of_plain_cublas": ours / times["cublas"],
        "eager_us": times["eager"],
        "cublas_us": times["cublas"],
        "eager_against_itself": itself,
        "tflops": 2e-6 * m * n * k / ours,
    }
    if "compiled" in times:
        row |= {"compiled_us": times["compiled"], "ratio_to_compiled": times["compiled"] / ours}
    return row | ({"compiled_error": refusal} if refusal else {})


def compiled_peer(each: Arguments) -> Callable[[Arguments], torch.Tensor]:
    """PyTorch's compiler on the same, tuned; it has run once when it is returned."""
    torch._dynamo.reset()
    made = torch.compile(fused, mode="max-autotune-no-cudagraphs", dynamic=False)

    def run(each: Arguments) -> torch.Tensor:
        return made(each["a"], each["b"], each["bias"], each["residual"])

    run(each)
    torch.cuda.synchronize()
    return run


def family_row(name: str, shape: tuple[Any, ...], options: Options) -> Row:
    family = FAMILIES[name]
    wrong = wrong_family(name, shape, "cuda")
    if wrong:
        raise ValueError(wrong)
    tensors = rotating(lambda: family.make(Maker("cuda"), *shape))
    operation, first = family_arguments(name, tensors[0])
    call = call_of(operation, first)
    sides = {"peer": family.peer, "ours": lambda each: call(family_arguments(name, each)[1])}
    times, itself = timed(sides, tensors, family.flops(tensors[0]), options)
    return {
        "ratio": times["peer"] / times["ours"],
        "us": times["ours"],
        "peer_us": times["peer"],
        "peer_against_itself": itself,
        "tflops": family.flops(tensors[0]) / times["ours"] / 1e6,
        "sets": len(tensors),
    }


def random_shapes(seed: int, count: int) -> list[Shape]:
    """Log-uniform sizes, N and K in steps of 8."""
    rng = random.Random(seed)

    def size(least: int, most: int) -> int:
        return round(math.exp(rng.uniform(math.log(least), math.log(most))))

    def step(least: int, most: int) -> int:
        return STEP * size(least // STEP, most // STEP)

    return [
        (size(1, MOST_ROWS), step(LEAST_OTHERS, MOST_OTHERS), step(LEAST_OTHERS, MOST_OTHERS)) for _ in range(count)
    ]


def told(kind: str, label: str, row: Row) -> str:
    if "error" in row:
        return f"{kind:9} {label:32} FAILED: {row['error']}"
    text = f"{kind:9} {label:32} {row['ratio']:6.3f}  {row['us']:9.2f} µs {row['tflops']:5.0f} TFLOP/s"
    rest = {name: value for name, value in row.items() if name not in ("ratio", "us", "tflops", "label", "shape")}
    numbers = (f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in rest.items())
    return f"{text}  ({', '.join(numbers)})"


ASKED: dict[str, tuple[float, float]] = {"plain": (1.04, 1.0), "random": (0.97, 0.8), "fused": (1.25, 0.0)}
"""The geometric mean of the ratios and the lowest of them, as asked for; of families, each at least `OF_FAMILIES`."""
OF_FAMILIES, OF_COMPILED, OF_PLAIN = 1.02, 1.10, 1.06


def summary(kind: str, rows: list[Row]) -> Row:
    """What the rows come to, and what was asked for."""
    good = [row for row in rows if "error" not in row]
    found: Row = {"shapes": len(rows), "failed": len(rows) - len(good)}
    if not good:
        return found
    mean, least = ASKED.get(kind, (0.0, OF_FAMILIES if kind in FAMILIES else 0.0))
    found |= {"geometric_mean": mean_of(good), "lowest": min(row["ratio"] for row in good)}
    found |= {name: value for name, value in (("asked_mean", mean), ("asked_lowest", least)) if value}
    itself = [abs(row[name] - 1) for row in good for name in row if name.endswith("against_itself")]
    found["spread_of_the_peer"] = max(itself)
    if kind == "fused":
        compiled = [row for row in good if "ratio_to_compiled" in row]
        long = [row["of_plain_cublas"] for row in good if row["cublas_us"] >= ABOVE_US]
        found |= {"asked_mean_to_compiled": OF_COMPILED, "asked_most_of_plain": OF_PLAIN}
        found |= {"mean_to_compiled": mean_of(compiled, "ratio_to_compiled")} if compiled else {}
        found |= {"most_of_plain": max(long)} if long else {}
    beside = [row for row in good if "ratio_to_beside" in row]
    found |= {"mean_to_beside": mean_of(beside, "ratio_to_beside")} if beside else {}
    return found


def cases_of(kind: str, asked: argparse.Namespace) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Labels and shapes of a table."""
    if kind in FAMILIES:
        cases = FAMILIES[kind].cases[: 1 if asked.quick else None]
        yield from ((case.label, case.small if asked.machine else case.shape) for case in cases)
        return
    shapes: tuple[Shape, ...] | list[Shape]
    if asked.machine:
        shapes = SMALL
    elif asked.shapes and kind != "random":
        shapes = [tuple(map(int, text.split("x"))) for text in asked.shapes.split(",")]
    elif kind == "random":
        shapes = random_shapes(asked.seed, 8 if asked.quick else RANDOM_SHAPES)
    else:
        shapes = ODD if kind == "odd" else LISTED
        shapes = shapes[1::3] if asked.quick else shapes
    yield from (("×".join(map(str, shape)), shape) for shape in shapes)


def row_of(kind: str, shape: tuple[Any, ...], options: Options) -> Row:
    if kind in FAMILIES:
        return family_row(kind, shape, options)
    return fused_row(shape, options) if kind == "fused" else plain_row(shape, options)


def table(kind: str, asked: argparse.Namespace, options: Options) -> tuple[list[Row], bool]:
    """Measure a table, print it and write it; whether the GPU can go on."""
    rows: list[Row] = []
    lost = False
    for label, shape in cases_of(kind, asked):
        faulthandler.dump_traceback_later(options.limit, exit=True)
        try:
            row = row_of(kind, shape, options)
        except Exception as error:  # noqa: BLE001  (one shape that fails is told and counted, and the rest goes on)
            row = {"error": one_line(error)}
        faulthandler.cancel_dump_traceback_later()
        rows.append({"label": label, "shape": shape, **row})
        print(told(kind, label, row), flush=True)
        written(kind, rows, asked)
        lost = is_lost()
        if lost:
            print("the GPU answers no more after a fault; the other shapes are left out")
            break
    return rows, not lost


def written(kind: str, rows: list[Row], asked: argparse.Namespace) -> None:
    """All that was measured so far, so that it stays if a later shape hangs."""
    RESULTS.mkdir(exist_ok=True)
    about = {
        "what": kind,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "inputs": INPUTS,
        "rounds": asked.rounds,
        "seed": asked.seed if kind == "random" else None,
        "summary": summary(kind, rows),
        "rows": rows,
    }
    (RESULTS / f"matmul_{kind}.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", "utf-8")


def on_the_machine(kinds: list[str], asked: argparse.Namespace) -> int:
    """Every table's checks, small, without a GPU."""
    failed = 0
    for kind in kinds:
        for label, shape in cases_of(kind, asked):
            check = {"fused": wrong_fused}.get(kind, wrong_plain)
            wrong = wrong_family(kind, shape, "cpu") if kind in FAMILIES else check(shape, "cpu")
            failed += bool(wrong)
            print(f"{kind:9} {label:32} {wrong or 'right'}", flush=True)
    return failed


def loaded(path: Path) -> Callable[..., Any]:
    """`bind(a, b, out)` of a Python file: a call of somebody else's kernel, or None where there is none."""
    spec = spec_from_file_location("beside", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    bind: Callable[..., Any] = module.bind
    return bind


DENSE = ("plain", "odd", "random", "fused")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = ", ".join((*DENSE, *FAMILIES))
    parser.add_argument("--what", default="all", help=f"some of {named}; families for the last four; all")
    parser.add_argument("--shapes", help="MxNxK,… instead of the listed ones")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--window", type=float, default=3000, help="microseconds of one graph")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the random shapes")
    parser.add_argument("--quick", action="store_true", help="a few shapes and rounds")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a shape has hung")
    parser.add_argument("--without-compiled", action="store_true", help="leave torch.compile out")
    parser.add_argument("--beside", type=Path, help="a Python file with bind(a, b, out), measured beside plain")
    parser.add_argument("--machine", action="store_true", help="the checks alone, small, on the CPU machine")
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
        return 1 if on_the_machine(kinds, asked) else 0
    if asked.quick:
        asked.rounds, asked.window = min(asked.rounds, 5), min(asked.window, 1500)
    torch.backends.cuda.matmul.allow_tf32 = False  # sums of the reference are exact
    beside = loaded(asked.beside) if asked.beside else None
    options = Options(asked.rounds, asked.window, asked.limit, beside, not asked.without_compiled)
    print(json.dumps(machine()), f"seed {asked.seed}", flush=True)
    found: dict[str, Row] = {}
    with torch.no_grad():
        for kind in kinds:
            rows, goes_on = table(kind, asked, options)
            found[kind] = summary(kind, rows)
            if not goes_on:
                break
    for kind, row in found.items():
        numbers = (
            f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
        print(f"{kind:9} {', '.join(numbers)}")
    return 1 if any(row["failed"] for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
