"""`warploom.nn.swap_gated_mlps`: modules are recognised by what they compute, swapped and restored."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import warploom  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402
from warploom.torch import gated_mlp, op_library, pair_gradients  # noqa: E402
from warploom.torch import nn as layers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Mlp(nn.Module):
    """As in most language models."""

    def __init__(self, activation=None, bias=False, d=16, hidden=24):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(d, hidden, bias=bias), nn.Linear(d, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, d, bias=bias)
        self.act_fn = activation or nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Turned(Mlp):
    """The first layer is up, and the factors are exchanged."""

    def forward(self, x):
        return self.down_proj(self.gate_proj(x) * nn.functional.silu(self.up_proj(x)))


class Scaled(Mlp):
    def forward(self, x):
        return 2 * self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Normed(Mlp):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)


class Ungated(Mlp):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) + self.up_proj(x))


class TwoInputs(Mlp):
    def forward(self, x, scale):
        return super().forward(x) * scale


PAIRS = {
    "swiglu": nn.SiLU(),
    "geglu": nn.GELU(),
    "geglu_tanh": nn.GELU("tanh"),
    "reglu": nn.ReLU(),
    "glu": nn.Sigmoid(),
}


@pytest.fixture
def counted(monkeypatch):
    """Run the kernels on the host too, and count them."""
    done, compute = [], op_library.compute
    for module in (gated_mlp, layers):
        monkeypatch.setattr(module, "has_kernel", lambda x, weight: True)
    monkeypatch.setattr(op_library, "compute", lambda *given, **more: done.append(given[0]) or compute(*given, **more))
    return done


def close(found, want):
    return float((found.double() - want.double()).norm()) <= 2e-2 * float(want.double().norm())


@pytest.mark.parametrize("pair", PAIRS)
def test_a_module_computes_what_it_did_in_two_kernels(pair, counted):
    model = nn.Sequential(Mlp(PAIRS[pair]), nn.Linear(16, 16), Mlp(PAIRS[pair], bias=True)).bfloat16()
    original, x = copy.deepcopy(model), torch.randn(7, 16).bfloat16()
    assert warploom.nn.swap_gated_mlps(model) is model
    warploom.nn.swap_linears(model)
    assert [module.pair for module in model.modules() if isinstance(module, gated_mlp.GatedMLP)] == [pair, pair]
    assert list(model.state_dict()) == list(original.state_dict())
    with torch.no_grad():
        assert close(model(x), original(x))
    assert counted == ["gated_linear", "matmul", "matmul", "gated_linear", "matmul"]
    assert repr(model).splitlines()[1] == "  (0): warploom.Mlp("
    warploom.nn.restore_gated_mlps(model)
    assert [type(each) for each in model] == [Mlp, layers.Linear, Mlp]
    assert vars(model[0]).keys() == vars(Mlp()).keys()


def test_roles_are_found_by_what_a_module_computes():
    model = warploom.nn.swap_gated_mlps(Turned())
    assert (model.layer_names, model.pair) == (("up_proj", "gate_proj", "down_proj"), "swiglu")


@pytest.mark.parametrize("kind", [Scaled, Normed, Ungated, TwoInputs, lambda: nn.Sequential(nn.Linear(3, 3))])
def test_a_model_without_a_gated_mlp_is_an_error(kind):
    model = kind()
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(WarploomError, match=r"must have a module that computes `down\(activation\(gate\(x\)\) \* up"):
        warploom.nn.swap_gated_mlps(model)
    assert {name: type(module) for name, module in model.named_modules()} == before


@pytest.mark.parametrize("function", [warploom.nn.swap_gated_mlps, warploom.nn.restore_gated_mlps])
def test_wrong_arguments_are_reported_together(function):
    with pytest.raises(WarploomError) as caught:
        function(3, only="gate")
    assert "`model`" in str(caught.value)
    assert "`only`" in str(caught.value)


def test_only_some_modules_are_swapped_and_again_changes_nothing():
    model = nn.Sequential(Mlp(), Mlp())
    warploom.nn.swap_gated_mlps(model, only=lambda name, module: name == "1")
    assert [isinstance(each, gated_mlp.GatedMLP) for each in model] == [False, True]
    kinds = [type(each) for each in warploom.nn.swap_gated_mlps(model)]
    assert [type(each) for each in warploom.nn.swap_gated_mlps(model)] == kinds
    warploom.nn.restore_gated_mlps(model, only=lambda name, module: name == "0")
    assert [isinstance(each, gated_mlp.GatedMLP) for each in model] == [False, True]


def test_the_random_state_and_hooks_of_a_model_are_left_alone():
    model, called = Mlp(), []
    model.gate_proj.register_forward_hook(lambda *given: called.append(1))
    model.register_forward_hook(lambda *given: called.append(2))
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    warploom.nn.swap_gated_mlps(model)
    assert torch.equal(torch.rand(3), want)
    assert not called


def test_a_module_on_the_meta_device_is_recognised():
    with torch.device("meta"):
        model = Mlp(d=4096, hidden=14336)
    assert warploom.nn.swap_gated_mlps(model).pair == "swiglu"


def test_layers_that_others_changed_are_called_themselves(counted):
    x = torch.randn(3, 16).bfloat16()
    hooked, replaced = Mlp().bfloat16(), Mlp().bfloat16()
    for model in (hooked, replaced):
        warploom.nn.swap_gated_mlps(model)
    hooked.up_proj.register_forward_hook(lambda layer, given, made: made * 3)
    replaced.gate_proj = nn.Sequential(replaced.gate_proj, nn.Dropout(0.0))  # as an adapter would
    with torch.no_grad():
        for model in (hooked, replaced):
            assert torch.equal(model(x), Mlp.forward(model, x))
    assert not counted


def test_copies_and_pickles_compute_the_same(counted):
    model, x = warploom.nn.swap_gated_mlps(nn.Sequential(Mlp())).bfloat16(), torch.randn(3, 16).bfloat16()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.no_grad():
        want = model(x)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            assert torch.equal(other(x), want)
            assert other[0].gate_proj.weight is not model[0].gate_proj.weight
    assert counted == ["gated_linear"] * 3, "down is a layer of PyTorch, which was not swapped"


@pytest.mark.parametrize("is_compiled", [False, True])
def test_training_gives_the_gradients_of_the_original(is_compiled, counted):
    model = Mlp(bias=True).bfloat16()
    original, x = copy.deepcopy(model), torch.randn(2, 5, 16).bfloat16().requires_grad_()
    own = x.detach().clone().requires_grad_()
    warploom.nn.swap_gated_mlps(model)
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if is_compiled else model
    gradient = torch.randn(2, 5, 16).bfloat16()
    run(own).backward(gradient)
    original(x).backward(gradient)
    assert counted.count("gated_linear") == 1
    assert close(own.grad, x.grad)
    for mine, theirs in zip(model.parameters(), original.parameters(), strict=True):
        assert close(mine.grad, theirs.grad)
        assert mine.grad.stride() == mine.stride()


def test_llama_of_transformers_is_swapped(counted):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).bfloat16().eval()
    original, tokens = copy.deepcopy(model), torch.randint(0, 50, (2, 6))
    warploom.nn.swap_gated_mlps(model)
    with torch.no_grad():
        assert close(model(tokens).logits, original(tokens).logits)
    assert counted == ["gated_linear", "gated_linear"]


def test_gradients_of_host_tensors_are_pytorchs():
    gradient, gate, up = (torch.randn(3, 8).bfloat16() for _ in range(3))
    found = pair_gradients.pair_gradients("silu", nn.functional.silu, gradient, gate, up)
    leaves = [each.double().requires_grad_() for each in (gate, up)]
    (nn.functional.silu(leaves[0]) * leaves[1]).backward(gradient.double())
    for mine, theirs in zip(found, leaves, strict=True):
        assert close(mine, theirs.grad)
