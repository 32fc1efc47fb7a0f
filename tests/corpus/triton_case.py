"""Cases whose kernel is Triton or Gluon: the signature is derived from the arguments, as in Triton's own launcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .case import Arrays, Buffer, Case, Pointers, Tile
from .compile import Compiled, compile_gluon, compile_triton, version_of

POINTEE = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "int8": "i8", "uint8": "u8", "int16": "i16",
    "int32": "i32", "int64": "i64", "uint32": "u32", "uint64": "u64",
}  # fmt: skip


def type_of(argument: str | Tile | Pointers | float, buffers: Mapping[str, Buffer]) -> str:
    """The type of an argument as a Triton signature spells it."""
    match argument:
        case str():
            return "*" + POINTEE[buffers[argument].dtype.name]
        case Tile(buffer, block, layout):
            return f"tensordesc<{POINTEE[buffers[buffer].dtype.name]}{list(block)}{layout and ',' + layout}>"
        case Pointers():
            return "*i64"
        case int():
            return "i32"
        case float():
            return "fp32"


def triton_case(
    name: str,
    arch: int,
    grid: tuple[int, ...],
    buffers: Mapping[str, Buffer],
    args: Mapping[str, str | Tile | Pointers | int | float],
    constants: Mapping[str, Any],
    expected: Callable[[Arrays], Arrays],
    *,
    kernel: str = "",
    module: str = "kernels_triton",
    options: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Case:
    """A Triton or Gluon case; a constant `"tl.x"` means that member of `triton.language`."""
    language = "gluon" if "gluon" in module else "triton"

    def build(ptx_version: int | None) -> Compiled:
        version_of(language)
        import triton.language as tl

        fn = getattr(import_module(f"{__package__}.{module}"), kernel or name)
        known = {
            key: getattr(tl, value.removeprefix("tl.")) if isinstance(value, str) and value.startswith("tl.") else value
            for key, value in constants.items()
        }
        aligned = tuple(
            parameter
            for parameter, argument in args.items()
            if isinstance(argument, str | Pointers) or (isinstance(argument, int) and argument % 16 == 0)
        )
        signature = {parameter: type_of(argument, buffers) for parameter, argument in args.items()}
        chosen = {"enable_fp_fusion": True, "ptx_version": ptx_version, **(options or {})}
        compile_ = compile_gluon if language == "gluon" else compile_triton
        return compile_(fn, signature, known, arch, aligned=aligned, **chosen)

    full_name = f"{language}_{name}_sm{arch}"
    return Case(full_name, language, arch, build, buffers, tuple(args.values()), grid, expected, **facts)
