"""The map of ARCHITECTURE.md, held: imports, third parties, lengths, numbers, and what the repository speaks of."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from warploom.diagnostics import Diag
from warploom.hardware.targets import MACHINES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "warploom"
FILES = sorted(SOURCE.rglob("*.py"))
THIRD_PARTIES = {"numpy", "ml_dtypes", "rich"}
TRITON = {f"triton/{file.name}" for file in (SOURCE / "triton").glob("*.py")}
TORCH = {"nn.py", *(f"torch/{file.name}" for file in (SOURCE / "torch").glob("*.py")), *TRITON}
LONGEST_FILE = 800  # STYLE.md: about 500 is the guide; a file this long has two subjects
MOST_MODULES = 22
MADE_HERE = {
    ".git",
    ".venv",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    "__pycache__",
    "build",
    "dist",
}


def package_of(file: Path) -> str:
    """`ptx` for ptx/isa/table.py, `cli` for cli.py."""
    first = file.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def words(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def the_map() -> dict[str, set[str]]:
    """The rows of the table that says which package may import which."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `(\w+)` \| [^|]* \|([^|]*)\|$", text.partition("## The map")[2].partition("## ")[0], re.MULTILINE
    )
    return {name: words(cell) for name, cell in rows}


def room_of(name: str) -> tuple[str, str] | None:
    """(`machine`, `core`) for warploom.machine.core.grid, (`machine`, `.`) for a module of the package itself."""
    parts = name.split(".")[1:]
    if not parts or not (SOURCE / parts[0]).is_dir():
        return None
    inner = len(parts) > 1 and (SOURCE / parts[0] / parts[1]).is_dir()
    return parts[0], parts[1] if inner else "."


def the_rooms() -> dict[tuple[str, str], set[str]]:
    """The rows of the table that says which subpackage may import which of its package."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `(\w+)/(\w+)` \| [^|]* \|([^|]*)\|$", text.partition("## The map")[2].partition("## ")[0], re.MULTILINE
    )
    return {(package, room): words(cell) for package, room, cell in rows}


def late_exceptions() -> set[tuple[str, str]]:
    """The (file, package) pairs that may be imported inside a function, against the table."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    return set(re.findall(r"^- `([\w/]+\.py)` imports `(\w+)`: .", text, re.MULTILINE))


def imported(tree: ast.AST) -> Iterator[str]:
    """The dotted names that a tree imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            if node.module == "warploom":
                yield from (f"warploom.{alias.name}" for alias in node.names)


def at_run_time(tree: ast.Module) -> ast.Module:
    """The tree without what only type checkers read."""
    body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return ast.Module(body, [])


def late(tree: ast.AST) -> set[str]:
    """The names that are imported inside functions only."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    early = {name for node in ast.walk(tree) if id(node) not in inside for name in _one(node)}
    return set(imported(tree)) - early


def _one(node: ast.AST) -> list[str]:
    return list(imported(node)) if isinstance(node, ast.Import | ast.ImportFrom) else []


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def test_the_map_and_the_folders_agree():
    assert {package_of(file) for file in FILES} == set(the_map())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_imports_follow_the_map(file):
    package, tree = package_of(file), parse(file)
    allowed = the_map()[package] | {package}
    exceptions = {name for where, name in late_exceptions() if where == file.relative_to(SOURCE).as_posix()}
    only_late = late(tree)
    for name in imported(tree):
        if name.startswith("warploom."):
            target = name.split(".")[1]
            fine = target in allowed or (target in exceptions and name in only_late)
            assert fine, f"{package} may not import {target}"
        else:
            assert name != "warploom" or package == "__init__", (
                "import the package that has the name, not the public surface"
            )


def test_the_rooms_and_the_folders_agree():
    folders = {(file.parent.parent.name, file.parent.name) for file in SOURCE.glob("*/*/*.py")}
    assert folders == set(the_rooms())


def test_no_folder_is_crowded():
    counts = Counter(file.parent for file in FILES)
    assert {folder.name: count for folder, count in counts.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_imports_between_rooms_follow_the_map(file):
    own = room_of("warploom." + ".".join(file.relative_to(SOURCE).with_suffix("").parts))
    if own is None or own[1] == ".":
        return
    allowed = the_rooms()[own] | {own[1]}
    rooms = {room_of(name) for name in imported(parse(file)) if name.startswith("warploom.")}
    used = {room[1] for room in rooms if room is not None and room[0] == own[0]}
    # `from warploom.machine import numerics` names the package first; only a module of the package itself counts.
    assert used - allowed - {"."} == set(), f"{own[0]}/{own[1]} may not import {used - allowed}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_the_core_needs_three_packages(file):
    name = file.relative_to(SOURCE).as_posix()
    top = {each.split(".")[0] for each in imported(at_run_time(parse(file)))}
    allowed = THIRD_PARTIES | ({"torch"} if name in TORCH else set()) | ({"triton"} if name in TRITON else set())
    allowed |= {"llvmlite"} if name == "machine/engine/native.py" else set()
    allowed |= {"pytest"} if name == "checker/pytest_plugin.py" else set()  # imported by pytest alone
    assert top - set(sys.stdlib_module_names) - allowed - {"warploom", "__future__"} == set()


def test_only_the_torch_package_imports_torch():
    modules = {f"warploom.{name.removesuffix('.py').replace('/', '.')}" for name in TORCH}
    for file in FILES:
        if file.relative_to(SOURCE).as_posix() not in TORCH:
            early = set(imported(at_run_time(parse(file)))) - late(parse(file))
            assert not modules & early, f"{file.name} imports PyTorch by way of a module that does"
    program = (
        "import sys, warploom.cli, warploom.triton; "
        "sys.exit(bool({'torch', 'triton', 'llvmlite'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_exceptions_are_used():
    for file, package in late_exceptions():
        names = {name.split(".")[1] for name in late(parse(SOURCE / file)) if name.startswith("warploom.")}
        assert package in names, f"{file} no longer imports {package}"


STORES_CODE = ("machine/translate/stored.py", "machine/translate/texts.py")
"""Read prepared programs from the cache, which accepts private files of this user only, as for cubins."""


def test_only_the_emulator_executes_source():
    for file in FILES:
        for node in ast.walk(parse(file)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("exec", "eval", "compile")
            ):
                own = file.name == "early_exits.py" and node.func.id == "compile"  # the author's function, rewritten
                assert own or package_of(file) == "machine", f"{file.name}:{node.lineno}"
            finds = isinstance(node, ast.ImportFrom) and [each.name for each in node.names] == ["find_spec"]
            if isinstance(node, ast.Import | ast.ImportFrom) and not (
                finds or file.relative_to(SOURCE).as_posix() in STORES_CODE
            ):
                assert not {"pickle", "marshal", "shelve", "importlib.util"} & set(imported(node)), file


def test_files_are_short():
    folders = [ROOT / name for name in ("src", "tests", "examples", "bench")]
    lengths = {f: len(f.read_text("utf-8").splitlines()) for folder in folders for f in folder.rglob("*.py")}
    assert {f.relative_to(ROOT).as_posix(): n for f, n in lengths.items() if n > LONGEST_FILE} == {}


def hardware_numbers() -> set[int]:
    """The numbers of the hardware rows that can be recognised: large and not a power of two."""
    values = {getattr(machine, field.name) for machine in MACHINES.values() for field in fields(machine)}
    return {value for value in values if type(value) is int and value > 1000 and value & (value - 1)}


def folded(node: ast.AST) -> int | None:
    """The integer that a literal, or a simple sum, product or shift of literals, stands for."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = folded(node.left), folded(node.right)
        if left is not None and right is not None:
            match node.op:
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.Mult():
                    return left * right
                case ast.LShift() if 0 <= right < 64:
                    return left << right
    return None


def test_hardware_numbers_stay_in_hardware():
    numbers = hardware_numbers()
    assert 232448 in numbers
    assert folded(ast.parse("227 * 1024", mode="eval").body) in numbers
    for file in FILES:
        if package_of(file) != "hardware":
            found = [(node.lineno, folded(node)) for node in ast.walk(parse(file)) if folded(node) in numbers]
            assert not found, f"{file.relative_to(SOURCE)}: {found}"


def test_every_module_says_what_it_is():
    silent = [f for f in FILES if f.name != "__init__.py" and not ast.get_docstring(parse(f))]
    assert silent == []


def test_every_message_has_a_code_of_its_own():
    assert len(Diag) == len(Diag.__members__), "two codes share a sentence and an advice"
    for entry in Diag:
        sentence, advice = entry.value
        assert sentence.strip()
        assert advice.strip().endswith((".", "?")), entry


def files_of_the_repository() -> list[Path]:
    """The files that git has or would take; without a repository, as in an archive, all but the output of tools."""
    ask = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        return [file for file in ROOT.rglob("*") if not MADE_HERE & set(file.relative_to(ROOT).parts)]
    return [ROOT / name for name in listed if name]


def text_files() -> list[Path]:
    return [file for file in files_of_the_repository() if file.is_file() and file.name != "LICENSE"]


def test_the_repository_has_no_local_paths():
    pattern = re.compile(r"(?<![\w.\-/\]])/(?:work|home|root|Users|mnt)/\w")
    for file in text_files():
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found = pattern.search(text)
        assert not found, f"{file.relative_to(ROOT)}: {found and text[found.start() : found.end() + 20]!r}"


def commands() -> dict[str, str]:
    """The README's two commands by their markers."""
    text = (ROOT / "README.md").read_text("utf-8")
    return dict(re.findall(r"^<!-- (\w+) command -->\n```sh\n(.+)\n```$", text, re.MULTILINE))


def test_the_readme_has_two_commands():
    found = commands()
    assert set(found) == {"demo", "test"}
    assert found["demo"].endswith("warploom demo")
    assert "pytest" in found["test"]


def on_windows(command: str) -> str:
    """Spell one of the README's commands for cmd."""
    command = command.replace("python3 -m", "python -m").replace(".venv/bin/", ".venv\\Scripts\\")
    return command.replace("'", '"')


def test_the_readme_spells_its_commands_for_windows():
    text = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"^<!-- the same on Windows -->\n```bat\n(.+?)\n```$", text, re.MULTILINE | re.DOTALL)
    found = commands()
    assert block.splitlines() == [on_windows(found["demo"]), on_windows(found["test"])]


def test_the_workflow_runs_the_readme_commands_on_every_system():
    lines = (ROOT / ".github" / "workflows" / "test.yml").read_text("utf-8").splitlines()
    found = commands()
    for command in (*found.values(), *map(on_windows, found.values())):
        assert f"          {command}" in lines


def test_ci_runs_the_readme_command():
    shown = subprocess.run(["bash", str(ROOT / ".ci" / "run"), "--show"], capture_output=True, text=True, check=True)
    assert shown.stdout == commands()["test"] + "\n"
    steps = re.findall(r'^step "(.+)"$', (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
    assert steps[0] == "$command", "the README's command comes first, and its text is only in the README"
    assert ".[test,torch]" in steps[1]
    assert steps[2].endswith("--torch"), "then the tests that need PyTorch"
    assert len(steps) == 3


def test_slow_tests_exist():
    for line in (ROOT / "tests" / "slow_tests.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, test = line.partition("::")
            file = ROOT / "tests" / name
            assert file.is_file(), f"{name}: correct slow_tests.txt"
            assert f"def {test}(" in file.read_text("utf-8") or not test, f"{line}: correct slow_tests.txt"


def test_links_lead_somewhere():
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:\s]+)\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
