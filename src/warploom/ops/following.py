"""What follows a product: the caller's scale, bias, activation, functions and residual, as one epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warploom.ops.addends import Result, is_number, placed
from warploom.ops.authored import Authored, authored
from warploom.ops.faults import Faults
from warploom.structured.epilogue import ACTIVATIONS, Epilogue, Operand

OUT = "out"
"""The name under which a function that owns the store gets the result."""
_TAKEN = ("alpha", "beta", "bias", "residual", OUT)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller asked for beside the factors."""

    bias: Any = None
    residual: Any = None
    beta: Any = 1.0
    alpha: Any = 1.0
    activation: str | None = None
    epilogue: Callable[..., Any] | None = None
    store: Callable[..., Any] | None = None
    operands: Any = None
    out: Any = None
    out_dtype: Any = None
    config: Any = None
    target: str | None = None


@dataclass
class Following:
    """An epilogue, and what it reads by name."""

    epilogue: Epilogue = field(default_factory=Epilogue)
    sources: dict[str, Any] = field(default_factory=dict)


def following(options: Options, result: Result | None, faults: Faults) -> Following:
    """The epilogue of a call; where D is not known its operands are not looked at."""
    for name in ("alpha", "beta"):
        if not is_number(getattr(options, name)):
            faults.add(name, getattr(options, name), "it is no number")
    if options.activation is not None and options.activation not in ACTIVATIONS:
        faults.add("activation", options.activation, f"there are {', '.join(ACTIVATIONS)}")
    operands = _named(options, faults)
    functions = {
        name: authored(name, function, tuple(operands) + ((OUT,) if name == "store" else ()), faults)
        for name in ("epilogue", "store")
        if (function := getattr(options, name)) is not None
    }
    read = {name for each in functions.values() if each is not None for name in each.names}
    for name in operands:
        if name not in read and None not in functions.values():
            faults.add("operands", name, "neither `epilogue` nor `store` takes it")
    addends = {"bias": options.bias, "residual": options.residual}
    given = {name: value for name, value in addends.items() if value is not None} | operands
    found = {
        name: placed(name if name in addends else f"operands[{name!r}]", value, result, faults)
        for name, value in given.items()
    }
    if len(faults) or result is None:
        return Following()
    return _assembled(options, {name: each for name, each in found.items() if each is not None}, functions)


def _assembled(
    options: Options, found: Mapping[str, tuple[Operand, Any]], functions: Mapping[str, Authored | None]
) -> Following:
    unread = ("residual",) if options.beta == 0 else ()
    kinds = {name: kind for name, (kind, _) in found.items() if name not in unread}
    sources = {name: source for name, (_, source) in found.items() if name not in unread}
    for name, is_used in (("alpha", True), ("beta", "residual" in kinds)):
        if is_used and getattr(options, name) != 1:
            sources[name] = float(getattr(options, name))
    if "store" in functions:
        kinds[OUT] = Operand("view")
    epilogue = Epilogue(
        bias=kinds.pop("bias", None),
        activation=options.activation,
        function=functions.get("epilogue"),
        residual=kinds.pop("residual", None),
        store=functions.get("store"),
        operands=tuple(kinds.items()),
    )
    return Following(epilogue, sources)


def _named(options: Options, faults: Faults) -> dict[str, Any]:
    """The operands, with names that a function can have."""
    if options.operands is None:
        return {}
    if not isinstance(options.operands, Mapping):
        faults.add("operands", options.operands, "it is no mapping of names to arrays")
        return {}
    for name in options.operands:
        if not (isinstance(name, str) and name.isidentifier() and name.isascii()):
            faults.add("operands", name, "it is no name that a function can take")
        elif name in _TAKEN:
            faults.add("operands", name, "the name is taken")
    if options.epilogue is None and options.store is None and options.operands:
        faults.add("operands", tuple(options.operands), "there is no `epilogue` or `store` that reads them")
        return {}
    return dict(options.operands)


def inputs_of(options: Options) -> list[Any]:
    """The arrays that the epilogue reads."""
    operands = options.operands if isinstance(options.operands, Mapping) else {}
    read = (options.bias, options.residual, *operands.values())
    return [each for each in read if isinstance(each, np.ndarray)]
