"""Operands from the load role to the tensor core: each stage holds a group of K tiles of every operand."""

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
    """One array of a payload: tiles in shared memory that copies fill."""

    local: bool
    """Whether a copy counts at this CTA's own barrier, because others than the pair's leader wait for it."""

    @property
    def bytes(self) -> int: ...

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None: ...


class TilePayload:
    """What a stage holds, part by part: `payload.a`, `payload.b` and so on."""

    def __init__(self, **parts: Part) -> None:
        self.parts: Mapping[str, Part] = parts

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__.get("parts", {})
        if name in parts:
            return parts[name]
        raise AttributeError(f"the payload has no `{name}`; it has {', '.join(parts)}")

    @property
    def bytes(self) -> int:
        """Bytes of one K tile, in one CTA."""
        return sum(part.bytes for part in self.parts.values())

    def get_tile(self, stage: Value, j: int, k_group_size: int = 1) -> tuple[At, ...]:
        """Where each part's tile number `j` of a stage lies."""
        index = stage * k_group_size + j
        return tuple(part.storage[index].place for part in self.parts.values())  # type: ignore[attr-defined]


class StandardTilePayload(TilePayload):
    """A and B."""

    def __init__(self, a: Part, b: Part) -> None:
        super().__init__(a=a, b=b)


class BlockScaledTilePayload(TilePayload):
    """A, B and the scale factors of both."""

    def __init__(self, a: Part, b: Part, sfa: Part, sfb: Part) -> None:
        super().__init__(a=a, b=b, sfa=sfa, sfb=sfb)


class BlockwiseFP8TilePayload(TilePayload):
    """A, B and the scales of A's rows."""

    def __init__(self, a: Part, b: Part, a_scales: Part) -> None:
        super().__init__(a=a, b=b, a_scales=a_scales)


class InputProducerStage(ProducerStage):
    """A stage that the load role fills."""

    def __init__(self, side: Side, inputs: InputTilePipeline) -> None:
        super().__init__(side)
        self._inputs = inputs

    def payload(self) -> TilePayload:
        self.check()
        return self._inputs.payload

    stage = ProducerStage.index

    def barrier(self) -> Barrier:
        """The barrier that counts the stage's bytes: with pairs, the leader's."""
        self.check()
        return self._inputs.arriving[self._index]

    def load(self, tile: Any, k: Value, *, only: tuple[str, ...] = ()) -> None:
        """Announce and copy the stage's K tiles of every part (or of some); `k` counts stages."""
        self.check()
        inputs = self._inputs
        with when(inputs.producer_role.elected):
            inputs.expect(self)
            inputs.copy(self._index, tile, k, only)


class InputConsumerStage(ConsumerStage):
    """A stage that the tensor core reads."""

    def __init__(self, side: Side, inputs: InputTilePipeline) -> None:
        super().__init__(side)
        self._inputs = inputs

    def payload(self) -> TilePayload:
        self.check()
        return self._inputs.payload

    stage = ConsumerStage.index

    def tile(self, j: int = 0) -> Value:
        """The number of a K tile among all tiles of a part."""
        self.check()
        return self._index * self._inputs.k_group_size + j


class InputTilePipeline:
    """Stages of `k_group_size` K tiles each: copies fill them, the tensor core's commit frees them.

    With pairs both CTAs' copies count at the leader's barrier. When the producing role ends, it waits until every
    stage is free: other CTAs' commits must find this one alive.
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
        """A consumer that is a role commits; a signal says how else it is done. `also` are further consumers, such as
        an epilogue that reads scales.
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
        """Bytes that arrive at a leader's barrier: those of both CTAs where there are pairs, but not the peer's own."""
        return self.k_group_size * self.cluster.cta_group * self.payload.bytes - self._peer_bytes

    @property
    def _peer_bytes(self) -> int:
        """Bytes that arrive at the barrier of a leader's peer."""
        local = sum(part.bytes for part in self.payload.parts.values() if part.local)
        return self.k_group_size * (self.cluster.cta_group - 1) * local

    def expect(self, stage: InputProducerStage) -> None:
        """Expect the bytes of a stage, in one thread: at a pair leader's barrier, at its peer's own only."""
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
        """A stage to load; in the load role."""
        self._drain_at_end()
        return StageContext(self.pipeline.producer_side, lambda side: InputProducerStage(side, self), ready)

    def consume(self, ready: Value | None = None) -> StageContext[InputConsumerStage]:
        """A loaded stage; in a role that reads it."""
        return StageContext(self.pipeline.consumer_side, lambda side: InputConsumerStage(side, self), ready)

    def acquire_producer(self) -> InputProducerStage:
        self._drain_at_end()
        return self.pipeline.producer_side.acquire(lambda side: InputProducerStage(side, self))

    def acquire_consumer(self) -> InputConsumerStage:
        return self.pipeline.consumer_side.acquire(lambda side: InputConsumerStage(side, self))

    def producer(self) -> InputProducer:
        return InputProducer(self)

    def consumer(self) -> InputConsumer:
        return InputConsumer(self)

    def init_barriers(self, producer_arv_count: int | None = None, consumer_arv_count: int | None = None) -> None:
        self.pipeline.init_mbars(producer_arv_count, consumer_arv_count)

    def drain_producer(self) -> None:
        """Wait until every stage is free, once: who has done so by hand need not at the end."""
        if not self._is_drained:
            self._is_drained = True
            self.pipeline.drain_producer()

    def _drain_at_end(self) -> None:
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
    """The producer's view: the same stages under its own verbs."""

    def __init__(self, inputs: InputTilePipeline) -> None:
        self._inputs = inputs

    def acquire(self) -> StageContext[InputProducerStage]:
        return self._inputs.produce()

    def acquire_stage(self) -> InputProducerStage:
        return self._inputs.acquire_producer()

    def try_acquire(self) -> Value:
        return self._inputs.pipeline.try_wait_consumer()

    def acquire_if_needed(self, ready: Value) -> StageContext[InputProducerStage]:
        """As `acquire`, but without a wait where `try_acquire` has said that the stage is free."""
        return self._inputs.produce(ready)

    def drain(self) -> None:
        self._inputs.drain_producer()


class InputConsumer:
    """The consumer's view."""

    def __init__(self, inputs: InputTilePipeline) -> None:
        self._inputs = inputs

    def acquire(self) -> StageContext[InputConsumerStage]:
        return self._inputs.consume()

    def acquire_stage(self) -> InputConsumerStage:
        return self._inputs.acquire_consumer()

    def try_acquire(self) -> Value:
        return self._inputs.pipeline.try_wait_producer()

    def acquire_if_needed(self, ready: Value) -> StageContext[InputConsumerStage]:
        """As `acquire`, but without a wait where `try_acquire` has said that the stage is loaded."""
        return self._inputs.consume(ready)
