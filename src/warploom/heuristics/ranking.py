"""`rank`: the configurations for a problem on a device, the fastest expected first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from warploom.heuristics import sm100
from warploom.heuristics.device import Device
from warploom.heuristics.problem_key import ProblemKey
from warploom.heuristics.sm90 import ranking as sm90
from warploom.heuristics.sm90.device_data import data_for
from warploom.structured.config.base import GemmConfig


@dataclass(frozen=True)
class _Ranker:
    """The functions of one architecture."""

    rank: Callable[[ProblemKey, Device], Iterator[Any]]
    fallback: Callable[[ProblemKey, Device], Any]
    """The configuration whose violations explain why none fits."""
    describe: Callable[[Device], str]


_SM90 = _Ranker(sm90.rank, sm90.fallback, lambda device: data_for(device).describe(device))
_SM100 = _Ranker(sm100.rank, sm100.fallback, lambda _: "waves rule, not measured")
_RANKERS: Mapping[str, _Ranker] = {"sm_90a": _SM90, "sm_100a": _SM100, "sm_103a": _SM100}


def rank(problem: ProblemKey, device: Device) -> Iterator[GemmConfig]:
    """Yield all configurations that fit the problem, the fastest expected first; each is constructed when asked for.

    Hopper: the entry of the device's measured table, then the order of decision trees and cost model. A GPU that was
    not measured gets the cost model with its own number of SMs. Blackwell: fewest waves, then the smallest tile.
    """
    return _RANKERS[device.target].rank(problem, device)


@lru_cache(maxsize=4096)
def choose(problem: ProblemKey, device: Device) -> Any:
    """Return the first configuration of `rank`; if none fits, one whose violations say why."""
    ranker = _RANKERS[device.target]
    return next(ranker.rank(problem, device), None) or ranker.fallback(problem, device)


_OWN_CHOICE = 16
"""Rows up to which every m has a choice of its own."""
_ROUNDED = 8
"""The multiple to which more rows are rounded up: a tile with A and B swapped has a multiple of 8 columns along m."""


def shared(problem: ProblemKey, device: Device) -> ProblemKey:
    """Return the problem whose choice another shares: m is rounded up, unless the device's table has the problem.

    Kernels take their sizes at run time, and nearby m have the same number of tiles: they need neither a ranking nor a
    kernel of their own.
    """
    if device.target == "sm_90a" and data_for(device).is_measured_on(device) and data_for(device).find(problem):
        return problem
    return replace(problem, m=rounded_rows(problem.m))


def rounded_rows(m: int) -> int:
    """Return the m, not less than this one, whose choice it shares."""
    return m if m <= _OWN_CHOICE else -(-m // _ROUNDED) * _ROUNDED


def rows_in_table(problem: ProblemKey, device: Device) -> frozenset[int]:
    """Return every m for which the device's table has the problem, which share their choice with no other."""
    data = data_for(device)
    if device.target != "sm_90a" or not data.is_measured_on(device):
        return frozenset()
    return frozenset(m for m in {key[1] for key in data.table} if data.find(replace(problem, m=m)))


def source_of(device: Device) -> str:
    """Describe the data by which configurations are ranked on a device, and what of it is extrapolated."""
    return _RANKERS[device.target].describe(device)
