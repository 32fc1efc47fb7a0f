"""The wrapper of an instruction in a run with observers: it names the agent and reports the declared effects.

Accesses and fences are reported here, from the row's effects and the operands. Objects with a state report
their own effects while the instruction runs; an effect that none of them reported is reported here without phase or
group, so that no effect is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.hardware.fragments import MATRIX_MOVES
from warploom.hardware.swizzles import GRANULE
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.machine.core.events import (
    WORD,
    Actor,
    BarrierSite,
    Declared,
    Site,
    Touch,
    agent_of,
    lanes_as_bits,
)
from warploom.machine.core.group import WARP
from warploom.machine.instructions.memory import Spaces
from warploom.machine.instructions.wmma import line_addresses, lines_of
from warploom.machine.memory.byte_memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WIDTHS, WINDOW_BYTES
from warploom.machine.memory.shared_memory import RANK_SHIFT
from warploom.ptx.isa.table import BITS, Effect, Op
from warploom.ptx.syntax.model import Address, Immediate

if TYPE_CHECKING:
    from warploom.machine.core.grid import Grid
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]

_KIND = {
    "reads": "access",
    "writes": "access",
    "arrives": "arrive",
    "expects": "arrive",
    "completes": "arrive",
    "waits": "wait",
    "syncs": "wait",
    "drains": "wait",
    "fences": "fence",
    "allocates": "alloc",
    "frees": "free",
    "commits": "issue",
}
_DEFAULTS = {
    "reads": ("weak", ""),
    "writes": ("weak", ""),
    "arrives": ("release", "cta"),
    "expects": ("relaxed", "cta"),
    "completes": ("relaxed", "cta"),
    "waits": ("acquire", "cta"),
    "syncs": ("acq_rel", "cta"),
}
"""(semantics, scope) where an instruction says neither (PTX ISA: ld, st, mbarrier.arrive, mbarrier.try_wait, bar)."""
_OUTPUTS = ("out", "pair", "outs")
_REACHED = frozenset({"", "shared", "global"})
"""Spaces that other threads reach; empty for a generic address."""
_WINDOW_SHIFT = WINDOW_BYTES.bit_length() - 1
_WINDOWS = {
    base >> _WINDOW_SHIFT: (space, base)
    for space, base in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("param", PARAM_WINDOW))
}


def _filled(op: Op, text: str) -> str:
    return op[text[1:-1]] if text.startswith("{") else text


def _declared(op: Op, effect: Effect) -> Declared:
    """An effect as the instruction spells it, with PTX's defaults."""
    semantics, scope = _filled(op, effect.detail), _filled(op, effect.scope)
    usual = _DEFAULTS.get(effect.verb, ("", ""))
    if semantics == "atomic":
        semantics = f"atomic {op['sem'] or 'relaxed'}"
    space = _filled(op, effect.space).partition("::")[0]
    return Declared(space, _filled(op, effect.proxy), scope or usual[1], semantics or usual[0])


def _elements(op: Op) -> tuple[int, int]:
    """The bytes of the type, times the length of a vector."""
    type_ = op["type"] or op.instruction.opcode.rpartition(".")[2]
    return BITS.get(type_, 8) // 8 * int(op["vec"][1:] or 1), WARP


def _matrix_rows(op: Op) -> tuple[int, int]:
    move = MATRIX_MOVES[op["shape"], bool(op["trans"]), op["type"].rpartition(".")[2]]
    return GRANULE, move.rows * int(op["count"][1:])


def _tensor_map(_: Op) -> tuple[int, int]:
    return MAP_BYTES, WARP


_SHAPES: dict[str, Callable[[Op], tuple[int, int]]] = {
    "ldmatrix": _matrix_rows,
    "stmatrix": _matrix_rows,
    "wmma.load": lines_of,
    "wmma.store": lines_of,
    **dict.fromkeys(("tensormap.replace", "tensormap.replace.whole", "tensormap.cp_fenceproxy"), _tensor_map),
}
"""The bytes at each address and the lanes of a warp that give one, where the type does not tell."""


class Held:
    """The bytes at the addresses of a store, before and after it."""

    def __init__(self, op: Op, width: int, givers: int) -> None:
        self.spaces, self.width, self.givers = Spaces(op), width, givers
        self.is_matrix = op.family == "stmatrix"
        if self.is_matrix:
            self.spaces.space = "shared"

    def by(self, group: Group, mask: Array | None, address: Any) -> list[Any]:
        """The bytes that the lanes of a group find now, in pieces of at most 16 bytes."""
        mask = self._giving(group, mask)
        piece = min(self.width, GRANULE)
        found = (self.spaces.load(group, mask, _moved(address, at), piece) for at in range(0, self.width, piece))
        return [
            (each if isinstance(each, np.ndarray) else np.array([each], WIDTHS[piece])).view(np.uint8) for each in found
        ]

    def _giving(self, group: Group, mask: Array | None) -> Array | None:
        """The lanes that give an address."""
        live = group.mask if mask is None else mask
        if self.givers == WARP:
            return live
        giving = np.arange(group.lanes) % WARP < self.givers
        return giving if live is None else giving & live

    def changed(self, group: Group, mask: Array | None, address: Any, stored: Any, old: list[Any]) -> list[bool]:
        """For each warp of a group: whether its store changed a byte, the warps taken one after the other."""
        now = self.by(group, mask, address)
        if isinstance(address, int):
            first = any((was != new).any() for was, new in zip(old, now, strict=True))
            return [first, *[first and not _equal(stored)] * (group.warps - 1)]
        lanes = np.zeros(group.lanes, np.bool_)
        for was, new in zip(old, now, strict=True):
            lanes |= (was != new).reshape(group.lanes, -1).any(axis=1)
        live = self._giving(group, mask)
        if live is not None:
            lanes &= live
        if group.warps > 1 and lanes.any():
            lanes &= ~(_repeated_warps if self.is_matrix else _repeated)(address, stored, live)
        return [bool(warp.any()) for warp in lanes.reshape(group.warps, WARP)]


def _repeated_warps(address: Array, stored: Any, _: Array | None) -> Array:
    """The lanes of the warps that store what an earlier warp stores at the same addresses."""
    out = np.zeros(len(address), np.bool_)
    rows = [each for each in (address, *_parts(stored)) if isinstance(each, np.ndarray)]
    warps = [np.stack([row[at : at + WARP] for row in rows]).tobytes() for at in range(0, len(address), WARP)]
    for number, warp in enumerate(warps):
        out[WARP * number : WARP * (number + 1)] = warp in warps[:number]
    return out


def _parts(stored: Any) -> tuple[Any, ...]:
    return stored if isinstance(stored, tuple) else (stored,)


def _equal(stored: Any) -> bool:
    """True if all lanes store the same."""
    return all(not isinstance(each, np.ndarray) or bool((each == each[0]).all()) for each in _parts(stored))


def _repeated(address: Array, stored: Any, live: Array | None) -> Array:
    """The lanes that store what a lane of an earlier warp stores at the same address."""
    lanes = np.arange(len(address)) if live is None else np.flatnonzero(live)
    values, first, group = np.unique(address[lanes], return_index=True, return_inverse=True)
    if len(values) == len(lanes):
        return np.zeros(len(address), np.bool_)
    leader = lanes[first][group]
    same = leader // WARP < lanes // WARP
    for each in _parts(stored):
        if isinstance(each, np.ndarray):
            same &= each[lanes] == each[leader]
    out = np.zeros(len(address), np.bool_)
    out[lanes] = same
    return out


def _moved(address: Any, offset: int) -> Any:
    return address + offset if isinstance(address, int) else address + address.dtype.type(offset)


_ALL = np.ones(WARP, np.bool_)
_ALL.setflags(write=False)


def site(op: Op, grid: Grid) -> Site:
    """The one effect of a load, store or shuffle, for the events of native code."""
    effect = op.form.effects[0]
    said = _declared(op, effect)
    one_address = isinstance(address := op.operands.get("a"), Address) and grid.program.is_uniform(address)
    width = _elements(op)[0] if effect.verb in ("reads", "writes") else 0
    return Site(grid.source_of(op), _KIND[effect.verb], effect.verb, said, width, one_address)


def barrier_site(op: Op, grid: Grid) -> BarrierSite:
    """A `bar.sync` as its events need it."""
    index, effect = op.operands["a"], op.form.effects[0]
    return BarrierSite(
        int(index.value) if isinstance(index, Immediate) else -1, grid.source_of(op), _declared(op, effect)
    )


def observed(op: Op, run: Any, grid: Grid) -> Any:
    """An instruction's function that reports its effects."""
    effects, reporter = op.form.effects, grid.reporter
    if not effects or reporter is None:
        return run
    source = grid.source_of(op)
    declared = {effect.verb: _declared(op, effect) for effect in effects}
    here = [(effect, _declared(op, effect)) for effect in effects if not effect.later]
    width, givers = _SHAPES.get(op.family, _elements)(op)
    inputs = [slot for slot in op.form.slots if slot.kind not in _OUTPUTS]
    places = {slot.name: at + sum(s.kind == "tensor" for s in inputs[:at]) for at, slot in enumerate(inputs)}
    outputs = [slot for slot in op.form.slots if slot.kind in _OUTPUTS and op.operands[slot.name] is not None]
    stores = op.family == "stmatrix" or (op.family == "st" and op["space"].partition("::")[0] in _REACHED)
    # Looking at buffered stores would commit them: they all count as changes.
    held = Held(op, width, givers) if stores and grid.buffers is None else None

    def wrapped(group: Group, mask: Array | None, *operands: Any) -> Any:
        live = mask if mask is not None else group.mask
        before, lanes = reporter.actor, reporter.lanes
        actor = Actor(agent_of(group.cta.index, group.first_warp), lanes_as_bits(live, group.lanes), source, declared)
        reporter.acts(actor)
        old = None if held is None else held.by(group, mask, operands[places["a"]])
        result = run(group, mask, *operands)
        changed = [True] * group.warps
        if held is not None and old is not None:
            changed = held.changed(group, mask, operands[places["a"]], operands[places["b"]], old)
        reporter.narrow(actor.lanes)
        if not op.form.blocks or (result is not None if outputs else result):
            for effect, said in here:
                place = places.get(effect.operand, -1)
                address = operands[place] if 0 <= place < len(operands) else None
                if op.family in ("wmma.load", "wmma.store"):
                    address = line_addresses(op, address, operands[places["stride"]], group.lanes)
                if effect.verb in ("reads", "writes") and address is not None:
                    for number in range(group.warps):
                        for touch, some in _accesses(group, number, live, address, said, effect.verb, width, givers):
                            reporter.narrow(some << WARP * number)
                            found = said if touch.space == said.space else replace(said, space=touch.space)
                            reporter.tell("access", effect.verb, (touch,), declared=found, changes=changed[number])
                    reporter.narrow(actor.lanes)
                elif effect.verb not in actor.reported:
                    reporter.tell(_KIND[effect.verb], effect.verb)
        reporter.actor, reporter.lanes = before, lanes
        return result

    return wrapped


def _accesses(
    group: Group, number: int, live: Array | None, address: Any, said: Declared, verb: str, width: int, givers: int
) -> Iterator[tuple[Touch, int]]:
    """The touches of one warp of a group by a generic access: by space and by owning CTA, with the lanes that do."""
    own = slice(WARP * number, WARP * (number + 1))
    lanes = _ALL if live is None else live[own]
    if givers < WARP:
        lanes = lanes & (np.arange(WARP) < givers)
    elif isinstance(address, np.ndarray) and said.space and 0 not in lanes.tobytes():
        # Nearly all accesses: every lane, in one space, of one CTA.
        given = address[own].astype(np.int64)
        if said.space != "shared" or not np.bitwise_or.reduce((given ^ given[0]) >> RANK_SHIFT):
            yield _touch(group, verb, said, given, width), WORD
            return
    if 1 not in lanes.tobytes():
        return
    if isinstance(address, int):
        yield _touch(group, verb, said, np.array([address], np.uint64), width), lanes_as_bits(lanes, WARP)
        return
    given = address[own].astype(np.uint64)
    part = _part_of(group, said.space, given)
    mine = part[lanes]
    if (mine == mine[0]).all():
        yield _touch(group, verb, said, given[lanes], width), lanes_as_bits(lanes, WARP)
        return
    for each in np.unique(mine).tolist():
        some = lanes & (part == each)
        yield _touch(group, verb, said, given[some], width), lanes_as_bits(some, WARP)


def _part_of(group: Group, space: str, address: Array) -> Array:
    """A number for each lane that tells spaces, and CTAs of the cluster, apart."""
    if space == "shared":
        return address >> np.uint64(RANK_SHIFT)
    if space:
        return np.zeros(len(address), np.uint64)
    high = address >> np.uint64(_WINDOW_SHIFT)
    shared = high == np.uint64(SHARED_WINDOW >> _WINDOW_SHIFT)
    windows = np.isin(high, [np.uint64(number) for number in _WINDOWS])
    return np.where(shared, address >> np.uint64(RANK_SHIFT), np.where(windows, high, np.uint64(0)))


def _touch(group: Group, verb: str, said: Declared, addresses: Array, width: int) -> Touch:
    """One touch of lanes whose addresses lie in one space and one CTA."""
    first, space = int(addresses[0]), said.space
    if not space:
        space, base = _WINDOWS.get(first >> _WINDOW_SHIFT, ("global", 0))
        addresses = addresses - np.uint64(base)
        first -= base
    owner = None if space in ("global", "const", "param") else group.cta.index
    if space == "shared":
        ctas = group.cta.cluster.ctas
        owner = ctas[first >> RANK_SHIFT].index if first >> RANK_SHIFT < len(ctas) else None
    return Touch(verb, space, owner, said.proxy, addresses.astype(np.int64, copy=False), width)
