"""`check`: runs a kernel on copies of its arrays, and judges every interleaving of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warploom.checker.codes import CODES
from warploom.checker.collecting import Findings, key_of
from warploom.checker.dependent_launch import early_accesses
from warploom.checker.determinism import (
    Influence,
    barriers_by_sign,
    influences,
    polls,
    reallocates,
    reason,
    tells_times,
)
from warploom.checker.event_streams import Shapes
from warploom.checker.model.clocks import Triple
from warploom.checker.model.registers import hazards
from warploom.checker.recurrence.sizes import Family
from warploom.checker.redundancy import redundant as remarks
from warploom.checker.report import Cost, Covers, Finding, Party, Relaxed, Report, Verdict
from warploom.checker.rules import ASSUMPTIONS, PROFILES, RELAXATIONS, Rules
from warploom.checker.runs import Checked, checked_run, rare_collections
from warploom.checker.witness import Confirmation
from warploom.diagnostics import Diag, Loc, Stuck, WarploomError, user_traceback
from warploom.host.launch import Launch, with_triples
from warploom.host.program import Ptx
from warploom.launcher import launch_of
from warploom.machine.observers.events import Source
from warploom.machine.translate.translator import Program
from warploom.ptx.isa.table import Op

DEFAULT_LIMIT = 50_000_000
"""Warp instructions of a checked run."""
DEFAULT_BUDGET = 8
SIZES = ("launch", "all", "pairs")
_MISSABLE = "a thread waits for the value of a location that stores change without an order, and may never see it"
_ORDERS = "the orders in which warps may come to setmaxnreg are too many to be searched"
_MOST_LINES = 4
_FEWER_SMS = (1, 2)
"""SMs with which a kernel that asks for work runs again: its clusters then process more tiles each."""


@user_traceback
def check(
    program: Ptx | Launch,
    *,
    launch: Launch | Mapping[str, Any] | None = None,
    profile: str = "strict",
    budget: int = DEFAULT_BUDGET,
    limit: int | None = DEFAULT_LIMIT,
    sms: int | None = None,
    sizes: str | Mapping[str, Launch] = "launch",
    redundant: bool = False,
) -> Report:
    """Judge a kernel: PROVED, REFUTED with findings, or INCOMPLETE with the reasons.

    `program` is a launch, or PTX with `launch`, the keywords of `warploom.launch` that it is launched with. The arrays
    are copied: the caller's are never written. `profile` is `strict`, the PTX ISA to the letter, or `lenient`. `budget`
    is the number of further runs that enumerate choices and confirm findings; `limit` bounds the instructions of each.
    `sizes` is `launch`, or `all` to prove other numbers of K steps and of tiles too, by recurrence, or `pairs` for all
    numbers of tiles with each number of K steps; INCOMPLETE if there is no such proof. Where data steer the kernel, it
    is run with further sizes and data. Or `sizes` is a dict of further launches of the kernel, by name. `report.covers`
    says what the verdict is for.
    `redundant=True` also lists barriers, fences and waits that are not needed in this launch, as lints; the run is then
    judged once more for each of them.
    """
    cases = {} if isinstance(sizes, str) else cases_in(sizes)
    if isinstance(sizes, str) and sizes not in SIZES:
        what = f"`sizes` is {sizes!r:.60}; it must be one of {', '.join(SIZES)}, or a dict of launches by name"
        raise Diag.BAD_LAUNCH.error(what=what)
    if profile not in PROFILES:
        raise Diag.BAD_LAUNCH.error(what=f"`profile` is {profile!r:.60}; it must be one of {', '.join(PROFILES)}")
    if not isinstance(budget, int) or budget < 0:
        raise Diag.BAD_LAUNCH.error(what=f"`budget` is {budget!r:.60}; it must be a number of runs")
    launch_ = with_triples(_launch(program, launch))
    start = time.perf_counter()
    with rare_collections():
        judged = _Judged(launch_, profile, limit, budget)
        judged.run(sms)
        if sizes != "launch":
            judged.generalise(cases, pairs=sizes == "pairs")
        report = judged.report()
    if profile == "strict" and report.findings:
        lenient = _Judged(launch_, "lenient", limit, 0)
        lenient.run(sms)
        report = replace(report, findings=_excused(report.findings, lenient))
        judged.cost(lenient)
    if report.findings and budget:
        confirmation = Confirmation(launch_, limit, budget)
        report = replace(report, findings=confirmation.witnesses(report.findings))
        judged.runs += confirmation.runs
    if redundant and report.verdict is not Verdict.REFUTED:
        report = replace(report, lints=(*report.lints, *remarks(launch_, profile, limit, sms)))
    return replace(report, cost=Cost(time.perf_counter() - start, judged.events, judged.used, judged.runs))


def _launch(program: Any, launch: Any) -> Launch:
    """The launch that the arguments describe."""
    if isinstance(program, Launch):
        if launch is not None:
            raise Diag.BAD_LAUNCH.error(what="`launch` is for a program; the first argument is a launch already")
        return program
    if isinstance(launch, Launch):
        return replace(launch, program=program)
    return launch_of(program, **(launch or {}))


def cases_in(sizes: Any) -> dict[str, Launch]:
    """The launches of `sizes`, validated."""
    if not isinstance(sizes, Mapping) or not sizes:
        what = f"`sizes` is {sizes!r:.60}; it must be one of {', '.join(SIZES)}, or a dict of launches by name"
        raise Diag.BAD_LAUNCH.error(what=what)
    wrong = [str(name) for name, each in sizes.items() if not isinstance(each, Launch)]
    if wrong:
        raise Diag.BAD_LAUNCH.error(
            what=f"`sizes` must have launches as its values; these are none: {', '.join(wrong)}"
        )
    return {str(name): with_triples(each) for name, each in sizes.items()}


def _excused(findings: Iterable[Finding], lenient: _Judged) -> tuple[Finding, ...]:
    """Findings of `strict`, those that `lenient` accepts with the name of the relaxation."""
    keys = {key_of(finding) for finding in lenient.findings.all()}
    return tuple(
        replace(each, excused_by="")
        if not each.parties or key_of(each) in keys
        else replace(each, excused_by=each.excused_by or _by_knowledge(each, lenient.rules))
        for each in findings
    )


def _by_knowledge(finding: Finding, lenient: Rules) -> str:
    """The relaxation that accepts a finding by what a thread knows, not by the two accesses."""
    crosses = len({party.cta for party in finding.parties}) > 1
    if crosses and lenient.relaxed["fence-before-barrier"]:
        return "fence-before-barrier"
    if lenient.relaxed["atomic-acquire"] and (crosses or not lenient.relaxed["warp-collectives"]):
        return "atomic-acquire"
    return "warp-collectives"


@dataclass
class _Judged:
    """The runs of one check, with all that they found."""

    launch_: Launch
    profile: str
    limit: int | None
    budget: int
    findings: Findings = field(default_factory=Findings)
    error: WarploomError | None = None
    events: int = 0
    used: int = 0
    runs: int = 0
    reasons: list[str] = field(default_factory=list)
    lints: dict[tuple[str, object], Finding] = field(default_factory=dict)
    as_run: list[str] = field(default_factory=lambda: ["sizes", "input data"])
    generalised: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)
    elsewhere: tuple[Finding, ...] = ()
    """Findings at other sizes."""
    unproved: tuple[str, ...] = ()
    """Sizes that a proof was asked for and not found, each with the reason."""
    unordered: set[int] = field(default_factory=set)
    """Strong accesses, by instruction, whose results may differ between interleavings."""
    places: dict[str, str] = field(default_factory=dict)
    """By assumption, the lines that need it."""
    shapes: dict[Triple, Shapes] = field(default_factory=dict)
    """The shapes of the events of the runs before, by the shape of the cluster."""

    def __post_init__(self) -> None:
        self.rules = Rules(self.profile)

    def run(self, sms: int | None) -> None:
        """Check one run, its registers, and the runs that stand for other answers to requests for work."""
        first = self._observe(sms)
        program = first.program
        self._check_registers(program)
        found = influences(program.flow)
        kinds = {each.kind for each in found}
        if polls(program.flow):
            self.rules.assumed["monotone-flags"] += 1
        if times := tells_times(program.flow):
            self.rules.assumed["timing-values"] += len(times)
        if reallocates(program.flow) and not any(map(program.kernel.directive, ("maxnreg", "minnctapersm"))):
            self.rules.assumed["register-budget"] += 1
        early = early_accesses(program.flow, dependent=self.launch_.dependent)
        if early:
            self.rules.assumed["dependent-launch"] += len(early)
            lines = dict.fromkeys(str(op.instruction.loc or Loc(program.file, op.instruction.line)) for op in early)
            self.places["dependent-launch"] = _listed(tuple(lines))
        if self.error is None and "clc" in kinds and self.budget >= len(_FEWER_SMS) and sms is None:
            # Where one cluster at a time was resident, fewer SMs make no difference; where no request was granted,
            # refusals make none.
            sees_sms = program.specials & {"%smid", "%nsmid"}
            for fewer in _FEWER_SMS:
                if self.error is None and (first.most_resident > 1 or sees_sms):
                    self._observe(fewer)
            if self.error is None and first.taken_over:
                self._observe(None, refuses=True)
            self.rules.assumed["clc-answers"] += 1
            kinds.discard("clc")
        found = influences(program.flow, frozenset(self.unordered))
        if barriers_by_sign(program.flow):
            self.rules.assumed["arrival-sign"] += 1
        kinds &= {each.kind for each in found}
        self.reasons += [self._because(kind, found, program) for kind in sorted(kinds)]
        self.shapes.clear()

    def _observe(self, sms: int | None, *, refuses: bool = False) -> Checked:
        """Run on copies of the arrays under the eye of a checker."""
        checked = checked_run(
            self.launch_, self.rules, self.findings, sms=sms, limit=self.limit, refuses=refuses, shapes=self.shapes
        )
        checker, self.error = checked.checker, checked.error
        self.used += checked.used
        self.events += checker.events
        self.runs += 1
        self.lints |= checker.lints
        self.unordered |= checker.memories.unordered
        if self.error is None:
            self.lints |= {(each.code, each.sentence): each for each in checker.memories.remarks()}
        if (store := checker.memories.missable()) is not None and not any(_MISSABLE in each for each in self.reasons):
            text = " ".join(store.source.instruction.text.split())
            self.reasons.append(f"{_MISSABLE} ({store.source.loc}: `{text[:80]}`)")
        if checker.registers.has_too_many_orders and _ORDERS not in self.reasons:
            self.reasons.append(_ORDERS)
        if checker.agents.converged:
            self.rules.assumed["convergence"] += 1
        return checked

    def generalise(self, cases: Mapping[str, Launch], *, pairs: bool) -> None:
        """Check other sizes, or the given cases, if nothing was found at this one."""
        if self.error is not None or len(self.findings) or self.reasons:
            self.as_run = ["sizes (the launch itself is not proved)", "input data"]
            return
        family = Family(self.launch_, self.rules, self.limit)
        found = family.check_cases(cases) if cases else family.check(pairs=pairs)
        self.runs, self.events, self.used = self.runs + found.runs, self.events + found.events, self.used + found.used
        self.generalised, self.cases = found.covered, found.cases
        self.as_run = [*found.left, *(["sizes"] if cases else ["configuration"]), "input data"]
        self.elsewhere, self.error, self.unproved = tuple(found.findings), found.error, tuple(found.unproved)

    def cost(self, other: _Judged) -> None:
        """Count the price of further runs."""
        self.events, self.used, self.runs = self.events + other.events, self.used + other.used, self.runs + other.runs

    def _check_registers(self, program: Program) -> None:
        numbers = {id(op): at for at, op in enumerate(op for block in program.flow.blocks for op in block.ops)}
        for hazard in hazards(program.flow):
            if hazard.relaxation:
                self.rules.relaxed[hazard.relaxation] += 1
                if self.rules.lenient:
                    continue
            accessed, multiplied = (
                self.findings.made(_source(op, program, numbers), action, (0, 0, 0), 0, space="register")
                for op, action in ((hazard.op, "accesses"), (hazard.wgmma, "owns"))
            )
            parties: tuple[Party, ...]
            if hazard.code == "WGMMA_REGISTERS":
                text = f"{hazard.register} belongs to a wgmma that no wgmma.wait_group before this access covers."
                parties, missing = (accessed, multiplied), "wgmma.wait_group"
            else:
                text = f"{hazard.register} may be accessed since the last wgmma.fence before this wgmma."
                parties, missing = (multiplied,), "wgmma.fence"
            self.findings.add(hazard.code, text, parties, missing=missing, excused_by=hazard.relaxation)

    def _because(self, kind: str, found: tuple[Influence, ...], program: Program) -> str:
        op = next(each.op for each in found if each.kind == kind)
        loc = op.instruction.loc or Loc(program.file, op.instruction.line)
        return f"{reason(kind)} ({loc}: `{' '.join(op.instruction.text.split())[:80]}`)"

    def report(self) -> Report:
        """The verdict of all runs."""
        findings, reasons = (*self.findings.all(), *self.elsewhere), list(self.reasons)
        reasons += [f"there is no proof for all {each}" for each in self.unproved]
        if self.error is not None:
            if self.error.diag in (Diag.LIMIT, Diag.TIMEOUT):
                reasons.append(f"the run was given up: {self.error.what}")
            else:
                findings = (_of_error(self.error), *findings)
        if self.findings.left_out:
            reasons.append(f"{self.findings.left_out} further findings are not listed")
        verdict = Verdict.REFUTED if findings else Verdict.INCOMPLETE if reasons else Verdict.PROVED
        used = {"fairness", *self.rules.assumed}
        assumptions = tuple(
            f"{name}: {ASSUMPTIONS[name]}{self.places.get(name, '')}" for name in ASSUMPTIONS if name in used
        )
        relaxed = tuple(
            Relaxed(name, RELAXATIONS[name].citation, count) for name, count in sorted(self.rules.relaxed.items())
        )
        interleavings = "this run" if self.reasons else "all"
        fixed, cases = tuple(self.as_run), tuple(self.cases)
        covers = Covers(interleavings, tuple(self.generalised), fixed, self.runs, cases)
        return Report(
            verdict, findings, covers, assumptions, profile=self.profile, reasons=tuple(reasons), relaxed=relaxed,
            lints=tuple(self.lints.values()), name=self.launch_.entry or "", error=self.error,
        )  # fmt: skip


def _listed(lines: Sequence[str]) -> str:
    """A few lines of the program, and how many more there are."""
    more = f" and {len(lines) - _MOST_LINES} more" if len(lines) > _MOST_LINES else ""
    return f" ({', '.join(lines[:_MOST_LINES])}{more})"


def _source(op: Op, program: Program, numbers: dict[int, int]) -> Source:
    instruction = op.instruction
    return Source(instruction.loc or Loc(program.file, instruction.line), instruction, numbers.get(id(op), -1))


def _of_error(error: WarploomError) -> Finding:
    """A fault or deadlock of the run as a finding."""
    code = "DEADLOCK" if isinstance(error, Stuck) else "FAULT"
    where = f" at {error.loc}" if error.loc is not None else ""
    text = f"{error.code}{where}: {error.what}"
    return Finding(code, text, advice=error.advice or CODES[code].advice, notes=tuple(error.notes), at=error.loc)
