"""The special registers of a launch: those that all threads see alike, and those that tell the threads apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.hardware.threads import WARP_LANES
from warploom.machine.memory.byte_memory import padded

if TYPE_CHECKING:
    from warploom.machine.core.grid import Grid

Array = npt.NDArray[Any]

RESERVED = ("%reserved_smem_offset_0", "%reserved_smem_offset_1")
_TRIPLES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_WORKSPACE = frozenset({"%envreg1", "%envreg2"})
_WORKSPACE_BYTES = 64


def shared_specials(grid: Grid) -> dict[str, int]:
    """The special registers that all threads of the grid see alike."""
    out = dict[str, int]()
    for axis, letter in enumerate("xyz"):
        size = grid.cluster_shape[axis]
        out[f"%ntid.{letter}"] = grid.block[axis]
        out[f"%nctaid.{letter}"] = grid.shape[axis]
        out[f"%cluster_nctaid.{letter}"] = size
        out[f"%nclusterid.{letter}"] = grid.shape[axis] // size
    out |= {f"%{name}.w": 0 for name in _TRIPLES}
    reserved = grid.machine.shared_reserved
    out["%cluster_nctarank"] = grid.cluster_shape[0] * grid.cluster_shape[1] * grid.cluster_shape[2]
    out["%is_explicit_cluster"] = int(grid.explicit_cluster)
    out["%nsmid"] = grid.sms
    out["%gridid"] = 1
    out["%current_graph_exec"] = 0
    out["%nwarpid"] = -(-(grid.block[0] * grid.block[1] * grid.block[2]) // WARP_LANES)
    out["%dynamic_smem_size"] = grid.dynamic_bytes
    out["%total_smem_size"] = out["%aggr_smem_size"] = grid.shared_bytes + reserved
    out["%reserved_smem_offset_begin"] = 0
    out["%reserved_smem_offset_end"] = out["%reserved_smem_offset_cap"] = reserved
    out |= zip(RESERVED, grid.machine.shared_reserved_parts, strict=True)
    if grid.program.specials & _WORKSPACE:
        # Cooperative groups keep the arrivals at a barrier of the whole grid there; the driver clears it.
        workspace = grid.memory.add(padded(_WORKSPACE_BYTES, zero=True), "the grid's workspace").base
        out |= {"%envreg1": workspace >> 32, "%envreg2": workspace & 0xFFFFFFFF}
    return out


def lane_specials(first: int, lanes: int, block: tuple[int, int, int]) -> dict[str, Array]:
    """The special registers that tell the threads of a warpgroup apart, the same in every CTA."""
    thread = np.arange(first, first + lanes, dtype=np.uint32)
    x, y, _ = block
    lane = thread % WARP_LANES
    bit = np.uint32(1) << lane
    specials = {
        "%tid.x": thread % x,
        "%tid.y": thread // x % y,
        "%tid.z": thread // (x * y),
        "%laneid": lane,
        "%warpid": thread // WARP_LANES,
        "%lanemask_eq": bit,
        "%lanemask_lt": bit - np.uint32(1),
        "%lanemask_le": bit | (bit - np.uint32(1)),
        "%lanemask_gt": ~(bit | (bit - np.uint32(1))),
        "%lanemask_ge": ~(bit - np.uint32(1)),
    }
    for array in specials.values():
        array.setflags(write=False)
    return specials


@dataclass(frozen=True, slots=True)
class LaneSpecials:
    """The special registers of some lanes of a warpgroup."""

    whole: dict[str, Array]
    lanes: slice

    def __getitem__(self, name: str) -> Array:
        return self.whole[name][self.lanes]
