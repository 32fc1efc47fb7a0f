"""Models whose layers are swapped, on the emulator: eager and compiled, with their own `state_dict` and `generate()`."""

from __future__ import annotations

import copy
from importlib import import_module

import pytest

torch = pytest.importorskip("torch")

import warploom  # noqa: E402
import warploom.torch.nn as layers  # noqa: E402
from warploom.torch import op_library  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Block(torch.nn.Module):
    """Attention and a gated MLP in plain PyTorch."""

    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.gate, self.up, self.down = (
            torch.nn.Linear(*sizes, bias=False) for sizes in ((width, 64), (width, 64), (64, width))
        )

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(made.transpose(1, 2).flatten(-2))
        return x + self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


def plain():
    return Block(), torch.randn(2, 5, 32).bfloat16(), 5


def llama():
    """A Llama of Hugging Face with one layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=48,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config), torch.randint(3, 48, (2, 5)), 8


def vision_transformer():
    """A VisionTransformer of torchvision with one layer: its attention keeps PyTorch's own projections."""
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=16, patch_size=8, num_layers=1, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=8
    )
    torch.nn.init.normal_(model.heads.head.weight)  # it is zero at first
    return model, torch.randn(2, 3, 16, 16).bfloat16(), 3


def is_there(package):
    """Return whether a package can be imported: that of torchvision needs the very build of PyTorch."""
    try:
        import_module(package)
    except Exception:  # noqa: BLE001  whatever it is, the model is not there
        return False
    return True


MODELS = {"plain": plain} | {
    make.__name__: make
    for package, make in (("transformers", llama), ("torchvision", vision_transformer))
    if is_there(package)
}


def output(model, given):
    made = model(given)
    return getattr(made, "logits", made)


@pytest.fixture
def counted(monkeypatch):
    """Run the kernels on the host too, and count them."""
    done, compute = [], op_library.compute
    monkeypatch.setattr(layers, "has_kernel", lambda x, weight: True)
    monkeypatch.setattr(op_library, "compute", lambda *given, **more: done.append(given[0]) or compute(*given, **more))
    return done


@pytest.mark.parametrize("name", MODELS)
def test_a_swapped_model_gives_the_same_results_eager_and_compiled(name, counted):
    model, given, linears = MODELS[name]()
    model = model.bfloat16().eval()
    before, original = {key: (each.shape, each.dtype) for key, each in model.state_dict().items()}, copy.deepcopy(model)
    warploom.nn.swap_linears(model)
    assert {key: (each.shape, each.dtype) for key, each in model.state_dict().items()} == before
    model.load_state_dict(original.state_dict())
    assert sum(type(each) is layers.Linear for each in model.modules()) == linears
    with torch.no_grad():
        want, found = output(original, given), output(model, given)
        assert len(counted) == linears
        torch.testing.assert_close(found, want, rtol=2e-2, atol=2e-2)
        compiled = output(torch.compile(model, backend="aot_eager"), given)
    assert (compiled.double() - found.double()).norm() <= 3e-2 * found.double().norm()
    assert len(counted) == 2 * linears
    if hasattr(model, "generate"):
        counted.clear()
        made = model.generate(given, min_new_tokens=3, max_new_tokens=3, do_sample=False)
        assert len(counted) >= 3 * linears
        logits = output(original, made)[:, given.shape[1] - 1 : -1].double()
        logits[..., original.config.eos_token_id] = -torch.inf  # not before the last of the new tokens
        chosen = logits.gather(-1, made[:, given.shape[1] :, None])[..., 0]
        assert (chosen >= logits.amax(-1) - 0.03).all(), (
            "another token only where the original's logits are almost equal"
        )


def test_a_swapped_model_is_trained_like_the_original(counted):
    model, given, linears = plain()
    model = model.bfloat16()
    original = copy.deepcopy(model)
    warploom.nn.swap_linears(model)
    for each in (model, original):
        each(given).float().square().sum().backward()
    assert len(counted) == 3 * linears - 1, "the input of the first layer needs no gradient"
    for mine, theirs in zip(model.parameters(), original.parameters(), strict=True):
        assert mine.grad.stride() == mine.stride()
        assert (mine.grad.double() - theirs.grad.double()).norm() <= 3e-2 * theirs.grad.double().norm()
