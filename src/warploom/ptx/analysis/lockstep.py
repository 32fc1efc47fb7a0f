"""Kernels whose warps may run in lockstep while every asynchronous operation is late, as far as nothing shows it.

Where operations complete only when all warps of a CTA wait, running its warps one after the other and running them
together differ in two ways. A store of one warp may come before or after an access of another: warps run one by one
between two barriers if there is a store. And a warp that has waited for its own copies may access shared memory while
those of other warps are under way: a kernel in which an access follows such a wait without a barrier in between has no
lockstep at all. All threads take the same way here, because every branch depends on values that they share.

The async proxy needs another thing. A `wgmma` must see every generic write that came before it, or the emulator must
know which of them it does not see. On each path from a write to a `wgmma` there must be a barrier and a proxy fence, in
either order: then the proxy fence of a CTA in lockstep makes everything visible.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.isa.table import Effect, Op
from warploom.ptx.syntax.model import Immediate

_BARRIER, _FENCE, _MULTIPLY = "bar.sync", "fence.proxy.async", "wgmma.mma_async"
_COPIES = frozenset({"cp.async", "cp.async.ignore"})
_WAITS = frozenset({"cp.async.wait_group", "cp.async.wait_all", "wgmma.wait_group"})
_OTHERS = frozenset({"cp.async.commit_group", "wgmma.fence", "wgmma.commit_group"})
_TOGETHER = frozenset({_BARRIER, _FENCE, _MULTIPLY}) | _WAITS | _OTHERS
"""Instructions that all threads of a CTA must execute."""
_BRANCHES, _ELSEWHERE = frozenset({"bra", "ret", "exit"}), frozenset({"brx", "call", "call.pointer", "trap", "brkpt"})
_PRIVATE = frozenset({"local", "param", "const"})
_CLEAN, _KNOWN, _FENCED, _DIRTY = 1, 2, 4, 8
"""The state of generic writes, for the async proxy: visible, or known to all warps after a barrier, or published by
their own warp, or neither."""
_AFTER_BARRIER = {_CLEAN: _CLEAN, _KNOWN: _KNOWN, _FENCED: _CLEAN, _DIRTY: _KNOWN}
_AFTER_FENCE = {_CLEAN: _CLEAN, _KNOWN: _CLEAN, _FENCED: _FENCED, _DIRTY: _FENCED}


@dataclass(frozen=True, slots=True)
class Lockstep:
    """The places from which warps of a CTA run one by one up to the next barrier: the start, and barriers (by the
    identities of their `Op`).
    """

    apart_first: bool
    apart_after: frozenset[int]
    proxies: bool
    """True if the async proxy reads shared memory."""
    copies: bool


@dataclass(frozen=True, slots=True)
class _Access:
    """Accesses to memory that other threads reach."""

    stores: bool = False
    shared: bool = False
    """True if it may be one to shared memory."""


_NOTHING = _Access()


def lockstep(flow: Flow, shared_by_all: Container[str]) -> Lockstep | None:
    """Find where warps run one by one; None if the kernel has no lockstep. `shared_by_all` are the registers that have
    one value for all threads of a CTA.
    """
    accesses: dict[int, _Access] = {}
    for index in flow.reachable:
        for op in flow.blocks[index].ops:
            found = _access(op, shared_by_all)
            if found is None:
                return None
            accesses[id(op)] = found
    copies = any(op.family in _COPIES for block in flow.blocks for op in block.ops)
    if not (_orders_copies(flow, accesses, copies) and _orders_proxies(flow, accesses, copies)):
        return None
    apart = _before_stores(flow, accesses)
    barriers = [(block.index, at) for block in flow.blocks for at, op in enumerate(block.ops) if op.family == _BARRIER]
    after = frozenset(id(flow.blocks[at].ops[n]) for at, n in barriers if _leads_to(flow, accesses, apart, at, n + 1))
    proxies = any(op.family == _MULTIPLY for block in flow.blocks for op in block.ops)
    return Lockstep(_leads_to(flow, accesses, apart, 0, 0), after, proxies, copies)


def _filled(op: Op, text: str) -> str:
    return op[text[1:-1]] if text.startswith("{") else text


def _access(op: Op, shared_by_all: Container[str]) -> _Access | None:
    """The accesses of an instruction; None if it does not occur in lockstep."""
    guard = op.instruction.guard
    if op.family in _BRANCHES:
        return _NOTHING if guard is None or guard.register.name in shared_by_all else None
    if op.family in _ELSEWHERE or (op.family in _TOGETHER and guard is not None):
        return None
    if op.family == _BARRIER:
        return _NOTHING if op.operands["b"] is None and isinstance(op.operands["a"], Immediate) else None
    if op.family == _FENCE and op["sem"]:
        return None
    if op.family in _TOGETHER or op.family in _COPIES:
        return _NOTHING
    stores = shared = False
    for effect in op.form.effects:
        if effect.verb == "syncs" and effect.scope == "warp":
            continue
        if not _is_weak(op, effect):
            return None
        space, _, state = _filled(op, effect.space).partition("::")
        if state == "cluster":
            return None
        if space not in _PRIVATE:
            stores |= effect.verb == "writes"
            shared |= space != "global"
    return _Access(stores, shared) if stores or shared else _NOTHING


def _is_weak(op: Op, effect: Effect) -> bool:
    """True for an access at once that does not synchronise."""
    if effect.verb not in ("reads", "writes") or effect.later or _filled(op, effect.proxy) != "generic":
        return False
    return _filled(op, effect.detail) in ("", "weak")


def _orders_copies(flow: Flow, accesses: dict[int, _Access], copies: bool) -> bool:
    """True if no access to what copies write, and no store to what they read, follows a wait without a barrier."""
    if not copies:
        return True
    entering, ahead = dict[int, bool](), [(0, False)]
    while ahead:
        index, waited = ahead.pop()
        if index in entering and entering[index] >= waited:
            continue
        entering[index] = waited
        for op in flow.blocks[index].ops:
            if op.family in _WAITS:
                waited = True
            elif op.family == _BARRIER:
                waited = False
            elif waited and (accesses[id(op)].stores or accesses[id(op)].shared):
                return False
        ahead += [(successor, waited) for successor in flow.blocks[index].successors]
    return True


def _orders_proxies(flow: Flow, accesses: dict[int, _Access], copies: bool) -> bool:
    """True if all generic writes before a `wgmma` are visible to it, on every path."""
    entering, ahead = dict[int, int](), [(0, _CLEAN)]
    while ahead:
        index, states = ahead.pop()
        if index in entering and states | entering[index] == entering[index]:
            continue
        states |= entering.get(index, 0)
        entering[index] = states
        for op in flow.blocks[index].ops:
            if op.family == _MULTIPLY and states != _CLEAN:
                return False
            if op.family == _BARRIER:
                states = _moved(states, _AFTER_BARRIER)
            elif op.family == _FENCE:
                states = states if op["space"] == "global" else _moved(states, _AFTER_FENCE)
            elif (copies and op.family in _WAITS) or (accesses[id(op)].stores and accesses[id(op)].shared):
                states = _DIRTY
        ahead += [(successor, states) for successor in flow.blocks[index].successors]
    return True


def _moved(states: int, moves: dict[int, int]) -> int:
    found = 0
    for state, after in moves.items():
        if states & state:
            found |= after
    return found


def _before_stores(flow: Flow, accesses: dict[int, _Access]) -> frozenset[int]:
    """The blocks from whose start a store is reached before a barrier."""
    found: set[int] = set()
    before: dict[int, list[int]] = {}
    for block in flow.blocks:
        for successor in block.successors:
            before.setdefault(successor, []).append(block.index)
    ahead = [block.index for block in flow.blocks if _stores_first(block.ops, accesses) is True]
    while ahead:
        index = ahead.pop()
        if index in found:
            continue
        found.add(index)
        ahead += [each for each in before.get(index, ()) if _stores_first(flow.blocks[each].ops, accesses) is None]
    return frozenset(found)


def _stores_first(ops: list[Op], accesses: dict[int, _Access]) -> bool | None:
    """True if a store comes before a barrier, False if a barrier comes first, None without either."""
    for op in _reached(ops, accesses):
        return op.family != _BARRIER
    return None


def _reached(ops: list[Op], accesses: dict[int, _Access]) -> Iterator[Op]:
    return (op for op in ops if op.family == _BARRIER or accesses.get(id(op), _NOTHING).stores)


def _leads_to(flow: Flow, accesses: dict[int, _Access], apart: frozenset[int], index: int, at: int) -> bool:
    """True if a store is reached before a barrier from an instruction of a block."""
    first = _stores_first(flow.blocks[index].ops[at:], accesses)
    return any(each in apart for each in flow.blocks[index].successors) if first is None else first
