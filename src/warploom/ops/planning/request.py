"""What a product asks for: factors, result, and what follows; and the answer, a configuration for one target."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

import numpy as np

from warploom.heuristics.problem_key import ProblemKey
from warploom.kernels.call import Config, is_row, is_storable
from warploom.ops.planning.arrays import Array
from warploom.ops.planning.epilogue import Following, Options
from warploom.ops.planning.epilogue_inputs import Result
from warploom.ops.planning.output import Destination
from warploom.structured.config import Problem
from warploom.trace.language.types import OF_NUMPY

Majors = tuple[str | None, str | None]


class Hardware(Protocol):
    """What a choice depends on: a GPU's name, and its multiprocessors, since CTAs that meet must have room at once."""

    @property
    def name(self) -> str: ...

    @property
    def sms(self) -> int: ...


GPU: ContextVar[Hardware | None] = ContextVar("gpu", default=None)
"""The GPU that a call is bound for; None for the machine, which has what its target has."""


@dataclass(frozen=True)
class Product:
    """A (…, m, k) times the transpose of B (…, n, k), and what the result is to the caller.

    `kind` is dense, grouped, blockwise or block_scaled. `fields` of the configuration follow from the arrays; `extra`
    is what the kernel takes beside A and B.
    """

    a: Array
    b: Array
    result: Result
    kind: str = "dense"
    fields: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    packing: int = 1
    """Elements in one of the arrays' items."""
    up: Array | None = None
    """The second B, of pairs."""
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


@dataclass(frozen=True)
class Request:
    """A product with all that the caller wants of it; `to` is None where the call has faults."""

    product: Product
    dtype: np.dtype[Any]
    to: Destination | None
    after: Following
    options: Options
    outputs: Mapping[str, Array] = field(default_factory=dict)
    """The further outputs."""

    @property
    def is_storable(self) -> bool:
        """Whether the copy engine can store D."""
        return self.options.store is None and self.to is not None and is_storable(self.to.matrix)

    @property
    def output_types(self) -> tuple[str, ...]:
        """The types of the further outputs, where the copy engine can store all of them, with D."""
        if not self.is_storable or not all(map(is_storable, self.outputs.values())):
            return ()
        return tuple(OF_NUMPY[each.dtype.name] for each in self.outputs.values())

    def load_problem(self, name: str) -> str:
        """Why a load for the epilogue cannot bring an addend; nothing if it can."""
        source = self.after.sources.get(name)
        if not isinstance(source, np.ndarray) or self.to is None:
            return f"there is no array `{name}`"
        row, matrix = name == "bias", self.to.matrix
        wanted = matrix.shape[-1:] if row else matrix.shape
        if source.shape != wanted or source.dtype != matrix.dtype:
            return f"`{name}` must be {matrix.dtype} {wanted}, as the result"
        if not (is_row(source) if row else is_storable(source)):
            return f"the strides {source.strides} of `{name}` are not multiples of 16 bytes"
        return ""


@dataclass(frozen=True)
class Chosen(Generic[Config]):
    """The configuration for a request."""

    config: Config
    problem: Problem
    majors: Majors
    """How A and B lie; None for one of which the kernel gets a copy."""
    loaded: str = ""
    """The addend that the kernel loads by itself, if any."""
    sought: ProblemKey | None = None
    """What it was chosen for, where a choice can be tuned."""
