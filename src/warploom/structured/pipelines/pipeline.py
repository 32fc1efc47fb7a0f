"""A ring of stages between roles, with full barriers in one direction and empty barriers in the other.

The two sides differ only in the barriers that they wait on, their signals and their initial phase. The arrival count of
a barrier is the sum of all signals that reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from warploom.diagnostics import Diag
from warploom.structured.cluster import Cluster
from warploom.structured.pipelines.shared_types import SMemArray, is_at
from warploom.structured.pipelines.signals import Signal, TensorCoreCommit
from warploom.structured.pipelines.stages import (
    ConsumeContext,
    ConsumerStage,
    ExplicitConsumeContext,
    ProduceContext,
    ProducerStage,
    Stage,
)
from warploom.structured.pipelines.start_up import kernel_cluster, start_up
from warploom.structured.pipelines.tmem_handover import Hold, check_handover
from warploom.trace.builder import current, here
from warploom.trace.language.barriers import Barrier, Barriers, barriers, fence_barrier_init
from warploom.trace.language.control import when
from warploom.trace.language.values import Value, literal, select
from warploom.trace.language.variables import Variable

Held = TypeVar("Held", bound=Stage)
_BARRIER_BYTES = 8


class RingState:
    """The position of a side in the ring: the stage index and the phase parity, in registers of each thread."""

    def __init__(self, num_stages: int, parity: int) -> None:
        self._stages = num_stages
        with current("A pipeline").prologue():
            self._stage = Variable("u32", 0) if num_stages > 1 else None
            self._parity = Variable("u32", parity)

    @property
    def stage(self) -> Value:
        return literal(0, "u32") if self._stage is None else self._stage.get()

    @property
    def parity(self) -> Value:
        return self._parity.get()

    def step(self) -> None:
        """Advance to the next stage; the parity flips when the index wraps."""
        if self._stage is None:
            self._parity ^= 1
            return
        upcoming = self._stage + 1
        wrapped = upcoming == self._stages
        self._stage.set(select(wrapped, literal(0, "u32"), upcoming))
        self._parity.set(self._parity ^ wrapped.to("u32"))

    def skip(self, count: Value) -> None:
        """Advance by several stages at once: those that another warpgroup consumes."""
        total = self.stage + count.to("u32")
        laps = total // self._stages
        if self._stage is not None:
            self._stage.set(total - laps * self._stages)
        self._parity.set(self._parity ^ (laps & 1))

    def earlier(self, by: int) -> Value:
        """Return the index of the stage `by` steps ago."""
        before = self.stage + (self._stages - by % self._stages)
        return select(before >= self._stages, before - self._stages, before)

    def copy_from(self, other: RingState) -> None:
        """Copy the position of another state."""
        if self._stage is not None:
            self._stage.set(other.stage)
        self._parity.set(other.parity)


class Side:
    """The producer or consumer side of a pipeline: its position, the barriers it waits on, and its signals."""

    def __init__(self, pipeline: ProducerConsumerPipeline, name: str, signals: tuple[Signal, ...], parity: int) -> None:
        self.pipeline, self.name, self.signals = pipeline, name, signals
        self.state = RingState(pipeline.num_stages, parity)
        self.awaited = pipeline.empty if name == "producer" else pipeline.full
        self.signalled = pipeline.full if name == "producer" else pipeline.empty
        self.used: set[str] = set()
        self.holds: list[Hold] = []
        self._open: dict[str, Stage] = {}

    @property
    def position(self) -> Value:
        return self.state.stage

    @property
    def count(self) -> int:
        """Arrivals per phase of the barriers that this side signals."""
        return sum(signal.arrivals(self.pipeline.cluster) for signal in self.signals)

    def signal_of(self) -> Signal:
        """Return the signal of the role being traced, and mark it as used."""
        signal = self.declared()
        self.used.add(signal.role.name)
        return signal

    def declared(self) -> Signal:
        """Return the signal that the role being traced was declared with; any other role is an error."""
        role = current(f"`{self.pipeline.name}`").region.role
        for signal in self.signals:
            if signal.role.name == role:
                return signal
        declared = " and ".join(f"`{signal.role.name}`" for signal in self.signals) or "no role"
        fields = {"side": self.name, "pipeline": self.pipeline.name, "declared": declared}
        raise Diag.STAGE_WRONG_ROLE.error(here(), role=role or "(none)", **fields)

    def wait(self) -> None:
        self.signal_of()
        self.awaited[self.state.stage].wait(self.state.parity)

    def try_wait(self) -> Value:
        self.signal_of()
        return self.awaited[self.state.stage].test(self.state.parity)

    def wait_if_needed(self, ready: Value) -> None:
        with when(~ready):
            self.wait()

    def acquire(self, kind: Callable[[Side], Held], ready: Value | None = None) -> Held:
        """Wait for the other side, unless `ready` says that it is done, and hold the stage."""
        role = self.signal_of().role.name
        if role in self._open:
            fields: dict[str, Any] = {"side": self.name, "pipeline": self.pipeline.name, "first": self._open[role].loc}
            raise Diag.STAGE_ENTERED_TWICE.error(here(), **fields)
        if ready is None:
            self.wait()
        else:
            self.wait_if_needed(ready)
        stage = self._open[role] = kind(self)
        return stage

    def held(self) -> Stage:
        """Return the stage that the role being traced holds."""
        role = self.declared().role.name
        if role not in self._open:
            what = f"role `{role}` releases a {self.name} stage of `{self.pipeline.name}` and holds none"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        return self._open[role]

    def ended(self, begins: int, ends: int) -> None:
        """Record the statements between the wait for a stage and its signal: later, loops may move them."""
        signal, statements = self.declared(), current().body[begins:ends]
        by_commit = isinstance(signal, TensorCoreCommit)
        self.holds.append(Hold.of(signal.role.name, statements, here(), by_commit=by_commit))

    def closed(self) -> None:
        """Record that the held stage was released."""
        self._open.pop(current().region.role, None)

    def signal(self, index: Value) -> None:
        self.signal_of().arrive(self.signalled, index, self.pipeline.cluster)

    def arrive_by_hand(self, stage: Stage, index: Value) -> None:
        """Arrive with the executing lanes; their number must be that of the declared signal."""
        signal = self.signal_of()
        lanes = stage.lanes()
        wanted = getattr(signal, "lanes", 1)
        if lanes != wanted:
            what = f"{lanes} lanes of a warp arrive on `{self.pipeline.name}`, whose {self.name} was declared with"
            raise Diag.UNCOUNTABLE_ARRIVAL.error(here(), what=f"{what} {wanted}.")
        getattr(signal, "arrive_now", signal.arrive)(self.signalled, index, self.pipeline.cluster)
        stage.signalled()

    def step(self) -> None:
        self.state.step()

    def drain(self) -> None:
        """Wait until the other side is done with every stage, so that no signal reaches a CTA that has exited."""
        for _ in range(self.pipeline.num_stages):
            self.wait()
            self.step()


class ProducerConsumerPipeline:
    """A ring of `num_stages` stages that a producer fills and a consumer reads; a side may be several roles."""

    def __init__(
        self,
        num_stages: int,
        *,
        producer: Signal | Sequence[Signal],
        consumer: Signal | Sequence[Signal],
        cluster: Cluster | None = None,
        name: str = "pipeline",
        ptr: SMemArray | None = None,
    ) -> None:
        """`ptr` are your own barriers: the full ones, then as many empty ones."""
        if num_stages < 1:
            raise Diag.BAD_KERNEL.error(here(), what=f"`{name}` has {num_stages} stages")
        self.name, self.num_stages, self.loc = name, num_stages, here()
        self.cluster = kernel_cluster(cluster)
        self.full, self.empty = _made(name, num_stages) if ptr is None else _halves(name, num_stages, ptr)
        # A new mbarrier is in phase 0, and a wait for the parity of the preceding phase, 1, returns at once: the
        # producer finds all stages of its first lap empty, and the consumer waits for the first commit.
        self.producer_side = Side(self, "producer", _several(producer), 1)
        self.consumer_side = Side(self, "consumer", _several(consumer), 0)
        setup = start_up()
        setup.barriers += self._rows()
        sides = (self.producer_side, self.consumer_side)
        setup.is_remote |= any(signal.reaches_others(self.cluster) for side in sides for signal in side.signals)
        current().root.at_close += [self._check_fences, self._check_used]

    def _rows(self) -> list[tuple[Barriers, Callable[[], int]]]:
        return [(self.full, lambda: self.producer_side.count), (self.empty, lambda: self.consumer_side.count)]

    @classmethod
    def smem_bytes(cls, num_stages: int) -> int:
        """Return the bytes of the barriers."""
        return 2 * num_stages * _BARRIER_BYTES

    def init_mbars(
        self,
        producer_arv_count: int | None = None,
        consumer_arv_count: int | None = None,
        *,
        storage_ptr: SMemArray | None = None,
    ) -> None:
        """Initialise the barriers here, in one thread, instead of at start-up; given values are checked."""
        if storage_ptr is not None and not is_at(storage_ptr, self.full):
            raise Diag.BAD_KERNEL.error(here(), what=f"`storage_ptr` does not hold the barriers of `{self.name}`")
        given = ((producer_arv_count, self.producer_side), (consumer_arv_count, self.consumer_side))
        for count, side in given:
            if count is not None and count != side.count:
                what = f"arrivals of its {side.name}"
                raise Diag.COUNT_MISMATCH.error(here(), pipeline=self.name, given=count, derived=side.count, what=what)
        setup = start_up()
        setup.barriers = [row for row in setup.barriers if row[0] not in (self.full, self.empty)]
        for row, count_of in self._rows():
            row.init(count_of())
        fence_barrier_init()

    init_barriers = init_mbars

    def produce(self) -> ProduceContext:
        """Return a context that waits for the next empty stage and commits it on exit."""
        return ProduceContext(self.producer_side, ProducerStage)

    def consume(self) -> ConsumeContext:
        """Return a context that waits for the next full stage and releases it on exit."""
        return ConsumeContext(self.consumer_side, ConsumerStage)

    def consume_explicit(self) -> ExplicitConsumeContext:
        """Return a context that waits for the next full stage; the body releases it."""
        return ExplicitConsumeContext(self.consumer_side, ConsumerStage)

    def acquire_producer(self) -> ProducerStage:
        """Wait for the next empty stage; the caller commits it."""
        return self.producer_side.acquire(ProducerStage)

    def acquire_consumer(self) -> ConsumerStage:
        """Wait for the next full stage; the caller releases it."""
        return self.consumer_side.acquire(ConsumerStage)

    def wait_producer(self) -> None:
        """Wait until the current stage is full, on the consumer side."""
        self.consumer_side.wait()

    def wait_consumer(self) -> None:
        """Wait until the current stage is empty, on the producer side."""
        self.producer_side.wait()

    def try_wait_producer(self) -> Value:
        """Test once, on the consumer side, whether the current stage is full."""
        return self.consumer_side.try_wait()

    def try_wait_consumer(self) -> Value:
        """Test once, on the producer side, whether the current stage is empty."""
        return self.producer_side.try_wait()

    def wait_producer_if_needed(self, ready: Value) -> None:
        """Wait until the current stage is full, unless `ready` from `try_wait_producer` is true."""
        self.consumer_side.wait_if_needed(ready)

    def wait_consumer_if_needed(self, ready: Value) -> None:
        """Wait until the current stage is empty, unless `ready` from `try_wait_consumer` is true."""
        self.producer_side.wait_if_needed(ready)

    def producer_stage(self) -> Value:
        """Return the index of the producer's current stage."""
        return self.producer_side.position

    def consumer_stage(self) -> Value:
        """Return the index of the consumer's current stage."""
        return self.consumer_side.position

    def producer_step(self) -> None:
        """Advance the producer to the next stage."""
        self.producer_side.step()

    def consumer_step(self) -> None:
        """Advance the consumer to the next stage."""
        self.consumer_side.step()

    def producer_mbar(self, stage: Value | int | None = None) -> Barrier:
        """Return the full barrier of a stage, by default the current one."""
        return self.full[self.producer_stage() if stage is None else stage]

    def consumer_mbar(self, stage: Value | int | None = None) -> Barrier:
        """Return the empty barrier of a stage, by default the current one."""
        return self.empty[self.consumer_stage() if stage is None else stage]

    def producer_signal_and_step(self) -> None:
        """Wait for the consumer, commit the stage and advance: for stages without data."""
        self.acquire_producer().release()

    def consumer_signal_and_step(self) -> None:
        """Wait for the producer, release the stage and advance."""
        self.acquire_consumer().release()

    def drain_producer(self) -> None:
        """Wait until the consumer has released all stages."""
        self.producer_side.drain()

    def _check_used(self) -> None:
        """Check that every declared role takes part: the arrival counts depend on it."""
        for side in (self.producer_side, self.consumer_side):
            for signal in side.signals:
                if signal.role.name not in side.used:
                    fields = {"role": signal.role.name, "side": side.name, "pipeline": self.name}
                    raise Diag.SIDE_UNUSED.error(self.loc, **fields)

    def _check_fences(self) -> None:
        """Check the tcgen05 fences of stages that hold TMEM."""
        by_commit = any(isinstance(each, TensorCoreCommit) for each in self.producer_side.signals)
        sides = (self.producer_side.holds, self.consumer_side.holds)
        check_handover(self.name, *sides, by_commit=by_commit)


def _made(name: str, num_stages: int) -> tuple[Barriers, Barriers]:
    return barriers(f"{name}.full", num_stages), barriers(f"{name}.empty", num_stages)


def _halves(name: str, num_stages: int, array: SMemArray) -> tuple[Barriers, Barriers]:
    """Split the author's barriers into full and empty ones."""
    if not isinstance(array.storage, Barriers) or array.size != 2 * num_stages:
        what = f"`{name}` with {num_stages} stages needs {2 * num_stages} barriers; the given array has {array.size}"
        raise Diag.BAD_KERNEL.error(here(), what=what)
    view = array.storage.view
    return (
        Barriers(f"{name}.full", view[:num_stages]),
        Barriers(f"{name}.empty", view[num_stages:]),
    )


def _several(signals: Signal | Sequence[Signal]) -> tuple[Signal, ...]:
    return tuple(signals) if isinstance(signals, Sequence) else (signals,)
