"""A two-CTA GEMM with bias, GELU and residual: traced, verified, run, compared, with the work of each role."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

from warploom.commands.console import table
from warploom.host.launch import Launch
from warploom.launcher import Run, launch
from warploom.machine.observers.events import Event
from warploom.ops import linear
from warploom.ptx.isa import unsupported
from warploom.ptx.syntax.model import Module, Note
from warploom.ptx.syntax.printer import print_module
from warploom.structured.config import MatmulConfig

Array = np.ndarray[Any, Any]

M, N, K = 300, 256, 320
CONFIG = MatmulConfig(cta_group=2, mma_shape=(256, 128, 16), use_tma_epilogue_load=True)
CALL = 'linear(x, w, bias=bias, activation="gelu", residual=residual)'
SMS = 4
"""SMs of the emulated GPU: few, so that CTAs process a second tile each."""
COPIES = ("TMA loads", "TMA stores")
OPERATIONS = (
    ("cp.async.bulk.tensor", "shared::cluster.global", COPIES[0]),
    ("cp.async.bulk.tensor", "global.shared::cta", COPIES[1]),
    ("tcgen05.mma", "", "MMAs"),
    ("tcgen05.ld", "", "TMEM loads"),
    ("clusterlaunchcontrol.try_cancel", "", "work requests"),
)
"""Operations by the start of their opcode and by a part of it."""


@dataclass
class RoleWork:
    """Observes a run: counts what each warp issued, and how often it waited and arrived."""

    counts: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def on_event(self, event: Event) -> None:
        opcode = event.source.instruction.opcode
        mine = self.counts[event.agent.warp]
        if event.barrier is not None and event.kind in ("wait", "arrive") and not event.agent.operation:
            mine[event.kind] += 1
        elif event.kind == "issue":
            for start, inside, operation in OPERATIONS:
                if opcode.startswith(start) and inside in opcode:
                    mine[operation] += 1
                    if operation in COPIES:
                        mine[f"{operation}, bytes"] += sum(
                            touch.bytes for touch in event.touches if touch.verb == "writes"
                        )


def show_fused(console: Console) -> bool:
    """Print the steps of one call; return True if its result is right."""
    console.print(f"y = warploom.{CALL}", style="bold", markup=False)
    console.print(f"x {(M, K)}, w {(N, K)}, bfloat16; cta_group::2, MMA tile {CONFIG.mma_shape[:2]}")
    rng = np.random.default_rng()
    shapes = ((M, K), (N, K), (N,), (M, N))
    x, w, bias, residual = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    y = np.full((M, N), np.nan, ml_dtypes.bfloat16)
    start = time.perf_counter()
    bound = linear.bind(x, w, bias=bias, activation="gelu", residual=residual, out=y, config=CONFIG)
    module = _module(bound)
    traced = time.perf_counter() - start
    text, unknown = print_module(module), unsupported(module)
    verified = time.perf_counter() - start - traced
    (kernel,) = module.kernels
    console.print(
        f"traced    in {traced:.2f} s: {len(kernel.instructions):,} instructions, {len(text):,} characters of PTX, "
        f"{bound.shared_bytes:,} bytes of shared memory"
    )
    console.print(
        f"verified  in {verified:.2f} s: {len(unknown)} unknown instruction forms; the configuration is valid"
    )
    work = RoleWork()
    run = launch(bound, sms=SMS, observers=(work,))
    console.print(f"emulated  in {run.wall_seconds:.2f} s: {run.instructions:,} warp instructions, grid {bound.grid}")
    right = _compare(console, y, _reference(x, w, bias, residual))
    console.print(_roles(module, run, work))
    return right and not unknown


def _module(bound: Launch) -> Module:
    assert isinstance(bound.program, Module)
    return bound.program


def _reference(x: Array, w: Array, bias: Array, residual: Array) -> Array:
    x, w, bias, residual = (each.astype(np.float64) for each in (x, w, bias, residual))
    linear_part = x @ w.T + bias
    gelu: Array = 0.5 * linear_part * (1 + np.vectorize(erf)(linear_part / np.sqrt(2)))
    return gelu + residual


def _compare(console: Console, got: Array, wanted: Array) -> bool:
    """Check that every element is within one rounding to bfloat16, plus what float32 lost before."""
    error = np.abs(got.astype(np.float64) - wanted)
    allowed = np.abs(wanted) * 2.0**-8 + 1e-4
    right = bool((error <= allowed).all())
    worst = float((error / allowed).max())
    verdict = "right" if right else "WRONG"
    console.print(
        f"compared  with NumPy in float64: {verdict}; the largest of {got.size:,} errors is {worst:.0%} of what "
        "rounding to bfloat16 allows"
    )
    return right


def _roles(module: Module, run: Run, work: RoleWork) -> Table:
    numbers = ("warps", "instructions", "waits", "arrivals")
    rows = table("Work of each role, over all CTAs", "role", *numbers, "operations", right=numbers)
    for role, warps in _warps_of(module).items():
        instructions = sum(state.instructions for state in run.warps if state.warp in warps)
        total = sum((work.counts[warp] for warp in warps), Counter[str]())
        done = [
            f"{total[operation]:,} {operation}{_bytes(total[f'{operation}, bytes'])}"
            for _, _, operation in OPERATIONS
            if total[operation]
        ]
        rows.add_row(
            role, str(len(warps)), f"{instructions:,}", f"{total['wait']:,}", f"{total['arrive']:,}", "; ".join(done)
        )
    return rows


def _bytes(count: int) -> str:
    return f" ({count:,} bytes)" if count else ""


def _warps_of(module: Module) -> dict[str, range]:
    """Read the warps of each role from the kernel's `//!wl` notes."""
    (kernel,) = module.kernels
    words = [statement.text.split() for statement in kernel.body or () if isinstance(statement, Note)]
    ends = {
        name: warps.split("-") for kind, name, warps, *_ in (each for each in words if len(each) == 3) if kind == "role"
    }
    return {name: range(int(first), int(last) + 1) for name, (first, last) in ends.items()}
