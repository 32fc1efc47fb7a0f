"""Write docs/checker-results.md from the results in bench/results: what judges of other origin say of the checker.

python bench/checker_page.py
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "checker-results.md"
Rows = dict[str, Any]
_SCHEDULES = 64
"""Schedules that must agree with the whole kernel before a survivor counts as redundant."""


def read(name: str) -> Rows | None:
    path = HERE / "results" / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def table(heads: list[str], rows: list[list[Any]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return [*lines, *(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows), ""]


def share(part: int, of: int) -> str:
    return f"{part:,} of {of:,} ({100 * part / of:.1f} %)" if of else "0 of 0"


def revisions(rows: Iterable[Rows]) -> str:
    """The revisions at which some rows were judged, with their numbers."""
    counts = Counter(row.get("revision", "") for row in rows)
    if len(counts) == 1:
        return f"Revision `{next(iter(counts))}`."
    return f"Revisions: {', '.join(f'`{name}` ({number})' for name, number in counts.most_common())}."


def soundness(found: Rows) -> list[str]:
    counts = Counter[tuple[str, str]]()
    for key, number in found["verdicts"].items():
        _, rest = key.split(" ", 1)
        verdict, _, executions = rest.rpartition(" ")
        if executions == "many":
            verdict, executions = verdict.removesuffix(" too"), "too many"
        counts[verdict, executions] += number
    verdicts = ["PROVED", "REFUTED", "INCOMPLETE", "not judged"]
    columns = ["agree", "differ", "too many"]
    judged = sum(number for (verdict, _), number in counts.items() if verdict != "not judged")
    agreed = sum(counts[verdict, "agree"] for verdict in verdicts[:3])
    proved = counts["PROVED", "differ"]
    lines = [
        "## Random protocols",
        "",
        "`bench/protocols.py` makes small protocols of two to four warps in one or two CTAs: pipelines, chains of accesses with a synchronisation for every conflict,",
        "and random actions, most of them with up to two random changes. They use plain and strong accesses, atomics, fences of two scopes, named barriers,",
        "mbarriers with phases, relaxed and ordinary, `cp.async`, bulk copies in both directions with bytes and groups, and proxy fences.",
        "`bench/protocol_explorer.py` searches all their executions on a weak memory of its own, in which a write that nothing publishes reaches other warps late,",
        "a load is performed late, and the async proxy has a view of its own; it shares no code with the checker or the emulator.",
        "`bench/soundness.py` compares: a verdict is unsound if the checker says PROVED and some execution hangs, faults, or has another outcome.",
        "",
        f"- {sum(end - start for start, end in found['ranges']):,} protocols, {found['states']:,} states, at revision {found['revision']}. **Unsound verdicts: {len(found['unsound'])}.**",
        *_judged_again(found),
        f"- {judged:,} were judged by the checker: all whose executions differ, and every fourth of those whose executions agree, where no verdict can be unsound.",
        f"- False alarms under `strict`: {share(sum(found['false alarms'].values()), agreed)} of the judged protocols whose executions agree.",
        f"- In {proved:,} of the PROVED ones outcomes differ only at locations of strong accesses, and the report has the assumption `strong-order`.",
        "",
        *table(
            ["verdict", *(f"executions {each}" for each in columns)],
            [[verdict, *(f"{counts[verdict, each]:,}" for each in columns)] for verdict in verdicts],
        ),
    ]
    if found["false alarms"]:
        lines += [
            "The findings of the false alarms; most are accesses or phases that are in order for a reason outside happens-before:",
            "",
        ]
        alarms = sorted(found["false alarms"].items(), key=lambda each: -each[1])
        lines += table(
            ["findings", "protocols", "for example"],
            [[name, number, found["examples"][name]] for name, number in alarms],
        )
    return lines


def _judged_again(found: Rows) -> list[str]:
    """The verdicts of a later revision on protocols whose verdict was unsound."""
    again = found.get("judged again")
    if not again:
        return []
    counts = Counter(again["verdicts"].values())
    return [
        (
            f"- Revision {again['revision']} judges these {len(again['verdicts'])} otherwise: "
            f"{', '.join(f'{number} {verdict}' for verdict, number in counts.most_common())}. They wait for a flag that another store overwrites, or that is set twice."
        )
    ]


def litmus(found: Rows) -> list[str]:
    tests = found["tests"]
    asked = {name: each for name, each in tests.items() if "outcome" in each}
    ending = {name: each for name, each in tests.items() if "ends" in each}
    wrong = {name: each for name, each in tests.items() if each["wrong"]}
    shown = [each for each in asked.values() if each["outcome"] == "allowed" and each["shown by"]]
    allowed = sum(each["outcome"] == "allowed" for each in asked.values())
    cells = Counter((each["outcome"], each["verdict"]) for each in asked.values())
    live = Counter((each["ends"], each["verdict"]) for each in ending.values())
    verdicts = ["PROVED", "REFUTED", "INCOMPLETE"]
    reasons = Counter(found["outside"].values())
    return [
        "## PTX litmus tests of Dat3M",
        "",
        f"`bench/litmus.py --source CHECKOUT` translates the tests in `litmus/PTX/{{Manual,CADP,Memalloy,Barrier}}` of Dat3M at commit `{found['commit'][:12]}` to kernels, and",
        "compares with the verdicts of its formal models of PTX. The *outcome* of a test is the one that its condition asks about. An answer is wrong if an allowed",
        "outcome is proved impossible (PROVED without `strong-order`, and the checked run has another outcome); if a schedule of the emulator shows a forbidden",
        "outcome; if a test whose conflicts are all between strong accesses of sufficient scope is REFUTED although its outcome is forbidden; if a test that may",
        "hang is PROVED; or if one that always ends has a deadlock. REFUTED is right for a test with a data race, whether or not its outcome is allowed.",
        "",
        f"- {len(tests)} tests translated, {len(found['outside'])} outside the model. **Wrong answers: {len(wrong)}.** Revision `{found['revision']}`.",
        f"- Of {allowed} allowed outcomes, twelve schedules show {len(shown)}; the emulator delays stores and not loads.",
        "- The patterns of `Nvidia/proxy`, with the async proxy in place of surfaces and textures, are `tests/checker/test_proxy_patterns.py`: 10 forbidden",
        "  outcomes are proved impossible, and 12 allowed ones are refuted, 10 of them by a missing proxy fence, with a schedule that shows the outcome.",
        "",
        *table(
            ["outcome", *verdicts],
            [[each, *(cells[each, verdict] for verdict in verdicts)] for each in ("allowed", "forbidden")],
        ),
        *table(
            ["the test ends", *verdicts],
            [[each, *(live[each, verdict] for verdict in verdicts)] for each in ("always", "may hang")],
        ),
        "INCOMPLETE has one cause here: control depends on atomics or polled locations. Outside the model:",
        "",
        *(f"- {number}: {reason}" for reason, number in reasons.most_common()),
        "",
    ]


def bugs(found: Rows) -> list[str]:
    rows = [
        [f"[{each['issue']}](https://github.com/{each['issue'].replace('#', '/issues/')})", each["what"], each["profile"],
         ", ".join(each["codes"]), each["after"], f"{each['witness']}" if each["schedules"] else f"none: {each['witness']}"]
        for each in found.values()
    ]  # fmt: skip
    right = sum(each["before"] == "REFUTED" and each["after"] == "PROVED" for each in found.values())
    return [
        "## Bugs of other projects",
        "",
        "Each is rebuilt in the pattern of its issue as a small CUDA C++ kernel and compiled by nvcc 13.0, before and after the fix (`tests/checker/real_bugs`,",
        "`bench/real_bugs.py`). The finding names the line that the fix protects (`tests/checker/test_real_bugs.py`). The proxy fence that Triton 3.3.1 to 3.7.0 omit",
        "(triton-lang/triton#9610) is judged on Triton's own output, for two targets and eight releases (`tests/checker/test_triton_fence.py`).",
        "",
        f"**{right} of {len(found)} REFUTED before and PROVED after the fix.** {revisions(found.values())}",
        "",
        *table(["issue", "defect", "profile", "findings before", "after", "witness"], rows),
    ]


def mutants(found: Rows) -> list[str]:
    rows = list(found["mutants"].values())
    refuted = [row for row in rows if row["verdict"] in ("REFUTED", "REJECTED")]
    left = [row for row in rows if row not in refuted]
    idle = [row for row in left if row.get("executed") is False]
    alive = [row for row in left if row.get("executed") is not False]
    shown = [row for row in alive if row.get("shown by")]
    redundant = [
        row
        for row in alive
        if row.get("is ordered") and not row.get("shown by") and row.get("schedules", 0) >= _SCHEDULES
    ]
    open_ = [row for row in alive if row not in redundant and row not in shown]
    by_class = []
    for name in sorted({row["class"] for row in rows}):
        mine = [row for row in rows if row["class"] == name]
        by_class.append(
            [name, len(mine), sum(row in refuted for row in mine), sum(row in idle for row in mine),
             sum(row in redundant for row in mine), sum(row in open_ for row in mine), sum(row in shown for row in mine)]
        )  # fmt: skip
    kernels = {row["kernel"] for row in rows}
    needed = len(refuted) + len(open_) + len(shown)
    lines = [
        "## Mutants",
        "",
        "`bench/checker_mutants.py` changes one synchronisation instruction of a kernel, as on [mutants.md](mutants.md), and asks the checker: kernels of the library under `strict`,",
        "those of nvcc and Triton under `lenient`; the whole kernels are PROVED. For a mutant that is not refuted it lists, for each pair of accesses whose order the change",
        "concerns, the synchronisation that orders the pair in the mutant, and runs the mutant under schedules of `explore`. A survivor counts as redundant",
        f"if every such pair has another path and {_SCHEDULES} schedules agree with the whole kernel; 54 are argued by hand in [redundant-mutants.md](redundant-mutants.md). A survivor",
        "that has not been run under so many schedules is open.",
        "",
        f"- {len(rows):,} mutants of {len(kernels)} kernels: {len(refuted):,} refuted ({sum(bool(row.get('strict only')) for row in refuted)} by `strict` only), {len(idle)} change an instruction that is not executed or does not synchronise.",
        f"- {len(redundant)} survivors are redundant, {len(open_)} are open, and **{len(shown)} misbehave in a schedule although the checker does not refute them**.",
        f"- Of the executed, non-redundant mutants {share(len(refuted), needed)} are refuted; open ones count as missed.",
        f"- {revisions(rows)}",
        "",
        *table(["class", "mutants", "refuted", "without effect", "redundant", "open", "misbehave"], by_class),
    ]
    if shown or open_:
        lines += ["Open and misbehaving ones:", ""]
        lines += table(
            ["class", "kernel", "line", "instruction", "seen"],
            [[row["class"], row["kernel"], row["line"], f"`{row['before'][:70]}`", _seen(row)]
             for row in [*shown, *open_]],
        )  # fmt: skip
    lines += ["Some redundant ones, with the paths that order what the instruction ordered (lines of the PTX):", ""]
    for row in [row for row in redundant if row["paths"]][:40]:
        lines.append(f"- {row['kernel']}, {row['class']}, line {row['line']}: {'; '.join(row['paths'][:2])}")
    return [*lines, ""]


def _seen(row: Rows) -> str:
    """The state of a survivor's examination."""
    if "paths" not in row:
        return "not examined"
    paths = "all pairs have another path" if row["is ordered"] else "some pairs are not executed in the mutant"
    return row.get("shown by") or f"{paths}; {row.get('schedules', 0)} schedules agree"


def witnesses(found: Rows) -> list[str]:
    rows = list(found["findings"].values())
    confirmed = [row for row in rows if row["confirmed"]]
    by_code = sorted({row["code"] for row in rows})
    return [
        "## Witnesses",
        "",
        "Of the findings of a sample of refuted mutants, those whose class a schedule can show, confirmed by at most five directed schedules:",
        f"**{share(len(confirmed), len(rows))}**. {revisions(rows)}",
        "",
        *table(
            ["code", "findings", "confirmed"],
            [
                [code, sum(row["code"] == code for row in rows), sum(row["code"] == code for row in confirmed)]
                for code in by_code
            ],
        ),
    ]


def consan(found: Rows) -> list[str]:
    rows = list(found["cases"].values())
    beyond = [row for row in rows if row["why"]]
    decided = [row for row in rows if not row["why"]]
    right = [row for row in decided if row["right"]]
    cells = Counter((row["label"], row["verdict"]) for row in decided)
    verdicts = ["PROVED", "REFUTED", "INCOMPLETE"]
    lines = [
        "## ConSan's labelled cases",
        "",
        f"`bench/consan.py --source CHECKOUT` runs the cases of Triton's `python/test/gluon/test_consan.py` (commit `{found['commit'][:12]}`) on the emulator with the instrumentation",
        f"off, and compares our verdict under `{found['profile']}` with the label of the case: whether ConSan has to report an error.",
        "",
        f"- {len(rows)} cases judged, {len(found['skipped'])} not. In {len(beyond)} cases that ConSan calls clean, the checker finds a defect of a class that ConSan does not look for (below).",
        f"- Of the other {len(decided)}, **{share(len(right), len(decided))} have the right verdict**. {revisions(rows)}",
        "",
        *table(
            ["label", *verdicts],
            [[label, *(cells[label, verdict] for verdict in verdicts)] for label in ("clean", "error")],
        ),
    ]
    wrong = [(name, row) for name, row in found["cases"].items() if not row["right"] and not row["why"]]
    if wrong:
        lines += ["Differences:", ""]
        lines += table(
            ["case", "label", "verdict", "explanation"],
            [[f"`{name}`", row["label"], row["verdict"], row.get("explained", "")] for name, row in wrong],
        )
    lines += ["Classes beyond ConSan's:", ""]
    lines += [f"- {number}: {why}" for why, number in Counter(row["why"] for row in beyond).most_common()]
    lines += ["", "Not judged:", ""]
    lines += [f"- {number}: {why}" for why, number in Counter(found["skipped"].values()).most_common()]
    return [*lines, ""]


_SENTRYWARD = {"race_free": "clean", "unsupported": "unsupported"}


_SILENT = ("nothing", "hangs")
_LIMITS = [
    "The kernel of tilelang#3087 copies from shared memory to shared memory of its own CTA, in place of the MMA of the issue. An H200 executes such a copy in a launch with",
    "clusters and ends a kernel without them with `illegal instruction`, as the emulator does; memcheck reports it in both (`not located in remote CTA`). Before the fix the",
    "kernel hangs under racecheck and synccheck, as the checker predicts, and after it the result is right.",
]


def _sanitizer(tools: Rows) -> str:
    """The tools that report something about a kernel, with the number of their errors or hazards."""
    said = [f"{tool} {row['errors']}" for tool, row in sorted(tools.items()) if row["errors"]]
    hung = [tool for tool, row in sorted(tools.items()) if not row["ended"]]
    if hung and not said:
        return "hangs"
    return "; ".join([" and ".join(said) or "nothing", *(f"hangs under {tool}" for tool in hung)])


def rivals(found: Rows) -> list[str]:
    ours = read("real_bugs") or {}
    sanitized = read("sanitizer_bugs")
    rows = []
    right = found_by_gpu = 0
    for name, row in found["bugs"].items():
        before, after = (_SENTRYWARD.get(row[when]["result"], row[when]["result"]) for when in ("before", "after"))
        right += before not in ("clean", "unsupported") and after == "clean"
        why = row["before"]["why"] if before == "unsupported" else ""
        own = ours.get(name, {})
        reported = [_sanitizer(sanitized["bugs"][name][when]) for when in ("before", "after")] if sanitized else []
        found_by_gpu += bool(reported) and reported[0] not in _SILENT and reported[1] in _SILENT
        gpu = ", then ".join(reported) or "not run"
        rows.append([row["issue"], f"{own.get('before')}, {own.get('after')}", f"{before}, {after}", why, gpu])
    return [
        "## Other checkers on the same bugs",
        "",
        f"SentryWard {found['version']} (PyPI, `bench/sentryward.py`) needs no GPU; it is made for sm_100, and these kernels are compiled for sm_90a, with the dimensions of the launch given",
        "and the arrays symbolic. compute-sanitizer ran on an H200, with memcheck, racecheck, synccheck and initcheck (`bench/sanitizer_bugs.py`); its numbers are errors or",
        "hazards, and a hang is a process that was killed after 20 s without a report. Each cell has the answers before and after the fix.",
        "",
        f"SentryWard reports {right} of {len(rows)} and calls them clean after the fix; compute-sanitizer {found_by_gpu} of {len(rows)}.",
        *_LIMITS,
        "",
        *table(["issue", "warploom", "SentryWard", "why unsupported", "compute-sanitizer"], rows),
    ]


def cost(found: Rows) -> list[str]:
    rows = [
        [row["row"], f"{row['baseline_ms']:,.0f}", f"{row['check_ms']:,.0f}", f"{row['ratio']:.1f}", f"{row['bar']:g}"]
        for row in found["rows"]
    ]
    sizes = ", ".join(f"{size} MB for {name}" for name, size in found.get("memory_mb", {}).items())
    memory = (
        [
            f"Peak memory of a check of one tile, without the copies of the operands: {sizes}. It",
            "grows until the lists of events are full that a run keeps for the checker.",
            "",
        ]
        if sizes
        else []
    )
    return [
        "## Cost",
        "",
        "CPU time of a check in milliseconds, all its runs included, against the plain eager run of this repository at 902c541 (`bench/check_cost.py`), on a shared computer; the",
        f"bar is the ratio that we aim at. Revision `{found['revision']}`.",
        "",
        *table(["launch", "plain run", "check", "ratio", "bar"], rows),
        *([found["note"], ""] if "note" in found else []),
        *memory,
    ]


PARTS = {
    "soundness": soundness, "litmus": litmus, "real_bugs": bugs, "sentryward": rivals, "checker_mutants": mutants, "consan": consan,
    "witnesses": witnesses, "check_cost": cost,
}  # fmt: skip


def main() -> None:
    lines = [
        "# What others say of the checker",
        "",
        "The checker ([checking.md](checking.md), [proofs.md](proofs.md)) is judged by random protocols and a search of its own, by litmus tests and bugs of other projects, and by mutants.",
        "This page is written by `python bench/checker_page.py` from the results in `bench/results`; each section names the script that makes them.",
        "",
    ]
    for name, part in PARTS.items():
        found = read(name)
        if found is not None:
            lines += part(found)
    PAGE.write_text("\n".join(lines).rstrip() + "\n", "utf-8")


if __name__ == "__main__":
    main()
