"""Source tiles for the epilogue: a separate warp loads the matrix or row that the epilogue adds.

It starts a tile after the main loads of that tile have been issued, so that it does not delay them. The hand-off
between the two load roles is a ring as well, so that neither can run ahead without bound.
"""

from __future__ import annotations

from warploom.structured.cluster import Cluster
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.shared_types import SMemArray
from warploom.structured.pipelines.signals import Bytes, EveryReader, EveryThread, OncePerWarp, Signal
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
    """The ring of stages that the epilogue-load role fills and every thread of the epilogue reads."""

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
        """`signal` is how the producer commits a stage: by default with the bytes of its copies.

        A `consumer` that is a role releases with every thread, after a proxy fence if TMA fills the stages; give a
        signal for anything else.
        `ptr` are your own barriers: the full ones, then as many empty ones.
        """
        self.num_stages = num_stages
        if isinstance(consumer, Role):
            consumer = EveryReader(consumer) if signal is None else EveryThread(consumer)
        self.pipeline = ProducerConsumerPipeline(
            num_stages,
            producer=signal or Bytes(producer),
            consumer=consumer,
            cluster=cluster,
            name=name,
            ptr=ptr,
        )

    def init_barriers(self, producer_arv_count: int | None = None, consumer_arv_count: int | None = None) -> None:
        """Initialise the barriers here, in one thread, instead of at start-up; given counts are checked."""
        self.pipeline.init_mbars(producer_arv_count, consumer_arv_count)

    def produce(self) -> ProduceContext:
        """Return a context that waits for the consumer on entry and advances on exit."""
        return self.pipeline.produce()

    def acquire_producer(self) -> ProducerStage:
        """Acquire a stage to fill; it must be released."""
        return self.pipeline.acquire_producer()

    def wait_consumer(self) -> None:
        """Wait until the consumer has released the current stage."""
        self.pipeline.wait_consumer()

    def producer_mbar(self) -> Barrier:
        """Return the barrier that counts the bytes of the current stage."""
        return self.pipeline.producer_mbar()

    def producer_step(self) -> None:
        """Advance the producer to the next stage."""
        self.pipeline.producer_step()

    def consume(self) -> ConsumeContext:
        """Return a context that waits for the producer on entry, and releases and advances on exit."""
        return self.pipeline.consume()

    def consume_explicit(self) -> ExplicitConsumeContext:
        """Return a context that waits on entry and advances on exit; the author calls `stage.arrive()`."""
        return self.pipeline.consume_explicit()

    def acquire_consumer(self) -> ConsumerStage:
        """Acquire a stage to read; it must be released."""
        return self.pipeline.acquire_consumer()

    def wait_producer(self) -> None:
        """Wait until the producer has filled the current stage."""
        self.pipeline.wait_producer()

    def consumer_stage(self) -> Value:
        """Return the index of the consumer's current stage."""
        return self.pipeline.consumer_stage()

    def consumer_step(self) -> None:
        """Advance the consumer to the next stage."""
        self.pipeline.consumer_step()


class LoadOrderBarrier:
    """Lets the epilogue-load role start a tile when the main load has issued it: a ring of two hand-offs.

    A single barrier has one parity bit: two arrivals without a wait in between would look like none. The ring's empty
    barriers prevent that.
    """

    def __init__(self, *, first: Role, then: Role, cluster: Cluster | None = None, name: str = "load_order") -> None:
        self.pipeline = ProducerConsumerPipeline(
            2, producer=OncePerWarp(first), consumer=OncePerWarp(then), cluster=cluster, name=name
        )

    def arrive_and_step(self) -> None:
        """Signal that the main loads of a tile have been issued."""
        self.pipeline.producer_signal_and_step()

    def wait_and_step(self) -> None:
        """Wait until the main loads of the tile have been issued."""
        self.pipeline.consumer_signal_and_step()

    arrive, wait = arrive_and_step, wait_and_step
