"""Reads performance counters of VMs: the samples of the last hour, one every 20 s, which each host stores.

The keys of counters differ between vCenters, so names are resolved once in a session. Hosts store these samples at
every statistics level (vSphere API reference, PerformanceManager: real-time samples).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import GpuopsError
from gpuops.model.measurements.measurement import CounterWindow
from gpuops.vsphere.faults import is_gone

if TYPE_CHECKING:
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.vsphere.session import Session

SAMPLE_S: Final = 20
VMS_PER_CALL: Final = 50
"""In one QueryPerf (from memory, what vCenter answers within seconds)."""
GAP: Final = timedelta(seconds=SAMPLE_S * 1.5)
"""If two samples are further apart, a sample between them is missing."""

Samples = Sequence[tuple[datetime, int]]
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
        for begin in range(0, len(refs), VMS_PER_CALL):
            for ref, series in _read_series(session, refs[begin : begin + VMS_PER_CALL], names_by_key, since):
                windows = {name: _window(samples, since, inventory.taken_at) for name, samples in series.items()}
                windows_by_vm[ref] = {name: window for name, window in windows.items() if window is not None}
    return inventory.completed(
        vms=[replace(inventory.vms[ref], counters=windows) for ref, windows in windows_by_vm.items()]
    )


def counter_keys(session: Session) -> dict[str, int]:
    """Return the keys of this vCenter's counters by name."""
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
) -> Iterator[tuple[str, Mapping[str, Samples]]]:
    """Yield the samples of these VMs by counter name, without VMs that do not exist any more."""
    from pyVmomi import vim

    kind = vim.PerformanceManager
    metrics = [kind.MetricId(counterId=key, instance="") for key in names_by_key]
    before = since - timedelta(seconds=SAMPLE_S)
    specs = [
        kind.QuerySpec(
            entity=session.vm(ref), metricId=metrics, intervalId=SAMPLE_S, startTime=before, format=kind.Format.csv
        )
        for ref in refs
    ]
    try:
        reply = session.read(lambda: session.content.perfManager.QueryPerf(specs), subject="counters")
    except GpuopsError as error:
        if not is_gone(error):
            raise
        for ref in refs if len(refs) > 1 else ():  # if one VM is gone, the call fails for all of them
            yield from _read_series(session, [ref], names_by_key, since)
        return
    with session.decoding("QueryPerf"):
        series_by_vm = [_series(metric, names_by_key) for metric in reply or ()]
    yield from ((ref, series) for ref, series in series_by_vm if ref in refs)


def _series(metric: Any, names_by_key: Mapping[int, str]) -> tuple[str, Mapping[str, Samples]]:
    """Return the id of the VM, and its samples by counter.

    `sampleInfoCSV` has an interval and an end for each sample; -1 is a missing value.
    """
    ends = [datetime.fromisoformat(text).astimezone(UTC) for text in metric.sampleInfoCSV.split(",")[1::2]]
    series = {}
    for metric_series in metric.value:
        name = names_by_key.get(metric_series.id.counterId)
        if name is not None and not metric_series.id.instance:
            readings = map(int, metric_series.value.split(","))
            series[name] = [(end, reading) for end, reading in zip(ends, readings, strict=True) if reading >= 0]
    return metric.entity._moId, series


def _window(samples: Samples, since: datetime, taken_at: datetime) -> CounterWindow | None:
    """Return the window of the latest samples after `since` without a gap, or None without samples."""
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
