"""The planning that all products share: result, configuration, copies where they are needed, launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from warploom.host.arrays import scratch
from warploom.host.launch import Launch
from warploom.kernels.call import Call
from warploom.kernels.sm90.binding import bind as bind_to_hopper
from warploom.kernels.sm100.binding import bind as bind_to_blackwell
from warploom.ops.planning import sm90 as hopper
from warploom.ops.planning import sm100 as blackwell
from warploom.ops.planning.arrays import Array, staged
from warploom.ops.planning.epilogue import Following, Options, following
from warploom.ops.planning.operation import Plan
from warploom.ops.planning.output import Destination, check_out, check_outputs, destination, further, result_dtype
from warploom.ops.planning.request import GPU, Chosen, Product, Request
from warploom.ops.planning.violations import Faults
from warploom.structured.epilogue.epilogue import OUT
from warploom.trace.language.types import OF_NUMPY


@dataclass(frozen=True)
class Route:
    """How products come to the kernels of a target."""

    configs: Mapping[str, type[Any]]
    """The configurations by the kind of product."""
    configured: Callable[[Request, Faults], Chosen[Any] | None]
    bind: Callable[[Call[Any], int | None], Launch]


TARGETS: Mapping[str, Route] = {
    "sm_100a": Route(blackwell.CONFIGS, blackwell.configured, bind_to_blackwell),
    "sm_103a": Route(blackwell.CONFIGS, blackwell.configured, partial(bind_to_blackwell, target="sm_103a")),
    "sm_90a": Route(hopper.CONFIGS, hopper.configured, bind_to_hopper),
}
"""The targets that there are kernels for; the first is taken where nobody says."""


def planned(product: Product | None, options: Options, faults: Faults) -> Plan:
    """The plan of a call, or all its faults in one error."""
    route = _route(product, options, faults)
    result = product.result if product is not None else None
    after = following(options, result, faults)
    dtype = result_dtype(product.a if product is not None else None, options, faults)
    check_out(result, options, faults)
    factors = () if product is None else (product.a, product.b, product.up, *product.extra.values())
    check_outputs(result, options, factors, faults)
    is_fitting = _is_fitting(product, options, route, faults)
    to: Destination | None = None
    outputs: dict[str, Array] = {}
    chosen: Chosen[Any] | None = None
    if product is not None and dtype is not None:
        if not len(faults):
            to = destination(factors, product.result, dtype, options, is_whole=not product.groups)
            outputs = further(options, product.result)
        if route is not None and is_fitting:
            chosen = route.configured(Request(product, dtype, to, after, options, outputs), faults)
    faults.check()
    assert product is not None
    assert to is not None
    assert route is not None
    if chosen is None:
        return Plan(to.result)
    gpu = GPU.get()
    call = replace(_call(product, to, after, chosen), outputs=outputs)
    launch = route.bind(call, gpu.sms if gpu else None)
    return Plan(to.result, launch, to.matrix if to.is_apart else None, chosen.sought)


def check_way(options: Options, faults: Faults) -> None:
    """Whether there are kernels for the caller's target and configuration, of a product that is not known."""
    _is_fitting(None, options, _route(None, options, faults), faults)


def _route(product: Product | None, options: Options, faults: Faults) -> Route | None:
    """The way to the caller's target, to that of the caller's configuration, or to the first."""
    target, fitting = options.target, list(TARGETS)
    if target is None:
        known = (each for each in TARGETS if isinstance(options.config, tuple(TARGETS[each].configs.values())))
        target = next(known, fitting[0])
    elif product is not None:
        fitting = [each for each in TARGETS if product.kind in TARGETS[each].configs]
    if target not in fitting:
        faults.add("target", target, f"there are kernels for {', '.join(fitting)}")
        return None
    return TARGETS[target]


def _is_fitting(product: Product | None, options: Options, route: Route | None, faults: Faults) -> bool:
    """Whether the caller's configuration, if there is one, is of the product's kind and target."""
    config, kind = options.config, product.kind if product is not None else "dense"
    routes = TARGETS.values() if route is None else (route,)
    wanted = list(dict.fromkeys(each.configs[kind] for each in routes if kind in each.configs))
    if config is None or type(config) in wanted or (product is None and isinstance(config, tuple(wanted))):
        return True
    faults.add("config", config, f"it is no {' or '.join(each.__name__ for each in wanted)}")
    return False


def _call(product: Product, to: Destination, after: Following, chosen: Chosen[Any]) -> Call[Any]:
    """The call of the kernel, with copies of what the copy engine cannot step through."""
    config, factors = chosen.config, zip((product.a, product.b), chosen.majors, strict=True)
    a, b = (each if major else staged(each) for each, major in factors)
    epilogue, sources, written, extra = after.epilogue, dict(after.sources), to.matrix, dict(product.extra)
    if epilogue.store is not None:
        sources[OUT] = written
        written = scratch((1, 1), _NUMPY[config.c_type])  # the kernel stores nothing by itself
    if product.up is not None:
        extra["up"] = product.up if chosen.majors[1] else staged(product.up)
    if chosen.loaded:
        extra["c"] = sources.pop(chosen.loaded)
        epilogue = replace(epilogue, bias=None) if chosen.loaded == "bias" else replace(epilogue, residual=None)
    return Call(
        config=config, problem=chosen.problem, a=a, b=b, d=written, epilogue=epilogue, operands=sources, **extra
    )


_NUMPY = {type_: name for name, type_ in OF_NUMPY.items()}
