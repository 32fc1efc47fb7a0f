"""Hopper's other kernel families against PyTorch: grouped, blockwise FP8, tensor-wise FP8 and batched GEMMs.

Launches are captured in CUDA graphs, inputs rotate over sets that together exceed three times the L2, the two sides
alternate, and medians are compared; the baseline is also compared with itself. A kernel is timed only if its result on
small integers is bit-exact.

    python bench/families.py                        every family, every candidate
    python bench/families.py grouped blockwise      some families
    python bench/families.py --machine              no GPU: the same launches on the emulator, small, not timed
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from inputs import Maker
from measuring import captured, machine, replayed

from warploom import TensorMap, launch
from warploom.host.launch import Launch
from warploom.kernels.sm90.blockwise_fp8 import blockwise_fp8
from warploom.kernels.sm90.grouped import grouped
from warploom.kernels.sm90.matmul import matmul
from warploom.structured.composition.operands import operand_layouts
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.epilogue.staging import block_width
from warploom.structured.schedulers.static import persistent_grid

L2_BYTES = 60 << 20
FP8 = torch.float8_e4m3fn
BLOCK = 128
Tensors = dict[str, torch.Tensor]
Call = Callable[[], Any]


def ceil(value: int, by: int) -> int:
    return -(-value // by)


def boxed(tensor: torch.Tensor, box: tuple[int, ...], swizzle: str = "none") -> TensorMap:
    return TensorMap(tensor, box=(*(1,) * (tensor.ndim - len(box)), *box), swizzle=swizzle)


def c_map(out: torch.Tensor, config: HopperConfig) -> TensorMap:
    rows, columns = config.output_tile_shape
    return boxed(out, (rows, block_width(config.c_type, config.c_swizzle, columns)), config.c_swizzle)


def operand_maps(tensors: Tensors, config: HopperConfig) -> list[TensorMap]:
    pairs = zip(("a", "b"), operand_layouts(config), strict=True)
    return [boxed(tensors[name], layout.box, layout.swizzle) for name, layout in pairs]


def tiles_of(tensors: Tensors, config: HopperConfig) -> tuple[int, int, int]:
    *batch, m, _ = tensors["a"].shape
    return ceil(m, config.BM), ceil(tensors["b"].shape[-2], config.BN), batch[0] if batch else 1


def shape_options(config: HopperConfig, grid: tuple[int, int, int]) -> dict[str, Any]:
    return {"grid": grid, "block": (config.threads, 1, 1), "cluster": config.cluster_shape, "config": config}


def matmul_launch(tensors: Tensors, config: HopperConfig, sms: int) -> Launch:
    tiles = tiles_of(tensors, config)
    m, n, k = tensors["a"].shape[-2], tensors["b"].shape[-2], tensors["a"].shape[-1]
    sizes = (m, n, *tiles, ceil(k, config.BK), {}, {"alpha": ALPHA} if tensors["a"].dtype == FP8 else {})
    grid = persistent_grid(tiles, config.cluster_shape[:2], sms)
    given = (*operand_maps(tensors, config), c_map(tensors["out"], config), *sizes)
    return matmul.bind(*given, **shape_options(config, grid), epilogue=Epilogue())


def grouped_launch(tensors: Tensors, config: HopperConfig, sms: int) -> Launch:
    x, y = config.cluster_shape[:2]
    n, k = tensors["b"].shape[-2:]
    arrays = (
        *operand_maps(tensors, config),
        c_map(tensors["out"], config),
        tensors["out"],
        tensors["ends"],
        None,
        None,
    )
    options = shape_options(config, (x * (sms // (x * y)), y, 1))
    return grouped.bind(*arrays, n, ceil(k, config.BK), {}, **options, epilogue=Epilogue())


def blockwise_launch(tensors: Tensors, config: HopperBlockwiseConfig, sms: int) -> Launch:
    """Scales of A are stored with contiguous rows, as the baseline needs them too."""
    tiles, (m, k) = tiles_of(tensors, config), tensors["a"].shape
    of_rows = boxed(tensors["a_scale"].t(), (1, config.BM))
    given = (*operand_maps(tensors, config), of_rows, tensors["b_scale"], c_map(tensors["out"], config))
    options = shape_options(config, persistent_grid(tiles, config.cluster_shape[:2], sms))
    sizes = (m, tensors["b"].shape[0], *tiles, ceil(k, BLOCK), {})
    return blockwise_fp8.bind(*given, *sizes, **options, epilogue=Epilogue())


ALPHA = 0.5
"""The product of both scale factors of a tensor-wise FP8 GEMM."""


@dataclass(frozen=True)
class Case:
    """A shape of a family, as its `make` takes it."""

    label: str
    shape: tuple[Any, ...]
    small: tuple[Any, ...]
    """A small shape for the emulator."""


@dataclass(frozen=True)
class Family:
    """A family: our launch, the baseline's, and the configurations to try."""

    make: Callable[..., Tensors]
    launch: Callable[[Tensors, Any, int], Launch]
    peer: Callable[[Tensors], torch.Tensor]
    reference: Callable[[Tensors], torch.Tensor]
    flops: Callable[[Tensors], float]
    cases: tuple[Case, ...]
    candidates: dict[str, HopperConfig]


def make_grouped(maker: Maker, rows: tuple[int, ...], n: int, k: int) -> Tensors:
    ends = torch.tensor(rows, device=maker.device).cumsum(0).to(torch.int32)
    a, b = maker.values(sum(rows), k, dtype=torch.bfloat16), maker.values(len(rows), n, k, dtype=torch.bfloat16)
    return {"a": a, "b": b, "ends": ends, "out": maker.out(sum(rows), n)}


def make_blockwise(maker: Maker, m: int, n: int, k: int) -> Tensors:
    blocks = ceil(k, BLOCK)
    a, b = maker.values(m, k, dtype=FP8), maker.values(n, k, dtype=FP8)
    of_rows, of_columns = maker.scales(blocks, m).t(), maker.scales(ceil(n, BLOCK), blocks)
    return {"a": a, "b": b, "a_scale": of_rows, "b_scale": of_columns, "out": maker.out(m, n)}


def make_fp8(maker: Maker, m: int, n: int, k: int) -> Tensors:
    scale = torch.full((), ALPHA, device=maker.device)
    tensors = {"a": maker.values(m, k, dtype=FP8), "b": maker.values(n, k, dtype=FP8), "out": maker.out(m, n)}
    return {**tensors, "a_scale": scale, "b_scale": torch.ones_like(scale)}


def make_batched(maker: Maker, batch: int, m: int, n: int, k: int) -> Tensors:
    a, b = maker.values(batch, m, k, dtype=torch.bfloat16), maker.values(batch, n, k, dtype=torch.bfloat16)
    return {"a": a, "b": b, "out": maker.out(batch, m, n)}


def peer_grouped(t: Tensors) -> torch.Tensor:
    return torch._grouped_mm(t["a"], t["b"].mT, offs=t["ends"], out_dtype=torch.bfloat16)


def peer_blockwise(t: Tensors) -> torch.Tensor:
    scales = {"scale_a": t["a_scale"], "scale_b": t["b_scale"].t()}
    return torch._scaled_mm(t["a"], t["b"].t(), **scales, out_dtype=torch.bfloat16, use_fast_accum=False)


def peer_fp8(t: Tensors) -> torch.Tensor:
    scales = {"scale_a": t["a_scale"], "scale_b": t["b_scale"]}
    return torch._scaled_mm(t["a"], t["b"].t(), **scales, out_dtype=torch.bfloat16, use_fast_accum=True)


def peer_batched(t: Tensors) -> torch.Tensor:
    return torch.bmm(t["a"], t["b"].mT, out=t["out"])


def reference_grouped(t: Tensors) -> torch.Tensor:
    out, start = torch.zeros(t["out"].shape, device=t["out"].device), 0
    for group, end in enumerate(t["ends"].tolist()):
        out[start:end] = t["a"][start:end].float() @ t["b"][group].float().t()
        start = end
    return out


def reference_blockwise(t: Tensors) -> torch.Tensor:
    out = torch.zeros(t["out"].shape, device=t["out"].device)
    a, b, columns = t["a"].float(), t["b"].float(), t["b_scale"].repeat_interleave(BLOCK, 0)[: t["b"].shape[0]]
    for block in range(t["a_scale"].shape[1]):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        out += (a[:, part] @ b[:, part].t()) * t["a_scale"][:, block, None] * columns[None, :, block]
    return out


def reference_fp8(t: Tensors) -> torch.Tensor:
    return ALPHA * (t["a"].float() @ t["b"].float().t())


def reference_batched(t: Tensors) -> torch.Tensor:
    return t["a"].float() @ t["b"].float().mT


def dense_flops(t: Tensors) -> float:
    return 2.0 * t["a"].numel() * t["b"].shape[-2]


def pingpong(columns: int = 128, **fields: Any) -> HopperConfig:
    return HopperConfig(tile=(128, columns), pingpong=True, **fields)


def narrow(columns: int = 128, **fields: Any) -> HopperConfig:
    return pingpong(columns, a_type="e4m3", **fields)


def promoting(*, rows: int = 128, **fields: Any) -> HopperBlockwiseConfig:
    return HopperBlockwiseConfig(tile=(rows, 128), **fields)


RAGGED = (1500, 0, 37, 2048, 129, 0, 640, 1000, 3, 0, 777, 128, 512, 260, 1, 1157)
"""Rows of 16 groups, three of them empty; 8192 in total."""
PAIR = {"cluster_shape": (2, 1, 1), "swizzle_size": 8}
SQUARES = (
    Case("8192³", (8192, 8192, 8192), (300, 400, 304)),
    Case("4096³", (4096, 4096, 4096), (128, 200, 512)),
    Case("4096×14336×4096", (4096, 14336, 4096), (64, 264, 128)),
    Case("4096×4096×14336", (4096, 4096, 14336), (140, 136, 640)),
    Case("4096×7168×2048", (4096, 7168, 2048), (132, 304, 256)),
)
FAMILIES = {
    "grouped": Family(
        make_grouped, grouped_launch, peer_grouped, reference_grouped, dense_flops,
        (
            Case("8 × 1024×4096×4096", ((1024,) * 8, 4096, 4096), ((128, 128), 136, 128)),
            Case("ragged 16 groups ×4096×4096", (RAGGED, 4096, 4096), ((100, 0, 3, 70), 136, 72)),
            Case("ragged 16 groups ×14336×4096", (RAGGED, 14336, 4096), ((0, 200), 72, 72)),
        ),
        {
            "ping-pong 128x128": pingpong(),
            "ping-pong 128x128, cluster 2": pingpong(**PAIR),
            "ping-pong 128x160": pingpong(160, num_pipeline_stages=5),
            "ping-pong 128x192": pingpong(192, num_pipeline_stages=5, num_output_stages=1),
            "cooperative 128x256": HopperConfig(tile=(128, 256)),
            "ping-pong 64x256": HopperConfig(tile=(64, 256), pingpong=True),
        },
    ),
    "blockwise": Family(
        make_blockwise, blockwise_launch, peer_blockwise, reference_blockwise, dense_flops, SQUARES,
        {
            "128x128": promoting(),
            "128x128, 1 buffer": promoting(num_output_stages=1),
            "128x128, cluster 2": promoting(**PAIR),
            "128x128, cluster (1, 2)": promoting(cluster_shape=(1, 2, 1)),
            "256x128, 1 buffer": promoting(rows=256, num_output_stages=1),
        },
    ),
    "fp8": Family(
        make_fp8, matmul_launch, peer_fp8, reference_fp8, dense_flops, SQUARES,
        {
            "ping-pong 128x128": narrow(),
            "ping-pong 128x128, cluster 2": narrow(**PAIR),
            "ping-pong 128x160": narrow(160, num_pipeline_stages=5),
            "ping-pong 128x192": narrow(192, num_pipeline_stages=5, num_output_stages=1),
            "ping-pong 128x192, cluster 2": narrow(192, num_pipeline_stages=5, num_output_stages=1, **PAIR),
            "cooperative 128x256": HopperConfig(a_type="e4m3", tile=(128, 256)),
            "cooperative 128x256, cluster 2": HopperConfig(a_type="e4m3", tile=(128, 256), **PAIR),
            "cooperative 256x160, 1 buffer": HopperConfig(a_type="e4m3", tile=(256, 160), num_output_stages=1),
            "cooperative 256x192": HopperConfig(a_type="e4m3", tile=(256, 192)),
        },
    ),
    "batched": Family(
        make_batched, matmul_launch, peer_batched, reference_batched, dense_flops,
        (
            Case("16 × 1024³", (16, 1024, 1024, 1024), (2, 130, 136, 72)),
            Case("8 × 2048³", (8, 2048, 2048, 2048), (3, 128, 128, 128)),
            Case("64 × 512×512×1024", (64, 512, 512, 1024), (2, 70, 264, 64)),
            Case("32 × 1024×128×4096", (32, 1024, 128, 4096), (2, 130, 128, 200)),
        ),
        {
            "ping-pong 128x128": pingpong(),
            "ping-pong 128x128, cluster 2": pingpong(**PAIR),
            "ping-pong 128x160": pingpong(160, num_pipeline_stages=5),
            "cooperative 128x128": HopperConfig(tile=(128, 128)),
            "cooperative 128x256": HopperConfig(tile=(128, 256)),
            "64x128, one consumer": HopperConfig(tile=(64, 128), consumers=1, swizzle_size=4),
        },
    ),
}  # fmt: skip


def is_right(tensors: Tensors, run: Call, family: Family, repeats: int) -> str:
    """Describe how the result differs on exact inputs, if it does; runs several times, since a race may not show once."""
    want = family.reference(tensors).to(torch.bfloat16)
    for _ in range(repeats):
        tensors["out"].fill_(float("nan"))
        run()
        if tensors["out"].is_cuda:
            torch.cuda.synchronize()
        if not torch.equal(tensors["out"], want):
            return f"WRONG: {int((tensors['out'] != want).sum())} of {want.numel()} elements"
    return ""


def compared(name: str, case: Case, rounds: int, window: float) -> Iterator[dict[str, Any]]:
    """Time every candidate of a family against the baseline, on one shape."""
    from warploom.runtime.gpu.prepared import Prepared

    family, sms = FAMILIES[name], torch.cuda.get_device_properties(0).multi_processor_count
    exact, good = family.make(Maker("cuda", exact=True), *case.shape), []
    for label, config in family.candidates.items():
        wrong = is_right(exact, Prepared(family.launch(exact, config.validated(), sms)), family, 3)
        if wrong:
            yield {"family": name, "case": case.label, "config": label, "error": wrong}
        else:
            good.append(label)
    size = sum(tensor.numel() * tensor.element_size() for tensor in exact.values())
    flops = family.flops(exact)
    del exact
    sets = [family.make(Maker("cuda"), *case.shape) for _ in range(max(2, min(40, ceil(3 * L2_BYTES, size))))]
    launches = max(len(sets), min(300, int(window / max(flops / 700e6, 4))))
    peer = captured([lambda each=each: family.peer(each) for each in sets], launches)
    for label in good:
        config = family.candidates[label]
        ours = captured([Prepared(family.launch(each, config, sms)) for each in sets], launches)
        theirs, mine, again, mine_too = replayed([peer, ours, peer, ours], launches, rounds)
        us, their_us = statistics.median(mine + mine_too), statistics.median(theirs + again)
        yield {
            "family": name,
            "case": case.label,
            "config": label,
            "ratio": their_us / us,
            "us": us,
            "peer_us": their_us,
            "tflops": flops / us / 1e6,
            "peer_against_itself": statistics.median(theirs) / statistics.median(again),
        }


def on_the_emulator(names: list[str]) -> None:
    """Run every launch of the table, small, on the emulator."""
    for name in names:
        family = FAMILIES[name]
        for case in family.cases:
            tensors = family.make(Maker("cpu", exact=True), *case.small)
            for label, config in family.candidates.items():
                made = family.launch(tensors, config.validated(), 4)
                print(name, case.label, label, is_right(tensors, lambda made=made: launch(made), family, 1) or "right")


def line_of(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['family']:10} {row['case']:30} {row['config']:32} {row['error']}"
    return (
        f"{row['family']:10} {row['case']:30} {row['config']:32} {row['ratio']:.3f}  {row['us']:9.2f} µs "
        f"{row['tflops']:5.0f} TFLOP/s  (peer {row['peer_us']:.2f}, against itself {row['peer_against_itself']:.3f})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help=f"{', '.join(FAMILIES)}; all of them if none is named")
    parser.add_argument("--machine", action="store_true", help="run on the emulator; nothing is timed")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--window", type=float, default=3000, help="microseconds of one graph")
    parser.add_argument("--json", type=Path, help="where the rows go")
    asked = parser.parse_args()
    names = asked.families or list(FAMILIES)
    if asked.machine:
        on_the_emulator(names)
        return 0
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    rows = []
    for name in names:
        for case in FAMILIES[name].cases:
            try:
                for row in compared(name, case, asked.rounds, asked.window):
                    rows.append(row)
                    print(line_of(row), flush=True)
            except RuntimeError as error:  # a shape that the baseline rejects is reported, and the others continue
                print(f"{name:10} {case.label:30} {error}", flush=True)
            torch.cuda.empty_cache()
    if asked.json is not None:
        asked.json.write_text(json.dumps({"what": "families", "machine": machine(), "rows": rows}, indent=1))
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["family"], row["case"])
        best[key] = max(best.get(key, 0.0), row.get("ratio", 0.0))
    for (name, label), ratio in best.items():
        print(f"best  {name:10} {label:30} {ratio:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
