"""Reasons why no run can tell a mutant from the whole kernel: judgements, written as rules on the text around a change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Rule = Callable[[str, list[str], int], bool]
"""A rule on (family, lines of the whole kernel, number of the changed line)."""
_WORK = re.compile(
    r"\b(?:ld\.|st\.|ldmatrix|stmatrix|wgmma\.mma|tcgen05\.(?:ld|st|mma|cp|dealloc)|cp\.async\.bulk\.tensor|bra \$(?:loop|while))"
)
_END = re.compile(r"^\s*(?:\$end_\w+:|ret;)")
_REGISTER = re.compile(r"%\w+")


def _rest(lines: list[str], number: int) -> Iterator[str]:
    """The instructions after a line, up to the end of the role or kernel."""
    for line in lines[number + 1 :]:
        if _END.match(line):
            return
        yield line


def _ends(family: str, lines: list[str], number: int) -> bool:
    """Nothing but waits come after the line in its role."""
    return not any(_WORK.search(line) for line in _rest(lines, number))


def _instructions_after(lines: list[str], number: int) -> list[str]:
    """The next instructions."""
    skipped = ("//", ".loc", "$")
    return [
        line.strip() for line in lines[number + 1 : number + 8] if line.strip() and not line.strip().startswith(skipped)
    ]


def _before_aligned_barrier(family: str, lines: list[str], number: int) -> bool:
    after = _instructions_after(lines, number)
    return bool(after) and after[0].startswith(("bar.sync", "bar.arrive", "barrier.cluster.arrive"))


def _only_over_warp_sync(family: str, lines: list[str], number: int) -> bool:
    return "bar.warp.sync" in lines[number]


def _after_init_fence(family: str, lines: list[str], number: int) -> bool:
    return any("fence.mbarrier_init" in line for line in lines[max(number - 6, 0) : number])


def _at_the_end(family: str, lines: list[str], number: int) -> bool:
    return any(line.startswith("ret;") for line in _instructions_after(lines, number)[:3])


def _one_tile(family: str, lines: list[str], number: int) -> bool:
    return family.startswith("sm_90a split-K")


def _results_are_used(family: str, lines: list[str], number: int) -> bool:
    """Every register of the loads since the last wait is an operand of an instruction before this one."""
    loaded, seen = set[str](), set[str]()
    for line in reversed(lines[max(number - 120, 0) : number]):
        if "tcgen05.wait" in line:
            break
        if "tcgen05.ld" in line:
            loaded |= set(_REGISTER.findall(line.partition("{")[2].partition("}")[0]))
        else:
            seen |= set(_REGISTER.findall(line))
    return bool(loaded) and loaded <= seen


def _nothing_in_flight(family: str, lines: list[str], number: int) -> bool:
    """A `before_thread_sync` fence after which the nearest earlier operation on TMEM is a wait for the others."""
    if "before_thread_sync" not in lines[number]:
        return False
    for line in reversed(lines[:number]):
        if re.search(r"tcgen05\.(?:wait|ld|st|mma|cp|alloc)\b", line):
            return "tcgen05.wait" in line
    return False


def _accumulators_are_not_read(family: str, lines: list[str], number: int) -> bool:
    """The operands of the next MMA are in shared memory: it reads no register but its accumulator."""
    after = next((line for line in lines[number:] if "wgmma.mma_async" in line), "")
    return after.count("{") == 1


def _next_wait_covers(family: str, lines: list[str], number: int) -> bool:
    """The next `wgmma.wait_group` completes the same groups, and until then no accumulator is read and no slot freed."""
    accumulators, commits = set[str](), 0
    for line in lines[:number]:
        if "wgmma.mma_async" in line:
            accumulators |= set(_REGISTER.findall(line.partition("{")[2].partition("}")[0]))
    for line in lines[number + 1 :]:
        if wait := re.search(r"wgmma\.wait_group\S* (\d+)", line):
            return int(wait[1]) <= commits
        commits += "wgmma.commit_group" in line
        used = set() if "wgmma.mma_async" in line else set(_REGISTER.findall(line))
        if used & accumulators or "mbarrier.arrive" in line:
            return False
    return False


def _role(lines: list[str], number: int) -> str:
    """The role of the warp that executes a line."""
    found = (re.match(r"\s*//!wl role (\w+)", line) for line in reversed(lines[:number]))
    return next((match[1] for match in found if match), "")


def _reads_the_mailbox(role: str) -> Rule:
    """The line loads an answer of cluster launch control, in the warp of a role."""

    def applies(family: str, lines: list[str], number: int) -> bool:
        answer = lines[number].strip().startswith("ld.shared.b128") and "query_cancel" in lines[number + 1]
        return answer and _role(lines, number) == role

    return applies


def _always(family: str, lines: list[str], number: int) -> bool:
    return True


REASONS: tuple[tuple[str, Rule, str], ...] = (
    ("tcgen05.relinquish", _always, "no other CTA allocates TMEM of the SM in this launch"),
    ("griddepcontrol", _always, "no other launch depends on this one, or comes before it"),
    ("bulk (commit|wait)", _ends, "the CTA ends after it, and stores that are under way complete"),
    ("bulk (commit|wait)", _one_tile, "a CTA of this kernel computes one tile, and uses its staging buffer once"),
    ("arrive moved up", _one_tile, "a CTA of this kernel computes one tile, and nothing is loaded into the slot again"),
    (
        "mbarrier.arrive moved up",
        _reads_the_mailbox("scheduler"),
        "the warp that reads the answer is the one that asks for the next in its place",
    ),
    (
        "mbarrier.arrive moved up",
        _reads_the_mailbox("load"),
        "the scheduler asks for the next answer in its place only after the load warp has begun the tile of this one",
    ),
    (
        "mbarrier.arrive moved up",
        _reads_the_mailbox("mma"),
        "the scheduler follows the load warp, which cannot be two tiles ahead of the MMAs: a tile has more k-tiles than stages",
    ),
    (
        "mbarrier wait deleted",
        _ends,
        "a producer's last wait, after which it does nothing; other barriers keep the CTA alive",
    ),
    ("wgmma.wait_group", _ends, "the role ends after it, and nothing reads the accumulators"),
    ("wgmma.wait_group", _next_wait_covers, "the next wait completes the same MMAs before anything depends on them"),
    ("bar.warp.sync deleted", _before_aligned_barrier, "the aligned barrier after it needs the whole warp as well"),
    ("bar.arrive moved up", _only_over_warp_sync, "`bar.arrive` itself needs the whole warp"),
    ("cluster.arrive relaxed", _after_init_fence, "`fence.mbarrier_init` before it releases all that was written"),
    ("cluster.arrive relaxed", _at_the_end, "the barrier only keeps CTAs alive; nothing is read after it"),
    (
        "fence.mbarrier_init",
        _always,
        "the barrier after it orders the initialisation for all threads that use it; Triton has no such fence",
    ),
    (
        "tcgen05.wait deleted",
        _results_are_used,
        "all that was loaded is used before it, and the uses wait for the loads",
    ),
    (
        "tcgen05.fence deleted|arrive moved up",
        _nothing_in_flight,
        "the loads before it have completed (`tcgen05.wait::ld`), and there is nothing to order",
    ),
    (
        "wgmma.fence",
        _accumulators_are_not_read,
        "the first MMA of a tile ignores its accumulator, and MMAs of one shape are in order",
    ),
)
"""(class as a regular expression, rule, reason); the first that applies is the reason."""

BY_THE_LETTER = frozenset(
    why
    for pattern, applies, why in REASONS
    if pattern in ("fence.mbarrier_init", "wgmma.fence")
    or (applies is _ends and "bulk" in pattern)
    or applies is _nothing_in_flight
)
"""Reasons why no run shows the absence of an instruction that PTX or CUDA's guide asks for."""


def reason(name: str, family: str, text: str, number: int) -> str:
    """The reason why a mutant is equivalent; empty if there is none."""
    lines = text.split("\n")
    for pattern, applies, why in REASONS:
        if re.search(pattern, name) and applies(family, lines, number):
            return why
    return ""
