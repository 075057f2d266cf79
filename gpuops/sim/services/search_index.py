"""The SearchIndex object: finds one object by its path, uuid, name or address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyVmomi import vmodl

from gpuops.sim.core.inventory_tree import ancestors, at_path, child_named
from gpuops.sim.core.managed_object import UNSET, ManagedObject, method

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World


class SearchIndex(ManagedObject):
    """Look-ups; each answers nothing when nothing is there."""

    wsdl_name = "SearchIndex"
    world: World

    @method
    def FindByInventoryPath(self, call: Call, inventoryPath: str) -> ManagedObject | None:
        return at_path(self.world.get("group-d1"), inventoryPath)

    @method
    def FindChild(self, call: Call, entity: Any, name: str) -> ManagedObject | None:
        return child_named(self.world.get(entity), name)

    @method
    def FindByUuid(
        self, call: Call, datacenter: Any, uuid: str, vmSearch: bool, instanceUuid: bool | None = None
    ) -> ManagedObject | None:
        return next(self._by_uuid(datacenter, uuid, vmSearch, instanceUuid), None)

    @method
    def FindAllByUuid(
        self, call: Call, datacenter: Any, uuid: str, vmSearch: bool, instanceUuid: bool | None = None
    ) -> list[ManagedObject]:
        return list(self._by_uuid(datacenter, uuid, vmSearch, instanceUuid))

    @method
    def FindByDnsName(self, call: Call, datacenter: Any, dnsName: str, vmSearch: bool) -> ManagedObject | None:
        return next(self._by_dns_name(datacenter, dnsName, vmSearch), None)

    @method
    def FindAllByDnsName(self, call: Call, datacenter: Any, dnsName: str, vmSearch: bool) -> list[ManagedObject]:
        return list(self._by_dns_name(datacenter, dnsName, vmSearch))

    @method
    def FindByIp(self, call: Call, datacenter: Any, ip: str, vmSearch: bool) -> ManagedObject | None:
        return next(self._by_ip(datacenter, ip, vmSearch), None)

    @method
    def FindAllByIp(self, call: Call, datacenter: Any, ip: str, vmSearch: bool) -> list[ManagedObject]:
        return list(self._by_ip(datacenter, ip, vmSearch))

    @method
    def FindByDatastorePath(self, call: Call, datacenter: Any, path: str) -> ManagedObject | None:
        return next(self._find(datacenter, True, lambda vm: _text(vm, "config.files.vmPathName") == path), None)

    def _by_uuid(self, datacenter: Any, uuid: str, vms: bool, instance: bool | None) -> Iterator[ManagedObject]:
        path = "hardware.systemInfo.uuid" if not vms else "config.instanceUuid" if instance else "config.uuid"
        return self._find(datacenter, vms, lambda obj: _text(obj, path).lower() == uuid.lower())

    def _by_dns_name(self, datacenter: Any, name: str, vms: bool) -> Iterator[ManagedObject]:
        path = "guest.hostName" if vms else "name"
        return self._find(datacenter, vms, lambda obj: _text(obj, path).lower() == name.lower())

    def _by_ip(self, datacenter: Any, ip: str, vms: bool) -> Iterator[ManagedObject]:
        path = "guest.ipAddress" if vms else "summary.managementServerIp"
        return self._find(datacenter, vms, lambda obj: _text(obj, path) == ip)

    def _find(self, datacenter: Any, vms: bool, matches: Callable[[ManagedObject], bool]) -> Iterator[ManagedObject]:
        within = self.world.get(datacenter).moid if datacenter is not None else ""
        for obj in self.world.by_type("VirtualMachine" if vms else "HostSystem"):
            if matches(obj) and (not within or any(above.moid == within for above in ancestors(obj))):
                yield obj


def _text(obj: ManagedObject, path: str) -> str:
    try:
        value = obj.read(path)
    except vmodl.MethodFault:
        return ""
    return "" if value is UNSET or value is None else str(value)
