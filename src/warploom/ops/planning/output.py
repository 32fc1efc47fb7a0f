"""Where a result goes: its dtype, the caller's `out`, and an array apart where that cannot be written directly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warploom.ops.planning.aliasing import FOLDED, clashes, is_folded, overlap
from warploom.ops.planning.arrays import ANY_RANK, RESULT_TYPES, Array, is_array, result_type
from warploom.ops.planning.epilogue import Options, inputs_of
from warploom.ops.planning.epilogue_inputs import Result
from warploom.ops.planning.violations import Faults
from warploom.structured.config import GemmConfig
from warploom.trace.language.types import OF_NUMPY


@dataclass(frozen=True)
class Destination:
    """The caller's array, and what the kernel writes, which may be apart from it."""

    result: Array
    matrix: Array
    is_apart: bool = False


def result_dtype(first: Array | None, options: Options, faults: Faults) -> np.dtype[Any] | None:
    """The result's dtype: what `out_dtype`, `out` or the configuration say, else what follows from the first factor."""
    asked = _asked_dtypes(options, faults)
    for argument, name in asked.items():
        leading = next(iter(asked))
        if name not in RESULT_TYPES:
            faults.add(argument, getattr(options, argument), f"a result is one of {', '.join(RESULT_TYPES)}")
            return None
        if name != asked[leading]:
            what = f"its dtype is {name}, that of `{leading}` is {asked[leading]}"
            faults.add(argument, getattr(options, argument), what)
    if asked:
        return np.dtype(next(iter(asked.values())))
    if options.store is not None and options.out is not None:
        return np.dtype(np.float32)
    return result_type(first) if first is not None else None


def _asked_dtypes(options: Options, faults: Faults) -> dict[str, str]:
    """By argument, the dtypes that the caller names."""
    config, out = options.config, options.out
    asked: dict[str, str] = {}
    if options.out_dtype is not None:
        try:
            asked["out_dtype"] = np.dtype(_name_of(options.out_dtype)).name
        except TypeError:
            faults.add("out_dtype", options.out_dtype, "it is no dtype")
    if isinstance(out, np.ndarray) and (options.store is None or out.dtype.name in RESULT_TYPES):
        asked["out"] = out.dtype.name
    if _names_result(config):
        asked["config"] = next(name for name, type_ in OF_NUMPY.items() if type_ == config.c_type)
    if options.store is not None and "out_dtype" in asked:
        asked.pop("out", None)  # a function that stores by itself may convert once more
    return asked


def _name_of(dtype: Any) -> Any:
    """A dtype of PyTorch's by its name, which is NumPy's too; whatever else NumPy may take for one as it is."""
    return str(dtype).rpartition(".")[2] if type(dtype).__module__ == "torch" else dtype


def _names_result(config: Any) -> bool:
    """Whether a configuration says what the result is, and does not take it from the factors."""
    return isinstance(config, GemmConfig) and "c_type" not in dict(config.derived)


def check_out(result: Result | None, options: Options, faults: Faults) -> None:
    """Whether the caller's array can be written, and is as the result is."""
    out = options.out
    if out is None or not is_array("out", out, faults, types=tuple(OF_NUMPY), axes=ANY_RANK):
        return
    if result is not None and options.store is None and out.shape != result.shape:
        faults.add("out", out, f"the result is {result.shape}")
    _check_writeable("out", out, faults)


def _check_writeable(argument: str, array: Array, faults: Faults) -> None:
    if not array.flags.writeable:
        faults.add(argument, array, "it is read-only")
    if array.size and is_folded(array.shape, array.strides):
        faults.add(argument, array, FOLDED)


def check_outputs(result: Result | None, options: Options, factors: Iterable[Any], faults: Faults) -> None:
    """Whether each further output can be written, is as the result is, and is nobody else's memory."""
    given = options.outputs if isinstance(options.outputs, Mapping) else {}
    others: dict[str, Any] = {"out": options.out} if options.out is not None else {}
    for name, array in given.items():
        argument = f"outputs[{name!r}]"
        if not is_array(argument, array, faults, types=RESULT_TYPES, axes=ANY_RANK):
            continue
        if result is not None and array.shape != result.shape:
            faults.add(argument, array, f"the result is {result.shape}")
        elif result is not None and array.size and not np.may_share_memory(array.reshape(result.core), array):
            faults.add(argument, array, f"its strides {array.strides} are not those of a matrix {result.core}")
        _check_writeable(argument, array, faults)
        if any(overlap(array, each) for each in (*factors, *inputs_of(options))):
            faults.add(argument, array, "it overlaps an array that is read")
        for other in (other for other, each in others.items() if overlap(array, each)):
            faults.add(argument, array, f"it overlaps `{other}`")
        others[argument] = array


def further(options: Options, result: Result) -> dict[str, Array]:
    """The further outputs as the kernel writes them."""
    return {name: np.asarray(each).reshape(result.core) for name, each in (options.outputs or {}).items()}


def destination(
    factors: Iterable[Any], result: Result, dtype: np.dtype[Any], options: Options, *, is_whole: bool
) -> Destination:
    """The caller's array if there is one, else a new one; a kernel writes another where the two would overlap.

    What a kernel does not write whole is zero where it is new, and as it was in the caller's array.
    """
    out, stores_anywhere = options.out, options.store is not None
    is_apart = out is not None and clashes(out, factors, inputs_of(options), stores_anywhere=stores_anywhere)
    if stores_anywhere:
        whole = np.zeros(result.shape, dtype) if out is None else out
        matrix = np.asarray(whole)
        return Destination(whole, matrix.copy() if is_apart else matrix, is_apart)
    if out is None:
        made = np.empty(result.shape, dtype) if is_whole else np.zeros(result.shape, dtype)
        return Destination(made, made.reshape(result.core))
    matrix = np.asarray(out).reshape(result.core)
    if is_apart or (out.size and not np.may_share_memory(matrix, out)):
        return Destination(out, matrix.copy(), is_apart=True)
    return Destination(out, matrix)
