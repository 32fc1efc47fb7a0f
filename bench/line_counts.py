"""Count the code lines of each kernel family, without comments, docstrings, imports and blank lines.

    python bench/line_counts.py

A family is a module of a target's folder with a kernel in it; modules that the targets share are listed after them.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).parents[1] / "src" / "warploom" / "kernels"
DEFAULT = "sm100/matmul"
LIMIT = 60
"""Lines of code that fit on a screen."""
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True)
class Count:
    """Line counts of a module."""

    name: str
    lines: int
    is_family: bool


def authors_lines(text: str) -> int:
    """List the lines of a module that hold code."""
    tree = ast.parse(text)
    aside: set[int] = set()
    for node in ast.walk(tree):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            aside |= set(range(node.lineno, node.end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for each in tokens if each.type not in _NO_CODE for line in range(each.start[0], each.end[0] + 1)}
    return len(code - aside)


def has_kernel(text: str) -> bool:
    """Check for a function that is decorated with `@kernel`."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    names = (
        ast.unparse(decorator).partition("(")[0] for function in functions for decorator in function.decorator_list
    )
    return "kernel" in names


def counts() -> list[Count]:
    """Sort families first, the default one at the top."""
    found = []
    for file in sorted(KERNELS.rglob("*.py")):
        text = file.read_text("utf-8")
        if file.name != "__init__.py":
            name = file.relative_to(KERNELS).with_suffix("").as_posix()
            found.append(Count(name, authors_lines(text), has_kernel(text) and file.parent != KERNELS))
    return sorted(found, key=lambda count: (not count.is_family, count.name != DEFAULT, count.name))


def main() -> int:
    over = 0
    for count in counts():
        limit = f"of {LIMIT}" if count.is_family else "shared"
        over += count.is_family and count.lines > LIMIT
        print(f"{count.name:28} {count.lines:4}  {limit}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
