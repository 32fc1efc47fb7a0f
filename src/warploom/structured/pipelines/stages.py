"""Stages of a pipeline as linear handles: acquired once and released once, by the declared role, checked at trace time.

A handle that is dropped, released twice, released under a condition, or used after its release is an error at the
author's line, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from warploom.diagnostics import Diag, Loc, WarploomError
from warploom.structured.pipelines.lane_counts import lanes_inside
from warploom.trace.builder import current, here
from warploom.trace.isa.emit import At
from warploom.trace.language.barriers import Barrier
from warploom.trace.language.values import Value

if TYPE_CHECKING:
    from warploom.structured.pipelines.pipeline import Side

_CONDITIONAL = ("branch", "loop")


class Stage:
    """A stage that one side holds; `release` signals the other side and advances."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._loc, self._region = here(), current("A stage").region
        self._released: Loc | None = None
        self._signalled = False
        self._begins, self._ends = len(current().body), -1
        self._index = side.position
        self._region.at_close.append(self._settled)

    def index(self) -> Value:
        """Return the index of the stage in the ring."""
        self.check()
        return self._index

    @property
    def loc(self) -> Loc:
        """The source line that acquired it."""
        return self._loc

    def mbar(self) -> StageBarrier:
        """Return the barrier that the other side waits on; an arrival or commit on it counts as the release signal."""
        self.check()
        return StageBarrier(self._side.signalled[self._index].at, self)

    def release(self) -> None:
        """Signal the other side, unless that was done explicitly, and advance."""
        self._must_be_open()
        if not self._signalled:
            self._ends = len(current().body)
            self._side.signal(self._index)
        self._end()

    def release_without_signal(self) -> None:
        """Advance without signalling: the signal is given elsewhere."""
        self._must_be_open()
        self._end()

    def _end(self) -> None:
        self._released = here()
        self._side.ended(self._begins, self._ends if self._ends >= 0 else len(current().body))
        self._side.step()
        self._side.closed()

    @property
    def is_released(self) -> bool:
        return self._released is not None

    def check(self) -> None:
        """Check that the stage is still held."""
        if self._released is not None:
            raise self._error(Diag.STAGE_AFTER_RELEASE, here(), released=self._released)

    def signalled(self) -> None:
        """Record that an arrival was given explicitly."""
        self._signalled = True
        self._ends = len(current().body)

    def lanes(self) -> int:
        """Count the lanes of a warp that execute this line; a guard that cannot be counted is an error."""
        return lanes_inside(self._region, f"an arrival on `{self._side.pipeline.name}`")

    def _must_be_open(self) -> None:
        if self._released is not None:
            raise self._error(Diag.STAGE_RELEASED_TWICE, here(), first=self._released)
        for region in current("release()").region.chain():
            if region is self._region:
                return
            if region.kind in _CONDITIONAL:
                error = Diag.STAGE_RELEASED_CONDITIONALLY
                raise self._error(error, here(), acquired=self._loc, kind=region.kind)

    def _settled(self) -> None:
        if self._released is None:
            raise self._error(Diag.STAGE_DROPPED, self._loc)

    def _error(self, diag: Diag, loc: Loc, **fields: Any) -> WarploomError:
        return diag.error(loc, side=self._side.name, pipeline=self._side.pipeline.name, **fields)


class StageBarrier(Barrier):
    """The barrier of a held stage: an arrival on it counts as the stage's signal."""

    def __init__(self, at: At, stage: Stage) -> None:
        super().__init__(at)
        object.__setattr__(self, "_stage", stage)
        self._stage: Stage

    def arrive(self, count: int | None = None) -> None:
        self._stage.lanes()
        super().arrive(count)
        self._stage.signalled()

    def arrive_and_expect(self, bytes_: Value | int) -> None:
        super().arrive_and_expect(bytes_)
        self._stage.signalled()


class ProducerStage(Stage):
    """A stage that the producer fills."""

    def expect_bytes(self, bytes_: Value | int) -> None:
        """Expect the bytes of the copies, and arrive; called by one thread."""
        self.check()
        Barrier(self._side.signalled[self._index].at).arrive_and_expect(bytes_)


class ConsumerStage(Stage):
    """A stage that the consumer reads."""

    def arrive(self) -> None:
        """Arrive with the executing threads; their number must be the one that the barrier counts."""
        self.check()
        self._side.arrive_by_hand(self, self._index)


Held = TypeVar("Held", bound=Stage)


class StageContext(Generic[Held]):
    """`with pipeline.produce() as stage:` waits, holds the stage, and releases it on exit unless that was done."""

    def __init__(self, side: Side, kind: Callable[[Side], Held], ready: Value | None = None) -> None:
        """`ready` is a predicate that the other side is done, so that the wait can be skipped."""
        self._side, self._kind, self._ready = side, kind, ready
        self._stage: Held | None = None

    def __enter__(self) -> Held:
        if self._stage is not None:
            fields: dict[str, Any] = {"side": self._side.name, "pipeline": self._side.pipeline.name}
            raise Diag.STAGE_ENTERED_TWICE.error(here(), first=self._stage.loc, **fields)
        self._stage = self._side.acquire(self._kind, self._ready)
        return self._stage

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._stage is not None and not self._stage.is_released:
            self._leave(self._stage)

    def _leave(self, stage: Held) -> None:
        stage.release()


class ProduceContext(StageContext[ProducerStage]):
    """Waits for the consumer on entry, commits and advances on exit."""


class ConsumeContext(StageContext[ConsumerStage]):
    """Waits for the producer on entry, releases and advances on exit."""


class ExplicitConsumeContext(StageContext[ConsumerStage]):
    """Waits for the producer on entry and advances on exit; the author arrives, under a guard that can be counted."""

    def _leave(self, stage: ConsumerStage) -> None:
        if not stage._signalled:  # noqa: SLF001 - the context made it
            raise stage._error(Diag.STAGE_DROPPED, stage.loc)  # noqa: SLF001
        stage.release()
