"""The turns of a random schedule in native code: it draws a group and the length of its turn, and executes its blocks.

It does what `Grid._step` does for such a schedule, and returns to Python where an operation completes and for all
else. Draws are words of 32 bits that Python has made before; both take them in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine import context
from warploom.machine.engine.llvm_ops import Host

CONTEXT, UNIFORMS, COUNTS, BLOCKS, PC, RESUME, IDLE, PATIENCE, BARRIERS, ARRIVALS = range(10)
"""The words of a group: the host addresses of its context, its uniforms, its counts of blocks and the records of the
blocks (0 where Python executes it); the next block, and if it is to go on inside of that, the host address of a record;
the blocks that it has executed without an effect, and for how many of them it is not examined; for each record of its
table the barrier at which a warp waits there (`barrier_word`; 0 where Python lets the group wait), and the arrivals at
the barriers of its CTA."""
GROUP_WORDS = 10
ARRIVED, NEEDED, ARRIVAL_WORDS = 0, 1, 2
"""The words of a named barrier: the threads that have arrived (negative where Python counts them), and the number that
completes it, 0 for all live threads. The live threads of the CTA come before those of the first barrier."""

(READY, COUNT, DRAWS, AT, END, TAKEN, SHORT, LAUNCHES, LEFT, BUDGET, EFFECTS, LAST, BUDGET_AT_EFFECT, LOOK_AFTER, GROUP,
 TURN, NUMBER, PART, BEFORE, FLOOR, POSSIBLE, COMPLETED, PATIENT, BIASED, BIAS, BIAS_LEFT, WAITING, MASKS
 ) = range(28)  # fmt: skip
"""The arguments: the ready groups and their number; draws, the next of them, and their number; turns taken so far, the
number of those of one block, 1 if a cluster can be launched; turns that may be taken; instructions that may be executed
(where an instruction is left to Python, as many as before the turn), effects so far, effects at the last look and the
instructions left then, instructions without an effect until the next look. Then the results: a group (or an operation,
by its place among those that can complete), the blocks of its turn, the number of a record, 1 if that is in the second
part of a turn, the effects before the turn. Then the instructions below which Python looks at the limits; the
operations that can complete, the instructions that were left when one did, and those that groups may execute until one
must; 1 if steps are biased, the number of the bias, and the steps that it lasts; the groups that have begun to wait at
a barrier. Last, the masks of the lengths of turns, the steps that biases last, and for each of those groups its address
and the number of the record."""
BIAS_STEPS = MASKS + 4
WAITS = BIAS_STEPS + 4
MOST_WAITING = 64
"""Groups that begin to wait in one call."""
ARGUMENTS = WAITS + 2 * MOST_WAITING
_BARRIER_BITS = 8


def barrier_word(index: int, needed: int | None) -> int:
    """A barrier at which a warp waits, and the threads that complete it: all live ones, or as many as are `needed`."""
    return (needed or 0) << _BARRIER_BITS | index + 1


def barrier_of(word: int) -> tuple[int, int | None]:
    """The barrier of a word, and the threads that complete it."""
    return (word & (1 << _BARRIER_BITS) - 1) - 1, word >> _BARRIER_BITS or None


LEAVES, DRAWN_OUT, LAUNCH, PYTHON, ESCAPE, EXAMINE, COMPLETE, OVERDUE = range(8)
"""The reasons for a return: Python must look at the limits, or there is no group; there are no more draws; a cluster is
launched; Python has to execute a turn, or an instruction of one; a group may only be polling; an operation completes;
one may have to."""
TURN_BITS = 9
"""The bits of a draw that are the length of a turn."""
BIAS_BITS = 4
"""The bits of a draw that are a bias (the low half) and how long it lasts."""
ANY, ANY_TOO, LATE, STEADY = range(4)
"""The biases of the steps, by number: any step, a group, the latest group (`schedule.Bias`)."""


@dataclass(frozen=True, slots=True)
class TurnLoop:
    """The routine. Its second argument is the kernel that enters a table."""

    @property
    def words(self) -> int:
        return 0

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        return _loop(name), frozenset()


def _set(row: str, word: int, value: str, label: str) -> str:
    return f"  %{label} = getelementptr i64, ptr {row}, i64 {word}\n  store i64 {value}, ptr %{label}"


def _get(row: str, word: int, label: str, type_: str = "i64") -> str:
    return f"  %{label}_at = getelementptr i64, ptr {row}, i64 {word}\n  %{label} = load {type_}, ptr %{label}_at"


def _loop(name: str) -> str:
    return f"""
declare i64 @llvm.ctlz.i64(i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
define i64 @{name}(ptr %arguments, ptr %enter) {{
entry:
{_get("%arguments", READY, "ready", "ptr")}
{_get("%arguments", DRAWS, "draws", "ptr")}
{_get("%arguments", END, "draws_end")}
{_get("%arguments", SHORT, "short_turns")}
{_get("%arguments", LAUNCHES, "can_launch")}
{_get("%arguments", LOOK_AFTER, "look_after")}
{_get("%arguments", FLOOR, "floor")}
{_get("%arguments", POSSIBLE, "possible")}
{_get("%arguments", PATIENT, "patient_for")}
{_get("%arguments", BIASED, "biased")}
  %none_possible = icmp eq i64 %possible, 0
  %further = add i64 %possible, %can_launch
  %has_biases0 = icmp ne i64 %biased, 0
  %some_possible = xor i1 %none_possible, true
  %has_biases = and i1 %has_biases0, %some_possible
  br label %next
next:
{_get("%arguments", COUNT, "count")}
{_get("%arguments", LEFT, "left")}
{_get("%arguments", BUDGET, "budget")}
{_get("%arguments", EFFECTS, "effects")}
{_get("%arguments", LAST, "last")}
{_get("%arguments", AT, "first_draw")}
  %none = icmp eq i64 %count, 0
  %over = icmp eq i64 %left, 0
  %poor = icmp slt i64 %budget, %floor
  %stops0 = or i1 %none, %over
  %stops = or i1 %stops0, %poor
  br i1 %stops, label %leave, label %look
look:
  %same = icmp eq i64 %effects, %last
  br i1 %same, label %idle_look, label %progress
progress:
  store i64 %effects, ptr %last_at
{_set("%arguments", BUDGET_AT_EFFECT, "%budget", "at_effect")}
  br label %choose
idle_look:
{_get("%arguments", BUDGET_AT_EFFECT, "then")}
  %without = sub i64 %then, %budget
  %long = icmp sgt i64 %without, %look_after
  br i1 %long, label %leave, label %choose
choose:
{_get("%arguments", COMPLETED, "completed")}
{_get("%arguments", BIAS, "bias_before")}
{_get("%arguments", BIAS_LEFT, "bias_left")}
  br i1 %none_possible, label %nothing_waits, label %something_waits
nothing_waits:
  store i64 %budget, ptr %completed_at
  br label %unbiased
something_waits:
  %kept_back = sub i64 %completed, %budget
  %impatient = icmp sgt i64 %kept_back, %patient_for
  br i1 %impatient, label %overdue, label %maybe_biased
maybe_biased:
  br i1 %has_biases, label %bias_look, label %unbiased
bias_look:
  %bias_over = icmp eq i64 %bias_left, 0
  br i1 %bias_over, label %bias_draw, label %bias_known
bias_draw:
  %dry0 = icmp uge i64 %first_draw, %draws_end
  br i1 %dry0, label %empty, label %bias_drawn
bias_drawn:
  %word0_at = getelementptr i32, ptr %draws, i64 %first_draw
  %word0 = load i32, ptr %word0_at
  %bias_bits32 = lshr i32 %word0, {32 - BIAS_BITS}
  %bias_bits = zext i32 %bias_bits32 to i64
  %bias_drawn_now = and i64 %bias_bits, 3
  %duration = lshr i64 %bias_bits, 2
  %duration_number = add i64 %duration, {BIAS_STEPS}
  %duration_at = getelementptr i64, ptr %arguments, i64 %duration_number
  %bias_steps = load i64, ptr %duration_at
  %after_bias = add i64 %first_draw, 1
  br label %bias_known
bias_known:
  %bias_now = phi i64 [ %bias_before, %bias_look ], [ %bias_drawn_now, %bias_drawn ]
  %bias_of = phi i64 [ %bias_left, %bias_look ], [ %bias_steps, %bias_drawn ]
  %from_draw = phi i64 [ %first_draw, %bias_look ], [ %after_bias, %bias_drawn ]
  %bias_rest = sub i64 %bias_of, 1
  %is_steady = icmp eq i64 %bias_now, {STEADY}
  %is_late = icmp eq i64 %bias_now, {LATE}
  %others = select i1 %is_late, i64 0, i64 %further
  br i1 %is_steady, label %steady, label %draw_begin
steady:
  %latest = sub i64 %count, 1
  br label %chosen
unbiased:
  %unbiased_options = add i64 %count, %further
  %many = icmp ugt i64 %unbiased_options, 1
  br i1 %many, label %draw_begin, label %chosen
draw_begin:
  %others_now = phi i64 [ %further, %unbiased ], [ %others, %bias_known ]
  %bias_new = phi i64 [ %bias_before, %unbiased ], [ %bias_now, %bias_known ]
  %bias_left_new = phi i64 [ %bias_left, %unbiased ], [ %bias_rest, %bias_known ]
  %begin_draw = phi i64 [ %first_draw, %unbiased ], [ %from_draw, %bias_known ]
  %options = add i64 %count, %others_now
  %zeros = call i64 @llvm.ctlz.i64(i64 %options, i1 false)
  %high = sub i64 %zeros, 32
  br label %draw
draw:
  %d = phi i64 [ %begin_draw, %draw_begin ], [ %d_next, %drawn ]
  %dry = icmp uge i64 %d, %draws_end
  br i1 %dry, label %empty, label %drawn
drawn:
  %word_at = getelementptr i32, ptr %draws, i64 %d
  %word = load i32, ptr %word_at
  %wide = zext i32 %word to i64
  %found = lshr i64 %wide, %high
  %d_next = add i64 %d, 1
  %fits = icmp ult i64 %found, %options
  br i1 %fits, label %chosen, label %draw
chosen:
  %answer = phi i64 [ 0, %unbiased ], [ %latest, %steady ], [ %found, %drawn ]
  %e = phi i64 [ %first_draw, %unbiased ], [ %from_draw, %steady ], [ %d_next, %drawn ]
  %bias_last = phi i64 [ %bias_before, %unbiased ], [ %bias_now, %steady ], [ %bias_new, %drawn ]
  %bias_left_last = phi i64 [ %bias_left, %unbiased ], [ %bias_rest, %steady ], [ %bias_left_new, %drawn ]
  %left_next = sub i64 %left, 1
  %is_group = icmp ult i64 %answer, %count
  br i1 %is_group, label %turn, label %other_step
other_step:
  store i64 %e, ptr %first_draw_at
  store i64 %left_next, ptr %left_at
  store i64 %bias_last, ptr %bias_before_at
  store i64 %bias_left_last, ptr %bias_left_at
  %operation = sub i64 %answer, %count
{_set("%arguments", GROUP, "%operation", "operation_out")}
  %completes = icmp ult i64 %operation, %possible
  %reason = select i1 %completes, i64 {COMPLETE}, i64 {LAUNCH}
  ret i64 %reason
turn:
{_get("%arguments", TAKEN, "taken")}
  %taken_next = add i64 %taken, 1
  %short = icmp ule i64 %taken_next, %short_turns
  br i1 %short, label %take, label %length
length:
  %dry2 = icmp uge i64 %e, %draws_end
  br i1 %dry2, label %empty, label %length_drawn
length_drawn:
  %word2_at = getelementptr i32, ptr %draws, i64 %e
  %word2 = load i32, ptr %word2_at
  %bits32 = lshr i32 %word2, {32 - TURN_BITS}
  %bits = zext i32 %bits32 to i64
  %kind = and i64 %bits, 3
  %mask_number = add i64 %kind, {MASKS}
  %mask_at = getelementptr i64, ptr %arguments, i64 %mask_number
  %mask = load i64, ptr %mask_at
  %more_bits = lshr i64 %bits, 2
  %longer = and i64 %more_bits, %mask
  %length_blocks = add i64 %longer, 1
  %e_next = add i64 %e, 1
  br label %take
take:
  %blocks = phi i64 [ 1, %turn ], [ %length_blocks, %length_drawn ]
  %f = phi i64 [ %e, %turn ], [ %e_next, %length_drawn ]
  store i64 %f, ptr %first_draw_at
  store i64 %taken_next, ptr %taken_at
  store i64 %left_next, ptr %left_at
  store i64 %bias_last, ptr %bias_before_at
  store i64 %bias_left_last, ptr %bias_left_at
  %slot = getelementptr i64, ptr %ready, i64 %answer
  %row_word = load i64, ptr %slot
  %row = inttoptr i64 %row_word to ptr
  %after = getelementptr i64, ptr %slot, i64 1
  %count_less = sub i64 %count, 1
  %behind = sub i64 %count_less, %answer
  %behind_bytes = shl i64 %behind, 3
  call void @llvm.memmove.p0.p0.i64(ptr %slot, ptr %after, i64 %behind_bytes, i1 false)
  store i64 %count_less, ptr %count_at
{_set("%arguments", GROUP, "%row_word", "group_out")}
{_set("%arguments", TURN, "%blocks", "turn_out")}
{_set("%arguments", BEFORE, "%effects", "before_out")}
{_get("%row", BLOCKS, "records", "ptr")}
  %foreign = icmp eq ptr %records, null
  br i1 %foreign, label %python, label %prepare
python:
  ret i64 {PYTHON}
prepare:
{_get("%row", PATIENCE, "patience")}
{_get("%row", CONTEXT, "context", "ptr")}
{_get("%row", UNIFORMS, "uniforms")}
{_get("%row", COUNTS, "counts")}
  %all = icmp ule i64 %blocks, %patience
  %first = select i1 %all, i64 %blocks, i64 %patience
{_set("%context", context.UNIFORMS, "%uniforms", "c_uniforms")}
{_set("%context", context.COUNTS, "%counts", "c_counts")}
{_set("%context", context.STOP, "-1", "c_stop")}
  br label %execute
execute:
  %part = phi i64 [ 0, %prepare ], [ 1, %again ]
  %run = phi i64 [ %first, %prepare ], [ %rest, %again ]
  %money = phi i64 [ %budget, %prepare ], [ %budget_after, %again ]
{_set("%context", context.LEFT, "%run", "c_left")}
{_set("%context", context.BUDGET, "%money", "c_budget")}
{_get("%row", PC, "pc")}
{_get("%row", RESUME, "resume", "ptr")}
  store i64 0, ptr %resume_at
  %record_at = getelementptr ptr, ptr %records, i64 %pc
  %block_record = load ptr, ptr %record_at
  %begins_block = icmp eq ptr %resume, null
  %record = select i1 %begins_block, ptr %block_record, ptr %resume
  %result = call i64 %enter(ptr %context, ptr %record)
{_get("%context", context.BUDGET, "budget_after")}
{_get("%context", context.EFFECTS, "new_effects")}
  store i64 0, ptr %new_effects_at
  %effects_before = load i64, ptr %effects_at
  %effects_now = add i64 %effects_before, %new_effects
  store i64 %effects_now, ptr %effects_at
  %escapes = icmp sgt i64 %result, 0
  br i1 %escapes, label %stopped, label %ended
stopped:
{_get("%row", BARRIERS, "barriers", "ptr")}
  %no_barriers = icmp eq ptr %barriers, null
  br i1 %no_barriers, label %escape, label %barrier_look
barrier_look:
  %record_number = sub i64 %result, 1
  %barrier_at = getelementptr i64, ptr %barriers, i64 %record_number
  %barrier = load i64, ptr %barrier_at
  %is_barrier = icmp ne i64 %barrier, 0
{_get("%arguments", WAITING, "waiting")}
  %has_room = icmp ult i64 %waiting, {MOST_WAITING}
  %may_wait = and i1 %is_barrier, %has_room
  br i1 %may_wait, label %arrive, label %escape
arrive:
{_get("%row", ARRIVALS, "arrivals", "ptr")}
  %barrier_number = and i64 %barrier, {(1 << _BARRIER_BITS) - 1}
  %barrier_index = sub i64 %barrier_number, 1
  %arrival_word = mul i64 %barrier_index, {ARRIVAL_WORDS}
  %arrival_row = getelementptr i64, ptr %arrivals, i64 1
  %arrival_at = getelementptr i64, ptr %arrival_row, i64 %arrival_word
{_get("%arrival_at", ARRIVED, "arrived")}
{_get("%arrival_at", NEEDED, "open_for")}
  %needed = lshr i64 %barrier, {_BARRIER_BITS}
  %live = load i64, ptr %arrivals
  %needs_all = icmp eq i64 %needed, 0
  %threads = select i1 %needs_all, i64 %live, i64 %needed
  %is_first = icmp eq i64 %arrived, 0
  %same_use = icmp eq i64 %open_for, %needed
  %agrees = or i1 %is_first, %same_use
  %is_counted = icmp sge i64 %arrived, 0
  %arrived_now = add i64 %arrived, {WARP_LANES}
  %others_come = icmp slt i64 %arrived_now, %threads
{_get("%context", context.THREADS, "all_threads")}
  %is_valid = icmp ule i64 %needed, %all_threads
  %waits0 = and i1 %agrees, %is_counted
  %waits1 = and i1 %waits0, %is_valid
  %waits = and i1 %waits1, %others_come
  br i1 %waits, label %wait, label %escape
wait:
  store i64 %arrived_now, ptr %arrived_at
  store i64 %needed, ptr %open_for_at
  %arrival_effects = add i64 %effects_now, 1
  store i64 %arrival_effects, ptr %effects_at
  %budget_waiting = sub i64 %budget_after, 1
  store i64 %budget_waiting, ptr %budget_at
{_set("%row", IDLE, "0", "idle_waiting")}
  %wait_word = shl i64 %waiting, 1
  %wait_number = add i64 %wait_word, {WAITS}
  %wait_at = getelementptr i64, ptr %arguments, i64 %wait_number
  store i64 %row_word, ptr %wait_at
{_set("%wait_at", 1, "%result", "wait_record")}
  %waiting_next = add i64 %waiting, 1
  store i64 %waiting_next, ptr %waiting_at
  br label %next
escape:
{_set("%arguments", NUMBER, "%result", "number_out")}
{_set("%arguments", PART, "%part", "part_out")}
  store i64 %money, ptr %budget_at
  ret i64 {ESCAPE}
ended:
  store i64 %budget_after, ptr %budget_at
  %pc_next = xor i64 %result, -1
  store i64 %pc_next, ptr %pc_at
  %acts = icmp ne i64 %effects_now, %effects
  %has_rest = icmp ult i64 %first, %blocks
  %begins = icmp eq i64 %part, 0
  %goes0 = and i1 %acts, %has_rest
  %goes = and i1 %goes0, %begins
  br i1 %goes, label %again, label %requeue
again:
  %rest = sub i64 %blocks, %first
  br label %execute
requeue:
  %tail = getelementptr i64, ptr %ready, i64 %count_less
  store i64 %row_word, ptr %tail
  store i64 %count, ptr %count_at
{_get("%row", IDLE, "idle")}
  %idle_more = add i64 %idle, %first
  %idle_next = select i1 %acts, i64 0, i64 %idle_more
  store i64 %idle_next, ptr %idle_at
  %patient = icmp ult i64 %idle_next, %patience
  br i1 %patient, label %next, label %examine
examine:
  ret i64 {EXAMINE}
overdue:
  ret i64 {OVERDUE}
empty:
  ret i64 {DRAWN_OUT}
leave:
  ret i64 {LEAVES}
}}
"""
