"""The managers of ServiceContent that only answer reads: what each says, and their making on demand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.managers import descriptions
from gpuops.sim.managers.alarms import ALARMS, alarm_info, all_alarms
from gpuops.sim.managers.diagnostics import DiagnosticManager
from gpuops.sim.managers.distributed_switches import DistributedVirtualSwitchManager
from gpuops.sim.managers.licences import LICENCES, LicenseAssignmentManager, LicenseManager
from gpuops.sim.managers.plain import Answer, plain_kind
from gpuops.sim.managers.user_directory import UserDirectory
from gpuops.sim.services.guest_managers import PARTS as GUEST_PARTS
from gpuops.sim.services.service_instance import managers_of

if TYPE_CHECKING:
    from gpuops.sim.world import World


def _nothing(_: Any) -> Any:
    return []


PROPERTIES: Final[Mapping[str, Mapping[str, Answer]]] = {
    "Alarm": {"info": alarm_info},
    "AlarmManager": {"description": lambda _: descriptions.alarms()},
    "ScheduledTaskManager": {"description": lambda _: descriptions.scheduled_tasks()},
}
METHODS: Final[Mapping[str, Mapping[str, Answer]]] = {
    "AlarmManager": {"GetAlarm": all_alarms, "GetAlarmState": _nothing, "AreAlarmActionsEnabled": lambda _: True},
    "ClusterProfileManager": {"FindAssociatedProfile": _nothing},
    "CryptoManagerKmip": {"ListKeys": _nothing, "ListKmipServers": _nothing, "ListKmsClusters": _nothing},
    "CustomizationSpecManager": {"DoesCustomizationSpecExist": lambda _: False},
    "ExtensionManager": {"FindExtension": lambda _: None},
    "HealthUpdateManager": {"QueryProviderList": _nothing},
    "IoFilterManager": {"QueryIoFilterInfo": _nothing},
    "IpPoolManager": {"QueryIpPools": _nothing},
    "ProfileComplianceManager": {"QueryComplianceStatus": _nothing},
    "ScheduledTaskManager": {"RetrieveEntityScheduledTask": _nothing, "RetrieveObjectScheduledTask": _nothing},
    "ServiceManager": {"QueryServiceList": _nothing},
    "TenantTenantManager": {"RetrieveServiceProviderEntities": _nothing},
    "VcenterVStorageObjectManager": {"ListVStorageObject": _nothing},
}
KINDS: Final[Mapping[str, type[ManagedObject]]] = {
    "DiagnosticManager": DiagnosticManager,
    "DistributedVirtualSwitchManager": DistributedVirtualSwitchManager,
    "LicenseManager": LicenseManager,
    "LicenseAssignmentManager": LicenseAssignmentManager,
    "UserDirectory": UserDirectory,
}
"""Managers whose answers depend on what they are asked."""


def offer(world: World) -> None:
    """Let every manager of ServiceContent that the world lacks, and those below them, be made when it is asked for."""
    types = (
        {moid: wsdl_name for wsdl_name, moid in managers_of(world.api_version).values()}
        | GUEST_PARTS
        | LICENCES
        | ALARMS
    )
    for moid, wsdl_name in types.items():
        if world.find(moid) is None:
            world.registry.make_on_demand(moid, partial(_make, world, wsdl_name))


def _make(world: World, wsdl_name: str, moid: str) -> ManagedObject:
    return _kind(wsdl_name)(world, moid)


@cache
def _kind(wsdl_name: str) -> type[ManagedObject]:
    known = KINDS.get(wsdl_name)
    if known is not None:
        return known
    return plain_kind(wsdl_name, ManagedObject, PROPERTIES.get(wsdl_name, {}), METHODS.get(wsdl_name, {}))
