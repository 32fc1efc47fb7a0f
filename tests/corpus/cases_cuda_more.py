"""More CUDA C++: functions that are not inlined, the heap, packed words, sub-byte products."""

from __future__ import annotations

from functools import partial

import numpy as np

from .case import Array, Arrays, Case, drawn, integers, normal, output
from .cases_cuda import cuda_case

calls = partial(cuda_case, file="calls.cu", grid=(2,), block=32, schedules="few")
WORD = 0xFFFFFFFF


def forest(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Nodes (left, right, value) whose children have higher numbers, at most five deep."""
    nodes = np.full(shape, -1)
    depth = np.zeros(len(nodes), int)
    for at in range(len(nodes)):
        for side in range(2):
            child = int(rng.integers(at + 1, len(nodes) + 20)) if depth[at] < 4 else len(nodes)
            if child < len(nodes):
                nodes[at, side] = child
                depth[child] = max(depth[child], depth[at] + 1)
    nodes[:, 2] = rng.integers(-9, 10, len(nodes))
    return nodes


def walked(arrays: Arrays) -> Arrays:
    """The same recursion, from the last node to the first."""
    tree, sums = arrays["tree"], np.zeros(len(arrays["tree"]) + 1, np.int64)
    for at in reversed(range(len(tree))):
        left, right, value = tree[at]
        sums[at] = value + 2 * sums[left] - 3 * sums[right]
    return {"out": sums[:-1]}


def through_pointers(arrays: Arrays) -> Arrays:
    """A function by the remainder of three, an area by a bit."""
    x = arrays["x"].astype(np.int64)
    by_table = np.choose(x % 3, [x + 1, 2 * x, x * x])
    place = np.arange(len(x))
    return {"out": by_table * 1000 + np.where(x & 4, x * x * place, x + place)}


def heap_lists(arrays: Arrays) -> Arrays:
    """Each thread's list, last element first."""
    total = np.zeros(len(arrays["out"]), np.int64)
    for value in arrays["x"][::-1].tolist():
        total = total * 3 + (value ^ np.arange(len(total)))
    return {"out": total}


def words_in_parts(arrays: Arrays) -> Arrays:
    """Bytes and half-words as separate arrays."""
    x, y = arrays["x"], arrays["y"]

    def parts(words: Array, dtype: str) -> Array:
        return words.view(dtype).reshape(len(words), -1).astype(np.int64)

    def joined(values: Array, dtype: str) -> Array:
        return np.ascontiguousarray(values.astype(dtype)).view(np.uint32).reshape(-1)

    bytes_, halves = (parts(x, "u1"), parts(y, "u1")), (parts(x, "u2"), parts(y, "u2"))
    signed, shorts = (parts(x, "i1"), parts(y, "i1")), (parts(x, "i2"), parts(y, "i2"))
    rows = [
        joined(abs(bytes_[0] - bytes_[1]), "u1"), abs(halves[0] - halves[1]).sum(1) + 9,
        joined((signed[0] + signed[1]).clip(-128, 127), "i1"), joined((halves[0] - halves[1]).clip(0), "u2"),
        joined(np.maximum(*bytes_), "u1"), joined(np.minimum(*shorts), "i2"),
        joined((bytes_[0] + bytes_[1] + 1) // 2, "u1"), joined(shorts[0] < shorts[1], "u2"),
        (bytes_[0] >= bytes_[1]).sum(1) + 100,
    ]  # fmt: skip
    return {"out": np.stack(rows)}


def spellings(arrays: Arrays) -> Arrays:
    """The larger or the smaller of two, and their sum to the nearest even."""
    a, b = arrays["x"]
    chosen = np.where(a > 0, np.maximum(a, b), np.minimum(a, b))
    return {"out": np.stack([chosen, np.rint(a + b)])}


def narrow(name: str, instruction: str, bits: int, *, signed: bool = False, differs: bool = False) -> Case:
    """Products of sub-byte integers, eight words of K per step."""
    steps, per_word = 3, 32 // bits

    def numbers(words: Array) -> Array:
        fields = words[:, :, None] >> np.arange(0, 32, bits, dtype=np.uint32) & np.uint32((1 << bits) - 1)
        whole = fields.reshape(len(words), -1).astype(np.int64)
        return whole - (whole >= 1 << bits - 1) * (1 << bits) if signed else whole

    def expected(arrays: Arrays) -> Arrays:
        a, b = numbers(arrays["a"]), numbers(arrays["b"])
        assert a.shape[1] == steps * 8 * per_word
        return {"c": (a[:, None] ^ b[None]).sum(2) if differs else a @ b.T}

    return cuda_case(
        "mma_narrow", "mma_narrow.cu", (1,), 32,
        {"a": integers(np.uint32, 16, steps * 8, low=0, high=2**32),
            "b": integers(np.uint32, 8, steps * 8, low=0, high=2**32), "c": output(np.int32, 16, 8)},
        ("a", "b", "c", steps), expected, name=f"mma_{name}", defines={"MMA": f'"{instruction}"'}, schedules="one",
    )  # fmt: skip


CASES = [
    calls(
        "tree_walk", buffers={"tree": drawn(np.int32, forest, 50, 3), "out": output(np.int32, 50)},
        args=("tree", "out", 50), expected=walked,
    ),
    calls(
        "sort_recursively",
        buffers={"x": integers(np.int32, 40, 10, low=-99, high=99), "out": output(np.int32, 40, 10)},
        args=("x", "out", 40), expected=lambda x: {"out": np.sort(x["x"], 1)}, schedules="one",
    ),
    calls(
        "through_pointers", buffers={"x": integers(np.int32, 50, low=0, high=99), "out": output(np.int32, 50)},
        args=("x", "out", 50), expected=through_pointers,
    ),
    calls(
        "heap_lists", grid=(1,), block=40,
        buffers={"x": integers(np.int32, 7, low=0, high=99), "out": output(np.int32, 40)},
        args=("x", "out", 7), expected=heap_lists, schedules="one",
    ),
    calls(
        "words_in_parts",
        buffers={name: integers(np.uint32, 50, low=0, high=2**32) for name in "xy"} | {"out": output(np.uint32, 9, 50)},
        args=("x", "y", "out", 50), expected=words_in_parts, schedules="one",
    ),
    calls(
        "spellings", grid=(1,), block=(8, 8, 1),
        buffers={"x": normal(np.float32, 2, 50, scale=5), "out": output(np.float32, 2, 50)},
        args=("x", "out", 50), expected=spellings, schedules="one",
    ),
    narrow("s4", "m16n8k64.row.col.s32.s4.s4.s32", 4, signed=True),
    narrow("u4", "m16n8k64.row.col.satfinite.s32.u4.u4.s32", 4),
    narrow("b1", "m16n8k256.row.col.s32.b1.b1.s32.xor.popc", 1, differs=True),
]  # fmt: skip
