"""PyTorch's devices in a program on the emulator: user functions that PyTorch calls, tensors that the program puts on the CPU."""

import io
import random

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("triton.language")

from tests.triton import kernels  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import warploom.triton  # noqa: E402
from warploom.diagnostics import LaunchError  # noqa: E402

CUDA = torch.device("cuda", 0)


def doubled(x: torch.Tensor) -> torch.Tensor:
    """The body of an operator: it looks at devices, and allocates on one."""
    assert x.is_cuda
    assert not x.is_cpu
    assert x.device == CUDA
    out = torch.empty(x.shape, device="cuda")
    kernels.add[(triton.cdiv(x.numel(), 64),)](x, x, out, x.numel(), BLOCK=64)
    return out


@pytest.mark.parametrize("when", ["before", "inside"])
@pytest.mark.parametrize("key", ["CUDA", "CompositeExplicitAutograd"])
def test_an_operator_sees_the_gpu(when, key):
    library = torch.library.Library(f"warploom_test{random.randrange(10**9)}", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    if when == "before":
        library.impl("twice", doubled, key)
    with warploom.triton.machine() as machine:
        if when == "inside":
            library.impl("twice", doubled, key)
        x = torch.randn(100, device="cuda")
        assert torch.equal(getattr(torch.ops, library.ns).twice(x), x + x)
    assert len(machine.launches) == 1
    library._destroy()


@pytest.mark.parametrize("make", ["custom_op", "triton_op"])
def test_a_custom_op_sees_the_gpu(make):
    with warploom.triton.machine() as machine:
        define = getattr(torch.library, make)
        name = f"warploom_test::twice{random.randrange(10**9)}"
        twice = define(name, doubled, mutates_args=())
        twice.register_autograd(lambda ctx, gradient: doubled(gradient.contiguous()))
        x = torch.randn(100, device="cuda", requires_grad=True)
        (twice(x) * x).sum().backward()
        torch.testing.assert_close(x.grad, 4 * x)
    assert len(machine.launches) == 2


def test_hooks_of_saved_tensors_see_the_gpu():
    seen = []

    def note(tensor):
        seen.append(tensor.device)
        return tensor

    with warploom.triton.machine():
        x = torch.randn(5, device="cuda", requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(note, note):
            (x * x).sum().backward()
    assert len(seen) >= 2
    assert set(seen) == {CUDA}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return doubled(x) * x / 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * doubled(ctx.saved_tensors[0])

    with warploom.triton.machine():
        x = torch.randn(50, device="cuda", requires_grad=True)
        checkpoint(lambda each: Square.apply(each).sum(), x, use_reentrant=reentrant).backward()
        torch.testing.assert_close(x.grad, 2 * x)


def test_tensors_that_the_program_puts_on_the_cpu_answer_so():
    with warploom.triton.machine():
        x = torch.randn(4, 4, device="cuda")
        for host in (
            x.cpu(), x.to("cpu"), x.to(torch.device("cpu")), torch.zeros(4, 4, device="cpu"), x.to(x.cpu()),
            torch.empty_like(x, device="cpu"), x.cpu()[1:].T, x.cpu() + 1, torch.stack([x.cpu(), x.cpu()]),
            x.cpu().double(), x.cpu().type(torch.float16), x.cpu().split(2)[1], x.cpu().cpu(),
        ):  # fmt: skip
            assert host.device.type == "cpu"
            assert host.is_cpu
            assert not host.is_cuda
            assert host.get_device() == -1
            moved = host.to("cuda")
            assert moved.is_cuda
            assert moved.data_ptr() != host.data_ptr()
            assert host.cuda().device == CUDA
        for tensor in (
            x + x,
            x.double(),
            torch.zeros(3),
            torch.tensor([1], device=0),
            x.to(torch.float16),
            x.copy_(x.cpu()),
        ):
            assert tensor.is_cuda
        host = x.cpu()
        assert host.cpu() is host
        torch.testing.assert_close(host, torch.zeros(4, 4) + host)  # a reference without a device
        torch.testing.assert_close(host, x.clone())
    assert x.is_cpu


def test_a_module_moves():
    with warploom.triton.machine():
        module = torch.nn.Linear(3, 3).to("cuda")
        assert module.weight.is_cuda
        module.cpu()
        assert not module.weight.is_cuda
        module.cuda()
        assert module.weight.is_cuda
        with torch.device("meta"):
            module = torch.nn.Linear(3, 3)
        assert not module.weight.is_cuda
        assert module.to_empty(device="cuda").weight.is_cuda


def test_a_reference_for_the_cpu_is_not_the_kernel():
    """A wrapper that chooses by the device must not compare the kernel with itself."""

    def twice(x):
        return doubled(x) if x.is_cuda else x * 3

    with warploom.triton.machine() as machine:
        x = torch.randn(10, device="cuda")
        assert torch.equal(twice(x.cpu()), x.cpu() * 3)
        assert not machine.launches
        assert torch.equal(twice(x), x * 2)


class Scaled(torch.Tensor):
    """A tensor of a program's own class, as quantisation libraries have them: `values` times `scale`."""

    @staticmethod
    def __new__(cls, values, scale):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device=values.device)

    def __init__(self, values, scale):
        self.values, self.scale = values, scale

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(
            *(each.values * each.scale if isinstance(each, cls) else each for each in args), **(kwargs or {})
        )


def test_a_programs_own_class_of_tensors():
    """With a device of a GPU, PyTorch's autograd ends the process."""
    with warploom.triton.machine():
        values, x = torch.randn(4, device="cuda"), torch.randn(4, device="cuda", requires_grad=True)
        scaled = Scaled(values, 3.0).requires_grad_()
        assert (scaled.device.type, scaled.is_cuda) == ("cuda", True)
        product = x * scaled
        assert torch.equal(product, x * (values * 3))
        product.sum().backward()
        assert torch.equal(x.grad, values * 3)
        assert scaled.grad.is_cuda
        assert Scaled(values.cpu(), 3.0).device.type == "cpu"


def test_text_names_the_device():
    with warploom.triton.machine():
        x = torch.tensor([1.5, 2.0], device="cuda")
        assert repr(x) == "tensor([1.5000, 2.0000], device='cuda:0')"
        assert f"{x}" == repr(x)
        assert repr(x.cpu()) == "tensor([1.5000, 2.0000])"
        assert x.type() == "torch.cuda.FloatTensor"
        assert x.cpu().type() == "torch.FloatTensor"
        assert x.type(torch.int32).tolist() == [1, 2]


def test_the_default_device():
    before = torch.get_default_device()
    with warploom.triton.machine():
        torch.set_default_device("cuda")
        assert torch.get_default_device() == CUDA
        assert torch.ones(3).is_cuda
        assert torch.nn.Linear(2, 2).weight.is_cuda
        torch.set_default_device("cpu")
        assert torch.get_default_device() == torch.device("cpu")
        torch.set_default_device(torch.device("cuda:0"))
    assert torch.get_default_device() == before
    assert torch.ones(3).is_cpu


def test_saved_tensors_are_loaded_to_the_gpu():
    with warploom.triton.machine():
        x, file = torch.randn(5, device="cuda"), io.BytesIO()
        torch.save({"x": x}, file)
        for place in (None, "cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda:0"}):
            file.seek(0)
            loaded = torch.load(file, map_location=place)["x"]
            assert loaded.is_cuda
            assert torch.equal(loaded, x)


def test_autocast_is_that_of_cuda():
    with warploom.triton.machine():
        x = torch.randn(4, 4, device="cuda")
        assert not torch.is_autocast_enabled()
        with torch.autocast("cuda"):
            assert torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_dtype("cuda") == torch.float16
            assert (x @ x).dtype == torch.float16
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
            with torch.autocast("cuda", enabled=False):
                assert (x @ x).dtype == torch.float32


def test_a_training_step():
    """Optimisers ask the current stream whether it captures; losses are scaled."""
    with warploom.triton.machine():
        module = torch.nn.Linear(8, 1).cuda()
        optimiser, scaler = torch.optim.AdamW(module.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
        x = torch.randn(32, 8, device="cuda")
        losses = []
        for _ in range(5):
            optimiser.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = (module(x) - x.sum(1, keepdim=True)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def test_streams():
    with warploom.triton.machine():
        first, second, default = torch.cuda.Stream(), torch.cuda.Stream(priority=-1), torch.cuda.default_stream()
        assert torch.cuda.current_stream() == default != first
        assert (default.cuda_stream, first == second) == (0, False)
        with torch.cuda.stream(first):
            assert torch.cuda.current_stream() is first
            with second, torch.cuda.stream(None):
                assert torch.cuda.current_stream() is second
                x = torch.randn(3, device="cuda")
                x.record_stream(second)
            assert torch.cuda.current_stream() is first
            assert torch._C._cuda_getCurrentRawStream(0) == first.cuda_stream
        torch.cuda.set_stream(first)
        assert torch.cuda.current_stream() is first
        first.wait_stream(second)
        begin, end = torch.cuda.Event(enable_timing=True), first.record_event()
        begin.record()
        assert end.elapsed_time(begin) >= 0
        with torch.cuda.nvtx.range("name"), torch.cuda.device(0):
            assert torch.cuda.cudart().cudaProfilerStart() == 0
    with warploom.triton.machine():
        assert torch.cuda.current_stream().cuda_stream == 0


@pytest.mark.filterwarnings("ignore")
def test_traced_functions_see_the_gpu():
    def function(x):
        out = torch.zeros(3, device=x.device)
        return (doubled(x) if x.is_cuda else x * 3), out + 1, str(x.device)

    with warploom.triton.machine() as machine:
        x = torch.randn(50, device="cuda")
        for backend in ("eager", "inductor"):
            machine.launches.clear()
            torch._dynamo.reset()
            twice, ones, device = torch.compile(function, backend=backend, fullgraph=True)(x)
            assert device == "cuda:0"
            assert torch.equal(twice, x + x)
            assert "add" in [each.kernel for each in machine.launches]
            assert twice.is_cuda
            assert ones.is_cuda


def test_a_compiled_kernel_names_its_arguments_when_one_is_missing():
    with warploom.triton.machine():
        x = torch.randn(10, device="cuda")
        compiled = kernels.add.warmup(x, x, x, 10, BLOCK=16, grid=(1,))
        with pytest.raises(
            LaunchError, match="3 arguments were given to a compiled kernel, which takes 5: x, y, out, n, BLOCK"
        ):
            compiled[(1, 1, 1)](x, x, x)
        for given in ((x, x, x, 10, 16), (x, x, x, 10)):  # Triton's launcher skips constants
            x.fill_(3)
            compiled[(1, 1, 1)](*given)
            assert torch.equal(x, torch.full((10,), 6.0, device="cuda"))
