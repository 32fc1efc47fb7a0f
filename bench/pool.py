"""Work over several processes, until it is done or the time is over."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def spread(
    function: Callable[[T], R], items: Iterable[T], processes: int, end: float, *, in_order: bool = False
) -> Iterator[R]:
    """The results for the items, as they come or in order.

    Items that are not ready at `end` (monotonic), and
    those of several processes that raise an error, which is printed, are left out."""
    if processes <= 1:
        for item in items:
            if time.monotonic() > end:
                return
            yield function(item)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        made = (pool.imap if in_order else pool.imap_unordered)(function, items)
        while True:
            try:
                yield made.next(min(max(end - time.monotonic(), 0.01), 1e6))
            except (StopIteration, multiprocessing.TimeoutError):
                return
            except Exception:  # noqa: BLE001  one item must not end a campaign
                traceback.print_exc()
