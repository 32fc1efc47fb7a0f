"""PTX instructions that the table deliberately leaves out, with the reasons."""

from __future__ import annotations

_SPARSE = "a sparse multiplication, whose metadata layout the manual gives in figures only"
_OUTSIDE = {
    **dict.fromkeys(("tex", "tld4", "txq", "istypep"), "textures are for graphics"),
    **dict.fromkeys(("suld", "sust", "sured", "suq"), "surfaces are for graphics"),
    **dict.fromkeys(("mma.sp", "mma.sp::ordered_metadata", "wgmma.mma_async.sp", "tcgen05.mma.sp"), _SPARSE),
    "tcgen05.mma.ws.sp": _SPARSE,
    "cvt.rs": "stochastic rounding, whose random bits the manual gives in figures only",
    "mma.sync.aligned.m8n8k4": "Volta's multiplication by quarters of a warp; use m16n8k8 instead",
    "mma.sync.aligned.kind::f8f6f4.sp::ordered_metadata": _SPARSE,
    **dict.fromkeys(
        ("alloca", "stacksave", "stackrestore"),
        "local memory whose size is known at run time only (`alloca` of CUDA); declare an array of the largest size",
    ),
    "multimem": "memory shared by several GPUs; the emulator is one GPU",
    **dict.fromkeys(
        (f"v{name}" for name in ("add", "sub", "absdiff", "min", "max", "shl", "shr", "mad", "set")),
        "a scalar video instruction, which the hardware only emulates",
    ),
}
"""The reasons, by the leading words of the opcode."""
_MOST_WORDS = max(name.count(".") + 1 for name in _OUTSIDE)


def why_outside(opcode: str) -> str:
    """The reason why an opcode has no form; empty if it was not left out on purpose."""
    words = opcode.split(".", _MOST_WORDS)[:_MOST_WORDS]
    return next((why for n in range(len(words), 0, -1) if (why := _OUTSIDE.get(".".join(words[:n])))), "")
