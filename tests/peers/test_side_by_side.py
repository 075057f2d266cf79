"""community.vmware and gpuops with the same wishes: none of ours crashes, and each of ours is as it should be.

What the peer does is asserted too: where it has learnt better, the table in the manual is to be measured anew.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from .plays import PEER
from .side_by_side import LOOPS, compare_sides, names, time_task

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not PEER.binaries.exists() and "CI" not in os.environ, reason="no community.vmware: type `make collections`"
    ),
]


def test_ours_is_as_it_should_be_and_the_peers_faults_are_as_told() -> None:
    outcomes = list(compare_sides())
    ours = {wish.what: ours.partition(":")[0] for wish, _, ours in outcomes}
    assert ours == {wish.what: wish.should if wish.ours is not None else "no module" for wish, _, _ in outcomes}
    peers = [(wish.what, peer.partition(":")[0]) for wish, peer, _ in outcomes]
    assert [wish_name for wish_name, came in peers if came == "crashes"] == [
        "taken away where there is none",
        "vGPU for a running VM, restarted for it",
    ]
    assert ("check mode, another VM", "skipped") in peers
    assert ("host graphics, check mode", "unchanged") in peers


def test_every_loop_ends_well() -> None:
    with ThreadPoolExecutor(len(LOOPS)) as sides:
        wall_s = sides.map(lambda loop: time_task(loop[0], loop[2](names(2))), LOOPS)
    assert all(seconds > 0 for seconds in wall_s)
