"""Building blocks of warp-specialised kernels: pipelines, schedulers, tensor cores, epilogues and configurations.

`from warploom.structured import MmaWarpContext, TileWriter`: all public names are here. `exports` lists them; it is
loaded when the first of them is used, so that importing a single submodule stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warploom.structured.exports import *  # noqa: F403 - the type checker's view of the names below


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exports = import_module("warploom.structured.exports")
    if name == "__all__" or name in exports.__all__:
        return getattr(exports, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("warploom.structured.exports").__all__})
