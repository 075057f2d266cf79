"""A place is found with a limited number of states of GPUs, however many profiles share one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.fleet.index import FleetIndex
from gpuops.plan.queue.place import Place
from tests.plan.snapshots import FIRST, FOURTH, SECOND, THIRD, catalog, gpu, host, inventory, vm

PREFIX = "nvidia_rtx_pro_6000_blackwell_dc-"
OFF = ("1-2q", "1-3q", "1-6q", "1-12q", "1-12c", "1-24c", "2-24q", "2-48c")
EVERY = tuple(
    profile.name.removeprefix(PREFIX)
    for board in catalog().boards
    for profile in board.profiles
    if profile.name.startswith(PREFIX) and profile.mig_backed
)


def two_hosts(profiles: tuple[str, ...]) -> Inventory:
    """Two empty hosts with four RTX PRO 6000 in MIG mode, and a VM that is off for each of the profiles."""
    nodes = {FIRST: 0, SECOND: 0, THIRD: 1, FOURTH: 1}
    hosts = [
        host(f"esx-{number}", *(gpu(at, "rtx-pro-6000", node, VgpuMode.MULTI_INSTANCE) for at, node in nodes.items()))
        for number in (1, 2)
    ]
    vms = [vm(n, f"off-{n}", str(n % 2 + 1), f"vgpu {PREFIX}{profile}") for n, profile in enumerate(profiles, 1)]
    return inventory(hosts, [replace(guest_vm, power=PowerState.OFF) for guest_vm in vms])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("profiles", [OFF, EVERY], ids=["eight profiles", "every profile"])
def test_vms_of_many_profiles_do_not_multiply_the_states_of_a_gpu(profiles: tuple[str, ...]) -> None:
    """The search for the best filling of a GPU followed every mixture of up to 48 vGPUs."""
    world = two_hosts(profiles)
    placements = Place((Workload("w", 4, 16384, f"{PREFIX}2-24q"),)).placements(world, catalog())
    assert len(placements.placed) == 1
    assert len(FleetIndex.of(placements.before, catalog()).states) < 500


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("optimize", [False, True])
def test_a_queue_of_every_profile_is_placed_in_a_limited_number_of_states(optimize: bool) -> None:
    world = two_hosts(())
    requests = tuple(Workload(f"w-{name}", 4, 16384, f"{PREFIX}{name}") for name in EVERY)
    placements = Place(requests, optimize=optimize).placements(world, catalog())
    assert len(placements.placed) + len(placements.refused) == len(EVERY)
    assert len(FleetIndex.of(placements.before, catalog()).states) < 2000
