"""`st.bulk`: a run of zeros in shared memory."""

from __future__ import annotations

import pytest
from tests.machine.simt import threads

CLEAR = """mov.u32 %r3, sh; mov.u64 %rd3, {size}; st.shared.u32 [%r3+{last}], 7; st.bulk.weak.shared::cta [%r3], %rd3, 0;
 ld.shared.u32 %r4, [%r3+{last}]; st.global.u32 [%rd0], %r4;"""


@pytest.mark.parametrize(("size", "left"), [(64, 0), (56, 7), (0, 7)])
def test_it_clears_its_bytes_and_no_more(size: int, left: int) -> None:
    assert threads(CLEAR.format(size=size, last=60), 1, target="sm_100a")[0, 0] == left


@pytest.mark.parametrize("size", [1032, 1 << 40, 1 << 60])
def test_too_many_bytes_are_out_of_bounds(size: int) -> None:
    with pytest.raises(Exception, match="OUT_OF_BOUNDS"):
        threads(CLEAR.format(size=size, last=60), 1, target="sm_100a", shared=1024)
