"""Waits that timed out on a GPU, reported like the emulator's deadlocks: which warp waits where, and for what."""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict

from warploom.diagnostics import Diag, WarploomError
from warploom.host.launch import Launch, entry_of
from warploom.host.program import module_of
from warploom.ptx.syntax.annotations import barriers_in, notes_of, roles_in
from warploom.ptx.syntax.model import Kernel, Module
from warploom.runtime.gpu.bounded_waits import CTAS, RECORD_WORDS, UNKNOWN, WARPS, Site, bounded
from warploom.runtime.gpu.driver import Device

VARIABLE = "WARPLOOM_TIMEOUT"
_MAPPED_FOR_ALL = 3
_MOST_LINES = 40
_MOST_NAMES = 6
Record = tuple[int, ...]


def default_timeout() -> float | None:
    """Return the seconds after which waits give up, if the environment sets any."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise Diag.BAD_SETTING.error(variable=VARIABLE, value=text, what="it is a number of seconds")
    return seconds


class Watch:
    """A kernel with bounded waits, and host memory into which warps that give up write their records."""

    def __init__(self, launch: Launch, device: Device, seconds: float) -> None:
        module = module_of(launch.program)
        kernel = entry_of(module, launch.entry)
        self._module, self._kernel, self._device = module, kernel, device
        self.program: Module
        self.program, _, self._sites = bounded(module, kernel, int(seconds * 1e9))
        self._words = CTAS * WARPS * RECORD_WORDS
        self._host = ctypes.c_void_p()
        with device.current():
            size = ctypes.c_size_t(4 * self._words)
            device.driver.call("cuMemHostAlloc", ctypes.byref(self._host), size, _MAPPED_FOR_ALL)
        ctypes.memset(self._host.value or 0, 0, 4 * self._words)

    @property
    def address(self) -> int:
        """The value of the kernel's last parameter: the memory has the same address on the host and the GPU."""
        return int(self._host.value or 0)

    def check(self, stream: int) -> None:
        """Wait for the launch; a wait that timed out is a deadlock, after which this process cannot use the GPU."""
        status = self._device.driver.library.cuStreamSynchronize(ctypes.c_void_p(stream))
        records = self._records()
        if records:
            raise deadlock_error(records, self._sites, self._module, self._kernel)
        if status:
            raise self._device.driver.refusal(status, "to wait for the kernel")

    def _records(self) -> list[Record]:
        words = (ctypes.c_uint32 * self._words).from_address(self.address)
        starts = range(0, self._words, RECORD_WORDS)
        return [tuple(words[start : start + RECORD_WORDS]) for start in starts if words[start]]


def deadlock_error(records: list[Record], sites: tuple[Site, ...], module: Module, kernel: Kernel) -> WarploomError:
    """Return the error of a kernel whose waits timed out."""
    roles: dict[int, str] = {}
    names: dict[int, str] = {}
    for words in notes_of(module, kernel):
        roles |= roles_in(words)
        names |= barriers_in(words, {words[2].partition("+")[0]: 0} if len(words) == 5 else {})
    pictures: dict[tuple[str, ...], list[str]] = defaultdict(list)
    ctas: dict[tuple[int, ...], list[Record]] = defaultdict(list)
    for record in records:
        ctas[record[5:8]].append(record)
    for cta, own in sorted(ctas.items(), key=lambda each: each[0][::-1]):
        pictures[tuple(_lines(own, sites, roles, names))].append(f"({','.join(map(str, cta if cta[2] else cta[:2]))})")
    lines: list[str] = []
    for picture, where in pictures.items():
        lines += [f"{_named(where)}:", *picture] if len(pictures) > 1 else picture
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"and {len(lines) - _MOST_LINES + 1} more lines"]
    everywhere = [name for where in pictures.values() for name in where]
    what = f"{_named(everywhere)}: {len(records)} warps timed out waiting on the GPU."
    return Diag.DEADLOCK.error(sites[records[0][0] - 1].loc, notes=lines, what=what)


def _named(ctas: list[str]) -> str:
    more = f" and {len(ctas) - _MOST_NAMES} more" if len(ctas) > _MOST_NAMES else ""
    return f"CTA {ctas[0]}" if len(ctas) == 1 else f"CTAs {' '.join(ctas[:_MOST_NAMES])}{more}"


def _lines(records: list[Record], sites: tuple[Site, ...], roles: dict[int, str], names: dict[int, str]) -> list[str]:
    """Return a line for the warps of a CTA that wait for the same thing at the same place, in columns."""
    rows: dict[tuple[str, str, str, str], list[int]] = {}
    for site, turns, phase, place, base, _, _, _, warp, *_ in sorted(records, key=lambda each: each[8]):
        where = sites[site - 1]
        at = str(where.loc) if where.loc else "<ptx>"
        waits = f"waits for {_what(where, place, base, phase, names)} (after {turns} waits here)"
        rows.setdefault((roles.get(warp, ""), at, waits, f"`{where.text}`"), []).append(warp)
    cells = [(role, _warps(warps), at, waits, text) for (role, at, waits, text), warps in rows.items()]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True) if width or cell)
        for row in cells
    ]


def _what(site: Site, place: int, base: int, phase: int, names: dict[int, str]) -> str:
    if not site.is_barrier:
        return f"a change at {place:#x} of global memory"
    name = names.get((place - base) & UNKNOWN) or f"the mbarrier at shared+{place:#x}"
    return name if phase == UNKNOWN else f"{name} phase of parity {phase & 1}"


def _warps(warps: list[int]) -> str:
    runs: list[list[int]] = []
    for warp in warps:
        if runs and runs[-1][-1] == warp - 1:
            runs[-1].append(warp)
        else:
            runs.append([warp])
    parts = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"warp{'s' if len(warps) > 1 else ''} {parts}"
