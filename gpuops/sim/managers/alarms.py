"""The alarm definitions of the simulated vCenter; none of them is ever triggered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.render.required_fields import EPOCH, filled
from gpuops.sim.services.service_instance import ROOT_FOLDER_MOID

if TYPE_CHECKING:
    from gpuops.sim.core.managed_object import ManagedObject

ALARMS: Final = {"alarm-1": "Alarm"}
"""Moid and type. A vCenter comes with many; this is the first. Clients read the list, and then each that is on it."""


def all_alarms(_manager: ManagedObject) -> list[Any]:
    """The references of every alarm."""
    return [vim.alarm.Alarm(moid) for moid in ALARMS]


def alarm_info(alarm: ManagedObject) -> Any:
    """The AlarmInfo of "Host connection and power state" (vSphere Monitoring and Performance, Preconfigured Alarms)."""
    lost = vim.alarm.StateAlarmExpression(
        operator="isEqual", type=vim.HostSystem, statePath="runtime.connectionState", red="notResponding"
    )
    return filled(
        vim.alarm.AlarmInfo,
        key=alarm.moid,
        alarm=alarm.ref,
        entity=vim.Folder(ROOT_FOLDER_MOID),
        name="Host connection and power state",
        systemName="alarm.HostConnectionStateAlarm",
        description="Default alarm to monitor host connection and power state",
        enabled=True,
        expression=vim.alarm.OrAlarmExpression(expression=[lost]),
        lastModifiedTime=EPOCH,
        lastModifiedUser="",
    )
