"""What observers see: one event per effect that the instruction's row declares, and one per completion.

Without observers no event is built: the translated code calls the meanings themselves, and only a run with observers
binds the wrapped ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from warploom.diagnostics import Loc
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.grid import Grid
    from warploom.machine.group import Group


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    `kind` is issue, complete, access, arrive, wait, fence, alloc or free; `agent` names the CTA and warp (or the engine)
    and `lanes` which of its lanes; `details` holds what the kind adds: addresses, bytes, barrier and phase, group.
    """

    kind: str
    agent: tuple[tuple[int, int, int], int]
    lanes: int
    loc: Loc | None
    space: str = ""
    proxy: str = "generic"
    scope: str = ""
    semantics: str = ""
    operation: int = 0
    details: dict[str, Any] = field(default_factory=dict)


class Observer(Protocol):
    """Receives every event of a run, in order."""

    def on_event(self, event: Event) -> None:
        """See one event; must not change what the program sees."""
        ...


_KIND = {
    "reads": "access",
    "writes": "access",
    "arrives": "arrive",
    "expects": "arrive",
    "completes": "issue",
    "waits": "wait",
    "syncs": "wait",
    "drains": "wait",
    "fences": "fence",
    "allocates": "alloc",
    "frees": "free",
    "commits": "issue",
}


def observed(op: Op, run: Any, grid: Grid) -> Any:
    """A meaning that reports the effects of its row around the call itself."""
    effects = op.form.effects
    names = [slot.name for slot in op.form.slots if slot.kind not in ("out", "pair", "outs")]
    loc = grid.loc_of(op)

    def fill(text: str) -> str:
        return op[text[1:-1]] if text.startswith("{") else text

    filled = [
        (effect, fill(effect.space), fill(effect.proxy), fill(effect.scope), fill(effect.detail)) for effect in effects
    ]
    multiple = [slot.kind == "tensor" for slot in op.form.slots if slot.kind not in ("out", "pair", "outs")]

    def wrapped(group: Group, mask: Any, *operands: Any) -> Any:
        result = run(group, mask, *operands)
        if op.form.blocks and (result is None or result is False):
            return result
        values: dict[str, Any] = {}
        at = 0
        for name, two in zip(names, multiple, strict=True):
            values[name] = operands[at : at + 2] if two else operands[at]
            at += 2 if two else 1
        lanes = _bits(mask if mask is not None else group.mask, group.lanes)
        agent = (group.cta.index, group.first_warp)
        for effect, space, proxy, scope, detail in filled:
            details = {"verb": effect.verb, "address": values.get(effect.operand), "operands": values, "detail": detail, "warps": group.warps}
            kind = "issue" if effect.later else _KIND[effect.verb]
            grid.emit(Event(kind, agent, lanes, loc, space, proxy, scope, detail, details=details))
        return result

    return wrapped if effects else run


def _bits(mask: Any, lanes: int) -> int:
    if mask is None:
        return (1 << lanes) - 1
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")
