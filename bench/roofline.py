"""Measured roofline of the GPU, and how close GEMMs come to it.

    python bench/roofline.py                listed shapes in bf16, a few in fp8
    python bench/roofline.py --quick        four shapes, few rounds
    python bench/roofline.py --machine      no GPU: the two microbenchmarks, small, on the emulator

The roofline is the longer of two times: the MMAs at the rate of a kernel that only issues MMAs (on random operands in
shared memory, because power matters), and the bytes of A, B and D, each once, at the rate of a kernel that only reads.
For a GEMM of 100 µs or more, the MMA kernel alternates with it, at the same clock. JSON goes to roofline.json in
bench/results.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dense import INPUTS, held, plain_arguments, plain_peer, wrong_plain
from families import FAMILIES, FP8
from front_door import family_arguments, wrong_family
from inputs import Maker
from measuring import Arguments, Options, Side, bytes_of, call_of, is_lost, machine, rotating, timed
from roofline_kernels import COLUMNS, ROWS, Multiplications, reading
from shapes import LISTED, Shape, flops_of, label_of
from tables import GpuLostError, Row, Table, folder_of, good

import warploom
from warploom import launch
from warploom.runtime.gpu.prepared import Prepared

TYPES = {"bf16": torch.bfloat16, "e4m3": FP8}
GUESSES = {"bf16": 750e6, "e4m3": 1400e6}
"""Flop per µs, used only to make the MMA kernel take about as long as the GEMM."""
LONG_US, PEAK_US = 100, 300
READ_BYTES, ROW_WORDS = 2 << 30, 64
DEVICE = "cuda"


@dataclass(frozen=True)
class Roof:
    """Peak rates: flop per µs by element type, and bytes per µs."""

    flops: dict[str, float]
    bytes: float

    def us(self, flops: float, size: int, element: str) -> tuple[float, str]:
        """Return the lower bound of the time, and what bounds it."""
        return max((flops / self.flops[element], "tensor core"), (size / self.bytes, "memory"))


def multiplying(element: str, us: float, sms: int) -> tuple[Side, float]:
    """Return a call of the MMA kernel that takes about this long, and its flop."""
    made = Multiplications(element, 1, sms)
    made = Multiplications(element, max(1, round(us * GUESSES[element] / made.flops)), sms)
    maker = Maker(DEVICE)
    a, b = (maker.values(rows, made.depth, dtype=TYPES[element]) for rows in (ROWS, COLUMNS))
    d = torch.full((sms * ROWS, COLUMNS), float("nan"), device=DEVICE)
    prepared = Prepared(made.launch(a, b, d))
    prepared()
    want = (a.float() @ b.float().t()).repeat(sms, 1)
    if not torch.allclose(d, want, rtol=1e-2, atol=0.5):
        raise ValueError("the multiplying kernel is wrong")
    return lambda each: prepared(), made.flops


def peak_row(element: str, sms: int, options: Options) -> Row:
    call, flops = multiplying(element, PEAK_US, sms)
    given = {"a": torch.empty(1, device=DEVICE)}
    times, itself = timed({"peak": call}, [given], flops, options)
    return {"tflops": flops / times["peak"] / 1e6, "us": times["peak"], "against_itself": itself}


def bandwidth_row(what: str, sms: int, options: Options) -> Row:
    """Measure DRAM bandwidth with our read kernel or PyTorch's copy."""
    shape = (READ_BYTES // 4 // ROW_WORDS, ROW_WORDS)
    source = torch.randint(-(1 << 31), (1 << 31) - 1, shape, dtype=torch.int32, device=DEVICE)
    if what == "read":
        out = torch.zeros((sms, 32), dtype=torch.int32, device=DEVICE).view(torch.uint32)
        prepared = Prepared(reading(source.view(torch.uint32), out, sms))
        call: Side = lambda each: prepared()  # noqa: E731
    else:
        half = source.shape[0] // 2
        call = lambda each: source[half:].copy_(source[:half])  # noqa: E731
    times, itself = timed({what: call}, [{"source": source}], 0.0, options)
    return {"terabytes": READ_BYTES / times[what] / 1e6, "us": times[what], "against_itself": itself}


@dataclass(frozen=True)
class Case:
    """A GEMM of an element type."""

    element: str
    shape: Shape
    sides: dict[str, Side]
    sets: list[Arguments]
    size: int
    """Count the bytes of A, B and D."""


def bf16_case(shape: Shape) -> Case:
    held(wrong_plain(shape, "cuda"))
    sets = rotating(lambda: plain_arguments(Maker(DEVICE), shape))
    sides: dict[str, Side] = {"theirs": plain_peer, "ours": call_of(warploom.matmul, sets[0])}
    return Case("bf16", shape, sides, sets, bytes_of(sets[0]))


def fp8_case(shape: Shape) -> Case:
    held(wrong_family("fp8", shape, "cuda"))
    sets: list[Any] = rotating(lambda: FAMILIES["fp8"].make(Maker(DEVICE), *shape))
    call = call_of(*family_arguments("fp8", sets[0]))
    sides: dict[str, Side] = {
        "theirs": FAMILIES["fp8"].peer,
        "ours": lambda each: call(family_arguments("fp8", each)[1]),
    }
    return Case("e4m3", shape, sides, sets, bytes_of(sets[0]))


CASES = {"bf16": bf16_case, "e4m3": fp8_case}


def product_row(element: str, shape: Shape, roof: Roof, sms: int, options: Options) -> Row:
    """Time a GEMM and the baseline against the roofline."""
    case, flops = CASES[element](shape), flops_of(shape)
    sides, peak_flops = dict(case.sides), 0.0
    if flops / roof.flops[element] >= LONG_US:
        sides["peak"], peak_flops = multiplying(element, flops / GUESSES[element], sms)
    times, itself = timed(sides, case.sets, flops, options)
    if peak_flops:
        roof = Roof({element: peak_flops / times["peak"]}, roof.bytes)
    least, bound = roof.us(flops, case.size, element)
    return {
        "bound": bound,
        "fraction": least / times["ours"],
        "peer_fraction": least / times["theirs"],
        "us": times["ours"],
        "roof_us": least,
        "tflops": flops / times["ours"] / 1e6,
        "terabytes": case.size / times["ours"] / 1e6,
        "peak_tflops": roof.flops[element] / 1e6,
        "peer_against_itself": itself,
    }


def line_of(row: Row) -> str:
    text = f"{row['element']:5} {row['label']:20}"
    if "error" in row:
        return f"{text} FAILED: {row['error']}"
    if "fraction" not in row:
        found = f"{row['tflops']:.0f} TFLOP/s" if "tflops" in row else f"{row['terabytes']:.2f} TB/s"
        return f"{text} {found}"
    return (
        f"{text} {row['fraction']:.3f} of the roof ({row['bound']}), peer {row['peer_fraction']:.3f}; "
        f"{row['us']:.1f} µs, {row['tflops']:.0f} TFLOP/s, {row['terabytes']:.2f} TB/s, peak {row['peak_tflops']:.0f}"
    )


def measured(table: Table, *, quick: bool, options: Options) -> None:
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    flops, rates = {}, {}
    for element in TYPES:
        row = table.measure({"label": "peak", "element": element}, lambda e=element: peak_row(e, sms, options))
        flops[element] = row["tflops"] * 1e6
    for what in ("read", "copy"):
        row = table.measure({"label": what, "element": "bytes"}, lambda w=what: bandwidth_row(w, sms, options))
        rates[what] = row["terabytes"] * 1e6
    roof = Roof(flops, max(rates.values()))
    shapes = {"bf16": LISTED[1::3] if quick else LISTED, "e4m3": [case.shape for case in FAMILIES["fp8"].cases]}
    for element, listed in shapes.items():
        for shape in listed[: 1 if quick and element == "e4m3" else None]:
            key = {"label": label_of(shape), "element": element, "shape": shape}
            table.measure(key, lambda e=element, s=shape: product_row(e, s, roof, sms, options))


def on_the_emulator() -> int:
    """Run the two microbenchmarks, small, without a GPU."""
    maker, failed = Maker("cpu", exact=True), 0
    for element, dtype in TYPES.items():
        made = Multiplications(element, 2, 2)
        a, b = (maker.values(rows, made.depth, dtype=dtype) for rows in (ROWS, COLUMNS))
        d = torch.full((2 * ROWS, COLUMNS), float("nan"))
        launch(made.launch(a, b, d))
        right = torch.equal(d, (a.float() @ b.float().t()).repeat(2, 1))
        failed += not right
        print(f"{element:5} multiplies {'right' if right else 'WRONG'}")
    boxes, sms = 37, 3
    source = torch.arange(boxes * 64 * ROW_WORDS, dtype=torch.int32).view(torch.uint32).reshape(-1, ROW_WORDS)
    out = torch.zeros((sms, 32), dtype=torch.int32).view(torch.uint32)
    launch(reading(source, out, sms))
    last = [max(range(cta, boxes, sms)) for cta in range(sms)]
    right = torch.equal(out.view(torch.int32), source.view(torch.int32)[[64 * box for box in last], :32])
    print(f"{'bytes':5} reads {'right' if right else 'WRONG'}")
    return failed + (not right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--window", type=float, default=3000, help="microseconds of one graph")
    parser.add_argument("--limit", type=float, default=90, help="seconds after which a case counts as hung")
    parser.add_argument("--quick", action="store_true", help="a few shapes and rounds")
    parser.add_argument("--out", type=Path, help="output directory; default bench/results, with --quick build/bench")
    parser.add_argument("--machine", action="store_true", help="the checks alone, small, on the emulator")
    asked = parser.parse_args()
    if asked.machine:
        return 1 if on_the_emulator() else 0
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference must accumulate exactly
    options = Options(rounds=asked.rounds, window=asked.window)
    options = options.hurried if asked.quick else options
    about = {"machine": machine(), "inputs": INPUTS, "rounds": options.rounds}
    table = Table("roofline", about, line_of, folder=folder_of(asked), limit=asked.limit, is_lost=is_lost)
    with torch.no_grad():
        try:
            measured(table, quick=asked.quick, options=options)
        except (GpuLostError, KeyError) as error:
            print(f"no roofline: {error!r}")
            return 1
    return 0 if len(good(table.rows)) == len(table.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
