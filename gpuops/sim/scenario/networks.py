"""Distributed switches of a scenario, and what its hosts have on them: uplinks and VMkernel adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from pyVmomi import vim

from gpuops.errors import PolicyError
from gpuops.model.devices.gpu import PciAddress
from gpuops.sim.core.inventory_tree import escaped
from gpuops.sim.inventory.managed_entity import ManagedEntity
from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
from gpuops.sim.objects.distributed import DistributedVirtualPortgroup, VmwareDistributedVirtualSwitch
from gpuops.sim.operations.networks.distributed_change import enter_portgroup, enter_switch, new_config
from gpuops.sim.operations.networks.port_connection import free_port
from gpuops.sim.operations.networks.switch_members import set_proxy
from gpuops.sim.render import distributed
from gpuops.sim.render.host_network import installed_rulesets
from gpuops.sim.render.pci import nic_names
from gpuops.sim.state.host_network import KernelAdapter, ProxySwitch
from gpuops.sim.state.network_port import NetworkPort

if TYPE_CHECKING:
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.scenario.declared import HostsDeclared, NetworkPortDeclared, SwitchDeclared
    from gpuops.sim.scenario.site import ScenarioSite

Kind = TypeVar("Kind", bound=ManagedEntity)

PORTS: Final = 8
"""Of a port group at first."""


def add_switches(site: ScenarioSite) -> None:
    """The distributed switches, without members."""
    for declared in site.declared.switches:
        _add_switch(site, declared)


def _add_switch(site: ScenarioSite, declared: SwitchDeclared) -> None:
    world, folder = site.world, site.datacenter.folders["network"]
    config = new_config(world, distributed.products(world.api_version)[-1])
    config.maxMtu = declared.mtu
    switch = enter_switch(folder, declared.name, config, VmwareDistributedVirtualSwitch, DistributedVirtualPortgroup)
    for name in declared.groups:
        spec = vim.dvs.DistributedVirtualPortgroup.ConfigSpec(name=name, type="earlyBinding", numPorts=PORTS)
        enter_portgroup(switch, spec, DistributedVirtualPortgroup)


def port(declared: NetworkPortDeclared) -> NetworkPort:
    """A port of a network card, as a host keeps it."""
    return NetworkPort(
        pci_id=str(PciAddress.parse(declared.at)),
        numa_node=declared.node,
        speed_mbit=declared.gbit * 1000,
        link=declared.link,
        rdma=declared.rdma,
        max_functions=max(declared.most_functions, declared.functions),
        functions=declared.functions,
        next_functions=declared.functions,
    )


def equip(site: ScenarioSite, host: HostSystem, declared: HostsDeclared) -> None:
    """Give a host what is declared of its network. Raises PolicyError for what is not there."""
    for name, nics in declared.uplinks.items():
        nics_of_host = nic_names(host.state)
        if missing := [nic for nic in nics if nic not in nics_of_host]:
            raise PolicyError(f"host {host.name} has no {missing[0]}", hint=f"it has {', '.join(nics_of_host)}")
        switch = _network_named(site, "distributed switch", name, DistributedSwitchEntity)
        set_proxy(switch, host, ProxySwitch(switch.moid, nics))
    for number, adapter in enumerate(declared.adapters, start=1):
        group = _network_named(site, "distributed port group", adapter.group, PortgroupEntity)
        address = f"198.51.100.{len(list(site.world.by_type('HostSystem'))) % 250}"  # from the documentation range
        uuid, port = group.switch().uuid, free_port(group, group.switch().taken_ports())
        assert port is not None, "a port group of a scenario grows"
        kernel_adapter = KernelAdapter(f"vmk{number}", group.moid, address, adapter.mtu, adapter.services, uuid, port)
        host.state.network = replace(host.state.network, adapters=(*host.state.network.adapters, kernel_adapter))
    if unknown := [key for key in declared.options if key not in host.state.options]:
        raise PolicyError(f"host {host.name} has no advanced setting {unknown[0]!r}")
    if unknown := [key for key in declared.rulesets if key not in installed_rulesets()]:
        raise PolicyError(f"host {host.name} has no firewall rule set {unknown[0]!r}")
    host.state.options.update(declared.options)
    host.state.rulesets.update(declared.rulesets)


def _network_named(site: ScenarioSite, kind_text: str, name: str, kind: type[Kind]) -> Kind:
    candidates = [child for child in site.datacenter.folders["network"].children.values() if isinstance(child, kind)]
    network = next((candidate for candidate in candidates if candidate.name == escaped(name)), None)
    if network is None:
        raise PolicyError(
            f"the scenario has no {kind_text} {name!r:.80}",
            hint=f"it has {', '.join(candidate.name for candidate in candidates) or 'none'}",
        )
    return network
