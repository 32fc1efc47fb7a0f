"""A user's launches of PTX text, right ones and wrong ones."""

import numpy as np
from numpy.typing import NDArray

from warploom import Launch, LaunchError, Run, Stuck, TensorMap, __version__, launch
from warploom.launch_file import load
from warploom.machine.observers.events import Event


class Counter:
    """An observer."""

    def __init__(self) -> None:
        self.seen = 0

    def on_event(self, event: Event) -> None:
        self.seen += 1


def shapes(text: str, x: NDArray[np.float32]) -> Run:
    launch(text, grid=8, block=128, args=[x, 1000])
    launch(text, grid=(8,), block=(128, 1), args=(x, TensorMap(x, box=(64,))), progress=False)
    run = launch(text, grid=(8, 1, 1), block=(128, 1, 1), schedule="lazy", observers=[Counter()], limit=1 << 20)
    moved: int = run.bytes_moved["global->shared"]
    assert moved < run.instructions < run.wall_seconds * 1e9
    return run


def files(name: str) -> str:
    file = load(name)
    whole: Launch = file.launch()
    try:
        launch(whole, schedule="random", seed=3)
    except (LaunchError, Stuck) as error:
        return f"{__version__}: {error.code} {error.what} {error.advice}"
    return ""


def wrong(text: str) -> None:
    launch(text, grid="8", block=128)  # error
    launch(text, grid=8, block=128, schedule=3)  # error
    launch(text, grid=8, block=128, limit="x")  # error
    launch(text, grid=8, block=128, observers=[1])  # error
    launch(text, grid=8, block=128, patients=3.0)  # error
    launch(text.encode(), grid=8, block=128)  # error
    launch(text, 8, 128)  # error
    print(launch(text, grid=8, block=128).instruction)  # error
