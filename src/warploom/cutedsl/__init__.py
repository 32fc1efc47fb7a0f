"""CuTe DSL programs on the CPU emulator: `with warploom.cutedsl.machine(): …`.

CuTe DSL is NVIDIA's, and the user installs it; warploom neither needs nor installs it. Its host code calls CUDA through
a small library that a setting names: the block puts a stand-in there, whose launches run the PTX that CuTe DSL
writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warploom.cutedsl.options import Options

if TYPE_CHECKING:
    from warploom.cutedsl.session import Session

__all__ = ["machine"]


@contextmanager
def machine(
    target: str = "sm_100a",
    schedule: str | Any = "eager",
    sms: int | None = None,
    *,
    seed: int = 0,
    limit: int | None = None,
    ptx: str | Path | None = None,
) -> Iterator[Session]:
    """Run the launches of CuTe DSL in the `with` block on the CPU emulator.

    Enter the block before `cutlass.cute` is imported: CuTe DSL reads its settings then. `target` is the architecture
    that it compiles for, `sms` the number of SMs that the program sees, `schedule`, `seed` and `limit` are those of
    `warploom.launch`. The PTX goes to the folder `ptx`, or to a temporary one. Arguments may be arrays of NumPy and
    tensors of PyTorch on the CPU; where PyTorch is installed, `device="cuda"` is mapped to the host.

    An error of a launch is raised by `Session.check`, and at the end of the block: the host code of CuTe DSL does not
    pass exceptions on. No launch runs after it. The block yields a `Session` with `launches`.
    """
    options = Options.checked(target=target, schedule=schedule, sms=sms, seed=seed, limit=limit, ptx=ptx)
    from warploom.cutedsl.session import Session

    with Session(options).active() as session:
        yield session
