"""Blackwell's tensor core: multiply-accumulate into tensor memory, copies into it, and commits.

Operands are found by decoding the descriptors the kernel encoded. The asynchronous operations of one thread complete
in the order of issue; what order two threads' operations take is the schedule's choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.facts.descriptors import SharedDescriptor, decode_shared_descriptor
from warploom.facts.instruction_descriptors import InstructionDescriptor, decode_instruction_descriptor
from warploom.facts.tensor_memory import COPY_SHAPES, PLACEMENTS, Placement
from warploom.machine.accumulators import tensor_a, tensor_accumulate, tensor_copy, tensor_scales
from warploom.machine.asynchrony import Operation
from warploom.machine.elements import expand_padded
from warploom.machine.mbarrier import barrier_at
from warploom.machine.operands import OperandReader, multiply, multiply_scaled
from warploom.machine.registry import Run, executes
from warploom.machine.shared import OFFSET_MASK, RANK_SHIFT
from warploom.machine.tensor_memory import pair_of, split_address, tensor_memory
from warploom.ptx.isa.table import Op
from warploom.ptx.model import Address

if TYPE_CHECKING:
    from warploom.machine.cta import Cta
    from warploom.machine.group import Group

Array = npt.NDArray[Any]

_FAMILY = "sm_100"
_VECTORS = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4, "block16": 4}
_BLOCK32 = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 2}
_DEFAULT_VECTORS = {"mxf8f6f4": 1, "mxf4": 2}
_PACKED = frozenset({"mxf4", "mxf4nvf4"})


@dataclass(frozen=True, slots=True)
class _Multiply:
    """One tcgen05.mma as issued: everything but the memory it will read."""

    ctas: tuple[Cta, ...]
    cta_group: int
    shape: InstructionDescriptor
    placement: Placement
    d: tuple[int, int]
    a: SharedDescriptor | tuple[int, int]
    b: SharedDescriptor
    accumulate: bool
    scale: int = 0
    disabled: tuple[Array, ...] | None = None
    vectors: int = 0
    scale_a: int = 0
    scale_b: int = 0

    def run(self) -> None:
        """Read operands through the async view and update every CTA's share of the accumulator."""
        shape, parts = self.shape, len(self.ctas)
        packed = shape.kind.name in _PACKED
        b_type = f"{shape.b_type}_packed" if packed else shape.b_type
        readers = [OperandReader(cta.shared.async_whole) for cta in self.ctas]
        slices = [r.read(self.b, shape.n // parts, shape.k, b_type, mn_major=shape.transpose_b) for r in readers]
        b = slices[0] if parts == 1 else np.concatenate(slices)
        if shape.negate_b:
            b = -b
        for number, (cta, reader) in enumerate(zip(self.ctas, readers, strict=True)):
            memory = tensor_memory(cta)
            a = self._a(reader, memory.words, packed)
            if self.vectors:
                rows, folded = shape.m // parts, parts == 2 and self.placement.folded
                scale_a = tensor_scales(memory.words, self.scale_a, rows, self.vectors, shape.scale_a_id)
                scale_b = tensor_scales(memory.words, self.scale_b, shape.n, self.vectors, shape.scale_b_id, folded=folded)
                product = multiply_scaled(a, b, scale_a, scale_b, shape.scale_type or "")
            else:
                product = multiply(a, b)
            lane, column = self.d
            tensor_accumulate(
                memory.words, self.placement, lane, column, product, shape.d_type, accumulate=self.accumulate, scale=self.scale,
                saturate=shape.saturate, disabled=self.disabled[number] if self.disabled else None,
            )  # fmt: skip

    def _a(self, reader: OperandReader, words: Array, packed: bool) -> Array:
        shape = self.shape
        rows = shape.m // len(self.ctas)
        if isinstance(self.a, SharedDescriptor):
            element = f"{shape.a_type}_packed" if packed else shape.a_type
            a = reader.read(self.a, rows, shape.k, element, mn_major=shape.transpose_a)
        else:
            element = f"{shape.a_type}_packed" if packed else shape.a_type
            a = tensor_a(words, self.placement, *self.a, shape.k, element)
        return -a if shape.negate_a else a


def _lanes(g: Group, mask: Array | None) -> list[int]:
    live = g.mask if mask is None else mask
    return list(range(g.lanes)) if live is None else np.flatnonzero(live).tolist()


def _of(value: Any, lane: int) -> int:
    return value if isinstance(value, int) else int(value[lane])


def _submit(g: Group, lane: int, name: str, run: Any) -> None:
    """Queue an operation behind the thread's earlier ones."""
    last: dict[tuple[int, int], Operation] = g.cta.state.setdefault("tcgen05", {})
    key = (g.first_lane // 32 + g.warpgroup.index * 4 + lane // 32, lane % 32)
    operation = Operation(f"{g.cta.name} {g.name} {name}", run, last.get(key))
    last[key] = operation
    g.grid.submit(operation)


def _group(op: Op) -> int:
    return int(op["group"][-1])


def _check_group(g: Group, group: int) -> None:
    seen = g.cta.state.setdefault("cta_group", group)
    if seen != group:
        raise Diag.ASYNC_MISUSE.error(what=f"tcgen05 instructions of cta_group::{seen} and cta_group::{group} are mixed in one kernel.")


@executes("tcgen05.mma", "tcgen05.mma.scaled")
def mma(op: Op) -> Run:
    """D = A·B + D for a tile, each executing thread issuing one."""
    group, kind = _group(op), op["kind"].removeprefix("kind::")
    scaled = op.family.endswith("scaled")
    vectors = _scale_vectors(op, kind) if scaled else None
    a_in_memory = isinstance(op.operands["a"], Address)

    def run(g: Group, mask: Array | None, d: Any, a: Any, b: Any, i: Any, *rest: Any) -> None:
        _check_group(g, group)
        ctas = tuple(pair_of(g.cta)) if group == 2 else (g.cta,)
        for lane in _lanes(g, mask):
            shape = decode_instruction_descriptor(_of(i, lane), kind, group, scale_vectors=vectors)
            placement = PLACEMENTS[group, shape.m, False]
            lane_d, column_d = split_address(_of(d, lane))
            width = shape.n // placement.blocks if placement.folded else shape.n
            for cta in ctas:
                tensor_memory(cta).require(column_d, width, f"`{op.instruction.opcode}`: the accumulator")
            left = split_address(_of(a, lane)) if a_in_memory else decode_shared_descriptor(_of(a, lane), _FAMILY)
            right = decode_shared_descriptor(_of(b, lane), _FAMILY)
            options = _scaled_options(rest, lane, vectors) if scaled else _plain_options(rest, lane, group)
            work = _Multiply(ctas, group, shape, placement, (lane_d, column_d), left, right, **options)
            _submit(g, lane, "tcgen05.mma", work.run)

    return run


def _scale_vectors(op: Op, kind: str) -> int:
    name = op["vector"]
    if name == "block32":
        return _BLOCK32[kind]
    if not name and kind not in _DEFAULT_VECTORS:
        raise Diag.BAD_OPERANDS.error(
            op.instruction.loc, text=op.instruction.opcode, what="it names no scale vector size", takes=".scale_vec::NX or .blockN"
        )
    return _VECTORS[name] if name else _DEFAULT_VECTORS[kind]


def _plain_options(rest: tuple[Any, ...], lane: int, group: int) -> dict[str, Any]:
    disable, predicate, scale = (*rest, None, None, None)[:3]
    options: dict[str, Any] = {"accumulate": bool(_of(predicate, lane)), "scale": scale or 0}
    if disable is not None:
        words = np.array([_of(word, lane) for word in disable], np.uint32)
        if len(words) != 4 * group:
            raise Diag.BAD_SHAPE.error(text="tcgen05.mma", what=f"the disable-output-lane list has {len(words)} words, not {4 * group}")
        if words.any():
            bits = np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_)
            options["disabled"] = tuple(bits.reshape(group, 128))
    return options


def _scaled_options(rest: tuple[Any, ...], lane: int, vectors: int | None) -> dict[str, Any]:
    scale_a, scale_b, predicate = rest
    return {
        "accumulate": bool(_of(predicate, lane)),
        "vectors": vectors,
        "scale_a": split_address(_of(scale_a, lane))[1],
        "scale_b": split_address(_of(scale_b, lane))[1],
    }


@executes("tcgen05.commit")
def commit(op: Op) -> Run:
    """Arrive on barriers once every earlier asynchronous tcgen05 operation of the thread is done."""
    group = _group(op)

    def run(g: Group, mask: Array | None, address: Any, peers: Any = None) -> None:
        _check_group(g, group)
        for lane in _lanes(g, mask):
            where = _of(address, lane)
            if peers is None:
                targets = [where]
            else:
                bits = _of(peers, lane)
                ranks = [rank for rank in range(16) if bits >> rank & 1]
                if not ranks or ranks[-1] >= len(g.cta.cluster.ctas):
                    what = f"tcgen05.commit names CTAs {ranks} of a cluster of {len(g.cta.cluster.ctas)}."
                    raise Diag.ASYNC_MISUSE.error(what=what)
                targets = [rank << RANK_SHIFT | where & OFFSET_MASK for rank in ranks]
            cta = g.cta

            def arrive(targets: list[int] = targets, cta: Cta = cta) -> None:
                for target in targets:
                    barrier_at(cta, target).arrive(1)

            _submit(g, lane, "tcgen05.commit", arrive)

    return run


@executes("tcgen05.cp")
def copy(op: Op) -> Run:
    """Shared memory to tensor memory, behind the thread's earlier operations."""
    name = f"{op['shape']}.{op['multicast']}" if op["multicast"] else op["shape"]
    group, source = _group(op), op["from"]
    if name not in COPY_SHAPES:
        raise Diag.BAD_SHAPE.error(op.instruction.loc, text=op.instruction.opcode, what=f"there is no shape {name}")
    shape = COPY_SHAPES[name]

    def run(g: Group, mask: Array | None, address: Any, descriptor: Any) -> None:
        _check_group(g, group)
        ctas = pair_of(g.cta) if group == 2 else [g.cta]
        for lane in _lanes(g, mask):
            at, column = split_address(_of(address, lane))
            read = decode_shared_descriptor(_of(descriptor, lane), _FAMILY)
            for cta in ctas:
                tensor_memory(cta).require(column, shape.row_bytes // 4, f"`{op.instruction.opcode}`")

            def move(at: int = at, column: int = column, read: SharedDescriptor = read) -> None:
                for cta in ctas:
                    rows = OperandReader(cta.shared.async_whole).read_bytes(read, shape.rows, shape.row_bytes)
                    if source:
                        rows = expand_padded(rows, source)
                    tensor_copy(tensor_memory(cta).words, shape, at, column, rows)

            _submit(g, lane, "tcgen05.cp", move)

    return run
