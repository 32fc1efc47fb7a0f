"""`warploom.nn`: a model's layers are swapped and restored, with hooks, ties and state."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from warploom.diagnostics import WarploomError  # noqa: E402
from warploom.torch import nn as wnn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Own(nn.Linear):
    """A subclass of a layer, which may compute something else."""


class Tied(nn.Module):
    """An embedding tied to the last layer, and a layer that is used in two places."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 16)
        self.first = nn.Linear(16, 16)
        self.again = self.first
        self.head = nn.Linear(16, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.again(torch.relu(self.first(self.embedding(tokens)))))


def model():
    return nn.Sequential(
        nn.Linear(16, 24), nn.ReLU(), nn.Sequential(nn.Linear(24, 8, bias=False)), nn.Bilinear(8, 8, 2)
    )


def kinds(of):
    return {name: type(each) for name, each in of.named_modules() if isinstance(each, nn.Linear)}


def test_layers_are_swapped_in_place_and_restored():
    given, x = model(), torch.randn(5, 16)
    before = {name: value.clone() for name, value in given.state_dict().items()}
    objects, parameters, want = list(given.modules()), list(given.parameters()), given[:3](x)
    assert wnn.swap_linears(given, only=lambda name, layer: name != "2.0") is given
    assert kinds(given) == {"0": wnn.Linear, "2.0": nn.Linear}
    wnn.swap_linears(given)
    assert kinds(given) == {"0": wnn.Linear, "2.0": wnn.Linear}
    assert all(one is other for one, other in zip(given.modules(), objects, strict=True))
    assert all(one is other for one, other in zip(given.parameters(), parameters, strict=True))
    assert list(given.state_dict()) == list(before)
    assert given.state_dict()._metadata == model().state_dict()._metadata
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())
    model().load_state_dict(given.state_dict())
    given.load_state_dict(before)
    torch.testing.assert_close(given[:3](x), want, rtol=0, atol=0)
    assert repr(given).splitlines()[1] == "  (0): warploom.Linear(in_features=16, out_features=24, bias=True)"
    wnn.restore_linears(given, only=lambda name, layer: name == "0")
    assert kinds(given) == {"0": nn.Linear, "2.0": wnn.Linear}
    wnn.restore_linears(given)
    assert kinds(given) == {"0": nn.Linear, "2.0": nn.Linear}
    assert vars(given[0]).keys() == vars(nn.Linear(1, 1)).keys()
    assert repr(given) == repr(model())


def test_state_of_a_layer_is_kept():
    given, seen = model().double(), []
    given[0].weight.requires_grad_(False)
    given[2].eval()
    given[0].register_forward_hook(lambda layer, inputs, made: seen.append(type(layer)))
    given[0].register_forward_pre_hook(lambda layer, inputs: seen.append("before"))
    given[0].note = "mine"
    optimiser = torch.optim.SGD(given.parameters(), lr=0.1)
    wnn.swap_linears(given)
    assert not given[0].weight.requires_grad
    assert given[0].bias.requires_grad
    assert (given[0].training, given[2][0].training) == (True, False)
    assert given[0].weight.dtype == torch.float64
    assert given[0].note == "mine"
    bias = given[0].bias.detach().clone()
    given[:3](torch.randn(5, 16, dtype=torch.float64)).sum().backward()
    optimiser.step()
    assert seen == ["before", wnn.Linear]
    assert not torch.equal(given[0].bias, bias)
    moved = given.to("meta")
    assert (type(moved[0]), moved[0].weight.device.type) == (wnn.Linear, "meta")


def test_tied_weights_stay_tied():
    given, tokens = Tied(), torch.tensor([1, 5, 6])
    want, keys = given(tokens), list(given.state_dict())
    wnn.swap_linears(given)
    assert given.head.weight is given.embedding.weight
    assert given.first is given.again
    assert type(given.again) is type(given.head) is wnn.Linear
    assert list(given.state_dict()) == keys
    torch.testing.assert_close(given(tokens), want, rtol=0, atol=0)
    twin = copy.deepcopy(given)
    assert twin.head.weight is twin.embedding.weight
    assert type(twin.head) is wnn.Linear


def test_subclasses_and_parametrised_layers_are_left_alone():
    parametrised = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    replaced = nn.Linear(8, 8)
    replaced.forward = lambda x: x
    lazy = nn.LazyLinear(8)
    given = nn.ModuleDict(
        {
            "own": Own(8, 8),
            "attention": nn.MultiheadAttention(8, 2),
            "parametrised": parametrised,
            "replaced": replaced,
            "lazy": lazy,
        }
    )
    before = kinds(given)
    wnn.swap_linears(given)
    assert kinds(given) == before
    x = torch.randn(3, 8)
    torch.testing.assert_close(replaced(x), x)
    lazy(x)
    wnn.swap_linears(given)
    assert {name for name, kind in kinds(given).items() if kind is wnn.Linear} == {"lazy"}
    fused = wnn.Linear(8, 8, activation="relu")
    assert type(wnn.restore_linears(fused)) is wnn.Linear


def test_old_weight_norm_still_works():
    layer = nn.utils.weight_norm(nn.Linear(8, 8))
    x, keys = torch.randn(3, 8), list(layer.state_dict())
    want = layer(x)
    wnn.swap_linears(layer)
    assert list(layer.state_dict()) == keys
    torch.testing.assert_close(layer(x), want, rtol=0, atol=0)


def test_a_layer_with_an_epilogue():
    layer = wnn.Linear(16, 24, activation="gelu_tanh", dtype=torch.float64)
    assert repr(layer) == "warploom.Linear(in_features=16, out_features=24, bias=True, activation=gelu_tanh)"
    assert repr(type("Own", (wnn.Linear,), {})(1, 2)) == "Own(in_features=1, out_features=2, bias=True)"
    x, residual = torch.randn(5, 16, dtype=torch.float64), torch.randn(5, 24, dtype=torch.float64)
    made = nn.functional.gelu(nn.functional.linear(x, layer.weight, layer.bias), approximate="tanh")
    torch.testing.assert_close(layer(x, residual), made + residual)
    with pytest.raises(WarploomError, match="must be one of relu"):
        wnn.Linear(4, 4, activation="swish")


def test_the_residual_does_not_change_the_dtype():
    layer, x = wnn.Linear(16, 24), torch.randn(5, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == nn.Linear(16, 24)(x).dtype == torch.bfloat16
        assert layer(x, torch.randn(5, 24)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("x", "weight", "autocast", "wanted"),
    [
        ("bfloat16", "bfloat16", None, True),
        ("float32", "float32", None, False),
        ("float32", "bfloat16", None, False),
        ("float64", "float64", None, False),
        ("float32", "float32", "bfloat16", True),
        ("bfloat16", "float32", "float16", True),
        ("float64", "float64", "bfloat16", False),
    ],
)
def test_layers_that_have_a_kernel(monkeypatch, x, weight, autocast, wanted):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(wnn, "_HAS_TARGET", {})

    class OnGpu(torch.Tensor):
        is_cuda = True

    x, weight = (torch.ones(2, 2, dtype=getattr(torch, each)).as_subclass(OnGpu) for each in (x, weight))
    with torch.autocast("cuda", dtype=getattr(torch, autocast or "bfloat16"), enabled=autocast is not None):
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: autocast is not None)
        assert wnn.has_kernel(x, weight) is wanted


def test_each_gpu_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: asked.append(device) or (9 - device, 0))
    monkeypatch.setattr(wnn, "_HAS_TARGET", {})

    class OnGpu(torch.Tensor):
        is_cuda = True
        index = 0

        def get_device(self):
            return self.index

    x = torch.ones(2, 2, dtype=torch.bfloat16).as_subclass(OnGpu)
    for index, wanted in ((0, True), (1, False), (0, True), (1, False)):
        OnGpu.index = index
        assert wnn.has_kernel(x, x) is wanted
    assert asked == [0, 1]


def test_a_layer_passes_only_the_options_that_it_has(monkeypatch):
    passed = []
    monkeypatch.setattr(wnn, "has_kernel", lambda x, weight: True)
    monkeypatch.setattr(wnn, "linear", lambda x, weight, **options: passed.append(options))
    x, residual = torch.ones(2, 16), torch.ones(2, 8)
    wnn.Linear(16, 8, bias=False)(x)
    layer = wnn.Linear(16, 8, activation="relu")
    layer(x, residual)
    assert passed == [{}, {"bias": layer.bias, "activation": "relu", "residual": residual}]


def test_layers_have_a_public_name():
    import warploom
    from warploom.nn import Linear, swap_linears

    assert (Linear, swap_linears) == (wnn.Linear, wnn.swap_linears)
    assert warploom.nn.Linear is Linear


@pytest.mark.parametrize("function", [wnn.swap_linears, wnn.restore_linears])
def test_an_argument_that_is_not_a_module_is_reported(function):
    with pytest.raises(WarploomError, match=rf"{function.__name__}\(\): invalid arguments: `model`, `only`"):
        function(5, only="everything")
