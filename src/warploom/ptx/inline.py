"""Calls put in place: a kernel whose device functions stand where they are called.

The machine needs no call stack, and the uniformity analysis sees through calls. PTX forbids nothing but recursion here,
which is reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from warploom.diagnostics import Diag, Loc
from warploom.ptx.model import (
    Address,
    Arguments,
    BranchTargets,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Module,
    Negated,
    Pair,
    Register,
    Sink,
    Statement,
    Symbol,
    Variable,
    Vector,
)

_DEEPEST = 32
SYSTEM_FUNCTIONS = frozenset({"vprintf", "__assertfail"})
"""What the driver links into a kernel; their calls stay, and the machine gives them a meaning."""
MOST_INSTRUCTIONS = 1 << 18
"""What a kernel may have once its calls are put in place; a few lines that call each other would make billions."""


def inline(module: Module, kernel: Kernel, file: str = "<ptx>") -> Kernel:
    """The kernel without `call`, but for those of the system's functions."""
    functions = {k.name: k for k in module.kernels if k.body is not None}
    if _length(kernel, functions, {}, 0) > MOST_INSTRUCTIONS:
        raise Diag.TOO_LONG.error(Loc(file, kernel.line), name=kernel.name, most=MOST_INSTRUCTIONS)
    if not any(instruction.opcode.startswith("call") for instruction in kernel.instructions):
        return kernel
    worker = _Inliner(functions, file)
    body = worker.expand(kernel.body or (), (kernel.name,))
    return replace(
        kernel,
        body=tuple(body),
        registers=(*kernel.registers, *worker.registers),
        variables=(*kernel.variables, *worker.variables),
    )


def _length(function: Kernel, functions: dict[str, Kernel], known: dict[str, int], depth: int) -> int:
    """How many statements a function has with its calls in place; one that calls itself counts once."""
    if function.name not in known and depth <= _DEEPEST:
        known[function.name] = 0
        calls = (each for each in function.instructions if each.opcode.partition(".")[0] == "call")
        named = (operand.name for call in calls for operand in call.operands if isinstance(operand, Symbol))
        called = [functions[name] for name in named if name in functions]
        inside = sum(_length(each, functions, known, depth + 1) for each in called)
        known[function.name] = len(function.body or ()) + inside
    return known.get(function.name, 0)


class _Inliner:
    def __init__(self, functions: dict[str, Kernel], file: str) -> None:
        self.functions, self.file = functions, file
        self.registers: list[tuple[str, str]] = []
        self.variables: list[Variable] = []
        self.calls = 0

    def expand(self, body: tuple[Statement, ...], path: tuple[str, ...]) -> list[Statement]:
        out: list[Statement] = []
        for statement in body:
            if isinstance(statement, Instruction) and statement.opcode.partition(".")[0] == "call":
                out += self._call(statement, path)
            else:
                out.append(statement)
        return out

    def _call(self, call: Instruction, path: tuple[str, ...]) -> list[Statement]:
        where = call.loc or Loc(self.file, call.line)
        lists = [o for o in call.operands if isinstance(o, Arguments)]
        names = [o for o in call.operands if isinstance(o, Symbol)]
        function = self.functions.get(names[0].name) if names else None
        if function is None and names and names[0].name in SYSTEM_FUNCTIONS:
            return [call]
        if function is None or function.body is None:
            raise Diag.NOT_MODELLED.error(
                where, what=f"`{call.text}` (a call through a pointer or to code outside the module)"
            )
        if function.name in path or len(path) > _DEEPEST:
            raise Diag.NOT_MODELLED.error(where, what=f"the recursive call of `{function.name}`")
        before_function = bool(call.operands) and isinstance(call.operands[0], Arguments)
        results = lists[0].items if before_function else ()
        arguments = lists[-1].items if len(lists) > before_function else ()
        if len(results) != len(function.results) or len(arguments) != len(function.params):
            raise Diag.BAD_OPERANDS.error(
                where,
                text=call.text,
                what=f"`{function.name}` takes {len(function.params)} parameters and gives {len(function.results)}",
                takes="as many arguments as the function declares",
            )
        self.calls += 1
        tag = f"{function.name}${self.calls}$"
        end = f"{tag}end"
        rename: dict[str, str] = {name: tag + name for name, _ in function.registers}
        rename |= {s.name: tag + s.name for s in function.body if isinstance(s, Label | BranchTargets)}
        rename |= {v.name: tag + v.name for v in function.variables}
        self.registers += [(tag + name, type_) for name, type_ in function.registers]
        self.variables += [replace(v, name=tag + v.name) for v in function.variables]
        enter, leave = self._bind(function, arguments, results, rename, tag, call)
        body = self.expand(function.body, (*path, function.name))
        inside: list[Statement] = [_renamed(s, rename, end) for s in body]
        skip: list[Statement] = []
        if call.guard is not None:
            unless = Guard(call.guard.register, not call.guard.negated)
            skip.append(Instruction("bra", (Symbol(end),), unless, call.loc, call.line))
        return [*skip, *enter, *inside, Label(end), *leave]

    def _bind(
        self,
        function: Kernel,
        arguments: tuple[Register | Symbol | Immediate | Sink, ...],
        results: tuple[Register | Symbol | Immediate | Sink, ...],
        rename: dict[str, str],
        tag: str,
        call: Instruction,
    ) -> tuple[list[Statement], list[Statement]]:
        enter: list[Statement] = []
        leave: list[Statement] = []
        for formals, actuals, moves in ((function.params, arguments, enter), (function.results, results, leave)):
            for formal, actual in zip(formals, actuals, strict=True):
                if isinstance(actual, Symbol):
                    rename[formal.name] = actual.name
                    continue
                if formal.space == "reg":
                    inner = Register(tag + formal.name)
                    if formal.name not in rename:
                        rename[formal.name] = inner.name
                        self.registers.append((inner.name, formal.type))
                    pair = (inner, actual) if moves is enter else (actual, inner)
                    kind = formal.type if formal.type == "pred" else f"b{max(16, _bits(formal.type))}"
                    if not isinstance(pair[0], Sink):
                        moves.append(Instruction(f"mov.{kind}", pair, None, call.loc, call.line))
                    continue
                raise Diag.NOT_MODELLED.error(
                    call.loc or Loc(self.file, call.line), what=f"passing `{actual}` as a .param"
                )
        return enter, leave


def _bits(type_: str) -> int:
    return int("".join(c for c in type_ if c.isdigit()) or 32)


def _renamed(statement: Statement, rename: dict[str, str], end: str) -> Statement:
    match statement:
        case Label(name):
            return Label(rename.get(name, name))
        case BranchTargets(name, targets):
            return BranchTargets(rename.get(name, name), tuple(rename.get(t, t) for t in targets))
        case Instruction():
            guard = statement.guard and Guard(_operand(statement.guard.register, rename), statement.guard.negated)
            if statement.opcode.partition(".")[0] == "ret":
                return Instruction("bra", (Symbol(end),), guard, statement.loc, statement.line)
            return replace(statement, guard=guard, operands=tuple(_operand(o, rename) for o in statement.operands))
    return statement


def _operand(operand: Any, rename: dict[str, str]) -> Any:
    """An operand of any kind with its names replaced; what has no names stays."""
    match operand:
        case Register(name):
            return Register(rename.get(name, name))
        case Symbol(name, offset):
            return Symbol(rename.get(name, name), offset)
        case Negated(register):
            return Negated(_operand(register, rename))
        case Pair(first, second):
            return Pair(_operand(first, rename), _operand(second, rename))
        case Vector(items):
            return Vector(tuple(_operand(item, rename) for item in items))
        case Address(base, offset, coordinates):
            return Address(_operand(base, rename), offset, _operand(coordinates, rename))
        case Arguments(items):
            return Arguments(tuple(_operand(item, rename) for item in items))
    return operand
