"""The demo's real case: one matmul compiled by two releases of Triton, of which the first leaves out a proxy fence.

    pip install --no-deps --target OLD triton==3.7.0
    pip install --no-deps --target NEW triton==3.7.1
    python bench/triton_fence.py OLD NEW

writes the PTX of both, and a launch file for each, to src/warploom/data. Triton 3.7.0 copies the operands to shared
memory with cp.async, through the generic proxy, and tcgen05.mma reads them through the async proxy with no
fence.proxy.async in between; 3.7.1 has the fence.
"""

from __future__ import annotations

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


def compile_kernel() -> dict[str, object]:
    """Compile the kernel with the Triton that is imported; its PTX and what a launch needs."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

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
    compiled = triton.compile(source, target=GPUTarget("cuda", 100, 32), options={"num_stages": 3, "num_warps": 4})
    return {
        "version": triton.__version__,
        "ptx": compiled.asm["ptx"],
        "shared": compiled.metadata.shared,
        "threads": 32 * compiled.metadata.num_warps,
    }


def write(made: dict[str, object]) -> None:
    """Write the PTX, with this file's name in place of its path, and a launch file."""
    stem = f"matmul_triton{str(made['version']).replace('.', '')}_sm100"
    text = re.sub(r'(\.file\s+\d+) "[^"]*"(?: "[^"]*")?', rf'\1 "{Path(__file__).name}"', str(made["ptx"]))
    text = text.partition("\t.section")[0]  # DWARF, which holds the path too
    (DATA / f"{stem}.ptx").write_text(text, "utf-8")
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
            {"u64": 0},
            {"u64": 0},
        ],
        "compare": [{"expr": "c == a @ b", "rtol": 0.01, "atol": 0.01}],
        "expect": f"c = a @ b, as Triton {made['version']} compiles it",
    }
    (DATA / f"{stem}.launch.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def main() -> None:
    for directory in sys.argv[1:]:
        environment = {**os.environ, "PYTHONPATH": directory, "TRITON_ALWAYS_COMPILE": "1"}
        done = subprocess.run(
            [sys.executable, __file__], env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        made = json.loads(done.stdout)
        write(made)
        print(made["version"], "fences:", made["ptx"].count("fence.proxy.async"))
    if not sys.argv[1:]:
        print(json.dumps(compile_kernel()))


if __name__ == "__main__":
    main()
