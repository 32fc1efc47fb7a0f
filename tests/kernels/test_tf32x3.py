"""float32 as three TF32 products, on both targets: exact integers that TF32 cannot hold, errors of real numbers, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok
from tests.ops.references import BF16, exact, poisoned, reals

import warploom as wl
from warploom.diagnostics import LaunchError
from warploom.host.program import text_of
from warploom.structured.config import HopperConfig, MatmulConfig, violations

SCHEDULES = ["eager", "lazy", "reverse", "random"]
RNG = np.random.default_rng()


def blackwell(cta_group, m, n, **more):
    return MatmulConfig(cta_group=cta_group, mma_shape=(m, n, 8), a_type="f32", precision="tf32x3", **more)


def hopper(m, n, **more):
    return HopperConfig(tile=(m, n), a_type="f32", precision="tf32x3", **more)


CONFIGS = {
    "one CTA": blackwell(1, 64, 32),
    "CTA pairs": blackwell(2, 256, 64),
    "folded, split": blackwell(2, 128, 64, num_split_k=2),
    "swapped": blackwell(1, 128, 8, AB_swapped=True),
    "cluster, residual": blackwell(1, 128, 64, cluster_shape=(2, 2, 1), use_tma_epilogue_load=True),
    "cluster of pairs": blackwell(2, 256, 32, cluster_shape=(4, 1, 1), scheduler="static"),
    "Hopper": hopper(128, 64),
    "Hopper, one consumer": hopper(64, 24, consumers=1),
    "Hopper, cluster, residual": hopper(128, 128, cluster_shape=(2, 1, 1), residual_in_place=True),
    "Hopper, swapped": hopper(64, 64, consumers=1, AB_swapped=True),
}


def operands(m, n, k):
    """Integers of up to 19 bits times small ones: TF32 holds 11, and the sums are exact in float32."""
    a = RNG.integers(-(1 << 18), 1 << 18, (m, k)).astype(np.float32)
    return a, RNG.integers(-1, 2, (n, k)).astype(np.float32).T


def check(config, m, n, k, schedule="eager"):
    a, b = operands(m, n, k)
    out, expected, options = poisoned((m, n), np.float32), exact(a) @ exact(b), {}
    if getattr(config, "use_tma_epilogue_load", False) or getattr(config, "residual_in_place", False):
        options["residual"] = RNG.integers(-99, 99, (m, n)).astype(np.float32)
        expected = expected + exact(options["residual"])
    bound = wl.matmul.bind(a, b, out=out, config=config, **options)
    wl.launch(bound, schedule=schedule, seed=3, sms=8)
    np.testing.assert_array_equal(exact(out), expected)
    return bound


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CONFIGS)
def test_integers_that_tf32_rounds_are_exact(name, schedule):
    bound = check(CONFIGS[name], 67, 72, 44, schedule)
    assert "cvt.rna.tf32.f32" in text_of(bound.program)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 129, 33), (65, 40, 130)])
def test_awkward_sizes(target, m, n, k):
    a, b = operands(m, n, k)
    got = wl.matmul(a, b, precision="tf32x3", target=target)
    np.testing.assert_array_equal(exact(got), exact(a) @ exact(b))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_the_error_is_that_of_float32(target):
    a, w = reals(70, 500, dtype=np.float32), reals(48, 500, dtype=np.float32)
    wanted = exact(a) @ exact(w).T

    def error(**options):
        # Of the whole result: one element near zero makes the mean of relative errors as large as chance will have it.
        return np.linalg.norm(exact(wl.linear(a, w, target=target, **options)) - wanted) / np.linalg.norm(wanted)

    assert error(precision="tf32x3") < 1e-6
    assert error(precision="tf32") > 1e-4


def test_operands_that_are_not_finite_give_nan():
    a, b = np.ones((3, 40), np.float32), np.ones((40, 8), np.float32)
    a[0, 3], a[1, 4] = np.inf, np.nan
    for target in ("sm_90a", "sm_100a"):
        got = wl.matmul(a, b, precision="tf32x3", target=target)
        assert np.isnan(got[:2]).all()
        assert (got[2] == 40).all()


@st.composite
def configurations(draw):
    if draw(st.booleans()):
        consumers = draw(st.integers(1, 2))
        return hopper(
            64 * consumers, draw(st.sampled_from([8, 40, 64])), consumers=consumers, AB_swapped=draw(st.booleans())
        )
    group, rows = draw(st.sampled_from([(1, 64), (1, 128), (2, 128), (2, 256)]))
    return blackwell(
        group,
        rows,
        draw(st.sampled_from([32, 64, 96])),
        AB_swapped=draw(st.booleans()),
        num_split_k=draw(st.integers(1, 2)),
        scheduler=draw(st.sampled_from(["clc", "static"])),
    )


@settings(max_examples=10, deadline=None)
@given(configurations(), st.integers(1, 80), st.integers(1, 80), st.integers(33, 70), st.sampled_from(SCHEDULES))
def test_any_configuration(config, m, n, k, schedule):
    check(config, m, n, k, schedule)


@pytest.mark.parametrize(
    "config",
    [blackwell(2, 256, 128), blackwell(1, 128, 64, AB_swapped=True), hopper(128, 128), hopper(256, 64)],
    ids=["pairs", "swapped", "Hopper", "Hopper, tall"],
)
def test_it_assembles_without_a_spill(config):
    a, b, c = (np.zeros((64, 64), np.float32) for _ in range(3))
    assemble_ok(wl.matmul.bind(a, b, bias=c[0], activation="gelu", residual=c, config=config))


@pytest.mark.parametrize(
    "config", [blackwell(1, 64, 32), hopper(64, 32, consumers=1)], ids=lambda config: type(config).__name__
)
def test_it_is_proved(config):
    a, b = operands(66, 40, 72)
    report = wl.check(wl.matmul.bind(a, b, config=config), profile="strict")
    assert report.verdict == "PROVED", str(report)


def test_only_float32_has_a_precision():
    a = reals(8, 8)
    with pytest.raises(LaunchError, match="unless the operands are float32"):
        wl.matmul(a, a, precision="tf32x3")
    with pytest.raises(LaunchError, match="`precision` must be 'tf32' or 'tf32x3', got 'fp64'"):
        wl.matmul(a, a, precision="fp64")
    assert a.dtype == BF16
    broken = violations(hopper(128, 64, pingpong=True, stream_k=True, mmas_in_flight=1))
    assert [line.split("=")[0] for line in broken] == ["pingpong", "stream_k", "mmas_in_flight"]
    assert any("a_type='bf16' must be 'f32'" in line for line in violations(MatmulConfig(precision="tf32x3")))
    wrong = violations(MatmulConfig(a_type="f32", precision="tf32x3", gemm_kind="gmm"))
    assert any("only dense GEMMs split float32" in line for line in wrong)
