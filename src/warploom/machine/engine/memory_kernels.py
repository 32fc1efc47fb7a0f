"""Native kernels of loads and stores.

A kernel first examines the addresses of all lanes that take part: each must lie, with its whole access, in one buffer,
be aligned, and for a store be writeable. Only then it moves data. Otherwise it returns the number of its record without
any effect, and the reference executes the instruction, which raises the error where there is one. `@region` and `@find`
below are the only code that turns an address of a kernel into one of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warploom.machine.engine import access_log, context
from warploom.machine.engine.kernels import (
    HEAD_WORDS,
    ROW_TYPES,
    Frame,
    Masks,
    Row,
    Scalar,
    begin_entry,
    end_entry,
    entry_row,
    next_record,
)
from warploom.machine.engine.llvm_ops import Host
from warploom.machine.memory.byte_memory import SHARED_WINDOW

PIECE = 16
"""The most bytes that one access moves; longer vectors are several."""

FIND = """
define internal ptr @region(ptr %header, i64 %address, i64 %bytes, i64 %write) {
entry:
  %count = load i64, ptr %header
  %second = getelementptr i64, ptr %header, i64 1
  %table = load ptr, ptr %second
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %j, %other ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %test, label %none
test:
  %at = mul i64 %i, 4
  %row = getelementptr i64, ptr %table, i64 %at
  %base = load i64, ptr %row
  %size_at = getelementptr i64, ptr %row, i64 1
  %size = load i64, ptr %size_at
  %flag_at = getelementptr i64, ptr %row, i64 3
  %flag = load i64, ptr %flag_at
  %offset = sub i64 %address, %base
  %last = sub i64 %size, %bytes
  %inside = icmp ule i64 %offset, %last
  %holds = icmp uge i64 %size, %bytes
  %both = and i1 %inside, %holds
  %allowed = icmp uge i64 %flag, %write
  %good = and i1 %both, %allowed
  br i1 %good, label %yes, label %other
other:
  %j = add i64 %i, 1
  br label %look
yes:
  ret ptr %row
none:
  ret ptr null
}
define internal ptr @find(ptr %header, i64 %address, i64 %bytes, i64 %aligned, i64 %write) {
entry:
  %row = call ptr @region(ptr %header, i64 %address, i64 %bytes, i64 %write)
  %missing = icmp eq ptr %row, null
  br i1 %missing, label %none, label %found
found:
  %base = load i64, ptr %row
  %data_at = getelementptr i64, ptr %row, i64 2
  %data = load ptr, ptr %data_at
  %offset = sub i64 %address, %base
  %low = and i64 %offset, %aligned
  %even = icmp eq i64 %low, 0
  br i1 %even, label %yes, label %none
yes:
  %place = getelementptr i8, ptr %data, i64 %offset
  ret ptr %place
none:
  ret ptr null
}
"""


@dataclass(frozen=True, slots=True)
class Access:
    """A kernel of `ld` or `st`: space (`` is generic), address, bytes of an element, and the rows that are moved.

    `items` are the registers of a load, each with its file, or None for `_`; or the sources of a store. An offset is
    added to the address, which `wraps` to 32 bits if it is a scalar in a register of that size.
    """

    store: bool
    space: str
    address: Row | Scalar
    element: int
    items: tuple[Row | Scalar | None, ...]
    signed: bool
    masks: Masks
    wraps: bool = False
    logged: bool = False
    """It enters its addresses in the access log; the last word is then the number of the instruction."""

    @property
    def words(self) -> int:
        items = sum(item is not None for item in self.items)
        return HEAD_WORDS + 2 + items + self.masks.words + self.logged

    @property
    def bytes(self) -> int:
        return self.element * len(self.items)

    @property
    def pieces(self) -> int:
        return -(-self.bytes // PIECE)

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        return _Writer(self, name, host).text(), frozenset()


class _Writer:
    """Writes the text of one access."""

    def __init__(self, form: Access, name: str, host: Host) -> None:
        self.form, self.name, self.host, self.frame = form, name, host, Frame(host)
        self.body: list[str] = []
        self.declared: set[str] = set()
        self._count = 0

    def emit(self, text: str) -> str:
        self._count += 1
        name = f"%m{self._count}"
        self.body.append(f"  {name} = {text}")
        return name

    def add(self, *lines: str) -> None:
        self.body += lines

    def text(self) -> str:
        form, frame = self.form, self.frame
        word = HEAD_WORDS
        self.offset = frame.word(word + 1)
        if isinstance(form.address, Row):
            self.row, self.file = frame.row(form.address.file, word), form.address.file
        else:
            self.uniform = frame.emit(f"add i64 {frame.scalar(word, 'i64')}, {self.offset}")
            if form.wraps:
                self.uniform = frame.emit(f"and i64 {self.uniform}, {(1 << 32) - 1}")
        word += 2
        self.items: list[tuple[str, str]] = []
        for item in form.items:
            if item is None:
                self.items.append(("", ""))
                continue
            found = frame.row(item.file, word) if isinstance(item, Row) else frame.scalar(word, "i64")
            self.items.append((found, item.file if isinstance(item, Row) else ""))
            word += 1
        self.guard = None
        if form.masks.guard:
            self.guard = frame.row("p", word), frame.emit(f"trunc i64 {frame.word(word + 1)} to i8")
            word += 2
        self.frame_word = frame.word(word) if form.logged else ""
        self.group = frame.context(context.MASK, "ptr") if form.masks.group else ""
        self.lanes = frame.context(context.LANES)
        if form.space in ("", "global"):
            self.header = frame.context(context.GLOBAL, "ptr")
        if form.space in ("", "shared"):
            self.shared = [frame.context(context.SHARED_BASE), frame.context(context.SHARED_SIZE)]
            self.shared_data = frame.context(context.SHARED, "ptr")
        if form.space == "local":
            self.local = frame.context(context.LOCAL, "ptr")
            self.local_size = frame.context(context.LOCAL_SIZE)
        self._first_lane()
        self._region()
        if isinstance(form.address, Row):
            self._check()
            self._moves()
        else:
            self._uniform()
        self._endings()
        head = [f"define i64 @{self.name}(ptr %context, ptr %record) {{", "entry:", *frame.entry]
        find = FIND if form.space in ("", "global") else ""
        return "\n".join([*sorted(self.declared), find, *head, *self.body, "}"]) + "\n"

    def _live(self, lane: str) -> str:
        """A byte that is not 0 where a lane takes part."""
        found = ""
        if self.guard is not None:
            place = self.emit(f"getelementptr i8, ptr {self.guard[0]}, i64 {lane}")
            found = self.emit(f"xor i8 {self.emit(f'load i8, ptr {place}')}, {self.guard[1]}")
        if self.group:
            mine = self.emit(f"load i8, ptr {self.emit(f'getelementptr i8, ptr {self.group}, i64 {lane}')}")
            found = self.emit(f"and i8 {found}, {mine}") if found else mine
        return found

    def _first_lane(self) -> None:
        """`%first`: the first lane that takes part; without one nothing is done."""
        if not self.form.masks:
            self.add("  br label %begin", "begin:")
            self.first = "0"
            return
        self.add("  br label %seek", "seek:")
        self.add("  %first = phi i64 [ 0, %entry ], [ %seek_next, %skip ]")
        live = self._live("%first")
        self.add(f"  %seek_live = icmp ne i8 {live}, 0", "  br i1 %seek_live, label %begin, label %skip", "skip:")
        self.add("  %seek_next = add i64 %first, 1", f"  %seek_more = icmp ult i64 %seek_next, {self.lanes}")
        self.add("  br i1 %seek_more, label %seek, label %idle", "begin:")
        self.first = "%first"

    def _address(self, lane: str) -> str:
        """The address of a lane, wrapped to its register's width."""
        if not isinstance(self.form.address, Row):
            return self.uniform
        type_ = ROW_TYPES[self.file]
        place = self.emit(f"getelementptr {type_}, ptr {self.row}, i64 {lane}")
        value = self.emit(f"load {type_}, ptr {place}")
        if type_ == "i64":
            return self.emit(f"add i64 {value}, {self.offset}")
        moved = self.emit(f"add i32 {value}, {self.emit(f'trunc i64 {self.offset} to i32')}")
        return self.emit(f"zext i32 {moved} to i64")

    def _region(self) -> None:
        """`base`, `last` (the last offset that an access may have) and `data` of the first lane's buffer."""
        form, bytes_ = self.form, self.form.bytes
        slow = isinstance(form.address, Row) and form.space in ("", "global") and not form.logged
        self.missing = "%slow" if slow else "%fault"
        if form.space == "local":
            base, size, data = "0", self.local_size, self.local
        elif form.space == "shared":
            base, size, data = self.shared[0], self.shared[1], self.shared_data
        else:
            first = self._address(self.first)
            if not form.space:
                window = self.emit(f"add i64 {self.shared[0]}, {SHARED_WINDOW}")
                inside = self.emit(f"icmp ult i64 {self.emit(f'sub i64 {first}, {window}')}, {self.shared[1]}")
                self.add(f"  br i1 {inside}, label %known, label %search", "search:")
            write = int(form.store)
            row = self.emit(f"call ptr @region(ptr {self.header}, i64 {first}, i64 {bytes_}, i64 {write})")
            absent = self.emit(f"icmp eq ptr {row}, null")
            self.add(f"  br i1 {absent}, label %fault, label %found", "found:")
            base = self.emit(f"load i64, ptr {row}")
            size = self.emit(f"load i64, ptr {self.emit(f'getelementptr i64, ptr {row}, i64 1')}")
            data = self.emit(f"load ptr, ptr {self.emit(f'getelementptr i64, ptr {row}, i64 2')}")
            if not form.space:
                self.add("  br label %known", "known:")
                joins = [(base, window), (size, self.shared[1])]
                base, size = (self.emit(f"phi i64 [ {a}, %found ], [ {b}, %begin ]") for a, b in joins)
                data = self.emit(f"phi ptr [ {data}, %found ], [ {self.shared_data}, %begin ]")
        holds = self.emit(f"icmp uge i64 {size}, {bytes_}")
        self.base, self.data = base, data
        self.last = self.emit(f"sub i64 {size}, {bytes_}")
        self.add(f"  br i1 {holds}, label %large, label %fault", "large:")

    @property
    def _aligned(self) -> int:
        return min(self.form.bytes, PIECE) - 1

    def _check(self) -> None:
        """All lanes at once: inside the buffer of the first, and aligned; `%apart` if they are not adjacent."""
        count, form = self.host.lanes, self.form
        vector, bools = f"<{count} x i64>", f"<{count} x i1>"
        even, masks = self._can_be_even, bool(form.masks)
        notes = form.logged and masks

        def splat(value: str) -> str:
            first = self.emit(f"insertelement {vector} poison, i64 {value}, i64 0")
            return self.emit(f"shufflevector {vector} {first}, {vector} poison, <{count} x i32> zeroinitializer")

        base, last, offset = splat(self.base), splat(self.last), splat(self.offset)
        start = ""
        if even:
            self.origin = self.emit(f"sub i64 {self._address(self.first)}, {self.base}")
            if masks:  # of lane 0, if it took part
                left_out = self.emit(f"mul i64 {self.first}, {form.bytes}")
                self.origin = self.emit(f"sub i64 {self.origin}, {left_out}")
            steps = ", ".join(f"i64 {form.bytes * lane}" for lane in range(count))
            start = self.emit(f"add {vector} {splat(self.origin)}, <{steps}>")
        self.add("  br label %check", "check:", "  %c = phi i64 [ 0, %large ], [ %c_next, %check ]")
        self.add(f"  %bad = phi {bools} [ splat (i1 false), %large ], [ %bad_next, %check ]")
        if masks:
            self.add(f"  %absent = phi {bools} [ splat (i1 false), %large ], [ %absent_next, %check ]")
        if notes:
            self.add("  %present = phi i128 [ 0, %large ], [ %present_next, %check ]")
        if even:
            self.add(f"  %odd = phi {bools} [ splat (i1 false), %large ], [ %odd_next, %check ]")
            self.add(f"  %line = phi {vector} [ {start}, %large ], [ %line_next, %check ]")
        type_ = ROW_TYPES[self.file]
        place = self.emit(f"getelementptr {type_}, ptr {self.row}, i64 %c")
        value = self.emit(f"load <{count} x {type_}>, ptr {place}, align {int(type_[1:]) // 8}")
        if type_ == "i64":
            address = self.emit(f"add {vector} {value}, {offset}")
        else:
            short = f"<{count} x i32>"
            moved = self.emit(f"add {short} {value}, {self.emit(f'trunc {vector} {offset} to {short}')}")
            address = self.emit(f"zext {short} {moved} to {vector}")
        distance = self.emit(f"sub {vector} {address}, {base}")
        beyond = self.emit(f"icmp ugt {vector} {distance}, {last}")
        if self._aligned:
            low = self.emit(f"and {vector} {distance}, splat (i64 {self._aligned})")
            beyond = self.emit(f"or {bools} {beyond}, {self.emit(f'icmp ne {vector} {low}, zeroinitializer')}")
        live = self._live_vector("%c") if masks else ""
        if masks:
            beyond = self.emit(f"and {bools} {beyond}, {live}")
            absent = self.emit(f"xor {bools} {live}, splat (i1 true)")
            self.add(f"  %absent_next = or {bools} %absent, {absent}")
        if notes:
            bits = self.emit(f"zext i{count} {self.emit(f'bitcast {bools} {live} to i{count}')} to i128")
            moved = self.emit(f"shl i128 {bits}, {self.emit('zext i64 %c to i128')}")
            self.add(f"  %present_next = or i128 %present, {moved}")
        self.add(f"  %bad_next = or {bools} %bad, {beyond}")
        if even:
            differs = self.emit(f"icmp ne {vector} {distance}, %line")
            if masks:
                differs = self.emit(f"and {bools} {differs}, {live}")
            self.add(f"  %odd_next = or {bools} %odd, {differs}")
            self.add(f"  %line_next = add {vector} %line, splat (i64 {form.bytes * count})")
        self.add(f"  %c_next = add i64 %c, {count}", f"  %c_more = icmp ult i64 %c_next, {self.lanes}")
        self.add("  br i1 %c_more, label %check, label %checked", "checked:")
        word = self.emit(f"bitcast {bools} %bad_next to i{count}")
        wrong = self.emit(f"icmp ne i{count} {word}, 0")
        self.add(f"  br i1 {wrong}, label {self.missing}, label %good", "good:")
        apart = some = ""
        if even:
            apart = self._any("%odd_next")
        if masks:
            some = self.emit(f"or i1 {apart or 'false'}, {self._any('%absent_next')}")
        self._log(apart, some or apart)
        if self._can_be_flat:
            self.add(f"  br i1 {some or apart}, label %apart, label %flat")

    def _any(self, lanes: str) -> str:
        """True if a lane of a vector is set."""
        count = self.host.lanes
        word = self.emit(f"bitcast <{count} x i1> {lanes} to i{count}")
        return self.emit(f"icmp ne i{count} {word}, 0")

    def _live_vector(self, at: str) -> str:
        count = self.host.lanes
        bytes_, bools, found = f"<{count} x i8>", f"<{count} x i1>", ""
        if self.guard is not None:
            place = self.emit(f"getelementptr i8, ptr {self.guard[0]}, i64 {at}")
            flip = self.emit(f"insertelement {bytes_} poison, i8 {self.guard[1]}, i64 0")
            flip = self.emit(f"shufflevector {bytes_} {flip}, {bytes_} poison, <{count} x i32> zeroinitializer")
            found = self.emit(f"xor {bytes_} {self.emit(f'load {bytes_}, ptr {place}, align 1')}, {flip}")
        if self.group:
            place = self.emit(f"getelementptr i8, ptr {self.group}, i64 {at}")
            mine = self.emit(f"load {bytes_}, ptr {place}, align 1")
            found = self.emit(f"and {bytes_} {found}, {mine}") if found else mine
        return self.emit(f"icmp ne {bytes_} {found}, zeroinitializer") if found else f"splat ({bools} true)"

    @property
    def _can_be_even(self) -> bool:
        """Lanes that take part may access adjacent places; that is looked for where it is of use."""
        return self._can_be_flat or (self.form.logged and isinstance(self.form.address, Row))

    @property
    def _can_be_flat(self) -> bool:
        """Adjacent elements of all lanes can be moved as vectors."""
        form = self.form
        return len(form.items) == 1 and form.items[0] is not None and form.space != "local"

    def _moves(self) -> None:
        if self._can_be_flat:
            self._flat()
            self.add("apart:")
        self._loop("move", "apart" if self._can_be_flat else self.ready, direct=True)
        if self.missing == "%slow":
            self.add("slow:", "  br label %test", "test:", "  %t = phi i64 [ 0, %slow ], [ %t_next, %test_on ]")
            if self.form.masks:
                live = self._live("%t")
                self.add(f"  %t_live = icmp ne i8 {live}, 0", "  br i1 %t_live, label %test_do, label %test_on")
                self.add("test_do:")
            place = self._found("%t")
            lost = self.emit(f"icmp eq ptr {place}, null")
            self.add(f"  br i1 {lost}, label %fault, label %test_on", "test_on:", "  %t_next = add i64 %t, 1")
            self.add(f"  %t_more = icmp ult i64 %t_next, {self.lanes}", "  br i1 %t_more, label %test, label %each")
            self.add("each:")
            self._loop("lane", "each", direct=False)

    def _log(self, apart: str = "", some: str = "") -> None:
        """The entry in the access log, once all addresses are known to be valid; `apart` if they are not adjacent,
        `some` if they are not or not all lanes take part.

        A store's lanes change memory where they store another value than it holds. With two lanes at one address the
        last one counts: where memory changes then, the reference finds out who did.
        """
        form, self.ready = self.form, "good"
        if not form.logged:
            return
        self.ready = "logged"
        compares = form.store and form.space in ("global", "shared")
        count = self.host.lanes
        vector, bools = f"<{count} x i64>", f"<{count} x i1>"
        uniform = not isinstance(form.address, Row) and not form.masks and not compares
        if compares:
            apart = some  # what memory holds for lanes that take no part must not be looked at
        if uniform or apart:
            step = "0" if uniform else self.emit(f"select i1 {apart}, i64 -1, i64 {form.bytes}")
            self.add(*begin_entry(self.frame_word, "fault", step))
            self.add(f"  %log_first = getelementptr i64, ptr %entry_at, i64 {access_log.ADDRESS}")
            first = self.uniform if uniform else self.emit(f"add i64 {self.base}, {self.origin}")
            self.add(f"  store i64 {first}, ptr %log_first")
            if apart:
                self.add(f"  br i1 {apart}, label %each_address, label %even")
            self._even(compares, "even" if apart else "")
            self.add("logged:" if uniform else "each_address:")
            if uniform:
                return
        else:
            self.add(*begin_entry(self.frame_word, "fault"))
            self.add("  br label %each_address", "each_address:")
        self.add(*entry_row())
        self.add("  br label %note", "note:", "  %n = phi i64 [ 0, %each_address ], [ %n_next, %note ]")
        self.add("  %noted = phi i128 [ 0, %each_address ], [ %noted_next, %note ]")
        if compares:
            only = ", ".join(f"i1 {'true' if lane == 0 else 'false'}" for lane in range(count))
            self.add("  %changed = phi i128 [ 0, %each_address ], [ %changed_next, %note ]")
            for name in ("falling", "staying"):
                self.add(f"  %{name} = phi {bools} [ splat (i1 false), %each_address ], [ %{name}_next, %note ]")
            self.add(f"  %before = phi {vector} [ zeroinitializer, %each_address ], [ %addresses, %note ]")
            self.add(f"  %start = phi {bools} [ <{only}>, %each_address ], [ splat (i1 false), %note ]")
        self.add("  %n_wide = zext i64 %n to i128")
        self.add(f"  %addresses = {self._address_vector('%n')}")
        live = self._live_vector("%n") if form.masks else "splat (i1 true)"
        own = "%addresses"
        if form.masks:  # a lane that does not take part has an address that no other has
            numbers = ", ".join(f"i64 {lane}" for lane in range(count))
            lanes = self.emit(f"add {vector} {self._splat('%n')}, <{numbers}>")
            unlike = self.emit(f"xor {vector} {lanes}, splat (i64 -1)")
            own = self.emit(f"select {bools} {live}, {vector} %addresses, {vector} {unlike}")
        self.add("  %slot = getelementptr i64, ptr %log_addresses, i64 %n")
        self.add(f"  store {vector} {own}, ptr %slot, align 8")
        self.add(f"  %noted_next = or i128 %noted, {self._as_bits(live)}")
        if compares:
            differs = "splat (i1 false)"
            for number, (found, file) in enumerate(self.items):
                old, new = self._held_vector(number, live), self._source_vector(found, file, "%n")
                unequal = self.emit(f"icmp ne <{count} x i{8 * form.element}> {old}, {new}")
                differs = self.emit(f"or {bools} {differs}, {unequal}")
            changes = self.emit(f"and {bools} {differs}, {live}")
            self.add(f"  %changed_next = or i128 %changed, {self._as_bits(changes)}")
            shifted = ", ".join(f"i32 {count - 1 + lane}" for lane in range(count))
            previous = self.emit(f"shufflevector {vector} %before, {vector} %addresses, <{count} x i32> <{shifted}>")
            later = self.emit(f"xor {bools} %start, splat (i1 true)")
            for name, relation in (("falling", "ult"), ("staying", "eq")):
                low = self.emit(f"icmp {relation} {vector} %addresses, {previous}")
                self.add(f"  %{name}_next = or {bools} %{name}, {self.emit(f'and {bools} {low}, {later}')}")
        self.add(f"  %n_next = add i64 %n, {count}", f"  %n_more = icmp ult i64 %n_next, {self.lanes}")
        self.add("  br i1 %n_more, label %note, label %noted_all", "noted_all:")
        if compares:
            falls, stays = self._any("%falling_next"), self._any("%staying_next")
            self.add("  %changing = icmp ne i128 %changed_next, 0")
            repeats = self.emit(f"and i1 {self.emit(f'or i1 {falls}, {stays}')}, %changing")
            self.add(f"  br i1 {repeats}, label %repeated, label %commit", "repeated:")
            self.add(f"  br i1 {falls}, label %pairs, label %runs")
            self._runs()
            self._repeats()
            ways = "[ %changed_next, %noted_all ], [ %left, %pairs ], [ %run_left_next, %run_end ]"
            self.add("commit:", f"  %changes = phi i128 {ways}")
        self.add(*end_entry("%noted_next", "%changes" if compares else "%noted_next"))
        self.add("  br label %logged", "logged:")

    def _even(self, compares: bool, label: str) -> None:
        """The end of an entry of lanes whose places are adjacent, or one that is read: none is stored to twice."""
        form, count = self.form, self.host.lanes
        if label:
            self.add(f"{label}:")
        left_out = self.emit(f"zext i64 {self.emit(f'sub i64 {access_log.MOST_LANES}, {self.lanes}')} to i128")
        every = changes = self.emit(f"lshr i128 -1, {left_out}")
        if form.masks and not compares:
            every = changes = "%present_next"
        if compares:
            parts, bits, bools = len(form.items), 8 * form.element, f"<{count} x i1>"
            whole = f"<{count * parts} x i{bits}>"
            start = self.emit(f"getelementptr i8, ptr {self.data}, i64 {self.origin}")
            self.add(f"  br label %{label}_start", f"{label}_start:", f"  br label %{label}_next", f"{label}_next:")
            self.add(f"  %h = phi i64 [ 0, %{label}_start ], [ %h_next, %{label}_next ]")
            self.add(f"  %h_changed = phi i128 [ 0, %{label}_start ], [ %h_changed_next, %{label}_next ]")
            place = self.emit(f"getelementptr i{bits}, ptr {start}, i64 {self.emit(f'mul i64 %h, {parts}')}")
            held, differs = self.emit(f"load {whole}, ptr {place}, align 1"), "splat (i1 false)"
            for number, (found, file) in enumerate(self.items):
                places = ", ".join(f"i32 {lane * parts + number}" for lane in range(count))
                old = self.emit(f"shufflevector {whole} {held}, {whole} poison, <{count} x i32> <{places}>")
                new = self._source_vector(found, file, "%h")
                differs = self.emit(f"or {bools} {differs}, {self.emit(f'icmp ne <{count} x i{bits}> {old}, {new}')}")
            wide = self.emit(f"zext i{count} {self.emit(f'bitcast {bools} {differs} to i{count}')} to i128")
            moved = self.emit(f"shl i128 {wide}, {self.emit('zext i64 %h to i128')}")
            self.add(f"  %h_changed_next = or i128 %h_changed, {moved}", f"  %h_next = add i64 %h, {count}")
            self.add(f"  %h_more = icmp ult i64 %h_next, {self.lanes}")
            self.add(f"  br i1 %h_more, label %{label}_next, label %{label}_end", f"{label}_end:")
            changes = "%h_changed_next"
        ending = end_entry(every, changes)
        self.add(
            *(line.replace("%entry_lanes", "%even_lanes").replace("%entry_changes", "%even_changes") for line in ending)
        )
        self.add("  br label %logged")

    def _splat(self, value: str, element: str = "i64") -> str:
        count = self.host.lanes
        vector = f"<{count} x {element}>"
        first = self.emit(f"insertelement {vector} poison, {element} {value}, i64 0")
        return self.emit(f"shufflevector {vector} {first}, {vector} poison, <{count} x i32> zeroinitializer")

    def _as_bits(self, lanes: str) -> str:
        """Lanes of a vector as bits, from bit %n on."""
        count = self.host.lanes
        bits = self.emit(f"bitcast <{count} x i1> {lanes} to i{count}")
        return self.emit(f"shl i128 {self.emit(f'zext i{count} {bits} to i128')}, %n_wide")

    def _address_vector(self, at: str) -> str:
        """The instruction that gives the addresses of lanes from one on, wrapped to their register's width."""
        count = self.host.lanes
        vector = f"<{count} x i64>"
        if not isinstance(self.form.address, Row):
            return f"add {vector} {self._splat(self.uniform)}, zeroinitializer"
        type_ = ROW_TYPES[self.file]
        place = self.emit(f"getelementptr {type_}, ptr {self.row}, i64 {at}")
        value = self.emit(f"load <{count} x {type_}>, ptr {place}, align {int(type_[1:]) // 8}")
        if type_ == "i64":
            return f"add {vector} {value}, {self._splat(self.offset)}"
        short = f"<{count} x i32>"
        moved = self.emit(f"add {short} {value}, {self._splat(self.emit(f'trunc i64 {self.offset} to i32'), 'i32')}")
        return f"zext {short} {moved} to {vector}"

    def _held_vector(self, number: int, live: str) -> str:
        """An element of what memory holds at `%addresses`."""
        count, element = self.host.lanes, 8 * self.form.element
        distance = self.emit(f"sub <{count} x i64> %addresses, {self._splat(self.base)}")
        if number:
            distance = self.emit(f"add <{count} x i64> {distance}, splat (i64 {number * self.form.element})")
        places = self.emit(f"getelementptr i8, ptr {self.data}, <{count} x i64> {distance}")
        held, function = f"<{count} x i{element}>", f"@llvm.masked.gather.v{count}i{element}.v{count}p0"
        self.declared.add(f"declare {held} {function}(<{count} x ptr>, i32, <{count} x i1>, {held})")
        lanes = f"<{count} x ptr> {places}, i32 1, <{count} x i1> {live}"
        return self.emit(f"call {held} {function}({lanes}, {held} zeroinitializer)")

    def _source_vector(self, found: str, file: str, at: str) -> str:
        """The values that lanes from one on store, in the bits of an element."""
        count, bits = self.host.lanes, 8 * self.form.element
        if not file:
            return self._splat(self._fit(found, "i64", 64, f"i{bits}", bits, False), f"i{bits}")
        type_ = ROW_TYPES[file]
        place = self.emit(f"getelementptr {type_}, ptr {found}, i64 {at}")
        value = self.emit(f"load <{count} x {type_}>, ptr {place}, align {int(type_[1:]) // 8}")
        return self._fit(value, f"<{count} x {type_}>", int(type_[1:]), f"<{count} x i{bits}>", bits, False)

    def _runs(self) -> None:
        """Compare each lane with the one before it that takes part, as `_repeats` compares all pairs: addresses that
        do not fall from lane to lane are equal only next to each other.
        """
        lanes = self.lanes
        self.add(
            "runs:",
            "  %r = phi i64 [ 1, %repeated ], [ %r_next, %run_end ]",
            "  %r_before = phi i64 [ 0, %repeated ], [ %r_before_next, %run_end ]",
            "  %r_first = phi i64 [ 0, %repeated ], [ %r_first_next, %run_end ]",
            "  %run_left = phi i128 [ %changed_next, %repeated ], [ %run_left_next, %run_end ]",
            "  %r_at = getelementptr i64, ptr %log_addresses, i64 %r",
            "  %r_one = load i64, ptr %r_at",
            "  %b_at = getelementptr i64, ptr %log_addresses, i64 %r_before",
            "  %b_one = load i64, ptr %b_at",
            "  %r_unlike = xor i64 %r, -1",
            "  %r_takes_part = icmp ne i64 %r_one, %r_unlike",
            "  %r_same = icmp eq i64 %r_one, %b_one",
            "  br i1 %r_same, label %run_both, label %run_new",
            "run_both:",
        )
        differ = self._stores_differ("%r_before", "%r")
        self.add(
            f"  br i1 {differ}, label %fault, label %run_equal",
            "run_equal:",
            "  %r_warp = lshr i64 %r, 5",
            "  %f_warp = lshr i64 %r_first, 5",
            "  %r_earlier = icmp ult i64 %f_warp, %r_warp",
            "  %r_wide = zext i64 %r to i128",
            "  %r_bit = shl i128 1, %r_wide",
            "  %r_gone = select i1 %r_earlier, i128 %r_bit, i128 0",
            "  %r_others = xor i128 %r_gone, -1",
            "  %run_fewer = and i128 %run_left, %r_others",
            "  br label %run_end",
            "run_new:",
            "  %r_begins = select i1 %r_takes_part, i64 %r, i64 %r_first",
            "  %r_latest = select i1 %r_takes_part, i64 %r, i64 %r_before",
            "  br label %run_end",
            "run_end:",
            "  %run_left_next = phi i128 [ %run_fewer, %run_equal ], [ %run_left, %run_new ]",
            "  %r_first_next = phi i64 [ %r_first, %run_equal ], [ %r_begins, %run_new ]",
            "  %r_before_next = phi i64 [ %r, %run_equal ], [ %r_latest, %run_new ]",
            "  %r_next = add i64 %r, 1",
            f"  %r_more = icmp ult i64 %r_next, {lanes}",
            "  br i1 %r_more, label %runs, label %commit",
        )

    def _stores_differ(self, one: str, other: str) -> str:
        """True if two lanes store different values."""
        differ, bits = "false", f"i{8 * self.form.element}"
        for found, file in self.items:
            values = f"{self._source(found, file, one)}, {self._source(found, file, other)}"
            differ = self.emit(f"or i1 {differ}, {self.emit(f'icmp ne {bits} {values}')}")
        return differ

    def _repeats(self) -> None:
        """Compare all pairs of lanes: one that stores what an earlier warp stores at its address changes nothing.

        Where two lanes store different values at one address, the reference executes the instruction.
        """
        lanes = self.lanes
        self.add(
            "pairs:",
            "  %i = phi i64 [ 0, %repeated ], [ %i_next, %pairs_end ]",
            "  %left = phi i128 [ %changed_next, %repeated ], [ %left_next, %pairs_end ]",
            "  %i_at = getelementptr i64, ptr %log_addresses, i64 %i",
            "  %one = load i64, ptr %i_at",
            "  %i_next = add i64 %i, 1",
            f"  %i_more = icmp ult i64 %i_next, {lanes}",
            "  br i1 %i_more, label %pair, label %commit",
            "pair:",
            "  %j = phi i64 [ %i_next, %pairs ], [ %j_next, %pair_end ]",
            "  %kept = phi i128 [ %left, %pairs ], [ %left_next, %pair_end ]",
            "  %j_at = getelementptr i64, ptr %log_addresses, i64 %j",
            "  %other = load i64, ptr %j_at",
            "  %same = icmp eq i64 %one, %other",
            "  br i1 %same, label %both, label %pair_end",
            "both:",
        )
        differ = self._stores_differ("%i", "%j")
        self.add(
            f"  br i1 {differ}, label %fault, label %equal",
            "equal:",
            "  %i_warp = lshr i64 %i, 5",
            "  %j_warp = lshr i64 %j, 5",
            "  %earlier = icmp ult i64 %i_warp, %j_warp",
            "  %j_wide = zext i64 %j to i128",
            "  %j_bit = shl i128 1, %j_wide",
            "  %gone = select i1 %earlier, i128 %j_bit, i128 0",
            "  %others = xor i128 %gone, -1",
            "  %fewer = and i128 %kept, %others",
            "  br label %pair_end",
            "pair_end:",
            "  %left_next = phi i128 [ %kept, %pair ], [ %fewer, %equal ]",
            "  %j_next = add i64 %j, 1",
            f"  %j_more = icmp ult i64 %j_next, {lanes}",
            "  br i1 %j_more, label %pair, label %pairs_end",
            "pairs_end:",
            "  br label %pairs",
        )

    def _found(self, lane: str) -> str:
        """The host address of one lane, searched among all buffers; null where there is none."""
        form = self.form
        arguments = f"i64 {form.bytes}, i64 {self._aligned}, i64 {int(form.store)}"
        return self.emit(f"call ptr @find(ptr {self.header}, i64 {self._address(lane)}, {arguments})")

    def _flat(self) -> None:
        """Adjacent elements move as vectors."""
        form, count = self.form, self.host.lanes
        narrow = f"i{8 * form.element}"
        (found, file) = self.items[0]
        self.add("flat:")
        start = self.emit(f"getelementptr i8, ptr {self.data}, i64 {self.origin}")
        self.add("  br label %copy", "copy:", "  %f = phi i64 [ 0, %flat ], [ %f_next, %copy ]")
        place = self.emit(f"getelementptr {narrow}, ptr {start}, i64 %f")
        vector = f"<{count} x {narrow}>"
        if form.store:
            if file:
                type_ = ROW_TYPES[file]
                source = self.emit(f"getelementptr {type_}, ptr {found}, i64 %f")
                value = self.emit(f"load <{count} x {type_}>, ptr {source}, align {int(type_[1:]) // 8}")
                value = self._fit(value, f"<{count} x {type_}>", int(type_[1:]), vector, 8 * form.element, False)
            else:
                short = found if narrow == "i64" else self.emit(f"trunc i64 {found} to {narrow}")
                value = self.emit(f"insertelement {vector} poison, {narrow} {short}, i64 0")
                value = self.emit(f"shufflevector {vector} {value}, {vector} poison, <{count} x i32> zeroinitializer")
            self.add(f"  store {vector} {value}, ptr {place}, align 1")
        else:
            type_ = ROW_TYPES[file]
            value = self.emit(f"load {vector}, ptr {place}, align 1")
            outer = f"<{count} x {type_}>"
            value = self._fit(value, vector, 8 * form.element, outer, int(type_[1:]), form.signed)
            target = self.emit(f"getelementptr {type_}, ptr {found}, i64 %f")
            self.add(f"  store {outer} {value}, ptr {target}, align {int(type_[1:]) // 8}")
        self.add(f"  %f_next = add i64 %f, {count}", f"  %f_more = icmp ult i64 %f_next, {self.lanes}")
        self.add("  br i1 %f_more, label %copy, label %done")

    def _fit(self, value: str, source: str, source_bits: int, target: str, bits: int, signed: bool) -> str:
        if source_bits == bits:
            return value
        name = "trunc" if bits < source_bits else "sext" if signed else "zext"
        return self.emit(f"{name} {source} {value} to {target}")

    def _loop(self, label: str, before: str, *, direct: bool) -> None:
        """Move the data of lane after lane: where lanes store to one place, the last one stays."""
        form = self.form
        k = f"%{label}_k"
        self.add(f"  br label %{label}", f"{label}:", f"  {k} = phi i64 [ 0, %{before} ], [ {k}_next, %{label}_on ]")
        if form.masks:
            live = self.emit(f"icmp ne i8 {self._live(k)}, 0")
            self.add(f"  br i1 {live}, label %{label}_do, label %{label}_on", f"{label}_do:")
        if direct:
            distance = self.emit(f"sub i64 {self._address(k)}, {self.base}")
            if form.space == "local":
                distance = self.emit(f"add i64 {distance}, {self.emit(f'mul i64 {k}, {self.local_size}')}")
            place = self.emit(f"getelementptr i8, ptr {self.data}, i64 {distance}")
        else:
            place = self._found(k)
        for number, (found, file) in enumerate(self.items):
            at = self.emit(f"getelementptr i8, ptr {place}, i64 {number * form.element}") if number else place
            if form.store:
                self._store_element(at, self._source(found, file, k))
            elif found:
                self._put(found, file, k, self.emit(f"load i{8 * form.element}, ptr {at}, align 1"))
        self.add(f"  br label %{label}_on", f"{label}_on:", f"  {k}_next = add i64 {k}, 1")
        more = self.emit(f"icmp ult i64 {k}_next, {self.lanes}")
        self.add(f"  br i1 {more}, label %{label}, label %done")

    def _source(self, found: str, file: str, lane: str) -> str:
        """The value that a lane stores, in the bits of an element."""
        bits = 8 * self.form.element
        if not file:
            return self._fit(found, "i64", 64, f"i{bits}", bits, False)
        type_ = ROW_TYPES[file]
        value = self.emit(f"load {type_}, ptr {self.emit(f'getelementptr {type_}, ptr {found}, i64 {lane}')}")
        return self._fit(value, type_, int(type_[1:]), f"i{bits}", bits, False)

    def _store_element(self, place: str, value: str) -> None:
        self.add(f"  store i{8 * self.form.element} {value}, ptr {place}, align 1")

    def _put(self, row: str, file: str, lane: str, value: str) -> None:
        type_, bits = ROW_TYPES[file], 8 * self.form.element
        fitted = self._fit(value, f"i{bits}", bits, type_, int(type_[1:]), self.form.signed)
        self.add(f"  store {type_} {fitted}, ptr {self.emit(f'getelementptr {type_}, ptr {row}, i64 {lane}')}")

    def _uniform(self) -> None:
        """One address for all lanes: a load is spread, and of a store the last lane's value stays."""
        form = self.form
        distance = self.emit(f"sub i64 {self.uniform}, {self.base}")
        bad = self.emit(f"icmp ugt i64 {distance}, {self.last}")
        low = self.emit(f"icmp ne i64 {self.emit(f'and i64 {distance}, {self._aligned}')}, 0")
        wrong = self.emit(f"or i1 {bad}, {low}")
        self.add(f"  br i1 {wrong}, label %fault, label %good", "good:")
        self._log()
        if form.space == "local":  # every lane has its own
            self._uniform_loop(lambda: self._at_lane(distance))
            return
        place = self.emit(f"getelementptr i8, ptr {self.data}, i64 {distance}")
        places = self._elements(place)
        loaded = [
            "" if form.store or not found else self.emit(f"load i{8 * form.element}, ptr {at}, align 1")
            for at, (found, _) in zip(places, self.items, strict=True)
        ]
        self._uniform_loop(lambda: place, loaded)

    def _at_lane(self, distance: str) -> str:
        """The host address of a byte of the local memory of lane %k."""
        whole = self.emit(f"add i64 {distance}, {self.emit(f'mul i64 %k, {self.local_size}')}")
        return self.emit(f"getelementptr i8, ptr {self.data}, i64 {whole}")

    def _elements(self, place: str) -> list[str]:
        """The addresses of the elements of an access."""
        return [
            self.emit(f"getelementptr i8, ptr {place}, i64 {number * self.form.element}") if number else place
            for number in range(len(self.form.items))
        ]

    def _uniform_loop(self, place: Callable[[], str], loaded: list[str] | None = None) -> None:
        form = self.form
        self.add("  br label %move", "move:", f"  %k = phi i64 [ 0, %{self.ready} ], [ %k_next, %move_on ]")
        if form.masks:
            live = self.emit(f"icmp ne i8 {self._live('%k')}, 0")
            self.add(f"  br i1 {live}, label %move_do, label %move_on", "move_do:")
        here = place()
        for number, (at, (found, file)) in enumerate(zip(self._elements(here), self.items, strict=True)):
            if form.store:
                self._store_element(at, self._source(found, file, "%k"))
            elif found:
                value = loaded[number] if loaded else self.emit(f"load i{8 * form.element}, ptr {at}, align 1")
                self._put(found, file, "%k", value)
        self.add("  br label %move_on", "move_on:", "  %k_next = add i64 %k, 1")
        more = self.emit(f"icmp ult i64 %k_next, {self.lanes}")
        self.add(f"  br i1 {more}, label %move, label %done")

    def _endings(self) -> None:
        form = self.form
        self.add("done:")
        if form.store:
            counter = self.emit(f"getelementptr i64, ptr %context, i64 {context.EFFECTS}")
            count = self.emit(f"add i64 {self.emit(f'load i64, ptr {counter}')}, {form.pieces}")
            self.add(f"  store i64 {count}, ptr {counter}")
        if form.masks:
            self.add("  br label %idle", "idle:")
        self.add(*next_record(form.words))
        self.add("fault:", f"  %number_at = getelementptr i64, ptr %record, i64 {HEAD_WORDS - 1}")
        self.add("  %number = load i64, ptr %number_at", "  ret i64 %number")
