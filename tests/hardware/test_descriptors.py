"""Descriptors: constants that other compilers emit, round trips, and every rule broken once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warploom.diagnostics import Diag, Fault, WarploomError
from warploom.hardware.bitfields import BitField, pack
from warploom.hardware.instruction_descriptors import LAYOUT as INSTRUCTION_LAYOUT
from warploom.hardware.instruction_descriptors import decode_instruction_descriptor, encode_instruction_descriptor
from warploom.hardware.matrix_descriptors import (
    LAYOUT,
    SWIZZLE_CODES,
    decode_shared_descriptor,
    encode_shared_descriptor,
)
from warploom.hardware.mma_shapes import TENSOR_KINDS, WARP_SHAPES, WGMMA
from warploom.hardware.targets import MACHINES, machine

SIXTEENS = st.integers(0, (1 << 14) - 1).map(lambda x: 16 * x)


@pytest.mark.parametrize(
    ("family", "leading", "stride", "swizzle", "value"),
    [
        ("sm_100", 0, 1024, "128B", 0x4000404000000000),  # Triton
        ("sm_100", 16, 1024, "128B", 0x4000404000010000),  # CuTe DSL
        ("sm_90", 0, 1024, "128B", 0x4000004000000000),  # Triton
        ("sm_90", 16, 1024, "128B", 0x4000004000010000),  # CuTe DSL
        ("sm_100", 16, 128, "none", 0x400800010000),  # CuTe DSL, scale factors for tcgen05.cp
    ],
)
def test_shared_descriptor_constants(family, leading, stride, swizzle, value):
    assert encode_shared_descriptor(family, 0, leading, stride, swizzle) == value
    decoded = decode_shared_descriptor(value, family)
    assert (decoded.leading, decoded.stride, decoded.swizzle.name) == (leading, stride, swizzle)


@given(st.data())
def test_shared_descriptor_round_trip(data):
    family = data.draw(st.sampled_from(sorted(LAYOUT)))
    swizzle = data.draw(st.sampled_from([s.name for s in SWIZZLE_CODES[family].values()]))
    start, leading, stride = data.draw(SIXTEENS), data.draw(SIXTEENS), data.draw(SIXTEENS)
    base = data.draw(st.integers(0, 7)) if swizzle != "none" else 0
    value = encode_shared_descriptor(family, start, leading, stride, swizzle, base)
    got = decode_shared_descriptor(value, family)
    assert (got.start, got.leading, got.stride, got.swizzle.name, got.base_offset) == (
        start,
        leading,
        stride,
        swizzle,
        base,
    )
    assert got.value == value
    assert "swizzle" in got.fields


@given(st.integers(0, (1 << 64) - 1), st.sampled_from(sorted(LAYOUT)))
def test_any_64_bits_decode_or_fail_with_the_fields(value, family):
    try:
        decoded = decode_shared_descriptor(value, family)
    except Fault as error:
        assert error.diag is Diag.BAD_DESCRIPTOR
        assert "stride" in str(error)
    else:
        again = encode_shared_descriptor(
            family, decoded.start, decoded.leading, decoded.stride, decoded.swizzle.name, decoded.base_offset
        )
        old = family == "sm_100" and not value >> 46 & 7  # Hopper's form, which is accepted, and never written
        assert again == (value | 1 << 46 if old else value)


@pytest.mark.parametrize(
    ("family", "value", "words"),
    [
        ("sm_100", 0x4002004000010000, "version (bits 46-48) is 0x0 and must be 0x1 (or 0x0 without a base offset)"),
        ("sm_100", 2 << 46, "version (bits 46-48) is 0x2 and must be 0x1"),
        ("sm_90", 0x4000404000010000, "reserved (bits 46-48) is 0x1"),  # an sm_100 descriptor
        ("sm_90", 1 << 14, "reserved (bits 14-15)"),
        ("sm_90", 1 << 31, "reserved (bits 30-31)"),
        ("sm_90", 1 << 52, "reserved (bits 52-61)"),
        ("sm_100", 1 << 46 | 1 << 53, "reserved (bits 53-60)"),
        ("sm_100", 1 << 46 | 3 << 61, "swizzle is 3 and must be one of 0 = none"),
        ("sm_100", 1 << 46 | 1 << 52, "leading_absolute (bit 52) exists on sm_103a only"),
    ],
)
def test_broken_shared_descriptor(family, value, words):
    with pytest.raises(Fault) as caught:
        decode_shared_descriptor(value, family)
    assert caught.value.diag is Diag.BAD_DESCRIPTOR
    assert words in caught.value.what


def test_hoppers_form_is_accepted_on_blackwell():
    """Triton 3.3 to 3.5 write it, and their kernels run on Blackwell GPUs."""
    old = decode_shared_descriptor(0x4000004000010000, "sm_100")
    new = decode_shared_descriptor(0x4000404000010000, "sm_100")
    assert (old.start, old.leading, old.stride, old.swizzle) == (new.start, new.leading, new.stride, new.swizzle)


def test_all_violated_rules_are_in_one_error():
    with pytest.raises(Fault) as caught:
        decode_shared_descriptor(1 << 14 | 1 << 47 | 1 << 30 | 1 << 52 | 7 << 61, "sm_100")
    for words in ("bits 14-15", "bits 30-31", "version", "leading_absolute", "swizzle is 7"):
        assert words in caught.value.what


@pytest.mark.parametrize("bad", [{"start": 8}, {"leading": 1 << 18}, {"stride": -16}, {"swizzle": "128B_32B_atom"}])
def test_encoding_refuses_what_has_no_code(bad):
    arguments = {"start": 0, "leading": 0, "stride": 0, "swizzle": "none", **bad}
    with pytest.raises(ValueError, match="no sm_90 descriptor"):
        encode_shared_descriptor("sm_90", **arguments)


@pytest.mark.parametrize(
    ("kind", "m", "n", "a", "b", "d", "options", "value"),
    [
        ("f16", 128, 128, "bf16", "bf16", "f32", {}, 0x8200490),  # Triton, Gluon, CuTe DSL
        ("f16", 128, 256, "bf16", "bf16", "f32", {}, 0x8400490),
        ("f16", 256, 256, "f16", "f16", "f32", {"transpose_b": True}, 0x10410010),  # Gluon, two CTAs
        ("mxf4nvf4", 256, 128, "e2m1", "e2m1", "f32", {"scale_type": "ue4m3"}, 0x10200480),
        *(
            ("mxf8f6f4", 128, 128, "e4m3", "e4m3", "f32", {"scale_a_id": i, "scale_b_id": i}, value)
            for i, value in enumerate((0x8A00000, 0x28A00010, 0x48A00020, 0x68A00030))
        ),
    ],
)
def test_instruction_descriptor_constants(kind, m, n, a, b, d, options, value):
    assert encode_instruction_descriptor(kind, m, n, a, b, d, **options) == value
    decoded = decode_instruction_descriptor(value, kind, 2 if m == 256 else 1)
    assert (decoded.m, decoded.n, decoded.a_type, decoded.b_type, decoded.d_type) == (m, n, a, b, d)


@given(st.data())
def test_instruction_descriptor_round_trip(data):
    kind = data.draw(st.sampled_from(sorted(TENSOR_KINDS)))
    row = TENSOR_KINDS[kind]
    group = data.draw(st.sampled_from([1, 2]))
    m, n = data.draw(st.sampled_from(row.m[group])), data.draw(st.sampled_from(row.n[group][3::4]))
    a, b = data.draw(st.sampled_from(sorted(row.codes))), data.draw(st.sampled_from(sorted(row.codes)))
    d = "f32" if not row.d_codes else data.draw(st.sampled_from(sorted(row.d_codes)))
    if d == "f16" and kind == "f16":
        a = b = "f16"
    flags = {
        name: data.draw(st.booleans()) and allowed
        for name, allowed in (
            ("negate_a", row.negate),
            ("negate_b", row.negate),
            ("transpose_a", row.transpose),
            ("transpose_b", row.transpose and n % 32 == 0),
            ("saturate", kind == "i8"),
        )
    }
    if row.scales:
        flags |= {"scale_type": data.draw(st.sampled_from(sorted(row.scales))), "scale_a_id": 0, "scale_b_id": 0}
    got = decode_instruction_descriptor(encode_instruction_descriptor(kind, m, n, a, b, d, **flags), kind, group)
    assert (got.m, got.n, got.k, got.a_type, got.b_type, got.d_type) == (m, n, row.k, a, b, d)
    assert all(getattr(got, name) == value for name, value in flags.items())


@given(st.integers(0, (1 << 32) - 1), st.sampled_from(sorted(TENSOR_KINDS)), st.sampled_from([1, 2]))
def test_any_32_bits_decode_or_fail_with_the_fields(value, kind, group):
    try:
        decode_instruction_descriptor(value, kind, group)
    except WarploomError as error:
        assert error.diag is Diag.BAD_DESCRIPTOR
        assert error.fields["what"]
        assert "a_type" in str(error)


def bits(kind, **contents):
    """A legal descriptor of the kind with some fields replaced by raw contents."""
    row = TENSOR_KINDS[kind]
    element = max(row.codes)
    d = "f32" if not row.d_codes else max(row.d_codes)
    value = encode_instruction_descriptor(kind, 128, 64, element, element, d)
    for field in INSTRUCTION_LAYOUT[kind]:
        if field.name in contents and field.fixed is None:
            value = value & ~(((1 << field.width) - 1) << field.low) | field.put(contents[field.name])
    return value


@pytest.mark.parametrize(
    ("kind", "group", "contents", "words"),
    [
        ("f16", 1, {"m": 16}, "M is 256; kind::f16 with cta_group::1 has 64, 128"),
        ("f16", 2, {"n": 1}, "N is 8; kind::f16 with cta_group::2 has 16..256 in steps of 16"),
        ("f16", 1, {"n": 0}, "N is 0"),
        ("f16", 1, {"n": 33}, "N is 264"),
        ("i8", 1, {"n": 5}, "N is 40; kind::i8 with cta_group::1 has 8, 16, 24, 32, 48"),
        ("i8", 2, {"n": 2}, "N is 16; kind::i8 with cta_group::2 has 32..256 in steps of 32"),
        ("mxf8f6f4", 1, {"m": 2}, "M is 256"),
        ("f8f6f4", 1, {"n": 3, "transpose_b": 1}, "an N-major 8-bit B with cta_group::1 has 16..256 in steps of 16"),
        ("f16", 1, {"a_type": 2}, "a_type is 2; kind::f16 has 0 = f16, 1 = bf16"),
        ("f8f6f4", 1, {"b_type": 2}, "b_type is 2"),
        ("tf32", 1, {"d_type": 0}, "d_type is 0; kind::tf32 has 1 = f32"),
        ("f16", 1, {"d_type": 0, "a_type": 1}, "d_type f16 needs f16 operands"),
        ("i8", 1, {"negate_a": 1}, "kind::i8 cannot negate"),
        ("mxf4", 1, {"transpose_a": 1}, "kind::mxf4 cannot transpose"),
        ("f16", 1, {"saturate": 1}, "saturate is for kind::i8 only"),
        ("f16", 1, {"sparse": 1}, "sparse or sparsity_selector is set"),
        ("mxf4", 1, {"k96": 1}, "K = 96"),
        ("mxf4", 1, {"scale_a_id": 1}, "scale_a_id is 1; 2 scale factors to a row need 0 or 2"),
        ("mxf4", 1, {"scale_type": 0}, "scale_type is 0; kind::mxf4 has 1 = ue8m0"),
    ],
)
def test_broken_instruction_descriptor(kind, group, contents, words):
    with pytest.raises(Fault) as caught:
        decode_instruction_descriptor(bits(kind, **contents), kind, group)
    assert caught.value.diag is Diag.BAD_DESCRIPTOR
    assert words in caught.value.what


def test_scale_vectors_and_weight_stationary_rules():
    value = encode_instruction_descriptor("mxf4nvf4", 128, 64, "e2m1", "e2m1", scale_type="ue4m3")
    assert decode_instruction_descriptor(value, "mxf4nvf4", 1, scale_vectors=4).scale_type == "ue4m3"
    with pytest.raises(Fault, match="BAD_DESCRIPTOR"):
        decode_instruction_descriptor(value, "mxf4nvf4", 1, scale_vectors=2)
    narrow = encode_instruction_descriptor("f16", 32, 64, "f16", "f16")
    assert decode_instruction_descriptor(narrow, "f16", 1, weight_stationary=True).m == 32
    with pytest.raises(Fault, match="BAD_DESCRIPTOR"):
        decode_instruction_descriptor(narrow, "f16", 1)
    with pytest.raises(Fault) as caught:
        decode_instruction_descriptor(value, "mxf4nvf4", 2, weight_stationary=True)
    assert "`.ws` exists for cta_group::1" in caught.value.what


@pytest.mark.parametrize("table", [*LAYOUT.values(), *INSTRUCTION_LAYOUT.values()])
def test_fields_cover_every_bit_once(table):
    covered = [bit for field in table for bit in range(field.low, field.low + field.width)]
    assert covered == list(range(64 if table in LAYOUT.values() else 32))


def test_packing_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="does not fit in 2 bits"):
        pack((BitField("x", 0, 2),), {"x": 4})


def test_targets():
    assert machine("sm_90a").shared_per_block == machine("sm_100a").shared_per_block == 227 * 1024
    assert machine("sm_100a").tensor_columns == 512
    assert not machine("sm_90").has_wgmma
    assert all(m.sources and m.shared_per_block + m.shared_reserved == m.shared_per_sm for m in MACHINES.values())
    assert {24, 232, 240, 256} <= set(machine("sm_90a").setmaxnreg)
    assert 28 not in machine("sm_90a").setmaxnreg
    with pytest.raises(WarploomError) as caught:
        machine("sm_120a")
    assert caught.value.diag is Diag.WRONG_TARGET


def test_shapes():
    assert WGMMA["bf16"].n[0] == 8
    assert WGMMA["bf16"].n[-1] == 256
    assert 40 not in WGMMA["s8"].n
    for kind in TENSOR_KINDS.values():
        assert kind.k * kind.element_bits == 256
    registers = {(s.m, s.n, s.k, s.bits): (s.a_registers, s.b_registers) for s in WARP_SHAPES}
    assert registers[16, 8, 16, 16] == (4, 2)
    assert registers[16, 8, 32, 8] == (4, 2)
    assert registers[16, 8, 4, 32] == (2, 1)
    assert registers[8, 8, 4, 64] == (1, 1)
