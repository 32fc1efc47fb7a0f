"""Recorded launches: `warploom run` replays them, and reports a difference from the recorded results."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import numpy as np  # noqa: E402
from tests.triton import kernels  # noqa: E402

from warploom.cli import main  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402
from warploom.launch_file import load  # noqa: E402
from warploom.triton import machine  # noqa: E402


def replayed(folder, *options):
    files = sorted(str(file) for file in folder.glob("*.launch.json"))
    assert files
    return main(["run", *options, *files])


def test_a_recorded_launch_replays(tmp_path, capsys):
    with machine(record=tmp_path):
        whole, out = torch.randn(300, device="cuda"), torch.full((100,), float("nan"))
        kernels.add[(1,)](whole[3:103], whole[150:250], out, 100, BLOCK=128)
    assert replayed(tmp_path) == 0
    file = load(tmp_path / "000_add.launch.json")
    assert file.buffers[0].shape == (300,)
    assert np.array_equal(file.allocate()["buffer0"].view(np.float32), whole.numpy())
    # The recorded result decides: with another one the replay is a mismatch.
    after = tmp_path / "000_add.buffer1_after.bin"
    data = bytearray(after.read_bytes())
    data[5] ^= 1
    after.write_bytes(data)
    assert replayed(tmp_path) == 1
    assert "1 of 100" in capsys.readouterr().out


def test_every_kind_of_argument(tmp_path):
    from triton.tools.tensor_descriptor import TensorDescriptor

    with machine(record=tmp_path, target="sm_100"):
        a = torch.randint(-3, 4, (64, 64), device="cuda").bfloat16()
        c = torch.full((64, 64), float("nan"), dtype=torch.bfloat16, device="cuda")
        made = [TensorDescriptor.from_tensor(each, [64, 64]) for each in (a, a, c)]
        kernels.descriptor_matmul[(1, 1)](*made, 64, 64, 64, BM=64, BN=64, BK=64)
        x, out = torch.randn(20, device="cuda"), torch.full((20,), float("nan"), device="cuda")
        kernels.weighted[(1,)]((x, (x, 2)), out, (float("inf"), -0.5), 20, BLOCK=32)
        rows = [torch.randn(64, device="cuda") for _ in range(3)]
        table = torch.tensor([row.data_ptr() for row in rows], device="cuda")
        gathered = torch.full((3, 64), float("nan"), device="cuda")
        kernels.gather_rows[(3,)](table, gathered, BLOCK=64)
    assert len(list(tmp_path.glob("*.launch.json"))) == 3
    assert replayed(tmp_path) == 0
    assert replayed(tmp_path, "--schedule", "lazy") == 0


def test_scratch_memory_is_not_compared(tmp_path):
    """The kernel makes tensor maps there, with the addresses of one run."""
    with machine(record=tmp_path, sms=2):
        triton.set_allocator(lambda size, alignment, stream: torch.zeros(size, dtype=torch.int8, device="cuda"))
        a = torch.randint(-3, 4, (64, 64), device="cuda").half()
        c = torch.full((64, 64), float("nan"), device="cuda").half()
        kernels.device_descriptor_matmul[(1,)](a, a, c, 64, 64, 64, BM=64, BN=64, BK=64)
        assert torch.equal(c, (a.float() @ a.float().T).half())
    assert replayed(tmp_path) == 0
    file = load(next(tmp_path.glob("*.launch.json")))
    assert len(file.comparisons) == 1


def test_a_launch_that_faults_is_recorded_too(tmp_path):
    with pytest.raises(WarploomError), machine(record=tmp_path):
        kernels.out_of_bounds[(1,)](torch.ones(4), BLOCK=16)
    assert replayed(tmp_path) == 2


def test_a_file_in_place_of_a_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WarploomError) as caught, machine(record=tmp_path / "file"):
        pytest.fail("the program has started")
    assert caught.value.code == "BAD_ARGUMENTS"


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WarploomError) as caught, machine(record=tmp_path / "file" / "below"):
        kernels.add[(1,)](torch.ones(8), torch.ones(8), torch.ones(8), 8, BLOCK=16)
    assert caught.value.code == "UNWRITABLE_FILE"


def test_exploring_finds_a_lost_update_and_records_the_schedule(tmp_path):
    """Four programs add to one element without an atomic: `eager` gets it right, another schedule does not."""
    counter = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(WarploomError) as caught, machine(record=tmp_path, schedule="explore"):
        kernels.count[(4,)](counter)
    assert counter.item() == 4  # the results of the eager run
    assert caught.value.code == "SCHEDULE_DEPENDENT"
    assert "element 0 of argument 0, counter: int32[1] is 1, under `eager` 4" in caught.value.what
    assert replayed(tmp_path, "--schedule", "eager") == 0
    assert replayed(tmp_path, "--schedule", str(tmp_path / "000_count.schedule.json")) == 1


def test_a_fault_of_one_schedule_is_recorded_with_that_schedule(tmp_path):
    """The second program's assertion fails if it reads before the first has stored."""
    with pytest.raises(WarploomError) as caught, machine(record=tmp_path, schedule="explore"):
        kernels.expect_first[(2,)](torch.zeros(1, dtype=torch.int32), debug=True)
    file, kept = tmp_path / "000_expect_first.launch.json", tmp_path / "000_expect_first.schedule.json"
    assert caught.value.code == "TRAP"
    assert re.match(r"under `.+`; not under `eager`", caught.value.notes[-2])
    assert caught.value.notes[-1] == f"replayed by `warploom run {file} --schedule {kept}`"
    assert replayed(tmp_path, "--schedule", "eager") in (0, 5)
    assert replayed(tmp_path, "--schedule", str(kept)) == 2


def test_exploring_accepts_what_is_the_same_under_every_schedule():
    with machine(schedule="explore", budget=5) as emulator:
        x, out = torch.randn(100), torch.full((100,), float("nan"))
        kernels.add[(1,)](x, x, out, 100, BLOCK=128)
    assert torch.equal(out, 2 * x)
    assert [each.schedules for each in emulator.launches] == [5]
