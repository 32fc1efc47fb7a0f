"""`warploom demo`: two matmuls that another compiler made, one for Hopper and one for Blackwell, on this CPU."""

from __future__ import annotations

from importlib import resources

from warploom.commands.console import output, progress_bar
from warploom.commands.run import Settings, execute, show
from warploom.launch_file import load

CASES = (
    ("Hopper (sm_90a): TMA loads, warpgroup MMA, TMA store", "matmul_tma_sm90.launch.json"),
    ("Blackwell (sm_100a): persistent, warp-specialised, tensor memory", "matmul_persistent_sm100.launch.json"),
)


def demo() -> bool:
    """Runs both and compares them with NumPy; says whether the numbers were right."""
    console = output()
    right = True
    with resources.as_file(resources.files("warploom") / "data") as folder:
        for title, name in CASES:
            console.print(f"{title}\n", style="bold")
            file = load(folder / name)
            with progress_bar(name) as on_progress:
                outcome = execute(file, Settings(), on_progress)
            show(outcome)
            right = right and outcome.ok
    return right
