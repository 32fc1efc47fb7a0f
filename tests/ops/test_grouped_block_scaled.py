"""Grouped block-scaled GEMMs against a loop over groups in float64, to the bit, in every format."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok
from tests.ops.references import BF16, E2M1, E4M3, E5M2, E8M0, exact, integers, poisoned, rounded

import warploom as wl
from warploom.diagnostics import WarploomError
from warploom.host.program import text_of
from warploom.ops import (
    deinterleave_scales,
    gated_grouped_block_scaled_matmul,
    grouped_block_scaled_matmul,
    interleave_scales,
    quantise_mxfp8,
)
from warploom.structured.config import BlockScaledMatmulConfig

RNG = np.random.default_rng()
SCHEDULES = ("eager", "lazy", "reverse", "random")
FORMATS = {
    "MXFP8": (E4M3, E4M3, E8M0, 32, "mxf8f6f4"),
    "MXFP4": (E2M1, E2M1, E8M0, 32, "mxf4"),
    "NVFP4": (E2M1, E2M1, E4M3, 16, "mxf4nvf4"),
    "W4A8": (E4M3, E2M1, E8M0, 32, "mxf8f6f4"),
    "A4W8": (E2M1, E5M2, E8M0, 32, "mxf8f6f4"),
}
TYPES = {E4M3: "e4m3", E5M2: "e5m2", E2M1: "e2m1"}
ENDS, IDS = [3, 3, 20, 34, 163], [2, 0, -1, 2, 1]
IDS_ARRAY = np.array(IDS)


def factors(*shape, dtype):
    return (2.0 ** RNG.integers(-2, 3, shape)).astype(np.float32).astype(dtype)


class Problem:
    """Tokens, weights and their scales, and the exact result: NaN where nothing is computed."""

    def __init__(self, name, n, k, *, ends=ENDS, ids=IDS, spare=4, experts=3):
        *types, scale, run, self.kind = FORMATS[name]
        rows = ends[-1] + spare
        self.ends, self.ids, self.types = np.array(ends), np.array(ids), types
        self.a, self.b = (
            integers(*shape, dtype=dtype, largest=2)
            for shape, dtype in zip(((rows, k), (experts, n, k)), types, strict=True)
        )
        self.scales = tuple(factors(*each.shape[:-1], k // run, dtype=scale) for each in (self.a, self.b))
        a, b = (
            exact(each) * np.repeat(exact(scales), run, -1)
            for each, scales in zip((self.a, self.b), self.scales, strict=True)
        )
        self.sums, start = np.full((rows, n), np.nan), 0
        for end, expert in zip(ends, ids, strict=True):
            if expert >= 0:
                self.sums[start:end] = a[start:end] @ b[expert].T
            start = end

    @property
    def experts(self):
        """The expert of each row, -1 for none."""
        counts = np.diff(self.ends, prepend=0)
        return np.append(np.repeat(self.ids, counts), [-1] * (len(self.a) - self.ends[-1]))

    @property
    def given(self):
        return (self.a, self.b, *self.scales, self.ends)

    def config(self, columns, cta_group=1, *, swapped=False, **more):
        types = [TYPES[each] for each in (reversed(self.types) if swapped else self.types)]
        depth = 64 if types == ["e2m1", "e2m1"] else 32
        shape = (128 * cta_group, columns, depth)
        fields = {"a_type": types[0], "b_type": types[1], "scaling_kind": self.kind, "c_type": "f32"}
        return BlockScaledMatmulConfig(cta_group=cta_group, mma_shape=shape, AB_swapped=swapped, **fields, **more)

    def check(self, schedule, **options):
        out = poisoned(self.sums.shape, np.float32)
        bound = grouped_block_scaled_matmul.bind(*self.given, expert_ids=self.ids, out=out, **options)
        wl.launch(bound, schedule=schedule)
        np.testing.assert_array_equal(out, self.sums)


@pytest.mark.parametrize(("number", "name"), list(enumerate(FORMATS)))
def test_every_format(number, name):
    """A configuration of the library's choice, with a scale and a bias for each expert; one kernel."""
    case = Problem(name, 40, 128)
    bias, scales, out = integers(3, 40), np.float32([1, 2, 0.5]), poisoned(case.sums.shape, BF16)
    options = {"expert_ids": case.ids, "expert_scales": scales, "bias": bias, "activation": "relu", "alpha": 0.5}
    bound = grouped_block_scaled_matmul.bind(*case.given, out=out, **options)
    assert f"tcgen05.mma.cta_group::1.kind::{case.kind}.block_scale" in text_of(bound.program)
    wl.launch(bound, schedule=SCHEDULES[number % 4])
    of_rows = scales[case.experts][:, None], exact(bias)[case.experts]
    wanted = np.maximum(0.5 * case.sums * of_rows[0] + of_rows[1], 0)
    np.testing.assert_array_equal(exact(out), rounded(wanted, BF16))


FEW_ROWS = [("MXFP8", 8, 1), ("NVFP4", 16, 1), ("W4A8", 32, 1), ("MXFP4", 64, 2)]


@pytest.mark.parametrize(("name", "columns", "cta_group"), FEW_ROWS)
def test_few_rows_along_n(name, columns, cta_group):
    case = Problem(name, 72, 128)
    case.check(SCHEDULES[cta_group], config=case.config(columns, cta_group, swapped=True))


@pytest.mark.parametrize(("name", "columns", "cta_group"), [("NVFP4", 96, 1), ("W4A8", 64, 2)])
def test_rows_along_m(name, columns, cta_group):
    case = Problem(name, 100, 128, ends=[5, 300], ids=[1, 0], experts=2)
    case.check(SCHEDULES[2 * cta_group - 1], config=case.config(columns, cta_group))


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_any_groups(data):
    name, schedule = data.draw(st.sampled_from(list(FORMATS))), data.draw(st.sampled_from(SCHEDULES))
    counts = data.draw(st.lists(st.sampled_from([0, 1, 7, 33, 128, 150]), min_size=1, max_size=4))
    ids = data.draw(st.lists(st.integers(-1, 2), min_size=len(counts), max_size=len(counts)))
    ends = np.cumsum(counts).tolist()
    n, k = data.draw(st.sampled_from([1, 31, 136])), data.draw(st.sampled_from([128, 384]))
    case = Problem(name, n, k, ends=ends, ids=ids, spare=data.draw(st.sampled_from([1, 9])))
    swapped = data.draw(st.booleans())
    columns = data.draw(st.sampled_from([8, 32, 64, 128] if swapped else [32, 96, 128]))
    case.check(schedule, config=case.config(columns, 1, swapped=swapped))


def test_packed_elements_and_interleaved_scales():
    case = Problem("NVFP4", 24, 96)
    codes = [each.view(np.uint8) & 15 for each in (case.a, case.b)]
    packed = [each[..., ::2] | each[..., 1::2] << 4 for each in codes]
    scales = interleave_scales(case.scales[0], case.ends), interleave_scales(case.scales[1])
    got = grouped_block_scaled_matmul(*packed, *scales, case.ends, expert_ids=case.ids, out_dtype=np.float32)
    np.testing.assert_array_equal(got, np.nan_to_num(case.sums))


def test_invalid_arguments_are_reported_together():
    case = Problem("MXFP8", 24, 96)
    a, b, of_a, of_b, ends = case.given
    with pytest.raises(WarploomError) as error:
        grouped_block_scaled_matmul(a, b, of_a[:5], of_b, ends)
    assert "one end for each matrix" in str(error.value)
    with pytest.raises(WarploomError, match=r"`a_scale` must be \(167, 3\), or \(6, 1, 32, 4, 4\) interleaved"):
        grouped_block_scaled_matmul(a, b, of_a[:5], of_b, ends, expert_ids=IDS_ARRAY)
    with pytest.raises(WarploomError, match="float8_e8m0fnu for float8_e4m3fn times float8_e4m3fn"):
        grouped_block_scaled_matmul(a, b, of_a.view(E4M3), of_b.view(E4M3), ends, expert_ids=IDS_ARRAY)
    with pytest.raises(WarploomError, match="multiple of 128, in which TMA pads the 4-bit operand"):
        grouped_block_scaled_matmul(a, b.astype(E2M1), of_a, of_b, ends, expert_ids=IDS_ARRAY)
    with pytest.raises(WarploomError, match=r"`b` must be \(experts, n, k\)"):
        grouped_block_scaled_matmul(a[:, :64], b, of_a, of_b, ends, expert_ids=IDS_ARRAY)
    with pytest.raises(WarploomError, match="`target` must be one of sm_100a, sm_103a"):
        grouped_block_scaled_matmul(*case.given, expert_ids=IDS_ARRAY, target="sm_90a")


@pytest.mark.parametrize(("name", "columns", "cta_group"), [("MXFP8", 128, 1), ("NVFP4", 256, 2), ("W4A8", 8, 1)])
def test_assembles_without_a_spill(name, columns, cta_group):
    case = Problem(name, 72, 128)
    config = case.config(columns, cta_group, swapped=columns == 8)
    out = poisoned(case.sums.shape, np.float32)
    bound = grouped_block_scaled_matmul.bind(*case.given, expert_ids=case.ids, out=out, config=config)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(bound).kernels)


class Gated:
    """A gate and an up problem with the same tokens; `hidden` is relu(gate)·up, rounded to float32 once."""

    def __init__(self, name, n, k=128):
        self.gate, other = Problem(name, n, k), Problem(name, n, k)
        run = FORMATS[name][3]
        a, up = (
            exact(each) * np.repeat(exact(scales), run, -1)
            for each, scales in ((self.gate.a, self.gate.scales[0]), (other.b, other.scales[1]))
        )
        experts, self.hidden = self.gate.experts, np.zeros(self.gate.sums.shape, np.float32)
        for row in np.flatnonzero(experts >= 0):
            self.hidden[row] = np.maximum(self.gate.sums[row], 0) * (a[row] @ up[experts[row]].T)
        scales = self.gate.scales[0], self.gate.scales[1], other.scales[1]
        self.given = (self.gate.a, self.gate.b, other.b, *scales, self.gate.ends)
        self.options = {"expert_ids": self.gate.ids, "pair": "reglu"}


@pytest.mark.parametrize(
    ("name", "cta_group", "schedule"), [("MXFP8", 1, "lazy"), ("NVFP4", 2, "reverse"), ("W4A8", None, "random")]
)
def test_gated(name, cta_group, schedule):
    case, out = Gated(name, 72), poisoned((167, 72), np.float32)
    config = None if cta_group is None else case.gate.config(256, cta_group)
    bound = gated_grouped_block_scaled_matmul.bind(*case.given, **case.options, out=out, config=config)
    wl.launch(bound, schedule=schedule)
    is_written = case.gate.experts >= 0
    np.testing.assert_array_equal(out[is_written], case.hidden[is_written])
    assert np.isnan(out[~is_written]).all()


def unpacked(packed):
    """The numbers of packed 4-bit elements."""
    codes = np.stack((packed & 15, packed >> 4), -1).reshape(packed.shape[0], -1)
    return exact(codes.view(E2M1))


@pytest.mark.parametrize("cta_group", [None, 1, 2])
def test_results_in_mxfp8(cta_group):
    """The elements and scales of `quantise_mxfp8`, by the kernel that multiplies; the next GEMM takes them."""
    case = Gated("MXFP8", 96)
    config = None if cta_group is None else case.gate.config(256, cta_group).replace(c_type="e4m3")
    bound = gated_grouped_block_scaled_matmul.plan(*case.given, **case.options, quantise_to="mxfp8", config=config)
    made, wanted = bound.result, quantise_mxfp8(case.hidden)
    is_written = case.gate.experts >= 0
    for schedule in SCHEDULES:
        made.values[is_written] = np.nan
        wl.launch(bound.launch, schedule=schedule)
        scales = deinterleave_scales(made.scales, 167, 3, case.gate.ends).view(np.uint8)
        np.testing.assert_array_equal(exact(made.values), exact(wanted.values))
        np.testing.assert_array_equal(scales[is_written], wanted.scales.view(np.uint8)[is_written])
    down, of_down = integers(3, 40, 96, dtype=E4M3), factors(3, 40, 3, dtype=E8M0)
    got = grouped_block_scaled_matmul(
        made.values, down, made.scales, of_down, case.gate.ends, expert_ids=case.gate.ids, out_dtype=np.float32
    )
    rows = wanted.dequantised().astype(np.float64)
    weights = exact(down) * np.repeat(exact(of_down), 32, -1)
    exactly = np.stack([row @ weights[expert].T for row, expert in zip(rows, case.gate.experts, strict=True)])
    np.testing.assert_allclose(got[is_written], exactly[is_written], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_results_in_nvfp4(scale):
    case = Gated("NVFP4", 80)
    options = {**case.options, "quantise_to": "nvfp4", "quantise_scale": scale}
    bound = gated_grouped_block_scaled_matmul.plan(*case.given, **options)
    made = bound.result
    runs = exact(case.hidden).reshape(167, -1, 16)
    scales = np.minimum(np.abs(runs).max(-1) / 6 / scale, 448).astype(np.float32).astype(E4M3)
    steps = exact(scales)[..., None] * scale
    ratio = np.divide(runs, steps, out=np.zeros_like(runs), where=steps > 0)
    wanted = exact(np.clip(ratio, -6, 6).astype(np.float32).astype(E2M1)).reshape(167, 80)
    is_written = case.gate.experts >= 0
    for schedule in SCHEDULES:
        made.values[is_written] = 0xFF
        wl.launch(bound.launch, schedule=schedule)
        found = deinterleave_scales(made.scales, 167, 5, case.gate.ends)
        np.testing.assert_array_equal(exact(found)[is_written], exact(scales)[is_written])
        np.testing.assert_array_equal(unpacked(made.values), wanted)
    assert made.scale == scale


def test_an_infinity_or_nan_makes_its_run_nan():
    case = Gated("MXFP8", 64)
    bias = np.zeros((3, 64), np.float32)
    bias[2, 5], bias[1, 40] = np.inf, np.nan
    made = gated_grouped_block_scaled_matmul(
        *case.given, expert_ids=case.gate.ids, pair=lambda gate, up: up, up_bias=bias, quantise_to="mxfp8"
    )
    codes = deinterleave_scales(made.scales, 167, 2, case.gate.ends).view(np.uint8)
    experts = case.gate.experts
    assert (codes[experts == 2, 0] == 255).all()
    assert (codes[experts == 1, 1] == 255).all()
    assert (codes[experts == 2, 1] < 255).all()
    assert np.isnan(exact(made.values)[experts == 1, 32:]).all()
    assert np.isfinite(exact(made.values)[experts == 1, :32]).all()


def test_formats_that_do_not_fit_are_errors():
    case = Gated("MXFP8", 72)
    with pytest.raises(WarploomError) as error:
        gated_grouped_block_scaled_matmul(
            *case.given, **case.options, quantise_to="mxfp8", quantise_scale=2, out_dtype=BF16
        )
    message = str(error.value)
    assert "needs a result with a multiple of 32 columns, not 72" in message
    assert "`quantise_scale` must be 1 for mxfp8" in message
    assert "`out_dtype` cannot be used with `quantise_to`" in message
    with pytest.raises(WarploomError, match="`quantise_to` must be one of mxfp8, nvfp4"):
        gated_grouped_block_scaled_matmul(*case.given, **case.options, quantise_to="mxfp6")
    with pytest.raises(WarploomError, match="`b_up_scale` must be"):
        gated_grouped_block_scaled_matmul(*case.given[:5], case.given[5][:, :9], case.given[6], **case.options)


@pytest.mark.parametrize("format_", ["mxfp8", "nvfp4", None])
@pytest.mark.parametrize("cta_group", [1, 2])
def test_gated_kernels_assemble_without_a_spill(format_, cta_group):
    case = Gated("NVFP4", 96)
    config = case.gate.config(256, cta_group).replace(c_type="e4m3" if format_ else "bf16")
    options = {"expert_ids": case.gate.ids, "config": config, "quantise_to": format_}
    bound = gated_grouped_block_scaled_matmul.bind(*case.given, **options)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(bound).kernels)
