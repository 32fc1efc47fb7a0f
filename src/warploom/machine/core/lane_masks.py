"""Masks of lanes as bits, in the words of messages, and where a branch takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.hardware.threads import WARP_LANES

Array = npt.NDArray[Any]
_MOST_RUNS = 8
"""Runs of lanes that a message lists."""


def lane_bits(mask: Array) -> int:
    """Lanes as a bit mask: lane 0 is the lowest bit."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def lane_list(mask: Array) -> str:
    """Lanes as ranges: `0-7,12`."""
    lanes = np.flatnonzero(mask).tolist()
    parts: list[str] = []
    while lanes:
        first = last = lanes.pop(0)
        while lanes and lanes[0] == last + 1:
            last = lanes.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts) or "none"


def lanes_named(mask: Array) -> str:
    """Lanes in the words of a message: `lane 3`, `lanes 0-7,12`, or the first and the mask where they are scattered."""
    listed = lane_list(mask)
    if listed.count(",") >= _MOST_RUNS:
        listed = f"{','.join(listed.split(',')[:4])},… ({lane_bits(mask):#010x})"
    return f"lane {listed}" if listed.isdigit() else f"lanes {listed}"


def one_away(condition: Array, taken: int, fall: int, join: int) -> int:
    """The only warp that does not go to the join of a branch at once, as a whole; -1 if there is no such warp."""
    if join not in (taken, fall):
        return -1
    lanes, away = condition.tobytes(), int(fall == join)
    if lanes.count(away) != WARP_LANES:
        return -1
    first = lanes.index(away)
    whole = not first % WARP_LANES and lanes.count(away, first, first + WARP_LANES) == WARP_LANES
    return first // WARP_LANES if whole else -1


def by_target(ways: list[tuple[Array, int]]) -> list[tuple[Array, int]]:
    """Ways that lead to one place are one way."""
    found: dict[int, Array] = {}
    for lanes, target in ways:
        found[target] = found[target] | lanes if target in found else lanes
    return [(lanes, target) for target, lanes in found.items()]
