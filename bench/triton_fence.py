"""A real bug: one matmul compiled by releases of Triton, of which the older ones leave out a proxy fence.

    pip install --no-deps --target OLD triton==3.7.0
    pip install --no-deps --target NEW triton==3.7.1
    python bench/triton_fence.py OLD NEW                                             the two of the demo
    python bench/triton_fence.py --targets 90,100 --to tests/checker/triton_fence 3.3.1/ 3.4.0/ …     those of the tests

writes the PTX of each, and a launch file, to src/warploom/data or another folder. Triton 3.7.0 copies the operands to shared
memory with cp.async, through the generic proxy, and tcgen05.mma reads them through the async proxy with no
fence.proxy.async in between; 3.7.1 has the fence.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parents[1] / "src" / "warploom" / "data"
M, N, K = 128, 128, 256
BLOCK = {"BM": 128, "BN": 128, "BK": 64}
PARAMETERS = ("a", "b", "c", "a_row", "b_row", "c_row", "k_size")


def compile_kernel(arch: int) -> dict[str, object]:
    """Compile the kernel with the Triton that is imported; its PTX and what a launch needs."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    globals()["tl"] = tl  # Triton 3.3 looks names up in the module only

    @triton.jit
    def matmul(a, b, c, a_row, b_row, c_row, k_size, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        rows = tl.program_id(0) * BM + tl.arange(0, BM)
        columns = tl.program_id(1) * BN + tl.arange(0, BN)
        inner = tl.arange(0, BK)
        left = a + rows[:, None] * a_row + inner[None, :]
        right = b + inner[:, None] * b_row + columns[None, :]
        sums = tl.zeros((BM, BN), dtype=tl.float32)
        for _ in range(0, k_size, BK):
            sums = tl.dot(tl.load(left), tl.load(right), sums)
            left += BK
            right += BK * b_row
        tl.store(c + rows[:, None] * c_row + columns[None, :], sums.to(tl.bfloat16))

    types = {name: "*bf16" if len(name) == 1 else "i32" for name in PARAMETERS}
    source = ASTSource(
        fn=matmul,
        signature=types | dict.fromkeys(BLOCK, "constexpr"),
        constexprs=BLOCK,
        attrs={(number,): [["tt.divisibility", 16]] for number in range(len(PARAMETERS))},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_stages": 3, "num_warps": 4})
    return {
        "version": triton.__version__,
        "arch": arch,
        "ptx": compiled.asm["ptx"],
        "shared": compiled.metadata.shared,
        "threads": 32 * compiled.metadata.num_warps,
    }


def write(made: dict[str, object], folder: Path) -> None:
    """Write the PTX, with this file's name in place of its path, and a launch file."""
    stem = f"matmul_triton{str(made['version']).replace('.', '')}_sm{made['arch']}"
    text = re.sub(r'(\.file\s+\d+) "[^"]*"(?: "[^"]*")?', rf'\1 "{Path(__file__).name}"', str(made["ptx"]))
    text = text.partition("\t.section")[0]  # DWARF, which holds the path too
    (folder / f"{stem}.ptx").write_text(text, "utf-8")
    scratch = text.partition(")")[0].count(".param") - len(PARAMETERS)  # hidden pointers, whose number grew
    integers = {"init": {"integers": [-3, 3]}}
    document = {
        "ptx": f"{stem}.ptx",
        "entry": "matmul",
        "grid": [M // BLOCK["BM"], N // BLOCK["BN"], 1],
        "block": [made["threads"], 1, 1],
        "shared_bytes": made["shared"],
        "seed": 1,
        "buffers": {
            "a": {"dtype": "bfloat16", "shape": [M, K], **integers},
            "b": {"dtype": "bfloat16", "shape": [K, N], **integers},
            "c": {"dtype": "bfloat16", "shape": [M, N], "output": True},
        },
        "args": [
            *({"pointer": name} for name in "abc"),
            *({"s32": value} for value in (K, N, N, K)),
            *({"u64": 0} for _ in range(scratch)),
        ],
        "compare": [{"expr": "c == a @ b", "rtol": 0.01, "atol": 0.01}],
        "expect": f"c = a @ b, as Triton {made['version']} compiles it",
    }
    (folder / f"{stem}.launch.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", help="folders with a release of Triton each")
    parser.add_argument("--targets", default="100", help="compute capabilities: 90,100")
    parser.add_argument("--to", type=Path, default=DATA)
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.compile:
        print(json.dumps(compile_kernel(asked.compile)))
        return
    asked.to.mkdir(parents=True, exist_ok=True)
    for directory in asked.releases:
        for arch in asked.targets.split(","):
            environment = {**os.environ, "PYTHONPATH": directory, "TRITON_ALWAYS_COMPILE": "1"}
            command = [sys.executable, __file__, "--compile", arch]
            done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            made = json.loads(done.stdout)
            write(made, asked.to)
            print(made["version"], arch, "fences:", made["ptx"].count("fence.proxy.async"))


if __name__ == "__main__":
    main()
