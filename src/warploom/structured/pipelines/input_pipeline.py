"""The input pipeline, from the load role to the tensor core: each stage holds a group of K tiles of every operand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from warploom.structured.cluster import Cluster
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline, Side
from warploom.structured.pipelines.signals import Bytes, Signal, TensorCoreCommit
from warploom.structured.pipelines.stages import ConsumerStage, ProducerStage, StageContext
from warploom.structured.pipelines.start_up import kernel_cluster, start_up
from warploom.trace.builder import current
from warploom.trace.isa.emit import At
from warploom.trace.language.barriers import Barrier, Barriers
from warploom.trace.language.control import when
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, literal, select


class Part(Protocol):
    """One operand of a payload: tiles in shared memory that copies fill."""

    local: bool
    """True if copies complete on this CTA's own barrier, because its own warps wait for them, not only the leader."""

    @property
    def bytes(self) -> int: ...

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None: ...


class TilePayload:
    """The contents of a stage by operand: `payload.a`, `payload.b` and so on."""

    def __init__(self, **parts: Part) -> None:
        self.parts: Mapping[str, Part] = parts

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__.get("parts", {})
        if name in parts:
            return parts[name]
        raise AttributeError(f"the payload has no `{name}`; it has {', '.join(parts)}")

    @property
    def bytes(self) -> int:
        """Bytes of one K tile in one CTA."""
        return sum(part.bytes for part in self.parts.values())

    def get_tile(self, stage: Value, j: int, k_group_size: int = 1) -> tuple[At, ...]:
        """Return the address of K tile `j` of a stage, for each operand."""
        index = stage * k_group_size + j
        return tuple(part.storage[index].place for part in self.parts.values())  # type: ignore[attr-defined]


class StandardTilePayload(TilePayload):
    """The payload of a plain GEMM: A and B."""

    def __init__(self, a: Part, b: Part) -> None:
        super().__init__(a=a, b=b)


class BlockScaledTilePayload(TilePayload):
    """The payload of a block-scaled GEMM: A, B and the scale factors of both."""

    def __init__(self, a: Part, b: Part, sfa: Part, sfb: Part) -> None:
        super().__init__(a=a, b=b, sfa=sfa, sfb=sfb)


class BlockwiseFP8TilePayload(TilePayload):
    """The payload of a blockwise FP8 GEMM: A, B and the scales of A's rows."""

    def __init__(self, a: Part, b: Part, a_scales: Part) -> None:
        super().__init__(a=a, b=b, a_scales=a_scales)


class InputProducerStage(ProducerStage):
    """A stage that the load role holds and fills."""

    def __init__(self, side: Side, inputs: InputTilePipeline) -> None:
        super().__init__(side)
        self._inputs = inputs

    def payload(self) -> TilePayload:
        """Return the tiles of the pipeline."""
        self.check()
        return self._inputs.payload

    stage = ProducerStage.index

    def barrier(self) -> Barrier:
        """Return the barrier that counts the stage's bytes; with CTA pairs, the leader's."""
        self.check()
        return self._inputs.arriving[self._index]

    def load(self, tile: Any, k: Value, *, only: tuple[str, ...] = ()) -> None:
        """Expect the bytes and issue the copies of every operand, or of those in `only`; `k` counts stages along K."""
        self.check()
        inputs = self._inputs
        with when(inputs.producer_role.elected):
            inputs.expect(self)
            inputs.copy(self._index, tile, k, only)


class InputConsumerStage(ConsumerStage):
    """A stage that the MMA role holds and the tensor core reads."""

    def __init__(self, side: Side, inputs: InputTilePipeline) -> None:
        super().__init__(side)
        self._inputs = inputs

    def payload(self) -> TilePayload:
        """Return the tiles of the pipeline."""
        self.check()
        return self._inputs.payload

    stage = ConsumerStage.index

    def tile(self, j: int = 0) -> Value:
        """Return the index of K tile `j` of this stage among all tiles of an operand."""
        self.check()
        return self._index * self._inputs.k_group_size + j


class InputTilePipeline:
    """The ring of input stages, `k_group_size` K tiles each: copies fill a stage, the tensor core's commit releases it.

    With CTA pairs, the copies of both CTAs complete on the leader's barrier. At the end of the producing role it waits
    until every stage is released, because commits of other CTAs still arrive at this CTA's barriers.
    """

    def __init__(
        self,
        payload: TilePayload,
        num_group_stages: int,
        k_group_size: int = 1,
        *,
        producer: Role,
        consumer: Role | Signal,
        cluster: Cluster | None = None,
        also: tuple[Signal, ...] = (),
        name: str = "inputs",
    ) -> None:
        """A `consumer` that is a role releases with the tensor core's commit; give a signal for anything else.

        `also` are additional consumers, such as an epilogue that reads scales.
        """
        self.payload, self.num_group_stages, self.k_group_size = payload, num_group_stages, k_group_size
        self.cluster = kernel_cluster(cluster)
        self.producer_role = start_up().role = producer
        first = TensorCoreCommit(consumer, self.cluster.sharing) if isinstance(consumer, Role) else consumer
        consumers = (first, *also)
        self.pipeline = ProducerConsumerPipeline(
            num_group_stages, producer=Bytes(producer), consumer=consumers, cluster=self.cluster, name=name
        )
        self.arriving = self._arriving()
        start_up().maps += [part.source for part in payload.parts.values() if hasattr(part, "source")]
        self._drains = self._is_drained = False

    def _arriving(self) -> Barriers:
        full = self.pipeline.full
        if self.cluster.cta_group == 1:
            return full
        remote = self.cluster.remote(At(full.view.base), self.cluster.leader_rank).address
        return Barriers(full.name, replace(full.view, base=remote))

    @property
    def stage_bytes(self) -> int:
        """Bytes that complete on the leader's barrier: of both CTAs of a pair, without the peer's local operands."""
        return self.k_group_size * self.cluster.cta_group * self.payload.bytes - self._peer_bytes

    @property
    def _peer_bytes(self) -> int:
        """Bytes that complete on the barrier of the leader's peer."""
        local = sum(part.bytes for part in self.payload.parts.values() if part.local)
        return self.k_group_size * (self.cluster.cta_group - 1) * local

    def expect(self, stage: InputProducerStage) -> None:
        """Expect the bytes of a stage, in one thread: at the leader all of them, at its peer only the local ones."""
        if self._peer_bytes:
            stage.expect_bytes(select(self.cluster.leader, literal(self.stage_bytes, "u32"), self._peer_bytes))
            return
        with when(self.cluster.leader):
            stage.expect_bytes(self.stage_bytes)

    def copy(self, index: Value, tile: Any, k: Value, only: tuple[str, ...] = ()) -> None:
        """Issue the copies of a stage, in one thread."""
        for j in range(self.k_group_size):
            for name, part in self.payload.parts.items():
                if not only or name in only:
                    barrier = (self.pipeline.full if part.local else self.arriving)[index].at
                    part.load(index * self.k_group_size + j, tile, k * self.k_group_size + j, barrier, self.cluster)

    def produce(self, ready: Value | None = None) -> StageContext[InputProducerStage]:
        """Return a context that acquires a stage to load, in the load role; `ready` skips the wait."""
        self._drain_at_end()
        return StageContext(self.pipeline.producer_side, lambda side: InputProducerStage(side, self), ready)

    def consume(self, ready: Value | None = None) -> StageContext[InputConsumerStage]:
        """Return a context that acquires a loaded stage, in a role that reads it; `ready` skips the wait."""
        return StageContext(self.pipeline.consumer_side, lambda side: InputConsumerStage(side, self), ready)

    def acquire_producer(self) -> InputProducerStage:
        """Wait for the next empty stage; the caller commits it."""
        self._drain_at_end()
        return self.pipeline.producer_side.acquire(lambda side: InputProducerStage(side, self))

    def acquire_consumer(self) -> InputConsumerStage:
        """Wait for the next full stage; the caller releases it."""
        return self.pipeline.consumer_side.acquire(lambda side: InputConsumerStage(side, self))

    def producer(self) -> InputProducer:
        """Return the producer's view of the pipeline."""
        return InputProducer(self)

    def consumer(self) -> InputConsumer:
        """Return the consumer's view of the pipeline."""
        return InputConsumer(self)

    def init_barriers(self, producer_arv_count: int | None = None, consumer_arv_count: int | None = None) -> None:
        """Initialise the barriers here, and check the arrival counts if they are given."""
        self.pipeline.init_mbars(producer_arv_count, consumer_arv_count)

    def drain_producer(self) -> None:
        """Wait until every stage has been released; a second call does nothing."""
        if not self._is_drained:
            self._is_drained = True
            self.pipeline.drain_producer()

    def _drain_at_end(self) -> None:
        """Drain when the producing region closes: the innermost role or branch that encloses all loops of the role."""
        if self._drains:
            return
        self._drains = True
        inside = None
        for region in current().region.chain():
            if region.kind in ("role", "branch"):
                inside = inside or region
            elif region.kind == "loop":
                inside = None
        if inside is not None:
            inside.at_close.append(self.drain_producer)


class InputProducer:
    """The producer's view of the pipeline."""

    def __init__(self, inputs: InputTilePipeline) -> None:
        self._inputs = inputs

    def acquire(self) -> StageContext[InputProducerStage]:
        """Return a context that waits for the next empty stage and commits it on exit."""
        return self._inputs.produce()

    def acquire_stage(self) -> InputProducerStage:
        """Wait for the next empty stage; the caller commits it."""
        return self._inputs.acquire_producer()

    def try_acquire(self) -> Value:
        """Test once, without waiting, whether the next stage is empty."""
        return self._inputs.pipeline.try_wait_consumer()

    def acquire_if_needed(self, ready: Value) -> StageContext[InputProducerStage]:
        """Do as `acquire`, but wait only if `ready`, the result of `try_acquire`, is false."""
        return self._inputs.produce(ready)

    def drain(self) -> None:
        """Wait until the consumer has released all stages."""
        self._inputs.drain_producer()


class InputConsumer:
    """The consumer's view of the pipeline."""

    def __init__(self, inputs: InputTilePipeline) -> None:
        self._inputs = inputs

    def acquire(self) -> StageContext[InputConsumerStage]:
        """Return a context that waits for the next full stage and releases it on exit."""
        return self._inputs.consume()

    def acquire_stage(self) -> InputConsumerStage:
        """Wait for the next full stage; the caller releases it."""
        return self._inputs.acquire_consumer()

    def try_acquire(self) -> Value:
        """Test once, without waiting, whether the next stage is full."""
        return self._inputs.pipeline.try_wait_producer()

    def acquire_if_needed(self, ready: Value) -> StageContext[InputConsumerStage]:
        """Do as `acquire`, but wait only if `ready`, the result of `try_acquire`, is false."""
        return self._inputs.consume(ready)
