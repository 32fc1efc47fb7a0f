"""Elements of the tensor cores in native code: vectors of codes to doubles, which hold every element exactly."""

from __future__ import annotations

from warploom.hardware.dtypes import ELEMENT_TYPES

WHOLE = {"tf32": 32, "bf16": 16, "f16": 16, "e5m2": 8, "e4m3": 8, "s8": 8, "u8": 8}
"""The elements of whole bytes, and their bits."""
BITS = {
    **WHOLE,
    **dict.fromkeys(("e2m1", "e2m3", "e3m2", "e2m1_byte", "e2m3_byte", "e3m2_byte"), 8),
    "e2m1_packed": 4,
}
"""The elements that native code decodes, and the bits from one to the next (`tensor/elements.py` has the packings)."""
PACKED = frozenset({"e2m1", "e2m3", "e3m2", "e2m1_packed"})
"""Those that share bytes of a granule."""
_TF32 = 0xFFFF_E000
_HALF_INFINITY, _SINGLE_INFINITY, _SINGLE_NAN = 0x7C00, 0x7F80_0000, 0x7FC0_0000
_HALF_NORMAL, _HALF_LIMIT = 0x3880_0000, 0x4780_0000
"""The least normal f16, and the power of two above the largest, as the bits of floats."""
_HALF_NAN = ELEMENT_TYPES["f16"].nan
_HALF_BIAS, _BYTE_BIAS = 0x46F0_0000_0000_0000, 0x4770_0000_0000_0000
"""2^112 and 2^120 as doubles: the distances between the exponents of f16 and f32, and of e4m3 and f32."""
_FEW_BITS = {
    "e2m1": (3, 22, 0x47D0_0000_0000_0000),
    "e2m3": (5, 20, 0x47D0_0000_0000_0000),
    "e3m2": (5, 21, 0x47B0_0000_0000_0000),
}
"""The formats without infinities and NaNs: bits of a magnitude, the distance of its fraction from that of an f32, and
2^126 or 2^124 as doubles."""


def unpacked(element: str, granule: str, label: str) -> tuple[list[str], str]:
    """The codes of a granule, one to a byte: the lines, and the name of the vector. The granule is 16 bytes."""
    n, bytes_ = label, "<16 x i8>"

    def chosen(name: str, source: str, places: list[int]) -> str:
        listed = ", ".join(f"i32 {place}" for place in places)
        return f"  %{name}{n} = shufflevector {bytes_} {source}, {bytes_} poison, <{len(places)} x i32> <{listed}>"

    if element.startswith("e2m1"):
        count = 32 if element == "e2m1_packed" else 16
        both = ", ".join(f"i32 {at // 2 + at % 2 * 16}" for at in range(count))
        return [
            f"  %ul{n} = and {bytes_} {granule}, splat (i8 15)",
            f"  %uh{n} = lshr {bytes_} {granule}, splat (i8 4)",
            f"  %uc{n} = shufflevector {bytes_} %ul{n}, {bytes_} %uh{n}, <{count} x i32> <{both}>",
        ], f"%uc{n}"
    first, words = [6 * at // 8 for at in range(16)], "<16 x i16>"
    shifts = ", ".join(f"i16 {6 * at % 8}" for at in range(16))
    return [
        chosen("ua", granule, first),
        chosen("ub", granule, [at + 1 for at in first]),
        f"  %ul{n} = zext {bytes_} %ua{n} to {words}",
        f"  %uw{n} = zext {bytes_} %ub{n} to {words}",
        f"  %uh{n} = shl {words} %uw{n}, splat (i16 8)",
        f"  %uo{n} = or {words} %ul{n}, %uh{n}",
        f"  %us{n} = lshr {words} %uo{n}, <{shifts}>",
        f"  %um{n} = and {words} %us{n}, splat (i16 63)",
        f"  %uc{n} = trunc {words} %um{n} to {bytes_}",
    ], f"%uc{n}"


def decoded(element: str, codes: str, label: str, count: int) -> tuple[list[str], str]:
    """Elements as doubles: the lines, and the name of the vector. The codes are the low bits of words, others are 0."""
    n, words, doubles = label, f"<{count} x i32>", f"<{count} x double>"
    match element:
        case "u8":
            return [f"  %d{n} = uitofp {words} {codes} to {doubles}"], f"%d{n}"
        case "s8":
            lines = [
                f"  %s{n} = shl {words} {codes}, splat (i32 24)",
                f"  %i{n} = ashr {words} %s{n}, splat (i32 24)",
                f"  %d{n} = sitofp {words} %i{n} to {doubles}",
            ]
            return lines, f"%d{n}"
    lines, singles = decoded_floats(element, codes, label, count)
    return [*lines, f"  %d{n} = fpext <{count} x float> {singles} to {doubles}"], f"%d{n}"


def decoded_floats(element: str, codes: str, label: str, count: int) -> tuple[list[str], str]:
    """The same for elements of a float format as floats."""
    n, words = label, f"<{count} x i32>"
    match element:
        case "e2m1" | "e2m3" | "e3m2" | "e2m1_packed" | "e2m1_byte" | "e2m3_byte" | "e3m2_byte":
            few, lines = codes, list[str]()
            if element == "e2m1_byte":  # its middle bits
                few, lines = f"%u{n}", [f"  %u{n} = lshr {words} {codes}, splat (i32 2)"]
            bits, shift, bias = _FEW_BITS[element.partition("_")[0]]
            lines += _small(few, n, count, bits=bits, shift=shift, bias=bias)
            lines += [f"  %i{n} = or {words} %h{n}, %l{n}"]
        case "tf32":
            lines = [f"  %i{n} = and {words} {codes}, splat (i32 {_TF32})"]
        case "bf16":
            lines = [f"  %i{n} = shl {words} {codes}, splat (i32 16)"]
        case "e4m3":
            lines = _small(codes, n, count, bits=7, shift=20, bias=_BYTE_BIAS)
            lines += [
                f"  %c{n} = icmp eq {words} %m{n}, splat (i32 127)",
                f"  %j{n} = select <{count} x i1> %c{n}, {words} splat (i32 {_SINGLE_NAN}), {words} %h{n}",
                f"  %i{n} = or {words} %j{n}, %l{n}",
            ]
        case _:
            half, lines = codes, list[str]()
            if element == "e5m2":  # the upper half of an f16
                half, lines = f"%u{n}", [f"  %u{n} = shl {words} {codes}, splat (i32 8)"]
            lines += _small(half, n, count, bits=15, shift=13, bias=_HALF_BIAS)
            lines += [
                f"  %o{n} = or {words} %s{n}, splat (i32 {_SINGLE_INFINITY})",
                f"  %c{n} = icmp uge {words} %m{n}, splat (i32 {_HALF_INFINITY})",
                f"  %j{n} = select <{count} x i1> %c{n}, {words} %o{n}, {words} %h{n}",
                f"  %i{n} = or {words} %j{n}, %l{n}",
            ]
    return [*lines, f"  %x{n} = bitcast {words} %i{n} to <{count} x float>"], f"%x{n}"


def rounded_halves(values: str, label: str, count: int) -> tuple[list[str], str]:
    """Floats rounded to f16, to nearest even, as floats: the lines, and the name of the vector. NaNs stay NaNs."""
    n, words, singles, bools = label, f"<{count} x i32>", f"<{count} x float>", f"<{count} x i1>"
    return [
        f"  %hb{n} = bitcast {singles} {values} to {words}",
        f"  %hm{n} = and {words} %hb{n}, splat (i32 {0x7FFF_FFFF})",
        f"  %hs{n} = and {words} %hb{n}, splat (i32 {-(1 << 31)})",
        f"  %hp{n} = lshr {words} %hm{n}, splat (i32 13)",
        f"  %ho{n} = and {words} %hp{n}, splat (i32 1)",
        f"  %hq{n} = add {words} %hm{n}, splat (i32 {0xFFF})",
        f"  %hr{n} = add {words} %hq{n}, %ho{n}",
        f"  %ht{n} = and {words} %hr{n}, splat (i32 {-0x2000})",
        f"  %hl{n} = icmp uge {words} %ht{n}, splat (i32 {_HALF_LIMIT})",
        f"  %hu{n} = select {bools} %hl{n}, {words} splat (i32 {_SINGLE_INFINITY}), {words} %ht{n}",
        # Below the normal numbers of f16 its steps are those of an f32 between a half and one.
        f"  %hf{n} = bitcast {words} %hm{n} to {singles}",
        f"  %hg{n} = fadd {singles} %hf{n}, splat (float 0.5)",
        f"  %hh{n} = fsub {singles} %hg{n}, splat (float 0.5)",
        f"  %hi{n} = bitcast {singles} %hh{n} to {words}",
        f"  %hc{n} = icmp ult {words} %hm{n}, splat (i32 {_HALF_NORMAL})",
        f"  %hv{n} = select {bools} %hc{n}, {words} %hi{n}, {words} %hu{n}",
        f"  %hd{n} = icmp ugt {words} %hm{n}, splat (i32 {_SINGLE_INFINITY})",
        f"  %hw{n} = select {bools} %hd{n}, {words} %hm{n}, {words} %hv{n}",
        f"  %hx{n} = or {words} %hw{n}, %hs{n}",
        f"  %hy{n} = bitcast {words} %hx{n} to {singles}",
    ], f"%hy{n}"


def half_codes(values: str, label: str, count: int) -> tuple[list[str], str]:
    """Floats that f16 holds exactly as its codes, in words: the lines, and the name of the vector. All NaNs are one."""
    n, words, singles, bools = label, f"<{count} x i32>", f"<{count} x float>", f"<{count} x i1>"
    return [
        f"  %cb{n} = bitcast {singles} {values} to {words}",
        f"  %cm{n} = and {words} %cb{n}, splat (i32 {0x7FFF_FFFF})",
        f"  %cs{n} = lshr {words} %cb{n}, splat (i32 16)",
        f"  %ct{n} = and {words} %cs{n}, splat (i32 {0x8000})",
        f"  %cn{n} = sub {words} %cm{n}, splat (i32 {_HALF_NORMAL - (1 << 23)})",
        f"  %cr{n} = lshr {words} %cn{n}, splat (i32 13)",
        f"  %cf{n} = bitcast {words} %cm{n} to {singles}",
        f"  %cg{n} = fadd {singles} %cf{n}, splat (float 0.5)",
        f"  %ch{n} = bitcast {singles} %cg{n} to {words}",
        f"  %ci{n} = sub {words} %ch{n}, splat (i32 {0x3F00_0000})",
        f"  %cc{n} = icmp ult {words} %cm{n}, splat (i32 {_HALF_NORMAL})",
        f"  %cu{n} = select {bools} %cc{n}, {words} %ci{n}, {words} %cr{n}",
        f"  %cd{n} = icmp eq {words} %cm{n}, splat (i32 {_SINGLE_INFINITY})",
        f"  %cv{n} = select {bools} %cd{n}, {words} splat (i32 {_HALF_INFINITY}), {words} %cu{n}",
        f"  %cw{n} = or {words} %cv{n}, %ct{n}",
        f"  %ce{n} = icmp ugt {words} %cm{n}, splat (i32 {_SINGLE_INFINITY})",
        f"  %cx{n} = select {bools} %ce{n}, {words} splat (i32 {_HALF_NAN}), {words} %cw{n}",
    ], f"%cx{n}"


def _small(codes: str, label: str, count: int, *, bits: int, shift: int, bias: int) -> list[str]:
    """The magnitude %h of a format with fewer exponents, and the sign %l, as the bits of floats.

    Its bits as those of an f32 are a power of two of its value, also below the normal numbers.
    """
    n, words, singles = label, f"<{count} x i32>", f"<{count} x float>"
    return [
        f"  %m{n} = and {words} {codes}, splat (i32 {(1 << bits) - 1})",
        f"  %s{n} = shl {words} %m{n}, splat (i32 {shift})",
        f"  %f{n} = bitcast {words} %s{n} to {singles}",
        f"  %g{n} = fmul {singles} %f{n}, splat (float 0x{bias:016X})",
        f"  %h{n} = bitcast {singles} %g{n} to {words}",
        f"  %k{n} = and {words} {codes}, splat (i32 {1 << bits})",
        f"  %l{n} = shl {words} %k{n}, splat (i32 {31 - bits})",
    ]
