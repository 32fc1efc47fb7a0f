"""Fences, `setmaxnreg` and its register pool, and signals between grids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.core.convergence import absent
from warploom.machine.core.group import WARP, WARPGROUP, Waitable
from warploom.machine.core.lane_masks import lane_bits
from warploom.machine.core.registry import Run, executes
from warploom.machine.observers.events import WORD
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Immediate

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]


@executes("fence", "fence.tensormap", "griddepcontrol")
def order(op: Op) -> Run:
    """Do nothing: the emulator executes memory accesses in program order, and one grid at a time."""

    def run(g: Group, mask: Array | None, *operands: Any) -> None:
        return

    return run


@executes("fence.proxy.async")
def fence_async(op: Op) -> Run:
    """Make shared-memory writes that the executing warps made, or have synchronised with, visible to the async
    proxy.
    """
    space = op["space"]

    def run(g: Group, mask: Array | None) -> None:
        shared = g.cta.shared
        if not shared.two_views or space == "global":
            return
        peers = (g.cta,) if space == "shared::cta" else g.cta.cluster.ctas
        for peer in peers:
            for warp in range(g.number, g.number + (g.warps if peer.shared.knowledge is not None else 1)):
                peer.shared.fence_async(warp)

    return run


class RegisterPool(Waitable):
    """The registers of a CTA that no warp owns now, and how many per thread each warp does."""

    __slots__ = ("free", "owned", "steps", "wanted")

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        self.free = 0
        self.owned = [_registers_at_launch(cta)] * len(cta.live)
        self.steps: list[list[str]] = [[] for _ in cta.live]
        self.wanted = 0

    def describe(self) -> str:
        return f"the register pool: {self.wanted} registers wanted, {self.free} free"


def _registers_at_launch(cta: Cta) -> int:
    """Registers per thread that a launch gives: the kernel's own bound, or an even share of the SM's, in units of 8.

    Below the share the assembler is free; the most it can have chosen is what the smallest `setmaxnreg.inc` raises.
    """
    kernel, machine = cta.program.kernel, cta.grid.machine
    most, unit = machine.setmaxnreg[-1], machine.setmaxnreg.step
    bound = kernel.directive("maxnreg")
    if bound:
        return min(-(-bound[0] // unit) * unit, most)
    per_sm = (kernel.directive("minnctapersm") or (1,))[0]
    share = machine.registers_per_sm // (len(cta.live) * WARP * max(per_sm, 1)) // unit * unit
    raised = [
        operand.value
        for instruction in kernel.instructions
        if instruction.opcode.startswith("setmaxnreg.inc")
        for operand in instruction.operands
        if isinstance(operand, Immediate)
    ]
    return min(share, most, *raised)


@executes("setmaxnreg")
def set_registers(op: Op) -> Run:
    """Give registers back to the CTA's pool, or wait until it has more."""
    action = op["action"]

    def run(g: Group, mask: Array | None, count: int) -> bool:
        allowed = g.grid.machine.setmaxnreg
        if count not in allowed:
            what = f"setmaxnreg takes {allowed.start} to {allowed[-1]} in steps of {allowed.step}; {count} was given."
            raise Diag.REGISTER_POOL.error(what=what)
        live = g.mask if mask is None else mask
        present = g.cta.present[g.first_warp]
        if live is not None and lane_bits(live) != present:
            raise absent(op, present, lane_bits(live))
        pool: RegisterPool | None = g.cta.state.get("registers")
        if pool is None:
            pool = g.cta.state["registers"] = RegisterPool(g.cta)
        warps = range(g.first_warp, g.first_warp + g.warps)
        need = sum(count - pool.owned[warp] for warp in warps) * WARP
        for warp in warps:
            _check_step(g, pool, warp, action, count)
        if need > pool.free:
            pool.wanted = need
            g.wait(pool)
            return False
        g.grid.effects += 1
        pool.free -= need
        reporter = g.grid.reporter
        for at, warp in enumerate(warps):
            if reporter is not None:
                reporter.narrow(reporter.actor.lanes & WORD << WARP * at)
                kind, verb = ("alloc", "allocates") if action == "inc" else ("free", "frees")
                reporter.tell(kind, verb, count=count, leave=pool.owned[warp])
            pool.owned[warp] = count
            pool.steps[warp].append(f"{action} {count}")
        if need < 0:
            pool.notify()
        return True

    return run


def _check_step(g: Group, pool: RegisterPool, warp: int, action: str, count: int) -> None:
    owned = pool.owned[warp]
    if count > owned if action == "dec" else count < owned:
        what = f"setmaxnreg.{action} {count} in warp {warp}, which owns {owned} registers per thread."
        raise Diag.REGISTER_POOL.error(what=what)
    if g.grid.machine.registers_by_warp:
        return
    at, each = len(pool.steps[warp]), WARPGROUP // WARP
    first = warp // each * each
    for other in range(first, min(first + each, len(pool.steps))):
        steps = pool.steps[other]
        if len(steps) > at and steps[at] != f"{action} {count}":
            what = (
                f"Warps {warp} and {other} of one warpgroup disagree: setmaxnreg.{action} {count} against .{steps[at]}."
            )
            raise Diag.REGISTER_POOL.error(what=what)
