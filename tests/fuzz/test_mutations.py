"""Mutants of valid kernels: each gives a run or an error of the catalogue; and tests of the mutator itself."""

from __future__ import annotations

import pytest
from tests.fuzz.bases import SCHEDULES, Plan, trial, written
from tests.fuzz.harness import RUN, attempt, run
from tests.fuzz.mutations import _LINES, _TOKENS, Source

from warploom.machine.core.registry import MEANINGS
from warploom.machine.translate.arithmetic import FAMILIES

COUNT = 500
DECLARATIONS = 40
NEVER = {"trap", "brkpt", "tcgen05.shift", "mul.mixed", "call.pointer"}
"""Families that no valid kernel executes to its end, whose semantics the manual leaves open, or that ptxas does not take."""


@pytest.fixture(scope="module")
def kernels():
    return Plan().bases()


def test_mutants_give_a_run_or_a_catalogued_error():
    summary = run([*range(COUNT), *range(-DECLARATIONS, 0)])
    assert [(failed.number, failed.code, failed.failure) for failed in summary.failures] == []
    assert summary.total == COUNT + DECLARATIONS
    assert summary.codes[RUN] > COUNT / 5, "most mutants should get past the reader"
    assert len(summary.codes) > 12, summary.codes
    assert summary.memory < 300 << 20, "what a mutant takes is given back"


def test_the_unmutated_kernels_run_under_every_schedule():
    for kernel in written():
        for schedule in sorted(set(SCHEDULES)):
            kernel.run(schedule)


def test_the_written_kernels_execute_every_instruction_family():
    executed = set().union(*(kernel.families for kernel in Plan().bases()))
    assert (set(MEANINGS) | FAMILIES) - executed - NEVER == set()


def test_most_mutations_change_a_token_of_an_executed_line(kernels):
    made = [trial(kernels, number) for number in range(400)]
    tokens = sum(any(f": {name}:" in each.mutant.what for name in _TOKENS) for each in made)
    lines = sum(any(f": {name}:" in each.mutant.what for name in _LINES) for each in made)
    assert tokens + lines == len(made)
    assert tokens >= 0.8 * len(made)
    for each in made:
        source = each.base.source
        before, after = source.text.split("\n"), each.mutant.text.split("\n")
        if len(before) == len(after):
            changed = {number for number, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]}
            assert changed <= set(source.lines)


def test_a_number_always_gives_the_same_mutant(kernels):
    again = Plan().bases()
    for number in (0, 7, 123, -5, 99_999):
        first, second = trial(kernels, number), trial(again, number)
        assert (first.mutant, first.schedule, first.seed) == (second.mutant, second.schedule, second.seed)


def test_the_mutator_makes_every_kind_of_change():
    text = "\n".join(
        (
            ".visible .entry k(.param .u64 x)",
            "{",
            "@%p1 ld.shared.v2.u32 {%r1, %r2}, [%r3+4];",
            "@!%p2 bra L;",
            "L: mad.lo.s32 %r1, %r2, 12, 0xff;",
            "M:",
            "}",
        )
    )
    source = Source(text, (3, 4, 5))
    seen = {source.mutant(number).what.split(": ")[1] for number in range(600)}
    assert seen == set(_TOKENS) | set(_LINES)


@pytest.mark.parametrize("failure", [RuntimeError("boom"), AssertionError(), KeyError("x")])
def test_any_other_exception_is_a_failure(kernels, monkeypatch, failure):
    def broken(*_args, **_options):
        raise failure

    monkeypatch.setattr("tests.fuzz.harness.launch", broken)
    outcome = attempt(kernels, 3)
    assert outcome.code == type(failure).__name__
    assert trial(kernels, 3).base.name in outcome.failure
