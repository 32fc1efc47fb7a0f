"""The output pipeline: accumulators in TMEM, from the tensor core to the epilogue.

Every handle releases by one rule: on the MMA side a release is the tensor core's commit, on the epilogue side an
arrival of each thread at the pair leader's barrier. The `with`, linear and per-K forms are the same stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warploom.diagnostics import Diag
from warploom.ptx.syntax.model import Instruction
from warploom.structured.cluster import Cluster
from warploom.structured.config.output import OutputPipelineConfig
from warploom.structured.named_barriers import WarpGroupBarrier
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline, Side
from warploom.structured.pipelines.shared_types import SMemArray
from warploom.structured.pipelines.signals import EveryThread, TensorCoreCommit
from warploom.structured.pipelines.stages import ConsumerStage, Stage, StageContext
from warploom.structured.pipelines.start_up import kernel_cluster
from warploom.structured.tensor_cores.tmem import TmemAllocation, TmemStage
from warploom.structured.tensor_cores.tmem_dealloc import TmemDeallocBarrier
from warploom.trace import isa
from warploom.trace.builder import current, here
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value
from warploom.trace.language.views import View, shared


class OutputStage(Stage):
    """An accumulator that one side holds."""

    def __init__(self, side: Side, outputs: OutputTilePipeline) -> None:
        super().__init__(side)
        isa.tcgen05.fence.after_thread_sync()
        self.pipeline = outputs.pipeline
        self._tmem = TmemStage(outputs.opc, outputs.tmem.addr, self._index, (self._begins, here()))

    @property
    def tmem(self) -> TmemStage:
        """The accumulator's stage of TMEM."""
        self.check()
        return self._tmem

    def tmem_offset(self) -> Value:
        """Return the address of its first column."""
        return self.tmem.offset


class MmaStage(OutputStage):
    """An accumulator to be computed; release commits it to the epilogue."""


class EpilogueStage(OutputStage):
    """An accumulator to be read; release returns it to the MMA role."""

    def release(self) -> None:
        """Release the accumulator, ordered after all TMEM loads so far, which must have been waited for."""
        for each in reversed(current().body[self._begins :]):
            if not isinstance(each, Instruction) or not each.opcode.startswith(("tcgen05.ld.", "tcgen05.wait::ld")):
                continue
            if each.opcode.startswith("tcgen05.ld."):
                raise Diag.TMEM_LOAD_NOT_WAITED.error(here(), pipeline=self.pipeline.name, load=each.loc)
            break
        isa.tcgen05.fence.before_thread_sync()
        super().release()


class MmaKStage(StageContext[MmaStage]):
    """One accumulator per K tile: acquired on entry, committed on exit."""


class OutputProducer(StageContext[MmaStage]):
    """The MMA role's context: one accumulator per output tile."""


class OutputConsumer(StageContext[EpilogueStage]):
    """The epilogue's context: one accumulator per output tile."""


class OutputTilePipeline:
    """The ring of accumulators in TMEM between the MMA role and the epilogue."""

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
    ) -> None:
        """`columns` are the TMEM columns to allocate; `tmem` is TMEM that all roles already know.

        `barriers_ptr` (full barriers, then empty ones), `tmem_addr_storage` and `dealloc_mbar` are your own storage.
        """
        self.opc, self.name = opc, name
        self.cluster = kernel_cluster(cluster)
        self.producer_role, self.consumer_role = producer, consumer
        self.pipeline = ProducerConsumerPipeline(
            opc.num_stages,
            producer=TensorCoreCommit(producer, self.cluster.pair),
            consumer=EveryThread(consumer, to="leader"),
            cluster=self.cluster,
            name=name,
            ptr=barriers_ptr,
        )
        self.columns = columns or TmemAllocation.max_columns
        self.sync = WarpGroupBarrier(producer.threads + consumer.threads)
        self.address = _address_slot(name, tmem_addr_storage)
        self.dealloc = TmemDeallocBarrier(consumer, self.cluster, f"{name}.dealloc", storage=dealloc_mbar)
        self.met: set[str] = set()
        """Roles that have passed the hand-over of the TMEM address."""
        self._allocations: dict[str, TmemAllocation] = {}
        self.given = self.checked(tmem)
        current().parts.setdefault(OutputTilePipeline, []).append(self)

    @staticmethod
    def of_role() -> OutputTilePipeline:
        """Find the pipeline in which the role being traced takes part; there must be exactly one."""
        builder = current("A warp context")
        found = [
            outputs
            for outputs in builder.parts.get(OutputTilePipeline, [])
            if builder.region.role in (outputs.producer_role.name, outputs.consumer_role.name)
        ]
        if len(found) != 1:
            what = f"role `{builder.region.role}` takes part in {len(found)} output pipelines; it must be one"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        only: OutputTilePipeline = found[0]
        return only

    @property
    def cta_group(self) -> int:
        return self.opc.cta_group

    @property
    def tmem(self) -> TmemAllocation:
        """The TMEM allocation as the role being traced knows it, once it has entered its context."""
        role = current("TMEM").region.role
        known = self._allocations.get(role, self.given)
        if known is None:
            what = f"role `{role}` uses TMEM of `{self.name}` before it knows the address"
            raise Diag.BAD_KERNEL.error(here(), what=f"{what}; enter its warp context first")
        return known

    def provide(self, allocation: TmemAllocation) -> None:
        """Record the TMEM allocation for the role being traced."""
        self._allocations[current().region.role] = allocation

    def publish_address(self) -> None:
        """Publish the TMEM address, in the MMA role; a second call does nothing."""
        role = self.pipeline.producer_side.declared().role.name
        assert self.tmem
        if role not in self.met:
            self.met.add(role)
            isa.tcgen05.fence.before_thread_sync()
            self.sync.arrive()

    def wait_for_address(self) -> None:
        """Wait for the TMEM address, in the epilogue; a second call does nothing."""
        role = self.pipeline.consumer_side.declared().role.name
        if role not in self.met:
            self.met.add(role)
            self.sync.wait()
            isa.tcgen05.fence.after_thread_sync()

    def init_barriers(
        self,
        producer_arv_count: int | None = None,
        consumer_arv_count: int | None = None,
        *,
        storage_ptr: SMemArray | None = None,
    ) -> None:
        """Initialise the barriers here, in one thread, instead of at start-up; given values are checked."""
        self.pipeline.init_mbars(producer_arv_count, consumer_arv_count, storage_ptr=storage_ptr)

    def _produced(self, side: Side) -> MmaStage:
        return MmaStage(side, self)

    def _consumed(self, side: Side) -> EpilogueStage:
        return EpilogueStage(side, self)

    def producer(self) -> OutputProducer:
        return OutputProducer(self.pipeline.producer_side, self._produced)

    def consumer(self) -> OutputConsumer:
        return OutputConsumer(self.pipeline.consumer_side, self._consumed)

    def acquire_mma_linear(self) -> MmaStage:
        """Wait until the epilogue has released an accumulator, and acquire it; it must be released."""
        return self.pipeline.producer_side.acquire(self._produced)

    def acquire_epilogue_linear(self) -> EpilogueStage:
        """Wait until the tensor core has completed an accumulator, and acquire it; it must be released."""
        return self.pipeline.consumer_side.acquire(self._consumed)

    def per_k(self) -> OutputKPipeline:
        """Return a view of the ring with one stage per K tile."""
        return OutputKPipeline(self)

    def per_k_epilogue(self, input_pipeline: ProducerConsumerPipeline) -> EpilogueKContext:
        """Return a context of an accumulator and its input stage, for epilogues that read scales from that stage."""
        return EpilogueKContext(self, input_pipeline)

    def checked(self, given: TmemAllocation | None) -> TmemAllocation | None:
        """Check that given TMEM was allocated for the same number of CTAs as the accumulators."""
        if given is not None and given.cta_group != self.cta_group:
            fields: dict[str, Any] = {"pipeline": self.name, "given": given.cta_group, "derived": self.cta_group}
            raise Diag.COUNT_MISMATCH.error(here(), what="CTAs that allocate TMEM", **fields)
        return given


def _address_slot(name: str, given: SMemArray | None) -> View:
    """The word of shared memory that holds the address of TMEM."""
    if given is None:
        return shared("u32", 1, name=f"{name}.address", align=4)
    if not isinstance(given.storage, View) or (given.storage.dtype, given.size) != ("u32", 1):
        raise Diag.BAD_KERNEL.error(here(), what="`tmem_addr_storage` must be one u32 word of shared memory")
    return given.storage


class OutputKPipeline:
    """Producer and consumer contexts of one accumulator per K tile."""

    def __init__(self, outputs: OutputTilePipeline) -> None:
        self._outputs = outputs

    def produce(self) -> MmaKStage:
        """Return the MMA role's context of one stage."""
        return MmaKStage(self._outputs.pipeline.producer_side, self._outputs._produced)  # noqa: SLF001 - its own view

    def consume(self) -> OutputConsumer:
        """Return the epilogue role's view of the pipeline."""
        return self._outputs.consumer()


class EpilogueKStage(EpilogueStage):
    """An accumulator of one K tile, and the input stage that it was computed from."""

    def __init__(self, side: Side, outputs: OutputTilePipeline, input_stage: ConsumerStage) -> None:
        super().__init__(side, outputs)
        self._input = input_stage

    @property
    def output_stage(self) -> EpilogueKStage:
        return self

    @property
    def input_stage_index(self) -> Value:
        return self._input.index()

    def arrive_input(self) -> None:
        """Release the input stage before the accumulator; under a guard by lane, arrive with those lanes."""
        if current().region is self._region:
            self._input.release()
        else:
            self._input.arrive()

    def release(self) -> None:
        if not self._input.is_released:
            self._input.release()
        super().release()


class EpilogueKContext(StageContext[EpilogueKStage]):
    """Waits for the input stage and the accumulator of a K tile; leaving releases both."""

    def __init__(self, outputs: OutputTilePipeline, inputs: ProducerConsumerPipeline) -> None:
        def acquired(side: Side) -> EpilogueKStage:
            return EpilogueKStage(side, outputs, inputs.acquire_consumer())

        kind: Callable[[Side], EpilogueKStage] = acquired
        super().__init__(outputs.pipeline.consumer_side, kind)
