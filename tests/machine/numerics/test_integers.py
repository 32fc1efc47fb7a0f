"""Integer instructions, on arrays and on Python integers, against the ISA's pseudocode written out bit by bit."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest
from tests.machine.numerics.numerics_reference import edge_bits, extended, random_bits, run, signature_of, to_signed

from warploom.diagnostics import WarploomError
from warploom.machine.semantics.functions import array_function, scalar_function

WHOLE = ["u16", "s16", "u32", "s32", "u64", "s64"]
WORD = 0xFFFFFFFF


def width(type_name):
    return int(type_name[1:])


def read(value, type_name):
    return to_signed(value, width(type_name)) if type_name[0] == "s" else value


def bit(value, at):
    return value >> at & 1


def from_bits(bits):
    return sum(int(b) << at for at, b in enumerate(bits))


def cut(value, type_name):
    bits = width(type_name)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_name[0] == "s" else (0, (1 << bits) - 1)
    return min(max(value, low), high) & ((1 << bits) - 1)


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def arithmetic(name):
    """Instructions as sums and products of Python's integers: (opcode, operand types, semantics)."""
    bits, mask = width(name), (1 << width(name)) - 1

    def r(value):
        return read(value, name)

    yield f"add.{name}", (name,) * 2, lambda a, b: (a + b) & mask
    yield f"sub.{name}", (name,) * 2, lambda a, b: (a - b) & mask
    yield f"mul.lo.{name}", (name,) * 2, lambda a, b: r(a) * r(b) & mask
    yield f"mul.hi.{name}", (name,) * 2, lambda a, b: r(a) * r(b) >> bits & mask
    yield f"mad.lo.{name}", (name,) * 3, lambda a, b, c: r(a) * r(b) + c & mask
    yield f"mad.hi.{name}", (name,) * 3, lambda a, b, c: (r(a) * r(b) >> bits) + c & mask
    yield f"sad.{name}", (name,) * 3, lambda a, b, c: c + abs(r(a) - r(b)) & mask
    yield f"div.{name}", (name,) * 2, lambda a, b: truncated(r(a), r(b)) & mask if b else mask
    yield f"rem.{name}", (name,) * 2, lambda a, b: r(a) - truncated(r(a), r(b)) * r(b) & mask if b else mask
    yield f"min.{name}", (name,) * 2, lambda a, b: min(r(a), r(b)) & mask
    yield f"max.{name}", (name,) * 2, lambda a, b: max(r(a), r(b)) & mask
    if bits < 64:
        wide, double = f"{name[0]}{2 * bits}", (1 << 2 * bits) - 1
        yield f"mul.wide.{name}", (name,) * 2, lambda a, b: r(a) * r(b) & double
        yield f"mad.wide.{name}", (name, name, wide), lambda a, b, c: r(a) * r(b) + c & double
    if name[0] == "s":
        yield f"abs.{name}", (name,), lambda a: abs(r(a)) & mask
        yield f"neg.{name}", (name,), lambda a: -a & mask
    yield f"shr.{name}", (name, "u32"), lambda a, b: r(a) >> min(b, bits) & mask
    if name[0] == "u":
        yield f"shl.b{bits}", (name, "u32"), lambda a, b: a << b & mask if b < 200 else 0
        yield f"not.b{bits}", (name,), lambda a: a ^ mask
        yield f"cnot.b{bits}", (name,), lambda a: int(a == 0)
        for logic, combine in (("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)):
            yield f"{logic}.b{bits}", (name,) * 2, combine


def field_extract(name):
    msb = width(name) - 1

    def meaning(a, b, c):
        position, length = b & 0xFF, c & 0xFF
        sign = 0 if name[0] == "u" or length == 0 else bit(a, min(position + length - 1, msb))
        return from_bits(bit(a, position + i) if i < length and position + i <= msb else sign for i in range(msb + 1))

    return meaning


def field_insert(bits):
    def meaning(a, b, c, d):
        position, length, result = c & 0xFF, d & 0xFF, b
        for i in range(length):
            if position + i < bits:
                result = result & ~(1 << (position + i)) | bit(a, i) << (position + i)
        return result

    return meaning


def find_high(name, shiftamt):
    msb = width(name) - 1

    def meaning(a):
        if name[0] == "s" and bit(a, msb):
            a ^= (1 << (msb + 1)) - 1
        found = next((i for i in range(msb, -1, -1) if bit(a, i)), None)
        return WORD if found is None else msb - found if shiftamt else found

    return meaning


def mask_of(clamp):
    def meaning(a, b):
        a1, b1 = a & 31, b & 31
        first, total = WORD << a1, a1 + b1
        second = WORD << total
        if clamp and a >= 32:
            first = 0
        if total >= 32 or (clamp and (a >= 32 or b >= 32)):
            second = 0
        elif b1 == 0:
            second = WORD
        return first & ~second & WORD

    return meaning


def extend(name, clamp):
    def meaning(a, b):
        b1, too_large = b & 31, b >= 32 and clamp
        mask = 0 if too_large else WORD << b1 & WORD
        sign = not (b1 == 0 or too_large or name != "s32") and bit(a, (b1 - 1) & 31)
        return a & ~mask | (mask if sign else 0)

    return meaning


def find_set(mask, base, offset):
    offset = to_signed(offset, 32)
    if offset == 0:
        return base if bit(mask, base) else WORD
    position, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= position < 32:
        if bit(mask, position):
            if count == 0:
                return position
            count -= 1
        position += step
    return WORD


def funnel(direction, clamp):
    def meaning(a, b, c):
        n = min(c, 32) if clamp else c & 31
        return (b << n | a >> (32 - n) if direction == "l" else b << (32 - n) | a >> n) & WORD

    return meaning


def permute(mode):
    def read_byte(control, both):
        byte = both >> 8 * (control & 7) & 0xFF
        return (0xFF if byte & 0x80 else 0) if control & 8 else byte

    def meaning(a, b, c):
        both = b << 32 | a
        if not mode:
            return from_octets(read_byte(c >> 4 * i & 15, both) for i in range(4))
        s = c & 3
        chosen = {
            "f4e": [s, s + 1, s + 2, s + 3],
            "b4e": [s, (s + 7) % 8, (s + 6) % 8, (s + 5) % 8],
            "rc8": [s] * 4,
            "ecl": [max(s, i) for i in range(4)],
            "ecr": [min(s, i) for i in range(4)],
            "rc16": [2 * (s & 1), 2 * (s & 1) + 1] * 2,
        }[mode]
        return from_octets(both >> 8 * at & 0xFF for at in chosen)

    return meaning


def from_octets(octets):
    return int.from_bytes(bytes(octets), "little")


def dot(count, a_type, b_type, first):
    def parts(value, bits, type_name):
        return [read(value >> bits * i & ((1 << bits) - 1), f"{type_name[0]}{bits}") for i in range(32 // bits)]

    def meaning(a, b, c):
        left, right = parts(a, 32 // count, a_type), parts(b, 8, b_type)[first:]
        return c + sum(x * y for x, y in zip(left, right, strict=False)) & WORD

    return meaning


VIDEO = {
    "add": operator.add,
    "sub": operator.sub,
    "avrg": lambda x, y: x + y + (x + y >= 0) >> 1,
    "absdiff": lambda x, y: abs(x - y),
    "min": min,
    "max": max,
}
COMPARED = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def video(function, count, d_type, a_type, b_type, end):
    """A function on the parts of two registers; `.add` sums all results, `.sat` clamps each."""
    bits = 32 // count
    least, most = (0, (1 << bits) - 1) if d_type == "u32" else (-(1 << bits - 1), (1 << bits - 1) - 1)

    def part(value, at, type_name):
        return read(value >> bits * at & ((1 << bits) - 1), f"{type_name[0]}{bits}")

    def meaning(a, b, c):
        results = [int(function(part(a, at, a_type), part(b, at, b_type))) for at in range(count)]
        if end == ".add":
            return c + sum(results) & WORD
        if end == ".sat":
            results = [min(max(each, least), most) for each in results]
        return sum((each & (1 << bits) - 1) << bits * at for at, each in enumerate(results))

    return meaning


def in_halves(function):
    """A function of 16-bit numbers on both halves of a register."""

    def meaning(*operands):
        low = function(*(value & 0xFFFF for value in operands))
        return low & 0xFFFF | (function(*(value >> 16 for value in operands)) & 0xFFFF) << 16

    return meaning


def signed24(value, name):
    return to_signed(value & 0xFFFFFF, 24) if name == "s32" else value & 0xFFFFFF


def everything():
    for name in WHOLE:
        yield from arithmetic(name)
    for name, other in (("add", 1), ("sub", -1)):
        yield f"{name}.sat.s32", ("s32",) * 2, lambda a, b, o=other: cut(read(a, "s32") + o * read(b, "s32"), "s32")
    yield (
        "mad.hi.sat.s32",
        ("s32",) * 3,
        lambda a, b, c: cut((read(a, "s32") * read(b, "s32") >> 32) + read(c, "s32"), "s32"),
    )
    for name in ("u32", "s32"):
        for mode, shift in (("lo", 0), ("hi", 16)):
            yield (
                f"mul24.{mode}.{name}",
                (name,) * 2,
                lambda a, b, n=name, s=shift: signed24(a, n) * signed24(b, n) >> s & WORD,
            )
            yield (
                f"mad24.{mode}.{name}",
                (name,) * 3,
                lambda a, b, c, n=name, s=shift: (signed24(a, n) * signed24(b, n) >> s) + c & WORD,
            )
    for pick in (min, max):
        name = pick.__name__
        yield f"{name}.relu.s32", ("s32",) * 2, lambda a, b, p=pick: max(p(read(a, "s32"), read(b, "s32")), 0)
        yield f"{name}.u16x2", ("b32",) * 2, in_halves(pick)
        yield f"{name}.s16x2", ("b32",) * 2, in_halves(lambda a, b, p=pick: p(read(a, "s16"), read(b, "s16")))
        yield (
            f"{name}.relu.s16x2",
            ("b32",) * 2,
            in_halves(lambda a, b, p=pick: max(p(read(a, "s16"), read(b, "s16")), 0)),
        )
    for name in ("u16x2", "s16x2"):
        yield f"add.{name}", ("b32",) * 2, in_halves(int.__add__)
    for bits in (32, 64):
        yield f"popc.b{bits}", (f"b{bits}",), int.bit_count
        yield f"clz.b{bits}", (f"b{bits}",), lambda a, n=bits: next((i for i in range(n) if bit(a, n - 1 - i)), n)
        yield f"brev.b{bits}", (f"b{bits}",), lambda a, n=bits: from_bits(bit(a, n - 1 - i) for i in range(n))
        yield f"bfi.b{bits}", (f"b{bits}", f"b{bits}", "count", "count"), field_insert(bits)
    for name in ("u32", "s32", "u64", "s64"):
        yield f"bfe.{name}", (name, "count", "count"), field_extract(name)
        yield f"bfind.{name}", (name,), find_high(name, shiftamt=False)
        yield f"bfind.shiftamt.{name}", (name,), find_high(name, shiftamt=True)
    for mode in ("clamp", "wrap"):
        yield f"bmsk.{mode}.b32", ("count", "count"), mask_of(mode == "clamp")
        for name in ("u32", "s32"):
            yield f"szext.{mode}.{name}", (name, "count"), extend(name, mode == "clamp")
        for direction in "lr":
            yield f"shf.{direction}.{mode}.b32", ("b32", "b32", "count"), funnel(direction, mode == "clamp")
    yield "fns.b32", ("b32", "lane", "offset"), find_set
    for mode in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield f"prmt.b32.{mode}".rstrip("."), ("b32",) * 3, permute(mode)
    for a in ("u32", "s32"):
        for b in ("u32", "s32"):
            yield f"dp4a.{a}.{b}", ("b32",) * 3, dot(4, a, b, 0)
            yield f"dp2a.lo.{a}.{b}", ("b32",) * 3, dot(2, a, b, 0)
            yield f"dp2a.hi.{a}.{b}", ("b32",) * 3, dot(2, a, b, 2)
            for count in (2, 4):
                ends = itertools.cycle((("u32", ".sat"), ("s32", ".sat"), ("s32", ""), ("u32", ".add")))
                for (name, function), (d, end) in zip(VIDEO.items(), ends, strict=False):
                    yield f"v{name}{count}.{d}.{a}.{b}{end}", ("b32",) * 3, video(function, count, d, a, b, end)
                for (name, holds), end in zip(COMPARED.items(), itertools.cycle(("", ".add")), strict=False):
                    yield f"vset{count}.{a}.{b}.{name}{end}", ("b32",) * 3, video(holds, count, "u32", a, b, end)


def operand(rng, type_name, count):
    match type_name:
        case "count":
            edges = np.array([0, 1, 5, 8, 15, 16, 31, 32, 33, 63, 64, 65, 255, 256, 257, WORD], np.uint32)
            return np.concatenate(
                [rng.choice(edges, count // 2), rng.integers(0, 70, count - count // 2).astype(np.uint32)]
            )
        case "lane":
            return rng.integers(0, 32, count).astype(np.uint32)
        case "offset":
            return rng.integers(-12, 13, count).astype(np.int32).view(np.uint32)
    edges = edge_bits(type_name)
    return rng.permutation(
        np.concatenate([rng.choice(edges, count // 3), random_bits(rng, type_name, count - count // 3)])
    )


CASES = list(everything())
PTX_TYPES = {"count": "u32", "lane": "u32", "offset": "u32"}


@pytest.mark.parametrize(("opcode", "types", "meaning"), CASES, ids=[case[0] for case in CASES])
def test_instruction(opcode, types, meaning):
    """On arrays of an awkward length, and lane by lane on Python's integers."""
    rng = np.random.default_rng(sum(opcode.encode()))
    operands = [
        operand(rng, "u32" if opcode.startswith(("shl", "shr")) and at else name, 601) for at, name in enumerate(types)
    ]
    if opcode.startswith(("shl", "shr")):
        operands[1] = operand(rng, "count", 601)
    columns = [column.tolist() for column in operands]
    expected = [meaning(*values) for values in zip(*columns, strict=True)]
    kept = [column.copy() for column in operands]
    assert run(opcode, *operands).tolist() == expected
    assert all(np.array_equal(before, after) for before, after in zip(kept, operands, strict=True))
    names = tuple(PTX_TYPES.get(name, name) for name in types)
    scalar = scalar_function(*signature_of(opcode), names)
    assert [scalar(*values) for values in list(zip(*columns, strict=True))[::7]] == expected[::7]


@pytest.mark.parametrize("comparison", ["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"])
@pytest.mark.parametrize("name", WHOLE)
def test_comparison(name, comparison):
    rng = np.random.default_rng(21)
    a, b = operand(rng, name, 400), operand(rng, name, 400)
    b[::5] = a[::5]
    unsigned = comparison in ("lo", "ls", "hi", "hs")
    spelled = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(comparison, comparison)
    pairs = [
        (x, y) if unsigned else (read(x, name), read(y, name)) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    expected = [getattr(x, f"__{spelled}__")(y) for x, y in pairs]
    assert run(f"setp.{comparison}.{name}", a, b).tolist() == expected
    scalar = scalar_function(*signature_of(f"setp.{comparison}.{name}"), (name, name))
    assert [scalar(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)] == expected


@pytest.mark.parametrize("combine", ["and", "or", "xor"])
def test_comparison_with_two_results(combine):
    a, b = np.array([1, 5, 5, 9], np.uint32), np.array([5, 5, 1, 1], np.uint32)
    c = np.array([True, False, True, False])
    family, signature = signature_of(f"setp.lt.{combine}.u32")
    p, q = array_function(family, {**signature, "pair": True}, ("u32", "u32", "pred"))(a, b, c)
    join = {"and": bool.__and__, "or": bool.__or__, "xor": bool.__xor__}[combine]
    truth = [True, False, False, False]
    assert p.tolist() == [join(t, x) for t, x in zip(truth, c.tolist(), strict=True)]
    assert q.tolist() == [join(not t, x) for t, x in zip(truth, c.tolist(), strict=True)]
    scalar = scalar_function(family, {**signature, "pair": True}, ("u32", "u32", "pred"))
    values = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    assert [scalar(*value) for value in values] == list(zip(p.tolist(), q.tolist(), strict=True))


def test_every_truth_table():
    rng = np.random.default_rng(22)
    a, b, c = (random_bits(rng, "b32", 33) for _ in range(3))
    for table in range(256):
        form = "lop3", {}, ("b32", "b32", "b32", ""), (None, None, None, table)
        expected = np.zeros(33, np.uint32)
        for at in range(32):
            index = (a >> at & 1) * 4 + (b >> at & 1) * 2 + (c >> at & 1)
            expected |= (table >> index & 1).astype(np.uint32) << np.uint32(at)
        got = array_function(*form)(a, b, c)
        assert np.array_equal(got, expected)
        assert not any(np.shares_memory(got, operand) for operand in (a, b, c))
        assert scalar_function(*form)(int(a[0]), int(b[0]), int(c[0])) == expected[0]


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64"])
def test_carries(name):
    """Chains of words compute what one long integer would."""
    rng = np.random.default_rng(23)
    bits = width(name)
    mask = (1 << bits) - 1
    low, high = ([operand(rng, name, 300) for _ in range(2)] for _ in range(2))
    for first, second, sign in (("add.cc", "addc", 1), ("sub.cc", "subc", -1)):
        total, carry = array_function(first, {"type": name}, (name, name))(*low)
        upper, out = array_function(second, {"type": name, "cc": "cc"}, (name, name, "pred"))(*high, carry)
        plain = array_function(second, {"type": name}, (name, name, "pred"))(*high, carry)
        assert np.array_equal(plain, upper)
        values = zip(*(column.tolist() for column in (*low, *high)), strict=True)
        for lane, (a, b, c, d) in enumerate(values):
            exact = (c << bits | a) + sign * (d << bits | b)
            got = int(upper[lane]) << bits | int(total[lane])
            assert got == exact & (mask << bits | mask)
            assert bool(out[lane]) == (exact >= 0 if sign < 0 else exact >= 1 << 2 * bits)
            start = scalar_function(first, {"type": name}, (name, name))(a, b)
            assert start == (int(total[lane]), bool(carry[lane]))
            end = scalar_function(second, {"type": name, "cc": "cc"}, (name, name, "pred"))(c, d, start[1])
            assert end == (int(upper[lane]), bool(out[lane]))


def test_carry_of_products():
    rng = np.random.default_rng(24)
    a, b, c, d = (operand(rng, "u32", 300) for _ in range(4))
    low, carry = array_function("mad.cc", {"type": "u32", "mode": "lo"}, ("u32",) * 3)(a, b, c)
    high = array_function("madc", {"type": "u32", "mode": "hi"}, (*("u32",) * 3, "pred"))(a, b, d, carry)
    for lane, (x, y, z, w) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), d.tolist(), strict=True)):
        exact = x * y + (w << 32 | z)
        assert int(low[lane]) | int(high[lane]) << 32 == exact & 0xFFFFFFFFFFFFFFFF


def test_counts_may_be_literals():
    a = random_bits(np.random.default_rng(25), "b32", 65)
    lanes = np.full(65, 5, np.uint32)
    for opcode, operands in (("bfe.u32", (a,)), ("bfi.b32", (a, ~a)), ("bfe.s32", (a,))):
        assert np.array_equal(run(opcode, *operands, 5, 9), run(opcode, *operands, lanes, lanes + 4))
    assert np.array_equal(run("shf.l.wrap.b32", a, ~a, 5), run("shf.l.wrap.b32", a, ~a, lanes))
    assert np.array_equal(run("prmt.b32", a, ~a, 0x5410), run("prmt.b32", a, ~a, np.full(65, 0x5410, np.uint32)))
    assert np.array_equal(run("shl.b64", a.astype(np.uint64), 40), a.astype(np.uint64) << np.uint64(40))


def test_packed_registers_need_not_be_contiguous():
    registers = random_bits(np.random.default_rng(26), "b32", 64)
    assert np.array_equal(
        run("add.u16x2", registers[::2], registers[1::2]),
        run("add.u16x2", registers[::2].copy(), registers[1::2].copy()),
    )


def test_uniform_floats_run_on_one_lane():
    fma = scalar_function("fma", {"type": "f32", "rnd": "rn"}, ("f32",) * 3)
    assert fma(0x40000000, 0x40400000, 0x3F800000) == 0x40E00000
    half = scalar_function("cvt", {"dtype": "f16", "atype": "f32", "rnd": "rn"}, ("f32",))
    assert half(0x3F800000) == 0x3C00
    less = scalar_function("setp", {"type": "f32", "cmp": "lt"}, ("f32", "f32"))
    assert less(0x3F800000, 0x40000000) is True


def test_wider_registers():
    narrow = np.array([0x80, 0x7F], np.uint8)
    assert extended(narrow, "s8", np.uint32).tolist() == [0xFFFFFF80, 0x7F]
    assert extended(narrow, "u8", np.uint16).tolist() == [0x80, 0x7F]


def test_a_form_without_a_meaning():
    with pytest.raises(WarploomError, match="NOT_MODELLED"):
        array_function("vadd", {"type": "s32"}, ("s32", "s32"))
