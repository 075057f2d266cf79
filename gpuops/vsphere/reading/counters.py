"""Reads performance counters of VMs and hosts, and past tasks and events of VMs. It does not change vCenter.

Counters are read for the last hour of some VMs, or as samples of many VMs and hosts in bulk. A host stores a sample
every 20 s for an hour, at every statistics level (vSphere API reference, PerformanceManager: real-time samples).
vCenter stores five-minute averages of a day for the counters of its statistics level, and returns at most 64 counters
in one call (`config.vpxd.stats.maxQueryMetrics`, from memory). The keys of counters differ between vCenters, so names
are resolved once in a session. Bulk replies are CSV, parsed by lxml and numpy and not by pyVmomi.

Past tasks and events, and the instances of GPU counters, are evidence for the table of assumptions. The collectors that
return them belong to this session, and are destroyed after the read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import GpuopsError
from gpuops.model.measurements.measurement import CounterWindow, Samples
from gpuops.model.time_text import format_stamp
from gpuops.model.vcenter.inventory import PastEvent, PastTask, SettingChange
from gpuops.vsphere.faults import is_gone
from gpuops.vsphere.reading.bulk.pages import number
from gpuops.vsphere.reading.bulk.reader import Reader, reading
from gpuops.vsphere.transport.messages import child, children, escape_text, moment, text
from gpuops.vsphere.transport.wire import WireFault

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.vsphere.session import Session

SAMPLE_S: Final = 20
ENTITIES_PER_CALL: Final = 50
"""VMs or hosts in one QueryPerf: vCenter answers within seconds (from memory)."""
COUNTERS_PER_CALL: Final = 64
"""The limit for counters in vCenter's database, over all entities of a call."""
GAP: Final = timedelta(seconds=SAMPLE_S * 1.5)
"""If two samples are further apart, a sample between them is missing."""

TimedReadings = Sequence[tuple[datetime, int]]
"""The end of each sample and its value, oldest first, without missing samples."""


def with_counters(
    session: Session, inventory: Inventory, vms: Collection[str], names: Collection[str], over_s: int
) -> Inventory:
    """Return the snapshot with these counters (`cpu.usagemhz.average`) of these VMs over the last `over_s` seconds
    before the time of the snapshot.

    Counters without samples are left out, and all of them if vCenter has no PerformanceManager (vSphere API reference,
    ServiceContent: it may be unset). One call per 50 VMs, and one for the names. Raises NotConnected and its
    subclasses, or the error of vCenter's fault.
    """
    keys = counter_keys(session)
    names_by_key = {key: name for name, key in keys.items() if name in names}
    refs = [ref for ref in inventory.vms if ref in vms]
    windows_by_vm: dict[str, Mapping[str, CounterWindow]] = {ref: {} for ref in refs}
    if names_by_key:
        since = inventory.taken_at - timedelta(seconds=over_s)
        for start in range(0, len(refs), ENTITIES_PER_CALL):
            for ref, series in _read_series(session, refs[start : start + ENTITIES_PER_CALL], names_by_key, since):
                windows = {name: _window(samples, since, inventory.taken_at) for name, samples in series.items()}
                windows_by_vm[ref] = {name: window for name, window in windows.items() if window is not None}
    return inventory.completed(
        vms=[replace(inventory.vms[ref], counters=windows) for ref, windows in windows_by_vm.items()]
    )


def counter_keys(session: Session) -> dict[str, int]:
    """Return the keys of this vCenter's counters by name; {} if it has no PerformanceManager."""
    if session.content.perfManager is None:
        return {}
    if session.counter_keys is None:
        offered = session.read(lambda: session.content.perfManager.perfCounter)
        with session.decoding("a read of its counters"):
            session.counter_keys = {
                f"{counter.groupInfo.key}.{counter.nameInfo.key}.{counter.rollupType}": int(counter.key)
                for counter in offered
            }
    return session.counter_keys


def _read_series(
    session: Session, refs: Sequence[str], names_by_key: Mapping[int, str], since: datetime
) -> Iterator[tuple[str, Mapping[str, TimedReadings]]]:
    """Yield the samples of these VMs by counter name, without VMs that do not exist any more."""
    from pyVmomi import vim

    manager_type = vim.PerformanceManager
    metrics = [manager_type.MetricId(counterId=key, instance="") for key in names_by_key]
    begin = since - timedelta(seconds=SAMPLE_S)  # one sample more than needed; `_window` drops it
    specs = [
        manager_type.QuerySpec(
            entity=session.vm(ref),
            metricId=metrics,
            intervalId=SAMPLE_S,
            startTime=begin,
            format=manager_type.Format.csv,
        )
        for ref in refs
    ]
    try:
        reply = session.read(lambda: session.content.perfManager.QueryPerf(specs), subject="counters")
    except GpuopsError as error:
        if not is_gone(error):
            raise
        # one VM that does not exist any more fails the call for all of them: read each alone
        for ref in refs if len(refs) > 1 else ():
            yield from _read_series(session, [ref], names_by_key, since)
        return
    with session.decoding("QueryPerf"):
        series_by_vm = [_series(metric, names_by_key) for metric in reply or ()]
    yield from ((ref, series) for ref, series in series_by_vm if ref in refs)


def _series(metric: Any, names_by_key: Mapping[int, str]) -> tuple[str, Mapping[str, TimedReadings]]:
    """Return the id of the VM, and its samples by counter name; -1 is a missing value."""
    # an interval and an end for each sample: "20,2026-11-23T22:00:20Z,20,2026-11-23T22:00:40Z"
    ends = [datetime.fromisoformat(text).astimezone(UTC) for text in metric.sampleInfoCSV.split(",")[1::2]]
    series = {}
    for metric_series in metric.value:
        name = names_by_key.get(metric_series.id.counterId)
        if name is not None and not metric_series.id.instance:  # "" is the complete VM, not one of its processors
            readings = map(int, metric_series.value.split(","))
            series[name] = [(end, reading) for end, reading in zip(ends, readings, strict=True) if reading >= 0]
    return metric.entity._moId, series


def _window(samples: TimedReadings, since: datetime, taken_at: datetime) -> CounterWindow | None:
    """Return the highest reading after `since`, and the time since which no sample is missing; None without samples.

    Samples that end at :00, :20, then (one is missing) 1:00, 1:20 and 1:40 are complete since 0:40, when the sample
    that ends at 1:00 began.
    """
    within = [(end, reading) for end, reading in samples if end > since]
    if not within:
        return None
    complete_since = within[-1][0]
    for end, _ in reversed(within[:-1]):
        if complete_since - end > GAP:
            break
        complete_since = end
    highest = max(reading for _, reading in within)
    return CounterWindow(highest, complete_since - timedelta(seconds=SAMPLE_S), within[-1][0], taken_at)


def samples(
    session: Session,
    kind: str,
    refs: Sequence[str],
    names: Sequence[str],
    interval_s: int,
    span: tuple[datetime, datetime],
    pace: Callable[[], None],
) -> Iterator[Sequence[Samples]]:
    """Yield the samples of these counters of VMs or hosts (`kind`) that end within the span: one list for each call.

    `pace` is called before each call. Entities that vCenter refuses and counters that it does not have are left out.
    Raises NotConnected and its subclasses, and ProtocolError for an unreadable reply.
    """
    keys = counter_keys(session)
    names_by_key = {keys[name]: name for name in names if name in keys}
    if not names_by_key:
        return
    metrics = "".join(
        f"<metricId><counterId>{key}</counterId><instance>{instance}</instance></metricId>"
        for key, name in names_by_key.items()
        # "" is the complete host; GPU counters also have an instance for each GPU
        for instance in (("", "*") if kind == "HostSystem" and name.startswith("gpu.") else ("",))
    )
    begin, end = (format_stamp(limit) for limit in span)
    arguments = (
        f"<startTime>{begin}</startTime><endTime>{end}</endTime>{metrics}"
        f"<intervalId>{interval_s}</intervalId><format>csv</format>"
    )
    refs_per_call = ENTITIES_PER_CALL
    if interval_s != SAMPLE_S:  # longer intervals are read from vCenter's database
        refs_per_call = max(1, min(refs_per_call, COUNTERS_PER_CALL // len(names_by_key)))
    with reading(session) as reader:
        query = _SamplesQuery(session, reader, kind, names_by_key, arguments, pace)
        for start in range(0, len(refs), refs_per_call):
            yield query.read(refs[start : start + refs_per_call])


@dataclass(frozen=True, slots=True)
class _SamplesQuery:
    """A QueryPerf for these counters. `arguments` is the XML that follows the entity in each querySpec."""

    session: Session
    reader: Reader
    kind: str
    names_by_key: Mapping[int, str]
    arguments: str
    pace: Callable[[], None]

    def read(self, refs: Sequence[str]) -> list[Samples]:
        """Return the samples of these entities, without those that vCenter refuses.

        vCenter refuses the complete call because of one entity: then each half is read separately, and so on.
        """
        specs = "".join(
            f'<querySpec><entity type="{self.kind}">{escape_text(ref)}</entity>{self.arguments}</querySpec>'
            for ref in refs
        )
        self.pace()
        try:
            reply = self.reader.call("QueryPerf", self.session.service["perfManager"], specs)
        except GpuopsError as error:
            if not isinstance(error.__cause__, WireFault):  # no fault: a lost connection, or an unreadable reply
                raise
            if len(refs) == 1:
                return []
            half = len(refs) // 2
            return self.read(refs[:half]) + self.read(refs[half:])
        with self.session.decoding("QueryPerf"):
            ends: dict[str, NDArray[np.int64]] = {}
            decoded = [self._decode_metric(metric, ends) for metric in children(reply, "returnval")]
        return [entity_samples for entity_samples in decoded if entity_samples.entity in frozenset(refs)]

    def _decode_metric(self, metric: Any, ends: dict[str, NDArray[np.int64]]) -> Samples:
        """Return the samples of one entity. Raises ValueError if they do not fit the times.

        `ends` has the parsed times by their text: most entities of a reply have the same.
        """
        import numpy as np

        sample_info = text(metric, "sampleInfoCSV") or ""
        if sample_info not in ends:
            ends[sample_info] = _parse_ends(sample_info)
        series: dict[str, NDArray[np.int64]] = {}
        for counter_series in children(metric, "value"):
            counter_id = child(counter_series, "id")
            name, instance = self.names_by_key.get(number(counter_id, "counterId") or 0), text(counter_id, "instance")
            if name is None:
                continue
            written = (text(counter_series, "value") or "").split(",")
            readings = np.array([int(reading) for reading in written], dtype=np.int64)
            if len(readings) != len(ends[sample_info]):
                raise ValueError(f"{len(readings)} values for {len(ends[sample_info])} samples")
            series[f"{name}@{instance}" if instance else name] = readings
        return Samples(text(metric, "entity") or "", ends[sample_info], series)


def _parse_ends(sample_info: str) -> NDArray[np.int64]:
    """Return the ends of the samples in seconds, from an interval and an end of each: `20,<time>,20,<time>`."""
    import numpy as np

    ends = [moment(end) for end in sample_info.split(",")[1::2]]
    if None in ends:
        raise ValueError("a sample without a time")
    return np.array([int(end.timestamp()) for end in ends if end is not None], dtype=np.int64)


MOST_PAGES: Final = 20
"""The limit of pages of tasks, and of events."""
_PAGE: Final = 1000
"""Tasks or events in a page."""
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
        past = [_event(event) for event in events]
    return tuple(event for event in past if event is not None)


def setting_changes(session: Session, since: datetime) -> tuple[SettingChange, ...]:
    """Return the changes of GPU devices and custom attributes of VMs, and of clusters, since then (by vCenter).

    Changes by vCenter itself, which have no user, are left out. vCenter has no events about the settings of GPUs.
    """
    events = _raw_events(session, since, (*CHANGES, "ClusterReconfiguredEvent"))
    with session.decoding("ReadNextEvents"):
        changes = [_setting_change(event) for event in events]
    return tuple(change for change in changes if change is not None and change.user)


def _setting_change(event: Any) -> SettingChange | None:
    """Return the change of devices, marks or a cluster; None for any other event. `user` is '' for vCenter itself."""
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

    # the event about a custom attribute names its object in `entity`
    entity, source_host = getattr(event, "entity", None), getattr(event, "sourceHost", None)
    vm = event.vm.vm if event.vm else entity.entity if entity else None
    if not isinstance(vm, vim.VirtualMachine):
        return None
    return PastEvent(
        str(vm._moId),
        VmomiSupport.GetWsdlName(type(event)),
        event.createdTime,
        str(event.host.host._moId) if event.host else None,
        str(source_host.host._moId) if source_host else None,
    )


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
