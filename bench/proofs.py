"""Checks every kernel family for all sizes, or for a set of cases, and writes docs/proved-sizes.md.

    python bench/proofs.py ["sm_90a ping-pong" …]   # the families to check again, by default all; then the page
    python bench/proofs.py --page                   # the page alone

Configurations are small, with two stages where they can be chosen: a proof is about one configuration, and its period
is twice the number of stages.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.launch_file import load
from warploom.structured import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, HopperBlockwiseConfig

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "proofs.json"
PAGE = ROOT / "docs" / "proved-sizes.md"
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
TRITON = ROOT / "tests" / "checker" / "triton_fence"
TILES = 40
"""Tiles of a launch: as many as recurrences of tiles need."""
STAGES = 2
HOPPER = wl.HopperConfig(tile=(64, 32), consumers=1, num_pipeline_stages=STAGES)
BLACKWELL = wl.MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_pipeline_stages=STAGES)

Checked = tuple[wl.Launch, str | Mapping[str, wl.Launch]]


def drawn(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(dtype)


def empty(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def target_of(config: Any) -> str:
    return "sm_90a" if isinstance(config, wl.HopperConfig) else "sm_100a"


def matmul(config: Any, m: int = 64 * TILES, n: int = 32, k: int = 128, **given: Any) -> wl.Launch:
    out = empty(m, n, dtype=np.float32)
    a, b = drawn(m, k), drawn(k, n)
    return wl.matmul.bind(a, b, out=out, config=config, target=target_of(config), **given)


def batched(config: Any) -> wl.Launch:
    a, b, out = drawn(TILES, 64, 128), drawn(TILES, 128, 32), empty(TILES, 64, 32, dtype=np.float32)
    return wl.matmul.bind(a, b, out=out, config=config, target=target_of(config))


def linear(config: Any) -> wl.Launch:
    m = 64 * TILES
    extra = {"bias": drawn(32), "residual": drawn(m, 32)}
    x, w, out = drawn(m, 128), drawn(32, 128), empty(m, 32)
    return wl.linear.bind(x, w, out=out, config=config, target=target_of(config), **extra)


def gated(config: Any) -> wl.Launch:
    m = 64 * TILES
    x, gate, up = drawn(m, 128), drawn(32, 128), drawn(32, 128)
    return wl.gated_linear.bind(x, gate, up, out=empty(m, 32), config=config, target=target_of(config))


def tf32x3(target: str) -> wl.Launch:
    m = 128 * TILES
    a, b, out = drawn(m, 64, dtype=np.float32), drawn(64, 32, dtype=np.float32), empty(m, 32, dtype=np.float32)
    return wl.matmul.bind(a, b, out=out, precision="tf32x3", target=target)


def conv2d(config: Any) -> wl.Launch:
    images, filters = drawn(TILES, 8, 8, 64), drawn(32, 3, 3, 64)
    return wl.conv2d.bind(images, filters, config=config, target=target_of(config))


def blockwise(target: str, config: Any = None) -> wl.Launch:
    m, k = 128 * TILES, 256
    scales = np.abs(drawn(m, k // 128, dtype=np.float32)), np.abs(drawn(1, k // 128, dtype=np.float32))
    a, b, given = drawn(m, k, dtype=E4M3), drawn(64, k, dtype=E4M3), {} if config is None else {"config": config}
    return wl.blockwise_matmul.bind(a, b, *scales, out=empty(m, 64), target=target, **given)


def block_scaled(tiles: int, n: int) -> wl.Launch:
    m = 128 * tiles
    a, b = (wl.quantise_mxfp8(drawn(rows, 128, dtype=np.float32)) for rows in (m, 2 * n))
    config = BlockScaledMatmulConfig(cta_group=1, mma_shape=(128, n, 32), num_pipeline_stages=STAGES)
    return wl.block_scaled_matmul.bind(a.values, b.values, a.scales, b.scales, out=empty(m, 2 * n), config=config)


def grouped(config: Any) -> wl.Launch:
    ends = np.array([9, 40, 40, 70])
    a, b = drawn(70, 128), drawn(len(ends), 128, 48)
    return wl.grouped_matmul.bind(a, b, ends, out=empty(70, 48), config=config, target=target_of(config))


def triton(target: str) -> wl.Launch:
    """The matmul with pointers that Triton 3.9 pipelines in three stages."""
    file = load(TRITON / f"matmul_triton390_{target}.launch.json")
    return file.launch(file.allocate())


def cases(make: Callable[[int, int], wl.Launch], splits: int) -> Checked:
    """One tile and three, with every remainder of the stages and their parities in the K steps of a split."""
    steps = range(splits, splits * (2 * 2 * STAGES + 1) + 1)
    named = {f"{tiles} tile{'s' * (tiles > 1)}, {k} K steps": make(tiles, k) for tiles in (1, 3) for k in steps}
    return make(2, 2 * STAGES), named


def split(config: Any) -> Checked:
    return cases(lambda tiles, steps: matmul(config, 64 * tiles, 32, 64 * steps), config.num_split_k)


ALL: Mapping[str, Callable[[], wl.Launch]] = {
    "sm_90a cooperative": lambda: matmul(HOPPER),
    "sm_90a ping-pong": lambda: matmul(wl.HopperConfig(tile=(64, 32), pingpong=True, num_pipeline_stages=STAGES)),
    "sm_90a batched": lambda: batched(HOPPER),
    "sm_90a linear": lambda: linear(HOPPER),
    "sm_90a gated": lambda: gated(HOPPER),
    "sm_90a tf32x3": lambda: tf32x3("sm_90a"),
    "sm_90a conv2d": lambda: conv2d(HOPPER),
    "sm_90a blockwise": lambda: blockwise(
        "sm_90a", HopperBlockwiseConfig(tile=(64, 64), consumers=1, num_pipeline_stages=STAGES)
    ),
    "sm_90a grouped": lambda: grouped(HOPPER),
    "sm_100a pair": lambda: matmul(wl.MatmulConfig(), 256 * TILES, 256),
    "sm_100a one CTA": lambda: matmul(BLACKWELL),
    "sm_100a batched": lambda: batched(BLACKWELL),
    "sm_100a linear": lambda: linear(BLACKWELL),
    "sm_100a gated": lambda: gated(BLACKWELL),
    "sm_100a tf32x3": lambda: tf32x3("sm_100a"),
    "sm_100a conv2d": lambda: conv2d(BLACKWELL),
    "sm_100a blockwise": lambda: blockwise(
        "sm_100a", BlockwiseFP8MatmulConfig(cta_group=1, mma_shape=(128, 64, 32), num_pipeline_stages=STAGES)
    ),
    "sm_100a block-scaled": lambda: block_scaled(TILES, 128),
    "sm_100a block-scaled, 64 columns": lambda: block_scaled(1, 64),
    "sm_100a grouped": lambda: grouped(BLACKWELL),
    "Triton 3.9 matmul, sm_90": lambda: triton("sm90"),
    "Triton 3.9 matmul, sm_100": lambda: triton("sm100"),
}
"""Families that are checked with `sizes="all"`."""
PAIRS = ("sm_90a cooperative", "sm_100a one CTA", "sm_100a pair")
"""Those of them that are checked with `sizes="pairs"` as well."""
CASES: Mapping[str, Callable[[], Checked]] = {
    "sm_90a split-K in a cluster": lambda: split(
        wl.HopperConfig(tile=(64, 32), consumers=1, num_split_k=2, num_pipeline_stages=STAGES)
    ),
    "sm_90a split-K in memory": lambda: split(
        wl.HopperConfig(tile=(64, 32), consumers=1, num_split_k=2, split_in_cluster=False, num_pipeline_stages=STAGES)
    ),
    "sm_90a stream-K": lambda: split(
        wl.HopperConfig(tile=(64, 32), consumers=1, stream_k=True, num_pipeline_stages=STAGES)
    ),
    "sm_100a split-K": lambda: split(
        wl.MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=2, num_pipeline_stages=STAGES)
    ),
}
"""Families that are checked with a set of cases."""


NAMES = (*ALL, *(f"{name}, every pair" for name in PAIRS), *CASES)


def given(name: str) -> Checked:
    """The launch of a row, and the sizes that it is checked for."""
    family = name.removesuffix(", every pair")
    if family in ALL:
        return ALL[family](), "all" if family == name else "pairs"
    return CASES[name]()


def used() -> float:
    """Seconds of CPU time of this process and its copies."""
    usages = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usages)


def checked(name: str) -> dict[str, Any]:
    """The result of one row."""
    launch, sizes = given(name)
    start = used()
    report = wl.check(launch, sizes=sizes, profile="lenient" if name.startswith("Triton") else "strict")
    return {
        "verdict": str(report.verdict),
        "generalised": [*report.covers.generalised],
        "cases": [*report.covers.cases],
        "as_run": [*report.covers.as_run],
        "findings": [each.code for each in report.findings],
        "runs": report.cost.runs,
        "events": report.cost.events,
        "seconds": round(used() - start, 1),
    }


def page(results: Mapping[str, Any]) -> str:
    """The table as a page."""
    head = """# Sizes that are proved

This page is written by `python bench/proofs.py`, which checks one small configuration of every family under `strict`, with two stages where they can be chosen, and the default
configuration of a CTA pair. Kernels of Triton are checked under `lenient`. Rows with "every pair" are for `sizes="pairs"`, all others for `sizes="all"`. [proofs.md](proofs.md#all-sizes) has the theorem; a proof of
another configuration is `warploom.check(launch, sizes="all")`. Seconds are CPU time of all processes on two cores with other work; a proof uses both.

| family | verdict | for all | cases, each run | as run | runs | seconds |
|---|---|---|---|---|---|---|
"""
    rows = []
    for name in NAMES:
        if name in results:
            each = results[name]
            cells = ["<br>".join(each[key]) for key in ("generalised", "cases", "as_run")]
            if len(each["cases"]) > 8:
                cells[1] = f"{len(each['cases'])}: {each['cases'][0]} … {each['cases'][-1]}"
            row = [name, each["verdict"], *cells, f"{each['runs']}", f"{each['seconds']}"]
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    left = [name for name in NAMES if name not in results]
    tail = f"\nNot checked by the script yet: {', '.join(left)}.\n" if left else ""
    return head + "\n".join(rows) + "\n" + tail


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in () if sys.argv[1:] == ["--page"] else sys.argv[1:] or NAMES:
        results[name] = checked(name)
        print(name, results[name], flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
