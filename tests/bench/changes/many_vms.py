"""200 VMs get a vGPU each in one play: one task of ours, beside loops of a module of community.vmware's and of ours.

Loops are timed over 20 VMs, since their time is the sum of their items; every play starts Ansible once. The vCenter is
simulated, with real seconds. Needs the peer (`make -C tests/peers ansible`).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.verdict import Figure, Result
from tests.peers.plays import PEER
from tests.peers.side_by_side import LOOPS, MANY, names, timed

ALL = 200


def run() -> Iterator[Result]:
    """Seconds per VM of each way, and how many times faster one task is than the peer's loop."""
    if not PEER.binaries.exists():
        yield Result("200 VMs in one play: not run, it needs community.vmware (make -C tests/peers ansible)", ())
        return
    per_vm_s: dict[str, float] = {}
    for side, how, task in LOOPS:
        count = MANY if "loop" in how else ALL
        per_vm_s[f"{side.name}: {how}, {count} VMs"] = timed(side, task(names(count))) / count
    peer, *_, together = per_vm_s.values()
    figures = [Figure(what, value, "s per VM") for what, value in per_vm_s.items()]
    yield Result(
        "a vGPU for each of 200 VMs", (*figures, Figure("one task / the peer's loop", together / peer, "x", 0.5))
    )
