"""Plans, copies and addresses of calls on tensors of a fake GPU."""

from __future__ import annotations

import struct

import pytest
from tests.runtime.fake_driver import FakeLibrary

torch = pytest.importorskip("torch")

from warploom.ops.planning.keywords import INPUTS  # noqa: E402
from warploom.ptx.analysis.storage import size_of  # noqa: E402
from warploom.runtime.gpu import driver, loading  # noqa: E402
from warploom.torch import launch_cache, op_library  # noqa: E402
from warploom.torch.arguments import PLAIN, numbers_of  # noqa: E402


class OnGpu(torch.Tensor):
    """A host tensor that claims to be on a GPU."""

    is_cuda = True

    def get_device(self):
        return 0


def tensor(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype).as_subclass(OnGpu)


@pytest.fixture(params=[(9, 0), (10, 0)], ids=["Hopper", "Blackwell"])
def gpu(request, monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    library = FakeLibrary(capability=request.param)
    monkeypatch.setattr(driver, "load_library", lambda: library)
    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(launch_cache, "CACHE", {})
    cached = (driver.driver, driver.device, driver.device_count)
    for each in cached:
        each.cache_clear()
    yield library
    for each in cached:
        each.cache_clear()


def copied(launcher):
    """The names of the tensors that a launcher copies."""
    return tuple(name for name, _, _ in launcher.copies)


def epilogue(bias=None, residual=None, options=PLAIN, **numbers):
    """An epilogue as custom ops take it."""
    given = {"bias": bias, "residual": residual}
    return *(given.get(name) for name in INPUTS), [], numbers_of(numbers), options


def run(out, a, b, bias=None, residual=None, alpha=1.0, beta=1.0, activation=""):
    options = f"activation={activation}" if activation else PLAIN
    return op_library.launch("matmul", (a, b), epilogue(bias, residual, options, alpha=alpha, beta=beta), out)


def addresses(gpu, plan):
    gpu.sizes = tuple(size_of(param) for param in plan.prepared.loaded.kernel.params)
    gpu.launched.clear()


def found(gpu):
    done = gpu.launched[-1]
    maps = {struct.unpack_from("<Q", raw, 6)[0] for raw in done.parameters if len(raw) == 128}
    return maps | {struct.unpack("<Q", raw)[0] for raw in done.parameters if len(raw) == 8}


def test_one_plan_serves_all_tensors_that_are_alike(gpu):
    plans = []
    for _ in range(3):
        a, b, bias, out = tensor(200, 96), tensor(136, 96).mT, tensor(136), tensor(200, 136)
        plans.append(run(out, a, b, bias, activation="relu"))
        addresses(gpu, plans[-1])
        run(out, a, b, bias, activation="relu")
        assert {each.data_ptr() for each in (a, b, bias, out)} <= found(gpu)
    assert plans[0] is plans[1] is plans[2]
    assert plans[0].copies == ()
    gpu.sizes = ()
    others = [
        run(tensor(201, 136), tensor(201, 96), tensor(136, 96).mT, tensor(136), activation="relu"),
        run(tensor(200, 136), tensor(200, 96), tensor(96, 136), tensor(136), activation="relu"),
        run(tensor(200, 136), tensor(200, 96), tensor(136, 96).mT, tensor(136), activation="silu"),
        run(tensor(200, 136), tensor(200, 96), tensor(136, 96).mT, tensor(136), alpha=2.0, activation="relu"),
        run(tensor(200, 136), tensor(200, 96), tensor(136, 96).mT, None, activation="relu"),
    ]
    assert len({id(plan) for plan in (plans[0], *others)}) == 6


@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_operands_that_are_not_tma_compatible_are_copied_each_time(gpu, which):
    a = tensor(50, 33)[:, 1:] if which != "b" else tensor(50, 32)
    b = tensor(33, 40)[1:].mT.contiguous().mT[:, :] if which == "a" else tensor(33, 41)[1:, 1:]
    a[:] = torch.randn(50, 32)
    b[:] = torch.randn(32, 40)
    out = tensor(50, 40)
    plan = run(out, a, b)
    assert copied(plan) == {"a": ("a",), "b": ("b",), "both": ("a", "b")}[which]
    addresses(gpu, plan)
    copies = []
    padded = op_library._padded

    def spy(given, inner):
        made = padded(given, inner)
        copies.append((given, made))
        return made

    op_library._padded = spy
    try:
        run(out, a, b)
    finally:
        op_library._padded = padded
    assert len(copies) == len(plan.copies)
    for given, made in copies:
        assert torch.equal(torch.Tensor(given), torch.Tensor(made))
        assert made.data_ptr() in found(gpu)
        assert given.data_ptr() not in found(gpu)


def test_a_copy_has_rows_of_whole_16_bytes():
    for dtype in (torch.bfloat16, torch.float32, torch.float8_e4m3fn):
        given = torch.randn(5, 7).to(dtype)
        made = op_library._padded(given, -1)
        assert torch.equal(made.float(), given.float())
        assert made.stride(0) * made.element_size() % 16 == 0
        turned = op_library._padded(given, -2)
        assert torch.equal(turned.float(), given.float())
        assert turned.stride(0) == 1
        assert turned.stride(1) * turned.element_size() % 16 == 0
    assert op_library._padded(torch.empty(5, 0), -1).tolist() == [[0.0]] * 5


def test_misaligned_tensors_have_another_plan(gpu):
    a, b, out = tensor(64 * 64 + 4), tensor(64, 64), tensor(64, 64)
    straight = run(out, a[: 64 * 64].view(64, 64), b)
    shifted = run(out, a[4:].view(64, 64), b)
    assert copied(straight) == ()
    assert copied(shifted) == ("a",)


def test_nothing_is_launched_for_an_empty_result(gpu):
    assert run(tensor(0, 8), tensor(0, 16), tensor(16, 8)) is None
    groups = {"a": tensor(9, 16), "b": tensor(0, 16, 8), "ends": tensor(0, dtype=torch.int32), "out": tensor(9, 8)}
    assert op_library.compute("grouped_matmul", groups, PLAIN) is None
    assert gpu.launched == []


def test_grouped_ends_stay_on_the_gpu(gpu):
    a, b, ends, out = tensor(300, 64), tensor(4, 64, 72), tensor(4, dtype=torch.int32), tensor(300, 72)
    plan = op_library.compute("grouped_matmul", {"a": a, "b": b, "ends": ends, "out": out}, PLAIN)
    assert copied(plan) == ()
    addresses(gpu, plan)
    op_library.compute("grouped_matmul", {"a": a, "b": b, "ends": ends, "out": out}, PLAIN)
    assert {each.data_ptr() for each in (a, b, ends, out)} <= found(gpu)


@pytest.mark.parametrize("names", [(), ("b_gate", "b_up"), ("a",)])
def test_gated_grouped_gemms(gpu, names):
    """Halves of one array are read in place; interleaved columns are copied, and so are column-major rows."""
    a = tensor(64, 304).mT if "a" in names else tensor(304, 64)
    both = tensor(4, 64, 144)
    gate, up = (both[..., 0::2], both[..., 1::2]) if "b_up" in names else (both[..., :72], both[..., 72:])
    given = {"a": a, "b_gate": gate, "b_up": up, "ends": tensor(4, dtype=torch.int32), "pair": "swiglu"}
    given |= {"outputs": {"gate": tensor(304, 72)}, "out": tensor(304, 72)}
    plan = op_library.compute("gated_grouped_matmul", given, PLAIN)
    assert copied(plan) == names
    addresses(gpu, plan)
    op_library.compute("gated_grouped_matmul", given, PLAIN)
    passed = [*(given[name] for name in ("a", "b_gate", "b_up", "ends", "out") if name not in names)]
    assert {each.data_ptr() for each in (*passed, given["outputs"]["gate"])} <= found(gpu)


@pytest.mark.parametrize(("dtype", "names"), [(torch.bfloat16, ()), (torch.float32, ("a", "d"))])
def test_weights_of_groups(gpu, dtype, names):
    """Operands that Hopper's tensor cores must read K-major are copied."""
    a, d, starts = tensor(320, 64, dtype=dtype), tensor(320, 72, dtype=dtype), tensor(4, dtype=torch.int32)
    given = {"a": a, "d": d, "starts": starts, "out": tensor(3, 64, 72, dtype=dtype)}
    plan = op_library.compute("grouped_weights", given, PLAIN)
    assert copied(plan) == (names if gpu.capability == (9, 0) else ())
    addresses(gpu, plan)
    op_library.compute("grouped_weights", given, PLAIN)
    passed = [each.data_ptr() for name, each in given.items() if name not in copied(plan)]
    assert set(passed) <= found(gpu)


def test_blockwise_scales(gpu):
    kind = torch.float8_e4m3fn
    a, b, out = tensor(200, 256, dtype=kind), tensor(136, 256, dtype=kind), tensor(200, 136)
    a_scale, b_scale = tensor(200, 2, dtype=torch.float32), tensor(2, 2, dtype=torch.float32)
    given = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, "out": out}
    assert copied(op_library.compute("blockwise_matmul", given, PLAIN)) == ("a_scale",)
    given["a_scale"] = tensor(2, 200, dtype=torch.float32).mT
    assert copied(op_library.compute("blockwise_matmul", given, PLAIN)) == ()


def test_blockwise_gemms_with_empty_k(gpu):
    kind = torch.float8_e4m3fn
    given = {"a": tensor(200, 0, dtype=kind), "b": tensor(136, 0, dtype=kind)}
    given |= {"a_scale": tensor(200, 0, dtype=torch.float32), "b_scale": tensor(2, 0, dtype=torch.float32)}
    plan = op_library.compute("blockwise_matmul", {**given, "out": tensor(200, 136)}, PLAIN)
    assert copied(plan) == ("a", "b", "a_scale", "b_scale")
    assert len(gpu.launched) == 1


def write(out, a, b, residual=None):
    op_library.write_into("matmul", (a, b), epilogue(residual=residual), out)


def test_only_a_residual_is_overwritten_in_place(gpu):
    for square in (tensor(64, 64), tensor(64, 64).mT):
        other, residual = tensor(64, 64), tensor(64, 64)
        write(residual, square, other, residual)
        (plan,) = launch_cache.CACHE.values()
        addresses(gpu, plan)
        write(residual, square, other, residual)
        assert residual.data_ptr() in found(gpu)
        gpu.sizes = ()
        for a, b in ((square, other), (other, square)):
            launch_cache.CACHE.clear()
            write(square, a, b)
            (plan,) = launch_cache.CACHE.values()
            addresses(gpu, plan)
            write(square, a, b)
            written = [struct.unpack_from("<Q", raw, 6)[0] for raw in gpu.launched[-1].parameters if len(raw) == 128]
            assert written.count(square.data_ptr()) == 1
            gpu.sizes = ()
        launch_cache.CACHE.clear()
