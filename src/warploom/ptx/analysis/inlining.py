"""Inlining: device functions are copied to their call sites.

So the emulator needs no call stack, and the uniformity analysis sees through calls. An indirect call becomes a chain of
comparisons with its possible targets. Recursive functions, and those of very long kernels, are not inlined and use a
stack: see `recursion`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from warploom.diagnostics import Diag, Loc
from warploom.ptx.analysis.call_graph import DEEPEST, SYSTEM_FUNCTIONS, CallGraph, call_operands, is_call
from warploom.ptx.analysis.recursion import with_stack
from warploom.ptx.syntax.model import (
    Arguments,
    BranchTargets,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Module,
    Register,
    Sink,
    Statement,
    Symbol,
    Variable,
)
from warploom.ptx.syntax.renaming import renamed

MOST_INSTRUCTIONS = 1 << 18
"""The most instructions of a kernel and its functions."""
MOST_INLINED = 1 << 17
"""The most after inlining: a longer kernel, such as ConSan's, has every function once, and calls have a stack."""
MOST_EXPANDED = 1 << 22
"""The same for any kernel; a few functions that call each other could otherwise execute billions."""


def inline(module: Module, kernel: Kernel, file: str = "<ptx>") -> Kernel:
    """The kernel without calls, except those of system functions."""
    graph = CallGraph(module)
    length = graph.length(kernel, {})
    for found, most in ((length, MOST_EXPANDED), (graph.size(kernel), MOST_INSTRUCTIONS)):
        if found > most:
            raise Diag.TOO_LONG.error(Loc(file, kernel.line), name=kernel.name, most=most)
    if not any(is_call(instruction) for instruction in kernel.instructions):
        return kernel
    worker = _Inliner(graph, file, inlines=length <= MOST_INLINED)
    placed = worker.expanded(kernel)
    if not worker.apart:
        return placed
    apart: dict[str, Kernel] = {}
    while left := worker.apart - apart.keys():
        name = min(left)
        apart[name] = worker.expanded(graph.functions[name])
    return with_stack(placed, apart, file)


class _Inliner:
    def __init__(self, graph: CallGraph, file: str, *, inlines: bool) -> None:
        self.graph, self.file, self.inlines = graph, file, inlines
        self.registers: list[tuple[str, str]] = []
        self.variables: list[Variable] = []
        self.apart: set[str] = set()
        self.calls = 0

    def expanded(self, function: Kernel) -> Kernel:
        """A function with its calls inlined."""
        self.registers, self.variables = [], []
        body = self._expand(function, (function.name,))
        return replace(
            function,
            body=tuple(body),
            registers=(*function.registers, *self.registers),
            variables=(*function.variables, *self.variables),
        )

    def _expand(self, function: Kernel, path: tuple[str, ...]) -> list[Statement]:
        out: list[Statement] = []
        for statement in function.body or ():
            if isinstance(statement, Instruction) and is_call(statement):
                out += self._call(function, statement, path)
            else:
                out.append(statement)
        return out

    def _call(self, caller: Kernel, call: Instruction, path: tuple[str, ...]) -> list[Statement]:
        named = next((operand for operand in call.operands if isinstance(operand, Register | Symbol)), None)
        if isinstance(named, Register):
            return self._through(named, caller, call, path)
        name = named.name if named is not None else ""
        function = self.graph.functions.get(name)
        where = call.loc or Loc(self.file, call.line)
        if function is None and name in SYSTEM_FUNCTIONS:
            return [call]
        if function is None:
            raise Diag.NOT_MODELLED.error(where, what=f"`{call.text}` (a call of code outside the module)")
        arguments, results = call_operands(call)
        _check_passed((*arguments, *results), caller, call, where)
        if len(results) != len(function.results) or len(arguments) != len(function.params):
            raise Diag.BAD_OPERANDS.error(
                where,
                text=call.text,
                what=f"`{function.name}` takes {len(function.params)} parameters and gives {len(function.results)}",
                takes="as many arguments as the function declares",
            )
        if name in self.graph.recursive or not self.inlines:
            self.apart.add(name)
            return [call]
        if len(path) > DEEPEST:
            raise Diag.NOT_MODELLED.error(where, what=f"the call of `{name}`, {len(path)} calls deep,")
        return self._place(function, call, path)

    def _through(self, pointer: Register, caller: Kernel, call: Instruction, path: tuple[str, ...]) -> list[Statement]:
        """The possible targets of a pointer, compared one after another; the call itself comes last and faults."""
        self.calls += 1
        tag = f"call${self.calls}$"
        missed, end = Register(f"{tag}missed"), f"{tag}end"
        self.registers.append((missed.name, "pred"))
        out: list[Statement] = []
        if call.guard is not None:
            unless = Guard(call.guard.register, not call.guard.negated)
            out.append(Instruction("bra", (Symbol(end),), unless, call.loc, call.line))
        before, after = call.operands[: call.operands.index(pointer)], [*call_operands(call)[0]]
        for name in self.graph.reached(caller, call):
            address = Immediate(self.graph.addresses[name])
            direct = replace(call, operands=(*before, Symbol(name), Arguments(tuple(after))), guard=None)
            otherwise = f"{tag}{name}"
            out += [
                Instruction("setp.ne.b64", (missed, pointer, address), None, call.loc, call.line),
                Instruction("bra", (Symbol(otherwise),), Guard(missed, False), call.loc, call.line),
                *self._call(caller, direct, path),
                Instruction("bra", (Symbol(end),), None, call.loc, call.line),
                Label(otherwise),
            ]
        nowhere = Instruction(call.opcode, (pointer,), None, call.loc, call.line)
        return [*out, nowhere, Label(end)]

    def _place(self, function: Kernel, call: Instruction, path: tuple[str, ...]) -> list[Statement]:
        """A function's body at the place of its call."""
        arguments, results = call_operands(call)
        self.calls += 1
        tag = f"{function.name}${self.calls}$"
        end = f"{tag}end"
        rename: dict[str, str] = {name: tag + name for name, _ in function.registers}
        rename |= {s.name: tag + s.name for s in function.body or () if isinstance(s, Label | BranchTargets)}
        rename |= {v.name: tag + v.name for v in function.variables}
        self.registers += [(tag + name, type_) for name, type_ in function.registers]
        self.variables += [replace(v, name=tag + v.name) for v in function.variables]
        enter, leave = self._bind(function, arguments, results, rename, tag, call)
        body = self._expand(function, (*path, function.name))
        inside: list[Statement] = [renamed(s, rename, end) for s in body]
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


def _check_passed(items: Iterable[object], caller: Kernel, call: Instruction, where: Loc) -> None:
    """Raise an error if a call passes a variable outside the .param space of its caller, as ptxas does."""
    passed = {each.name for each in (*caller.variables, *caller.params, *caller.results) if each.space == "param"}
    wrong = [item.name for item in items if isinstance(item, Symbol) and item.name not in passed]
    if wrong:
        what = f"`{wrong[0]}` is not a variable in .param of `{caller.name}`"
        takes = "registers, numbers and variables in .param"
        raise Diag.BAD_OPERANDS.error(where, text=call.text, what=what, takes=takes)


def _bits(type_: str) -> int:
    return int("".join(c for c in type_ if c.isdigit()) or 32)
