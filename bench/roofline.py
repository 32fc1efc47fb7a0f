"""Measured peak rates of the GPU, alone and cool: the roofline that GEMMs are compared with.

    PYTHONPATH=src python3 bench/roofline.py                the rates
    python3 bench/roofline.py --machine                     no GPU: the microbenchmarks, small, on the emulator

The roofline of a GEMM is the longer of two times: its MMAs at the rate of a kernel that only issues MMAs (on random operands
in shared memory, because power matters), and the bytes of A, B and D, each once, at the rate of a kernel that only reads.
Each rate is measured as GEMMs are (bench/protocol.py): alone, where the MMA kernel too is at the power limit, and cool. The
times of the GEMMs are those of bench/alone.py and bench/alone_families.py; bench/pages.py divides. JSON goes to roofline.json
in bench/results.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
from families import FP8
from inputs import Maker
from measuring import Side, captured, is_lost, machine
from protocol import Protocol, Sensors, Timed, add_protocol, take_turns
from roofline_kernels import COLUMNS, ROWS, Multiplications, reading
from tables import RESULTS, GpuLostError, Row, Table, good

from warploom import launch
from warploom.runtime.gpu.prepared import Prepared

TYPES = {"bf16": torch.bfloat16, "e4m3": FP8}
GUESSES = {"bf16": 750e6, "e4m3": 1400e6}
"""Flop per µs, used only to make the MMA kernel take `PEAK_US`."""
PEAK_US, CALLS = 300, 10
READ_BYTES, ROW_WORDS = 2 << 30, 64
DEVICE = "cuda"
INPUTS = "operands ~ N(0, 1); random words to read"


def multiplying(element: str, sms: int) -> tuple[Side, float]:
    """Return a call of the MMA kernel, and its flop."""
    made = Multiplications(element, 1, sms)
    made = Multiplications(element, max(1, round(PEAK_US * GUESSES[element] / made.flops)), sms)
    maker = Maker(DEVICE)
    a, b = (maker.values(rows, made.depth, dtype=TYPES[element]) for rows in (ROWS, COLUMNS))
    d = torch.full((sms * ROWS, COLUMNS), float("nan"), device=DEVICE)
    prepared = Prepared(made.launch(a, b, d))
    prepared()
    want = (a.float() @ b.float().t()).repeat(sms, 1)
    if not torch.allclose(d, want, rtol=1e-2, atol=0.5):
        raise ValueError("the multiplying kernel is wrong")
    return lambda _: prepared(), made.flops


def moving(what: str, sms: int) -> Side:
    """Return a call of our read kernel, or of PyTorch's copy, that moves `READ_BYTES`."""
    shape = (READ_BYTES // 4 // ROW_WORDS, ROW_WORDS)
    source = torch.randint(-(1 << 31), (1 << 31) - 1, shape, dtype=torch.int32, device=DEVICE)
    if what == "read":
        out = torch.zeros((sms, 32), dtype=torch.int32, device=DEVICE).view(torch.uint32)
        prepared = Prepared(reading(source.view(torch.uint32), out, sms))
        return lambda _: prepared()
    half = source.shape[0] // 2
    return lambda _: source[half:].copy_(source[:half])


def rates(call: Side, amount: float, unit: str, asked: argparse.Namespace, sensors: Sensors) -> Row:
    """Return what is done per µs, alone and cool, in 10^12 per second, with clock and power."""
    side = Timed.of_graph(captured([lambda: call({})], CALLS), CALLS)
    take_turns({"": side}, Protocol.of(asked), random.Random(0), sensors)
    found = side.row()
    of_time = {f"{how}_{unit}": amount / found[f"{how}_us"] / 1e6 for how in ("alone", "cool")}
    return {**of_time, **{name: found[name] for name in ("mhz", "watts") if name in found}}


def line_of(row: Row) -> str:
    text = f"{row['element']:5} {row['label']:6}"
    if "error" in row:
        return f"{text} FAILED: {row['error']}"
    unit = "tflops" if "alone_tflops" in row else "terabytes"
    return f"{text} {row[f'alone_{unit}']:.2f} alone, {row[f'cool_{unit}']:.2f} cool ({unit} per second)"


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
    add_protocol(parser)
    parser.add_argument("--limit", type=float, default=90, help="seconds after which a case counts as hung")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for JSON")
    parser.add_argument("--machine", action="store_true", help="the checks alone, small, on the emulator")
    asked = parser.parse_args()
    if asked.machine:
        return 1 if on_the_emulator() else 0
    torch.backends.cuda.matmul.allow_tf32 = False  # the reference must accumulate exactly
    sensors, sms = Sensors(), torch.cuda.get_device_properties(0).multi_processor_count
    about = {"machine": machine(), "inputs": INPUTS, **Protocol.of(asked).about()}
    table = Table("roofline", about, line_of, folder=asked.out, limit=asked.limit, is_lost=is_lost)
    with torch.no_grad():
        try:
            for element in TYPES:
                table.measure(
                    {"label": "peak", "element": element},
                    lambda element=element: rates(*multiplying(element, sms), "tflops", asked, sensors),
                )
            for what in ("read", "copy"):
                table.measure(
                    {"label": what, "element": "bytes"},
                    lambda what=what: rates(moving(what, sms), READ_BYTES, "terabytes", asked, sensors),
                )
        except GpuLostError as error:
            print(error)
            return 1
    return 0 if len(good(table.rows)) == len(table.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
