"""`@kernel`: a Python function that becomes a PTX module when it is traced, and a launch when it is bound."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, overload

from warploom.diagnostics import Diag, Loc
from warploom.facts.machines import machine
from warploom.ptx.launch import Launch, Triple
from warploom.ptx.model import Directive
from warploom.ptx.program import Traced, text_of
from warploom.trace.builder import Builder, building, here
from warploom.trace.finish import finished
from warploom.trace.instructions import emit
from warploom.trace.keeping import is_for_a_gpu, kept
from warploom.trace.parameters import parameters_of, signature_of

_REGISTER_UNIT = 8
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


class KernelFunction:
    """A kernel: `.bind(…)` gives a launch for `launch` and `check`, `.ptx(…)` the text.

    Traces are kept by what they depend on: types, shapes and strides of the arguments, and Python values. Those for a
    GPU may come, as text, from an earlier process; the machine's are modules of this one.
    """

    def __init__(self, function: Callable[..., None], target: str, maxnreg: int | None) -> None:
        functools.update_wrapper(self, function)
        self.name = function.__name__
        self._function, self._target, self._maxnreg = function, target, maxnreg
        self._signature = inspect.signature(function)
        self._parameters = parameters_of(self._signature)
        self._traces: dict[Any, Traced] = {}

    def bind(
        self, *arguments: Any, grid: Triple, block: Triple, cluster: Triple = (1, 1, 1), **constants: Any
    ) -> Launch:
        """A launch of the kernel on these arguments."""
        values = self._values(arguments, constants)
        traced = self._traced(values, block, cluster)
        return Launch(traced.program, grid, block, self._passed(values), self.name, cluster, traced.shared_bytes)

    def ptx(self, *arguments: Any, block: Triple, cluster: Triple = (1, 1, 1), **constants: Any) -> str:
        """The kernel's PTX for arguments like these."""
        return text_of(self._traced(self._values(arguments, constants), block, cluster).program)

    def __call__(self, *arguments: Any, **constants: Any) -> None:
        raise Diag.BAD_KERNEL.error(here(), what=f"`{self.name}` is a kernel and cannot be called; use .bind(…)")

    def _values(self, arguments: tuple[Any, ...], constants: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name; whatever is wrong with them comes in one error."""
        try:
            bound = self._signature.bind(*arguments, **constants)
        except TypeError as error:
            raise Diag.BAD_KERNEL.error(here(), what=f"{error}") from None
        bound.apply_defaults()
        values = dict(bound.arguments)
        problems = [problem for p in self._parameters if (problem := p.problem(values[p.name]))]
        if problems:
            raise Diag.BAD_KERNEL.error(here(), what="; ".join(problems))
        return values

    def _passed(self, values: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments as a launch takes them."""
        return tuple(each for p in self._parameters if p.is_passed(values[p.name]) for each in p.passed(values[p.name]))

    def _traced(self, values: dict[str, Any], block: Triple, cluster: Triple) -> Traced:
        """The trace for arguments like these: this process's, or one that somebody kept, or a new one."""
        for_gpu = is_for_a_gpu(self._passed(values))
        key = (for_gpu, block, cluster, *(signature_of(p, values[p.name]) for p in self._parameters))
        lasts = _is_hashable(key)
        if lasts and key in self._traces:
            return self._traces[key]
        make = functools.partial(self._trace, values, block, cluster)
        found = kept((self._function, self._target, self._maxnreg, key), make) if for_gpu else make()
        if lasts:
            if len(self._traces) >= _LONGEST_CACHE:
                self._traces.pop(next(iter(self._traces)))
            self._traces[key] = found
        return found

    @_without_collections()
    def _trace(self, values: dict[str, Any], block: Triple, cluster: Triple) -> Traced:
        """Run the function once on symbols and collect what it did."""
        hardware = machine(self._target)
        threads = block[0] * block[1] * block[2]
        budget = hardware.registers_per_sm // max(threads, 1) // _REGISTER_UNIT * _REGISTER_UNIT
        builder = Builder(self.name, self._target, threads)
        code = self._function.__code__
        builder.place_all_at(Loc(code.co_filename, code.co_firstlineno))
        builder.registers_at_launch = self._maxnreg or min(budget, hardware.setmaxnreg.stop or budget)
        with building(builder):
            with builder.prologue():
                arguments = {p.name: p.traced(builder, values[p.name]) for p in self._parameters}
            builder.place_all_at(None)
            self._run(arguments)
            builder.place_all_at(Loc(code.co_filename, code.co_firstlineno))
            builder.end()
            emit("ret")
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
        self._function(*(value for name, value in arguments.items() if name not in by_name), **by_name)


def _is_hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


@overload
def kernel(function: Callable[..., None], /) -> KernelFunction: ...
@overload
def kernel(*, target: str = ..., maxnreg: int | None = ...) -> Callable[[Callable[..., None]], KernelFunction]: ...
def kernel(
    function: Callable[..., None] | None = None, /, *, target: str = "sm_90a", maxnreg: int | None = None
) -> KernelFunction | Callable[[Callable[..., None]], KernelFunction]:
    """Make a function a kernel.

    Arrays, tensor maps and parameters annotated with a scalar type are passed at launch. Everything else, keyword-only
    parameters always, is a Python value while tracing.
    """
    if function is None:
        return lambda given: KernelFunction(given, target, maxnreg)
    return KernelFunction(function, target, maxnreg)
