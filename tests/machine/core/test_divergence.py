"""Divergence and reconvergence: hand-picked shapes and random programs against a thread-by-thread reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.machine.simt import SCHEDULES, threads

from warploom.diagnostics import WarploomError

RNG = np.random.default_rng()
WORD = 0xFFFFFFFF
BLOCKS: list[Any] = [1, 32, 33, 100, 128, (7, 5, 1), (3, 4, 5), 1024]
by_schedule = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)


def size_of(block: Any) -> int:
    return int(np.prod(block)) if isinstance(block, tuple) else block


def check(body: str, want: Callable[[int, int], int], schedule: str, seed: int, blocks: list[Any] = BLOCKS) -> None:
    """Every thread's word is `want(thread, input)`, for many shapes of block."""
    for block in blocks:
        values = RNG.integers(0, 1 << 16, size_of(block), dtype=np.uint32)
        got = threads(body, block, source=values, schedule=schedule, seed=seed)
        assert got[:, 0].tolist() == [want(t, int(v)) & WORD for t, v in enumerate(values)], block


@by_schedule
def test_nested_branches(schedule: str, seed: int) -> None:
    body = """
    and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra EVEN;
    and.b32 %r3, %r1, 2; setp.eq.u32 %p2, %r3, 0; @%p2 bra A; mov.u32 %r4, 3; bra B; A: mov.u32 %r4, 1; B:
    add.u32 %r4, %r4, 100; bra END;
    EVEN: and.b32 %r3, %r1, 4; setp.eq.u32 %p2, %r3, 0; mov.u32 %r4, 50; @%p2 bra END; mov.u32 %r4, 60;
    END: mad.lo.u32 %r4, %r4, 1000, %r0; st.global.u32 [%rd0], %r4;"""

    def want(thread: int, value: int) -> int:
        part = (103 if value & 2 else 101) if value & 1 else 60 if value & 4 else 50
        return part * 1000 + thread

    check(body, want, schedule, seed)


@by_schedule
def test_loops_with_a_trip_count_per_lane(schedule: str, seed: int) -> None:
    body = """
    and.b32 %r3, %r1, 15; mov.u32 %r4, 0; mov.u32 %r5, 0;
    LOOP: setp.ge.u32 %p1, %r4, %r3; @%p1 bra DONE;
    mov.u32 %r6, 0;
    INNER: add.u32 %r5, %r5, %r6; add.u32 %r6, %r6, 1; setp.le.u32 %p2, %r6, %r4; @%p2 bra INNER;
    and.b32 %r7, %r5, 64; setp.ne.u32 %p3, %r7, 0; @%p3 bra DONE;
    add.u32 %r4, %r4, 1; bra LOOP;
    DONE: shl.b32 %r5, %r5, 8; add.u32 %r5, %r5, %r4; st.global.u32 [%rd0], %r5;"""

    def want(thread: int, value: int) -> int:
        total = i = 0
        while i < value & 15:
            total += sum(range(i + 1))
            if total & 64:
                break
            i += 1
        return total * 256 + i

    check(body, want, schedule, seed)


@by_schedule
def test_the_remaining_lanes_continue_after_an_early_return(schedule: str, seed: int) -> None:
    """The remaining lanes shuffle, reduce and synchronise at an aligned barrier."""
    body = """
    setp.lt.u32 %p1, %r1, 30000; @%p1 ret;
    and.b32 %r3, %r0, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN;
    setp.gt.u32 %p3, %r1, 60000; @%p3 bra OUT; add.u32 %r1, %r1, 5; EVEN:
    bar.sync 0; redux.sync.add.u32 %r4, %r1, -1; bar.sync 0; st.global.u32 [%rd0], %r4;
    OUT: ret;"""
    for block in BLOCKS:
        size = size_of(block)
        values = RNG.integers(0, 1 << 16, size, dtype=np.uint32)
        got = threads(body, block, source=values, schedule=schedule, seed=seed)
        stays = [v >= 30000 and not (t % 2 and v > 60000) for t, v in enumerate(values.tolist())]
        for t in range(size):
            warp = range(t // 32 * 32, min(t // 32 * 32 + 32, size))
            total = sum(int(values[i]) + 5 * (i % 2) for i in warp if stays[i])
            assert got[t, 0] == (total if stays[t] else 0)


@by_schedule
def test_brx_by_lane(schedule: str, seed: int) -> None:
    body = """
    and.b32 %r3, %r1, 3; T: .branchtargets A, B, C, D; brx.idx %r3, T;
    A: mov.u32 %r4, 10; bra END; B: add.u32 %r4, %r0, 20; bra END;
    C: and.b32 %r5, %r1, 4; setp.ne.u32 %p1, %r5, 0; mov.u32 %r4, 30; @%p1 bra B; bra END;
    D: mov.u32 %r4, 40;
    END: st.global.u32 [%rd0], %r4;"""

    def want(thread: int, value: int) -> int:
        kind = 1 if value & 3 == 2 and value & 4 else value & 3
        return [10, thread + 20, 30, 40][kind]

    check(body, want, schedule, seed)


def test_an_index_after_the_end_of_a_brx_table() -> None:
    with pytest.raises(WarploomError) as caught:
        threads("T: .branchtargets A, B; brx.idx %r0, T; A: B: st.global.u32 [%rd0], %r0;")
    assert caught.value.code == "BAD_BRANCH"


FUNCTION = """
.func (.reg .b32 result) twist (.reg .b32 x)
{
 .reg .b32 %t<4>; .reg .pred %q<2>;
 and.b32 %t1, x, 7; mov.u32 result, 0; setp.eq.u32 %q1, %t1, 3; @%q1 ret;
 LOOP: setp.eq.u32 %q1, %t1, 0; @%q1 bra END; add.u32 result, result, x; sub.u32 %t1, %t1, 1; bra LOOP;
 END: ret;
}
"""


@by_schedule
def test_divergence_inside_calls(schedule: str, seed: int) -> None:
    body = """
    setp.gt.u32 %p1, %r1, 40000; mov.u32 %r4, 1; @%p1 bra SKIP;
    call (%r4), twist, (%r1); SKIP: call (%r5), twist, (%r4); redux.sync.or.b32 %r6, %r5, -1; add.u32 %r4, %r4, %r5;
    st.global.u32 [%rd0], %r4;"""

    def twist(x: int) -> int:
        return 0 if x & 7 == 3 else x * (x & 7) & WORD

    for block in BLOCKS:
        values = RNG.integers(0, 1 << 16, size_of(block), dtype=np.uint32)
        got = threads(body, block, source=values, module=FUNCTION, schedule=schedule, seed=seed)
        first = [1 if v > 40000 else twist(v) for v in values.tolist()]
        assert got[:, 0].tolist() == [(x + twist(x)) & WORD for x in first]


@by_schedule
@pytest.mark.parametrize("size", [32, 128])
def test_a_lane_may_wait_for_another_lane_of_its_warp(schedule: str, seed: int, size: int) -> None:
    """The lane that sets the flag is after the reconvergence point of the spinning lanes: every lane makes forward progress."""
    body = """
    and.b32 %r3, %r0, 31; shr.u32 %r5, %r0, 5; shl.b32 %r5, %r5, 2; mov.u32 %r6, sh; add.u32 %r6, %r6, %r5;
    setp.eq.u32 %p1, %r3, 9; @%p1 st.shared.u32 [%r6], 0; bar.warp.sync -1; mov.u32 %r4, 0;
    @%p1 bra SET;
    SPIN: ld.volatile.shared.u32 %r4, [%r6]; setp.eq.u32 %p2, %r4, 0; @%p2 bra SPIN;
    SET: @%p1 st.volatile.shared.u32 [%r6], 77;
    bar.warp.sync -1; vote.sync.ballot.b32 %r7, %p1, -1; add.u32 %r4, %r4, %r7; st.global.u32 [%rd0], %r4;"""
    got = threads(body, size, schedule=schedule, seed=seed, limit=2_000_000)
    assert got[:, 0].tolist() == [(0 if t % 32 == 9 else 77) + (1 << 9) for t in range(size)]


@by_schedule
def test_a_spin_lock_between_lanes(schedule: str, seed: int) -> None:
    body = """
    mov.u32 %r6, sh; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.v2.u32 [%r6], {%r1, %r1}; bar.sync 0;
    mov.u32 %r9, 0;
    AGAIN: atom.shared.cas.b32 %r3, [%r6], 0, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra MISS;
    ld.volatile.shared.u32 %r4, [%r6+4]; add.u32 %r4, %r4, 3; st.volatile.shared.u32 [%r6+4], %r4;
    membar.cta; atom.shared.exch.b32 %r3, [%r6], 0; mov.u32 %r9, 1;
    MISS: setp.eq.u32 %p2, %r9, 0; @%p2 bra AGAIN;
    bar.sync 0; ld.shared.u32 %r4, [%r6+4]; st.global.u32 [%rd0], %r4;"""
    for size in (32, 40):
        got = threads(body, size, schedule=schedule, seed=seed, limit=2_000_000)
        assert (got == 3 * size).all()


@by_schedule
def test_warps_diverge_and_synchronise_at_a_barrier(schedule: str, seed: int) -> None:
    body = """
    shr.u32 %r3, %r0, 5; setp.eq.u32 %p1, %r3, 1; @%p1 bra ONE; setp.eq.u32 %p1, %r3, 2; @%p1 bra TWO;
    mov.u32 %r4, 7; bra SYNC; ONE: and.b32 %r4, %r0, 3; LOOP: setp.eq.u32 %p2, %r4, 0; @%p2 bra SYNC;
    sub.u32 %r4, %r4, 1; bra LOOP; TWO: mov.u32 %r4, %laneid;
    SYNC: mad.lo.u32 %r5, %r0, 4, 64; mov.u32 %r6, sh; add.u32 %r5, %r5, %r6; st.shared.u32 [%r5], %r4; bar.sync 0;
    xor.b32 %r7, %r0, 32; mad.lo.u32 %r7, %r7, 4, 64; add.u32 %r7, %r7, %r6; ld.shared.u32 %r8, [%r7];
    bar.sync 0; st.global.u32 [%rd0], %r8;"""
    got = threads(body, 128, schedule=schedule, seed=seed)
    own = [0 if t // 32 == 1 else t % 32 if t // 32 == 2 else 7 for t in range(128)]
    assert got[:, 0].tolist() == [own[t ^ 32] for t in range(128)]


@by_schedule
def test_an_assertion_that_holds_does_not_prevent_reconvergence(schedule: str, seed: int) -> None:
    """An arm that ends in `trap` does not reach the exit: the arms still reconverge before the aligned barrier."""
    body = """
    and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra EVEN;
    setp.ne.u32 %p2, %r3, 1; @%p2 bra FAIL; add.u32 %r1, %r1, 9; EVEN: bar.sync 0; st.global.u32 [%rd0], %r1; ret;
    FAIL: trap;"""
    check(body, lambda t, v: v + 9 * (t % 2), schedule, seed)


def test_a_trap_names_its_line_and_lanes() -> None:
    with pytest.raises(WarploomError) as caught:
        threads("setp.eq.u32 %p1, %r0, 5; @%p1 trap; st.global.u32 [%rd0], %r0;")
    assert caught.value.code == "TRAP"
    assert caught.value.loc is not None


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
def test_an_endless_wait_is_reported(schedule: str) -> None:
    """Every warp only reads: detected by unchanged state, long before any limit."""
    body = "mov.u32 %r6, sh; SPIN: ld.volatile.shared.u32 %r4, [%r6]; setp.ne.u32 %p1, %r4, 12345; @%p1 bra SPIN;"
    with pytest.raises(WarploomError) as caught:
        threads(body, 64, schedule=schedule, limit=10_000_000)
    assert caught.value.code == "DEADLOCK"
    assert any("polls" in note for note in caught.value.notes)


@dataclass
class Programs:
    """Random structured programs over six registers: PTX text, and the same as a Python coroutine per thread."""

    draw: random.Random
    lines: list[str] = field(default_factory=list)
    labels: int = 0

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def statements(self, depth: int, loops: int) -> list[Any]:
        return [self.statement(depth, loops) for _ in range(self.draw.randint(1, 4 if depth else 6))]

    def statement(self, depth: int, loops: int) -> Any:
        kinds = ["set"] * 4 + (["if"] * 3 + ["loop"] if depth < 3 else []) + ["leave"]
        kinds += ["break", "continue"] if loops else []
        kinds += ["reduce", "barrier", "barrier"] if depth == 0 else []
        kind, draw = self.draw.choice(kinds), self.draw
        a, b, c = (draw.randrange(6) for _ in range(3))
        match kind:
            case "set":
                return kind, draw.choice(["add", "xor", "mul", "sub"]), a, b, c, draw.randrange(1 << 10)
            case "if":
                other = self.statements(depth + 1, loops) if draw.random() < 0.6 else []
                return kind, (b, draw.randrange(1, 8)), self.statements(depth + 1, loops), other
            case "loop":
                return kind, b, self.statements(depth + 1, loops + 1)
            case "leave":
                return kind, (b, draw.randrange(0, 2)), draw.random() < 0.5
            case "break" | "continue":
                return kind, (b, draw.randrange(1, 4))
        return kind, a

    def emit(self, body: list[Any], loops: tuple[tuple[str, str], ...] = ()) -> None:
        for statement in body:
            self.emit_one(statement, loops)

    def condition(self, condition: tuple[int, int]) -> None:
        register, bound = condition
        self.lines.append(f"shr.u32 %r30, %r{10 + register}, 3; and.b32 %r30, %r30, 7; setp.lt.u32 %p1, %r30, {bound};")

    def emit_one(self, statement: Any, loops: tuple[tuple[str, str], ...]) -> None:
        add = self.lines.append
        match statement:
            case "set", name, a, b, c, constant:
                opcode = {"add": "add.u32", "sub": "sub.u32", "xor": "xor.b32", "mul": "mul.lo.u32"}[name]
                add(f"{opcode} %r{10 + a}, %r{10 + b}, %r{10 + c}; add.u32 %r{10 + a}, %r{10 + a}, {constant};")
            case "if", condition, yes, no:
                other, end = self.label(), self.label()
                self.condition(condition)
                add(f"@!%p1 bra {other};")
                self.emit(yes, loops)
                add(f"bra {end}; {other}:")
                self.emit(no, loops)
                add(f"{end}:")
            case "loop", b, body:
                top, following, end = self.label(), self.label(), self.label()
                counter = 20 + len(loops)
                add(f"and.b32 %r{counter}, %r{10 + b}, 3;")
                add(f"{top}: setp.eq.u32 %p1, %r{counter}, 0; @%p1 bra {end}; sub.u32 %r{counter}, %r{counter}, 1;")
                self.emit(body, (*loops, (following, end)))
                add(f"{following}: bra {top}; {end}:")
            case "break" | "continue", condition:
                self.condition(condition)
                add(f"@%p1 bra {loops[-1][statement[0] == 'break']};")
            case "leave", condition, marks:
                self.condition(condition)
                skip = self.label()
                add(f"@!%p1 bra {skip}; st.global.u32 [%rd0], 999; ret; {skip}:" if marks else "@%p1 ret;")
            case "reduce", a:
                add(f"redux.sync.add.u32 %r{10 + a}, %r{10 + a}, -1;")
            case "barrier", _:
                add("bar.sync 0;")

    def text(self, body: list[Any]) -> str:
        self.lines = [f"mad.lo.u32 %r{10 + i}, %r1, {2 * i + 1}, {i};" for i in range(4)]
        self.lines += ["mov.u32 %r14, 1000; mov.u32 %r15, %ctaid.x;"]
        self.emit(body)
        self.lines.append("xor.b32 %r16, %r10, %r11;")
        self.lines += [f"add.u32 %r16, %r16, %r{12 + i};" for i in range(4)]
        return "\n".join([*self.lines, "st.global.u32 [%rd0], %r16;"])


class Left(Exception):
    """The thread has returned."""


class Jump(Exception):
    """`break` (True) or `continue` (False)."""


def holds(r: list[int], condition: tuple[int, int]) -> bool:
    return r[condition[0]] >> 3 & 7 < condition[1]


def thread(body: list[Any], r: list[int]) -> Generator[int, int, None]:
    """One thread runs a program on its registers; it yields where the warp reduces."""
    for statement in body:
        match statement:
            case "set", name, a, b, c, constant:
                x, y = r[b], r[c]
                value = {"add": x + y, "sub": x - y, "xor": x ^ y, "mul": x * y}[name]
                r[a] = (value + constant) & WORD
            case "if", condition, yes, no:
                yield from thread(yes if holds(r, condition) else no, r)
            case "loop", b, inner:
                for _ in range(r[b] & 3):
                    try:
                        yield from thread(inner, r)
                    except Jump as jump:
                        if jump.args[0]:
                            break
            case "break" | "continue", condition:
                if holds(r, condition):
                    raise Jump(statement[0] == "break")
            case "leave", condition, marks:
                if holds(r, condition):
                    raise Left(999 if marks else 0)
            case "reduce", a:
                r[a] = yield r[a]


def outcome(body: list[Any], values: list[int]) -> Iterator[int]:
    """The words that the threads of a warp store."""
    registers = [[(v * (2 * i + 1) + i) & WORD for i in range(4)] + [1000, 0] for v in values]
    running = {lane: thread(body, r) for lane, r in enumerate(registers)}
    results, sent = dict[int, int](), dict[int, int | None]()
    while running:
        brought: dict[int, int] = {}
        for lane, coroutine in list(running.items()):
            try:
                brought[lane] = coroutine.send(sent.get(lane))  # type: ignore[arg-type]
            except Left as left:
                results[lane] = left.args[0]
                del running[lane]
            except StopIteration:
                r = registers[lane]
                results[lane] = ((r[0] ^ r[1]) + r[2] + r[3] + r[4] + r[5]) & WORD
                del running[lane]
        sent = dict.fromkeys(brought, sum(brought.values()) & WORD)
    return iter(results[lane] for lane in range(len(values)))


@pytest.mark.parametrize("number", range(60))
def test_random_programs(number: int) -> None:
    draw = random.Random(number)
    programs = Programs(draw)
    body = programs.statements(0, 0) + programs.statements(0, 0)
    text = programs.text(body)
    size = draw.choice([1, 31, 32, 50, 128, 160])
    values = np.random.default_rng(number).integers(0, 1 << 32, size, dtype=np.uint32)
    want = [word for first in range(0, size, 32) for word in outcome(body, values[first : first + 32].tolist())]
    for schedule, seed in (("eager", 0), draw.choice([("lazy", 0), ("reverse", 0), ("random", number)])):
        got = threads(text, size, source=values, schedule=schedule, seed=seed, limit=2_000_000)
        assert got[:, 0].tolist() == want, schedule


def test_a_guard_is_a_predicate() -> None:
    with pytest.raises(WarploomError) as caught:
        threads("@%r0 mov.u32 %r3, 1;")
    assert caught.value.code == "BAD_OPERANDS"
    assert "the guard is .pred" in str(caught.value)
