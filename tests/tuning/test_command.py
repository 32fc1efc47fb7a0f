"""`warploom tune`: measurements, output, stored winners, data files, and errors without a GPU."""

from __future__ import annotations

import ctypes
import json
import sys

import ml_dtypes
import numpy as np
import pytest
from tests.tuning.fake_gpu import TimingLibrary

import warploom
from warploom.cli import main
from warploom.diagnostics import WarploomError
from warploom.heuristics import Device, key_of
from warploom.heuristics.sm90.device_data import read_data
from warploom.host.arrays import buffer_of
from warploom.ops import blockwise_matmul, grouped_matmul, matmul
from warploom.runtime.cache.winners import recall
from warploom.runtime.gpu import driver
from warploom.tuning.fitting import load
from warploom.tuning.inputs import Inputs, Wanted

SMALL = "200x136x72"


def run(capsys, *arguments):
    status = main(["tune", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_table_is_printed_and_the_winner_stored(gpu, capsys):
    gpu.cost = lambda launched: 4.0 if launched.block[0] > 200 else 8.0
    status, out, err = run(capsys, SMALL, "--most", "12")
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0] == "default: cost model with 132 SMs, extrapolated from NVIDIA H200"
    assert lines[1].startswith("dense 200x136x72x1")
    assert lines[1].endswith("on Fake H200")
    assert sum(" best" in line for line in lines) == 1
    assert lines[-1] in (
        "remembered: 2.000 times as fast as the default",
        "remembered: 1.000 times as fast as the default",
    )
    fields = {f"{name}_type": "bf16" for name in "abc"} | {"a_major": "k", "b_major": "k", "use_tma_store": True}
    assert recall("Fake H200", str(key_of("dense", 200, 136, 72, **fields))) is not None


def test_it_writes_measurements_that_the_fit_reads(gpu, capsys, tmp_path):
    file = tmp_path / "measured.json"
    status, out, _ = run(capsys, SMALL, "2x64x64x128", "--most", "4", "--out", str(file), "--json")
    assert status == 0
    assert json.loads(out) == json.loads(file.read_text("utf-8"))
    measured, device = load([file])
    assert device == Device("Fake H200", 132)
    assert [each.problem.sizes for each in measured] == [(200, 136, 72, 1), (64, 64, 128, 2)]
    assert all(len(each.us) >= 4 and (each.us > 0).all() for each in measured)


def test_a_wrong_candidate_is_reported_and_sets_the_status(gpu, capsys):
    def compute(launched):
        """Make each launch write something else."""
        for room in gpu.rooms:
            if room.size == 200 * 136 * 2 + 256:
                ctypes.memset(room.ctypes.data, len(gpu.launched), room.size)

    gpu.computes = compute
    status, out, _ = run(capsys, SMALL, "--most", "3")
    assert status == 1
    assert "elements are not the default's" in out


def test_without_a_gpu_it_reports_that(monkeypatch, capsys):
    def nothing():
        raise OSError("no such file")

    monkeypatch.setattr(driver, "load_library", nothing)
    driver.driver.cache_clear()
    driver.device.cache_clear()
    status, out, err = run(capsys, "64x64x64")
    assert (status, out) == (3, "")
    assert err.startswith("NO_DRIVER: The NVIDIA driver cannot be used")
    assert len(err.splitlines()) == 2


def test_unsupported_gpus_are_reported(monkeypatch, capsys):
    monkeypatch.setattr(driver, "load_library", lambda: TimingLibrary(capability=(8, 0)))
    driver.driver.cache_clear()
    driver.device.cache_clear()
    status, _, err = run(capsys, "64x64x64")
    driver.driver.cache_clear()
    driver.device.cache_clear()
    assert status == 3
    assert err.startswith("WRONG_GPU: Fake H200 cannot run this")


WRONG = {
    (): "pass either sizes to measure, or --fit with files",
    ("64x64x64", "--fit", "file"): "pass either sizes to measure, or --fit with files",
    ("64x64",): "`64x64` is not a size",
    ("0x64x64",): "`0x64x64` is not a size",
    ("64x64x64", "4x4x4x4x4"): "`4x4x4x4x4` is not a size",
    ("2x64x64x64", "--grouped", "2"): "have no batch dimension",
    ("64x64x64", "--grouped", "2", "--blockwise"): "cannot be combined",
    ("64x64x64", "--dtype", "e2m1"): "invalid choice",
    ("64x64x64", "--majors", "k"): "invalid choice",
    ("64x64x64", "--majors", "mn,k", "--grouped", "2"): "must be K-major",
    ("64x64x64", "--majors", "k,mn", "--blockwise"): "only 16-bit types can be MN-major",
    ("64x64x64", "--majors", "k,mn", "--dtype", "e5m2"): "only 16-bit types can be MN-major",
    ("64x64x64", "--most", "-1"): "is not a non-negative integer",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_commands(capsys, arguments):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (3, "")
    assert WRONG[arguments] in err


def test_an_unknown_activation_is_reported(gpu, capsys):
    status, _, err = run(capsys, SMALL, "--activation", "gel")
    assert status == 3
    assert "must be one of relu" in err


def held(array):
    """Return the values of an array in the fake GPU's memory."""
    buffer = buffer_of(array)
    raw = np.frombuffer(ctypes.string_at(buffer.address, buffer.span), np.uint8)
    dtype = np.dtype(getattr(ml_dtypes, buffer.dtype, buffer.dtype))
    return np.ndarray(buffer.shape, dtype, raw, 0, buffer.strides)


@pytest.mark.parametrize(
    ("wanted", "operation", "shapes"),
    [
        (Wanted(m=30, n=40, k=64), matmul, {"a": (30, 64), "b": (64, 40), "out": (30, 40)}),
        (Wanted(m=30, n=40, k=64, majors=("mn", "mn")), matmul, {"a": (30, 64), "b": (64, 40), "out": (30, 40)}),
        (
            Wanted(m=30, n=40, k=64, batch=3, bias=True, residual=True, activation="relu", dtype="f16"), matmul,
            {"a": (3, 30, 64), "b": (3, 64, 40), "bias": (40,), "residual": (3, 30, 40), "out": (3, 30, 40)},
        ),
        (Wanted(m=90, n=40, k=64, groups=5), grouped_matmul, {"a": (90, 64), "b": (5, 64, 40), "ends": (5,), "out": (90, 40)}),
        (
            Wanted(m=30, n=140, k=200, blockwise=True, dtype="e4m3"), blockwise_matmul,
            {"a": (30, 200), "b": (140, 200), "a_scale": (30, 2), "b_scale": (2, 2), "out": (30, 140)},
        ),
    ],
)  # fmt: skip
def test_inputs(gpu, wanted, operation, shapes):
    made, given = Inputs(driver.device(0), seed=3).call(wanted)
    assert made is operation
    arrays = {name: value for name, value in given.items() if not isinstance(value, str)}
    assert {name: buffer_of(value).shape for name, value in arrays.items()} == shapes
    assert list(given)[-1] == "out"
    if wanted.majors == ("mn", "mn"):
        assert (buffer_of(given["a"]).strides, buffer_of(given["b"]).strides) == ((2, 60), (80, 2))
    a = held(given["a"]).astype(np.float32)
    assert abs(a.mean()) < 0.2
    assert 0.8 < a.std() < 1.2
    if wanted.groups:
        ends = held(given["ends"])
        assert ends[-1] == wanted.m
        assert (np.diff(ends, prepend=0) >= 0).all()
    if wanted.blockwise:
        assert ((held(given["a_scale"]) >= 0.5) & (held(given["a_scale"]) <= 1.5)).all()
    elif not wanted.groups:
        assert held(given["b"]).astype(np.float32).std() == pytest.approx(64**-0.5, rel=0.2)


def test_large_inputs_repeat_a_pattern_without_equal_rows(gpu):
    array = held(Inputs(driver.device(0)).normal("bf16", 1100, 1000))
    flat = array.reshape(-1)
    assert (flat[1_048_583:] == flat[: flat.size - 1_048_583]).all()
    assert len(np.unique(array[:, :8].view(np.uint16), axis=0)) == 1100


@pytest.mark.parametrize(
    "options", [("--grouped", "3"), ("--blockwise",), ("--bias", "--activation", "gelu_tanh", "--residual")]
)
def test_every_kind_can_be_tuned(gpu, capsys, options):
    status, out, err = run(capsys, "256x256x256", "--most", "2", *options)
    assert status == 0, err
    assert "best" in out


def test_another_major_is_another_problem(gpu, capsys, tmp_path):
    file = tmp_path / "measured.json"
    status, out, err = run(capsys, "256x256x256", "--majors", "k,mn", "--most", "2", "--out", str(file))
    assert status == 0, err
    assert "b_major=mn" in out
    (row,) = json.loads(file.read_text("utf-8"))["rows"]
    assert (row.get("a_major"), row["b_major"]) == (None, "mn")
    (measured,), _ = load([file])
    assert measured.problem.majors == ("k", "mn")
    assert all((each.a_major if each.AB_swapped else each.b_major) == "mn" for each in measured.configs)


def test_a_folder_cannot_be_written(gpu, capsys, tmp_path):
    status, _, err = run(capsys, SMALL, "--most", "1", "--out", str(tmp_path))
    assert status == 3
    assert "UNWRITABLE_FILE" in err


def test_the_function_reports_host_arrays():
    host = {name: np.zeros((8, 8), np.float32) for name in ("a", "b", "out")}
    with pytest.raises(WarploomError, match="`a` is on cpu"):
        warploom.tune(matmul, **host)


def test_one_command_measures_fits_and_writes_a_data_file(gpu, capsys, tmp_path):
    """The fit keeps the constants here, as two problems determine none."""
    file = tmp_path / "fake.json"
    status, out, err = run(capsys, SMALL, "512x256x128", "--most", "6", "--data", str(file), "--keep-constants")
    assert status == 0, err
    assert f"{file}: data of Fake H200" in out
    data = read_data(json.loads(file.read_text("utf-8")))
    assert data.device == Device("Fake H200", 132)
    assert {key[:4] for key in data.table} == {("dense", 200, 136, 72), ("dense", 512, 256, 128)}
    assert data.is_measured_on(Device("Fake H200", 132))
    assert not data.is_measured_on(Device("NVIDIA H200", 132))
    assert data.provenance["when"]


def test_a_fit_without_scikit_learn_says_what_is_missing(gpu, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    file = tmp_path / "fake.json"
    status, out, err = run(capsys, SMALL, "--most", "3", "--data", str(file), "--keep-constants")
    assert status == 0, err
    assert "no decision trees, which need scikit-learn: import of sklearn.ensemble halted" in out
    assert read_data(json.loads(file.read_text("utf-8"))).trees is None
