"""The managers of ServiceContent that only answer reads: classes of the API's type tables with tables of answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties
from gpuops.sim.core.registry import vmomi_type
from gpuops.sim.inventory import faults
from gpuops.sim.render import distributed
from gpuops.sim.render.defaults import default, default_value, described
from gpuops.sim.services.guest_managers import PARTS as GUEST_PARTS
from gpuops.sim.services.service_instance import ROOT_FOLDER_MOID, managers_of

if TYPE_CHECKING:
    from gpuops.sim.world import World


ALARM: Final = "alarm-1"
"""A vCenter comes with many alarms; this is the first. Clients read the list, and then each that is on it."""
ASSIGNMENTS: Final = "LicenseAssignmentManager"
SUBMANAGERS: Final = {**GUEST_PARTS, ASSIGNMENTS: "LicenseAssignmentManager", ALARM: "Alarm"}
"""Moid and type of the objects that managers refer to."""
EVALUATION_H: Final = 60 * 24
"""The evaluation period: 60 days (VMware, vCenter Server and Host Management, Licensing)."""
VCENTER_LOGS: Final = {"vpxd:vpxd.log": "/var/log/vmware/vpxd/vpxd.log"}
HOST_LOGS: Final = {key: f"/var/log/{key}.log" for key in ("hostd", "vpxa", "vmkernel", "vobd")}
ACTIONS: Final = ("MethodAction", "SendEmailAction", "RunScriptAction", "SendSNMPAction", "CreateTaskAction")
EXPRESSIONS: Final = ("EventAlarmExpression", "MetricAlarmExpression", "StateAlarmExpression")
SCHEDULERS: Final = (
    "AfterStartupTaskScheduler", "OnceTaskScheduler", "HourlyTaskScheduler", "DailyTaskScheduler",
    "WeeklyTaskScheduler", "MonthlyByDayTaskScheduler", "MonthlyByWeekdayTaskScheduler",
)  # fmt: skip


# --- alarms and scheduled tasks: what they can be made of -----------------------------------------------------------


def _alarm_description(_: Any) -> Any:
    """Return the AlarmDescription: the values of each enumeration that an alarm can use."""
    enums = {
        "stateOperator": "StateAlarmOperator",
        "metricOperator": "MetricAlarmOperator",
        "hostSystemConnectionState": "HostSystemConnectionState",
        "virtualMachinePowerState": "VirtualMachinePowerState",
        "hostSystemPowerState": "HostSystemPowerState",
        "virtualMachineGuestHeartbeatStatus": "ManagedEntityStatus",
        "entityStatus": "ManagedEntityStatus",
    }
    return vim.alarm.AlarmDescription(
        expr=_types(EXPRESSIONS),
        action=_types(ACTIONS),
        datastoreConnectionState=[described("true"), described("false")],
        **{field: _values(enum) for field, enum in enums.items()},
    )


def _scheduler_description(_: Any) -> Any:
    detail = vim.scheduler.ScheduledTaskDescription.SchedulerDetail
    return vim.scheduler.ScheduledTaskDescription(
        action=_types(ACTIONS),
        schedulerInfo=[detail(label=name, summary=name, key=_type(name), frequency="") for name in SCHEDULERS],
        state=_values("TaskInfoState"),
        dayOfWeek=_values("DayOfWeek"),
        weekOfMonth=_values("WeekOfMonth"),
    )


def _type(name: str) -> Any:
    return VmomiSupport.GetWsdlType("urn:vim25", name)


def _values(enum: str) -> list[Any]:
    return [described(key) for key in _type(enum).values]


def _types(names: Iterable[str]) -> list[Any]:
    return [vim.TypeDescription(label=name, summary=name, key=_type(name)) for name in names]


def _alarm_info(alarm: ManagedObject) -> Any:
    """The AlarmInfo of "Host connection and power state" (vSphere Monitoring and Performance, Preconfigured Alarms).

    It is never triggered.
    """
    host_lost = default("StateAlarmExpression", type=vim.HostSystem)
    expression = vim.alarm.OrAlarmExpression(expression=[host_lost])
    entity = vim.Folder(ROOT_FOLDER_MOID)
    return default("AlarmInfo", key=alarm.moid, alarm=alarm.ref, entity=entity, expression=expression)


# --- licences: the evaluation period, which covers all that vCenter has ---------------------------------------------


def _evaluation() -> Any:
    """The key that vCenter lists for its evaluation mode."""
    return default("LicenseManagerLicenseInfo", licenseKey="-".join(("00000",) * 5))


def _license_assignments(manager: Any, entity_id: str | None) -> list[Any]:
    names = {manager.world.get("ServiceInstance").instance_uuid: "vcenter.test"}
    names |= {host.moid: host.name for host in manager.world.by_type("HostSystem")}
    return [
        vim.LicenseAssignmentManager.LicenseAssignment(
            entityId=entity, entityDisplayName=name, assignedLicense=_evaluation()
        )
        for entity, name in names.items()
        if not entity_id or entity == entity_id
    ]


LICENCES: Final[Properties] = {
    "source": lambda _: vim.LicenseManager.EvaluationLicense(remainingHours=EVALUATION_H),
    "sourceAvailable": lambda _: True,
    "licensedEdition": lambda _: "eval",
    "licenses": lambda _: [_evaluation()],
    "evaluation": lambda _: vim.LicenseManager.EvaluationInfo(
        properties=[vmodl.KeyAnyValue(key="expirationHours", value=EVALUATION_H)]
    ),
}
"""The properties of LicenseManager, of a vCenter and of a host."""


# --- logs, users, distributed switches ------------------------------------------------------------------------------


def _logs(manager: Any, host: Any) -> list[Any]:
    """Return the log descriptors of a host, or of vCenter if `host` is None; the logs' content is not simulated."""
    if host is not None:
        manager.world.get(host)  # raises ManagedObjectNotFound for an unknown host
    return [
        default(
            "DiagnosticManagerLogDescriptor",
            key=key,
            fileName=file,
            creator=key.partition(":")[0],
            info=vim.Description(label=f"{key} log", summary=f"{key} log"),
        )
        for key, file in (VCENTER_LOGS if host is None else HOST_LOGS).items()
    ]


def _users(manager: Any, text: str, *, exact: bool) -> list[Any]:
    """Return the users whose name is `text` (`exact`) or contains it in any case (vSphere API, RetrieveUserGroups)."""
    return [
        vim.UserSearchResult(principal=name, group=False)
        for name in manager.world.sessions.passwords
        if (text in (name, name.partition("@")[0]) if exact else text.lower() in name.lower())
    ]


def _switch(manager: Any, uuid: str) -> Any:
    for switch in manager.world.by_type("DistributedVirtualSwitch"):
        if switch.uuid == uuid:
            return switch
    raise faults.not_found(f"No distributed switch has the uuid {uuid}.")


def _portgroup(manager: Any, uuid: str, key: str) -> Any:
    switch = _switch(manager, uuid)
    for portgroup in switch.portgroups():
        if portgroup.moid == key:
            return portgroup
    raise faults.not_found(f"The switch {switch.name} has no port group {key}.")


# --- the tables -------------------------------------------------------------------------------------------------------


def _empty_list(*_: Any, **__: Any) -> Any:
    return []


PROPERTIES: Final[Mapping[str, Properties]] = {
    "Alarm": {"info": _alarm_info},
    "AlarmManager": {"description": _alarm_description},
    "LicenseManager": {**LICENCES, "licenseAssignmentManager": lambda manager: manager.world.get(ASSIGNMENTS)},
    "ScheduledTaskManager": {"description": _scheduler_description},
    "UserDirectory": {"domainList": lambda _: ["VSPHERE.LOCAL"]},
}
METHODS: Final[Mapping[str, Methods]] = {
    "AlarmManager": {
        "GetAlarm": lambda *_, **__: [vim.alarm.Alarm(ALARM)],
        "GetAlarmState": _empty_list,
        "AreAlarmActionsEnabled": lambda *_, **__: True,
    },
    "ClusterProfileManager": {"FindAssociatedProfile": _empty_list},
    "CryptoManagerKmip": {"ListKeys": _empty_list, "ListKmipServers": _empty_list},
    "CustomizationSpecManager": {"DoesCustomizationSpecExist": lambda *_, **__: False},
    "DiagnosticManager": {"QueryDescriptions": lambda manager, call, host=None: _logs(manager, host)},
    "DistributedVirtualSwitchManager": {
        "QueryAvailableDvsSpec": lambda manager, call, **_: distributed.products(manager.world.api_version),
        "QueryDvsByUuid": lambda manager, call, uuid: _switch(manager, uuid),
        "DVSManagerLookupDvPortGroup": lambda manager, call, switchUuid, portgroupKey: _portgroup(
            manager, switchUuid, portgroupKey
        ),
    },
    "ExtensionManager": {"FindExtension": lambda *_, **__: None},
    "LicenseAssignmentManager": {
        "QueryAssignedLicenses": lambda manager, call, entityId=None: _license_assignments(manager, entityId)
    },
    "ScheduledTaskManager": {"RetrieveEntityScheduledTask": _empty_list},
    "UserDirectory": {
        "RetrieveUserGroups": lambda manager, call, searchStr, exactMatch, findUsers, belongsToGroup=None, **_: (
            _users(manager, searchStr, exact=exactMatch) if findUsers and not belongsToGroup else []
        )
    },
    "VcenterVStorageObjectManager": {"ListVStorageObject": _empty_list},
}


def offer(world: World) -> None:
    """Register the managers of ServiceContent that the world lacks to be made when a client first asks for them."""
    types = {moid: wsdl_name for wsdl_name, moid in managers_of(world.api_version).values()} | SUBMANAGERS
    for moid, wsdl_name in types.items():
        if world.find(moid) is None:
            world.registry.make_on_demand(moid, partial(_make, world, wsdl_name))


def _make(world: World, wsdl_name: str, moid: str) -> ManagedObject:
    return _manager_class(wsdl_name)(world, moid)


@cache
def _manager_class(wsdl_name: str) -> type[Any]:
    return read_only_manager_class(wsdl_name, ManagedObject, PROPERTIES.get(wsdl_name, {}), METHODS.get(wsdl_name, {}))


def read_only_manager_class(
    wsdl_name: str, base: type[ManagedObject], properties: Properties, methods: Methods
) -> type[Any]:
    """Return the class of a manager with these properties and methods; other required properties have default values.

    All other methods raise NotSupported, as every method that is not simulated does.
    """
    required = {
        info.name: partial(_default_value, info.type)
        for info in vmomi_type(wsdl_name)._GetPropertyList()
        if not info.flags & VmomiSupport.F_OPTIONAL
    }
    members = {"property_table": {**required, **properties}, "method_table": methods}
    return type(
        wsdl_name, (base,), {"wsdl_name": wsdl_name, "__doc__": f"{wsdl_name}, which only answers reads.", **members}
    )


def _default_value(kind: Any, manager: ManagedObject) -> Any:
    return default_value(kind)
