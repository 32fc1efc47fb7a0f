"""Invalid PTX, invalid launches and invalid schedules."""

from __future__ import annotations

import numpy as np
from tests.negatives.negative import Negative

from warploom import TensorMap
from warploom.machine.core.schedule import Schedule

_MODULE = """.version 8.7
.target {target}
.address_size 64
.visible .entry k({params}) {directives}
{{
 .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>;
 {body}
 ret;
}}
"""


def module(body="", params="", directives="", target="sm_90a"):
    return _MODULE.format(body=body, params=params, directives=directives, target=target)


def nested(levels, each=16):
    """A kernel with each ** levels instructions after inlining."""
    functions = [".func f0 ()\n{\n .reg .b32 %r<2>;\n mov.u32 %r0, %r1;\n ret;\n}\n"]
    functions += [
        f".func f{level} ()\n{{\n{each * f' call f{level - 1};{chr(10)}'} ret;\n}}\n" for level in range(1, levels)
    ]
    head, entry = module(each * f"call f{levels - 1};\n ").split(".visible")
    return head + "".join(functions) + ".visible" + entry


class Last(Schedule):
    """Answers with a number that is not an option."""

    name = "mine"

    def choose(self, kind, options, groups):
        return len(options)


CASES = {
    "no_semicolon": Negative("SYNTAX", module("mov.u32 %r0, 1\n mov.u32 %r1, 2;")),
    "no_version": Negative("SYNTAX", module().replace(".version 8.7", "// .version")),
    "unknown_form": Negative("UNKNOWN_INSTRUCTION", module("mul.lo.f32 %r0, %r1, %r2;")),
    "three_unknown_forms": Negative(
        "UNKNOWN_INSTRUCTION", module("frobnicate.u32 %r0;\n add.u33 %r0, %r1, %r2;\n ld.global.b7 %r0, [%rd0];")
    ),
    "operand_of_another_type": Negative("BAD_OPERANDS", module("add.u64 %rd0, %rd1, %r0;")),
    "operand_missing": Negative("BAD_OPERANDS", module("add.u32 %r0, %r1;")),
    "register_list_too_short": Negative(
        "BAD_OPERANDS", module("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1}, [%r2];")
    ),
    "register_not_declared": Negative("UNDECLARED", module("mov.u32 %r0, %r9;")),
    "variable_not_declared": Negative("UNDECLARED", module("mov.u32 %r0, table;")),
    "label_twice": Negative("DUPLICATE", module("A: mov.u32 %r0, 1;\n A: mov.u32 %r0, 2;")),
    "wrong_target": Negative(
        "WRONG_TARGET", module("tcgen05.wait::ld.sync.aligned;\n setmaxnreg.inc.sync.aligned.u32 64;", target="sm_90")
    ),
    "inlined_calls_too_long": Negative("TOO_LONG", nested(6)),
    "no_such_kernel": Negative("NO_SUCH_ENTRY", module(), options={"entry": "matmul"}),
    "arguments_missing": Negative("BAD_LAUNCH", module(params=".param .u64 a, .param .u32 n"), args=lambda: [3]),
    "arguments_of_wrong_types": Negative(
        "BAD_LAUNCH",
        module(params=".param .u64 a, .param .u32 n, .param .align 64 .b8 m[128], .param .f32 x"),
        args=lambda: [np.zeros(4), 1 << 40, 5, np.zeros(3, np.float32)],
    ),
    "launch_shape_over_limits": Negative(
        "BAD_LAUNCH",
        module(directives=".reqntid 64, 1, 1"),
        block=2048,
        grid=7,
        cluster=32,
        options={"sms": 0, "shared_bytes": -1},
    ),
    "empty_grid": Negative("BAD_LAUNCH", module(), grid=0),
    "stack_too_large": Negative("BAD_LAUNCH", module(".local .b8 s[10000000]; mov.u32 %r0, s;")),
    "too_much_shared": Negative("TOO_MUCH_SHARED", module(".shared .b8 s[1024];"), options={"shared_bytes": 232_000}),
    "tensor_map_with_several_violations": Negative(
        "BAD_TENSOR_MAP",
        module(params=".param .align 64 .b8 m[128]"),
        args=lambda: [TensorMap(np.zeros((7, 9), np.uint16), box=(300, 3), swizzle="128B")],
    ),
    "tensor_map_too_narrow": Negative(
        "BAD_TENSOR_MAP",
        module(params=".param .align 64 .b8 m[128]"),
        args=lambda: [TensorMap(np.zeros((64, 128), np.float32), box=(64, 64), swizzle="64B")],
    ),
    "schedule_name_unknown": Negative("BAD_SCHEDULE", module(), options={"schedule": "quick"}),
    "schedule_answer_out_of_range": Negative(
        "BAD_SCHEDULE", module("bar.sync 0;"), block=64, options={"schedule": Last()}
    ),
    "schedule_file_missing": Negative("BAD_SCHEDULE", module(), options={"schedule": "missing.json"}),
}
