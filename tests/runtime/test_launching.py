"""Launches that are begun once more, or with other arguments: what is kept of them, and what is looked at again."""

from __future__ import annotations

import struct
from weakref import ref

import pytest
from tests.runtime.fake_driver import FakeLibrary, FakeTensor

from warploom import Launch, TensorMap, launch, launcher
from warploom.diagnostics import WarploomError
from warploom.host.arrays import Pointers
from warploom.runtime.gpu import hangs
from warploom.runtime.gpu import launching as shaped
from warploom.runtime.gpu.driver import device
from warploom.runtime.gpu.prepared import Prepared
from warploom.trace import Array, f32, kernel, s32, thread, when


@kernel(target="sm_90a")
def scaled(x: Array[f32], n: s32, factor: f32):
    with when(thread().to(s32) < n):
        x[thread()] = x[thread()] * factor


@kernel(target="sm_90a")
def mapped(a: TensorMap, x: Array[f32]):
    x[thread()] = 0.0


@pytest.fixture
def gpu(install):
    library = install(FakeLibrary(sizes=(8, 4, 4)))
    library.current = device(0).context.value
    return library


def vector(address=0x10000, count=64):
    return FakeTensor(address, (count,), "float32")


def bound(x, n=7, factor=0.5, grid=(1, 1, 1)):
    return scaled.bind(x, n, factor, grid=grid, block=(64, 1, 1))


def test_a_launch_is_repeated_unchanged(gpu, monkeypatch):
    made = bound(vector())
    launch(made)
    monkeypatch.setattr(launcher, "_arrays_on_gpu", None)  # nothing is looked at again
    for stream in (None, 9, 9):
        launch(made, stream=stream)
    assert [each.stream for each in gpu.launched] == [0, 0, 9, 9]
    assert {tuple(each.parameters) for each in gpu.launched} == {
        (struct.pack("<Q", 0x10000), struct.pack("<i", 7), struct.pack("<f", 0.5))
    }


def test_an_array_that_moved_is_launched_at_its_new_address(gpu):
    gpu.sizes = (128, 8)
    a, x = FakeTensor(0x20000, (16, 64)), vector()
    made = mapped.bind(TensorMap(a, box=(8, 64), swizzle="128B"), x, grid=(1, 1, 1), block=(64, 1, 1))
    for addresses in ((0x20000, 0x10000), (0x20000, 0x30000), (0x50000, 0x30000)):
        a.address, x.address = addresses
        launch(made)
        record, pointer = gpu.launched[-1].parameters
        assert (*struct.unpack("<Q", record[6:14]), *struct.unpack("<Q", pointer)) == addresses


def test_an_array_that_moved_to_the_host_is_refused(gpu):
    gpu.sizes = (128, 8)
    a, x = FakeTensor(0x20000, (16, 64)), vector()
    made = mapped.bind(TensorMap(a, box=(8, 64), swizzle="128B"), x, grid=(1, 1, 1), block=(64, 1, 1))
    launch(made)
    x.address, x.device = 0x7000, "cpu"
    with pytest.raises(WarploomError, match="some arrays are on the host"):
        launch(made)


def test_emulator_options_are_refused_the_second_time_too(gpu):
    made = bound(vector())
    launch(made)
    with pytest.raises(WarploomError, match="`schedule` is for the emulator"):
        launch(made, schedule="lazy")
    assert len(gpu.launched) == 1


def test_a_timeout_may_be_added_later(gpu, monkeypatch):
    gpu.sizes = (8, 4, 4, 8)
    made = bound(vector())
    launch(made, timeout=2.0)
    assert len(gpu.synchronised) == 1
    monkeypatch.setenv(hangs.VARIABLE, "2.0")
    launch(made)
    assert len(gpu.synchronised) == 2
    monkeypatch.delenv(hangs.VARIABLE)
    gpu.sizes = (8, 4, 4)
    launch(made)
    assert len(gpu.synchronised) == 2
    assert len(gpu.launched) == 3
    monkeypatch.setenv(hangs.VARIABLE, "much")
    with pytest.raises(WarploomError, match="it is a number of seconds"):
        launch(made)


def test_arrays_live_no_longer_than_their_launch(gpu):
    x = vector()
    made, is_alive = bound(x), ref(x)
    launch(made)
    launch(made)
    assert id(made) in launcher._STARTED
    key = id(made)
    del made, x
    assert is_alive() is None
    assert key not in launcher._STARTED


def test_launches_of_one_shape_differ_in_their_arguments(gpu, monkeypatch):
    looks = []
    verify = launcher._verify
    monkeypatch.setattr(launcher, "_verify", lambda *given: looks.append(given) or verify(*given))
    for n, factor in ((1, 0.0), (2, -0.0), (1, float("nan")), (-3, 1)):
        launch(bound(vector(0x1000 * (n + 4)), n, factor))
        address, count, number = gpu.launched[-1].parameters
        assert struct.unpack("<Q", address) == (0x1000 * (n + 4),)
        assert (count, number) == (struct.pack("<i", n), struct.pack("<f", factor))
    assert len(looks) == 1, "a shape is looked at once"
    assert len(gpu.images) == 1
    launch(bound(vector(), grid=(5, 1, 1)))
    assert len(looks) == 2
    assert gpu.launched[-1].grid == (5, 1, 1)
    for _ in range(2):
        with pytest.raises(WarploomError, match="every extent must be positive"):
            launch(bound(vector(), grid=(0, 1, 1)))


def test_shapes_are_evicted_when_there_are_many(gpu, monkeypatch):
    monkeypatch.setattr(shaped, "_MOST_SHAPES", 3)
    for count in range(1, 9):
        launch(bound(vector(), grid=(count, 1, 1)))
        assert len(shaped._SHAPES) <= 3
    assert [each.grid[0] for each in gpu.launched] == list(range(1, 9))


def addressing(*arrays, table=None):
    """A launch whose first argument points to the addresses of arrays."""
    table = Pointers(arrays) if table is None else table
    return Launch(bound(vector()).program, (1, 1, 1), (64, 1, 1), (table, 7, 0.5))


def test_pointers_are_copied_to_the_gpu_at_each_launch(gpu):
    x, y = vector(0x10000), vector(0x20000)
    made = addressing(x, None, y, 77)
    for address, stream in ((0x10000, 0), (0x10000, 9), (0x30000, 9)):
        x.address = address
        launch(made, stream=stream)
        (at,) = struct.unpack("<Q", gpu.launched[-1].parameters[0])
        assert gpu.memory[at] == 32
        assert gpu.copied[at] == (struct.pack("<4Q", address, 0, 0x20000, 77), stream)
        assert at not in gpu.freed, "it is there while the launch may run"
    assert len(gpu.freed) == 2
    del made
    assert len(gpu.freed) == 3


def test_pointers_are_refused_where_something_outlives_them(gpu):
    x = vector()
    gpu.captured = {9}
    with pytest.raises(WarploomError, match="BAD_LAUNCH") as caught:
        launch(addressing(x), stream=9)
    assert "pass a tensor of the addresses" in caught.value.notes[0]
    with pytest.raises(WarploomError, match="BAD_LAUNCH") as caught:
        Prepared(addressing(x), (x,))
    assert "takes a tensor of the addresses" in caught.value.notes[0]
    assert not gpu.launched


def test_pointers_to_the_host_and_to_a_gpu_are_refused_together(gpu):
    with pytest.raises(WarploomError, match="some arrays are on the host") as caught:
        launch(addressing(vector(), FakeTensor(0x7000, (4,), "float32", "cpu")))
    assert caught.value.notes == ("argument 0[0] is on cuda:0", "argument 0[1] is on cpu")
