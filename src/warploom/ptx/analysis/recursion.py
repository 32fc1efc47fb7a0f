"""Functions that are not inlined, such as recursive ones: each is appended once to the kernel, and every activation has
a frame on a stack.

A frame holds the number of the return point, parameters and results, the function's variables and, during a call, the
registers that are live after it. All of it is written in PTX, so that no other part of the emulator handles calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from warploom.diagnostics import Diag, Loc
from warploom.ptx.analysis.call_graph import SYSTEM_FUNCTIONS, call_operands, is_call
from warploom.ptx.analysis.control_flow import build
from warploom.ptx.analysis.liveness import live_at_entry
from warploom.ptx.analysis.operand_registers import read, written
from warploom.ptx.analysis.storage import aligned, element_bytes, size_of
from warploom.ptx.isa.table import BITS
from warploom.ptx.syntax.model import (
    Address,
    BranchTargets,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Register,
    Sink,
    Statement,
    Symbol,
    Variable,
)
from warploom.ptx.syntax.renaming import renamed

STACK_BYTES = 1 << 14
"""The bytes that the frames of one thread may take together."""

_HEADER, _ALIGN, _SLOT = 16, 16, 16
_STACK = Variable("local", "b8", "recursion$stack", _ALIGN, STACK_BYTES)
_FRAME, _SITE = Register("recursion$frame"), Register("recursion$site")
_SCRATCH = {size: (Register(f"recursion$copied{size}"), f"b{max(8 * size, 16)}") for size in (1, 2, 4, 8)}


@dataclass
class _Function:
    """A function that is not inlined: the layout of its frame, and its possible return points in the kernel."""

    kernel: Kernel
    places: dict[str, int] = field(default_factory=dict)
    spills: dict[str, int] = field(default_factory=dict)
    kept: dict[int, list[str]] = field(default_factory=dict)
    """The registers that are live after each call, by the identity of the call."""
    sites: list[str] = field(default_factory=list)
    bytes: int = 0

    @property
    def entry(self) -> str:
        return f"{self.kernel.name}$entry"

    @property
    def end(self) -> str:
        return f"{self.kernel.name}$return"


def with_stack(kernel: Kernel, functions: dict[str, Kernel], file: str) -> Kernel:
    """The kernel with these functions appended, and jumps to and from them instead of calls."""
    known = {name: _laid_out(function) for name, function in functions.items()}
    writer = _Writer(known, file)
    body: list[Statement] = [Instruction("mov.b64", (_FRAME, Symbol(_STACK.name)))]
    body += writer.lowered(_Function(kernel))
    body.append(Instruction("ret"))
    for function in known.values():
        body += writer.placed(function)
    for function in known.values():
        body.append(BranchTargets(f"{function.entry}$sites", tuple(function.sites)))
    registers = [(register.name, type_) for register, type_ in (*_SCRATCH.values(), (_FRAME, "b64"), (_SITE, "b32"))]
    registers += [pair for function in known.values() for pair in function.kernel.registers]
    stays = [v for function in known.values() for v in function.kernel.variables if v.name not in function.places]
    return replace(
        kernel,
        body=tuple(body),
        registers=(*kernel.registers, *registers),
        variables=(*kernel.variables, *stays, _STACK),
    )


def _laid_out(function: Kernel) -> _Function:
    """A function with unique names and the layout of its frame."""
    tag = f"{function.name}$"
    formals = [each for each in (*function.params, *function.results) if each.space == "reg"]
    registers = [*function.registers, *((each.name, each.type) for each in formals)]
    rename = {name: tag + name for name, _ in registers}
    rename |= {s.name: tag + s.name for s in function.body or () if isinstance(s, Label | BranchTargets)}
    named = (*function.params, *function.results, *function.variables)
    rename |= {v.name: tag + v.name for v in named}

    def moved(variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        return tuple(replace(v, name=rename[v.name]) for v in variables)

    own = replace(
        function,
        params=moved(function.params),
        results=moved(function.results),
        variables=moved(function.variables),
        registers=tuple(dict.fromkeys((rename[name], type_) for name, type_ in registers)),
        body=tuple(renamed(s, rename, f"{function.name}$return") for s in function.body or ()),
    )
    out = _Function(own)
    static = {item.name for call in own.instructions if _of_the_system(call) for items in call_operands(call)
              for item in items if isinstance(item, Symbol)}  # fmt: skip
    at = _HEADER
    for variable in (*own.params, *own.results, *own.variables):
        if variable.name not in static and variable.space in ("local", "param", "reg"):
            at = aligned(at, variable)
            out.places[variable.name] = at
            at += size_of(variable)
    out.kept = _live_after_calls(own, out.end)
    for name in dict.fromkeys(name for names in out.kept.values() for name in names):
        at = -(-at // _SLOT) * _SLOT
        out.spills[name] = at
        at += _SLOT
    out.bytes = -(-at // _ALIGN) * _ALIGN
    return out


def _of_the_system(instruction: Instruction) -> bool:
    return is_call(instruction) and any(
        isinstance(operand, Symbol) and operand.name in SYSTEM_FUNCTIONS for operand in instruction.operands
    )


def _live_after_calls(function: Kernel, end: str) -> dict[int, list[str]]:
    """The registers that are live after each call."""
    names = [name for name, _ in function.registers]
    bits = {name: 1 << place for place, name in enumerate(names)}
    flow = build(replace(function, body=(*(function.body or ()), Label(end), Instruction("ret"))))
    results = sum(bits[each.name] for each in function.results if each.space == "reg")
    entry, out = live_at_entry(flow, names), dict[int, list[str]]()
    for block in flow.blocks:
        live = results
        for successor in block.successors:
            live |= entry[successor]
        for op in reversed(block.ops):
            if op.instruction.guard is None:
                for name in written(op):
                    live &= ~bits.get(name, 0)
            if is_call(op.instruction) and not _of_the_system(op.instruction):
                out[id(op.instruction)] = [name for name in names if live & bits[name]]
            for name in read(op):
                live |= bits.get(name, 0)
    return out


class _Writer:
    """Rewrites calls, returns and frame variables as plain instructions."""

    def __init__(self, functions: dict[str, _Function], file: str) -> None:
        self.functions, self.file = functions, file
        self.out: list[Statement] = []
        self.source: Instruction = Instruction("ret")

    def placed(self, function: _Function) -> list[Statement]:
        """A function as it is appended to the kernel."""
        self.out = [Label(function.entry)]
        for formal in function.kernel.params:
            if formal.space == "reg":
                self._restore(formal.name, formal.type, function.places[formal.name])
        body = self.out + self.lowered(function)
        self.out = [Label(function.end)]
        for formal in function.kernel.results:
            if formal.space == "reg":
                self._save(formal.name, formal.type, function.places[formal.name])
        self._add("ld.local.b32", _SITE, Address(_FRAME, 0))
        self._add("brx.idx", _SITE, Symbol(f"{function.entry}$sites"))
        return body + self.out

    def lowered(self, function: _Function) -> list[Statement]:
        """A body with its calls and frame variables rewritten."""
        self.out = []
        for statement in function.kernel.body or ():
            if not isinstance(statement, Instruction):
                self.out.append(statement)
                continue
            self.source = statement
            if is_call(statement) and not _of_the_system(statement):
                name = next((o.name for o in statement.operands if isinstance(o, Symbol)), "")
                if name in self.functions:
                    self._call(function, statement, self.functions[name])
                    continue
            self.out.append(self._framed(statement, function.places))
        return self.out

    def _add(self, opcode: str, *operands: Any, guard: Guard | None = None) -> None:
        self.out.append(Instruction(opcode, operands, guard, self.source.loc, self.source.line))

    def _framed(self, instruction: Instruction, places: dict[str, int]) -> Instruction:
        """An instruction whose frame variables are replaced by offsets into the frame."""
        if not any(name in places for name in _named(instruction)):
            return instruction
        opcode, operands = instruction.opcode, list[Any]()
        for operand in instruction.operands:
            match operand:
                case Address(Symbol(name, offset), more, None) if name in places:
                    operands.append(Address(_FRAME, places[name] + offset + more))
                    opcode = opcode.replace(".param::func", ".local").replace(".param", ".local")
                case Symbol(name, offset) if name in places and opcode in ("mov.b64", "mov.u64", "mov.s64"):
                    opcode = "add.s64"
                    operands += [_FRAME, Immediate(places[name] + offset)]
                case _:
                    operands.append(operand)
        changed = replace(instruction, opcode=opcode, operands=tuple(operands))
        if any(name in places for name in _named(changed)):
            where = instruction.loc or Loc(self.file, instruction.line)
            raise Diag.NOT_MODELLED.error(where, what=f"`{instruction.text}` in a recursive function")
        return changed

    def _call(self, caller: _Function, call: Instruction, callee: _Function) -> None:
        site = f"{callee.entry}${len(callee.sites)}"
        skip = f"{site}$skipped"
        if call.guard is not None:
            self._add("bra", Symbol(skip), guard=Guard(call.guard.register, not call.guard.negated))
        types = dict(caller.kernel.registers)
        kept = caller.kept.get(id(call), [])
        given, results = call_operands(call)
        for name in kept:
            self._save(name, types[name], caller.spills[name])
        for formal, actual in zip(callee.kernel.params, given, strict=True):
            self._give(formal, actual, caller.bytes + callee.places[formal.name], caller)
        self._add("mov.b32", _SITE, Immediate(len(callee.sites)))
        self._add("st.local.b32", Address(_FRAME, caller.bytes), _SITE)
        self._add("add.s64", _FRAME, _FRAME, Immediate(caller.bytes))
        self._add("bra", Symbol(callee.entry))
        self.out.append(Label(site))
        self._add("add.s64", _FRAME, _FRAME, Immediate(-caller.bytes))
        for name in kept:
            self._restore(name, types[name], caller.spills[name])
        for formal, actual in zip(callee.kernel.results, results, strict=True):
            self._take(formal, actual, caller.bytes + callee.places[formal.name], caller)
        if call.guard is not None:
            self.out.append(Label(skip))
        callee.sites.append(site)

    def _give(self, formal: Variable, actual: Any, place: int, caller: _Function) -> None:
        """Store an argument in the frame of the callee."""
        if isinstance(actual, Symbol):
            self._copy(self._place_of(actual, caller), (Address(_FRAME, place), "local"), formal)
        elif isinstance(actual, Register) and formal.type != "pred":
            self._add(f"st.local.{_moved(formal.type)}", Address(_FRAME, place), actual)
        elif isinstance(actual, Register):
            self._save(actual.name, "pred", place)
        else:
            scratch = _SCRATCH[size_of(formal)]
            self._add(f"mov.{scratch[1]}", scratch[0], actual)
            self._add(f"st.local.{_moved(formal.type)}", Address(_FRAME, place), scratch[0])

    def _take(self, formal: Variable, actual: Any, place: int, caller: _Function) -> None:
        """Load a result from the frame of the callee."""
        if isinstance(actual, Symbol):
            self._copy((Address(_FRAME, place), "local"), self._place_of(actual, caller), formal)
        elif not isinstance(actual, Sink):
            self._restore(actual.name, formal.type, place)

    def _place_of(self, symbol: Symbol, caller: _Function) -> tuple[Address, str]:
        if symbol.name in caller.places:
            return Address(_FRAME, caller.places[symbol.name] + symbol.offset), "local"
        return Address(Symbol(symbol.name), symbol.offset), "param"

    def _copy(self, source: tuple[Address, str], target: tuple[Address, str], formal: Variable) -> None:
        size, step = size_of(formal), min(max(formal.align, element_bytes(formal)), 8)
        while size % step:
            step //= 2
        scratch = _SCRATCH[step][0]
        for at in range(0, size, step):
            self._add(f"ld.{source[1]}.b{8 * step}", scratch, _further(source[0], at))
            self._add(f"st.{target[1]}.b{8 * step}", _further(target[0], at), scratch)

    def _save(self, name: str, type_: str, place: int) -> None:
        register = Register(name)
        if type_ == "pred":
            self._add("selp.b32", _SITE, Immediate(1), Immediate(0), register)
            register, type_ = _SITE, "b32"
        self._add(f"st.local.{_moved(type_)}", Address(_FRAME, place), register)

    def _restore(self, name: str, type_: str, place: int) -> None:
        if type_ == "pred":
            self._add("ld.local.b32", _SITE, Address(_FRAME, place))
            self._add("setp.ne.b32", Register(name), _SITE, Immediate(0))
        else:
            self._add(f"ld.local.{_moved(type_)}", Register(name), Address(_FRAME, place))


def _moved(type_: str) -> str:
    """The type with which a register is stored and loaded."""
    return f"b{BITS[type_]}"


def _further(address: Address, by: int) -> Address:
    return replace(address, offset=address.offset + by)


def _named(instruction: Instruction) -> set[str]:
    found = set[str]()
    for operand in instruction.operands:
        base = operand.base if isinstance(operand, Address) else operand
        if isinstance(base, Symbol):
            found.add(base.name)
    return found
