"""The managers of `HostSystem.configManager`: all are made when a client first asks for them.

`scenario.hosts` lets a world make them. A manager that has no class of its own shows what `HostSystem.config` shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties
from gpuops.sim.inventory import faults
from gpuops.sim.managers.of_vcenter import LICENCES, read_only_manager_class
from gpuops.sim.objects.esxcli import DynamicTypeManager, ManagedMethodExecuter
from gpuops.sim.objects.host_managers import (
    HostAssignableHardwareManager,
    HostGraphicsManager,
    HostImageConfigManager,
    HostKernelModuleSystem,
    HostManager,
    HostPciPassthruSystem,
)
from gpuops.sim.objects.host_system import HostSystem
from gpuops.sim.render import host_network
from gpuops.sim.render.host_config import managers
from gpuops.sim.render.pci import nic_names
from gpuops.sim.services.option_manager import OptionManager

if TYPE_CHECKING:
    from gpuops.sim.world import World

KINDS: Final[Mapping[str, type[HostManager]]] = {
    "graphicsManager": HostGraphicsManager,
    "pciPassthruSystem": HostPciPassthruSystem,
    "assignableHardwareManager": HostAssignableHardwareManager,
    "kernelModuleSystem": HostKernelModuleSystem,
    "imageConfigManager": HostImageConfigManager,
    "methodExecuter": ManagedMethodExecuter,
    "typeManager": DynamicTypeManager,
}
"""Managers with behaviour of their own by what their moids begin with; the last two are esxcli's."""
OPTIONS: Final = "hostOptions"

SHOWN: Final[Mapping[str, Mapping[str, str]]] = {
    "HostAccessManager": {"lockdownMode": "config.lockdownMode"},
    "HostAuthenticationManager": {"info": "config.authenticationManagerInfo"},
    "HostAutoStartManager": {"config": "config.autoStart"},
    "HostCpuSchedulerSystem": {"hyperthreadInfo": "config.hyperThread"},
    "HostDatastoreSystem": {"datastore": "datastore", "capabilities": "config.datastoreCapabilities"},
    "HostDateTimeSystem": {"dateTimeInfo": "config.dateTimeInfo"},
    "HostFirewallSystem": {"firewallInfo": "config.firewall"},
    "HostNetworkSystem": {
        "networkInfo": "config.network",
        "dnsConfig": "config.network.dnsConfig",
        "ipRouteConfig": "config.network.ipRouteConfig",
        "capabilities": "config.capabilities",
        "offloadCapabilities": "config.offloadCapabilities",
    },
    "HostPowerSystem": {"capability": "config.powerSystemCapability", "info": "config.powerSystemInfo"},
    "HostServiceSystem": {"serviceInfo": "config.service"},
    "HostStorageSystem": {
        "storageDeviceInfo": "config.storageDevice",
        "fileSystemVolumeInfo": "config.fileSystemVolume",
    },
    "HostVMotionSystem": {"netConfig": "config.vmotion.netConfig"},
    "HostVsanSystem": {"config": "config.vsanHostConfig"},
}
"""Type -> property -> the property of its host with the same value (vSphere API, HostConfigInfo)."""
OTHER_PROPERTIES: Final[Mapping[str, Properties]] = {
    "HostNetworkSystem": {"networkConfig": lambda manager: host_network.config(manager.host.state)},
    "HostVirtualNicManager": {"info": lambda manager: host_network.selections(manager.host.state)},
    "LicenseManager": LICENCES,
}
"""Type -> its properties that no property of the host holds."""
METHODS: Final[Mapping[str, Methods]] = {
    "HostDatastoreSystem": {"QueryAvailableDisksForVmfs": lambda *_, **__: []},
    "HostDateTimeSystem": {"QueryDateTime": lambda manager, call: manager.world.clock.now() + manager.world.skew},
    "HostNetworkSystem": {
        "QueryNetworkHint": lambda manager, call, device: _network_hints(manager.host, device),
    },
    "HostVirtualNicManager": {"QueryNetConfig": lambda manager, call, nicType: _selection(manager.host, nicType)},
    "HostVsanSystem": {"QueryHostStatus": lambda manager, call: _vsan_status(manager.host)},
}


def _network_hints(host: HostSystem, devices: list[str]) -> list[Any]:
    """Return what the physical adapters hear on the wire, which is nothing. Raises NotFound."""
    names = nic_names(host.state)
    if unknown := [device for device in devices if device not in names]:
        raise faults.not_found(f"Host {host.name} has no physical adapter {unknown[0]}.")
    return [vim.host.PhysicalNic.NetworkHint(device=device) for device in devices or names]


def _selection(host: HostSystem, service: str) -> Any:
    """Return which VMkernel adapters serve this. Raises InvalidArgument."""
    for selection in host_network.selections(host.state).netConfig:
        if selection.nicType == service:
            return selection
    raise faults.wrong_argument("nicType")


def _vsan_status(host: HostSystem) -> Any:
    """VsanHostClusterStatus of a host that is in no vSAN cluster."""
    return vim.vsan.host.ClusterStatus(
        nodeUuid=host.state.uuid, health="unknown", nodeState=vim.vsan.host.ClusterStatus.State(state="disabled")
    )


def offer(world: World) -> None:
    """Register the managers of all hosts to be made when a client first asks for them."""
    for prefix in (*KINDS, *(prefix for _, prefix in managers().values())):
        world.registry.make_on_demand(f"{prefix}-", partial(_make, world, prefix))


def _make(world: World, prefix: str, moid: str) -> ManagedObject | None:
    host = world.find(f"host-{moid.rpartition('-')[2]}")
    if not isinstance(host, HostSystem):
        return None
    manager: ManagedObject
    if prefix == OPTIONS:
        manager = OptionManager(world, moid, host.state.options, name=host.name, changed=lambda: host.touch("config"))
    else:
        manager = _manager_class(prefix)(moid, host)
    host.managers[moid] = manager
    return manager


@cache
def _manager_class(prefix: str) -> type[HostManager]:
    own_class = KINDS.get(prefix)
    if own_class is not None:
        return own_class
    (wsdl_name,) = {kind._wsdlName for kind, own_prefix in managers().values() if own_prefix == prefix}
    properties: Properties = {name: partial(_read_of_host, path) for name, path in SHOWN.get(wsdl_name, {}).items()}
    return read_only_manager_class(
        wsdl_name, HostManager, {**properties, **OTHER_PROPERTIES.get(wsdl_name, {})}, METHODS.get(wsdl_name, {})
    )


def _read_of_host(path: str, manager: HostManager) -> Any:
    return manager.host.read(path)
