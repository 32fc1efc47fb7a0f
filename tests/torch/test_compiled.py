"""PyTorch's compiler and exporter on the operations: symbolic sizes, one graph for all of them, no breaks."""

from __future__ import annotations

import io

import pytest

torch = pytest.importorskip("torch")

from functorch.compile import make_boxed_func  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import warploom.ops as wl  # noqa: E402
from warploom.torch import arguments  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
E4M3 = torch.float8_e4m3fn
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def ints(*shape, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype)


def same(found, want):
    torch.testing.assert_close(found, want, rtol=0, atol=0)


W, BIAS, ENDS, EXPERTS, NARROW = (
    ints(24, 16),
    ints(24),
    torch.tensor([1, 1, 2]),
    ints(3, 16, 8),
    ints(8, 16, dtype=E4M3),
)
CASES = {
    "linear": (
        lambda x, r: wl.linear(x, W, bias=BIAS, activation="relu", residual=r) + 1,
        lambda rows: (ints(rows, 16), ints(rows, 24)),
    ),
    "many axes": (
        lambda x, r: wl.linear(x, W, bias=BIAS, residual=r, alpha=2.0),
        lambda rows: (ints(3, rows, 16), ints(rows, 24)),
    ),
    "batches": (wl.matmul, lambda rows: (ints(rows, 3, 16), ints(rows, 16, 8))),
    "many by one": (wl.matmul, lambda rows: (ints(rows, 3, 16), ints(16, 8))),
    "a function": (
        lambda x: wl.linear(x, W, epilogue=lambda acc, at, s: acc * s, operands={"s": 2.0}),
        lambda rows: (ints(rows, 16),),
    ),
    "pairs": (lambda x: wl.gated_linear(x, W, W + 1), lambda rows: (ints(rows, 16),)),
    "grouped": (lambda x: wl.grouped_matmul(x, EXPERTS, ENDS, bias=BIAS[:8]), lambda rows: (ints(rows, 16),)),
    "pairs of groups": (lambda x: wl.gated_grouped_matmul(x, EXPERTS, EXPERTS, ENDS), lambda rows: (ints(rows, 16),)),
    "blockwise": (
        lambda x, s: wl.blockwise_matmul(x, NARROW, s, torch.ones(1, 1)),
        lambda rows: (ints(rows, 16, dtype=E4M3), torch.ones(rows, 1)),
    ),
}


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_one_graph_serves_all_sizes(case, marked):
    function, make = CASES[case]
    counter, counts = CompileCounterWithBackend("aot_eager"), set()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=None if marked else True)
    for rows in (5, 9, 2):
        arguments = make(rows)
        for each in arguments:
            if marked and rows in each.shape:
                torch._dynamo.mark_dynamic(each, each.shape.index(rows))
        same(compiled(*arguments), function(*arguments))
        counts.add(counter.frame_count)
    assert len(counts) == 1, "the first size may be compiled in two goes, but no other is"


def test_gradients_with_symbolic_sizes():
    def loss(x, w, bias, experts):
        made = wl.linear(x, w, bias=bias, activation="silu") + wl.gated_linear(x, w, w + 1, up_bias=bias)
        hidden = wl.gated_grouped_matmul(made / 8, experts, experts + 1, ENDS)
        return wl.grouped_matmul(hidden, experts.mT, ENDS, activation="silu").float().square().mean()

    counter, counts = CompileCounterWithBackend("aot_eager"), set()
    compiled = torch.compile(loss, backend=counter, fullgraph=True, dynamic=True)
    for rows in (5, 9):
        given, found = (ints(rows, 16), W, BIAS, ints(3, 24, 8)), []
        for function in (loss, compiled):
            leaves = [each.clone().requires_grad_() for each in given]
            function(*leaves).backward()
            found.append([each.grad for each in leaves])
        for one, other in zip(*found, strict=True):
            same(one, other)
        counts.add(counter.frame_count)
    assert len(counts) == 1


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_unbacked_sizes():
    def chosen(x, mask):
        rows = x[mask.nonzero().squeeze(1)]
        residual = torch.ones(rows.shape[0], 1, 24, dtype=rows.dtype)
        return wl.linear(rows.unsqueeze(1), W, bias=BIAS, residual=residual)

    compiled = torch.compile(chosen, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        x, mask = ints(9, 16), torch.rand(9) > 0.5
        same(compiled(x, mask), chosen(x, mask))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(W.clone()), torch.nn.Parameter(BIAS.clone())

    def forward(self, x):
        return wl.linear(x, self.weight, bias=self.bias, activation="relu")


def test_export_with_a_dynamic_size():
    layer = Layer()
    rows = torch.export.Dim("rows", min=2, max=4096)
    file = io.BytesIO()
    torch.export.save(torch.export.export(layer, (ints(5, 16),), dynamic_shapes=({0: rows},)), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for count in (2, 33):
        x = ints(count, 16)
        same(loaded(x), layer(x))


def test_autocast_compiles_like_eager():
    x, w = ints(5, 16, dtype=torch.float32), W.float()

    def inside(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return wl.linear(x, w, bias=BIAS.float())

    compiled = torch.compile(inside, backend="aot_eager", fullgraph=True)
    found = compiled(x, w)
    assert found.dtype == torch.bfloat16
    same(found, inside(x, w))
    outside = torch.compile(wl.linear, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.float16):
        assert outside(x, w).dtype == torch.float16
    assert outside(x, w).dtype == torch.float32


RELU = ([], arguments.DEFAULT_NUMBERS, "activation=relu")
OPS = {
    "matmul": (ints(5, 16), ints(16, 24), ints(24), ints(5, 24)),
    "grouped_matmul": (ints(5, 16), ints(3, 16, 24), ENDS, ints(24), ints(5, 24)),
    "blockwise_matmul": (
        ints(5, 16, dtype=E4M3),
        ints(24, 16, dtype=E4M3),
        torch.ones(5, 1),
        torch.ones(1, 1),
        ints(24, dtype=torch.float32),
        ints(5, 24),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_opcheck(name):
    import warploom.torch.dispatch  # noqa: F401  # it defines the ops

    library, given = torch.ops.warploom, OPS[name]
    checks = CHECKS if name != "blockwise_matmul" else CHECKS[1:]  # the first multiplies 8-bit tensors
    for leaf in (None, 0) if name != "blockwise_matmul" else (None, -1):
        tensors = [each.clone() for each in given]
        if leaf is not None:
            tensors[leaf].requires_grad_()
        a, b, *extra, bias, residual = tensors
        out_dtype = torch.float32 if leaf is None else None
        whole = (name, a, b, extra, bias, None, residual, *RELU, out_dtype)
        torch.library.opcheck(library.gemm.default, whole, test_utils=checks)
    *operands, bias, residual = given
    written = (torch.zeros(5, 24), [], name, operands, bias, None, residual, *RELU)
    torch.library.opcheck(library.gemm_into.default, written, test_utils=checks)


def test_opcheck_of_ops_that_save_tensors():
    import warploom.torch.dispatch  # noqa: F401  # it defines the ops

    one, two = (ints(24), None, ints(5, 24)), (ints(24), ints(24), ints(5, 24))
    ends = torch.tensor([1, 1, 5])  # all rows, since others are not saved
    for op, name, tensors, options in (
        ("activated_gemm", "matmul", (ints(5, 16), ints(16, 24), None, *one), "activation=gelu"),
        ("activated_gemm", "grouped_matmul", (ints(5, 16), ints(3, 16, 24), ends, *one), "activation=gelu"),
        ("gated_gemm", "gated_linear", (ints(5, 16), ints(24, 16), ints(24, 16), None, *two), "pair=swiglu"),
        (
            "gated_gemm",
            "gated_grouped_matmul",
            (ints(5, 16), ints(3, 16, 24), ints(3, 16, 24), ends, *two),
            "pair=swiglu",
        ),
    ):
        for leaf in (None, 0):
            own = [None if each is None else each.clone() for each in tensors]
            if leaf is not None:
                own[leaf].requires_grad_()
            given = (name, *own, arguments.DEFAULT_NUMBERS, options, None)
            torch.library.opcheck(getattr(torch.ops.warploom, op).default, given, test_utils=CHECKS)


def test_opcheck_of_gradients():
    rest = (*arguments.NO_INPUTS, [], arguments.DEFAULT_NUMBERS, "", None)
    for leaf in (None, 0):
        a, d = (ints(5, columns).requires_grad_(number == leaf) for number, columns in enumerate((16, 8)))
        given = ("grouped_weights", a, d, [ENDS], *rest)
        torch.library.opcheck(torch.ops.warploom.gemm.default, given, test_utils=CHECKS)


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=True)


META_ENDS = torch.empty(2, dtype=torch.int32, device="meta")
LAYOUTS = {
    "linear": (wl.linear, lambda: (meta(5, 16), meta(24, 16))),
    "many axes": (lambda x, w, b: wl.linear(x, w, bias=b), lambda: (meta(3, 5, 16), meta(24, 16), meta(24))),
    "activation": (lambda x, w: wl.linear(x, w, activation="gelu"), lambda: (meta(5, 16), meta(24, 16))),
    "matmul": (wl.matmul, lambda: (meta(5, 16), meta(16, 24))),
    "transposed matmul": (lambda a, w: wl.matmul(a.mT, w.mT), lambda: (meta(16, 5), meta(24, 16))),
    "batches": (lambda a, w: wl.matmul(a, w.mT), lambda: (meta(2, 5, 16), meta(2, 24, 16))),
    "gated": (wl.gated_linear, lambda: (meta(5, 16), meta(24, 16), meta(24, 16))),
    "grouped": (lambda a, w: wl.grouped_matmul(a, w.mT, META_ENDS), lambda: (meta(5, 16), meta(2, 24, 16))),
}
COPIES = ("clone", "copy", "copy_", "_to_copy", "contiguous")


COMPILED = ("many axes", "activation", "transposed matmul", "grouped")
"""The cases that are compiled as well: the others have the same gradients."""


@pytest.mark.parametrize(
    ("case", "is_compiled"), [*((name, False) for name in LAYOUTS), *((n, True) for n in COMPILED)]
)
def test_gradients_have_the_layout_of_their_parameters_without_copies(case, is_compiled):
    """Autograd copies a gradient whose strides are not those of its parameter, and so does a compiled backward pass."""
    function, make = LAYOUTS[case]
    given, graphs = make(), []

    def keep(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph)

    if is_compiled:
        backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
        made = torch.compile(function, backend=backend, fullgraph=True)(*given)
    else:
        made = function(*given)
    found = torch.autograd.grad(made, given, torch.empty_like(made))
    assert [each.stride() for each in found] == [each.stride() for each in given]
    assert len(graphs) == 2 * is_compiled
    nodes = [node.target.overloadpacket.__name__ for graph in graphs for node in graph.graph.nodes if is_op(node)]
    assert sum("matmul" in name or "gemm" in name for name in nodes) >= 3 * is_compiled
    assert not [name for name in nodes if name in COPIES]


def is_op(node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
