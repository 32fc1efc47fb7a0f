"""What the MMA role and the epilogue do when they begin and end: tensor memory from its allocation to its return."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NoReturn, Self

from warploom.diagnostics import Diag
from warploom.structured.named_barriers import WarpGroupBarrier
from warploom.structured.pipelines.input_pipeline import InputTilePipeline
from warploom.structured.pipelines.output_pipeline import (
    EpilogueKContext,
    EpilogueStage,
    MmaKStage,
    MmaStage,
    OutputTilePipeline,
)
from warploom.structured.pipelines.shared_types import SMemArray, is_at
from warploom.structured.tensor_cores.tmem import TmemAllocation
from warploom.structured.tensor_cores.tmem_dealloc import TmemDeallocBarrier
from warploom.trace.builder import current, here
from warploom.trace.isa.emit import emit
from warploom.trace.language.barriers import Barrier, Barriers
from warploom.trace.language.values import Value
from warploom.trace.language.views import View


class _Sync(WarpGroupBarrier):
    """The hand-over of the address: what a role does there by hand and what entering its context does are one act."""

    def __init__(self, outputs: OutputTilePipeline) -> None:
        super().__init__(outputs.sync.num_threads, outputs.sync.id)
        self._outputs = outputs

    def arrive(self) -> None:
        self._outputs.tell_address()

    def wait(self) -> None:
        self._outputs.wait_for_address()

    sync = wait


class _SyncOfRole:
    """Where the MMA role hands the address to the epilogue; before there is a context, that of the role's pipeline."""

    def __get__(self, context: _WarpContext | None, owner: type[_WarpContext]) -> _Sync:
        return _Sync(OutputTilePipeline.of_role() if context is None else context.output_pipeline)


class _WarpContext:
    """The parts that both contexts share: made once for a kernel, used by both roles."""

    Dealloc = TmemDeallocBarrier
    Pipeline = OutputTilePipeline
    Sync = _SyncOfRole()
    Tmem = TmemAllocation

    def __init__(
        self,
        output_pipeline: OutputTilePipeline,
        *,
        tmem: TmemAllocation | None = None,
        dealloc_barrier: TmemDeallocBarrier | None = None,
    ) -> None:
        """`tmem` is tensor memory that the role already knows of; parts that are given must be the pipeline's."""
        self.output_pipeline = output_pipeline
        self.dealloc_barrier = output_pipeline.dealloc
        if dealloc_barrier is not None and dealloc_barrier is not output_pipeline.dealloc:
            self._refuse("`dealloc_barrier`")
        self._known = output_pipeline.checked(tmem) or output_pipeline.given
        self._entered = False

    @classmethod
    def create(
        cls,
        output_pipeline: OutputTilePipeline,
        *,
        tmem_addr_storage: SMemArray | View | None = None,
        accum_barriers_ptr: SMemArray | Barriers | Barrier | None = None,
        dealloc_mbar: SMemArray | Barriers | Barrier | None = None,
        mma_complete_mask: Value | int | None = None,
    ) -> Self:
        """A context with everything it needs; parts that are given must be those of the pipeline."""
        made = cls(output_pipeline)
        expected: dict[str, tuple[Any, View | Barriers]] = {
            "tmem_addr_storage": (tmem_addr_storage, output_pipeline.address),
            "accum_barriers_ptr": (accum_barriers_ptr, output_pipeline.pipeline.full),
            "dealloc_mbar": (dealloc_mbar, made.dealloc_barrier.barriers),
        }
        wrong = [name for name, (given, own) in expected.items() if given is not None and not is_at(given, own)]
        if wrong:
            made._refuse(" and ".join(f"`{name}`" for name in wrong))
        output_pipeline.check_mask(mma_complete_mask)
        return made

    def _refuse(self, what: str) -> NoReturn:
        name = self.output_pipeline.name
        what = f"{what} given to {type(self).__name__} belong to another pipeline than `{name}`"
        raise Diag.BAD_KERNEL.error(here(), what=what)

    @property
    def tmem(self) -> TmemAllocation:
        return self.output_pipeline.tmem

    def __enter__(self) -> Self:
        if self._entered:
            raise Diag.BAD_KERNEL.error(here(), what=f"a {type(self).__name__} is entered twice")
        self._entered = True
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end()

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class MmaWarpContext(_WarpContext):
    """The MMA role: entering allocates tensor memory and tells the epilogue, leaving waits for it and gives it back."""

    def _begin(self) -> None:
        outputs = self.output_pipeline
        outputs.pipeline.producer_side.declared()
        slot = (outputs.address, outputs.cta_group, outputs.columns)
        outputs.provide(self._known or TmemAllocation.allocate(*slot))
        outputs.tell_address()

    def _end(self) -> None:
        self.dealloc_barrier.complete_dealloc(self.tmem)

    def per_k_stage(self) -> MmaKStage:
        """An accumulator for one K step; leaving it commits."""
        return self.output_pipeline.per_k().produce()


class EpilogueWarpContext(_WarpContext):
    """The epilogue: entering waits for the address of tensor memory, leaving says that nobody reads it any more."""

    def _begin(self) -> None:
        outputs = self.output_pipeline
        if self._known is not outputs.given and outputs.consumer_role.name not in outputs.met:
            what = "the address of tensor memory is read before it is there; call `Sync.wait()` before"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        outputs.wait_for_address()
        slot = (outputs.address, outputs.cta_group, outputs.columns)
        outputs.provide(self._known or TmemAllocation.from_shared(*slot))

    def _end(self) -> None:
        emit("tcgen05.fence::before_thread_sync")
        self.dealloc_barrier.signal_complete()

    def per_k_stage(self, input_pipeline: InputTilePipeline) -> EpilogueKContext:
        """An accumulator of one K step and its input stage; leaving it signals both."""
        return self.output_pipeline.per_k_epilogue(input_pipeline.pipeline)


class _Linear(_WarpContext):
    """A context without `with`: created where the role begins, released where it ends, once."""

    @classmethod
    def create(cls, output_pipeline: OutputTilePipeline, **parts: Any) -> Self:
        return super().create(output_pipeline, **parts).__enter__()

    def __enter__(self) -> Self:
        self._loc, self._region, self._released = here(), current().region, False
        self._region.at_close.append(self._settled)
        return super().__enter__()

    def release(self) -> None:
        """What leaving a context does."""
        region = current().region
        if self._released or region is not self._region:
            what = f"a {type(self).__name__}, made at {self._loc}, is released"
            how = "twice" if self._released else f"inside a device {region.kind}"
            raise Diag.BAD_KERNEL.error(here(), what=f"{what} {how}")
        self._released = True
        self._end()

    def _settled(self) -> None:
        if not self._released:
            raise Diag.BAD_KERNEL.error(self._loc, what=f"a {type(self).__name__} is never released")


class MmaWarp(_Linear, MmaWarpContext):
    """The linear form of the MMA role's context."""

    def acquire_k_stage_linear(self) -> MmaStage:
        return self.output_pipeline.acquire_mma_linear()


class EpilogueWarp(_Linear, EpilogueWarpContext):
    """The linear form of the epilogue's context."""

    def acquire_k_stage_linear(self) -> EpilogueStage:
        return self.output_pipeline.acquire_epilogue_linear()
