"""A host that is removed from a simulated vCenter with its VMs, and added again under new ids."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.inventory.managed_entity import enter, leave, new_moid
from gpuops.sim.objects.host_system import HostSystem
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.removal import forget
from gpuops.sim.scenario.scenario_hosts import enter_host


def remove_host(host: HostSystem) -> list[VmEntity]:
    """Takes the host out of the inventory; the VMs that were registered on it."""
    world, vms = host.world, host.vms()
    with world.lock:
        for vm in vms:
            leave(vm)
        forget(host)
    return vms


def added_again(host: HostSystem, vms: Sequence[VmEntity]) -> HostSystem:
    """The same server under another id, and its VMs under others."""
    world = host.world
    with world.lock:
        readded_host = enter_host(world, new_moid(world, "host"), host.state)
        readded_host.compute_resource().touch("host", "summary")
        readded_host.state.vms.clear()
        for vm in vms:
            vm.state.host = readded_host.moid
            enter(VirtualMachine(world, new_moid(world, "vm"), vm.state))
    return readded_host
