"""im2col maps and descriptors of Gluon's convolution; `python -m tests.foreign.convolutions CHECKOUT`.

CHECKOUT is one of Triton's repository, whose example of a forward convolution is run on the emulator. The script writes
the tensor map of the images, and the descriptors that reach the tensor core, to `convolutions.json`. It needs Triton, no
GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.foreign.descriptors import recorded

from warploom.triton import machine

FILE = Path(__file__).with_name("convolutions.json")
EXAMPLE = Path("python/examples/gluon/02-conv-fprop.py")
CONVOLUTIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, int]], ...] = (
    ((2, 9, 7, 64), (64, 3, 3, 64), {"stride": 1, "padding": 1}),
    ((2, 13, 9, 72), (40, 2, 2, 72), {"stride": 1, "padding": 0}),
    ((2, 17, 13, 128), (64, 7, 7, 128), {"stride": 2, "padding": 3}),
    ((2, 10, 8, 64), (64, 3, 3, 64), {"stride": 2, "padding": 1}),
    ((3, 11, 14, 64), (64, 1, 1, 64), {"stride": 3, "padding": 0}),
)
"""Shapes of images and filters, and the moves of the filter. In the last two some pixels are left over."""


def example(checkout: Path) -> Any:
    spec = importlib.util.spec_from_file_location("gluon_convolution", checkout / EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def run(program: Any, images: tuple[int, ...], filters: tuple[int, ...], moves: dict[str, int]) -> None:
    """Run one convolution; its result is that of PyTorch."""
    import torch

    x, w = (torch.randint(-2, 3, shape, device="cuda").bfloat16() for shape in (images, filters))
    got = program.conv2d_fprop_fixed(x, w, **moves)
    want = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).double(), w.permute(0, 3, 1, 2).double(), **moves)
    assert torch.equal(got, want.permute(0, 2, 3, 1).bfloat16())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    checkout, rows = parser.parse_args().checkout, []
    for shape, filters, moves in CONVOLUTIONS:
        with tempfile.TemporaryDirectory() as folder, machine(target="sm_100", record=Path(folder)):
            program = example(checkout)
            found = recorded(lambda given=(program, shape, filters, moves): run(*given))
            (file,) = Path(folder).glob("*.launch.json")
            images = json.loads(file.read_text("utf-8"))["args"][0]
        kept = {name: value for name, value in images.items() if name not in ("tensor_map", "offset")}
        rows.append(
            {"images": shape, "filters": filters, **moves, "map": kept, "mmas": found["mmas"], "steps": found["steps"]}
        )
    FILE.write_text(json.dumps({"compiler": f"Triton {version('triton')}", "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
