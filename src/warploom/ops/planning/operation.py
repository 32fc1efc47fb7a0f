"""What every operation is: arguments in, a launch planned, run, and the result handed out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, ParamSpec, Protocol, cast

import numpy as np

from warploom.diagnostics import Diag, WarploomError, hide_library_frames
from warploom.heuristics.problem_key import ProblemKey
from warploom.host.arrays import buffer_of, numpy_of
from warploom.host.launch import Launch
from warploom.host.program import text_of
from warploom.launcher import launch
from warploom.ops.planning.array_arguments import leaves, mapped
from warploom.ops.planning.dispatch import elsewhere, refuse
from warploom.runtime.cache.traces import kept
from warploom.trace.trace_store import keep_traces

Array = np.ndarray[Any, Any]
P = ParamSpec("P")
keep_traces(kept)


@dataclass(frozen=True)
class Plan:
    """A launch and the array that it fills, directly or by way of another."""

    result: Array
    launch: Launch | None = None
    """None where there is nothing to compute."""
    staged: Array | None = None
    """What the launch writes where it cannot write the result: one that overlaps an input."""
    sought: ProblemKey | None = None
    """What its configuration was chosen for, where that can be tuned."""

    def run(self) -> Array:
        """Run it and hand out the result."""
        if self.launch is not None:
            launch(self.launch)
        if self.staged is not None:
            self.result[...] = self.staged.reshape(self.result.shape)
        return self.result

    def alone(self, operation: str) -> Launch:
        """The launch, where it is all that there is to do."""
        if self.launch is None:
            raise Diag.BAD_LAUNCH.error(what=f"the result of `{operation}` is empty, and there is nothing to run")
        if self.staged is not None:
            raise Diag.BAD_LAUNCH.error(what="`out` overlaps an input, and one launch cannot read and write both")
        return self.launch


class Operation(Protocol[P]):
    """A function of arrays; with the same arguments `.bind(…)` gives the launch, and `.plan(…)` what surrounds it."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Array: ...

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Launch: ...

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan: ...


def operation(plan: Callable[P, Plan]) -> Operation[P]:
    """Make an operation of a function that plans it."""
    parameters = signature(plan)
    leading = next(iter(parameters.parameters))

    @functools.wraps(plan)
    def run(*args: P.args, **kwargs: P.kwargs) -> Array:
        first = args[0] if args else kwargs.get(leading)
        if not isinstance(first, np.ndarray):
            other = elsewhere(plan.__name__, first)
            if other is not None:
                return cast("Array", other(*args, **kwargs))
            refuse(plan.__name__, leading, first)
        try:
            return plan(*args, **kwargs).run()
        except WarploomError as error:
            hide_library_frames(error)
            raise

    def bind(*args: P.args, **kwargs: P.kwargs) -> Launch:
        given = parameters.bind(*args, **kwargs).arguments
        for name, array in leaves(given):
            if buffer_of(array).is_on_gpu:
                what = f"`{name}` is on a GPU, and `{run.__name__}.bind` takes arrays of the host"
                instead = f"`warploom.ops.planning.prepare.plan({run.__name__}, …, out=…)` prepares a call there"
                raise Diag.BAD_LAUNCH.error(what=f"{what}; {instead}")
        made: Plan = cast("Any", plan)(**mapped(given, lambda _, array: numpy_of(array)))
        return made.alone(run.__name__)

    run.__annotations__ = {**plan.__annotations__, "return": "Array"}
    made = cast("Any", run)
    made.bind, made.plan = bind, plan
    return cast("Operation[P]", made)


def ptx_of(function: Any, *args: Any, **kwargs: Any) -> str:
    """The PTX of a call, of an operation as of a kernel: `ptx_of(matmul, a, b, bias=bias)`; nothing is run."""
    if not hasattr(function, "bind"):
        raise Diag.BAD_LAUNCH.error(what=f"{function!r:.60} is neither an operation nor a kernel")
    if hasattr(function, "plan"):
        given = signature(function).bind(*args, **kwargs).arguments
        there = [buffer for _, array in leaves(given) if (buffer := buffer_of(array)).is_on_gpu]
        if there:
            from warploom.ops.planning.prepare import bound
            from warploom.runtime.gpu.driver import device_of

            return text_of(bound(function, given, device_of(there[0].device, there[0].address)).launch.program)
    return text_of(function.bind(*args, **kwargs).program)
