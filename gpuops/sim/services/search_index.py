"""The SearchIndex object: finds one object by its path, uuid, name or address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import vmodl

from gpuops.sim.core.inventory_tree import ancestors, at_path, child_named
from gpuops.sim.core.managed_object import UNSET, ManagedObject, Methods

if TYPE_CHECKING:
    from gpuops.sim.world import World


class SearchIndex(ManagedObject):
    """Look-ups; each answers nothing when nothing is there."""

    wsdl_name = "SearchIndex"
    world: World

    method_table: ClassVar[Methods] = {
        "FindByInventoryPath": lambda self, call, inventoryPath: at_path(self.world.get("group-d1"), inventoryPath),
        "FindChild": lambda self, call, entity, name: child_named(self.world.get(entity), name),
        "FindByUuid": lambda self, call, datacenter, uuid, vmSearch, instanceUuid=None: next(
            self._by_uuid(datacenter, uuid, vmSearch, instanceUuid), None
        ),
        "FindAllByUuid": lambda self, call, datacenter, uuid, vmSearch, instanceUuid=None: list(
            self._by_uuid(datacenter, uuid, vmSearch, instanceUuid)
        ),
        "FindByDnsName": lambda self, call, datacenter, dnsName, vmSearch: next(
            self._by_dns_name(datacenter, dnsName, vmSearch), None
        ),
        "FindByIp": lambda self, call, datacenter, ip, vmSearch: next(self._by_ip(datacenter, ip, vmSearch), None),
        "FindByDatastorePath": lambda self, call, datacenter, path: next(
            self._find(datacenter, True, lambda vm: _text(vm, "config.files.vmPathName") == path), None
        ),
    }

    def _by_uuid(self, datacenter: Any, uuid: str, vms: bool, instance: bool | None) -> Iterator[ManagedObject]:
        path = "hardware.systemInfo.uuid" if not vms else "config.instanceUuid" if instance else "config.uuid"
        return self._find(datacenter, vms, lambda managed_object: _text(managed_object, path).lower() == uuid.lower())

    def _by_dns_name(self, datacenter: Any, name: str, vms: bool) -> Iterator[ManagedObject]:
        path = "guest.hostName" if vms else "name"
        return self._find(datacenter, vms, lambda managed_object: _text(managed_object, path).lower() == name.lower())

    def _by_ip(self, datacenter: Any, ip: str, vms: bool) -> Iterator[ManagedObject]:
        path = "guest.ipAddress" if vms else "summary.managementServerIp"
        return self._find(datacenter, vms, lambda managed_object: _text(managed_object, path) == ip)

    def _find(self, datacenter: Any, vms: bool, matches: Callable[[ManagedObject], bool]) -> Iterator[ManagedObject]:
        within = self.world.get(datacenter).moid if datacenter is not None else ""
        for managed_object in self.world.by_type("VirtualMachine" if vms else "HostSystem"):
            if matches(managed_object) and (
                not within or any(above.moid == within for above in ancestors(managed_object))
            ):
                yield managed_object


def _text(managed_object: ManagedObject, path: str) -> str:
    try:
        value = managed_object.read(path)
    except vmodl.MethodFault:
        return ""
    return "" if value is UNSET or value is None else str(value)
