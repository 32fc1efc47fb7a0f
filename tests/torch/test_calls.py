"""Calls on tensors of a fake GPU: what is cached, and what must not be."""

from __future__ import annotations

import struct

import pytest
from tests.runtime.fake_driver import FakeLibrary, FakeTensor

torch = pytest.importorskip("torch")

import warploom as wl  # noqa: E402
from warploom.diagnostics import WarploomError  # noqa: E402
from warploom.ptx.analysis.storage import size_of  # noqa: E402
from warploom.runtime.gpu import driver, loading  # noqa: E402
from warploom.runtime.gpu import tensor_signature as likeness  # noqa: E402
from warploom.structured import config as wl_config  # noqa: E402
from warploom.torch import arguments, launch_cache, op_library  # noqa: E402


class OnGpu(torch.Tensor):
    """A host tensor that claims to be on a GPU, and so do tensors made from it."""

    is_cuda = True

    def get_device(self):
        return 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), options=None):
        with torch._C.DisableTorchFunctionSubclass():
            made = function(*args, **(options or {}))
        return made.as_subclass(OnGpu) if type(made) is torch.Tensor else made


def tensor(*shape, dtype=torch.bfloat16):
    return torch.ones(*shape, dtype=dtype).as_subclass(OnGpu)


@pytest.fixture(params=[(9, 0), (10, 0)], ids=["Hopper", "Blackwell"])
def gpu(request, monkeypatch, tmp_path):
    monkeypatch.setenv("WARPLOOM_CACHE_DIR", str(tmp_path))
    library = FakeLibrary(capability=request.param)
    monkeypatch.setattr(driver, "load_library", lambda: library)
    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(loading, "_fitting_ptxas", lambda *_: None)  # the driver assembles, and does so immediately
    monkeypatch.setattr(launch_cache, "CACHE", {})
    monkeypatch.setattr(launch_cache, "_EAGER", frozenset((torch.Tensor, OnGpu)))
    monkeypatch.setattr(launch_cache, "_maker_of", lambda made: lambda: tensor(*made.shape, dtype=made.dtype))
    monkeypatch.setattr(likeness, "_guards_tell", lambda: False)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **{**k, "device": "cpu"}).as_subclass(OnGpu))
    cached = (driver.driver, driver.device, driver.device_count)
    for each in cached:
        each.cache_clear()
    yield library
    for each in cached:
        each.cache_clear()


def launchers():
    """The cached launchers, by signature."""
    return {key: each for key, each in launch_cache.CACHE.items() if isinstance(each, launch_cache.Launcher)}


def read(gpu, call):
    """The addresses and 4-byte scalars that a call passes to its kernel."""
    before = set(launchers())
    call()
    (signature,) = set(launchers()) - before
    gpu.sizes = tuple(size_of(param) for param in launchers()[signature].prepared.loaded.kernel.params)
    call()
    parameters, gpu.sizes = gpu.launched[-1].parameters, ()
    maps = [struct.unpack_from("<Q", raw, 6)[0] for raw in parameters if len(raw) == 128]
    return maps + [struct.unpack("<Q", raw)[0] for raw in parameters if len(raw) == 8]


X, W = (40, 64), (24, 64)


def test_a_residual_that_is_not_read_is_not_passed(gpu):
    x, w, residual = tensor(*X), tensor(*W), tensor(40, 24)
    for _ in range(3):
        assert wl.linear(x, w, residual=residual, beta=0).shape == (40, 24)
    assert len(gpu.launched) == 3
    assert residual.data_ptr() not in read(gpu, lambda: wl.linear(x, w, residual=residual, beta=0, activation="relu"))


def test_an_epilogue_input_may_be_a_number(gpu):
    x, w = tensor(*X), tensor(*W)
    for bias in (2.0, 2.0, 3):
        assert wl.linear(x, w, bias=bias).shape == (40, 24)
    assert len(gpu.launched) == 3


def test_scalars_must_be_numbers(gpu):
    x, w = tensor(*X), tensor(*W)
    for alpha in (torch.tensor(2.0), [2], "2", {}, None):
        for function in (wl.linear, lambda x, w, **options: wl.matmul(x, w.mT, **options)):
            with pytest.raises(WarploomError, match=r"`alpha` must be a number, got"):
                function(x, w, alpha=alpha)
    assert gpu.launched == []
    wl.linear(x, w, alpha=2.0)
    wl.linear(x, w, alpha=3.0)
    wl.linear(x, w, alpha=2)
    assert len(launchers()) == 2


def images(gpu, call):
    """The kernels that a call loads."""
    before = len(gpu.images)
    call()
    return gpu.images[before:]


def test_objects_that_an_epilogue_uses_may_change(gpu):
    x, w, settings = tensor(*X), tensor(*W), {"factor": 2.0}

    def scaled(acc, at):
        return acc * settings["factor"]

    (first,) = images(gpu, lambda: wl.linear(x, w, epilogue=scaled))
    assert images(gpu, lambda: wl.linear(x, w, epilogue=scaled)) == []
    settings["factor"] = 3.0
    (second,) = images(gpu, lambda: wl.linear(x, w, epilogue=scaled))
    assert first != second


def test_epilogues_that_capture_objects_are_planned_again(gpu, monkeypatch):
    monkeypatch.setattr(arguments, "_MOST_TEMPORARY", 4)
    x, w = tensor(*X), tensor(*W)

    class Settings:
        factor = 2.0

    settings = Settings()

    def scaled(acc, at):
        return acc * settings.factor

    (first,) = images(gpu, lambda: wl.linear(x, w, epilogue=scaled))
    settings.factor = 3.0
    (second,) = images(gpu, lambda: wl.linear(x, w, epilogue=scaled))
    assert first != second
    assert launchers() == {}
    assert images(gpu, lambda: [wl.linear(x, w, epilogue=scaled) for _ in range(6)]) == []
    assert len(arguments._NAMED) <= len(arguments._PERMANENT) + 5


def test_a_target_may_be_given_if_it_is_that_of_the_gpu(gpu):
    x, w = tensor(*X), tensor(*W)
    own, other = {(9, 0): ("sm_90a", "sm_100a"), (10, 0): ("sm_100a", "sm_90a")}[gpu.capability]
    assert wl.linear(x, w, target=own).shape == (40, 24)
    with pytest.raises(
        WarploomError, match=f"`target` must be {own}, the target of the GPU that holds the tensors, got '{other}'"
    ):
        wl.linear(x, w, target=other)
    assert len(gpu.launched) == 1


@pytest.mark.parametrize("name", ["a", "b", "x", "w", "ends", "acc"])
def test_operands_may_have_any_name(gpu, name):
    x, w, operand = tensor(*X), tensor(*W), tensor(40, 24)
    function = eval(f"lambda value, at, {name}: value + {name}")
    found = read(gpu, lambda: wl.linear(x, w, operands={name: operand}, epilogue=function))
    assert {x.data_ptr(), w.data_ptr(), operand.data_ptr()} <= set(found)


def test_results_that_overlap_an_operand(gpu):
    a, b = tensor(64, 64), tensor(64, 64)
    for out, residual, copies in ((a, None, 1), (b, None, 1), (tensor(64, 64), None, 0), (r := tensor(64, 64), r, 0)):
        cloned = []
        with pytest.MonkeyPatch.context() as patch:
            clone = torch.Tensor.clone
            patch.setattr(
                OnGpu, "clone", lambda self, c=clone, k=cloned: k.append(1) or c(self).as_subclass(OnGpu), False
            )
            assert wl.matmul(a, b, residual=residual, out=out) is out
        assert len(cloned) == copies
    assert len(gpu.launched) == 4


OPTIONS = {
    "bias": lambda: {"bias": tensor(24)},
    "number": lambda: {"bias": 2.0},
    "residual": lambda: {"residual": tensor(40, 24)},
    "beta": lambda: {"residual": tensor(40, 24), "beta": 0.5},
    "no residual": lambda: {"residual": tensor(40, 24), "beta": 0},
    "alpha": lambda: {"alpha": 2.0},
    "activation": lambda: {"activation": "gelu_tanh"},
    "out": lambda: {"out": tensor(40, 24)},
    "out of float32": lambda: {"out": tensor(40, 24, dtype=torch.float32)},
    "in place": lambda: (lambda c: {"residual": c, "out": c})(tensor(40, 24)),  # noqa: PLC3002
    "dtype": lambda: {"out_dtype": torch.float32},
    "function": lambda: {"epilogue": lambda acc, at, s: acc * s, "operands": {"s": tensor(40, 1)}},
    "function of a number": lambda: {"epilogue": lambda acc, at, s: acc * s, "operands": {"s": 2.0}},
}
FAMILIES = {
    "grouped": lambda **options: wl.grouped_matmul(
        tensor(*X), tensor(3, 64, 24), torch.tensor([3, 9, 40]).as_subclass(OnGpu), **options
    ),
    "blockwise": lambda **options: wl.blockwise_matmul(
        tensor(40, 256).to(torch.float8_e4m3fn), tensor(24, 256).to(torch.float8_e4m3fn),
        tensor(40, 2, dtype=torch.float32), tensor(1, 2, dtype=torch.float32), **options,
    ),
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_take_all_options(gpu, family, option):
    options = OPTIONS[option]()
    for count in (1, 2):
        made = FAMILIES[family](**options)
        assert made.shape == (40, 24)
        assert made.dtype == options.get("out_dtype", options.get("out", made).dtype)
        assert len(gpu.launched) == count


def test_lazily_negated_tensors_are_materialised(gpu):
    x, w = tensor(*X, dtype=torch.float32), tensor(*W, dtype=torch.float32)
    flipped = torch._neg_view(x)
    assert x.data_ptr() not in read(gpu, lambda: wl.linear(flipped, w))
    assert x.data_ptr() in read(gpu, lambda: wl.linear(x, w, activation="relu"))


def test_the_ptx_of_a_call_on_a_gpu(gpu):
    given = FakeTensor(0x1000, (40, 64)), FakeTensor(0x10000, (24, 64))
    text = wl.ptx_of(wl.linear, *given, activation="relu")
    assert f".target {driver.device(0).target}" in text
    assert text == wl.ptx_of(wl.linear, w=given[1], x=given[0], activation="relu", out=FakeTensor(0x40000, (40, 24)))
    assert gpu.launched == []


@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}, {"bias": 1, "activation": "relu"}], ids=str)
def test_repeated_calls_with_gradients_reuse_their_launches(gpu, monkeypatch, options):
    def leaves():
        x, w = tensor(*X), tensor(*W)
        given = {name: tensor(24) if name == "bias" else value for name, value in options.items()}
        return x.requires_grad_(), w.requires_grad_(), given

    for _ in range(2):
        x, w, given = leaves()
        wl.linear(x, w, **given).backward(tensor(40, 24))
    planned = len(launchers())
    assert planned == 3
    assert len(gpu.launched) == 6
    monkeypatch.setattr(op_library, "compute", None)
    x, w, given = leaves()
    gradient, done = tensor(40, 24), []
    monkeypatch.setattr(
        launch_cache,
        "_relaunched",
        lambda quick, tensors, again=launch_cache._relaunched: done.append(tensors) or again(quick, tensors),
    )
    made = wl.linear(x, w, **given)
    kept = done[0][2 + ("bias" in options) :]
    assert [each.shape for each in kept] == ([(40, 24)] if "activation" in options else [])
    assert done[0][0].data_ptr() == x.data_ptr()
    made.backward(gradient)
    assert len(gpu.launched) == 9
    assert [[tuple(each.shape) for each in tensors] for tensors in done[1:]] == [[(40, 24), W], [(24, 40), X]]
    assert x.grad.shape == X
    assert w.grad.is_contiguous()


def scaling(factor):
    return lambda acc, at: acc * factor


CONFIG = {(9, 0): wl_config.HopperConfig(tile=(128, 128)), (10, 0): wl_config.MatmulConfig()}
REMEMBERED = {
    "out": lambda gpu: {"out": tensor(40, 24)},
    "out and residual": lambda gpu: {"residual": tensor(40, 24), "out": tensor(40, 24)},
    "config": lambda gpu: {"config": CONFIG[gpu.capability]},
    "epilogue": lambda gpu: {"epilogue": scaling(2.0)},
    "operands": lambda gpu: {"epilogue": lambda acc, at, s, t: acc * s + t, "operands": {"s": tensor(24), "t": 3.0}},
    "all": lambda gpu: {
        "bias": tensor(24),
        "epilogue": lambda acc, at, s: acc * s,
        "operands": {"s": tensor(40, 1)},
        "config": CONFIG[gpu.capability],
        "out": tensor(40, 24),
    },
}


@pytest.mark.parametrize("name", REMEMBERED)
def test_calls_with_every_option_go_straight_to_their_launch(gpu, monkeypatch, name):
    x, w = tensor(*X), tensor(*W)
    wl.linear(x, w, **REMEMBERED[name](gpu))
    monkeypatch.setattr(op_library, "compute", None)
    for _ in range(2):
        options = REMEMBERED[name](gpu)
        made = wl.linear(x, w, **options)
        assert made is options.get("out", made)
    assert len(gpu.launched) == 3


def test_another_captured_number_is_another_kernel(gpu):
    x, w = tensor(*X), tensor(*W)
    (first,) = images(gpu, lambda: wl.linear(x, w, epilogue=scaling(2.0)))
    assert images(gpu, lambda: wl.linear(x, w, epilogue=scaling(2.0))) == []
    (second,) = images(gpu, lambda: wl.linear(x, w, epilogue=scaling(3.0)))
    assert first != second
