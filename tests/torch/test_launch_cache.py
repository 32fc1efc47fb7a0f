"""Repeated eager calls: which are launched from the cache, with which addresses, and which are planned."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from warploom.ops.determinism import determinism  # noqa: E402
from warploom.structured.config import HopperConfig  # noqa: E402
from warploom.torch import launch_cache  # noqa: E402


def tensor(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    monkeypatch.setattr(launch_cache, "CACHE", {})


@pytest.fixture
def plan():
    """A plan on host tensors that records the addresses of its launches."""
    done = []
    prepared = SimpleNamespace(launch_at=lambda addresses, stream: done.append((*addresses, stream)), count=3)
    return SimpleNamespace(prepared=prepared, stream=lambda: 7, copies=(), family=None, is_final=True, done=done)


def given(m=8, **more):
    return (tensor(m, 16), tensor(24, 16)), more


def remembered(plan, arguments, options):
    made, key = launch_cache.launched("linear", arguments, options)
    assert made is None
    own = [*arguments, *(options[name] for name in ("bias", "residual") if torch.is_tensor(options.get(name)))]
    plan.prepared.count = len(own) + 1
    launch_cache.remember(key, plan, tensor(arguments[0].shape[0], 24), own, own)
    return key


def is_quick(arguments, options) -> bool:
    return launch_cache.launched("linear", arguments, options)[0] is not None


def test_a_repeated_call_is_launched_on_its_own_tensors(plan):
    remembered(plan, *given())
    for _ in range(3):
        (x, w), _ = given()
        out, _ = launch_cache.launched("linear", (x, w), {})
        assert plan.done[-1] == (x.data_ptr(), w.data_ptr(), out.data_ptr(), 7)
        assert (out.shape, out.dtype, out.is_contiguous()) == ((8, 24), torch.bfloat16, True)
    assert launch_cache.launched("matmul", given()[0], {})[0] is None


@pytest.mark.parametrize("order", [("bias", "residual"), ("residual", "bias")])
def test_epilogue_inputs_are_in_the_order_of_the_launch(plan, order):
    addends = {"bias": tensor(24), "residual": tensor(8, 24)}
    options = {name: addends[name] for name in order} | {"activation": "gelu"}
    remembered(plan, given()[0], options)
    x, w = given()[0]
    launch_cache.launched("linear", (x, w), options)
    assert plan.done[-1][2:4] == (addends["bias"].data_ptr(), addends["residual"].data_ptr())


class Own(torch.Tensor):
    pass


OTHERS = {
    "rows": lambda x, w, o: ((tensor(9, 16), w), o),
    "dtype": lambda x, w, o: ((x.half(), w.half()), o),
    "one dtype": lambda x, w, o: ((x, w.half()), o),
    "strides": lambda x, w, o: ((x, tensor(16, 24).T), o),
    "device of one": lambda x, w, o: ((x, w.to("meta")), o),
    "activation": lambda x, w, o: ((x, w), {**o, "activation": "relu"}),
    "number": lambda x, w, o: ((x, w), {**o, "alpha": 2.0}),
    "bias where the residual was": lambda x, w, o: ((x, w), {"bias": tensor(8, 24), "residual": None}),
    "a number for the residual": lambda x, w, o: ((x, w), {**o, "residual": 1.0}),
    "subclass": lambda x, w, o: ((x, w.as_subclass(Own)), o),
    "gradient": lambda x, w, o: ((x, w.requires_grad_()), o),
    "misaligned": lambda x, w, o: ((tensor(8 * 16 + 1)[1:].view(8, 16), w), o),
    "no tensor": lambda x, w, o: ((x, w.float().numpy()), o),
    "nonsense": lambda x, w, o: ((x, w), {**o, "activation": ["relu"]}),
    "out": lambda x, w, o: ((x, w), {**o, "out": tensor(8, 24)}),
}


@pytest.mark.parametrize("change", OTHERS)
def test_calls_that_differ_are_not_taken_from_the_cache(plan, change):
    options = {"bias": None, "residual": tensor(8, 24)}
    remembered(plan, given()[0], options)
    assert is_quick(given()[0], options)
    assert not is_quick(*OTHERS[change](*given()[0], options))


def test_calls_under_autocast_modes_or_determinism_are_not_taken_from_the_cache(plan):
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    remembered(plan, *given())
    arguments, options = given()
    with torch.autocast("cpu"):
        assert not is_quick(arguments, options)
    with Mode():
        assert not is_quick(arguments, options)
    with determinism(batch_invariant=True):
        assert not is_quick(arguments, options)
    assert is_quick(arguments, options)


class Family:
    """Stands for the launches of a call with other rows; it records what is asked of it."""

    def __init__(self, plan, *, is_final=True):
        self.plan, self.is_final, self.asked = plan, is_final, []

    def find(self, rows, *, may_substitute):
        self.asked.append(rows)
        return None if rows > 100 else SimpleNamespace(prepared=self.plan.prepared, is_final=self.is_final)


def resized(plan, **options):
    plan.family = Family(plan)
    remembered(plan, given()[0], options)
    return plan.family


def test_a_new_number_of_rows_is_resized_and_remembered(plan):
    family = resized(plan)
    x, w = given(9)[0]
    for _ in range(3):
        out, _ = launch_cache.launched("linear", (x, w), {})
        assert plan.done[-1] == (x.data_ptr(), w.data_ptr(), out.data_ptr(), 7)
        assert (out.shape, out.dtype) == ((9, 24), torch.bfloat16)
    assert family.asked == [9]
    assert is_quick(given(11)[0], {})
    assert not is_quick(given(101)[0], {})  # no kernel serves it
    assert launch_cache.launched("linear", (tensor(8, 16), tensor(24, 16)), {})[0] is not None


def test_a_provisional_launch_is_not_remembered(plan):
    family = resized(plan)
    family.is_final = False
    for _ in range(3):
        assert is_quick(given(9)[0], {})
    assert family.asked == [9, 9, 9]


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, o: ((tensor(9, 32)[:, :16], w), o),
        lambda x, w, o: ((x.half(), w.half()), o),
        lambda x, w, o: ((tensor(9 * 16 + 1)[1:].view(9, 16), w), o),
        lambda x, w, o: ((x, w.to("meta")), o),
        lambda x, w, o: ((x.requires_grad_(), w), o),
        lambda x, w, o: ((x, w), {**o, "residual": tensor(8, 24)}),
        lambda x, w, o: ((x, w), {**o, "residual": tensor(9, 48)[:, :24]}),
        lambda x, w, o: ((tensor(3, 3, 16), w), {**o, "residual": tensor(3, 3, 24)}),
    ],
)
def test_calls_that_differ_in_more_than_rows_are_not_resized(plan, change):
    options = {"residual": tensor(8, 24)}
    family = resized(plan, **options)
    (x, w), more = given(9)[0], {"residual": tensor(9, 24)}
    assert is_quick((x, w), more)
    assert is_quick((x, w), more)
    launched = len(plan.done)
    (x, w), more = change(*given(9)[0], {"residual": tensor(9, 24)})
    assert not is_quick((x, w), more)
    assert len(plan.done) == launched
    assert family.asked == [9]


def test_an_m_that_is_also_n_or_k_is_not_a_base(plan):
    for m in (16, 24, 1):
        launch_cache.clear()
        plan.family = Family(plan)
        remembered(plan, *given(m))
        assert not is_quick(given(9)[0], {}), m


def test_graphs_and_deterministic_algorithms_get_no_substitute(monkeypatch):
    assert launch_cache.may_substitute()
    monkeypatch.setattr(launch_cache, "is_captured_by_torch", lambda: True)
    assert not launch_cache.may_substitute()
    monkeypatch.undo()
    torch.use_deterministic_algorithms(True)
    try:
        assert not launch_cache.may_substitute()
    finally:
        torch.use_deterministic_algorithms(False)


def test_weights_that_require_gradients_are_cached_only_without_grad_mode(plan):
    x, w = tensor(8, 16), torch.nn.Parameter(tensor(24, 16))
    with torch.no_grad():
        remembered(plan, (x, w), {})
        assert is_quick((x, w), {})
    made, key = launch_cache.launched("linear", (x, w), {})
    assert (made, key) == (None, None)


def test_copies_and_unread_tensors_are_not_remembered(plan):
    x, w = given()[0]
    key, out = ("key",), tensor(8, 24)
    for own, others, changes in (
        ([x, w], [x.clone(), w], {}),
        ([x, w], [x, w, tensor(())], {}),
        ([x, w], [x, w], {"count": 5}),
    ):
        plan.prepared.count = changes.get("count", 3)
        launch_cache.remember(key, plan, out, own, others)
        assert launch_cache.CACHE == {}
    plan.copies = (("a", 0, -1),)
    launch_cache.remember(key, plan, out, [x, w], [x, w])
    assert launch_cache.CACHE == {}


def test_any_number_of_operands_and_zero_initialised_results(plan):
    def factors():
        return tensor(8, 16), tensor(2, 16, 24), torch.tensor([3, 5], dtype=torch.int32)

    first, out = factors(), tensor(8, 24)
    _, key = launch_cache.launched("grouped_matmul", first, {})
    plan.prepared.count = 4
    launch_cache.remember(key, plan, out, first, first, starts_at_zero=True)
    for _ in range(3):
        given = factors()
        made, _ = launch_cache.launched("grouped_matmul", given, {})
        assert plan.done[-1] == (*(each.data_ptr() for each in given), made.data_ptr(), 7)
        assert not made.any(), "what the launch does not write"
        made.fill_(torch.nan)
    assert launch_cache.launched("grouped_matmul", (*factors()[:2], torch.tensor([3, 5])), {})[0] is None
    assert launch_cache.launched("grouped_matmul", factors()[:2], {})[0] is None


FACTOR = 2.0


def scaled(factor):
    return lambda acc, at: acc * factor


def by_global(acc, at):
    return acc * FACTOR


def helped(helper):
    def by_helper(acc, at):
        return helper(acc, at)

    return by_helper


def test_functions_are_known_by_code_and_captured_values(monkeypatch):
    key = launch_cache.function_key
    assert key(scaled(2.0)) == key(scaled(2.0)) != key(scaled(3.0))
    assert len({key(scaled(number)) for number in (1, 1.0, True, 0.0, -0.0, 0, "1", None)}) == 8
    assert key(helped(scaled(2.0))) == key(helped(scaled(2.0))) != key(helped(scaled(3.0)))
    before = key(by_global)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert key(by_global) != before
    assert key(lambda acc, at, by=2.0: acc * by) != key(lambda acc, at, by=3.0: acc * by)


class Settings:
    factor = 2.0

    def method(self, acc, at):
        return acc * self.factor

    def __call__(self, acc, at):
        return acc * self.factor


@pytest.mark.parametrize(
    "function",
    [
        scaled([2.0]),
        scaled({"by": 2.0}),
        scaled(Settings()),
        scaled(Settings),
        scaled(torch.ones(1)),
        Settings().method,
        Settings(),
        helped(Settings()),
    ],
    ids=range(8),
)
def test_functions_with_mutable_state_have_no_key(function):
    assert launch_cache.function_key(function) is None
    assert launch_cache.launched("linear", given()[0], {"epilogue": function}) == (None, None)


def test_calls_with_functions_operands_and_configurations_are_remembered(plan):
    def options(factor=2.0, number=3.0, config=HopperConfig()):  # noqa: B008
        tensors = {"s": tensor(24), "t": number}
        function = lambda acc, at, s, t: acc * s * t * factor  # noqa: E731
        return {"epilogue": function, "operands": tensors, "config": config}

    first = options()
    made, key = launch_cache.launched("linear", (arguments := given()[0]), first)
    assert made is None
    own = [*arguments, first["operands"]["s"]]
    plan.prepared.count = 4
    launch_cache.remember(key, plan, tensor(8, 24), own, own)
    again = options(config=first["config"])
    arguments = given()[0]
    out, _ = launch_cache.launched("linear", arguments, again)
    addresses = [each.data_ptr() for each in (*arguments, again["operands"]["s"], out)]
    assert plan.done[-1] == (*addresses, 7)
    for other in (options(factor=3.0), options(number=4.0), options(config=HopperConfig())):
        assert launch_cache.launched("linear", given()[0], {"config": first["config"], **other})[0] is None


def test_a_configuration_is_known_by_identity_as_long_as_its_key_is_used(plan, monkeypatch):
    config = HopperConfig()
    remembered(plan, given()[0], {"config": config})
    assert is_quick(given()[0], {"config": config})
    assert not is_quick(given()[0], {"config": HopperConfig()})
    launch_cache._IDENTITIES.clear()  # as when there are too many
    assert not is_quick(given()[0], {"config": config})
    (key,) = launch_cache.CACHE
    assert config in [each.value for each in key if isinstance(each, launch_cache.Identity)]


@pytest.mark.parametrize("name", ["store", "outputs"])
def test_calls_that_store_elsewhere_are_planned_each_time(name):
    value = {"store": lambda value, at, out: None, "outputs": {"pre_activation": tensor(8, 24)}}[name]
    assert launch_cache.launched("linear", given()[0], {name: value}) == (None, None)


def test_addresses_are_checked_when_they_are_new(plan):
    remembered(plan, *given())
    x, w = given()[0]
    assert is_quick((x, w), {})
    assert is_quick((x, w), {})
    whole = tensor(8 * 16 + 8)
    assert is_quick((whole[8:].view(8, 16), w), {}), "16 bytes later"
    assert not is_quick((whole[1 : 1 + 8 * 16].view(8, 16), w), {})
    assert not is_quick((x, tensor(24 * 16 + 1)[1:].view(24, 16)), {})


def into(plan, x, w, out, **more):
    made, key = launch_cache.launched("linear", (x, w), {**more, "out": out})
    if made is None and key is not None:
        own = [x, w, *more.values()]
        plan.prepared.count = len(own) + 1
        launch_cache.remember(key, plan, out, own, own, writes_out=True, matrices=2)
    return made


def test_the_callers_out_is_written_and_marked(plan):
    out = tensor(8, 24)
    assert into(plan, *given()[0], out) is None
    (x, w), other = given()[0], tensor(8, 24)
    version = other._version
    assert into(plan, x, w, other) is other
    assert plan.done[-1] == (x.data_ptr(), w.data_ptr(), other.data_ptr(), 7)
    assert other._version == version + 1
    assert into(plan, x, w, tensor(8, 24, dtype=torch.float32)) is None


def test_an_out_that_overlaps_an_operand_is_planned(plan):
    whole = tensor(24 * 16 + 8 * 24)
    x, w, apart = tensor(8, 16), whole[: 24 * 16].view(24, 16), whole[24 * 16 :].view(8, 24)
    assert into(plan, x, w, apart) is None
    assert into(plan, x, w, apart) is apart, "memory next to an operand"
    for start in (0, 24 * 16 - 8, 16):
        assert into(plan, x, w, whole[start : start + 8 * 24].view(8, 24)) is None
    assert len(plan.done) == 1


def test_an_out_may_be_the_residual(plan):
    x, w = given()[0]
    out = tensor(8, 24)
    assert into(plan, x, w, out, residual=out) is None
    assert into(plan, x, w, out, residual=out) is out
    whole = tensor(9 * 24)
    assert into(plan, x, w, whole[24:].view(8, 24), residual=whole[: 8 * 24].view(8, 24)) is None
