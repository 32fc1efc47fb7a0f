"""Cluster launch control: requests for the work of clusters that have not started, and decoding their answers.

An answer is 16 bytes: the first CTA of the cluster that was taken over, and a mark that tells yes from no.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.copy.bulk import issuers, of_lane, require_live, shared_span, submit
from warploom.machine.core.registry import Run, executes
from warploom.machine.instructions.mbarrier import barrier_at, barrier_touch, shared_address
from warploom.machine.memory.shared_memory import OFFSET_MASK, RANK_SHIFT
from warploom.machine.observers.events import Touch, run_of_bytes
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Register, Vector

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.grid import Grid
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]
_BYTES = 16
_GRANTED, _REFUSED = 0x5945_5321, 0x4E4F_4E45
_NOWHERE = (1 << 32) - 1
_REFUSAL_SEEN = "clc refusal seen"


def _answer(grid: Grid) -> bytes:
    """The launcher's reply: the schedule may refuse, and must when no cluster is left."""
    taken = grid.take_cluster() if grid.choose("cancel", ("refuse", "grant")) else None
    if taken is None:
        return struct.pack("<4I", _NOWHERE, _NOWHERE, _NOWHERE, _REFUSED)
    grid.cancelled()
    first = (index * size for index, size in zip(taken, grid.cluster_shape, strict=True))
    return struct.pack("<4I", *first, _GRANTED)


@executes("clusterlaunchcontrol.try_cancel")
def try_cancel(op: Op) -> Run:
    """Ask for a cluster; the answer arrives in shared memory, of the CTA or of all CTAs of its cluster."""
    everywhere = bool(op["multicast"])

    def issue(g: Group, target: Cta, offset: int, signal: int, answer: list[bytes]) -> None:
        barrier_at(g.cta, signal)

        def complete() -> None:
            require_live(target, "The answer to try_cancel is written to")
            if not answer:
                answer.append(_answer(g.grid))
            target.shared.async_write(offset, np.frombuffer(answer[0], np.uint8))
            barrier_at(g.cta, signal).complete(_BYTES)

        def touches() -> tuple[Touch, ...]:
            place = target.rank << RANK_SHIFT | offset
            written = run_of_bytes("writes", "shared", target.index, place, _BYTES)
            return written, barrier_touch("completes", g.cta, signal)

        submit(g, op, complete, touches=touches)

    def run(g: Group, mask: Array | None, address: Any, barrier: Any) -> None:
        if g.cta.state.get(_REFUSAL_SEEN):
            what = f"{g.cta.name} has seen a try_cancel fail and asks again; PTX leaves the result undefined."
            raise Diag.ASYNC_MISUSE.error(what=what)
        for lane in issuers(g, mask):
            at = shared_address(of_lane(address, lane))
            _, offset = shared_span(g.cta, at, _BYTES, _BYTES, "The answer to try_cancel", own=True)
            signal, answer = shared_address(of_lane(barrier, lane)), list[bytes]()
            for target in g.cta.cluster.ctas if everywhere else (g.cta,):
                issue(g, target, offset, target.rank << RANK_SHIFT | signal & OFFSET_MASK, answer)

    return run


def _words(g: Group, mask: Array | None, response: Array | int) -> Array:
    """The four words of each lane's answer; those of lanes that take part must be one."""
    if not isinstance(response, np.ndarray):
        raise Diag.ASYNC_MISUSE.error(what="query_cancel reads a literal instead of the answer of a try_cancel.")
    words = np.ascontiguousarray(response).view(np.uint32).reshape(-1, 4)
    marks = words[:, 3] if mask is None else words[mask, 3]
    granted = marks == _GRANTED
    if 0 in granted.tobytes() and not (granted | (marks == _REFUSED)).all():
        raise Diag.ASYNC_MISUSE.error(what="query_cancel reads 16 bytes that no completed try_cancel has written.")
    return words


def _results(g: Group, mask: Array | None, out: object, columns: list[Array]) -> list[Any]:
    """Results as their registers want them: one number where all lanes of the group share the register."""
    lane = 0 if mask is None else int(mask.argmax())
    places = g.cta.program.layout.places
    registers = out.items if isinstance(out, Vector) else [out] * len(columns)
    return [
        column[lane].item() if isinstance(register, Register) and places[register.name].file == "u" else column
        for column, register in zip(columns, registers, strict=True)
    ]


@executes("clusterlaunchcontrol.is_canceled")
def is_canceled(op: Op) -> Run:
    """Return whether a request was granted."""

    def run(g: Group, mask: Array | None, response: Array | int) -> Any:
        granted = _words(g, mask, response)[:, 3] == _GRANTED
        if not (granted if mask is None else granted[mask]).all():
            g.cta.state[_REFUSAL_SEEN] = True
        return _results(g, mask, op.operands["d"], [granted])[0]

    return run


@executes("clusterlaunchcontrol.get_first_ctaid", "clusterlaunchcontrol.get_first_ctaid.v4")
def get_first_ctaid(op: Op) -> Run:
    """The first CTA of the cluster that was taken over."""
    axis = "xyz".index(op["axis"]) if op["axis"] else None
    out = op.operands["d"]
    if isinstance(out, Vector) and len(out.items) != 4:
        what = f"the list has {len(out.items)} items"
        raise Diag.BAD_OPERANDS.error(text=op.instruction.text[:160], what=what, takes="4 items")

    def run(g: Group, mask: Array | None, response: Array | int) -> Any:
        words = _words(g, mask, response)
        columns = [words[:, 0], words[:, 1], words[:, 2], np.zeros(len(words), np.uint32)]
        results = _results(g, mask, op.operands["d"], columns)
        return results if axis is None else results[axis]

    return run
