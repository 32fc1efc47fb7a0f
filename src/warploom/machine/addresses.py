"""The windows of generic addresses."""

from __future__ import annotations

from warploom.machine.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW

WINDOWS = {"global": 0, "const": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
