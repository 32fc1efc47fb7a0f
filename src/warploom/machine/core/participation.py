"""Participation: instructions that a warp executes as a whole need all its lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, WarploomError
from warploom.machine.core.group import WARP
from warploom.machine.core.lane_masks import lanes_named
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]


def absent(op: Op, needs: str, found: str) -> WarploomError:
    """The fault of an instruction that some of its threads did not execute."""
    return Diag.BAD_PARTICIPATION.error(text=op.instruction.opcode, needs=needs, found=found)


def whole_warps(g: Group, mask: Array | None, op: Op) -> Array | None:
    """The warps of a group that execute an instruction, each with all its lanes: None for all, else a boolean per
    warp.
    """
    live = g.mask if mask is None else mask
    if live is None or 0 not in live.tobytes():
        return None
    lanes = live.reshape(-1, WARP)
    some, every = np.logical_or.reduce(lanes, axis=1), np.logical_and.reduce(lanes, axis=1)
    if (some != every).any():
        warp = int(np.flatnonzero(some != every)[0])
        raise absent(op, f"all {WARP} lanes of a warp", f"{lanes_named(lanes[warp])} of warp {g.first_warp + warp}")
    return None if every.all() else every
