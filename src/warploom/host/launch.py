"""One launch as a frozen value: program, grid and arguments."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warploom.diagnostics import Diag, WarploomError, user_traceback
from warploom.host.program import Ptx
from warploom.ptx.syntax.model import Kernel, Module

Triple = tuple[int, int, int]
_MOST_ENTRIES = 32
"""Kernels that a message lists."""


@dataclass(frozen=True, slots=True, weakref_slot=True, repr=False)
class Launch:
    """A program, the kernel of it to run, and the shape and arguments of the grid; `launch` runs it."""

    program: Ptx
    grid: Triple
    block: Triple
    args: tuple[Any, ...]
    entry: str | None = None
    cluster: Triple = (1, 1, 1)
    shared_bytes: int = 0
    dependent: bool = False
    """Programmatic dependent launch: a GPU may start it before the previous launch in the stream has finished, and the
    kernel itself waits for that launch."""
    at_host_address: tuple[Any, ...] = ()
    """Arrays that the kernel reaches by host addresses stored in its inputs: the emulator maps them at those addresses.
    A GPU has one address for each array anyway."""
    variables: tuple[tuple[str, Any], ...] = ()
    """Arrays that hold variables of the module, by name: the emulator maps them at their host addresses, and they keep
    their values from one launch to the next. All others are fresh in each launch."""
    labels: tuple[str, ...] = ()
    """Names of the arguments in messages, if not those of the parameters in the PTX."""

    def __repr__(self) -> str:
        cluster = "" if self.cluster == (1, 1, 1) else f", cluster={self.cluster}"
        shape = f"grid={self.grid}, block={self.block}{cluster}"
        return f"<Launch of {self.entry or 'a kernel'}: {shape}, {len(self.args)} arguments>"

    @staticmethod
    @user_traceback
    def load(path: str | Path) -> Launch:
        """The launch that a launch file describes, with freshly drawn inputs."""
        from warploom.launch_file import load

        return load(path).launch()


def triple(value: Any, name: str) -> Triple:
    """Extents along x, y and z from an integer or from up to three; those left out are 1. `name` is for the message."""
    if type(value) is tuple and len(value) == 3 and all(type(extent) is int for extent in value):
        return value
    try:
        listed = [value] if not hasattr(value, "__len__") else list(value)
        extents = [operator.index(extent) for extent in listed if not isinstance(extent, bool)]
    except TypeError:
        listed, extents = [], []
    if not listed or len(extents) != len(listed) or len(extents) > 3:
        what = f"`{name}` is {value!r:.60}; it must be an integer or up to three integers (x, y, z)"
        raise Diag.BAD_LAUNCH.error(what=what)
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def with_triples(launch_: Launch) -> Launch:
    """The launch with three integers for each shape; a `Launch` may have been made with fewer."""
    shapes, problems = [], []
    for name in ("grid", "block", "cluster"):
        try:
            shapes.append(triple(getattr(launch_, name), name))
        except WarploomError as error:
            problems.append(str(error.fields["what"]))
    if type(launch_.shared_bytes) is bool or not hasattr(launch_.shared_bytes, "__index__"):
        problems.append(f"`shared_bytes` is {launch_.shared_bytes!r:.60}; it must be a number of bytes")
    if problems:
        raise together(problems)
    grid, block, cluster = shapes
    if grid is launch_.grid and block is launch_.block and cluster is launch_.cluster:
        return launch_
    return replace(launch_, grid=grid, block=block, cluster=cluster)


def together(problems: list[str]) -> WarploomError:
    """One error for all that is wrong with a launch."""
    only = problems[0] if len(problems) == 1 else f"{len(problems)} problems"
    return Diag.BAD_LAUNCH.error(notes=problems if len(problems) > 1 else (), what=only)


def entry_of(module: Module, name: str | None) -> Kernel:
    """The kernel to run: the named one, or the only one."""
    entries = {kernel.name: kernel for kernel in module.kernels if kernel.entry and kernel.body is not None}
    if name is None and len(entries) == 1:
        return next(iter(entries.values()))
    if name not in entries:
        more = f" and {len(entries) - _MOST_ENTRIES:,} more" if len(entries) > _MOST_ENTRIES else ""
        known = ", ".join([*entries][:_MOST_ENTRIES]) + more
        raise Diag.NO_SUCH_ENTRY.error(entry=f"{name or '(none named)':.200}", entries=known or "none")
    return entries[name]
