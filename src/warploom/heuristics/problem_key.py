"""`Sought`: what a configuration is looked for, as tables, models and tuning know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ALIKE = {"f16": "bf16", "e5m2": "e4m3"}
"""Element types that take the time of another."""
_MARKS = ("followed", "fused", "residual", "whole")


@dataclass(frozen=True, kw_only=True)
class Sought:
    """A product's kind, its sizes, and what else decides which configuration suits it.

    `kind` is dense, grouped or blockwise. `fields` are those of the configuration that follow from the arrays, with A
    and B as the caller sees them.
    """

    kind: str = "dense"
    m: int
    n: int
    k: int
    count: int = 1
    """Batches, or groups of rows; m is the rows of one batch, or of all groups together."""
    fields: tuple[tuple[str, Any], ...] = ()
    followed: bool = False
    """Whether a bias or an activation follows that takes no registers: a plain product to tables and to the model, but
    a problem of its own to who measures."""
    fused: bool = False
    """Whether an epilogue needs registers: more than a row of bias, a fast activation and a residual in place take."""
    residual: bool = False
    """Whether there is a residual that the copy engine can bring into the buffers of C."""
    whole: bool = False
    """Whether a sum is to be one CTA's alone, so that its order does not depend on m."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.m, self.n, self.k, self.count

    @property
    def a_type(self) -> str:
        """The type of A's elements, or one that takes the same time."""
        usual = "e4m3" if self.kind == "blockwise" else "bf16"
        name: str = dict(self.fields).get("a_type", usual)
        return _ALIKE.get(name, name)

    @property
    def majors(self) -> tuple[str, str]:
        """Which side of A and of B is contiguous: "k" or "mn"."""
        given = dict(self.fields)
        return given.get("a_major", "k"), given.get("b_major", "k")

    @property
    def c_type(self) -> str:
        """The type of C's elements."""
        usual = {"f32": "f32", "tf32": "f32"}.get(self.a_type, "bf16")
        name: str = dict(self.fields).get("c_type") or usual
        return name

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * (self.count if self.kind == "dense" else 1)

    def __str__(self) -> str:
        """One line that tells it from every other."""
        marks = [name for name in _MARKS if getattr(self, name)]
        given = [f"{name}={value}" for name, value in self.fields]
        return " ".join((self.kind, "x".join(map(str, self.sizes)), *marks, *given))


def sought(kind: str, m: int, n: int, k: int, count: int = 1, **fields: Any) -> Sought:
    """What is looked for, with the fields of a configuration by name."""
    marks = {name: bool(fields.pop(name, False)) for name in _MARKS}
    return Sought(kind=kind, m=m, n=n, k=k, count=count, fields=tuple(sorted(fields.items())), **marks)
