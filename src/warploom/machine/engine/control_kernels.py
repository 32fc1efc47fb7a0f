"""Native kernels of control: boundaries of blocks, barriers of a whole CTA, and entries of the log for observers."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Boundary:
    """A kernel between two blocks: it returns its number where the group has had its turn."""

    @property
    def words(self) -> int:
        return HEAD_WORDS

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        lines = [
            *_added(context.BLOCKS, "-1", "left"),
            "  %over = icmp eq i64 %left_sum, 0",
            "  br i1 %over, label %stop, label %on",
            "on:",
            *next_record(self.words),
            "stop:",
            *_STOP,
        ]
        return _function(name, lines)


@dataclass(frozen=True, slots=True)
class Effect:
    """A kernel that counts an effect on memory of the instruction before it."""

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
        loop = [
            f"  %slots = getelementptr i64, ptr %entry_at, i64 {access_log.ADDRESSES}",
            "  br label %fill",
            "fill:",
            "  %i = phi i64 [ 0, %enter ], [ %j, %fill ]",
            "  %slot = getelementptr i64, ptr %slots, i64 %i",
            f"  store i64 {address}, ptr %slot",
            "  %j = add i64 %i, 1",
            f"  %more = icmp ult i64 %j, {lanes}",
            "  br i1 %more, label %fill, label %filled",
            "filled:",
        ]
        lines = [
            "entry:",
            *frame.entry,
            *begin_entry("entry", number, "stop"),
            *(loop if self.address else ()),
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
            *begin_entry("alone", site, "stop"),
            f"  %slot = getelementptr i64, ptr %entry_at, i64 {access_log.ADDRESSES}",
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
