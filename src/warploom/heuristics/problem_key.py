"""`ProblemKey`: the signature of a GEMM by which tables, the cost model and tuning look up a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SAME_SPEED = {"f16": "bf16", "e5m2": "e4m3"}
"""Element types that take the same time as another."""
_MARKS = ("light_epilogue", "fused", "residual", "unsplit")


@dataclass(frozen=True, kw_only=True)
class ProblemKey:
    """A GEMM's kind, its sizes, and whatever else decides which configuration is fast.

    `kind` is dense, grouped, blockwise or block_scaled. `fields` are the configuration fields that follow from the
    arrays, with A and B as the caller sees them.
    """

    kind: str = "dense"
    m: int
    n: int
    k: int
    count: int = 1
    """Batches, or groups of rows; m is the rows of one batch, or of all groups together."""
    fields: tuple[tuple[str, Any], ...] = ()
    light_epilogue: bool = False
    """A bias or activation that needs no extra registers. Tables and the model treat it as a plain GEMM; tuning
    measures it as a problem of its own."""
    fused: bool = False
    """An epilogue that needs registers: more than a row bias, a fast activation and a residual in place."""
    residual: bool = False
    """A residual that TMA can load into the buffers of C."""
    unsplit: bool = False
    """No split-K or stream-K, so that the order of a sum does not depend on m."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.m, self.n, self.k, self.count

    @property
    def a_type(self) -> str:
        """The element type of A, or one of the same speed."""
        usual = "e4m3" if self.kind == "blockwise" else "bf16"
        name: str = dict(self.fields).get("a_type", usual)
        return _SAME_SPEED.get(name, name)

    @property
    def majors(self) -> tuple[str, str]:
        """The contiguous dimensions of A and of B: "k" or "mn"."""
        given = dict(self.fields)
        return given.get("a_major", "k"), given.get("b_major", "k")

    @property
    def gated(self) -> bool:
        """True if n counts the columns of two matrices, gate and up."""
        return bool(dict(self.fields).get("gated", False))

    @property
    def c_type(self) -> str:
        """The element type of C."""
        usual = {"f32": "f32", "tf32": "f32"}.get(self.a_type, "bf16")
        name: str = dict(self.fields).get("c_type") or usual
        return name

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * (self.count if self.kind == "dense" else 1)

    def __str__(self) -> str:
        """Return one line that identifies the problem; tuned results are stored under it."""
        marks = [name for name in _MARKS if getattr(self, name)]
        given = [f"{name}={value}" for name, value in self.fields]
        return " ".join((self.kind, "x".join(map(str, self.sizes)), *marks, *given))


def key_of(kind: str, m: int, n: int, k: int, count: int = 1, **fields: Any) -> ProblemKey:
    """Return a key from the marks and configuration fields by name."""
    marks = {name: bool(fields.pop(name, False)) for name in _MARKS}
    return ProblemKey(kind=kind, m=m, n=n, k=k, count=count, fields=tuple(sorted(fields.items())), **marks)
