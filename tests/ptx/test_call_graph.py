"""Calls: functions that call themselves, calls through pointers, and the heap."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.simt import SCHEDULES

from warploom import launch
from warploom.diagnostics import WarploomError

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"

ENTRY = """
.visible .entry k(.param .u64 x, .param .u64 out)
{{
 .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .pred %p<2>;
 mov.u32 %r0, %tid.x; mul.wide.u32 %rd0, %r0, 4;
 ld.param.u64 %rd1, [x]; add.u64 %rd1, %rd1, %rd0; ld.global.u32 %r1, [%rd1];
 ld.param.u64 %rd2, [out]; add.u64 %rd2, %rd2, %rd0;
 {body}
 st.global.u32 [%rd2], %r2;
 ret;
}}
"""

CALL = """{{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r1;
 {guard} call.uni (r), {name}, (a); ld.param.b32 %r2, [r]; }}"""


def run(functions: str, body: str, x: np.ndarray, *, schedule: str = "eager", seed: int = 0) -> np.ndarray:
    out = np.full(len(x), 0xA5A5A5A5, np.uint32)
    text = HEAD + functions + ENTRY.format(body=body)
    launch(text, grid=(1, 1, 1), block=(len(x), 1, 1), args=[x, out], schedule=schedule, seed=seed)
    return out


FIBONACCI = """
.func (.param .b32 r) fib (.param .b32 n)
{
 .reg .b32 %r<6>; .reg .pred %p;
 ld.param.b32 %r0, [n]; setp.lt.u32 %p, %r0, 2; @%p bra LEAF;
 { .param .b32 a; .param .b32 t; add.s32 %r1, %r0, -1; st.param.b32 [a], %r1; call.uni (t), fib, (a); ld.param.b32 %r2, [t]; }
 { .param .b32 a; .param .b32 t; add.s32 %r1, %r0, -2; st.param.b32 [a], %r1; call.uni (t), fib, (a); ld.param.b32 %r3, [t]; }
 add.s32 %r0, %r2, %r3;
LEAF: st.param.b32 [r], %r0; ret;
}
"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_lanes_recurse_to_different_depths(schedule: str, seed: int) -> None:
    numbers = [0, 1]
    while len(numbers) < 12:
        numbers.append(numbers[-1] + numbers[-2])
    x = np.random.default_rng(seed).integers(0, 12, 40).astype(np.uint32)
    body = CALL.format(guard="", name="fib")
    got = run(FIBONACCI, body, x, schedule=schedule, seed=seed)
    assert got.tolist() == [numbers[n] for n in x.tolist()]


def test_functions_that_call_each_other_keep_their_registers_and_predicates() -> None:
    """`even` and `odd` pass registers; the values that each needs after its call have every width."""
    functions = """
.func (.reg .b32 r) odd (.reg .b32 n, .reg .pred q);
.func (.reg .b32 r) even (.reg .b32 n, .reg .pred q)
{
 .reg .b32 %r<4>; .reg .b64 %d; .reg .b16 %h; .reg .pred %p<2>;
 mov.b32 r, 1; setp.eq.u32 %p0, n, 0; @%p0 ret;
 cvt.u64.u32 %d, n; shl.b64 %d, %d, 33; cvt.u16.u32 %h, n; setp.gt.u32 %p1, n, 4;
 add.s32 %r0, n, -1; call.uni (%r1), odd, (%r0, q);
 shr.u64 %d, %d, 33; cvt.u32.u64 %r2, %d; cvt.u32.u16 %r3, %h;
 mad.lo.s32 %r1, %r1, 3, %r2; @%p1 add.s32 %r1, %r1, %r3; @q add.s32 %r1, %r1, 1000;
 mov.b32 r, %r1; ret;
}
.func (.reg .b32 r) odd (.reg .b32 n, .reg .pred q)
{
 .reg .b32 %r<2>; .reg .pred %p;
 mov.b32 r, 7; setp.eq.u32 %p, n, 0; @!%p add.s32 %r0, n, -1; @!%p call.uni (%r1), even, (%r0, q);
 @!%p xor.b32 r, %r1, n; ret;
}
"""

    def even(n: int, q: bool) -> int:
        if n == 0:
            return 1
        return 3 * odd(n - 1, q) + n + (n if n > 4 else 0) + 1000 * q

    def odd(n: int, q: bool) -> int:
        return 7 if n == 0 else even(n - 1, q) ^ n

    x = np.array([0, 1, 2, 5, 9, 3, 8], np.uint32)
    body = "setp.lt.u32 %p0, %r0, 4; call.uni (%r2), even, (%r1, %p0);"
    want = [even(int(n), place < 4) & 0xFFFFFFFF for place, n in enumerate(x)]
    assert run(functions, body, x).tolist() == want


def test_every_activation_has_its_own_variables() -> None:
    """A callee writes through a pointer to its caller's variable while it has one of the same name."""
    functions = """
.func walk (.param .b64 to, .param .b32 n)
{
 .local .align 4 .b8 mine[8]; .reg .b32 %r<4>; .reg .b64 %d<3>; .reg .pred %p;
 ld.param.b64 %d0, [to]; ld.param.b32 %r0, [n]; setp.eq.u32 %p, %r0, 0; @%p bra END;
 mov.u64 %d1, mine; st.local.u32 [mine+4], %r0; mov.u32 %r1, 0; st.local.u32 [%d1], %r1; add.s32 %r1, %r0, -1;
 { .param .b64 a; .param .b32 b; st.param.b64 [a], %d1; st.param.b32 [b], %r1; call.uni walk, (a, b); }
 ld.local.u32 %r1, [mine]; ld.local.u32 %r2, [%d1+4]; mad.lo.s32 %r1, %r1, 10, %r2; st.local.u32 [%d0], %r1;
END: ret;
}
"""
    body = """.local .align 4 .b32 first; st.local.u32 [first], 0; mov.u64 %rd3, first;
 { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd3; st.param.b32 [b], %r1; call.uni walk, (a, b); }
 ld.local.u32 %r2, [first];"""
    x = np.array([0, 1, 2, 5, 3], np.uint32)
    want = [int("".join(map(str, range(1, n + 1))) or "0") for n in x.tolist()]
    assert run(functions, body, x).tolist() == want


def test_a_recursive_function_may_be_called_from_an_inlined_one() -> None:
    twice = """
.func (.param .b32 r) twice (.param .b32 n)
{
 .reg .b32 %r<2>; ld.param.b32 %r0, [n];
 { .param .b32 a; .param .b32 t; st.param.b32 [a], %r0; call.uni (t), fib, (a); ld.param.b32 %r1, [t]; }
 { .param .b32 a; .param .b32 t; st.param.b32 [a], %r1; call.uni (t), fib, (a); ld.param.b32 %r1, [t]; }
 st.param.b32 [r], %r1; ret;
}
"""
    x = np.array([4, 5, 6, 0], np.uint32)
    got = run(
        FIBONACCI + twice, "setp.gt.u32 %p0, %r1, 0; mov.u32 %r2, 99; " + CALL.format(guard="@%p0", name="twice"), x
    )
    assert got[:3].tolist() == [2, 5, 21]


TABLE = """
.func (.param .b32 r) half (.param .b32 n) { .reg .b32 %r; ld.param.b32 %r, [n]; shr.u32 %r, %r, 1; st.param.b32 [r], %r; ret; }
.func (.param .b32 r) triple (.param .b32 n) { .reg .b32 %r; ld.param.b32 %r, [n]; mul.lo.u32 %r, %r, 3; st.param.b32 [r], %r; ret; }
.func (.param .b32 r) other (.param .b64 n) { .reg .b32 %r; mov.b32 %r, 5; st.param.b32 [r], %r; ret; }
.global .align 8 .u64 table[3] = {half, triple, other};
"""
THROUGH = """
 and.b32 %r3, %r1, {mask}; mov.u64 %rd3, table; mul.wide.u32 %rd4, %r3, 8; add.u64 %rd3, %rd3, %rd4; ld.global.u64 %rd5, [%rd3];
 {{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r1; call (r), %rd5, (a), P; ld.param.b32 %r2, [r];
 P: .callprototype (.param .b32 _) _ (.param .b32 _); }}
"""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_lanes_call_through_different_pointers(schedule: str, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 1000, 70).astype(np.uint32)
    got = run(TABLE, THROUGH.format(mask=1), x, schedule=schedule, seed=seed)
    assert got.tolist() == np.where(x & 1, 3 * x, x // 2).tolist()


def test_a_pointer_to_a_function_of_another_signature_is_reported() -> None:
    with pytest.raises(WarploomError) as caught:
        run(TABLE, THROUGH.format(mask=3), np.array([1, 0, 2], np.uint32))
    assert caught.value.code == "BAD_CALL"


def test_a_recursion_through_a_pointer() -> None:
    functions = """
.func (.param .b32 r) count (.param .b64 f, .param .b32 n)
{
 .reg .b32 %r<3>; .reg .b64 %d; .reg .pred %p;
 ld.param.b64 %d, [f]; ld.param.b32 %r0, [n]; mov.b32 %r1, 0; setp.eq.u32 %p, %r0, 0; @%p bra END;
 add.s32 %r2, %r0, -1;
 { .param .b64 a; .param .b32 b; .param .b32 t; st.param.b64 [a], %d; st.param.b32 [b], %r2; call (t), %d, (a, b), P;
 ld.param.b32 %r1, [t]; P: .callprototype (.param .b32 _) _ (.param .b64 _, .param .b32 _); }
 mad.lo.u32 %r1, %r0, %r0, %r1;
END: st.param.b32 [r], %r1; ret;
}
"""
    body = """mov.u64 %rd3, count;
 { .param .b64 a; .param .b32 b; .param .b32 t; st.param.b64 [a], %rd3; st.param.b32 [b], %r1;
 call (t), count, (a, b); ld.param.b32 %r2, [t]; }"""
    x = np.array([0, 7, 3, 1], np.uint32)
    assert run(functions, body, x).tolist() == [sum(i * i for i in range(n + 1)) for n in x.tolist()]


HEAP = """
 { .param .b64 a; .param .b64 r; st.param.b64 [a], SIZE; call.uni (r), malloc, (a); ld.param.b64 %rd3, [r]; }
 mov.u32 %r2, 0; setp.eq.u64 %p0, %rd3, 0; @%p0 bra FULL;
 st.u32 [%rd3+4], %r1; ld.u32 %r2, [%rd3+4];
 { .param .b64 a; st.param.b64 [a], %rd3; call.uni free, (a); } AFTER
FULL:
"""
EXTERN = ".extern .func (.param .b64 r) malloc (.param .b64 n);\n.extern .func free (.param .b64 p);\n"


def test_every_thread_allocates_its_own_memory() -> None:
    x = np.arange(40, dtype=np.uint32) * 3
    assert run(EXTERN, HEAP.replace("SIZE", "8").replace("AFTER", ""), x).tolist() == x.tolist()


def test_malloc_fails_when_the_heap_is_full() -> None:
    x = np.arange(1, 6, dtype=np.uint32)
    body = HEAP.replace("SIZE", str(3 << 20)).replace(
        "{ .param .b64 a; st.param.b64 [a], %rd3; call.uni free, (a); } AFTER", ""
    )
    assert run(EXTERN, body, x).tolist() == [1, 2, 0, 0, 0]


def test_small_regions_take_a_unit_of_the_heap_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warploom.machine.instructions.control.HEAP_BYTES", 4 * 64)
    x = np.arange(1, 6, dtype=np.uint32)
    body = HEAP.replace("SIZE", "8").replace("{ .param .b64 a; st.param.b64 [a], %rd3; call.uni free, (a); } AFTER", "")
    assert run(EXTERN, body, x).tolist() == [1, 2, 3, 4, 0]


@pytest.mark.parametrize("after", ["ld.u32 %r2, [%rd3];", "{ .param .b64 b; st.param.b64 [b], %rd3; call free, (b); }"])
def test_freed_memory_cannot_be_accessed(after: str) -> None:
    with pytest.raises(WarploomError) as caught:
        run(EXTERN, HEAP.replace("SIZE", "8").replace("AFTER", after), np.ones(1, np.uint32))
    assert caught.value.code == "OUT_OF_BOUNDS"


def test_a_call_without_operands_is_an_error() -> None:
    text = f"{HEAD}.func f() {{ ret; }}\n.visible .entry k(.param .u64 x) {{ call; ret; }}"
    with pytest.raises(WarploomError, match="NOT_MODELLED"):
        launch(text, grid=1, block=32, args=[np.zeros(4)])
