"""`warploom explain CODE|INSTRUCTION`: an error, a finding or a relaxation of a check, or an instruction."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from warploom.checker.codes import CODES
from warploom.checker.rules import ASSUMPTIONS, RELAXATIONS
from warploom.commands.console import output, printable, table
from warploom.diagnostics import Diag

if TYPE_CHECKING:
    from warploom.ptx.isa import Effect, Form

_MOST_OPTIONS = 12


def explain(name: str | None) -> None:
    """Print one error code or instruction, or the list of all codes."""
    console = output()
    if name is None:
        rows = table("", "code", "meaning")
        for entry in Diag:
            rows.add_row(entry.name, Text(entry.meaning))
        for finding, found in CODES.items():
            if finding not in Diag.__members__:
                rows.add_row(finding, Text(f"a check finds: {found.title}"))
        console.print(rows)
        return
    code = name.strip().upper()
    if code in Diag.__members__:
        entry = Diag[code]
        console.print(f"{code}: {entry.meaning}\n  {entry.kind}\n  do: {entry.advice}", markup=False)
        return
    if not _explain_check(name.strip(), console) and not _explain_instruction(name.strip(), console):
        close = get_close_matches(code, [*Diag.__members__, *CODES], n=1)
        raise Diag.NO_SUCH_CODE.error(name=name, hint=f"Did you mean {close[0]}? " if close else "")


def _explain_check(name: str, console: Console) -> bool:
    """Print a code of findings, a relaxation or an assumption of `warploom check`; False if it is none."""
    found = CODES.get(name.upper())
    if found is not None:
        kind = "lint of a check: the verdict does not depend on it" if found.is_lint else "finding of a check: REFUTED"
        seen = "" if found.replayable else "\n  no schedule of the emulator shows it"
        console.print(f"{name.upper()}: {found.title}\n  {kind}{seen}\n  do: {found.advice}", markup=False)
        return True
    if name in RELAXATIONS:
        sentence, citation = RELAXATIONS[name].sentence, RELAXATIONS[name].citation
        console.print(f"{name}: {sentence}\n  relaxation: lenient accepts it\n  {citation}", markup=False)
        return True
    if name in ASSUMPTIONS:
        console.print(f"{name}: {ASSUMPTIONS[name]}\n  assumption: a verdict may rely on it", markup=False)
        return True
    return False


def _explain_instruction(opcode: str, console: Console) -> bool:
    """Print the forms of an opcode, of a family or of the opcode's first words; False if there are none."""
    from warploom.ptx.isa import FORMS, match
    from warploom.ptx.isa.outside import why_outside

    reason = why_outside(opcode)
    if reason:
        console.print(printable(f"{opcode} is not modelled: {reason}"), markup=False)
        return True
    found = [row for row, _ in match(opcode)]
    rows = found or [row for row in FORMS if row.family == opcode]
    rows = rows or [row for row in FORMS if row.family.startswith(f"{opcode}.")]
    if not rows:
        return False
    families = dict.fromkeys(row.family for row in rows)
    if not found and len(families) > 1:
        listing = table(f"{opcode}: {len(families)} instructions", "instruction", "forms", right=("forms",))
        for family in families:
            listing.add_row(family, str(sum(row.family == family for row in rows)))
        console.print(listing)
        return True
    shown: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for row in rows:  # forms that differ in the order of their modifiers only are one entry
        shown.setdefault(tuple(_facts(row)), []).append(row.template)
    for facts, templates in shown.items():
        for template in templates:
            console.print(template, style="bold", markup=False)
        for label, text in facts:
            console.print(f"  {label:12} {text}", markup=False, soft_wrap=True)
    (family,) = families
    console.print(f"semantics: {_semantics(family)}", markup=False, soft_wrap=True)
    console.print(f"reference: PTX ISA, `{family}`; `warploom docs fidelity` lists what differs", markup=False)
    return True


def _facts(row: Form) -> Iterable[tuple[str, str]]:
    """The label and text of each line about a form."""
    yield "operands", row.takes
    for name, options in row.choices.items():
        more = f" … ({len(options)} in all)" if len(options) > _MOST_OPTIONS else ""
        yield f"{{{name}}}", " ".join(options[:_MOST_OPTIONS]) + more
    for effect in row.effects:
        yield "effect", _effect(effect)
    if not row.effects:
        yield "effect", "none but its results"
    together = {"thread": "each thread for itself", "warp": "all lanes of a warp together"}
    yield "executed by", together.get(row.issuer, f"the {row.issuer} together")
    if row.blocks:
        yield "waits", "a warp may have to wait in it"
    if row.targets:
        yield "targets", " ".join(row.targets)
    if row.version > (1, 0):
        yield "since", f"PTX ISA {row.version[0]}.{row.version[1]}"


def _effect(effect: Effect) -> str:
    words = [effect.verb, effect.operand]
    words += [f"in {effect.space} memory"] if effect.space else []
    words += [f"through the {effect.proxy} proxy"] if effect.proxy != "generic" else []
    words += [f"at {effect.scope} scope"] if effect.scope else []
    words += [f"({effect.detail})"] if effect.detail else []
    words += ["when it completes"] if effect.later else []
    return " ".join(word for word in words if word)


def _semantics(family: str) -> str:
    """The function of the emulator that gives an instruction its meaning."""
    from warploom.machine import instructions  # noqa: F401  (fills the registry)
    from warploom.machine.core.registry import MEANINGS
    from warploom.machine.translate import arithmetic
    from warploom.machine.translate.blocks import WRITERS

    if family in arithmetic.FAMILIES:
        return f"{arithmetic.__name__}, with the semantics of warploom.machine.semantics"
    meaning = WRITERS.get(family) or MEANINGS[family]
    return f"{meaning.__module__}.{meaning.__qualname__}"
