"""`tune` on a fake GPU: launches, their memory, the winner, and later calls."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest
from tests.tuning.fake_gpu import L2_BYTES, HeldTensor

import warploom
from warploom.diagnostics import WarploomError
from warploom.heuristics import EMULATED, Device, choose, key_of, rank
from warploom.host.arrays import scratch
from warploom.host.tensor_map import TensorMap
from warploom.ops import matmul
from warploom.ops.planning.planner import completed, tuned
from warploom.ops.planning.prepare import plan
from warploom.runtime.cache.winners import recall
from warploom.structured.config.sm90 import HopperConfig
from warploom.trace import Array, cta_index, f32, kernel, s32, special, thread, when
from warploom.tuning import tune
from warploom.tuning.tuner import label_of

CANDIDATES = [
    HopperConfig(tile=(64, 64), consumers=1),
    HopperConfig(tile=(128, 64)),
    HopperConfig(tile=(64, 32), consumers=1),
]


def product(gpu, m=200, n=136, k=72):
    return {"a": HeldTensor(gpu, m, k), "b": HeldTensor(gpu, k, n), "out": HeldTensor(gpu, m, n)}


def test_an_operation_is_tuned_and_later_calls_use_the_winner(gpu):
    given = product(gpu)
    gpu.cost = lambda launched: 7.0 if launched.block[0] > 200 else 20.0
    report = tune(matmul, **given, candidates=CANDIDATES)
    assert report.best.tile == (128, 64)
    assert report.is_remembered
    assert report.gpu == "Fake H200"
    assert report.rows[0].us == pytest.approx(7.0)
    assert report.gain == pytest.approx(20 / 7)
    assert report.rows[0].tflops == pytest.approx(2 * 200 * 136 * 72 / 7e6)
    assert report.problem.startswith("dense 200x136x72x1 ")
    assert report.default == choose(report.key, Device("Fake H200", 132))
    gpu.launched.clear()
    call = plan(matmul, **given)
    call(*given.values())
    assert gpu.launched[-1].block[0] > 200
    assert tuned(report.key, call.device.gpu) == report.best
    again = tune(matmul, **given, candidates=[])
    assert [row.config for row in again.rows] == [report.best, report.default]


def test_the_environment_keeps_winners_from_being_stored(gpu, monkeypatch):
    monkeypatch.setenv("WARPLOOM_TUNED", "0")
    report = tune(matmul, **product(gpu), candidates=CANDIDATES[:1])
    assert not report.is_remembered
    monkeypatch.delenv("WARPLOOM_TUNED")
    assert recall("Fake H200", report.problem) is None


def test_inputs_exceed_the_cache_and_candidates_alternate(gpu):
    given, gpu.sizes = product(gpu), (128, 128, 128)
    report = tune(matmul, **given, candidates=CANDIDATES)
    assert len(gpu.graphs) == len(report.rows) == 4
    per_graph = {len(graph) for graph in gpu.graphs}
    assert per_graph == {300}
    sets = -(-3 * L2_BYTES // sum(each.nbytes for each in given.values()))
    for graph in gpu.graphs:
        assert len({b"".join(each.parameters) for each in graph}) == sets == 2
    order = gpu.replays[:5]
    assert order == [1, 1, 2, 3, 4]
    assert gpu.replays.count(2) == 16
    assert gpu.streams == 1


def test_the_callers_arrays_are_not_written(gpu):
    given = product(gpu)
    pattern = np.random.default_rng().integers(0, 255, given["out"].nbytes, np.uint8)
    for each in given.values():
        ctypes.memmove(each.address, pattern[: each.nbytes].tobytes(), min(each.nbytes, pattern.size))
    tune(matmul, **given, candidates=CANDIDATES[:1])
    for each in given.values():
        assert ctypes.string_at(each.address, min(each.nbytes, pattern.size)) == pattern[: each.nbytes].tobytes()


def test_a_wrong_candidate_is_reported(gpu):
    given, size = product(gpu), 200 * 136 * 2
    rooms = {}

    def compute(launched):
        """The default writes ones, a candidate of one consumer nothing."""
        copies = [-(-each.ctypes.data // 256) * 256 for each in gpu.rooms if each.size == size + 256]
        rooms["count"] = len(copies)
        if launched.block[0] > 200:
            ctypes.memset(copies[1], 0x3F, size)

    gpu.computes = compute
    report = tune(matmul, **given, candidates=[HopperConfig(tile=(128, 128), pingpong=True), *CANDIDATES[:1]])
    failures = {row.config.tile: row.failure for row in report.rows if row.failure}
    threads = report.default.threads
    assert rooms["count"] > 2
    if threads > 200:
        assert failures == {(64, 64): f"wrong: {size // 2} of {size // 2} elements are not the default's"}
    else:
        assert (128, 128) in failures


FIELDS = {"b_type": "bf16", "c_type": "bf16", "a_major": "mn", "b_major": "k", "use_tma_store": True}
WANTED = [
    key_of("dense", 1000, 512, 4096, a_type="bf16", **FIELDS),
    key_of("dense", 64, 4096, 4096, fused=True, residual=True, a_type="bf16", **FIELDS),
    key_of("grouped", 500, 4096, 512, 9, a_type="bf16", **FIELDS),
    key_of("blockwise", 512, 512, 512, **{**FIELDS, "a_type": "e4m3", "b_type": "e4m3", "a_major": "k"}),
]


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_measured_configurations_are_used_unchanged(wanted):
    """A candidate is passed like a caller's configuration, which must not change it."""
    found = list(rank(wanted, EMULATED["sm_90a"]))
    assert len(found) >= 8
    for config in found:
        assert completed(config, dict(wanted.fields)) == config


WRONG = {
    "no out": (lambda given: {**given, "out": None}, "`out` is missing"),
    "a configuration": (lambda given: {**given, "config": CANDIDATES[0]}, "`config` is chosen by tuning"),
    "on the host": (lambda given: {name: np.zeros((8, 8), np.float32) for name in ("a", "b", "out")}, "`a` is on cpu"),
    "a copy": (
        lambda given: {**given, "a": HeldTensor(given["lib"], 200, 71), "b": HeldTensor(given["lib"], 71, 136)},
        "the kernel gets a copy of `a`",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_calls_that_cannot_be_tuned_are_reported(gpu, name):
    change, message = WRONG[name]
    given = change({**product(gpu), "lib": gpu})
    given.pop("lib", None)
    with pytest.raises(WarploomError, match=message) as error:
        tune(matmul, **given)
    assert error.value.code == "NOTHING_TO_TUNE"


def test_all_problems_are_in_one_error(gpu):
    host = {name: np.zeros((8, 8), np.float32) for name in "ab"}
    with pytest.raises(
        WarploomError, match=r"`config` is chosen by tuning; `out` is missing.*`a` is on cpu; `b` is on"
    ):
        tune(matmul, **host, config=CANDIDATES[0])


def test_bounded_waits_are_not_measured(gpu, monkeypatch):
    monkeypatch.setenv("WARPLOOM_TIMEOUT", "2")
    with pytest.raises(WarploomError, match="WARPLOOM_TIMEOUT is set"):
        tune(matmul, **product(gpu))


@pytest.mark.parametrize("most", [3, None])
def test_candidates_are_those_that_the_model_prefers(gpu, monkeypatch, most):
    seen = {}
    monkeypatch.setattr("warploom.tuning.tuner.compete", lambda them, rig, **rest: seen.update(them=them) or ())
    monkeypatch.setattr("warploom.tuning.tuner.winner", lambda rows, default: default)
    tune(matmul, **product(gpu), most=most)
    assert (len(seen["them"]) <= 4) if most else (len(seen["them"]) > 40)
    assert len({each.label for each in seen["them"]}) == len(seen["them"])


@dataclass(frozen=True)
class Rows:
    threads: int = 128
    each: int = 1


@kernel(target="sm_90a")
def scaled(x: Array[f32], y: Array[f32], n: s32, *, config: Rows):
    i = (cta_index() * special("ntid.x") + thread()).to(s32)
    for step in range(config.each):
        with when(i * config.each + step < n):
            y[i * config.each + step] = x[i * config.each + step] * 2.0


def bound(x, y, config):
    count = x.shape[0]
    grid = (-(-count // (config.threads * config.each)), 1, 1)
    return scaled.bind(x, y, count, grid=grid, block=(config.threads, 1, 1), config=config)


OWN = [Rows(), Rows(64), Rows(256), Rows(64, 2)]


def test_your_own_kernel_is_tuned_by_the_same_function(gpu):
    x, y = HeldTensor(gpu, 1000, dtype="float32"), HeldTensor(gpu, 1000, dtype="float32")
    gpu.cost = lambda launched: {128: 9.0, 64: 5.0, 256: 30.0}[launched.block[0]] + 0.01 * launched.grid[0]
    report = warploom.tune(lambda config: bound(x, y, config), candidates=OWN, out=y)
    assert report.best == Rows(64, 2)
    assert [row.config for row in report.rows] == [Rows(64, 2), Rows(64), Rows(), Rows(256)]
    assert not report.is_remembered
    assert report.rows[0].tflops is None
    assert report.key is None
    assert report.rows[0].label == "threads=64 each=2"


def test_configurations_may_be_anything(gpu):
    x, y = HeldTensor(gpu, 1000, dtype="float32"), HeldTensor(gpu, 1000, dtype="float32")
    gpu.cost = lambda launched: 1.0 / launched.block[0]
    report = tune(lambda config: bound(x, y, Rows(**config)), candidates=[{"threads": 32}, {"threads": 96}], out=y)
    assert report.best == {"threads": 96}
    assert report.rows[0].label == "threads=96"


def test_launches_may_come_as_a_mapping(gpu):
    x, y = HeldTensor(gpu, 1000, dtype="float32"), HeldTensor(gpu, 1000, dtype="float32")
    gpu.cost = lambda launched: 1.0 / launched.block[0]
    report = tune({each.threads: bound(x, y, each) for each in OWN[:3]})
    assert report.best == 256
    assert report.default == 128


def test_a_winner_stored_under_a_key_is_not_measured_again(gpu):
    x, y = HeldTensor(gpu, 1000, dtype="float32"), HeldTensor(gpu, 1000, dtype="float32")
    gpu.cost = lambda launched: 1.0 / launched.block[0]
    given = {"candidates": OWN, "key": ("scaled", 1000), "out": [y]}
    assert tune(lambda config: bound(x, y, config), **given).best == Rows(256)
    gpu.cost = lambda launched: float(launched.block[0])
    kept = tune(lambda config: bound(x, y, config), **given)
    assert kept.best == Rows(256)
    assert kept.rows == ()
    assert kept.is_remembered
    assert tune(lambda config: bound(x, y, config), **given, again=True).best in (Rows(64), Rows(64, 2))
    assert tune(lambda config: bound(x, y, config), **{**given, "candidates": OWN[:1]}).best == Rows()


def test_a_candidate_that_cannot_be_traced_does_not_stop_the_rest(gpu):
    x, y = HeldTensor(gpu, 1000, dtype="float32"), HeldTensor(gpu, 1000, dtype="float32")
    report = tune(lambda config: bound(x, y, config), candidates=[Rows(), Rows(0), Rows(64), "nonsense"], out=y)
    failures = {row.label: row.failure for row in report.rows if row.failure}
    assert len(failures) == 2
    assert "AttributeError" in failures["nonsense"]


@kernel(target="sm_90a")
def staged(x: TensorMap, y: Array[f32], own: Array[f32]):
    with when(thread() == 0):
        y[0] = own[0]


def test_maps_views_and_workspaces(gpu):
    """A map and a view of one array are one region; what a kernel needs for itself is the launch's."""
    whole = HeldTensor(gpu, 64, 64, dtype="float32")
    part = HeldTensor(gpu, 8, dtype="float32")
    part.address = whole.address + 4 * 64 * 8

    def make(threads):
        parts = (TensorMap(whole, box=(8, 32)), part, scratch((4,), np.float32))
        return staged.bind(*parts, grid=(1, 1, 1), block=(threads, 1, 1))

    gpu.sizes = (128, 8, 8)
    rooms = len(gpu.rooms)
    tune(make, candidates=[32, 64])
    pointers = {int.from_bytes(each.parameters[1], "little") for each in gpu.graphs[0]}
    starts = {-(-each.ctypes.data // 256) * 256 for each in gpu.rooms[rooms:]}
    assert len(pointers) == 3 * L2_BYTES // whole.nbytes
    assert {pointer - 4 * 64 * 8 for pointer in pointers} <= starts
    assert part.address not in pointers


@pytest.mark.parametrize(
    ("what", "given", "message"),
    [
        (5, {}, "5 is neither an operation, nor a function of a configuration, nor a mapping of launches"),
        (lambda config: None, {"candidates": []}, "there are no candidates"),
        (lambda config: None, {"candidates": [1]}, "a candidate is a NoneType, not a launch"),
        ({}, {"a": 3}, "`a`: a launch has its arguments already; there are no candidates"),
        (
            lambda config: bound(np.zeros(8, np.float32), np.zeros(8, np.float32), config),
            {"candidates": OWN},
            "not on a GPU",
        ),
    ],
)
def test_arguments_that_are_not_kernels_are_reported(what, given, message):
    with pytest.raises(WarploomError, match=message):
        tune(what, **given)


def test_labels():
    assert label_of({"tile": (128, 64), "pingpong": True, "num_split_k": 2}) == "tile=128x64 pingpong num_split_k=2"
    assert label_of(HopperConfig(pingpong=True)).startswith("b_type=bf16")
    assert label_of(Rows()) == "default"
    assert label_of((1, 2)) == "(1, 2)"
