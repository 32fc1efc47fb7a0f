"""Python in, PTX out: the author's function runs once, on symbols, and what it does is the kernel."""

from warploom.trace.barriers import (
    Barrier,
    Barriers,
    barriers,
    fence_barrier_init,
    named_arrive,
    named_sync,
    sync_threads,
)
from warploom.trace.control import While, loop, otherwise, when
from warploom.trace.descriptors import matrix_descriptor
from warploom.trace.fragments import (
    Accumulator,
    Fragment,
    tensor_load,
    tensor_store,
    unpacked,
    wgmma_accumulator,
)
from warploom.trace.instructions import At, emit
from warploom.trace.kernel import KernelFunction, kernel
from warploom.trace.mathematics import (
    cos,
    erf,
    exp,
    exp2,
    fast_tanh,
    gelu,
    gelu_tanh,
    log,
    log2,
    reciprocal,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sin,
    sqrt,
    squared_relu,
    tanh,
)
from warploom.trace.memory import TensorMemory, View, shared
from warploom.trace.operations import (
    abs_,
    clamp,
    fma,
    max_,
    merge,
    min_,
    pack,
    round_pair,
    sign_select,
    split,
    unpack,
    widening_product,
)
from warploom.trace.parameters import Array, TensorMapArgument
from warploom.trace.roles import Role, Roles, warp_roles
from warploom.trace.types import (
    bf16,
    bf16x2,
    f16,
    f16x2,
    f32,
    f64,
    pred,
    s8,
    s16,
    s32,
    s64,
    u8,
    u16,
    u32,
    u64,
)
from warploom.trace.values import Value, literal, select, special
from warploom.trace.variables import Variable
from warploom.trace.warps import ballot, cta_index, elect, lane, shuffle, thread, vote_all, vote_any, warp_index

__all__ = [
    "Accumulator", "Array", "At", "Barrier", "Barriers", "Fragment", "KernelFunction", "Role", "Roles",
    "TensorMapArgument", "TensorMemory", "Value", "Variable", "View", "While", "abs_", "ballot", "barriers", "bf16",
    "bf16x2", "clamp", "cos", "cta_index", "elect", "emit", "erf", "exp", "exp2", "f16", "f16x2", "f32", "f64",
    "fast_tanh", "fence_barrier_init", "fma", "gelu", "gelu_tanh", "kernel", "lane", "literal", "log", "log2", "loop",
    "matrix_descriptor", "max_", "merge", "min_", "named_arrive", "named_sync", "otherwise", "pack", "pred", "reciprocal", "relu",
    "round_pair", "rsqrt", "s8", "s16", "s32", "s64", "select", "shared", "shuffle", "sigmoid", "sign_select", "silu",
    "sin", "special", "split", "sqrt", "squared_relu", "sync_threads", "tanh", "tensor_load", "tensor_store", "thread",
    "u8", "u16", "u32", "u64", "unpack", "unpacked", "vote_all", "vote_any", "warp_index", "warp_roles",
    "wgmma_accumulator", "when", "widening_product",
]  # fmt: skip
