# The types of parameters as type checkers see them. `n: s32` annotates a device value and `x.to(s32)` passes a name:
# each type is a subclass of `Value` whose metaclass is a `str`. `x: Array[f32]` is a `View` inside the kernel.

from typing import Any, Generic

from typing_extensions import TypeVar

from warploom.trace.language.values import Value
from warploom.trace.language.views import View

_Element = TypeVar("_Element", default=Any)

class Array(View, Generic[_Element]): ...
class Tensor(View, Generic[_Element]): ...
class _TypeName(str, type): ...  # type: ignore[misc]
class pred(Value, metaclass=_TypeName): ...  # noqa: N801
class s8(Value, metaclass=_TypeName): ...  # noqa: N801
class u8(Value, metaclass=_TypeName): ...  # noqa: N801
class s16(Value, metaclass=_TypeName): ...  # noqa: N801
class u16(Value, metaclass=_TypeName): ...  # noqa: N801
class s32(Value, metaclass=_TypeName): ...  # noqa: N801
class u32(Value, metaclass=_TypeName): ...  # noqa: N801
class s64(Value, metaclass=_TypeName): ...  # noqa: N801
class u64(Value, metaclass=_TypeName): ...  # noqa: N801
class f16(Value, metaclass=_TypeName): ...  # noqa: N801
class bf16(Value, metaclass=_TypeName): ...  # noqa: N801
class f32(Value, metaclass=_TypeName): ...  # noqa: N801
class f64(Value, metaclass=_TypeName): ...  # noqa: N801
class f16x2(Value, metaclass=_TypeName): ...  # noqa: N801
class bf16x2(Value, metaclass=_TypeName): ...  # noqa: N801
class e4m3(Value, metaclass=_TypeName): ...  # noqa: N801
class e5m2(Value, metaclass=_TypeName): ...  # noqa: N801
class e2m1(Value, metaclass=_TypeName): ...  # noqa: N801
class ue8m0(Value, metaclass=_TypeName): ...  # noqa: N801
