"""Gated MLPs of PyTorch models, `down(activation(gate(x)) * up(x))`: gate, up and activation as one kernel.

A module is recognised by what it computes. A copy of it with three small layers is called on random numbers, and the
result is compared with each gated function; so the names of its layers and activation do not matter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from warploom.diagnostics import WarploomError, hide_library_frames, user_traceback
from warploom.ops.planning.arrays import Violations
from warploom.structured.epilogue.epilogue import PAIRS
from warploom.torch.dispatch import gated_linear
from warploom.torch.nn import Linear, has_kernel
from warploom.torch.saved_values import ACTIVATED

_FEATURES, _HIDDEN, _ROWS = 6, 10, 5
"""Sizes of the small layers that stand in for a module's own, and the rows they are called on."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

Names = tuple[str, str, str]
"""The attributes of a module that are its gate, up and down layers."""


class GatedMLP(nn.Module):
    """A module whose gate, up and activation are one kernel; its class is made by `swap_gated_mlps`.

    Where there is no kernel (see `Linear`), where gate or up has hooks or is no linear layer any more, and for calls
    with more arguments, the module computes what it did before.
    """

    unswapped: type[nn.Module]
    layer_names: Names
    pair: str

    def forward(self, *given: Any, **named: Any) -> Any:
        """`down(activation(gate(x)) * up(x))`."""
        gate, up, down = (getattr(self, name) for name in self.layer_names)
        if len(given) != 1 or named or not _is_fused(given[0], gate, up):
            return self.unswapped.forward(self, *given, **named)
        options: dict[str, Any] = {"pair": self.pair}
        if gate.bias is not None:
            options["gate_bias"] = gate.bias
        if up.bias is not None:
            options["up_bias"] = up.bias
        try:
            hidden = gated_linear(given[0], gate.weight, up.weight, **options)
        except WarploomError as error:
            hide_library_frames(error)
            raise
        return down(hidden)

    def _get_name(self) -> str:
        return f"warploom.{self.unswapped.__name__}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are made from the class that was swapped: this one has no name of its own."""
        return _remade, (self.unswapped, self.layer_names, self.pair), self.__dict__


def _is_fused(x: Any, gate: Any, up: Any) -> bool:
    """Return whether gate and up are layers that the kernel may stand for, on such an input."""
    if not isinstance(x, Tensor):
        return False
    for layer in (gate, up):
        if type(layer) not in (nn.Linear, Linear) or getattr(layer, "activation", None) is not None:
            return False
        if any(getattr(layer, name) for name in _HOOKS) or not has_kernel(x, layer.weight):
            return False
    return True


_CLASSES: dict[tuple[type[nn.Module], Names, str], type[GatedMLP]] = {}


def _swapped_class(unswapped: type[nn.Module], names: Names, pair: str) -> type[GatedMLP]:
    key = unswapped, names, pair
    if key not in _CLASSES:
        _CLASSES[key] = _new_class(*key)
    return _CLASSES[key]


def _new_class(unswapped: type[nn.Module], names: Names, pair: str) -> type[GatedMLP]:
    made = {"unswapped": unswapped, "layer_names": names, "pair": pair, "__module__": unswapped.__module__}
    return type(unswapped.__name__, (GatedMLP, unswapped), {**made, "__doc__": unswapped.__doc__})


def _remade(unswapped: type[nn.Module], names: Names, pair: str) -> GatedMLP:
    kind = _swapped_class(unswapped, names, pair)
    return kind.__new__(kind)


@user_traceback
def swap_gated_mlps(model: nn.Module, *, only: Callable[[str, nn.Module], bool] | None = None) -> nn.Module:
    """Let every gated MLP of a model, or those that `only(name, module)` selects, compute gate and up in one kernel.

    Gated MLPs are modules with three linear layers, and no other parameters, that compute
    `down(activation(gate(x)) * up(x))` for one of the activations of `gated_linear`, such as those of Llama, Qwen and
    Mistral. Modules and layers stay the same objects with the same parameters. A model without any is an error.
    """
    violations = Violations("swap_gated_mlps")
    _check(violations, model, only)
    count = 0
    for name, module in model.named_modules():
        if isinstance(module, GatedMLP) or (only is not None and not only(name, module)):
            count += isinstance(module, GatedMLP)
            continue
        for names in _roles_of(module):
            pair = _pair_of(module, names)
            if pair is not None:
                module.__class__ = _swapped_class(type(module), names, pair)
                count += 1
                break
    if not count:
        wanted = "must have a module that computes `down(activation(gate(x)) * up(x))`"
        parts = f"with three linear layers, no other parameters, and one of the activations {', '.join(PAIRS.values())}"
        violations.add("model", type(model).__name__, f"{wanted}, {parts}")
        violations.check()
    return model


@user_traceback
def restore_gated_mlps(model: nn.Module, *, only: Callable[[str, nn.Module], bool] | None = None) -> nn.Module:
    """Let every swapped MLP of a model, or those that `only` selects, compute with its own layers again."""
    _check(Violations("restore_gated_mlps"), model, only)
    for name, module in model.named_modules():
        if isinstance(module, GatedMLP) and (only is None or only(name, module)):
            module.__class__ = module.unswapped
    return model


def _check(violations: Violations, model: object, only: object) -> None:
    if not isinstance(model, nn.Module):
        violations.add("model", model, "must be a `torch.nn.Module`")
    if only is not None and not callable(only):
        violations.add("only", only, "must be a function of a module's name and the module")
    violations.check()


def _roles_of(module: nn.Module) -> Iterator[Names]:
    """Yield the ways in which three layers of a module, which has no other parameters, could be gate, up and down."""
    layers = {name: layer for name, layer in module.named_children() if type(layer) in (nn.Linear, Linear)}
    if len(layers) != 3 or "forward" in vars(module):
        return
    if sum(1 for _ in module.parameters()) != sum(1 for layer in layers.values() for _ in layer.parameters()):
        return
    for down, last in layers.items():
        one, other = (name for name in layers if name != down)
        sizes = {(layers[name].in_features, layers[name].out_features) for name in (one, other)}
        if sizes == {(last.out_features, last.in_features)}:
            yield one, other, down
            yield other, one, down


def _pair_of(module: nn.Module, names: Names) -> str | None:
    """Return the gated function that a module computes with its layers in these roles; None if it is none of them."""
    layers = [cast("nn.Linear", getattr(module, name)) for name in names]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        sizes = ((_FEATURES, _HIDDEN), (_FEATURES, _HIDDEN), (_HIDDEN, _FEATURES))
        small = [
            nn.Linear(*size, bias=layer.bias is not None, dtype=torch.float64, device="cpu")
            for size, layer in zip(sizes, layers, strict=True)
        ]
        x = torch.randn(_ROWS, _FEATURES, dtype=torch.float64)
        try:
            stand_in = copy.deepcopy(module, {id(layer): each for layer, each in zip(layers, small, strict=True)})
            made = type(module).forward(stand_in, x)
        except Exception:  # noqa: BLE001  (whatever it computes, it is not this function of one argument)
            return None
        gate, up, down = small
        for pair, activation in PAIRS.items():
            want = down(ACTIVATED[activation](gate(x)) * up(x))
            if (
                isinstance(made, Tensor)
                and made.shape == want.shape
                and torch.allclose(made, want, rtol=1e-9, atol=1e-12)
            ):
                return pair
    return None
