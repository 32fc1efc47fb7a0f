"""Accumulators from the tensor core to the epilogue: stages of tensor memory.

Every handle releases by one rule: the MMA side's release is the tensor core's commit, the epilogue side's an arrival
of each of its threads at the pair leader's barrier. The `with` forms, the linear forms and the per-K forms are the
same stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warploom.diagnostics import Diag
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
from warploom.trace.builder import current, here
from warploom.trace.isa.emit import emit
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value
from warploom.trace.language.views import View, shared


class OutputStage(Stage):
    """An accumulator that one side holds."""

    def __init__(self, side: Side, outputs: OutputTilePipeline) -> None:
        super().__init__(side)
        emit("tcgen05.fence::after_thread_sync")
        self.pipeline = outputs.pipeline
        self._tmem = TmemStage(outputs.opc, outputs.tmem.addr, self._index)

    @property
    def tmem(self) -> TmemStage:
        """Where the accumulator lies."""
        self.check()
        return self._tmem

    def tmem_offset(self) -> Value:
        """The address of its first column."""
        return self.tmem.offset


class MmaStage(OutputStage):
    """An accumulator to be computed; its release commits it to the epilogue."""


class EpilogueStage(OutputStage):
    """An accumulator to be read; its release gives it back to the tensor core."""

    def release(self) -> None:
        """Give it back: reads of tensor memory end before."""
        emit("tcgen05.fence::before_thread_sync")
        super().release()


class MmaKStage(StageContext[MmaStage]):
    """One accumulator per K step: acquired on entering, committed on leaving."""


class OutputProducer(StageContext[MmaStage]):
    """The MMA role's view: one accumulator per tile."""


class OutputConsumer(StageContext[EpilogueStage]):
    """The epilogue's view: one accumulator per tile."""


class OutputTilePipeline:
    """A ring of accumulators in tensor memory between the MMA role and the epilogue."""

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
        """Roles that have been where the address is handed over."""
        self._allocations: dict[str, TmemAllocation] = {}
        self.given = self.checked(tmem)
        current().parts.setdefault(OutputTilePipeline, []).append(self)

    @staticmethod
    def of_role() -> OutputTilePipeline:
        """The pipeline that the role being traced is a side of; there must be one and no other."""
        builder = current("A warp context")
        found = [
            outputs
            for outputs in builder.parts.get(OutputTilePipeline, [])
            if builder.region.role in (outputs.producer_role.name, outputs.consumer_role.name)
        ]
        if len(found) != 1:
            what = f"role `{builder.region.role}` is a side of {len(found)} output pipelines, not of one"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        only: OutputTilePipeline = found[0]
        return only

    @property
    def cta_group(self) -> int:
        return self.opc.cta_group

    @property
    def tmem(self) -> TmemAllocation:
        """The tensor memory, as the role being traced knows it; before its context is entered nobody does."""
        role = current("Tensor memory").region.role
        known = self._allocations.get(role, self.given)
        if known is None:
            what = f"role `{role}` uses tensor memory of `{self.name}` before it knows the address"
            raise Diag.BAD_KERNEL.error(here(), what=f"{what}; enter its warp context first")
        return known

    def provide(self, allocation: TmemAllocation) -> None:
        """The role being traced has learnt where the tensor memory is."""
        self._allocations[current().region.role] = allocation

    def publish_address(self) -> None:
        """The MMA role's side of the hand-over of the address; telling twice is telling once."""
        role = self.pipeline.producer_side.declared().role.name
        assert self.tmem
        if role not in self.met:
            self.met.add(role)
            emit("tcgen05.fence::before_thread_sync")
            self.sync.arrive()

    def wait_for_address(self) -> None:
        """The epilogue's side of the hand-over of the address; waiting twice is waiting once."""
        role = self.pipeline.consumer_side.declared().role.name
        if role not in self.met:
            self.met.add(role)
            self.sync.wait()
            emit("tcgen05.fence::after_thread_sync")

    def init_barriers(
        self,
        producer_arv_count: int | None = None,
        consumer_arv_count: int | None = None,
        *,
        storage_ptr: SMemArray | None = None,
    ) -> None:
        """Initialise the barriers here, in one thread; what is given is checked."""
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
        """An accumulator to compute, once the epilogue has drained it; it must be released."""
        return self.pipeline.producer_side.acquire(self._produced)

    def acquire_epilogue_linear(self) -> EpilogueStage:
        """An accumulator to read, once the tensor core has finished it; it must be released."""
        return self.pipeline.consumer_side.acquire(self._consumed)

    def per_k(self) -> OutputKPipeline:
        """The same ring, one stage for each K step."""
        return OutputKPipeline(self)

    def per_k_epilogue(self, input_pipeline: ProducerConsumerPipeline) -> EpilogueKContext:
        """An accumulator and the input stage it was made from, for epilogues that read scales with the operands."""
        return EpilogueKContext(self, input_pipeline)

    def checked(self, given: TmemAllocation | None) -> TmemAllocation | None:
        """Tensor memory that is given must be of as many CTAs as the accumulators are."""
        if given is not None and given.cta_group != self.cta_group:
            fields: dict[str, Any] = {"pipeline": self.name, "given": given.cta_group, "derived": self.cta_group}
            raise Diag.COUNT_MISMATCH.error(here(), what="as CTAs that allocate tensor memory", **fields)
        return given


def _address_slot(name: str, given: SMemArray | None) -> View:
    """The word of shared memory that holds the address of TMEM."""
    if given is None:
        return shared("u32", 1, name=f"{name}.address", align=4)
    if not isinstance(given.storage, View) or (given.storage.dtype, given.size) != ("u32", 1):
        raise Diag.BAD_KERNEL.error(here(), what="`tmem_addr_storage` must be one u32 word of shared memory")
    return given.storage


class OutputKPipeline:
    """Producer and consumer of one accumulator for each K step."""

    def __init__(self, outputs: OutputTilePipeline) -> None:
        self._outputs = outputs

    def produce(self) -> MmaKStage:
        return MmaKStage(self._outputs.pipeline.producer_side, self._outputs._produced)  # noqa: SLF001 - its own view

    def consume(self) -> OutputConsumer:
        return self._outputs.consumer()


class EpilogueKStage(EpilogueStage):
    """An accumulator of one K step, and the input stage it came from."""

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
        """Give the input stage back, sooner than the accumulator; under a guard by lane, those lanes' arrival."""
        if current().region is self._region:
            self._input.release()
        else:
            self._input.arrive()

    def release(self) -> None:
        if not self._input.is_released:
            self._input.release()
        super().release()


class EpilogueKContext(StageContext[EpilogueKStage]):
    """Waits for the input stage and the accumulator of a K step; leaving arrives once on both sides."""

    def __init__(self, outputs: OutputTilePipeline, inputs: ProducerConsumerPipeline) -> None:
        def acquired(side: Side) -> EpilogueKStage:
            return EpilogueKStage(side, outputs, inputs.acquire_consumer())

        kind: Callable[[Side], EpilogueKStage] = acquired
        super().__init__(outputs.pipeline.consumer_side, kind)
