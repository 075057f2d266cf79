"""The ServiceInstance object, which every client reads first."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.managed_object import ManagedObject, method, prop
from gpuops.sim.services.option_manager import VCENTER_MOID

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World

MOID: Final = "ServiceInstance"
ROOT_FOLDER_MOID: Final = "group-d1"
"""The moid of the root folder, as in every vCenter."""

# ServiceContent field -> the type whose first object it names; a field whose object this world lacks stays unset.
_CONTENT: Final = {
    "viewManager": "ViewManager",
    "userDirectory": "UserDirectory",
    "sessionManager": "SessionManager",
    "authorizationManager": "AuthorizationManager",
    "perfManager": "PerformanceManager",
    "scheduledTaskManager": "ScheduledTaskManager",
    "alarmManager": "AlarmManager",
    "eventManager": "EventManager",
    "taskManager": "TaskManager",
    "extensionManager": "ExtensionManager",
    "customizationSpecManager": "CustomizationSpecManager",
    "guestCustomizationManager": "VirtualMachineGuestCustomizationManager",
    "customFieldsManager": "CustomFieldsManager",
    "diagnosticManager": "DiagnosticManager",
    "licenseManager": "LicenseManager",
    "searchIndex": "SearchIndex",
    "fileManager": "FileManager",
    "datastoreNamespaceManager": "DatastoreNamespaceManager",
    "virtualDiskManager": "VirtualDiskManager",
    "vmProvisioningChecker": "VirtualMachineProvisioningChecker",
    "vmCompatibilityChecker": "VirtualMachineCompatibilityChecker",
    "ovfManager": "OvfManager",
    "dvSwitchManager": "DistributedVirtualSwitchManager",
    "localizationManager": "LocalizationManager",
    "hostProfileManager": "HostProfileManager",
    "storageResourceManager": "StorageResourceManager",
    "guestOperationsManager": "GuestOperationsManager",
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
        settings = self.world.find(VCENTER_MOID)
        found = {field: next(self.world.by_type(wsdl_name), None) for field, wsdl_name in _CONTENT.items()}
        for field, obj in (("setting", settings), *found.items()):
            if obj is not None:
                setattr(content, field, obj.ref)
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

    @prop("capability")
    def _capability(self) -> Any:
        return vim.Capability(provisioningSupported=True, multiHostSupported=True, userShellAccessSupported=False)

    @prop("serverClock")
    def _server_clock(self) -> datetime:
        return self.world.clock.now() + self.world.skew

    @method
    def RetrieveServiceContent(self, call: Call) -> Any:
        return self._content()

    @method
    def CurrentTime(self, call: Call) -> datetime:
        return self.world.clock.now() + self.world.skew
