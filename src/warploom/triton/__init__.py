"""Triton and Gluon programs on the CPU emulator: `with warploom.triton.machine(): kernel[grid](…)`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warploom.triton.children.environment import leave
from warploom.triton.options import Options, check_installed

if TYPE_CHECKING:
    from warploom.triton.session import Session

__all__ = ["machine"]


@contextmanager
def machine(
    target: str = "sm_90",
    schedule: str | Any = "eager",
    sms: int | None = None,
    check: bool | str = False,
    *,
    seed: int = 0,
    autotune: str = "first",
    bench: bool = False,
    limit: int | None = None,
    record: str | Path | None = None,
    budget: int = 16,
) -> Iterator[Session]:
    """Run every `kernel[grid](…)` of Triton or Gluon in the `with` block on the CPU emulator.

    Tensors may be on the CPU, or be created with `device="cuda"`, which is mapped to the host inside the block; so are
    the queries of `torch.cuda`. `target` names the GPU to emulate (sm_90, sm_100, …), `sms` its number of SMs (by
    default that of the hardware), `schedule`, `seed` and `limit` are those of `warploom.launch`. `schedule="explore"`
    runs each launch under up to `budget` schedules, continues with the results of the eager one, and raises
    `CheckError` where others differ.

    `check=True` checks every launch before it runs, on copies of its tensors, under the profile `strict`; `"lenient"`
    names the other one. The session has the reports, and leaving the block raises `CheckError` if one is REFUTED.

    `autotune="first"` takes the first configuration that fits the hardware, `"all"` runs each once and compares
    emulation times. Without `bench`, `triton.testing.do_bench` calls its function once and `perf_report(…).run`
    returns at once. `record` is a directory that receives a launch file for each launch. The block yields a `Session`
    with `launches`, one entry for each launch. Everything is restored when the block ends; blocks do not nest.
    """
    options = Options.checked(
        target=target, schedule=schedule, sms=sms, check=check, seed=seed, autotune=autotune, bench=bench, limit=limit,
        record=record, budget=budget,
    )  # fmt: skip
    leave()
    check_installed()
    from warploom.triton.session import Session

    with Session(options).active() as session:
        yield session
    if not session.raises_at_launch:
        session.raise_refuted()
