"""The search for an order of `setmaxnreg` that hangs, against all interleavings of small systems."""

from __future__ import annotations

import random

import pytest

from warploom.checker.model import register_budget
from warploom.checker.model.register_budget import Step, TooManyOrders, first_hang

System = list[list[Step]]


def drawn() -> tuple[System, int]:
    """A few warps with a few steps each; some come after those of other warps, or after a barrier of all warps."""
    warps = random.randint(1, 4)
    found: System = [[] for _ in range(warps)]
    known = [[0] * warps for _ in range(warps)]

    def add(warp: int, gain: int) -> None:
        found[warp].append(Step(gain, tuple(known[warp])))
        known[warp][warp] += 1

    def meet(some: list[int]) -> None:
        every = [max(counts) for counts in zip(*(known[each] for each in some), strict=True)]
        for each in some:
            known[each] = list(every)

    for _ in range(random.randint(1, 6)):
        gain = random.choice((-5, -3, -2, -1, 1, 2, 3, 5))
        if random.random() < 0.3:
            meet(random.sample(range(warps), random.randint(1, warps)))
        for warp in range(warps) if random.random() < 0.4 else [random.randrange(warps)]:
            if len(found[warp]) < 3:
                add(warp, gain)
    return found, random.randint(0, 6)


def hangs(system: System, free: int) -> bool:
    """True if some interleaving ends before all steps are made: every order of every step is tried."""
    start = (0,) * len(system)
    seen, ahead = {start}, [start]
    while ahead:
        state = ahead.pop()
        left = free - sum(step.gain for mine, count in zip(system, state, strict=True) for step in mine[:count])
        moves = [
            (*state[:at], count + 1, *state[at + 1 :])
            for at, count in enumerate(state)
            if count < len(system[at])
            and all(done >= needed for done, needed in zip(state, system[at][count].before, strict=True))
            and system[at][count].gain <= left
        ]
        if not moves and any(count < len(mine) for mine, count in zip(system, state, strict=True)):
            return True
        for each in moves:
            if each not in seen:
                seen.add(each)
                ahead.append(each)
    return False


def test_the_search_agrees_with_all_interleavings() -> None:
    found = {True: 0, False: 0}
    for _ in range(3000):
        system, free = drawn()
        expected = hangs(system, free)
        state = first_hang(system, free)
        assert (state is not None) == expected, (system, free)
        found[expected] += 1
    assert min(found.values()) > 300


def test_warps_that_are_alike_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen warps take and give back: 3^16 states, of which few differ in more than the names of warps."""
    gains = (1, -1)
    own = [[tuple(number * (at == warp) for at in range(16)) for number in range(2)] for warp in range(16)]
    alike = [[Step(gain, before) for gain, before in zip(gains, mine, strict=True)] for mine in own]
    different = [[step._replace(gain=step.gain * (at + 1)) for step in mine] for at, mine in enumerate(alike)]
    monkeypatch.setattr(register_budget, "MOST_STATES", 200)
    assert first_hang(alike, 1) is None
    assert first_hang(alike, 0) is not None
    with pytest.raises(TooManyOrders):
        first_hang(different, 40)
