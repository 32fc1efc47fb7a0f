"""`conv2d` against cuDNN through PyTorch, for layers of convolutional networks in bfloat16, channels_last.

    python bench/conv2d.py
    python bench/conv2d.py --images 8 --settle 0.2 --time 0.1
    python bench/conv2d.py "3x3, 56, 64 to 64"
    python bench/conv2d.py --machine            no GPU: small layers on the emulator, not timed

Measured like bench/alone_families.py: each side alone at the power limit, and cool at the free clock, in CUDA graphs. cuDNN may
choose any of its algorithms (`torch.backends.cudnn.benchmark`). Every layer is first compared with a convolution in float64, to
the bit.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from inputs import Maker
from measuring import Arguments, Side, call_of, graph_for, is_lost, machine, mean_of, rotating, wrong_bits
from protocol import Protocol, Sensors, Timed, add_protocol, ratios_to, take_turns
from tables import RESULTS, GpuLostError, Row, Table, good

import warploom
from warploom.kernels.convolution import Window


@dataclass(frozen=True)
class Layer:
    """A square convolution of square images."""

    name: str
    extent: int
    channels: int
    filters: int
    filter: int
    stride: int = 1
    padding: int = 0

    @property
    def output(self) -> int:
        pairs = ((each, each) for each in (self.filter, self.extent, self.stride, self.padding))
        return Window(*pairs).output[0]

    @property
    def moves(self) -> dict[str, int]:
        return {"stride": self.stride, "padding": self.padding}

    def flops(self, images: int) -> float:
        return 2.0 * images * self.output**2 * self.filters * self.filter**2 * self.channels

    def arguments(self, maker: Maker, images: int) -> Arguments:
        """Return images NHWC, filters KRSC and the result."""
        return {
            "x": maker.values(images, self.extent, self.extent, self.channels, dtype=torch.bfloat16),
            "w": maker.values(self.filters, self.filter, self.filter, self.channels, dtype=torch.bfloat16),
            "out": maker.out(images, self.output, self.output, self.filters),
        }


LAYERS = (
    Layer("3x3, 56, 64 to 64", 56, 64, 64, 3, 1, 1),
    Layer("3x3, 28, 128 to 128", 28, 128, 128, 3, 1, 1),
    Layer("3x3, 14, 256 to 256", 14, 256, 256, 3, 1, 1),
    Layer("3x3, 7, 512 to 512", 7, 512, 512, 3, 1, 1),
    Layer("3x3/2, 56, 128 to 128", 56, 128, 128, 3, 2, 1),
    Layer("1x1, 56, 64 to 256", 56, 64, 256, 1),
    Layer("1x1, 14, 1024 to 256", 14, 1024, 256, 1),
    Layer("1x1/2, 28, 512 to 1024", 28, 512, 1024, 1, 2),
    Layer("7x7/2, 224, 8 to 64", 224, 8, 64, 7, 2, 3),
    Layer("3x3, 64, 320 to 320", 64, 320, 320, 3, 1, 1),
    Layer("3x3, 32, 1280 to 1280", 32, 1280, 1280, 3, 1, 1),
)
"""Layers of ResNet-50, its stem with 8 channels, and two of a diffusion U-Net."""


def convolved(layer: Layer, each: Arguments, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return PyTorch's convolution of tensors in channels_last, as NHWC."""
    x, w = (each[name].to(dtype).permute(0, 3, 1, 2) for name in ("x", "w"))
    return torch.nn.functional.conv2d(x, w, **layer.moves).permute(0, 2, 3, 1)


def wrong(layer: Layer, images: int) -> str:
    each = layer.arguments(Maker("cuda", exact=True), images)
    call = call_of(warploom.conv2d, each, **layer.moves)
    return wrong_bits(lambda: call(each), each["out"], convolved(layer, each, torch.float64).bfloat16())


def measured(layer: Layer, images: int, protocol: Protocol, sensors: Sensors, rng: random.Random) -> Row:
    found = wrong(layer, min(images, 4))
    if found:
        raise ArithmeticError(found)
    sets, flops = rotating(lambda: layer.arguments(Maker("cuda"), images)), layer.flops(images)
    runs: dict[str, Side] = {
        "cudnn": lambda each: convolved(layer, each),
        "warploom": call_of(warploom.conv2d, sets[0], **layer.moves),
    }
    sides = {name: Timed.of_graph(*graph_for(run, sets, flops)) for name, run in runs.items()}
    take_turns(sides, protocol, rng, sensors)
    ratios = ratios_to("cudnn", sides)["warploom"]
    times = {name: each.row() for name, each in sides.items()}
    return {**ratios, "tflops": flops / 1e6 / sides["warploom"].alone_us, "sides": times}


def line_of(row: Row) -> str:
    if "error" in row:
        return f"{row['label']:26} FAILED: {row['error']}"
    ours, cudnn = (row["sides"][name]["alone_us"] for name in ("warploom", "cudnn"))
    sides = f"{ours:.2f} µs, {row['tflops']:.0f} TFLOP/s; cuDNN {cudnn:.2f} µs"
    return f"{row['label']:26} alone {row['alone']:6.3f} cool {row['cool']:6.3f} to cuDNN  ({sides})"


def summary(rows: list[Row]) -> Row:
    right = good(rows)
    found: Row = {"layers": len(rows), "failed": len(rows) - len(right)}
    return found | ({how: mean_of(right, how) for how in ("alone", "cool")} if right else {})


def on_the_emulator() -> int:
    """Check that small layers of each kind are bit-exact."""
    failed = 0
    for layer in LAYERS[:1] + LAYERS[4:6]:
        small = replace(layer, extent=9, filters=24)
        each = small.arguments(Maker("cpu", exact=True), 2)
        given = {name: each[name].permute(0, 3, 1, 2) for name in each}
        warploom.conv2d(**given, **small.moves, target="sm_90a")
        is_right = torch.equal(each["out"], convolved(small, each, torch.float64).bfloat16())
        failed += not is_right
        print(f"{layer.name:26} {'right' if is_right else 'WRONG'}", flush=True)
    return failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", help="names of layers; rows of the others are kept")
    parser.add_argument("--images", type=int, default=32, help="images of a batch")
    add_protocol(parser)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no layer after this long")
    parser.add_argument("--machine", action="store_true", help="no GPU: on the emulator, not timed")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for JSON")
    asked = parser.parse_args(arguments)
    if asked.machine:
        return 1 if on_the_emulator() else 0
    torch.backends.cudnn.benchmark = True
    protocol, sensors, rng, started = Protocol.of(asked), Sensors(), random.Random(), time.monotonic()
    about = {"machine": machine(), **protocol.about(), "images": asked.images, "cudnn": torch.backends.cudnn.version()}
    table = Table("conv2d", about, line_of, summary, asked.out, is_lost=is_lost, adds=bool(asked.layers))
    try:
        for layer in [each for each in LAYERS if not asked.layers or each.name in asked.layers]:
            if time.monotonic() - started > asked.seconds:
                break
            key = {"label": layer.name, "images": asked.images}
            table.measure(key, lambda layer=layer: measured(layer, asked.images, protocol, sensors, rng))
    except GpuLostError as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if any("error" in row for row in table.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
