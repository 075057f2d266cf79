"""Builds the inventory of a scenario without its VMs: folders, datastores and networks, then clusters and hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from pyVmomi import vim

from gpuops.errors import PolicyError
from gpuops.model.devices.gpu import PciAddress
from gpuops.sim.core.inventory_tree import escaped
from gpuops.sim.inventory.managed_entity import ManagedEntity, new_moid, new_uuid
from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
from gpuops.sim.objects.compute_resource import HostDatastoreBrowser, new_cluster, new_compute_resource
from gpuops.sim.objects.folder import (
    DistributedVirtualPortgroup,
    Folder,
    Network,
    VmfsDatastore,
    VmwareDistributedVirtualSwitch,
    new_datacenter,
)
from gpuops.sim.objects.host_system import HostProfile, HostSystem
from gpuops.sim.operations.distributed_switches import enter_portgroup, enter_switch, free_port, new_config, set_proxy
from gpuops.sim.render import distributed
from gpuops.sim.render.host_network import installed_rulesets
from gpuops.sim.render.pci import nic_names
from gpuops.sim.scenario.declared import (
    ClusterAsRead,
    ClusterDeclared,
    GpuDeclared,
    HostsDeclared,
    ModelDeclared,
    OtherDeviceDeclared,
    expand_name,
    numbers,
)
from gpuops.sim.state.board import board
from gpuops.sim.state.drs import Behavior, ClusterRule, DrsState, Group, Override
from gpuops.sim.state.gpu_admission import Deviation
from gpuops.sim.state.host_state import (
    PVRDMA_ADAPTER,
    HostGpu,
    HostModel,
    HostNode,
    HostState,
    KernelAdapter,
    NetworkPort,
    OtherHostDevice,
    ProxySwitch,
    installed_network,
)

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import ComputeEntity
    from gpuops.sim.objects.folder import Datacenter
    from gpuops.sim.scenario.declared import GuestDeclared, NetworkPortDeclared, SwitchDeclared
    from gpuops.sim.scenario.scenario_file import ScenarioFile
    from gpuops.sim.world import World

Declared = TypeVar("Declared")

ROOT: Final = "group-d1"


@dataclass(slots=True)
class ScenarioSite:
    """The world of a scenario while it is built, its declaration, and the objects made so far."""

    world: World
    declared: ScenarioFile
    parameters: dict[str, int]
    datacenter: Datacenter
    datastores: list[VmfsDatastore] = field(default_factory=list)
    networks: list[Network] = field(default_factory=list)
    hosts: dict[str, list[HostSystem]] = field(default_factory=dict)
    """The hosts by group, and each host by its own name."""

    def hosts_of(self, group: str) -> list[HostSystem]:
        """The hosts of a group, or the one of that name. Raises PolicyError."""
        hosts = self.hosts.get(group)
        if not hosts:
            raise PolicyError(
                f"the scenario has no host or group of hosts called {group!r}",
                hint=f"use one of: {', '.join(self.hosts)}",
            )
        return hosts

    def model(self, name: str) -> ModelDeclared:
        """The server model of that name. Raises PolicyError."""
        return self._declaration_named(self.declared.models, "server model", name)

    def guest(self, name: str) -> GuestDeclared:
        """The guest system of that name. Raises PolicyError."""
        return self._declaration_named(self.declared.guests, "guest", name)

    def _declaration_named(self, declared: Mapping[str, Declared], kind_name: str, name: str) -> Declared:
        if name not in declared:
            raise PolicyError(
                f"the scenario has no {kind_name} {name!r:.80}", hint=f"use one of: {', '.join(declared)[:200]}"
            )
        return declared[name]


def new_site(world: World, declared: ScenarioFile, parameters: dict[str, int]) -> ScenarioSite:
    """Return the site with its datacenter, datastores and networks, without clusters and VMs."""
    site = ScenarioSite(world, declared, parameters, _tree(world, declared))
    _add_storage(site)
    _add_networks(site)
    return site


def _tree(world: World, declared: ScenarioFile) -> Datacenter:
    """Register the root folder and the datacenter with its four folders; return the datacenter."""
    root = Folder(world, ROOT, "Datacenters", None, "root")
    world.register(root)
    datacenter = new_datacenter(world, declared.datacenter, root.moid)
    root.add(datacenter)
    return datacenter


def _add_storage(site: ScenarioSite) -> None:
    folder = site.datacenter.folders["datastore"]
    for store in site.declared.datastores:
        moid = store.moid or new_moid(site.world, "datastore")
        free_mib = (store.free_gib << 10) if store.free_mib is None else store.free_mib
        datastore = VmfsDatastore(site.world, moid, store.name, folder.moid, store.capacity_gib << 10, free_mib)
        site.world.register(datastore)
        HostDatastoreBrowser(datastore)
        folder.add(datastore)
        site.datastores.append(datastore)


def _add_networks(site: ScenarioSite) -> None:
    folder = site.datacenter.folders["network"]
    for name in site.declared.networks:
        network = Network(site.world, new_moid(site.world, "network"), name, folder.moid)
        site.world.register(network)
        folder.add(network)
        site.networks.append(network)


Kind = TypeVar("Kind", bound=ManagedEntity)

PORT_COUNT: Final = 8
"""The number of ports of a new port group."""


def add_switches(site: ScenarioSite) -> None:
    """Add the declared distributed switches, without member hosts."""
    for declared in site.declared.switches:
        _add_switch(site, declared)


def _add_switch(site: ScenarioSite, declared: SwitchDeclared) -> None:
    world, folder = site.world, site.datacenter.folders["network"]
    config = new_config(world, distributed.products(world.api_version)[-1])
    config.maxMtu = declared.mtu
    switch = enter_switch(folder, declared.name, config, VmwareDistributedVirtualSwitch, DistributedVirtualPortgroup)
    for name in declared.groups:
        spec = vim.dvs.DistributedVirtualPortgroup.ConfigSpec(name=name, type="earlyBinding", numPorts=PORT_COUNT)
        enter_portgroup(switch, spec, DistributedVirtualPortgroup)


def network_port(declared: NetworkPortDeclared) -> NetworkPort:
    """Return the state of a host's network port from its declaration."""
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


def add_declared_network_and_settings(site: ScenarioSite, host: HostSystem, declared: HostsDeclared) -> None:
    """Give a host its declared uplinks, VMkernel adapters, advanced settings and firewall rule sets.

    Raises PolicyError for an adapter, network, setting or rule set that does not exist.
    """
    for name, nics in declared.uplinks.items():
        nics_of_host = nic_names(host.state)
        if missing := [nic for nic in nics if nic not in nics_of_host]:
            raise PolicyError(
                f"host {host.name} has no network port {missing[0]}", hint=f"use one of: {', '.join(nics_of_host)}"
            )
        switch = _network_named(site, "distributed switch", name, DistributedSwitchEntity)
        set_proxy(switch, host, ProxySwitch(switch.moid, nics))
    for number, adapter in enumerate(declared.adapters, start=1):
        group = _network_named(site, "distributed port group", adapter.group, PortgroupEntity)
        # an address of the documentation range, by the number of hosts made so far
        address = f"198.51.100.{len(list(site.world.by_type('HostSystem'))) % 250}"
        uuid, port = group.switch().uuid, free_port(group, group.switch().taken_ports())
        assert port is not None, "a port group of a scenario gets new ports when needed"
        kernel_adapter = KernelAdapter(f"vmk{number}", group.moid, address, adapter.mtu, adapter.services, uuid, port)
        host.state.network = replace(host.state.network, adapters=(*host.state.network.adapters, kernel_adapter))
    if unknown := [key for key in declared.options if key not in host.state.options]:
        raise PolicyError(
            f"host {host.name} has no advanced setting {unknown[0]!r}",
            hint=f"correct the key in `options` of the hosts, for example {PVRDMA_ADAPTER}",
        )
    if unknown := [key for key in declared.rulesets if key not in installed_rulesets()]:
        raise PolicyError(
            f"host {host.name} has no firewall rule set {unknown[0]!r}",
            hint=f"use in `rulesets` one of {', '.join(installed_rulesets())}",
        )
    host.state.options.update(declared.options)
    host.state.rulesets.update(declared.rulesets)


def _network_named(site: ScenarioSite, kind_name: str, name: str, kind: type[Kind]) -> Kind:
    candidates = [child for child in site.datacenter.folders["network"].children.values() if isinstance(child, kind)]
    network = next((candidate for candidate in candidates if candidate.name == escaped(name)), None)
    if network is None:
        raise PolicyError(
            f"the scenario has no {kind_name} {name!r:.80}",
            hint=f"use one of: {', '.join(candidate.name for candidate in candidates) or 'none is declared'}",
        )
    return network


UPTIME: Final = timedelta(days=20)
OFF: Final = "off"
"""An override by which DRS leaves a VM alone."""
_RULES: Final = {
    "together": "ClusterAffinityRuleSpec",
    "apart": "ClusterAntiAffinityRuleSpec",
    "hosts": "ClusterVmHostRuleInfo",
}


def add_clusters(site: ScenarioSite) -> None:
    """Add all clusters with their hosts. A declaration with `size` becomes as many clusters of that size as needed."""
    counts = iter(  # one for each declaration of hosts, in the order of the loops below
        numbers([hosts.count for cluster in site.declared.clusters for hosts in cluster.hosts], site.parameters)
    )
    for declared in site.declared.clusters:
        names = [(hosts, name) for hosts in declared.hosts for name in _names(hosts, next(counts))]
        remaining_hosts = iter(names)
        number = 0
        while batch := list(islice(remaining_hosts, declared.size or len(names))):
            number += 1
            _add_cluster(site, declared, expand_name(declared.name, number), batch)


def _names(hosts: HostsDeclared, count: int) -> Iterator[str]:
    return (expand_name(hosts.name, number) for number in range(hosts.first, hosts.first + count))


def _add_cluster(
    site: ScenarioSite, declared: ClusterDeclared, name: str, hosts: list[tuple[HostsDeclared, str]]
) -> None:
    """Add a cluster, or the compute resource of a standalone host, with its hosts."""
    world, folder = site.world, site.datacenter.folders["host"]
    drs = DrsState(enabled=False) if declared.drs is None else DrsState(behavior=declared.drs)
    drs.options.update(declared.drs_options)
    as_read = declared.as_read or ClusterAsRead()
    _set_rules(drs, as_read)
    cluster = (
        new_compute_resource(world, name, folder.moid, as_read.moid)
        if as_read.standalone
        else new_cluster(world, name, folder.moid, drs, as_read.moid)
    )
    folder.add(cluster)
    cluster.config_managed = declared.config_managed
    if declared.host_profile is not None:
        profile = declared.host_profile
        moid = new_moid(world, "hostprofile")
        world.register(HostProfile(world, moid, profile.name, (cluster.moid,), profile.module_options))
    for hosts_declared, host_name in hosts:
        host = _add_host(site, cluster, hosts_declared, host_name)
        # VMs name their hosts by group or by host name
        for key in dict.fromkeys((hosts_declared.group or hosts_declared.name, host_name)):
            site.hosts.setdefault(key, []).append(host)


def _set_rules(drs: DrsState, as_read: ClusterAsRead) -> None:
    """Set HA, DRS overrides and rules as they were read from a real cluster.

    A rule of type "hosts" needs groups: NAME-vms for its VMs, NAME-on or NAME-off for its hosts.
    """
    if as_read.ha is not None:
        drs.ha_enabled, drs.ha_admission = True, as_read.ha
    for vm, behavior in as_read.overrides.items():
        drs.overrides[vm] = Override(enabled=False) if behavior == OFF else Override(behavior=Behavior(behavior))
    for key, rule in enumerate(as_read.rules, 1):
        # (whether it is a group of hosts, its members); None = no such group
        groups = {"vms": (False, rule.vms), "on": (True, rule.on), "off": (True, rule.off or None)}
        if rule.kind == "hosts":
            drs.groups.update(
                (f"{rule.name}-{part}", Group(f"{rule.name}-{part}", of_hosts, members))
                for part, (of_hosts, members) in groups.items()
                if members is not None
            )
        drs.rules[key] = ClusterRule(
            key,
            rule.name,
            _RULES[rule.kind],
            enabled=True,
            mandatory=rule.mandatory,
            vms=() if rule.kind == "hosts" else rule.vms,
            vm_group=f"{rule.name}-vms" if rule.kind == "hosts" else None,
            affine_hosts=f"{rule.name}-on" if rule.on is not None else None,
            anti_affine_hosts=f"{rule.name}-off" if rule.off else None,
        )


def _add_host(site: ScenarioSite, cluster: ComputeEntity, declared: HostsDeclared, name: str) -> HostSystem:
    """Add a host with its declared hardware, network and settings to a cluster."""
    world = site.world
    as_read = declared.as_read
    # a host that a client adds later does not get networks that were removed meanwhile
    networks = [network for network in site.networks if world.find(network.moid) is network]
    datastore_moids = as_read.datastores if as_read is not None else None
    state = HostState(
        name=name,
        uuid=new_uuid(world),
        model=_model(site.model(declared.model)),
        parent=cluster.moid,
        gpus=tuple(_gpu(gpu) for gpu in sorted(declared.gpus, key=lambda gpu: PciAddress.parse(gpu.at))),
        boot_time=(as_read.booted if as_read is not None else None) or site.declared.start - UPTIME,
        driver_version=declared.driver,
        no_suspend=frozenset(declared.no_suspend),
        rebinds_without_reboot=declared.rebinds_without_reboot,
        policy=declared.policy,
        deviation=Deviation(declared.deviation.gpus, declared.deviation.starts, frozenset(declared.deviation.forbids)),
        datastores=tuple(store.moid for store in site.datastores) if datastore_moids is None else datastore_moids,
        networks=tuple(network.moid for network in networks),
        others=tuple(
            _other_device(device)
            for device in sorted(declared.others, key=lambda other_device: PciAddress.parse(other_device.at))
        ),
        ports=tuple(network_port(nic) for nic in declared.ports),
        network=installed_network(tuple(network.name for network in networks)),
    )
    if as_read is not None:
        state.connection, state.in_maintenance = as_read.connection, as_read.in_maintenance
        state.default_graphics_type = as_read.default_graphics_type
    host = enter_host(world, as_read.moid if as_read is not None else new_moid(world, "host"), state)
    add_declared_network_and_settings(site, host, declared)
    return host


def new_host_maker(site: ScenarioSite) -> Callable[[ComputeEntity, str], HostSystem]:
    """Return the function that makes a host that a client adds.

    The host is a server of the scenario's first model without GPUs, with the scenario's datastores and networks.
    """
    model = next(iter(site.declared.models))

    def make(compute: ComputeEntity, name: str) -> HostSystem:
        return _add_host(site, compute, HostsDeclared(name=name, model=model), name)

    return make


def enter_host(world: World, moid: str, state: HostState) -> HostSystem:
    """Return a new host, registered in the compute resource and on the datastores that its state names."""
    host = HostSystem(world, moid, state)
    world.register(host)
    HostDatastoreBrowser(host)
    host.compute_resource().host_moids.append(host.moid)
    for store in state.datastores:
        world.get(store).host_moids.append(host.moid)
    return host


def _gpu(declared: GpuDeclared) -> HostGpu:
    return HostGpu(
        pci_id=str(PciAddress.parse(declared.at)),
        board=board(declared.board),
        numa_node=declared.node,
        mode=declared.mode,
        graphics_type=declared.type,
        configured_type=declared.next_type or declared.type,
        passthrough_enabled=declared.passthrough if declared.next_passthrough is None else declared.next_passthrough,
        passthrough_active=declared.passthrough,
        label=declared.label,
        nvlink=declared.nvlink,
        faults=frozenset(declared.faults),
    )


def _other_device(declared: OtherDeviceDeclared) -> OtherHostDevice:
    return OtherHostDevice(
        pci_id=str(PciAddress.parse(declared.at)),
        vendor_id=int(declared.vendor, 16),
        device_id=int(declared.device, 16),
        vendor_name=declared.vendor_name,
        device_name=declared.name,
        pci_class=int(declared.class_code, 16),
        class_name=declared.class_name,
        numa_node=declared.node,
        memory_mib=declared.memory_gib << 10,
        passthrough_enabled=declared.passthrough if declared.next_passthrough is None else declared.next_passthrough,
        passthrough_active=declared.passthrough,
        label=declared.label,
    )


@cache
def _model(declared: ModelDeclared) -> HostModel:
    return HostModel(
        vendor=declared.vendor,
        model=declared.model,
        cpu_model=declared.cpu,
        sockets=declared.sockets,
        cores_per_socket=declared.cores_per_socket,
        threads_per_core=declared.threads_per_core,
        cpu_mhz=declared.cpu_mhz,
        memory_mib=(declared.memory_gib << 10) if declared.memory_mib is None else declared.memory_mib,
        numa_nodes=len(declared.nodes) or declared.numa_nodes,
        nodes=tuple(HostNode(node.id, node.logical_cpus, node.memory_mib) for node in declared.nodes),
    )
