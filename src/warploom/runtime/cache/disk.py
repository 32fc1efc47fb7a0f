"""A cache on disk, by key: shared by processes, consistent when any of them is killed, bounded in size.

An entry is one file, written under a temporary name and renamed. Its checksum covers key and value, so that a damaged
entry counts as missing. An entry is used only if it is a regular file of this user that no other user can write: cubins
are executed. The cache never fails a call: what cannot be read or written is not cached.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import secrets
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from warploom.diagnostics import Diag

Key = tuple[str | int, ...]

DIRECTORY, SIZE = "WARPLOOM_CACHE_DIR", "WARPLOOM_CACHE_SIZE"
DEFAULT_LIMIT = 1 << 30
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", re.ASCII | re.IGNORECASE)
_MAGIC = b"warploom cache 1\n"
_HEAD = len(_MAGIC) + hashlib.sha256().digest_size
_TEMPORARY = ".part"
_ABANDONED_SECONDS = 3600.0
_SAFE_OPEN = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_SLACK = 16
"""A process examines all entries after it has written this fraction of the limit."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of entries and their bytes."""

    entries: int
    size: int


class Cache:
    """Values by key in a folder of at most about `limit` bytes, least recently used evicted first; 0 disables it."""

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.folder, self.limit = folder, limit
        self._unseen = limit  # the first put examines all entries

    def get(self, key: Key) -> bytes | None:
        """Return the value that was put under the key, if it is still there and intact."""
        if not self.limit:
            return None
        place = self._place(key)
        try:
            content = _read(place)
        except OSError:
            return None
        value = content[_HEAD:]
        if content[:_HEAD] != _MAGIC + _checksum(key, value):
            _remove(place)
            return None
        return value

    def put(self, key: Key, value: bytes) -> None:
        """Store a value under a key; if several processes put the same key, one of the values remains."""
        if len(value) > self.limit or not self.limit:
            return
        place = self._place(key)
        part = place.with_name(f"{secrets.token_hex(8)}{_TEMPORARY}")
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(part, _MAGIC + _checksum(key, value) + value)
            part.replace(place)
        except OSError:
            _remove(part)
            return
        self._unseen += len(value)
        if self._unseen * _SLACK >= self.limit:
            self._unseen = 0
            self._evict()

    def usage(self) -> Usage:
        """Return the current number of entries and bytes."""
        entries = self._entries()
        return Usage(len(entries), sum(size for _, size, _ in entries))

    def _place(self, key: Key) -> Path:
        name = hashlib.sha256(repr(key).encode()).hexdigest()
        return self.folder / name[:2] / name[2:]

    def _evict(self) -> None:
        """Remove entries over the limit and files that killed processes left; other processes may do the same."""
        entries = sorted(self._entries(), reverse=True)
        total = 0
        for changed, size, path in entries:
            abandoned = path.suffix == _TEMPORARY and time.time() - changed > _ABANDONED_SECONDS
            total += size
            if abandoned or total > self.limit:
                _remove(path)

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Return the time of last use, bytes and path of each file."""
        found = []
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):
                facts = path.lstat()
                found.append((facts.st_mtime, facts.st_size, path))
        return found


def user_cache() -> Cache:
    """Return the cache of this user, as configured by the environment; without a home directory it is disabled."""
    limit = _size(os.environ.get(SIZE, ""))
    named = os.environ.get(DIRECTORY)
    if named:
        try:
            return _cache_in(Path(named).absolute(), limit)
        except OSError:  # the working directory was removed, and nothing can be stored in it
            return Cache(Path(named), limit)
    try:
        return _cache_in(_user_folder() / "warploom", limit)
    except RuntimeError:
        return Cache(Path(), 0)


@functools.lru_cache(16)
def _cache_in(folder: Path, limit: int) -> Cache:
    """Return the one cache of a folder: it counts what this process has written, and rarely examines all entries."""
    return Cache(folder, limit)


def _user_folder() -> Path:
    """Return the user's cache folder by the conventions of XDG, macOS or Windows."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"


def _size(text: str) -> int:
    """Return a size such as `512M` in bytes."""
    if not text:
        return DEFAULT_LIMIT
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise Diag.BAD_SETTING.error(
            variable=SIZE, value=text, what="a size is a number with K, M, G or T, or 0 for no cache"
        )
    return int(match[1]) << _UNITS[match[2].upper()]


def _read(place: Path) -> bytes:
    """Return the bytes of an entry, and set its time of last use, by which entries are evicted.

    A link is not followed, and opening a FIFO does not block; neither is an entry.
    """
    descriptor = os.open(place, os.O_RDONLY | _SAFE_OPEN)
    if not _is_trusted(os.fstat(descriptor)):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "not a private regular file of this user", str(place))
    with os.fdopen(descriptor, "rb") as file:
        content = file.read()
        if os.utime in os.supports_fd:
            with contextlib.suppress(OSError):
                os.utime(descriptor)
            return content
    with contextlib.suppress(OSError):
        os.utime(place)
    return content


def _write(part: Path, content: bytes) -> None:
    """Create a file that only this user can read and write, whatever the umask is."""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_OPEN, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _is_trusted(facts: os.stat_result) -> bool:
    """Return True for a regular file of this user that no other user can write; Windows has access lists instead."""
    if not stat.S_ISREG(facts.st_mode):
        return False
    if sys.platform == "win32":
        return True
    return facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _checksum(key: Key, value: bytes) -> bytes:
    return hashlib.sha256(repr(key).encode() + b"\0" + value).digest()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
