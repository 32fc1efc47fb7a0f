"""Descriptors that Gluon's and Triton's kernels carry, for layouts of the library; `python -m tests.foreign.descriptors`.

A kernel is run on the emulator, and the values that reach the tensor core are recorded: instruction descriptors, matrix
descriptors of A and B without their addresses, those of copies of scale factors to TMEM, and the addresses of
successive MMAs inside a K tile. The script writes those of both to `descriptors.json`; it needs Triton, no GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.corpus.case import Case, Map
from tests.corpus.cases_gluon import CASES, block_scaled
from tests.corpus.cases_triton_matmul import CASES as OF_TRITON
from tests.corpus.run import run

from warploom.hardware.bitfields import unpack
from warploom.hardware.instruction_descriptors import LAYOUT as INSTRUCTION
from warploom.hardware.matrix_descriptors import LAYOUT, decode_shared_descriptor
from warploom.machine.instructions.tcgen05 import mma as tcgen05
from warploom.machine.tensor import operands

FILE = Path(__file__).with_name("descriptors.json")
NAMES = ("wgmma_ring", "wgmma_ring_e4m3", "tcgen05_ring", "tcgen05_ring_m64", "tcgen05_ring_16x256b", "two_cta_matmul")
TRITON = ("scaled_mixed",)
"""A kernel of `tl.dot_scaled`, which loads by pointers: 8 bits times 4."""
_UNIT, _SPAN = 16, 128

Recorded = dict[str, Any]


def layouts() -> list[Case]:
    """The kernels of Gluon whose layouts are compared."""
    dense = [case for case in CASES if case.name.removeprefix("gluon_").rpartition("_sm")[0] in NAMES]
    return [*dense, block_scaled(100, "mxfp8"), block_scaled(100, "mxfp4", 256), block_scaled(100, "nvfp4", 256)]


def matrix(value: int, family: str, *, mn_major: bool) -> dict[str, int]:
    """The fields of a matrix descriptor that matter, without its address.

    The leading offset is unused along a swizzled K, in an operand of one span, and in copies of 16-byte rows; the base
    offset is unused without a swizzle.
    """
    fields = unpack(LAYOUT[family], value)
    unused = {"start", "reserved", *(() if mn_major else ("leading",))}
    unused |= set() if decode_shared_descriptor(value, family).swizzle.bits else {"base_offset"}
    return {name: each for name, each in fields.items() if name not in unused}


def recorded(run_it: Callable[[], object]) -> Recorded:
    """Run something on the emulator, and return the descriptors that its MMAs and copies got."""
    mmas, copies, starts = list[dict[str, Any]](), list[dict[str, int]](), list[tuple[int, int]]()
    issue, decoded, locate = tcgen05._Mma.issue, tcgen05._Mma._decoded, operands.OperandForm.locate

    def of_issue(self: Any, *given: Any) -> Any:
        self._met.clear()  # decode again what an earlier launch of the same kernel has decoded
        return issue(self, *given)

    def of_mma(self: Any, a: int, b: int, i: int) -> Any:
        got = decoded(self, a, b, i)
        shape = got[0].shape
        spans = {"a": got[0].rows * shape.transpose_a, "b": shape.n // self.group * shape.transpose_b}
        both = {
            name: matrix(value, "sm_100", mn_major=spans[name] * got[0].shape.kind.element_bits // 8 > _SPAN)
            for name, value in (("a", a), ("b", b))
        }
        fields = {name: each for name, each in unpack(INSTRUCTION[self.kind], i).items() if name != "reserved"}
        mmas.append({"kind": self.kind, "cta_group": self.group, "instruction": fields, **both})
        starts.append(((a & 0x3FFF) * _UNIT, (b & 0x3FFF) * _UNIT))
        return got

    def of_copy(value: int, family: str) -> Any:
        if sys._getframe(1).f_code.co_name == "run":
            copies.append(matrix(value, family, mn_major=False))
        return decode_shared_descriptor(value, family)

    def of_wgmma(self: Any, value: int, steps: int = 1, advance: int = 0) -> Any:
        if self.family == "sm_90":
            found = matrix(value, "sm_90", mn_major=self.mn_major)
            mmas.append({"rows": self.rows, "k": self.k, "element": self.element, "operand": found})
        return locate(self, value, steps, advance)

    with (
        patch.object(tcgen05._Mma, "issue", of_issue),
        patch.object(tcgen05._Mma, "_decoded", of_mma),
        patch.object(tcgen05, "decode_shared_descriptor", of_copy),
        patch.object(operands.OperandForm, "locate", of_wgmma),
    ):
        run_it()
    return {"mmas": _distinct(mmas), "copies": _distinct(copies), "steps": _steps(starts)}


def _distinct(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts = sorted({json.dumps(each, sort_keys=True) for each in found})
    return [json.loads(each) for each in texts]


def _steps(starts: list[tuple[int, int]]) -> list[list[int]]:
    """Bytes from the first MMA of a K tile to each of the first four, of A and of B."""
    first = starts[:4]
    return [[a - first[0][0], b - first[0][1]] for a, b in first]


def of_gluon(case: Case) -> Recorded:
    """The descriptors of a Gluon kernel, and of the boxes of A and B the rows, the bytes of a row, and the swizzle."""
    prepared = case.prepare()
    maps = {each.buffer: each for each in prepared.args if isinstance(each, Map)}
    found = recorded(lambda: run(prepared))
    for name in ("a", "b"):
        *rows, columns = maps[name].box
        found[f"{name}_box"] = [*rows, columns * prepared.arrays[name].itemsize, maps[name].swizzle]
    return found


def main() -> None:
    held = {case.name: of_gluon(case) for case in layouts()}
    for case in OF_TRITON:
        if case.name.removeprefix("triton_").rpartition("_sm")[0] in TRITON:
            prepared = case.prepare()
            held[case.name] = recorded(lambda prepared=prepared: run(prepared))
    FILE.write_text(json.dumps({"compiler": f"Triton {version('triton')}", "kernels": held}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
