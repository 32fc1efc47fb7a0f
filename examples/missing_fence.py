"""A missing proxy fence, found on the CPU emulator, recorded and replayed. This file runs in the test suite."""

import tempfile
from pathlib import Path

import numpy as np

import warploom as wl
from warploom.machine.core.schedule import Recorded, by_name

# 32 threads write a row to shared memory and a bulk copy stores it. The copy reads through the async proxy, so the
# threads must fence their generic-proxy stores before it starts.
COPY_OUT = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry copy_out(.param .u64 out)
{
    .reg .pred %p;
    .reg .b32 %thread, %address, %value, %base;
    .reg .b64 %out;
    .shared .align 128 .b8 row[128];

    mov.u32 %thread, %tid.x;
    mov.u32 %base, row;
    mad.lo.u32 %address, %thread, 4, %base;
    add.u32 %value, %thread, 100;
    st.shared.u32 [%address], %value;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.ne.u32 %p, %thread, 0;
    @%p bra DONE;
    ld.param.u64 %out, [out];
    cp.async.bulk.global.shared::cta.bulk_group [%out], [%base], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:
    ret;
}
"""


def result(text: str, schedule: object) -> np.ndarray:
    out = np.zeros(32, np.uint32)
    wl.launch(text, grid=(1, 1, 1), block=(32, 1, 1), args=[out], schedule=schedule)
    return out


expected = np.arange(100, 132, dtype=np.uint32)
broken = COPY_OUT.replace("fence.proxy.async.shared::cta;", "")

# With the fence the kernel is right under every schedule; without it, it is still right under `eager`.
for name in ("eager", "lazy", "reverse", "random"):
    assert np.array_equal(result(COPY_OUT, name), expected)
assert np.array_equal(result(broken, "eager"), expected)

# Under `lazy` the stores become visible to the async proxy as late as allowed, and the copy reads the old bytes.
stale = result(broken, "lazy")
assert not np.array_equal(stale, expected)
print(f"without the fence the bulk copy stored {stale[0]:#x} instead of {expected[0]}")

# A run can be recorded, sent to someone else and replayed.
recorded = Recorded(by_name("random", 7))
seen = result(broken, recorded)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "witness.json")
    recorded.save(path)
    assert np.array_equal(result(broken, str(path)), seen)
print("replayed the same run from its file")
