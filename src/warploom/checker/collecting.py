"""Findings as they are made: similar ones become one, with their number."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, replace

from warploom.checker.codes import CODES
from warploom.checker.model.agents import Lanes
from warploom.checker.model.clocks import G, X
from warploom.checker.model.shadow import Access
from warploom.checker.report import Finding, Party
from warploom.checker.rules import Problem, sentence
from warploom.machine.observers.events import Event, Placed, Source, Started

_LONGEST = 110
"""The longest text of an instruction in a finding."""
_BEFORE_A_CHANGE = (
    "Wait for the copies that use the map before it changes: of a load, for its mbarrier; of a store, with "
    "`cp.async.bulk.wait_group.read`."
)
"""Advice where a tensor map changes too early."""
_MOST = 200
"""Different findings of one check; more are counted and not kept."""


@dataclass(slots=True)
class _Group:
    finding: Finding
    count: int


class Findings:
    """The findings of a check."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self.arrays: tuple[Placed, ...] = ()
        self.roles: dict[int, str] = {}
        self.left_out = 0

    def start(self, started: Started) -> None:
        self.arrays, self.roles = started.arrays, dict(started.roles)

    def add(
        self, code: str, text: str, parties: tuple[Party, ...], *, path: str = "", missing: str = "",
        excused_by: str = "", barrier: str = "", notes: tuple[str, ...] = (), advice: str = "",
    ) -> None:  # fmt: skip
        """Add a finding, or count it with those of the same code, lines and array of barriers; `advice` is the code's
        by default.
        """
        key = (code, tuple(_place(party) for party in parties), re.split(r"\[|\+0x", barrier, maxsplit=1)[0])
        group = self._groups.get(key)
        if group is not None:
            group.count += 1
            return
        if len(self._groups) >= _MOST:
            self.left_out += 1
            return
        found = Finding(
            code, text, parties, path, missing, advice or CODES[code].advice, excused_by=excused_by, notes=notes
        )  # fmt: skip
        self._groups[key] = _Group(found, 1)

    def all(self) -> tuple[Finding, ...]:
        """The findings in the order in which they were made; those that a lost update explains are left out."""
        found = [replace(group.finding, count=group.count) for group in self._groups.values()]
        lines = [{party.loc for party in each.parties} for each in found if each.code == "LOST_UPDATE"]
        return tuple(
            each
            for each in found
            if each.code not in ("RACE_RAW", "RACE_WAR", "RACE_WAW")
            or not any({party.loc for party in each.parties} & explained for explained in lines)
        )

    def __len__(self) -> int:
        return len(self._groups)

    def saved(self) -> tuple[dict[Hashable, tuple[Finding, int]], int]:
        """The findings up to now, to go back to."""
        return {key: (group.finding, group.count) for key, group in self._groups.items()}, self.left_out

    def restore(self, saved: tuple[dict[Hashable, tuple[Finding, int]], int]) -> None:
        """Forget what was found since."""
        groups, self.left_out = saved
        self._groups = {key: _Group(*group) for key, group in groups.items()}

    def party(self, source: Source, event: Event, action: str, **more: object) -> Party:
        """The party of an event."""
        agent = event.agent
        return self.made(
            source, action, agent.cta, agent.warp, lanes=event.lanes, is_asynchronous=bool(agent.operation), **more
        )

    def made(self, source: Source, action: str, cta: tuple[int, int, int], warp: int, **more: object) -> Party:
        """A party with its instruction and role."""
        text = " ".join(source.instruction.text.split()).rstrip(";")
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}…"
        return Party(
            action,
            cta,
            warp,
            source.loc,
            text,
            source.number,
            source.line,
            self.roles.get(warp, ""),
            **more,  # type: ignore[arg-type]
        )

    def access(self, access: Access, addresses: tuple[int, int] | None = None) -> Party:
        """The party of an access."""
        return self.made(
            access.source, "writes" if access.writes else "reads", access.cta, access.warp, lanes=access.lanes,
            is_asynchronous=access.asynchronous, space=access.space, proxy=access.proxy, addresses=addresses,
            place="" if addresses is None else self._array(access.space, addresses[0]), phase=access.phase,
        )  # fmt: skip

    def _array(self, space: str, address: int) -> str:
        if space != "global":
            return ""
        for array in self.arrays:
            if array.base <= address < array.base + array.size:
                return array.name
        return ""

    def race(self, problem: Problem, old: Access, new: Access, part: Lanes, addresses: tuple[int, int] | None) -> None:
        """Add two accesses without an order."""
        code, path = problem.code, ""
        if problem.ordered and old.value is not None and old.components is new.components:
            for sync in part.history:
                if sync.handed.knows(G, old.component, old.value) or sync.handed.knows(X, old.component, old.value):
                    path = " ".join(sync.source.instruction.text.split()).rstrip(";")
                    break
        if code.startswith("RACE") and is_lane_of_known(old, new, part):
            code = "LANE_RELEASE"
        parties = (self.access(new, addresses), self.access(old, addresses))
        self.add(
            code, sentence(problem, old, new), parties, path=path, missing=problem.missing,
            excused_by=problem.relaxation, advice=_BEFORE_A_CHANGE if old.map and new.writes else "",
        )  # fmt: skip


def _place(party: Party) -> Hashable:
    """The line and the instruction of a party, which similar findings have in common."""
    return party.loc.file, party.loc.line, party.action, _opcode(party)


def key_of(finding: Finding) -> Hashable:
    """The identity of a finding in runs under different profiles."""
    return tuple(_place(party) for party in finding.parties)


def _opcode(party: Party) -> str:
    """The instruction without its guard and operands."""
    words = party.instruction.split()
    return next((word for word in words if not word.startswith("@")), "").rstrip(";")


def is_lane_of_known(old: Access, new: Access, part: Lanes) -> bool:
    """True if other lanes of the old access's warp are known at that time: one lane released for all."""
    if old.value is None or old.components is not new.components or old.asynchronous:
        return False
    key = old.components.keys[old.component]
    if key[0] != "warp" or (old.cta, old.warp) == (new.cta, new.warp):
        return False
    for other, number in old.components.numbers.items():
        same_warp = isinstance(other, tuple) and other[:3] == key[:3] and other != key
        if same_warp and part.clock.knows(X, number, old.value):
            return True
    return False
