"""Tensors that are alike, by PyTorch's own function and by their attributes: both must tell the same."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.runtime.fake_driver import FakeLibrary  # noqa: E402

from warploom.diagnostics import WarploomError  # noqa: E402
from warploom.host.arrays import Buffer, buffer_of  # noqa: E402
from warploom.runtime.gpu import prepared  # noqa: E402
from warploom.runtime.gpu import tensor_signature as likeness  # noqa: E402
from warploom.runtime.gpu.driver import device  # noqa: E402
from warploom.trace import Array, f32, kernel, thread  # noqa: E402

WAYS = {
    "guards": lambda *each: likeness._by_guards(torch, each),
    "attributes": lambda *each: likeness._by_attributes(each),
}


def matrix(*shape):
    return torch.zeros(*(shape or (4, 4)))


OTHERS = {
    "dtype": lambda: matrix().half(),
    "of the same size": lambda: matrix().to(torch.int32),
    "shape": lambda: matrix(3, 4),
    "axes": lambda: matrix(1, 4, 4),
    "strides": lambda: matrix().T,
    "device": lambda: matrix().to("meta"),
    "gradient": lambda: matrix().requires_grad_(),
    "subclass": lambda: torch.nn.Parameter(matrix(), requires_grad=False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", OTHERS)
def test_a_difference_is_recognised(way, change):
    is_like = WAYS[way](matrix(), matrix(2, 3))
    assert is_like(matrix(), matrix(2, 3))
    assert not is_like(OTHERS[change](), matrix(2, 3))
    assert not is_like(matrix(2, 3), matrix())


@pytest.mark.parametrize("way", WAYS)
def test_other_numbers_and_objects_differ(way):
    is_like = WAYS[way](matrix(), matrix())
    for wrong in ((matrix(),), (matrix(),) * 3, (matrix(), 5), (np.zeros((4, 4)), matrix())):
        with contextlib.suppress(TypeError):
            assert not is_like(*wrong)


def test_a_pytorch_without_the_guard_function_is_inspected_by_attributes(monkeypatch):
    assert likeness._guards_tell(), "this PyTorch has it"
    likeness._guards_tell.cache_clear()
    monkeypatch.setattr(likeness, "_by_guards", lambda torch, tensors: lambda *given: True)
    assert not likeness._guards_tell()
    assert not likeness.likeness_of((matrix(),))(matrix().T)
    assert likeness.likeness_of((matrix(),))(matrix())
    likeness._guards_tell.cache_clear()


def test_other_arrays_have_no_signature():
    for arrays in ((), (np.zeros(3),), (matrix(), np.zeros(3))):
        assert not likeness.likeness_of(arrays)(*arrays)


@kernel
def halved(x: Array[f32]):
    x[thread(), 0] = x[thread(), 0] * 0.5


@pytest.fixture
def call(install, monkeypatch):
    """A prepared call on tensors of the host that pass for a GPU's."""
    gpu = install(FakeLibrary(sizes=(8,)))

    def on_gpu(array) -> Buffer:
        told = buffer_of(array)
        return Buffer(told.shape, told.strides, told.dtype, told.item, told.span, array.data_ptr(), "cuda:0")

    bound = halved.bind(np.zeros((4, 4), np.float32), grid=(1, 1, 1), block=(32, 1, 1))
    made = prepared.Prepared(bound, (bound.args[0],), device=device(0))
    monkeypatch.setattr(prepared, "buffer_of", on_gpu)
    made.gpu = gpu
    return made


def test_new_tensors_are_launched_at_their_own_addresses(call):
    kept = []
    for _ in range(5):
        one, other = matrix(), matrix()
        kept.append(one)
        call(one)
        call(other)
        del other
        places = [int.from_bytes(done.parameters[0], "little") for done in call.gpu.launched[-2:]]
        assert places[0] == one.data_ptr()
    assert len({each.data_ptr() for each in kept}) == 5


CHANGES = {
    "transposed": lambda x: x.t_(),
    "resized": lambda x: x.resize_(2, 4),
    "of another dtype": lambda x: setattr(x, "data", matrix().half()),
    "of another shape": lambda x: setattr(x, "data", matrix(8, 4)),
    "with an axis more": lambda x: x.unsqueeze_(0),
    "stepping otherwise": lambda x: x.as_strided_((4, 4), (1, 1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_that_was_changed_in_place_is_refused(call, change):
    x = matrix()
    call(x)
    call(x)
    CHANGES[change](x)
    with pytest.raises(WarploomError, match="should be"):
        call(x)
    assert len(call.gpu.launched) == 2


def test_a_tensor_with_other_memory_is_launched_there(call):
    x, y = matrix(), matrix()
    call(x)
    x.data = y
    call(x)
    assert int.from_bytes(call.gpu.launched[-1].parameters[0], "little") == y.data_ptr()
