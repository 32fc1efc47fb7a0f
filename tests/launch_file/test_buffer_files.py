"""Buffers whose contents are a file of bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from warploom.diagnostics import WarploomError
from warploom.launch_file import load

PTX = ".version 9.0\n.target sm_90\n.address_size 64\n"


def written(folder, name, **spec):
    """A launch file with one buffer that is read from a file."""
    folder.mkdir(exist_ok=True)
    (folder / "k.ptx").write_text(PTX)
    buffer = {"dtype": "float32", "shape": [2, 3], "init": {"file": name}, **spec}
    document = {"ptx": "k.ptx", "grid": [1, 1, 1], "block": [1, 1, 1], "buffers": {"x": buffer}, "args": []}
    (folder / "k.launch.json").write_text(json.dumps(document))
    return folder / "k.launch.json"


def test_the_bytes_are_the_memory(tmp_path):
    values = np.random.default_rng().normal(size=(2, 3)).astype(np.float32)
    values[0, 1] = np.nan
    values.tofile(tmp_path / "x.bin")
    array = load(written(tmp_path, "x.bin")).allocate()["x"]
    assert array.tobytes() == values.tobytes()
    assert not array.flags.writeable
    assert load(written(tmp_path, "x.bin", output=True)).allocate()["x"].flags.writeable


def test_gaps_between_rows_are_in_the_file(tmp_path):
    memory = np.arange(7, dtype=np.float32)
    memory.tofile(tmp_path / "x.bin")
    array = load(written(tmp_path, "x.bin", strides=[16, 4])).allocate()["x"]
    assert array.tolist() == [[0, 1, 2], [4, 5, 6]]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("short.bin", "`short.bin` has 20 bytes; the buffer has 24"),
        ("none.bin", "there is no file `none.bin`"),
        ("../outside.bin", "leads out of"),
        ("link.bin", "link that leads out of"),
        ("directory", "is not a file"),
    ],
)
def test_files_that_are_not_the_buffer(tmp_path, name, reason):
    folder = tmp_path / "inside"
    path = written(folder, name)
    (tmp_path / "outside.bin").write_bytes(bytes(24))
    (folder / "short.bin").write_bytes(bytes(20))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "directory").mkdir()
    with pytest.raises(WarploomError) as caught:
        load(path)
    assert f"buffers.x: init: {'`' if name == 'link.bin' else ''}" in str(caught.value)
    assert reason in str(caught.value)
