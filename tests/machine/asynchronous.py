"""A small harness for kernels with barriers and copies: registers, named shared memory, a predicate for thread 0."""

from __future__ import annotations

from typing import Any

from warploom import launch
from warploom.diagnostics import WarploomError
from warploom.launcher import Run

SCHEDULES = (("eager", 0), ("lazy", 0), ("reverse", 0), ("random", 1), ("random", 2), ("random", 3))

_TEXT = """
.version 8.8
.target {target}
.address_size 64
.visible .entry k({params})
{{
 .reg .pred %p<16>; .reg .pred %first, %leader; .reg .b16 %h<8>; .reg .b32 %r<64>;
 .reg .b32 %thread, %lane, %warp, %rank; .reg .f32 %f<8>; .reg .b64 %rd<32>; .reg .b128 %q<4>;
 .shared .align 1024 .b8 data[{data}];
 .shared .align 128 .b8 bars[{bars}];
 {notes}
 mov.u32 %thread, %tid.x; and.b32 %lane, %thread, 31; shr.u32 %warp, %thread, 5; mov.u32 %rank, %cluster_ctarank;
 setp.eq.u32 %first, %thread, 0;
 setp.eq.u32 %leader, %lane, 0;
 {body}
 ret;
}}
"""
_KINDS = {"map": ".param .align 64 .b8 {}[128]", "ptr": ".param .u64 {}", "int": ".param .u32 {}"}

INIT = "@%first mbarrier.init.shared::cta.b64 [bars{0}], {1};"
SPIN = "{label}: mbarrier.try_wait.parity.shared::cta.b64 %p15, [{address}], {parity}; @!%p15 bra {label};"


def init(*counts: int) -> str:
    """Thread 0 initialises barriers at `bars`, `bars+8`, … and the CTA synchronises."""
    return " ".join(INIT.format(f"+{8 * i}", count) for i, count in enumerate(counts)) + " bar.sync 0;"


def wait(label: str, address: str = "bars", parity: int | str = 0) -> str:
    """Spin until the phase with a parity has completed."""
    return SPIN.format(label=label, address=address, parity=parity)


def text(
    body: str, params: str = "", *, target: str = "sm_90a", data: int = 4096, bars: int = 128, notes: str = ""
) -> str:
    """A kernel; `params` are words such as `map:a ptr:out int:n`."""
    given = [_KINDS[kind].format(name) for kind, name in (word.split(":") for word in params.split())]
    return _TEXT.format(target=target, params=", ".join(given), body=body, data=data, bars=bars, notes=notes)


def run(
    body: str,
    params: str = "",
    args: tuple[Any, ...] = (),
    *,
    block: int = 32,
    grid: int = 1,
    cluster: int = 1,
    target: str = "sm_90a",
    data: int = 4096,
    notes: str = "",
    **options: Any,
) -> Run:
    """Launch such a kernel."""
    options.setdefault("limit", 2_000_000)
    ptx = text(body, params, target=target, data=data, notes=notes)
    return launch(ptx, grid=(grid, 1, 1), block=(block, 1, 1), cluster=(cluster, 1, 1), args=args, **options)


def fault(body: str, params: str = "", args: tuple[Any, ...] = (), **options: Any) -> WarploomError:
    """The error that a launch raises."""
    try:
        run(body, params, args, **options)
    except WarploomError as error:
        return error
    raise AssertionError("the launch ended without an error")
