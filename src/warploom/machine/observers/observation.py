"""The wrapper of an instruction in a run with observers: it names the agent and reports the declared effects.

Accesses and fences are reported here, from the row's effects and the operands. Objects with a state report
their own effects while the instruction runs; an effect that none of them reported is reported here without phase or
group, so that no effect is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from warploom.hardware.fragments import MATRIX_MOVES
from warploom.hardware.swizzles import GRANULE
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.machine.core.group import WARP
from warploom.machine.engine.access_log import MOST_LANES, agent_number
from warploom.machine.instructions.matrices import matrix_rows
from warploom.machine.instructions.memory import Spaces
from warploom.machine.instructions.wmma import line_addresses, lines_of
from warploom.machine.memory.byte_memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WIDTHS, WINDOW_BYTES
from warploom.machine.memory.shared_memory import RANK_SHIFT
from warploom.machine.observers.events import (
    WORD,
    Clash,
    Declared,
    Site,
    Source,
    Touch,
    agent_of,
    lanes_as_bits,
)
from warploom.machine.observers.native_events import NativeSite
from warploom.machine.observers.reporting import Actor, Reporter
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
_PLACED = frozenset({"reads", "writes", "fences"})
"""Effects whose events have the bytes at an operand's address."""
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
    **dict.fromkeys(
        ("tensormap.replace", "tensormap.replace.whole", "tensormap.cp_fenceproxy", "fence.tensormap"), _tensor_map
    ),
}
"""The bytes at each address and the lanes of a warp that give one, where the type does not tell."""


class Held:
    """The bytes at the addresses of a store, before and after it."""

    def __init__(self, op: Op, width: int, givers: int) -> None:
        self.op, self.spaces, self.width, self.givers = op, Spaces(op), width, givers
        self.is_matrix = op.family == "stmatrix"
        self.element = 2 if self.is_matrix else width // int(op["vec"][1:] or 1)
        if self.is_matrix:
            self.spaces.space = "shared"

    def by(self, group: Group, mask: Array | None, address: Any) -> list[Any]:
        """The bytes that the lanes of a group find now, in pieces of at most 16 bytes."""
        mask = self._giving(group, mask)
        piece = min(self.width, GRANULE)
        found = (self.spaces.load(group, mask, _moved(address, at), piece) for at in range(0, self.width, piece))
        return [
            (each if isinstance(each, np.ndarray) else np.array([each], WIDTHS[piece])).view(_WORDS[piece])
            for each in found
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
        lanes: Array | None = None
        for was, new in zip(old, now, strict=True):
            differs = was != new
            if len(differs) != group.lanes:
                differs = differs.reshape(group.lanes, -1).any(axis=1)
            lanes = differs if lanes is None else lanes | differs
        assert lanes is not None
        live = self._giving(group, mask)
        if live is not None:
            lanes = lanes & live
        if group.warps > 1 and 1 in lanes.tobytes():
            lanes = lanes & ~(_repeated_warps if self.is_matrix else _repeated)(address, stored, live)
        by_warp: Array = lanes.reshape(group.warps, WARP)
        return [bool(each) for each in np.logical_or.reduce(by_warp, axis=1)]

    def clashes(self, group: Group, mask: Array | None, address: Any, stored: Any) -> dict[int, Clash]:
        """By warp of a group, two of its lanes that store different values to one address; one lane, where only what
        earlier warps store there is different, and is so by its rounding.

        Addresses are multiples of the width of a store, so that two lanes store to the same bytes or to different ones.
        """
        if isinstance(address, int):
            if _equal(stored):
                return {}
            address = np.zeros(group.lanes, np.uint64)
        elif (address[1:] > address[:-1]).all():
            return {}
        live, values, every = self._giving(group, mask), None, None
        found = {} if self.is_matrix else self._near(group, live, address, stored)
        for number in range(group.warps):
            own = slice(WARP * number, WARP * (number + 1))
            lanes = np.arange(WARP) if live is None else np.flatnonzero(live[own])
            order = lanes[np.argsort(address[own][lanes], kind="stable")]
            places = address[own][order]
            same = np.concatenate(([False], places[1:] == places[:-1]))
            if not same.any():
                continue
            if values is None or every is None:
                values = self._values(group, stored)
                every = values if live is None or self.is_matrix else values[live.reshape(group.warps, WARP)]
            first = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))  # of the lanes with this address
            mine, other = values[number][order], values[number][order[first]]
            differs = (mine != other).any(axis=1)
            if differs.any():
                far = differs & ~_rounds(mine, other, self.element, every)
                at = int(far.argmax() if far.any() else differs.argmax())
                across = number in found and not far.any()
                found[number] = Clash(int(order[first[at]]), int(order[at]), not far.any(), across)
        return found

    def _near(self, group: Group, live: Array | None, address: Array, stored: Any) -> dict[int, Clash]:
        """The warps that store where earlier warps of the group do, if the values differ, and by rounding only."""
        lanes = np.arange(group.lanes) if live is None else np.flatnonzero(live)
        places, first, inverse = np.unique(address[lanes], return_index=True, return_inverse=True)
        if len(places) == len(lanes):
            return {}
        earlier = lanes[first][inverse]  # the first lane with the address
        shares = earlier // WARP < lanes // WARP
        values = self._values(group, stored).reshape(group.lanes, -1)
        mine, other = values[lanes[shares]], values[earlier[shares]]
        differs = (mine != other).any(axis=1)
        if not differs.any() or (differs & ~_rounds(mine, other, self.element, values[lanes])).any():
            return {}
        near = set((lanes[shares] // WARP).tolist())
        one = {number: int(lanes[lanes // WARP == number][0]) % WARP for number in near}
        return {number: Clash(lane, lane, rounds=True, across=True) for number, lane in one.items()}

    def _values(self, group: Group, stored: Any) -> Array:
        """The bytes that each lane of each warp stores; of `stmatrix`, the row for which the lane gives the address."""
        if self.is_matrix:
            return matrix_rows(self.op)(group.lanes, stored, None).view(np.uint8).reshape(group.warps, -1, GRANULE)
        columns = []
        for part in _parts(stored):
            each = np.full(group.lanes, part) if not isinstance(part, np.ndarray) else np.ascontiguousarray(part)
            columns.append(each.view(np.uint8).reshape(group.lanes, -1)[:, : self.element])
        return np.concatenate(columns, axis=1).reshape(group.warps, WARP, -1)


_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, GRANULE: np.uint64}
"""Whole numbers as which values of so many bytes are compared."""


def _repeated_warps(address: Array, stored: Any, _: Array | None) -> Array:
    """The lanes of the warps that store what an earlier warp stores at the same addresses."""
    out = np.zeros(len(address), np.bool_)
    places = address.tobytes()
    size = WARP * address.itemsize
    if len({places[at : at + size] for at in range(0, len(places), size)}) * size == len(places):
        return out  # no two warps store at the same addresses
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


_FLOATS: dict[int, tuple[tuple[Any, int, float], ...]] = {
    2: ((np.float16, 11, 2.0**-14), (ml_dtypes.bfloat16, 8, 2.0**-126)),
    4: ((np.float32, 24, 2.0**-126),),
    8: ((np.float64, 53, 2.0**-1022),),
}
"""Types of numbers of so many bytes, with their significant bits and the smallest normal number."""


_MOST_CANCELLED = 24
"""Bits by which a sum that terms of other signs cancel may be smaller than the largest of the sums next to it."""


def _rounds(one: Array, other: Array, element: int, stored: Array) -> Array:
    """For each row of bytes: whether all its elements are equal, or numbers that agree in half of their bits.

    Those that are smaller than the largest number that is `stored` with them may agree in fewer: their terms may have
    cancelled.
    """
    close = np.zeros(len(one), np.bool_)
    for type_, bits, least in _FLOATS.get(element, ()):
        a, b, every = (np.ascontiguousarray(each).view(type_).astype(np.float64) for each in (one, other, stored))
        every = abs(every[np.isfinite(every)])
        scale = float(every.max()) if every.size else 0.0
        largest, smallest = np.maximum(abs(a), abs(b)), np.minimum(abs(a), abs(b))
        near = np.isfinite(largest) & (smallest >= least) & (largest >= scale * 2.0**-_MOST_CANCELLED)
        near &= abs(a - b) <= scale * 2.0 ** -(bits // 2)
        close |= (near | (a == b)).all(axis=1)
    return close


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
    """The one effect of a load, store or shuffle, for events that come as rows."""
    effect = op.form.effects[0]
    said = _declared(op, effect)
    one_address = isinstance(address := op.operands.get("a"), Address) and grid.program.is_uniform(address)
    width = _SHAPES.get(op.family, _elements)(op)[0] if effect.verb in ("reads", "writes") else 0
    return Site(grid.source_of(op), _KIND[effect.verb], effect.verb, said, width, one_address)


_NATIVE = {
    "bar.sync": "syncs",
    "mbarrier.try_wait.parity": "waits",
    "mbarrier.test_wait.parity": "waits",
    "mbarrier.arrive": "arrives",
    "mbarrier.arrive.expect_tx": "expects",
    "cp.async.bulk.tensor.load": "loads",
    "wgmma.wait_group": "drains",
}


def native_site(op: Op, grid: Grid, *, whole: bool) -> NativeSite | None:
    """An instruction of whose entries native events are made; None for every other one. `whole` if all threads of a CTA
    may act as one.
    """
    does = _NATIVE.get(op.family)
    if does is None:
        return None
    if not (whole if does == "syncs" else grid.usual.immediate):
        return None
    index = op.operands.get({"syncs": "a", "drains": "count"}.get(does, ""))
    declared = {effect.verb: _declared(op, effect) for effect in op.form.effects}
    return NativeSite(does, grid.source_of(op), declared, int(index.value) if isinstance(index, Immediate) else -1)


class Reports:
    """The events that an instruction makes by itself, worked out once for a program."""

    def __init__(self, op: Op, source: Source) -> None:
        self.op, self.source = op, source
        effects = op.form.effects
        self.declared = {effect.verb: _declared(op, effect) for effect in effects}
        inputs = [slot for slot in op.form.slots if slot.kind not in _OUTPUTS]
        self.places = {slot.name: at + sum(s.kind == "tensor" for s in inputs[:at]) for at, slot in enumerate(inputs)}
        self.has_outputs = any(slot.kind in _OUTPUTS and op.operands[slot.name] is not None for slot in op.form.slots)
        here = [effect for effect in effects if not effect.later]
        self.here = [(effect.verb, self.places.get(effect.operand, -1), _declared(op, effect)) for effect in here]
        self.accesses = any(verb in _PLACED and place >= 0 for verb, place, _ in self.here)
        self.width, self.givers = _SHAPES.get(op.family, _elements)(op)
        self.stores = op.family == "stmatrix" or (op.family == "st" and op["space"].partition("::")[0] in _REACHED)
        self.has_row = len(effects) == 1 and op.family in _ROWS and self.here[0][2].space in ("shared", "global")
        """True if its accesses may be rows: one effect, in a space that it names."""


_ROWS = frozenset({"ld", "st", "ldmatrix", "stmatrix"})


def _reports(op: Op, grid: Grid) -> Reports:
    known: dict[int, Reports] = grid.program.reports
    found = known.get(id(op))
    if found is None:
        found = known[id(op)] = Reports(op, grid.source_of(op))  # which keeps the op, and thus its identity
    return found


def observed(op: Op, run: Any, grid: Grid) -> Any:
    """An instruction's function that reports its effects."""
    reporter = grid.reporter
    if not op.form.effects or reporter is None:
        return run
    reports = _reports(op, grid)
    if reports.accesses:
        return _accessing(reports, run, grid, reporter)
    source, declared, blocks, has_outputs = reports.source, reports.declared, op.form.blocks, reports.has_outputs
    verbs = [verb for verb, _, _ in reports.here]

    def wrapped(group: Group, mask: Array | None, *operands: Any) -> Any:
        live = mask if mask is not None else group.mask
        before, lanes = reporter.actor, reporter.lanes
        bits = (1 << group.lanes) - 1 if live is None else lanes_as_bits(live, group.lanes)
        if group.agent is None:
            group.agent = agent_of(group.cta.index, group.first_warp)
        reporter.actor = actor = Actor(group.agent, bits, source, declared)
        reporter.lanes = bits
        result = run(group, mask, *operands)
        if verbs and (not blocks or (result is not None if has_outputs else result)):
            reporter.lanes = bits
            for verb in verbs:
                if verb not in actor.reported:
                    reporter.tell(_KIND[verb], verb)
        reporter.actor, reporter.lanes = before, lanes
        return result

    return wrapped


def _accessing(reports: Reports, run: Any, grid: Grid, reporter: Reporter) -> Any:
    """The function of an instruction that accesses memory at addresses that its lanes give."""
    op, source, declared = reports.op, reports.source, reports.declared
    places, width, givers, has_outputs = reports.places, reports.width, reports.givers, reports.has_outputs
    # Looking at buffered stores would commit them: they all count as changes.
    held = Held(op, width, givers) if reports.stores and grid.buffers is None else None
    rows = _Log(reports, grid, reporter) if reports.has_row and reporter.takes_rows else None

    def wrapped(group: Group, mask: Array | None, *operands: Any) -> Any:
        live = mask if mask is not None else group.mask
        before, lanes = reporter.actor, reporter.lanes
        actor = Actor(agent_of(group.cta.index, group.first_warp), lanes_as_bits(live, group.lanes), source, declared)
        reporter.acts(actor)
        old = None if held is None else held.by(group, mask, operands[places["a"]])
        result = run(group, mask, *operands)
        changed, clashes = [True] * group.warps, dict[int, Clash]()
        if held is not None and old is not None:
            changed = held.changed(group, mask, operands[places["a"]], operands[places["b"]], old)
            clashes = held.clashes(group, mask, operands[places["a"]], operands[places["b"]])
        reporter.narrow(actor.lanes)
        if not op.form.blocks or (result is not None if has_outputs else result):
            for verb, place, said in reports.here:
                address = operands[place] if 0 <= place < len(operands) else None
                if op.family in ("wmma.load", "wmma.store"):
                    address = line_addresses(op, address, operands[places["stride"]], group.lanes)
                if verb in _PLACED and address is not None:
                    if rows is not None and not clashes and rows.add(group, actor.lanes, address, changed):
                        continue
                    for number in range(group.warps):
                        for touch, some in _accesses(group, number, live, address, said, verb, width, givers):
                            reporter.narrow(some << WARP * number)
                            found = said if touch.space == said.space else said._replace(space=touch.space)
                            clash = clashes.get(number)
                            if clash is not None and not (some >> clash.one & some >> clash.other & 1):
                                clash = None  # lanes of another space or CTA
                            reporter.tell(
                                _KIND[verb], verb, (touch,), declared=found, changes=changed[number], clash=clash
                            )
                    reporter.narrow(actor.lanes)
                elif verb not in actor.reported:
                    reporter.tell(_KIND[verb], verb)
        reporter.actor, reporter.lanes = before, lanes
        return result

    return wrapped


class _Log:
    """Adds the accesses of an instruction to the log of native code: one entry for all warps of a group."""

    def __init__(self, reports: Reports, grid: Grid, reporter: Reporter) -> None:
        self._reporter, self._number = reporter, grid.number_of(reports.op)
        self._is_shared = reports.here[0][2].space == "shared"
        self._site = site(reports.op, grid)
        self._giving = sum(((1 << reports.givers) - 1) << first for first in range(0, MOST_LANES, WARP))

    def add(self, group: Group, lanes: int, address: Any, changed: list[bool]) -> bool:
        """Add an entry; False for accesses of other CTAs' memory, and where an entry would say something else."""
        log = self._reporter.log
        is_one = isinstance(address, int)
        if log is None or self._number < 0 or is_one != self._site.one_address:
            return False
        lanes &= self._giving
        if is_one:
            if self._is_shared and address >> RANK_SHIFT != group.cta.rank:
                return False
        elif len(address) != group.lanes:
            return False
        elif self._is_shared:
            # Only the lanes that take part have an address; where all are of this CTA nothing more is to be asked.
            ranks = np.bitwise_or.reduce(address ^ address.dtype.type(group.cta.rank << RANK_SHIFT))
            if int(ranks) >> RANK_SHIFT:
                return False
        if not lanes:
            return True
        if log.is_full:
            self._reporter.flush()
        changes = lanes
        if not all(changed):
            for number, changes_memory in enumerate(changed):
                if not changes_memory:
                    changes &= ~(WORD << WARP * number)
        log.add(self._number, agent_number(group.cta.number, group.first_warp), lanes, changes, address)
        return True


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
