"""Programs ready to run: kept in memory by their text, and between processes in a cache on disk."""

from __future__ import annotations

import atexit
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np

from warploom.hardware.targets import machine as machine_of
from warploom.host.launch import entry_of
from warploom.host.program import Printed, Ptx, text_of
from warploom.machine.engine.store import Store
from warploom.machine.translate.stored import packed, unpacked
from warploom.machine.translate.translator import Program, translate
from warploom.ptx.syntax.model import Module
from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.pickling import without_collection

Key = tuple[str | int, ...]

_SHORTEST_STORED = 1 << 12
"""Characters of the shortest text whose program is stored: a shorter one is prepared in a few milliseconds."""
_disk: list[tuple[Callable[[], Store], Callable[[], str | None]]] = []
"""The cache on disk and the version of the sources, if a cache was given."""


def keep_programs(store: Callable[[], Store], version: Callable[[], str | None]) -> None:
    """Keep programs in a cache, valid for one version of the sources; None disables it."""
    _disk[:] = [(store, version)]


_change = RLock()
"""Held while programs that are kept change: several threads may launch at the same time. A fork waits until no thread
has it."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_change.acquire, after_in_parent=_change.release, after_in_child=_change.release)


@dataclass
class Kept:
    """Values with their sizes; the oldest are dropped when all together exceed `capacity`."""

    capacity: int
    _values: dict[Any, tuple[Any, int]] = field(default_factory=dict)

    def get(self, key: object) -> Any:
        """The value of a key, or None."""
        found = self._values.get(key)
        return None if found is None else found[0]

    def put(self, key: object, value: Any, size: int) -> None:
        with _change:
            self._values[key] = (value, size)
            while len(self._values) > 1 and sum(each for _, each in self._values.values()) > self.capacity:
                del self._values[next(iter(self._values))]

    def clear(self) -> None:
        with _change:
            self._values.clear()


MODULES = Kept(4 << 20)
"""Modules by their text; sizes are characters."""
PROGRAMS = Kept(1 << 16)
"""Modules with one of their kernels translated; sizes are statements, of one or two kilobytes each."""


def module_of(program: Ptx) -> Module:
    """The module of a program, parsed once."""
    if isinstance(program, Module):
        return program
    text = text_of(program)
    module: Module | None = MODULES.get(text)
    if module is None:
        module = parse(text)
        MODULES.put(text, module, len(text))
    return module


@dataclass(slots=True)
class Prepared:
    """A program in memory, and its place on disk."""

    module: Module
    program: Program
    key: Key | None
    """None for a program that is not stored."""

    def keep(self) -> None:
        """Store a program that has run, if texts were written for it since it was stored: when it runs again, or when
        the process ends, so that a first launch does not wait for it.
        """
        self.program.end_run()
        if self.key is None or not self.program.has_new_texts:
            return
        with _change:
            due = [_waiting.pop(self.key, None)]
            if due[0] is None:
                _waiting[self.key] = self, _disk[0][0]()
            if len(_waiting) > _MOST_WAITING:
                due.append(_waiting.pop(next(iter(_waiting))))
        for each in due:
            if each is not None:
                each[0].store(each[1])

    def store(self, store: Store) -> None:
        """Store the program as it is now."""
        if self.key is not None and self.program.store_texts():
            with without_collection():
                store.put(self.key, packed(self.program))


_waiting: dict[Key, tuple[Prepared, Store]] = {}
"""Programs that have run once and are not stored, each with its cache."""
_MOST_WAITING = 256


@atexit.register
def store_waiting() -> None:
    """Store the programs that are not stored yet; at the end of the process too."""
    with _change:
        due = list(_waiting.values())
        _waiting.clear()
    for prepared, store in due:
        prepared.store(store)


def prepared_program(program: Ptx, entry: str | None, follow_x: int, preemptible: bool) -> Prepared:
    """A module and one of its kernels, translated: from memory, from disk, or anew."""
    text = program if isinstance(program, str) else program.text if isinstance(program, Printed) else ""
    module = program if isinstance(program, Module) else MODULES.get(text)
    if module is not None and (known := PROGRAMS.get(_variant(module, entry, follow_x, preemptible))):
        found: Prepared = known
        return found
    key, made = _key(text, entry, follow_x, preemptible), None
    with without_collection():
        if key is not None and (stored := _disk[0][0]().get(key)) is not None:
            made = unpacked(stored)
        if made is None:
            module = module_of(program)
            machine_of(module.target[0])  # an unknown target is reported before anything else
            made = translate(module, entry_of(module, entry), follow_x=follow_x, preemptible=preemptible)
        else:
            module = made.module
            MODULES.put(text, module, len(text))
    prepared = Prepared(module, made, key)
    PROGRAMS.put(_variant(module, entry, follow_x, preemptible), prepared, len(made.kernel.body or ()))
    return prepared


def _variant(module: Module, entry: str | None, follow_x: int, preemptible: bool) -> tuple[object, ...]:
    return id(module), entry_of(module, entry).name, follow_x, preemptible


def _key(text: str, entry: str | None, follow_x: int, preemptible: bool) -> Key | None:
    """The place of a program on disk; None for one that is not stored."""
    version = _disk[0][1]() if _disk and len(text) >= _SHORTEST_STORED else None
    if version is None:
        return None
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    return ("program", digest, entry or "", follow_x, preemptible, version, np.__version__)
