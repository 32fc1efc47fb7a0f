"""Registers that the lanes of a group share hold what they hold lane by lane, wherever lanes and warps part."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine.engine.mutants import engine
from tests.machine.simt import threads

from warploom.machine.translate import translator
from warploom.ptx.analysis.uniformity import LANE

BLOCKS = ((256, 1, 1), (96, 2, 1), (128, 2, 1), (160, 1, 1), (40, 3, 1))
_KEPT = ("%r20", "%r21", "%r22", "%r23", "%r24", "%r25")
_COMPARED = (1, 4, 31, 32, 64, 96, 127, 128, 200)
_CONSTANTS = (1, 2, 4, 5, 7, 31, 32, 96, 127, 128, 0xFFFFFF80, 0xFFFFFFE0, 0xFFFFFFFC)
_DEEPEST = 3


class Body:
    """A random body with branches and loops around arithmetic, often shifts, masks and comparisons of threads' numbers.

    Most registers are set once, and are known where all lanes have set them. Lanes shuffle values before they part.
    """

    def __init__(self, seed: int) -> None:
        self.rng, self.registers, self.labels, self.text = random.Random(seed), 0, 0, list[str]()

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def arithmetic(self, known: list[str], *, shuffles: bool = False) -> str:
        """Set a register from others; its name."""
        rng, number = self.rng, self.registers
        self.registers += 1
        target = f"%x{number}" if rng.random() < 0.8 else rng.choice(_KEPT)
        source, constant = rng.choice([*known, *known[:2], *known[-3:]]), rng.choice(_CONSTANTS)
        match rng.randrange(8):
            case 0 | 1:
                line = f"shr.u32 {target}, {source}, {rng.choice((1, 2, 5, 6, 7, 8))};"
            case 2 | 3:
                line = f"and.b32 {target}, {source}, {constant};"
            case 4:
                line = f"add.u32 {target}, {source}, {constant};"
            case 5 if shuffles:
                line = f"shfl.sync.idx.b32 {target}, {source}, 0, 31, -1;"
            case 5:
                line = f"add.u32 {target}, {source}, {rng.choice(known)};"
            case _:
                compare, limit = rng.choice(("lt", "ge", "gt", "le", "eq")), rng.choice(_COMPARED)
                line = f"setp.{compare}.u32 %c{number}, {source}, {limit}; selp.b32 {target}, 3, 8, %c{number};"
        if target in _KEPT and rng.random() < 0.5:
            line = f"{rng.choice(('', '@%p2 '))}mov.u32 {target}, {constant};"
        self.text.append(line)
        return target

    def block(self, depth: int, known: list[str]) -> None:
        """Instructions, and regions that some of the lanes execute."""
        rng, known = self.rng, [*known]
        for _ in range(rng.randrange(2, 7)):
            known.append(self.arithmetic(known, shuffles=not depth))
        self.text.append(f"xor.b32 {rng.choice(_KEPT)}, {rng.choice(_KEPT)}, {rng.choice(known)};")
        for _ in range(rng.randrange(3) if depth < _DEEPEST else 0):
            (self.loop if rng.random() < 0.25 else self.branch)(depth + 1, known)
            if not depth:
                self.text.append("bar.warp.sync -1;")
            known.append(self.arithmetic(known))

    def loop(self, depth: int, known: list[str]) -> None:
        """A loop of one or two passes, as many as a register says."""
        label, count, most = self.label(), f"%r{50 + depth}", f"%r{55 + depth}"
        self.text += [f"mov.u32 {count}, 0; and.b32 {most}, {self.rng.choice(known)}, 1;", f"{label}:"]
        self.block(depth, known)
        self.text.append(f"add.u32 {count}, {count}, 1; setp.le.u32 %p3, {count}, {most}; @%p3 bra {label};")

    def branch(self, depth: int, known: list[str]) -> None:
        """A branch with one or two arms."""
        label, rng, number = self.label(), self.rng, self.registers
        self.registers += 1
        compare, limit = rng.choice(("lt", "ge", "eq")), rng.choice(_COMPARED)
        self.text.append(f"setp.{compare}.u32 %c{number}, {rng.choice([*known, *known[:2]])}, {limit};")
        self.text.append(f"@%c{number} bra {label}A;")
        self.block(depth, known)
        if rng.random() < 0.5:
            self.text.append(f"{label}A:")
            return
        self.text.append(f"bra {label}B; {label}A:")
        self.block(depth, known)
        self.text.append(f"{label}B:")


def body_of(seed: int) -> str:
    """A body that stores eight registers at its end."""
    made = Body(seed)
    made.block(0, ["%r4", "%r5", *_KEPT])
    first = [
        f".reg .b32 %x<{made.registers + 1}>; .reg .pred %c<{made.registers + 1}>; mov.u32 %r4, %tid.x;",
        "shr.u32 %r5, %r4, 5; mov.u32 %r20, %r4; shr.u32 %r21, %r4, 7; mov.u32 %r22, %ctaid.x; and.b32 %r23, %r4, 31;",
        "mov.u32 %r24, %laneid; mov.u32 %r25, 1; setp.lt.u32 %p2, %r4, 77;",
    ]
    stores = [f"st.global.u32 [%rd0+{4 * at}], {name};" for at, name in enumerate((*_KEPT, "%r4", "%r5"))]
    return "\n".join([*first, *made.text, *stores])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(BLOCKS), st.sampled_from(["eager", "random"]))
def test_shared_registers_hold_what_every_lane_holds(seed: int, block: tuple[int, int, int], schedule: str) -> None:
    body, options = body_of(seed), dict[str, Any](words=8, grid=2, schedule=schedule)
    if schedule == "random":
        options["seed"] = seed % 97
    found = []
    for name in ("numpy", "native"):
        if name == "native":
            pytest.importorskip("llvmlite")
        with engine(name):
            found.append(threads(body, block, **options))
    with pytest.MonkeyPatch.context() as patch, engine("numpy"):
        patch.setattr(
            translator, "classify", lambda kernel, flow, **_: dict.fromkeys((n for n, _ in kernel.registers), LANE)
        )
        expected = threads(body + "\n// each lane by itself", block, **options)
    for each in found:
        assert np.array_equal(each, expected)
