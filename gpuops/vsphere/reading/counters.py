"""Reads performance counters of VMs: the samples of the last hour, which each host keeps itself, one every 20 s.

Counters have names, and in each vCenter keys of its own; the names are resolved once in a session. A host keeps them at
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
"""Two samples that are further apart have one missing between them."""

Samples = Sequence[tuple[datetime, int]]
"""The end of each sample and its value, oldest first; what is missing is left out."""


def with_counters(
    session: Session, inventory: Inventory, vms: Collection[str], names: Collection[str], over_s: int
) -> Inventory:
    """The same snapshot with these counters (`cpu.usagemhz.average`) of these VMs over the last `over_s` seconds, by
    vCenter's clock at the look. A counter of which there is no sample is left out; so are all where vCenter has
    no PerformanceManager (vSphere API reference, ServiceContent: it may be unset).

    One call per 50 VMs, and one for the names. Raises NotConnected in its kinds, or the error of vCenter's fault.
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
    """By name, the key that this vCenter has for it."""
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
    """What vCenter tells of these VMs; of one that is gone, nothing."""
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
        for ref in refs if len(refs) > 1 else ():  # one of them is gone, and nothing was said of any
            yield from _read_series(session, [ref], names_by_key, since)
        return
    with session.decoding("QueryPerf"):
        series_by_vm = [_series(metric, names_by_key) for metric in reply or ()]
    yield from ((ref, series) for ref, series in series_by_vm if ref in refs)


def _series(metric: Any, names_by_key: Mapping[int, str]) -> tuple[str, Mapping[str, Samples]]:
    """(id of the VM, counter -> its samples): `sampleInfoCSV` has an interval and an end for each, -1 is no value."""
    ends = [datetime.fromisoformat(text).astimezone(UTC) for text in metric.sampleInfoCSV.split(",")[1::2]]
    series = {}
    for metric_series in metric.value:
        name = names_by_key.get(metric_series.id.counterId)
        if name is not None and not metric_series.id.instance:
            readings = map(int, metric_series.value.split(","))
            series[name] = [(end, reading) for end, reading in zip(ends, readings, strict=True) if reading >= 0]
    return metric.entity._moId, series


def _window(samples: Samples, since: datetime, taken_at: datetime) -> CounterWindow | None:
    """What the samples that end after `since` say, as far back as none is missing; None = there is none."""
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
