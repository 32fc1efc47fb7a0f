"""A Llama-like stack in plain PyTorch against the same with swapped layers: training, prefill and decoding.

    PYTHONPATH=src python3 bench/end_to_end.py                          every task
    PYTHONPATH=src python3 bench/end_to_end.py prefill "decode 8"       some tasks
    PYTHONPATH=src python3 bench/end_to_end.py --seconds 200            stop in time; run again to go on

Both sides have the same weights, the same attention and the same norms; ours has `warploom.nn.swap_linears`, and the side
`gated` also `warploom.nn.swap_gated_mlps`. Eager is compared with eager, and compiled with compiled. Each side runs alone
and cool (bench/protocol.py). Decoding runs in CUDA graphs over a filled cache of keys and values. Before timing, the errors of
all sides against float32 are compared: the mean square of the swapped side's may be at most `WORSE` times PyTorch's own. Peak
memory is that of one step. JSON goes to end_to_end.json in bench/results.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import captured, is_lost, machine
from protocol import Protocol, Sensors, Timed, add_protocol, order_of, ratios_to, take_turns
from tables import RESULTS, GpuLostError, Row, Table, good
from torch import Tensor, nn
from torch.nn import functional

import warploom

DEVICE, TYPE = "cuda", torch.bfloat16
TORCH = "torch"
WORSE = 1.1
"""Largest mean square error relative to PyTorch's; both are roundings of sums in different orders."""
HEAD = 128
CACHED = 2048
"""Tokens in the cache when a token is decoded."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the stack."""

    d: int = 4096
    ffn: int = 14336
    heads: int = 32
    kv_heads: int = 8
    layers: int = 4
    head: int = HEAD


class Norm(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


class Mlp(nn.Module):
    def __init__(self, d: int, ffn: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(d, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Attention with rotary embeddings and fewer heads of keys and values than of queries."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.q = nn.Linear(sizes.d, sizes.heads * sizes.head, bias=False)
        self.k, self.v = (nn.Linear(sizes.d, sizes.kv_heads * sizes.head, bias=False) for _ in range(2))
        self.o = nn.Linear(sizes.heads * sizes.head, sizes.d, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], cache: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            each(x).view(batch, tokens, -1, self.sizes.head).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        q, k = rotated(q, *angles), rotated(k, *angles)
        if cache is not None:  # the last place of a filled cache is that of the new token
            for held, new in zip(cache, (k, v), strict=True):
                held[:, :, -1:].copy_(new)
            k, v = cache
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        return self.o(out.transpose(1, 2).reshape(batch, tokens, -1))


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


class Stack(nn.Module):
    """Layers of attention and MLP, without embedding and vocabulary."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.layers = nn.ModuleList(
            nn.ModuleList((Norm(sizes.d), Attention(sizes), Norm(sizes.d), Mlp(sizes.d, sizes.ffn)))
            for _ in range(sizes.layers)
        )

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], caches: Any = None) -> Tensor:
        for number, (before, attention, after, mlp) in enumerate(self.layers):
            x = x + attention(before(x), angles, None if caches is None else caches[number])
            x = x + mlp(after(x))
        return x


def angles_for(tokens: int, head: int, start: int = 0) -> tuple[Tensor, Tensor]:
    places = torch.arange(start, start + tokens, device=DEVICE, dtype=torch.float32)
    rates = 500000.0 ** (-torch.arange(0, head, 2, device=DEVICE, dtype=torch.float32) / head)
    angles = torch.outer(places, rates).repeat(1, 2)
    return angles.cos().to(TYPE), angles.sin().to(TYPE)


def models(sizes: Sizes) -> dict[str, Stack]:
    """The stack, swapped, and swapped with gated MLPs; all with the same weights."""
    torch.manual_seed(time.time_ns() % 1_000_000)
    first = Stack(sizes).to(DEVICE, TYPE)
    swapped, gated = (copy.deepcopy(first) for _ in range(2))
    for each in (swapped, gated):
        warploom.nn.swap_linears(each)
    warploom.nn.swap_gated_mlps(gated)
    return {TORCH: first, "swapped": swapped, "gated": gated}


def inputs(sizes: Sizes, batch: int, tokens: int) -> Tensor:
    return torch.randn(batch, tokens, sizes.d, device=DEVICE, dtype=TYPE)


def train_step(run: Callable[..., Tensor], model: Stack, x: Tensor, angles: Any, gradient: Tensor) -> Tensor:
    """Forward and backward; gradients are made anew."""
    for each in model.parameters():
        each.grad = None
    out = run(x, angles)
    out.backward(gradient)
    return out


@dataclass(frozen=True)
class Task:
    """One of the measured tasks: how many sequences of how many tokens, and how they run."""

    batch: int
    tokens: int
    kind: str
    sides: tuple[str, ...]


TASKS = {
    "train": Task(4, 2048, "train", (TORCH, "swapped", "gated")),
    "train compiled": Task(4, 2048, "train compiled", (TORCH, "swapped", "gated")),
    "prefill": Task(1, 4096, "prefill", (TORCH, "swapped", "gated")),
    **{f"decode {batch}": Task(batch, 1, "decode", (TORCH, "swapped", "gated")) for batch in (1, 8, 64)},
}


def errors(task: Task, stacks: dict[str, Stack], sizes: Sizes) -> dict[str, float]:
    """Return each side's mean square error against float32, relative to the mean square; on few tokens."""
    tokens = min(task.tokens, 128)
    x, angles = inputs(sizes, task.batch if tokens > 1 else 4, max(tokens, 16)), angles_for(max(tokens, 16), sizes.head)
    exact = copy.deepcopy(stacks[TORCH]).float()
    with torch.no_grad():
        want = exact(x.float(), tuple(each.float() for each in angles))
        scale = want.square().mean()
        return {name: float((stacks[name](x, angles).float() - want).square().mean() / scale) for name in task.sides}


def sides_of(task: Task, stacks: dict[str, Stack], sizes: Sizes) -> tuple[dict[str, Timed], dict[str, int]]:
    """Return what is timed of each side, and its peak memory in bytes beyond the weights."""
    found: dict[str, Timed] = {}
    peaks: dict[str, int] = {}
    start = CACHED - 1 if task.kind == "decode" else 0
    x, angles = inputs(sizes, task.batch, task.tokens), angles_for(task.tokens, sizes.head, start)
    caches = None
    if task.kind == "decode":
        shape = (task.batch, sizes.kv_heads, CACHED, sizes.head)
        caches = [tuple(torch.randn(shape, device=DEVICE, dtype=TYPE) for _ in range(2)) for _ in range(sizes.layers)]
    gradient = inputs(sizes, task.batch, task.tokens) if task.kind.startswith("train") else None
    for name in task.sides:
        model = stacks[name]
        if gradient is not None:
            run = torch.compile(model) if task.kind == "train compiled" else model
            step = partial(train_step, run, model, x, angles, gradient)
        else:
            step = partial(without_gradient, model, x, angles, caches)
        for _ in range(3):
            step()
        peaks[name] = peak_of(step)
        if task.kind == "decode":
            calls = 20
            found[name] = Timed.of_graph(captured([step], calls), calls)
        else:
            found[name] = Timed.of_function(step)
    return found, peaks


def without_gradient(model: Stack, *given: Any) -> Tensor:
    with torch.no_grad():
        return model(*given)


def peak_of(step: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - before


def measured(task: Task, stacks: dict[str, Stack], sizes: Sizes, asked: argparse.Namespace, sensors: Sensors) -> Row:
    found = errors(task, stacks, sizes)
    worse = {name: each for name, each in found.items() if each > WORSE * found[TORCH]}
    if worse:
        return {"error": f"errors {worse}, and {found[TORCH]:.3g} of PyTorch"}
    sides, peaks = sides_of(task, stacks, sizes)
    take_turns(sides, Protocol.of(asked), order_of(asked.seed, str(task)), sensors)
    ratios = ratios_to(TORCH, sides)
    best = max(ratios, key=lambda name: min(ratios[name].values()))
    return {
        "best": best,
        **ratios[best],
        "worst": min(ratios[best].values()),
        "sides": {
            name: {**each.row(), **ratios.get(name, {}), "error": found[name], "peak_bytes": peaks[name]}
            for name, each in sides.items()
        },
    }


def line_of(row: Row) -> str:
    if "error" in row:
        return f"{row['label']:16} FAILED: {row['error']}"
    sides = " ".join(
        f"{name} alone {each['alone']:.3f} cool {each['cool']:.3f};"
        for name, each in row["sides"].items()
        if "alone" in each
    )
    peaks = "/".join(f"{each['peak_bytes'] / 2**20:.0f}" for each in row["sides"].values())
    return f"{row['label']:16} {sides} torch {row['sides'][TORCH]['alone_us'] / 1e3:.3f} ms, peak {peaks} MiB"


def summary(rows: list[Row]) -> Row:
    decode = [row["worst"] for row in good(rows) if row["label"].startswith("decode")]
    return {"tasks": len(rows), "decode": statistics.geometric_mean(decode)} if decode else {"tasks": len(rows)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"some of {', '.join(TASKS)}")
    add_protocol(parser)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no task after this long")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the order of the sides")
    parser.add_argument("--again", action="store_true", help="measure tasks that the file already holds again")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for JSON")
    asked = parser.parse_args()
    started, sensors, sizes = time.monotonic(), Sensors(), Sizes()
    about = {"machine": machine(), **Protocol.of(asked).about(), "stack": vars(sizes), "cached": CACHED}
    table = Table("end_to_end", about, line_of, summary, asked.out, 400, is_lost, adds=True)
    known = {row["label"] for row in good(table.rows)}
    stacks = models(sizes)
    for name in asked.tasks or TASKS:
        if time.monotonic() - started > asked.seconds or (name in known and not asked.again):
            continue
        try:
            table.measure({"label": name}, partial(measured, TASKS[name], stacks, sizes, asked, sensors))
        except GpuLostError as error:
            print(error)
            return 1
        for each in stacks.values():
            each.zero_grad(set_to_none=True)
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    print(summary(table.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
