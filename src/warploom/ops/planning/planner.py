"""From a request to a launch: the target's route, a configuration, copies of operands that TMA cannot read.

A configuration is the caller's, one that was tuned, or the one that suits the problem best. Rules that it breaks are
reported with the violations of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from warploom.diagnostics import Diag
from warploom.hardware.mma_shapes import WGMMA
from warploom.hardware.synchronisation import REGISTERS_PER_THREAD
from warploom.hardware.targets import MACHINES
from warploom.hardware.tensor_maps import STRIDE_ALIGNMENT
from warploom.heuristics import EMULATED, Device, ProblemKey, choose, key_of, shared
from warploom.heuristics.sm90.device_data import fields_of_json
from warploom.heuristics.sm90.ranking import candidates_of
from warploom.heuristics.sm100 import choose_config
from warploom.host.arrays import scratch
from warploom.host.launch import Launch
from warploom.kernels.call import Call, Config, major_of, row_stride
from warploom.kernels.sm90.binding import bind as bind_sm90
from warploom.kernels.sm90.binding import meeting_ctas
from warploom.kernels.sm100.binding import FAMILIES as SM100_FAMILIES
from warploom.kernels.sm100.binding import bind as bind_sm100
from warploom.kernels.sm100.binding import family_of as sm100_family_of
from warploom.kernels.sm100.grouped_decode import WIDEST, decode_config
from warploom.launcher import launch as run_launch
from warploom.ops.determinism import SETTINGS, SPLIT_REFUSED
from warploom.ops.planning.arrays import RESULT_TYPES, Array, Violations, element_type, padded
from warploom.ops.planning.request import Gpu, Request, check, complete, result_type, with_type
from warploom.runtime.cache.choices import found_before
from warploom.runtime.cache.winners import recall
from warploom.structured.config import (
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    MatmulConfig,
    Problem,
)
from warploom.structured.config import (
    violations as sm100_violations,
)
from warploom.structured.config.base import field_names
from warploom.structured.config.output import MACHINE as SM100
from warploom.structured.config.sm90 import MACHINE as SM90
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.epilogue.epilogue import FORMATS, OUT
from warploom.structured.epilogue.tile_writer import LOW_PRECISION_TYPES
from warploom.trace.language.types import OF_NUMPY

Majors = tuple[str | None, str | None]
"""The contiguous dimension of A and B, "k" or "mn"; None for an operand that the kernel gets as a copy."""
SM90_CONFIGS: Mapping[str, type[HopperConfig]] = {
    "dense": HopperConfig,
    "grouped": HopperConfig,
    "blockwise": HopperBlockwiseConfig,
    "grouped_blockwise": HopperBlockwiseConfig,
}
SM100_CONFIGS: Mapping[str, type[MatmulConfig]] = {
    "dense": MatmulConfig,
    "grouped": MatmulConfig,
    "blockwise": BlockwiseFP8MatmulConfig,
    "block_scaled": BlockScaledMatmulConfig,
    "grouped_blockwise": BlockwiseFP8MatmulConfig,
    "grouped_block_scaled": BlockScaledMatmulConfig,
}
_TF32 = {"f32", "tf32"}
"""Two ways to multiply float32."""
_NUMPY = {type_: name for name, type_ in OF_NUMPY.items()}


_NO_SPLIT = "a convolution is not split along K"


class Choice(NamedTuple):
    """A configuration for a request, and what else the kernel's arguments depend on."""

    config: Any
    problem: Problem
    majors: Majors
    loaded: str = ""
    """The epilogue input that the kernel loads by TMA, if any."""
    key: ProblemKey | None = None
    """The problem that it was chosen for, where a choice can be tuned."""


@dataclass(frozen=True)
class Route:
    """The route from requests to the kernels of a target."""

    configs: Mapping[str, type[Any]]
    """Configuration classes by kind of request."""
    choose: Callable[[Request, Violations], Choice | None]
    bind: Callable[[Call[Any], int | None], Launch]


@dataclass(frozen=True)
class Plan:
    """A launch and the array that it fills, directly or by way of a copy."""

    result: Any
    launch: Launch | None = None
    """None where there is nothing to compute."""
    staged: Array | None = None
    """The copy that the launch writes where the result overlaps an input."""
    key: ProblemKey | None = None
    """The problem that its configuration was chosen for, where that can be tuned."""
    call: Call[Any] | None = None
    """The kernel call that the launch was made of."""

    def run(self) -> Any:
        """Run the launch and return the result."""
        if self.launch is not None:
            run_launch(self.launch)
        if self.staged is not None:
            self.result[...] = self.staged.reshape(self.result.shape)
        return self.result

    def single_launch(self, function: str) -> Launch:
        """The launch, where it is all that there is to do."""
        if self.launch is None:
            raise Diag.BAD_LAUNCH.error(what=f"the result of `{function}` is empty: there is nothing to launch")
        if self.staged is not None:
            raise Diag.BAD_LAUNCH.error(what="`out` overlaps an input, which a single launch cannot handle")
        return self.launch


def plan(request: Request, violations: Violations | None = None) -> Plan:
    """Plan a request, or raise one error with all its violations; without a collector it was checked before."""
    collected = Violations(request.function) if violations is None else violations
    route = _route(request, collected)
    if violations is not None:
        check(request, violations)
    is_fitting = _check_config_class(request, route, collected)
    done: Request | None = None
    choice: Choice | None = None
    if request.a is not None:
        if not len(collected):
            done = complete(request)
        if route is not None and is_fitting and (done or result_type(request) in RESULT_TYPES):
            choice = route.choose(done or replace(with_type(request), outputs=None), collected)
    collected.check()
    assert done is not None
    assert route is not None
    if choice is None:
        return Plan(done.result)
    call = _call(done, choice)
    launch = route.bind(call, done.gpu.sms if done.gpu else None)
    return Plan(done.result, launch, done.d if done.is_apart else None, choice.key, call)


def check_route(request: Request, violations: Violations) -> None:
    """Check that there are kernels for the caller's target and configuration, of operands that are not known."""
    _check_config_class(request, _route(request, violations), violations)


def _route(request: Request, violations: Violations) -> Route | None:
    """The route to the caller's target, to that of the caller's configuration, or to the first."""
    target, fitting = request.target, list(TARGETS)
    if target is None:
        known = (each for each in TARGETS if isinstance(request.config, tuple(TARGETS[each].configs.values())))
        target = next(known, fitting[0])
    elif request.a is not None:
        fitting = [each for each in TARGETS if request.kind in TARGETS[each].configs]
    if target not in fitting:
        violations.add("target", target, f"must be one of {', '.join(fitting)}")
        return None
    return TARGETS[target]


def _check_config_class(request: Request, route: Route | None, violations: Violations) -> bool:
    """Check that the caller's configuration, if there is one, is for the kind of the request and its target."""
    config = request.config
    routes = TARGETS.values() if route is None else (route,)
    wanted = list(dict.fromkeys(each.configs[request.kind] for each in routes if request.kind in each.configs))
    if config is None or type(config) in wanted or (request.a is None and isinstance(config, tuple(wanted))):
        return True
    violations.add("config", config, f"must be a {' or '.join(each.__name__ for each in wanted)}")
    return False


def _call(request: Request, choice: Choice) -> Call[Any]:
    """The kernel call, with copies of the operands that TMA cannot read."""
    config, operands = choice.config, zip((request.a, request.b), choice.majors, strict=True)
    a, b = (each if major else padded(each) for each, major in operands)
    epilogue, sources, written, extra = request.traced, dict(request.sources), request.d, dict(request.extra or {})
    if epilogue.store is not None:
        sources[OUT] = written
        written = scratch((1, 1), _NUMPY[config.c_type])  # the kernel itself stores nothing
    if request.up is not None:
        extra["up"] = request.up if choice.majors[1] else padded(request.up)
    if request.clears:
        extra["cleared_rows"] = request.sizes[0]
    if choice.loaded:
        extra["c"] = request.load_source(choice.loaded)
        del sources[choice.loaded]
        epilogue = replace(epilogue, bias=None) if choice.loaded == "bias" else replace(epilogue, residual=None)
    return Call(
        config=config,
        problem=choice.problem,
        a=a,
        b=b,
        d=written,
        epilogue=epilogue,
        operands=sources,
        outputs=request.outputs,
        window=request.window,
        **extra,
    )


def clears_rows(kind: str, target: str) -> bool:
    """Return whether a kernel can set rows of D that belong to no group to zero."""
    return (kind, target) == ("grouped", "sm_90a")


def _majors(request: Request, major: Callable[[Any], str | None]) -> Majors:
    """The majors of A and B; of a gated GEMM that of both weights, if it is the same.

    A group may begin at any row, and TMA only at multiples of 16 bytes: A of a grouped GEMM is never mn-major.
    """
    of_a, of_b = major(request.a), major(request.b)
    if request.window is not None:  # channels are contiguous
        return of_a if of_a == "k" else None, of_b if of_b == "k" else None
    of_a = None if request.groups and of_a == "mn" else of_a
    return of_a, of_b if request.up is None or major(request.up) == of_b else None


def _common_fields(request: Request, majors: Majors) -> dict[str, Any]:
    """The fields that every configuration has; an operand without a major is copied so that K is contiguous."""
    return {
        "a_type": element_type(request.a),
        "b_type": element_type(request.b),
        "c_type": OF_NUMPY[request.dtype.name],
        "a_major": majors[0] or "k",
        "b_major": majors[1] or "k",
        "use_tma_store": request.is_storable,
        **({"output_types": request.output_types} if request.output_types else {}),
        **({} if request.up is None else {"gated": True}),
        **(request.fields or {}),
    }


def _problem(request: Request, config: Any) -> Problem:
    """The sizes of the GEMM; of a convolution each tap has whole K tiles."""
    m, n, k, batch = request.sizes
    if request.window is not None:
        k = request.window.taps * config.k_tiles(request.a.shape[-1]) * config.BK
    return Problem(m, n, k, batch)


def completed(given: Config, fields: Mapping[str, Any]) -> Config:
    """The caller's configuration with the fields that follow from the arrays."""
    names = {"a": "b", "b": "a"} if given.AB_swapped else {"a": "a", "b": "b"}
    stores = given.use_tma_store and fields["use_tma_store"]
    changes = {"gated": False, "output_types": (), **fields, "use_tma_store": stores}
    for own, theirs in names.items():
        changes[f"{own}_major"] = fields[f"{theirs}_major"]
        element, asked = fields[f"{theirs}_type"], getattr(given, f"{own}_type")
        changes[f"{own}_type"] = asked if {element, asked} == _TF32 else element
    config = given.replace(**changes)
    return config if stores and config.stages_outputs else config.replace(output_types=())


def _without_load(config: Config, request: Request, field: str) -> Config:
    """The caller's configuration without the epilogue load of a residual that is not read."""
    return config.replace(**{field: False}) if request.drops_residual and getattr(config, field) else config


# Hopper


def _choose_sm90(request: Request, violations: Violations) -> Choice | None:
    """The caller's configuration, or the one that suits the problem; None where there is nothing to compute."""
    if request.is_empty:
        return None
    majors = _majors(request, _sm90_major)
    fields = _common_fields(request, majors)
    if "starts" in (request.extra or {}):
        fields["pingpong"] = False  # each warpgroup would have to know the K extent of the other's tile
    key = _problem_key(request, fields)
    config = _sm90_config(key, request.gpu) if request.config is None else completed(request.config, fields)
    config = _without_load(config, request, "residual_in_place")
    broken = list(_sm90_violations(config, request))
    if broken and request.config is None and request.gpu is not None:  # it was chosen for more rows
        config = _without_load(_ranked(key, request.gpu), request, "residual_in_place")
        broken = list(_sm90_violations(config, request))
    for rule in broken:
        violations.add("config", config, f"is invalid: {rule}")
    problem = _problem(request, config)
    return Choice(config, problem, majors, "residual" if config.residual_in_place else "", _tunable(request, key))


def _sm90_major(array: Any) -> str | None:
    """The contiguous dimension; wgmma reads some element types along K only, and others are copied for it."""
    major = major_of(array)
    return major if major == "k" or WGMMA[element_type(array)].transposable else None


def _tunable(request: Request, key: ProblemKey) -> ProblemKey | None:
    """The key of a problem that can be tuned: a convolution and groups are not the GEMM that their sizes describe."""
    return None if request.window is not None or request.kind == "grouped_blockwise" else key


def _problem_key(request: Request, fields: dict[str, Any]) -> ProblemKey:
    """The problem that a configuration must suit: the sizes, and what the epilogue needs."""
    m, n, k, batch = request.sizes
    n = n if request.up is None else 2 * n
    in_place = request.kind == "dense" and request.is_storable and not request.load_problem("residual")
    needs_registers = _needs_registers(request, in_place=in_place)
    marks = {
        "unsplit": SETTINGS.batch_invariant or "starts" in (request.extra or {}) or request.window is not None,
        "light_epilogue": not needs_registers
        and (request.traced.bias or request.traced.activation or request.traced.pair),
        "fused": needs_registers,
        "residual": in_place,
    }
    if request.kind == "grouped_blockwise":  # as a GEMM of every group
        return key_of("blockwise", -(-m // request.groups), n, k, request.groups, **fields, **marks)
    return key_of(request.kind, m, n, k, request.groups or batch, **fields, **marks)


_FAST_PAIRS = ("swiglu", "reglu", "glu", "geglu_tanh")
"""Functions of gate and up that need few registers, if the result has few bits."""


def _needs_registers(request: Request, *, in_place: bool) -> bool:
    """Return whether an epilogue needs more than a bias row loaded early, a fast activation and a residual in place."""
    epilogue, bias = request.traced, (request.sources or {}).get("bias")
    is_dense = request.kind == "dense"
    is_early = epilogue.bias is not None and epilogue.bias.kind == "row" and getattr(bias, "ndim", 0) == 1
    is_fast = OF_NUMPY[request.dtype.name] in LOW_PRECISION_TYPES
    return bool(
        any((epilogue.function, epilogue.store))
        or (epilogue.outputs and not (is_dense and epilogue.pair))  # gate and up are stored as they are
        or (epilogue.pair and not (is_dense and is_fast and epilogue.pair in _FAST_PAIRS))
        or (epilogue.activation and not (is_dense and is_fast))
        or (epilogue.bias and not (is_dense and is_early))
        or (epilogue.residual and not in_place)
    )


def _sm90_config(key: ProblemKey, gpu: Gpu | None) -> HopperConfig:
    """The configuration tuned by this user on such a GPU, else the best-ranked one of the problem that it shares."""
    if gpu is None:
        chosen: HopperConfig = choose(key, EMULATED["sm_90a"])
        return chosen
    return tuned(key, gpu) or _ranked(shared(key, Device(gpu.name, gpu.sms)), gpu)


def _ranked(key: ProblemKey, gpu: Gpu) -> HopperConfig:
    """The best-ranked configuration: of this process, of the disk cache, or a new one."""
    found = found_before(f"{gpu.name}, {gpu.sms} SMs, {key}", lambda: choose(key, Device(gpu.name, gpu.sms)).given)
    return SM90_CONFIGS[key.kind](**fields_of_json(found))


def tuned(key: ProblemKey, gpu: Gpu) -> HopperConfig | None:
    """The remembered winner for the problem, or else for the GEMM alone, if it is still possible."""
    kept = recall(gpu.name, str(key))
    if kept is None and key.light_epilogue:
        kept = recall(gpu.name, str(replace(key, light_epilogue=False)))
    if kept is None or not kept.keys() <= {*field_names(SM90_CONFIGS[key.kind])}:
        return None
    return next(iter(candidates_of((fields_of_json(kept),), key, gpu.sms, is_measured=True)), None)


def _sm90_violations(config: HopperConfig, request: Request) -> Iterator[str]:
    """The rules that a configuration breaks, by itself or for this problem."""
    m, n, k, batch = request.sizes
    sms = request.gpu.sms if request.gpu else SM90.sms
    yield from config.violations()
    splits = config.num_split_k
    if SETTINGS.batch_invariant and config.is_split:
        yield f"num_split_k={splits}, stream_k={config.stream_k}: {SPLIT_REFUSED}"
    if config.stream_k and request.kind != "dense":
        yield "stream_k=True: stream-K is for dense GEMMs only"
    if splits > 1:
        if request.kind != "dense" or batch > 1:
            yield f"num_split_k={splits}: split-K is for single GEMMs only"
        if -(-k // config.BK) < splits:
            yield f"num_split_k={splits}: K has only {-(-k // config.BK)} tiles of {config.BK}"
        if (ctas := meeting_ctas(config, m, n)) > sms:
            yield f"num_split_k={splits}, split_in_cluster=False: {ctas} CTAs wait for each other, on {sms} SMs"
    if request.window is not None and config.is_split:
        yield f"num_split_k={splits}, stream_k={config.stream_k}: {_NO_SPLIT}"
    if config.residual_in_place:
        problem = request.load_problem("residual") if request.d is not None else ""
        if request.kind != "dense":
            problem = "only a dense GEMM loads its residual by TMA"
        if problem:
            yield f"residual_in_place=True: {problem}"


# Blackwell


def _choose_sm100(request: Request, violations: Violations) -> Choice | None:
    """The caller's configuration, or the one that suits the problem; None where there is nothing to compute."""
    if request.is_empty:
        return None
    given, d = request.config, request.d
    majors = _majors(request, major_of)
    fields = _sm100_fields(request, majors)
    if given is not None and given.gemm_kind not in ("gemm", "bmm", fields["gemm_kind"]):
        violations.add("config", given, f"has gemm_kind={given.gemm_kind!r}, which is for another operation")
        return None
    config = _sm100_config(request, fields) if given is None else completed(given, _demanded(fields))
    config = config if config.epilogue_is_1d else _without_load(config, request, "use_tma_epilogue_load")
    config = _narrowed(config, request)
    loaded = ("bias" if config.epilogue_is_1d else "residual") if config.use_tma_epilogue_load else ""
    if loaded and d is not None and (problem := request.load_problem(loaded)):
        violations.add("config", config, f"is invalid: use_tma_epilogue_load=True: {problem}")
    c_stride = row_stride(d) if d is not None and config.use_tma_store else None
    a_stride, b_stride = _row_strides(request, majors)
    problem_sizes = replace(_problem(request, config), a_stride=a_stride, b_stride=b_stride, c_stride=c_stride)
    for broken in sm100_violations(config, problem_sizes):
        violations.add("config", config, f"is invalid: {broken}")
    split = f"stream_k={config.stream_k}" if config.stream_k else f"num_split_k={config.num_split_k}"
    if SETTINGS.batch_invariant and config.splits_k:
        violations.add("config", config, f"is invalid: {split}: {SPLIT_REFUSED}")
    if request.window is not None and config.splits_k:
        violations.add("config", config, f"is invalid: {split}: {_NO_SPLIT}")
    if sm100_family_of(config) not in SM100_FAMILIES:
        violations.add("config", config, f"is invalid: there is no kernel for {sm100_family_of(config)}")
    return Choice(config, problem_sizes, majors, loaded)


def _sm100_fields(request: Request, majors: Majors) -> dict[str, Any]:
    """The fields that follow from the arrays, and those that a choice is not free in."""
    kind = "gmm" if request.groups else "bmm" if request.batches else "gemm"
    kind = "block_scaled_1d2d_fp8" if request.kind == "grouped_blockwise" else kind
    fields = {"gemm_kind": kind, **_common_fields(request, majors)}
    if request.up is not None:
        fields |= {"AB_swapped": False, "use_tma_epilogue_load": False}
    if request.quantise_to is not None:
        fields |= {"output_tile_shape": (SM100.tensor_lanes, max(FORMATS.values()))}
    if "starts" in (request.extra or {}):
        fields |= {"prefetch_tiles_n": 0, "k_group_size": 1}  # K extents are counted in K tiles
    if request.window is not None:
        fields["k_group_size"] = 1  # a group would end after the last tap
    if request.kind == "dense" and request.up is None:
        fields["use_tma_epilogue_load"] = request.is_storable and not request.load_problem("residual")
    return fields


def _narrowed(config: MatmulConfig, request: Request) -> MatmulConfig:
    """The configuration with narrower epilogue subtiles where the epilogue would spill, unless the caller chose them.

    A thread holds the subtile that it computes, the next one, and the inputs of both. Measured by bench/spills.py.
    """
    traced = request.traced
    is_long = bool(traced.function or traced.activation in _LONG or traced.pair in _LONG_PAIRS or callable(traced.pair))
    reads = sum(each is not None for each in (traced.bias, traced.up_bias, traced.residual)) + len(traced.outputs)
    most = _SUBTILE_COLUMNS[config.register_based_epilogue, is_long, reads > 0]
    if not config.register_based_epilogue and config.AB_swapped:  # transposed
        if config.c_type not in LOW_PRECISION_TYPES:  # activations are those for float32
            most = min(most, _EXCHANGED_COLUMNS)
        elif reads:
            most = min(most, 2 * _EXCHANGED_COLUMNS)
    if config.gated and reads and (is_long or not config.register_based_epilogue):  # a column has two accumulators
        most = min(most, _EXCHANGED_COLUMNS if config.c_bytes > 1 else 2 * _EXCHANGED_COLUMNS)
    if config.threads > _MANY_THREADS:
        most = min(most, _EXCHANGED_COLUMNS if is_long else 2 * _EXCHANGED_COLUMNS)
    most = most if config.AB_swapped else max(most, STRIDE_ALIGNMENT // config.c_bytes)
    is_given = "output_tile_shape" not in dict(config.derived) or request.quantise_to is not None
    if is_given or config.stageN <= most:
        return config
    rows, columns = config.output_tile_shape
    return config.replace(output_tile_shape=(most, columns) if config.AB_swapped else (rows, most))


_EXCHANGED_COLUMNS = 8
_MANY_THREADS = MACHINES["sm_100a"].registers_per_sm // REGISTERS_PER_THREAD
"""Threads of a CTA beyond which each has fewer registers than an instruction can name."""
_LONG = ("gelu",)
_LONG_PAIRS = ("geglu",)
"""Activations that need many registers, because of erf."""
_SUBTILE_COLUMNS: Mapping[tuple[bool, bool, bool], int] = {
    (True, True, True): 32,
    (False, True, True): 16,
    (False, True, False): 16,
    (False, False, True): 32,
    (False, False, False): 32,
    (True, True, False): 64,
    (True, False, True): 64,
    (True, False, False): 64,
}
"""The most columns of a subtile that do not spill.

By whether values stay in registers, whether the epilogue is long, and whether it reads or stores other arrays.
"""


def _demanded(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that a caller's configuration must have."""
    return {name: value for name, value in fields.items() if name not in ("AB_swapped", "use_tma_epilogue_load")}


def _row_strides(request: Request, majors: Majors) -> Sequence[int | None]:
    """Elements from row to row of A and B, as the kernel gets them; None for a convolution, which has no such rows."""
    if request.window is not None:
        return None, None
    pairs = zip((request.a, request.b), majors, strict=True)
    held = [(each if major else padded(_first_row(each)), major or "k") for each, major in pairs]
    return [row_stride(*each) * packing for each, packing in zip(held, request.packing, strict=True)]


def _first_row(array: Any) -> Any:
    """One row of an operand that is copied: its stride is that of the copy, without the time of one."""
    return array[..., :1, :] if isinstance(array, np.ndarray) else array


def _sm100_config(request: Request, fields: dict[str, Any]) -> MatmulConfig:
    """The configuration that suits the problem; without an epilogue load where there is no room for one."""
    (m, n, k, batch), family = request.sizes, SM100_CONFIGS[request.kind]
    fields = {**fields, "sms": request.gpu.sms if request.gpu else SM100.sms}
    n = n if request.up is None else 2 * n
    if request.groups:
        rows = -(-m // request.groups)
        swaps = request.up is None and request.kind != "grouped_blockwise"  # others have tokens along M
        if rows <= WIDEST and swaps:
            return decode_config(rows, n, k, request.groups, family=family, **fields)
        return choose_config(rows, n, k, request.groups, family=family, **fields)
    config = choose_config(m, n, k, batch, family=family, **fields)
    if sm100_violations(config) and fields.get("use_tma_epilogue_load"):
        return choose_config(m, n, k, batch, family=family, **{**fields, "use_tma_epilogue_load": False})
    return config


TARGETS: Mapping[str, Route] = {
    "sm_100a": Route(SM100_CONFIGS, _choose_sm100, bind_sm100),
    "sm_103a": Route(SM100_CONFIGS, _choose_sm100, partial(bind_sm100, target="sm_103a")),
    "sm_90a": Route(SM90_CONFIGS, _choose_sm90, bind_sm90),
}
"""The targets that there are kernels for; the first is the default."""
