"""Reports of runs that cannot proceed: each warp, its line, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc, WarploomError
from warploom.machine.core.group import JOINING, READY, WAITING, WARP, Group
from warploom.machine.core.lane_masks import lane_bits, lane_list, lanes_named
from warploom.machine.core.names import role_of
from warploom.ptx.syntax.symbols import readable

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.grid import Grid
    from warploom.machine.core.polling_rounds import PollingRound
    from warploom.machine.memory.polling import Word
    from warploom.ptx.isa.table import Op

Array = npt.NDArray[Any]

_STATES = {READY: "ready", WAITING: "waiting", JOINING: "joining"}
_READING = ("ld", "atom", "mbarrier")
"""Instructions that a loop polls with."""
_MOST_LINES = 40
_MOST_NAMES = 6
_MOST_TEXT = 60


def located(grid: Grid, error: Exception, group: Group) -> Exception:
    """A fault with its place: the instruction, the CTA, the warp and the lanes."""
    if not isinstance(error, WarploomError) or error.loc is not None:
        return error
    op, called = _origin(grid, error)
    return placed(grid, error, group, op, _culprits(called, error.fields.get("address")))


def placed(grid: Grid, error: WarploomError, group: Group, op: Op | None, lanes: Any = None) -> WarploomError:
    """A fault with the instruction and the lanes that met it."""
    if op is None:
        return error
    live = group.mask if lanes is None else lanes
    notes = (f"{op.instruction.text[:160]}", f"by {group.cta.name}, {_whose(group, live)}", *error.notes)
    return type(error)(error.diag, grid.loc_of(op), notes, error.fields)


def _whose(group: Group, live: Array | None) -> str:
    """Lanes of a group by their warps: `warp 3, lane 8`, or `warps 0-3, all lanes`."""
    lanes = np.ones(group.lanes, np.bool_) if live is None else live
    by_warp = {group.first_warp + at: part for at, part in enumerate(lanes.reshape(-1, WARP)) if part.any()}
    first, *others = by_warp.values()
    numbers = lane_list(np.isin(np.arange(max(by_warp) + 1), list(by_warp)))
    warps = f"warp {numbers}" if numbers.isdigit() else f"warps {numbers}"
    if all((part == first).all() for part in others):
        return f"{warps}, {'all lanes' if first.all() else lanes_named(first)}"
    return "; ".join(
        f"warp {warp}, {'all lanes' if part.all() else lanes_named(part)}" for warp, part in by_warp.items()
    )


def _origin(grid: Grid, error: Exception) -> tuple[Op | None, dict[str, Any]]:
    """The instruction whose translation raised an error, and what its meaning was called with."""
    trace, op, called = error.__traceback__, None, dict[str, Any]()
    while trace is not None:
        frame = trace.tb_frame
        found = grid.program.instruction_at(frame.f_code.co_filename, trace.tb_lineno)
        if found is not None:
            op, called = found, {}
        elif op is not None and not called and "mask" in frame.f_locals:
            called = frame.f_locals
        trace = trace.tb_next
    return op, called


def _culprits(called: dict[str, Any], address: object) -> Array | None:
    """The lanes that caused a fault: those whose address is wrong, else those that executed; None for all."""
    mask, given = called.get("mask"), called.get("address")
    if isinstance(address, int) and isinstance(given, np.ndarray):
        found: Array = given == given.dtype.type(address & np.iinfo(given.dtype).max)
        found = found if mask is None else found & mask
        if found.any():
            return found
    return mask


def deadlock(grid: Grid) -> WarploomError:
    """The error of a grid in which every group waits and nothing is under way."""
    ctas = grid.live_ctas()
    blocked = [group for cta in ctas for group in cta.all_groups if group.state == WAITING and not _polls(grid, group)]
    spinning = [group for cta in ctas for group in cta.all_groups if _polls(grid, group)]
    waiting = {(g.cta.index, warp) for g in blocked for warp in range(g.first_warp, g.first_warp + g.warps)}
    total = sum(len(cta.live) for cta in ctas)
    ended = sum(not live for cta in ctas for live in cta.live)
    polling = {(g.cta.index, warp) for g in spinning for warp in range(g.first_warp, g.first_warp + g.warps)}
    polls = f"{len(polling)} polling what nothing changes, " if polling else ""
    what = f"{_names(ctas)}: {len(waiting)} of {total} warps blocked, {polls}{ended} finished, nothing in flight."
    first = next(iter((*blocked, *sorted(spinning, key=lambda each: not _words(grid, each, each.first_warp)[0]))), None)
    op = None if first is None else _stopped_at(grid, first, first.first_warp)
    where = None if op is None else grid.loc_of(op)
    return Diag.DEADLOCK.error(where, notes=standing(grid), what=what, waiters=waiters(grid))


@dataclass(frozen=True, slots=True)
class Waiter:
    """Lanes of a warp that cannot go on: `state` is waiting, polling, ready or joining; `what` they wait for."""

    cta: tuple[int, int, int]
    warp: int
    lanes: int
    role: str
    state: str
    what: str
    loc: Loc | None
    instruction: str


def waiters(grid: Grid) -> tuple[Waiter, ...]:
    """The warps that have not finished, as data."""
    found: list[Waiter] = []
    for cta in grid.live_ctas():
        for group in sorted(cta.all_groups, key=lambda group: group.first_warp):
            for number in range(group.warps):
                warp = group.first_warp + number
                doing = _doing(grid, group, warp)
                if not doing:
                    continue
                op, polls = _stopped_at(grid, group, warp), _polls(grid, group)
                state = "polling" if polls else _STATES[group.state]
                waits = group.state == WAITING and group.waiting is not None and not polls
                what = group.waiting.describe() if waits and group.waiting is not None else doing
                part = None if group.mask is None else group.mask[WARP * number : WARP * (number + 1)]
                place, text = (None, "") if op is None else (grid.loc_of(op), op.instruction.text)
                lanes = (1 << WARP) - 1 if part is None else lane_bits(part)
                found.append(Waiter(cta.index, warp, lanes, role_of(grid, warp), state, what, place, text))
    return tuple(found)


@contextmanager
def saying_where(grid: Grid) -> Iterator[None]:
    """Add what each warp was doing to a time limit of the whole program, or to Ctrl-C, in a run."""

    def where() -> tuple[str, ...]:
        return (f"in `{readable(grid.program.kernel.name)}` on the emulator:", *standing(grid))

    try:
        yield
    except WarploomError as error:
        if error.diag is Diag.TIMEOUT and "waiters" not in error.fields:
            error.notes += where()
        raise
    except KeyboardInterrupt as error:
        for note in where():
            error.add_note(note)
        raise


def standing(grid: Grid) -> list[str]:
    """One line for the warps of a CTA that wait at one place for one thing; equal CTAs share their lines."""
    pictures: dict[tuple[str, ...], list[Cta]] = {}
    for cta in grid.live_ctas():
        pictures.setdefault(tuple(_lines(grid, cta)), []).append(cta)
    lines: list[str] = []
    for picture, ctas in pictures.items():
        if len(pictures) > 1:
            lines.append(f"{_names(ctas)}:")
        lines += picture
    if grid.not_started:
        waiting = "1 cluster has" if grid.not_started == 1 else f"{grid.not_started} clusters have"
        lines.append(f"{waiting} not started{'' if grid.can_launch else ': all SMs are full'}")
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"and {len(lines) - _MOST_LINES + 1} more lines"]
    return lines


def _names(ctas: list[Cta]) -> str:
    names = [cta.name for cta in ctas[:_MOST_NAMES]]
    more = f" and {len(ctas) - _MOST_NAMES} more" if len(ctas) > _MOST_NAMES else ""
    return (names[0] if len(names) == 1 else "CTAs " + " ".join(name.removeprefix("CTA ") for name in names)) + more


def _lines(grid: Grid, cta: Cta) -> list[str]:
    """The state of the groups of a CTA, in columns; groups in the same state share a line."""
    rows: dict[tuple[str, str, str, str], list[tuple[Group, int]]] = {}
    for group in sorted(cta.all_groups, key=lambda group: group.first_warp):
        for warp in range(group.first_warp, group.first_warp + group.warps):
            doing = _doing(grid, group, warp)
            if doing:
                op = _stopped_at(grid, group, warp)
                place = "the end" if op is None else str(grid.loc_of(op))
                text = "" if op is None else op.instruction.text
                short = text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
                rows.setdefault((role_of(grid, warp), place, doing, short), []).append((group, warp))
    cells = [
        (role, _who(warps), place, doing, f"`{text}`" if text else "")
        for (role, place, doing, text), warps in rows.items()
    ]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True) if width or cell).rstrip()
        for row in cells
    ]


def _round_of(grid: Grid, group: Group) -> PollingRound | None:
    """The round of a group whose warps poll together with others; None for the others."""
    return next((each for each in grid.rounds if group.state in (READY, WAITING) and each.has(group)), None)


def _polls(grid: Grid, group: Group) -> bool:
    return group in grid.parked or _round_of(grid, group) is not None


def _words(grid: Grid, group: Group, warp: int) -> tuple[tuple[Word, ...], Op | None]:
    """The words that a warp polls, and the instruction that reads them where it is known."""
    found = _round_of(grid, group)
    return (group.polled, None) if found is None else found.polled.get((group.cta.rank, warp), ((), None))


def _stopped_at(grid: Grid, group: Group, warp: int) -> Op | None:
    """The next instruction of a warp; in a loop that polls, the one that reads."""
    if (found := _round_of(grid, group)) is not None:
        # Where the other warps of the loop happen to be says nothing.
        reading = (op for _, op in found.polled.values() if op is not None)
        return _words(grid, group, warp)[1] or next(reading, grid.op_at(group))
    if group not in grid.parked:
        return grid.op_at(group)
    blocks, ahead = grid.program.flow.blocks, [group.pc]
    for index in ahead:  # grows
        for op in blocks[index].ops:
            if op.instruction.opcode.partition(".")[0] in _READING:
                return op
        ahead += [each for each in blocks[index].successors if each not in ahead]
    return grid.op_at(group)


def _doing(grid: Grid, group: Group, warp: int) -> str:
    """The state of a warp of a group; empty if it is done, or if its lanes have lines of their own."""
    if _polls(grid, group):
        words = _words(grid, group, warp)[0]
        if not words and _round_of(grid, group) is not None:
            return "loops with the warps that poll"
        first = f" {words[0].describe()}" if words else ""
        more = f", and {len(words) - 1} more words" if len(words) > 1 else ""
        return f"polls{first}{more}"
    if group.state == WAITING and group.waiting is not None:
        return f"waits for {group.waiting.describe()}"
    if group.state == READY:
        return "can run"
    if group.state == JOINING and group.joined is not None and group.joined.any():
        return f"{lanes_named(group.joined)} wait for the other lanes of their warp"
    return ""


def _who(warps: list[tuple[Group, int]]) -> str:
    """Warps as ranges, with lanes where not all take part."""
    whole = sorted({warp for group, warp in warps if group.mask is None})
    runs: list[list[int]] = []
    for warp in whole:
        if runs and runs[-1][-1] == warp - 1:
            runs[-1].append(warp)
        else:
            runs.append([warp])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    named = [f"warp{'s' if len(whole) > 1 else ''} {','.join(parts)}"] if parts else []
    return ", ".join([*named, *(group.name for group, _ in warps if group.mask is not None)])
