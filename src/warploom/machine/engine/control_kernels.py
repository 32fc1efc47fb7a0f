"""Native kernels of control: the ends of blocks, guards, barriers of a whole CTA, and entries of the log for observers.

The last record of a block counts it, and continues with the next block's first record. It returns to Python if the
group has had its turn, if the limit of instructions is reached, or where the group must stop: then the result is the
complement of the next block, which is negative. Every other result is the number of a record, plus one, whose
instruction Python must execute.
"""

from __future__ import annotations

from dataclasses import dataclass

from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine import access_log, context
from warploom.machine.engine.kernels import HEAD_WORDS, Frame, begin_entry, end_entry, next_record
from warploom.machine.engine.llvm_ops import Host

_STOP = [
    f"  %number_at = getelementptr i64, ptr %record, i64 {HEAD_WORDS - 1}",
    "  %number = load i64, ptr %number_at",
    "  ret i64 %number",
    "}",
]


def _function(name: str, lines: list[str]) -> tuple[str, frozenset[str]]:
    return "\n".join([f"define i64 @{name}(ptr %context, ptr %record) {{", *lines]) + "\n", frozenset()


def _added(word: int, value: str, label: str) -> list[str]:
    """Add to a word of the context."""
    return [
        f"  %{label}_at = getelementptr i64, ptr %context, i64 {word}",
        f"  %{label} = load i64, ptr %{label}_at",
        f"  %{label}_sum = add i64 %{label}, {value}",
        f"  store i64 %{label}_sum, ptr %{label}_at",
    ]


def _jump(distance: str) -> list[str]:
    """Continue with the record so many bytes away."""
    return [
        f"  %next = getelementptr i8, ptr %record, i64 {distance}",
        "  %kernel = load ptr, ptr %next",
        "  %result = musttail call i64 %kernel(ptr %context, ptr %next)",
        "  ret i64 %result",
    ]


def _leave(frame: Frame, block: str, distance: str) -> list[str]:
    """Count a block, and continue with the next one, at a distance, or return; words: the block times 8, its cost."""
    counts, warps = frame.context(context.COUNTS, "ptr"), frame.context(context.WARPS)
    number, cost, stop = frame.word(HEAD_WORDS), frame.word(HEAD_WORDS + 1), frame.context(context.STOP)
    return [
        f"  %count_at = getelementptr i8, ptr {counts}, i64 {number}",
        "  %count = load i64, ptr %count_at",
        "  %count_next = add i64 %count, 1",
        "  store i64 %count_next, ptr %count_at",
        f"  %spent = mul i64 {cost}, {warps}",
        "  %unspent = sub i64 0, %spent",
        *_added(context.BUDGET, "%unspent", "budget"),
        *_added(context.LEFT, "-1", "left"),
        "  %over = icmp sle i64 %left_sum, 0",
        "  %poor = icmp slt i64 %budget_sum, 0",
        f"  %there = icmp eq i64 {block}, {stop}",
        "  %ends = or i1 %over, %poor",
        "  %stops = or i1 %ends, %there",
        "  br i1 %stops, label %back, label %on",
        "on:",
        *_jump(distance),
        "back:",
        f"  %code = xor i64 {block}, -1",
        "  ret i64 %code",
    ]


@dataclass(frozen=True, slots=True)
class Goto:
    """The end of a block with one successor. Words: the block times 8, its cost, the next block, its distance."""

    @property
    def words(self) -> int:
        return HEAD_WORDS + 4

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame = Frame(host)
        leave = _leave(frame, frame.word(HEAD_WORDS + 2), frame.word(HEAD_WORDS + 3))
        return _function(name, ["entry:", *frame.entry, *leave, "}"])


@dataclass(frozen=True, slots=True)
class Branch:
    """The end of a block with two successors, by a scalar, or (`lanes`) by a row of predicates: lanes that disagree are
    Python's. `masked`: only some lanes of the group take part.

    Words: the block times 8, its cost, the block that is taken if the condition holds and its distance, the other block
    and its distance, the condition.
    """

    lanes: bool
    masked: bool = False

    @property
    def words(self) -> int:
        return HEAD_WORDS + 7

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame, first = Frame(host), HEAD_WORDS + 2
        taken, taken_at, other, other_at = (frame.word(first + number) for number in range(4))
        head, declared = list[str](), list[str]()
        if self.lanes:
            some, others = _some_lanes(frame, first + 4, self.masked)
            head, declared = some, [_REDUCE]
            condition, tail = "%some", ["both:", *_STOP[:-1]]
            head += [*others, "  br i1 %parts, label %both, label %agree", "agree:"]
        else:
            condition, tail = frame.scalar(first + 4, "i1"), []
        leave = _leave(frame, "%block", "%distance")
        lines = [
            "entry:",
            *frame.entry,
            *head,
            f"  %block = select i1 {condition}, i64 {taken}, i64 {other}",
            f"  %distance = select i1 {condition}, i64 {taken_at}, i64 {other_at}",
            *leave,
            *tail,
            "}",
        ]
        text, needed = _function(name, lines)
        return "\n".join([*declared, text]), needed


_BYTES = f"<{WARP_LANES} x i8>"
_REDUCE = f"declare i8 @llvm.vector.reduce.or.v{WARP_LANES}i8({_BYTES})"


def _some_lanes(frame: Frame, word: int, masked: bool) -> tuple[list[str], list[str]]:
    """The lines that examine a row of predicates, warp after warp: `%some` if it holds in a lane that takes part; and
    those that find out whether such lanes disagree, `%parts`.
    """
    row, lanes = frame.row("p", word), frame.context(context.LANES)
    mask = frame.context(context.MASK, "ptr") if masked else ""
    given = [
        f"  %mask_at = getelementptr i8, ptr {mask}, i64 %i",
        f"  %mask = load {_BYTES}, ptr %mask_at, align 1",
        f"  %yes = and {_BYTES} %held, %mask",
        f"  %left_out = xor {_BYTES} %held, %mask",
        f"  %no = and {_BYTES} %left_out, %mask",
    ]
    every = [
        f"  %yes = or {_BYTES} %held, zeroinitializer",
        f"  %no = xor {_BYTES} %held, splat (i8 1)",
    ]
    lines = [
        "  br label %warp",
        "warp:",
        "  %i = phi i64 [ 0, %entry ], [ %j, %warp ]",
        f"  %yes_before = phi {_BYTES} [ zeroinitializer, %entry ], [ %yes_now, %warp ]",
        f"  %no_before = phi {_BYTES} [ zeroinitializer, %entry ], [ %no_now, %warp ]",
        f"  %held_at = getelementptr i8, ptr {row}, i64 %i",
        f"  %held = load {_BYTES}, ptr %held_at, align 1",
        *(given if masked else every),
        f"  %yes_now = or {_BYTES} %yes_before, %yes",
        f"  %no_now = or {_BYTES} %no_before, %no",
        f"  %j = add i64 %i, {WARP_LANES}",
        f"  %more = icmp ult i64 %j, {lanes}",
        "  br i1 %more, label %warp, label %looked",
        "looked:",
        f"  %yes_all = call i8 @llvm.vector.reduce.or.v{WARP_LANES}i8({_BYTES} %yes_now)",
        "  %some = icmp ne i8 %yes_all, 0",
    ]
    others = [
        f"  %no_all = call i8 @llvm.vector.reduce.or.v{WARP_LANES}i8({_BYTES} %no_now)",
        "  %other = icmp ne i8 %no_all, 0",
        "  %parts = and i1 %some, %other",
    ]
    return lines, others


@dataclass(frozen=True, slots=True)
class Skip:
    """A guard of the records that follow: they are skipped where it does not hold, or (`lanes`) in no lane that takes
    part. Words: the condition, 1 if it is negated, the distance to the record after them.
    """

    lanes: bool
    masked: bool = False

    @property
    def words(self) -> int:
        return HEAD_WORDS + 3

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame, declared = Frame(host), list[str]()
        negated, distance = frame.emit(f"trunc i64 {frame.word(HEAD_WORDS + 1)} to i1"), frame.word(HEAD_WORDS + 2)
        if self.lanes:
            some, others = _some_lanes(frame, HEAD_WORDS, self.masked)
            head, declared = [*some, *others, f"  %holds = select i1 {negated}, i1 %other, i1 %some"], [_REDUCE]
        else:
            head = [f"  %holds = xor i1 {frame.scalar(HEAD_WORDS, 'i1')}, {negated}"]
        lines = [
            "entry:",
            *frame.entry,
            *head,
            f"  %where = select i1 %holds, i64 {8 * self.words}, i64 {distance}",
            *_jump("%where"),
            "}",
        ]
        text, needed = _function(name, lines)
        return "\n".join([*declared, text]), needed


@dataclass(frozen=True, slots=True)
class Escape:
    """A kernel that returns: Python executes the instruction."""

    @property
    def words(self) -> int:
        return HEAD_WORDS

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        return _function(name, _STOP)


@dataclass(frozen=True, slots=True)
class FlagWait:
    """A kernel of a wait that passes where the first flag of the warpgroup is 0: nothing that it may wait for is under
    way.

    Words: for the log, the number of the instruction; its entry has the second flag, the commits of each warp, in place
    of the first address. Where the warps have committed differently often, that is negative, and Python notes the wait.
    """

    logged: bool = False

    @property
    def words(self) -> int:
        return HEAD_WORDS + self.logged

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame = Frame(host)
        flags = frame.context(context.FLAGS, "ptr")
        lines = ["  %free = icmp eq i64 %flag, 0"]
        if self.logged:
            lanes, site = frame.context(context.LANES), frame.word(HEAD_WORDS)
            lines = [
                f"  %commits_at = getelementptr i64, ptr {flags}, i64 1",
                "  %commits = load i64, ptr %commits_at",
                "  %none = icmp eq i64 %flag, 0",
                "  %alike = icmp sge i64 %commits, 0",
                "  %free = and i1 %none, %alike",
            ]
        entry = [
            "entry:",
            *frame.entry,
            f"  %flag = load i64, ptr {flags}",
            *lines,
            "  br i1 %free, label %on, label %stop",
            "on:",
        ]
        if self.logged:
            entry += [
                *begin_entry(site, "stop", "0"),
                f"  %slot = getelementptr i64, ptr %entry_at, i64 {access_log.ADDRESS}",
                "  store i64 %commits, ptr %slot",
                *_all_lanes(lanes),
                *end_entry("%all", "%all"),
            ]
        return _function(name, [*entry, *next_record(self.words), "stop:", *_STOP])


@dataclass(frozen=True, slots=True)
class Effect:
    """A kernel that counts an effect on memory of the instruction before it, or of one that does nothing else."""

    @property
    def words(self) -> int:
        return HEAD_WORDS

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        return _function(name, [*_added(context.EFFECTS, "1", "effects"), *next_record(self.words), "}"])


@dataclass(frozen=True, slots=True)
class Note:
    """A kernel that enters in the log that all lanes execute an instruction, with one address for all where it has one.

    Words: the number of the instruction, and the address.
    """

    address: bool = False

    @property
    def words(self) -> int:
        return HEAD_WORDS + 1 + self.address

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame = Frame(host)
        number, lanes = frame.word(HEAD_WORDS), frame.context(context.LANES)
        address = frame.scalar(HEAD_WORDS + 1, "i64") if self.address else ""
        first = [
            f"  %slot = getelementptr i64, ptr %entry_at, i64 {access_log.ADDRESS}",
            f"  store i64 {address}, ptr %slot",
        ]
        lines = [
            "entry:",
            *frame.entry,
            *begin_entry(number, "stop", "0"),
            *(first if self.address else ()),
            *_all_lanes(lanes),
            *end_entry("%all", "%all"),
            *next_record(self.words),
            "stop:",
            *_STOP,
        ]
        return _function(name, lines)


@dataclass(frozen=True, slots=True)
class Barrier:
    """A kernel of `bar.sync` by all threads of a CTA at once: a phase of the barrier begins and ends.

    Words: the barrier's number times 8 and, for the log, the number of the instruction; its entry has the phase in
    place of the first address.
    """

    logged: bool

    @property
    def words(self) -> int:
        return HEAD_WORDS + 1 + self.logged

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame = Frame(host)
        lanes, threads = frame.context(context.LANES), frame.context(context.THREADS)
        offset, phases = frame.word(HEAD_WORDS), frame.context(context.PHASES, "ptr")
        site = frame.word(HEAD_WORDS + 1) if self.logged else ""
        entry = [
            *begin_entry(site, "stop", "0"),
            f"  %slot = getelementptr i64, ptr %entry_at, i64 {access_log.ADDRESS}",
            "  store i64 %phase, ptr %slot",
            *_all_lanes(lanes),
            *end_entry("%all", "%all"),
        ]
        lines = [
            "entry:",
            *frame.entry,
            f"  %whole = icmp eq i64 {lanes}, {threads}",
            "  br i1 %whole, label %alone, label %stop",
            "alone:",
            f"  %phase_at = getelementptr i8, ptr {phases}, i64 {offset}",
            "  %phase = load i64, ptr %phase_at",
            *(entry if self.logged else ()),
            "  %phase_next = add i64 %phase, 1",
            "  store i64 %phase_next, ptr %phase_at",
            *_added(context.EFFECTS, "1", "effects"),
            *next_record(self.words),
            "stop:",
            *_STOP,
        ]
        return _function(name, lines)


def _all_lanes(lanes: str) -> list[str]:
    """All lanes of the group as bits, `%all`."""
    return [
        f"  %others = sub i64 {access_log.MOST_LANES}, {lanes}",
        "  %shift = zext i64 %others to i128",
        "  %all = lshr i128 -1, %shift",
    ]
