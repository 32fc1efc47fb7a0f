"""The cache on disk: many processes, kills, damage, limits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from warploom.diagnostics import WarploomError
from warploom.runtime.cache.disk import DEFAULT_LIMIT, Cache, user_cache

WORKER = """
import random, sys
from pathlib import Path
from warploom.runtime.cache.disk import Cache
folder, seed, bytes_each = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
cache, rng = Cache(folder, 8 * bytes_each), random.Random(seed)
for turn in range(1 << 30):
    number = rng.randrange(16)
    value = random.Random(number).randbytes(bytes_each)
    kept = cache.get(("worker", number))
    assert kept is None or kept == value, number
    cache.put(("worker", number), value)
    if not turn:
        print("ready", flush=True)
"""
EACH = 300_000


def files(cache: Cache) -> list[Path]:
    return [path for path in cache.folder.rglob("*") if path.is_file()]


def test_a_value_is_found_by_another_cache_object(tmp_path):
    Cache(tmp_path).put(("a", 1, "x"), b"\0value\n")
    other = Cache(tmp_path)
    assert other.get(("a", 1, "x")) == b"\0value\n"
    assert other.get(("a", "1", "x")) is None
    assert other.get(("a", 1)) is None
    assert other.usage().entries == 1


def test_an_empty_value_is_a_value(tmp_path):
    cache = Cache(tmp_path)
    cache.put(("empty",), b"")
    assert cache.get(("empty",)) == b""


def test_the_last_put_wins(tmp_path):
    cache = Cache(tmp_path)
    cache.put(("a",), b"one")
    cache.put(("a",), b"two")
    assert cache.get(("a",)) == b"two"


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "swap", "grow", "short"])
def test_a_damaged_entry_is_missing_and_replaced(tmp_path, damage):
    cache = Cache(tmp_path)
    cache.put(("a",), bytes(1000))
    (place,) = files(cache)
    whole = bytearray(place.read_bytes())
    if damage == "flip":
        whole[random.randrange(len(whole))] ^= 1
    if damage == "swap":
        cache.put(("b",), b"another key's bytes")
        whole = bytearray(next(path for path in files(cache) if path != place).read_bytes())
    changed = {
        "truncate": whole[:-1],
        "flip": whole,
        "empty": b"",
        "swap": whole,
        "grow": whole + b"x",
        "short": whole[:9],
    }
    place.write_bytes(changed[damage])
    assert cache.get(("a",)) is None
    assert not place.exists()
    cache.put(("a",), b"new")
    assert cache.get(("a",)) == b"new"


def test_the_least_recently_used_are_evicted_first(tmp_path):
    cache = Cache(tmp_path, 10_000)
    for number in range(9):
        cache.put(("n", number), bytes(1000))
        (newest,) = set(files(cache)) - {path for path in files(cache) if path.stat().st_mtime < time.time() - 50}
        os.utime(newest, (time.time() - 1000 + number,) * 2)
    assert cache.get(("n", 0)) is not None
    cache.put(("n", 9), bytes(1000))
    kept = {number for number in range(10) if cache.get(("n", number)) is not None}
    assert {0, 8, 9} <= kept
    assert 1 not in kept
    assert cache.usage().size <= 10_000


def test_the_limit_holds_for_any_sizes(tmp_path):
    cache = Cache(tmp_path, 50_000)
    for number in range(300):
        cache.put(("n", number), random.randbytes(random.choice((1, 100, 5000))))
    assert cache.usage().size <= 50_000 + 50_000 // 16 + 5100
    assert cache.get(("n", 299)) is not None


def test_another_process_is_counted_too(tmp_path):
    for writer in range(8):
        cache = Cache(tmp_path, 20_000)
        for number in range(10):
            cache.put((writer, number), bytes(1000))
    assert Cache(tmp_path, 20_000).usage().size <= 20_000 + 20_000 // 16 + 1100


def test_more_than_the_limit_is_not_kept(tmp_path):
    cache = Cache(tmp_path, 100)
    cache.put(("a",), bytes(101))
    assert files(cache) == []


def test_a_limit_of_nothing_keeps_nothing(tmp_path):
    Cache(tmp_path).put(("a",), b"")
    cache = Cache(tmp_path, 0)
    cache.put(("b",), b"")
    assert cache.get(("a",)) is None
    assert cache.get(("b",)) is None


def test_files_of_killed_processes_are_removed(tmp_path):
    cache = Cache(tmp_path)
    cache.put(("a",), b"x")
    folder = files(cache)[0].parent
    old, young = folder / "0123.part", folder / "4567.part"
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    Cache(tmp_path).put(("b",), b"x")
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize("blocked", ["file", "missing parent is a file", "entry is a folder"])
def test_a_place_that_cannot_be_used_fails_no_call(tmp_path, blocked):
    cache = Cache(tmp_path / "cache")
    if blocked == "file":
        cache.folder.write_text("in the way")
    elif blocked == "missing parent is a file":
        (tmp_path / "x").write_text("in the way")
        cache = Cache(tmp_path / "x" / "y")
    else:
        cache._place(("a",)).mkdir(parents=True)
        (cache._place(("a",)) / "x").mkdir()
    cache.put(("a",), b"x")
    assert cache.get(("a",)) is None
    assert cache.usage().size >= 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_processes_that_are_killed_at_any_moment_leave_it_whole(tmp_path):
    def start(seed: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(tmp_path), str(seed), str(EACH)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    workers = [start(seed) for seed in range(3)]
    try:
        for worker in workers:
            assert worker.stdout.readline() == "ready\n", worker.stderr.read()
        for worker in workers:
            time.sleep(random.uniform(0.05, 0.3))
            assert worker.poll() is None, worker.stderr.read()
            worker.send_signal(signal.SIGKILL)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    cache = Cache(tmp_path, 8 * EACH)
    whole = [cache.get(("worker", number)) for number in range(16)]
    assert any(value is not None for value in whole)
    for number, value in enumerate(whole):
        assert value in (None, random.Random(number).randbytes(EACH))
    for number in range(16):
        cache.put(("worker", number), b"new")
        assert cache.get(("worker", number)) == b"new"


def test_the_folder_is_the_users_own(tmp_path, monkeypatch):
    for name in ("WARPLOOM_CACHE_DIR", "WARPLOOM_CACHE_SIZE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    rules = {"linux": ".cache/warploom", "darwin": "Library/Caches/warploom", "win32": "AppData/Local/warploom"}
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    for platform, place in rules.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert user_cache().folder == tmp_path / place
        assert user_cache().limit == DEFAULT_LIMIT
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert user_cache().folder == tmp_path / "local" / "warploom"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache().folder == tmp_path / "xdg" / "warploom"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG rules: to be ignored
    assert user_cache().folder == tmp_path / ".cache" / "warploom"
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path / "own"))
    assert user_cache().folder == tmp_path / "own"


def test_a_working_directory_that_is_gone_fails_no_call(monkeypatch, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", "kept")
    user_cache().put(("key",), b"value")
    assert user_cache().get(("key",)) is None


def test_without_a_home_nothing_is_kept(monkeypatch):
    def no_home():
        raise RuntimeError

    for name in ("WARPLOOM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "home", no_home)
    assert user_cache().limit == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("3K", 3072), ("512M", 2**29), ("2 GiB", 2**31), ("1gb", 2**30), ("", DEFAULT_LIMIT)],
)
def test_the_size_is_read(monkeypatch, text, size):
    monkeypatch.setenv("WARPLOOM_CACHE_SIZE", text)
    assert user_cache().limit == size


@pytest.mark.parametrize("text", ["big", "-1", "1.5G", "1e9", "٣", "1X"])
def test_an_invalid_size_is_reported(monkeypatch, text):
    monkeypatch.setenv("WARPLOOM_CACHE_SIZE", text)
    with pytest.raises(WarploomError) as caught:
        user_cache()
    assert caught.value.code == "BAD_SETTING"
    assert text in caught.value.what


def got_in_time(cache: Cache, key: tuple[str, ...]) -> list[bytes | None]:
    """Get a value in a thread of its own, so that a blocked read fails the test instead of hanging it."""
    results: list[bytes | None] = []
    reader = threading.Thread(target=lambda: results.append(cache.get(key)), daemon=True)
    reader.start()
    reader.join(120)
    return results


@pytest.mark.skipif(sys.platform == "win32", reason="files of Windows have access lists instead of owners and modes")
class TestForeignEntries:
    """Files in the cache that this user did not write as an entry: never used, and replaced by the next put."""

    KEY = ("cubin", "a")

    @pytest.fixture
    def cache(self, tmp_path):
        cache = Cache(tmp_path)
        cache.put(self.KEY, b"ours")
        assert cache.get(self.KEY) == b"ours"
        return cache

    def test_a_fifo_neither_blocks_nor_counts(self, cache):
        (place,) = files(cache)
        place.unlink()
        os.mkfifo(place)
        assert got_in_time(cache, self.KEY) == [None]
        cache.put(self.KEY, b"again")
        assert cache.get(self.KEY) == b"again"

    def test_a_link_is_not_followed(self, cache, tmp_path):
        (place,) = files(cache)
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
        assert cache.get(self.KEY) is None
        cache.put(self.KEY, b"again")
        assert cache.get(self.KEY) == b"again"
        assert not place.is_symlink()

    def test_a_link_to_a_device_is_not_opened(self, cache):
        (place,) = files(cache)
        place.unlink()
        place.symlink_to("/dev/zero")
        assert got_in_time(cache, self.KEY) == [None]

    def test_a_directory_is_not_an_entry(self, cache):
        (place,) = files(cache)
        place.unlink()
        place.mkdir()
        assert cache.get(self.KEY) is None
        cache.put(self.KEY, b"again")

    def test_an_entry_of_another_user_is_not_used(self, cache, monkeypatch):
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        assert cache.get(self.KEY) is None
        monkeypatch.undo()
        assert cache.get(self.KEY) == b"ours"

    @pytest.mark.skipif(
        sys.platform == "win32" or getattr(os, "geteuid", int)() != 0, reason="only root can give files away"
    )
    def test_a_file_that_belongs_to_another_user_is_not_used(self, cache):
        (place,) = files(cache)
        os.chown(place, 12345, 12345)
        assert cache.get(self.KEY) is None
        cache.put(self.KEY, b"again")
        assert cache.get(self.KEY) == b"again"

    @pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
    def test_an_entry_that_others_can_write_is_not_used(self, cache, mode):
        (place,) = files(cache)
        place.chmod(mode)
        assert cache.get(self.KEY) is None
        cache.put(self.KEY, b"again")
        assert cache.get(self.KEY) == b"again"

    def test_entries_are_private_whatever_the_umask_is(self, tmp_path):
        cache, before = Cache(tmp_path / "open"), os.umask(0)
        try:
            cache.put(self.KEY, b"value")
        finally:
            os.umask(before)
        (place,) = files(cache)
        assert place.stat().st_mode & 0o777 == 0o600
        assert cache.get(self.KEY) == b"value"


def test_the_cache_of_a_user_rarely_examines_all_entries(monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("WARPLOOM_CACHE_SIZE", raising=False)
    examined = []
    monkeypatch.setattr(Cache, "_entries", lambda self: examined.append(self) or [])
    for number in range(20):
        user_cache().put((number,), b"value")
        assert user_cache().get((number,)) == b"value"
    assert len(examined) == 1
