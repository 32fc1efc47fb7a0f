"""Compiled code of kernels, one entry of the cache for all kernels of a computer.

An object file has the kernels that were compiled together. The entry is written when the code that it lacks is a
quarter of it and more than a few launches compile, and when the process ends: a process that compiles a little for each
of a hundred programs does not write everything a hundred times.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from warploom.machine.engine.store import store

QUICK, OPTIMISED = 0, 2
"""LLVM's levels of code generation; texts need no optimisation passes."""
_FRACTION = 4
_LEAST = 1 << 17
"""Bytes that are not written before the process ends: a launch of a new kernel compiles 10,000 to 50,000."""
NO_OBJECT = ""


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a kernel: its object (`NO_OBJECT` for a form that has none), LLVM's level of code generation, and the
    tables that it looks up.
    """

    object: str
    level: int
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """An object file and the kernels that were compiled into it; some may have better code elsewhere by now."""

    kernels: tuple[str, ...]
    content: bytes


class Objects:
    """The code of kernels for one version of the engine. A kernel is worth another save when warps have executed it
    `often` since the last.
    """

    def __init__(self, version: str, often: int) -> None:
        self._version, self._often = version, often
        self._kernels: dict[str, Code] = {}
        self._files: dict[str, ObjectFile] = {}
        self._executions: Counter[str] = Counter()
        """By a warp, in all processes that have saved them."""
        self._more: Counter[str] = Counter()
        """Those of this process that are not saved."""
        self._here: Counter[str] = Counter()
        """Those of this process."""
        self._stored = self._unsaved = 0
        """Bytes in the cache, and bytes that are not."""
        self._is_read = self._has_more = False
        _all.add(self)

    def get(self, name: str) -> Code | None:
        """The code of a kernel, if it is known."""
        if not self._is_read:
            self._is_read = True
            self._read()
        return self._kernels.get(name)

    def file(self, object_: str) -> ObjectFile:
        """An object."""
        return self._files[object_]

    def add(self, kernels: Mapping[str, tuple[str, ...]], level: int, content: bytes) -> None:
        """Keep an object with kernels, given by name with their tables; without content they have no code."""
        name = hashlib.sha256(repr((sorted(kernels), level)).encode()).hexdigest() if content else NO_OBJECT
        self._kernels |= {kernel: Code(name, level, tables) for kernel, tables in kernels.items()}
        if content:
            self._files[name] = ObjectFile(tuple(kernels), content)
        self._unsaved += len(content) + sum(map(len, kernels))

    def count(self, name: str, executions: int) -> int:
        """Count executions of a kernel; their number in this process."""
        self._more[name] += executions
        self._here[name] += executions
        self._has_more = self._has_more or self._more[name] >= self._often
        return self._here[name]

    def executions(self, name: str) -> int:
        """The executions of a kernel in all processes."""
        return self._executions[name] + self._more[name]

    def save(self, *, everything: bool = False) -> None:
        """Add what is new to what the cache holds by now, if it is much or `everything` is to be saved."""
        due = self._unsaved >= max(self._stored // _FRACTION, _LEAST)
        if not due and not (everything and (self._unsaved or self._has_more)):
            return
        self._unsaved, self._has_more = 0, False
        place = store()
        if place is None:
            return
        self._executions.clear()
        self._read()
        self._executions += self._more
        self._more.clear()
        used = {code.object for code in self._kernels.values()}
        self._files = {name: file for name, file in self._files.items() if name in used}
        files = {name: (file.kernels, len(file.content)) for name, file in self._files.items()}
        rows = {
            name: (code.object, code.level, code.tables, self._executions[name]) for name, code in self._kernels.items()
        }
        content = json.dumps((files, rows)).encode() + b"\n" + b"".join(file.content for file in self._files.values())
        place.put(("engine", self._version), content)
        self._stored = len(content)

    def _read(self) -> None:
        """Add what the cache holds, which has verified the checksum of its entry and who wrote it."""
        place = store()
        content = None if place is None else place.get(("engine", self._version))
        if content is None:
            return
        self._stored = len(content)
        head, _, rest = content.partition(b"\n")
        files, rows = json.loads(head)
        at = 0
        for name, (kernels, size) in files.items():
            self._files.setdefault(name, ObjectFile(tuple(kernels), rest[at : at + size]))
            at += size
        for name, (object_, level, tables, executions) in rows.items():
            self._executions[name] += executions
            if name not in self._kernels or self._kernels[name].level < level:
                self._kernels[name] = Code(object_, level, tuple(tables))


_all: weakref.WeakSet[Objects] = weakref.WeakSet()


@atexit.register
def _save() -> None:
    """Save what is left when the process ends."""
    for objects in list(_all):
        objects.save(everything=True)
