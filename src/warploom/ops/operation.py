"""An operation: arguments in, one request, one launch, the result out; for arrays of every library.

NumPy arrays are planned and run here. Tensors of PyTorch, and by way of it arrays of other libraries, go to
`warploom.torch`, which is loaded when the first one is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any, Protocol

import numpy as np

from warploom.diagnostics import Diag, WarploomError, hide_library_frames
from warploom.host.arrays import buffer_of, is_array, numpy_of
from warploom.host.launch import Launch
from warploom.host.program import text_of
from warploom.ops.planning.arrays import Violations, leaves, mapped
from warploom.ops.planning.keywords import DEFAULT_PAIR, NUMBERS
from warploom.ops.planning.planner import Plan, plan
from warploom.ops.planning.request import Gpu, Request
from warploom.ops.planning.user_functions import MARK, PYTHON_ERRORS
from warploom.runtime.cache.traces import kept
from warploom.trace.trace_store import keep_traces

keep_traces(kept)

Form = Callable[..., dict[str, Any] | None]
"""Checks the operands of a call and brings them into the form of a `Request`: its fields, None if they are invalid.

Its keyword-only parameters must also be in the operation's options. Those with the default None are operands that a
call may leave out, the others are settings: numbers on which the form depends.
"""
_NOT_ARRAYS = (list, tuple, dict, str, int, float, complex, type(None))
"""For these no library is loaded. PyTorch's compiler traces `isinstance` in every version, a frozenset of types not."""
_DEFAULTS = {**NUMBERS, "pair": DEFAULT_PAIR, "precision": "tf32", "stride": 1, "padding": 0, "dilation": 1}
_REQUEST_NAMES = {"gate_bias": "bias"}
"""Keywords that a request has under another name."""


class Operation(Protocol):
    """A function of arrays; with the same arguments `.bind(…)` returns its launch, and `.plan(…)` its plan."""

    __name__: str
    arrays: tuple[str, ...]
    """The names of its operands."""
    optional: tuple[str, ...]
    """The names of its keywords that are operands too, and may be left out."""
    settings: tuple[str, ...]
    """The names of its keywords that are numbers on which the form of its operands depends."""

    def __call__(self, *args: Any, **options: Any) -> Any: ...

    def bind(self, *args: Any, **options: Any) -> Launch: ...

    def plan(self, *args: Any, **options: Any) -> Plan: ...

    def request(self, arguments: Mapping[str, Any], violations: Violations, *, gpu: Gpu | None = None) -> Request:
        """The request of a call: its operands in form, and its other arguments as they are."""
        ...


def operation(form: Form, options: type) -> Any:
    """Make an operation of a form; `options` is a `TypedDict` of its keywords."""
    name = form.__name__.lstrip("_")
    parameters = [each for each in signature(form).parameters.values() if each.name != "violations"]
    arrays = tuple(each.name for each in parameters if each.kind is not Parameter.KEYWORD_ONLY)
    keywords = [each for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
    optional = tuple(each.name for each in keywords if each.default is None)
    settings = tuple(each.name for each in keywords if each.default is not None)
    leading, taken = arrays[0], _signature(arrays, options)
    is_gated = "pair" in taken.parameters

    def request(arguments: Mapping[str, Any], violations: Violations, *, gpu: Gpu | None = None) -> Request:
        formed_of = {*arrays, *optional, *settings}
        given = {_REQUEST_NAMES.get(each, each): value for each, value in arguments.items() if each not in formed_of}
        if is_gated:
            given.setdefault("pair", DEFAULT_PAIR)
        chosen = {each: arguments[each] for each in optional if arguments.get(each) is not None}
        chosen |= {each: arguments[each] for each in settings if each in arguments}
        formed = form(*(arguments.get(each) for each in arrays), violations, **chosen) or {}
        return Request(function=name, is_gated=is_gated, gpu=gpu, **formed, **given)

    def plan_call(*args: Any, **kwargs: Any) -> Plan:
        arguments, violations = _bound(name, taken, args, kwargs), Violations(name)
        return plan(request(arguments, violations), violations)

    def run(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get(leading)
        try:
            if not isinstance(first, np.ndarray):
                other = elsewhere(name, first)
                if other is not None:
                    return other(*args, **kwargs)
                refuse(name, leading, first)
            return plan_call(*args, **kwargs).run()
        except WarploomError as error:
            hide_library_frames(error)
            raise
        except PYTHON_ERRORS as error:
            # an error in the caller's function, or about the call itself, as for any Python function
            if hasattr(error, MARK) or str(error).startswith(f"{name}() "):
                hide_library_frames(error)
            raise

    def bind(*args: Any, **kwargs: Any) -> Launch:
        given = _bound(name, taken, args, kwargs)
        for path, array in leaves(given):
            if buffer_of(array).is_on_gpu:
                what = f"`{path}` is on a GPU, but `{name}.bind` takes arrays of the host"
                instead = f"`warploom.ops.planning.prepare.plan({name}, …, out=…)` prepares a call there"
                raise Diag.BAD_LAUNCH.error(what=f"{what}; {instead}")
        return plan_call(**mapped(given, lambda _, array: numpy_of(array))).single_launch(name)

    made: Any = run
    made.__name__ = made.__qualname__ = name
    made.__module__, made.__doc__, made.__signature__ = form.__module__, form.__doc__, taken
    made.__annotations__ = {each.name: each.annotation for each in taken.parameters.values()}
    made.__annotations__["return"] = taken.return_annotation
    made.bind, made.plan, made.request, made.arrays, made.optional = bind, plan_call, request, arrays, optional
    made.settings = settings
    return made


def _signature(arrays: tuple[str, ...], options: type) -> Signature:
    """The signature that `help` shows: operands, then every keyword with its type and default."""
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation="Array") for name in arrays]
    for name, hint in options.__annotations__.items():
        note = getattr(hint, "__forward_arg__", hint)
        default = _DEFAULTS.get(name)
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=note))
    return Signature(parameters, return_annotation="Array")


def _bound(name: str, taken: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name; errors are those of a Python function."""
    try:
        return taken.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None


def elsewhere(operation: str, first: Any) -> Callable[..., Any] | None:
    """The operation for arrays of the library of the first argument; None for NumPy's, and for other values.

    PyTorch's compiler traces this function: it follows an import statement, but no call of the import system, and it
    must not see `sys.modules`. What is read here must not change, or it compiles again.
    """
    if isinstance(first, _NOT_ARRAYS):
        return None
    try:
        import warploom.torch.dispatch as front
    except ModuleNotFoundError as error:
        if error.name == "torch" or not is_array(first):
            return None
        raise  # PyTorch is installed, and something that it needs is not
    if front.is_tensor(first):
        found: Callable[..., Any] | None = getattr(front, operation, None)
        return found
    return front.for_others(operation) if is_array(first) and hasattr(front, operation) else None


def refuse(operation: str, argument: str, first: Any) -> None:
    """Report why there is no operation for an array that is not NumPy's."""
    if not is_array(first):
        return
    violations = Violations(operation)
    rule = f"must be a NumPy array: `{operation}` runs on the emulator only"
    try:
        from warploom.torch import dispatch  # noqa: F401
    except ModuleNotFoundError:
        rule = "must be a NumPy array unless PyTorch, which passes arrays of other libraries on, is installed"
    violations.add(argument, first, rule)
    violations.check()


def replan() -> None:
    """Forget how earlier calls were planned: another configuration may be the fastest now."""
    cache = sys.modules.get("warploom.torch.launch_cache")
    if cache is not None:
        cache.clear()


def ptx_of(function: Any, *args: Any, **kwargs: Any) -> str:
    """The PTX of a call of an operation or a kernel: `ptx_of(matmul, a, b, bias=bias)`; nothing is run."""
    if not hasattr(function, "bind"):
        raise Diag.BAD_LAUNCH.error(what=f"{function!r:.60} is neither an operation nor a kernel")
    if hasattr(function, "plan"):
        given = signature(function).bind(*args, **kwargs).arguments
        on_gpu = [buffer for _, array in leaves(given) if (buffer := buffer_of(array)).is_on_gpu]
        if on_gpu:
            from warploom.ops.planning.prepare import bound
            from warploom.runtime.gpu.driver import device_of

            return text_of(bound(function, given, device_of(on_gpu[0].device, on_gpu[0].address)).launch.program)
    return text_of(function.bind(*args, **kwargs).program)
