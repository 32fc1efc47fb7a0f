"""PTX litmus tests of Dat3M, with the verdicts of its formal models, against the checker and the schedules.

    python bench/litmus.py --source CHECKOUT            # all tests; writes bench/results/litmus.json
    python bench/litmus.py --source CHECKOUT --show Manual/MP-gpu.litmus

Each thread of a test becomes one thread of a kernel, with a warp of its own; the registers that the condition names are
stored at the end. The tests stay in their checkout. For a test with a condition, the *outcome* is the one that the test
asks about: the condition of `exists` and `~exists`, the negation of `forall`. Wrong answers are

  * an outcome that the model allows, which the checker proves impossible: PROVED, without the assumption `strong-order`,
    while the checked run has another outcome;
  * an outcome that the model forbids, which a schedule shows;
  * REFUTED although every conflict is between strong accesses whose scopes include each other, and nothing hangs;
  * a test that may hang, PROVED;
  * a test that always ends, with a deadlock.

The verdicts on `CADP` (forward progress) are those of the same programs under the fair scheduler of Vulkan's table: the
tests are generated from one source, and the table for PTX has a part of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np  # noqa: E402
from pool import spread  # noqa: E402
from revision import revision  # noqa: E402

import warploom  # noqa: E402

RESULTS = Path(os.environ.get("LITMUS", Path(__file__).parent / "results" / "litmus.json"))
FOLDERS = ("Manual", "CADP", "Memalloy", "Barrier")
_TABLES = ("PTXv6_0-expected.csv", "PTXv7_5-expected.csv")
_LIVE = ("PTXv6_0-Liveness-expected.csv", "PTXv7_5-Liveness-expected.csv")
_FAIR = "VULKAN-Liveness-Fair-expected.csv"
_SCHEDULES = (
    ("lazy", 0),
    ("reverse", 0),
    *(("random", seed) for seed in range(4)),
    *(("weak", seed) for seed in range(6)),
)
_LIMIT = 20_000
_SLOT = 16


class Outside(Exception):
    """A test that is not translated, with the reason."""


@dataclass
class Test:
    """A parsed test."""

    name: str
    threads: list[tuple[int, list[str]]]
    """The CTA and the instructions of each thread."""
    memory: dict[str, int]
    registers: dict[tuple[int, str], int]
    kind: str
    condition: str
    places: dict[str, int] = field(default_factory=dict)
    slots: dict[tuple[int, str], int] = field(default_factory=dict)
    weak: set[str] = field(default_factory=set)
    """Locations that a weak access, or one whose scope leaves out another thread, conflicts on."""


def parse(path: Path, name: str) -> Test:
    """Read a litmus test."""
    text = re.sub(r'"[^"]*"', "", path.read_text("utf-8"))
    found = re.search(r"\{(.*?)\}(.*?)(~\s*exists|exists|forall|\Z)(.*)", text, re.DOTALL)
    if found is None:
        raise Outside("no program")
    memory: dict[str, int] = {}
    registers: dict[tuple[int, str], int] = {}
    for item in filter(None, (each.strip() for each in found[1].replace("\n", " ").split(";"))):
        match = re.fullmatch(r"(?:(?:P?(\d+)):)?(\w+)\s*=\s*(-?\d+)", item)
        if match is None:
            raise Outside(
                "aliases or arrays" if "->" in item or "@" in item or "[" in item else f"`{item}` in the initial state"
            )
        if match[1] is None:
            memory[match[2]] = int(match[3])
        else:
            registers[int(match[1]), match[2]] = int(match[3])
    rows = [row.split("|") for row in found[2].strip().split(";") if row.strip()]
    heads = [re.fullmatch(r"P(\d+)@cta (\d+)\s*,\s*gpu (\d+)(.*)", cell.strip()) for cell in rows[0]]
    if None in heads:
        raise Outside("a thread without a place")
    if len({head[3] for head in heads if head}) > 1:
        raise Outside("several GPUs")
    ctas = sorted({int(head[2]) for head in heads if head})
    threads: list[tuple[int, list[str]]] = [(ctas.index(int(head[2])), []) for head in heads if head]
    for row in rows[1:]:
        for (_, code), cell in zip(threads, row, strict=True):
            if cell.strip():
                code.append(" ".join(cell.split()))
    kind = found[3].replace(" ", "")
    return Test(name, threads, memory, registers, kind, " ".join(found[4].split()))


def expression(test: Test) -> str:
    """The condition as Python, over `reg[thread, name]` and `mem[name]`."""
    out = []
    text = test.condition.replace("/\\", " and ").replace("\\/", " or ").replace("~", " not ")
    tokens = re.findall(r"P?\d+:\w+|\w+|==|!=|>=|<=|[()=<>]|\S", text)
    for token in tokens:
        if register := re.fullmatch(r"P?(\d+):(\w+)", token):
            key = (int(register[1]), register[2])
            test.slots.setdefault(key, len(test.slots))
            out.append(f"reg[{key!r}]")
        elif token in ("and", "or", "not", "(", ")", "==", "!=", ">=", "<=", "<", ">") or token.isdigit():
            out.append(token)
        elif token == "=":
            out.append("==")
        elif re.fullmatch(r"\w+", token):
            out.append(f"mem[{token!r}]")
        else:
            raise Outside(f"`{token}` in the condition")
    return " ".join(out) or "True"


_WIDTH = {"add": "u32", "sub": "u32", "exch": "b32", "cas": "b32"}


class Translation:
    """A test as a kernel."""

    def __init__(self, test: Test) -> None:
        self.test = test
        names = [name for _, code in test.threads for line in code for name in self._locations(line)]
        mentioned = re.findall(r"mem\['(\w+)'\]", expression(test))
        for name in [*test.memory, *names, *mentioned]:
            test.places.setdefault(name, len(test.places))
        self.accesses: dict[str, list[tuple[int, int, bool, str]]] = {}
        self.meetings = Counter[tuple[int, str]]()
        for cta, code in test.threads:
            for line in {each for each in code if each.startswith("bar.")}:
                self.meetings[cta, self._meeting(line)[0]] += 1

    @staticmethod
    def _locations(line: str) -> list[str]:
        words = re.split(r"[ ,]+", line)
        if words[0].startswith("ld") and len(words) > 2 and not words[2].isdigit():
            return [words[2]]
        if words[0].startswith("st"):
            return [words[1]]
        return [words[2]] if words[0].startswith("atom") else [words[1]] if words[0].startswith("red") else []

    def _meeting(self, line: str) -> tuple[str, list[str]]:
        """The static name of a barrier, and its operands."""
        operands = re.split(r"[ ,]+", line)[1:]
        return ",".join(operands[:2]) if not any(each.startswith("r") for each in operands[:2]) else operands[
            0
        ], operands

    def ptx(self) -> str:
        body = [
            "mov.u32 %a1, %tid.x;", "shr.u32 %a2, %a1, 5;", "and.b32 %a3, %a1, 31;", "setp.ne.u32 %q1, %a3, 0;",
            "@%q1 bra DONE;", "mov.u32 %a4, %ctaid.x;", "ld.param.u64 %m1, [memory];", "ld.param.u64 %m2, [out];",
        ]  # fmt: skip
        local = Counter[int]()
        for number, (cta, code) in enumerate(self.test.threads):
            body += [f"setp.ne.u32 %q1, %a2, {local[cta]};", f"setp.ne.u32 %q2, %a4, {cta};", "or.pred %q1, %q1, %q2;"]
            body.append(f"@%q1 bra NEXT{number};")
            local[cta] += 1
            names = {word for line in code for word in re.findall(r"\br\d+\b", line)}
            names |= {name for thread, name in self.test.slots if thread == number}
            names |= {name for thread, name in self.test.registers if thread == number}
            body += [
                f"mov.u32 %{name}_{number}, {self.test.registers.get((number, name), 0)};" for name in sorted(names)
            ]
            for at, line in enumerate(code):
                body += self._line(line, number, cta, at)
            for (thread, name), slot in self.test.slots.items():
                if thread == number:
                    body.append(f"st.global.u32 [%m2+{4 * slot}], %{name}_{number};")
            body += ["bra DONE;", f"NEXT{number}:"]
        used = sorted(set(re.findall(r"%r\d+_\d+", "\n".join(body))))
        declared = f".reg .b32 {', '.join(used)};" if used else ""
        text = "\n".join(body)
        return f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry litmus(.param .u64 memory, .param .u64 out)
{{
.reg .b32 %a<8>;
.reg .b64 %m<4>;
.reg .pred %q<4>;
{declared}
{text}
DONE:
ret;
}}
"""

    def _line(self, line: str, thread: int, cta: int, at: int) -> list[str]:
        if label := re.fullmatch(r"(\w+):", line):
            return [f"{label[1]}_{thread}:"]
        words = re.split(r"[ ,]+", line.rstrip(";"))
        head, operands = words[0].split("."), words[1:]

        def value(word: str) -> str:
            return f"%{word}_{thread}" if re.fullmatch(r"r\d+", word) else word

        def place(name: str) -> str:
            return f"[%m1+{_SLOT * self.test.places[name]}]"

        match head[0]:
            case "ld" | "st" if len(head) == 1 or head[1] == "weak":
                if head[0] == "ld" and operands[1].isdigit():
                    return [f"mov.u32 {value(operands[0])}, {operands[1]};"]
                if operands[0 if head[0] == "st" else 1] not in self.test.places:
                    return [f"mov.u32 {value(operands[0])}, {value(operands[1])};"]
                self._access(operands[0 if head[0] == "st" else 1], thread, cta, head[0] == "st", "")
                if head[0] == "ld":
                    return [f"ld.global.u32 {value(operands[0])}, {place(operands[1])};"]
                return [f"st.global.u32 {place(operands[0])}, {value(operands[1])};"]
            case "ld" | "st" if len(head) == 3 and head[1] in ("relaxed", "acquire", "release"):
                self._access(operands[0 if head[0] == "st" else 1], thread, cta, head[0] == "st", head[2])
                opcode = f"{head[0]}.{head[1]}.{head[2]}.global.u32"
                if head[0] == "ld":
                    return [f"{opcode} {value(operands[0])}, {place(operands[1])};"]
                return [f"{opcode} {place(operands[0])}, {value(operands[1])};"]
            case "atom" | "red" if len(head) == 4 and head[3] in _WIDTH:
                if head[0] == "red":
                    operands = ["", *operands]
                    result = "%a5"
                else:
                    result = value(operands[0])
                self._access(operands[1], thread, cta, True, head[2])
                more = [value(word) for word in operands[2:]]
                before = []
                if head[3] == "sub":
                    before, more = [f"mov.u32 %a6, {more[0]};", "neg.s32 %a6, %a6;"], ["%a6"]
                name = "add" if head[3] == "sub" else head[3]
                opcode = f"atom.{head[1]}.{head[2]}.global.{name}.{_WIDTH[head[3]]}"
                return [*before, f"{opcode} {result}, {place(operands[1])}, {', '.join(more)};"]
            case "fence" if len(head) == 3 and head[1] in ("sc", "acq_rel"):
                return [f"fence.{head[1]}.{head[2]};"]
            case "membar":
                return [f"membar.{head[1]};"]
            case "goto":
                return [f"bra {operands[0]}_{thread};"]
            case "beq" | "bne":
                compare = "eq" if head[0] == "beq" else "ne"
                return [
                    f"setp.{compare}.u32 %q3, {value(operands[0])}, {value(operands[1])};",
                    f"@%q3 bra {operands[2]}_{thread};",
                ]
            case "add":
                return [f"add.u32 {value(operands[0])}, {', '.join(map(value, operands[1:]))};"]
            case "bar":
                return self._bar(line, head, cta, value)
        raise Outside(f"`{words[0]}`")

    def _bar(self, line: str, head: list[str], cta: int, value: Any) -> list[str]:
        name, operands = self._meeting(line)
        if len(operands) > 2 and int(operands[2]) < self.meetings[cta, name]:
            raise Outside("a quorum of fewer threads than come: in PTX the others begin another round of the barrier")
        count = 32 * (int(operands[2]) if len(operands) > 2 else self.meetings[cta, name])
        verb = f"barrier.cta.{head[-1]}"
        if len(operands) > 1 and operands[1].startswith("r"):
            first = 4 * int(operands[0]) if operands[0].isdigit() else 0
            return [f"add.u32 %a7, {value(operands[1])}, {first};", f"{verb} %a7, {count};"]
        if operands[0].startswith("r"):
            return [f"{verb} {value(operands[0])}, {count};"]
        number = 4 * int(operands[0]) + int(operands[1]) if len(operands) > 1 else int(operands[0])
        return [f"{verb} {number}, {count};"]

    def _access(self, name: str, thread: int, cta: int, writes: bool, scope: str) -> None:
        self.accesses.setdefault(name, []).append((thread, cta, writes, scope))

    def is_strong(self) -> bool:
        """True if every conflict is between strong accesses whose scopes include each other's thread."""
        for found in self.accesses.values():
            for one in found:
                for other in found:
                    if one[0] == other[0] or not (one[2] or other[2]):
                        continue
                    near = one[1] == other[1]
                    if not one[3] or not other[3] or (not near and "cta" in (one[3], other[3])):
                        return False
        return True


@dataclass
class Labels:
    """The verdicts of the models: of conditions, and of termination."""

    conditions: dict[str, int]
    ends: dict[str, int]


def labels(source: Path) -> Labels:
    folder = source / "dartagnan" / "src" / "test" / "resources"

    def read(name: str) -> dict[str, int]:
        rows = re.findall(r"(litmus/\S+\.litmus),\s*([01])", (folder / name).read_text("utf-8"))
        return {path.partition("/")[2].partition("/")[2]: int(value) for path, value in rows}

    conditions: dict[str, int] = {}
    for table in _TABLES:
        conditions |= read(table)
    ends = {path: value for path, value in read(_FAIR).items() if path.startswith("CADP")}
    for table in _LIVE:
        ends |= read(table)
    return Labels(conditions, ends)


def run_once(text: str, test: Test, grid: int, block: int, schedule: Any, seed: int = 0) -> tuple[str, dict[str, Any]]:
    """The error of a run, or nothing, and its outcome."""
    memory = np.zeros((len(test.places), _SLOT // 4), np.uint32)
    for name, at in test.places.items():
        memory[at, 0] = test.memory.get(name, 0) & 0xFFFFFFFF
    out = np.zeros(max(len(test.slots), 1), np.uint32)
    try:
        warploom.launch(
            text, grid=grid, block=block, args=[memory, out], schedule=schedule, seed=seed, limit=_LIMIT
        )  # fmt: skip
    except warploom.WarploomError as error:
        return error.code, {}
    values = {"mem": {name: int(memory[at, 0]) for name, at in test.places.items()}}
    return "", values | {"reg": {key: int(out[at]) for key, at in test.slots.items()}}


def judge(path: Path, name: str, known: Labels, *, verbose: bool = False) -> dict[str, Any]:
    """The answer for one test, compared with the models'."""
    test = parse(path, name)
    condition = expression(test)
    translation = Translation(test)
    text = translation.ptx()
    ctas = [cta for cta, _ in test.threads]
    grid, block = max(ctas) + 1, 32 * max(ctas.count(cta) for cta in ctas)
    memory = np.zeros((len(test.places), _SLOT // 4), np.uint32)
    for each, at in test.places.items():
        memory[at, 0] = test.memory.get(each, 0) & 0xFFFFFFFF
    out = np.zeros(max(len(test.slots), 1), np.uint32)
    launch = {"grid": grid, "block": block, "args": [memory, out]}
    report = warploom.check(text, launch=launch, budget=0, limit=_LIMIT)
    if verbose:
        print(text, report, sep="\n")

    def shows(outcome: dict[str, Any]) -> bool:
        holds = bool(eval(condition, {"__builtins__": {}}, outcome))
        return not holds if test.kind == "forall" else holds

    error, outcome = run_once(text, test, grid, block, "eager")
    errors, shown = [error] if error else [], [] if error else [("eager", 0)] * shows(outcome)
    eager_shows = bool(shown)
    for schedule, seed in _SCHEDULES:
        found, outcome = run_once(text, test, grid, block, schedule, seed)
        if found:
            errors.append(found)
        elif shows(outcome):
            shown.append((schedule, seed))
    result: dict[str, Any] = {
        "verdict": str(report.verdict),
        "codes": sorted({finding.code for finding in report.findings}),
        "strong-order": any(each.startswith("strong-order") for each in report.assumptions),
        "shown by": [f"{schedule} {seed}" for schedule, seed in shown[:1]],
        "errors": sorted(set(errors)),
        "wrong": [],
    }
    wrong = result["wrong"]
    proved = report.verdict == "PROVED"
    if name in known.conditions and "0==0" not in test.condition.replace(" ", ""):
        says = known.conditions[name]
        allowed = bool(says) if test.kind == "exists" else not says
        result["outcome"] = "allowed" if allowed else "forbidden"
        if allowed and proved and not result["strong-order"] and not eager_shows:
            wrong.append("proves an allowed outcome impossible")
        if not allowed and shown:
            wrong.append("a schedule shows a forbidden outcome")
        if (
            not allowed
            and report.verdict == "REFUTED"
            and translation.is_strong()
            and "DEADLOCK" not in result["codes"]
        ):
            wrong.append("refuted without a race")
    if name in known.ends:
        ends = bool(known.ends[name])
        result["ends"] = "always" if ends else "may hang"
        if proved and not ends:
            wrong.append("proves that a test ends which may hang")
        if ends and ("DEADLOCK" in result["codes"] or "DEADLOCK" in errors):
            wrong.append("a deadlock in a test that always ends")
    if "outcome" not in result and "ends" not in result:
        raise Outside("no verdict of a model for it")
    return result


def _judged(root: Path, known: Labels, name: str) -> tuple[str, dict[str, Any] | str]:
    """The answer for a test, or the reason why it is not translated."""
    if "proxy" in name:
        return name, "surface, texture, constant or alias proxies"
    try:
        return name, judge(root / name, name, known)
    except Outside as reason:
        return name, str(reason)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a checkout of Dat3M")
    parser.add_argument("--show", help="one test, by its path below litmus/PTX")
    parser.add_argument("--commit", default="", help="the commit of a copy without its history")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    root, known = options.source / "litmus" / "PTX", labels(options.source)
    if options.show:
        print(json.dumps(judge(root / options.show, options.show, known, verbose=True), indent=1))
        return 0
    tests, outside = {}, {}
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.litmus"))
    names = [path.relative_to(root).as_posix() for path in paths]
    for name, found in spread(partial(_judged, root, known), names, options.processes, math.inf, in_order=True):
        if isinstance(found, str):
            outside[name] = found
        else:
            tests[name] = found
        if len(tests) % 50 == 0:
            print(f"{len(tests)} tests", flush=True)
    command = ["git", "-C", str(options.source), "rev-parse", "HEAD"]
    commit = options.commit or subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    results = {"commit": commit, "revision": revision(), "tests": tests, "outside": outside}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")
    wrong = {name: each["wrong"] for name, each in tests.items() if each["wrong"]}
    print(f"{len(tests)} tests translated, {len(outside)} outside, {len(wrong)} wrong")
    for name, why in wrong.items():
        print(f"  {name}: {'; '.join(why)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
