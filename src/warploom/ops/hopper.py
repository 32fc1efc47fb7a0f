"""Products on Hopper: which configuration a request gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from typing import Any

from warploom.facts.mma_shapes import WGMMA
from warploom.kernels.calls import major_of
from warploom.kernels.sm90.binding import meeting_ctas
from warploom.ops.arrays import ROUNDED, Array, element_of
from warploom.ops.faults import Faults
from warploom.ops.request import MULTIPROCESSORS, Chosen, Request
from warploom.structured.config import Problem
from warploom.structured.config.hopper import MACHINE, HopperConfig
from warploom.structured.config.hopper_blockwise import HopperBlockwiseConfig
from warploom.structured.config.hopper_choice import choose_hopper, expected_time
from warploom.structured.config.hopper_families import choose_blockwise, choose_grouped
from warploom.trace.types import OF_NUMPY

CONFIGS: Mapping[str, type[HopperConfig]] = {
    "dense": HopperConfig,
    "grouped": HopperConfig,
    "blockwise": HopperBlockwiseConfig,
}
"""The configurations of each kind of product."""


def configured(request: Request, faults: Faults) -> Chosen[HopperConfig] | None:
    """The configuration, the caller's or one that suits the sizes; None where nothing is to be computed."""
    product, given = request.product, request.options.config
    if product.is_empty:
        return None
    majors = (_major(product.a), _major(product.b))
    fields: dict[str, Any] = {
        "a_type": element_of(product.a),
        "b_type": element_of(product.b),
        "c_type": OF_NUMPY[request.dtype.name],
        "a_major": majors[0] or "k",
        "b_major": majors[1] or "k",
        "use_tma_store": request.is_storable,
        **product.fields,
    }
    config = _chosen(request, fields) if given is None else _completed(given, fields)
    for broken in _violations(config, request):
        faults.add("config", config, broken)
    return Chosen(config, Problem(*product.sizes), majors, "residual" if config.residual_in_place else "")


def _major(array: Array) -> str | None:
    """Which dimension lies contiguous; what the tensor core reads along K only is copied if it lies otherwise."""
    major = major_of(array)
    return major if major == "k" or WGMMA[element_of(array)].transposable else None


def _chosen(request: Request, fields: dict[str, Any]) -> HopperConfig:
    """The configuration that suits the sizes; a residual comes in place where there is room, and no split is faster."""
    product = request.product
    m, n, k, batch = product.sizes
    if product.kind == "grouped":
        return choose_grouped(-(-m // product.groups), n, k, product.groups, **fields)
    if product.kind == "blockwise":
        return choose_blockwise(m, n, k, **fields)
    after = request.after.epilogue
    fused = any((after.bias, after.activation, after.function, after.residual, after.store))
    fields = {**fields, "sms": _multiprocessors()}
    config = choose_hopper(m, n, k, batch, **fields, fused=fused)
    if not request.is_storable or request.load_problem("residual"):
        return config
    in_place = choose_hopper(m, n, k, batch, **fields, residual_in_place=True)
    times = [expected_time(each, m, n, k, batch, sms=fields["sms"]) for each in (config, in_place)]
    return config if in_place.violations() or (config.num_split_k > 1 and times[0] < times[1]) else in_place


def _multiprocessors() -> int:
    """Of the GPU that the call is for."""
    return MULTIPROCESSORS.get() or MACHINE.sms


def _completed(given: HopperConfig, fields: dict[str, Any]) -> HopperConfig:
    """The caller's configuration with the types and majors that the arrays have, and what follows from them anew."""
    names = {"a": "b", "b": "a"} if given.AB_swapped else {"a": "a", "b": "b"}
    changes = dict(fields, use_tma_store=given.use_tma_store and fields["use_tma_store"])
    for own, theirs in names.items():
        changes[f"{own}_major"] = fields[f"{theirs}_major"]
        element, asked = fields[f"{theirs}_type"], getattr(given, f"{own}_type")
        changes[f"{own}_type"] = asked if {element, asked} == ROUNDED else element
    return given.replace(**dict.fromkeys(_derived(given)), **changes)


def _derived(config: HopperConfig) -> list[str]:
    """The fields that nobody gave: those that would be the same without."""
    names = [each.name for each in fields_of(config) if each.default is None and each.name[1:] != "_type"]
    return [name for name in names if getattr(config.replace(**{name: None}), name) == getattr(config, name)]


def _violations(config: HopperConfig, request: Request) -> Iterator[str]:
    """The rules that a configuration breaks, by itself or for these sizes."""
    product = request.product
    m, n, k, batch = product.sizes
    yield from config.violations()
    splits = config.num_split_k
    if splits > 1:
        if product.kind != "dense" or batch > 1:
            yield f"num_split_k={splits}: only single products are split"
        if -(-k // config.BK) < splits:
            yield f"num_split_k={splits}: K has only {-(-k // config.BK)} tiles of {config.BK}"
        if meeting_ctas(config, m, n) > _multiprocessors():
            what = f"{meeting_ctas(config, m, n)} CTAs that wait for each other"
            yield f"num_split_k={splits}, split_in_cluster=False: {what}, and {_multiprocessors()} SMs"
    if config.residual_in_place:
        problem = request.load_problem("residual") if request.to is not None else ""
        if product.kind != "dense" or splits > 1:
            problem = "only a plain product loads it so"
        elif not config.use_tma_store:
            problem = "the result is not stored by TMA"
        if problem:
            yield f"residual_in_place=True: {problem}"
