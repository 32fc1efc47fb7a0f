"""Uniformity: the registers that hold one value for all lanes that execute together.

The emulator keeps uniform registers as Python integers and uses vectors only where lanes really differ. A value is
CONVOY (the same in every lane of the group that executes, which is at most a warpgroup), WARP (the same within each
warp) or LANE. Three classes in between become uniform by shifts and masks: WARP_ID (a multiple of 4 that the group
shares, plus 0 to 3, which depends on the warp), THREAD_ID (a multiple of 128 that the group shares, plus 0 to 127,
which is the lane modulo 32), and LANE_ID (a multiple of 32 that depends on the warp, plus the lane).

Lanes of one warp that diverge at a branch execute the blocks up to the reconvergence point separately, so registers
written there are LANE, but for those that only one block uses; warps that diverge become separate groups, each with its
own integers, at no cost.
"""

from __future__ import annotations

from collections import deque

from warploom.hardware.threads import WARP_LANES, WARPGROUP_THREADS, WARPGROUP_WARPS
from warploom.ptx.analysis.control_flow import Block, Flow
from warploom.ptx.analysis.operand_registers import registers_in
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import (
    Address,
    Immediate,
    Kernel,
    Negated,
    Operand,
    Register,
    Special,
    Symbol,
    Vector,
)

CONVOY, WARP_ID, WARP, THREAD_ID, LANE_ID, LANE = range(6)

_SPECIAL = {"%tid.x": THREAD_ID, "%laneid": THREAD_ID, "%tid.y": LANE, "%tid.z": LANE, "%warpid": WARP_ID}
_OF_X = {WARPGROUP_THREADS: THREAD_ID, WARP_LANES: LANE_ID}
"""The class of `%tid.x` by the length of aligned runs of threads in which it counts them."""
_NONE: frozenset[str] = frozenset()
_LANE_MASK = "%lanemask_"
_SHUFFLE_BOUNDS = 0x1F1F


def classify(kernel: Kernel, flow: Flow, *, follow_x: int = WARPGROUP_THREADS) -> dict[str, int]:
    """The class of every register. Thread i of a CTA has `tid.x` = i modulo `follow_x`: 128, 32, or 0 for neither."""
    return _Analysis(kernel, flow, follow_x).run()


def follows_x(block: tuple[int, int, int]) -> int:
    """The length of the aligned runs of threads in which `tid.x` counts them: 128, 32 or 0."""
    if block[1] == block[2] == 1:
        return WARPGROUP_THREADS
    return next((length for length in _OF_X if block[0] % length == 0), 0)


class _Analysis:
    def __init__(self, kernel: Kernel, flow: Flow, follow_x: int) -> None:
        self.flow = flow
        self.x_class = _OF_X.get(follow_x, LANE)
        self.classes = dict.fromkeys((name for name, _ in kernel.registers), CONVOY)
        self.private = {v.name for v in kernel.variables if v.space in ("local", "param")}
        self.apart: set[int] = set()
        self.local = _used_in_one_block(flow)

    def run(self) -> dict[str, int]:
        """Visit every instruction, and again those that read changed registers, until nothing changes."""
        places: list[tuple[Block, Op, list[str]]] = []
        readers: dict[str, list[int]] = {name: [] for name in self.classes}
        inside: list[range] = []
        for block, uses in zip(self.flow.blocks, self.flow.uses, strict=True):
            first = len(places)
            inside.append(range(first, first + len(uses)))
            for number, (op, own) in enumerate(zip(block.ops, uses, strict=True), first):
                places.append((block, op, own.written))
                for name in own.named:
                    readers[name].append(number)
        waiting, queued = deque(range(len(places))), [True] * len(places)
        while waiting:
            number = waiting.popleft()
            queued[number] = False
            block, op, outputs = places[number]
            raised = self._step(op, outputs, apart=block.index in self.apart) if outputs else ()
            again = [reader for name in raised for reader in readers[name]]
            if op is block.ops[-1] and block.index not in self.apart and self._parts(op):
                staying = set(block.successors) - self.flow.exit_blocks
                region = self.flow.region(block.index) - self.apart if len(staying) > 1 else frozenset[int]()
                self.apart |= region
                again += [each for index in sorted(region) for each in inside[index]]
            for each in again:
                if not queued[each]:
                    queued[each] = True
                    waiting.append(each)
        return self.classes

    def _parts(self, op: Op) -> bool:
        """Return True if lanes of one warp may diverge at the end of a block."""
        guard = op.instruction.guard
        if op.family == "brx" and self._class(op.operands["index"]) > WARP:  # type: ignore[arg-type]
            return True
        return (
            op.family in ("bra", "brx", "ret", "exit")
            and guard is not None
            and self.classes[guard.register.name] > WARP
        )

    def _step(self, op: Op, outputs: list[str], *, apart: bool) -> list[str]:
        """Those of the registers that an instruction writes whose class it has raised."""
        classes = self.classes
        for name in outputs:
            if classes[name] != LANE:
                break
        else:
            return []
        kept = _NONE if not apart else self.local
        new = LANE if apart and kept.isdisjoint(outputs) else self._result(op)
        changed: list[str] = []
        rows = set(registers_in(op, op.form.rows)) if op.form.rows else _NONE
        for name in outputs:
            level = LANE if name in rows or (apart and name not in kept) else new
            if level > self.classes[name]:
                self.classes[name] = level
                changed.append(name)
        return changed

    def _result(self, op: Op) -> int:
        guard, form = op.instruction.guard, op.form
        floor = _PLAIN[self.classes[guard.register.name]] if guard else CONVOY
        if form.family == "shfl" and self._broadcasts(op):
            found = min(self._class(op.operands["a"]), WARP)  # type: ignore[arg-type]
            return max(floor, _PLAIN[found] if floor else found)
        if form.result == "lane":
            return LANE
        if form.family in ("ld", "ldu") and self._may_be_private(op):
            return LANE
        if form.result == "warp":
            teams = self._class(op.operands.get("members"))  # type: ignore[arg-type]
            return LANE if teams > WARP else max(floor, WARP)
        value, operands, classes = CONVOY, op.operands, self.classes
        for slot in form.read:
            operand = operands[slot]
            if operand is not None:
                found = classes[operand.name] if type(operand) is Register else self._class(operand)  # type: ignore[arg-type]
                value = max(value, found)
        if value in _RULES:
            value = _reduced(op, value)
        return max(floor, _PLAIN[value]) if floor else value

    def _broadcasts(self, op: Op) -> bool:
        """Return True if a shuffle broadcasts one lane's value: compilers make the warp index uniform this way."""
        source, bounds = op.operands["b"], op.operands["c"]
        whole = isinstance(bounds, Immediate) and bounds.value & _SHUFFLE_BOUNDS == WARP_LANES - 1
        return op["mode"] == "idx" and whole and self._class(source) <= WARP  # type: ignore[arg-type]

    def _may_be_private(self, op: Op) -> bool:
        """Return True if a load may read thread-private memory, at an address that may be the same for all lanes."""
        space, address = op["space"].partition("::")[0], op.operands["a"]
        if space == "local":
            return True
        if space not in ("", "param") or not self.private:
            return False
        base = address.base if isinstance(address, Address) else None
        return not isinstance(base, Symbol) or base.name in self.private

    def _class(self, operand: Operand) -> int:
        if isinstance(operand, Register):
            return self.classes[operand.name]
        match operand:
            case Negated(register):
                return self.classes[register.name]
            case Special(name):
                if name == "%tid.x":
                    return self.x_class
                return LANE if name.startswith(_LANE_MASK) else _SPECIAL.get(name, CONVOY)
            case Symbol(name):
                return LANE if name in self.private else CONVOY
            case Vector(items):
                return max((self._class(item) for item in items), default=CONVOY)
            case Address(base, _, coordinates):
                return max(self._class(base), self._class(coordinates) if coordinates else CONVOY)
        return CONVOY


def _used_in_one_block(flow: Flow) -> frozenset[str]:
    """Registers that only one block names, and which it writes before it reads them.

    Lanes that have diverged execute a block together, or one group after the other with registers of its own, so that
    nothing is left of such a register where they meet.
    """
    blocks: dict[str, int] = {}
    found: set[str] = set()
    for block, uses in zip(flow.blocks, flow.uses, strict=True):
        index = block.index
        for op, each in zip(block.ops, uses, strict=True):
            for name in each.named:
                known = blocks.setdefault(name, -1)
                if known == -1:
                    blocks[name] = index
                    if op.instruction.guard is None and name not in each.read:
                        found.add(name)
                elif known != index:
                    found.discard(name)
    return frozenset(found)


_PLAIN = {CONVOY: CONVOY, WARP_ID: WARP, WARP: WARP, THREAD_ID: LANE, LANE_ID: LANE, LANE: LANE}
"""The class of a value of which nothing is known but whether lanes and warps share it."""
_RULES = (WARP_ID, THREAD_ID, LANE_ID)
_BELOW, _ABOVE = ("lt", "ge", "lo", "hs"), ("gt", "le", "hi", "ls")


def _reduced(op: Op, level: int) -> int:
    """The class of a result computed from a WARP_ID, THREAD_ID or LANE_ID: of shifts, masks and comparisons that drop
    what differs between the lanes of a warp, or between the warps of a group.
    """
    constants = [o.value for o in op.operands.values() if isinstance(o, Immediate) and o.kind == "int"]
    sources = [o for slot in op.form.slots if slot.kind == "in" and (o := op.operands[slot.name]) is not None]
    if op.family in ("mov", "cvt") and op["type"] != "pred" and not op["dtype"].startswith(("f", "bf")):
        return level if op["dtype"] not in ("u8", "s8") else _PLAIN[level]
    combined = op.operands.get("c") is not None  # with another predicate
    if combined or len(sources) != 2 or len(constants) != 1 or not isinstance(sources[1], Immediate):
        return _PLAIN[level]
    return _of_constant(op, level, constants[0]) if constants[0] >= 0 or op.family != "shr" else _PLAIN[level]


def _of_constant(op: Op, level: int, constant: int) -> int:
    """The class of a result computed from such a value and a constant, the second source."""
    # A result is shared by the lanes of a warp if it does not depend on the value modulo 32, and by the group if not on
    # the value modulo 128; that of a WARP_ID if not modulo 4.
    lanes = 1 if level == WARP_ID else WARP_LANES
    group = {WARP_ID: WARPGROUP_WARPS, THREAD_ID: WARPGROUP_THREADS, LANE_ID: 0}[level]
    match op.family:
        case "shr" if group and 1 << constant >= group:
            return CONVOY
        case "shr" if level == THREAD_ID and 1 << constant == lanes:
            return WARP_ID
        case "shr" if 1 << constant >= lanes:
            return WARP
        case "and" if group and constant % group == 0:
            return CONVOY
        case "and" if constant % lanes == 0 and level != WARP_ID:
            return WARP
        case "and" if constant % (group or lanes) == (group or lanes) - 1 or (group and constant % lanes == lanes - 1):
            return level
        case "add" if constant % (group or lanes) == 0:
            return level
        case "add" if level == THREAD_ID and constant % lanes == 0:
            return LANE_ID
        case "setp" if constant >= 0 and op["cmp"] in (*_BELOW, *_ABOVE):
            edge = constant if op["cmp"] in _BELOW else constant + 1
            if group and edge % group == 0:
                return CONVOY
            if edge % lanes == 0:
                return WARP
    return _PLAIN[level]
