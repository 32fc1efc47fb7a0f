"""Products on Hopper: which configuration a request gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from warploom.hardware.mma_shapes import WGMMA
from warploom.heuristics import EMULATED, Device, ProblemKey, choose, key_of
from warploom.heuristics.sm90.device_data import fields_of_json
from warploom.heuristics.sm90.ranking import candidates_of
from warploom.kernels.call import major_of
from warploom.kernels.sm90.binding import meeting_ctas
from warploom.ops.determinism import CHOICE, SPLIT_REFUSED
from warploom.ops.planning.arrays import Array, element_of
from warploom.ops.planning.config_fields import common_fields, completed, majors_of
from warploom.ops.planning.request import GPU, Chosen, Hardware, Request
from warploom.ops.planning.violations import Faults
from warploom.runtime.cache.choices import found_before
from warploom.runtime.cache.winners import recall
from warploom.structured.config import Problem
from warploom.structured.config.base import field_names
from warploom.structured.config.sm90 import MACHINE, HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.epilogue.tile_writer import LOW_PRECISION_TYPES
from warploom.trace.language.types import OF_NUMPY

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
    majors = majors_of(product, _major)
    fields = common_fields(request, majors)
    if "starts" in product.extra:
        fields["pingpong"] = False  # its warpgroups would have to know the depths of each other's tiles
    wanted = _sought(request, fields)
    config = _chosen(wanted) if given is None else completed(given, fields)
    for broken in _violations(config, request):
        faults.add("config", config, broken)
    return Chosen(config, Problem(*product.sizes), majors, "residual" if config.residual_in_place else "", wanted)


def _major(array: Array) -> str | None:
    """Which dimension lies contiguous; what the tensor core reads along K only is copied if it lies otherwise."""
    major = major_of(array)
    return major if major == "k" or WGMMA[element_of(array)].transposable else None


def _sought(request: Request, fields: dict[str, Any]) -> ProblemKey:
    """What a configuration is to suit: the sizes, and what follows the product."""
    product = request.product
    m, n, k, batch = product.sizes
    n = n if product.up is None else 2 * n
    in_place = product.kind == "dense" and request.is_storable and not request.load_problem("residual")
    after, is_fused = request.after.epilogue, _needs_registers(request, in_place=in_place)
    marks = {
        "unsplit": CHOICE.batch_invariant or "starts" in product.extra,
        "light_epilogue": not is_fused and (after.bias or after.activation),
        "fused": is_fused,
        "residual": in_place,
    }
    return key_of(product.kind, m, n, k, product.groups or batch, **fields, **marks)


def _needs_registers(request: Request, *, in_place: bool) -> bool:
    """Whether an epilogue needs more than a bias that comes early, a fast activation and a residual in place."""
    after, bias = request.after.epilogue, request.after.sources.get("bias")
    is_plain = request.product.kind == "dense"
    is_early = after.bias is not None and after.bias.kind == "row" and getattr(bias, "ndim", 0) == 1
    is_fast = OF_NUMPY[request.dtype.name] in LOW_PRECISION_TYPES
    return bool(
        any((after.pair, after.function, after.store, after.outputs))
        or (after.activation and not (is_plain and is_fast))
        or (after.bias and not (is_plain and is_early))
        or (after.residual and not in_place)
    )


def _chosen(wanted: ProblemKey) -> HopperConfig:
    """The configuration that suits: what this user has tuned on such a GPU, else as `choose` does."""
    gpu = GPU.get()
    if gpu is None:
        chosen: HopperConfig = choose(wanted, EMULATED["sm_90a"])
        return chosen
    return tuned(wanted, gpu) or _searched(wanted, gpu)


def _searched(wanted: ProblemKey, gpu: Hardware) -> HopperConfig:
    """What `choose` says, now or in an earlier process: it looks at a hundred configurations and more."""
    found = found_before(
        f"{gpu.name}, {gpu.sms} SMs, {wanted}", lambda: choose(wanted, Device(gpu.name, gpu.sms)).given
    )
    return CONFIGS[wanted.kind](**fields_of_json(found))


def tuned(wanted: ProblemKey, gpu: Hardware) -> HopperConfig | None:
    """The winner that was remembered, for it or else for the product alone, if it is still possible."""
    kept = recall(gpu.name, str(wanted))
    if kept is None and wanted.light_epilogue:
        kept = recall(gpu.name, str(replace(wanted, light_epilogue=False)))
    if kept is None or not kept.keys() <= {*field_names(CONFIGS[wanted.kind])}:
        return None
    return next(iter(candidates_of((fields_of_json(kept),), wanted, gpu.sms)), None)


def _multiprocessors() -> int:
    """Of the GPU that the call is for."""
    gpu = GPU.get()
    return gpu.sms if gpu else MACHINE.sms


def _violations(config: HopperConfig, request: Request) -> Iterator[str]:
    """The rules that a configuration breaks, by itself or for these sizes."""
    product = request.product
    m, n, k, batch = product.sizes
    yield from config.violations()
    splits = config.num_split_k
    if CHOICE.batch_invariant and config.is_split:
        yield f"num_split_k={splits}, stream_k={config.stream_k}: {SPLIT_REFUSED}"
    if config.stream_k and product.kind != "dense":
        yield "stream_k=True: only dense products have their last wave shared"
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
        if product.kind != "dense":
            problem = "only a plain product loads it so"
        if problem:
            yield f"residual_in_place=True: {problem}"
