"""Auxiliary outputs and gated GEMMs on host tensors of PyTorch: results, the compiler, and refused calls."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import warploom.ops as wl  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
"""PyTorch's compiler warns of what it will change."""


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def ints(*shape, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype)


def exact(a, b):
    return a.double() @ b.double()


def same(found, want):
    torch.testing.assert_close(found.double(), want.double(), rtol=0, atol=0)


def poisoned(*shape, dtype=torch.float32):
    return torch.full(shape, torch.nan, dtype=dtype)


def times(gate, up):
    return gate * up


def test_the_value_before_the_activation():
    x, w, bias, residual = ints(3, 5, 40), ints(24, 40), ints(24), ints(3, 5, 24)
    before, out = poisoned(3, 5, 24), poisoned(3, 5, 24)
    options = {"bias": bias, "activation": "relu", "residual": residual}
    found = wl.linear(x, w, **options, outputs={"pre_activation": before})
    want = exact(x, w.T) + bias
    same(before, want)
    same(found, torch.relu(want) + residual)
    assert wl.linear(x, w, **options, outputs={"pre_activation": before.zero_()}, out=out) is out
    same(before, want)
    same(out, torch.relu(want) + residual)


def test_outputs_of_a_user_epilogue():
    a, b, scale = ints(3, 20, 16), ints(3, 16, 24), ints(20, 1)
    kept = {"doubled": poisoned(3, 20, 24), "scaled": poisoned(3, 20, 24, dtype=torch.bfloat16)}

    def widened(acc, at, scale, shift):
        return {"out": acc + shift, "doubled": acc * 2, "scaled": acc * scale}

    found = wl.matmul(a, b, epilogue=widened, operands={"scale": scale, "shift": 3.0}, outputs=kept)
    same(found, exact(a, b) + 3)
    same(kept["doubled"], exact(a, b) * 2)
    same(kept["scaled"], (exact(a, b) * scale).bfloat16())


def test_gated_gemms():
    x, w = ints(2, 33, 40), ints(48, 40)
    gate, up = poisoned(2, 33, 24), poisoned(2, 33, 24)
    options = {"gate_bias": ints(24), "up_bias": 2.0, "pair": times, "out_dtype": torch.float32}
    found = wl.gated_linear(x, *w.chunk(2), **options, outputs={"gate": gate, "up": up})
    same(gate, exact(x, w[:24].T) + options["gate_bias"])
    same(up, exact(x, w[24:].T) + 2)
    same(found, gate.double() * up.double())
    out = poisoned(2, 33, 24)
    assert wl.gated_linear(x, w[0::2], w[1::2], pair=times, out=out) is out
    same(out, exact(x, w[0::2].T) * exact(x, w[1::2].T))


@pytest.mark.parametrize("pair", ["swiglu", "geglu", "geglu_tanh", "reglu", "glu"])
def test_gated_activations_by_name(pair):
    functions = {
        "swiglu": torch.nn.functional.silu,
        "geglu": torch.nn.functional.gelu,
        "geglu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "reglu": torch.relu,
        "glu": torch.sigmoid,
    }
    x, gate, up = (torch.randn(*shape).bfloat16() for shape in ((9, 40), (24, 40), (24, 40)))
    found = wl.gated_linear(x, gate, up, pair=pair)
    want = functions[pair](exact(x, gate.T)) * exact(x, up.T)
    torch.testing.assert_close(found.double(), want, rtol=2**-7, atol=2**-7 * float(want.abs().max()))


def in_groups(a, b, ends):
    """The grouped GEMM of the rows that belong to a group."""
    firsts = [0, *ends.tolist()]
    return torch.cat([exact(a[first:end], each) for first, end, each in zip(firsts, firsts[1:], b, strict=False)])


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_outputs_of_grouped_gemms(kind):
    a, b, ends, bias = ints(40, 16), ints(3, 16, 24), torch.tensor([7, 7, 33], dtype=kind), ints(24)
    before, out = poisoned(40, 24), poisoned(24, 40).T
    want = in_groups(a, b, ends) + bias
    options = {"bias": bias, "activation": "relu", "outputs": {"pre_activation": before}}
    found = wl.grouped_matmul(a, b, ends, **options)
    same(before[:33], want)
    same(found, torch.cat((torch.relu(want), torch.zeros(7, 24))))
    assert wl.grouped_matmul(a, b, ends, **options, out=out) is out
    same(out[:33], torch.relu(want))
    assert before[33:].isnan().all()
    assert out[33:].isnan().all()


def test_gated_grouped_gemms():
    a, b, ends = ints(40, 16), ints(3, 16, 48), torch.tensor([7, 7, 33])
    kept = {"gate": poisoned(40, 24), "up": poisoned(40, 24, dtype=torch.bfloat16)}
    options = {"gate_bias": ints(24), "up_bias": 2.0, "pair": times, "out_dtype": torch.float32}
    for gate, up in ((b[..., :24], b[..., 24:]), (b[..., 0::2], b[..., 1::2])):
        found = wl.gated_grouped_matmul(a, gate, up, ends, **options, outputs=kept)
        same(kept["gate"][:33], in_groups(a, gate, ends) + options["gate_bias"])
        same(kept["up"][:33], in_groups(a, up, ends) + 2)
        same(found[:33], kept["gate"][:33].double() * kept["up"][:33].double())
        assert not found[33:].any()
    out, residual = torch.full((40, 24), 7.0), ints(40, 24, dtype=torch.float32)
    assert wl.gated_grouped_matmul(a, gate, gate, ends, pair=times, residual=residual, out=out) is out
    same(out[:33], in_groups(a, gate, ends).square() + residual[:33])
    assert (out[33:] == 7).all()
    want = torch.cat((out[:33], residual[33:]))
    same(wl.gated_grouped_matmul(a, gate, gate, ends, pair=times, residual=residual, out=residual), want)


def test_outputs_of_blockwise_gemms():
    narrow = ints(9, 16, dtype=torch.float8_e4m3fn), ints(24, 16, dtype=torch.float8_e4m3fn)
    before = poisoned(9, 24)
    scales = torch.full((9, 1), 0.5), torch.full((1, 1), 4.0)
    found = wl.blockwise_matmul(*narrow, *scales, activation="relu", outputs={"pre_activation": before})
    want = 2 * exact(narrow[0], narrow[1].double().T)
    same(before, want)
    same(found, torch.relu(want))


@pytest.mark.parametrize("dynamic", [False, True])
def test_groups_compiled_without_a_break(dynamic):
    def layer(x, gate, up, down, ends):
        before, out = x.new_full((x.shape[0], 16), 7.0), x.new_full((x.shape[0], 24), 7.0)
        hidden = wl.gated_grouped_matmul(x * 2, gate, up, ends, pair=times, out=out)
        return wl.grouped_matmul(hidden, down, ends, activation="relu", outputs={"pre_activation": before}), before

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    gate, up, down, ends = ints(2, 16, 24), ints(2, 16, 24), ints(2, 24, 16), torch.tensor([2, 4])
    for rows in (5, 9):
        x = ints(rows, 16)
        for found, want in zip(compiled(x, gate, up, down, ends), layer(x, gate, up, down, ends), strict=True):
            same(found, want)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_without_a_break(dynamic):
    def layer(x, gate, up, bias):
        before = torch.empty(x.shape[0], 24, dtype=torch.float32)
        made = wl.linear(x * 2, gate, bias=bias, activation="relu", outputs={"pre_activation": before})
        return wl.gated_linear(x, gate, up, pair=times, gate_bias=bias) + 1, made, before

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    gate, up, bias = ints(24, 40), ints(24, 40), ints(24)
    for rows in (5, 9):
        x = ints(rows, 40)
        for found, want in zip(compiled(x, gate, up, bias), layer(x, gate, up, bias), strict=True):
            same(found, want)


def test_autocast():
    x, gate, up = torch.randn(9, 16), torch.randn(24, 16), torch.randn(24, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert wl.gated_linear(x, gate, up).dtype == torch.bfloat16


def test_empty():
    x, w = ints(0, 16), ints(24, 16)
    assert wl.gated_linear(x, w, w).shape == (0, 24)
    assert wl.linear(x, w, outputs={"pre_activation": ints(0, 24)}).shape == (0, 24)
    nobody = ints(0, 16, 24), ints(0, 16, 24), torch.zeros(0, dtype=torch.int32)
    assert not wl.gated_grouped_matmul(ints(5, 16), *nobody).any()


def test_no_gradient():
    x, w = ints(9, 16).requires_grad_(), ints(24, 16)
    with pytest.raises(WarploomError, match="not supported for a function for `pair`"):
        wl.gated_linear(x, w, w, pair=times)
    with pytest.raises(WarploomError, match="not supported for `outputs`"):
        wl.linear(x, w, outputs={"pre_activation": poisoned(9, 24)})
    groups = w.T[None], torch.tensor([9])
    with pytest.raises(WarploomError, match="not supported for `outputs`"):
        wl.grouped_matmul(x, *groups, outputs={"pre_activation": poisoned(9, 24)})
    with pytest.raises(WarploomError, match="not supported for a function for `pair`"):
        wl.gated_grouped_matmul(x, groups[0], *groups, pair=times)
    with torch.no_grad():
        wl.gated_linear(x, w, w, pair=times)


def test_all_invalid_arguments_are_reported():
    x, w = ints(9, 16), ints(24, 16)
    good = poisoned(9, 24)
    with pytest.raises(WarploomError) as found:
        wl.linear(x, w, outputs={"pre_activation": poisoned(9, 23), "other": good, "again": good})
    for part in ("linear(): invalid", "result's shape, (9, 24)", "unless an `epilogue` returns it", "not overlap"):
        assert part in str(found.value), part
    with pytest.raises(WarploomError, match="must be like `w_gate`"):
        wl.gated_linear(x, w, ints(23, 16))
    experts, ends = ints(2, 16, 24), torch.tensor([4, 9])
    with pytest.raises(WarploomError) as found:
        wl.gated_grouped_matmul(x, experts, experts[:, :, 1:], ends[:1], outputs={"gate": poisoned(9, 23)})
    assert "`b_up` must be like `b_gate`" in str(found.value)
    assert "one end for each matrix of `b_gate`" in str(found.value)
    with pytest.raises(WarploomError, match=r"result's shape, \(9, 24\)"):
        wl.grouped_matmul(x, experts, ends, outputs={"pre_activation": poisoned(9, 23)})
