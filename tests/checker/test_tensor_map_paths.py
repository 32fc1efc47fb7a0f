"""Random programs with one write of a tensor map, against a graph: a use needs a path through a release and an acquire.

Lane 0 of each warp of two CTAs executes some of these actions: write the map, release, acquire it, use it, and hand on a
flag to another thread, which waits for it.
"""

from __future__ import annotations

import random
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import pytest

import warploom
from warploom import TensorMap
from warploom.machine.copy.tensor_map_bytes import encode
from warploom.machine.memory.byte_memory import GlobalMemory

WARPS, CTAS = 2, 2
THREADS = [(cta, warp) for cta in range(CTAS) for warp in range(WARPS)]
TENSOR = TensorMap(np.zeros(32, np.float32), box=(32,))


class Action(NamedTuple):
    """An action of a thread; what it is about is the number of a flag, a use or nothing."""

    thread: tuple[int, int]
    kind: str
    number: int = 0


def drawn() -> list[Action]:
    """Actions in an order in which they can be executed."""
    found, numbers = list[Action](), count()
    places = sorted(random.sample(range(14), 14))
    written = random.choice(places[:8])
    for at in places:
        thread = random.choice(THREADS)
        if at == written:
            found.append(Action(thread, "write"))
        kind = random.choice(("release", "acquire", "use", "flag", "flag", "flag"))
        if kind == "flag":
            number, other = next(numbers), random.choice([each for each in THREADS if each != thread])
            found += [Action(thread, "set", number), Action(other, "wait", number)]
        else:
            found.append(Action(thread, kind, next(numbers)))
    return found


def expected(actions: list[Action]) -> set[str]:
    """The findings, from the order that the actions have in every execution."""
    size = len(actions)
    after = np.eye(size, dtype=bool)
    for i, one in enumerate(actions):
        for j, other in enumerate(actions):
            same_thread = i < j and one.thread == other.thread
            after[i, j] |= same_thread or (one.kind == "set" and other.kind == "wait" and one.number == other.number)
    for k in range(size):
        after |= after[:, k : k + 1] & after[k : k + 1, :]
    of = {
        kind: [at for at, each in enumerate(actions) if each.kind == kind] for kind in ("write", "release", "acquire")
    }
    (write,), found = of["write"], set[str]()
    for at, action in enumerate(actions):
        if action.kind != "use" or after[at, write]:
            continue
        if not after[write, at]:
            found.add("race")
        elif not any(
            after[write, release] and after[release, acquire] and after[acquire, at]
            for release in of["release"]
            for acquire in of["acquire"]
            if actions[acquire].thread[0] == action.thread[0]
        ):
            found.add("fence")
    return found


TEXT = {
    "write": "{copies}",
    "release": "fence.proxy.tensormap::generic.release.gpu;",
    "acquire": "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
    "set": "st.release.gpu.global.u32 [%rd2+{flag}], 1;",
    "wait": "w{number}: ld.acquire.gpu.global.u32 %r4, [%rd2+{flag}]; setp.eq.u32 %w, %r4, 0; @%w bra w{number};",
    "use": "mbarrier.arrive.expect_tx.shared.b64 _, [full+{bar}], 128; cp.async.bulk.tensor.1d.shared::cta.global"
    ".mbarrier::complete_tx::bytes [tile+{tile}], [%rd1, {{%r5}}], [full+{bar}]; "
    "u{number}: mbarrier.try_wait.parity.shared.b64 %w, [full+{bar}], 0; @!%w bra u{number};",
}
COPIES = " ".join(
    f"ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd3+{at}]; st.global.v4.u32 [%rd1+{at}], {{%r10, %r11, %r12, %r13}};"
    for at in range(0, 128, 16)
)


def text_of(actions: list[Action]) -> str:
    parts = []
    for name, thread in enumerate(THREADS):
        mine = [
            TEXT[each.kind].format(
                number=each.number, flag=4 * each.number, bar=8 * each.number, tile=128 * each.number, copies=COPIES
            )
            for each in actions
            if each.thread == thread
        ]
        rest = "\n    ".join(mine)
        parts.append(f"setp.ne.u32 %p, %r3, {name}; @%p bra after{name};\n    {rest}\nafter{name}:")
    init = " ".join(f"mbarrier.init.shared.b64 [full+{8 * number}], 1;" for number in range(32))
    return f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 first, .param .u64 place, .param .u64 flags, .param .u64 source)
{{
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    .reg .pred %p, %w;
    .shared .align 128 .b8 tile[4096];
    .shared .align 8 .b8 full[256];
    ld.param.u64 %rd1, [place]; ld.param.u64 %rd2, [flags]; ld.param.u64 %rd3, [source];
    mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r3, %r3, {WARPS}, %r2; mov.b32 %r5, 0;
    setp.ne.u32 %p, %r1, 0; @%p bra begun; {init} fence.mbarrier_init.release.cluster;
begun:
    bar.sync 0;
    and.b32 %r6, %r1, 31; setp.ne.u32 %p, %r6, 0; @%p bra end;
    {chr(10).join(parts)}
end:
    ret;
}}
"""


@pytest.mark.parametrize(
    "wanted", [set(), {"fence"}, {"race"}, {"fence", "race"}], ids=["right", "fence", "race", "both"]
)
def test_a_use_needs_a_path_through_a_release_and_an_acquire_in_its_cta(wanted: set[str]) -> None:
    held = np.frombuffer(encode(TENSOR, GlobalMemory().map_array(TENSOR.array, "first")), np.uint8)
    programs = (actions for actions in iter(drawn, None) if expected(actions) == wanted)
    for actions in islice(programs, 15):
        args = [TENSOR.array, held.copy(), np.zeros(64, np.uint32), held.copy()]
        launch = {"grid": CTAS, "block": 32 * WARPS, "args": args}
        report = warploom.check(text_of(actions), launch=launch, budget=0)
        names = {"FENCE_TENSORMAP": "fence", "RACE_RAW": "race", "RACE_WAR": "race"}
        assert {names.get(each.code, each.code) for each in report} == wanted, (actions, str(report))
