"""The declared keywords and types of the operations against the accepted ones."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import get_args

import ml_dtypes
import numpy as np
import pytest

import warploom as wl
from warploom.ops import signatures
from warploom.ops.planning.planner import TARGETS
from warploom.ops.planning.request import Request
from warploom.structured.epilogue.epilogue import ACTIVATIONS, FORMATS, PAIRS

OPERATIONS = {
    wl.matmul: signatures.DenseOptions,
    wl.linear: signatures.DenseOptions,
    wl.conv2d: signatures.Conv2dOptions,
    wl.grouped_matmul: signatures.GroupedOptions,
    wl.gated_linear: signatures.GatedOptions,
    wl.gated_grouped_matmul: signatures.GatedGroupedOptions,
    wl.blockwise_matmul: signatures.BlockwiseOptions,
    wl.block_scaled_matmul: signatures.BlockScaledOptions,
    wl.grouped_blockwise_matmul: signatures.GroupedBlockwiseOptions,
    wl.grouped_block_scaled_matmul: signatures.GroupedBlockScaledOptions,
    wl.gated_grouped_block_scaled_matmul: signatures.GatedGroupedBlockScaledOptions,
}


def test_the_literals_are_the_names_that_are_accepted():
    assert get_args(signatures.Activation) == tuple(ACTIVATIONS)
    assert get_args(signatures.Gate) == tuple(PAIRS)
    assert get_args(signatures.Target) == tuple(TARGETS)
    assert get_args(signatures.BlockFormat) == tuple(FORMATS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_help_shows_every_keyword_and_the_result(operation):
    shown = inspect.signature(operation)
    keywords = [name for name, each in shown.parameters.items() if each.kind is each.KEYWORD_ONLY]
    assert keywords == list(OPERATIONS[operation].__annotations__)
    assert shown.return_annotation == "Array"
    assert "Plan" not in str(shown)
    assert operation.__doc__
    fields = set(inspect.signature(Request).parameters)
    left = set(keywords) - {*operation.optional, *operation.settings}
    assert {"bias" if name == "gate_bias" else name for name in left} <= fields


def test_unknown_and_missing_arguments_raise_type_error():
    a = np.ones((4, 8), ml_dtypes.bfloat16)
    with pytest.raises(TypeError, match=r"linear\(\) got an unexpected keyword argument 'biass'"):
        wl.linear(a, a, biass=1)
    with pytest.raises(TypeError, match=r"linear\(\) missing a required argument: 'w'"):
        wl.linear(a)


WITHOUT_A_MODULE = """
import sys
import numpy as np

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "typing_extensions":
            raise ModuleNotFoundError("No module named 'typing_extensions'", name="typing_extensions")

sys.meta_path.insert(0, Missing())
import warploom

class Array:
    shape, dtype, device = (5, 16), "float32", "cuda:0"
    def __dlpack__(self):
        raise NotImplementedError

try:
    import torch
except ImportError:
    pass
else:
    sys.exit("PyTorch does not need typing_extensions")
try:
    warploom.matmul(Array(), Array())
except ModuleNotFoundError as error:
    assert error.name == "typing_extensions", error
else:
    sys.exit("no error")
"""


def test_a_failing_import_below_pytorch_is_reported_as_such():
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_MODULE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_functions_of_numpy_and_python_in_an_epilogue():
    rng = np.random.default_rng()
    a, b = rng.standard_normal((20, 32)).astype(np.float16), rng.standard_normal((32, 24)).astype(np.float16)
    acc = a.astype(np.float64) @ b.astype(np.float64)
    functions = {
        "exp": (lambda acc, at: np.exp(acc * 0.1), np.exp(acc * 0.1)),
        "power": (lambda acc, at: acc**2, acc**2),
        "abs": (lambda acc, at: abs(acc), abs(acc)),
        "maximum": (lambda acc, at: np.maximum(acc, 0.0), np.maximum(acc, 0)),
    }
    for name, (function, want) in functions.items():
        made = wl.matmul(a, b, epilogue=function, out_dtype=np.float32)
        np.testing.assert_allclose(made, want, rtol=2e-2, atol=2e-2, err_msg=name)
