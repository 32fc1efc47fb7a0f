"""Native kernels compiled with llvmlite: each form once per computer, then read from a cache.

A kernel is an object of its own with one symbol, named after a digest of everything that its text depends on: the form,
the engine's sources, the processor and the version of llvmlite. The kernels of a computer are one entry of the cache. A
kernel is called only after the linker has given its address; where that fails, the reference executes everything.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata, resources
from typing import Any

from warploom.machine.engine.control_kernels import Barrier, Branch, Effect, Escape, FlagWait, Goto, Note, Skip
from warploom.machine.engine.kernels import Arithmetic, UniformArithmetic
from warploom.machine.engine.llvm_ops import Host
from warploom.machine.engine.matrix_kernels import MatrixMove
from warploom.machine.engine.memory_kernels import Access
from warploom.machine.engine.mma_kernels import WarpMma
from warploom.machine.engine.store import store
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
_PACKAGES = (
    "machine.engine",
    "machine.routines",
    "machine.semantics",
    "machine.numerics",
    "machine.memory",
    "hardware",
)
_LEVEL = 2
"""LLVM's level of code generation; the text needs no optimisation passes."""


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
    address: int = 0


@dataclass(frozen=True, slots=True)
class Routines:
    """Native code that is called for a whole operation: matrix products of the tensor cores, copies of granules."""

    products: Products
    granules: Granules
    columns: Columns
    calls: Calls


class Engine:
    """The native kernels of this process, for this computer's processor or for a lesser one, with vectors of as many
    `lanes` as it has or of others.
    """

    def __init__(self, processor: str = "", features: str = "", lanes: int = 0) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._llvm: Any = llvm
        if not processor:
            processor, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple()
        self._triple = target.triple
        self._machine = target.create_target_machine(
            cpu=processor, features=features, opt=_LEVEL, reloc="pic", codemodel="default"
        )
        self._linker = llvm.create_lljit_compiler(self._machine)
        arm = platform.machine().lower() in ("arm64", "aarch64")
        flags = set(features.split(","))
        lanes = lanes or (16 if "+avx512f" in flags else 8)
        self.host = Host(lanes=lanes, fused=arm or "+fma" in flags, rounds=arm or "+sse4.1" in flags)
        words = (_sources(), installed() or "", self._triple, processor, features, repr(self.host), _LEVEL)
        self.version = hashlib.sha256(repr(words).encode()).hexdigest()
        """A digest of everything that kernels depend on, apart from their forms."""
        self._objects: dict[str, bytes] | None = None
        self._kernels: dict[Form, Kernel | None] = {}
        self._addresses: dict[str, int] = {}
        self._links: list[Any] = []
        self._fresh = False
        self.by_operands: dict[object, Kernel | None] = {}
        """Kernels by the spelling of an instruction and the kinds of its operands, for the translator."""
        self._libraries = 0
        texts = {"warploom_enter": _ENTER, "warploom_probe": _PROBE}
        self._link({name: self._compiled(name, text.format(name=name, magic=_MAGIC)) for name, text in texts.items()})
        # It holds the interpreter's lock: a run is one thread's, and its memory is Python's.
        prototype = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
        if prototype(self._addresses["warploom_probe"])(None, None) != _MAGIC:
            raise EngineError("a compiled function does not return its constant")
        self.enter = self._addresses["warploom_enter"]
        """The address of the code that executes records."""
        self.run: Callable[[int, int], int] = prototype(self.enter)
        """Execute records: (address of the context, address of the first record) → the number, plus one, of a record
        whose instruction Python must execute, or the complement of the next block (`control_kernels`)."""

    def kernel(self, form: Form) -> Kernel | None:
        """The kernel of a form, compiled if no process has done it before; None for a form that has none."""
        if form not in self._kernels:
            name = "k" + hashlib.sha256(f"{self.version} {form!r}".encode()).hexdigest()[:40]
            objects = self._known()
            if name not in objects:
                try:
                    text, needed = form.text(name, self.host)
                    objects[name] = ",".join(sorted(needed)).encode() + b"\n" + self._compiled(name, text)
                except UnsupportedError:
                    objects[name] = b""
                self._fresh = True
            self._kernels[form] = Kernel(name, form, form.words) if objects[name] else None
        return self._kernels[form]

    def address(self, form: Form) -> int:
        """The address of the code of a form that every processor has."""
        kernel = self.kernel(form)
        if kernel is None:
            raise EngineError(f"no code for {form}")
        self.link([kernel])
        return kernel.address

    @cached_property
    def routines(self) -> Routines:
        """The routines that are called for a whole operation."""
        return Routines(Products(self), Granules(self), Columns(self), Calls(self))

    def link(self, kernels: Iterable[Kernel]) -> None:
        """Give kernels their addresses."""
        missing = {kernel.name: kernel for kernel in kernels if not kernel.address}
        if missing:
            objects = self._known()
            self._link({name: objects[name] for name in missing})
            for name, kernel in missing.items():
                kernel.address = self._addresses[name]
        if self._fresh:
            self._fresh = False
            self._save()

    def _compiled(self, name: str, text: str) -> bytes:
        try:
            module = self._llvm.parse_assembly(f'target triple = "{self._triple}"\n{text}')
            code: bytes = self._machine.emit_object(module)
        except RuntimeError as error:
            raise EngineError(f"LLVM does not compile {name}: {error}") from error
        return code

    def _link(self, objects: dict[str, bytes]) -> None:
        """Link objects and enter the addresses of their symbols, which the linker has checked."""
        builder = self._llvm.JITLibraryBuilder()
        for name, content in objects.items():
            code = content
            if name.startswith("k"):
                needed, _, code = content.partition(b"\n")
                for table in needed.decode().split(",") if needed else ():
                    tables.need(table)
            builder.add_object_img(code)
            builder.export_symbol(name)
        self._libraries += 1
        try:
            linked = builder.link(self._linker, f"warploom{self._libraries}")
            found = {name: int(linked[name]) for name in objects}
        except (RuntimeError, KeyError, TypeError) as error:
            raise EngineError(f"LLVM does not link the kernels: {error}") from error
        if not all(found.values()):
            raise EngineError("LLVM's linker has no address for a kernel")
        self._links.append(linked)
        self._addresses |= found

    def _known(self) -> dict[str, bytes]:
        """The objects of this computer's kernels, from the cache at first."""
        if self._objects is None:
            self._objects = self._read()
        return self._objects

    def _read(self) -> dict[str, bytes]:
        """The objects in the cache, which has verified the checksum of its entry and who wrote it."""
        place = store()
        content = None if place is None else place.get(("engine", self.version))
        if content is None:
            return {}
        head, _, rest = content.partition(b"\n")
        objects, at = dict[str, bytes](), 0
        for name, size in json.loads(head).items():
            objects[name], at = rest[at : at + size], at + size
        return objects

    def _save(self) -> None:
        """Add this process's kernels to those that the cache holds by now."""
        place = store()
        if place is not None:
            objects = self._read() | self._known()
            head = json.dumps({name: len(code) for name, code in objects.items()})
            place.put(("engine", self.version), head.encode() + b"\n" + b"".join(objects.values()))
