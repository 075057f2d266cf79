"""Reads past tasks and events of VMs and the GPU counters of hosts, to check the table of assumptions.

vCenter is not changed: the collectors belong to this session, and are destroyed after the read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpuops.model.vcenter.inventory import PastEvent, PastTask, SettingChange
from gpuops.vsphere.reading.counters import SAMPLE_S, counter_keys

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

MOST_PAGES: Final = 20
"""The limit of pages of tasks, and of events."""
_PAGE: Final = 1000
TASKS: Final = frozenset(
    f"VirtualMachine.{name}" for name in ("powerOn", "powerOff", "suspend", "clone", "relocate", "migrate")
)
"""TaskInfo.descriptionId of the tasks that are of interest."""
EVENTS: Final = (
    "VmPoweredOnEvent", "VmPoweredOffEvent", "VmSuspendedEvent",
    "VmMigratedEvent", "DrsVmMigratedEvent", "VmRelocatedEvent",
)  # fmt: skip
"""After these other VMs may be on the GPUs of a host."""
CHANGES: Final = ("VmReconfiguredEvent", "CustomFieldValueChangedEvent")
"""After these a VM may have other advanced options or custom attributes than a clone of it, or than its source."""


def past_tasks(session: Session, since: datetime) -> tuple[PastTask, ...]:
    """Return the tasks of VMs that were queued at `since` (vCenter's time) or later and have ended, oldest first."""
    from pyVmomi import vim

    spec = vim.TaskFilterSpec(time=vim.TaskFilterSpec.ByTime(timeType="queuedTime", beginTime=since))
    task_infos = _pages(session, lambda: session.content.taskManager.CreateCollectorForTasks(spec), "ReadNextTasks")
    with session.decoding("ReadNextTasks"):
        ended = [
            task_info
            for task_info in task_infos
            if task_info.descriptionId in TASKS and task_info.state in ("success", "error")
        ]
        return tuple(_task(task_info) for task_info in ended if task_info.entity is not None)


def _task(task_info: Any) -> PastTask:
    from pyVmomi import VmomiSupport, vim

    began, ended, error = task_info.startTime, task_info.completeTime, task_info.error
    text = "" if error is None else f"{error.msg} {[message.message for message in error.faultMessage or ()]}"
    return PastTask(
        ref=str(task_info.entity._moId),
        kind=str(task_info.descriptionId),
        queued=task_info.queueTime,
        ran_s=(ended - began).total_seconds() if began and ended else None,
        fault="" if error is None else VmomiSupport.GetWsdlName(type(error)),
        names_vgpu=any(word in text.lower() for word in ("vgpu", "libnvidia", "graphics")),
        created_vm=str(task_info.result._moId) if isinstance(task_info.result, vim.VirtualMachine) else None,
        by_user=isinstance(task_info.reason, vim.TaskReasonUser),
    )


def past_events(session: Session, since: datetime, kinds: Collection[str] = EVENTS) -> tuple[PastEvent, ...]:
    """Return the events of these kinds about VMs since then (by vCenter), in their order."""
    events = _raw_events(session, since, kinds)
    with session.decoding("ReadNextEvents"):
        read = [_event(event) for event in events]
    return tuple(event for event in read if event is not None)


def setting_changes(session: Session, since: datetime) -> tuple[SettingChange, ...]:
    """Return who changed GPU devices and custom attributes of VMs, and clusters, since then (by vCenter), in order.

    vCenter has no events about the settings of GPUs.
    """
    events = _raw_events(session, since, (*CHANGES, "ClusterReconfiguredEvent"))
    with session.decoding("ReadNextEvents"):
        read = [_setting_change(event) for event in events]
    return tuple(change for change in read if change is not None and change.user)


def _setting_change(event: Any) -> SettingChange | None:
    """Return the change; None for one of anything else. Changes by vCenter itself have no user."""
    from pyVmomi import vim

    user = str(event.userName or "")
    match event:
        case vim.event.VmReconfiguredEvent():
            devices = [change.device for change in event.configSpec.deviceChange or ()]
            if event.vm and any(isinstance(device, vim.vm.device.VirtualPCIPassthrough) for device in devices):
                return SettingChange(str(event.vm.vm._moId), "devices", user)
        case vim.event.CustomFieldValueChangedEvent():
            return SettingChange(str(event.entity.entity._moId), "marks", user, str(event.name))
        case vim.event.ClusterReconfiguredEvent() if event.computeResource:
            return SettingChange(str(event.computeResource.computeResource._moId), "cluster", user)
    return None


def _raw_events(session: Session, since: datetime, kinds: Collection[str]) -> list[Any]:
    """Return vCenter's events of these kinds since then, in their order."""
    from pyVmomi import vim

    spec = vim.event.EventFilterSpec(
        time=vim.event.EventFilterSpec.ByTime(beginTime=since), eventTypeId=[f"vim.event.{kind}" for kind in kinds]
    )
    events = _pages(session, lambda: session.content.eventManager.CreateCollectorForEvents(spec), "ReadNextEvents")
    with session.decoding("ReadNextEvents"):
        return sorted(events, key=lambda event: int(event.key))


def _event(event: Any) -> PastEvent | None:
    """Return the event, or None if it is not about a VM."""
    from pyVmomi import VmomiSupport, vim

    # the event about a custom attribute names its object in a field of its own
    vm = event.vm.vm if event.vm else event.entity.entity if getattr(event, "entity", None) else None
    if not isinstance(vm, vim.VirtualMachine):
        return None
    host, source = (
        str(argument.host._moId) if argument else None for argument in (event.host, getattr(event, "sourceHost", None))
    )
    return PastEvent(str(vm._moId), VmomiSupport.GetWsdlName(type(event)), event.createdTime, host, source)


def gpu_counter_instances(session: Session, hosts: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the instances of GPU counters by host (ref), without hosts that have none."""
    gpu_keys = {key for name, key in counter_keys(session).items() if name.startswith("gpu.")}
    instances_by_host: dict[str, tuple[str, ...]] = {}
    for ref in hosts if gpu_keys else ():
        query = partial(session.content.perfManager.QueryAvailablePerfMetric, session.host(ref), intervalId=SAMPLE_S)
        metrics = session.read(query, subject=ref) or ()
        with session.decoding("QueryAvailablePerfMetric"):
            instances = {str(metric.instance) for metric in metrics if metric.counterId in gpu_keys and metric.instance}
        if instances:
            instances_by_host[ref] = tuple(sorted(instances))
    return instances_by_host


def reserved_mib(session: Session, clusters: Collection[str]) -> dict[str, int]:
    """Return the memory in MiB that VMs reserve, by cluster (ref), as its root resource pool counts it."""
    reserved_by_cluster: dict[str, int] = {}
    for ref in clusters:
        cluster = session.managed_object("ClusterComputeResource", ref)
        runtime = session.read(lambda cluster=cluster: cluster.resourcePool.runtime, subject=ref)
        with session.decoding("a read of its resource pool"):
            reserved_by_cluster[ref] = int(runtime.memory.reservationUsedForVm) >> 20
    return reserved_by_cluster


def _pages(session: Session, create: Callable[[], Any], read_next: str) -> list[Any]:
    """Create a collector, return its objects (at most `MOST_PAGES` pages), and destroy it."""

    def collect() -> list[Any]:
        collector, records = create(), []
        try:
            for _ in range(MOST_PAGES):
                page = list(getattr(collector, read_next)(_PAGE) or ())
                records += page
                if len(page) < _PAGE:
                    break
            return records
        finally:
            collector.DestroyCollector()

    collected: list[Any] = session.read(collect)
    return collected
