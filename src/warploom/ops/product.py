"""The planning that all products share: result, configuration, copies where they are needed, launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from warploom.kernels.sm100.binding import FAMILIES, Call, bind, family_of, is_row, is_storable, major_of, row_stride
from warploom.kernels.sm100.grouped_decode import WIDEST, decode_config
from warploom.ops.addends import Result
from warploom.ops.arrays import Array, element_of, staged
from warploom.ops.destination import Destination, check_out, destination, result_dtype
from warploom.ops.faults import Faults
from warploom.ops.following import OUT, Following, Options, following
from warploom.ops.plan import Plan
from warploom.structured.config import MatmulConfig, Problem, choose_config, violations
from warploom.trace.types import OF_NUMPY

TARGETS = ("sm_100a",)
_ROUNDED = {"f32", "tf32"}
"""Two ways to multiply float32."""
_KINDS = ("gemm", "bmm")


@dataclass(frozen=True)
class Product:
    """A (…, m, k) times the transpose of B (…, n, k), and what the result is to the caller.

    `fields` of the configuration follow from the arrays; `extra` is what the kernel takes beside A and B.
    """

    a: Array
    b: Array
    result: Result
    family: type[MatmulConfig] = MatmulConfig
    fields: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    packing: int = 1
    """Elements in one of the arrays' items."""
    groups: int = 0
    """Groups of rows: a configuration is to suit one of them, and rows behind the last are not written."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """m, n, k and batches, as the kernel counts them; where there is nothing to add up, one zero is."""
        return self.result.m, self.result.n, max(self.a.shape[-1] * self.packing, 1), self.result.batch

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in self.result.core or 0 in self.b.shape[:-2]

    @property
    def majors(self) -> tuple[str | None, str | None]:
        return major_of(self.a), major_of(self.b)

    @property
    def row_strides(self) -> list[int]:
        """Elements from row to row of both factors, as the kernel gets them."""
        pairs = zip((self.a, self.b), self.majors, strict=True)
        held = [(each if major else staged(each[..., :1, :]), major or "k") for each, major in pairs]
        return [row_stride(*each) * self.packing for each in held]


def planned(product: Product | None, options: Options, faults: Faults) -> Plan:
    """The plan of a call, or all its faults in one error."""
    if options.target is not None and options.target not in TARGETS:
        faults.add("target", options.target, f"there are kernels for {', '.join(TARGETS)}")
    result = product.result if product is not None else None
    after = following(options, result, faults)
    dtype = result_dtype(product.a if product is not None else None, options, faults)
    check_out(result, options, faults)
    to: Destination | None = None
    chosen: tuple[MatmulConfig, Problem] | None = None
    if product is not None and dtype is not None:
        if not len(faults):
            factors = (product.a, product.b, *product.extra.values())
            to = destination(factors, product.result, dtype, options, is_whole=not product.groups)
        chosen = _configured(product, dtype, to, after, options, faults)
    elif options.config is not None and not isinstance(options.config, MatmulConfig):
        faults.add("config", options.config, "it is no MatmulConfig")
    faults.check()
    assert product is not None
    assert to is not None
    if chosen is None:
        return Plan(to.result)
    return Plan(to.result, bind(_call(product, to, after, *chosen)), to.matrix if to.is_apart else None)


def _call(product: Product, to: Destination, after: Following, config: MatmulConfig, problem: Problem) -> Call:
    """The call of the kernel, with copies of what the copy engine cannot step through."""
    factors = zip((product.a, product.b), product.majors, strict=True)
    a, b = (each if major else staged(each) for each, major in factors)
    epilogue, sources, written, extra = after.epilogue, dict(after.sources), to.matrix, dict(product.extra)
    if epilogue.store is not None:
        sources[OUT] = written
        written = np.empty((1, 1), np.dtype(_NUMPY[config.c_type]))  # the kernel stores nothing by itself
    if config.use_tma_epilogue_load:
        name = _loaded_name(config)
        extra["c"] = sources.pop(name)
        epilogue = replace(epilogue, bias=None) if name == "bias" else replace(epilogue, residual=None)
    return Call(config=config, problem=problem, a=a, b=b, d=written, epilogue=epilogue, operands=sources, **extra)


_NUMPY = {type_: name for name, type_ in OF_NUMPY.items()}


def _configured(
    product: Product,
    dtype: np.dtype[Any],
    to: Destination | None,
    after: Following,
    options: Options,
    faults: Faults,
) -> tuple[MatmulConfig, Problem] | None:
    """The configuration, the caller's or one that suits the sizes; None where nothing is to be computed."""
    given, (m, n, k, batch) = options.config, product.sizes
    if given is not None and type(given) is not product.family:
        faults.add("config", given, f"it is no {product.family.__name__}")
        return None
    if product.is_empty:
        return None
    fields: dict[str, Any] = {
        "a_type": element_of(product.a),
        "b_type": element_of(product.b),
        "c_type": OF_NUMPY[dtype.name],
        "a_major": product.majors[0] or "k",
        "b_major": product.majors[1] or "k",
        "use_tma_store": options.store is None and to is not None and is_storable(to.matrix),
        "gemm_kind": "bmm" if product.result.batches else "gemm",
        **product.fields,
    }
    if product.family is MatmulConfig and fields["gemm_kind"] in _KINDS:
        fields["use_tma_epilogue_load"] = to is not None and not _load_problem("residual", to, after)
    if given is not None and given.gemm_kind not in (*_KINDS, fields["gemm_kind"]):
        faults.add("config", given, f"gemm_kind={given.gemm_kind!r}: that is another operation")
        return None
    config = _chosen(product, fields) if given is None else _completed(given, fields)
    if config.use_tma_epilogue_load and to is not None:
        problem = _load_problem(_loaded_name(config), to, after)
        if problem:
            faults.add("config", config, f"use_tma_epilogue_load=True: {problem}")
    c_stride = row_stride(to.matrix) if to is not None and config.use_tma_store else None
    a_stride, b_stride = product.row_strides
    sizes = Problem(m, n, k, batch, a_stride, b_stride, c_stride)
    for broken in violations(config) or violations(config, sizes):
        faults.add("config", config, broken)
    if family_of(config) not in FAMILIES:
        faults.add("config", config, f"there is no kernel for {family_of(config)}")
    return config, sizes


def _chosen(product: Product, fields: dict[str, Any]) -> MatmulConfig:
    """The configuration that suits the sizes; without a load for the epilogue where there is no room for one."""
    m, n, k, batch = product.sizes
    if fields["gemm_kind"] == "gmm":
        rows = -(-m // product.groups)
        if rows <= WIDEST:
            return decode_config(rows, n, k, product.groups, **fields)
        return choose_config(rows, n, k, product.groups, family=product.family, **fields)
    config = choose_config(m, n, k, batch, family=product.family, **fields)
    if violations(config) and fields.get("use_tma_epilogue_load"):
        return choose_config(m, n, k, batch, family=product.family, **{**fields, "use_tma_epilogue_load": False})
    return config


def _loaded_name(config: MatmulConfig) -> str:
    """What a load for the epilogue loads."""
    return "bias" if config.epilogue_is_1d else "residual"


def _load_problem(name: str, to: Destination, after: Following) -> str:
    """Why a load for the epilogue cannot bring an addend; nothing if it can."""
    source = after.sources.get(name)
    if not isinstance(source, np.ndarray):
        return f"there is no array `{name}`"
    row = name == "bias"
    wanted = to.matrix.shape[-1:] if row else to.matrix.shape
    if source.shape != wanted or source.dtype != to.matrix.dtype:
        return f"`{name}` must be {to.matrix.dtype} {wanted}, as the result"
    if not (is_row(source) if row else is_storable(source)):
        return f"the strides {source.strides} of `{name}` are not multiples of 16 bytes"
    return ""


def _completed(given: MatmulConfig, fields: dict[str, Any]) -> MatmulConfig:
    """The caller's configuration with the types and majors that the arrays have."""
    names = {"a": "b", "b": "a"} if given.AB_swapped else {"a": "a", "b": "b"}
    changes = dict(fields, use_tma_store=given.use_tma_store and fields["use_tma_store"])
    changes.pop("use_tma_epilogue_load", None)
    for own, theirs in names.items():
        changes[f"{own}_major"] = fields[f"{theirs}_major"]
        element, asked = fields[f"{theirs}_type"], getattr(given, f"{own}_type")
        changes[f"{own}_type"] = asked if {element, asked} == _ROUNDED else element
    return replace(given, **changes)
