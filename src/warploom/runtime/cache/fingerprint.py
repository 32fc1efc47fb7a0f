"""A digest of everything by which a Python value can affect a trace, or None if that cannot be determined.

A function is its code, lines included, and everything the code can reach: defaults, closure, globals, modules.
Equal digests must mean equal traces, also in another process; values for which that may not hold (an array, an open
file, a clock) have no digest.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import os
import re
import reprlib
import sys
import time
import types
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_STABLE = {
    **dict.fromkeys(("builtins", "dataclasses", "enum", "functools", "itertools", "math", "operator", "typing"), ""),
    "numpy": np.__version__,
    "ml_dtypes": ml_dtypes.__version__,
}
"""Packages whose names and version identify their contents; warploom's version is the state of its files."""
_UNSTABLE = ("__import__", "compile", "eval", "exec", "globals", "id", "input", "locals", "open", "vars")
_UNSTABLE_NAMES = ("numpy.random", *(f"builtins.{name}" for name in _UNSTABLE))
_PLAIN = (type(None), bool, int, str, bytes, type(...), type(NotImplemented))
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_GENERATED = ("<string>", dataclasses.dataclass.__code__.co_filename)
"""File names of the methods that `dataclass` generates."""
_WRAPPERS = (*_GENERATED, reprlib.recursive_repr.__code__.co_filename)
"""File names of these methods as they are in a class: from Python 3.13 on, `reprlib` wraps `__repr__`."""
_MOST_OBJECTS = 5000
_IMPORTED = time.time_ns()
_OF_CLASSES = frozenset(
    """
    _abc_impl __abstractmethods__ __annotate__ __annotate_func__ __annotations__ __annotations_cache__ __classcell__
    __dataclass_fields__ __dataclass_params__ __dict__ __doc__ __firstlineno__ __hash__ __match_args__ __module__
    __orig_bases__ __parameters__ __qualname__ __slots__ __static_attributes__ __type_params__ __weakref__
    """.split()  # noqa: SIM905  a list of them would be longer than all that reads it
)
"""Attributes that Python adds to a class and that do not affect its behaviour."""
_OF_C = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
_OF_MEMBERS = ("_value_", "_name_", "__objclass__", "_sort_order_")
_BOOKKEEPING = (types.MemberDescriptorType, types.GetSetDescriptorType, types.BuiltinFunctionType)


class _Unknown(Exception):
    """The value may depend on something that no digest covers."""


def fingerprint(*things: object, lasting: bool = True) -> str | None:
    """Return a digest of values, or None if one of them has none.

    A digest that is not `lasting` is compared within this process only, in which packages do not change.
    """
    try:
        return _Reader(lasting).digest(things).hex()
    except (_Unknown, RecursionError):
        return None


@functools.cache
def source_version() -> str | None:
    """Return a digest of warploom's files by path, size and time: a changed library invalidates all entries.

    None if the running code may differ from the files, because they were changed after the import.
    """
    try:
        files = sorted(_sources(Path(__file__).parents[2]))
    except OSError:
        return None
    if not files or max(changed for _, _, changed in files) >= _IMPORTED:
        return None
    return hashlib.sha256(repr((sys.version, files)).encode()).hexdigest()


def _sources(folder: str | Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and modification time of each file of a package."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".json")):  # choices depend on the heuristics' data
                facts = entry.stat()
                yield entry.path, facts.st_size, facts.st_mtime_ns
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _sources(entry.path)


class _Reader:
    """Traverses values: a reference to an enclosing value is represented by its depth, a finished one by its digest."""

    def __init__(self, lasting: bool) -> None:
        self._lasting = lasting
        self._done: dict[int, tuple[object, bytes]] = {}
        self._open: dict[int, int] = {}
        self._count = 0

    def digest(self, thing: object) -> bytes:
        number = id(thing)
        if number in self._done:
            return self._done[number][1]
        if number in self._open:
            return _join("open", [str(self._open[number]).encode()])
        self._count += 1
        if self._count > _MOST_OBJECTS:
            raise _Unknown
        self._open[number] = len(self._open)
        result = _join(type(thing).__qualname__, self._parts(thing))
        del self._open[number]
        self._done[number] = (thing, result)  # the reference keeps the number from being given to another
        return result

    def _parts(self, thing: Any) -> Iterable[bytes]:
        if type(thing) in _PLAIN:
            return [repr(thing).encode()]
        for kind, reader in _READERS:
            if isinstance(thing, kind):
                return reader(self, thing)
        if dataclasses.is_dataclass(thing):
            return self._record(thing)
        if type(thing).__module__ == "torch" and type(thing).__name__ == "dtype":
            return [repr(thing).encode()]
        raise _Unknown

    def _all(self, things: Iterable[object]) -> list[bytes]:
        return [self.digest(thing) for thing in things]

    def number_(self, thing: complex) -> list[bytes]:
        if type(thing) not in (float, complex):
            raise _Unknown
        return [thing.real.hex().encode(), thing.imag.hex().encode()]

    def scalar_(self, thing: np.generic) -> list[bytes]:
        return [self.digest(thing.dtype), thing.tobytes()]

    def dtype_(self, thing: np.dtype[Any]) -> list[bytes]:
        if thing.hasobject:
            raise _Unknown
        return [repr(thing).encode()]

    def sequence_(self, thing: tuple[Any, ...] | list[Any]) -> list[bytes]:
        if type(thing) not in (tuple, list):
            return [self.digest(type(thing)), *_without_more(thing), *self._all(thing)]
        return self._all(thing)

    def mapping_(self, thing: dict[Any, Any]) -> list[bytes]:
        if type(thing) is not dict:
            raise _Unknown
        return self._all(part for item in thing.items() for part in item)

    def set_(self, thing: set[Any] | frozenset[Any]) -> list[bytes]:
        if type(thing) not in (set, frozenset):
            raise _Unknown
        return sorted(self._all(thing))

    def range_(self, thing: range | slice) -> list[bytes]:
        return self._all((thing.start, thing.stop, thing.step))

    def member_(self, thing: enum.Enum) -> list[bytes]:
        parts = [self.digest(type(thing)), self.digest(thing.name), self.digest(thing.value)]
        return [*_without_more(thing, *_OF_MEMBERS), *parts]

    def _record(self, thing: Any) -> list[bytes]:
        names = [field.name for field in dataclasses.fields(thing)]
        silent = () if not _is_public(type(thing)) else [f.name for f in dataclasses.fields(thing) if not f.compare]
        telling = [name for name in names if name not in silent]
        cached = {
            name
            for kind in type(thing).__mro__
            for name, m in vars(kind).items()
            if isinstance(m, functools.cached_property)
        }
        return [
            self.digest(type(thing)),
            *_without_more(thing, *names, *cached),
            *self._all(part for name in telling for part in (name, getattr(thing, name, None))),
        ]

    def partial_(self, thing: functools.partial[Any]) -> list[bytes]:
        if type(thing) is not functools.partial:
            raise _Unknown
        return [*_without_more(thing), *self._all((thing.func, thing.args, thing.keywords))]

    def method_(self, thing: types.MethodType) -> list[bytes]:
        return self._all((thing.__func__, thing.__self__))

    def builtin_(self, thing: types.BuiltinFunctionType) -> list[bytes]:
        if isinstance(thing.__self__, types.ModuleType):
            return self._named(f"{thing.__self__.__name__}.{thing.__name__}")
        if thing.__self__ is None:
            raise _Unknown
        return [thing.__name__.encode(), self.digest(thing.__self__)]

    def function_(self, thing: types.FunctionType) -> list[bytes]:
        if _is_public(thing):
            return self._named(f"{thing.__module__}.{thing.__qualname__}")
        cells = [cell.cell_contents for cell in thing.__closure__ or () if not _is_empty(cell)]
        notes = {name: note if isinstance(note, str) else (note,) for name, note in thing.__annotations__.items()}
        parts = self._all((thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells, vars(thing), notes))
        for path in dict.fromkeys((*_global_names(thing.__code__), *_annotated_names(notes))):
            parts += [".".join(path).encode(), *self._global(path, thing.__globals__)]
        return parts

    def _global(self, path: tuple[str, ...], space: dict[str, Any]) -> list[bytes]:
        """Return the digest of a global's value; for a module, of the attribute that is accessed."""
        name, *attributes = path
        if name not in space:
            return self._named(f"builtins.{name}") if hasattr(builtins, name) else []
        value = space[name]
        while isinstance(value, types.ModuleType):
            if _is_stable(value.__name__):
                return self._named(".".join((value.__name__, *attributes)))
            if not attributes or not hasattr(value, attributes[0]):
                raise _Unknown
            value = getattr(value, attributes.pop(0))
        return [self.digest(value)]

    def code_(self, code: types.CodeType) -> list[bytes]:
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_name)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        lines = (code.co_filename, code.co_firstlineno, code.co_linetable)
        return self._all((shape, names, lines, code.co_code, code.co_exceptiontable, *code.co_consts))

    def class_(self, kind: type) -> list[bytes]:
        """Represent a class that no stable package names by its bases and members."""
        if _is_public(kind):
            return self._named(f"{kind.__module__}.{kind.__qualname__}")
        if type(kind) not in (type, ABCMeta, enum.EnumMeta):
            raise _Unknown
        parts = self._all((kind.__module__, kind.__qualname__, *kind.__bases__))
        if issubclass(kind, enum.Enum):
            parts += self._all(part for name, member in kind.__members__.items() for part in (name, member.value))
        if dataclasses.is_dataclass(kind):
            parts += [repr(vars(kind)["__dataclass_params__"]).encode()] if "__dataclass_params__" in vars(kind) else []
            parts += self._all(part for field in dataclasses.fields(kind) for part in _field(field))
        for name, member in vars(kind).items():
            if _is_own(kind, name, member):
                parts += self._all((name, *_unwrapped(member)))
        return parts

    def _named(self, name: str) -> list[bytes]:
        if name.startswith(_UNSTABLE_NAMES) or not _is_stable(name):
            raise _Unknown
        if not self._lasting:
            return [name.encode()]
        package = name.partition(".")[0]
        version = source_version() if package == "warploom" else _STABLE[package] or sys.version
        if version is None:
            raise _Unknown
        return [name.encode(), version.encode()]


_READERS: tuple[tuple[Any, Callable[[_Reader, Any], Iterable[bytes]]], ...] = (
    (enum.Enum, _Reader.member_),
    (np.generic, _Reader.scalar_),
    ((float, complex), _Reader.number_),
    (np.dtype, _Reader.dtype_),
    ((tuple, list), _Reader.sequence_),
    (dict, _Reader.mapping_),
    ((set, frozenset), _Reader.set_),
    ((range, slice), _Reader.range_),
    (functools.partial, _Reader.partial_),
    (types.MethodType, _Reader.method_),
    (types.BuiltinFunctionType, _Reader.builtin_),
    (types.FunctionType, _Reader.function_),
    (types.CodeType, _Reader.code_),
    (type, _Reader.class_),
)


def _without_more(thing: object, *known: str) -> tuple[()]:
    """Raise `_Unknown` if an object has attributes other than the known ones."""
    slots = {name for kind in type(thing).__mro__ for name in _slots(kind)}
    if slots.union(getattr(thing, "__dict__", ())) - {*known, "__dict__", "__weakref__"}:
        raise _Unknown
    return ()


def _slots(kind: type) -> tuple[str, ...]:
    named = vars(kind).get("__slots__", ())
    return (named,) if isinstance(named, str) else tuple(named)


def _join(tag: str, parts: Iterable[bytes]) -> bytes:
    made = hashlib.sha256(tag.encode())
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.digest()


def _is_stable(name: str) -> bool:
    return name.partition(".")[0] in (*_STABLE, "warploom")


def _is_public(thing: types.FunctionType | type) -> bool:
    """Return True if a stable package has the object, itself or wrapped, under its name, which then identifies it."""
    if not _is_stable(thing.__module__ or ""):
        return False
    found: object = sys.modules.get(thing.__module__)
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is thing or getattr(found, "__wrapped__", None) is thing


@functools.lru_cache(1024)
def _global_names(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the globals that code reads, each with the attributes accessed on it, including nested code."""
    return tuple(_loaded_names(code))


def _loaded_names(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    path: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"):
            raise _Unknown
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, step.argval)
            continue
        if path:
            yield path
        path = (step.argval,) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    if path:
        yield path
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _loaded_names(constant)


def _annotated_names(notes: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """Yield the globals that textual annotations name, since they define a kernel's parameters."""
    for note in notes.values():
        if isinstance(note, str):
            yield from (tuple(path.split(".")) for path in _DOTTED.findall(note))


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  an empty cell raises
    except ValueError:
        return True
    return False


def _field(field: dataclasses.Field[Any]) -> tuple[object, ...]:
    absent = dataclasses.MISSING
    default = None if field.default is absent else (field.default,)
    factory = None if field.default_factory is absent else (field.default_factory,)
    return (field.name, default, factory, field.init, bool(field.kw_only))


def _is_own(kind: type, name: str, member: object) -> bool:
    """Return True if the author wrote the member; what Python, `dataclass` and `Enum` add is determined by the rest."""
    if isinstance(member, types.FunctionType):
        return not (dataclasses.is_dataclass(kind) and _is_generated(member)) and not _is_public(member)
    is_special = name.startswith("__") and name.endswith("__")
    if isinstance(member, _BOOKKEEPING) or name in _OF_CLASSES or (is_special and isinstance(member, _OF_C)):
        return False
    return not issubclass(kind, enum.Enum) or isinstance(member, property | classmethod | staticmethod)


def _is_generated(method: types.FunctionType) -> bool:
    """Return True if `dataclass` generated a method; one that the author wrote may have the same wrapper."""
    inner: types.FunctionType = inspect.unwrap(method)
    return method.__code__.co_filename in _WRAPPERS and inner.__code__.co_filename in _GENERATED


def _unwrapped(member: object) -> tuple[object, ...]:
    """Return the functions of a property, or of a class or static method."""
    if isinstance(member, property):
        return (member.fget, member.fset, member.fdel)
    if isinstance(member, functools.cached_property):
        return (member.func,)
    return (member.__func__,) if isinstance(member, classmethod | staticmethod) else (member,)
