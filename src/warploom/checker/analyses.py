"""Analyses of a kernel's text are made once: it is checked with other sizes, profiles and SMs too."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from warploom.ptx.analysis.control_flow import Flow

Found = TypeVar("Found")
_MOST = 64
"""Kernels whose results are kept."""


def once(analysis: Callable[[Flow], Found]) -> Callable[[Flow], Found]:
    """Keep the results of an analysis for the latest kernels."""
    known: dict[int, tuple[Flow, Found]] = {}

    @wraps(analysis)
    def remembered(flow: Flow) -> Found:
        held = known.get(id(flow))
        if held is None or held[0] is not flow:
            if len(known) >= _MOST:
                del known[next(iter(known))]
            held = known[id(flow)] = (flow, analysis(flow))
        return held[1]

    return remembered
