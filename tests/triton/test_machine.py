"""Triton programs on the emulator: results compared with PyTorch, and PyTorch and Triton as they were afterwards."""

from __future__ import annotations

import gc
import random
import sys
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from tests.triton import kernels  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import warploom.triton  # noqa: E402
from warploom.diagnostics import CheckError, LaunchError, WarploomError  # noqa: E402

TARGETS = ("sm_90", "sm_100")


def integers(*shape, dtype=torch.float32, low=-4, high=5):
    """Small integers, for which every sum is exact."""
    return torch.randint(low, high, shape, device="cuda").to(dtype)


def poisoned(*shape, dtype=torch.float32):
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


@pytest.mark.parametrize("target", TARGETS)
def test_vector_add(target):
    n = random.randrange(1, 2000)
    with warploom.triton.machine(target=target) as machine:
        x, y, out = torch.randn(n, device="cuda"), torch.randn(n, device="cuda"), poisoned(n)
        kernels.add[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
        torch.testing.assert_close(out, x + y, rtol=0, atol=0)
    assert [each.kernel for each in machine.launches] == ["add"]
    assert machine.launches[0].instructions > 0


def test_cpu_tensors_are_passed_unchanged():
    x, y, out = torch.randn(100), torch.randn(100), torch.full((100,), float("nan"))
    with warploom.triton.machine():
        kernels.add[(1,)](x, y, out, 100, BLOCK=128)
    assert torch.equal(out, x + y)


def test_a_cpu_tensor_among_those_of_the_gpu_is_a_warning():
    with warploom.triton.machine():
        x, y = torch.randn(2, 100, device="cuda")
        out = torch.empty_like(x)
        with pytest.warns(UserWarning, match=r"on the CPU: argument 1, y: float32\[100\]\. Other tensors") as caught:
            kernels.add[(1,)](x, y.cpu(), out, 100, BLOCK=128)
        assert caught[0].filename == __file__
        assert torch.equal(out, x + y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kernels.add[(1,)](x, y.cpu().pin_memory(), out, 100, BLOCK=128)
            kernels.add[(1,)](x.cpu(), y.cpu(), out.cpu(), 100, BLOCK=128)


def test_views_start_at_their_first_element():
    whole = torch.randn(300)
    out = torch.full((100,), float("nan"))
    with warploom.triton.machine():
        kernels.add[(1,)](whole[7:107], whole[150:250], out, 100, BLOCK=128)
    assert torch.equal(out, whole[7:107] + whole[150:250])


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
def test_softmax(schedule):
    with warploom.triton.machine(schedule=schedule, seed=3):
        x, out = torch.randn(9, 131, device="cuda"), poisoned(9, 131)
        kernels.softmax[(9,)](x, out, 131, x.stride(0), out.stride(0), BLOCK=256)
        torch.testing.assert_close(out, torch.softmax(x, 1))


@pytest.mark.parametrize("target", TARGETS)
def test_matmul_with_pointers(target):
    M, N, K = 70, 90, 100
    with warploom.triton.machine(target=target):
        a, b = integers(M, K, dtype=torch.float16), integers(K, N, dtype=torch.float16)
        c = poisoned(M, N, dtype=torch.float16)
        grid = (triton.cdiv(M, 64), triton.cdiv(N, 64))
        kernels.matmul[grid](a, b, c, M, N, K, K, N, N, BM=64, BN=64, BK=32)
        assert torch.equal(c, (a.float() @ b.float()).half())


@pytest.mark.parametrize("target", TARGETS)
def test_matmul_with_descriptors_of_the_host(target):
    from triton.tools.tensor_descriptor import TensorDescriptor

    M, N, K = 100, 136, 72
    with warploom.triton.machine(target=target):
        a, b = integers(M, K, dtype=torch.bfloat16), integers(N, K, dtype=torch.bfloat16)
        c = poisoned(M, N, dtype=torch.bfloat16)
        descriptors = (
            TensorDescriptor.from_tensor(a, [64, 64]),
            TensorDescriptor.from_tensor(b, [64, 64]),
            TensorDescriptor.from_tensor(c, [64, 64]),
        )
        kernels.descriptor_matmul[(2, 3)](*descriptors, M, N, K, BM=64, BN=64, BK=64)
        assert torch.equal(c, (a.float() @ b.float().T).bfloat16())


@pytest.mark.parametrize("target", TARGETS)
def test_persistent_matmul_with_descriptors_of_the_device(target):
    M, N, K = 256, 192, 64
    asked = []

    def allocate(size, alignment, stream):
        asked.append((size, alignment))
        return torch.empty(size, dtype=torch.int8, device="cuda")

    with warploom.triton.machine(target=target, sms=3):
        sms = torch.cuda.get_device_properties("cuda").multi_processor_count
        assert sms == 3
        triton.set_allocator(allocate)
        a, b = integers(M, K, dtype=torch.float16), integers(N, K, dtype=torch.float16)
        c = poisoned(M, N, dtype=torch.float16)
        kernels.device_descriptor_matmul[(sms,)](a, b, c, M, N, K, BM=64, BN=64, BK=64)
        assert torch.equal(c, (a.float() @ b.float().T).half())
    assert asked
    assert all(size % 3 == 0 for size, _ in asked)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_padding_of_a_descriptor(padding):
    from triton.tools.tensor_descriptor import TensorDescriptor

    with warploom.triton.machine():
        x, out = torch.randn(10, 12, device="cuda"), poisoned(16, 16) + 1
        kernels.copy_padded[(1,)](TensorDescriptor(x, [10, 12], [12, 1], [16, 16], padding=padding), out, BM=16, BN=16)
        assert torch.equal(out[:10, :12], x)
        beyond = torch.cat((out[10:].flatten(), out[:, 12:].flatten()))
        assert bool(beyond.isnan().all() if padding == "nan" else (beyond == 0).all())


def test_descriptor_that_rounds_to_tf32():
    from triton.tools.tensor_descriptor import TensorDescriptor

    with warploom.triton.machine():
        x, out = torch.randn(16, 16, device="cuda"), poisoned(16, 16)
        source = TensorDescriptor(x, [16, 16], [16, 1], [16, 16], round_f32_to_tf32=True)
        kernels.copy_padded[(1,)](source, out, BM=16, BN=16)
        assert bool((out.view(torch.int32) & 0x1FFF == 0).all())
        torch.testing.assert_close(out, x, rtol=2**-11, atol=0)
        assert not torch.equal(out, x)


def test_descriptor_of_padded_fp4():
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    with warploom.triton.machine(target="sm_100"):
        a = torch.randint(-3, 4, (128, 128), device="cuda").float().to(torch.float8_e4m3fn)
        packed = torch.randint(0, 256, (128, 64), dtype=torch.uint8, device="cuda")
        a_scale, b_scale = (torch.randint(126, 129, (128, 4), dtype=torch.uint8, device="cuda") for _ in range(2))
        out = poisoned(128, 128)
        descriptors = (TensorDescriptor.from_tensor(a, [128, 128]), TensorDescriptor.from_tensor(packed, [128, 64]))
        compiled = kernels.scaled_product[(1,)](
            descriptors[0], a_scale, descriptors[1], b_scale, out, M=128, N=128, K=128
        )
        assert compiled.metadata.tensordesc_meta[1]["fp4_padded"], "the test is about this kind of map"
        b = values[torch.stack((packed & 15, packed >> 4), dim=2).reshape(128, 128).long()]
        factors = [2.0 ** (scale.float() - 127).repeat_interleave(32, dim=1) for scale in (a_scale, b_scale)]
        assert torch.equal(out, (a.float() * factors[0]) @ (b * factors[1]).T)


@pytest.mark.parametrize("target", TARGETS)
def test_a_cluster_of_ctas(target):
    with warploom.triton.machine(target=target) as machine:
        x, y, out = torch.randn(900, device="cuda"), torch.randn(900, device="cuda"), poisoned(900)
        kernels.add[(2,)](x, y, out, 900, BLOCK=512, num_ctas=2)
        assert torch.equal(out, x + y)
    assert machine.launches[0].grid == (4, 1, 1)


def test_a_kernel_has_a_cubin_and_sass():
    with warploom.triton.machine():
        x, out = torch.randn(64, device="cuda"), poisoned(64)
        compiled = kernels.add[(1,)](x, x, out, 64, BLOCK=64)
        assert compiled.asm["cubin"].startswith(b"\x7fELF")
        assert "STG" in compiled.asm["sass"]
        compiled[(1, 1, 1)](x, x, out, 64, 64)
        assert torch.equal(out, 2 * x)


def test_nested_tuples():
    n = 50
    with warploom.triton.machine():
        x, y, out = torch.randn(n, device="cuda"), torch.randn(n, device="cuda"), poisoned(n)
        kernels.weighted[(1,)]((x, (y, 7)), out, (2.0, -3.0), n, BLOCK=64)
        torch.testing.assert_close(out, 2 * x - 3 * y + 7)


def test_atomics():
    n = 3000
    with warploom.triton.machine(schedule="random", seed=random.randrange(1000)):
        x = torch.randint(0, 17, (n,), device="cuda", dtype=torch.int32)
        counts = torch.zeros(17, dtype=torch.int32, device="cuda")
        kernels.histogram[(triton.cdiv(n, 128),)](x, counts, n, BLOCK=128)
        assert torch.equal(counts, torch.bincount(x, minlength=17).int())


def test_output_of_a_kernel_that_prints(capsys):
    with warploom.triton.machine():
        kernels.report[(1,)](torch.arange(32, 160, dtype=torch.int32), BLOCK=128)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(int(line.split()[-1]) for line in lines) == list(range(32, 160))
    assert all("value" in line for line in lines)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])
def test_pointer_table(dtype):
    with warploom.triton.machine():
        rows = [torch.randn(64, device="cuda") for _ in range(5)]
        gc.collect()
        table = torch.tensor([row.data_ptr() for row in rows], dtype=dtype, device="cuda")
        out = poisoned(5, 64)
        kernels.gather_rows[(5,)](table, out, BLOCK=64)
        assert torch.equal(out, torch.stack(rows))


def test_pointer_table_into_one_tensor():
    with warploom.triton.machine():
        whole = torch.randn(4, 64, device="cuda")
        expected = whole.clone()
        table = torch.tensor([row.data_ptr() for row in list(whole)[::-1]], device="cuda")
        out = poisoned(4, 64)
        kernels.gather_rows[(4,)](table, out, BLOCK=64)
        assert torch.equal(out, expected.flip(0))


def test_a_table_of_freed_tensors_is_a_fault():
    with warploom.triton.machine():
        table = torch.tensor([torch.randn(64, device="cuda").data_ptr()], device="cuda")
        gc.collect()
        with pytest.raises(WarploomError) as caught:
            kernels.gather_rows[(1,)](table, poisoned(64), BLOCK=64)
    assert caught.value.code == "OUT_OF_BOUNDS"


@pytest.mark.parametrize("autotune", ["first", "all"])
def test_autotune(autotune):
    n = 1000
    with warploom.triton.machine(autotune=autotune) as machine:
        x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
        kernels.tuned_accumulate[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
        torch.testing.assert_close(out, x)
    tuner = kernels.tuned_accumulate
    assert len(machine.launches) == (1 if autotune == "first" else 4)
    assert not tuner.cache
    assert "do_bench" not in vars(tuner)


def test_an_autotuner_with_a_memory_of_its_own():
    """Libraries keep it in a database: it has keys, and cannot be listed."""

    class Memory:
        def __init__(self):
            self.held = {}

        def __getitem__(self, key):
            return self.held[key]

        def __setitem__(self, key, value):
            self.held[key] = value

        def __contains__(self, key):
            return key in self.held

    tuner = kernels.tuned_accumulate
    before, tuner.cache = tuner.cache, Memory()
    try:
        with warploom.triton.machine():
            x, out = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
            tuner[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, out, 100)
            assert torch.equal(out, x)
    finally:
        tuner.cache = before


def test_autotune_skips_configurations_that_do_not_fit():
    @triton.autotune(configs=[triton.Config({"BM": 256}, num_stages=9), triton.Config({"BM": 64})], key=["M"])
    @triton.jit
    def tuned(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        sums = tl.zeros((BM, BN), tl.float32)
        rows, columns, inner = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
        for k in range(0, K, BK):
            left = tl.load(a + rows[:, None] * K + k + inner[None, :], mask=rows[:, None] < M)
            right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
            sums = tl.dot(left, right, sums)
        tl.store(c + rows[:, None] * N + columns[None, :], sums, mask=rows[:, None] < M)

    with warploom.triton.machine():
        a, b, c = integers(64, 256, dtype=torch.float16), integers(256, 64, dtype=torch.float16), poisoned(64, 64)
        tuned[(1,)](a, b, c, 64, 64, 256, BN=64, BK=128)
        assert tuned.best_config.kwargs == {"BM": 64}
        assert torch.equal(c, a.float() @ b.float())


def test_each_function_of_torch_cuda_is_one_object():
    """PyTorch's compiler makes a table of them, and fails if one object has two names: `torch.compiler.disable` does."""
    with warploom.triton.machine():
        replaced = [
            each for each in vars(torch.cuda).values() if getattr(each, "__module__", "").startswith("warploom.")
        ]
        replaced += [
            each for each in vars(torch.accelerator).values() if getattr(each, "__module__", "").startswith("warploom.")
        ]
    assert len(replaced) > 30
    assert len({id(each) for each in replaced}) == len(replaced)


def test_queries_that_programs_make():
    with warploom.triton.machine():
        assert torch.get_device_module() is torch.get_device_module("cuda") is torch.cuda
        torch.cuda.manual_seed(11)
        assert torch.cuda.initial_seed() == 11
        torch.cuda.set_sync_debug_mode("warn")
        assert torch.cuda.get_sync_debug_mode() == 0
        assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() == 0
        torch.accelerator.empty_cache()
        with torch.accelerator.device_index(0):
            assert torch.ones(1, device=torch.accelerator.current_accelerator()).is_cuda
        assert len(str(torch.cuda.get_device_properties(0).uuid)) == 36
    assert torch.get_device_module() is not torch.cuda
    assert not torch.cuda.is_available()


def test_pinned_memory_is_the_hosts():
    with warploom.triton.machine():
        x = torch.ones(3)
        pinned = x.pin_memory()
        assert (pinned.is_pinned(), pinned.device.type, x.is_pinned(), x.device.type) == (True, "cpu", False, "cuda")
        assert pinned.pin_memory() is pinned
        pinned.fill_(2)
        assert torch.equal(x, torch.ones(3, device="cuda"))
        assert torch.empty(2, pin_memory=True).is_pinned()
        assert not torch.empty(2, pin_memory=False).is_pinned()
        moved = pinned.to("cuda", non_blocking=True)
        assert (moved.is_pinned(), moved.is_cuda) == (False, True)


def test_generators_of_the_gpu_have_a_seed_and_an_offset():
    """Programs that make Philox numbers of their own, such as those of dropout, take both from the default generator."""
    with warploom.triton.machine():
        default, own = torch.cuda.default_generators[torch.cuda.current_device()], torch.Generator("cuda")
        torch.manual_seed(5)
        assert (default.initial_seed(), default.get_offset()) == (5, 0)
        default.set_offset(12)
        assert default.get_offset() == 12
        torch.cuda.manual_seed(7)
        assert (default.initial_seed(), default.get_offset()) == (7, 0)
        drawn = [torch.randn(9, device="cuda", generator=own.manual_seed(3)) for _ in range(2)]
        assert torch.equal(*drawn)
        assert own.get_offset() == 0
    assert torch.default_generator.initial_seed() == 7


def test_the_state_of_the_gpus_generator_is_a_seed_and_an_offset():
    """Programs with Philox numbers of their own read and advance it; a state also restores what PyTorch draws."""
    with warploom.triton.machine():
        default = torch.cuda.default_generators[0]
        torch.cuda.manual_seed(7)
        first = default.get_state()
        assert (first.device.type, first.view(torch.int64).tolist()) == ("cpu", [7, 0])
        drawn = [torch.randn(9, device="cuda")]
        second = torch.cuda.get_rng_state()
        drawn.append(torch.randn(9, device="cuda"))
        assert second.view(torch.int64)[1] > 0
        for state, numbers in ((second, drawn[1]), (first, drawn[0])):
            torch.cuda.set_rng_state(state)
            assert torch.equal(torch.randn(9, device="cuda"), numbers)
        _, offset = first.view(torch.int64)
        offset += 8
        default.set_state(first)
        assert (default.initial_seed(), default.get_offset()) == (7, 8)
        own = torch.Generator("cuda").manual_seed(3)
        state, numbers = own.get_state(), torch.rand(5, device="cuda", generator=own)
        own.set_state(state)
        assert torch.equal(torch.rand(5, device="cuda", generator=own), numbers)
        with pytest.raises(RuntimeError, match="wrong size"):
            default.set_state(torch.get_rng_state())
        assert torch.Generator().get_state().numel() == torch.get_rng_state().numel()


def test_a_device_by_its_number():
    with warploom.triton.machine():
        for device in (0, triton.runtime.driver.active.get_current_device()):
            assert torch.ones(3, device=device).to(device).is_cuda
            assert torch.device("cuda", device) == torch.ones(1).device


def test_a_second_gpu_is_an_error():
    calls = (
        lambda: torch.zeros(4, device="cuda:1"),
        lambda: torch.zeros(4, device="cuda").to("cuda:1"),
        lambda: torch.zeros(4).cuda(1),
        lambda: torch.cuda.set_device(1),
        lambda: torch.cuda.device(torch.device("cuda", 1)),
    )
    with warploom.triton.machine():
        for call in calls:
            with pytest.raises(WarploomError, match="NO_SUCH_GPU: `cuda:1` is a second GPU"):
                call()
        torch.cuda.set_device(0)
        assert torch.zeros(4, device="cuda:0").cuda(0).is_cuda


def test_cublas_of_triton_runs_on_the_host():
    nvidia = pytest.importorskip("triton._C.libtriton").nvidia
    with warploom.triton.machine():
        blas = nvidia.cublas.CublasLt(torch.empty(1024, dtype=torch.uint8, device="cuda"))
        a, b = integers(8, 16, dtype=torch.float16), integers(4, 16, dtype=torch.float16)
        c = poisoned(8, 4, dtype=torch.float16)
        blas.matmul(a, b, c)
        assert torch.equal(c, (a.float() @ b.float().T).half())
    assert nvidia.cublas.CublasLt is not type(blas)


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_cublas_of_triton_with_block_scales(kind):
    """Scales that are all one, but for those of one row of each operand, whose place in memory is cuBLAS' own."""
    nvidia = pytest.importorskip("triton._C.libtriton").nvidia
    m, n, k = 130, 20, 256
    block, dtype = (32, torch.float8_e8m0fnu) if kind == "mxfp8" else (16, torch.float8_e4m3fn)
    row = random.randrange(m)
    with warploom.triton.machine():
        if kind == "mxfp8":
            a, b = (integers(extent, k, dtype=torch.float8_e4m3fn) for extent in (m, n))
            whole = [a.float(), b.float()]
        else:
            a, b = (torch.randint(0, 256, (extent, k // 2), dtype=torch.uint8) for extent in (m, n))
            table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
            signed = torch.cat((table, -table))
            whole = [torch.stack((signed[(x & 15).long()], signed[(x >> 4).long()]), 2).reshape(-1, k) for x in (a, b)]
        scales = [torch.ones(-(-extent // 128) * 128 * k // block).to(dtype) for extent in (m, n)]
        at = row // 128 * 128 * (k // block) + row % 32 * 16 + row % 128 // 32 * 4  # the first four columns of scales
        scales[0][at : at + 4] = torch.full((4,), 2.0).to(dtype)
        whole[0][row, : 4 * block] *= 2
        out = poisoned(m, n, dtype=torch.float16)
        getattr(nvidia.cublas.CublasLt(torch.empty(1)), f"block_scaled_matmul_{kind}")(a, b, out, *scales)
        assert torch.equal(out, (whole[0] @ whole[1].T).half())


def test_a_layer_norm_in_half_precision_sums_its_gradients_in_f32():
    with warploom.triton.machine():
        x, dy = torch.randn(1500, 64, device="cuda").half(), torch.randn(1500, 64, device="cuda").half()
        weight, bias = (torch.rand(64, device="cuda").half().requires_grad_() for _ in range(2))
        out = torch.nn.functional.layer_norm(x, (64,), weight, bias, 1e-5)
        out.backward(dy)
        assert out.dtype == weight.grad.dtype == torch.float16
        exact = dy.double().sum(0)
        assert (bias.grad.double() - exact).abs().max() <= exact.abs().max() * 2**-10


def test_a_convolution_in_half_precision_sums_in_f32():
    """The CPU rounds parts of the sums to bfloat16; a GPU rounds once."""
    x, w = torch.randn(1, 384, 24, 24, dtype=torch.bfloat16), torch.randn(384, 384, 2, 2, dtype=torch.bfloat16)
    right = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    gradient = torch.randn_like(right).to(torch.bfloat16)
    right_gradients = torch.ops.aten.convolution_backward(gradient.double(), x.double(), w.double(), None, *options)
    with warploom.triton.machine():
        x.requires_grad_()
        out = torch.nn.functional.conv2d(x, w, padding=1)
        out.backward(gradient)
        gradients = torch.ops.aten.convolution_backward(gradient, x.detach(), w, None, *options)
    assert gradients[2] is None
    assert x.grad is not None
    found = (out.detach(), x.grad, *gradients[:2])
    for got, want in zip(found, (right, right_gradients[0], *right_gradients[:2]), strict=True):
        assert got.dtype is torch.bfloat16
        assert ((got.double() - want).abs() <= 2**-8 * want.abs() + 1e-3).all()


def test_launch_hooks():
    seen = []
    from triton import knobs

    def enter(described):
        seen.append("enter")

    def leave(described):
        seen.append("exit")

    with warploom.triton.machine():
        knobs.runtime.launch_enter_hook.add(enter)
        knobs.runtime.launch_exit_hook.add(leave)
        try:
            kernels.add[(1,)](torch.ones(8), torch.ones(8), torch.ones(8), 8, BLOCK=16)
        finally:
            knobs.runtime.launch_enter_hook.remove(enter)
            knobs.runtime.launch_exit_hook.remove(leave)
    assert seen == ["enter", "exit"]


def test_an_empty_grid_runs_nothing():
    with warploom.triton.machine() as machine:
        kernels.add[(0,)](torch.ones(8), torch.ones(8), torch.ones(8), 8, BLOCK=16)
    assert machine.launches == []


def state():
    """Return what a machine replaces, as it is now."""
    from triton.backends import backends

    compiler = backends["nvidia"].compiler
    modules = (torch.cuda, torch.accelerator, torch.version, triton.testing, triton.runtime.driver)
    found = [{name: id(value) for name, value in vars(module).items()} for module in modules]
    classes = (compiler, triton.testing.Mark, triton.runtime.autotuner.Autotuner)
    return [*found, *({name: id(value) for name, value in vars(each).items()} for each in classes), id(torch.Generator)]


def test_everything_is_restored():
    with warploom.triton.machine():
        pass  # modules that load late have loaded
    before = state()
    with warploom.triton.machine(target="sm_100", bench=False):
        kernels.add[(1,)](torch.ones(8), torch.ones(8), torch.ones(8), 8, BLOCK=16)
        assert state() != before
        assert torch.ones(1).is_cuda
    assert state() == before
    assert torch.ones(1).device.type == "cpu"
    with pytest.raises(KeyError), warploom.triton.machine():
        raise KeyError
    assert state() == before
    assert torch.ones(1).device.type == "cpu"


def test_a_fault_reaches_the_caller_and_restores():
    before = state()
    with pytest.raises(WarploomError) as caught, warploom.triton.machine():
        kernels.out_of_bounds[(1,)](torch.ones(4), BLOCK=16)
    assert caught.value.code == "OUT_OF_BOUNDS"
    assert "kernels.py" in str(caught.value)
    assert state() == before


def test_blocks_do_not_nest():
    with warploom.triton.machine():
        with pytest.raises(LaunchError, match="already active"), warploom.triton.machine():
            pass
        kernels.add[(1,)](torch.ones(8), torch.ones(8), torch.ones(8), 8, BLOCK=16)  # the first is still active


def test_a_compiled_kernel_outside_the_block_is_an_error():
    with warploom.triton.machine():
        compiled = kernels.add[(1,)](torch.ones(8), torch.ones(8), torch.ones(8), 8, BLOCK=16)
    with pytest.raises(LaunchError, match="outside"):
        compiled.run(1, 1, 1, 0, compiled.function, None, None, None, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "sm_42"}, "target"),
        ({"target": 90}, "target"),
        ({"check": "sometimes"}, "`check` is 'sometimes'"),
        ({"sms": 0}, "sms"),
        ({"autotune": "some"}, "autotune"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(LaunchError, match=message), warploom.triton.machine(**options):
        pass


def test_an_unknown_schedule_is_an_error_before_the_program_starts():
    with (
        pytest.raises(WarploomError, match="BAD_SCHEDULE"),
        warploom.triton.machine(schedule="lasy"),
    ):
        pytest.fail("the block ran")


def test_launches_are_not_recorded_in_a_file(tmp_path):
    (tmp_path / "launches").write_text("")
    with (
        pytest.raises(LaunchError, match=r"`record` is .* a file"),
        warploom.triton.machine(record=tmp_path / "launches"),
    ):
        pytest.fail("the block ran")


def test_missing_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(WarploomError) as caught, warploom.triton.machine():
        pass
    assert caught.value.code == "MISSING_PACKAGE"
    assert "warploom[triton]" in str(caught.value)
    assert "needs triton, which is not installed." in str(caught.value)
    monkeypatch.setitem(sys.modules, "torch", None)
    with (
        pytest.raises(WarploomError, match=r"needs triton and torch, which are not installed\."),
        warploom.triton.machine(),
    ):
        pass


def test_both_targets_in_one_process_keep_their_kernels_apart():
    texts = []
    for target in ("sm_90", "sm_100", "sm_90"):
        with warploom.triton.machine(target=target):
            out = poisoned(8)
            compiled = kernels.add[(1,)](torch.ones(8), torch.ones(8), out, 8, BLOCK=16)
            assert torch.equal(out, torch.full((8,), 2.0))
            texts.append(compiled.asm["ptx"])
    assert ".target sm_90a" in texts[0]
    assert ".target sm_100a" in texts[1]
    assert texts[2] == texts[0]


def test_compiled_kernels_are_found_by_the_number_of_the_device():
    """Triton's tests, and programs that clear its cache, ask PyTorch for the device."""
    with warploom.triton.machine():
        first = kernels.add[(1,)](torch.ones(8), torch.ones(8), poisoned(8), 8, BLOCK=16)
        held = kernels.add.device_caches[torch.cuda.current_device()][0]
        assert first in held.values()
        held.clear()
        assert kernels.add[(1,)](torch.ones(8), torch.ones(8), poisoned(8), 8, BLOCK=16) is not first
        assert {number: torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}[
            triton.runtime.driver.active.get_current_device()
        ]
    assert not kernels.add.device_caches


def test_every_launch_is_checked():
    n = 300
    with warploom.triton.machine(check=True) as machine:
        x, y, out = torch.randn(n, device="cuda"), torch.randn(n, device="cuda"), poisoned(n)
        kernels.add[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
        assert torch.equal(out, x + y)
    assert [report.verdict for report in machine.reports] == ["PROVED"]


@triton.jit
def count_up(address, BLOCK: tl.constexpr):
    tl.store(address, tl.load(address) + 1)


def test_a_race_between_programs_raises_at_the_end_of_the_block():
    total = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(CheckError, match="REFUTED") as caught, warploom.triton.machine(check="lenient") as machine:
        count_up[(4,)](total, BLOCK=1)
    assert {finding.code for finding in machine.reports[0].findings} & {"LOST_UPDATE", "RACE_WAW", "RACE_RAW"}
    assert "test_machine.py" in str(caught.value)


def test_a_thread_that_outlives_the_block_sees_the_host_again():
    inside, after, seen = threading.Event(), threading.Event(), []

    def work():
        seen.append(torch.zeros(1, device="cuda").is_cuda)
        inside.set()
        after.wait(60)
        seen.append(torch.zeros(1).is_cuda)

    thread = threading.Thread(target=work)
    with warploom.triton.machine():
        thread.start()
        assert inside.wait(60)
    after.set()
    thread.join()
    assert seen == [True, False]
    assert "start_with_mode" not in repr(threading.Thread.start)


def test_autotuning_in_one_thread_drops_no_launch_of_another():
    n, ready, go = 100, threading.Event(), threading.Event()
    out = torch.full((n,), float("nan"))

    def work():
        ready.set()
        go.wait(60)
        kernels.add[(1,)](torch.ones(n), torch.ones(n), out, n, BLOCK=128)

    with warploom.triton.machine() as machine:
        thread = threading.Thread(target=work)
        thread.start()
        with machine.dry():
            ready.wait(60)
            kernels.add[(1,)](torch.ones(n), torch.ones(n), out, n, BLOCK=128)
            assert out.isnan().all()
            go.set()
            thread.join()
    assert torch.equal(out, torch.full((n,), 2.0))


@pytest.mark.parametrize("grid", [(1.5,), ("2",), (1, 2.0)])
def test_a_grid_that_is_not_of_integers(grid):
    with pytest.raises(WarploomError, match="`grid` is") as caught, warploom.triton.machine():
        kernels.add[grid](torch.ones(8), torch.ones(8), torch.ones(8), 8, BLOCK=16)
    assert caught.value.code == "BAD_LAUNCH"


def test_elements_in_messages_have_the_tensor_s_type_and_shape():
    """Two programs write different values to one element of a matrix."""
    out = torch.zeros(3, 5, dtype=torch.float16)
    with pytest.raises(WarploomError) as caught, warploom.triton.machine(schedule="explore"):
        kernels.mark[(2,)](out, 7)
    assert "element (1, 2) of argument 0, out: float16[3, 5]" in str(caught.value)


def test_elements_of_descriptors_in_messages_have_the_tensor_s_type_and_shape():
    """Two programs store different values to one tile, through a descriptor."""
    out = torch.zeros(20, 40, dtype=torch.float16)
    with pytest.raises(WarploomError) as caught, warploom.triton.machine(schedule="explore"):
        kernels.mark_tile[(2,)](TensorDescriptor.from_tensor(out, [4, 8]), 8, 16)
    assert "element (8, 16) of argument 0, out: float16[20, 40] is " in str(caught.value)
