"""Register files and block functions of ended CTAs serve later ones, and no CTA can tell."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.simt import SCHEDULES, threads

POISON = 0xFFFFFFFF
SPECIALS = ("%ctaid.x", "%clusterid.x", "%cluster_ctaid.x", "%cluster_ctarank", "%smid")


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_registers_of_an_earlier_cta_are_poison_again(schedule, seed):
    body = """
     st.global.u32 [%rd0], %r40;
     and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0;
     @%p1 mov.u32 %r40, %r1;
     @%p1 bra DONE;
     mov.u32 %r40, 7;
    DONE:
     st.global.u32 [%rd0+4], %r40;
    """
    source = np.random.default_rng().integers(0, 1 << 32, 6 * 160, np.uint32)
    found = threads(body, 160, words=2, grid=6, source=source, schedule=schedule, seed=seed, sms=1)
    assert (found[:, 0] == POISON).all()
    assert (found[:, 1] == np.where(np.arange(6 * 160) % 2 == 0, source, 7)).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("cluster", [1, 2])
def test_every_cta_reads_its_own_special_registers(schedule, seed, cluster):
    lines = [f"mov.u32 %r4, {name}; st.global.u32 [%rd0+{4 * at}], %r4;" for at, name in enumerate(SPECIALS)]
    # Half of the lanes read them once more, apart from the others.
    lines += ["and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra DONE;"]
    lines += ["mov.u32 %r5, %ctaid.x; add.u32 %r5, %r5, %r0; st.global.u32 [%rd0+20], %r5;", "DONE:"]
    found = threads("\n".join(lines), 64, words=6, grid=8, cluster=cluster, schedule=schedule, seed=seed, sms=2)
    cta, thread = np.repeat(np.arange(8), 64), np.tile(np.arange(64), 8)
    expected = (cta, cta // cluster, cta % cluster, cta % cluster, cta % 2, np.where(thread % 2, cta + thread, 0))
    assert (found == np.stack(expected, axis=1)).all()
