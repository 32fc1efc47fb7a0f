"""Source tiles for the epilogue: a warp of their own loads what the epilogue adds.

Loading begins when the main loads of a tile are under way, so that it does not delay them; the hand-off is a ring too,
and a ring has back-pressure.
"""

from __future__ import annotations

from warploom.structured.cluster import Cluster
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.shared_types import SMemArray
from warploom.structured.pipelines.signals import Bytes, EveryThread, OncePerWarp, Signal
from warploom.structured.pipelines.stages import (
    ConsumeContext,
    ConsumerStage,
    ExplicitConsumeContext,
    ProduceContext,
    ProducerStage,
)
from warploom.trace.language.barriers import Barrier
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value


class EpiLoadPipeline:
    """Stages that the epilogue-load role fills and every thread of the epilogue reads."""

    def __init__(
        self,
        num_stages: int,
        *,
        producer: Role,
        consumer: Role | Signal,
        signal: Signal | None = None,
        cluster: Cluster | None = None,
        name: str = "epi_load",
        ptr: SMemArray | None = None,
    ) -> None:
        """`signal` is how the producer tells that a stage is full: by the bytes of its copies, if not told.

        A consumer that is a role arrives with every thread; a signal says how else, as for guarded arrivals.
        `ptr` are barriers of the author's: full ones, then as many empty ones.
        """
        self.num_stages = num_stages
        self.pipeline = ProducerConsumerPipeline(
            num_stages,
            producer=signal or Bytes(producer),
            consumer=EveryThread(consumer) if isinstance(consumer, Role) else consumer,
            cluster=cluster,
            name=name,
            ptr=ptr,
        )

    def init_barriers(self, producer_arv_count: int | None = None, consumer_arv_count: int | None = None) -> None:
        """Initialise the barriers here, in one thread, instead of at start-up; counts that are given are checked."""
        self.pipeline.init_mbars(producer_arv_count, consumer_arv_count)

    def produce(self) -> ProduceContext:
        """Waits for the consumer on entering, advances on leaving."""
        return self.pipeline.produce()

    def acquire_producer(self) -> ProducerStage:
        """A stage to fill; it must be released."""
        return self.pipeline.acquire_producer()

    def wait_consumer(self) -> None:
        """Wait until the current stage is free."""
        self.pipeline.wait_consumer()

    def producer_mbar(self) -> Barrier:
        """The barrier that counts the bytes of the current stage."""
        return self.pipeline.producer_mbar()

    def producer_step(self) -> None:
        self.pipeline.producer_step()

    def consume(self) -> ConsumeContext:
        """Waits for the producer on entering; signals and advances on leaving."""
        return self.pipeline.consume()

    def consume_explicit(self) -> ExplicitConsumeContext:
        """Waits on entering, advances on leaving; the author arrives."""
        return self.pipeline.consume_explicit()

    def acquire_consumer(self) -> ConsumerStage:
        """A stage to read; it must be released."""
        return self.pipeline.acquire_consumer()

    def wait_producer(self) -> None:
        """Wait until the current stage is full."""
        self.pipeline.wait_producer()

    def consumer_stage(self) -> Value:
        return self.pipeline.consumer_stage()

    def consumer_step(self) -> None:
        self.pipeline.consumer_step()


class LoadOrderBarrier:
    """Lets the epilogue-load role begin on a tile when the main load has: a ring of two hand-offs.

    With one parity bit and no way back, two arrivals without a wait between them would look like none.
    """

    def __init__(self, *, first: Role, then: Role, cluster: Cluster | None = None, name: str = "load_order") -> None:
        self.pipeline = ProducerConsumerPipeline(
            2, producer=OncePerWarp(first), consumer=OncePerWarp(then), cluster=cluster, name=name
        )

    def arrive_and_step(self) -> None:
        """The main load has begun on a tile."""
        self.pipeline.producer_signal_and_step()

    def wait_and_step(self) -> None:
        """Go on when it has."""
        self.pipeline.consumer_signal_and_step()

    arrive, wait = arrive_and_step, wait_and_step
