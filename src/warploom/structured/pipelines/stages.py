"""Stages of a pipeline as handles: acquired once, released once, by the role that said so, at trace time.

A handle that is dropped, released twice, released under a condition, or used after its release is an error at the
author's line, before anything runs: that is what a linear type gives elsewhere.
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
    """A stage that one side holds; `release` tells the other side and moves on to the next."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._loc, self._region = here(), current("A stage").region
        self._released: Loc | None = None
        self._signalled = False
        self._index = side.position
        self._region.at_close.append(self._settled)

    def index(self) -> Value:
        """Which of the ring's stages it is."""
        self.check()
        return self._index

    @property
    def loc(self) -> Loc:
        """Where it was acquired."""
        return self._loc

    def mbar(self) -> StageBarrier:
        """The barrier that the other side waits at. An arrival or a commit on it *is* the release signal."""
        self.check()
        return StageBarrier(self._side.signalled[self._index].at, self)

    def release(self) -> None:
        """Tell the other side, unless that was done by hand, and advance."""
        self._must_be_open()
        if not self._signalled:
            self._side.signal(self._index)
        self._end()

    def release_without_signal(self) -> None:
        """Only advance: somebody else has told, or will tell, the other side."""
        self._must_be_open()
        self._end()

    def _end(self) -> None:
        self._released = here()
        self._side.step()
        self._side.closed()

    @property
    def is_released(self) -> bool:
        return self._released is not None

    def check(self) -> None:
        """The stage must still be held where it is used."""
        if self._released is not None:
            raise self._error(Diag.STAGE_AFTER_RELEASE, here(), released=self._released)

    def signalled(self) -> None:
        """An arrival was given by hand."""
        self._signalled = True

    def lanes(self) -> int:
        """How many lanes of a warp execute what is written here; a guard that cannot be counted is an error."""
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
    """The barrier of a held stage: what arrives on it counts as the stage's signal."""

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
    """A stage to be filled."""

    def expect_bytes(self, bytes_: Value | int) -> None:
        """Announce the bytes that copies will bring: one thread's arrival."""
        self.check()
        Barrier(self._side.signalled[self._index].at).arrive_and_expect(bytes_)


class ConsumerStage(Stage):
    """A stage to be read."""

    def arrive(self) -> None:
        """The executing threads' arrival by hand; their number must be what the barrier counts."""
        self.check()
        self._side.arrive_by_hand(self, self._index)


Held = TypeVar("Held", bound=Stage)


class StageContext(Generic[Held]):
    """`with pipeline.produce() as stage:` waits, gives the stage, and releases it at the end if nobody has."""

    def __init__(self, side: Side, kind: Callable[[Side], Held], ready: Value | None = None) -> None:
        """`ready` tells that the other side is done, so that there is nothing to wait for."""
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
    """Waits for the consumer on entering, advances on leaving."""


class ConsumeContext(StageContext[ConsumerStage]):
    """Waits for the producer on entering; signals and advances on leaving."""


class ExplicitConsumeContext(StageContext[ConsumerStage]):
    """Waits for the producer on entering; the author arrives, under a guard that can be counted; leaving advances."""

    def _leave(self, stage: ConsumerStage) -> None:
        if not stage._signalled:  # noqa: SLF001 - the context made it
            raise stage._error(Diag.STAGE_DROPPED, stage.loc)  # noqa: SLF001
        stage.release()
