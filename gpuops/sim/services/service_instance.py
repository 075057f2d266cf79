"""The ServiceInstance object, which every client reads first, and the SearchIndex object, which finds one object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.core.inventory_tree import ancestors, at_path, child_named
from gpuops.sim.core.managed_object import UNSET, ManagedObject, Methods, Properties, prop
from gpuops.sim.core.registry import vmomi_type
from gpuops.sim.render.defaults import default

if TYPE_CHECKING:
    from gpuops.sim.world import World

MOID: Final = "ServiceInstance"
ROOT_FOLDER_MOID: Final = "group-d1"
"""The moid of the root folder, as in every vCenter."""

OTHER_MOIDS: Final[Mapping[str, str]] = {
    "setting": "VpxSettings",
    "serviceManager": "ServiceMgr",
    "perfManager": "PerfMgr",
    "guestCustomizationManager": "GuestCustomizationManager",
    "diagnosticManager": "DiagMgr",
    "virtualDiskManager": "virtualDiskManager",
    "snmpSystem": "SnmpSystem",
    "vmProvisioningChecker": "ProvChecker",
    "vmCompatibilityChecker": "CompatChecker",
    "dvSwitchManager": "DVSManager",
    "complianceManager": "MoComplianceManager",
    "guestOperationsManager": "guestOperationsManager",
    "certificateManager": "certificateManager",
    "vStorageObjectManager": "VStorageObjectManager",
    "cryptoManager": "CryptoManager",
    "tenantManager": "TenantManager-0",
    "directPathProfileManager": "DirectPathProfileMgr",
}
"""ServiceContent field -> moid, where that is not the name of the type, as a vCenter 9.0.1 answered.

The number in the tenant manager's moid is that of the vCenter's build.
"""
OWN_TYPES: Final = {"vStorageObjectManager": "VcenterVStorageObjectManager", "cryptoManager": "CryptoManagerKmip"}
"""The types of managers whose field in ServiceContent has a more general type."""
ABSENT: Final = ("rootFolder", "propertyCollector", "accountManager", "virtualizationManager")
"""Fields of ServiceContent that do not refer to a manager of a vCenter."""


@cache
def managers_of(api_version: str) -> Mapping[str, tuple[str, str]]:
    """Return ServiceContent field -> (type, moid) of each manager whose type exists in this API version."""
    version = VmomiSupport.versionMap[f"vim25/{api_version}"]
    types = {
        field.name: OWN_TYPES.get(field.name, field.type._wsdlName)
        for field in vim.ServiceInstanceContent._GetPropertyList()
        if issubclass(field.type, VmomiSupport.ManagedObject) and field.name not in ABSENT
    }
    return {
        name: (wsdl_name, OTHER_MOIDS.get(name, wsdl_name))
        for name, wsdl_name in types.items()
        if VmomiSupport.IsChildVersion(version, vmomi_type(wsdl_name)._version)
    }


class ServiceInstance(ManagedObject):
    """The service and what it offers."""

    wsdl_name = "ServiceInstance"
    volatile = True
    world: World

    property_table: ClassVar[Properties] = {
        "capability": lambda self: default("Capability"),
        "serverClock": lambda self: self.world.clock.now() + self.world.skew,
    }

    method_table: ClassVar[Methods] = {
        "RetrieveServiceContent": lambda self, call: self._content(),
        "CurrentTime": lambda self, call: self.world.clock.now() + self.world.skew,
    }

    def __init__(self, world: World) -> None:
        super().__init__(world, MOID)
        self.instance_uuid = world.sessions.unique_id()

    @prop("content")
    def _content(self) -> Any:
        content = vim.ServiceInstanceContent(
            rootFolder=vim.Folder(ROOT_FOLDER_MOID),
            propertyCollector=vmodl.query.PropertyCollector("propertyCollector"),
            about=self._about(),
        )
        for field, (wsdl_name, moid) in managers_of(self.world.api_version).items():
            setattr(content, field, vmomi_type(wsdl_name)(moid))
        return content

    def _about(self) -> Any:
        product_version = ".".join(self.world.api_version.split(".")[:3])
        return default(
            "AboutInfo",
            name="VMware vCenter Server",
            fullName=f"VMware vCenter Server {product_version} build-0 (simulated by gpuops)",
            version=product_version,
            localeVersion="INTL",
            localeBuild="000",
            osType="linux-x64",
            productLineId="vpx",
            apiType="VirtualCenter",
            apiVersion=self.world.api_version,
            instanceUuid=self.instance_uuid,
            licenseProductName="VMware VirtualCenter Server",
            licenseProductVersion=f"{product_version.split('.')[0]}.0",
        )


class SearchIndex(ManagedObject):
    """Finds objects by path, name, address or uuid; without a match, the result is empty."""

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
        datacenter_moid = self.world.get(datacenter).moid if datacenter is not None else ""
        for managed_object in self.world.by_type("VirtualMachine" if vms else "HostSystem"):
            if matches(managed_object) and (
                not datacenter_moid or any(parent.moid == datacenter_moid for parent in ancestors(managed_object))
            ):
                yield managed_object


def _text(managed_object: ManagedObject, path: str) -> str:
    try:
        value = managed_object.read(path)
    except vmodl.MethodFault:
        return ""
    return "" if value is UNSET or value is None else str(value)
