"""What somebody has changed of a VM of a cluster since."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuops.extras.clusters.plan import HUGE_PAGES, changes_by_admin
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import Vm
from gpuops.model.workloads.cluster import ClusterWish, LatencyLevel

WISH = ClusterWish(
    "train", "trainer", 2, 1, profile="a100d-80c", cpus=16, memory_mib=65536, huge_pages=True, latency=LatencyLevel.HIGH
)
HOST = Host("host-1", "esx-01", cpu_mhz=2000)
AS_MADE = Vm(
    "vm-1",
    "train-00",
    vcpus=16,
    memory_mib=65536,
    memory_reservation_mib=65536,
    cpu_reservation_mhz=32000,
    extra_config={HUGE_PAGES: "TRUE"},
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vcpus": 8}, "has 8 vCPUs, and the file says 16"),
        ({"memory_mib": 32768}, "has 32768 MiB of memory, and the file says 65536"),
        ({"memory_reservation_mib": 0}, "has 0 MiB of its 65536 MiB of memory reserved"),
        ({"extra_config": {HUGE_PAGES: "FALSE"}}, "has no pages of 1 GiB"),
        ({"cpu_reservation_mhz": 0}, "has 0 of 32000 MHz reserved"),
    ],
)
def test_each_change_is_said(change: dict[str, Any], message: str) -> None:
    [line] = changes_by_admin(WISH, replace(AS_MADE, **change), HOST)
    assert line.startswith(f"train-00: {message}")


@pytest.mark.parametrize("vm", [AS_MADE, Vm("vm-1", "train-00")], ids=["as made", "not to be read"])
def test_nothing_is_said_of_what_is_as_it_was_made_or_unknown(vm: Vm) -> None:
    assert list(changes_by_admin(WISH, vm, HOST)) == []


def test_what_the_file_leaves_to_the_template_may_be_anything() -> None:
    open_wish = replace(WISH, cpus=None, memory_mib=None, huge_pages=False, latency=LatencyLevel.NORMAL)
    assert (
        list(changes_by_admin(open_wish, replace(AS_MADE, vcpus=2, extra_config={}, cpu_reservation_mhz=0), HOST)) == []
    )
