"""Random protocols: the checker proves none of which the search through all executions finds two outcomes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from protocol_explorer import explored
from protocols import Act, Protocol, protocol
from soundness import is_unsound, report_of, verdict_of

FENCED = (Act("st", 0, value=7), Act("fence", scope="gpu"), Act("st", 1, value=8, sem="relaxed", scope="gpu"))
POLLED = (Act("poll", 1, value=8, sem="relaxed", scope="gpu"), Act("fence", scope="gpu"), Act("ld", 0))


def passing(first: tuple[Act, ...], second: tuple[Act, ...], ctas: tuple[int, ...] = (0, 1)) -> Protocol:
    """Two warps with two locations in global memory."""
    return Protocol("test", (first, second), ctas, 0, 2)


@pytest.mark.parametrize("first", [0, 100, 200, 300])
def test_no_verdict_is_unsound(first: int) -> None:
    for number in range(first, first + 50):
        made = protocol(number)
        assert not is_unsound(verdict_of(made), explored(made)), number


def test_no_verdict_on_fresh_protocols_is_unsound() -> None:
    for number in (random.randrange(1 << 40) for _ in range(50)):
        made = protocol(number)
        assert not is_unsound(verdict_of(made), explored(made)), number


def test_most_protocols_without_a_defect_are_proved() -> None:
    right = [made for made in map(protocol, range(0, 400, 4)) if not explored(made).is_wrong]
    verdicts = Counter(report_of(made).verdict for made in right)
    assert verdicts["PROVED"] > 0.8 * len(right) > 30  # some wait for a flag whose stores have no order: INCOMPLETE
    assert verdicts["REFUTED"] < 0.1 * len(right)


@pytest.mark.parametrize(
    ("made", "is_wrong"),
    [
        (passing(FENCED, POLLED), False),
        (passing(FENCED[::2], POLLED), True),
        (passing(FENCED, POLLED[::2]), True),
        (passing((FENCED[0], Act("fence", scope="cta"), FENCED[2]), POLLED), True),
        (passing((FENCED[0], Act("fence", scope="cta"), FENCED[2]), POLLED, (0, 0)), False),
    ],
    ids=["whole", "no fence before", "no fence after", "narrow fence", "narrow fence in one CTA"],
)
def test_messages_through_memory(made: Protocol, is_wrong: bool) -> None:
    assert explored(made).is_wrong == is_wrong
    assert (report_of(made).verdict == "REFUTED") == is_wrong


def test_an_acquire_whose_value_decides_nothing_orders_nothing() -> None:
    """Another interleaving loads the flag before it is set."""
    first = (Act("st", 0, value=7), Act("st", 1, value=8, sem="release", scope="gpu"))
    second = (Act("ld", 1, sem="acquire", scope="gpu"), Act("ld", 0))
    made = passing(first, second)
    assert explored(made).differs
    assert report_of(made).verdict == "REFUTED"


def test_an_arrival_of_copies_does_not_speak_for_later_copies_of_the_open_group() -> None:
    first = (Act("cp", 0, 2), Act("cp_arrive", barrier=0), Act("cp", 1, 3), Act("cp_arrive", barrier=1))
    second = (Act("wait", barrier=0, sem="acquire"), Act("ld", 1))
    made = Protocol("test", (first, second), (0, 0), 2, 4, (1, 1))
    assert explored(made).differs
    assert {finding.code for finding in report_of(made)} == {"RACE_RAW"}
