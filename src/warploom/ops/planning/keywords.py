"""The keywords of an epilogue, as data: name, default, and what checks, custom ops and gradients must know of each.

A keyword is a field of `EpilogueKeywords`, from which `Request` inherits. A new number is one line here, its type in
`ops/signatures.py`, and its computation in `structured/epilogue/epilogue.py`: it is then checked, passed to kernels,
and known to PyTorch's ops, to its compiler and to autograd. There are only values here, no functions of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from warploom.structured.epilogue.epilogue import ACTIVATIONS, FORMATS, PAIRS

NUMBER, NAME, ARRAY = "number", "name", "array"
ACCUMULATOR = "accumulator"
"""A·Bᵀ before the bias is added, which a number may multiply like an array."""
DEFAULT_PAIR = "swiglu"


@dataclass(frozen=True)
class Keyword:
    """The facts about one keyword."""

    kind: str
    """A number, a name from a table, or an array that broadcasts against D (or a number in its place)."""
    of: str = ""
    """The factor that a number is: of the `ACCUMULATOR`, or of an array by name.

    With zero that array is not read, and without the array the number must have its default. A number that belongs to a
    name is checked with that name. Autograd multiplies gradients by factors; a number that is none has no gradient, and
    a call that sets it reports that.
    """
    choices: Mapping[str, Any] = field(default_factory=dict)
    """The names."""
    is_gated: bool = False
    """True for a keyword that only gated operations have."""


def _is(kind: str, **facts: Any) -> Mapping[str, Keyword]:
    return {"keyword": Keyword(kind, **facts)}


@dataclass(frozen=True, kw_only=True)
class EpilogueKeywords:
    """The keywords; arrays are in the order in which a launch takes them."""

    alpha: Any = field(default=1.0, metadata=_is(NUMBER, of=ACCUMULATOR))
    bias: Any = field(default=None, metadata=_is(ARRAY))
    """Of a gated GEMM, the gate's, which the caller names `gate_bias`."""
    up_bias: Any = field(default=None, metadata=_is(ARRAY, is_gated=True))
    activation: Any = field(default=None, metadata=_is(NAME, choices=ACTIVATIONS))
    pair: Any = field(default=None, metadata=_is(NAME, choices=PAIRS, is_gated=True))
    """A name, or a function of gate and up."""
    residual: Any = field(default=None, metadata=_is(ARRAY))
    beta: Any = field(default=1.0, metadata=_is(NUMBER, of="residual"))
    quantise_to: Any = field(default=None, metadata=_is(NAME, choices=FORMATS, is_gated=True))
    quantise_scale: Any = field(default=1.0, metadata=_is(NUMBER, of="quantise_to", is_gated=True))
    """The scale of the whole result in a block format."""


KEYWORDS: Mapping[str, Keyword] = {each.name: each.metadata["keyword"] for each in fields(EpilogueKeywords)}
NUMBERS: Mapping[str, Any] = {
    each.name: each.default for each in fields(EpilogueKeywords) if KEYWORDS[each.name].kind == NUMBER
}
"""By name, the defaults of the numbers."""
NAMES = tuple(name for name, each in KEYWORDS.items() if each.kind == NAME)
INPUTS = tuple(name for name, each in KEYWORDS.items() if each.kind == ARRAY)
"""The arrays that an epilogue reads, in the order in which a launch takes them."""
FACTORS: Mapping[str, str] = {
    name: KEYWORDS[name].of for name in NUMBERS if KEYWORDS[name].of in (ACCUMULATOR, *INPUTS)
}
"""By number, the accumulator or array that it multiplies."""
UNGATED = frozenset(name for name, each in KEYWORDS.items() if not each.is_gated)
