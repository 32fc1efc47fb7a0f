"""The instruction set, one table per family."""

from warploom.ptx.isa import arithmetic, barriers, clc, control, copies, matrices, mbarrier, memory, mma, tcgen05, tma, warp, wgmma
from warploom.ptx.isa.table import FORMS, Effect, Form, Op, Slot, decode, decode_kernel, form, match, nearest, unsupported

__all__ = ["FORMS", "Effect", "Form", "Op", "Slot", "decode", "decode_kernel", "form", "match", "nearest", "unsupported"]
