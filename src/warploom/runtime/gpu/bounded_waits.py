"""Bounded waits: each loop of a kernel that only waits gives up after a while, reports to the host, and traps.

The wait itself stays as it is. Where it would go round again it goes by way of code behind the kernel's end, which
looks at the clock. A thread that gives up writes a record for its warp, lets others do the same, and ends the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from warploom.diagnostics import Loc
from warploom.ptx.analysis.control_flow import BRANCHES
from warploom.ptx.isa import match
from warploom.ptx.syntax.annotations import notes_of
from warploom.ptx.syntax.model import (
    Address,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Module,
    Operand,
    Register,
    Special,
    Statement,
    Symbol,
    Variable,
)

PARAMETER = "wl_report"
CTAS, WARPS, RECORD_WORDS = 1024, 32, 16
"""Records for so many CTAs (if there are more, some share one) and warps, and the 32-bit words of a record."""
UNKNOWN = 0xFFFFFFFF
_SCRATCH = {
    "%wl_now": "u64", "%wl_from": "u64", "%wl_age": "u64", "%wl_to": "u64", "%wl_wide": "u64", "%wl_late": "pred",
    "%wl_site": "b32", "%wl_turns": "b32", "%wl_phase": "b32", "%wl_place": "b32", "%wl_base": "b32", "%wl_cta": "b32",
    "%wl_warp": "b32", "%wl_part": "b32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Site:
    """A wait of a kernel: its location and text; `is_barrier` if it waits at an mbarrier."""

    loc: Loc | None
    text: str
    is_barrier: bool


@dataclass(frozen=True, slots=True)
class _Wait:
    """The instruction that polls, the index of the branch that repeats it, and the branch's target.

    `exits_at` are the branches out of the loop, to the statement after it.
    """

    look: Instruction
    branch_at: int
    target: str
    exits_at: tuple[int, ...]


def bounded(module: Module, kernel: Kernel, nanoseconds: int) -> tuple[Module, Kernel, tuple[Site, ...]]:
    """Return module and kernel with one more parameter, the address of records, and the waits that are now bounded."""
    body = list(kernel.body or ())
    waits = list(_waits(body))
    registers = dict(kernel.registers) | _SCRATCH
    head: list[Statement] = []
    tail: list[Statement] = []
    after: dict[int, list[Statement]] = {}
    for number, wait in enumerate(waits):
        since, turns = Register(f"%wl_since_{number}"), Register(f"%wl_count_{number}")
        registers |= {since.name: "u64", turns.name: "b32"}
        head += [_do("mov.u64", since, 0), _do("mov.b32", turns, 0)]
        slow, over = f"$wl_slow_{number}", f"$wl_over_{number}"
        _redirect(body, wait.branch_at, slow)
        for at in wait.exits_at:
            _redirect(body, at, over)
        ends: list[Statement] = [Label(over)] if wait.exits_at else []
        after[wait.branch_at] = [*ends, _do("mov.u64", since, 0), _do("add.u32", turns, turns, 1)]
        tail += _slow(number, slow, wait, since, turns, nanoseconds, dict(kernel.registers))
    if waits:
        tail += _tell(_base(module, kernel), nanoseconds)
    made = replace(
        kernel,
        params=(*kernel.params, Variable("param", "u64", PARAMETER)),
        registers=tuple(registers.items()) if waits else kernel.registers,
        body=(*head, *(each for at, one in enumerate(body) for each in (one, *after.get(at, ()))), *tail),
    )
    kernels = tuple(made if each is kernel else each for each in module.kernels)
    sites = tuple(Site(wait.look.loc, wait.look.text, wait.look.opcode.startswith("mbarrier")) for wait in waits)
    return replace(module, kernels=kernels), made, sites


def _redirect(body: list[Statement], at: int, to: str) -> None:
    branch = body[at]
    assert isinstance(branch, Instruction)
    body[at] = replace(branch, operands=(Symbol(to),))


def _waits(body: list[Statement]) -> Iterator[_Wait]:
    labels = {statement.name: at for at, statement in enumerate(body) if isinstance(statement, Label)}
    targets = {at: target for at, each in enumerate(body) if (target := _target(each)) is not None}
    for at, target in targets.items():
        start, branch = labels.get(target, at), body[at]
        if start >= at:
            continue
        assert isinstance(branch, Instruction)
        behind = takewhile(lambda each: not isinstance(each, Instruction), islice(body, at + 1, None))
        ends = {each.name for each in behind if isinstance(each, Label)}
        exits = tuple(each for each in range(start, at) if targets.get(each) in ends)
        inside = [each for place, each in enumerate(body[start:at], start) if place not in exits]
        work = [each for each in inside if isinstance(each, Instruction)]
        looks = [each for each in work if any(row.looks(modifiers) for row, modifiers in match(each.opcode))]
        is_left = branch.guard is not None or exits
        if is_left and looks and all(any(row.is_idle for row, _ in match(each.opcode)) for each in work):
            yield _Wait(looks[-1], at, target, exits)


def _target(statement: Statement) -> str | None:
    """Return the label that a branch goes to; None for other instructions and targets."""
    if not isinstance(statement, Instruction) or all(row.family not in BRANCHES for row, _ in match(statement.opcode)):
        return None
    target = statement.operands[0]
    return target.name if isinstance(target, Symbol) else None


def _do(opcode: str, *operands: Operand | int, guard: Guard | None = None) -> Instruction:
    return Instruction(opcode, tuple(Immediate(each) if isinstance(each, int) else each for each in operands), guard)


def _r(name: str) -> Register:
    return Register(f"%wl_{name}")


def _is_early(of: Register, limit: int) -> list[Statement]:
    """Compute whether less time than a limit has passed since a moment."""
    return [
        _do("mov.u64", _r("now"), Special("%globaltimer")),
        _do("sub.u64", _r("age"), _r("now"), of),
        _do("setp.lt.u64", _r("late"), _r("age"), limit),
    ]


def _slow(
    number: int,
    label: str,
    wait: _Wait,
    since: Register,
    turns: Register,
    limit: int,
    registers: dict[str, str],
) -> list[Statement]:
    """After the kernel's end: branch back to the wait, or, if it has taken too long, to the code that reports it."""
    late = Guard(_r("late"))
    return [
        Label(label),
        _do("mov.u64", _r("now"), Special("%globaltimer")),
        _do("setp.eq.u64", _r("late"), since, 0),
        _do("mov.u64", since, _r("now"), guard=late),
        *_is_early(since, limit),
        _do("bra", Symbol(wait.target), guard=late),
        _do("mov.b32", _r("site"), number + 1),
        _do("mov.b32", _r("turns"), turns),
        _do("mov.u64", _r("from"), since),
        *_place(wait.look, registers),
        _do("bra", Symbol("$wl_tell")),
    ]


def _place(look: Instruction, registers: dict[str, str]) -> list[Statement]:
    """Return the address that a wait polls, its lower half if it is split, and the parity that it waits for."""
    address = next(each for each in look.operands if isinstance(each, Address))
    base, parity = address.base, look.operands[look.operands.index(address) + 1 :]
    out: list[Statement] = []
    if isinstance(base, Register) and registers.get(base.name, "").endswith("64"):
        out.append(_do("cvt.u32.u64", _r("place"), base))
    elif isinstance(base, Symbol):
        out.append(_do("mov.u32", _r("place"), base))
    else:
        out.append(_do("mov.b32", _r("place"), base))
    out.append(_do("add.u32", _r("place"), _r("place"), address.offset))
    known = ".parity" in look.opcode and parity
    out.append(_do("mov.b32", _r("phase"), parity[0] if known else UNKNOWN))
    return out


def _base(module: Module, kernel: Kernel) -> Operand | int:
    """Return the symbol to which barrier addresses in notes are relative."""
    for words in notes_of(module, kernel):
        if words[:1] == ["barrier"] and len(words) == 5 and not words[2][0].isdigit():
            return Symbol(words[2].partition("+")[0])
    return 0


def _tell(base: Operand | int, limit: int) -> list[Statement]:
    """Write the record of this warp, wait until other warps have written theirs, and stop the kernel."""
    cta, warp, part, to = _r("cta"), _r("warp"), _r("part"), _r("to")
    indices = [Special(f"%ctaid.{axis}") for axis in "xyz"]
    values: list[Operand | int] = [
        _r("site"), _r("turns"), _r("phase"), _r("place"), _r("base"), *indices, warp, Special("%laneid"),
    ]  # fmt: skip
    out: list[Statement] = [Label("$wl_tell"), _do("mov.u32", _r("base"), base)]
    for into, own, all_ in ((cta, "%ctaid", "%nctaid"), (warp, "%tid", "%ntid")):
        out += [
            _do("mov.u32", into, Special(f"{own}.z")),
            *(
                step
                for axis in "yx"
                for step in (
                    _do("mov.u32", part, Special(f"{all_}.{axis}")),
                    _do("mul.lo.u32", into, into, part),
                    _do("mov.u32", part, Special(f"{own}.{axis}")),
                    _do("add.u32", into, into, part),
                )
            ),
        ]
    out += [
        _do("shr.u32", warp, warp, 5),
        _do("and.b32", cta, cta, CTAS - 1),
        _do("mul.lo.u32", cta, cta, WARPS),
        _do("add.u32", cta, cta, warp),
        _do("mul.wide.u32", _r("wide"), cta, 4 * RECORD_WORDS),
        _do("ld.param.u64", to, Address(Symbol(PARAMETER))),
        _do("add.u64", to, to, _r("wide")),
    ]
    for at, value in reversed(list(enumerate(values))):  # the wait's number comes last: complete
        out += [_do("mov.b32", part, value), _do("st.global.u32", Address(to, 4 * at), part)]
    return [
        *out,
        _do("membar.sys"),
        Label("$wl_linger"),
        *_is_early(_r("from"), 2 * limit),
        _do("bra", Symbol("$wl_linger"), guard=Guard(_r("late"))),
        _do("trap"),
    ]
