"""Loops: the registers that steer synchronisation, and the comparisons that only decide how often a loop runs.

A kernel may be pumped (repeat a part of its loops) if nothing that steers it depends on the counters of these loops,
except comparisons of a counter with a value that the loop does not change. Everything else must recur exactly.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from warploom.checker.recurrence.state import groups_left
from warploom.ptx.analysis.control_flow import BRANCHES, LEAVES, Flow
from warploom.ptx.analysis.liveness import live_at_entry
from warploom.ptx.analysis.operand_registers import read, registers_of, written
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Address, Immediate, Register, Special, Symbol

Expression = Any
"""An integer, or a tuple of a name and its arguments: ("param", "k"), ("add.s32", ("param", "k"), 63)."""

_SIGNALS = frozenset({"arrives", "expects", "completes", "waits", "syncs", "commits", "drains", "allocates", "frees"})
_DEEPEST = 24
_STEPS = 3
_FREE_SPACES = frozenset({"global", "param", "const", "local"})
_REQUEST = "clusterlaunchcontrol.try_cancel"
_ORACLE = "clusterlaunchcontrol.query_cancel.is_canceled"
_OWNERS = ("%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%gridid")


@dataclass(frozen=True, slots=True)
class Counted:
    """A comparison of a loop's counter with a value that does not change in the loop."""

    op: Op
    head: int
    counter: str
    first: Expression
    step: Expression
    bound: Expression
    leaves: bool
    """True if the comparison decides whether the loop ends."""
    limit: object
    """The operand that is the bound."""
    relation: str = "lt"
    """The relation of the counter to the bound that is tested."""
    added: tuple[tuple[int, object], ...] = ()
    """Operands that do not change in the loop, each with a sign: the counter and these are what is compared."""


@dataclass(slots=True)
class Steering:
    """The registers that steer branches, shared memory, TMEM and synchronisation, and what they depend on."""

    registers: frozenset[str] = frozenset()
    counted: dict[int, Counted] = field(default_factory=dict)
    """Comparisons through which counters steer, by the identity of their instruction."""
    values: dict[Expression, str] = field(default_factory=dict)
    """Functions of parameters alone that steer, such as the test that a loop has a pass at all, and their registers."""
    mixed: dict[Expression, str] = field(default_factory=dict)
    """Functions of parameters and other registers that steer, such as a stage that skips `k` others."""
    specials: frozenset[str] = frozenset()
    shared_loads: tuple[Op, ...] = ()
    data_loads: tuple[Op, ...] = ()
    oracles: tuple[Op, ...] = ()
    """The tests of answers of cluster launch control, which decide how many tiles a cluster computes."""
    frees_barriers: bool = True
    """True if the kernel has `mbarrier.inval`."""
    near: int = 0
    """Groups, the latest first, that a wait may refer to: two more than the most that one leaves unfinished."""


class Loops:
    """The loops of a kernel."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._before: dict[int, list[int]] = {}
        for block in flow.blocks:
            for successor in block.successors:
                self._before.setdefault(successor, []).append(block.index)
        self.defs: dict[str, list[tuple[int, Op]]] = {}
        for block in flow.blocks:
            for op in block.ops:
                for name in written(op):
                    self.defs.setdefault(name, []).append((block.index, op))
        self.bodies = self._bodies()
        bodies = self.bodies.values()
        self.outermost = tuple(head for head, body in self.bodies.items() if not any(body < each for each in bodies))
        """The heads of loops that are in no other loop."""
        self.requests = tuple(op for block in flow.blocks for op in block.ops if op.family == _REQUEST)
        """The requests for work."""
        asks = {block.index for block in flow.blocks if any(op.family == _REQUEST for op in block.ops)}
        self.asking = tuple(head for head in self.outermost if asks & self.bodies[head])
        """Those in which a thread asks for work."""
        self._places = {id(op): (block.index, at) for block in flow.blocks for at, op in enumerate(block.ops)}
        self._values: dict[int, Expression] = {}
        self._ahead: dict[int, frozenset[int]] = {}

    def release_of_maps(self) -> Op | None:
        """An instruction of a loop that releases tensor maps. What is in global memory is no part of a state, and maps
        that no loop changes are known ever better: a repeated part finds nothing in them that it has not found.
        """
        inside = frozenset().union(*self.bodies.values())
        ops = (op for block in self.flow.blocks if block.index in inside for op in block.ops)
        maps = (op for op in ops if any(e.verb == "fences" and e.proxy == "tensormap" for e in op.form.effects))
        return next((op for op in maps if op["sem"] != "acquire"), None)

    def _bodies(self) -> dict[int, frozenset[int]]:
        """The blocks of every natural loop, by its head."""
        before = self._before
        found: dict[int, set[int]] = {}
        for tail, head in self.flow.back_edges:
            body, work = found.setdefault(head, {head}), [tail]
            while work:
                at = work.pop()
                if at not in body:
                    body.add(at)
                    work += before.get(at, ())
        return {head: frozenset(body) for head, body in found.items()}

    def entered_from(self, head: int) -> list[int]:
        """The blocks from which a loop is entered."""
        return [each for each in dict.fromkeys(self._before.get(head, ())) if each not in self.bodies[head]]

    def steering(self) -> Steering:
        """The steering registers, with counted comparisons cut off."""
        made = Steering()
        reached: set[str] = set()
        specials: set[str] = set()
        shared: dict[int, Op] = {}
        data: dict[int, Op] = {}
        oracles: dict[int, Op] = {}
        counted = {
            id(op): found
            for block in self.flow.blocks
            for op in block.ops
            if op.family == "setp" and (found := self._counted(op, block.index)) is not None
        }
        work = [name for block in self.flow.blocks for op in block.ops for name in _seeds(op)]
        while work:
            name = work.pop()
            if name in reached:
                continue
            reached.add(name)
            for _, op in self.defs.get(name, ()):
                value = self.value(op)
                if is_pure(value) and op.instruction.guard is None:
                    made.values |= {} if isinstance(value, int) else {value: name}
                    continue
                if id(op) in counted:
                    made.counted[id(op)] = counted[id(op)]
                    work += self._unknown(counted[id(op)])
                    continue
                if op.instruction.opcode.startswith(_ORACLE):
                    oracles[id(op)] = op
                    continue
                if self._is_test_of_passes(op, value, counted.values()):
                    made.values[value] = name
                    continue
                if (inputs := self._mixed(op, value)) is not None:
                    made.mixed[value] = name
                    work += inputs
                    continue
                for effect in op.form.effects:
                    if effect.verb != "reads":
                        continue
                    if "shared" in op.instruction.opcode:
                        shared[id(op)] = op
                    else:
                        data[id(op)] = op
                specials.update(_specials(op))
                work += read(op)
        made.registers, made.specials = frozenset(reached), frozenset(specials)
        made.shared_loads, made.data_loads = tuple(shared.values()), tuple(data.values())
        made.oracles, made.near = tuple(oracles.values()), groups_left(self.flow)
        opcodes = (op.instruction.opcode for block in self.flow.blocks for op in block.ops)
        made.frees_barriers = any(each.startswith("mbarrier.inval") for each in opcodes)
        return made

    def _unknown(self, counted: Counted) -> list[str]:
        """The registers on which the passes of a counted loop depend in addition to parameters and special registers.

        These steer: they may be in its bound, in what is added to the counter, in its step and in its start.
        """
        body = self.bodies[counted.head]
        found = [
            name
            for operand in (counted.limit, *(operand for _, operand in counted.added))
            for name in self._inputs(operand, counted.op)
        ]
        for at, op in self.defs[counted.counter]:
            if at in body and not isinstance(counted.step, int):
                found += [name for each in _sources(op) for name in self._inputs(each, op) if name != counted.counter]
        for op in self._starts(counted.counter, counted.head):
            computed = op.form.result == "pure" and not op.form.effects and op.instruction.guard is None
            found += (
                [name for each in _sources(op) for name in self._inputs(each, op)] if computed else [counted.counter]
            )
        return found

    def _inputs(self, operand: object, op: Op, depth: int = _DEEPEST) -> list[str]:
        """The registers that an operand is computed from, where these are not functions of what is given."""
        if not isinstance(operand, Register):
            return []
        found = self._reaching(operand.name, op)
        if len(found) != 1 or depth == 0 or found[0].instruction.guard is not None:
            return [operand.name]
        (source,) = found
        if source.instruction.opcode.startswith("ld.param"):
            return []
        if source.form.effects or source.form.result != "pure" or len(written(source)) != 1:
            return [operand.name]
        return [name for each in _sources(source) for name in self._inputs(each, source, depth - 1)]

    def _is_test_of_passes(self, op: Op, value: Expression, counted: Iterable[Counted]) -> bool:
        """True if a comparison only tests whether a loop has a first or a second pass: all clusters agree on these."""
        if op.family != "setp" or op.instruction.guard is not None or not isinstance(value, tuple) or len(value) != 3:
            return False
        for each in counted:
            passes = {each.first} | {(add, each.first, each.step) for add in ("add.u32", "add.s32")}
            if each.leaves and value[2] == each.bound and value[1] in passes:
                return True
        return False

    def _mixed(self, op: Op, value: Expression) -> list[str] | None:
        """The registers that a function of them and of parameters takes, if no value between is kept for later."""
        if not params_of(value) or op.instruction.guard is not None or not _is_closed(value):
            return None
        inputs, between, work = set[str](), set[str](), [(op, _DEEPEST)]
        while work:
            at, depth = work.pop()
            for operand in _sources(at):
                if not isinstance(operand, Register):
                    continue
                found = self._reaching(operand.name, at)
                if len(found) != 1 or depth <= 1 or found[0].instruction.guard is not None:
                    inputs.add(operand.name)
                elif not is_pure(self.value(found[0])):
                    between.add(operand.name)
                    work.append((found[0], depth - 1))
        if not inputs or any(live_at_entry(self.flow, sorted(between))):
            return None
        return sorted(inputs)

    def block_of(self, op: Op) -> int:
        """The block that an instruction is in."""
        return self._places[id(op)][0]

    def ahead(self, block: int) -> frozenset[int]:
        """The blocks that may be executed from the start of a block on."""
        if block not in self._ahead:
            seen, work = {block}, [block]
            while work:
                new = [each for each in self.flow.blocks[work.pop()].successors if each not in seen]
                seen.update(new)
                work += new
            self._ahead[block] = frozenset(seen)
        return self._ahead[block]

    def address(self, op: Op) -> tuple[str, int] | None:
        """The variable and the offset of a constant address that an instruction loads from."""
        for slot in op.form.slots:
            operand = op.operands[slot.name]
            if isinstance(operand, Address):
                base = operand.base
                if isinstance(base, Register):
                    found = self._reaching(base.name, op)
                    sources = _sources(found[0]) if len(found) == 1 and found[0].family == "mov" else []
                    base = sources[0] if sources else base
                if isinstance(base, Symbol) and isinstance(operand.offset, int):
                    return str(base.name), base.offset + operand.offset
        return None

    def _counted(self, op: Op, block: int) -> Counted | None:
        sources = _sources(op)
        if len(sources) != 2 or op.instruction.guard is not None or len(written(op)) != 1:
            return None
        around = sorted((body for body in self.bodies.items() if block in body[1]), key=lambda each: len(each[1]))
        for head, body in around:
            for one, other in (sources, sources[::-1]):
                if not isinstance(one, Register) or not self._is_invariant(other, body):
                    continue
                found = self._linear(one.name, body, head)
                if found is None:
                    continue
                counter, added = found
                first = self._first(counter, head)
                step = self._step(counter, body, head)
                bound, leaves = self.expression(other, op), self._leaves(written(op)[0], body)
                relation = op.instruction.opcode.split(".")[1]
                relation = relation if one is sources[0] else _MIRRORED.get(relation, relation)
                return Counted(op, head, counter, first, step, bound, leaves, other, relation, added)
        return None

    def _leaves(self, predicate: str, body: frozenset[int]) -> bool:
        for index in body:
            block = self.flow.blocks[index]
            if block.ops and any(successor not in body for successor in block.successors):
                guard = block.ops[-1].instruction.guard
                if guard is not None and guard.register.name == predicate:
                    return True
        return False

    def _is_invariant(self, operand: object, body: frozenset[int]) -> bool:
        if isinstance(operand, Immediate):
            return True
        return isinstance(operand, Register) and not any(at in body for at, _ in self.defs.get(operand.name, ()))

    def _linear(
        self, name: str, body: frozenset[int], head: int, steps: int = _STEPS
    ) -> tuple[str, tuple[tuple[int, object], ...]] | None:
        """The counter of a loop that a register is, or differs from by operands that the loop does not change."""
        if self._step(name, body, head) is not None:
            return name, ()
        inside = [op for at, op in self.defs.get(name, ()) if at in body]
        if steps == 0 or len(inside) != 1 or inside[0].instruction.guard is not None:
            return None
        (op,) = inside
        sources = _sources(op)
        if op.family in ("add", "sub") and "f" not in op["type"] and isinstance(sources[0], Register):
            rest, start = sources[1], sources[0].name
        elif op.family == "mov" and isinstance(sources[0], Register):
            rest, start = None, sources[0].name
        else:
            return None
        if rest is not None and not self._is_invariant(rest, body):
            return None
        found = self._linear(start, body, head, steps - 1)
        if found is None or rest is None:
            return found
        return found[0], (*found[1], (1 if op.family == "add" else -1, rest))

    def _step(self, name: str, body: frozenset[int], head: int) -> Expression | None:
        """The amount that is added to a register once in every pass of a loop; None if that is not all that happens."""
        inside = [(at, op) for at, op in self.defs.get(name, ()) if at in body]
        if len(inside) != 1:
            return None
        ((block, op),) = inside
        if op.instruction.guard is not None or not self._in_every_pass(block, body, head):
            return None
        if op.family == "mov" and isinstance(_sources(op)[0], Register):
            defs = self.defs.get(_sources(op)[0].name, ())
            if len(defs) != 1 or defs[0][0] not in body or defs[0][1].instruction.guard is not None:
                return None
            op = defs[0][1]
        if op.family != "add" or "f" in op["type"]:
            return None
        sources = _sources(op)
        for one, other in (sources, sources[::-1]):
            if isinstance(one, Register) and one.name == name and self._is_invariant(other, body):
                return self.expression(other, op)
        return None

    def _in_every_pass(self, block: int, body: frozenset[int], head: int) -> bool:
        """True if a block is executed exactly once in every pass. A wait at the beginning of the pass, which repeats
        the first blocks until it is over, belongs to the pass.
        """
        tails = {tail for tail, at in self.flow.back_edges if at == head}
        waits = {tail: blocks for tail in tails if (blocks := self._waiting(tail, head))}
        if any(block in blocks for blocks in waits.values()):
            return False
        for other, inner in self.bodies.items():
            if other != head and block in inner and inner < body:
                return False
        if block == head:
            return True
        seen, work = {head}, [head]
        tails -= waits.keys()
        while work:
            at = work.pop()
            if at in tails:
                return False
            for successor in self.flow.blocks[at].successors:
                if successor in body and successor != block and successor not in seen:
                    seen.add(successor)
                    work.append(successor)
        return True

    def _waiting(self, tail: int, head: int) -> set[int]:
        """The blocks from the head of a loop to this jump back to it, if they do nothing but test a barrier."""
        body, work = {head, tail}, [tail] if tail != head else []
        while work:
            new = [each for each in self._before.get(work.pop(), ()) if each not in body]
            body.update(new)
            work += new
        ops = [op for at in body for op in self.flow.blocks[at].ops]
        verbs = {effect.verb for op in ops for effect in op.form.effects}
        return body if verbs == {"waits"} else set()

    def _first(self, name: str, head: int) -> Expression:
        """The value of a register when a loop is entered."""
        values = {self.value(op) for op in self._starts(name, head)}
        return values.pop() if len(values) == 1 else ("register", name)

    def _starts(self, name: str, head: int) -> list[Op]:
        """The instructions whose result a register may hold when a loop is entered."""
        entries = [(at, len(self.flow.blocks[at].ops)) for at in self.entered_from(head)]
        return self._reaching_at(name, entries)

    def expression(self, operand: object, op: Op, depth: int = _DEEPEST) -> Expression:
        """The value of an operand of an instruction in terms of parameters and special registers, where it has one."""
        match operand:
            case Immediate():
                return int(operand.value) if isinstance(operand.value, int) else ("immediate", str(operand.value))
            case Special():
                return "special", str(operand.name)
            case Symbol():
                return "symbol", str(operand)
            case Register(name):
                found = self._reaching(name, op)
                if len(found) != 1 or depth == 0 or found[0].instruction.guard is not None:
                    return "register", name
                return self.value(found[0], depth)
        return "operand", str(operand)

    def value(self, op: Op, depth: int = _DEEPEST) -> Expression:
        """The result of an instruction as an expression."""
        known = self._values.get(id(op))
        if known is None:
            known = self._value(op, depth)
            if depth == _DEEPEST:
                self._values[id(op)] = known
        return known

    def _value(self, op: Op, depth: int) -> Expression:
        opcode = op.instruction.opcode
        if opcode.startswith("ld.param"):
            return "param", next(iter(_named(op)), "")
        if op.form.effects or op.form.result != "pure" or len(written(op)) != 1:
            return "result", opcode, op.instruction.text
        values = tuple(self.expression(each, op, depth - 1) for each in _sources(op))
        return values[0] if op.family == "mov" and len(values) == 1 else (opcode, *values)

    def _reaching(self, name: str, op: Op) -> list[Op]:
        """The instructions whose result a register may hold at an instruction."""
        if len(self.defs.get(name, ())) == 1:
            return [self.defs[name][0][1]]
        return self._reaching_at(name, [self._places[id(op)]])

    def _reaching_at(self, name: str, places: list[tuple[int, int]]) -> list[Op]:
        found: dict[int, Op] = {}
        seen: set[int] = set()
        work = list(places)
        while work:
            index, end = work.pop()
            for each in reversed(self.flow.blocks[index].ops[:end]):
                if name in written(each):
                    found[id(each)] = each
                    if each.instruction.guard is None:
                        break
            else:
                for before in self._before.get(index, ()):
                    if before not in seen:
                        seen.add(before)
                        work.append((before, len(self.flow.blocks[before].ops)))
        return list(found.values())


def evaluate(expression: Expression, values: Mapping[str, int]) -> int | None:
    """The value of an expression for values of the parameters; None if it depends on more."""
    if isinstance(expression, int):
        return expression
    kind, *rest = expression
    if kind == "param":
        return values.get(rest[0])
    if kind in _LEAVES:
        return values.get(rest[0]) if kind in ("special", "register") else None
    given = [evaluate(each, values) for each in rest]
    if any(each is None for each in given):
        return None
    numbers = [each for each in given if each is not None]
    root, *modifiers = kind.split(".")
    if root == "setp" and len(modifiers) == 2 and modifiers[0] in _COMPARISONS:
        return int(_COMPARISONS[modifiers[0]](*numbers))
    if root == "mul" and ".lo" not in kind and ".wide" not in kind:
        return None
    function = _ARITHMETIC.get(root)
    return None if function is None else function(*numbers)


_COMPARISONS: dict[str, Any] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "lo": "hi", "hi": "lo", "ls": "hs", "hs": "ls"}
"""Relations with their operands exchanged."""
_ARITHMETIC: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "div": lambda a, b: a // b if b else None,
    "rem": lambda a, b: a % b if b else None,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "selp": lambda a, b, p: a if p else b,
    "not": lambda a: 1 - a if a in (0, 1) else None,
    "min": min,
    "max": max,
    "cvt": lambda a: a,
    "mov": lambda a: a,
}


def is_pure(expression: Expression) -> bool:
    """True for a function of parameters alone."""
    if isinstance(expression, int):
        return True
    kind, *rest = expression
    if kind == "param":
        return True
    return kind not in _LEAVES and bool(rest) and all(is_pure(each) for each in rest)


_LEAVES = frozenset({"special", "symbol", "register", "operand", "result", "immediate"})


def _is_closed(expression: Expression) -> bool:
    """True for a function of parameters and registers that `evaluate` can compute."""
    if isinstance(expression, int):
        return True
    kind, *rest = expression
    if kind in ("param", "register"):
        return True
    return kind not in _LEAVES and kind.partition(".")[0] in _ARITHMETIC and all(_is_closed(each) for each in rest)


def registers_in(expression: Expression) -> frozenset[str]:
    """The registers in an expression."""
    if not isinstance(expression, tuple):
        return frozenset()
    if expression[0] == "register":
        return frozenset((expression[1],))
    return frozenset().union(*(registers_in(each) for each in expression[1:]))


def params_of(expression: Expression) -> frozenset[str]:
    """The parameters in an expression."""
    if not isinstance(expression, tuple):
        return frozenset()
    if expression[0] == "param":
        return frozenset((expression[1],))
    return frozenset().union(*(params_of(each) for each in expression[1:]))


def owners(specials: frozenset[str]) -> list[str]:
    """The special registers that tell clusters apart, of those that steer."""
    return sorted(name for name in specials if name.startswith(_OWNERS))


def _sources(op: Op) -> list[Any]:
    return [op.operands[slot.name] for slot in op.form.slots if slot.kind in ("in", "pred", "address", "ins")]


def _named(op: Op) -> list[str]:
    """The symbols in the addresses of an instruction."""
    found = []
    for slot in op.form.slots:
        operand = op.operands[slot.name]
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            found.append(str(operand.base.name))
    return found


def _specials(op: Op) -> list[str]:
    operands = [op.operands.get(slot.name) for slot in op.form.slots]
    return [str(each.name) for each in operands if isinstance(each, Special)]


def _seeds(op: Op) -> list[str]:
    """The registers of one instruction that steer: addresses, bytes and predicates of global accesses do not."""
    effects = op.form.effects
    branches = op.family in BRANCHES | LEAVES
    only_global = bool(effects) and all(
        effect.verb in ("reads", "writes") and not effect.later and _space(op, effect.space) in _FREE_SPACES
        for effect in effects
    )
    found: list[str] = []
    if (branches or (effects and not only_global)) and op.instruction.guard is not None:
        found.append(op.instruction.guard.register.name)
    if only_global:
        return found
    signals = any(effect.verb in _SIGNALS for effect in effects)
    engine = any(effect.later for effect in effects) and not op.instruction.opcode.startswith("cp.async.c")
    for slot in op.form.slots:
        operand = op.operands[slot.name]
        if slot.kind == "address":
            spaces = {_space(op, effect.space) for effect in effects if effect.operand == slot.name}
            if effects and not (spaces and spaces <= _FREE_SPACES):
                found += registers_of(operand)
        elif slot.kind == "tensor" and isinstance(operand, Address):
            found += registers_of(operand.base)  # the map; the coordinates are in global memory
        elif slot.kind in ("in", "pred") and (branches or signals or engine):
            found += registers_of(operand)
    return found


def _space(op: Op, space: str) -> str:
    if space.startswith("{"):
        space = op[space[1:-1]] or "generic"
    return space.partition("::")[0]
