"""The operations for Hopper against NumPy: bit-exact on integers, over awkward sizes, types and strides."""

from __future__ import annotations

import struct
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from tests.ops.references import (
    ACTIVATIONS,
    BF16,
    E4M3,
    E5M2,
    close,
    exact,
    integers,
    plan_on,
    poisoned,
    reals,
    rounded,
)
from tests.ops.test_epilogue import KINDS, K, M, N
from tests.ops.test_grouped import ENDS, by_groups
from tests.ops.test_matmul import OUT, STRIDED, agree
from tests.ops.test_prepare import gpu  # noqa: F401  (a fixture)
from tests.runtime.fake_driver import FakeTensor

from warploom import ops
from warploom.diagnostics import WarploomError
from warploom.ops.planning.prepare import plan_matmul
from warploom.ptx.analysis.storage import size_of
from warploom.structured.config import MatmulConfig
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.trace import f32
from warploom.trace.kernel import KernelFunction

matmul, linear, grouped_matmul, blockwise_matmul, block_scaled_matmul = (
    partial(each, target="sm_90a")
    for each in (ops.matmul, ops.linear, ops.grouped_matmul, ops.blockwise_matmul, ops.block_scaled_matmul)
)
TYPES = [BF16, np.float16, np.float32, E4M3, E5M2]
SHAPES = {
    "ping-pong": {"tile": (128, 96), "pingpong": True},
    "cooperative": {"tile": (128, 64)},
    "one consumer": {"tile": (64, 40), "consumers": 1},
    "swapped": {"tile": (64, 24), "consumers": 1, "AB_swapped": True},
    "a cluster": {"tile": (128, 64), "cluster_shape": (2, 1, 1)},
}
SPLITS = {
    "in a cluster": {"tile": (64, 64), "consumers": 1, "num_split_k": 2},
    "in a cluster, swapped": {"tile": (64, 16), "consumers": 1, "AB_swapped": True, "num_split_k": 2},
    "in global memory": {"tile": (128, 64), "num_split_k": 4, "split_in_cluster": False},
    "in units": {"tile": (128, 64), "num_split_k": 16, "split_in_cluster": False, "use_tma_store": False},
}
STREAMS = {
    "cooperative": {"tile": (128, 64), "stream_k": True},
    "in turns": {"tile": (128, 32), "pingpong": True, "stream_k": True},
    "swapped": {"tile": (64, 64), "consumers": 1, "AB_swapped": True, "stream_k": True},
    "of pairs": {"tile": (64, 64), "consumers": 1, "cluster_shape": (2, 1, 1), "stream_k": True},
}


def name(dtype):
    return np.dtype(dtype).name


def test_the_kernel_is_for_hopper():
    module = ops.ptx_of(ops.matmul, integers(8, 8), integers(8, 8), target="sm_90a")
    assert ".target sm_90a" in module
    assert "wgmma.mma_async" in module
    assert ".target sm_100a" in ops.ptx_of(ops.matmul, integers(8, 8), integers(8, 8))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 129), (7, 300), (63, 7), (64, 64), (65, 1), (131, 129), (257, 200)])
def test_awkward_sizes(m, n):
    for k in (1, 64, 131):
        a, b = integers(m, k), integers(k, n)
        agree(matmul(a, b), a, b)


@pytest.mark.parametrize("dtype", TYPES, ids=name)
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_types_and_transposes(dtype, orders):
    for m in (72, 24):
        a = np.asarray(integers(m, 48, dtype=dtype), order=orders[0])
        b = np.asarray(integers(48, 80, dtype=dtype), order=orders[1])
        got = matmul(a, b)
        assert got.dtype == (BF16 if np.dtype(dtype).itemsize == 1 else dtype)
        agree(got, a, b)


@pytest.mark.parametrize("dtype", TYPES, ids=name)
@pytest.mark.parametrize("m", [40, 70])
def test_result_types(dtype, m):
    a, b = integers(m, 40, largest=1), integers(40, 48, largest=1)
    got = matmul(a, b, out_dtype=dtype)
    assert got.dtype == dtype
    agree(got, a, b)


def test_both_fp8_types_in_one_gemm():
    a, b = integers(20, 64, dtype=E4M3), integers(64, 40, dtype=E5M2)
    agree(matmul(a, b), a, b)
    agree(matmul(b.T, a.T), b.T, a.T)


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 70, 24), (24, 50)), ((70, 24), (3, 24, 50)), ((2, 1, 9, 24), (3, 24, 50)), ((24,), (3, 24, 50)), ((24,), (24,))],
    ids=str,
)  # fmt: skip
def test_batches_and_vectors_are_as_in_numpy(left, right):
    a, b = integers(*left), integers(*right)
    agree(matmul(a, b), a, b)


@pytest.mark.parametrize("how", STRIDED)
def test_strides_of_any_kind(how):
    a, b = STRIDED[how](integers(37, 40)), STRIDED[how](integers(40, 35))
    agree(matmul(a, b), a, b)


@pytest.mark.parametrize("how", OUT)
def test_results_into_arrays_of_any_strides(how):
    out = OUT[how]()
    whole = out if out.base is None else out.base
    a, b = integers(out.shape[0], 24), integers(24, out.shape[1])
    assert matmul(a, b, out=out) is out
    agree(out, a, b)
    assert np.isnan(exact(whole)).sum() == whole.size - out.size


def test_empty_k_and_empty_results():
    bias = integers(9)
    got = matmul(integers(5, 0), integers(0, 9), bias=bias, out_dtype=np.float32)
    np.testing.assert_array_equal(got, np.broadcast_to(exact(bias), (5, 9)))
    assert matmul(integers(0, 24), integers(24, 5)).shape == (0, 5)


def test_float32_is_rounded_to_tf32_unless_the_configuration_says_otherwise():
    between = np.full((1, 8), 1 + 1.75 * 2**-10, np.float32)
    one = np.eye(8, 1, dtype=np.float32)
    small = {"tile": (64, 8), "consumers": 1}
    assert matmul(between, one)[0, 0] == 1 + 2 * 2**-10
    assert matmul(between, one, config=HopperConfig(**small))[0, 0] == 1 + 2 * 2**-10
    assert matmul(between, one, config=HopperConfig(a_type="f32", **small))[0, 0] == 1 + 2**-10


@pytest.mark.parametrize("dtype", [BF16, np.float16, E4M3], ids=name)
def test_reals_are_within_the_tolerance_of_type_and_k(dtype):
    a, b = reals(66, 190, dtype=dtype), reals(190, 47, dtype=dtype)
    assert close(matmul(a, b, out_dtype=BF16), exact(a) @ exact(b), 190)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("out_dtype", [np.float32, BF16], ids=name)
@pytest.mark.parametrize(("n", "in_place"), [(61, False), (64, False), (64, True)])
def test_order_of_the_epilogue(shape, out_dtype, n, in_place):
    """Bias before the activation, the user function after it, the residual last, in place or not; rounded once."""
    a, b, bias, residual = integers(100, K), integers(K, n), integers(n), integers(100, n, dtype=out_dtype)
    got = matmul(
        a, b, alpha=2, bias=bias, activation="relu", epilogue=lambda acc, at: acc * 3 - 1, residual=residual, beta=-0.5,
        out_dtype=out_dtype, config=HopperConfig(**SHAPES[shape], residual_in_place=in_place),
    )  # fmt: skip
    wanted = np.maximum(2 * exact(a) @ exact(b) + exact(bias), 0) * 3 - 1 - 0.5 * exact(residual)
    np.testing.assert_array_equal(exact(got), exact(wanted.astype(np.float32).astype(out_dtype)))


@pytest.mark.parametrize("m", [24, 130])
def test_residuals_are_loaded_in_place_if_possible(m):
    a, b, residual = integers(m, K), integers(K, 72), integers(m, 72)
    wanted = rounded(exact(a) @ exact(b) + exact(residual), BF16)
    assert config_of(a, b, residual=residual).residual_in_place
    assert not config_of(a, b, residual=residual.astype(np.float32)).residual_in_place
    assert not config_of(a, b, residual=residual[:1]).residual_in_place
    np.testing.assert_array_equal(exact(matmul(a, b, residual=residual)), wanted)
    matmul(a, b, residual=residual, out=residual)
    np.testing.assert_array_equal(exact(residual), wanted)


def config_of(*args, **options):
    """The configuration of a call."""
    configs, bind = [], KernelFunction.bind

    def recorded(kernel, *arguments, config, **options):
        configs.append(config)
        return bind(kernel, *arguments, config=config, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelFunction, "bind", recorded)
        ops.matmul.bind(*args, **options, target="sm_90a")
    (config,) = configs
    return config


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swapped", [False, True])
def test_epilogue_operands_broadcast_as_in_numpy(kind, swapped):
    make, batch = KINDS[kind]
    a, b, x = integers(*batch, M, K), integers(K, N), make()
    got = matmul(
        a, b, bias=x, operands={"x": x}, epilogue=lambda acc, at, x: acc * x + x, residual=x, beta=2,
        out_dtype=np.float32, config=HopperConfig(tile=(64, 32), consumers=1, AB_swapped=swapped),
    )  # fmt: skip
    wanted = (exact(a) @ exact(b) + exact(x)) * exact(x) + 3 * exact(x)
    np.testing.assert_array_equal(exact(got), wanted)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("how", ["from an odd address", "every other", "backwards", "float32"])
def test_a_bias_of_any_strides(how, swapped):
    held = integers(3 * N)
    bias = {
        "from an odd address": held[1 : N + 1],
        "every other": held[: 2 * N : 2],
        "backwards": held[:N][::-1],
        "float32": held[:N].astype(np.float32),
    }[how]
    a, b = integers(M, K), integers(K, N)
    config = HopperConfig(tile=(64, 32), consumers=1, AB_swapped=swapped)
    got = matmul(a, b, bias=bias, out_dtype=np.float32, config=config)
    np.testing.assert_array_equal(exact(got), exact(a) @ exact(b) + exact(bias))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation):
    x, w, bias = reals(M, K), reals(N, K, scale=0.5), reals(N)
    got = linear(x, w, bias=bias, activation=activation, out_dtype=np.float32)
    assert close(got, ACTIVATIONS[activation](exact(x) @ exact(w).T + exact(bias)), K)


def test_functions_receive_coordinates_and_may_store():
    a, b = integers(3, M, K), integers(K, N)

    def place(acc, at):
        return acc + at.row.to(f32) * 100 + at.column.to(f32) + at.batch.to(f32) * 10000

    def transpose(value, at, out):
        out[at.batch, at.column, at.row] = value

    out = poisoned((3, N, M), np.float32)
    matmul(a, b, epilogue=place, store=transpose, out=out)
    batch, row, column = np.ogrid[:3, :M, :N]
    wanted = exact(a) @ exact(b) + row * 100 + column + batch * 10000
    np.testing.assert_array_equal(out, wanted.transpose(0, 2, 1))


def test_linear_is_a_matmul_with_the_transpose():
    x, w, bias, residual = integers(3, 5, 40), integers(33, 40), integers(33), integers(3, 5, 33)
    got = linear(x, w, bias=bias, residual=residual, alpha=2, beta=-3, out_dtype=np.float32)
    np.testing.assert_array_equal(got, 2 * exact(x) @ exact(w).T + exact(bias) - 3 * exact(residual))


@pytest.mark.parametrize("how", SPLITS)
def test_split_k_changes_nothing(how):
    a, b, bias, residual = integers(70, 1100), integers(1100, 60), integers(60), integers(70, 60, dtype=np.float32)
    config = HopperConfig(**SPLITS[how])
    got = matmul(a, b, bias=bias, activation="relu", residual=residual, out_dtype=np.float32, config=config)
    np.testing.assert_array_equal(exact(got), np.maximum(exact(a) @ exact(b) + exact(bias), 0) + exact(residual))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("how", STREAMS)
def test_stream_k_changes_nothing(how, in_place):
    """On five SMs, each of which stores partial accumulators of one tile and writes others."""
    a, b, bias, residual = integers(200, 500), integers(500, 136), integers(136), integers(200, 136, dtype=np.float32)
    config = HopperConfig(**STREAMS[how], residual_in_place=in_place)
    options = {"bias": bias, "activation": "relu", "residual": residual, "out_dtype": np.float32, "config": config}
    got = plan_on(SimpleNamespace(name="", sms=5), ops.matmul, a, b, **options).run()
    np.testing.assert_array_equal(exact(got), np.maximum(exact(a) @ exact(b) + exact(bias), 0) + exact(residual))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [BF16, E4M3], ids=name)
def test_a_user_configuration_fits_every_type(shape, dtype):
    a, b = integers(150, 200, dtype=dtype), integers(200, 130, dtype=dtype)
    config = HopperConfig(**SHAPES[shape])
    agree(ops.matmul(a, b, config=config), a, b)
    agree(ops.matmul(a, b, config=config, out_dtype=np.float32), a, b)
    assert ops.matmul(a, b, config=config.replace(c_type="f32")).dtype == np.float32


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("ends", ENDS)
def test_groups(ends, order):
    rows, ends = ENDS[ends]
    a, b = integers(rows, 72), integers(len(ends), 72, 61)
    if order == "columns":
        b = np.ascontiguousarray(b.mT).mT
    got = grouped_matmul(a, b, np.array(ends), out_dtype=np.float32)
    np.testing.assert_array_equal(exact(got), by_groups(a, b, ends))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, E4M3], ids=name)
def test_groups_of_other_types(dtype):
    a, b, ends = integers(150, 48, dtype=dtype), integers(2, 48, 64, dtype=dtype), np.array([20, 150], np.int32)
    np.testing.assert_array_equal(exact(grouped_matmul(a, b, ends, out_dtype=np.float32)), by_groups(a, b, ends))


def test_epilogue_of_grouped_gemms():
    a, b, ends = integers(200, 24), integers(2, 24, 61), np.array([7, 190])
    bias, residual, row, out = integers(61), integers(200, 61), integers(200, 1), poisoned((200, 61), np.float32)
    grouped_matmul(
        a, b, ends, bias=bias, activation="relu", residual=residual, beta=2, out=out,
        operands={"row": row}, epilogue=lambda acc, at, row: acc * row,
    )  # fmt: skip
    wanted = np.maximum(by_groups(a, b, ends) + exact(bias), 0) * exact(row) + 2 * exact(residual)
    np.testing.assert_array_equal(exact(out[:190]), wanted[:190])
    assert np.isnan(out[190:]).all()


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (17, 130, 300), (129, 257, 256), (130, 64, 131)])
@pytest.mark.parametrize("scale_type", [np.float32, BF16], ids=name)
def test_blockwise(m, n, k, scale_type):
    a, b = integers(m, k, dtype=E4M3), integers(n, k, dtype=E5M2)
    blocks, rng = -(-k // 128), np.random.default_rng()
    a_scale = 2.0 ** rng.integers(-2, 3, (m, blocks)).astype(float)
    b_scale = 2.0 ** rng.integers(-2, 3, (-(-n // 128), blocks)).astype(float)
    bias = integers(n)
    got = blockwise_matmul(
        a, b, a_scale.astype(scale_type), b_scale.astype(scale_type), bias=bias, activation="relu", out_dtype=np.float32
    )
    columns = np.repeat(b_scale, 128, 0)[:n]
    scaled = exact(a) * np.repeat(a_scale, 128, 1)[:, :k], exact(b) * np.repeat(columns, 128, 1)[:, :k]
    np.testing.assert_array_equal(got, np.maximum(scaled[0] @ scaled[1].T + exact(bias), 0))


@pytest.mark.parametrize("gpu", [(9, 0)], indirect=True)
def test_a_prepared_call_with_a_residual_gets_the_addresses_of_each_call(gpu):  # noqa: F811
    def arrays(at):
        shapes = ((200, 96), (96, 136), (136,), (200, 136), (200, 136))
        return [FakeTensor(at + number * 0x1_0000_0000, shape) for number, shape in enumerate(shapes)]

    a, b, bias, residual, d = arrays(0x7000_0000)
    call = plan_matmul(a, b, bias=bias, activation="gelu_tanh", residual=residual, out=d)
    gpu.sizes = tuple(size_of(param) for param in call.loaded.kernel.params)
    given = arrays(0x9_0000_0000)
    call(*given, stream=3)
    (done,) = gpu.launched
    maps = {struct.unpack_from("<Q", raw, 6)[0] for raw in done.parameters if len(raw) == 128}
    pointers = {struct.unpack("<Q", raw)[0] for raw in done.parameters if len(raw) == 8}
    assert maps == {each.address for each in (given[0], given[1], given[3], given[4])}
    assert given[2].address in pointers
    assert not gpu.memory


@pytest.mark.parametrize("gpu", [(9, 0)], indirect=True)
def test_split_k_through_memory_has_zeroed_counters(gpu):  # noqa: F811
    a, b, d = FakeTensor(0x1000, (200, 512)), FakeTensor(0x100000, (512, 64)), FakeTensor(0x200000, (200, 64))
    call = plan_matmul(a, b, out=d, config=HopperConfig(**SPLITS["in global memory"]))
    gpu.sizes = tuple(size_of(param) for param in call.loaded.kernel.params)
    for _ in range(2):
        call(a, b, d, stream=3)
    assert gpu.launched[0].grid == (2 * 4, 1, 1)
    assert sorted(gpu.memory.values()) == [256, 2 * 4 * 128 * 64 * 4]
    assert list(gpu.zeroed.values()) == [256]
    assert gpu.launched[0].parameters == gpu.launched[1].parameters


@pytest.mark.parametrize("gpu", [(9, 0)], indirect=True)
def test_stream_k_has_a_workspace_per_cta_and_zeroed_flags(gpu):  # noqa: F811
    a, b, d = FakeTensor(0x1000, (200, 512)), FakeTensor(0x100000, (512, 64)), FakeTensor(0x200000, (200, 64))
    call = plan_matmul(a, b, out=d, config=HopperConfig(tile=(128, 64), stream_k=True))
    gpu.sizes = tuple(size_of(param) for param in call.loaded.kernel.params)
    for _ in range(2):
        call(a, b, d, stream=3)
    assert gpu.launched[0].grid == (2 * 8, 1, 1)
    assert sorted(gpu.memory.values()) == [256, 2 * 8 * 128 * 64 * 4]
    assert list(gpu.zeroed.values()) == [256]
    assert gpu.launched[0].parameters == gpu.launched[1].parameters


WRONG = {
    "another target's configuration": lambda: matmul(integers(8, 8), integers(8, 8), config=MatmulConfig()),
    "another operation's": lambda: matmul(integers(8, 8), integers(8, 8), config=HopperBlockwiseConfig()),
    "splits of too little": lambda: matmul(
        integers(8, 100), integers(100, 8), config=HopperConfig(tile=(64, 64), consumers=1, num_split_k=4)
    ),
    "splits of batches": lambda: matmul(
        integers(2, 8, 300), integers(300, 8), config=HopperConfig(tile=(64, 64), consumers=1, num_split_k=2)
    ),
    "splits that cannot meet": lambda: matmul(
        integers(2048, 300), integers(300, 2048),
        config=HopperConfig(tile=(128, 64), num_split_k=4, split_in_cluster=False),
    ),
    "stream-K of groups": lambda: grouped_matmul(
        integers(8, 8), integers(1, 8, 8), np.array([8]), config=HopperConfig(stream_k=True)
    ),
    "a tile that is none": lambda: matmul(
        integers(8, 8), integers(8, 8), config=HopperConfig(tile=(128, 12), num_pipeline_stages=1)
    ),
    "no residual to come in place": lambda: matmul(
        integers(8, 8), integers(8, 8), config=HopperConfig(residual_in_place=True)
    ),
    "a residual in place of groups": lambda: grouped_matmul(
        integers(8, 8), integers(1, 8, 8), np.array([8]), residual=integers(8, 8),
        config=HopperConfig(residual_in_place=True),
    ),
    "factors that Hopper has not": lambda: block_scaled_matmul(
        integers(8, 32, dtype=E4M3), integers(8, 32, dtype=E4M3), *(np.ones((8, 1), "float8_e8m0fnu"),) * 2
    ),
    "Hopper's configuration on Blackwell": lambda: ops.matmul(
        integers(8, 8), integers(8, 8), config=HopperConfig(), target="sm_100a"
    ),
}  # fmt: skip


def test_invalid_configurations_are_reported(golden):
    reported = []
    for case, call in WRONG.items():
        with pytest.raises(WarploomError) as caught:
            call()
        reported.append(f"{case}\n{caught.value}\n")
    golden("hopper_faults.txt", "\n".join(reported))


def test_replace_keeps_given_fields_and_derives_the_others():
    a, b = integers(70, 96, dtype=np.float16), integers(96, 40, dtype=np.float16)
    assert HopperConfig().c_type == "bf16"
    assert matmul(a, b, config=HopperConfig()).dtype == np.float16
    assert matmul(a, b, config=HopperConfig(c_type="bf16")).dtype == BF16
    derived = HopperConfig(tile=(128, 256))
    given = derived.replace(num_pipeline_stages=derived.num_pipeline_stages)
    assert given == derived
    other = {"tile": (128, 64), "num_split_k": 2}
    assert derived.replace(**other) == HopperConfig(**other)
    assert given.replace(**other).num_pipeline_stages == derived.num_pipeline_stages
    assert HopperConfig(**other).num_pipeline_stages > derived.num_pipeline_stages
