"""Reads untrusted files: a JSON document of bounded size, and the PTX file that it names in its own folder."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path, PurePosixPath, PureWindowsPath

from warploom.launch_file.schema import Json

LARGEST_DOCUMENT = 4 << 20
LARGEST_PTX = 64 << 20
DEEPEST_NESTING = 32


# A string literal, closed or not (so that no character is scanned twice), or a bracket.
_MARKS = re.compile(r'"(?:[^"\\]+|\\.|\\\Z)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)


class Unreadable(Exception):
    """One reason why a file cannot be used; `load` collects them."""


def read_document(path: Path) -> Json:
    """The JSON document of a launch file; documents that are too large, too deep or ambiguous are rejected."""
    text = read_text(path, LARGEST_DOCUMENT)
    if _nesting(text) > DEEPEST_NESTING:
        raise Unreadable(f"is nested deeper than {DEEPEST_NESTING} levels")
    try:
        document: Json = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except json.JSONDecodeError as error:
        raise Unreadable(f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        raise Unreadable(f"is not JSON: {error}") from None
    if _has_half_pairs(document, text):
        raise Unreadable("has a string with half of a surrogate pair (\\ud800 to \\udfff), which is not text")
    return document


def _has_half_pairs(document: Json, text: str) -> bool:
    """Return True if JSON escapes have put into a string what cannot be encoded, as a file name or for output."""
    if "\\ud" not in text.lower():
        return False
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def read_ptx(folder: Path, name: str) -> str:
    """The PTX text in the folder of the launch file; a path that leads out of the folder is rejected."""
    return read_text(file_inside(folder, name), LARGEST_PTX)


def file_inside(folder: Path, name: str) -> Path:
    """The ordinary file of a path in a folder or below; a path that leads out of the folder is rejected."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.drive or windows.root:
        raise Unreadable(f"`{name}` is absolute; name a file in the launch file's folder")
    if ".." in posix.parts or ".." in windows.parts or "\0" in name:
        raise Unreadable(f"`{name}` leads out of the launch file's folder")
    try:
        file = (folder / name).resolve(strict=True)
    except (OSError, RuntimeError):
        raise Unreadable(f"there is no file `{name}` in the launch file's folder") from None
    if not file.is_relative_to(folder.resolve()):
        raise Unreadable(f"`{name}` is a link that leads out of the launch file's folder")
    if not file.is_file():
        raise Unreadable(f"`{name}` is not a file")
    return file


def read_text(path: Path, largest: int) -> str:
    """The text of an ordinary file that is not too large."""
    try:
        if not path.is_file():
            raise Unreadable(
                "is a directory" if path.is_dir() else "is no ordinary file" if path.exists() else "does not exist"
            )
        with path.open("rb") as stream:
            data = stream.read(largest + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    if len(data) > largest:
        raise Unreadable(f"is larger than {largest} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not text: byte {error.start} is not UTF-8") from None


def _nesting(text: str) -> int:
    """The nesting depth of brackets outside string literals."""
    deepest = depth = 0
    for mark in _MARKS.findall(text):
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"`{key[:40]}` is given twice in one object")
        found[key] = value
    return found


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value
