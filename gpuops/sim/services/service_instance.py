"""The ServiceInstance object, which every client reads first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, prop
from gpuops.sim.core.registry import vmomi_type

if TYPE_CHECKING:
    from gpuops.sim.world import World

MOID: Final = "ServiceInstance"
ROOT_FOLDER_MOID: Final = "group-d1"
"""The moid of the root folder, as in every vCenter."""

MANAGERS: Final[Mapping[str, tuple[str, str]]] = {
    "viewManager": ("ViewManager", "ViewManager"),
    "setting": ("OptionManager", "VpxSettings"),
    "userDirectory": ("UserDirectory", "UserDirectory"),
    "sessionManager": ("SessionManager", "SessionManager"),
    "authorizationManager": ("AuthorizationManager", "AuthorizationManager"),
    "serviceManager": ("ServiceManager", "ServiceMgr"),
    "perfManager": ("PerformanceManager", "PerfMgr"),
    "scheduledTaskManager": ("ScheduledTaskManager", "ScheduledTaskManager"),
    "alarmManager": ("AlarmManager", "AlarmManager"),
    "eventManager": ("EventManager", "EventManager"),
    "taskManager": ("TaskManager", "TaskManager"),
    "extensionManager": ("ExtensionManager", "ExtensionManager"),
    "customizationSpecManager": ("CustomizationSpecManager", "CustomizationSpecManager"),
    "guestCustomizationManager": ("VirtualMachineGuestCustomizationManager", "GuestCustomizationManager"),
    "customFieldsManager": ("CustomFieldsManager", "CustomFieldsManager"),
    "diagnosticManager": ("DiagnosticManager", "DiagMgr"),
    "licenseManager": ("LicenseManager", "LicenseManager"),
    "searchIndex": ("SearchIndex", "SearchIndex"),
    "fileManager": ("FileManager", "FileManager"),
    "datastoreNamespaceManager": ("DatastoreNamespaceManager", "DatastoreNamespaceManager"),
    "virtualDiskManager": ("VirtualDiskManager", "virtualDiskManager"),
    "snmpSystem": ("HostSnmpSystem", "SnmpSystem"),
    "vmProvisioningChecker": ("VirtualMachineProvisioningChecker", "ProvChecker"),
    "vmCompatibilityChecker": ("VirtualMachineCompatibilityChecker", "CompatChecker"),
    "ovfManager": ("OvfManager", "OvfManager"),
    "ipPoolManager": ("IpPoolManager", "IpPoolManager"),
    "dvSwitchManager": ("DistributedVirtualSwitchManager", "DVSManager"),
    "hostProfileManager": ("HostProfileManager", "HostProfileManager"),
    "clusterProfileManager": ("ClusterProfileManager", "ClusterProfileManager"),
    "complianceManager": ("ProfileComplianceManager", "MoComplianceManager"),
    "localizationManager": ("LocalizationManager", "LocalizationManager"),
    "storageResourceManager": ("StorageResourceManager", "StorageResourceManager"),
    "guestOperationsManager": ("GuestOperationsManager", "guestOperationsManager"),
    "overheadMemoryManager": ("OverheadMemoryManager", "OverheadMemoryManager"),
    "certificateManager": ("CertificateManager", "certificateManager"),
    "ioFilterManager": ("IoFilterManager", "IoFilterManager"),
    "vStorageObjectManager": ("VcenterVStorageObjectManager", "VStorageObjectManager"),
    "hostSpecManager": ("HostSpecificationManager", "HostSpecificationManager"),
    "cryptoManager": ("CryptoManagerKmip", "CryptoManager"),
    "healthUpdateManager": ("HealthUpdateManager", "HealthUpdateManager"),
    "failoverClusterConfigurator": ("FailoverClusterConfigurator", "FailoverClusterConfigurator"),
    "failoverClusterManager": ("FailoverClusterManager", "FailoverClusterManager"),
    "tenantManager": ("TenantTenantManager", "TenantManager-0"),
    "siteInfoManager": ("SiteInfoManager", "SiteInfoManager"),
    "storageQueryManager": ("StorageQueryManager", "StorageQueryManager"),
    "directPathProfileManager": ("DirectPathProfileManager", "DirectPathProfileMgr"),
}
"""ServiceContent field -> type and moid, as a vCenter 9.0.1 answered.

The number in the tenant manager's moid is that of the vCenter's build.
"""


def managers_of(api_version: str) -> Mapping[str, tuple[str, str]]:
    """Those that a vCenter of this API version has, by the "since" of their types."""
    own = VmomiSupport.versionMap[f"vim25/{api_version}"]
    return {
        name: manager
        for name, manager in MANAGERS.items()
        if VmomiSupport.IsChildVersion(own, vmomi_type(manager[0])._version)
    }


class ServiceInstance(ManagedObject):
    """The service and what it offers."""

    wsdl_name = "ServiceInstance"
    volatile = True
    world: World

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
        major = ".".join(self.world.api_version.split(".")[:3])
        return vim.AboutInfo(
            name="VMware vCenter Server",
            fullName=f"VMware vCenter Server {major} build-0 (simulated by gpuops)",
            vendor="VMware, Inc.",
            version=major,
            build="0",
            localeVersion="INTL",
            localeBuild="000",
            osType="linux-x64",
            productLineId="vpx",
            apiType="VirtualCenter",
            apiVersion=self.world.api_version,
            instanceUuid=self.instance_uuid,
            licenseProductName="VMware VirtualCenter Server",
            licenseProductVersion=f"{major.split('.')[0]}.0",
        )

    property_table: ClassVar[Properties] = {
        "capability": lambda self: vim.Capability(
            provisioningSupported=True, multiHostSupported=True, userShellAccessSupported=False
        ),
        "serverClock": lambda self: self.world.clock.now() + self.world.skew,
    }

    method_table: ClassVar[Methods] = {
        "RetrieveServiceContent": lambda self, call: self._content(),
        "CurrentTime": lambda self, call: self.world.clock.now() + self.world.skew,
    }
