"""Epilogues with auxiliary outputs: each matches NumPy, in its own type, however it is stored."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.references import BF16, E4M3, exact, integers, poisoned, reals, rounded

from warploom.diagnostics import LaunchError, TraceError
from warploom.ops import linear, matmul
from warploom.structured.config import MatmulConfig
from warploom.structured.config.sm90 import HopperConfig
from warploom.trace import gelu_tanh

SMALL = HopperConfig(tile=(64, 32), consumers=1)
CONFIGS = {
    "ping-pong": HopperConfig(tile=(128, 96), pingpong=True),
    "one buffer": HopperConfig(tile=(128, 40), num_output_stages=1),
    "swapped": HopperConfig(tile=(64, 24), consumers=1, AB_swapped=True),
    "a cluster": HopperConfig(tile=(128, 64), cluster_shape=(2, 1, 1)),
    "splits": HopperConfig(tile=(64, 64), consumers=1, num_split_k=2),
    "stream-K": HopperConfig(tile=(64, 32), consumers=1, stream_k=True),
    "splits in memory": HopperConfig(tile=(64, 32), consumers=1, num_split_k=4, split_in_cluster=False),
    "splits in units": HopperConfig(
        tile=(64, 64), consumers=1, num_split_k=16, split_in_cluster=False, use_tma_store=False
    ),
    "Blackwell": MatmulConfig(cta_group=1, mma_shape=(64, 32, 16)),
    "Blackwell, a pair of CTAs": MatmulConfig(cta_group=2, mma_shape=(128, 64, 16)),
    "Blackwell, swapped": MatmulConfig(cta_group=1, mma_shape=(128, 32, 16), AB_swapped=True),
    "Blackwell, by shared memory": MatmulConfig(cta_group=1, mma_shape=(128, 64, 16), register_based_epilogue=False),
    "Blackwell, splits": MatmulConfig(cta_group=1, mma_shape=(128, 64, 16), num_split_k=2),
}


def widened(acc, at, factor):
    """Three outputs of one accumulator."""
    return {"out": acc + 1, "double": acc * 2, "scaled": acc * factor}


@pytest.mark.parametrize("n", [128, 75])
@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_of_every_type(name, n):
    """Stored by TMA if all rows are multiples of 16 bytes, otherwise by threads."""
    m, k = {"splits in units": (40, 1024), "splits in memory": (40, 256)}.get(name, (130, 270))
    n = n // 2 if "memory" in name or "units" in name else n
    a, b, bias, factor = integers(m, k, largest=1), integers(k, n, largest=1), integers(n), integers(m, 1)
    kept = {
        "pre_activation": poisoned((m, n), np.float32),
        "double": poisoned((m, n), BF16),
        "scaled": poisoned((m, n), E4M3),
    }
    got = matmul(
        a, b, bias=bias, activation="relu", epilogue=widened, operands={"factor": factor}, outputs=kept,
        config=CONFIGS[name],
    )  # fmt: skip
    before = exact(a) @ exact(b) + exact(bias)
    after = np.maximum(before, 0)
    wanted = {"pre_activation": before, "double": 2 * after, "scaled": after * exact(factor)}
    np.testing.assert_array_equal(exact(got), rounded(after + 1, BF16))
    for each, values in wanted.items():
        np.testing.assert_array_equal(exact(kept[each]), rounded(values, kept[each].dtype), each)


@pytest.mark.parametrize(
    "config", [SMALL, MatmulConfig(cta_group=1, mma_shape=(64, 32, 16))], ids=["Hopper", "Blackwell"]
)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 8, 64), (63, 33, 65), (65, 31, 7), (129, 64, 64)])
def test_awkward_sizes(config, m, n, k):
    a, b = integers(m, k), integers(k, n)
    before = poisoned((m, n), np.float32)
    got = matmul(
        a, b, activation="squared_relu", outputs={"pre_activation": before}, out_dtype=np.float32, config=config
    )
    np.testing.assert_array_equal(exact(before), exact(a) @ exact(b))
    np.testing.assert_array_equal(exact(got), np.maximum(exact(a) @ exact(b), 0) ** 2)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_the_value_before_the_activation(target):
    """The value before the activation, with a residual; both are rounded once."""
    x, w, bias, residual = reals(3, 20, 48), reals(72, 48), reals(72), reals(3, 20, 72)
    before = poisoned((3, 20, 72), BF16)
    got = linear(
        x, w, bias=bias, activation="gelu_tanh", residual=residual, outputs={"pre_activation": before}, target=target
    )
    wanted = exact(x) @ exact(w).T + exact(bias)
    assert np.abs(exact(before) - wanted).max() <= 2**-8 * np.abs(wanted).max()
    tanh = np.tanh(np.sqrt(2 / np.pi) * (wanted + 0.044715 * wanted**3))
    assert np.abs(exact(got) - (0.5 * wanted * (1 + tanh) + exact(residual))).max() <= 2**-6 * np.abs(wanted).max()


@pytest.mark.parametrize("shape", [{"pingpong": True}, {}])
def test_a_residual_in_the_buffers_of_d(shape):
    a, b, residual = integers(200, 64), integers(64, 128), integers(200, 128, dtype=BF16)
    before = poisoned((200, 128), np.float32)
    config = HopperConfig(tile=(128, 64), residual_in_place=True, **shape)
    got = matmul(a, b, residual=residual, outputs={"pre_activation": before}, config=config)
    np.testing.assert_array_equal(exact(before), exact(a) @ exact(b))
    np.testing.assert_array_equal(exact(got), rounded(exact(a) @ exact(b) + exact(residual), BF16))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_batches_and_strides(target):
    a, b = integers(3, 40, 24), integers(3, 24, 48)
    rows = poisoned((3, 40, 100), np.float32)
    before = rows[:, :, 4:52]
    matmul(a, b, outputs={"pre_activation": before}, target=target)
    np.testing.assert_array_equal(exact(before), exact(a) @ exact(b))
    assert np.isnan(rows).sum() == rows.size - before.size


def test_functions_with_outputs_may_use_activations():
    a, b = reals(40, 24), reals(24, 48)
    out, before = poisoned((40, 48), np.float32), poisoned((40, 48), np.float32)

    def both(acc, at):
        return {"out": gelu_tanh(acc), "before": acc}

    assert matmul(a, b, epilogue=both, outputs={"before": before}, out=out, config=SMALL) is out
    np.testing.assert_allclose(before, exact(a) @ exact(b), atol=1e-4)
    assert np.isfinite(out).all()


def test_all_invalid_arguments_are_reported():
    a, b = integers(20, 24), integers(24, 48)
    good = np.zeros((20, 48), np.float32)
    frozen = np.zeros((20, 48), np.float32)
    frozen.flags.writeable = False
    outputs = {
        "missing": good,
        "pre_activation": np.zeros((20, 47), np.float32),
        "out": np.zeros((20, 48), np.float64),
        "again": good,
        "a": a[:, :0],
        "frozen": frozen,
    }
    with pytest.raises(LaunchError) as found:
        matmul(a, b, outputs=outputs, store=lambda value, at, out: None)
    told = str(found.value)
    for part in (
        "unless an `epilogue` returns it",
        "must have the result's shape, (20, 48)",
        "reserved name",
        "must have elements of type",
        "must not overlap `outputs['missing']`",
        "must not be read-only",
        "cannot be used with `store`",
    ):
        assert part in told, part
    with pytest.raises(LaunchError, match="must be a mapping"):
        matmul(a, b, outputs=[good])
    wide = np.zeros((24, 48), BF16)
    with pytest.raises(LaunchError, match="must not overlap an array that is read"):
        matmul(integers(24, 24), wide, outputs={"pre_activation": wide})


@pytest.mark.parametrize(
    "function", [lambda acc, at: acc, lambda acc, at: {"out": acc}, lambda acc, at: {"out": acc, "x": acc, "y": acc}]
)
def test_a_function_must_return_every_output(function):
    with pytest.raises(TraceError, match="must be a mapping of out, x to device values"):
        matmul(integers(8, 8), integers(8, 8), epilogue=function, outputs={"x": poisoned((8, 8), BF16)}, config=SMALL)


def test_a_mapping_without_outputs_is_reported():
    with pytest.raises(TraceError, match="its function returned"):
        matmul(integers(8, 8), integers(8, 8), epilogue=lambda acc, at: {"out": acc}, config=SMALL)
