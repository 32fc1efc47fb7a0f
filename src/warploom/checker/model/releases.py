"""Releases: what a strong store publishes at its location, and what a fence makes ready for a relaxed one."""

from __future__ import annotations

import numpy as np

from warploom.checker.model.agents import Lanes, Ready, Warp
from warploom.checker.model.clocks import PM, PT, Clock, G, Rows, Triple, X, fitted

_RECEIVED = slice(X, PT + 1)
_SCOPES = ("cta", "cluster", "gpu", "gl", "sys")


def smaller(one: str, other: str) -> str:
    """The smaller of two scopes."""
    return min(one, other, key=_SCOPES.index)


def make_ready(part: Lanes, warp: Warp, clock: Clock, scope: str) -> None:
    """Let the next relaxed stores of these lanes release so much."""
    ready = Ready(part.mask, clock, scope, part.component, part.whole)
    kept = (each for each in part.fenced if each.lanes & ~part.mask or smaller(each.scope, scope) != each.scope)
    part.fenced = (*kept, ready)


def gather(part: Lanes, fenced: dict[str, Clock]) -> None:
    """Add what lanes have fenced, by scope, to what all have fenced that come to a barrier."""
    for each in part.fenced:
        clock = each.of(part.mask)
        if clock is not None and each.scope != "cta":
            held = fenced.setdefault(each.scope, Clock(np.zeros_like(clock.rows)))
            held.join(clock)


def lend(part: Lanes, warp: Warp, fenced: dict[str, Clock]) -> None:
    """Let lanes release what others have fenced before a barrier: the relaxation `fence-before-barrier`."""
    for scope, clock in fenced.items():
        own = [each for each in part.fenced if each.scope == scope and not part.mask & ~each.lanes]
        if any(_includes(each.clock, clock) for each in own):
            continue
        others = (each for each in part.fenced if not (each.lent and each in own))
        part.fenced = (*others, Ready(part.mask, clock.copy(), scope, part.component, warp.time, lent=True))


def borrows(part: Lanes) -> bool:
    """True if a relaxed store of some lanes releases what only other threads have fenced."""
    usable = [each for each in part.fenced if not part.mask & ~each.lanes]
    own = [each for each in usable if not each.lent]
    return any(
        each.lent
        and not any(smaller(each.scope, by.scope) == each.scope and _includes(by.clock, each.clock) for by in own)
        for each in usable
    )


def _includes(one: Clock, other: Clock) -> bool:
    """True if one clock knows all that another one does."""
    if not _covers(one.rows, other.rows):
        return False
    known = one.others or {}
    return all(place in known and _covers(known[place], rows) for place, rows in (other.others or {}).items())


def _covers(one: Rows, other: Rows) -> bool:
    width = other.shape[1]
    return one.shape[1] >= width and bool((one[G : PM + 1, :width] >= other[G : PM + 1]).all())


def given_by(part: Lanes, source: Clock, scope: str) -> list[tuple[str, Clock]]:
    """List the knowledge that a relaxed store of some lanes publishes, by scope; it comes after all that they did."""
    found: dict[str, Clock] = {}
    for each in part.fenced:
        clock = each.of(part.mask)
        if clock is not None:
            reach = smaller(scope, each.scope)
            made = found.setdefault(reach, Clock(np.zeros_like(source.rows)))
            made.rows = fitted(made.rows, clock.rows.shape[1])
            rows = made.rows[G : PM + 1, : clock.rows.shape[1]]
            np.maximum(rows, clock.rows[G : PM + 1], out=rows)
            for place, others in (clock.others or {}).items():
                made.learn_of(place, others)
    found.setdefault(scope, Clock(np.zeros_like(source.rows)))
    for made in found.values():
        made.rows = fitted(made.rows, source.rows.shape[1])
        np.maximum(made.rows[X, : source.rows.shape[1]], source.rows[X], out=made.rows[X, : source.rows.shape[1]])
    return list(found.items())


def publish(published: dict[Triple, Rows], place: Triple, source: Clock) -> None:
    """Make knowledge available at a location."""
    for other, given in ((place, source.rows), *(source.others or {}).items()):
        held = published.get(other)
        if held is None:
            published[other] = given.copy()
        else:
            held = fitted(held, given.shape[1])
            np.maximum(held[:, : given.shape[1]], given, out=held[:, : given.shape[1]])
            published[other] = held


def take(clock: Clock, place: Triple, published: dict[Triple, Rows]) -> None:
    for other, rows in published.items():
        if other == place:
            clock.acquire(Clock(rows))
        else:
            clock.learn_of(other, rows, _RECEIVED)
