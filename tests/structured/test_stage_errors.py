"""One wrong kernel for each way to misuse a stage: reported at trace time, at the author's line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warploom.diagnostics import TraceError
from warploom.structured import EveryThread, FirstLanes, ProducerConsumerPipeline
from warploom.trace import kernel, lane, loop, s32, warp_roles, when

Body = Callable[[Any, ProducerConsumerPipeline, Any], None]


def rejected(code: str, *words: str, consumer: str = "every") -> Callable[[Body], None]:
    """Trace a kernel with a body; the error must have the code and the words, and point at the line marked HERE."""

    def check(body: Body) -> None:
        def traced(n: s32) -> None:
            roles = warp_roles(load=1, use=1, other=1)
            signal: Any = EveryThread(roles.use) if consumer == "every" else FirstLanes(roles.use, first=4)
            ring = ProducerConsumerPipeline(2, producer=EveryThread(roles.load), consumer=signal, name="ring")
            body(roles, ring, n)

        with pytest.raises(TraceError) as caught:
            kernel(target="sm_90a")(traced).ptx(3, block=(96, 1, 1))
        error = caught.value
        assert error.code == code
        for word in words:
            assert word in str(error)
        lines, first = inspect.getsourcelines(body)
        marked = [first + at for at, line in enumerate(lines) if "# HERE" in line]
        assert error.loc is not None
        assert (Path(error.loc.file).name, error.loc.line) == (Path(__file__).name, *marked)

    return check


def test_a_stage_that_is_dropped() -> None:
    @rejected("STAGE_DROPPED", "producer stage of `ring`", "release()")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.load:
            for _ in loop(n):
                ring.acquire_producer()  # HERE


def test_a_stage_that_is_released_on_one_path_only() -> None:
    @rejected("STAGE_RELEASED_CONDITIONALLY", "inside a device branch")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.load:
            stage = ring.acquire_producer()
            with when(n > 2):
                stage.release()  # HERE


def test_a_stage_that_is_released_in_a_loop() -> None:
    @rejected("STAGE_RELEASED_CONDITIONALLY", "inside a device loop")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.use:
            stage = ring.acquire_consumer()
            for _ in loop(n):
                stage.release()  # HERE


def test_a_stage_that_is_released_twice() -> None:
    @rejected("STAGE_RELEASED_TWICE", "consumer stage", "the first release is at", Path(__file__).name)
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.use, ring.consume() as stage:
            stage.release()
            stage.release()  # HERE


def test_a_stage_that_is_used_after_its_release() -> None:
    @rejected("STAGE_AFTER_RELEASE", "is used after its release")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.use:
            with ring.consume() as stage:
                pass
            stage.index()  # HERE


def test_a_second_stage_while_the_first_is_held() -> None:
    @rejected("STAGE_ENTERED_TWICE", "is still open")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.use, ring.consume():
            ring.acquire_consumer()  # HERE


def test_a_context_that_is_entered_twice() -> None:
    @rejected("STAGE_ENTERED_TWICE", "is acquired while")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.use:
            context = ring.consume()
            with context:
                pass
            with context:  # HERE
                pass


def test_a_stage_of_another_role() -> None:
    @rejected("STAGE_WRONG_ROLE", "Role `other` acquires a consumer stage", "but its consumer is `use`")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.other, ring.consume():  # HERE
            pass


def test_the_wrong_side() -> None:
    @rejected("STAGE_WRONG_ROLE", "Role `use` acquires a producer stage")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.use, ring.produce():  # HERE
            pass


def test_an_arrival_by_lanes_that_cannot_be_counted() -> None:
    @rejected("UNCOUNTABLE_ARRIVAL", "cannot be counted", consumer="lanes")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.use, ring.consume_explicit() as stage, when(n > 3):
            stage.arrive()  # HERE


def test_an_arrival_of_another_number_of_lanes() -> None:
    @rejected("UNCOUNTABLE_ARRIVAL", "2 lanes of a warp arrive", "declared with 4", consumer="lanes")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.use, ring.consume_explicit() as stage, when(lane() < 2):
            stage.arrive()  # HERE


def test_an_explicit_stage_without_an_arrival() -> None:
    @rejected("STAGE_DROPPED", "never released", consumer="lanes")
    def _(roles: Any, ring: ProducerConsumerPipeline, n: Any) -> None:
        with roles.use, ring.consume_explicit():  # HERE
            pass


def test_a_role_that_is_declared_but_unused() -> None:
    @kernel(target="sm_90a")
    def lonely(n: s32) -> None:
        roles = warp_roles(load=1, use=1)
        ring = ProducerConsumerPipeline(
            2, producer=EveryThread(roles.load), consumer=EveryThread(roles.use), name="ring"
        )
        with roles.load, ring.produce():
            pass

    with pytest.raises(TraceError, match="Role `use` is declared as consumer of `ring` but never acquires") as caught:
        lonely.ptx(1, block=(64, 1, 1))
    assert caught.value.code == "SIDE_UNUSED"
