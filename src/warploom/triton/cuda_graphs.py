"""CUDA graphs while the emulator is the GPU: a capture records launches and operators of PyTorch, a replay runs them.

A GPU does not execute what it captures. Here everything runs once, because operators of the host allocate their results
and may read what a kernel before them wrote, and the memory of all tensors is restored when the capture ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from warploom.triton.patches import Patches
from warploom.triton.storages import Bytes, bytes_of
from warploom.triton.streams import CURRENT, Stream

_SYNCHRONISING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select")
"""Operators that wait for the GPU, because the host needs a value."""


def capturing() -> CUDAGraph | None:
    """The graph that this thread is capturing, if it is."""
    graph: CUDAGraph | None = CURRENT.graph
    return graph


class _Operators(TorchDispatchMode):
    """Records the operators that are called in a block."""

    def __init__(self, graph: CUDAGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._graph.add_operator(func, args, kwargs or {})


class CUDAGraph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._steps: list[Callable[[], None]] | None = None
        self._before: dict[int, tuple[Bytes, Bytes]] = {}
        self._modes = ExitStack()
        self._inside_operator = False

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """Begin to record; the memory of what is written will be restored."""
        if capturing() is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self._steps = []
        CURRENT.graph = self
        self._modes.enter_context(_Operators(self))

    def capture_end(self) -> None:
        """End the capture; every tensor has the contents that it had when the capture began."""
        if capturing() is not self:
            raise RuntimeError("CUDA error: the stream is not capturing")
        self._modes.close()
        CURRENT.graph = None
        for now, before in self._before.values():
            now[:] = before
        self._before.clear()

    def replay(self) -> None:
        """Run what was captured, on the memory that it was captured with."""
        if self._steps is None or capturing() is self:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if (outer := capturing()) is not None:
            raise RuntimeError(f"A graph cannot be replayed while {type(outer).__name__} captures another one.")
        with torch.no_grad():
            for step in self._steps:
                step()

    def reset(self) -> None:
        self._steps = None

    def instantiate(self) -> None:
        pass

    def enable_debug_mode(self) -> None:
        pass

    def debug_dump(self, debug_path: str) -> None:
        pass

    def pool(self) -> tuple[int, int]:
        return 0, 1

    def add_launch(self, memory: Iterable[Bytes], trial: Callable[[], None], run: Callable[[], None]) -> None:
        """Record a launch: `trial` runs it during the capture, `run` at each replay.

        Launches of an operator are a part of it.
        """
        for each in memory:
            self._keep(each)
        trial()
        if not self._inside_operator and self._steps is not None:
            self._steps.append(run)

    def add_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of an operator, and run it."""
        if func._schema.name in _SYNCHRONISING:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({func._schema.name})")
        for each in _written(func, args, kwargs):
            self._keep(bytes_of(each.untyped_storage()))
        self._inside_operator = True
        try:
            captured = func(*args, **kwargs)
        finally:
            self._inside_operator = False
        assert self._steps is not None
        self._steps.append(lambda: _again(func, args, kwargs, captured))
        return captured

    def _keep(self, memory: Bytes) -> None:
        """Remember the contents of memory that will be written."""
        address = memory.__array_interface__["data"][0]
        if len(memory) and address not in self._before:
            self._before[address] = memory, memory.copy()


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The tensors that an operator writes."""
    given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    for each in func._schema.arguments:
        if each.alias_info is not None and each.alias_info.is_write:
            yield from (leaf for leaf in tree_leaves(given.get(each.name)) if isinstance(leaf, torch.Tensor))


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], captured: Any) -> None:
    """Call an operator again; new results go to the memory of those that were captured."""
    for old, new in zip(tree_leaves(captured), tree_leaves(func(*args, **kwargs)), strict=True):
        if isinstance(old, torch.Tensor) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
            old.data.copy_(new)


class Graph:
    """`torch.cuda.graph`: a block whose work is captured, on a stream of its own."""

    default_capture_stream: ClassVar[Any] = None

    def __init__(self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, *_: Any, **__: Any) -> None:
        self.cuda_graph = cuda_graph
        self.stream = stream or Stream()

    def __enter__(self) -> None:
        self.stream.__enter__()
        try:
            self.cuda_graph.capture_begin()
        except BaseException:
            self.stream.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.cuda_graph.capture_end()
        self.stream.__exit__()


def answer_graphs(patches: Patches) -> None:
    """Replace the classes and functions of graphs."""

    def synchronize(device: Any = None) -> None:
        if capturing() is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    for name, value in {
        "CUDAGraph": CUDAGraph,
        "graph": Graph,
        "graph_pool_handle": lambda: (0, 1),
        "is_current_stream_capturing": lambda: capturing() is not None,
        "synchronize": synchronize,
    }.items():
        patches.set(torch.cuda, name, value)
        if hasattr(torch.cuda.graphs, name):
            patches.set(torch.cuda.graphs, name, value)
