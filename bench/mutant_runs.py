"""Runs of mutants: a launch as plain data, run under named schedules by whichever warploom is imported.

`python bench/mutant_runs.py` answers requests on standard input, so that another checkout (`PYTHONPATH`) can be the
baseline: each is a pickle of the arguments of `outcomes`, each answer a pickle of its result.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import warploom

Job = dict[str, Any]
Array = np.ndarray[Any, Any]


def job_of(launch: Any, text: str, out: Array, sms: int | None) -> Job:
    """A launch as plain data: its memory, its arguments as places in that memory, and the place of the output."""
    roots: list[Array] = []

    def place(array: Any) -> dict[str, Any]:
        root = np.asarray(array)
        while isinstance(root.base, np.ndarray):
            root = root.base
        known = next((at for at, each in enumerate(roots) if each is root), None)
        if known is None:
            known = len(roots)
            roots.append(root)
        low = np.lib.array_utils.byte_bounds(root)[0]
        first = np.lib.array_utils.byte_bounds(array)[0]
        return {"root": known, "offset": first - low, "shape": array.shape, "strides": array.strides,
                "dtype": array.dtype, "writeable": array.flags.writeable}  # fmt: skip

    def argument(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return "array", place(value)
        if hasattr(value, "geometry"):
            return "map", place(value.array), map_options(value)
        return "value", value

    args = [argument(value) for value in launch.args]
    output = place(out)
    shape = {name: getattr(launch, name) for name in ("grid", "block", "cluster", "shared_bytes", "entry")}
    return {"text": text, "args": args, "out": output, "roots": [root.copy() for root in roots], "sms": sms, **shape}


def map_options(tensor_map: Any) -> dict[str, Any]:
    """The keywords that make a tensor map again."""
    geometry = tensor_map.geometry
    steps = geometry.element_strides
    return {
        "box": [size * step for size, step in zip(geometry.box, steps, strict=True)],
        "shape": geometry.shape,
        "strides": (*geometry.strides, tensor_map.array.itemsize),
        "dtype": tensor_map.dtype,
        "swizzle": getattr(geometry.swizzle, "name", geometry.swizzle),
        "element_strides": steps,
        "fill": geometry.fill,
        "interleave": geometry.interleave,
        "l2_promotion": tensor_map.l2_promotion,
        "offset": tensor_map.offset,
    }


def made(job: Job) -> tuple[dict[str, Any], Array]:
    """The keywords of `launch`, over fresh memory, and the output in it."""
    roots = [root.copy() for root in job["roots"]]

    def array(place: dict[str, Any]) -> Array:
        data = roots[place["root"]].reshape(-1).view(np.uint8)
        found = np.ndarray(place["shape"], place["dtype"], data, place["offset"], place["strides"])
        found.flags.writeable = place["writeable"]
        return found

    args = []
    for kind, *rest in job["args"]:
        if kind == "map":
            args.append(warploom.TensorMap(array(rest[0]), **rest[1]))
        else:
            args.append(array(rest[0]) if kind == "array" else rest[0])
    options = {name: job[name] for name in ("grid", "block", "cluster", "shared_bytes", "entry", "sms")}
    return {"args": args, **options}, array(job["out"])


def outcome(job: Job, schedule: Any, seed: int, limit: int) -> tuple[str, int]:
    """A digest of the output, or the code of the error, and the instructions executed."""
    options, out = made(job)
    try:
        ran = warploom.launch(job["text"], schedule=schedule, seed=seed, limit=limit, **options)
    except warploom.WarploomError as error:
        return error.code, 0
    return hashlib.sha256(out.tobytes()).hexdigest()[:16], ran.instructions


def outcomes(job: Job, schedules: Sequence[tuple[str, int]], limit: int, expected: str = "") -> list[tuple[str, int]]:
    """The outcomes under some schedules, up to the first that is not the expected one."""
    found: list[tuple[str, int]] = []
    for schedule, seed in schedules:
        found.append(outcome(job, schedule, seed, limit))
        if expected and found[-1][0] != expected:
            break
    return found


def main() -> None:
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(outcomes(*request), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
