"""`@kernel`: a Python function that becomes a PTX module when it is traced, and a launch when it is bound."""

from __future__ import annotations

import functools
import gc
import html
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast, overload

from warploom.diagnostics import Diag, Loc, WarploomError, user_traceback
from warploom.host.launch import Launch, Triple, entry_of, triple
from warploom.host.program import Printed, Traced, module_of, text_of
from warploom.ptx.syntax.model import Directive
from warploom.trace.builder import Builder, building, here
from warploom.trace.early_exits import namespace_of, rewritten
from warploom.trace.isa.emit import emit
from warploom.trace.language.control import otherwise, unless, when
from warploom.trace.parameters import Looked, parameters_of
from warploom.trace.passes.finish import finished
from warploom.trace.trace_store import is_for_a_gpu, kept

Extents = int | tuple[int, ...]
"""A number of CTAs or threads along x, or up to three along x, y and z."""
_LONGEST_CACHE = 256


@contextmanager
def _without_collections() -> Iterator[None]:
    """A trace makes many objects and leaves few: with a large library loaded, collections would take half its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class ConfiguredKernel:
    """A kernel with the shape of its launch: `kernel[grid, block]`. Calling it runs the kernel."""

    kernel: KernelFunction
    grid: Extents
    block: Extents | None
    cluster: Extents

    @user_traceback
    def __call__(self, *arguments: Any, **constants: Any) -> Any:
        """Run the kernel, NumPy arrays on the emulator and GPU arrays on their GPU; return its `Run`."""
        from warploom.launcher import launch

        bound, printed = self.bind(*arguments, **constants), ""
        try:
            run = launch(bound)
            printed = run.printed
        except WarploomError as error:
            printed = error.printed
            raise
        finally:
            print(printed, end="")  # noqa: T201 - by the threads of the kernel
        return run

    @user_traceback
    def bind(self, *arguments: Any, **constants: Any) -> Launch:
        """Make the launch without running it."""
        return self.kernel.bind(*arguments, grid=self.grid, block=self.block, cluster=self.cluster, **constants)

    def __repr__(self) -> str:
        return f"{self.kernel!r}[{self.grid}, {self.block}]"


class KernelFunction:
    """A kernel: `kernel[grid, block](…)` runs it, `.bind(…)` makes a `Launch`, `.ptx(…)` returns the text.

    Traces are cached by what they depend on: types, shapes and strides of the arguments, and Python values. Traces for
    a GPU may come, as text, from an earlier process; those for the emulator are modules of this one.
    """

    def __init__(
        self, function: Callable[..., None], target: str, maxnreg: int | None, block: Extents | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = function.__name__
        self._function, self._target, self._maxnreg = function, target, maxnreg
        self._block = None if block is None else triple(block, "block")
        self._signature = inspect.signature(function)
        self._parameters = parameters_of(self._signature)
        names = self._signature.parameters
        self._positional = [name for name, each in names.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
        self._defaults = {name: each.default for name, each in names.items() if each.default is not each.empty}
        usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self._usual = names.keys() if all(each.kind in usual for each in names.values()) else None
        self._traces: dict[Any, Traced] = {}
        self._others: dict[str, KernelFunction] = {}
        """The kernel for other targets than its author's."""

    @user_traceback
    def bind(
        self,
        *arguments: Any,
        grid: Extents,
        block: Extents | None = None,
        cluster: Extents = (1, 1, 1),
        **constants: Any,
    ) -> Launch:
        """Make a launch of the kernel on these arguments.

        `grid`, `block` and `cluster` are an integer or up to three, along x, y and z. The block may be left out where
        `warp_roles` says how many threads there are, or `@kernel(block=…)`.
        """
        values = self._values(arguments, constants)
        looked = self._looked(values)
        passed = tuple([each for one in looked for each in one.passed])
        grid, cluster = triple(grid, "grid"), triple(cluster, "cluster")
        threads = self._block if block is None else triple(block, "block")
        traced = self._traced(values, looked, passed, threads, cluster)
        return Launch(
            traced.program, grid, threads or _block_of(traced), passed, self.name, cluster, traced.shared_bytes
        )

    @user_traceback
    def __getitem__(self, shape: Extents | tuple[Extents, ...]) -> ConfiguredKernel:
        """Choose the shape of a launch: `kernel[grid]`, `kernel[grid, block]` or `kernel[grid, block, cluster]`.

        Each is an integer or a tuple. For a kernel with `@kernel(block=…)` a tuple of integers is a grid.
        """
        parts = shape if isinstance(shape, tuple) else (shape,)
        if self._block is not None and all(not isinstance(part, tuple) for part in parts):
            parts = (cast("tuple[int, ...]", parts),)
        if not 1 <= len(parts) <= 3:
            what = f"`{self.name}[…]` takes grid, block and cluster, not {len(parts)} items"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        grid, block, cluster = (*parts, None, None)[:3]
        assert grid is not None
        return ConfiguredKernel(self, grid, block, (1, 1, 1) if cluster is None else cluster)

    def for_target(self, target: str) -> KernelFunction:
        """Return the same kernel for another target."""
        if target == self._target:
            return self
        if target not in self._others:
            self._others[target] = KernelFunction(self._function, target, self._maxnreg, self._block)
        return self._others[target]

    @user_traceback
    def ptx(self, *arguments: Any, block: Extents | None = None, cluster: Extents = (1, 1, 1), **constants: Any) -> str:
        """Return the kernel's PTX for arguments like these."""
        return text_of(self.bind(*arguments, grid=1, block=block, cluster=cluster, **constants).program)

    @user_traceback
    def __call__(self, *arguments: Any, **constants: Any) -> None:
        """Raise an error: a kernel needs the shape of its launch."""
        what = f"`{self.name}` is a kernel; write `{self.name}[grid, block](…)` to run it, or `.bind(…)`"
        raise Diag.BAD_KERNEL.error(here(), what=what)

    def __repr__(self) -> str:
        return f"<kernel {self.name}{self._signature} for {self._target}>"

    def _repr_html_(self) -> str:
        """Show the kernel and its traces in a notebook: instructions, virtual registers, shared memory."""
        rows = []
        for traced in self._traces.values():
            module = module_of(traced.program)
            traced_kernel = entry_of(module, self.name)
            block = "×".join(str(extent) for extent in traced_kernel.directive("reqntid") or ())
            cells = (block, len(traced_kernel.instructions), len(traced_kernel.registers), traced.shared_bytes)
            rows.append("".join(f"<td>{cell}</td>" for cell in cells))
        names = ("block", "instructions", "virtual registers", "shared bytes")
        head = "".join(f"<th>{name}</th>" for name in names)
        table = "".join(f"<tr>{row}</tr>" for row in (head, *rows)) if rows else ""
        return f"<code>{html.escape(repr(self))}</code>" + (f"<table>{table}</table>" if table else "")

    def _values(self, arguments: tuple[Any, ...], constants: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, with defaults."""
        given = dict(zip(self._positional, arguments, strict=False))
        values = {**self._defaults, **given, **constants}
        if len(given) == len(arguments) and constants.keys().isdisjoint(given) and values.keys() == self._usual:
            return values  # the same as the slower `Signature.bind` below
        try:
            bound = self._signature.bind(*arguments, **constants)
        except TypeError as error:
            raise Diag.BAD_KERNEL.error(here(), what=f"{error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _looked(self, values: dict[str, Any]) -> list[Looked]:
        """Return the arguments as a launch takes them; one error reports everything that is wrong with them."""
        looked = [parameter.look(values[parameter.name]) for parameter in self._parameters]
        problems = [each.problem for each in looked if each.problem]
        if problems:
            raise Diag.BAD_KERNEL.error(here(), what="; ".join(problems))
        return looked

    def _traced(
        self,
        values: dict[str, Any],
        looked: list[Looked],
        passed: tuple[Any, ...],
        block: Triple | None,
        cluster: Triple,
    ) -> Traced:
        """Return the trace for arguments like these: a cached one of this process or of the disk, or a new one."""
        for_gpu = is_for_a_gpu(passed)
        key = (for_gpu, block, cluster, *[each.signature for each in looked])
        try:
            known, lasts = self._traces.get(key), True
        except TypeError:  # a Python value that is not hashable
            known, lasts = None, False
        if known is not None:
            return known
        make = functools.partial(self._trace, values, block, cluster)
        found = kept((self._function, self._target, self._maxnreg, key), make) if for_gpu else make()
        if lasts:
            if len(self._traces) >= _LONGEST_CACHE:
                self._traces.pop(next(iter(self._traces)))
            self._traces[key] = found
        return found

    @_without_collections()
    def _trace(self, values: dict[str, Any], block: Triple | None, cluster: Triple) -> Traced:
        """Run the function once on symbolic values and collect what it did."""
        builder = Builder(self.name, self._target, None if block is None else math.prod(block), self._maxnreg)
        code = self._function.__code__
        builder.place_all_at(Loc(code.co_filename, code.co_firstlineno))
        with building(builder):
            with builder.prologue():
                arguments = {p.name: p.traced(builder, values[p.name]) for p in self._parameters}
            builder.place_all_at(None)
            self._run(arguments)
            builder.place_all_at(Loc(code.co_filename, code.co_firstlineno))
            builder.end()
            emit("ret")
        if block is None:
            if builder.threads is None:
                what = f"the block of `{self.name}` is not known: it has no `warp_roles`"
                raise Diag.BAD_KERNEL.error(here(), notes=["Pass it: `kernel[grid, block](…)` or `block=`."], what=what)
            block = (builder.threads, 1, 1)
        # A CTA with roles has an SM to itself; ptxas would otherwise spill to make room for others.
        directives = [Directive("reqntid", block), Directive("minnctapersm", (1,))]
        if cluster != (1, 1, 1):
            directives.append(Directive("reqnctapercluster", cluster))
        if self._maxnreg is not None:
            directives.append(Directive("maxnreg", (self._maxnreg,)))
        return Traced(*finished(builder, tuple(directives)))

    def _run(self, arguments: dict[str, Any]) -> None:
        kinds = {name: parameter.kind for name, parameter in self._signature.parameters.items()}
        by_name = {name: value for name, value in arguments.items() if kinds[name] == inspect.Parameter.KEYWORD_ONLY}
        self._guarded(*(value for name, value in arguments.items() if name not in by_name), **by_name)

    @functools.cached_property
    def _guarded(self) -> Callable[..., None]:
        """The function with `with when(…): return` as a guard of the rest; the library's kernels have none."""
        if (self._function.__module__ or "").startswith("warploom."):
            return self._function
        guarded: Callable[..., None] = rewritten(self._function, namespace_of(self._function), when, otherwise, unless)
        return guarded


@overload
def kernel(function: Callable[..., None], /) -> KernelFunction: ...
@overload
def kernel(
    *, target: str = ..., maxnreg: int | None = ..., block: Extents | None = ...
) -> Callable[[Callable[..., None]], KernelFunction]: ...
def kernel(
    function: Callable[..., None] | None = None,
    /,
    *,
    target: str = "sm_90a",
    maxnreg: int | None = None,
    block: Extents | None = None,
) -> KernelFunction | Callable[[Callable[..., None]], KernelFunction]:
    """Make a kernel of a function.

    Arrays, tensor maps and parameters annotated with a scalar type are passed at launch. Everything else, keyword-only
    parameters always, is a Python value while tracing. `block` is the shape of the CTAs of every launch.
    """
    if function is None:
        return lambda given: KernelFunction(given, target, maxnreg, block)
    return KernelFunction(function, target, maxnreg, block)


def _block_of(traced: Traced) -> Triple:
    """Return the block that a trace requires."""
    module = traced.program.head if isinstance(traced.program, Printed) else traced.program
    return triple(next(filter(None, (each.directive("reqntid") for each in module.kernels)), ()), "block")
