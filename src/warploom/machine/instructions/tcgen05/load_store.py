"""TMEM to registers and back: `tcgen05.ld`, `tcgen05.st` and the waits for them.

Under the eager schedule a load reads at issue. Under others it reads again when it completes, at the first use of its
registers, at `wait::ld` or before: a kernel that lets an MMA overwrite what it has not waited for gets the new values.
There it may also read as early as the last `tcgen05.fence::after_thread_sync` of its warp: of MMAs that completed
since, it sees nothing, because a wait alone orders no asynchronous operation. This holds for warps that have executed
such a fence and issue no MMAs; programs without these fences, such as Triton's, rely on more than PTX promises, and
their loads read at issue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, Loc
from warploom.hardware.fragments import MOVE_REGISTER_LIMIT, TENSOR_MOVES, tensor_move
from warploom.hardware.tmem import LANE_ALIGNMENT, QUADRANT
from warploom.machine.copy.bulk import submit
from warploom.machine.core.async_operations import Operation
from warploom.machine.core.group import LOADS, WARP, Loads
from warploom.machine.core.participation import whole_warps
from warploom.machine.core.registry import Run, executes
from warploom.machine.observers.deferred import Agents, OneOperation, Operations
from warploom.machine.observers.events import (
    WORD,
    CommitGroup,
    Source,
    Touch,
    Touches,
    Triple,
    agent_of,
    lanes_as_bits,
)
from warploom.machine.observers.reporting import Actor, Reporter
from warploom.machine.tensor.accumulators import tensor_load, tensor_store
from warploom.machine.tensor.tmem import Tmem, block_of_cells, split_address, tmem_of
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Register, Vector

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]

_new = tuple.__new__  # the constructor of a named tuple takes twice as long
_QUADRANTS = 4
_MOST_KNOWN = 256
_WHOLE = "32x32b"
_SPLIT = "16x32bx2"


class _Move:
    """The common part of ld and st: the shape, and the lanes that each warp of a group reaches."""

    __slots__ = ("_known", "lanes", "op", "packed", "registers", "repeats", "shape", "text", "width")

    def __init__(self, op: Op, listed: object) -> None:
        self.op, self.text = op, f"`{op.instruction.opcode}`"
        self._known: dict[tuple[object, ...], Operations] = {}
        """The operations of whole groups as they are reported, by CTA, warp and places."""
        self.shape, self.repeats = op["shape"], int(op["count"][1:])
        self.packed = bool(op["pack"] or op["unpack"])
        move = TENSOR_MOVES[self.shape]
        self.lanes = move.lanes
        self.registers = move.registers * self.repeats
        self.width = move.columns * self.repeats * (2 if self.packed else 1)
        where = op.instruction.loc or Loc("<ptx>", op.instruction.line)
        if self.registers > MOVE_REGISTER_LIMIT:
            what = f"{self.registers} registers; a list has at most {MOVE_REGISTER_LIMIT}"
            raise Diag.BAD_SHAPE.error(where, text=op.instruction.opcode, what=what)
        given = len(listed.items) if isinstance(listed, Vector) else 1
        if given != self.registers:
            what, takes = f"the list has {given} registers", f"{self.registers} registers"
            raise Diag.BAD_OPERANDS.error(where, text=op.instruction.opcode, what=what, takes=takes)

    def places(self, g: Group, mask: Array | None, address: Any, half: int) -> list[tuple[int, int] | None]:
        """(lane, column) for each warp that takes part, checked against its quadrant and the allocation."""
        chosen = whole_warps(g, mask, self.op)
        memory = tmem_of(g.cta)
        memory.settle()
        found: list[tuple[int, int] | None] = []
        for warp, first in enumerate(self._addresses(g, chosen, address)):
            if chosen is not None and not chosen[warp]:
                found.append(None)
                continue
            lane, column = split_address(first)
            if lane >= _QUADRANTS * QUADRANT and g.cta.rank & 1:
                lane -= _QUADRANTS * QUADRANT  # the second CTA of a pair may count the lanes of both: docs/fidelity.md
            within, quadrant = lane % QUADRANT, (g.first_warp + warp) % _QUADRANTS
            if lane // QUADRANT != quadrant or within % LANE_ALIGNMENT or within + self.lanes > QUADRANT:
                self._misplaced(g.first_warp + warp, lane, quadrant)
            memory.require(column, self.width, self.text)
            if half or self.shape == _SPLIT:
                memory.require(column + half, self.width, self.text)
            found.append((lane, column))
        return found

    def _addresses(self, g: Group, chosen: Array | None, address: Any) -> list[int]:
        """The address of each warp, which its lanes must agree on."""
        if isinstance(address, int):
            return [address] * g.warps
        firsts = address[::WARP]
        differs = (address.reshape(-1, WARP) != firsts[:, None]).any(axis=1)
        if (differs if chosen is None else differs & chosen).any():
            raise Diag.TENSOR_MEMORY.error(what=f"{self.text}: the address differs among the lanes of a warp.")
        listed: list[int] = firsts.tolist()
        return listed

    def _misplaced(self, warp: int, lane: int, quadrant: int) -> None:
        low = QUADRANT * quadrant
        raise Diag.TENSOR_MEMORY.error(
            what=f"{self.text} at lane {lane}: warp {warp} reaches lanes {low} to {low + QUADRANT - 1} only, "
            f"in runs of {self.lanes} that begin at a multiple of {LANE_ALIGNMENT}."
        )

    def together(self, places: list[tuple[int, int] | None]) -> tuple[int, int] | None:
        """The place of the first warp, where those of the others follow it and all are loaded or stored together."""
        first = places[0]
        if first is None or self.shape == _SPLIT or self.packed:
            return None
        lane, column = first
        for warp, place in enumerate(places):
            if place != (lane + QUADRANT * warp, column):
                return None
        return first

    def block(self, memory: Tmem | _View, first: tuple[int, int], warps: int) -> Words | None:
        """The cells of so many warps as [register, lane], where the shape makes them one block."""
        if self.shape != _WHOLE:
            return None
        lane, column = first
        return memory.cells[column : column + self.repeats, lane : lane + QUADRANT * warps]

    def spread(self, memory: Tmem | _View, first: tuple[int, int], warps: int) -> tuple[Words, Array]:
        """The cells from the first one of a warp on, and the places of those of so many warps among them."""
        lane, column = first
        lanes = memory.cells.shape[1]
        return memory.cells.reshape(-1)[column * lanes + lane :], _offsets(self.shape, self.repeats, warps, lanes)

    def touches(self, cta: Triple, verb: str, place: tuple[int, int], half: int) -> tuple[Touch, ...]:
        """The touches of one warp, for observers."""
        return _touches(cta, verb, place, half if self.shape == _SPLIT else None, self.lanes, self.width)

    def _operations(self, g: Group, verb: str, places: list[tuple[int, int] | None], half: int) -> Operations:
        """A load or store of all warps of a group, as it is reported."""
        key = g.cta.index, g.first_warp, tuple(places), half
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            each = [(number, place) for number, place in enumerate(places, g.first_warp) if place is not None]
            agents = [((agent_of(g.cta.index, warp), WORD),) for warp, _ in each]
            second = half if self.shape == _SPLIT else None
            touched = partial(_touches, second=second, lanes=self.lanes, width=self.width)
            made = partial(_as_reported, g.grid.source_of(self.op), agents, touched, verb, [place for _, place in each])
            found = Operations(agents[0], len(each), made, (id(self), verb, tuple(each), half))
            self._known[key] = found
        return found

    def tell(self, g: Group, what: str, places: list[tuple[int, int] | None], half: int) -> None:
        """Tell observers of a load or store of each warp of a group that is done at issue."""
        reporter = g.grid.reporter
        if reporter is None:
            return
        lanes, verb = reporter.lanes, "reads" if what == "ld" else "writes"
        if lanes == (1 << WARP * g.warps) - 1 and (every := _alike(g, what)):
            reporter.again(self._operations(g, verb, places, half), every[0].group, step=0, at_once=True)
            for moves in every:
                moves.count(self.op)
            return
        for number, place in enumerate(places):
            if place is not None:
                reporter.narrow(lanes & WORD << WARP * number)
                _moves(g, what, number).tell(reporter, self.op, self.touches(g.cta.index, verb, place, half))
        reporter.narrow(lanes)


@lru_cache(maxsize=64)
def _offsets(shape: str, repeats: int, warps: int, lanes: int) -> Array:
    """The distances of cells from the first one, as [register, lane], in a memory of columns of so many lanes."""
    row, column = tensor_move(shape, repeats).coordinates()
    one = column * lanes + row
    return np.concatenate([one + QUADRANT * warp for warp in range(warps)], axis=1)


def _touches(
    cta: Triple, verb: str, place: tuple[int, int], second: int | None, lanes: int, width: int
) -> tuple[Touch, ...]:
    """The touches of one warp: a block of cells, and perhaps a `second` one so many columns further."""
    lane, column = place
    starts = (column,) if second is None else (column, column + second)
    return tuple([block_of_cells(verb, cta, lane, lanes, start, width) for start in starts])


def _as_reported(
    source: Source,
    agents: Sequence[Agents],
    touched: Callable[[Triple, str, tuple[int, int]], tuple[Touch, ...]],
    verb: str,
    places: Sequence[tuple[int, int]],
) -> Iterator[OneOperation]:
    """The loads or stores of several warps."""
    for each, place in zip(agents, places, strict=True):
        yield each, source, touched(each[0][0].cta, verb, place)


@executes("tcgen05.ld")
def load(op: Op) -> Run:
    """Load TMEM into registers: at issue, and under late schedules again when the load completes."""
    move, out = _Move(op, op.operands["d"]), op.operands["d"]
    items = out.items if isinstance(out, Vector) else (out,)

    def run(g: Group, mask: Array | None, address: Any, half: int = 0) -> Words:
        places = move.places(g, mask, address, half)
        memory = tmem_of(g.cta)
        if g.cta.mode.convoys:
            move.tell(g, "ld", places, half)
            return _read(move, memory, places, half, g.lanes)
        now = _read(move, memory, places, half, g.lanes).copy()
        early = _view_of(g)
        first = now if early is None else _read(move, early, places, half, g.lanes).copy()
        place = places[0]
        assert place is not None
        homes = g.cta.program.layout.places
        rows = [
            (homes[each.name].file, homes[each.name].index) if isinstance(each, Register) else None for each in items
        ]
        again = partial(_read_again, g, rows, first, now, partial(_read, move, memory, places, half, g.lanes))
        _moves(g, "ld").add(g, op, again, partial(move.touches, g.cta.index, "reads", place, half))
        return first

    return run


@dataclass(frozen=True, slots=True)
class _View:
    """TMEM as a warp has seen it at its last `tcgen05.fence::after_thread_sync`, and what it has stored since."""

    cells: Words

    @property
    def words(self) -> Words:
        return self.cells.T


def fence_after(g: Group) -> None:
    """A warp executes `tcgen05.fence::after_thread_sync`: its later loads see what has completed up to now."""
    memory = tmem_of(g.cta)
    memory.settle()
    g.cta.state["tensor view", g.first_warp] = _View(memory.cells.copy())


def _view_of(g: Group) -> _View | None:
    """The memory that a load may still see; None where that is the present one."""
    view: _View | None = g.cta.state.get(("tensor view", g.first_warp))
    return None if ("issues tcgen05", g.first_warp) in g.cta.state else view


def _read(move: _Move, memory: Tmem | _View, places: list[tuple[int, int] | None], half: int, lanes: int) -> Words:
    """The words that a load reads now, as [register, lane]."""
    first = move.together(places)
    if first is not None:
        block = move.block(memory, first, len(places))
        if block is not None:
            return block
        cells, offsets = move.spread(memory, first, len(places))
        return cells[offsets]
    table = np.empty((move.registers, lanes), np.uint32)
    for warp, place in enumerate(places):
        if place is not None:
            part = tensor_load(memory.words, move.shape, move.repeats, *place, split=half, packed=move.packed)
            table[:, warp * WARP : (warp + 1) * WARP] = part
    return table


def _read_again(
    g: Group, rows: list[tuple[str, int] | None], first: Words, at_issue: Words, read: Callable[[], Words]
) -> None:
    """Complete a load: it may read as late as this, and what was written to its cells since the issue shows.

    The thread may use what a load has returned before `wait::ld` (PTX ISA 9.7.16.6.4.5), and waits for it there, but
    must not reuse the memory.
    """
    late = read()
    if np.array_equal(late, at_issue):
        return
    lanes = slice(g.first_lane, g.first_lane + g.lanes)
    for home, before, now in zip(rows, first, late, strict=True):
        if home is not None:
            row = g.warpgroup.files[home[0]][home[1], lanes]
            np.copyto(row, now, where=row == before)


@executes("tcgen05.st")
def store(op: Op) -> Run:
    """Store registers to TMEM, asynchronously; tcgen05.wait::st waits for it."""
    move = _Move(op, op.operands["b"])

    def run(g: Group, mask: Array | None, address: Any, *rest: Any) -> None:
        half: int = rest[0] if len(rest) > 1 else 0
        places = move.places(g, mask, address, half)
        memory, table = tmem_of(g.cta), np.empty((move.registers, g.lanes), np.uint32)
        for row, value in zip(table, rest[-1], strict=True):
            row[...] = value
        if g.cta.mode.convoys:
            g.grid.effects += 1
            move.tell(g, "st", places, half)
            _write(move, memory, places, table, half)
            return
        place, write = places[0], partial(_write_seen, g, move, memory, places, table, half)
        assert place is not None
        _moves(g, "st").add(g, op, write, partial(move.touches, g.cta.index, "writes", place, half))

    return run


def _write_seen(
    g: Group, move: _Move, memory: Tmem, places: list[tuple[int, int] | None], table: Words, half: int
) -> None:
    """Store, also where the warp itself looks."""
    _write(move, memory, places, table, half)
    if (view := _view_of(g)) is not None:
        _write(move, view, places, table, half)


def _write(move: _Move, memory: Tmem | _View, places: list[tuple[int, int] | None], table: Words, half: int) -> None:
    first = move.together(places)
    if first is not None:
        block = move.block(memory, first, len(places))
        if block is not None:
            block[...] = table
            return
        cells, offsets = move.spread(memory, first, len(places))
        cells[offsets] = table
        return
    for warp, place in enumerate(places):
        if place is not None:
            part = table[:, warp * WARP : (warp + 1) * WARP]
            tensor_store(memory.words, move.shape, move.repeats, *place, part, split=half, packed=move.packed)


class _Moves(Loads):
    """The loads or the stores of one warp: how many there were, and those under way. They complete in order."""

    __slots__ = ("_last", "_unread", "issued", "what")

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.issued = 0
        self._last: tuple[Operation, ...] = ()
        self._unread: set[int] = set()
        """Loads, by the identity of their `Op`, none of whose registers has been read, where there are observers."""

    def add(self, g: Group, op: Op, run: Callable[[], None], touches: Touches) -> None:
        group = None if g.grid.reporter is None else CommitGroup(_KINDS[self.what], self.issued)
        operation = submit(g, op, run, touches=touches, group=group, after=self._last)
        operation.then.append(self)
        self._last = (operation,)
        self.issued += 1
        if group is not None:
            self._unread.add(id(op))

    def tell(self, reporter: Reporter, op: Op, touches: tuple[Touch, ...]) -> None:
        """Tell observers of a load or store that is done at issue."""
        reporter.done(touches, self.group)
        self.count(op)

    def count(self, op: Op) -> None:
        """Count a load or store that observers know of."""
        self._unread.add(id(op))
        self.issued += 1

    @property
    def group(self) -> CommitGroup:
        """The number of the next one, for observers."""
        return _new(CommitGroup, (_KINDS[self.what], self.issued))

    def wait_for_all(self) -> None:
        """Take note that the warp has waited for all of them."""
        self._unread.clear()

    @property
    def complete(self) -> bool:
        return all(operation.done for operation in self._last)

    def drained(self, g: Group) -> bool:
        """Return whether all are done, and report that to observers."""
        if not self.complete:
            return False
        if g.grid.reporter is not None:
            self.wait_for_all()
            g.grid.reporter.tell("wait", "drains", group=self.group)
        return True

    def read_by(self, loads: frozenset[int]) -> bool:
        """Take note that registers of these loads are read; True if no other load is left."""
        left = len(self._unread)
        self._unread -= loads
        return bool(left) and not self._unread

    def report_used(self, group: Group) -> None:
        reporter = group.grid.reporter
        assert reporter is not None
        before, lanes = reporter.actor, reporter.lanes
        source = group.grid.source_of(group.grid.program.flow.blocks[group.pc].ops[0])
        live = lanes_as_bits(group.mask, group.lanes)
        loads = group.grid.program.loads_read[group.pc]
        reporter.acts(Actor(agent_of(group.cta.index, group.first_warp), live, source, {}))
        every = [_moves(group, self.what, number) for number in range(group.warps)]
        used = [bool(live >> WARP * at & WORD) and moves.read_by(loads) for at, moves in enumerate(every)]
        if False not in used and live == (1 << group.lanes) - 1 and _are_alike(every):
            reporter.tell("wait", "drains", group=self.group)
        else:
            for number, moves in enumerate(every):
                if used[number]:
                    reporter.narrow(live & WORD << WARP * number)
                    moves.drained(group)
        reporter.actor, reporter.lanes = before, lanes

    def describe(self) -> str:
        return f"tcgen05.wait::{self.what}: some of {self.issued} are incomplete"


_KINDS = {"ld": LOADS, "st": "tensor store"}


def _moves(g: Group, what: str, number: int = 0) -> _Moves:
    """The loads or stores of a group's warp with this number."""
    key = _KINDS[what], g.first_warp + number
    moves: _Moves | None = g.cta.state.get(key)
    if moves is None:
        moves = g.cta.state[key] = _Moves(what)
    return moves


def _alike(g: Group, what: str) -> list[_Moves]:
    """Those of all warps of a group, if as many have been issued by each of them; else nothing."""
    every = [_moves(g, what, number) for number in range(g.warps)]
    return every if _are_alike(every) else []


def _are_alike(every: list[_Moves]) -> bool:
    """True for those of warps by which as many have been issued."""
    issued = every[0].issued
    for each in every:  # noqa: SIM110  (a generator takes twice as long)
        if each.issued != issued:
            return False
    return True


@executes("tcgen05.wait")
def wait(op: Op) -> Run:
    """Wait until this warp's loads or stores of TMEM are done; under convoys they were at issue."""
    what = op["what"]

    def run(g: Group, mask: Array | None) -> bool:
        chosen = whole_warps(g, mask, op)
        if not g.cta.mode.convoys:
            moves = _moves(g, what)
            if not moves.drained(g):
                g.wait(moves)
                return False
        elif (reporter := g.grid.reporter) is not None:
            lanes = reporter.lanes
            if chosen is None and lanes == (1 << WARP * g.warps) - 1 and (every := _alike(g, what)):
                for moves in every:
                    moves.wait_for_all()
                reporter.tell("wait", "drains", group=every[0].group)
                return True
            for number in range(g.warps) if chosen is None else np.flatnonzero(chosen).tolist():
                reporter.narrow(lanes & WORD << WARP * number)
                _moves(g, what, number).drained(g)
            reporter.narrow(lanes)
        return True

    return run
