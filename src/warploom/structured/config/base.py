"""`GemmConfig`: the fields, derivation, replacement and validation that sm90 and sm100 configurations share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Self

from warploom.diagnostics import Diag
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.structured.config.deprecation import AcceptsDeprecated, deprecated, with_current_names
from warploom.structured.config.fields import CHOICES, MINIMUMS, field_violations, violation
from warploom.structured.config.problem import Problem
from warploom.structured.config.shared_memory import ceil_div

DERIVED: Any = None
"""The value of a field that is to be derived from the others."""

Violations = Iterator[tuple[str, str]]
"""The field that breaks a rule, and a verb phrase that says why: `("tile", "needs 384 registers")`."""
Rule = Callable[[Any], Violations]
ProblemRule = Callable[[Any, Problem], Violations]
Derivation = Callable[[Any], object]

COMMON_DERIVATIONS: Mapping[str, Derivation] = {
    "b_type": lambda config: config.a_type,
    "c_type": lambda config: {"f32": "f32", "tf32": "f32", "f16": "f16"}.get(config.a_type, "bf16"),
}


def element_bytes(type_: str) -> int:
    """Return the bytes that one element takes in memory."""
    return ELEMENT_TYPES[type_].storage_bits // 8


@dataclass(frozen=True, kw_only=True, repr=False)
class GemmConfig(metaclass=AcceptsDeprecated):
    """A GEMM kernel's shape and modes. A field that is left out, or None, is derived from the others.

    `config.replace(…)`, `dataclasses.replace` and `copy.replace` keep the values that were given and derive the others
    again. A and B are the operands as the kernel sees them: with `AB_swapped` A is the caller's B, and the kernel
    computes the transpose of C.
    """

    derived: tuple[tuple[str, object], ...] = field(default=(), repr=False, compare=False)
    """The fields that were derived, and their values. It must be the first field: see `__new__`."""
    a_type: str = "bf16"
    """`f32` and `tf32` both multiply as tf32: the tensor core truncates the one, TMA rounds the other."""
    precision: str = "tf32"
    """Of float32 operands: `tf32`, or `tf32x3`, three TF32 products of large and small parts."""
    b_type: str = DERIVED
    c_type: str = DERIVED
    epilogue_dtype: str = "f32"
    a_major: str = "k"
    b_major: str = "k"
    """The dimension that is contiguous in memory: `k`, or `mn` for the operand's rows."""
    cluster_shape: tuple[int, int, int] = DERIVED
    AB_swapped: bool = False
    num_split_k: int = 1
    use_tma_store: bool = True
    gated: bool = False
    """Each element of C has two accumulators, gate and up: half of a weight tile's rows come from a second matrix.

    Weights are B, or A with `AB_swapped`.
    """
    output_types: tuple[str, ...] = ()
    """Types of the auxiliary outputs, if all of them go through shared memory as C does."""
    num_output_stages: int = DERIVED
    num_pipeline_stages: int = DERIVED

    choices: ClassVar[Mapping[str, Collection[object]]] = CHOICES
    minimums: ClassVar[Mapping[str, int]] = MINIMUMS
    derivations: ClassVar[Mapping[str, Derivation]] = COMMON_DERIVATIONS
    """Functions that derive a field, in the order in which the fields depend on each other."""
    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules for a configuration by itself."""
    problem_rules: ClassVar[tuple[ProblemRule, ...]] = ()
    """Rules for a configuration together with a problem."""
    renamed: ClassVar[Mapping[str, str]] = {"paired": "gated"}
    """Deprecated names of fields, which are accepted with a warning."""

    def __repr__(self) -> str:
        """Return the fields that were given and differ from their defaults: the others follow from them."""
        derived = dict(self.derived)
        given = (each for each in fields(self) if each.name != "derived" and each.name not in derived)
        values = ((each.name, getattr(self, each.name)) for each in given if getattr(self, each.name) != each.default)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"

    paired = deprecated("paired", "gated")

    def __new__(cls, **given: Any) -> Self:
        """Record which fields a `replace` names.

        `dataclasses.replace` and `copy.replace` call the class with the named fields first, then with the values of all
        others in the order of the fields. `derived` is the first field and is never named, so that whatever comes
        before it was named.
        """
        self = object.__new__(cls)
        if given.get("derived"):
            names = list(given)
            self.__dict__["_named"] = frozenset(names[: names.index("derived")])
        return self

    def __post_init__(self) -> None:
        named = self.__dict__.pop("_named", ())
        for name, value in self.derived:
            if name not in named and getattr(self, name) == value:
                object.__setattr__(self, name, DERIVED)
        object.__setattr__(self, "derived", ())
        given = {name: getattr(self, name) for name in field_names(type(self))}
        wrong = list(field_violations(given, self.choices, self.minimums))
        if wrong:
            raise Diag.BAD_CONFIG.error(count=len(wrong), what="; ".join(wrong))
        missing = [name for name in self.derivations if given[name] is None]
        for name in missing:
            object.__setattr__(self, name, self.derivations[name](self))
        object.__setattr__(self, "derived", tuple((name, getattr(self, name)) for name in missing))

    def replace(self, **changes: Any) -> Self:
        """Return the configuration with other values: given values stay, derived ones are derived again."""
        return dataclasses.replace(self, **with_current_names(changes, self.renamed))

    __replace__ = replace

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were not derived: `type(config)(**config.given) == config`."""
        derived = dict(self.derived)
        return {name: getattr(self, name) for name in field_names(type(self)) if name not in derived}

    def exactly(self, **changes: Any) -> Self:
        """Return the configuration with other values and all remaining ones as they are, derived or not."""
        current = {name: getattr(self, name) for name in field_names(type(self))}
        return type(self)(**current | with_current_names(changes, self.renamed))

    def violations(self, problem: Problem | None = None) -> list[str]:
        """Return a sentence for every rule that the configuration breaks, by itself and for a problem."""
        found = [violation(name, getattr(self, name), reason) for rule in self.rules for name, reason in rule(self)]
        return found if problem is None else found + self._problem_violations(problem)

    def _problem_violations(self, problem: Problem) -> list[str]:
        empty = [name for name in ("m", "n", "k", "batch") if getattr(problem, name) < 1]
        if empty:
            return [violation(name, getattr(problem, name), "must be at least 1") for name in empty]
        broken = [each for rule in self.problem_rules for each in rule(self, problem)]
        return [violation(name, getattr(problem, name), reason) for name, reason in broken]

    def validated(self, problem: Problem | None = None) -> Self:
        """Return the configuration itself, or raise `BAD_CONFIG` with everything that is wrong."""
        wrong = self.violations(problem)
        if wrong:
            raise Diag.BAD_CONFIG.error(count=len(wrong), what="; ".join(wrong))
        return self

    @property
    def roles(self) -> dict[str, int]:
        """The number of warps of each role, in order."""
        raise NotImplementedError

    @property
    def threads(self) -> int:
        return 32 * sum(self.roles.values())

    @property
    def MMA_N(self) -> int:
        raise NotImplementedError

    @property
    def BK(self) -> int:
        raise NotImplementedError

    @property
    def tile_columns(self) -> int:
        """Columns of C in a tile."""
        return self.MMA_N // 2 if self.gated and not self.AB_swapped else self.MMA_N

    @property
    def accum_type(self) -> str:
        return "f32"

    @property
    def transpose_c(self) -> bool:
        return self.AB_swapped

    @property
    def c_bytes(self) -> int:
        """Bytes of one element of C."""
        return element_bytes(self.c_type)

    def k_tiles(self, k: int) -> int:
        return ceil_div(k, self.BK)


def field_names(config: type[GemmConfig]) -> tuple[str, ...]:
    """Return the names of a class's fields, without `derived`."""
    key: Any = config  # mypy considers the types of dataclasses unhashable
    return _field_names(key)


@cache
def _field_names(config: type[GemmConfig]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(config) if each.name != "derived")


def violations(config: GemmConfig, problem: Problem | None = None) -> list[str]:
    """Return a sentence for every rule that a configuration breaks, by itself and for a problem."""
    return config.violations(problem)


def validate(config: GemmConfig, problem: Problem | None = None) -> None:
    """Raise `BAD_CONFIG` with every broken rule, if there is one."""
    config.validated(problem)
