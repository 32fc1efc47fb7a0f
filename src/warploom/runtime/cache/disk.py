"""Bytes on disk by key: shared by processes, safe when any of them is killed, bounded in size.

An entry is one file, written beside its place and moved there whole; its checksum covers key and bytes, so that an
entry that is not what was put counts as none. A cache never fails a call: what cannot be read or written is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
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
_SLACK = 16
"""A process looks at all entries when it has put this fraction of the limit."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How much a cache holds."""

    entries: int
    size: int


class Cache:
    """Bytes by key in a folder of at most about `limit` bytes; those unused for longest go first, 0 keeps nothing."""

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.folder, self.limit = folder, limit
        self._unseen = limit  # the first put looks

    def get(self, key: Key) -> bytes | None:
        """What was put under the key, if it is still there and whole."""
        if not self.limit:
            return None
        place = self._place(key)
        try:
            kept = place.read_bytes()
        except OSError:
            return None
        value = kept[_HEAD:]
        if kept[:_HEAD] != _MAGIC + _checksum(key, value):
            _remove(place)
            return None
        with contextlib.suppress(OSError):
            os.utime(place)  # the time of the last use, by which entries are evicted
        return value

    def put(self, key: Key, value: bytes) -> None:
        """Keep bytes under a key; of several processes that put the same key, one wins whole."""
        if len(value) > self.limit or not self.limit:
            return
        place = self._place(key)
        part = place.with_name(f"{secrets.token_hex(8)}{_TEMPORARY}")
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_bytes(_MAGIC + _checksum(key, value) + value)
            part.replace(place)
        except OSError:
            _remove(part)
            return
        self._unseen += len(value)
        if self._unseen * _SLACK >= self.limit:
            self._unseen = 0
            self._evict()

    def usage(self) -> Usage:
        """What the cache holds now."""
        entries = self._entries()
        return Usage(len(entries), sum(size for _, size, _ in entries))

    def _place(self, key: Key) -> Path:
        name = hashlib.sha256(repr(key).encode()).hexdigest()
        return self.folder / name[:2] / name[2:]

    def _evict(self) -> None:
        """Remove what is over the limit and what killed processes left; others may do the same at the same time."""
        entries = sorted(self._entries(), reverse=True)
        total = 0
        for changed, size, path in entries:
            abandoned = path.suffix == _TEMPORARY and time.time() - changed > _ABANDONED_SECONDS
            total += size
            if abandoned or total > self.limit:
                _remove(path)

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Time of last use, bytes and path of each file."""
        found = []
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(OSError):
                facts = path.stat()
                found.append((facts.st_mtime, facts.st_size, path))
        return found


def user_cache() -> Cache:
    """The cache of this user, as the environment says; without a home directory it keeps nothing."""
    limit = _size(os.environ.get(SIZE, ""))
    named = os.environ.get(DIRECTORY)
    if named:
        try:
            return Cache(Path(named).absolute(), limit)
        except OSError:  # the working directory is gone, and nothing can be kept in it
            return Cache(Path(named), limit)
    try:
        return Cache(_user_folder() / "warploom", limit)
    except RuntimeError:
        return Cache(Path(), 0)


def _user_folder() -> Path:
    """Where programs keep what they can make again: by the rules of XDG, macOS and Windows."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"


def _size(text: str) -> int:
    """`512M` in bytes."""
    if not text:
        return DEFAULT_LIMIT
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise Diag.BAD_SETTING.error(
            variable=SIZE, value=text, what="a size is a number with K, M, G or T, or 0 for no cache"
        )
    return int(match[1]) << _UNITS[match[2].upper()]


def _checksum(key: Key, value: bytes) -> bytes:
    return hashlib.sha256(repr(key).encode() + b"\0" + value).digest()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
