"""Registers of Blackwell kernels by configuration and epilogue: assembles combinations and lists those that spill.

`python bench/spills.py --count 200 --seed 1` assembles a random sample; without `--count` every combination. `--jobs`
processes share the work, and `--seconds` bounds it. With `--log FILE` each result is written to a file, and those that it holds
already are not made again: a long run can be continued. `--save` writes bench/results/spills.json. Needs ptxas, no GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.diagnostics import WarploomError
from warploom.host.launch import Launch
from warploom.ops.signatures import Gate
from warploom.runtime import assemble
from warploom.runtime.toolchain.tools import PTXAS, find
from warploom.structured.config import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, MatmulConfig
from warploom.structured.epilogue.epilogue import ACTIVATIONS

BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
RESULTS = {"bf16": BF16, "f32": np.dtype(np.float32), "e4m3": E4M3}
SHAPES = [(1, 64, n) for n in (8, 32, 64, 128, 256)] + [(1, 128, n) for n in (8, 32, 64, 96, 128, 192, 256)]
SHAPES += [(2, 128, n) for n in (32, 64, 128, 256)] + [(2, 256, n) for n in (32, 64, 128, 192, 256)]
DENSE = ("dense", "split_k", "loaded", "tf32x3", "conv2d", "gated", "grouped", "gated_grouped")
SCALED = ("blockwise", "grouped_blockwise", "block_scaled", "grouped_block_scaled", "gated_grouped_block_scaled")
FAMILIES = (*DENSE, *SCALED)
FILE = Path(__file__).parent / "results" / "spills.json"
Result = tuple[int, int] | None
"""The registers and spilled bytes of a kernel; None if the rules do not admit it."""
CHOSEN = "chosen"
"""The configuration that the library chooses."""


@dataclass(frozen=True)
class Case:
    """One kernel: a family, a configuration, and an epilogue."""

    family: str
    shape: tuple[int, int, int] | str
    swapped: bool
    by_registers: bool
    c_type: str
    activation: str | None
    bias: bool
    residual: bool

    def config(self) -> Any:
        if isinstance(self.shape, str):
            return None
        group, m, n = self.shape
        common: dict[str, Any] = {
            "cta_group": group,
            "AB_swapped": self.swapped,
            "register_based_epilogue": self.by_registers,
            "c_type": self.c_type,
        }
        if self.family.endswith("blockwise"):
            return BlockwiseFP8MatmulConfig(mma_shape=(m, n, 32), **common)
        if self.family.endswith("block_scaled"):
            return BlockScaledMatmulConfig(mma_shape=(m, n, 32), **common)
        if self.family == "tf32x3":
            return MatmulConfig(mma_shape=(m, n, 8), a_type="f32", b_type="f32", precision="tf32x3", **common)
        common |= {"num_split_k": 2} if self.family == "split_k" else {}
        common |= {"use_tma_epilogue_load": True} if self.family == "loaded" else {}
        return MatmulConfig(mma_shape=(m, n, 16), **common)

    def epilogue(self, rows: int, n: int) -> dict[str, Any]:
        """The keywords of the epilogue; `activation` of a gated family is its pair."""
        is_gated = self.family.startswith("gated")
        given: dict[str, Any] = {"pair" if is_gated else "activation": self.activation, "config": self.config()}
        given |= {"target": "sm_100a", "out_dtype": RESULTS[self.c_type]}
        if self.bias:
            given |= {name: np.zeros(n, BF16) for name in (("gate_bias", "up_bias") if is_gated else ("bias",))}
        if self.residual:
            given["residual"] = np.zeros((rows, n), RESULTS[self.c_type] if self.family == "loaded" else BF16)
        return given

    def launch(self) -> Launch:
        """The launch of a small problem."""
        rows, n, k = (512 if self.shape == CHOSEN else 40), 256, 256
        dtype = np.dtype(np.float32) if self.family == "tf32x3" else BF16 if self.family in DENSE else E4M3
        a, weights, ends = np.zeros((rows, k), dtype), np.zeros((2, n, k), dtype), np.array([10, rows])
        of_a, of_b = np.zeros((rows, 2), np.float32), np.zeros((2, 2, 2), np.float32)
        if self.family.endswith("block_scaled"):
            of_a, of_b = np.zeros((rows, k // 32), E8M0), np.zeros((2, n, k // 32), E8M0)
        given = self.epilogue(rows, n)
        match self.family:
            case "tf32x3":
                return wl.linear.bind(a, weights[0], precision="tf32x3", **given)
            case "conv2d":
                if self.residual:
                    given["residual"] = given["residual"].reshape(2, 4, -1, n)
                return wl.conv2d.bind(a.reshape(2, 4, -1, k), weights[0].reshape(n, 1, 1, k), **given)
            case "gated":
                return wl.gated_linear.bind(a, *weights, **given)
            case "grouped":
                return wl.grouped_matmul.bind(a, weights.mT, ends, **given)
            case "gated_grouped":
                return wl.gated_grouped_matmul.bind(a, weights.mT, weights.mT, ends, **given)
            case "blockwise":
                return wl.blockwise_matmul.bind(a, weights[0], of_a, of_b[0], **given)
            case "grouped_blockwise":
                return wl.grouped_blockwise_matmul.bind(a, weights, of_a, of_b, ends, **given)
            case "block_scaled":
                return wl.block_scaled_matmul.bind(a, weights[0], of_a, of_b[0], **given)
            case "grouped_block_scaled":
                return wl.grouped_block_scaled_matmul.bind(a, weights, of_a, of_b, ends, **given)
            case "gated_grouped_block_scaled":
                both = (a, weights, weights, of_a, of_b, of_b, ends)
                return wl.gated_grouped_block_scaled_matmul.bind(*both, **given)
        return wl.linear.bind(a, weights[0], **given)


def cases() -> Iterator[Case]:
    """Every combination; those that break a rule are skipped when they are bound."""
    shapes: list[tuple[int, int, int] | str] = [*SHAPES, CHOSEN]
    flags = (False, True)
    for family, shape, swapped, by_registers in product(FAMILIES, shapes, flags, flags):
        if shape == CHOSEN and (swapped or not by_registers or family in ("split_k", "loaded")):
            continue
        functions = get_args(Gate) if family.startswith("gated") else (None, *ACTIVATIONS)
        for c_type, function, bias, residual in product(RESULTS, functions, flags, flags):
            if residual or family != "loaded":
                yield Case(family, shape, swapped, by_registers, c_type, function, bias, residual)


def results_of(found: list[Case], jobs: int, seconds: float) -> Iterator[tuple[Case, Result]]:
    """Assemble in several processes, for so many seconds."""
    until = time.monotonic() + seconds
    with multiprocessing.Pool(jobs) as pool:
        for each in pool.imap_unordered(_named, found):
            yield each
            if time.monotonic() > until:
                return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, help="size of a random sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--log", type=Path, help="results, one per line; combinations in it are not assembled again")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this long")
    parser.add_argument("--save", action="store_true", help=f"write {FILE.name} in bench/results")
    asked = parser.parse_args()
    every = list(cases())
    found = [case for case in every if asked.family in (None, case.family)]
    if asked.count is not None:
        found = random.Random(asked.seed).sample(found, min(asked.count, len(found)))
    known = _known(asked.log)
    new = [case for case in found if str(case) not in known]
    for case, result in results_of(new, asked.jobs, asked.seconds):
        known[str(case)] = result
        _record(asked.log, case, result)
        if result and result[1]:
            print(f"{result[1]} bytes: {case}", flush=True)
    made = {case: known[str(case)] for case in found if str(case) in known}
    report = summary(made, asked.seed, len(every))
    if asked.save:
        FILE.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(report)
    return int(bool(report["spilled"]))


def summary(made: dict[Case, Result], seed: int, combinations: int) -> dict[str, Any]:
    good = {case: result for case, result in made.items() if result is not None}
    return {
        "ptxas": find(PTXAS).version,
        "seed": seed,
        "combinations": combinations,
        "refused": len(made) - len(good),
        "assembled": len(good),
        "families": dict(Counter(case.family for case in good)),
        "spilled": [f"{spilled} bytes: {case}" for case, (_, spilled) in good.items() if spilled],
        "most_registers": max((registers for registers, _ in good.values()), default=0),
    }


def assembled(case: Case) -> Result:
    try:
        bound = case.launch()
    except WarploomError:
        return None
    row = assemble(bound.program, strict=False).kernels[0]
    return row.registers, max(row.spill_stores, row.spill_loads)


def _named(case: Case) -> tuple[Case, Result]:
    return case, assembled(case)


def _known(log: Path | None) -> dict[str, Result]:
    if log is None or not log.exists():
        return {}
    rows = (line.split("\t") for line in log.read_text("utf-8").splitlines())
    return {case: None if registers == "-" else (int(registers), int(spilled)) for registers, spilled, case in rows}


def _record(log: Path | None, case: Case, result: Result) -> None:
    if log is not None:
        registers, spilled = ("-", "-") if result is None else result
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{registers}\t{spilled}\t{case}\n")


if __name__ == "__main__":
    raise SystemExit(main())
