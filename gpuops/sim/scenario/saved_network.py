"""The part of a saved state about networking: distributed switches, and what each host is set to.

What clients set of distributed switches and port groups is saved as it was given: of all, also of a scenario's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.objects.distributed import DistributedVirtualPortgroup, VmwareDistributedVirtualSwitch
from gpuops.sim.operations.networks.distributed_change import drop
from gpuops.sim.scenario.saved_values import adapter, dump, from_json, to_json
from gpuops.sim.state.host_network import HostNetwork

if TYPE_CHECKING:
    from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
    from gpuops.sim.world import World


def save(world: World, untouched: World) -> dict[str, Any]:
    """How networking differs from that of an untouched world, as JSON values."""
    hosts_now, hosts_before = (_hosts(world_state) for world_state in (world, untouched))
    return {
        "switches": _switches(world),
        "hosts": {moid: values for moid, values in hosts_now.items() if hosts_before.get(moid) != values},
    }


def restore(world: World, saved: dict[str, Any]) -> None:
    """Make networking what was saved of it."""
    for switch in list(world.by_type("DistributedVirtualSwitch")):
        for network_object in (*switch.portgroups(), switch):
            drop(network_object)
    for switch in saved["switches"]:
        _restore_switch(world, switch)
    for moid, values in saved["hosts"].items():
        state = world.get(moid).state
        state.network = adapter(HostNetwork).validate_python(values["network"])
        state.networks = tuple(values["networks"])


def _switches(world: World) -> list[dict[str, Any]]:
    return [
        {
            **_network_to_json(switch),
            "next_port": switch.next_port,
            "portgroups": [
                {**_network_to_json(portgroup), "ports": portgroup.ports} for portgroup in switch.portgroups()
            ],
        }
        for switch in world.by_type("DistributedVirtualSwitch")
    ]


def _network_to_json(entity: DistributedSwitchEntity | PortgroupEntity) -> dict[str, Any]:
    return {
        "moid": entity.moid,
        "name": entity.name,
        "parent": entity.parent,
        "version": entity.version,
        "kept": to_json(entity.kept),
        "attributes": {str(key): value for key, value in entity.attributes.items()},
    }


def _restore_switch(world: World, saved: dict[str, Any]) -> None:
    switch = VmwareDistributedVirtualSwitch(
        world, saved["moid"], saved["name"], saved["parent"], from_json(saved["kept"])
    )
    switch.next_port = saved["next_port"]
    switch.portgroup_moids = [portgroup["moid"] for portgroup in saved["portgroups"]]
    _enter(switch, saved)
    for each in saved["portgroups"]:
        config = from_json(each["kept"])
        portgroup = DistributedVirtualPortgroup(world, each["moid"], each["name"], each["parent"], switch.moid, config)
        portgroup.ports = each["ports"]
        _enter(portgroup, each)


def _enter(entity: DistributedSwitchEntity | PortgroupEntity, saved: dict[str, Any]) -> None:
    entity.version = saved["version"]
    entity.attributes = {int(key): value for key, value in saved["attributes"].items()}
    entity.world.register(entity)
    entity.world.get(saved["parent"]).add(entity)


def _hosts(world: World) -> dict[str, dict[str, Any]]:
    return {
        host.moid: {"network": dump(host.state.network), "networks": list(host.state.networks)}
        for host in world.by_type("HostSystem")
    }
