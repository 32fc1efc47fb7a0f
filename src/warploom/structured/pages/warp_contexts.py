"""The two warp contexts as their pages have them: compile-time members, `create`, and linear forms without `with`."""

from __future__ import annotations

from typing import Any, NoReturn, Self

from warploom.diagnostics import Diag
from warploom.structured.named_barriers import WarpGroupBarrier
from warploom.structured.pages.output_pipeline import OutputTilePipeline
from warploom.structured.pipelines import output_pipeline
from warploom.structured.pipelines.output_pipeline import EpilogueStage, MmaStage
from warploom.structured.pipelines.shared_types import SMemArray, is_at
from warploom.structured.tensor_cores import warp_context
from warploom.structured.tensor_cores.tmem import TmemAllocation
from warploom.structured.tensor_cores.tmem_dealloc import TmemDeallocBarrier
from warploom.structured.tensor_cores.warp_context import WarpContext
from warploom.trace.builder import current, here
from warploom.trace.language.barriers import Barrier, Barriers
from warploom.trace.language.values import Value
from warploom.trace.language.views import View


class _Sync(WarpGroupBarrier):
    """The hand-over of the TMEM address: calling it and entering the context count as one."""

    def __init__(self, outputs: output_pipeline.OutputTilePipeline) -> None:
        super().__init__(outputs.sync.num_threads, outputs.sync.id)
        self._outputs = outputs

    def arrive(self) -> None:
        self._outputs.publish_address()

    def wait(self) -> None:
        self._outputs.wait_for_address()

    sync = wait


class _SyncOfRole:
    """`Context.Sync`: of an instance, the hand-over of its pipeline; of the class, of the role's only pipeline."""

    def __get__(self, context: WarpContext | None, owner: type[WarpContext]) -> _Sync:
        found = output_pipeline.OutputTilePipeline.of_role() if context is None else context.output_pipeline
        return _Sync(found)


class _PageContext(WarpContext):
    """The members that both pages have."""

    Dealloc = TmemDeallocBarrier
    Pipeline = OutputTilePipeline
    Sync = _SyncOfRole()
    Tmem = TmemAllocation

    def __init__(
        self,
        output_pipeline: output_pipeline.OutputTilePipeline,
        *,
        tmem: TmemAllocation | None = None,
        dealloc_barrier: TmemDeallocBarrier | None = None,
        mma_threads: int | None = None,
        epilogue_threads: int | None = None,
    ) -> None:
        """`tmem` is TMEM that the role already knows; the other arguments are derived, and checked if given."""
        super().__init__(output_pipeline, tmem=tmem)
        if dealloc_barrier is not None and dealloc_barrier is not output_pipeline.dealloc:
            self._reject("`dealloc_barrier`")
        self._check_threads("mma_threads", mma_threads, output_pipeline.producer_role.threads)
        self._check_threads("epilogue_threads", epilogue_threads, output_pipeline.consumer_role.threads)

    @classmethod
    def create(
        cls,
        output_pipeline: OutputTilePipeline | None = None,
        *,
        tmem_addr_storage: SMemArray | View | None = None,
        accum_barriers_ptr: SMemArray | Barriers | Barrier | None = None,
        dealloc_mbar: SMemArray | Barriers | Barrier | None = None,
        mma_complete_mask: Value | int | None = None,
        mma_threads: int | None = None,
        epilogue_threads: int | None = None,
    ) -> Self:
        """Create the context of a pipeline, by default the only one of the role.

        Storage that is given must be the pipeline's: to use your own, give it to `OutputTilePipeline`.
        """
        outputs = output_pipeline or cls.Pipeline.of_role()
        made = cls(outputs, mma_threads=mma_threads, epilogue_threads=epilogue_threads)
        expected: dict[str, tuple[Any, View | Barriers]] = {
            "tmem_addr_storage": (tmem_addr_storage, outputs.address),
            "accum_barriers_ptr": (accum_barriers_ptr, outputs.pipeline.full),
            "dealloc_mbar": (dealloc_mbar, made.dealloc_barrier.barriers),
        }
        wrong = [name for name, (given, own) in expected.items() if given is not None and not is_at(given, own)]
        if wrong:
            made._reject(" and ".join(f"`{name}`" for name in wrong))
        if mma_complete_mask is not None:
            assert isinstance(outputs, OutputTilePipeline)
            outputs.check_mask(mma_complete_mask)
        return made

    def _reject(self, what: str) -> NoReturn:
        name = self.output_pipeline.name
        what = f"{what} given to {type(self).__name__} belongs to another pipeline than `{name}`"
        raise Diag.BAD_KERNEL.error(here(), what=f"{what}; give your own storage to OutputTilePipeline")

    def _check_threads(self, name: str, given: int | None, derived: int) -> None:
        if given is not None and given != derived:
            fields: dict[str, Any] = {"pipeline": self.output_pipeline.name, "given": given, "derived": derived}
            raise Diag.COUNT_MISMATCH.error(here(), what=f"as `{name}`", **fields)


class MmaWarpContext(_PageContext, warp_context.MmaWarpContext):
    """The MMA role: entering allocates TMEM and publishes its address, leaving frees it after the last read."""


class EpilogueWarpContext(_PageContext, warp_context.EpilogueWarpContext):
    """The epilogue role: entering waits for the address of TMEM, leaving signals that it is no longer read."""


class _Linear(_PageContext):
    """A context without `with`: created where the role begins, released once where it ends."""

    @classmethod
    def create(cls, output_pipeline: OutputTilePipeline | None = None, **parts: Any) -> Self:
        return super().create(output_pipeline, **parts).__enter__()

    def __enter__(self) -> Self:
        self._loc, self._region, self._released = here(), current().region, False
        self._region.at_close.append(self._check_released)
        return super().__enter__()

    def release(self) -> None:
        """Do what leaving the context does."""
        region = current().region
        if self._released or region is not self._region:
            what = f"a {type(self).__name__}, made at {self._loc}, is released"
            how = "twice" if self._released else f"inside a device {region.kind}"
            raise Diag.BAD_KERNEL.error(here(), what=f"{what} {how}")
        self._released = True
        self._end()

    def _check_released(self) -> None:
        if not self._released:
            raise Diag.BAD_KERNEL.error(self._loc, what=f"a {type(self).__name__} is never released")


class MmaWarp(_Linear, MmaWarpContext):
    """The linear form of the MMA role's context."""

    def acquire_k_stage_linear(self) -> MmaStage:
        """Acquire the next accumulator stage; the caller releases it."""
        return self.output_pipeline.acquire_mma_linear()


class EpilogueWarp(_Linear, EpilogueWarpContext):
    """The linear form of the epilogue's context."""

    def acquire_k_stage_linear(self) -> EpilogueStage:
        """Acquire the next accumulator stage; the caller releases it."""
        return self.output_pipeline.acquire_epilogue_linear()
