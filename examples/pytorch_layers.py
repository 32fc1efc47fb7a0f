"""warploom from PyTorch: a fused layer, its gradients, and the layers of a model replaced.

CUDA tensors run on the GPU, CPU tensors on the emulator, slowly and with the same results. Only DEVICE differs.
"""

from __future__ import annotations

import numpy as np

import warploom as wl

try:
    import torch
except ImportError:
    torch = None

DEVICE = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
TOKENS, WIDTH, HIDDEN = 40, 64, 72


def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape) * scale).to(torch.bfloat16).to(DEVICE)


def exact(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def agrees(made: torch.Tensor, wanted: np.ndarray) -> bool:
    """Compare up to a few roundings to bfloat16."""
    return bool(np.abs(exact(made) - wanted).max() < 2**-6 * np.abs(wanted).max())


def main() -> None:
    if torch is None:
        print("PyTorch is not installed: pip install torch")
        return
    x, w, bias = random(TOKENS, WIDTH), random(HIDDEN, WIDTH, scale=WIDTH**-0.5), random(HIDDEN)
    residual = random(TOKENS, HIDDEN)

    # One kernel for x @ w.T + bias, the activation and the residual; PyTorch needs three.
    y = wl.linear(x, w, bias=bias, activation="silu", residual=residual)
    pre_activation = exact(x) @ exact(w).T + exact(bias)
    assert agrees(y, pre_activation / (1 + np.exp(-pre_activation)) + exact(residual))
    print(f"a fused layer on {y.device}, {tuple(y.shape)}: right")

    # Autograd: each gradient is a GEMM by the same kernels.
    x.requires_grad_()
    w.requires_grad_()
    grad = random(TOKENS, HIDDEN)
    wl.linear(x, w).backward(grad)
    assert x.grad is not None
    assert w.grad is not None
    assert agrees(x.grad, exact(grad) @ exact(w))
    assert agrees(w.grad, exact(grad).T @ exact(x))
    print("the gradients of x and w: right")

    # Replace the layers of a model in place; parameters, names and state_dict do not change. On the CPU they still use
    # PyTorch's kernels.
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH))
    before = model.state_dict()
    wl.nn.swap_linears(model.to(DEVICE, torch.bfloat16))
    assert [type(layer) for layer in model] == [wl.nn.Linear, torch.nn.GELU, wl.nn.Linear]
    assert model.state_dict().keys() == before.keys()
    print(f"the layers of the model: {[f'{type(layer).__module__}.{type(layer).__name__}' for layer in model]}")


if __name__ == "__main__":
    main()
