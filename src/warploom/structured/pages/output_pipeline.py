"""`OutputTilePipeline` as its page has it: compile-time members, and other spellings of acquire and release."""

from __future__ import annotations

from warploom.diagnostics import Diag
from warploom.structured.cluster import Cluster
from warploom.structured.config.output import OutputPipelineConfig
from warploom.structured.pipelines import output_pipeline
from warploom.structured.pipelines.output_pipeline import EpilogueStage, MmaStage, OutputStage
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.shared_types import SharedMemBarrier, SMemArray
from warploom.structured.tensor_cores.tmem import TmemAllocation
from warploom.trace.builder import here
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value


class OutputTilePipeline(output_pipeline.OutputTilePipeline):
    """The ring of accumulators in TMEM between the MMA role and the epilogue."""

    Pipeline = ProducerConsumerPipeline
    Stage = OutputStage
    Tmem = TmemAllocation

    def __init__(
        self,
        opc: OutputPipelineConfig,
        *,
        producer: Role,
        consumer: Role,
        cluster: Cluster | None = None,
        columns: int | None = None,
        name: str = "outputs",
        barriers_ptr: SMemArray | None = None,
        tmem_addr_storage: SMemArray | None = None,
        dealloc_mbar: SMemArray | None = None,
        tmem: TmemAllocation | None = None,
        mma_complete_mask: Value | int | None = None,
    ) -> None:
        """Create the ring; `mma_complete_mask` is derived, and checked if given."""
        super().__init__(
            opc,
            producer=producer,
            consumer=consumer,
            cluster=cluster,
            columns=columns,
            name=name,
            barriers_ptr=barriers_ptr,
            tmem_addr_storage=tmem_addr_storage,
            dealloc_mbar=dealloc_mbar,
            tmem=tmem,
        )
        self.check_mask(mma_complete_mask)

    @staticmethod
    def BarrierArray(opc: OutputPipelineConfig, *, name: str = "accum_barriers") -> SMemArray:
        """Allocate the barriers of a ring: the full barriers, then the empty ones."""
        return SMemArray.make(SharedMemBarrier, 2 * opc.num_stages, name=name)

    @property
    def num_stages(self) -> int:
        return self.opc.num_stages

    @property
    def stage_stride_cols(self) -> int:
        return self.opc.stage_stride_cols

    @property
    def mma_complete_mask(self) -> Value:
        """The CTAs that are notified when an accumulator is complete: this one, and its peer in a pair."""
        return self.cluster.mask(self.cluster.pair)

    def acquire_for_mma(self) -> MmaStage:
        """Wait until the epilogue has released the accumulator, and hold it."""
        return self.acquire_mma_linear()

    def acquire_for_epilogue(self) -> EpilogueStage:
        """Wait until the tensor core has completed the accumulator, and hold it."""
        return self.acquire_epilogue_linear()

    def release_from_mma(self, stage: OutputStage) -> None:
        """Commit: the tensor core arrives, in both CTAs of a pair, when the MMAs are complete."""
        stage.release()

    def release_from_epilogue(self, stage: OutputStage | None = None) -> None:
        """Release the accumulator that the epilogue holds."""
        (self.pipeline.consumer_side.held() if stage is None else stage).release()

    def get_pipeline(self) -> ProducerConsumerPipeline:
        """Return the pipeline of accumulator stages."""
        return self.pipeline

    def check_mask(self, given: Value | int | None) -> None:
        """Check a given `mma_complete_mask` against the derived one; a number is the mask of the first pair."""
        derived = (1 << self.cta_group) - 1
        number = given.literal if isinstance(given, Value) else given
        known = isinstance(given, Value) and given.operand == self.mma_complete_mask.operand
        if given is not None and number != derived and not known:
            shown = "another mask" if number is None else f"{number:#x}"
            fields = {"pipeline": self.name, "given": shown, "derived": f"{derived:#x}"}
            raise Diag.COUNT_MISMATCH.error(here(), what="as `mma_complete_mask`", **fields)
