"""What AlarmManager and ScheduledTaskManager say that alarms and scheduled tasks can be made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyVmomi import VmomiSupport, vim

ACTIONS: Final = ("MethodAction", "SendEmailAction", "RunScriptAction", "SendSNMPAction", "CreateTaskAction")
EXPRESSIONS: Final = ("EventAlarmExpression", "MetricAlarmExpression", "StateAlarmExpression")
SCHEDULERS: Final = (
    "AfterStartupTaskScheduler", "OnceTaskScheduler", "HourlyTaskScheduler", "DailyTaskScheduler",
    "WeeklyTaskScheduler", "MonthlyByDayTaskScheduler", "MonthlyByWeekdayTaskScheduler",
)  # fmt: skip


def alarms() -> Any:
    """AlarmDescription."""
    return vim.alarm.AlarmDescription(
        expr=_types(EXPRESSIONS),
        stateOperator=_values("StateAlarmOperator"),
        metricOperator=_values("MetricAlarmOperator"),
        hostSystemConnectionState=_values("HostSystemConnectionState"),
        virtualMachinePowerState=_values("VirtualMachinePowerState"),
        datastoreConnectionState=_elements(("true", "false")),
        hostSystemPowerState=_values("HostSystemPowerState"),
        virtualMachineGuestHeartbeatStatus=_values("ManagedEntityStatus"),
        entityStatus=_values("ManagedEntityStatus"),
        action=_types(ACTIONS),
    )


def scheduled_tasks() -> Any:
    """ScheduledTaskDescription."""
    return vim.scheduler.ScheduledTaskDescription(
        action=_types(ACTIONS),
        schedulerInfo=[
            vim.scheduler.ScheduledTaskDescription.SchedulerDetail(
                label=name, summary=name, key=VmomiSupport.GetWsdlType("urn:vim25", name), frequency=""
            )
            for name in SCHEDULERS
        ],
        state=_values("TaskInfoState"),
        dayOfWeek=_values("DayOfWeek"),
        weekOfMonth=_values("WeekOfMonth"),
    )


def _values(enum: str) -> list[Any]:
    return _elements(VmomiSupport.GetWsdlType("urn:vim25", enum).values)


def _elements(keys: Iterable[str]) -> list[Any]:
    return [vim.ElementDescription(label=key, summary=key, key=key) for key in keys]


def _types(names: Iterable[str]) -> list[Any]:
    return [
        vim.TypeDescription(label=name, summary=name, key=VmomiSupport.GetWsdlType("urn:vim25", name)) for name in names
    ]
