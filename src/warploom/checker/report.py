"""Reports: the verdict of a check, its findings, and what the verdict covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from warploom.checker.codes import CODES
from warploom.diagnostics import Loc, WarploomError
from warploom.ptx.syntax.symbols import readable

if TYPE_CHECKING:
    from warploom.machine.core.schedule import Recorded

Triple = tuple[int, int, int]


class Verdict(StrEnum):
    """The three answers of a check."""

    PROVED = "PROVED"
    """No interleaving that `covers` names races, hangs or faults, under the assumptions."""
    REFUTED = "REFUTED"
    """At least one finding."""
    INCOMPLETE = "INCOMPLETE"
    """No finding, and some interleavings or inputs were not covered; `reasons` says which."""


@dataclass(frozen=True, slots=True)
class Party:
    """One side of a finding: who did what, with which instruction, to which bytes or barrier."""

    action: str
    """A verb in the third person: reads, writes, arrives, waits, expects, allocates, frees."""
    cta: Triple
    warp: int
    loc: Loc
    """The author's line where the PTX carries it, else the line of the PTX."""
    instruction: str
    """Its text."""
    number: int = -1
    """The instruction's place in its kernel, which is the same in every run; -1 if unknown."""
    line: int = 0
    """The line of the PTX; 0 for a traced program."""
    role: str = ""
    lanes: int = 0xFFFF_FFFF
    """The lanes of the warp, as bits."""
    is_asynchronous: bool = False
    """True for the engine that works on an operation of this warp, rather than the warp itself."""
    space: str = ""
    addresses: tuple[int, int] | None = None
    """The first byte and the one after the last, of the bytes in question; in TMEM lane << 16 | column."""
    place: str = ""
    """The bytes by name: an array of the launch, or a shared variable."""
    proxy: str = ""
    barrier: str = ""
    """The name of the barrier: `inputs.full[1]`."""
    phase: int | None = None

    @property
    def who(self) -> str:
        """`load warp 5 of CTA (0,0)`."""
        x, y, z = self.cta
        cta = f"CTA ({x},{y},{z})" if z else f"CTA ({x},{y})"
        return f"{self.role} warp {self.warp} of {cta}".strip()

    @property
    def what(self) -> str:
        """The action with its object: `reads shared 0xc400-0xec00 through the async proxy`."""
        words = [self.action]
        if self.barrier:
            words.append(self.barrier + (f" in phase {self.phase}" if self.phase is not None else ""))
        elif self.space:
            words.append("TMEM" if self.space == "tensor" else self.space)
            if self.addresses is not None:
                words.append(f"{self.addresses[0]:#x}-{self.addresses[1]:#x}")
            if self.place:
                words.append(f"({self.place})")
        if self.proxy and self.proxy != "generic":
            words.append(f"through the {self.proxy} proxy" if self.proxy == "async" else f"through {self.proxy}")
        return " ".join(words)

    def __str__(self) -> str:
        return f"{self.loc}: `{self.instruction}`: {self.who} {self.what}"


@dataclass(frozen=True, slots=True)
class Witness:
    """A schedule that shows a finding, or the reason why there is none.

    `kind` is "mismatch", "disagreement" or the code of an error, as in `Failure`; empty if no schedule shows the
    finding, and `text` then says why.
    """

    kind: str
    text: str
    schedule: Recorded | None = field(default=None, compare=False, repr=False)
    found_by: str = ""
    tried: int = 0

    @property
    def confirmed(self) -> bool:
        """True if the schedule replays to a wrong number, a fault or a hang."""
        return self.schedule is not None and bool(self.kind)


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect: its code, both parties, the path between them, and what is missing on it.

    Pairs with the same code, lines and barrier are one finding; `count` is their number.
    """

    code: str
    sentence: str
    parties: tuple[Party, ...] = ()
    path: str = ""
    """The synchronisation that does order the parties, in words; empty if nothing does."""
    missing: str = ""
    """The instruction that would order them."""
    advice: str = ""
    count: int = 1
    excused_by: str = ""
    """The relaxation of the profile `lenient` that accepts it; empty if it remains a finding there."""
    witness: Witness | None = None
    notes: tuple[str, ...] = ()
    """Further lines: the warps of a deadlock and what they wait for, library frames under an author's line."""
    at: Loc | None = None
    """The line of a fault or deadlock, which has no parties."""

    @property
    def loc(self) -> Loc | None:
        """The line to look at first: that of the first party."""
        return self.parties[0].loc if self.parties else self.at

    @property
    def title(self) -> str:
        """A few words for the code."""
        return CODES[self.code].title

    def __str__(self) -> str:
        lines = [f"{self.code}  {self.sentence}"]
        lines += [f"  {party.loc}  {party.instruction}  {party.who} {party.what}" for party in self.parties]
        lines += [
            f"  {label}{text}" for label, text in (("ordered by ", self.path), ("missing: ", self.missing)) if text
        ]
        if self.count > 1:
            lines.append(f"  {self.count} pairs of accesses or arrivals on these lines")
        lines += [f"  {note}" for note in self.notes]
        if self.witness is not None:
            lines.append(f"  witness: {self.witness.text}")
        if self.advice:
            lines.append(f"  fix: {self.advice}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A relaxation of `lenient`, and the number of pairs that it accepted or would accept."""

    name: str
    citation: str
    count: int


@dataclass(frozen=True, slots=True)
class Covers:
    """The executions that a verdict speaks of.

    `interleavings` is "all", or "this run" where control may depend on the schedule. `generalised` are parameters for
    which the verdict holds beyond the values that were run, as conditions (`k_tiles >= 1`); `as_run` are those that
    stay as they were run. `cases` are further launches that were run one by one, by name.
    """

    interleavings: str = "all"
    generalised: tuple[str, ...] = ()
    as_run: tuple[str, ...] = ()
    runs: int = 1
    """The executions that were checked: one, or one for each enumerated choice."""
    cases: tuple[str, ...] = ()

    def __str__(self) -> str:
        general = "; ".join(self.generalised)
        fixed = ", ".join(self.as_run)
        parts = [
            f"{'all' if self.interleavings == 'all' else 'this'} interleaving{'s' * (self.interleavings == 'all')}"
        ]
        parts += [f"for all {general}"] if general else []
        parts += [f"cases: {'; '.join(self.cases)}"] if self.cases else []
        parts += [f"as run: {fixed}"] if fixed else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Cost:
    """The price of a check."""

    seconds: float = 0.0
    events: int = 0
    instructions: int = 0
    """Warp instructions of the checked runs."""
    runs: int = 1


@dataclass(frozen=True)
class Report:
    """The result of `check`."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    covers: Covers = Covers()
    assumptions: tuple[str, ...] = ()
    """Properties that the verdict relies on and that were not checked."""
    fidelity: str = "emulator"
    """The model that ran the kernel."""
    profile: str = "strict"
    reasons: tuple[str, ...] = ()
    """The causes of INCOMPLETE, each a sentence."""
    relaxed: tuple[Relaxed, ...] = ()
    """Relaxations and their counts: accepted under `lenient`, findings under `strict`."""
    lints: tuple[Finding, ...] = ()
    """Remarks on code that is correct, such as barriers and fences that order nothing."""
    name: str = ""
    """The kernel's name."""
    cost: Cost = Cost()
    error: WarploomError | None = field(default=None, compare=False)
    """The fault or deadlock that ended the run, if one did."""

    @property
    def remaining_under_lenient(self) -> tuple[Finding, ...]:
        """The findings that no relaxation of `lenient` accepts."""
        return tuple(finding for finding in self.findings if not finding.excused_by)

    @property
    def ok(self) -> bool:
        """True if PROVED."""
        return self.verdict is Verdict.PROVED

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __str__(self) -> str:
        head = f"{self.verdict}  {readable(self.name)}  profile {self.profile}; {self.covers}".replace("  ;", ";")
        lines = [head, *(f"  because {reason}" for reason in self.reasons)]
        for finding in self.findings:
            lines += [f"  {line}" for line in str(finding).splitlines()]
        lines += [f"  assumes {assumption}" for assumption in self.assumptions]
        lines += [f"  {each.name}: {each.count} pairs ({each.citation})" for each in self.relaxed]
        lines += [f"  lint {lint.code}: {lint.sentence}" for lint in self.lints]
        return "\n".join(lines)


def proved(reports: Sequence[Report]) -> str:
    """The verdict of reports that are all PROVED, with the names of their assumptions (`warploom explain`)."""
    names = sorted({each.partition(":")[0] for report in reports for each in report.assumptions})
    return "PROVED, as run" + (f", assuming {', '.join(names)}" if names else "")
