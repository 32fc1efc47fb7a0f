"""Four wrong kernels, and how warploom reports each.

One role copies rows to shared memory, another doubles them, with a ring of two stages between them. Each mistake would
hang a GPU without a message. Three are errors at trace time, at the line that is wrong; the fourth is a wrong byte count,
which the emulator reports as a deadlock, with who waits for what.
"""

from __future__ import annotations

import numpy as np

import warploom as wl
from warploom.structured import Bytes, EveryThread, ProducerConsumerPipeline
from warploom.trace import Array, f32, kernel, loop, s32, shared, warp_roles, when
from warploom.trace.isa import cp

ROW = 128


@kernel(target="sm_90a")
def doubled(x: wl.TensorMap, y: Array[f32], rows: s32, *, mistake: str) -> None:
    """Y = 2·X, row by row."""
    roles = warp_roles(load=1, double=4)
    ring = shared(f32, (2, ROW), name="ring")
    stages = ProducerConsumerPipeline(2, producer=Bytes(roles.load), consumer=EveryThread(roles.double), name="stages")

    with roles.load:
        for row in loop(rows):
            with stages.produce() as stage, when(roles.load.elected):
                announced = 2 * x.box_bytes if mistake == "bytes that never arrive" else x.box_bytes
                stage.expect_bytes(announced)
                cp.async_bulk_tensor_load(ring[stage.index()], x.at(row, 0), stage.mbar())

    with roles.double:
        column = roles.double.thread
        for row in loop(rows):
            stage = stages.acquire_consumer()
            y[row, column] = ring[stage.index(), column] * 2.0
            if mistake == "a release that some threads skip":
                with when(column < 100):
                    stage.release()
            elif mistake == "a stage used after its release":
                stage.release()
                y[row, column] = ring[stage.index(), column]
            elif mistake != "a stage that is never released":
                stage.release()


def attempt(mistake: str) -> wl.WarploomError | None:
    """Return the error that a mistake leads to."""
    x = np.random.default_rng().random((5, ROW), np.float32)
    y = np.full_like(x, np.nan)
    source = wl.TensorMap(x, box=(1, ROW))
    try:
        wl.launch(doubled.bind(source, y, 5, grid=(1, 1, 1), block=(160, 1, 1), mistake=mistake))
    except wl.WarploomError as error:
        return error
    assert np.array_equal(y, 2 * x)
    return None


def main() -> None:
    assert attempt("none") is None
    expected = {
        "a stage that is never released": "STAGE_DROPPED",
        "a release that some threads skip": "STAGE_RELEASED_CONDITIONALLY",
        "a stage used after its release": "STAGE_AFTER_RELEASE",
        "bytes that never arrive": "DEADLOCK",
    }
    for mistake, code in expected.items():
        error = attempt(mistake)
        assert error is not None
        assert error.code == code
        assert "wrong_kernel.py" in str(error), "the author's line"
        print(f"{mistake}:\n{error}\n")
    report = str(error)
    for words in ("stages.full[0]", "512", "load", "double"):
        assert words in report, words


if __name__ == "__main__":
    main()
