"""A launch file: read and checked, with all problems in one error; then allocated, launched and compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warploom.compare import Comparison, Mismatch, type_of
from warploom.diagnostics import Diag, WarploomError
from warploom.host.launch import Launch, Triple
from warploom.launch_file import arguments
from warploom.launch_file.arguments import Argument
from warploom.launch_file.buffers import Array, Buffer
from warploom.launch_file.reading import Unreadable, read_document, read_ptx
from warploom.launch_file.schema import Json, launch_file_schema, show, violations
from warploom.launch_file.schema import Path as JsonPath

DEFAULT_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """The checked contents of a launch file; nothing is allocated until `allocate` or `launch` is called."""

    path: Path
    ptx: str
    entry: str | None
    grid: Triple
    block: Triple
    cluster: Triple
    shared_bytes: int
    seed: int
    buffers: tuple[Buffer, ...]
    args: tuple[Argument, ...]
    comparisons: tuple[Comparison, ...]
    expect: str = ""
    ptx_path: Path = Path("<ptx>")
    """The PTX file, for messages."""

    def allocate(self) -> dict[str, Array]:
        """The buffers with their initial contents; the same seed gives the same numbers on every computer."""
        return {buffer.name: buffer.allocate(self.seed) for buffer in self.buffers}

    def launch(self, buffers: dict[str, Array] | None = None) -> Launch:
        """The launch over these buffers, or over fresh ones."""
        arrays = self.allocate() if buffers is None else buffers
        return Launch(
            program=self.ptx,
            grid=self.grid,
            block=self.block,
            args=tuple(arguments.build(argument, arrays) for argument in self.args),
            entry=self.entry,
            cluster=self.cluster,
            shared_bytes=self.shared_bytes,
        )

    def check(self, buffers: dict[str, Array]) -> list[Mismatch]:
        """Every comparison that does not hold for the buffers after the run."""
        specs = {buffer.name: buffer for buffer in self.buffers}
        found = [c.mismatch(buffers, lambda name: specs[name].allocate(self.seed)) for c in self.comparisons]
        return [mismatch for mismatch in found if mismatch is not None]


def load(path: str | Path, *, seed: int | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> LaunchFile:
    """Read a launch file and its PTX; `seed` overrides the file's, `max_bytes` limits the total size of the buffers."""
    reader = _Reader(Path(path), max_bytes)
    file = reader.read(seed)
    if file is None:
        count = len(reader.problems)
        what = "1 thing is wrong" if count == 1 else f"{count} things are wrong"
        raise Diag.BAD_LAUNCH_FILE.error(file=reader.path.name, what=f"{what}.", notes=reader.problems)
    return file


class _Reader:
    """Collects the problems of one file; a part is examined only if the schema accepts it."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.problems: list[str] = []

    def read(self, seed: int | None) -> LaunchFile | None:
        try:
            document = read_document(self.path)
        except Unreadable as reason:
            self.problems.append(f"the file {reason}")
            return None
        wrong = violations(document, launch_file_schema())
        self.problems += [f"{show(where)}: {what}" for where, what in wrong]
        if not isinstance(document, dict):
            return None
        self.broken = {where for where, _ in wrong}
        ptx = self._ptx(document)
        buffers = self._buffers(document)
        args = self._args(document, buffers)
        comparisons = self._comparisons(document, buffers)
        if self.problems or ptx is None:
            return None
        fields: dict[str, Any] = dict(document)
        return LaunchFile(
            path=self.path,
            ptx=ptx,
            entry=fields.get("entry"),
            grid=_triple(fields["grid"]),
            block=_triple(fields["block"]),
            cluster=_triple(fields.get("cluster", (1, 1, 1))),
            shared_bytes=int(fields.get("shared_bytes", 0)),
            seed=int(fields.get("seed", 0)) if seed is None else seed,
            buffers=tuple(buffers.values()),
            args=tuple(args),
            comparisons=tuple(comparisons),
            expect=fields.get("expect", ""),
            ptx_path=self.path.parent / fields["ptx"],
        )

    def _is_valid(self, document: dict[str, Json], *where: str | int) -> bool:
        """Return True if a part is present and the schema reports nothing in it."""
        part: Any = document
        for step in where:
            if isinstance(step, str) and (not isinstance(part, dict) or step not in part):
                return False
            part = part[step]
        return not any(path[: len(where)] == where for path in self.broken)

    def _ptx(self, document: dict[str, Json]) -> str | None:
        if not self._is_valid(document, "ptx"):
            return None
        try:
            return read_ptx(self.path.parent, str(document["ptx"]))
        except Unreadable as reason:
            self.problems.append(f"ptx: {reason}")
            return None

    def _buffers(self, document: dict[str, Json]) -> dict[str, Buffer]:
        """The valid buffers; problems of the others are collected."""
        sound: dict[str, Buffer] = {}
        specs = document.get("buffers")
        for name, spec in specs.items() if isinstance(specs, dict) else ():
            if not isinstance(spec, dict) or not self._is_valid(document, "buffers", name):
                continue
            buffer = Buffer.read(name, spec, self.path.parent)
            wrong = list(buffer.violations())
            self._report(("buffers", name), wrong)
            if not wrong:
                sound[name] = buffer
        total = sum(buffer.span_bytes for buffer in sound.values())
        if total > self.max_bytes:
            self._report(("buffers",), [f"need {total} bytes together; at most {self.max_bytes} are allowed"])
            return {}
        return sound

    def _args(self, document: dict[str, Json], buffers: dict[str, Buffer]) -> list[Argument]:
        args, specs = document.get("args"), document.get("buffers")
        invalid = specs.keys() - buffers.keys() if isinstance(specs, dict) else set()
        sound: list[Argument] = []
        for index, argument in enumerate(args if isinstance(args, list) else []):
            if not isinstance(argument, dict) or not self._is_valid(document, "args", index):
                continue
            self._report(("args", index), list(arguments.violations(argument, buffers, invalid)))
            sound.append(argument)
        return sound

    def _comparisons(self, document: dict[str, Json], buffers: dict[str, Buffer]) -> list[Comparison]:
        compare = document.get("compare")
        sound: list[Comparison] = []
        types = {name: type_of(buffer) for name, buffer in buffers.items()}
        whole = isinstance(document.get("buffers"), dict) and len(buffers) == len(document["buffers"])  # type: ignore[arg-type]
        for index, spec in enumerate(compare if isinstance(compare, list) and whole else []):
            if isinstance(spec, dict) and self._is_valid(document, "compare", index):
                options: dict[str, Any] = {key: value for key, value in spec.items() if key != "expr"}
                try:
                    sound.append(Comparison.read(str(spec["expr"]), types, **options))
                except WarploomError as error:
                    self._report(("compare", index), [error.what])
        return sound

    def _report(self, where: JsonPath, problems: list[str]) -> None:
        self.problems += [f"{show(where)}: {problem}" for problem in problems]


def _triple(values: Any) -> Triple:
    x, y, z = map(int, values)
    return x, y, z
