"""Mutants of PTX: one synchronisation instruction deleted, duplicated, weakened, moved or changed by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A change of one line: its class, the number of the line (from 0), and the line before and after.

    An instruction that is moved goes from the line `moved`.
    """

    name: str
    line: int
    before: str
    after: str
    moved: int | None = None

    def applied(self, text: str) -> str:
        """The text with the change."""
        lines = text.split("\n")
        assert lines[self.line] == self.before
        lines[self.line] = self.after
        if self.moved is not None:
            lines[self.moved] = ""
        return "\n".join(lines)


_GUARD = r"^\s*(?:@!?%\w+\s+)?"
DELETED = {
    "bar.sync deleted": r"(?:bar|barrier)(?:\.cta)?\.(?:sync|red)\b",
    "bar.arrive deleted": r"(?:bar|barrier)(?:\.cta)?\.arrive\b",
    "bar.warp.sync deleted": r"bar\.warp\.sync",
    "fence.proxy.async deleted": r"fence\.proxy\.async",
    "fence.proxy.tensormap deleted": r"fence\.proxy\.tensormap",
    "fence.mbarrier_init deleted": r"fence\.mbarrier_init",
    "tcgen05.fence deleted": r"tcgen05\.fence",
    "fence deleted": r"(?:fence\.(?:acq_rel|sc)|membar)",
    "mbarrier.arrive deleted": r"mbarrier\.arrive(?!\.expect_tx)",
    "mbarrier.arrive.expect_tx deleted": r"mbarrier\.(?:arrive\.)?expect_tx",
    "mbarrier.init deleted": r"mbarrier\.init",
    "mbarrier.inval deleted": r"mbarrier\.inval",
    "tcgen05.commit deleted": r"tcgen05\.commit",
    "tcgen05.wait deleted": r"tcgen05\.wait",
    "tcgen05.dealloc deleted": r"tcgen05\.dealloc",
    "tcgen05.relinquish deleted": r"tcgen05\.relinquish",
    "bulk commit_group deleted": r"cp\.async\.bulk\.commit_group",
    "bulk wait_group deleted": r"cp\.async\.bulk\.wait_group",
    "wgmma.wait_group deleted": r"wgmma\.wait_group",
    "wgmma.commit_group deleted": r"wgmma\.commit_group",
    "wgmma.fence deleted": r"wgmma\.fence",
    "griddepcontrol deleted": r"griddepcontrol",
}
"""Classes whose change is that the instruction goes."""
REPLACED: dict[str, tuple[str, Callable[[re.Match[str]], str]]] = {
    "transaction bytes + 16": (r"(expect_tx\S* .*, )(\d+);", lambda m: f"{m[1]}{int(m[2]) + 16};"),
    "transaction bytes - 16": (r"(expect_tx\S* .*, )(\d+);", lambda m: f"{m[1]}{int(m[2]) - 16};"),
    "arrival count + 1": (r"(mbarrier\.init\S* \[[^\]]+\], )(\d+);", lambda m: f"{m[1]}{int(m[2]) + 1};"),
    "arrival count - 1": (
        r"(mbarrier\.init\S* \[[^\]]+\], )([2-9]|\d\d+);",
        lambda m: f"{m[1]}{int(m[2]) - 1};",
    ),
    "bulk wait_group + 1": (
        r"(cp\.async\.bulk\.wait_group(?:\.read)? )(\d+);",
        lambda m: f"{m[1]}{int(m[2]) + 1};",
    ),
    "wgmma.wait_group + 1": (r"(wgmma\.wait_group\S* )(\d+);", lambda m: f"{m[1]}{int(m[2]) + 1};"),
    "bar count - 32": (
        r"((?:bar|barrier)\.(?:sync|arrive) \d+, )(\d+);",
        lambda m: f"{m[1]}{max(int(m[2]) - 32, 32)};",
    ),
    "setmaxnreg + 8": (r"(setmaxnreg\S*\s+)(\d+);", lambda m: f"{m[1]}{min(int(m[2]) + 8, 256)};"),
    "mbarrier.arrive twice": (
        r"((?:@!?%\w+\s+)?mbarrier\.arrive(?!\.expect_tx)[^;]*;)",
        lambda m: f"{m[1]} {m[1]}",
    ),
    "mbarrier wait deleted": (
        r"mbarrier\.t\w+_wait\.parity\S*\s+(\S+),\s*\[[^\]]+\],\s*[^,;]+[^;]*;",
        lambda m: f"setp.eq.b32 {m[1]}, 0, 0;",
    ),
    "wait parity flipped": (
        r"(mbarrier\.t\w+_wait\.parity\S*\s+\S+,\s*\[[^\]]+\],\s*)(%\w+|[01])(;|,)",
        lambda m: (
            f"xor.b32 {m[2]}, {m[2]}, 1; {m[1]}{m[2]}{m[3]} xor.b32 {m[2]}, {m[2]}, 1;"
            if m[2].startswith("%") and m[3] == ";"
            else f"{m[1]}{1 - int(m[2])}{m[3]}"
            if m[2] in "01"
            else m[0]
        ),
    ),
    "release weakened": (
        r"((?:st|red|atom|fence)\.)(?:release|acq_rel)(\.gpu\S* )",
        lambda m: f"{m[1]}relaxed{m[2]}",
    ),
    "acquire weakened": (r"(ld\.)acquire(\.gpu\S* )", lambda m: f"{m[1]}relaxed{m[2]}"),
    "scope narrowed": (
        r"((?:st\.release|red\.release|atom\.acq_rel|fence\.acq_rel)\.)gpu",
        lambda m: f"{m[1]}cta",
    ),
    "cluster.arrive relaxed": (r"(barrier\.cluster\.arrive)\.release", lambda m: f"{m[1]}.relaxed"),
}
"""Classes whose change is another text in the instruction's place."""
MOVED = {
    "mbarrier.arrive moved up": r"mbarrier\.arrive(?!\.expect_tx)",
    "bar.arrive moved up": r"(?:bar|barrier)\.arrive\b",
}
"""Classes whose change is that the instruction comes before the earlier accesses, MMAs and waits of its block."""
CLASSES = (*DELETED, *REPLACED, *MOVED)
_BARRED = re.compile(r"^\s*(?:\$|\w+:|//|\{|\}|\.|@!?%\w+\s+bra|bra|ret)")
_REGISTER = re.compile(r"%\w+")
_MADE = re.compile(r"^\s*(?:@!?%\w+\s+)?[\w.:]+\s+(%\w+),")
_WORK = re.compile(r"\b(?:ld|st|ldmatrix|stmatrix|wgmma|tcgen05|cp\.async|mbarrier|bar)\.")


def mutants(text: str) -> Iterator[Mutant]:
    """All mutants of a kernel's text, which has one instruction to a line."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.strip() or line.strip().startswith(("//", ".")):
            continue
        for name, pattern in DELETED.items():
            if re.match(_GUARD + pattern, line):
                yield Mutant(name, number, line, "")
        for name, (pattern, change) in REPLACED.items():
            after = re.sub(pattern, change, line, count=1)
            if after != line:
                yield Mutant(name, number, line, after)
        for name, pattern in MOVED.items():
            if re.match(_GUARD + pattern, line) and (found := _earlier(lines, number)) is not None:
                start, moved = found
                yield Mutant(name, start, lines[start], " ".join([*moved, lines[start].strip()]), number)


def _earlier(lines: list[str], number: int) -> tuple[int, list[str]] | None:
    """The first access, MMA or wait of the same block that an instruction can be moved before, and the instruction with
    those that compute its operands.
    """
    needed, moved, found = set(_REGISTER.findall(lines[number])), [lines[number].strip()], None
    for at in range(number - 1, -1, -1):
        line = lines[at]
        if _BARRED.match(line) or not line.strip():
            break
        made = _MADE.match(line)
        if _WORK.search(line):
            if made and made[1] in needed:
                break
            found = at, list(moved)
        elif made and made[1] in needed:
            moved.insert(0, line.strip())
            needed |= set(_REGISTER.findall(line))
    return found
