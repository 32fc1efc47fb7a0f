"""MMAs of a tensor core as one list of native calls: operands to float64, and their products to TMEM.

A kernel's loop issues the same MMAs again and again, with the same descriptors. Their list is made once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warploom.hardware.matrix_descriptors import SharedDescriptor
from warploom.machine.engine.addresses import address_of
from warploom.machine.routines.call_lists import Argument, Prepared, Sequence
from warploom.machine.routines.column_kernels import LaneBlocks
from warploom.machine.tensor.accumulators import accumulator_view
from warploom.machine.tensor.elements import contained
from warploom.machine.tensor.operands import native_place
from warploom.machine.tensor.tmem import tmem_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from warploom.machine.core.cta import Cta
    from warploom.machine.engine.native import Routines
    from warploom.machine.tensor.tensor_core import Run

Matrix = tuple[Argument, int]
"""A place, and the distance of its rows in elements."""


@dataclass(frozen=True, slots=True)
class TensorCalls:
    """A list of calls, and the columns of TMEM, with their number, that it accumulates in or reads.

    Its bases are the shared memory of each CTA, then the TMEM of each.
    """

    calls: Prepared
    columns: tuple[tuple[int, int], ...]


class _Writer:
    """Writes the calls of some runs; operands that several of them read are converted once."""

    def __init__(self, ctas: tuple[Cta, ...], routines: Routines) -> None:
        self.ctas, self.routines = ctas, routines
        self.sequence = Sequence(bases=2 * len(ctas))
        self._known: dict[tuple[object, ...], Matrix | None] = {}

    def operand(
        self,
        ctas: Iterable[int],
        descriptor: SharedDescriptor,
        form: tuple[int, int, str, bool, int, int],
        across: bool,
    ) -> Matrix | None:
        """An operand of which each of some CTAs has the same number of rows, one after the other."""
        numbers = tuple(ctas)
        key = (numbers, descriptor.value, form, across)
        if key not in self._known:
            self._known[key] = self._converted(numbers, descriptor, form, across)
        return self._known[key]

    def _converted(
        self,
        ctas: tuple[int, ...],
        descriptor: SharedDescriptor,
        form: tuple[int, int, str, bool, int, int],
        across: bool,
    ) -> Matrix | None:
        rows, k, element, mn_major, steps, advance = form
        place = native_place(
            descriptor, rows, k, element, mn_major=mn_major, steps=steps, advance=advance, transposed=across
        )
        if place is None:
            return None
        whole = rows * k * steps
        room, base = self.sequence.room(len(ctas) * whole)
        found: Matrix | None = None
        for at, number in enumerate(ctas):
            self.sequence.needs(1 + number, place.end)
            to = room + 8 * at * whole, base
            found = self.routines.granules.convert(
                self.sequence, 1 + number, place.first, place.granules, place.form, to
            )
            if found is None:
                return None
        assert found is not None
        return (room, base), found[1]

    def _in_columns(self, number: int, run: Run) -> Matrix | None:
        """A in the TMEM of a CTA, transposed. MMAs before this one may have written it: it is read each time."""
        place, plan, shape = run.first.a, run.first.plan, run.first.plan.shape
        placement, cells = plan.placement, tmem_of(self.ctas[number]).cells
        if placement.folded or isinstance(place, SharedDescriptor):
            return None
        (lane, column), lanes = place, cells.shape[1]
        blocks = LaneBlocks(placement.blocks, placement.height, placement.pitch)
        columns = plan.a_columns * run.steps
        if lane not in placement.lane_bases or column + columns > len(cells):
            return None
        words = cells.itemsize * (column * lanes + lane), 1 + len(self.ctas) + number
        element = contained(shape.a_element).name
        return self.routines.columns.convert(self.sequence, words, lanes, columns, blocks, element)

    def run(self, run: Run) -> bool:
        """Add the calls of a run; False where native code does not take it."""
        first, plan, shape = run.first, run.first.plan, run.first.plan.shape
        if shape.saturate or plan.vectors or first.key is None:
            return False
        placement, negative = plan.placement, shape.negate_a != shape.negate_b
        if shape.d_type == "s32" and negative:
            return False
        blocks = 1 if placement.folded else placement.blocks
        rows, columns = shape.n // (placement.blocks if placement.folded else 1), plan.rows // blocks
        if not self.routines.products.fit(rows, columns):
            return False
        k, steps, count = shape.k, run.steps, len(self.ctas)
        b_form = (shape.n // count, k, shape.b_element, shape.transpose_b, steps, run.advance[1])
        left = self.operand(range(count), first.b, b_form, across=False)
        a_form = (plan.rows, k, shape.a_element, shape.transpose_a, steps, run.advance[0])
        for number, cta in enumerate(self.ctas):
            base = 1 + count + number
            if isinstance(first.a, SharedDescriptor):
                right = self.operand((number,), first.a, a_form, across=True)
            else:
                right = self._in_columns(number, run)
            if left is None or right is None:
                return False
            cells = tmem_of(cta).cells
            self.sequence.needs(base, cells.nbytes)
            target = accumulator_view(cells.T, placement, *first.d, shape.n)
            for block, part in enumerate(target):
                up, over = (block * rows, 0) if placement.folded else (0, block * columns)
                d = (address_of(part) - address_of(cells), base), part.strides[1] >> 2
                self.routines.products.multiply(
                    self.sequence,
                    _moved(left, 8 * up * left[1]),
                    _moved(right, 8 * over),
                    (rows, columns, k, steps),
                    d,
                    accumulate=first.accumulate,
                    negative=negative,
                    d_type=shape.d_type,
                )
        return True


def _moved(matrix: Matrix, distance: int) -> Matrix:
    """A part of a matrix, so many bytes further on."""
    place, stride = matrix
    assert isinstance(place, tuple)
    return (place[0] + distance, place[1]), stride


def prepare(ctas: tuple[Cta, ...], runs: Iterable[Run], routines: Routines) -> TensorCalls | None:
    """The calls of some runs; None where native code does not take all of them."""
    writer, columns = _Writer(ctas, routines), []
    for run in runs:
        if not writer.run(run):
            return None
        first = run.first
        columns.append((first.d[1], first.plan.columns))
        if isinstance(first.a, tuple):
            columns.append((first.a[1], first.plan.a_columns * run.steps))
    return TensorCalls(writer.sequence.prepared(), tuple(dict.fromkeys(columns)))
