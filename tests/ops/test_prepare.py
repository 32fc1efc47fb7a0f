"""Operations as prepared calls on a fake Blackwell GPU: the arguments of the driver calls."""

from __future__ import annotations

import struct
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.fake_driver import FakeLibrary, FakeTensor

from warploom.diagnostics import WarploomError
from warploom.hardware.targets import KERNEL_TARGETS
from warploom.host.arrays import buffer_of
from warploom.ops import block_scaled_matmul, conv2d, matmul
from warploom.ops.planning.arrays import ArrayDescriptor
from warploom.ops.planning.planner import TARGETS
from warploom.ops.planning.prepare import plan, plan_matmul
from warploom.ptx.analysis.storage import size_of
from warploom.runtime.gpu import driver, loading


@pytest.fixture
def gpu(request, monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    library = FakeLibrary(capability=getattr(request, "param", (10, 0)))
    monkeypatch.setattr(driver, "load_library", lambda: library)
    monkeypatch.setattr(loading, "_LOADED", {})
    cached = (driver.driver, driver.device, driver.device_count)
    for each in cached:
        each.cache_clear()
    yield library
    for each in cached:
        each.cache_clear()


class At(NamedTuple):
    """A GPU array with any strides, through `__cuda_array_interface__`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    address: int

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "strides": self.strides, "data": (self.address, False), "version": 3}


@pytest.mark.parametrize(
    "array",
    [
        At((3, 5, 7), (70, 14, 2), np.dtype(ml_dtypes.bfloat16), 0x7F00_0000_0104),
        At((4, 6), (4, 64), np.dtype(np.float32), 0x1000),
        At((0, 6), (24, 4), np.dtype(np.float32), 0x1000),
    ],
    ids=lambda each: str(each.shape),
)
def test_a_descriptor_is_the_array_to_a_launch(array):
    assert buffer_of(ArrayDescriptor.of("a", array)) == buffer_of(array)


def test_views_of_a_descriptor_are_those_of_numpy():
    """Fresh shapes: transposed, broadcast and reshaped, with NumPy's strides, or a copy where NumPy copies."""
    random, views = np.random.default_rng(), 0
    for _ in range(300):
        whole = np.zeros(random.integers(1, 4, 4), np.float16)
        host = whole.transpose(random.permutation(4))[:, :: random.integers(1, 3)]
        made = ArrayDescriptor.of("a", host)
        if random.integers(2):
            host, made = host.mT, made.mT
        shape = host.shape
        for at in range(random.integers(4)):
            shape = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]) if at + 1 < len(shape) else shape
        reshaped, described = host.reshape(shape), made.reshape(*shape)
        assert described.shape == reshaped.shape
        assert described.is_copy == (not np.shares_memory(host, reshaped))
        if not described.is_copy:
            views += 1
            steps = [(a, b) for a, b, n in zip(described.strides, reshaped.strides, shape, strict=True) if n > 1]
            assert all(a == b for a, b in steps)
    assert views > 20


def test_a_descriptor_of_an_operand_that_tma_cannot_read_names_its_copy():
    made = ArrayDescriptor.of("b", np.zeros((33, 50), ml_dtypes.bfloat16)).mT
    copy = made.padded()
    assert (copy.shape, copy.strides, copy.is_copy, copy.is_transposed) == ((50, 33), (80, 2), True, True)
    assert copy.root is made.root


def test_a_prepared_matmul_gets_the_addresses_of_each_call(gpu):
    def arrays(at):
        return [
            FakeTensor(at, (200, 96)),
            FakeTensor(at + 0x1_0000_0000, (96, 136)),
            FakeTensor(at + 0x2_0000_0000, (136,)),
            FakeTensor(at + 0x3_0000_0000, (200, 136)),
        ]

    a, b, bias, d = arrays(0x7000_0000)
    call = plan_matmul(a, b, bias=bias, activation="relu", out=d)
    gpu.sizes = tuple(size_of(param) for param in call.loaded.kernel.params)
    given = arrays(0x5_0000_0000)
    call(*given, stream=3)
    (done,) = gpu.launched
    found = {struct.unpack_from("<Q", raw, 6)[0] for raw in done.parameters if len(raw) == 128}
    found |= {struct.unpack("<Q", raw)[0] for raw in done.parameters if len(raw) == 8}
    assert {each.address for each in given} <= found
    assert not {each.address for each in (a, b, bias, d)} & found
    sizes = {struct.unpack("<i", raw)[0] for raw in done.parameters if len(raw) == 4}
    assert {200, 136, 96} <= sizes
    reference = matmul.bind(
        *(np.zeros(each.shape, np.float16) for each in (a, b)), bias=np.zeros(136, np.float16), activation="relu"
    )
    assert done.grid == reference.grid


def test_operands_that_need_a_copy_are_refused(gpu):
    a, b, d = FakeTensor(0x1000, (8, 33)), FakeTensor(0x10000, (33, 64)), FakeTensor(0x20000, (8, 64))
    with pytest.raises(WarploomError) as caught:
        plan_matmul(a, b, out=d)
    assert caught.value.code == "BAD_PLAN"
    assert "`a`: its strides are not TMA-compatible" in str(caught.value)
    assert "`b`" not in str(caught.value)


def test_arrays_must_be_on_one_gpu(gpu):
    a, b, d = FakeTensor(0x1000, (8, 32)), FakeTensor(0x10000, (32, 64), device="cuda:1"), FakeTensor(0x20000, (8, 64))
    with pytest.raises(WarploomError, match="not all on one GPU"):
        plan_matmul(a, b, out=d)
    host = [np.zeros(shape, np.float16) for shape in ((8, 32), (32, 64), (8, 64))]
    with pytest.raises(WarploomError, match="not all on one GPU"):
        plan_matmul(host[0], host[1], out=host[2])
    with pytest.raises(WarploomError, match="writes into `out`"):
        plan(matmul, a=a, b=a)


@pytest.mark.parametrize("gpu", KERNEL_TARGETS, indirect=True, ids=str)
def test_every_gpu_loads_its_own_code(gpu, monkeypatch):
    monkeypatch.setattr(loading, "_fitting_ptxas", lambda *_: None)
    a, b, d = FakeTensor(0x1000, (8, 32)), FakeTensor(0x10000, (32, 64)), FakeTensor(0x20000, (8, 64))
    plan_matmul(a, b, out=d)(a, b, d)
    target = KERNEL_TARGETS[gpu.capability]
    assert f".target {target}\n".encode() in gpu.images[0]
    assert len(gpu.launched) == 1


BLACKWELL = pytest.mark.parametrize("gpu", [(10, 0), (10, 3)], indirect=True, ids=str)


@BLACKWELL
def test_launch_attributes_of_cta_pairs(gpu, monkeypatch):
    monkeypatch.setattr(loading, "_fitting_ptxas", lambda *_: None)
    a, b, d = (FakeTensor(number << 32, (4096, 4096)) for number in (1, 2, 3))
    plan_matmul(a, b, out=d)(a, b, d)
    (done,) = gpu.launched
    assert done.attributes[4][:3] == (2, 1, 1)
    assert done.grid[0] % 2 == 0
    assert done.grid[0] * done.grid[1] > 132, "those that are not yet launched are taken over by those that run"
    assert gpu.function_attributes == [(8, done.shared_bytes)]
    assert 48 << 10 < done.shared_bytes <= 227 << 10


@BLACKWELL
def test_tensor_maps_of_block_scales(gpu, monkeypatch):
    monkeypatch.setattr(loading, "_fitting_ptxas", lambda *_: None)
    a, b = (FakeTensor(rows << 32, (rows, 256), "float8_e4m3fn") for rows in (256, 512))
    scales = [FakeTensor(rows << 33, (rows // 128, 2, 32, 4, 4), "float8_e8m0fnu") for rows in (256, 512)]
    d = FakeTensor(0x7_0000_0000, (256, 512))
    call = plan(block_scaled_matmul, a=a, b=b, a_scale=scales[0], b_scale=scales[1], out=d)
    gpu.sizes = tuple(size_of(param) for param in call.loaded.kernel.params)
    call(a, b, *scales, d)
    maps = [raw for raw in gpu.launched[0].parameters if len(raw) == 128]
    found = {struct.unpack_from("<Q", raw, 6)[0]: raw[0] for raw in maps}
    bytes_, words, bf16 = 0, 2, 9  # CUtensorMapDataType
    assert found == {
        a.address: bytes_,
        b.address: bytes_,
        scales[0].address: words,
        scales[1].address: words,
        d.address: bf16,
    }


def test_unknown_element_types_are_reported(gpu):
    a = FakeTensor(0x1000, (64, 64), "float4_e2m1fn_x2")
    with pytest.raises(WarploomError, match="there is no kernel for arrays of float4_e2m1fn_x2"):
        plan_matmul(a, a, out=FakeTensor(0x20000, (64, 64)))


def test_the_targets_that_have_kernels():
    assert list(TARGETS) == list(KERNEL_TARGETS.values())


def test_a_target_may_be_given_if_it_is_that_of_the_gpu(gpu):
    a, b, d = FakeTensor(0x1000, (8, 32)), FakeTensor(0x10000, (32, 64)), FakeTensor(0x20000, (8, 64))
    plan_matmul(a, b, target="sm_100a", out=d)(a, b, d)
    assert len(gpu.launched) == 1
    with pytest.raises(
        WarploomError, match=r"matmul.*\n.*`target` must be sm_100a, the target of the GPU.* got 'sm_90a'"
    ):
        plan_matmul(a, b, target="sm_90a", out=d)


def test_operands_may_have_any_name(gpu):
    a, b, d = FakeTensor(0x1000, (64, 64)), FakeTensor(0x10000, (64, 64)), FakeTensor(0x20000, (64, 64))
    named = {"a": FakeTensor(0x30000, (64, 64)), "b": FakeTensor(0x40000, (64,))}
    call = plan_matmul(a, b, operands=named, epilogue=lambda acc, at, a, b: acc * a + b, out=d)
    gpu.sizes = tuple(size_of(param) for param in call.loaded.kernel.params)
    call(a, b, *named.values(), d)
    pointers = {struct.unpack("<Q", raw)[0] for raw in gpu.launched[-1].parameters if len(raw) == 8}
    assert {each.address for each in named.values()} <= pointers


def test_a_result_may_only_overlap_its_residual(gpu):
    a, b, c = FakeTensor(0x10000, (64, 64)), FakeTensor(0x20000, (64, 64)), FakeTensor(0x30000, (64, 64))
    for arguments in ({"a": a, "b": b, "out": a}, {"a": a, "b": b, "out": FakeTensor(0x21000, (64, 64))}):
        with pytest.raises(WarploomError, match="`out` overlaps"):
            plan_matmul(**arguments)
    call = plan_matmul(a, b, residual=c, out=c)
    call(a, b, c, c)
    call(a, b, FakeTensor(0x40000, (64, 64)), c)
    for given in ((a, b, c, a), (a, b, c, b), (a, b, c, FakeTensor(0x30800, (64, 64))), (a, b, b, b)):
        with pytest.raises(WarploomError, match="overlaps"):
            call(*given)
    by_function = plan_matmul(
        a, b, operands={"c": c}, store=lambda value, at, out, c: out.__setitem__((at.row, at.column), value),
        out=FakeTensor(0x40000, (64, 64)),
    )  # fmt: skip
    with pytest.raises(WarploomError, match="overlaps"):
        by_function(a, b, c, c)


class Columns(FakeTensor):
    """Columns of a wider array."""

    def __init__(self, address, shape, width):
        super().__init__(address, shape)
        self.width = width

    def stride(self):
        return self.width, 1


def test_a_result_may_be_other_columns_of_an_operands_array(gpu):
    """One buffer for all steps of a layer: no element is both read and written."""
    a, b, d = Columns(0x10000, (64, 32), 128), FakeTensor(0x80000, (32, 64)), Columns(0x10040, (64, 64), 128)
    call = plan_matmul(a, b, out=d)
    call(a, b, d)
    for address in (0x1003E, 0x10000, 0x10082):
        with pytest.raises(WarploomError, match="overlaps"):
            plan_matmul(a, b, out=Columns(address, (64, 64), 128))
    with pytest.raises(WarploomError, match="overlaps"):
        call(a, b, Columns(0x10020, (64, 64), 128))


@pytest.mark.parametrize("gpu", [(9, 0), (10, 0)], indirect=True, ids=str)
def test_the_images_of_a_convolution_get_an_im2col_map(gpu, monkeypatch):
    monkeypatch.setattr(loading, "_fitting_ptxas", lambda *_: None)
    x, w = FakeTensor(0x1_0000_0000, (3, 20, 31, 64)), FakeTensor(0x2_0000_0000, (128, 3, 2, 64))
    d = FakeTensor(0x3_0000_0000, (3, 9, 34, 128))
    call = plan(conv2d, x=x, w=w, stride=(2, 1), padding=(1, 2), dilation=(2, 1), out=d)
    call(x, w, d)
    assert len(gpu.launched) == 1
    found = {name: gpu.encoded[name] for name in ("address", "rank", "dims", "lower", "upper", "steps", "channels")}
    assert found == {
        "address": x.address,
        "rank": 4,
        "dims": [64, 31, 20, 3],
        "lower": [-2, -1],
        "upper": [1, -3],
        "steps": [1, 1, 2, 1],
        "channels": 64,
    }
