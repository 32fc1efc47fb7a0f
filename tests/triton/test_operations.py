"""Operations of Triton's language, compared with PyTorch under several schedules."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from tests.triton import kernels  # noqa: E402

import warploom.triton  # noqa: E402
from warploom.cli import main  # noqa: E402


def locked_sum(schedule: str, *, ordered: bool) -> bool:
    """Sum the parts of two tiles under a lock; True if the result is right."""
    tiles, parts, block = 2, 3, 128
    with warploom.triton.machine(schedule=schedule):
        x = torch.randint(1, 100, (parts, tiles * block), device="cuda", dtype=torch.int32)
        out = torch.full((tiles * block,), -1, dtype=torch.int32, device="cuda")
        lock, turns = (torch.zeros(tiles, dtype=torch.int32, device="cuda") for _ in range(2))
        kernels.locked_sum[(tiles, parts)](x, out, lock, turns, parts, BLOCK=block, ORDERED=ordered)
        return torch.equal(out, x.sum(0, dtype=torch.int32))


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random", "weak"])
def test_a_sum_under_a_lock(schedule):
    assert locked_sum(schedule, ordered=True)


def test_a_missing_barrier_after_the_load_of_a_counter_shows():
    assert locked_sum("eager", ordered=False)
    assert not locked_sum("lazy", ordered=False)


@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_scans_sorting_gathering_and_histograms(schedule):
    rows, columns = 8, 32
    with warploom.triton.machine(schedule=schedule):
        x = torch.randint(0, 1000, (rows, columns), device="cuda").float()
        scale = torch.randint(0, 2, (rows, columns), device="cuda").float()
        index = torch.randint(0, columns, (rows, columns), device="cuda", dtype=torch.int32)
        scanned, ordered, picked = (torch.full_like(x, float("nan")) for _ in range(3))
        best = torch.full((rows, 4), float("nan"), device="cuda")
        counts = torch.full((16,), -1, dtype=torch.int32, device="cuda")
        kernels.arranged[(1,)](x, scale, index, scanned, ordered, best, picked, counts, ROWS=rows, COLUMNS=columns)
        expected, carried = torch.empty_like(x), torch.zeros(rows, device="cuda")
        for column in range(columns):
            carried = scale[:, column] * carried + x[:, column]
            expected[:, column] = carried
        assert torch.equal(scanned, expected)
        assert torch.equal(ordered, x.sort(1, descending=True).values)
        assert torch.equal(best, x.topk(4).values)
        assert torch.equal(picked, x.gather(1, index.long()))
        assert torch.equal(counts, torch.bincount((x.int() & 15).flatten(), minlength=16).int())


def test_inline_ptx_with_several_results_and_packed_bytes():
    block = 256
    with warploom.triton.machine():
        x, y = (torch.randint(-(2**31), 2**31, (block,), device="cuda", dtype=torch.int32) for _ in range(2))
        out = torch.zeros(3, block, dtype=torch.int32, device="cuda")
        kernels.two_results[(1,)](x, y, out, BLOCK=block)
        first, second = (each.view(torch.uint8).view(block, 4) for each in (x, y))
        assert torch.equal(out[0], (x ^ y) + 1)
        chosen = torch.stack((first[:, 1], first[:, 3], second[:, 1], second[:, 3]), 1)
        assert torch.equal(out[1].view(torch.uint8).view(block, 4), chosen)
        assert torch.equal(out[2], (x & y).to(torch.int8).int())


@pytest.mark.parametrize(("target", "schedule"), [("sm_90", "eager"), ("sm_100", "lazy")])
def test_ragged_descriptors(target, schedule, tmp_path):
    """Parts of a tensor, each cut where it ends; replayed from launch files too."""
    ragged = pytest.importorskip("triton.tools.ragged_tma")
    sizes = [5, 0, 16, 3]
    with warploom.triton.machine(target=target, schedule=schedule, record=tmp_path):
        x = torch.randint(-99, 99, (sum(sizes), 32), device="cuda", dtype=torch.int32)
        out = torch.full_like(x, 7777)
        starts = torch.tensor([0, *sizes], device="cuda").cumsum(0).to(torch.int32)
        descriptors = [ragged.create_ragged_descriptor(each, [8, 16]) for each in (x, out)]
        kernels.ragged_parts[(len(sizes), 2)](*descriptors, starts, ROWS=8, COLUMNS=16)
        assert torch.equal(out, 2 * x)
    (file,) = tmp_path.glob("*.launch.json")
    assert main(["run", str(file)]) == 0
