"""What HA keeps free for the failure of a host: refused with its numbers, or not known to be refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuops.model.vcenter.host import AdmissionControl
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import Workload
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.core.scope import Scope
from gpuops.plan.placement.host_filters import Headroom
from gpuops.plan.queue.place import Place
from gpuops.plan.vm.attach import Attach
from tests.plan.snapshots import MEMORY_MIB, catalog, lab

HOST_MIB = 2 * MEMORY_MIB


def with_admission_control(**fields: Any) -> Inventory:
    """The lab with admission control in its one cluster: esx-01, 02, 04, 05 and 06 with GPUs, esx-03 without."""
    world = lab()
    (cluster,) = world.clusters.values()
    return replace(world, clusters={cluster.ref: replace(cluster, admission=AdmissionControl(**fields))})


def refusal(world: Inventory, memory_mib: int, on: str = "esx-05") -> str:
    vm = replace(world.find_vm("ml-07"), memory_mib=memory_mib)
    return str(Headroom(vm, world).refusal(world.find_host(on)) or "")


RESERVED = 5 * 64 * 1024
"""ml-03, desk-1 to desk-3 and ml-08 run."""


@pytest.mark.parametrize(
    ("fields", "kept_mib"),
    [({"memory_percent": 50}, 3 * HOST_MIB), ({"failover_level": 2}, 2 * HOST_MIB), ({"memory_percent": 0}, None)],
)
def test_memory_is_kept_by_percent_or_by_hosts(fields: dict[str, Any], kept_mib: int | None) -> None:
    world = with_admission_control(**fields)
    if kept_mib is None:
        assert refusal(world, 10**9) == ""
        return
    free = 6 * HOST_MIB - kept_mib - RESERVED
    assert refusal(world, free) == ""
    rule = f"memory beside the {kept_mib} MiB that HA keeps free for the failure of a host"
    assert refusal(world, free + 1) == f"cluster gpu: {rule}: needs {free + 1} MiB, {free} there"


@pytest.mark.parametrize(("fields", "kept_mhz"), [({"cpu_percent": 50}, 300_000), ({"failover_level": 1}, 100_000)])
def test_cpu_is_kept_as_memory_is(fields: dict[str, Any], kept_mhz: int) -> None:
    """Six hosts of 100,000 MHz, and one VM that reserves 40,000: what reserves none is never refused over it."""
    world = with_admission_control(**fields)
    world = world.with_hosts([replace(esx, cpu_mhz=2500, cpu_cores=40) for esx in world.hosts.values()])
    world = world.with_vm(replace(world.find_vm("ml-03"), cpu_reservation_mhz=40_000))
    free = 600_000 - kept_mhz - 40_000

    def asking(mhz: int | None, inventory: Inventory = world) -> str:
        vm = replace(world.find_vm("ml-07"), cpu_reservation_mhz=mhz, memory_mib=1024)
        return str(Headroom(vm, inventory).refusal(world.find_host("esx-05")) or "")

    rule = f"cluster gpu: CPU beside the {kept_mhz} MHz that HA keeps free for the failure of a host"
    assert asking(free + 1) == f"{rule}: needs {free + 1} MHz, {free} there"
    assert [asking(mhz) for mhz in (free, 0, None)] == ["", "", ""]
    assert asking(free + 1, world.with_hosts([replace(world.find_host("esx-06"), cpu_mhz=None)])) == ""


def test_a_failover_host_starts_nothing() -> None:
    world = with_admission_control(failover_hosts=("host-5",))
    assert refusal(world, 1024) == "esx-05: is a failover host of HA in cluster gpu"
    assert refusal(world, 1024, "esx-02") == ""
    (answer,) = Place((Workload("a", 4, 16384, "a40-48q", host="esx-05"),)).placements(world, catalog()).answers
    assert [str(rejection) for rejection in answer.rejections] == ["esx-05: is a failover host of HA in cluster gpu"]  # type: ignore[union-attr]
    room = capacity(world, catalog(), Scope(host="esx-05")).now.fits["nvidia_a40-48q"].slots
    assert (room.at_most, room.because) == (0, "is a failover host of HA")


def test_hosts_that_are_not_up_count_for_nothing() -> None:
    world = with_admission_control(failover_level=1)
    down = world.with_hosts([replace(world.find_host("esx-06"), in_maintenance=True)])
    free = 4 * HOST_MIB - RESERVED
    assert (refusal(down, free), bool(refusal(down, free + 1))) == ("", True)


def test_nothing_is_refused_where_nothing_is_known() -> None:
    assert refusal(lab(), 10**9) == ""
    world = with_admission_control(failover_level=1)
    assert refusal(world.with_hosts([replace(world.find_host("esx-06"), memory_mib=None)]), 10**9) == ""


def test_each_placed_vm_takes_from_it_and_attach_asks_it_too() -> None:
    world = with_admission_control(memory_percent=85)  # room for a and for desk-4, which is suspended and comes back
    workloads = tuple(Workload(name, 4, 64 * 1024, "a40-8q") for name in ("a", "b"))
    placements = Place(workloads).placements(world, catalog())
    assert ([placed.workload.name for placed in placements.placed], len(placements.refused)) == (["a"], 1)
    request = Attach(vm="ml-07", profile="a100-3-20c")
    assert request.plan(world, catalog(), world.taken_at).feasible
    full = with_admission_control(memory_percent=95)
    rejection_lines = [str(rejection) for rejection in request.plan(full, catalog(), full.taken_at).rejections]
    assert any("that HA keeps free" in line for line in rejection_lines), rejection_lines
