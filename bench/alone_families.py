"""The other operations through the public API, each side alone and cool: 8-bit, batched, grouped, fused and gated GEMMs.

    PYTHONPATH=src python3 bench/alone_families.py                       every case
    PYTHONPATH=src python3 bench/alone_families.py fp8 swiglu            some families
    PYTHONPATH=src python3 bench/alone_families.py --seconds 240         stop in time; run again to go on

Our side is the plain call that a user writes, without `out=` and with the library's own choice. The baselines are PyTorch's
operation of the same name; for fused and gated operations PyTorch's sequence, and its compiler in the modes of `MODES`. A ratio
is taken against the fastest baseline. Inputs rotate over sets that exceed the L2 three times; results are compared before
anything is timed. For fused and gated operations, PyTorch's GEMM alone is timed as well: the fastest baseline's time divided by
it is the ratio of a kernel that does everything else in no time (`bound`). JSON goes to alone_families.json in bench/results. `bench/screening.py` compares configurations.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from families import RAGGED, make_batched, make_blockwise, make_fp8, make_grouped
from families import peer_blockwise as blockwise_peer
from families import peer_fp8 as fp8_peer
from inputs import Maker
from measuring import Arguments, bytes_of, captured, is_lost, machine, rotating
from protocol import Protocol, Sensors, Timed, add_protocol, order_of, ratios_to, take_turns
from tables import RESULTS, GpuLostError, Row, Table, good
from torch.nn import functional

import warploom
from warploom.ops.operation import Operation

OURS = "ours"
GEMM = "GEMM without the rest"
DEVICE = "cuda"
MODES = ("default", "max-autotune-no-cudagraphs")
"""Modes of torch.compile that serve in a graph of our own."""
GRAPH_US = 4000.0
TOLERANCE = 2.0**-6
"""Of a result relative to its size: two roundings to bfloat16."""
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
Run = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Family:
    """The calls of one operation: inputs, our side, the baselines, and the operations of a call."""

    make: Callable[..., Arguments]
    call: Callable[[Arguments], tuple[Operation, Arguments]]
    """Our operation, and its arguments by name."""
    peers: Mapping[str, Run]
    compiled: Mapping[str, Callable[..., torch.Tensor]]
    """Functions of the inputs by name that PyTorch's compiler gets."""
    flops: Callable[[Arguments], float]
    shapes: Sequence[tuple[Any, ...]]
    gemm: Run | None = None
    """PyTorch's GEMM without what is fused into ours: a kernel of its speed could not be faster."""

    def ours(self, given: Arguments, **options: Any) -> torch.Tensor:
        """Call our operation, with options such as `config` in addition."""
        operation, arguments = self.call(given)
        result: torch.Tensor = operation(**arguments, **options)
        return result


def make_rows(maker: Maker, m: int, n: int, k: int) -> Arguments:
    """8-bit operands with a scale for each row of A and of B."""
    given = make_fp8(maker, m, n, k)
    del given["out"]
    return {**given, "a_scale": maker.scales(m, 1), "b_scale": maker.scales(1, n)}


def make_fused(maker: Maker, m: int, n: int, k: int) -> Arguments:
    x, w = maker.values(m, k, dtype=BF16), maker.values(n, k, dtype=BF16) * k**-0.5
    return {"x": x, "w": w, "bias": maker.values(n, dtype=BF16), "residual": maker.values(m, n, dtype=BF16)}


def make_experts(maker: Maker, rows: tuple[int, ...], n: int, k: int) -> Arguments:
    """Groups whose experts are in another order than the groups."""
    given = without_out(make_grouped, maker, rows, n, k)
    ids = torch.randperm(len(rows), device=maker.device, generator=maker.generator).to(torch.int32)
    return {**given, "ids": ids, "ordered": given["b"][ids.long()].contiguous()}


def make_blockwise_batches(maker: Maker, batch: int, m: int, n: int, k: int) -> Arguments:
    parts = [without_out(make_blockwise, maker, m, n, k) for _ in range(batch)]
    held = {name: torch.stack([part[name] for part in parts]) for name in ("a", "b", "b_scale")}
    of_rows = torch.stack([part["a_scale"].t() for part in parts]).mT  # rows stay contiguous
    return {**held, "a_scale": of_rows}


def blockwise_batches_peer(t: Arguments) -> torch.Tensor:
    """One call for each matrix: PyTorch's operation takes no batches."""
    parts = zip(t["a"], t["b"], t["a_scale"], t["b_scale"], strict=True)
    made = [blockwise_peer(dict(zip(("a", "b", "a_scale", "b_scale"), part, strict=True))) for part in parts]
    return torch.stack(made) if not torch.cuda.is_current_stream_capturing() else made[0]


def make_gated(maker: Maker, m: int, n: int, k: int) -> Arguments:
    return {"x": maker.values(m, k, dtype=BF16), "w": maker.values(2 * n, k, dtype=BF16) * k**-0.5}


def without_out(make: Callable[..., Any], *given: Any) -> Arguments:
    return {name: value for name, value in make(*given).items() if name != "out"}


def row_scaled(t: Arguments) -> tuple[Operation, Arguments]:
    scales = {"of_row": t["a_scale"], "of_column": t["b_scale"]}
    return warploom.linear, {"x": t["a"], "w": t["b"], "operands": scales, "epilogue": by_both}


def by_both(acc: Any, at: Any, of_row: Any, of_column: Any) -> Any:
    return acc * of_row * of_column


def row_scaled_peer(t: Arguments) -> torch.Tensor:
    scales = {"scale_a": t["a_scale"], "scale_b": t["b_scale"]}
    return torch._scaled_mm(t["a"], t["b"].t(), **scales, out_dtype=BF16, use_fast_accum=True)


def fused(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, w, bias), approximate="tanh") + residual


def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two GEMMs as one, whose halves are combined."""
    gate, up = functional.linear(x, w).chunk(2, -1)
    return functional.silu(gate) * up


def gated_apart(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = w.chunk(2)
    return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)


def layer_gemm(t: Arguments) -> torch.Tensor:
    return functional.linear(t["x"], t["w"])


def dense(t: Arguments) -> float:
    return 2.0 * t["a"].numel() * t["b"].shape[-2]


def of_layer(t: Arguments) -> float:
    return 2.0 * t["x"].numel() * t["w"].shape[0]


SQUARES = ((4096, 4096, 4096), (4096, 14336, 4096), (64, 7168, 4096), (16, 14336, 4096))
FAMILIES = {
    "fp8": Family(
        partial(without_out, make_fp8),
        lambda t: (warploom.linear, {"x": t["a"], "w": t["b"], "alpha": 0.5}),
        {"_scaled_mm": fp8_peer}, {}, dense, SQUARES,
    ),
    "fp8 by rows": Family(make_rows, row_scaled, {"_scaled_mm": row_scaled_peer}, {}, dense, SQUARES[:3]),
    "blockwise": Family(
        partial(without_out, make_blockwise),
        lambda t: (warploom.blockwise_matmul, t),
        {"_scaled_mm": blockwise_peer}, {}, dense, ((4096, 4096, 4096), (4096, 7168, 2048), (128, 7168, 4096)),
    ),
    "batched": Family(
        partial(without_out, make_batched),
        lambda t: (warploom.matmul, {"a": t["a"], "b": t["b"].mT}),
        {"bmm": lambda t: torch.bmm(t["a"], t["b"].mT)}, {}, dense,
        ((8, 2048, 2048, 2048), (16, 1024, 1024, 1024), (32, 1024, 128, 4096)),
    ),
    "grouped": Family(
        partial(without_out, make_grouped),
        lambda t: (warploom.grouped_matmul, {**t, "b": t["b"].mT}),
        {"_grouped_mm": lambda t: torch._grouped_mm(t["a"], t["b"].mT, offs=t["ends"], out_dtype=BF16)}, {}, dense,
        (((1024,) * 8, 4096, 4096), (RAGGED, 4096, 4096)),
    ),
    "grouped, expert ids": Family(
        make_experts,
        lambda t: (warploom.grouped_matmul, {"a": t["a"], "b": t["b"].mT, "ends": t["ends"], "expert_ids": t["ids"]}),
        {
            "_grouped_mm of ordered experts": lambda t: torch._grouped_mm(
                t["a"], t["ordered"].mT, offs=t["ends"], out_dtype=BF16
            ),
            "index, _grouped_mm": lambda t: torch._grouped_mm(
                t["a"], t["b"][t["ids"]].mT, offs=t["ends"], out_dtype=BF16
            ),
        }, {}, dense,
        (((1024,) * 8, 4096, 4096), (RAGGED, 4096, 4096), ((16,) * 64, 2048, 4096)),
    ),
    "batched blockwise": Family(
        make_blockwise_batches,
        lambda t: (warploom.blockwise_matmul, t),
        {"_scaled_mm of each": blockwise_batches_peer}, {}, dense,
        ((8, 1024, 4096, 2048), (16, 128, 4096, 2048), (32, 1024, 512, 128 * 8)),
    ),
    "bias, gelu, residual": Family(
        make_fused,
        lambda t: (warploom.linear, {**t, "activation": "gelu_tanh"}),
        {"eager": lambda t: fused(**t)}, {"compiled": fused}, of_layer,
        ((4096, 4096, 4096), (4096, 14336, 4096), (512, 4096, 14336)), layer_gemm,
    ),
    "swiglu": Family(
        make_gated,
        lambda t: (warploom.gated_linear, dict(zip(("x", "w_gate", "w_up"), (t["x"], *t["w"].chunk(2)), strict=True))),
        {"eager": lambda t: gated(**t)}, {"compiled": gated, "compiled apart": gated_apart}, of_layer,
        ((4096, 14336, 4096), (64, 14336, 4096), (16, 28672, 8192), (1, 14336, 4096)), layer_gemm,
    ),
}  # fmt: skip


def label_of(shape: tuple[Any, ...]) -> str:
    if isinstance(shape[0], tuple):
        rows = shape[0]
        return f"{len(rows)} groups of {'different' if len(set(rows)) > 1 else rows[0]} rows ×{shape[1]}×{shape[2]}"
    return "×".join(map(str, shape))


def wrong(ours: torch.Tensor, want: torch.Tensor) -> str:
    """Describe how a result differs from the baseline's by more than roundings, if it does."""
    difference = (ours.float() - want.float()).abs().max().item()
    scale = want.float().abs().max().item()
    return "" if difference <= TOLERANCE * scale else f"WRONG: off by {difference:.3g} of {scale:.3g}"


def compiled_sides(family: Family, given: Arguments, modes: Sequence[str]) -> dict[str, Run]:
    """Compile the baselines in each mode; one that cannot be compiled is reported and left out."""
    found: dict[str, Run] = {}
    for name, function in family.compiled.items():
        for mode in modes:
            made = torch.compile(function, mode=mode, dynamic=False)
            try:
                made(**given)
                found[f"{name}, {mode}"] = lambda t, made=made: made(**t)
            except Exception as error:  # noqa: BLE001  (a baseline that fails is reported, and the others are measured)
                print(f"  {name}, {mode}: {error}"[:200], flush=True)
    return found


def graph_of(run: Run, sets: list[Arguments], flops: float) -> Timed:
    guess = max(flops / 650e6, bytes_of(sets[0]) / 3e6, 3)
    calls = max(len(sets), min(500, int(GRAPH_US / guess)))
    return Timed.of_graph(captured([partial(run, each) for each in sets], calls), calls)


def measured(name: str, shape: tuple[Any, ...], asked: argparse.Namespace, sensors: Sensors) -> Row:
    family = FAMILIES[name]
    sets = rotating(lambda: family.make(Maker(DEVICE), *shape))
    compiled = compiled_sides(family, sets[0], MODES[: asked.modes])
    peers = {**family.peers, **compiled}
    bad = wrong(family.ours(sets[0]), next(iter(peers.values()))(sets[0]))
    if bad:
        return {"error": bad}
    flops = family.flops(sets[0])
    runs = {**peers, OURS: family.ours, **({} if family.gemm is None else {GEMM: family.gemm})}
    sides = {side: graph_of(run, sets, flops) for side, run in runs.items()}
    take_turns(sides, Protocol.of(asked), order_of(asked.seed, f"{name} {label_of(shape)}"), sensors)
    ratios = {peer: ratios_to(peer, sides) for peer in peers}
    alone, cool = (min(each[OURS][how] for each in ratios.values()) for how in ("alone", "cool"))
    bound = {how: min(each[GEMM][how] for each in ratios.values()) for how in ("alone", "cool") if GEMM in sides}
    return {
        **({"bound": bound} if bound else {}),
        "alone": alone,
        "cool": cool,
        "worst": min(alone, cool),
        "best_peer": min(peers, key=lambda peer: sides[peer].alone_us),
        "tflops": flops / sides[OURS].alone_us / 1e6,
        "sides": {side: each.row() for side, each in sides.items()},
    }


def line_of(row: Row) -> str:
    title = f"{row['family']:20} {row['label']:40}"
    if "error" in row:
        return f"{title} FAILED: {row['error']}"
    bound = " bound {alone:.3f} {cool:.3f}".format(**row["bound"]) if "bound" in row else ""
    return f"{title} alone {row['alone']:.3f} cool {row['cool']:.3f} against {row['best_peer']}{bound}"


def summary(rows: list[Row]) -> Row:
    found: Row = {"cases": len(rows), "failed": len(rows) - len(good(rows))}
    for name in FAMILIES:
        right = [row for row in good(rows) if row["family"] == name]
        if right:
            how = {each: statistics.geometric_mean(row[each] for row in right) for each in ("alone", "cool", "worst")}
            found[name] = {**how, "lowest": min(row["worst"] for row in right)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help=f"some of {', '.join(FAMILIES)}")
    add_protocol(parser)
    parser.add_argument("--modes", type=int, default=len(MODES), help="how many of torch.compile's modes are tried")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after this long")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the order of the sides")
    parser.add_argument("--again", action="store_true", help="measure cases that the file already holds again")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for JSON")
    asked = parser.parse_args()
    started, sensors = time.monotonic(), Sensors()
    about = {"machine": machine(), **Protocol.of(asked).about(), "modes": MODES[: asked.modes]}
    table = Table("alone_families", about, line_of, summary, asked.out, 300, is_lost, adds=True)
    known = {(row["family"], row["label"]) for row in good(table.rows)}
    with torch.no_grad():
        for name in asked.families or FAMILIES:
            for shape in FAMILIES[name].shapes:
                key = {"family": name, "label": label_of(shape)}
                if time.monotonic() - started > asked.seconds or (not asked.again and (*key.values(),) in known):
                    continue
                try:
                    table.measure(key, partial(measured, name, shape, asked, sensors))
                except GpuLostError as error:
                    print(error)
                    return 1
                torch._dynamo.reset()
                torch.cuda.empty_cache()
    print(summary(table.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
