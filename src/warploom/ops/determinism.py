"""What results may depend on beside their inputs: a switch that the choice of configurations obeys.

Every kernel gives the same bits whenever it runs on the same inputs: sums that several CTAs share are added in a fixed
order, and nothing is added atomically. Which kernel runs depends on the sizes, and so may the order of a sum.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import cast

from warploom.ops.planning.violations import Faults


class Choice:
    """The process's own, and not a thread's: PyTorch derives in threads of its own."""

    __slots__ = ("batch_invariant",)

    def __init__(self) -> None:
        self.batch_invariant = False


CHOICE = Choice()
SPLIT_REFUSED = "CTAs share a sum in an order that depends on its place, and results are to be batch-invariant"


class _Restoring(AbstractContextManager[None]):
    """A switch that has been set, and goes back at the end of a `with`."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CHOICE.batch_invariant = self._before


def determinism(*, batch_invariant: bool) -> AbstractContextManager[None]:
    """Say whether a row of a result may depend on how many rows there are; in a `with`, until its end.

    Kernels are chosen by the sizes, and one that splits the depth of a sum rounds otherwise than one that does not.
    With `batch_invariant=True` none splits it: a row has the same bits in a batch of one and of a thousand. Shapes with
    few rows and a deep sum take longer. It holds for the whole process, at once, and for what is called from then on.
    """
    if not isinstance(cast("object", batch_invariant), bool):
        faults = Faults("determinism")
        faults.add("batch_invariant", batch_invariant, "it is True or False")
        faults.check()
    before, CHOICE.batch_invariant = CHOICE.batch_invariant, batch_invariant
    return _Restoring(before)
