"""A host that is removed from a simulated vCenter with its VMs, and added again under new ids."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.inventory.registration import enter, leave, new_moid
from gpuops.sim.managers import of_hosts
from gpuops.sim.objects.host_system import HostSystem
from gpuops.sim.objects.virtual_machine import VirtualMachine


def removed(host: HostSystem) -> list[VmEntity]:
    """Takes the host out of the inventory; the VMs that were registered on it."""
    world, vms = host.world, host.vms()
    with world.lock:
        for vm in vms:
            leave(vm)
        of_hosts.forget(host)
        cluster = host.compute_resource()
        cluster.host_moids.remove(host.moid)
        for store in host.state.datastores:
            world.get(store).host_moids.remove(host.moid)
        world.unregister(world.get(f"datastoreBrowser-{host.moid}"))
        world.unregister(host)
        cluster.touch("host", "summary")
    return vms


def added_again(host: HostSystem, vms: Sequence[VmEntity]) -> HostSystem:
    """The same server under another id, and its VMs under others."""
    from gpuops.sim.objects.environment import HostDatastoreBrowser

    world = host.world
    with world.lock:
        again = HostSystem(world, new_moid(world, "host"), host.state)
        world.register(again)
        HostDatastoreBrowser(again)
        cluster = again.compute_resource()
        cluster.host_moids.append(again.moid)
        for store in again.state.datastores:
            world.get(store).host_moids.append(again.moid)
        cluster.touch("host", "summary")
        again.state.vms.clear()
        for vm in vms:
            vm.state.host = again.moid
            enter(VirtualMachine(world, new_moid(world, "vm"), vm.state))
    return again
