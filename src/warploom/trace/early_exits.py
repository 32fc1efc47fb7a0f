"""`return`, `break` and `continue` inside device regions: guards where that is sound, else errors at their line.

Python runs them while the kernel is traced, once and for all threads: `with when(i >= n): return` would end the trace
and drop the rest of the kernel. A context manager cannot see that its block was left early, so the source is read:

- `rewritten` puts the rest of a kernel, or of a loop body, under the opposite condition where a `with when(…)` block
  directly in it ends with `return` or `continue`. That is what the guard means on the device.
- `verify_exit` runs when a region of a `with` statement closes, and raises an error if the statement holds another
  early exit. Where there is no source (`exec`, an old REPL) it looks at the bytecode of the frame instead.
"""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

from warploom.diagnostics import Diag, Loc

_WORDS: dict[type[ast.stmt], str] = {ast.Return: "return", ast.Break: "break", ast.Continue: "continue"}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_UNLESS, _OTHERWISE = "__warploom_unless__", "__warploom_otherwise__"
_FUTURES = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_HANDLER_BYTES = 16
"""Room for the instructions of a handler up to the test of what `__exit__` returned."""
_COMPARED = 200
"""Instructions that are compared at most."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A statement that leaves a block: its word and its line."""

    word: str
    line: int


@dataclass(slots=True)
class _Block:
    """A `with` statement or a loop, and the exits that skip device code after it."""

    node: ast.stmt
    ends_function: bool
    """No statement of the function comes after the block."""
    ends_iteration: bool
    """No statement of the loop body comes after the block."""
    exits: list[Exit] = field(default_factory=list)


@functools.lru_cache(maxsize=64)
def _blocks(text: str) -> dict[int, _Block]:
    """The `with` statements and loops of a source text by the lines of their headers."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, _Block] = {}
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            _scan(scope.body, [], found, ends_function=True, ends_iteration=True)
    return found


def _scan(
    statements: list[ast.stmt],
    around: list[_Block],
    found: dict[int, _Block],
    *,
    ends_function: bool,
    ends_iteration: bool,
) -> None:
    for position, statement in enumerate(statements):
        last = position == len(statements) - 1
        of_function, of_iteration = ends_function and last, ends_iteration and last
        if isinstance(statement, ast.Return | ast.Break | ast.Continue):
            _leave(statement, around)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            block = _Block(statement, of_function, of_iteration)
            _enter(block, statement.items[-1].context_expr, found)
            _scan(statement.body, [*around, block], found, ends_function=of_function, ends_iteration=of_iteration)
        elif isinstance(statement, _LOOPS):
            block = _Block(statement, of_function, of_iteration)
            _enter(block, statement.test if isinstance(statement, ast.While) else statement.iter, found)
            _scan(statement.body, [*around, block], found, ends_function=False, ends_iteration=True)
            _scan(statement.orelse, around, found, ends_function=of_function, ends_iteration=of_iteration)
        elif isinstance(statement, ast.If):
            _scan(statement.body, around, found, ends_function=of_function, ends_iteration=of_iteration)
            _scan(statement.orelse, around, found, ends_function=of_function, ends_iteration=of_iteration)
        elif isinstance(statement, ast.Match):
            for case in statement.cases:
                _scan(case.body, around, found, ends_function=of_function, ends_iteration=of_iteration)
        elif isinstance(statement, ast.Try | ast.TryStar):
            parts = (statement.body, *(each.body for each in statement.handlers), statement.orelse, statement.finalbody)
            for part in parts:
                _scan(part, around, found, ends_function=False, ends_iteration=False)


def _enter(block: _Block, header: ast.expr, found: dict[int, _Block]) -> None:
    for line in range(block.node.lineno, (header.end_lineno or header.lineno) + 1):
        found[line] = block


def _leave(statement: ast.Return | ast.Break | ast.Continue, around: list[_Block]) -> None:
    """Record an exit with every block that it leaves, unless nothing would have come after that block anyway."""
    exit_ = Exit(_WORDS[type(statement)], statement.lineno)
    for block in reversed(around):
        loop = isinstance(block.node, _LOOPS)
        if isinstance(statement, ast.Return):
            harmless = not loop and block.ends_function
        else:
            harmless = isinstance(statement, ast.Continue) and (loop or block.ends_iteration)
        if not harmless:
            block.exits.append(exit_)
        if loop and not isinstance(statement, ast.Return):
            return


def _source(file: str, module: dict[str, Any] | None = None) -> str:
    return "".join(linecache.getlines(file, module))


def exit_of_loop(loc: Loc) -> Exit | None:
    """The statement that left the loop at a line, if the source shows one."""
    block = _blocks(_source(loc.file)).get(loc.line)
    return block.exits[0] if block is not None and block.exits else None


def verify_exit(frame: FrameType, start: int, kind: str, opened: Loc) -> None:
    """Raise an error if the `with` statement whose block a frame has just left may have been left early.

    `start` is the instruction of the frame that entered the block.
    """
    code = frame.f_code
    text = _source(code.co_filename, frame.f_globals)
    if not text:
        _verify_bytecode(frame, start, kind, opened)
        return
    block = _blocks(text).get(frame.f_lineno)
    if block is None or isinstance(block.node, _LOOPS) or not block.exits:
        return
    if block.node.lineno in _GUARDS.get(code, ()):
        return
    exit_ = block.exits[0]
    loc = Loc(code.co_filename, exit_.line)
    raise Diag.LEFT_LOOP_EARLY.error(loc, statement=f"`{exit_.word}`", kind=kind, opened=opened)


def _verify_bytecode(frame: FrameType, start: int, kind: str, opened: Loc) -> None:
    """Raise an error if the frame does not go on after the block, as far as bytecode tells.

    A `with` statement goes on at the same place after its block and after an error that its context manager suppresses.
    The handler of that error is found by the exception table, and where it goes on is compared with where the frame,
    which is at the call of `__exit__` now, goes on. An early exit goes on elsewhere.
    """
    code = dis.Bytecode(frame.f_code)
    instructions = {each.offset: each for each in code}
    inside = next((offset for offset in instructions if offset > start), start)
    entries = getattr(code, "exception_entries", ())
    handler = next((each.target for each in entries if each.start <= inside < each.end), None)
    suppressed = [
        each.argval
        for offset, each in instructions.items()
        if handler is not None and handler <= offset <= handler + _HANDLER_BYTES and "IF_TRUE" in each.opname
    ]
    if not suppressed or handler is None or instructions[handler].opname != "PUSH_EXC_INFO":
        return
    after = _from(instructions, suppressed[0])
    while after and after[0][1] in ("POP_TOP", "POP_EXCEPT"):
        after = after[1:]
    now = _from(instructions, frame.f_lasti)[1:]
    if now and now[0][1] == "POP_TOP":  # the result of `__exit__`
        now = now[1:]
    for (offset, *one), (other_offset, *other) in zip(now, after, strict=False):
        if offset == other_offset:
            return
        if one != other:
            loc = Loc(frame.f_code.co_filename, frame.f_lineno)
            statement = "An early exit (`return`, `break` or `continue`; the source is not available)"
            raise Diag.LEFT_LOOP_EARLY.error(loc, statement=statement, kind=kind, opened=opened)


def _from(instructions: Mapping[int, dis.Instruction], offset: int) -> list[tuple[int, str, Any]]:
    """The instructions that are executed from an offset on, if no condition holds, up to the end of the function."""
    order = list(instructions)
    found = list[tuple[int, str, Any]]()
    at = order.index(offset)
    while at < len(order) and len(found) < _COMPARED:
        each = instructions[order[at]]
        at += 1
        if each.opname.startswith("JUMP_"):
            at = order.index(each.argval)
        elif each.opname not in ("NOP", "CACHE", "EXTENDED_ARG"):
            found.append((each.offset, each.opname, each.argval))
            if each.opname.startswith(("RETURN", "RERAISE", "RAISE")):
                break
    return found


_GUARDS: dict[CodeType, frozenset[int]] = {}
"""Lines of the guards in rewritten kernels."""


def rewritten(function: Callable[..., Any], names: Mapping[str, Any], when: Any, otherwise: Any, unless: Any) -> Any:
    """A kernel's function with its guards as blocks around the rest; the function itself if it has none.

    `names` is the namespace that says which calls in the source are `when` and `otherwise`.
    """
    code = getattr(function, "__code__", None)
    if not isinstance(function, FunctionType) or code is None:
        return function
    text = _source(code.co_filename, function.__globals__)
    if not any(block.exits for block in _blocks(text).values()):
        return function
    node = _definition(text, code)
    if node is None:
        return function
    rewriter = _Rewriter(_blocks(text), names, when, otherwise)
    node.body = rewriter.guarded(node.body, ast.Return)
    if not rewriter.lines:
        return function
    return _recompiled(function, node, frozenset(rewriter.lines), {_UNLESS: unless, _OTHERWISE: otherwise})


def _definition(text: str, code: CodeType) -> ast.FunctionDef | None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            same = tuple(each.arg for each in arguments) == code.co_varnames[: len(arguments)]
            if first == code.co_firstlineno and same:
                return node
    return None


@dataclass
class _Rewriter:
    """Nests what comes after a guard in a block under the opposite condition."""

    blocks: Mapping[int, _Block]
    names: Mapping[str, Any]
    when: Any
    otherwise: Any
    lines: set[int] = field(default_factory=set)

    def guarded(self, statements: list[ast.stmt], exit_: type[ast.stmt]) -> list[ast.stmt]:
        """The statements of a function body (left by `return`) or of a loop body (by `continue`)."""
        for position, statement in enumerate(statements):
            rest = statements[position + 1 :]
            if not rest or not isinstance(statement, ast.With) or not self._is_guard(statement, exit_):
                self._loops_in(statement)
                continue
            self.lines.add(statement.lineno)
            first = rest[0]
            if isinstance(first, ast.With) and self._calls(first, self.otherwise):
                rest = [*first.body, *rest[1:]]
            return [*statements[:position], *self._nested(statement, self.guarded(rest, exit_))]
        return statements

    def _nested(self, guard: ast.With, rest: list[ast.stmt]) -> list[ast.stmt]:
        *body, _ = guard.body
        (item,) = guard.items
        call = item.context_expr
        assert isinstance(call, ast.Call)
        if body:
            opposite = ast.Call(ast.Name(_OTHERWISE, ast.Load()), [], [])
            return [ast.copy_location(ast.With([item], body), guard), self._around(opposite, rest, guard)]
        return [self._around(ast.Call(ast.Name(_UNLESS, ast.Load()), call.args, call.keywords), rest, guard)]

    def _around(self, call: ast.Call, rest: list[ast.stmt], guard: ast.With) -> ast.stmt:
        return ast.fix_missing_locations(ast.copy_location(ast.With([ast.withitem(call)], rest), guard))

    def _loops_in(self, statement: ast.stmt) -> None:
        """Rewrite the bodies of loops wherever they are in a statement, but for those of nested functions."""
        if isinstance(statement, _SCOPES):
            return
        if isinstance(statement, _LOOPS):
            statement.body = self.guarded(statement.body, ast.Continue)
            return
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                self._loops_in(child)  # type: ignore[arg-type]

    def _is_guard(self, statement: ast.With, exit_: type[ast.stmt]) -> bool:
        last = statement.body[-1]
        if not isinstance(last, exit_) or not self._calls(statement, self.when):
            return False
        value = getattr(last, "value", None)
        gives_nothing = value is None or (isinstance(value, ast.Constant) and value.value is None)
        return gives_nothing and self.blocks[statement.lineno].exits == [Exit(_WORDS[exit_], last.lineno)]

    def _calls(self, statement: ast.With, target: Any) -> bool:
        if len(statement.items) != 1 or statement.items[0].optional_vars is not None:
            return False
        call = statement.items[0].context_expr
        return isinstance(call, ast.Call) and self._resolved(call.func) is target

    def _resolved(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._resolved(node.value), node.attr, None)
        return None


def _recompiled(
    function: FunctionType, node: ast.FunctionDef, lines: frozenset[int], added: Mapping[str, Any]
) -> FunctionType:
    """The function of a changed definition, with the globals, defaults and closure of the one in use.

    The definition is compiled inside another function whose parameters are the free variables, so that the compiler
    makes them free variables again.
    """
    old = function.__code__
    cells = dict(zip(old.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: CellType(value) for name, value in added.items()}
    node.decorator_list = []
    parameters = ast.arguments([], [ast.arg(name) for name in cells], None, [], [], None, [])
    outer = ast.FunctionDef("outer", parameters, [node], [])
    if hasattr(ast, "TypeVar"):  # Python 3.12 and later
        outer.type_params = []  # type: ignore[attr-defined,unused-ignore]
    module = ast.fix_missing_locations(ast.Module([outer], []))
    compiled = compile(module, old.co_filename, "exec", flags=old.co_flags & _FUTURES, dont_inherit=True)
    inner = _code_in(_code_in(compiled, "outer"), node.name).replace(co_qualname=old.co_qualname)
    closure = tuple(cells[name] for name in inner.co_freevars)
    made = FunctionType(inner, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    _GUARDS[inner] = lines
    return made


def _code_in(code: CodeType, name: str) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)


def namespace_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The globals and the closure of a function by name."""
    code = getattr(function, "__code__", None)
    names = dict(getattr(function, "__globals__", {}))
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names
