"""The targets: one row each, every limit with the document that states it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from warploom.diagnostics import Diag
from warploom.hardware.tmem import COLUMNS


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources and limits of one target."""

    target: str
    family: str
    """The family of descriptor and instruction formats: `sm_90` or `sm_100`."""
    first_ptx: tuple[int, int]
    """The first PTX version that knows the target."""
    sms: int
    shared_per_block: int
    shared_reserved: int
    shared_reserved_parts: tuple[int, int]
    """Offsets of the two parts given by %reserved_smem_offset_0 and _1; cooperative groups use the second."""
    shared_per_sm: int
    registers_per_sm: int
    threads_per_block: int
    largest_grid: tuple[int, int, int]
    largest_block: tuple[int, int, int]
    parameter_bytes: int
    """Bytes that all parameters of a kernel may take together."""
    local_per_thread: int
    threads_per_sm: int
    blocks_per_sm: int
    cluster_size: int
    cluster_size_nonportable: int
    named_barriers: int
    tensor_lanes: int
    tensor_columns: int
    has_wgmma: bool
    has_tcgen05: bool
    has_clc: bool
    setmaxnreg: range
    """The register counts that `setmaxnreg` takes."""
    registers_by_warp: bool
    """True if the warps of one warpgroup may request different counts with `setmaxnreg`."""
    barrier_count_limit: int
    barrier_tx_limit: int
    sources: tuple[str, ...]


L2_SECTOR, L2_LINE = 32, 128
"""Bytes of an L2 sector, and of an L2 cache line (CUDA C++ Best Practices Guide, global memory)."""
HEAP_BYTES = 8 << 20
"""Default size of the heap of `malloc` on the device (CUDA C++ Programming Guide, heap memory)."""
_ROOM_OF, _ROOM = 132, {3: 38, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 9: 9} | dict.fromkeys(range(10, 17), 7)
"""Clusters of each size that the SMs of an H200 can run at once: see below."""


def ctas_at_once(sms: int, cluster: int) -> int:
    """CTAs that run at once, one per SM, in clusters of the given size.

    A cluster lives in one GPC, and the SMs of a GPC are not a multiple of every cluster size: for an H200's 132 SMs
    the number comes from cuOccupancyMaxActiveClusters. GPCs differ from one H200 to the next: one has room for 39
    clusters of three, but on another kernels of more than 38 took longer than their work explains
    (bench/results/hopper_configurations.json). A persistent grid of more runs its last clusters when the first have
    ended.
    """
    if cluster < min(_ROOM):
        return sms
    return max(sms * _ROOM.get(cluster, 1) // _ROOM_OF, 1) * cluster


_GUIDE = "CUDA C++ Programming Guide, technical specifications per compute capability"

_SM_90A = Machine(
    target="sm_90a",
    family="sm_90",
    first_ptx=(8, 0),
    sms=132,
    shared_per_block=232448,
    shared_reserved=1024,
    shared_reserved_parts=(0, 512),
    shared_per_sm=233472,
    registers_per_sm=65536,
    threads_per_block=1024,
    largest_grid=((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1),
    largest_block=(1024, 1024, 64),
    parameter_bytes=32764,
    local_per_thread=512 << 10,
    threads_per_sm=2048,
    blocks_per_sm=32,
    cluster_size=8,
    cluster_size_nonportable=16,
    named_barriers=16,
    tensor_lanes=0,
    tensor_columns=0,
    has_wgmma=True,
    has_tcgen05=False,
    has_clc=False,
    setmaxnreg=range(24, 257, 8),
    registers_by_warp=False,
    barrier_count_limit=(1 << 20) - 1,
    barrier_tx_limit=(1 << 20) - 1,
    sources=(
        "sms: H100 SXM and H200 device properties",
        f"shared memory, registers, threads, blocks: {_GUIDE}, 9.0 (227 KB of 228 KB per block, 1 KB reserved)",
        f"grids, thread blocks, local memory per thread: {_GUIDE}",
        "parameters: PTX ISA 5.1.6.1 (32764 bytes from sm_70 and PTX 8.1 on)",
        "clusters: CUDA C++ Programming Guide, thread block clusters (8 portable, 16 with the non-portable attribute)",
        "named barriers: PTX ISA 9.7.13.1 (0..15)",
        "setmaxnreg: PTX ISA 9.7.20.5 (24..256, multiples of 8)",
        "PTX versions: PTX ISA 11.1.2, `.target`, and its table of releases",
        "mbarrier: PTX ISA 9.7.13.15.2 (count 1..2^20-1, transaction count ±(2^20-1))",
    ),
)

_SM_100A = replace(
    _SM_90A,
    target="sm_100a",
    family="sm_100",
    first_ptx=(8, 6),
    sms=148,
    tensor_lanes=128,
    tensor_columns=COLUMNS,
    has_wgmma=False,
    has_tcgen05=True,
    has_clc=True,
    registers_by_warp=True,
    sources=(
        "sms: B200 device properties",
        f"shared memory, registers, threads, blocks: {_GUIDE}, 10.0 (the numbers of 9.0)",
        *_SM_90A.sources[2:],
        "TMEM: PTX ISA 9.7.16.1 (128 lanes, 512 columns of 32 bits)",
        "registers by warp: PTX ISA 9.7.20.5 forbids it; CUTLASS's FMHA and CuTe DSL's mixed GEMM for sm_100 do it",
    ),
)

_EARLIER = {
    "sm_50": (4, 0),
    "sm_52": (4, 1),
    "sm_53": (4, 2),
    "sm_60": (5, 0),
    "sm_61": (5, 0),
    "sm_62": (5, 0),
    "sm_70": (6, 0),
    "sm_72": (6, 1),
    "sm_75": (6, 3),
    "sm_80": (7, 0),
    "sm_86": (7, 1),
    "sm_87": (7, 4),
    "sm_88": (9, 0),
    "sm_89": (7, 8),
    "sm_90": (7, 8),
}
"""PTX for an earlier target runs on later hardware (PTX ISA 11.1): these run with the limits of sm_90."""

MACHINES: dict[str, Machine] = {
    **{
        target: replace(_SM_90A, target=target, first_ptx=version, has_wgmma=False, setmaxnreg=range(0))
        for target, version in _EARLIER.items()
    },
    "sm_90a": _SM_90A,
    "sm_100": replace(_SM_100A, target="sm_100", has_tcgen05=False, setmaxnreg=range(0)),
    "sm_100f": replace(_SM_100A, target="sm_100f", first_ptx=(8, 8)),
    "sm_100a": _SM_100A,
    "sm_103": replace(_SM_100A, target="sm_103", first_ptx=(8, 8), has_tcgen05=False, setmaxnreg=range(0)),
    "sm_103f": replace(_SM_100A, target="sm_103f", first_ptx=(8, 8)),
    "sm_103a": replace(_SM_100A, target="sm_103a", first_ptx=(8, 8)),
}
"""Every `.target` that the emulator accepts. Without a suffix a target lacks the features of `a` (and `f`) targets."""

KERNEL_TARGETS: dict[tuple[int, int], str] = {(10, 0): "sm_100a", (10, 3): "sm_103a", (9, 0): "sm_90a"}
"""The targets that the library has kernels for, by the compute capability on which code for an `a` target runs."""

_WITHOUT_KERNELS = {
    12: "which has neither wgmma nor tcgen05 and TMEM",
    11: "whose tensor core is of another family than that of 10.x",
}
"""Why there are no kernels for the compute capabilities of a major version (PTX ISA 11.1.2, 9.7.16; ptxas)."""


def target_of(capability: tuple[int, int]) -> str | None:
    """The target with everything that GPUs of a compute capability have, if there are kernels for it."""
    return KERNEL_TARGETS.get(capability)


def reason_unsupported(capability: tuple[int, int]) -> str:
    """Why there are no kernels for a compute capability, as the end of a sentence that names it."""
    known = ", ".join(f"{major}.{minor}" for major, minor in sorted(KERNEL_TARGETS))
    why = "which is older than Hopper" if capability < min(KERNEL_TARGETS) else _WITHOUT_KERNELS.get(capability[0], "")
    return f"compute capability {capability[0]}.{capability[1]}{f', {why}' if why else ''}; kernels are for {known}"


def machine(target: str) -> Machine:
    """The row of a `.target` name."""
    try:
        return MACHINES[target]
    except KeyError:
        needs = f"a target from {next(iter(_EARLIER))} to sm_90, or one of {', '.join(list(MACHINES)[len(_EARLIER) :])}"
        raise Diag.WRONG_TARGET.error(text="the emulator", needs=needs, target=target) from None
