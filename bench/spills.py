"""Registers of Blackwell kernels by configuration and epilogue: assembles combinations and lists those that spill.

`python bench/spills.py --count 200 --seed 1` assembles a random sample; without `--count` every combination, which are
some thousands. With `--log FILE` each result is written to a file, and those that it holds already are not made again:
a long run can be continued. Needs ptxas, no GPU.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.diagnostics import WarploomError
from warploom.host.launch import Launch
from warploom.runtime import assemble
from warploom.structured.config import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, MatmulConfig
from warploom.structured.epilogue.epilogue import ACTIVATIONS

BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
RESULTS = {"bf16": BF16, "f32": np.dtype(np.float32), "e4m3": E4M3}
SHAPES = [(1, 64, n) for n in (8, 32, 64, 128, 256)] + [(1, 128, n) for n in (8, 32, 64, 96, 128, 192, 256)]
SHAPES += [(2, 128, n) for n in (32, 64, 128, 256)] + [(2, 256, n) for n in (32, 64, 128, 192, 256)]
FAMILIES = ("dense", "grouped", "blockwise", "grouped_blockwise", "block_scaled", "grouped_block_scaled")
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
        return MatmulConfig(mma_shape=(m, n, 16), **common)

    def launch(self) -> Launch:
        """The launch of a small problem."""
        rows, n, k = (512 if self.shape == CHOSEN else 40), 256, 128
        dtype = BF16 if self.family in ("dense", "grouped") else E4M3
        a, b = np.zeros((rows, k), dtype), np.zeros((n, k), dtype)
        epilogue: dict[str, Any] = {"activation": self.activation, "config": self.config(), "target": "sm_100a"}
        epilogue["out_dtype"] = RESULTS[self.c_type]
        if self.bias:
            epilogue["bias"] = np.zeros(n, BF16)
        if self.residual:
            epilogue["residual"] = np.zeros((rows, n), BF16)
        ends, weights = np.array([10, rows]), np.zeros((2, n, k), dtype)
        of_a, of_b = np.zeros((rows, 1), np.float32), np.zeros((2, 2, 1), np.float32)
        if self.family.endswith("block_scaled"):
            of_a, of_b = np.zeros((rows, 4), E8M0), np.zeros((2, n, 4), E8M0)
        match self.family:
            case "dense":
                return wl.linear.bind(a, b, **epilogue)
            case "grouped":
                return wl.grouped_matmul.bind(a, weights.mT, ends, **epilogue)
            case "blockwise":
                return wl.blockwise_matmul.bind(a, b, of_a, of_b[0], **epilogue)
            case "grouped_blockwise":
                return wl.grouped_blockwise_matmul.bind(a, weights, of_a, of_b, ends, **epilogue)
            case "block_scaled":
                return wl.block_scaled_matmul.bind(a, b, of_a, of_b[0], **epilogue)
        return wl.grouped_block_scaled_matmul.bind(a, weights, of_a, of_b, ends, **epilogue)


def cases() -> Iterator[Case]:
    """Every combination; those that break a rule are skipped when they are bound."""
    shapes: list[tuple[int, int, int] | str] = [*SHAPES, CHOSEN]
    flags = (False, True)
    epilogues = product(RESULTS, (None, *ACTIVATIONS), flags, flags)
    for family, shape, swapped, by_registers, rest in product(FAMILIES, shapes, flags, flags, list(epilogues)):
        if shape == CHOSEN and (swapped or not by_registers):
            continue
        yield Case(family, shape, swapped, by_registers, *rest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, help="size of a random sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--log", type=Path, help="results, one per line; combinations in it are not assembled again")
    asked = parser.parse_args()
    found = [case for case in cases() if asked.family in (None, case.family)]
    if asked.count is not None:
        found = random.Random(asked.seed).sample(found, min(asked.count, len(found)))
    known = _known(asked.log)
    results = list[tuple[int, int]]()
    for case in found:
        if str(case) not in known:
            known[str(case)] = _assembled(case)
            _record(asked.log, case, known[str(case)])
        result = known[str(case)]
        if result is None:
            continue
        results.append(result)
        if result[1]:
            print(f"{result[1]} bytes: {case}", flush=True)
    spilling = sum(spilled > 0 for _, spilled in results)
    most = max((registers for registers, _ in results), default=0)
    print(f"{len(results)} kernels assembled, {spilling} spill; at most {most} registers")
    return int(spilling > 0)


def _assembled(case: Case) -> tuple[int, int] | None:
    """The registers and spilled bytes of a kernel; None if the rules do not admit it."""
    try:
        bound = case.launch()
    except WarploomError:
        return None
    row = assemble(bound.program, strict=False).kernels[0]
    return row.registers, max(row.spill_stores, row.spill_loads)


def _known(log: Path | None) -> dict[str, tuple[int, int] | None]:
    if log is None or not log.exists():
        return {}
    rows = (line.split("\t") for line in log.read_text("utf-8").splitlines())
    return {case: None if registers == "-" else (int(registers), int(spilled)) for registers, spilled, case in rows}


def _record(log: Path | None, case: Case, result: tuple[int, int] | None) -> None:
    if log is not None:
        registers, spilled = ("-", "-") if result is None else result
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{registers}\t{spilled}\t{case}\n")


if __name__ == "__main__":
    raise SystemExit(main())
