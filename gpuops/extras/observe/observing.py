"""Reads the counters of a vCenter since the last time and writes them to the store, once or as a service.

GPUs and vGPUs are also read by the hosts' own nvidia-smi, once in each cycle. Such a reading is one sample in its step
of five minutes and covers a fifteenth of it. Numbers that nvidia-smi does not report are missing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.advise.fragmentation import FragmentationMeasure, sum_of_models
from gpuops.errors import GpuopsError, LoginRefused, NotConnected
from gpuops.execute.site import catalog_of
from gpuops.execute.site.host_shell import HostShell, ask_in_parallel
from gpuops.extras.observe.blocks import (
    FINE_S,
    SAMPLE_S,
    Block,
    steps_of_averages,
    steps_of_samples,
    without_unknown_use,
)
from gpuops.extras.observe.running_out import running_vgpus
from gpuops.extras.observe.store import Measurements
from gpuops.model.measurements.measurement import (
    FRAGMENTATION_COUNTERS,
    GPU_MEMORY,
    GPU_USE,
    HOST_COUNTERS,
    OF_GPUS,
    SMI_GPU_COUNTERS,
    SMI_POWER_LIMIT,
    SMI_VM_COUNTERS,
    VM_COUNTERS,
    Cycle,
    Span,
)
from gpuops.model.measurements.measurement_settings import Retention

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.model.devices.catalog import Catalog
    from gpuops.model.vcenter.host import Host
    from gpuops.model.vcenter.host_settings import SmiGpu, SmiReadings, SmiVgpu
    from gpuops.model.vcenter.inventory import Inventory


def host_readings(shell: HostShell, inventory: Inventory, warn: Callable[[str], None]) -> tuple[dict[str, Block], int]:
    """Return what nvidia-smi reports now, as one step for each VM and host (ids), and how many hosts answered.

    Asks all connected hosts with GPUs, several at once. A host that does not answer is reported by `warn` and left out.
    """
    hosts = [host for host in inventory.hosts.values() if host.connected is True and host.gpus]
    answers = ask_in_parallel(lambda host: _read_host(shell, host), hosts)
    blocks: dict[str, Block] = {}
    answered_hosts = 0
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, GpuopsError):
            warn(f"nvidia-smi was not read: {answer.line}")
            continue
        answered_hosts += 1
        blocks |= _host_blocks(host, answer, inventory)
    return blocks, answered_hosts


def _read_host(shell: HostShell, host: Host) -> SmiReadings | GpuopsError:
    try:
        return shell.readings(host.name)
    except GpuopsError as error:
        return error


def _host_blocks(host: Host, readings: SmiReadings, inventory: Inventory) -> Iterator[tuple[str, Block]]:
    """Yield one step for the host and for each VM. nvidia-smi names VMs, so a name must be unique on the host."""
    of_host = {f"{name}@{gpu.address}": number for gpu in readings.gpus for name, number in _gpu_numbers(gpu)}
    yield from _one_step(host.ref, of_host)
    host_vms = inventory.vms_by_host.get(host.ref, ())
    names = Counter(vm.name for vm in host_vms)
    for vm in host_vms:
        vgpus = [vgpu for vgpu in readings.vgpus if vgpu.vm_name == vm.name]
        if vgpus and names[vm.name] == 1:
            yield from _one_step(vm.ref, dict(zip(SMI_VM_COUNTERS, _vgpu_numbers(vgpus), strict=True)))


def _gpu_numbers(gpu: SmiGpu) -> Iterator[tuple[str, int | None]]:
    """Return each counter of a GPU with its number; None = nvidia-smi does not report it."""
    numbers = (  # in the order of the counters below
        _hundredths(gpu.utilization_percent),
        gpu.clock_mhz,
        gpu.temperature_c,
        gpu.ecc_uncorrected,
        gpu.pcie_generation,
        gpu.pcie_width,
        gpu.slowed_by_heat,
        gpu.slowed_by_power,
        gpu.power_limit_w,
    )
    return zip((*SMI_GPU_COUNTERS, SMI_POWER_LIMIT), numbers, strict=True)


def fragmentation_readings(inventory: Inventory, catalog: Catalog) -> dict[str, Block]:
    """Return how fragmented the free memory of each host with GPUs is now, as one step for each host (id)."""
    blocks: dict[str, Block] = {}
    measure = FragmentationMeasure(inventory, catalog)
    for host in inventory.hosts.values():
        if host.gpus:
            state = sum_of_models(measure.of_hosts([host]))
            numbers = (state.free_mib, round(state.fragmented_mib), state.gpus, state.unusable_gpus)
            blocks |= _one_step(host.ref, dict(zip(FRAGMENTATION_COUNTERS, numbers, strict=True)))
    return blocks


def _vgpu_numbers(vgpus: list[SmiVgpu]) -> tuple[int | None, int | None, int | None]:
    """Return use, encoder use and licence of a VM's vGPUs; None if a number is unknown for one of the vGPUs."""
    use = [_hundredths(vgpu.utilization_percent) for vgpu in vgpus]
    encoder_use = [_hundredths(vgpu.encoder_percent) for vgpu in vgpus]
    licence_states = [vgpu.licensed for vgpu in vgpus]
    return (
        _highest_if_all_known(use),
        _highest_if_all_known(encoder_use),
        None if None in licence_states else int(all(licence_states)),
    )


def _highest_if_all_known(numbers: list[int | None]) -> int | None:
    known_numbers = [number for number in numbers if number is not None]
    return max(known_numbers) if len(known_numbers) == len(numbers) else None


def _hundredths(percent: int | None) -> int | None:
    return None if percent is None else percent * 100


def _one_step(entity: str, numbers: Mapping[str, int | None]) -> Iterator[tuple[str, Block]]:
    """Yield a block of one step with the known numbers as average and highest; nothing if none is known."""
    series = {
        name: np.array([[number, number, 1]], dtype=np.int64) for name, number in numbers.items() if number is not None
    }
    if series:
        yield entity, Block(1, series)


EVERY_S: Final = 20 * 60
"""The time between two observations. Hosts keep samples for one hour, so one observation may fail or be late."""
CALLS_PER_MINUTE: Final = 60
"""The limit for calls of QueryPerf to a vCenter."""

_LATE_S: Final = 60
"""Samples of the last minute are not read, because the newest ones come late."""
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
"""How far back vCenter's five-minute averages go."""
_VM: Final = "VirtualMachine"
_HOST: Final = "HostSystem"


@dataclass(slots=True)
class _CallLimiter:
    """Waits before a call if there would be more than `most` in a minute."""

    passed_s: Callable[[], float]
    pause: Callable[[float], None]
    most: int = CALLS_PER_MINUTE
    calls: int = 0
    latest: deque[float] = field(default_factory=deque)
    """When the last calls began, at most `most` of them."""

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
    """Those whose GPU use is known."""


def observe(site: Site, retention: Retention | None = None) -> Cycle:
    """Store the samples of VMs and hosts since the last call, combine them into hours, and remove old steps.

    Time whose samples the hosts have already removed is filled from vCenter's five-minute averages of the last day,
    where they exist; other time stays missing. Changes nothing in vCenter. Raises NotConnected and its subclasses,
    StateDamaged.
    """
    with Measurements.open(*site.measurements_store, site.vcenter.uuid) as store:
        return _observe(site, store, retention or site.measured.retention)


def observe_for_ever(site: Site, retention: Retention, report: Callable[[Cycle], None]) -> None:
    """Observe every twenty minutes and report each cycle. If vCenter does not answer, try again in the next cycle.

    Raises the exception of a signal, and LoginRefused.
    """
    while True:
        began = site.passed_s()
        try:
            report(observe(site, retention))
        except LoginRefused:  # a NotConnected, but another try would be refused too
            raise
        except NotConnected as error:
            site.say(f"vCenter does not answer, gpuops tries again in {EVERY_S // 60} min: {error.message}")
        site.pause(max(1.0, EVERY_S - (site.passed_s() - began)))


def _observe(site: Site, store: Measurements, retention: Retention) -> Cycle:
    """Observe once, as `observe` describes. Times that are numbers are seconds since 1970, at borders of steps."""
    inventory = site.vcenter.inventory()
    now = inventory.taken_at
    until = (int(now.timestamp()) - _LATE_S) // FINE_S * FINE_S
    earlier_spans = store.observed_spans()
    observed_until = int(earlier_spans[-1].until.timestamp()) if earlier_spans else None
    if observed_until is not None and observed_until >= until:
        return _empty_cycle(inventory)
    # -(-a // b) rounds up, to the first border of steps
    hour_ago = -(-int((now - _HOUR).timestamp()) // FINE_S) * FINE_S
    # read the last stored step again: some of its samples may have been late
    begin = max(hour_ago, observed_until - FINE_S) if observed_until is not None else hour_ago
    limit_calls, measured_entities = _CallLimiter(site.passed_s, site.pause), _MeasuredEntities()
    # what lies before `begin` is filled from vCenter's averages
    oldest = -(-int((now - _DAY).timestamp()) // FINE_S) * FINE_S
    fill_from = max(oldest, observed_until if observed_until is not None else oldest)
    filled = (fill_from, begin) if fill_from < begin else None
    if filled is not None:
        _read(site, store, inventory, FINE_S, filled, limit_calls, _MeasuredEntities())
    _read(site, store, inventory, SAMPLE_S, (begin, until), limit_calls, measured_entities)
    answered_hosts = None
    if site.shell is not None:
        blocks, answered_hosts = host_readings(site.shell, inventory, site.say)
        store.write(int(now.timestamp()) // FINE_S * FINE_S, blocks)  # in the step that has begun
    store.write(until - FINE_S, fragmentation_readings(inventory, catalog_of(inventory)))  # the last complete step
    store.note_vgpus(now, running_vgpus(inventory))
    store.note_observed(begin, until)  # not the filled time: that stays a gap
    store.roll_up(until)
    store.remove_old(now, retention)
    vms = _vm_refs(inventory)
    return Cycle(
        vcenter=inventory.vcenter,
        begin=_utc(begin),
        until=_utc(until),
        filled=Span(_utc(filled[0]), _utc(filled[1])) if filled is not None else None,
        vms=len(vms),
        vms_measured=len(measured_entities.vms),
        vms_gpu_unknown=sum(
            1 for ref in measured_entities.vms if inventory.vms[ref].profiles and ref not in measured_entities.gpu_known
        ),
        hosts=len(inventory.hosts),
        hosts_measured=len(measured_entities.hosts),
        calls=limit_calls.calls,
        hosts_entered=answered_hosts,
    )


def _empty_cycle(inventory: Inventory) -> Cycle:
    """Return a cycle that read nothing, because everything is stored already."""
    return Cycle(inventory.vcenter, None, None, None, len(_vm_refs(inventory)), 0, 0, len(inventory.hosts), 0, 0)


def _read(
    site: Site,
    store: Measurements,
    inventory: Inventory,
    interval_s: int,
    span: tuple[int, int],
    limit_calls: _CallLimiter,
    measured_entities: _MeasuredEntities,
) -> None:
    """Read the samples of the span and write them after each call, so that an interruption loses only later calls.

    `span`: begin and end in seconds since 1970. Adds the VMs and hosts with a sample to `measured_entities`.
    """
    to_steps = steps_of_samples if interval_s == SAMPLE_S else steps_of_averages
    begin, until = span
    moments = (_utc(begin), _utc(until))
    steps = (until - begin) // FINE_S
    kinds = ((_VM, _vm_refs(inventory), VM_COUNTERS), (_HOST, sorted(inventory.hosts), HOST_COUNTERS))
    for kind, refs, known_names in kinds:
        names = _select_counters(known_names, site.measured.counters)
        for answer in site.vcenter.samples(kind, refs if names else (), names, interval_s, moments, limit_calls):
            blocks: dict[str, Block] = {}
            for samples in answer:
                known_samples = without_unknown_use(inventory.vms[samples.entity], samples) if kind == _VM else samples
                block = to_steps(known_samples, begin, steps)
                if block.series:
                    blocks[samples.entity] = block
            store.write(begin, blocks)
            (measured_entities.vms if kind == _VM else measured_entities.hosts).update(blocks)
            measured_entities.gpu_known.update(ref for ref, block in blocks.items() if GPU_USE in block.series)


def _select_counters(counters: Sequence[str], chosen: Collection[str] | None) -> Sequence[str]:
    """Return the chosen counters; None = all. A GPU counter needs the GPU memory, which shows whether a 0 is real."""
    if chosen is None:
        return counters
    needed = {GPU_MEMORY} if any(name.startswith(OF_GPUS) for name in chosen) else set()
    return [name for name in counters if name in chosen or name in needed]


def _vm_refs(inventory: Inventory) -> Sequence[str]:
    """Return the ids of all VMs except templates. A VM that is off now may have run since the last cycle."""
    return sorted(ref for ref, vm in inventory.vms.items() if not vm.template)


def _utc(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
