"""Random small protocols: a few warps that share memory, barriers and asynchronous copies, as plain data and as PTX.

A protocol is one straight list of actions for each warp. Most are made right and then broken: either a pipeline or a
chain of accesses in which every conflict gets a synchronisation, with up to two random changes; the others are random
actions. Every store has a value of its own, so that another order shows as another value. The lane 0 of a warp acts;
`poll` and `wait` are loops of the whole warp, and `bar` is executed by all lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

BYTES = 16
"""The size of a location, and of every copy."""
_BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
_WARPS = (2, 2, 2, 3, 3, 4)


class Act(NamedTuple):
    """One action of a warp.

    `at` is the location that it reads or writes, `source` the one that a copy reads; `value` is what is stored or polled
    for, a parity, a number of groups, of warps or of bytes.
    """

    verb: str
    at: int = -1
    source: int = -1
    barrier: int = -1
    value: int = 0
    sem: str = ""
    scope: str = ""


@dataclass(frozen=True)
class Protocol:
    """Warps with their actions; `ctas` says which of the CTAs each belongs to.

    The first locations are in shared memory (`shared` of them for each CTA that has some), the rest is global.
    `counts` are the arrival counts of the mbarriers, all in CTA 0; those in `late` are initialised by an action.
    """

    kind: str
    warps: tuple[tuple[Act, ...], ...]
    ctas: tuple[int, ...]
    shared: int
    locations: int
    counts: tuple[int, ...] = ()
    late: frozenset[int] = frozenset()

    def is_shared(self, location: int) -> bool:
        return location < self.shared


class _Builder:
    """Makes a protocol action by action."""

    def __init__(self, rng: Random, ctas: tuple[int, ...], shared: int, everywhere: int) -> None:
        self.rng, self.ctas, self.shared, self.locations = rng, ctas, shared, shared + everywhere
        self.warps: list[list[Act]] = [[] for _ in ctas]
        self.counts: list[int] = []
        self.phases: list[int] = []
        self.values = 1000
        self.bars = 0

    def value(self) -> int:
        self.values += 1
        return self.values

    def barrier(self, count: int) -> int:
        self.counts.append(count)
        self.phases.append(0)
        return len(self.counts) - 1

    def place(self) -> int:
        """A new global location."""
        self.locations += 1
        return self.locations - 1

    def do(self, warp: int, verb: str, **more: object) -> None:
        self.warps[warp].append(Act(verb, **more))  # type: ignore[arg-type]

    def made(self, kind: str) -> Protocol:
        return Protocol(kind, tuple(map(tuple, self.warps)), self.ctas, self.shared, self.locations, tuple(self.counts))


def _ctas(rng: Random) -> tuple[int, ...]:
    """The CTA of each warp: mostly one CTA."""
    count = rng.choice(_WARPS)
    if rng.random() < 0.75:
        return (0,) * count
    return tuple(min(at, 1) for at in range(count)) if rng.random() < 0.5 else tuple(at % 2 for at in range(count))


# Chains: every conflict gets a synchronisation.


def chain(rng: Random) -> Protocol:
    """A sequence of accesses by random warps, with a synchronisation wherever two of them conflict."""
    ctas = _ctas(rng)
    made = _Builder(rng, ctas, rng.randint(1, 2), rng.randint(1, 2))
    writer: dict[int, tuple[int, str]] = {}
    readers: dict[int, set[tuple[int, str]]] = {}
    for _ in range(rng.randint(2, 6)):
        warp = rng.randrange(len(ctas))
        choices = [at for at in range(made.shared + 2) if ctas[warp] == 0 or at >= made.shared]
        choices = [at for at in choices if at < made.locations]
        at = rng.choice(choices)
        how = rng.choice(("generic", "generic", "generic", "copy", "bulk"))
        if how != "generic" and not (at < made.shared and ctas[warp] == 0):
            how = "generic"
        writes = rng.random() < 0.5
        proxy = "async" if how == "bulk" else "generic"
        before = {writer[at]} if at in writer else set()
        if writes:
            before |= readers.get(at, set())
        for other, old in sorted(before):
            _order(made, other, warp, old, proxy)
        _access(made, warp, at, writes, how)
        if writes:
            writer[at], readers[at] = (warp, proxy), set()
        else:
            readers.setdefault(at, set()).add((warp, proxy))
    return made.made("chain")


def _order(made: _Builder, old: int, new: int, before: str, after: str) -> None:
    """Let an action of one warp come before the next of another, with the proxy fence that it needs."""
    rng = made.rng
    fence = before != after and after == "async"
    early = rng.random() < 0.7
    if fence and early:
        made.do(old, "proxy")
    if old != new:
        _synchronise(made, old, new)
    if fence and not early:
        made.do(new, "proxy")


def _synchronise(made: _Builder, old: int, new: int) -> None:
    rng, near = made.rng, made.ctas[old] == made.ctas[new]
    ways = ["flag", "fenced flag"]
    if near:
        ways += ["bar", "bar", "arrive"]
    if near and made.ctas[old] == 0:
        ways += ["mbarrier"] * 4
    match rng.choice(ways):
        case "bar":
            name = rng.randint(1, 3)
            made.do(old, "bar", barrier=name, value=2)
            made.do(new, "bar", barrier=name, value=2)
        case "arrive":
            name = rng.randint(1, 3)
            made.do(old, "bar_arrive", barrier=name, value=2)
            made.do(new, "bar", barrier=name, value=2)
        case "mbarrier":
            ones = [at for at, count in enumerate(made.counts) if count == 1]
            at = rng.choice(ones) if ones and rng.random() < 0.6 else made.barrier(1)
            if len(made.counts) > 3:
                at = 0
            made.do(old, "arrive", barrier=at, sem="release")
            made.do(new, "wait", barrier=at, value=made.phases[at] & 1, sem="acquire")
            made.phases[at] += 1
        case "flag":
            flag, value = made.place(), made.value()
            scope = "cta" if near and rng.random() < 0.5 else "gpu"
            made.do(old, "st", at=flag, value=value, sem="release", scope=scope)
            made.do(new, "poll", at=flag, value=value, sem="acquire", scope=scope)
        case _:
            flag, value = made.place(), made.value()
            scope = "cta" if near and rng.random() < 0.5 else "gpu"
            made.do(old, "fence", scope=scope)
            made.do(old, "st", at=flag, value=value, sem="relaxed", scope=scope)
            made.do(new, "poll", at=flag, value=value, sem="relaxed", scope=scope)
            made.do(new, "fence", scope=scope)


def _access(made: _Builder, warp: int, at: int, writes: bool, how: str) -> None:
    """Access a location, and wait for the access to complete."""
    match how:
        case "generic":
            made.do(warp, "st" if writes else "ld", at=at, value=made.value())
        case "copy":
            source = made.place()
            if not writes:
                made.do(warp, "ld", at=at)
                return
            made.do(warp, "cp", at=at, source=source)
            made.do(warp, "cp_commit")
            made.do(warp, "cp_wait", value=0)
        case _:
            other = made.place()
            if writes:
                barrier = made.barrier(1)
                made.do(warp, "expect", barrier=barrier, value=BYTES, sem="release")
                made.do(warp, "load", at=at, source=other, barrier=barrier)
                made.do(warp, "wait", barrier=barrier, value=0, sem="acquire")
            else:
                made.do(warp, "store", at=other, source=at)
                made.do(warp, "commit")
                made.do(warp, "bulk_wait", value=0, sem=made.rng.choice(("", "read")))


# Pipelines.


def pipeline(rng: Random) -> Protocol:
    """A producer fills stages for one or two consumers, over a few rounds."""
    consumers, stages, rounds = rng.choice((1, 1, 2)), rng.choice((1, 1, 2)), rng.randint(2, 3)
    made = _Builder(rng, (0,) * (1 + consumers), stages, 0)
    how = rng.choice(("bulk", "bulk", "generic", "cp", "cp arrive"))
    drains = rng.random() < 0.25 and consumers == 1
    full = [made.barrier(1) for _ in range(stages)]
    empty = [made.barrier(consumers) for _ in range(stages)]
    start = rng.choice(("wait", "skip"))
    for turn in range(rounds):
        stage, lap = turn % stages, turn // stages
        if lap or start == "wait":
            made.do(0, "wait", barrier=empty[stage], value=(lap & 1) ^ 1, sem="acquire")
        _fill(made, how, stage, full[stage])
        for consumer in range(1, 1 + consumers):
            made.do(consumer, "wait", barrier=full[stage], value=lap & 1, sem="acquire")
            if drains:
                if how != "bulk":
                    made.do(consumer, "proxy")
                made.do(consumer, "store", at=made.place(), source=stage)
                made.do(consumer, "commit")
                made.do(consumer, "bulk_wait", value=0, sem="read")
            else:
                made.do(consumer, "ld", at=stage)
                if how == "bulk":
                    made.do(consumer, "proxy")
            made.do(consumer, "arrive", barrier=empty[stage], sem="release")
    return made.made("pipeline")


def _fill(made: _Builder, how: str, stage: int, full: int) -> None:
    match how:
        case "bulk":
            made.do(0, "expect", barrier=full, value=BYTES, sem="release")
            made.do(0, "load", at=stage, source=made.place(), barrier=full)
        case "generic":
            made.do(0, "st", at=stage, value=made.value())
            made.do(0, "arrive", barrier=full, sem="release")
        case "cp":
            made.do(0, "cp", at=stage, source=made.place())
            made.do(0, "cp_commit")
            made.do(0, "cp_wait", value=0)
            made.do(0, "arrive", barrier=full, sem="release")
        case _:
            made.do(0, "cp", at=stage, source=made.place())
            made.do(0, "cp_arrive", barrier=full)


# Random actions.


def soup(rng: Random) -> Protocol:
    """Random actions on a few locations and barriers."""
    ctas = _ctas(rng)
    made = _Builder(rng, ctas, rng.randint(1, 2), rng.randint(1, 2))
    for count in rng.choices((1, 1, 2), k=rng.randint(0, 2)):
        made.barrier(count)
    for warp in range(len(ctas)):
        for _ in range(rng.randint(1, 4)):
            made.warps[warp] += _random_acts(made, warp)
    return made.made("soup")


def _random_acts(made: _Builder, warp: int) -> list[Act]:
    rng, here = made.rng, made.ctas[warp] == 0
    places = list(range(0 if here else made.shared, made.locations))
    at, scope = rng.choice(places), rng.choice(("cta", "gpu"))
    ways: list[Callable[[], list[Act]]] = [
        lambda: [Act("ld", at)],
        lambda: [Act("st", at, value=made.value())],
        lambda: [Act("st", at, value=made.value(), sem=rng.choice(("release", "relaxed")), scope=scope)],
        lambda: [Act("ld", at, sem=rng.choice(("acquire", "relaxed")), scope=scope)],
        lambda: [Act("atom", at, value=made.value(), sem=rng.choice(("relaxed", "acq_rel")), scope=scope)],
        lambda: [Act("fence", scope=scope)],
        lambda: [Act("proxy")],
        lambda: [Act("bar", barrier=rng.randint(1, 2), value=2)],
        lambda: [Act("bar", barrier=0, value=made.ctas.count(made.ctas[warp]))],
    ]
    if here and made.counts:
        one = rng.randrange(len(made.counts))
        ways += [
            lambda: [Act("arrive", barrier=one, sem=rng.choice(("release", "relaxed")))],
            lambda: [Act("wait", barrier=one, value=rng.randint(0, 1), sem=rng.choice(("acquire", "relaxed")))],
            lambda: [
                Act("expect", barrier=one, value=BYTES, sem="release"),
                Act("load", rng.randrange(made.shared), made.place(), one),
            ],
        ]
    if here and made.shared:
        shared = rng.randrange(made.shared)
        ways += [
            lambda: [Act("cp", shared, made.place()), Act("cp_commit"), Act("cp_wait", value=0)],
            lambda: [Act("store", made.place(), shared), Act("commit"), Act("bulk_wait", value=0)],
        ]
    return rng.choice(ways)()


# Changes.


def changed(rng: Random, protocol: Protocol) -> Protocol:
    """The protocol with one random change: an action deleted, swapped, copied, or with another operand."""
    warps = [list(warp) for warp in protocol.warps]
    full = [at for at, warp in enumerate(warps) if warp]
    if not full:
        return protocol
    acts = warps[rng.choice(full)]
    at = rng.randrange(len(acts))
    old = acts[at]
    match rng.choice(("delete", "delete", "swap", "copy", "operand", "operand", "operand", "late", "count")):
        case "delete":
            del acts[at]
        case "swap":
            other = rng.randrange(len(acts))
            acts[at], acts[other] = acts[other], acts[at]
        case "copy":
            if old.verb not in ("cp_arrive", "expect", "load"):
                acts.insert(at, old)
        case "late" if protocol.counts and not protocol.late:
            late = rng.randrange(len(protocol.counts))
            warps[0].insert(rng.randint(0, len(warps[0])), Act("init", barrier=late))
            return replace(protocol, warps=tuple(map(tuple, warps)), late=frozenset({late}))
        case "count" if protocol.counts:
            counts = list(protocol.counts)
            one = rng.randrange(len(counts))
            counts[one] = max(1, counts[one] + rng.choice((-1, 1)))
            return replace(protocol, counts=tuple(counts))
        case _:
            acts[at] = _varied(rng, old)
    return replace(protocol, warps=tuple(map(tuple, warps)))


_SEMANTICS = {
    "st": ("", "relaxed", "release"),
    "ld": ("", "relaxed", "acquire"),
    "poll": ("relaxed", "acquire"),
    "atom": ("relaxed", "acq_rel"),
    "arrive": ("relaxed", "release"),
    "expect": ("relaxed", "release"),
    "wait": ("relaxed", "acquire"),
    "bulk_wait": ("", "read"),
}


def _varied(rng: Random, act: Act) -> Act:
    if act.verb == "wait" and rng.random() < 0.4:
        return act._replace(value=act.value ^ 1)
    if act.verb in ("cp_wait", "bulk_wait") and rng.random() < 0.5:
        return act._replace(value=1)
    if act.verb == "expect" and rng.random() < 0.4:
        return act._replace(value=rng.choice((0, 2 * BYTES)))
    if act.verb == "proxy" or (act.scope and rng.random() < 0.5):
        scope = {"cta": "gpu", "gpu": "cta"}.get(act.scope, "")
        return act._replace(scope=scope) if scope else Act("fence", scope="cta")
    if act.verb in _SEMANTICS:
        sem = rng.choice(_SEMANTICS[act.verb])
        return act._replace(sem=sem, scope=(act.scope or "gpu") if act.verb in ("st", "ld", "atom", "poll") else "")
    return act


_KINDS = (chain, chain, chain, pipeline, pipeline, soup)


def protocol(number: int) -> Protocol:
    """The protocol of a number."""
    rng = Random(number)
    made = rng.choice(_KINDS)(rng)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        made = changed(rng, made)
    return made


# As PTX.


def grid(protocol: Protocol) -> tuple[int, int]:
    """The CTAs of a launch, and the threads of each."""
    most = max(protocol.ctas.count(cta) for cta in set(protocol.ctas))
    return max(protocol.ctas) + 1, 32 * most


def initial(location: int) -> int:
    """The value of a location at the start."""
    return 100 + location


def ptx(protocol: Protocol) -> str:
    """The protocol as a kernel whose one argument is an array with 16 bytes for each location."""
    size = BYTES * protocol.shared
    body = [
        "mov.u32 %r1, %tid.x;", "shr.u32 %r2, %r1, 5;", "and.b32 %r3, %r1, 31;", "setp.eq.u32 %p0, %r3, 0;",
        "mov.u32 %r4, %ctaid.x;", "mov.u32 %r5, mem;", "ld.param.u64 %rd1, [array];", "setp.eq.u32 %p1, %r1, 0;",
        "@!%p1 bra READY;",
    ]  # fmt: skip
    for location in range(protocol.shared):
        value = initial(location)
        body += [f"mov.u32 %r6, {value};", f"st.shared.v4.b32 [%r5+{BYTES * location}], {{%r6, %r6, %r6, %r6}};"]
    for number, count in enumerate(protocol.counts):
        if number not in protocol.late:
            body.append(f"mbarrier.init.shared.b64 [%r5+{size + 8 * number}], {count};")
    body += ["fence.proxy.async;", "READY:", "bar.sync 15;"]
    seen: dict[int, int] = {}
    for number, (acts, cta) in enumerate(zip(protocol.warps, protocol.ctas, strict=True)):
        local = seen[cta] = seen.get(cta, -1) + 1
        body += [f"setp.ne.u32 %p2, %r2, {local};", f"setp.ne.u32 %p3, %r4, {cta};", "or.pred %p2, %p2, %p3;"]
        body.append(f"@%p2 bra NEXT{number};")
        for at, act in enumerate(acts):
            body += _lines(protocol, act, f"{number}_{at}", size)
        body += ["ret;", f"NEXT{number}:"]
    text = "\n".join(body)
    return f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry protocol(.param .u64 array)
{{
.reg .b32 %r<16>;
.reg .b64 %rd<4>;
.reg .pred %p<6>;
.shared .align 128 .b8 mem[{size + 8 * max(len(protocol.counts), 1)}];
{text}
ret;
}}
"""


def _lines(protocol: Protocol, act: Act, name: str, size: int) -> list[str]:
    def place(location: int) -> str:
        return f"[{'%r5' if protocol.is_shared(location) else '%rd1'}+{BYTES * location}]"

    def space(location: int) -> str:
        return "shared" if protocol.is_shared(location) else "global"

    barrier = f"[%r5+{size + 8 * act.barrier}]"
    four = "{%r6, %r7, %r8, %r9}"
    same = "{%r6, %r6, %r6, %r6}"
    match act.verb:
        case "st":
            if act.sem:
                return [
                    f"mov.u32 %r6, {act.value};",
                    f"@%p0 st.{act.sem}.{act.scope}.{space(act.at)}.b32 {place(act.at)}, %r6;",
                ]
            return [f"mov.u32 %r6, {act.value};", f"@%p0 st.{space(act.at)}.v4.b32 {place(act.at)}, {same};"]
        case "ld":
            if act.sem:
                return [f"@%p0 ld.{act.sem}.{act.scope}.{space(act.at)}.b32 %r6, {place(act.at)};"]
            return [f"@%p0 ld.{space(act.at)}.v4.b32 {four}, {place(act.at)};"]
        case "atom":
            return [
                f"mov.u32 %r7, {act.value};",
                f"@%p0 atom.{act.sem}.{act.scope}.{space(act.at)}.exch.b32 %r6, {place(act.at)}, %r7;",
            ]
        case "poll":
            return [
                f"POLL{name}: ld.{act.sem}.{act.scope}.{space(act.at)}.b32 %r11, {place(act.at)};",
                f"setp.ne.u32 %p5, %r11, {act.value};",
                f"@%p5 bra POLL{name};",
            ]
        case "fence":
            return [f"@%p0 fence.acq_rel.{act.scope};"]
        case "proxy":
            return ["@%p0 fence.proxy.async;"]
        case "bar":
            return [f"bar.sync {act.barrier}, {32 * act.value};"]
        case "bar_arrive":
            return [f"bar.arrive {act.barrier}, {32 * act.value};"]
        case "init":
            return [f"@%p0 mbarrier.init.shared.b64 {barrier}, {protocol.counts[act.barrier]};"]
        case "arrive":
            relaxed = ".relaxed.cta" if act.sem == "relaxed" else ""
            return [f"@%p0 mbarrier.arrive{relaxed}.shared.b64 _, {barrier};"]
        case "expect":
            relaxed = ".relaxed.cta" if act.sem == "relaxed" else ""
            return [f"@%p0 mbarrier.arrive.expect_tx{relaxed}.shared.b64 _, {barrier}, {act.value};"]
        case "wait":
            relaxed = ".relaxed.cta" if act.sem == "relaxed" else ""
            return [
                f"WAIT{name}: mbarrier.try_wait.parity{relaxed}.shared.b64 %p4, {barrier}, {act.value};",
                f"@!%p4 bra WAIT{name};",
            ]
        case "load":
            return [
                f"add.u32 %r10, %r5, {BYTES * act.at};",
                f"add.u64 %rd2, %rd1, {BYTES * act.source};",
                f"@%p0 {_BULK} [%r10], [%rd2], {BYTES}, {barrier};",
            ]
        case "store":
            return [
                f"add.u32 %r10, %r5, {BYTES * act.source};",
                f"add.u64 %rd2, %rd1, {BYTES * act.at};",
                f"@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r10], {BYTES};",
            ]
        case "commit":
            return ["@%p0 cp.async.bulk.commit_group;"]
        case "bulk_wait":
            return [f"@%p0 cp.async.bulk.wait_group{'.read' if act.sem == 'read' else ''} {act.value};"]
        case "cp":
            return [f"@%p0 cp.async.cg.shared.global {place(act.at)}, {place(act.source)}, {BYTES};"]
        case "cp_commit":
            return ["@%p0 cp.async.commit_group;"]
        case "cp_wait":
            return [f"@%p0 cp.async.wait_group {act.value};"]
        case "cp_arrive":
            return [f"@%p0 cp.async.mbarrier.arrive.noinc.shared.b64 {barrier};"]
    raise AssertionError(act)
