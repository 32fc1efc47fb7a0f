"""The stand-in for the CUDA runtime, connected to Python."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WIDE, _NARROW, _SIGNED = (ctypes.POINTER(each) for each in (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int))
_MAP = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, _WIDE, _WIDE)
_CODES = (ctypes.c_int,) * 4
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, _NARROW, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)
)  # fmt: skip
_TILED = ctypes.CFUNCTYPE(ctypes.c_int, *_MAP, _NARROW, _NARROW, *_CODES)
_IM2COL = ctypes.CFUNCTYPE(ctypes.c_int, *_MAP, _SIGNED, _SIGNED, ctypes.c_uint32, ctypes.c_uint32, _NARROW, *_CODES)
_MEMORY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)
_VARIABLE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
_END = ctypes.CFUNCTYPE(None, ctypes.c_int)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The functions that the runtime calls; those that return a number return CUDA's status."""

    launch: Callable[[bytes, Any, int, Any], int]
    tiled: Callable[..., int]
    im2col: Callable[..., int]
    memory: Callable[[int, int], None]
    variable: Callable[[bytes], int | None]
    end: Callable[[int], None]


class Runtime:
    """The loaded runtime; it stays loaded until the process ends, and disconnected launches nothing."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        self._held: tuple[Any, ...] = ()

    def connect(self, callbacks: Callbacks, hardware: tuple[int, ...]) -> None:
        self._held = (
            _LAUNCH(callbacks.launch),
            _TILED(callbacks.tiled),
            _IM2COL(callbacks.im2col),
            _MEMORY(callbacks.memory),
            _VARIABLE(callbacks.variable),
            _END(callbacks.end),
        )
        self._library.warploom_connect(*self._held, (ctypes.c_int * len(hardware))(*hardware))

    def disconnect(self) -> None:
        self._library.warploom_connect(*[None] * (len(self._held) + 1))
        self._held = ()


def call_main(path: Path, arguments: list[str]) -> int:
    """Call `main` of a program, and write what it left in the buffers of C."""
    program = ctypes.CDLL(str(path))
    given = [each.encode() for each in arguments]
    status = int(program.main(len(given), (ctypes.c_char_p * (len(given) + 1))(*given, None)))
    flush_c()
    return status


def flush_c() -> None:
    """Write what a program left in the buffers of C."""
    ctypes.CDLL(None).fflush(None)
