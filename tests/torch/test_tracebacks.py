"""Errors of calls on PyTorch tensors: their tracebacks have no frame of the library, nor of what it called."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import warploom  # noqa: E402
from warploom import nn  # noqa: E402
from warploom.ops.planning.prepare import plan_matmul  # noqa: E402
from warploom.structured.config import HopperConfig  # noqa: E402

LIBRARY = str(Path(warploom.__file__).parent)


def tensor(*shape, dtype=torch.bfloat16, **options):
    return torch.ones(*shape, dtype=dtype, **options)


def graded(*shape):
    return tensor(*shape).requires_grad_()


def misspelt(acc, at):
    return acc.absolute


def bad_backward():
    made = warploom.linear(tensor(8, 16), graded(24, 16), epilogue=lambda acc, at: acc * 2)
    made.sum().backward()


def invalid_below_the_dispatcher():
    """A configuration that only planning refuses, in a call that needs a gradient."""
    config = HopperConfig(num_split_k=2)
    with warploom.determinism(batch_invariant=True):
        warploom.linear(tensor(8, 16), graded(24, 16), config=config, target="sm_90a")


CALLS = {
    "shape": lambda: warploom.linear(tensor(8, 16), tensor(24, 8)),
    "dtype": lambda: warploom.matmul(tensor(8, 16), tensor(16, 24).float()),
    "keyword": lambda: warploom.linear(tensor(8, 16), tensor(24, 16), relu=True),
    "missing operand": lambda: warploom.linear(tensor(8, 16)),
    "bias": lambda: warploom.linear(tensor(8, 16), tensor(24, 16), bias=tensor(7)),
    "target": lambda: warploom.matmul(tensor(8, 16), tensor(16, 24), target="sm_80"),
    "out with a gradient": lambda: warploom.linear(tensor(8, 16), graded(24, 16), out=tensor(8, 24)),
    "device": lambda: warploom.matmul(tensor(8, 16, device="meta"), tensor(16, 24)),
    "epilogue": lambda: warploom.linear(tensor(8, 16), tensor(24, 16), epilogue=misspelt),
    "grouped": lambda: warploom.grouped_matmul(tensor(8, 16), tensor(24, 16), tensor(2)),
    "gated": lambda: warploom.gated_linear(tensor(8, 16), tensor(24, 16), tensor(23, 16)),
    "blockwise": lambda: warploom.blockwise_matmul(tensor(8, 16), tensor(24, 16), tensor(1), tensor(1)),
    "below the dispatcher": invalid_below_the_dispatcher,
    "backward": bad_backward,
    "layer": lambda: nn.Linear(16, 24, activation="gelus"),
    "swap": lambda: nn.swap_linears(3),
    "restore": lambda: nn.restore_linears(tensor(1)),
    "prepared": lambda: plan_matmul(tensor(8, 16), tensor(16, 24)),
    "determinism": lambda: warploom.determinism(batch_invariant=1),
}


def frames(error):
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next


@pytest.mark.parametrize("name", CALLS)
def test_an_error_shows_the_callers_frames_only(name):
    with pytest.raises((warploom.WarploomError, TypeError, AttributeError)) as caught:
        CALLS[name]()
    found = [*frames(caught.value)]
    assert not [each for each, _ in found if each.startswith(LIBRARY)]
    if name != "backward":  # there the caller's frames are those of PyTorch's engine
        assert not [each for _, each in found if each.partition(".")[0] == "torch"]
    assert sum(each == __file__ for each, _ in found) >= 2, "the test, and the call in it"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_an_error_of_the_callers_function_shows_the_line_in_it():
    with pytest.raises(AttributeError) as caught:
        CALLS["epilogue"]()
    assert caught.traceback[-1].name == "misspelt"


def test_the_environment_asks_for_all_frames(monkeypatch):
    monkeypatch.setenv("WARPLOOM_TRACEBACK", "1")
    with pytest.raises(warploom.WarploomError) as caught:
        CALLS["shape"]()
    assert [each for each, _ in frames(caught.value) if each.startswith(LIBRARY)]
