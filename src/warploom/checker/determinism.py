"""Determinism: the instructions on whose results the schedule, and not only the program, has an influence.

One execution stands for all interleavings if no branch, address or operand of synchronisation depends on the schedule.
Values that are loaded do not depend on it in a kernel without races. What remains are answers of cluster launch
control, results of atomics, polled locations, clocks, and tests of mbarriers that decide more than whether to wait. An
atomic or a strong load that is ordered with all other accesses to its location is a load like any other: the run shows
which are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warploom.checker.analyses import once
from warploom.ptx.analysis.control_flow import BRANCHES, LEAVES, Flow
from warploom.ptx.analysis.control_slice import control_slice
from warploom.ptx.analysis.liveness import live_at_entry
from warploom.ptx.analysis.operand_registers import read, written
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Immediate, Special

_STRONG = frozenset({"acquire", "relaxed", "volatile", "mmio", "mmio.relaxed"})
_SPACES = ("shared", "global", "local", "tensor")
"""Memories that hand a result on to other instructions."""
_TIMES = ("%clock", "%globaltimer", "%smid", "%warpid", "%nsmid")


@dataclass(frozen=True, slots=True)
class Influence:
    """An instruction whose result depends on the schedule and reaches control or synchronisation."""

    kind: str
    op: Op


_REASONS = {
    "clc": "control depends on the answers of cluster launch control",
    "atomic": "control or an address depends on the result of an atomic, that is on the order of the atomics",
    "polled": "control depends on a location that other threads change while it is polled",
    "clock": "control depends on a clock or on the number of an SM or warp slot",
    "lanes": "control depends on which lanes happen to be active",
    "test": "the result of an mbarrier test decides more than whether to wait",
}
"""Kinds of influence as sentences."""


def reason(kind: str) -> str:
    """A kind of influence as a sentence."""
    return _REASONS[kind]


def influences(flow: Flow, unordered: frozenset[int] | None = None) -> tuple[Influence, ...]:
    """The instructions through which the schedule may change control, addresses or synchronisation.

    `unordered` are the strong accesses, by their place in the kernel, that another access is not ordered with; the
    results of others are the same in every interleaving. By default, that holds for none.
    """
    if unordered is None or unordered.issuperset(_results(flow)):
        return _influences(flow)
    numbers = {id(op): at for at, op in enumerate(op for block in flow.blocks for op in block.ops)}
    return _found(flow, lambda op: numbers[id(op)] in unordered)


@once
def _influences(flow: Flow) -> tuple[Influence, ...]:
    return _found(flow, lambda _: True)


def _found(flow: Flow, is_open: Callable[[Op], bool]) -> tuple[Influence, ...]:
    steering = _registers(flow, is_open)
    found = []
    for block in flow.blocks:
        for op in block.ops:
            if steering.intersection(written(op)):
                for kind, matches in _KINDS.items():
                    if not matches(op) or (kind in _WAITS and _only_waits(flow, op, _WAITS[kind])):
                        continue
                    if kind == "atomic" and _only_reads(op) and _only_waits(flow, op, _WAITS["polled"]):
                        continue
                    if kind not in _ORDERED or (is_open(op) and not (kind == "atomic" and waits_for_a_sign(flow, op))):
                        found.append(Influence(kind, op))
    return tuple(found)


@once
def steering(flow: Flow) -> frozenset[int]:
    """The instructions, by their place in the kernel, whose results reach control, an address or synchronisation."""
    registers = _steering(flow)
    ops = (op for block in flow.blocks for op in block.ops)
    return frozenset(at for at, op in enumerate(ops) if registers.intersection(written(op)))


@once
def _steering(flow: Flow) -> frozenset[str]:
    return _registers(flow, lambda _: True)


@once
def _results(flow: Flow) -> frozenset[int]:
    """The atomics with a result and the strong loads, by their place in the kernel."""
    ops = (op for block in flow.blocks for op in block.ops)
    return frozenset(at for at, op in enumerate(ops) if _is_strong(op))


def _is_strong(op: Op) -> bool:
    return any(_KINDS[kind](op) for kind in _ORDERED)


def _registers(flow: Flow, is_open: Callable[[Op], bool]) -> frozenset[str]:
    """The registers that reach control, an address or synchronisation.

    If a value is loaded to steer the kernel, the result of an atomic, of polling, of a request for work, of a clock or
    of a test that is stored to the same memory counts as well: compilers hand it to the other warps so.
    """
    slice_ = control_slice(flow)
    ops = [op for block in flow.blocks for op in block.ops]
    kinds = [matches for kind, matches in _KINDS.items() if kind not in _ORDERED]
    results = [op for op in ops if any(matches(op) for matches in kinds) or (_is_strong(op) and is_open(op))]
    found = set(slice_.registers)
    for space in _SPACES if results else ():
        if any(_accesses(op, "reads", space) for op in slice_.loads):
            stores = {id(op) for op in ops if _accesses(op, "writes", space)}
            found.update(name for op in results if _reaches(flow, op, stores) for name in written(op))
    return frozenset(found)


def _accesses(op: Op, verb: str, space: str) -> bool:
    """True for a load or store that may access a space: it names that one, or none."""
    families = ("ld", "ldu", "ldmatrix") if verb == "reads" else ("st", "stmatrix", "red", "atom")
    if op.family.partition(".")[0] not in families and op.family not in ("tcgen05.ld", "tcgen05.st"):
        return False
    effects = [effect for effect in op.form.effects if effect.verb == verb]
    spaces = (op["space"] if effect.space == "{space}" else effect.space for effect in effects)
    return any(each.partition("::")[0] in ("", space) for each in spaces)


def _reaches(flow: Flow, source: Op, sinks: set[int]) -> bool:
    """True if the result of an instruction may be an operand of one of some others, which are named by their identity.

    A register keeps it until an instruction without a guard writes something else there.
    """
    before: dict[int, frozenset[str]] = {block.index: frozenset() for block in flow.blocks}
    ahead = [block.index for block in flow.blocks if any(op is source for op in block.ops)]
    while ahead:
        block = flow.blocks[ahead.pop()]
        held = set(before[block.index])
        for op in block.ops:
            uses = not held.isdisjoint(read(op))
            if uses and id(op) in sinks:
                return True
            if uses or op is source:
                held.update(written(op))
            elif op.instruction.guard is None:
                held.difference_update(written(op))
        for each in block.successors:
            if not held <= before[each]:
                before[each] |= held
                ahead.append(each)
    return False


@once
def reallocates(flow: Flow) -> bool:
    """True if warps change the number of their registers."""
    return any(op.family == "setmaxnreg" for block in flow.blocks for op in block.ops)


@once
def relinquishes(flow: Flow) -> bool:
    """True if a CTA gives up the right to allocate TMEM."""
    return any(op.family == "tcgen05.relinquish" for block in flow.blocks for op in block.ops)


@once
def tells_times(flow: Flow) -> tuple[Op, ...]:
    """Clocks, numbers of SMs, sets of active lanes and tests of mbarriers whose results may be stored."""
    ops = [op for block in flow.blocks for op in block.ops]
    stores = {id(op) for op in ops if any(_accesses(op, "writes", space) for space in _SPACES)}
    timed = [op for op in ops if any(_KINDS[kind](op) for kind in ("clock", "lanes", "test"))]
    return tuple(op for op in timed if _reaches(flow, op, stores))


@once
def polls(flow: Flow) -> bool:
    """True if a thread waits until a location has some value."""
    return any(_polls(op) for block in flow.blocks for op in block.ops)


def _polls(op: Op) -> bool:
    return op.family.startswith("ld") and any(
        effect.verb == "reads" and not effect.later and (op["order"] or op["sem"] or "weak") in _STRONG
        for effect in op.form.effects
    )


def _only_reads(op: Op) -> bool:
    """True for an atomic that leaves what it finds: it adds 0, or exchanges a value for itself."""
    if not op.family.startswith("atom") or len(op.instruction.operands) < _OPERANDS:
        return False
    _, _, *given = op.instruction.operands
    if ".cas." in op.instruction.opcode:
        return len(given) > 1 and given[0] == given[1]
    adds = any(f".{each}." in op.instruction.opcode for each in ("add", "or", "xor"))
    return adds and isinstance(given[0], Immediate) and given[0].value == 0


_OPERANDS = 3
"""Of an atomic: its result, its address, and what it combines."""


def _times(op: Op) -> bool:
    operands = [op.operands.get(slot.name) for slot in op.form.slots]
    return any(isinstance(each, Special) and str(each.name).startswith(_TIMES) for each in operands)


_KINDS: dict[str, Callable[[Op], bool]] = {
    "clc": lambda op: op.instruction.opcode.startswith("clusterlaunchcontrol.query"),
    "atomic": lambda op: op.family.startswith("atom"),
    "polled": _polls,
    "clock": _times,
    "lanes": lambda op: op.family.startswith("activemask"),
    "test": lambda op: op.family.startswith(("mbarrier.try_wait", "mbarrier.test_wait")),
}


_ORDERED = ("atomic", "polled")
"""Kinds whose results are those of ordinary loads where the accesses are ordered."""
_WAITS = {
    "test": frozenset({"waits", "drains"}),
    "clock": frozenset({"waits", "drains"}),
    "polled": frozenset({"waits", "drains", "reads", "fences"}),
}
"""Effects that a loop may have in which a thread tests a barrier, sleeps, or polls a location, until it may go on."""


def _only_waits(flow: Flow, test: Op, allowed: frozenset[str]) -> bool:
    """True if the result of a test or a clock only decides whether to wait (again), and for how long.

    It then reaches branches and `nanosleep` alone. Between such a branch and the point where its paths meet nothing but
    tests and waits has an effect, no thread ends, and no register that steers the kernel gets another value.
    """
    names, users = set(written(test)), list[Op]()
    blocks = {id(op): block.index for block in flow.blocks for op in block.ops}
    ahead = list(names)
    while ahead:
        name = ahead.pop()
        for block in flow.blocks:
            for op in block.ops:
                if name not in read(op):
                    continue
                if op.family in BRANCHES:
                    users.append(op)
                    continue
                if op.form.effects or op.family in LEAVES:
                    return False
                new = set(written(op)) - names
                names |= new
                ahead += new
    return all(_is_idle(flow, blocks[id(op)], allowed, names) for op in users)


@once
def awaited(flow: Flow) -> frozenset[int]:
    """The strong loads, and atomics that are used as such, whose results only decide whether to wait; by their place in
    the kernel.
    """
    ops = (op for block in flow.blocks for op in block.ops)
    return frozenset(
        at for at, op in enumerate(ops) if (_polls(op) or _only_reads(op)) and _only_waits(flow, op, _WAITS["polled"])
    )


@once
def readers(flow: Flow) -> frozenset[int]:
    """The atomics, by their place in the kernel, that leave what they find."""
    ops = (op for block in flow.blocks for op in block.ops)
    return frozenset(at for at, op in enumerate(ops) if _only_reads(op))


@once
def barriers_by_sign(flow: Flow) -> tuple[Op, ...]:
    """The arrivals of barriers in memory that are complete when the sign of a counter changes."""
    ops = [op for block in flow.blocks for op in block.ops]
    return tuple(op for op in ops if _KINDS["atomic"](op) and waits_for_a_sign(flow, op))


def waits_for_a_sign(flow: Flow, atomic: Op) -> bool:
    """True if a thread compares the sign of an atomic's result with that of a polled location, to wait until they
    differ, and uses the result for nothing else.

    So do the grid barriers of cooperative groups: one arrival adds 2³¹ less the others, so that the last one alone
    changes the sign, whatever their order.
    """
    ops = [op for block in flow.blocks for op in block.ops]
    blocks = {id(op): block.index for block in flow.blocks for op in block.ops}
    names = set(written(atomic))
    differences = [op for op in ops if names.intersection(read(op))]
    if "add" not in atomic.instruction.opcode or len(names) != 1 or not differences:
        return False
    for difference in differences:
        polled = set(read(difference)) - names
        sources = [op for op in ops if polled.intersection(written(op))]
        if difference.family != "xor" or len(polled) != 1 or not sources or not all(map(_polls, sources)):
            return False
        compared = set(written(difference))
        masks = [op for op in ops if compared.intersection(read(op)) and _masks_sign(op)]
        masked = {name for op in masks for name in written(op)}
        compared |= masked
        tests = [op for op in ops if compared.intersection(read(op)) and op not in masks]
        known = {*names, *polled, *compared, *(name for op in tests for name in written(op))}
        branches = [op for op in ops if any(set(written(test)).intersection(read(op)) for test in tests)]
        asks = (_tests_sign(op, _MASKED if masked.intersection(read(op)) else _SIGNS) for op in tests)
        if not tests or not all(asks) or not all(op.family in BRANCHES for op in branches):
            return False
        if not all(_is_idle(flow, blocks[id(op)], _WAITS["polled"], known) for op in branches):
            return False
    return True


_SIGNS, _MASKED = (("gt.s", -1), ("le.s", -1), ("lt.s", 0), ("ge.s", 0)), (("eq.", 0), ("ne.", 0))
"""Comparisons that ask for the sign of a number, and of one that has no other bits."""


def _tests_sign(op: Op, tests: tuple[tuple[str, int], ...]) -> bool:
    asks = any(f".{name}" in op.instruction.opcode and _literals(op) == [value] for name, value in tests)
    return op.family == "setp" and asks


def _masks_sign(op: Op) -> bool:
    """True for an instruction that keeps the sign of 32 bits only."""
    return op.family == "and" and [value & 0xFFFFFFFF for value in _literals(op)] == [1 << 31]


def _literals(op: Op) -> list[int]:
    return [each.value for each in op.instruction.operands if isinstance(each, Immediate)]


def _is_idle(flow: Flow, index: int, allowed: frozenset[str], names: set[str]) -> bool:
    """True if nothing but some effects happens between a branch and the point where its paths meet, and if registers
    that steer the kernel are there what they are on each path; `names` are known not to.
    """
    region, join = flow.region(index), flow.reconvergence[index]
    if join == flow.exit:
        region -= flow.exit_blocks
    ops = [op for at in region for op in flow.blocks[at].ops]
    others = [op for op in ops if any(effect.verb not in allowed for effect in op.form.effects)]
    if any(op.family in LEAVES for op in ops) or not all(map(_only_reads, others)):
        return False
    changed = {name for op in ops for name in written(op)}
    # What is computed before the branch in each round from registers that stay is the same in each round.
    again = [op for at in _before(flow, index) if at in region for op in flow.blocks[at].ops]
    fixed = [op for op in again if op.instruction.guard is None and changed.isdisjoint(read(op))]
    moving = {name for op in ops if not any(op is each for each in fixed) for name in written(op)}
    steering = sorted(((changed - {name for op in fixed for name in written(op)}) | moving) & _steering(flow) - names)
    return not steering or not live_at_entry(flow, steering)[join]


def _before(flow: Flow, index: int) -> list[int]:
    """A block, and those that are executed whenever it is: each the only predecessor of the next."""
    chain = [index]
    while True:
        predecessors = [block.index for block in flow.blocks if chain[-1] in block.successors]
        if len(predecessors) != 1 or predecessors[0] in chain:
            return chain
        chain += predecessors
