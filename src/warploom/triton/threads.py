"""Threads that a program starts: `device="cuda"` is the host in them too."""

from __future__ import annotations

import functools
import threading
from typing import Any

from torch.overrides import TorchFunctionMode

from warploom.triton.patches import Patches


def map_in_threads(patches: Patches, mode: TorchFunctionMode) -> None:
    """Enter a mode of PyTorch, which belongs to one thread, in each thread that is started while the block lasts."""
    start = threading.Thread.start

    def start_with_mode(thread: threading.Thread, *args: Any, **kwargs: Any) -> None:
        run = thread.run

        @functools.wraps(run)
        def run_with_mode() -> None:
            with mode:
                run()

        thread.run = run_with_mode  # type: ignore[method-assign]
        start(thread, *args, **kwargs)

    patches.set(threading.Thread, "start", start_with_mode)
