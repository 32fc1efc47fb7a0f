"""Communication between the lanes of a warp: shuffles, votes, elections; and indices of threads, warps and CTAs."""

from __future__ import annotations

from typing import Literal

from warploom.diagnostics import Diag
from warploom.hardware.threads import WARP_LANES
from warploom.trace.builder import current, here
from warploom.trace.isa.emit import emit
from warploom.trace.language.packing import merge, split
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value, special

ALL = -1
"""The mask of all lanes."""
_LAST_LANE = WARP_LANES - 1
_WARP_SHIFT = _LAST_LANE.bit_length()
_MODES = {"up": 0, "down": _LAST_LANE, "bfly": _LAST_LANE, "idx": _LAST_LANE}
"""The clamp of each mode for whole warps."""


def shuffle(
    value: Value, mode: Literal["up", "down", "bfly", "idx"], amount: Value | int, members: Value | int = ALL
) -> Value:
    """Another lane's value: `idx` of lane `amount`, `up` and `down` that far away, `bfly` of lane ^ amount."""
    row = TYPES[value.type]
    if mode not in _MODES or row.kind == "pred":
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a shuffle `{mode}` of .{value.type}")
    if row.bits == 64:
        halves = (shuffle(half, mode, amount, members) for half in split(value, "u32"))
        return merge(value.type, *halves)
    word = value if row.bits == 32 else value.bits("u16").to("u32")
    moved, _ = emit(f"shfl.sync.{mode}.b32", word, amount, _MODES[mode], members)
    return moved.bits(value.type) if row.bits == 32 else moved.to("u16").bits(value.type)


def vote_all(condition: Value, members: Value | int = ALL) -> Value:
    """Return whether a condition holds in every lane."""
    return emit("vote.sync.all.pred", condition, members)[0]


def vote_any(condition: Value, members: Value | int = ALL) -> Value:
    """Return whether a condition holds in some lane."""
    return emit("vote.sync.any.pred", condition, members)[0]


def ballot(condition: Value, members: Value | int = ALL) -> Value:
    """Return one bit per lane: set where a condition holds."""
    return emit("vote.sync.ballot.b32", condition, members)[0]


def elect(members: Value | int = ALL) -> Value:
    """True in one lane of the warp."""
    _, chosen = emit("elect.sync", members)
    return chosen


def lane() -> Value:
    """The lane's number in its warp."""
    return special("laneid")


def thread() -> Value:
    """The thread's number in its CTA, along x."""
    return special("tid.x")


def warp_index() -> Value:
    """The warp's number in its CTA; taken from lane 0, so that branches on it are known to be uniform."""
    builder = current("warp_index()")
    key = ("warp_index",)
    if builder.known(key) is None:
        with builder.prologue():
            builder.root.known[key] = shuffle(thread() >> _WARP_SHIFT, "idx", 0)
    return builder.root.known[key]


def cta_index(axis: Literal["x", "y", "z"] = "x") -> Value:
    """The CTA's number in the grid."""
    return special(f"ctaid.{axis}")
