"""Compile a kernel of the corpus to PTX, without a GPU and without torch.

Triton and Gluon go through `triton.compile` with an explicit target, CUDA C++ through NVRTC called with ctypes.
Results are kept on disk under a hash of source, options and compiler version, so that only the first run compiles.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

KERNELS_CUDA = Path(__file__).parent / "kernels_cuda"
PACKAGE = {"triton": "triton", "gluon": "triton", "cuda": "nvidia-cuda-nvrtc"}


class CompilerMissing(Exception):
    """The package that compiles this case is not installed."""


@dataclass(frozen=True)
class Descriptor:
    """The compiler's choices for one tensor-descriptor parameter: the TMA box and the swizzle."""

    box: tuple[int, ...]
    swizzle: str
    fp4_padded: bool = False


@dataclass(frozen=True)
class Compiled:
    """One kernel as PTX, with the facts of its launch that only the compiler knows."""

    ptx: str
    entry: str
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    scratch_bytes: int = 0
    descriptors: tuple[Descriptor, ...] = ()

    def to_json(self) -> str:
        """The record as text, for the cache."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Compiled:
        """The record back from its text."""
        fields = json.loads(text)
        fields["block"] = tuple(fields["block"])
        fields["cluster"] = tuple(fields["cluster"])
        fields["descriptors"] = tuple(Descriptor(**{**d, "box": tuple(d["box"])}) for d in fields["descriptors"])
        return Compiled(**fields)


def cache_folder() -> Path:
    """The directory of compiled kernels; `WARPLOOM_CORPUS_CACHE` overrides the temporary directory."""
    default = Path(tempfile.gettempdir()) / f"warploom-corpus-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    folder = Path(os.environ.get("WARPLOOM_CORPUS_CACHE", default))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached(key: str, build: Callable[[], Compiled]) -> Compiled:
    """Return `build()`, or its stored result for this key."""
    path = cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    if path.exists():
        return Compiled.from_json(path.read_text())
    compiled = build()
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as scratch:
        scratch.write(compiled.to_json())
    Path(scratch.name).replace(path)
    return compiled


def version_of(language: str) -> str:
    """The version of a language's compiler; raises if it is not installed."""
    try:
        return importlib.metadata.version(PACKAGE[language])
    except importlib.metadata.PackageNotFoundError as error:
        raise CompilerMissing(f"the package {PACKAGE[language]} is not installed") from error


def compile_triton(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    arch: int,
    *,
    aligned: tuple[str, ...] = (),
    **options: Any,
) -> Compiled:
    """A Triton kernel as PTX; `aligned` names the arguments that Triton's launcher would find to be multiples of 16."""
    from triton.compiler import ASTSource

    return _compile_triton(ASTSource, "triton", fn, signature, constexprs, arch, aligned, options)


def compile_gluon(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    arch: int,
    *,
    aligned: tuple[str, ...] = (),
    **options: Any,
) -> Compiled:
    """A Gluon kernel as PTX."""
    from triton.experimental.gluon._runtime import GluonASTSource

    return _compile_triton(GluonASTSource, "gluon", fn, signature, constexprs, arch, aligned, options)


def _compile_triton(
    source_type: Any,
    language: str,
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    arch: int,
    aligned: tuple[str, ...],
    options: dict[str, Any],
) -> Compiled:
    names = list(fn.arg_names)
    full = {name: "constexpr" if name in constexprs else signature[name] for name in names}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = source_type(fn, full, dict(constexprs), attributes)
    options = {name: value for name, value in options.items() if value is not None}
    key = json.dumps([language, version_of(language), source.hash(), arch, sorted(options.items())])
    return cached(key, lambda: _run_triton(source, arch, options))


def _run_triton(source: Any, arch: int, options: dict[str, Any]) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget

    with tempfile.TemporaryDirectory() as scratch, triton.knobs.cache.scope():
        triton.knobs.cache.dir = scratch
        kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        metadata = kernel.metadata
        ptx = kernel.asm["ptx"]
    descriptors = tuple(
        Descriptor(tuple(meta["block_size"]), ("none", "32B", "64B", "128B")[meta["swizzle"]], bool(meta["fp4_padded"]))
        for meta in metadata.tensordesc_meta or ()
    )
    return Compiled(
        ptx=ptx,
        entry=metadata.name,
        block=(32 * metadata.num_warps, 1, 1),
        cluster=(metadata.num_ctas, 1, 1),
        shared_bytes=metadata.shared,
        scratch_bytes=metadata.global_scratch_size,
        descriptors=descriptors,
    )


def compile_cuda(
    file: str,
    entry: str,
    arch: int,
    *,
    block: int | tuple[int, int, int],
    cluster: int = 1,
    shared_bytes: int = 0,
    defines: Mapping[str, object] | None = None,
) -> Compiled:
    """One `extern "C"` kernel of a file in `kernels_cuda` as PTX; needs no CUDA header."""
    source = (KERNELS_CUDA / file).read_text()
    prelude = (KERNELS_CUDA / "prelude.cuh").read_text()
    flags = (
        f"--gpu-architecture=compute_{arch}a",
        "--std=c++17",
        "--device-as-default-execution-space",
        "--generate-line-info",
        *(f"-D{name}={value}" for name, value in (defines or {}).items()),
    )
    key = json.dumps(["cuda", version_of("cuda"), prelude, source, flags])
    module = cached(key, lambda: Compiled(_run_nvrtc(file, source, prelude, flags), "", (1, 1, 1)))
    shape = (block, 1, 1) if isinstance(block, int) else block
    return replace(module, entry=entry, block=shape, cluster=(cluster, 1, 1), shared_bytes=shared_bytes)


@cache
def _nvrtc() -> ctypes.CDLL:
    """The library of pip's `nvidia-cuda-nvrtc`, with its builtins loaded first: 13.0 does not find them itself."""
    package = importlib.util.find_spec("nvidia")
    roots = [Path(place) for place in (package.submodule_search_locations or ())] if package else []
    libraries = [path for root in roots for path in sorted(root.glob("*/lib/libnvrtc*.so*"))]
    builtins = next((path for path in libraries if "builtins" in path.name and "alt" not in path.name), None)
    main = next((p for p in libraries if p.name.startswith("libnvrtc.so") and "alt" not in p.name), None)
    if main is None:
        raise CompilerMissing("nvidia-cuda-nvrtc has no library for this platform")
    if builtins is not None:
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(main))


def _run_nvrtc(file: str, source: str, prelude: str, flags: tuple[str, ...]) -> str:
    library = _nvrtc()
    program = ctypes.c_void_p()

    def text(size_of: Any, read: Any) -> str:
        size = ctypes.c_size_t()
        size_of(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        read(program, buffer)
        return buffer.value.decode()

    headers = (ctypes.c_char_p * 1)(prelude.encode())
    header_names = (ctypes.c_char_p * 1)(b"prelude.cuh")
    status = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), file.encode(), 1, headers, header_names)
    if status:
        raise RuntimeError(f"nvrtcCreateProgram returned {status}")
    options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    try:
        if library.nvrtcCompileProgram(program, len(flags), options):
            log = text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog)
            raise RuntimeError(f"NVRTC does not compile {file}:\n{log}")
        return text(library.nvrtcGetPTXSize, library.nvrtcGetPTX)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
