"""Warp-level instructions: lanes that exchange values, vote, and wait for each other.

The lanes that a membermask names execute a `.sync` instruction together, though they may come to it on different paths:
the first to arrive wait at a `Meeting`. If all named lanes are in one group, as nearly always, none is
needed. Lanes of a group may name different teams, as tiles of a warp do; each team then works for itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.machine.core.convergence import EVERY, Compute, Meeting, Purpose, absent, bring, lanes_of
from warploom.machine.core.group import WARP
from warploom.machine.core.lane_masks import lane_bits
from warploom.machine.core.registry import Run, executes
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Immediate

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]
_POISON = 0xFFFFFFFF


def together(op: Op, compute: Compute, *dtypes: npt.DTypeLike) -> Run:
    """The meaning of a `.sync` instruction whose last operand is the membermask.

    `compute(lanes, live, *operands)` works on one warp or on several at once; `live` is None where all lanes take
    part. `dtypes` are those of the operands before the membermask.
    """
    purpose = purpose_of(op, compute, *dtypes)

    def run(g: Group, mask: Array | None, *operands: Any) -> Any:
        members = operands[-1]
        if mask is None and members.__class__ is int and members == EVERY:
            return compute(g.lanes, None, *operands[:-1])
        return apart(op, purpose, g, mask, members, operands[:-1])

    return run


def purpose_of(op: Op, compute: Compute, *dtypes: npt.DTypeLike) -> Purpose:
    """Lanes meet at instructions with the same qualifiers, wherever in the program they stand."""
    return Purpose((op.family, *op.modifiers.values()), f"`{op.instruction.opcode}`", compute, dtypes)


def apart(op: Op, purpose: Purpose, g: Group, mask: Array | None, members: Any, values: tuple[Any, ...]) -> Any:
    """The general case: not all lanes of the warp are named or stand here, or they name different teams."""
    if g.token is not None:
        return _concluded(g)
    if g.warps > 1:
        if not _whole(op, g, mask, members):
            g.scatter(g.pc)
            return None
        return purpose.compute(g.lanes, mask, *values)
    bits = EVERY if mask is None else lane_bits(mask)
    here = EVERY if g.mask is None else lane_bits(g.mask)
    teams, missing = _teams(op, bits, members), 0
    for named, mine in teams.items():
        away = named & g.cta.present[g.first_warp] & ~mine
        if away & here:
            raise absent(op, named, mine)
        missing |= away
    if not missing:
        return _merged([(mine, purpose.compute(WARP, lanes_of(mine), *values)) for mine in teams.values()])
    g.token = tuple((mine, bring(g, purpose, named, mine, values)) for named, mine in teams.items())
    for _, meeting in g.token:
        meeting.tell("arrive")
    return _concluded(g)


def _concluded(g: Group) -> Any:
    """The results of the meetings of a group's teams; the group waits while one is open."""
    parties: tuple[tuple[int, Meeting], ...] = g.token
    for _, meeting in parties:
        if not meeting.over:
            g.wait(meeting)
            return None
    g.token = None
    for _, meeting in parties:
        meeting.tell("wait")
    return _merged([(mine, meeting.result) for mine, meeting in parties])


def _merged(found: list[tuple[int, Any]]) -> Any:
    """The results of several teams of one warp, each in its own lanes."""
    (_, first), *others = found
    if not others or all(result is True for _, result in found):
        return first
    if isinstance(first, tuple):
        return tuple(_merged([(mine, result[part]) for mine, result in found]) for part in range(len(first)))
    out: Array = np.zeros(WARP, np.bool_ if np.asarray(first).dtype == np.bool_ else np.uint32)
    for mine, result in found:
        np.copyto(out, result, where=lanes_of(mine))
    return out


def _teams(op: Op, bits: int, members: Any) -> dict[int, int]:
    """The executing lanes by the membermask they give, as bits; each of them must be named in its own."""
    if isinstance(members, int):
        teams = {members & EVERY: bits}
    else:
        live = lanes_of(bits)
        teams = {int(named): lane_bits(live & (members == named)) for named in np.unique(members[live])}
    for named, mine in teams.items():
        if mine & ~named:
            raise absent(op, named, mine)
    return teams


def _whole(op: Op, g: Group, mask: Array | None, members: Any) -> bool:
    """Return whether all named lanes take part in every warp of a convoy that does."""
    for number in range(g.warps):
        lanes = slice(number * WARP, (number + 1) * WARP)
        bits = EVERY if mask is None else lane_bits(mask[lanes])
        if bits and _teams(op, bits, members if isinstance(members, int) else members[lanes]) != {bits: bits}:
            return False
    return True


def per_warp(values: Any, lanes: int) -> Any:
    """One value per warp as a value per lane; a single warp's as a Python number."""
    return values[0].item() if lanes == WARP else np.repeat(values, WARP)


@lru_cache(maxsize=4096)
def _routes(mode: str, b: int, c: int, lanes: int) -> tuple[Array, Array]:
    return _route(mode, b, c, lanes)


def _route(mode: str, b: Any, c: Any, lanes: int) -> tuple[Array, Array]:
    """The source lane of each lane, and whether it is in its segment (PTX ISA, shfl.sync, semantics)."""
    own = np.arange(lanes)
    lane, offset = own & 31, np.asarray(b).astype(np.int64) & 31
    bounds = np.asarray(c).astype(np.int64)
    clamp, segment = bounds & 31, bounds >> 8 & 31
    lowest = lane & segment
    bound = lowest | (clamp & ~segment)
    match mode:
        case "up":
            source = lane - offset
            inside = source >= bound
        case "down":
            source = lane + offset
            inside = source <= bound
        case "bfly":
            source = lane ^ offset
            inside = source <= bound
        case _:
            source = lowest | (offset & ~segment)
            inside = source <= bound
    return np.where(inside, source, lane) + (own - lane), inside


@executes("shfl")
def shuffle(op: Op) -> Run:
    """Each lane takes the value of another."""
    mode, bounds = op["mode"], op.operands["c"]
    in_range = mode == "idx" and isinstance(bounds, Immediate) and bounds.value & 0x1F1F == 31

    def compute(lanes: int, live: Array | None, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
        if b.__class__ is int and c.__class__ is int:
            source, inside = _routes(mode, b & 31, c & 0x1F1F, lanes)
        else:
            source, inside = _route(mode, b, c, lanes)
        if a.__class__ is int:
            return a, in_range or inside
        if live is not None:
            a = np.where(live, a, np.uint32(_POISON))
        return a[source], inside

    purpose = purpose_of(op, compute, np.uint32, np.uint32, np.uint32)

    def run(g: Group, mask: Array | None, a: Any, b: Any, c: Any, members: Any) -> Any:
        if mask is None and members.__class__ is int and members == EVERY:
            return compute(g.lanes, None, a, b, c)
        found = apart(op, purpose, g, mask, members, (a, b, c))
        return found if found is None or a.__class__ is not int else (a, in_range or found[1])

    return run


def _vote_of_one(mode: str, a: Array) -> Any:
    """A vote of all lanes of one warp."""
    if mode == "ballot":
        return lane_bits(a)
    text = a.tobytes()
    some, every = 1 in text, 0 not in text
    return every if mode == "all" else some if mode == "any" else every or not some


@executes("vote")
def vote(op: Op) -> Run:
    """A vote over a predicate of all lanes."""
    mode = op["mode"]

    def compute(lanes: int, live: Array | None, a: Any) -> Any:
        if not isinstance(a, np.ndarray):
            a = np.full(lanes, bool(a))
        if lanes == WARP and live is None:
            return _vote_of_one(mode, a)
        yes = (a if live is None else a & live).reshape(-1, WARP)
        if mode == "ballot":
            return per_warp(np.packbits(yes, axis=1, bitorder="little").view(np.uint32)[:, 0], lanes)
        no = (~a if live is None else live & ~a).reshape(-1, WARP)
        if mode == "any":
            return per_warp(yes.any(axis=1), lanes)
        return per_warp(~no.any(axis=1) if mode == "all" else ~(no.any(axis=1) & yes.any(axis=1)), lanes)

    return together(op, compute, np.bool_)


def _by_warp(value: Any, live: Array | None, lanes: int, dtype: npt.DTypeLike) -> tuple[Array, Array]:
    """Values and participation as (warp, lane) arrays."""
    values = np.full(lanes, value, dtype) if isinstance(value, int) else value
    taking = np.ones(lanes, np.bool_) if live is None else live
    return values.reshape(-1, WARP), taking.reshape(-1, WARP)


@executes("match.any")
def match_any(op: Op) -> Run:
    """The lanes that hold the same value."""
    dtype = np.uint32 if op["type"] == "b32" else np.uint64

    def compute(lanes: int, live: Array | None, a: Any) -> Any:
        values, taking = _by_warp(a, live, lanes, dtype)
        same = (values[:, :, None] == values[:, None, :]) & taking[:, None, :]
        return np.packbits(same, axis=2, bitorder="little").view(np.uint32).reshape(lanes)

    return together(op, compute, dtype)


@executes("match.all")
def match_all(op: Op) -> Run:
    """Test whether all lanes hold the same value: their mask and true, or zero and false."""
    dtype = np.uint32 if op["type"] == "b32" else np.uint64

    def compute(lanes: int, live: Array | None, a: Any) -> Any:
        values, taking = _by_warp(a, live, lanes, dtype)
        first = np.take_along_axis(values, taking.argmax(axis=1)[:, None], axis=1)
        same = ((values == first) | ~taking).all(axis=1)
        members = np.packbits(taking, axis=1, bitorder="little").view(np.uint32)[:, 0]
        return per_warp(np.where(same, members, np.uint32(0)), lanes), per_warp(same, lanes)

    return together(op, compute, dtype)


_REDUCE: dict[str, tuple[np.ufunc, dict[str, int]]] = {
    "add": (np.add, {"u32": 0, "s32": 0}),
    "and": (np.bitwise_and, {"b32": EVERY}),
    "or": (np.bitwise_or, {"b32": 0}),
    "xor": (np.bitwise_xor, {"b32": 0}),
    "min": (np.minimum, {"u32": EVERY, "s32": (1 << 31) - 1}),
    "max": (np.maximum, {"u32": 0, "s32": -(1 << 31)}),
}
"""A reduction and the value that leaves it unchanged, by type."""


@executes("redux")
def reduce(op: Op) -> Run:
    """One value from all lanes."""
    if op["type"] == "f32":
        return _reduce_floats(op)
    ufunc, neutral = _REDUCE[op["op"]]
    dtype = np.dtype(np.int32 if op["type"] == "s32" else np.uint32)
    nothing = dtype.type(neutral[op["type"]])

    def compute(lanes: int, live: Array | None, a: Any) -> Any:
        values, taking = _by_warp(a, live, lanes, np.uint32)
        typed = values.view(dtype)
        if live is not None:
            typed = np.where(taking, typed, nothing)
        return per_warp(ufunc.reduce(typed, axis=1, dtype=dtype).view(np.uint32), lanes)

    return together(op, compute, np.uint32)


def _reduce_floats(op: Op) -> Run:
    """Least or greatest float, with -0 below +0; NaNs count only where `.NaN` is given or nothing else is there."""
    sign, nan = np.int32(0x7FFFFFFF), np.uint32(0x7FFFFFFF)
    ufunc = np.minimum if op["op"] == "min" else np.maximum
    nothing = np.int32(0x7FFFFFFF) if op["op"] == "min" else np.int32(-0x80000000)

    def compute(lanes: int, live: Array | None, a: Any) -> Any:
        values, taking = _by_warp(a, live, lanes, np.uint32)
        bits = values.view(np.int32)
        if op["abs"]:
            bits = bits & sign
        missing = np.isnan(bits.view(np.float32)) & taking
        ordered = bits ^ ((bits >> np.int32(31)) & sign)
        best = ufunc.reduce(np.where(taking & ~missing, ordered, nothing), axis=1)
        best = best ^ ((best >> np.int32(31)) & sign)
        spoilt = missing.any(axis=1) if op["nan"] else (missing | ~taking).all(axis=1)
        return per_warp(np.where(spoilt, nan, best.view(np.uint32)), lanes)

    return together(op, compute, np.uint32)


@lru_cache
def _leaders(lanes: int) -> Array:
    leaders: Array = np.arange(lanes) % WARP == 0
    leaders.setflags(write=False)
    return leaders


@executes("elect")
def elect(op: Op) -> Run:
    """The lowest lane that takes part leads."""

    def compute(lanes: int, live: Array | None) -> tuple[Any, Array]:
        if live is None:
            return 0, _leaders(lanes)
        leader = live.reshape(-1, WARP).argmax(axis=1)
        chosen = np.arange(lanes) % WARP == np.repeat(leader, WARP)
        return per_warp(leader.astype(np.uint32), lanes), chosen

    return together(op, compute)


@executes("activemask")
def active_mask(op: Op) -> Run:
    """The lanes that execute this together."""

    def run(g: Group, mask: Array | None) -> Any:
        if mask is None:
            return EVERY
        return per_warp(np.packbits(mask.reshape(-1, WARP), axis=1, bitorder="little").view(np.uint32)[:, 0], g.lanes)

    return run


@executes("bar.warp.sync")
def synchronise(op: Op) -> Run:
    """Wait for the named lanes."""
    return together(op, lambda *_: True)
