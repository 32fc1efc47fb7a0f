"""`warploom docs [PAGE]`: the documentation of the installed version, page by page."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from rich.text import Text

from warploom.commands.console import output, table
from warploom.diagnostics import Diag

_PACKAGE = Path(__file__).parents[1]


def folder() -> Path:
    """The folder of the pages: inside an installed package, or at the root of a checkout."""
    installed = _PACKAGE / "docs"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "docs"


def docs(page: str | None) -> None:
    """Print a page, or the list of all pages and their folder."""
    pages = {file.stem: file for file in sorted(folder().glob("*.md")) if file.stem != "README"}
    console = output()
    if page is None:
        rows = table(f"Pages in {folder()}", "page", "title")
        for name, file in pages.items():
            rows.add_row(name, Text(file.read_text("utf-8").partition("\n")[0].lstrip("# ")))
        console.print(rows)
        return
    name = page.removesuffix(".md").removeprefix("docs/")
    if name not in pages:
        close = get_close_matches(name, pages, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise Diag.BAD_COMMAND.error(what=f"there is no page `{page}`{hint}", command="warploom docs")
    console.print(pages[name].read_text("utf-8").rstrip(), markup=False, soft_wrap=True)
