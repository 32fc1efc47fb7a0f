"""Every form of the instruction table as a Python function: reached, written, and read by ptxas."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import accepted, assembled, body, find_ptxas

from warploom import TensorMap
from warploom.diagnostics import PtxError
from warploom.ptx.isa.table import BITS, FORMS, match
from warploom.trace import Array, Variable, barriers, f32, kernel, merge, shared, thread, u32
from warploom.trace.builder import current
from warploom.trace.isa import bar, clusterlaunchcontrol, cp, ld, mapa, mbarrier, shfl, st, tcgen05
from warploom.trace.isa.functions import functions, inputs, keywords, name_of
from warploom.trace.language.types import TYPES

TRACED = ("bra", "brx", "call")
"""Instructions of control flow and calls, which have no function."""
CALLED = [form for form in FORMS if form.template.partition(".")[0].partition("{")[0] not in TRACED]
PART = re.compile(r"\{(\.?)([a-z0-9_]+)(\??)\}")
KEYWORDS = {"group": "cta_group", "dst": "dst_space", "src": "src_space"}

WGMMA = {
    "f16": {"shape": "m64n8k16", "d_type": "f32"},
    "tf32": {"shape": "m64n8k8", "d_type": "f32"},
    "s8": {"shape": "m64n8k32", "d_type": "s32"},
}
SCALES = {
    ("kind::mxf4nvf4", "scale_vec::1X"): "scale_vec::4X",
    ("kind::mxf8f6f4", "block16"): "block32",
}
CHOSEN = {
    "wgmma.mma_async": lambda form: WGMMA[form.choices["a_type"][0]],
    "wmma": lambda form: {"shape": "m8n8k4"} if form.slots[-2].type == "f64" or form.slots[0].type == "f64" else {},
    "st.async.global": lambda form: {"type": "b32"},
    "mov": lambda form: {"type": "b32"},
    "tcgen05.mma.scaled": lambda form: {
        "vector": SCALES.get((form.choices["kind"][0], *form.choices.get("vector", ())[:1]))
    },
}
"""Words that go together, by the beginning of a family's name; else the first option of each choice."""
IMMEDIATES = {
    "cp.async": 16,
    "setmaxnreg": 40,
    "wgmma": 1,
    "tcgen05": 0,
    "lop3": 0x96,
    "tensormap.replace": 0,
    "pmevent": 7,
    "st.bulk": 0,
}
"""Literals that a family takes; else 128."""
LENGTHS = {"stmatrix": 1, "tcgen05.st": 1, "tcgen05.mma": 4, "mov": 2}
"""The length of the lists of a family that no word counts; else 4."""
WMMA_LENGTHS = {("a", "f16"): 8, ("b", "f16"): 8, ("a", "f64"): 1, ("b", "f64"): 1, ("c", "f64"): 2, ("d", "f64"): 2}


def by_prefix(table, family, default):
    return next((value for prefix, value in table.items() if family.startswith(prefix)), default)


def function_of(form):
    root, _, rest = name_of(form).partition(".")
    found = functions().get(root) or functions()[f"{root}_"]
    rest = rest.replace(".", "_")
    return (found.members.get(rest) or found.members[f"{rest}_"]) if rest else found


class Room:
    """Operands of every kind, inside a kernel."""

    def __init__(self, view, box):
        self.shared, self.box = shared("u32", 256, name="room", align=128).place + 0, box
        self.word, self.place = view[0], view.place

    def call(self, form, *, whole):
        """Call the function of a form; `whole` says every optional word, too."""
        words, chosen = {}, by_prefix(CHOSEN, form.family, lambda form: {})(form)
        for _, name, optional in PART.findall(form.template):
            keyword = KEYWORDS.get(name, name)
            if keyword in keywords(form) and (whole or not optional or chosen.get(name)):
                words[keyword] = chosen.get(name) or form.choices.get(name, (name,))[0]
        types = {name: options[0] for name, options in form.choices.items()} | words
        operands = [None if slot.optional else self.operand(form, slot, types) for slot in inputs(form)]
        results = self.length(form, types) if form.family.startswith(("mma", "wmma", "mov.unpack")) else None
        function_of(form)(*operands, results=results, **words)

    def length(self, form, types):
        width = types.get("vec") or next((word for word in form.template.split(".") if word in ("v2", "v4")), "")
        if width:
            return int(width[1:])
        if form.family.startswith("wmma"):
            return WMMA_LENGTHS.get((types.get("which"), types.get("type")), 4)
        return by_prefix(LENGTHS, form.family, 4)

    def operand(self, form, slot, types):
        type_ = types[slot.type[1:-1]] if slot.type.startswith("{") else slot.type
        match slot.kind:
            case "address":
                near = form.family.startswith("tcgen05") or "shared" in f"{types.get('space')}{form.template}"
                return self.shared if near else self.place
            case "tensor":
                return self.box.at(*(0,) * int(types["rank"][0]))
            case "ins":
                return [self.value(type_ or "b16") for _ in range(self.length(form, types))]
            case "rows":
                return [Variable("u32", 0) for _ in range(4)]
            case "immediate":
                return by_prefix(IMMEDIATES, form.family, 128)
            case "pred":
                return self.value("pred")
        return self.value(type_)

    def value(self, type_):
        if type_ == "pred":
            return self.word < 7
        if type_ == "b128":
            return merge("b128", self.word.to("u64"), self.word.to("u64"))
        bits = max(BITS[type_ or "b32"], 16)
        number = self.word.to(f"u{bits}")
        return number.bits(type_) if type_ in TYPES and TYPES[type_].bits == bits else number


def is_new(form):
    """Return whether a form needs Blackwell."""
    return bool(form.targets) and not any(int(re.sub(r"\D", "", target)) <= 90 for target in form.targets)


def written(form, opcode):
    """Return whether an opcode is of a form, with its words in any order."""
    rows = match(opcode)
    return any(row is form for row, _ in rows) or any(
        sorted(filled(form, words).split(".")) == sorted(opcode.split(".")) for _, words in rows
    )


def filled(form, words):
    return PART.sub(lambda part: f"{part[1]}{words[part[2]]}" if words.get(part[2]) else "", form.template)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_every_form_is_reached_and_ptxas_reads_it(target):
    reached = []

    @kernel(target=target)
    def every(x, box: TensorMap):
        room = Room(x, box)
        for form in CALLED:
            if is_new(form) != (target == "sm_100a"):
                continue
            for whole in (False, True):
                room.call(form, whole=whole)
                if written(form, current().body[-1].opcode):
                    break
                current().body.pop(), current().ops.pop()
            else:
                pytest.fail(f"no call of `{name_of(form)}` writes `{form.template}`")
            reached.append(form)

    box = TensorMap(np.zeros((8, 8, 8, 8, 16), np.uint8), box=(1, 1, 1, 1, 16))
    text = every.ptx(np.zeros(64, np.uint32), box, block=(128, 1, 1))
    assert len(reached) == sum(is_new(form) == (target == "sm_100a") for form in CALLED)
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    lines = text.splitlines()
    verdict = assembled(text)
    wrong = [(lines[int(number) - 1], what) for number, what in re.findall(r"line (\d+); error\s*: (.*)", verdict)]
    assert verdict.startswith("0\n"), wrong or verdict


def test_names_are_identifiers_and_operands_are_not_keywords():
    for root, found in functions().items():
        for name in (root, *found.members):
            assert name.isidentifier()
        for function in (found, *found.members.values()):
            for form in function.forms:
                assert not {slot.name for slot in inputs(form)} & set(keywords(form))


def test_calls_become_instructions():
    @kernel(target="sm_100a")
    def calls(m: TensorMap, x: Array[f32]):
        full, tile, i = barriers("full", 2), shared("bf16", (64, 64), swizzle="128B"), thread()
        mbarrier.init(full[0], 1)
        state = mbarrier.arrive(full[0])
        mbarrier.arrive(full[1])
        mbarrier.arrive(mapa(full[1], 1), sem="release", scope="cluster", space="shared::cluster")
        done = mbarrier.try_wait(full[0], state)
        cp.async_bulk_tensor_load(tile, m.at(0, i.to("s32")), full[0], multicast=3, cta_group=2, guard=done)
        cp.async_bulk_tensor_store(m.at(0, 0), tile)
        cp.async_bulk_wait_group(0, read=True)
        tcgen05.commit(full[0], cta_group=2)
        tcgen05.commit(full[1], multicast=i.to("u16"), cta_group="cta_group::2")
        tcgen05.wait.ld()
        moved, _ = shfl.idx(i, 0, 31, -1)
        bar.sync(1, 64)
        st(x.at(2), [ld(x.at(moved), type=f32, space="global", l1="no_allocate"), x[1]], space="global")

    box = TensorMap(np.zeros((128, 128), ml_dtypes.bfloat16), box=(64, 64), swizzle="128B")
    text = accepted(calls.bind(box, np.zeros(64, np.float32), grid=(2, 1, 1), block=(64, 1, 1), cluster=(2, 1, 1)))
    lines = [
        line for line in body(text) if not line.startswith(("mov", "//", "cvt", "mul", "add", "ret", "cvta", "ld.p"))
    ]
    assert [re.sub(r"%\w+", "%", line) for line in lines] == [
        "mbarrier.init.shared::cta.b64 [%], 1;",
        "mbarrier.arrive.shared::cta.b64 %, [%];",
        "mbarrier.arrive.shared::cta.b64 _, [%+8];",
        "mapa.shared::cluster.u32 %, %, 1;",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%];",
        "mbarrier.try_wait.shared::cta.b64 %, [%], %;",
        "@% cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.cta_group::2 [%], [%, {%, 0}], [%], 3;",
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%, {0, 0}], [%];",
        "cp.async.bulk.wait_group.read 0;",
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%];",
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%+8], %;",
        "tcgen05.wait::ld.sync.aligned;",
        "shfl.sync.idx.b32 %, %, 0, 31, -1;",
        "bar.sync 1, 64;",
        "ld.global.L1::no_allocate.f32 %, [%];",
        "ld.global.f32 %, [%+4];",
        "st.global.v2.f32 [%+8], {%, %};",
    ]


def test_an_operand_in_tmem_differs_from_a_descriptor():
    @kernel(target="sm_100a")
    def multiply(x):
        from_shared, from_tensor = x[0].to("u64"), shared(u32, 2)
        for a in (from_shared, from_tensor.at(1)):
            tcgen05.mma(from_tensor, a, x[1].to("u64"), 0, True, cta_group=1, kind="f16")

    text = accepted(multiply.bind(np.zeros(2, np.uint32), grid=(1, 1, 1), block=(32, 1, 1)))
    found = [re.sub(r"%\w+", "%", line) for line in body(text) if line.startswith("tcgen05")]
    assert found == [f"tcgen05.mma.cta_group::1.kind::f16 [%], {a}, %, 0, 1;" for a in ("%", "[%+4]")]


def test_the_answer_of_launch_control_is_moved_whole():
    @kernel(target="sm_100a")
    def ask(out):
        answer, asked = shared("b128", 1), barriers("asked")
        clusterlaunchcontrol.try_cancel(answer, asked[0])
        response = answer[0]
        out[0] = clusterlaunchcontrol.query_cancel_is_canceled(response).to(u32)
        out[1] = clusterlaunchcontrol.query_cancel_get_first_ctaid.x(response)
        out[2] = clusterlaunchcontrol.query_cancel_get_first_ctaid(response)[2]

    text = accepted(ask.bind(np.zeros(3, np.uint32), grid=(1, 1, 1), block=(32, 1, 1)))
    assert sum("b128" in line and line.startswith("ld.shared") for line in body(text)) == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda b: tcgen05.commit(),
            ("`a`, an address `[a+offset]`, is missing", "needs cta_group=, one of cta_group::1, "),
        ),
        (lambda b: tcgen05.commit(b, cta_group=3), ("cta_group=3 is not one of cta_group::1, cta_group::2",)),
        (lambda b: mbarrier.arrive(b, scope="gpu", order=1), ("scope='gpu' is not one of cta, cluster", "no `order`")),
        (lambda b: mbarrier.init(b, 1, 2), ("2 is one operand too many",)),
        (lambda b: st(b, [1, 2, 3], space="shared", vec=2, type="u32"), ("3 values for `.v2`",)),
        (lambda b: cp.async_bulk_tensor_load(b, b, b), ("`src` is a tensor address",)),
    ],
)
def test_wrong_calls_are_reported_completely_at_their_line(call, says):
    @kernel(target="sm_100a")
    def wrong(x):
        call(barriers("b")[0])

    with pytest.raises(PtxError) as caught:
        wrong.bind(np.zeros(2, np.uint32), grid=(1, 1, 1), block=(32, 1, 1))
    assert caught.value.loc.file == __file__
    assert all(each in str(caught.value) for each in says), str(caught.value)


def test_wrong_names_are_reported():
    with pytest.raises(AttributeError, match=r"no instruction `tcgen05\.comit`; there is `commit`"):
        _ = tcgen05.comit
    with pytest.raises(AttributeError, match="`tcgen05` begins the names of alloc, commit"):
        tcgen05()
    with pytest.raises(ImportError):
        from warploom.trace.isa import warploom  # noqa: F401
