"""Calls that differ in their number of rows only: one plan for each kernel, resized for every other m.

Kernels take their sizes at run time. A new m needs other bounds in the tensor maps, other sizes among the arguments and
another grid; validation, planning and tracing are those of an m that was planned before. A plan is resized only after a
resized one was found equal to one that was made from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, NamedTuple

from warploom.diagnostics import WarploomError
from warploom.heuristics import Device, ProblemKey, rounded_rows, rows_in_table
from warploom.heuristics.sm90.ranking import as_fast_as_choice
from warploom.host.arrays import buffer_of
from warploom.host.launch import Launch
from warploom.host.program import Ptx
from warploom.host.tensor_map import TensorMap
from warploom.kernels.call import Call
from warploom.kernels.sm90.binding import bind, meeting_ctas, resized
from warploom.ops.determinism import SETTINGS
from warploom.ops.planning.arrays import ArrayDescriptor
from warploom.ops.planning.planner import tuned
from warploom.ops.planning.prepare import Bound
from warploom.runtime.background import is_enabled, worker
from warploom.runtime.cache.winners import has_any
from warploom.runtime.gpu import driver
from warploom.runtime.gpu.prepared import Prepared
from warploom.runtime.waits import record_found
from warploom.structured.config.sm90 import HopperConfig

Made = tuple[Bound, Prepared]
_TARGET = "sm_90a"
_OPERANDS = 3
"""Arguments before the sizes: A, B and D."""


class Found(NamedTuple):
    """A prepared call; `is_final` says that it has the kernel that was chosen for its size."""

    prepared: Prepared
    is_final: bool


@dataclass(frozen=True)
class _Base:
    """A planned call that others are resized from."""

    prepared: Prepared
    program: Ptx
    call: Call[HopperConfig]
    sms: int
    of_rows: frozenset[int]
    """The arrays whose first axis is m."""
    first: int
    """The position of the first size among the arguments."""

    def resized(self, rows: int) -> Prepared:
        other = resized(self.call, rows, self.sms)
        assert other is not None
        scalars = dict(enumerate(other.sizes, self.first))
        return self.prepared.resized(rows, self.of_rows, other.grid, scalars, other.scratch)

    def takes(self, rows: int) -> bool:
        """Return whether the configuration may be used: CTAs that wait for each other must be resident."""
        return meeting_ctas(self.call.config, rows, self.call.problem.n) <= self.sms


class RowFamily:
    """The calls of one signature without m, on one GPU; `plan` plans one of them from the start."""

    def __init__(self, device: driver.Device, plan: Callable[[int], Made]) -> None:
        self._device, self._plan = device, plan
        self._like: ProblemKey | None = None
        self._in_table: frozenset[int] = frozenset()
        self._bases: dict[HopperConfig, _Base] = {}
        self._choices: dict[int, HopperConfig] = {}
        """The configuration of each class of m, by its largest."""
        self._unshared: set[int] = set()
        """Classes of m whose planned call cannot be resized: such a call is planned from the start."""
        self._pending: set[int] = set()
        self._provisional: dict[int, Prepared] = {}

    def add(self, rows: int, made: Bound, prepared: Prepared) -> None:
        """Add a call that was planned from the start, if it can be resized."""
        call, key = made.call, made.key
        if call is None or key is None or self._device.target != _TARGET or made.copied:
            return
        if rows < 2 or rows in (call.problem.n, call.problem.k) or call.problem.m != rows:
            return
        if self._like is None:
            self._like = key
            self._in_table = rows_in_table(key, Device(self._device.gpu.name, self._device.gpu.sms))
        if call.config not in self._bases:
            base = _base_of(made.launch, call, tuple(made.arrays.values()), prepared, rows)
            if base is None or not _is_confirmed(base, tuple(made.arrays.values()), rows):
                return
            self._bases[call.config] = base
        group = self._group_of(rows)
        if group is not None:
            self._choices[group] = call.config

    def find(self, rows: int, *, may_substitute: bool) -> Found | None:
        """Return the call for m rows, if a loaded kernel can serve it.

        Where no configuration has been chosen for such an m, the kernel of the nearest m may serve as a substitute.
        Meanwhile a loaded kernel that is expected to be about as fast as the choice is looked for in the background,
        and if there is none, the call is planned from the start.
        """
        group = self._group_of(rows) if rows > 1 and self._like is not None else None
        if group is None:
            return None
        config = self._choices.get(group)
        if config is not None:
            base = self._bases.get(config)
            if base is None or not base.takes(rows):
                return None
            record_found(is_substitute=False)
            return Found(base.resized(rows), is_final=True)
        if group in self._unshared or not may_substitute or not is_enabled():
            return None
        nearest = self._nearest(rows)
        if nearest is None:
            return None
        if group not in self._pending:
            self._pending.add(group)
            worker().submit(lambda: self._improve(rows, group, nearest.call.config))
            record_found(is_substitute=True)
        found = self._provisional.get(rows)
        if found is None:
            found = self._provisional[rows] = nearest.resized(rows)
        return Found(found, is_final=False)

    def _group_of(self, rows: int) -> int | None:
        """Return the m whose choice others share; None if the user tuned this very problem."""
        assert self._like is not None
        if has_any() and tuned(replace(self._like, m=rows), self._device.gpu) is not None:
            return None
        return rows if rows in self._in_table else rounded_rows(rows)

    def _nearest(self, rows: int) -> _Base | None:
        """Return the base of the nearest m that was chosen for and takes this one."""
        bases = [(abs(log(group / rows)), self._bases[config]) for group, config in list(self._choices.items())]
        fitting = [each for each in bases if each[1].takes(rows)]
        return min(fitting, key=lambda each: each[0])[1] if fitting else None

    def _loaded_for(self, rows: int, group: int) -> HopperConfig | None:
        """Return a loaded configuration that is expected to be about as fast as the choice; None if there is none."""
        assert self._like is not None
        if SETTINGS.batch_invariant != self._like.unsplit:  # the setting has changed meanwhile
            return None
        taking = [config for config, base in list(self._bases.items()) if base.takes(rows)]
        device = Device(self._device.gpu.name, self._device.gpu.sms)
        return as_fast_as_choice(replace(self._like, m=group), device, taking)

    def _improve(self, rows: int, group: int, meanwhile: HopperConfig) -> None:
        """Choose a loaded kernel or plan a call from the start; if that fails, the kernel that serves it meanwhile
        remains.
        """
        try:
            shared = self._loaded_for(rows, group)
            if shared is not None:
                self._choices[group] = shared
                return
            made, prepared = self._plan(rows)
            assert self._like is not None
            if made.key is None or made.key.unsplit != self._like.unsplit:  # the setting has changed meanwhile
                return
            self.add(rows, made, prepared)
            if group not in self._choices:  # its kernel is loaded, but serves this call alone
                self._unshared.add(group)
        except Exception:
            self._choices[group] = meanwhile
            raise
        finally:
            self._pending.discard(group)
            self._provisional.clear()


def _base_of(
    launch: Launch, call: Call[Any], arrays: Sequence[ArrayDescriptor], prepared: Prepared, rows: int
) -> _Base | None:
    """Return what a planned call is resized by; None if its arguments are not where they are expected."""
    sms = prepared.device.gpu.sms
    own = resized(call, rows, sms)
    if own is None or launch.grid != own.grid:
        return None
    first = _OPERANDS
    if not isinstance(launch.args[2], TensorMap):  # D with the strides that the trace does not know
        buffer = buffer_of(launch.args[2])
        first += sum(stride // buffer.item not in (0, 1) for stride in buffer.strides)
    if launch.args[first : first + len(own.sizes)] != own.sizes:
        return None
    of_rows = frozenset(at for at, each in enumerate(arrays) if each.shape[:1] == (rows,))
    return _Base(prepared, launch.program, call, sms, of_rows, first)


def _is_confirmed(base: _Base, arrays: Sequence[ArrayDescriptor], rows: int) -> bool:
    """Return whether a resized call equals one that is bound from the start, with one row less or more."""
    other = next((each for each in (rows - 1, rows + 1) if each > 1 and base.takes(each)), None)
    if other is None or other in (base.call.problem.n, base.call.problem.k):
        return False
    roots = {each.root: with_rows(each.root, rows, other) for each in arrays}
    try:
        launch = bind(_call_with_rows(base.call, roots, rows, other), base.sms)
        if launch.program is not base.program:
            return False
        made = Prepared(
            launch, [_view_with_rows(each, roots, rows, other) for each in arrays], device=base.prepared.device
        )
    except WarploomError:
        return False
    return base.resized(other).signature() == made.signature()


def with_rows(array: ArrayDescriptor, rows: int, other: int) -> ArrayDescriptor:
    """Return an array whose axes of `rows` elements have other ones; its strides are the same."""
    return replace(array, shape=tuple(other if extent == rows else extent for extent in array.shape))


def _view_with_rows(view: Any, roots: dict[Any, ArrayDescriptor], rows: int, other: int) -> Any:
    """Return a view of an array with other rows; anything else as it is."""
    if not isinstance(view, ArrayDescriptor):
        return view
    if view.base is None:
        return roots.get(view, view)
    return replace(with_rows(view, rows, other), base=roots.get(view.base, view.base))


def _call_with_rows(call: Call[Any], roots: dict[Any, ArrayDescriptor], rows: int, other: int) -> Call[Any]:
    def changed(value: Any) -> Any:
        return _view_with_rows(value, roots, rows, other)

    return replace(
        call,
        problem=replace(call.problem, m=other),
        **{name: changed(getattr(call, name)) for name in ("a", "b", "d", "up", "c")},
        operands={name: changed(value) for name, value in call.operands.items()},
    )
