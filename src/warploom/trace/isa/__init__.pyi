# Made from the instruction table: `pytest tests/trace/test_stub.py --update-golden` writes it anew.
# ruff: noqa: A001, A002, N801, N815
# fmt: off
from typing import Any, Literal, TypeAlias

from warploom.trace.language.values import Value

_Operand: TypeAlias = Any

class _add_cc:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *,
        type: Literal["u32", "s32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _add_mixed:
    def __call__(self, a: _Operand = ..., c: _Operand = ..., *, rnd: Literal["rn", "rz", "rm", "rp"] | None = ...,
        sat: bool | str | None = ..., type: bool | str | None = ..., atype: Literal["f16", "bf16"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _add:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, type: str | int | None = ...,
        sat: bool | str | None = ..., rnd: Literal["rn", "rz", "rm", "rp"] | None = ..., ftz: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    cc: _add_cc
    mixed: _add_mixed

class _addc:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, cc: bool | str | None = ...,
        type: Literal["u32", "s32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _sub_cc:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *,
        type: Literal["u32", "s32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _sub_mixed:
    def __call__(self, a: _Operand = ..., c: _Operand = ..., *, rnd: Literal["rn", "rz", "rm", "rp"] | None = ...,
        sat: bool | str | None = ..., type: bool | str | None = ..., atype: Literal["f16", "bf16"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _sub:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, type: str | int | None = ...,
        sat: bool | str | None = ..., rnd: Literal["rn", "rz", "rm", "rp"] | None = ..., ftz: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    cc: _sub_cc
    mixed: _sub_mixed

class _subc:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, cc: bool | str | None = ...,
        type: Literal["u32", "s32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _mul_mixed:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, rnd: Literal["rn", "rz", "rm", "rp"] | None = ...,
        sat: bool | str | None = ..., type: bool | str | None = ..., atype: Literal["f16", "bf16"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mul:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, mode: Literal["hi", "lo", "wide"] | None = ...,
        type: str | int | None = ..., rnd: Literal["rn", "rz", "rm", "rp"] | None = ..., ftz: bool | str | None = ...,
        sat: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> Value: ...
    hi: _mul
    lo: _mul
    wide: _mul
    mixed: _mul_mixed

class _mul24:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, mode: Literal["hi", "lo"] | None = ...,
        type: Literal["u32", "s32"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    hi: _mul24
    lo: _mul24

class _mad_cc:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        mode: Literal["hi", "lo"] | None = ..., type: Literal["u32", "s32", "u64", "s64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    hi: _mad_cc
    lo: _mad_cc

class _mad:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        mode: Literal["hi", "lo", "wide"] | None = ...,
        type: Literal["u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"] | int | None = ...,
        sat: bool | str | None = ..., rnd: Literal["rn", "rz", "rm", "rp"] | None = ..., ftz: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    hi: _mad
    lo: _mad
    wide: _mad
    cc: _mad_cc

class _mad24:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        mode: Literal["hi", "lo"] | None = ..., type: Literal["u32", "s32"] | int | None = ...,
        sat: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> Value: ...
    hi: _mad24
    lo: _mad24

class _madc:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        mode: Literal["hi", "lo"] | None = ..., cc: bool | str | None = ...,
        type: Literal["u32", "s32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    hi: _madc
    lo: _madc

class _sad:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        type: Literal["u16", "s16", "u32", "s32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _div:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *,
        type: Literal["u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"] | int | None = ...,
        rnd: Literal["rn", "rz", "rm", "rp", "approx", "full"] | None = ..., ftz: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _rem:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *,
        type: Literal["u16", "s16", "u32", "s32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _abs:
    def __call__(self, a: _Operand = ..., *,
        type: Literal["s16", "s32", "s64", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"] | int | None = ...,
        ftz: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _neg:
    def __call__(self, a: _Operand = ..., *,
        type: Literal["s16", "s32", "s64", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"] | int | None = ...,
        ftz: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _min:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, relu: bool | str | None = ...,
        type: str | int | None = ..., ftz: bool | str | None = ..., nan: bool | str | None = ...,
        xorsign: bool | str | None = ..., abs: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _max:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, relu: bool | str | None = ...,
        type: str | int | None = ..., ftz: bool | str | None = ..., nan: bool | str | None = ...,
        xorsign: bool | str | None = ..., abs: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _popc:
    def __call__(self, a: _Operand = ..., *, type: Literal["b32", "b64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _clz:
    def __call__(self, a: _Operand = ..., *, type: Literal["b32", "b64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _bfind:
    def __call__(self, a: _Operand = ..., *, shiftamt: bool | str | None = ...,
        type: Literal["u32", "s32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _brev:
    def __call__(self, a: _Operand = ..., *, type: Literal["b32", "b64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _bfe:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        type: Literal["u32", "s32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _bfi:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., n: _Operand = ..., *,
        type: Literal["b32", "b64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _fns:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _bmsk:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, mode: Literal["clamp", "wrap"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    clamp: _bmsk
    wrap: _bmsk

class _szext:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, mode: Literal["clamp", "wrap"] | None = ...,
        type: Literal["u32", "s32"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    clamp: _szext
    wrap: _szext

class _prmt:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        mode: Literal["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _dp4a:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        atype: Literal["u32", "s32"] | int | None = ..., btype: Literal["u32", "s32"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _dp2a:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        mode: Literal["lo", "hi"] | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    hi: _dp2a
    lo: _dp2a

class _vadd2:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vsub2:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vavrg2:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vabsdiff2:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vmin2:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vmax2:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vset2:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        atype: Literal["u32", "s32"] | int | None = ..., btype: Literal["u32", "s32"] | int | None = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"] | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    eq: _vset2
    ge: _vset2
    gt: _vset2
    le: _vset2
    lt: _vset2
    ne: _vset2

class _vadd4:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vsub4:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vavrg4:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vabsdiff4:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vmin4:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vmax4:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u32", "s32"] | int | None = ..., atype: Literal["u32", "s32"] | int | None = ...,
        btype: Literal["u32", "s32"] | int | None = ..., sat: bool | str | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _vset4:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        atype: Literal["u32", "s32"] | int | None = ..., btype: Literal["u32", "s32"] | int | None = ...,
        cmp: Literal["eq", "ne", "lt", "le", "gt", "ge"] | None = ..., add: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    eq: _vset4
    ge: _vset4
    gt: _vset4
    le: _vset4
    lt: _vset4
    ne: _vset4

class _and_:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *,
        type: Literal["b16", "b32", "b64", "pred"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _or_:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *,
        type: Literal["b16", "b32", "b64", "pred"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _xor:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *,
        type: Literal["b16", "b32", "b64", "pred"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _not_:
    def __call__(self, a: _Operand = ..., *, type: Literal["b16", "b32", "b64", "pred"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _cnot:
    def __call__(self, a: _Operand = ..., *, type: Literal["b16", "b32", "b64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _lop3_bool:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., lut: _Operand = ..., q: _Operand = ...,
        *, bool: Literal["or", "and"] | None = ..., guard: Value | None = ..., results: int | None = ...) -> Any: ...
    and_: _lop3_bool
    or_: _lop3_bool

class _lop3:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., lut: _Operand = ..., *,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    bool: _lop3_bool

class _shl:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, type: Literal["b16", "b32", "b64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _shr:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *,
        type: Literal["b16", "b32", "b64", "u16", "s16", "u32", "s32", "u64", "s64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _shf:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        direction: Literal["l", "r"] | None = ..., mode: Literal["clamp", "wrap"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    clamp: _shf
    l: _shf
    r: _shf
    wrap: _shf

class _fma_mixed:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        rnd: Literal["rn", "rz", "rm", "rp"] | None = ..., sat: bool | str | None = ...,
        atype: Literal["f16", "bf16"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _fma:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        rnd: Literal["rn", "rz", "rm", "rp"] | None = ..., ftz: bool | str | None = ..., sat: bool | str | None = ...,
        type: Literal["f32", "f32x2", "f64", "f16", "f16x2", "bf16", "bf16x2"] | int | None = ...,
        relu: bool | str | None = ..., oob: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    mixed: _fma_mixed

class _rcp:
    def __call__(self, a: _Operand = ..., *, rnd: Literal["rn", "rz", "rm", "rp", "approx"] | None = ...,
        ftz: bool | str | None = ..., type: Literal["f32", "f64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _sqrt:
    def __call__(self, a: _Operand = ..., *, rnd: Literal["rn", "rz", "rm", "rp", "approx"] | None = ...,
        ftz: bool | str | None = ..., type: Literal["f32", "f64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _rsqrt:
    def __call__(self, a: _Operand = ..., *, ftz: bool | str | None = ...,
        type: Literal["f32", "f64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _ex2:
    def __call__(self, a: _Operand = ..., *, ftz: bool | str | None = ...,
        type: Literal["f32", "f16", "f16x2", "bf16", "bf16x2"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _lg2:
    def __call__(self, a: _Operand = ..., *, ftz: bool | str | None = ..., type: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _sin:
    def __call__(self, a: _Operand = ..., *, ftz: bool | str | None = ..., type: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _cos:
    def __call__(self, a: _Operand = ..., *, ftz: bool | str | None = ..., type: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _tanh:
    def __call__(self, a: _Operand = ..., *, type: Literal["f32", "f16", "f16x2", "bf16", "bf16x2"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _copysign:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, type: Literal["f32", "f64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _testp:
    def __call__(self, a: _Operand = ..., *,
        test: Literal["finite", "infinite", "number", "notanumber", "normal", "subnormal"] | None = ...,
        type: Literal["f32", "f64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    finite: _testp
    infinite: _testp
    normal: _testp
    notanumber: _testp
    number: _testp
    subnormal: _testp

class _setp:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, cmp: str | int | None = ...,
        type: str | int | None = ..., bool: Literal["and", "or", "xor"] | None = ..., ftz: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Any: ...
    and_: _setp
    eq: _setp
    equ: _setp
    ge: _setp
    geu: _setp
    gt: _setp
    gtu: _setp
    hi: _setp
    hs: _setp
    le: _setp
    leu: _setp
    lo: _setp
    ls: _setp
    lt: _setp
    ltu: _setp
    nan: _setp
    ne: _setp
    neu: _setp
    num: _setp
    or_: _setp
    xor: _setp

class _set:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, cmp: str | int | None = ...,
        dtype: Literal["u32", "s32", "f32", "f16", "bf16", "f16x2", "bf16x2", "u16", "s16"] | int | None = ...,
        type: str | int | None = ..., bool: Literal["and", "or", "xor"] | None = ..., ftz: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    and_: _set
    eq: _set
    equ: _set
    ge: _set
    geu: _set
    gt: _set
    gtu: _set
    hi: _set
    hs: _set
    le: _set
    leu: _set
    lo: _set
    ls: _set
    lt: _set
    ltu: _set
    nan: _set
    ne: _set
    neu: _set
    num: _set
    or_: _set
    xor: _set

class _selp:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, type: str | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _slct:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, ftz: bool | str | None = ...,
        type: str | int | None = ..., ctype: Literal["s32", "f32"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _mov_pack:
    def __call__(self, a: _Operand = ..., *, type: Literal["b16", "b32", "b64", "b128"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mov_unpack:
    def __call__(self, a: _Operand = ..., *, type: Literal["b16", "b32", "b64", "b128"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Any: ...

class _mov:
    def __call__(self, a: _Operand = ..., *, type: str | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    pack: _mov_pack
    unpack: _mov_unpack

class _cvta:
    def __call__(self, a: _Operand = ..., *, to: bool | str | None = ..., space: str | int | None = ...,
        type: Literal["u32", "u64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    const: _cvta
    global_: _cvta
    local: _cvta
    param: _cvta
    shared: _cvta

class _cvt_pair:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, rnd: Literal["rn", "rz", "rp"] | None = ...,
        relu: bool | str | None = ..., satfinite: bool | str | None = ..., dtype: str | int | None = ...,
        atype: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> Value: ...
    rn: _cvt_pair
    rp: _cvt_pair
    rz: _cvt_pair

class _cvt_pack:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        dtype: Literal["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"] | int | None = ...,
        atype: bool | str | None = ..., ctype: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _cvt:
    def __call__(self, a: _Operand = ..., *,
        rnd: Literal["rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna"] | None = ...,
        ftz: bool | str | None = ..., sat: bool | str | None = ..., dtype: str | int | None = ...,
        atype: str | int | None = ..., relu: bool | str | None = ..., satfinite: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...
    rn: _cvt
    rp: _cvt
    rz: _cvt
    pair: _cvt_pair
    pack: _cvt_pack

class _atom_vector:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., policy: _Operand = ..., *,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] | None = ..., space: bool | str | None = ...,
        op: Literal["add", "min", "max"] | None = ..., hint: bool | str | None = ...,
        vec: Literal["v2", "v4", "v8"] | int | None = ...,
        type: Literal["f32", "f16", "bf16", "f16x2", "bf16x2"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Any: ...
    add: _atom_vector
    max: _atom_vector
    min: _atom_vector
    v2: _atom_vector
    v4: _atom_vector
    v8: _atom_vector

class _atom:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., policy: _Operand = ..., c: _Operand = ..., *,
        sem: Literal["relaxed", "acquire", "release", "acq_rel"] | None = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] | None = ...,
        space: Literal["global", "shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        op: Literal["and", "or", "xor", "exch", "add", "inc", "dec", "min", "max", "cas"] | None = ...,
        hint: bool | str | None = ..., type: str | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    add: _atom
    and_: _atom
    cas: _atom
    dec: _atom
    exch: _atom
    inc: _atom
    max: _atom
    min: _atom
    or_: _atom
    xor: _atom
    vector: _atom_vector

class _red_vector:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., policy: _Operand = ..., *,
        sem: Literal["relaxed", "release"] | None = ..., scope: Literal["cta", "cluster", "gpu", "sys"] | None = ...,
        space: bool | str | None = ..., op: Literal["add", "min", "max"] | None = ..., hint: bool | str | None = ...,
        vec: Literal["v2", "v4", "v8"] | int | None = ...,
        type: Literal["f32", "f16", "bf16", "f16x2", "bf16x2"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    add: _red_vector
    max: _red_vector
    min: _red_vector
    v2: _red_vector
    v4: _red_vector
    v8: _red_vector

class _red_async_:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., barrier: _Operand = ..., *, space: bool | str | None = ...,
        op: Literal["inc", "dec", "min", "max", "and", "or", "xor", "add"] | None = ...,
        type: Literal["u32", "s32", "b32", "u64", "s64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    add: _red_async_
    and_: _red_async_
    dec: _red_async_
    inc: _red_async_
    max: _red_async_
    min: _red_async_
    or_: _red_async_
    xor: _red_async_

class _red_async_global:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, mmio: bool | str | None = ...,
        scope: Literal["gpu", "sys", "cluster"] | None = ..., space: bool | str | None = ...,
        op: bool | str | None = ..., type: Literal["u32", "s32", "u64", "s64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...
    add: _red_async_global
    cluster: _red_async_global
    gpu: _red_async_global
    sys: _red_async_global

class _red:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., policy: _Operand = ..., *,
        sem: Literal["relaxed", "release"] | None = ..., scope: Literal["cta", "cluster", "gpu", "sys"] | None = ...,
        space: Literal["global", "shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        op: Literal["and", "or", "xor", "add", "inc", "dec", "min", "max"] | None = ..., hint: bool | str | None = ...,
        type: str | int | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...
    add: _red
    and_: _red
    dec: _red
    inc: _red
    max: _red
    min: _red
    or_: _red
    xor: _red
    vector: _red_vector
    async_: _red_async_
    async_global: _red_async_global

class _bar_sync:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, cta: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _bar_arrive:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, cta: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _bar_red:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, cta: bool | str | None = ...,
        op: Literal["and", "or", "popc"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    and_: _bar_red
    or_: _bar_red
    popc: _bar_red

class _bar_warp_sync:
    def __call__(self, members: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _bar:
    sync: _bar_sync
    arrive: _bar_arrive
    red: _bar_red
    warp_sync: _bar_warp_sync

class _barrier_sync:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, cta: bool | str | None = ...,
        aligned: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _barrier_arrive:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, cta: bool | str | None = ...,
        aligned: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _barrier_red:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, cta: bool | str | None = ...,
        op: Literal["and", "or", "popc"] | None = ..., aligned: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    and_: _barrier_red
    or_: _barrier_red
    popc: _barrier_red

class _barrier_cluster_arrive:
    def __call__(self, *, sem: Literal["release", "relaxed"] | None = ..., aligned: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...

class _barrier_cluster_wait:
    def __call__(self, *, sem: bool | str | None = ..., aligned: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _barrier:
    sync: _barrier_sync
    arrive: _barrier_arrive
    red: _barrier_red
    cluster_arrive: _barrier_cluster_arrive
    cluster_wait: _barrier_cluster_wait

class _clusterlaunchcontrol_try_cancel:
    def __call__(self, a: _Operand = ..., barrier: _Operand = ..., *, space: bool | str | None = ...,
        multicast: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _clusterlaunchcontrol_query_cancel_is_canceled:
    def __call__(self, response: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _clusterlaunchcontrol_query_cancel_get_first_ctaid:
    def __call__(self, response: _Operand = ..., *, axis: Literal["x", "y", "z"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Any: ...
    x: _clusterlaunchcontrol_query_cancel_get_first_ctaid
    y: _clusterlaunchcontrol_query_cancel_get_first_ctaid
    z: _clusterlaunchcontrol_query_cancel_get_first_ctaid

class _clusterlaunchcontrol:
    try_cancel: _clusterlaunchcontrol_try_cancel
    query_cancel_is_canceled: _clusterlaunchcontrol_query_cancel_is_canceled
    query_cancel_get_first_ctaid: _clusterlaunchcontrol_query_cancel_get_first_ctaid

class _mapa:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, space: bool | str | None = ...,
        type: Literal["u32", "u64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _getctarank:
    def __call__(self, a: _Operand = ..., *, space: bool | str | None = ...,
        type: Literal["u32", "u64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _st_async_:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., barrier: _Operand = ..., *, sem: bool | str | None = ...,
        space: bool | str | None = ...,
        type: Literal["b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...

class _st_async_global:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, mmio: bool | str | None = ...,
        scope: Literal["gpu", "sys"] | None = ..., space: bool | str | None = ..., type: str | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...
    gpu: _st_async_global
    sys: _st_async_global

class _st_bulk:
    def __call__(self, a: _Operand = ..., size: _Operand = ..., value: _Operand = ..., *, weak: bool | str | None = ...,
        space: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _st:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., policy: _Operand = ..., *,
        order: Literal["weak", "volatile", "relaxed", "release", "mmio", "mmio.relaxed"] | None = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] | None = ..., space: str | int | None = ...,
        cache: Literal["ca", "cg", "cs", "lu", "cv", "nc", "wb", "wt"] | None = ..., l1: str | int | None = ...,
        l2: str | int | None = ..., hint: bool | str | None = ..., type: str | int | None = ...,
        vec: Literal["v2", "v4", "v8"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    v2: _st
    v4: _st
    v8: _st
    async_: _st_async_
    async_global: _st_async_global
    bulk: _st_bulk

class _ret:
    def __call__(self, *, uni: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _exit:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _trap:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _brkpt:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _nanosleep:
    def __call__(self, a: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _pmevent:
    def __call__(self, a: _Operand = ..., *, mask: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _cp_async_:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., size: _Operand = ..., source: _Operand = ...,
        policy: _Operand = ..., *, cache: Literal["ca", "cg"] | None = ...,
        space: Literal["shared", "shared::cta", "cta"] | None = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B", "64B", "128B", "256B"] | None = ...,
        hint: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...
    ca: _cp_async_
    cg: _cp_async_
    shared: _cp_async_

class _cp_async_ignore:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., size: _Operand = ..., ignored: _Operand = ...,
        policy: _Operand = ..., *, cache: Literal["ca", "cg"] | None = ...,
        space: Literal["shared", "shared::cta", "cta"] | None = ..., hint: bool | str | None = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B", "64B", "128B", "256B"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...
    ca: _cp_async_ignore
    cg: _cp_async_ignore
    shared: _cp_async_ignore

class _cp_async_commit_group:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _cp_async_wait_group:
    def __call__(self, count: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _cp_async_wait_all:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _cp_async_mbarrier_arrive:
    def __call__(self, a: _Operand = ..., *, noinc: bool | str | None = ...,
        space: Literal["shared", "shared::cta", "cta"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _cp_async_bulk_load:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., size: _Operand = ..., barrier: _Operand = ...,
        policy: _Operand = ..., mask: _Operand = ..., *,
        dst_space: Literal["shared::cluster", "shared::cta", "cluster", "cta"] | None = ...,
        src_space: bool | str | None = ..., hint: bool | str | None = ..., multicast: _Operand = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...
    global_: _cp_async_bulk_load

class _cp_async_bulk_send:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., size: _Operand = ..., barrier: _Operand = ..., *,
        src_space: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _cp_async_bulk_store:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., size: _Operand = ..., policy: _Operand = ..., *,
        hint: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _cp_async_bulk_store_masked:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., size: _Operand = ..., mask: _Operand = ...,
        policy: _Operand = ..., *, hint: bool | str | None = ..., multicast: _Operand = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _cp_reduce_async_bulk:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., size: _Operand = ..., barrier: _Operand = ...,
        policy: _Operand = ..., *, src_space: bool | str | None = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"] | None = ...,
        type: Literal["u32", "s32", "u64", "b32", "f32", "f64", "f16", "bf16", "s64", "b64"] | int | None = ...,
        hint: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...
    add: _cp_reduce_async_bulk
    and_: _cp_reduce_async_bulk
    dec: _cp_reduce_async_bulk
    inc: _cp_reduce_async_bulk
    max: _cp_reduce_async_bulk
    min: _cp_reduce_async_bulk
    or_: _cp_reduce_async_bulk
    xor: _cp_reduce_async_bulk

class _cp_async_bulk_prefetch:
    def __call__(self, src: _Operand = ..., size: _Operand = ..., policy: _Operand = ..., *,
        hint: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _cp_async_bulk_commit_group:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _cp_async_bulk_wait_group:
    def __call__(self, count: _Operand = ..., *, read: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _cp_async_bulk_tensor_load:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., barrier: _Operand = ..., offsets: _Operand = ...,
        policy: _Operand = ..., mask: _Operand = ..., *, rank: Literal["1d", "2d", "3d", "4d", "5d"] | None = ...,
        mode: str | int | None = ...,
        dst_space: Literal["shared::cluster", "shared::cta", "cluster", "cta"] | None = ...,
        hint: bool | str | None = ..., multicast: _Operand = ...,
        cta_group: Literal["cta_group::1", "cta_group::2", "1", "2"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _cp_async_bulk_tensor_store:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., policy: _Operand = ..., *,
        rank: Literal["1d", "2d", "3d", "4d", "5d"] | None = ...,
        mode: Literal["tile", "im2col_no_offs", "tile::scatter4", "scatter4"] | int | None = ...,
        hint: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _cp_reduce_async_bulk_tensor:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., policy: _Operand = ..., *,
        rank: Literal["1d", "2d", "3d", "4d", "5d"] | None = ...,
        op: Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"] | None = ...,
        mode: Literal["tile", "im2col_no_offs"] | None = ..., hint: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    add: _cp_reduce_async_bulk_tensor
    and_: _cp_reduce_async_bulk_tensor
    dec: _cp_reduce_async_bulk_tensor
    inc: _cp_reduce_async_bulk_tensor
    max: _cp_reduce_async_bulk_tensor
    min: _cp_reduce_async_bulk_tensor
    or_: _cp_reduce_async_bulk_tensor
    xor: _cp_reduce_async_bulk_tensor

class _cp_async_bulk_prefetch_tensor:
    def __call__(self, src: _Operand = ..., offsets: _Operand = ..., policy: _Operand = ..., *,
        rank: Literal["1d", "2d", "3d", "4d", "5d"] | None = ..., mode: str | int | None = ...,
        hint: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _cp:
    async_: _cp_async_
    async_ignore: _cp_async_ignore
    async_commit_group: _cp_async_commit_group
    async_wait_group: _cp_async_wait_group
    async_wait_all: _cp_async_wait_all
    async_mbarrier_arrive: _cp_async_mbarrier_arrive
    async_bulk_load: _cp_async_bulk_load
    async_bulk_send: _cp_async_bulk_send
    async_bulk_store: _cp_async_bulk_store
    async_bulk_store_masked: _cp_async_bulk_store_masked
    reduce_async_bulk: _cp_reduce_async_bulk
    async_bulk_prefetch: _cp_async_bulk_prefetch
    async_bulk_commit_group: _cp_async_bulk_commit_group
    async_bulk_wait_group: _cp_async_bulk_wait_group
    async_bulk_tensor_load: _cp_async_bulk_tensor_load
    async_bulk_tensor_store: _cp_async_bulk_tensor_store
    reduce_async_bulk_tensor: _cp_reduce_async_bulk_tensor
    async_bulk_prefetch_tensor: _cp_async_bulk_prefetch_tensor

class _ldmatrix:
    def __call__(self, a: _Operand = ..., *, shape: Literal["m8n8", "m16n16", "m8n16"] | int | None = ...,
        count: Literal["x1", "x2", "x4"] | int | None = ..., trans: bool | str | None = ...,
        space: Literal["shared", "shared::cta", "cta"] | None = ...,
        type: Literal["b16", "b8", "b8x16.b6x16_p32", "b8x16.b4x16_p64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Any: ...
    m16n16: _ldmatrix
    m8n16: _ldmatrix
    m8n8: _ldmatrix
    x1: _ldmatrix
    x2: _ldmatrix
    x4: _ldmatrix

class _stmatrix:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., *, shape: Literal["m8n8", "m16n8"] | int | None = ...,
        count: Literal["x1", "x2", "x4"] | int | None = ..., trans: bool | str | None = ...,
        space: Literal["shared", "shared::cta", "cta"] | None = ..., type: Literal["b16", "b8"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...
    m16n8: _stmatrix
    m8n8: _stmatrix
    x1: _stmatrix
    x2: _stmatrix
    x4: _stmatrix

class _movmatrix:
    def __call__(self, a: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier_init:
    def __call__(self, a: _Operand = ..., count: _Operand = ..., *,
        space: Literal["shared", "shared::cta", "cta"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _mbarrier_inval:
    def __call__(self, a: _Operand = ..., *, space: Literal["shared", "shared::cta", "cta"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...

class _mbarrier_expect_tx:
    def __call__(self, a: _Operand = ..., bytes: _Operand = ..., *, sem: bool | str | None = ...,
        scope: Literal["cta", "cluster"] | None = ...,
        space: Literal["shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...

class _mbarrier_complete_tx:
    def __call__(self, a: _Operand = ..., bytes: _Operand = ..., *, sem: bool | str | None = ...,
        scope: Literal["cta", "cluster"] | None = ...,
        space: Literal["shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...

class _mbarrier_arrive:
    def __call__(self, a: _Operand = ..., count: _Operand = ..., *, sem: Literal["release", "relaxed"] | None = ...,
        scope: Literal["cta", "cluster"] | None = ...,
        space: Literal["shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier_arrive_expect_tx:
    def __call__(self, a: _Operand = ..., bytes: _Operand = ..., *, sem: Literal["release", "relaxed"] | None = ...,
        scope: Literal["cta", "cluster"] | None = ...,
        space: Literal["shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier_arrive_noComplete:
    def __call__(self, a: _Operand = ..., count: _Operand = ..., *, sem: bool | str | None = ...,
        scope: bool | str | None = ..., space: Literal["shared", "shared::cta", "cta"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier_arrive_drop:
    def __call__(self, a: _Operand = ..., count: _Operand = ..., *, sem: Literal["release", "relaxed"] | None = ...,
        scope: Literal["cta", "cluster"] | None = ...,
        space: Literal["shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier_arrive_drop_expect_tx:
    def __call__(self, a: _Operand = ..., bytes: _Operand = ..., *, sem: Literal["release", "relaxed"] | None = ...,
        scope: Literal["cta", "cluster"] | None = ...,
        space: Literal["shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier_arrive_drop_noComplete:
    def __call__(self, a: _Operand = ..., count: _Operand = ..., *, sem: bool | str | None = ...,
        scope: bool | str | None = ..., space: Literal["shared", "shared::cta", "cta"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier_test_wait:
    def __call__(self, a: _Operand = ..., state: _Operand = ..., *, sem: Literal["acquire", "relaxed"] | None = ...,
        scope: Literal["cta", "cluster"] | None = ..., space: Literal["shared", "shared::cta", "cta"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier_test_wait_parity:
    def __call__(self, a: _Operand = ..., parity: _Operand = ..., *, sem: Literal["acquire", "relaxed"] | None = ...,
        scope: Literal["cta", "cluster"] | None = ..., space: Literal["shared", "shared::cta", "cta"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier_try_wait:
    def __call__(self, a: _Operand = ..., state: _Operand = ..., limit: _Operand = ..., *,
        sem: Literal["acquire", "relaxed"] | None = ..., scope: Literal["cta", "cluster"] | None = ...,
        space: Literal["shared", "shared::cta", "cta"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _mbarrier_try_wait_parity:
    def __call__(self, a: _Operand = ..., parity: _Operand = ..., limit: _Operand = ..., *,
        sem: Literal["acquire", "relaxed"] | None = ..., scope: Literal["cta", "cluster"] | None = ...,
        space: Literal["shared", "shared::cta", "cta"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...

class _mbarrier_pending_count:
    def __call__(self, state: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _mbarrier:
    init: _mbarrier_init
    inval: _mbarrier_inval
    expect_tx: _mbarrier_expect_tx
    complete_tx: _mbarrier_complete_tx
    arrive: _mbarrier_arrive
    arrive_expect_tx: _mbarrier_arrive_expect_tx
    arrive_noComplete: _mbarrier_arrive_noComplete
    arrive_drop: _mbarrier_arrive_drop
    arrive_drop_expect_tx: _mbarrier_arrive_drop_expect_tx
    arrive_drop_noComplete: _mbarrier_arrive_drop_noComplete
    test_wait: _mbarrier_test_wait
    test_wait_parity: _mbarrier_test_wait_parity
    try_wait: _mbarrier_try_wait
    try_wait_parity: _mbarrier_try_wait_parity
    pending_count: _mbarrier_pending_count

class _ld:
    def __call__(self, a: _Operand = ..., policy: _Operand = ..., *,
        order: Literal["weak", "volatile", "relaxed", "acquire", "mmio", "mmio.relaxed"] | None = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] | None = ..., space: str | int | None = ...,
        cache: Literal["ca", "cg", "cs", "lu", "cv", "nc", "wb", "wt"] | None = ..., nc: bool | str | None = ...,
        l1: str | int | None = ..., l2: str | int | None = ..., hint: bool | str | None = ...,
        prefetch: Literal["L2::64B", "L2::128B", "L2::256B", "64B", "128B", "256B"] | None = ...,
        type: str | int | None = ..., vec: Literal["v2", "v4", "v8"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Any: ...
    v2: _ld
    v4: _ld
    v8: _ld

class _ldu:
    def __call__(self, a: _Operand = ..., *, space: str | int | None = ..., type: str | int | None = ...,
        vec: Literal["v2", "v4"] | int | None = ..., guard: Value | None = ..., results: int | None = ...) -> Any: ...
    v2: _ldu
    v4: _ldu

class _prefetch_tensormap:
    def __call__(self, a: _Operand = ..., *, space: Literal["param", "const"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _prefetch:
    def __call__(self, a: _Operand = ..., *, space: Literal["global", "local", "const"] | None = ...,
        level: str | int | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...
    L1: _prefetch
    L2: _prefetch
    tensormap: _prefetch_tensormap

class _prefetchu:
    def __call__(self, a: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _isspacep:
    def __call__(self, a: _Operand = ..., *, space: str | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    const: _isspacep
    global_: _isspacep
    local: _isspacep
    param: _isspacep
    shared: _isspacep

class _createpolicy_fractional:
    def __call__(self, f: _Operand = ..., *, primary: str | int | None = ..., secondary: str | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _createpolicy_range:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, primary: str | int | None = ...,
        secondary: str | int | None = ..., guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _createpolicy_cvt:
    def __call__(self, a: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _createpolicy:
    fractional: _createpolicy_fractional
    range: _createpolicy_range
    cvt: _createpolicy_cvt

class _discard:
    def __call__(self, a: _Operand = ..., size: _Operand = ..., *, guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _applypriority:
    def __call__(self, a: _Operand = ..., size: _Operand = ..., *, guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _membar_proxy_alias:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _membar:
    def __call__(self, *, level: Literal["cta", "gl", "sys"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    cta: _membar
    gl: _membar
    sys: _membar
    proxy_alias: _membar_proxy_alias

class _fence_proxy_async_generic:
    def __call__(self, *, sem: Literal["acquire", "release"] | None = ...,
        space: Literal["shared::cluster", "shared::cta", "cluster", "cta"] | None = ..., scope: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...
    acquire: _fence_proxy_async_generic
    cluster: _fence_proxy_async_generic
    release: _fence_proxy_async_generic

class _fence_mbarrier_init:
    def __call__(self, *, sem: bool | str | None = ..., scope: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    cluster: _fence_mbarrier_init
    release: _fence_mbarrier_init

class _fence_proxy_alias:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _fence_proxy_async:
    def __call__(self, *, space: Literal["global", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...

class _fence_proxy_tensormap_generic:
    def __call__(self, a: _Operand = ..., size: _Operand = ..., *, sem: Literal["release", "acquire"] | None = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    acquire: _fence_proxy_tensormap_generic
    cluster: _fence_proxy_tensormap_generic
    cta: _fence_proxy_tensormap_generic
    gpu: _fence_proxy_tensormap_generic
    release: _fence_proxy_tensormap_generic
    sys: _fence_proxy_tensormap_generic

class _fence:
    def __call__(self, *, sem: Literal["sc", "acq_rel", "acquire", "release"] | None = ...,
        scope: Literal["cta", "cluster", "gpu", "sys"] | None = ...,
        space: Literal["shared::cluster", "shared::cta", "cluster", "cta"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    acquire: _fence
    cluster: _fence
    cta: _fence
    gpu: _fence
    release: _fence
    sys: _fence
    proxy_async_generic: _fence_proxy_async_generic
    mbarrier_init: _fence_mbarrier_init
    proxy_alias: _fence_proxy_alias
    proxy_async: _fence_proxy_async
    proxy_tensormap_generic: _fence_proxy_tensormap_generic

class _griddepcontrol:
    def __call__(self, *, action: Literal["wait", "launch_dependents"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    launch_dependents: _griddepcontrol
    wait: _griddepcontrol

class _setmaxnreg:
    def __call__(self, count: _Operand = ..., *, action: Literal["inc", "dec"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    dec: _setmaxnreg
    inc: _setmaxnreg

class _mma_sync:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, shape: str | int | None = ...,
        d_type: Literal["f16", "f32", "s32", "f64"] | int | None = ..., a_type: str | int | None = ...,
        b_type: str | int | None = ..., c_type: Literal["f16", "f32", "s32", "f64"] | int | None = ...,
        satfinite: bool | str | None = ..., bits: Literal["xor", "and"] | None = ..., rn: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Any: ...
    and_: _mma_sync
    m16n8k128: _mma_sync
    m16n8k16: _mma_sync
    m16n8k256: _mma_sync
    m16n8k32: _mma_sync
    m16n8k4: _mma_sync
    m16n8k64: _mma_sync
    m16n8k8: _mma_sync
    m8n8k128: _mma_sync
    m8n8k16: _mma_sync
    m8n8k32: _mma_sync
    m8n8k4: _mma_sync
    xor: _mma_sync

class _mma_sync_kind_f8f6f4:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *, shape: bool | str | None = ...,
        d_type: Literal["f16", "f32"] | int | None = ..., a_type: Literal["e4m3", "e5m2"] | int | None = ...,
        b_type: Literal["e4m3", "e5m2"] | int | None = ..., c_type: Literal["f16", "f32"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Any: ...
    m16n8k32: _mma_sync_kind_f8f6f4

class _mma:
    sync: _mma_sync
    sync_kind_f8f6f4: _mma_sync_kind_f8f6f4

class _tcgen05_alloc:
    def __call__(self, d: _Operand = ..., columns: _Operand = ..., *,
        cta_group: Literal["cta_group::1", "cta_group::2", "1", "2"] | int | None = ..., space: bool | str | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...

class _tcgen05_dealloc:
    def __call__(self, a: _Operand = ..., columns: _Operand = ..., *,
        cta_group: Literal["cta_group::1", "cta_group::2", "1", "2"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _tcgen05_relinquish_alloc_permit:
    def __call__(self, *, cta_group: Literal["cta_group::1", "cta_group::2", "1", "2"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...

class _tcgen05_mma:
    def __call__(self, d: _Operand = ..., a: _Operand = ..., b: _Operand = ..., i: _Operand = ...,
        disable: _Operand = ..., p: _Operand = ..., scale: _Operand = ..., *,
        cta_group: Literal["cta_group::1", "cta_group::2", "1", "2"] | int | None = ..., kind: str | int | None = ...,
        collector: str | int | None = ..., ashift: bool | str | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _tcgen05_mma_ws:
    def __call__(self, d: _Operand = ..., a: _Operand = ..., b: _Operand = ..., i: _Operand = ..., p: _Operand = ...,
        zero: _Operand = ..., *, cta_group: bool | str | None = ..., kind: str | int | None = ...,
        collector: str | int | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _tcgen05_mma_scaled:
    def __call__(self, d: _Operand = ..., a: _Operand = ..., b: _Operand = ..., i: _Operand = ..., sfa: _Operand = ...,
        sfb: _Operand = ..., p: _Operand = ..., *,
        cta_group: Literal["cta_group::1", "cta_group::2", "1", "2"] | int | None = ..., kind: str | int | None = ...,
        collector: str | int | None = ..., vector: str | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    block16: _tcgen05_mma_scaled
    block32: _tcgen05_mma_scaled

class _tcgen05_commit:
    def __call__(self, a: _Operand = ..., mask: _Operand = ..., *,
        cta_group: Literal["cta_group::1", "cta_group::2", "1", "2"] | int | None = ..., space: bool | str | None = ...,
        multicast: _Operand = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...

class _tcgen05_ld:
    def __call__(self, a: _Operand = ..., half: _Operand = ..., *,
        shape: Literal["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"] | int | None = ...,
        count: Literal["x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"] | int | None = ...,
        pack: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> Any: ...
    x1: _tcgen05_ld
    x128: _tcgen05_ld
    x16: _tcgen05_ld
    x2: _tcgen05_ld
    x32: _tcgen05_ld
    x4: _tcgen05_ld
    x64: _tcgen05_ld
    x8: _tcgen05_ld

class _tcgen05_st:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., half: _Operand = ..., *,
        shape: Literal["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"] | int | None = ...,
        count: Literal["x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"] | int | None = ...,
        unpack: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...
    x1: _tcgen05_st
    x128: _tcgen05_st
    x16: _tcgen05_st
    x2: _tcgen05_st
    x32: _tcgen05_st
    x4: _tcgen05_st
    x64: _tcgen05_st
    x8: _tcgen05_st

class _tcgen05_wait:
    def __call__(self, *, what: Literal["ld", "st"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    ld: _tcgen05_wait
    st: _tcgen05_wait

class _tcgen05_cp:
    def __call__(self, d: _Operand = ..., a: _Operand = ..., *,
        cta_group: Literal["cta_group::1", "cta_group::2", "1", "2"] | int | None = ...,
        shape: Literal["128x256b", "4x256b", "128x128b", "64x128b", "32x128b"] | None = ...,
        multicast: Literal["warpx2::02_13", "warpx2::01_23", "warpx4", "02_13", "01_23"] | int | None = ...,
        to: bool | str | None = ..., source: Literal["b6x16_p32", "b4x16_p64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...

class _tcgen05_shift:
    def __call__(self, a: _Operand = ..., *,
        cta_group: Literal["cta_group::1", "cta_group::2", "1", "2"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...

class _tcgen05_fence:
    def __call__(self, *, side: Literal["before_thread_sync", "after_thread_sync"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...
    after_thread_sync: _tcgen05_fence
    before_thread_sync: _tcgen05_fence

class _tcgen05:
    alloc: _tcgen05_alloc
    dealloc: _tcgen05_dealloc
    relinquish_alloc_permit: _tcgen05_relinquish_alloc_permit
    mma: _tcgen05_mma
    mma_ws: _tcgen05_mma_ws
    mma_scaled: _tcgen05_mma_scaled
    commit: _tcgen05_commit
    ld: _tcgen05_ld
    st: _tcgen05_st
    wait: _tcgen05_wait
    cp: _tcgen05_cp
    shift: _tcgen05_shift
    fence: _tcgen05_fence

class _tensormap_replace:
    def __call__(self, a: _Operand = ..., value: _Operand = ..., ordinal: _Operand = ..., *,
        field: str | int | None = ..., space: Literal["global", "shared::cta", "cta"] | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> None: ...
    box_dim: _tensormap_replace
    element_stride: _tensormap_replace
    elemtype: _tensormap_replace
    fill_mode: _tensormap_replace
    global_address: _tensormap_replace
    global_dim: _tensormap_replace
    global_stride: _tensormap_replace
    interleave_layout: _tensormap_replace
    rank: _tensormap_replace
    swizzle_atomicity: _tensormap_replace
    swizzle_mode: _tensormap_replace

class _tensormap_cp_fenceproxy:
    def __call__(self, dst: _Operand = ..., src: _Operand = ..., size: _Operand = ..., *,
        scope: Literal["cta", "cluster", "gpu", "sys"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    cluster: _tensormap_cp_fenceproxy
    cta: _tensormap_cp_fenceproxy
    gpu: _tensormap_cp_fenceproxy
    sys: _tensormap_cp_fenceproxy

class _tensormap:
    replace: _tensormap_replace
    cp_fenceproxy: _tensormap_cp_fenceproxy

class _shfl:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., members: _Operand = ..., *,
        mode: Literal["up", "down", "bfly", "idx"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Any: ...
    bfly: _shfl
    down: _shfl
    idx: _shfl
    up: _shfl

class _vote:
    def __call__(self, a: _Operand = ..., members: _Operand = ..., *,
        mode: Literal["all", "any", "uni", "ballot"] | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> Value: ...
    all: _vote
    any: _vote
    ballot: _vote
    uni: _vote

class _match_any:
    def __call__(self, a: _Operand = ..., members: _Operand = ..., *, type: Literal["b32", "b64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _match_all:
    def __call__(self, a: _Operand = ..., members: _Operand = ..., *, type: Literal["b32", "b64"] | int | None = ...,
        guard: Value | None = ..., results: int | None = ...) -> Any: ...

class _match:
    any: _match_any
    all: _match_all

class _redux:
    def __call__(self, a: _Operand = ..., members: _Operand = ..., *,
        op: Literal["add", "min", "max", "and", "or", "xor"] | None = ...,
        type: Literal["u32", "s32", "b32", "f32"] | int | None = ..., abs: bool | str | None = ...,
        nan: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> Value: ...
    add: _redux
    and_: _redux
    max: _redux
    min: _redux
    or_: _redux
    xor: _redux

class _elect:
    def __call__(self, members: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> Any: ...

class _activemask:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> Value: ...

class _wgmma_mma_async:
    def __call__(self, d: _Operand = ..., a: _Operand = ..., b: _Operand = ..., scale_d: _Operand = ...,
        scale_a: _Operand = ..., scale_b: _Operand = ..., trans_a: _Operand = ..., trans_b: _Operand = ..., *,
        shape: str | int | None = ..., d_type: Literal["f16", "f32", "s32"] | int | None = ...,
        a_type: Literal["f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"] | int | None = ...,
        b_type: Literal["f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"] | int | None = ...,
        satfinite: bool | str | None = ..., guard: Value | None = ..., results: int | None = ...) -> None: ...
    m64n104k16: _wgmma_mma_async
    m64n104k32: _wgmma_mma_async
    m64n104k8: _wgmma_mma_async
    m64n112k16: _wgmma_mma_async
    m64n112k32: _wgmma_mma_async
    m64n112k8: _wgmma_mma_async
    m64n120k16: _wgmma_mma_async
    m64n120k32: _wgmma_mma_async
    m64n120k8: _wgmma_mma_async
    m64n128k16: _wgmma_mma_async
    m64n128k32: _wgmma_mma_async
    m64n128k8: _wgmma_mma_async
    m64n136k16: _wgmma_mma_async
    m64n136k32: _wgmma_mma_async
    m64n136k8: _wgmma_mma_async
    m64n144k16: _wgmma_mma_async
    m64n144k32: _wgmma_mma_async
    m64n144k8: _wgmma_mma_async
    m64n152k16: _wgmma_mma_async
    m64n152k32: _wgmma_mma_async
    m64n152k8: _wgmma_mma_async
    m64n160k16: _wgmma_mma_async
    m64n160k32: _wgmma_mma_async
    m64n160k8: _wgmma_mma_async
    m64n168k16: _wgmma_mma_async
    m64n168k32: _wgmma_mma_async
    m64n168k8: _wgmma_mma_async
    m64n16k16: _wgmma_mma_async
    m64n16k32: _wgmma_mma_async
    m64n16k8: _wgmma_mma_async
    m64n176k16: _wgmma_mma_async
    m64n176k32: _wgmma_mma_async
    m64n176k8: _wgmma_mma_async
    m64n184k16: _wgmma_mma_async
    m64n184k32: _wgmma_mma_async
    m64n184k8: _wgmma_mma_async
    m64n192k16: _wgmma_mma_async
    m64n192k32: _wgmma_mma_async
    m64n192k8: _wgmma_mma_async
    m64n200k16: _wgmma_mma_async
    m64n200k32: _wgmma_mma_async
    m64n200k8: _wgmma_mma_async
    m64n208k16: _wgmma_mma_async
    m64n208k32: _wgmma_mma_async
    m64n208k8: _wgmma_mma_async
    m64n216k16: _wgmma_mma_async
    m64n216k32: _wgmma_mma_async
    m64n216k8: _wgmma_mma_async
    m64n224k16: _wgmma_mma_async
    m64n224k32: _wgmma_mma_async
    m64n224k8: _wgmma_mma_async
    m64n232k16: _wgmma_mma_async
    m64n232k32: _wgmma_mma_async
    m64n232k8: _wgmma_mma_async
    m64n240k16: _wgmma_mma_async
    m64n240k32: _wgmma_mma_async
    m64n240k8: _wgmma_mma_async
    m64n248k16: _wgmma_mma_async
    m64n248k32: _wgmma_mma_async
    m64n248k8: _wgmma_mma_async
    m64n24k16: _wgmma_mma_async
    m64n24k32: _wgmma_mma_async
    m64n24k8: _wgmma_mma_async
    m64n256k16: _wgmma_mma_async
    m64n256k32: _wgmma_mma_async
    m64n256k8: _wgmma_mma_async
    m64n32k16: _wgmma_mma_async
    m64n32k32: _wgmma_mma_async
    m64n32k8: _wgmma_mma_async
    m64n40k16: _wgmma_mma_async
    m64n40k32: _wgmma_mma_async
    m64n40k8: _wgmma_mma_async
    m64n48k16: _wgmma_mma_async
    m64n48k32: _wgmma_mma_async
    m64n48k8: _wgmma_mma_async
    m64n56k16: _wgmma_mma_async
    m64n56k32: _wgmma_mma_async
    m64n56k8: _wgmma_mma_async
    m64n64k16: _wgmma_mma_async
    m64n64k32: _wgmma_mma_async
    m64n64k8: _wgmma_mma_async
    m64n72k16: _wgmma_mma_async
    m64n72k32: _wgmma_mma_async
    m64n72k8: _wgmma_mma_async
    m64n80k16: _wgmma_mma_async
    m64n80k32: _wgmma_mma_async
    m64n80k8: _wgmma_mma_async
    m64n88k16: _wgmma_mma_async
    m64n88k32: _wgmma_mma_async
    m64n88k8: _wgmma_mma_async
    m64n8k16: _wgmma_mma_async
    m64n8k32: _wgmma_mma_async
    m64n8k8: _wgmma_mma_async
    m64n96k16: _wgmma_mma_async
    m64n96k32: _wgmma_mma_async
    m64n96k8: _wgmma_mma_async

class _wgmma_fence:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _wgmma_commit_group:
    def __call__(self, *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _wgmma_wait_group:
    def __call__(self, count: _Operand = ..., *, guard: Value | None = ..., results: int | None = ...) -> None: ...

class _wgmma:
    mma_async: _wgmma_mma_async
    fence: _wgmma_fence
    commit_group: _wgmma_commit_group
    wait_group: _wgmma_wait_group

class _wmma_load:
    def __call__(self, a: _Operand = ..., stride: _Operand = ..., *, which: Literal["a", "b", "c"] | None = ...,
        layout: Literal["row", "col"] | None = ..., shape: str | int | None = ...,
        space: Literal["global", "shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        type: str | int | None = ..., guard: Value | None = ..., results: int | None = ...) -> Any: ...
    a: _wmma_load
    b: _wmma_load
    c: _wmma_load
    col: _wmma_load
    m16n16k16: _wmma_load
    m16n16k8: _wmma_load
    m32n8k16: _wmma_load
    m8n32k16: _wmma_load
    m8n8k128: _wmma_load
    m8n8k32: _wmma_load
    m8n8k4: _wmma_load
    row: _wmma_load

class _wmma_store:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., stride: _Operand = ..., *, which: bool | str | None = ...,
        layout: Literal["row", "col"] | None = ..., shape: str | int | None = ...,
        space: Literal["global", "shared", "shared::cta", "shared::cluster", "cta", "cluster"] | None = ...,
        type: Literal["f16", "f32", "s32", "f64"] | int | None = ..., guard: Value | None = ...,
        results: int | None = ...) -> None: ...
    col: _wmma_store
    d: _wmma_store
    m16n16k16: _wmma_store
    m16n16k8: _wmma_store
    m32n8k16: _wmma_store
    m8n32k16: _wmma_store
    m8n8k128: _wmma_store
    m8n8k32: _wmma_store
    m8n8k4: _wmma_store
    row: _wmma_store

class _wmma_mma:
    def __call__(self, a: _Operand = ..., b: _Operand = ..., c: _Operand = ..., *,
        a_layout: Literal["row", "col"] | None = ..., b_layout: Literal["row", "col"] | None = ...,
        shape: str | int | None = ..., d_type: Literal["f16", "f32", "s32", "f64"] | int | None = ...,
        c_type: Literal["f16", "f32", "s32", "f64"] | int | None = ..., rn: bool | str | None = ...,
        satfinite: bool | str | None = ...,
        a_type: Literal["f16", "bf16", "tf32", "s8", "u8", "s4", "u4", "b1", "f64"] | int | None = ...,
        b_type: Literal["f16", "bf16", "tf32", "s8", "u8", "s4", "u4", "b1", "f64"] | int | None = ...,
        bits: Literal["xor", "and"] | None = ..., guard: Value | None = ..., results: int | None = ...) -> Any: ...
    and_: _wmma_mma
    col: _wmma_mma
    m16n16k16: _wmma_mma
    m16n16k8: _wmma_mma
    m32n8k16: _wmma_mma
    m8n32k16: _wmma_mma
    m8n8k128: _wmma_mma
    m8n8k32: _wmma_mma
    m8n8k4: _wmma_mma
    row: _wmma_mma
    xor: _wmma_mma

class _wmma:
    load: _wmma_load
    store: _wmma_store
    mma: _wmma_mma

add: _add
addc: _addc
sub: _sub
subc: _subc
mul: _mul
mul24: _mul24
mad: _mad
mad24: _mad24
madc: _madc
sad: _sad
div: _div
rem: _rem
abs: _abs
neg: _neg
min: _min
max: _max
popc: _popc
clz: _clz
bfind: _bfind
brev: _brev
bfe: _bfe
bfi: _bfi
fns: _fns
bmsk: _bmsk
szext: _szext
prmt: _prmt
dp4a: _dp4a
dp2a: _dp2a
vadd2: _vadd2
vsub2: _vsub2
vavrg2: _vavrg2
vabsdiff2: _vabsdiff2
vmin2: _vmin2
vmax2: _vmax2
vset2: _vset2
vadd4: _vadd4
vsub4: _vsub4
vavrg4: _vavrg4
vabsdiff4: _vabsdiff4
vmin4: _vmin4
vmax4: _vmax4
vset4: _vset4
and_: _and_
or_: _or_
xor: _xor
not_: _not_
cnot: _cnot
lop3: _lop3
shl: _shl
shr: _shr
shf: _shf
fma: _fma
rcp: _rcp
sqrt: _sqrt
rsqrt: _rsqrt
ex2: _ex2
lg2: _lg2
sin: _sin
cos: _cos
tanh: _tanh
copysign: _copysign
testp: _testp
setp: _setp
set: _set
selp: _selp
slct: _slct
mov: _mov
cvta: _cvta
cvt: _cvt
atom: _atom
red: _red
bar: _bar
barrier: _barrier
clusterlaunchcontrol: _clusterlaunchcontrol
mapa: _mapa
getctarank: _getctarank
st: _st
ret: _ret
exit: _exit
trap: _trap
brkpt: _brkpt
nanosleep: _nanosleep
pmevent: _pmevent
cp: _cp
ldmatrix: _ldmatrix
stmatrix: _stmatrix
movmatrix: _movmatrix
mbarrier: _mbarrier
ld: _ld
ldu: _ldu
prefetch: _prefetch
prefetchu: _prefetchu
isspacep: _isspacep
createpolicy: _createpolicy
discard: _discard
applypriority: _applypriority
membar: _membar
fence: _fence
griddepcontrol: _griddepcontrol
setmaxnreg: _setmaxnreg
mma: _mma
tcgen05: _tcgen05
tensormap: _tensormap
shfl: _shfl
vote: _vote
match: _match
redux: _redux
elect: _elect
activemask: _activemask
wgmma: _wgmma
wmma: _wmma
