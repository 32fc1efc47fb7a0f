"""Uniformity: the registers that hold one value for all lanes that execute together.

The emulator keeps uniform registers as Python integers and uses vectors only where lanes really differ. A value is
CONVOY (the same in every lane of the group that executes), LANE_ID (a multiple of 32 that depends on the warp, plus
the lane), WARP (the same within each warp) or LANE. Lanes of one warp that diverge at a branch execute the blocks up to
the reconvergence point separately, so registers written there are LANE; warps that diverge become separate groups, each
with its own integers, at no cost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from warploom.hardware.threads import WARP_LANES
from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import (
    Address,
    Immediate,
    Kernel,
    Negated,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)

CONVOY, WARP, LANE_ID, LANE = range(4)

_SPECIAL = {"%tid.x": LANE_ID, "%laneid": LANE_ID, "%tid.y": LANE, "%tid.z": LANE, "%warpid": WARP}
_NONE: frozenset[str] = frozenset()
_LANE_MASK = "%lanemask_"
_SHUFFLE_BOUNDS = 0x1F1F


def classify(kernel: Kernel, flow: Flow, *, lanes_follow_x: bool = True) -> dict[str, int]:
    """The class of every register; `lanes_follow_x` means that lane i of a warp has `tid.x` = i modulo 32."""
    return _Analysis(kernel, flow, lanes_follow_x).run()


def written(op: Op) -> list[str]:
    """The registers an instruction writes."""
    return registers_in(op, op.form.written)


def registers_in(op: Op, slots: Iterable[str]) -> list[str]:
    """The registers that the operands of slots name."""
    found: list[str] = []
    operands = op.operands
    for slot in slots:
        operand = operands[slot]
        if type(operand) is Register:
            found.append(operand.name)
        elif operand is not None:
            found += registers_of(operand)
    return found


def registers_of(operand: object) -> list[str]:
    """The registers that an operand names."""
    match operand:
        case Register(name):
            return [name]
        case Negated(register):
            return [register.name]
        case Pair(first, second):
            return registers_of(first) + registers_of(second)
        case Vector(items):
            return [name for item in items for name in registers_of(item)]
        case Address(base, _, coordinates):
            return registers_of(base) + registers_of(coordinates)
    return []


def _named(op: Op) -> set[str]:
    """Every register that an instruction names, its guard included."""
    names = set(registers_in(op, op.operands))
    return names | {op.instruction.guard.register.name} if op.instruction.guard is not None else names


class _Analysis:
    def __init__(self, kernel: Kernel, flow: Flow, lanes_follow_x: bool) -> None:
        self.flow = flow
        self.lanes_follow_x = lanes_follow_x
        self.classes = dict.fromkeys((name for name, _ in kernel.registers), CONVOY)
        self.private = {v.name for v in kernel.variables if v.space in ("local", "param")}
        self.apart: set[int] = set()

    def run(self) -> dict[str, int]:
        """Visit every instruction, and again those that read changed registers, until nothing changes."""
        places = [(block, op, written(op)) for block in self.flow.blocks for op in block.ops]
        readers: dict[str, list[int]] = {}
        inside: dict[int, list[int]] = {}
        for number, (block, op, _) in enumerate(places):
            inside.setdefault(block.index, []).append(number)
            for name in _named(op):
                readers.setdefault(name, []).append(number)
        waiting, queued = deque(range(len(places))), [True] * len(places)
        while waiting:
            number = waiting.popleft()
            queued[number] = False
            block, op, outputs = places[number]
            raised = self._step(op, outputs, block.index in self.apart) if outputs else ()
            again = [reader for name in raised for reader in readers.get(name, ())]
            if op is block.ops[-1] and block.index not in self.apart and self._parts(op):
                staying = set(block.successors) - self.flow.exit_blocks
                region = self.flow.region(block.index) - self.apart if len(staying) > 1 else frozenset[int]()
                self.apart |= region
                again += [each for index in sorted(region) for each in inside.get(index, ())]
            for each in again:
                if not queued[each]:
                    queued[each] = True
                    waiting.append(each)
        return self.classes

    def _parts(self, op: Op) -> bool:
        """Return True if lanes of one warp may diverge at the end of a block."""
        guard = op.instruction.guard
        if op.family == "brx" and self._class(op.operands["index"]) >= LANE_ID:  # type: ignore[arg-type]
            return True
        return (
            op.family in ("bra", "brx", "ret", "exit")
            and guard is not None
            and self.classes[guard.register.name] >= LANE_ID
        )

    def _step(self, op: Op, outputs: list[str], apart: bool) -> list[str]:
        """Those of the registers that an instruction writes whose class it has raised."""
        classes = self.classes
        if all(classes[name] == LANE for name in outputs):
            return []
        new = LANE if apart else self._result(op)
        changed: list[str] = []
        rows = set(registers_in(op, op.form.rows)) if op.form.rows else _NONE
        for name in outputs:
            level = LANE if name in rows else new
            if level > self.classes[name]:
                self.classes[name] = level
                changed.append(name)
        return changed

    def _result(self, op: Op) -> int:
        guard, form = op.instruction.guard, op.form
        floor = self.classes[guard.register.name] if guard else CONVOY
        if floor == LANE_ID:
            floor = LANE
        if form.family == "shfl" and self._broadcasts(op):
            return max(floor, min(self._class(op.operands["a"]), WARP))  # type: ignore[arg-type]
        if form.result == "lane":
            return LANE
        inputs = [
            self._class(operand)  # type: ignore[arg-type]
            for slot in form.read
            if (operand := op.operands[slot]) is not None
        ]
        if form.family in ("ld", "ldu") and self._may_be_private(op):
            return LANE
        if form.result == "warp":
            teams = self._class(op.operands.get("members"))  # type: ignore[arg-type]
            return LANE if teams >= LANE_ID else max(floor, WARP)
        value = max(inputs, default=CONVOY)
        if value == LANE_ID:
            value = self._lane_rule(op)
        if floor and value == LANE_ID:
            value = LANE
        return max(floor, value)

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
                level = LANE if name.startswith(_LANE_MASK) else _SPECIAL.get(name, CONVOY)
                return LANE if level == LANE_ID and name == "%tid.x" and not self.lanes_follow_x else level
            case Symbol(name):
                return LANE if name in self.private else CONVOY
            case Vector(items):
                return max((self._class(item) for item in items), default=CONVOY)
            case Address(base, _, coordinates):
                return max(self._class(base), self._class(coordinates) if coordinates else CONVOY)
        return CONVOY

    def _lane_rule(self, op: Op) -> int:
        """The class of a result computed from `32·w + lane`: shifts and masks that drop the lane give a WARP value."""
        constants = [o.value for o in op.operands.values() if isinstance(o, Immediate) and o.kind == "int"]
        sources = [o for slot in op.form.slots if slot.kind == "in" and (o := op.operands[slot.name]) is not None]
        if op.family in ("mov", "cvt") and op["type"] != "pred" and not op["dtype"].startswith(("f", "bf")):
            return LANE_ID if op["dtype"] not in ("u8", "s8") else LANE
        if len(sources) != 2 or len(constants) != 1 or not isinstance(sources[1], Immediate):
            return LANE
        constant = constants[0]
        low = constant & (WARP_LANES - 1)
        match op.family:
            case "shr" if constant >= 5:
                return WARP
            case "and" if low == 0:
                return WARP
            case "and" | "add" if low == (WARP_LANES - 1 if op.family == "and" else 0):
                return LANE_ID
            case "setp" if op["cmp"] in ("lt", "ge", "lo", "hs") and low == 0 and constant >= 0:
                return WARP
            case "setp" if op["cmp"] in ("gt", "le", "hi", "ls") and low == WARP_LANES - 1 and constant >= 0:
                return WARP
        return LANE
