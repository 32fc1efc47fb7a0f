"""Elements of the tensor cores in native code: vectors of codes to doubles, which hold every element exactly."""

from __future__ import annotations

BITS = {"tf32": 32, "bf16": 16, "f16": 16, "e5m2": 8, "e4m3": 8, "s8": 8, "u8": 8}
"""The elements that native code decodes, and their bits."""
_TF32 = 0xFFFF_E000
_HALF_INFINITY, _SINGLE_INFINITY, _SINGLE_NAN = 0x7C00, 0x7F80_0000, 0x7FC0_0000
_HALF_BIAS, _BYTE_BIAS = 0x46F0_0000_0000_0000, 0x4770_0000_0000_0000
"""2^112 and 2^120 as doubles: the distances between the exponents of f16 and f32, and of e4m3 and f32."""


def decoded(element: str, codes: str, label: str, count: int) -> tuple[list[str], str]:
    """Elements as doubles: the lines, and the name of the vector. The codes are the low bits of words, others are 0."""
    n, words, singles, doubles = label, f"<{count} x i32>", f"<{count} x float>", f"<{count} x double>"
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
    lines += [
        f"  %x{n} = bitcast {words} %i{n} to {singles}",
        f"  %d{n} = fpext {singles} %x{n} to {doubles}",
    ]
    return lines, f"%d{n}"


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
