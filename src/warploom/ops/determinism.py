"""The determinism setting, which the choice of configurations obeys.

Every kernel returns the same bits whenever it runs on the same inputs: partial results of several CTAs are added in a
fixed order, and nothing is added atomically. The kernel that runs depends on the sizes, and so may the order of a sum.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import cast

from warploom.diagnostics import user_traceback
from warploom.ops.planning.arrays import Violations


class Settings:
    """Settings of the process, not of a thread: PyTorch runs backward passes in threads of its own."""

    __slots__ = ("batch_invariant",)

    def __init__(self) -> None:
        self.batch_invariant = False


SETTINGS = Settings()
SPLIT_REFUSED = "split-K changes the reduction order with M; not allowed with batch_invariant=True"


class _Restoring(AbstractContextManager[None]):
    """Restores a setting at the end of a `with`."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        SETTINGS.batch_invariant = self._before


@user_traceback
def determinism(*, batch_invariant: bool) -> AbstractContextManager[None]:
    """Set whether a row of a result may depend on the number of rows; in a `with`, until its end.

    Kernels are chosen by the sizes, and one that splits K rounds differently from one that does not. With
    `batch_invariant=True` no kernel splits K: a row has the same bits in a batch of one and of a thousand. Shapes with
    few rows and a large K take longer. The setting is the whole process's, and holds for all later calls.
    """
    if not isinstance(cast("object", batch_invariant), bool):
        violations = Violations("determinism")
        violations.add("batch_invariant", batch_invariant, "must be True or False")
        violations.check()
    before, SETTINGS.batch_invariant = SETTINGS.batch_invariant, batch_invariant
    return _Restoring(before)
