"""What follows a product: the caller's scale, bias, activation, functions and residual, as one epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warploom.ops.planning.epilogue_inputs import OUT_OF_RANGE, Result, is_in_range, is_number, placed
from warploom.ops.planning.user_functions import Authored, authored
from warploom.ops.planning.violations import Faults
from warploom.structured.epilogue.epilogue import ACTIVATIONS, GATE, OUT, PAIRS, PRE_ACTIVATION, UP, Epilogue, Operand

_TAKEN = ("alpha", "beta", "bias", "up_bias", "residual", OUT)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller asked for beside the factors."""

    bias: Any = None
    up_bias: Any = None
    """Of a pair; `bias` is then the gate's."""
    residual: Any = None
    beta: Any = 1.0
    alpha: Any = 1.0
    activation: str | None = None
    pair: Any = None
    epilogue: Callable[..., Any] | None = None
    store: Callable[..., Any] | None = None
    operands: Any = None
    outputs: Any = None
    out: Any = None
    out_dtype: Any = None
    config: Any = None
    target: str | None = None


@dataclass
class Following:
    """An epilogue, and what it reads by name."""

    epilogue: Epilogue = field(default_factory=Epilogue)
    sources: dict[str, Any] = field(default_factory=dict)


def check_choices(options: Options, faults: Faults, *, are_known: bool = True) -> None:
    """Whether numbers are numbers, and what is called by a name has one; a compiler's numbers are not known yet."""
    for name in ("alpha", "beta"):
        number = getattr(options, name)
        if not is_number(number):
            faults.add(name, number, "it is no number")
        elif are_known and not is_in_range(number):
            faults.add(name, number, OUT_OF_RANGE)
    if options.activation is not None and not is_named(options.activation, ACTIVATIONS):
        faults.add("activation", options.activation, f"there are {', '.join(ACTIVATIONS)}")


def check_pair(pair: Any, faults: Faults) -> None:
    """Whether something makes one value of two."""
    if not (is_named(pair, PAIRS) or callable(pair)):
        faults.add("pair", pair, f"there are {', '.join(PAIRS)}, or a function of gate and up")


def is_named(value: Any, among: Mapping[str, Any]) -> bool:
    """Whether a value is a name of something."""
    return isinstance(value, str) and value in among


def functions_of(options: Options, operands: Mapping[str, Any], faults: Faults) -> dict[str, Authored | None]:
    """The caller's functions, held to the rules."""
    given_to = {"epilogue": tuple(operands), "store": (*operands, OUT), "pair": ()}
    return {
        name: authored(name, function, names, faults)
        for name, names in given_to.items()
        if (function := getattr(options, name)) is not None and (name != "pair" or callable(function))
    }


def following(options: Options, result: Result | None, faults: Faults) -> Following:
    """The epilogue of a call; where D is not known its operands are not looked at."""
    check_choices(options, faults)
    operands = named_operands(options, faults)
    functions = functions_of(options, operands, faults)
    read = {name for each in functions.values() if each is not None for name in each.names}
    for name in operands:
        if name not in read and None not in functions.values():
            faults.add("operands", name, "neither `epilogue` nor `store` takes it")
    addends = {"bias": options.bias, "up_bias": options.up_bias, "residual": options.residual}
    called = {**dict(zip(addends, addends, strict=True)), **({"bias": "gate_bias"} if options.pair is not None else {})}
    given = {name: value for name, value in addends.items() if value is not None} | operands
    found = {
        name: placed(called.get(name, f"operands[{name!r}]"), value, result, faults) for name, value in given.items()
    }
    check_names(options, faults)
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
        up_bias=kinds.pop("up_bias", None),
        pair=options.pair if isinstance(options.pair, str) else functions.get("pair"),
        outputs=tuple(options.outputs or ()),
        activation=options.activation,
        function=functions.get("epilogue"),
        residual=kinds.pop("residual", None),
        store=functions.get("store"),
        operands=tuple(kinds.items()),
    )
    return Following(epilogue, sources)


def named_operands(options: Options, faults: Faults) -> dict[str, Any]:
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


def check_names(options: Options, faults: Faults) -> None:
    """Whether the further outputs have names, and somebody who gives them."""
    if options.outputs is None:
        return
    if not isinstance(options.outputs, Mapping):
        faults.add("outputs", options.outputs, "it is no mapping of names to arrays")
        return
    own = (PRE_ACTIVATION,) if options.pair is None else (GATE, UP)
    for name in options.outputs:
        if not (isinstance(name, str) and name.isidentifier() and name.isascii()):
            faults.add("outputs", name, "it is no name")
        elif name == OUT:
            faults.add("outputs", name, "the name is taken")
        elif name not in own and options.epilogue is None:
            faults.add(
                "outputs", name, f"there is no `epilogue` that gives it; without one there is {' and '.join(own)}"
            )
    if options.store is not None:
        faults.add("outputs", tuple(options.outputs), "`store` stores by itself, and gets arrays as operands")


def inputs_of(options: Options) -> list[Any]:
    """The arrays that the epilogue reads."""
    operands = options.operands if isinstance(options.operands, Mapping) else {}
    read = (options.bias, options.up_bias, options.residual, *operands.values())
    return [each for each in read if isinstance(each, np.ndarray)]
