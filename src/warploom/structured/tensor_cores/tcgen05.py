"""tcgen05 MMAs: shape and types are in one instruction descriptor, operands in matrix descriptors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

from warploom.diagnostics import Diag
from warploom.hardware.mma_shapes import TENSOR_KINDS
from warploom.ptx.syntax.model import Immediate, Instruction, Operand, Register
from warploom.structured.cluster import Cluster, Mask
from warploom.structured.pipelines.input_pipeline import InputConsumerStage
from warploom.structured.pipelines.signals import commit
from warploom.structured.tensor_cores.tmem import TmemStage
from warploom.trace import isa
from warploom.trace.builder import current, here
from warploom.trace.isa.emit import At
from warploom.trace.language.barriers import Barrier
from warploom.trace.language.control import when
from warploom.trace.language.descriptors import instruction_descriptor
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value

_UNIT = 16
"""Bytes that a step of a matrix descriptor moves it."""


class MmaOp:
    """Issues the MMAs of a role, from one thread, the same one that commits."""

    def __init__(self, config: Any, role: Role, cluster: Cluster) -> None:
        self._role, self._cluster = role, cluster
        self._kind = TENSOR_KINDS[config.mma_kind]
        self._mmas, self._columns = config.gated_mmas, config.accumulator_columns // config.gated_mmas
        self._swapped = config.AB_swapped
        m, n = config.MMA_M, config.instruction_n
        transposed = {"transpose_a": config.a_major == "mn", "transpose_b": config.b_major == "mn"}
        types = (_multiplied(config.a_type), _multiplied(config.b_type), config.accum_type)
        self._shape = instruction_descriptor(config.mma_kind, m, n, *types, **transposed)

    def mma(self, stage: InputConsumerStage, acc: TmemStage | Value, *, accumulate: Value | bool) -> None:
        """Issue the MMAs of a stage's K tiles; `acc` is an accumulator or its address.

        `accumulate` applies to the first MMA, which otherwise overwrites the accumulator.
        """
        payload, group = stage.payload(), stage._inputs.k_group_size  # noqa: SLF001 - its own pipeline
        a, b = payload.a, payload.b
        place = At(acc.offset if isinstance(acc, TmemStage) else acc)
        halves = [each.layout.tile_bytes // self._mmas // _UNIT for each in (a, b)]
        check_accumulates(acc, accumulate)
        with when(self._role.elected):
            for j in range(group):
                left, right = a.descriptor(stage.tile(j)), b.descriptor(stage.tile(j))
                for k in range(0, a.layout.k_extent, self._kind.k):
                    adds: Any = accumulate if j == 0 and k == 0 else True
                    for number in range(self._mmas):  # of a gate and up pair each, unless one MMA computes both
                        down = (number * halves[0], 0) if self._swapped else (0, number * halves[1])
                        operands = (left + (a.layout.step(k) + down[0]), right + (b.layout.step(k) + down[1]))
                        isa.tcgen05.mma(
                            place + number * self._columns,
                            *operands,
                            self._shape,
                            adds,
                            cta_group=self._cluster.cta_group,
                            kind=self._kind.name,
                        )

    def commit(self, barrier: Barrier, peers: Mask | None = None) -> None:
        """Commit: the tensor core arrives at a barrier when the MMAs so far are complete; this is a stage's release."""
        with when(self._role.elected):
            commit(barrier, self._cluster, peers or self._cluster.pair)
        stage = getattr(barrier, "_stage", None)
        if stage is not None:
            stage.signalled()


def check_accumulates(acc: TmemStage | Value, accumulate: Value | bool) -> None:
    """Check that the first MMA into an acquired accumulator may overwrite it, unless something was stored there."""
    if isinstance(accumulate, Value):
        accumulate = bool(at_first(accumulate.operand))  # None if only the device knows it
    if not accumulate or not isinstance(acc, TmemStage) or acc.acquired is None:
        return
    begins, acquired = acc.acquired
    since = (each for each in current().body[begins:] if isinstance(each, Instruction))
    if not any(each.opcode.startswith(("tcgen05.mma.", "tcgen05.st.")) for each in since):
        raise Diag.STALE_ACCUMULATOR.error(here(), acquired=acquired)


_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "setp.lt": operator.lt,
    "setp.le": operator.le,
    "setp.gt": operator.gt,
    "setp.ge": operator.ge,
    "setp.eq": operator.eq,
    "setp.ne": operator.ne,
}


def at_first(operand: Operand) -> int | None:
    """Return an operand's value when the code so far is executed for the first time, if that is known.

    The counters of loops then have their first value, because the step is emitted at the end of the loop.
    """
    if isinstance(operand, Immediate):
        return operand.value if isinstance(operand.value, int) else None
    written = (each for each in current().body if isinstance(each, Instruction) and each.operands)
    writes = [each for each in written if each.operands[0] == operand]
    if not isinstance(operand, Register) or len(writes) != 1 or writes[0].guard is not None:
        return None
    opcode, read = writes[0].opcode.rpartition(".")[0], writes[0].operands[1:]
    if opcode not in ("mov", "add", *_COMPARED):
        return None
    values = [at_first(each) for each in read]
    if any(each is None or each < 0 for each in values):
        return None
    known = cast("list[int]", values)
    return int(_COMPARED[opcode](*known)) if opcode in _COMPARED else sum(known)


def _multiplied(element: str) -> str:
    """Return the type as the tensor core reads it: float32 operands are read as tf32."""
    return "tf32" if element == "f32" else element
