"""PyTorch's ways to a Triton kernel on the emulator: operators registered for CUDA, and `torch.compile`."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("triton.language")

from tests.triton import kernels  # noqa: E402

import warploom.triton  # noqa: E402


def doubled(x):
    out = torch.empty_like(x)
    kernels.add[(triton.cdiv(x.numel(), 64),)](x, x, out, x.numel(), BLOCK=64)
    return out


def test_operators_for_cuda():
    """Registered inside or before the block, with or without a kernel for the CPU, which is found again afterwards."""
    library = torch.library.Library(f"warploom_test{random.randrange(10**9)}", "DEF")
    operators = getattr(torch.ops, library.ns)
    for name in ("before", "inside", "later", "only.overload"):
        library.define(f"{name}(Tensor x) -> Tensor")
    library.impl("before", torch.negative, "CPU")
    library.impl("before", doubled, "CUDA")
    with warploom.triton.machine() as machine:
        library.impl("inside", torch.negative, "CPU")
        library.impl("inside", doubled, "CUDA")
        library.impl("later", doubled, "CUDA")
        library.impl("later", torch.negative, "CPU")
        library.impl("only.overload", doubled, "CUDA")
        x = torch.randn(100, device="cuda")
        for each in (operators.before, operators.inside, operators.later, operators.only.overload):
            assert torch.equal(each(x), x + x)
    assert len(machine.launches) == 4
    for each in (operators.before, operators.inside, operators.later):
        assert torch.equal(each(x), -x)
    with pytest.raises(NotImplementedError, match="CPU"):
        operators.only(x)
    library._destroy()


def test_functions_for_cuda_make_tensors_of_the_gpu():
    name = f"warploom_test{random.randrange(10**9)}"
    library = torch.library.Library(name, "DEF")
    library.define("made(Tensor x) -> Tensor")
    seen = []

    def made(x):
        out = torch.empty(3, device="cuda")
        seen.append((x.device.type, out.device.type, out.is_cuda))
        return out

    with warploom.triton.machine():
        library.impl("made", made, "CUDA")
        assert getattr(torch.ops, name).made(torch.ones(3, device="cuda")).is_cuda
    assert seen == [("cuda", "cuda", True)]
    library._destroy()


def test_operators_of_pytorch_that_a_program_replaces_for_cuda():
    """Tensors of the GPU find the program's function, until its library is gone; those on the host find PyTorch's."""
    seen: list[tuple[str, str, type]] = []

    def multiplied(x, y):
        seen.append((x.device.type, torch.empty(1, device="cuda").device.type, type(y)))
        return doubled(x)

    with warploom.triton.machine() as machine:
        x = torch.randn(100, device="cuda", requires_grad=True)
        library = torch.library.Library("aten", "IMPL")
        library.impl("mul.Tensor", multiplied, "CUDA")
        product = x * 3
        assert seen == [("cuda", "cuda", int)]
        assert torch.equal(product, x + x)
        product.backward(torch.ones(100, device="cuda"))
        assert torch.equal(x.grad, torch.full((100,), 2.0, device="cuda"))
        assert len(machine.launches) == len(seen) == 2
        assert torch.equal(x.detach().cpu() * 3, (x + x + x).cpu())
        library._destroy()
        assert torch.equal(x * 3, x + x + x)
        library = torch.library.Library("aten", "IMPL")
        library.impl("mul.Tensor", multiplied, "CUDA")
        assert torch.equal(x * 3, x + x)
    assert torch.equal(x * 3, x + x + x)
    library._destroy()


def test_a_custom_op_of_cuda():
    name = f"warploom_test::twice{random.randrange(10**9)}"
    with warploom.triton.machine() as machine:
        twice = torch.library.custom_op(
            name, doubled, mutates_args=(), device_types="cuda", schema="(Tensor x) -> Tensor"
        )
        x = torch.randn(100, device="cuda")
        assert torch.equal(twice(x), x + x)
    assert len(machine.launches) == 1


def test_a_driver_that_a_program_makes_is_the_emulator():
    with warploom.triton.machine():
        made = triton.backends.backends["nvidia"].driver
        assert made.is_active()
        triton.runtime.driver.set_active(made())
        assert torch.equal(doubled(torch.ones(8)), torch.full((8,), 2.0))
    assert triton.backends.backends["nvidia"].driver is not made


@pytest.mark.filterwarnings("ignore")
def test_compiled_graphs_are_triton_kernels():
    """A forward and a backward pass, and a kernel of the program in a graph; the CPU's code afterwards."""
    pytest.importorskip("torch._inductor")
    from torch.utils._triton import has_triton

    before = has_triton()  # which PyTorch remembers

    def norm(x, weight):
        return torch.softmax(torch.nn.functional.rms_norm(x, (x.shape[-1],), weight), -1)

    def whole(x, weight):
        return doubled(norm(x, weight)).sin()

    x, weight = torch.randn(5, 70), torch.randn(70)
    with warploom.triton.machine() as machine:
        compiled = torch.compile(norm)
        inputs = [each.clone().requires_grad_() for each in (x, weight)]
        expected = [each.clone().requires_grad_() for each in (x, weight)]
        out, right = compiled(*inputs), norm(*expected)
        launched = len(machine.launches)
        assert launched
        torch.testing.assert_close(out, right)
        out.square().sum().backward()
        right.square().sum().backward()
        for got, want in zip(inputs, expected, strict=True):
            torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)
        assert len(machine.launches) > launched
        torch.testing.assert_close(torch.compile(whole, fullgraph=True)(x, weight), (2 * norm(x, weight)).sin())
        assert "add" in [each.kernel for each in machine.launches]
    assert torch._inductor.config.cpu_backend == "cpp"
    assert has_triton() == before
