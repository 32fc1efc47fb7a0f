"""Waiting on mbarriers: a phase is tested by its parity or by the state that an arrival returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.core.events import lanes_as_bits
from warploom.machine.core.group import EXPIRED
from warploom.machine.core.registry import Run, executes
from warploom.machine.instructions.mbarrier import Mbarrier, barrier_at, by_address, require_own, shared_address
from warploom.machine.memory.shared_memory import RANK_SHIFT
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]

"""What a group that waited too long finds in its token."""
_PATIENCE = 64
"""How often test_wait may fail in one phase before the tester is suspended: a loop of them must not starve the rest."""


def _passed_parity(barrier: Mbarrier, parity: int) -> bool:
    """Whether the phase of a parity is complete; only bit 0 of the operand counts, as in ptxas's code."""
    return barrier.phase & 1 != parity & 1


def _passed_state(barrier: Mbarrier, state: int) -> bool:
    behind = barrier.phase - (state >> 32)
    if not 0 <= behind <= 1:
        what = f"{barrier.name} is in phase {barrier.phase}; a state of phase {state >> 32} can no longer be tested."
        raise Diag.BAD_BARRIER.error(what=what)
    return behind == 1


@executes("mbarrier.try_wait", "mbarrier.try_wait.parity", "mbarrier.test_wait", "mbarrier.test_wait.parity")
def wait(op: Op) -> Run:
    """Whether a phase has completed; try_wait suspends until it has, a time limit passes, or the schedule gives up."""
    passed = _passed_parity if op.family.endswith("parity") else _passed_state
    tests = "test_wait" in op.family

    def run(g: Group, mask: Array | None, address: Any, operand: Any, limit: Any = None) -> Any:
        if not (isinstance(address, int) and isinstance(operand, int)):
            return _each(g, mask, address, operand)
        at = shared_address(address)
        if at >> RANK_SHIFT != g.cta.rank:
            require_own(g, at)
        barrier = barrier_at(g.cta, at)
        if passed(barrier, operand):
            g.token = None
            barrier.passed(g)
            return True
        answer = _not_yet(g, [barrier])
        if answer is not None:
            barrier.tell("wait", "waits", passed=False)
        return answer

    def _not_yet(g: Group, barriers: list[Mbarrier]) -> Any:
        """False where the instruction may end now, None where the group is suspended."""
        first = barriers[0]
        if g.token == EXPIRED:
            g.token = None
            return False
        if tests and first.tests < _PATIENCE:
            first.tests += 1
            return False
        if not g.grid.eager and g.grid.choose("giveup", ("wait", "give up")):
            return False
        g.wait(first)
        for barrier in barriers[1:]:
            if g not in barrier.waiters:
                barrier.waiters.append(g)
        return None

    def _each(g: Group, mask: Array | None, address: Any, operand: Any) -> Any:
        """Every lane tests for itself; the group waits while none has passed."""
        done = np.zeros(g.lanes, np.bool_)
        waiting: list[Mbarrier] = []
        answers: list[tuple[Mbarrier, Array, bool]] = []
        operands = np.broadcast_to(np.asarray(operand, np.uint64), (g.lanes,))
        for at, lanes, _ in by_address(g, mask, address):
            require_own(g, at)
            barrier = barrier_at(g.cta, at)
            for value in np.unique(operands if lanes is None else operands[lanes]).tolist():
                these = operands == value if lanes is None else lanes & (operands == value)
                done_here = passed(barrier, value)
                answers.append((barrier, these, done_here))
                if done_here:
                    done |= these
                else:
                    waiting.append(barrier)
        if not done.any() and _not_yet(g, waiting) is None:
            return None
        g.token = None
        _answer(g, answers)
        return done

    return run


def _answer(g: Group, answers: list[tuple[Mbarrier, Array, bool]]) -> None:
    """Some lanes have passed a barrier, others have not."""
    reporter = g.grid.reporter
    for barrier, lanes, passed in answers:
        if reporter is not None:
            reporter.narrow(lanes_as_bits(lanes, g.lanes))
        if passed:
            barrier.passed(g)
        else:
            barrier.tell("wait", "waits", passed=False)
