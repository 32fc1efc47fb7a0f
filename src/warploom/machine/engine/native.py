"""Native kernels compiled with llvmlite: each form once per computer, then read from a cache.

A kernel has a symbol that is named after a digest of everything that its text depends on: the form, the engine's
sources, the processor and the version of llvmlite. The kernels that a program needs first are compiled together. A
kernel is called only after the linker has given its address; where that fails, the reference executes everything.

The kernel of a record is compiled when groups have executed its form a few times; until then the reference executes
it, because LLVM takes as long for a form as NumPy for a hundred executions. It is compiled without optimisation first,
in a third of the time; for most instructions it is nearly as fast. It is compiled again, with optimisation, once warps
have executed it so often that this pays. The tables that call it get the new address each time. All have the same
results, bit for bit.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata, resources
from threading import RLock
from typing import Any, Protocol

from warploom.machine.engine.control_kernels import Barrier, Branch, Effect, Escape, FlagWait, Goto, Note, Skip
from warploom.machine.engine.kernels import Arithmetic, UniformArithmetic
from warploom.machine.engine.llvm_ops import Host
from warploom.machine.engine.matrix_kernels import MatrixMove
from warploom.machine.engine.memory_kernels import Access
from warploom.machine.engine.mma_kernels import WarpMma
from warploom.machine.engine.objects import NO_OBJECT, OPTIMISED, QUICK, Code, ObjectFile, Objects
from warploom.machine.engine.warp_kernels import Elect, Shuffle
from warploom.machine.routines.call_lists import CallList, Calls
from warploom.machine.routines.column_kernels import Columns, Unpack
from warploom.machine.routines.copy_kernels import MbarrierArrive, MbarrierWait, TensorLoad
from warploom.machine.routines.granule_kernels import BoxCopy, Gather, Granules, LaneCopy
from warploom.machine.routines.late_copies import LateCommit, LateCopy, LateWait, Perform
from warploom.machine.routines.product_kernels import Multiply, Products
from warploom.machine.routines.turn_loop import TurnLoop
from warploom.machine.semantics import tables
from warploom.machine.semantics.vectors import EngineError, UnsupportedError

Form = (
    Arithmetic
    | UniformArithmetic
    | Access
    | MatrixMove
    | WarpMma
    | Shuffle
    | Elect
    | Goto
    | Branch
    | Skip
    | Escape
    | FlagWait
    | Barrier
    | Effect
    | Note
    | MbarrierWait
    | MbarrierArrive
    | TensorLoad
    | Multiply
    | BoxCopy
    | Gather
    | Unpack
    | LaneCopy
    | LateCopy
    | LateCommit
    | LateWait
    | Perform
    | CallList
    | TurnLoop
)

_ENTER = """define i64 @{name}(ptr %context, ptr %record) {{
  %kernel = load ptr, ptr %record
  %result = musttail call i64 %kernel(ptr %context, ptr %record)
  ret i64 %result
}}
"""
_PROBE = "define i64 @{name}(ptr %context, ptr %record) {{\n  ret i64 {magic}\n}}\n"
_MAGIC = 0x5741_5250
_PARTS, _SYMBOL = re.compile(r"\n+(?=define |declare )"), re.compile(r"@[\w.$]+")
"""The end of each function of a text, and its name."""
_PACKAGES = (
    "machine.engine",
    "machine.routines",
    "machine.semantics",
    "machine.numerics",
    "machine.memory",
    "hardware",
)
_OFTEN = 1 << 17
"""Executions by a warp after which a quick kernel is optimised: about what its compilation costs (1 to 60 ms) divided
by what is gained (10 ns for an addition, 300 ns for an `mma.sync`)."""
SELDOM = 64
"""Executions by a group up to which the reference executes a form that is not compiled."""
_FEW = 4
"""An estimate of the executions of a form in one table up to which the reference executes it at first."""
_TOGETHER = 4
"""A form is compiled together with others if it has so large a part (one divided by this) of their executions."""
_COSTS: dict[type, int] = {WarpMma: 16, Access: 2}
"""The time that LLVM takes for a form divided by that of NumPy for an execution, in those of arithmetic."""
_REPLACEABLE = (Arithmetic, UniformArithmetic, Access, MatrixMove, WarpMma)
"""The forms that the reference can execute instead of a kernel, in runs without observers."""


_FINDING, _COMPILING = RLock(), RLock()
"""Held while kernels are looked up, and while they are compiled and linked: LLVM lets other threads run, which may
launch, or fork. A fork waits until no thread has them, since the child would wait for that thread forever."""


def installed() -> str | None:
    """The version of llvmlite, if it is installed."""
    try:
        return metadata.version("llvmlite")
    except metadata.PackageNotFoundError:
        return None


@cache
def _sources() -> str:
    """A digest of the engine's sources, and of those that give it constants and tables."""
    digest = hashlib.sha256()
    for package in (f"warploom.{name}" for name in _PACKAGES):
        for file in sorted(resources.files(package).iterdir(), key=lambda each: each.name):
            if file.name.endswith(".py"):
                digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


@dataclass(slots=True, eq=False)
class Kernel:
    """Compiled code of a form; it has an address once it is linked."""

    name: str
    form: Form
    words: int
    level: int
    address: int = 0
    """0 for code that is not linked: the reference executes the form."""
    executions: int = 0
    """Those by groups of this process while it has no address."""
    has_code: bool = True
    """False for a form of which it is known that it has none."""


@dataclass(frozen=True, slots=True)
class Routines:
    """Native code that is called for a whole operation: matrix products of the tensor cores, copies of granules."""

    products: Products
    granules: Granules
    columns: Columns
    calls: Calls


class Caller(Protocol):
    """A table of records with the addresses of kernels."""

    def enter_addresses(self) -> None: ...


class Engine:
    """The native kernels of this process, for this computer's processor or for a lesser one, with vectors of as many
    `lanes` as it has or of others. A kernel is optimised when warps have executed it `often`, with 0 at once; it is
    compiled when groups have executed its form `seldom` times, with 0 at once.
    """

    def __init__(
        self, processor: str = "", features: str = "", lanes: int = 0, often: int = _OFTEN, seldom: int = 0
    ) -> None:
        with _COMPILING:
            import llvmlite.binding as llvm

            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            self._llvm: Any = llvm
            if not processor:
                processor, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
            target = llvm.Target.from_default_triple()
            self._triple = target.triple
            self._machines = {
                level: target.create_target_machine(
                    cpu=processor, features=features, opt=level, reloc="pic", codemodel="default"
                )
                for level in (QUICK, OPTIMISED)
            }
            self._often, self._first, self.seldom = often, QUICK if often else OPTIMISED, seldom
            self.counted_together = max(often // 128, 1)
            """Executions of routines that are counted together."""
            # LLVM's other linker aborts the process where free memory is so scattered that it puts parts of an object
            # 2 GB apart.
            jit_link = sys.platform != "win32"
            self._linker = llvm.create_lljit_compiler(self._machines[OPTIMISED], use_jit_link=jit_link)
            arm = platform.machine().lower() in ("arm64", "aarch64")
            flags = set(features.split(","))
            lanes = lanes or (16 if "+avx512f" in flags else 8)
            self.host = Host(lanes=lanes, fused=arm or "+fma" in flags, rounds=arm or "+sse4.1" in flags)
            words = (_sources(), installed() or "", self._triple, processor, features, repr(self.host))
            self.version = hashlib.sha256(repr(words).encode()).hexdigest()
            """A digest of everything that kernels depend on, apart from their forms."""
            self._objects = Objects(self.version, often // 8)
            _all.add(self)
            self._texts: dict[str, tuple[str, frozenset[str]]] = {}
            """The texts and tables of kernels that are not compiled yet."""
            self._kernels: dict[Form, Kernel | None] = {}
            self._addresses: dict[str, dict[str, int]] = {}
            """The addresses of kernels, by their object."""
            self._links: list[Any] = []
            self.escape = 0
            """The address of the code that lets Python execute an instruction, for kernels without an address."""
            self._uncompiled: dict[str, Kernel] = {}
            """Kernels whose text is not written yet."""
            self.callers: weakref.WeakSet[Caller] = weakref.WeakSet()
            """The tables that call kernels."""
            self.by_operands: dict[object, Kernel | None] = {}
            """Kernels by the spelling of an instruction and the kinds of its operands, for the translator."""
            self._libraries = 0
            texts = {"warploom_enter": _ENTER, "warploom_probe": _PROBE}
            code = self._compiled((text.format(name=name, magic=_MAGIC) for name, text in texts.items()), QUICK)
            found = self._linked({NO_OBJECT: ObjectFile(tuple(texts), code)})[NO_OBJECT]
            # It holds the interpreter's lock: a run is one thread's, and its memory is Python's.
            prototype = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
            if prototype(found["warploom_probe"])(None, None) != _MAGIC:
                raise EngineError("a compiled function does not return its constant")
            self.enter = found["warploom_enter"]
            """The address of the code that executes records."""
            self.run: Callable[[int, int], int] = prototype(self.enter)
            """Execute records: (address of the context, address of the first record) → the number, plus one, of a
            record whose instruction Python must execute, or the complement of the next block (`control_kernels`)."""

    def kernel(self, form: Form) -> Kernel | None:
        """The kernel of a form, which has an address once it is linked; None for a form that has none."""
        if form not in self._kernels:
            with _FINDING:  # a form has one kernel, also where threads ask for it at once
                if form not in self._kernels:
                    self._kernels[form] = self._found(form)
        return self._kernels[form]

    def _found(self, form: Form) -> Kernel | None:
        name = "k" + hashlib.sha256(f"{self.version} {form!r}".encode()).hexdigest()[:40]
        code = self._objects.get(name)
        if code is not None and code.object == NO_OBJECT:
            return None
        if code is not None and code.level >= self._first:
            return Kernel(name, form, form.words, code.level)
        kernel = Kernel(name, form, form.words, self._first)
        if self.seldom and isinstance(form, _REPLACEABLE):
            self._uncompiled[name] = kernel  # its text is written when it is compiled, if that happens
            return kernel
        return kernel if self._write(kernel) else None

    def _write(self, kernel: Kernel) -> bool:
        """Write the text of a kernel that is to be compiled; False for a form that has none."""
        form = kernel.form
        try:
            if self._first == QUICK and isinstance(form, Gather | Multiply):
                self._texts[kernel.name] = form.quick_text(kernel.name, self.host)
            else:
                self._texts[kernel.name] = form.text(kernel.name, self.host)
        except UnsupportedError:
            self._objects.add({kernel.name: ()}, OPTIMISED, b"")
            return False
        return True

    def address(self, form: Form) -> int:
        """The address of the optimised code of a form that every processor has."""
        kernel = self.required(form)
        if kernel.level < OPTIMISED:
            with _COMPILING:
                self._optimise([kernel])
        self.link([kernel])
        return kernel.address

    def routine(self, form: Form) -> Kernel:
        """The kernel of a form that every processor has, with its address."""
        kernel = self.required(form)
        self.link([kernel])
        return kernel

    def required(self, form: Form) -> Kernel:
        """The kernel of a form that every processor has; it has an address once it is linked."""
        kernel = self.kernel(form)
        if kernel is None:
            raise EngineError(f"no code for {form}")
        return kernel

    def link(self, kernels: Iterable[Kernel]) -> None:
        """Give kernels their addresses; those that no process has compiled before are compiled together."""
        missing = {kernel.name: kernel for kernel in kernels if kernel.has_code and not kernel.address}
        if not missing:
            return
        with _COMPILING:
            # What is still to be done is taken off the lists at the end: Ctrl-C may come at any point.
            for name in missing:
                if (kernel := self._uncompiled.get(name)) is not None:
                    kernel.has_code = self._write(kernel)
                    del self._uncompiled[name]
            missing = {name: kernel for name, kernel in missing.items() if kernel.has_code}
            if new := {name: self._texts[name] for name in missing if name in self._texts}:
                self._compile(new, self._first)
                for name in new:
                    del self._texts[name]
            self._enter(missing.values())
            self._objects.save()

    def link_records(self, kernels: Collection[Kernel]) -> None:
        """Give the kernels of a table their addresses, apart from those that are compiled when a group comes to them,
        or when they are executed more often.
        """
        found = [kernel for kernel in kernels if not kernel.address]
        if self.seldom and not any(isinstance(kernel.form, Note) for kernel in kernels):
            found = [each for each in found if each.name not in self._uncompiled]
        escape = self.required(Escape())
        self.link([*found, escape])
        self.escape = escape.address

    def waits(self, kernel: Kernel, weight: int) -> bool:
        """True if the reference executes a form for a while where an estimate of its executions is a `weight`."""
        return isinstance(kernel.form, _REPLACEABLE) and weight <= _FEW * _COSTS.get(type(kernel.form), 1)

    def count_replaced(self, kernel: Kernel, others: Callable[[], Iterable[Kernel]]) -> None:
        """Count an execution by the reference of a form whose kernel is not compiled; compile it if it is one of many,
        together with `others` of the table. A table gets their addresses when it next comes to one of them.
        """
        kernel.executions += 1
        seldom = self.seldom * _COSTS.get(type(kernel.form), 1)
        if kernel.executions >= seldom and kernel.has_code and not kernel.address:
            least = max(seldom // _TOGETHER, 1)
            self.link(each for each in others() if each.executions >= least)

    def end(self) -> None:
        """Compile, at the end of the process, what later ones may need: the forms that the reference has executed, and
        with optimisation those that several processes together have executed often.
        """
        known = [each for each in list(self._kernels.values()) if each is not None]
        with suppress(EngineError):
            self.link(each for each in known if each.name in self._uncompiled and each.executions)
            quick = (each for each in known if each.address and each.level < OPTIMISED)
            if hot := [each for each in quick if self._objects.executions(each.name) >= self._often]:
                with _COMPILING:
                    self._optimise(hot)

    def count(self, kernels: Sequence[Kernel], executions: Sequence[int]) -> None:
        """Count the executions of kernels by warps, and optimise those that this process executes often."""
        linked = ((each, more) for each, more in zip(kernels, executions, strict=True) if each.address)
        quick = [(each, more) for each, more in linked if each.level < OPTIMISED]
        hot = [kernel for kernel, more in quick if self._objects.count(kernel.name, more) >= self._often]
        if hot:
            with _COMPILING:
                self._optimise(list(dict.fromkeys(hot)))
                for caller in list(self.callers):
                    caller.enter_addresses()
                self._objects.save()

    def _optimise(self, kernels: list[Kernel]) -> None:
        """Compile kernels with optimisation; no table calls these yet."""
        self._compile({each.name: each.form.text(each.name, self.host) for each in kernels}, OPTIMISED)
        for kernel in kernels:
            self._texts.pop(kernel.name, None)
            self._uncompiled.pop(kernel.name, None)
        self._enter(kernels)

    def _compile(self, texts: dict[str, tuple[str, frozenset[str]]], level: int) -> None:
        """Compile the texts of kernels, with the tables that they look up: into one object, apart from those that give
        a name to another function than texts before them.
        """
        functions: dict[str, str] = {}
        together: dict[str, tuple[str, ...]] = {}
        others: dict[str, tuple[str, frozenset[str]]] = {}
        for name, (text, needed) in texts.items():
            own = {match[0]: part for part in _PARTS.split(text) if (match := _SYMBOL.search(part))}
            if any(functions.get(symbol, part) != part for symbol, part in own.items()):
                others[name] = text, needed
            else:
                functions |= own
                together[name] = tuple(sorted(needed))
        self._objects.add(together, level, self._compiled(functions.values(), level))
        if others:
            self._compile(others, level)

    def _enter(self, kernels: Iterable[Kernel]) -> None:
        """Enter the addresses of compiled kernels."""
        codes: dict[Kernel, Code] = {}
        for kernel in kernels:
            code = self._objects.get(kernel.name)
            if code is None:
                raise EngineError(f"no code for {kernel.form}")
            codes[kernel] = code
        missing = {code.object for code in codes.values()} - self._addresses.keys()
        while missing:
            # A kernel may be in several objects, but in one of a library.
            library, defined = dict[str, ObjectFile](), set[str]()
            for each in sorted(missing):
                file = self._objects.file(each)
                if defined.isdisjoint(file.kernels):
                    library[each] = file
                    defined.update(file.kernels)
            self._addresses |= self._linked(library)
            missing -= library.keys()
        for kernel, code in codes.items():
            for table in code.tables:
                tables.need(table)
            kernel.level, kernel.address = code.level, self._addresses[code.object][kernel.name]

    @cached_property
    def routines(self) -> Routines:
        """The routines that are called for a whole operation."""
        return Routines(Products(self), Granules(self), Columns(self), Calls(self))

    def _compiled(self, functions: Iterable[str], level: int) -> bytes:
        """An object with some functions."""
        text = "\n".join((f'target triple = "{self._triple}"', *functions, ""))
        try:
            module = self._llvm.parse_assembly(text)
            code: bytes = self._machines[level].emit_object(module)
        except RuntimeError as error:
            raise EngineError(f"LLVM does not compile the kernels: {error}") from error
        return code

    def _linked(self, objects: dict[str, ObjectFile]) -> dict[str, dict[str, int]]:
        """The addresses of the kernels of objects, which the linker has checked."""
        builder = self._llvm.JITLibraryBuilder()
        for file in objects.values():
            builder.add_object_img(file.content)
            for name in file.kernels:
                builder.export_symbol(name)
        self._libraries += 1
        try:
            linked = builder.link(self._linker, f"warploom{self._libraries}")
            found = {each: {name: int(linked[name]) for name in file.kernels} for each, file in objects.items()}
        except (RuntimeError, KeyError, TypeError) as error:
            raise EngineError(f"LLVM does not link the kernels: {error}") from error
        if not all(address for names in found.values() for address in names.values()):
            raise EngineError("LLVM's linker has no address for a kernel")
        self._links.append(linked)
        return found


_all: weakref.WeakSet[Engine] = weakref.WeakSet()


def _hold() -> None:
    _FINDING.acquire()
    _COMPILING.acquire()


def _give_back() -> None:
    _COMPILING.release()
    _FINDING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_give_back, after_in_child=_give_back)


@atexit.register
def _end() -> None:
    """End all engines, before their objects are saved."""
    for engine in list(_all):
        engine.end()
