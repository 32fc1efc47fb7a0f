"""Instructions that the table leaves out, and why."""

from __future__ import annotations

_SPARSE = "a sparse multiplication, whose metadata the manual lays out in figures only"
_OUTSIDE = {
    **dict.fromkeys(("tex", "tld4", "txq", "istypep"), "textures are for graphics"),
    **dict.fromkeys(("suld", "sust", "sured", "suq"), "surfaces are for graphics"),
    **dict.fromkeys(("mma.sp", "mma.sp::ordered_metadata", "wgmma.mma_async.sp", "tcgen05.mma.sp"), _SPARSE),
    "tcgen05.mma.ws.sp": _SPARSE,
    "cvt.rs": "stochastic rounding, whose random bits the manual lays out in figures only",
    "mma.sync.aligned.m8n8k4": "Volta's multiplication by quarters of a warp; m16n8k8 is its like",
    "mma.sync.aligned.kind::f8f6f4.sp::ordered_metadata": _SPARSE,
    "multimem": "memory that several GPUs share; the machine is one GPU",
    **dict.fromkeys(
        (f"v{name}" for name in ("add", "sub", "absdiff", "min", "max", "shl", "shr", "mad", "set")),
        "a scalar video instruction, which hardware only emulates",
    ),
}
"""Instructions of PTX that no form of the table stands for, by the words that begin them, and why."""


def why_outside(opcode: str) -> str:
    """Why there is no form of an opcode; empty where nobody meant to leave it out."""
    words = opcode.split(".")
    return next((why for n in range(len(words), 0, -1) if (why := _OUTSIDE.get(".".join(words[:n])))), "")
