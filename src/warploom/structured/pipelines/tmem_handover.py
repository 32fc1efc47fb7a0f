"""Hand-overs of TMEM between roles: the tcgen05 fences around a stage's barriers, checked at the end of the trace.

An mbarrier does not order tcgen05 accesses of different threads by itself. The role that hands over executes
`tcgen05.fence::before_thread_sync` between its last access and its arrival, the other role
`tcgen05.fence::after_thread_sync` between its wait and its first access. A commit of the tensor core needs no fence
before it. `OutputTilePipeline` has all of them; a stage of another pipeline may hold TMEM too, and then they are the
author's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from warploom.diagnostics import Diag, Loc
from warploom.ptx.syntax.model import Instruction, Statement

_BY_THREADS = ("tcgen05.ld.", "tcgen05.st.")
_STORES = ("tcgen05.st.",)
_ACCESSES = (*_BY_THREADS, "tcgen05.mma.", "tcgen05.cp.")
_BEFORE, _AFTER = "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync"


@dataclass(frozen=True)
class Hold:
    """The tcgen05 instructions of a role between its wait for a stage and its signal."""

    role: str
    found: tuple[Instruction, ...]
    released: Loc
    by_commit: bool
    """True if the tensor core's commit is the signal."""

    @classmethod
    def of(cls, role: str, statements: Sequence[Statement], released: Loc, *, by_commit: bool) -> Self:
        inside = (each for each in statements if isinstance(each, Instruction))
        return cls(role, tuple(each for each in inside if each.opcode.startswith("tcgen05.")), released, by_commit)

    def has(self, kinds: tuple[str, ...]) -> bool:
        """Return whether any of the instructions is one of some kinds."""
        return any(each.opcode.startswith(kinds) for each in self.found)

    def check(self, pipeline: str) -> None:
        """Check the fences after the wait and before the arrival."""
        at = next((at for at, each in enumerate(self.found) if each.opcode.startswith(_ACCESSES)), len(self.found))
        fields = {"pipeline": pipeline, "role": self.role}
        if at < len(self.found) and all(each.opcode != _AFTER for each in self.found[:at]):
            first = self.found[at]
            what = f"accesses it with `{_short(first)}` after the wait"
            raise Diag.TMEM_HANDOVER_NOT_FENCED.error(first.loc, what=what, fence=_AFTER, **fields)
        for each in reversed(self.found):
            if self.by_commit or each.opcode == _BEFORE:
                return
            if each.opcode.startswith(_BY_THREADS):
                what = f"arrives after its `{_short(each)}` at {each.loc}"
                raise Diag.TMEM_HANDOVER_NOT_FENCED.error(self.released, what=what, fence=_BEFORE, **fields)


def _short(instruction: Instruction) -> str:
    return ".".join(instruction.opcode.split(".")[:2])


def check_handover(pipeline: str, produced: Sequence[Hold], consumed: Sequence[Hold], *, by_commit: bool) -> None:
    """Check the fences of a pipeline whose stages hold TMEM; `by_commit` if the tensor core commits them.

    Stages hold TMEM if MMAs are committed and threads of the consumer load or store TMEM in a stage, or if threads of
    the producer store to TMEM in a stage and the consumer accesses TMEM in one.
    """
    reads = any(each.has(_BY_THREADS if by_commit else _ACCESSES) for each in consumed)
    writes = by_commit or any(each.has(_STORES) for each in produced)
    if reads and writes:
        for each in (*produced, *consumed):
            each.check(pipeline)
