"""The stand-in for CuTe DSL's library of CUDA functions, compiled by the host's C compiler and connected to Python."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from warploom.diagnostics import Diag

_WIDE, _NARROW, _SIGNED = (ctypes.POINTER(each) for each in (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int))
_MAP = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, _WIDE, _WIDE)
_CODES = (ctypes.c_int,) * 4
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_TILED = ctypes.CFUNCTYPE(ctypes.c_int, *_MAP, _NARROW, _NARROW, *_CODES)
_IM2COL = ctypes.CFUNCTYPE(ctypes.c_int, *_MAP, _SIGNED, _SIGNED, ctypes.c_uint32, ctypes.c_uint32, _NARROW, *_CODES)
_ATTRIBUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
_UNSUPPORTED = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The functions that the library calls; those of the driver return its status."""

    launch: Callable[[bytes, int, Any], int]
    tiled: Callable[..., int]
    im2col: Callable[..., int]
    attribute: Callable[[int], int]
    unsupported: Callable[[bytes], None]


class Library:
    """The library in a folder; it stays loaded until the process ends, and disconnected does nothing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "libwarploom_cute_runtime.so"
        _compile(self.path)
        self._library = ctypes.CDLL(str(self.path), mode=getattr(ctypes, "RTLD_GLOBAL", 0))
        self._held: tuple[Any, ...] = ()

    def connect(self, callbacks: Callbacks) -> None:
        self._held = (
            _LAUNCH(callbacks.launch),
            _TILED(callbacks.tiled),
            _IM2COL(callbacks.im2col),
            _ATTRIBUTE(callbacks.attribute),
            _UNSUPPORTED(callbacks.unsupported),
        )
        self._library.warploom_connect(*self._held)

    def disconnect(self) -> None:
        self._library.warploom_connect(*[None] * len(self._held))
        self._held = ()


def _compile(path: Path) -> None:
    name = os.environ.get("CC", "cc")
    compiler = shutil.which(name)
    if compiler is None:
        what = (
            f"`warploom.cutedsl` compiles a small library, and there is no C compiler `{name}`; install one or set CC"
        )
        raise Diag.BAD_LAUNCH.error(what=what)
    source = resources.files("warploom.cutedsl").joinpath("runtime.c").read_bytes()
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-", "-o", str(path)]
    done = subprocess.run(command, input=source, capture_output=True, check=False)  # noqa: S603  the user's compiler
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[:200]
        raise Diag.BAD_LAUNCH.error(what=f"`{compiler}` does not compile a library (status {done.returncode}): {said}")
