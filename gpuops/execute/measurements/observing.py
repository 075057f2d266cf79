"""Reads the counters of a vCenter since the last time and writes them to the store, once or as a service."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from gpuops.errors import LoginRefused, NotConnected
from gpuops.execute.measurements.host_readings import host_readings
from gpuops.execute.measurements.rolling_up import FINE_S, SAMPLE_S, steps_of_averages, steps_of_samples
from gpuops.execute.measurements.running_out import running_vgpus
from gpuops.execute.measurements.store import Measurements
from gpuops.execute.measurements.unknown_use import without_unknown_use
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_USE, HOST_COUNTERS, OF_GPUS, VM_COUNTERS, Cycle, Span
from gpuops.model.measurements.measurement_settings import Retention

if TYPE_CHECKING:
    from gpuops.execute.measurements.packing import Block
    from gpuops.execute.site import Site
    from gpuops.model.vcenter.inventory import Inventory

EVERY_S: Final = 20 * 60
"""The time between two observations. Hosts keep samples for one hour, so one observation may fail or be late."""
CALLS_PER_MINUTE: Final = 60
"""The limit for calls of QueryPerf."""

_LATE_S: Final = 60
"""The newest samples come late."""
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
"""How far back vCenter's five-minute averages go."""
_VM: Final = "VirtualMachine"
_HOST: Final = "HostSystem"


@dataclass(slots=True)
class _Pace:
    """Waits before a call if there would be too many in a minute."""

    passed_s: Callable[[], float]
    pause: Callable[[float], None]
    most: int = CALLS_PER_MINUTE
    calls: int = 0
    latest: deque[float] = field(default_factory=deque)

    def __call__(self) -> None:
        self.calls += 1
        now = self.passed_s()
        if len(self.latest) == self.most:
            wait_s = self.latest.popleft() + 60 - now
            if wait_s > 0:
                self.pause(wait_s)
                now = self.passed_s()
        self.latest.append(now)


@dataclass(slots=True)
class _MeasuredEntities:
    """The VMs and hosts that had a sample."""

    vms: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    gpu_known: set[str] = field(default_factory=set)


def observe(site: Site, retention: Retention | None = None) -> Cycle:
    """Store the samples of VMs and hosts since the last look, roll them up, and remove old steps.

    Time that the hosts do not keep any more is filled from vCenter's five-minute averages of the last day, where they
    exist; other time stays missing. Changes nothing in vCenter. Raises NotConnected and its subclasses, StateDamaged.
    """
    kept_days = retention or site.measured.retention
    with Measurements.open(*site.measurements_store, site.vcenter.uuid) as store:
        return _look(site, store, kept_days)


def observe_for_ever(site: Site, retention: Retention, report: Callable[[Cycle], None]) -> None:
    """Observe every twenty minutes and report each cycle. If vCenter does not answer, try again in the next cycle.

    Ends with the exception of a signal, or if the login is refused.
    """
    while True:
        began = site.passed_s()
        try:
            report(observe(site, retention))
        except LoginRefused:
            raise
        except NotConnected as error:
            site.say(f"vCenter is away, tried again in {EVERY_S // 60} min: {error.message}")
        site.pause(max(1.0, EVERY_S - (site.passed_s() - began)))


def _look(site: Site, store: Measurements, retention: Retention) -> Cycle:
    inventory = site.vcenter.inventory()
    now = inventory.taken_at
    until = (int(now.timestamp()) - _LATE_S) // FINE_S * FINE_S
    before = store.observed_spans()
    last = int(before[-1].until.timestamp()) if before else None
    if last is not None and last >= until:
        return _nothing(inventory)
    hour_ago = -(-int((now - _HOUR).timestamp()) // FINE_S) * FINE_S
    # read the last stored step again: some of its samples may have been late
    begin = max(hour_ago, last - FINE_S) if last is not None else hour_ago
    pace, found_entities = _Pace(site.passed_s, site.pause), _MeasuredEntities()
    oldest = -(-int((now - _DAY).timestamp()) // FINE_S) * FINE_S
    fill_from = max(oldest, last if last is not None else oldest)
    filled = (fill_from, begin) if fill_from < begin else None
    if filled is not None:
        _read(site, store, inventory, FINE_S, filled, pace, _MeasuredEntities())
    _read(site, store, inventory, SAMPLE_S, (begin, until), pace, found_entities)
    entered = None
    if site.shell is not None:
        blocks, entered = host_readings(site.shell, inventory, site.say)
        store.write(int(now.timestamp()) // FINE_S * FINE_S, blocks)
    store.note_vgpus(now, running_vgpus(inventory))
    store.note_observed(begin, until)
    store.roll_up(until)
    store.forget(now, retention)
    vms = _vms(inventory)
    return Cycle(
        vcenter=inventory.vcenter,
        begin=_at(begin),
        until=_at(until),
        filled=Span(_at(filled[0]), _at(filled[1])) if filled is not None else None,
        vms=len(vms),
        vms_measured=len(found_entities.vms),
        vms_gpu_unknown=sum(
            1 for ref in found_entities.vms if inventory.vms[ref].profiles and ref not in found_entities.gpu_known
        ),
        hosts=len(inventory.hosts),
        hosts_measured=len(found_entities.hosts),
        calls=pace.calls,
        hosts_entered=entered,
    )


def _nothing(inventory: Inventory) -> Cycle:
    return Cycle(inventory.vcenter, None, None, None, len(_vms(inventory)), 0, 0, len(inventory.hosts), 0, 0)


def _read(
    site: Site,
    store: Measurements,
    inventory: Inventory,
    interval_s: int,
    span: tuple[int, int],
    pace: _Pace,
    found_entities: _MeasuredEntities,
) -> None:
    """Read the samples of the span and write them after each call, so that an interruption loses only the rest."""
    to_steps = steps_of_samples if interval_s == SAMPLE_S else steps_of_averages
    begin, until = span
    moments = (_at(begin), _at(until))
    steps = (until - begin) // FINE_S
    kinds = ((_VM, _vms(inventory), VM_COUNTERS), (_HOST, sorted(inventory.hosts), HOST_COUNTERS))
    for kind, refs, known_names in kinds:
        names = _select_counters(known_names, site.measured.counters)
        for answer in site.vcenter.samples(kind, refs if names else (), names, interval_s, moments, pace):
            blocks: dict[str, Block] = {}
            for samples in answer:
                known_samples = without_unknown_use(inventory.vms[samples.entity], samples) if kind == _VM else samples
                block = to_steps(known_samples, begin, steps)
                if block.series:
                    blocks[samples.entity] = block
            store.write(begin, blocks)
            (found_entities.vms if kind == _VM else found_entities.hosts).update(blocks)
            found_entities.gpu_known.update(ref for ref, block in blocks.items() if GPU_USE in block.series)


def _select_counters(counters: Sequence[str], chosen: Collection[str] | None) -> Sequence[str]:
    """Return the chosen counters. With a GPU counter the GPU memory is added: it shows whether a zero is real."""
    if chosen is None:
        return counters
    of_gpus = {GPU_MEMORY} if any(name.startswith(OF_GPUS) for name in chosen) else set()
    return [name for name in counters if name in chosen or name in of_gpus]


def _vms(inventory: Inventory) -> Sequence[str]:
    """Return all VMs except templates. A VM that is off has no new sample, but may have run a moment ago."""
    return sorted(ref for ref, vm in inventory.vms.items() if not vm.template)


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
