"""The metrics for Prometheus (`gpuops metrics`): families of samples, and the text in which they are sent.

Names and units follow the conventions of Prometheus (prometheus.io/docs/practices/naming): base units, `_total` for
counters only, `_info` for labels without a number, moments as seconds since 1970, from which a rule computes an age.
What is not known is absent, never 0: there is no sample, or the label is empty, which Prometheus treats as absent. Each
sample has the label `vcenter` with the name in the configuration file, so that files of several vCenters can be merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final, Self

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gpuops import __version__
from gpuops.advise.capacity import Slots
from gpuops.advise.gpu_counters import TEMPERATURE_COUNTERS, USE_COUNTERS, numbers_by_gpu
from gpuops.advise.occupancy import gpu_states
from gpuops.extras.diagnosis.answer import StoredDiagnosis
from gpuops.model.devices.catalog import Catalog
from gpuops.model.measurements.measurement import (
    GPU_MEMORY,
    GPU_POWER,
    GPU_USE,
    SMI_CLOCK,
    SMI_ECC,
    SMI_POWER_LIMIT,
    SMI_SLOWED_BY_HEAT,
    SMI_SLOWED_BY_POWER,
    NewestUse,
)
from gpuops.model.nights.history import PastEvents, PastNight, PastOutcome
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.capacity.capacity_request import STANDALONE, Capacity
from gpuops.plan.capacity.fleet_room import FleetPart
from gpuops.plan.core.scope import cluster_name
from gpuops.plan.rotation.night_status import NightStanding
from gpuops.plan.rotation.returns.return_time import Overdue
from gpuops.report.document import PrintedDocument, printed
from gpuops.report.monitoring.fleet_view import holders
from gpuops.report.text import count

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format that every Prometheus and node_exporter reads."""
_KB: Final = 1024.0
_MIB: Final = 1024**2
_FULL_USE: Final = 10_000
"""100 %, in the hundredths of a percent of a counter."""

Values = tuple[str, ...]
"""The values of the labels of a sample, in the order of `Family.labels`."""
Samples = Iterable[tuple[Values, float]]


@dataclass(frozen=True, slots=True)
class Family:
    """A family of samples: its name in rules, its description, and its labels in addition to `vcenter`."""

    name: str
    description: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False

    def metric(self, vcenter: str, samples: Samples) -> Metric | None:
        """Return the family with its samples, or None if it has none.

        Samples with equal labels but different values are left out, for example those of two hosts with the same name.
        """
        numbers: dict[Values, float | None] = {}
        for labels, number in samples:
            # None once two numbers of the same labels differ; no later number equals None
            numbers[labels] = number if numbers.setdefault(labels, number) == number else None
        metric_class = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        metric = metric_class(self.name, self.description, labels=("vcenter", *self.labels))
        for labels, agreed_number in numbers.items():
            if agreed_number is not None:
                metric.add_metric([vcenter, *labels], agreed_number)
        return metric if metric.samples else None


_GPU: Final = ("host", "gpu")
_ON_GPU: Final = (*_GPU, "vm", "vm_id")
_VM: Final = ("host", "vm", "vm_id")
_SLOTS: Final = ("cluster", "host", "profile")

UP: Final = Family("gpuops_up", "1 = vCenter was read; 0 = it could not be read, and its samples are absent")
BUILD: Final = Family("gpuops_build_info", "The version of gpuops", ("version",))
READ: Final = Family("gpuops_read_timestamp_seconds", "When vCenter was last read")
SOURCE: Final = Family(
    "gpuops_source_up", "1 = the source on this machine could be read; 0 = its samples are absent", ("source",)
)
SLOTS: Final = Family("gpuops_vgpu_slots", "vGPUs of the profile that fit on the host while it runs no vGPU", _SLOTS)
FREE: Final = Family("gpuops_vgpu_slots_free", "Further vGPUs of the profile that certainly fit", _SLOTS)
FREE_AT_MOST: Final = Family(
    "gpuops_vgpu_slots_free_at_most", "Further vGPUs of the profile that fit at most, where that is more", _SLOTS
)
RUNNING: Final = Family("gpuops_vgpus_running", "vGPUs of the profile in VMs that run on the host", _SLOTS)
GPU: Final = Family("gpuops_gpu_info", "A GPU: its cluster and its model", (*_GPU, "cluster", "model"))
GPU_SIZE: Final = Family("gpuops_gpu_memory_size_bytes", "Memory of the GPU", _GPU)
GPU_PROBLEMS: Final = Family(
    "gpuops_gpu_problems",
    "Number of problems that nvidia-smi on the host reports for the GPU; absent = it was not run",
    _GPU,
)
GPU_PROBLEM: Final = Family(
    "gpuops_gpu_problem_info", "A problem that nvidia-smi on the host reports for the GPU", (*_GPU, "problem")
)
GPU_USED: Final = Family("gpuops_gpu_memory_used_bytes", "Memory of the GPU in use, in the newest five minutes", _GPU)
GPU_BUSY: Final = Family(
    "gpuops_gpu_utilization_ratio", "Use of the GPU in the newest five minutes, 1 = all of it", _GPU
)
GPU_HOT: Final = Family("gpuops_gpu_temperature_celsius", "Temperature of the GPU, in the newest five minutes", _GPU)
GPU_WATTS: Final = Family("gpuops_gpu_power_watts", "Power that the GPU draws, in the newest five minutes", _GPU)
GPU_WATTS_LIMIT: Final = Family("gpuops_gpu_power_limit_watts", "Power limit of the GPU that is in force", _GPU)
GPU_CLOCK: Final = Family(
    "gpuops_gpu_sm_clock_hertz", "Clock of the GPU's streaming multiprocessors at the last reading", _GPU
)
GPU_SLOWED: Final = Family(
    "gpuops_gpu_throttled",
    "1 = the GPU was clocked down for this reason at the last reading",
    (*_GPU, "reason"),
)
GPU_ECC: Final = Family(
    "gpuops_gpu_ecc_uncorrected_errors_total",
    "Errors of the GPU's memory that were not corrected, since the host was started",
    _GPU,
    is_counter=True,
)
VGPU: Final = Family(
    "gpuops_gpu_vgpu_info",
    "A VM with a vGPU on the GPU; no profile = the VM has several vGPUs, and vCenter does not report which is here",
    (*_ON_GPU, "profile"),
)
WHOLE: Final = Family("gpuops_gpu_directpath_info", "A VM that has the whole GPU by DirectPath I/O", _ON_GPU)
VM_BUSY: Final = Family(
    "gpuops_vm_gpu_utilization_ratio", "Use of the VM's vGPU in the newest five minutes, 1 = all of it", _VM
)
VM_USED: Final = Family(
    "gpuops_vm_gpu_memory_used_bytes", "Memory of the VM's vGPU in use, in the newest five minutes", _VM
)
MEASURED: Final = Family("gpuops_measured_timestamp_seconds", "The end of the newest measurements of gpuops observe")
AT_FAULT: Final = Family(
    "gpuops_vm_diagnosis_probability_ratio",
    "Probability that the component slows the VM down, by the VM's last diagnosis; 1 = an admin confirmed it",
    (*_VM, "component"),
)
DIAGNOSED: Final = Family("gpuops_vm_diagnosis_timestamp_seconds", "When the VM was last diagnosed", _VM)
SUSPENDED: Final = Family(
    "gpuops_suspended_desktops", "Desktops that gpuops suspended or shut down for a night, and that are not back yet"
)
DUE: Final = Family("gpuops_return_deadline_timestamp_seconds", "When the suspended desktops must be back")
OVERDUE: Final = Family(
    "gpuops_overdue_vms",
    "VMs whose night is closed and whose return is not recorded, by vCenter in the journal",
    ("of",),
)
HARVESTED: Final = Family(
    "gpuops_harvested_gpu_seconds_total",
    "GPUs times seconds that ML VMs had in nights, as far as known; a VM counts after it has ended",
    is_counter=True,
)
OUTCOME: Final = Family("gpuops_last_rotation_outcome", "1 = the last night has this outcome", ("outcome",))
BEGAN: Final = Family("gpuops_last_rotation_begin_timestamp_seconds", "When the last night began")
ENDED: Final = Family("gpuops_last_rotation_end_timestamp_seconds", "When the last run of the last night ended")
LAST_INCIDENTS: Final = Family("gpuops_last_rotation_incidents", "Incidents of the last night that were not resolved")
INCIDENTS: Final = Family(
    "gpuops_incidents_total", "Incidents of all nights or changes that were not resolved", ("of",),
    is_counter=True,
)  # fmt: skip

FAMILIES: Final = (
    UP, BUILD, READ, SOURCE, SLOTS, FREE, FREE_AT_MOST, RUNNING, GPU, GPU_SIZE, GPU_PROBLEMS, GPU_PROBLEM, GPU_USED,
    GPU_BUSY, GPU_HOT, GPU_WATTS, GPU_WATTS_LIMIT, GPU_CLOCK, GPU_SLOWED, GPU_ECC, VGPU, WHOLE, VM_BUSY, VM_USED,
    MEASURED, AT_FAULT, DIAGNOSED, SUSPENDED, DUE, OVERDUE, HARVESTED, OUTCOME, BEGAN, ENDED, LAST_INCIDENTS,
    INCIDENTS,
)  # fmt: skip

_GPU_FAMILIES: Final = (
    (GPU_BUSY, USE_COUNTERS, 1 / _FULL_USE),
    (GPU_USED, (GPU_MEMORY,), _KB),
    (GPU_HOT, TEMPERATURE_COUNTERS, 1.0),
    (GPU_WATTS, (GPU_POWER,), 1.0),
    (GPU_WATTS_LIMIT, (SMI_POWER_LIMIT,), 1.0),
    (GPU_CLOCK, (SMI_CLOCK,), 1e6),
    (GPU_ECC, (SMI_ECC,), 1.0),
)
"""Families of measured numbers of a GPU: family, counters (the first that was measured is used), and unit of the
counters."""
_VM_FAMILIES: Final = ((VM_BUSY, (GPU_USE,), 1 / _FULL_USE), (VM_USED, (GPU_MEMORY,), _KB))
_SLOWED_BY: Final = {SMI_SLOWED_BY_HEAT: "heat", SMI_SLOWED_BY_POWER: "power"}


@dataclass(frozen=True, slots=True)
class MetricValues:
    """The values of one answer to Prometheus. None = not known; its samples are then absent."""

    inventory: Inventory
    catalog: Catalog
    capacity: Capacity
    """`after` is the room with every VM with a vGPU suspended: the total."""
    read_at: datetime
    used: NewestUse | None = None
    history: PastEvents | None = None
    night: NightStanding | None = None
    overdue: tuple[Overdue, ...] = ()
    """The vCenters in the journal for which no return seems to run."""
    diagnoses: Mapping[str, StoredDiagnosis] = field(default_factory=dict)
    """The last diagnosis, by managed object id of a VM."""
    sources: Mapping[str, bool] = field(default_factory=dict)
    """Whether each source on this machine could be read: `journal`, `measurements`, `diagnoses`. Missing ones are left
    out."""


class MetricsWriter:
    """Writes the families of one vCenter as text. Those of the fleet are written once for each read of vCenter."""

    def __init__(self, vcenter: str) -> None:
        self._vcenter = vcenter
        self._fleet_capacity: Capacity | None = None
        self._fleet_text = b""

    def text(self, reading: MetricValues | None) -> bytes:
        """Return the text of all families that have samples. `reading`: None = vCenter could not be read."""
        status: list[tuple[Family, Samples]] = [
            (UP, [((), float(reading is not None))]),
            (BUILD, [((__version__,), 1.0)]),
        ]
        if reading is None:
            return self._exposition(status)
        if reading.capacity is not self._fleet_capacity:  # a new read of vCenter; else these families are the same
            families = [*_slots(reading.capacity), *_running_vgpus(reading), *_gpus(reading)]
            self._fleet_text = self._exposition(families)
            self._fleet_capacity = reading.capacity
        status += [(READ, [((), reading.read_at.timestamp())])]
        status += [(SOURCE, [((name,), float(is_up)) for name, is_up in reading.sources.items()])]
        others = [*_measured_use(reading), *_diagnosed_vms(reading), *_nights(reading)]
        return self._exposition(status) + self._fleet_text + self._exposition(others)

    def _exposition(self, families: Iterable[tuple[Family, Samples]]) -> bytes:
        metrics = (family.metric(self._vcenter, samples) for family, samples in families)
        return generate_latest(_Metrics([metric for metric in metrics if metric is not None]))


class _Metrics(Collector):
    """The metrics as a collector, which `generate_latest` requires."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _slots(capacity: Capacity) -> Iterator[tuple[Family, Samples]]:
    assert capacity.after is not None, "it was computed with VMs to suspend"

    def certain_slots(slots: Slots) -> int | None:
        # 0 without an upper bound means that nothing is known
        return slots.at_least if slots.at_least or slots.at_most is not None else None

    yield SLOTS, _slot_samples(capacity.after, lambda slots: slots.at_most if slots.exact else None)
    yield FREE, _slot_samples(capacity.now, certain_slots)
    yield FREE_AT_MOST, _slot_samples(capacity.now, lambda slots: None if slots.exact else slots.at_most)


def _running_vgpus(reading: MetricValues) -> Iterator[tuple[Family, Samples]]:
    """Yield the number of vGPUs of running VMs by host and profile; 0 if the host offers the profile and runs none."""
    inventory = reading.inventory
    counts = {(host.ref, offer.name): 0 for host in inventory.hosts.values() for offer in host.profiles or ()}
    for vm in inventory.vms.values():
        if vm.power is PowerState.ON and (host := inventory.host_of(vm)) is not None:
            for profile in vm.profiles:
                counts[host.ref, profile] = counts.get((host.ref, profile), 0) + 1
    hosts = inventory.hosts
    clusters = {ref: cluster_name(host, inventory) or "" for ref, host in hosts.items()}
    yield (
        RUNNING,
        [((clusters[ref], hosts[ref].name, profile), float(number)) for (ref, profile), number in counts.items()],
    )


def _slot_samples(fleet: FleetPart, number_of: Callable[[Slots], int | None]) -> Samples:
    """Yield a sample for each host and profile. `number_of` returns None where the number is unknown."""
    for cluster in fleet.parts:
        name = "" if cluster.name == STANDALONE else cluster.name
        for host in cluster.parts:
            for profile, fit in host.fits.items():
                if (number := number_of(fit.slots)) is not None:
                    yield (name, host.name, profile), float(number)


def _gpus(reading: MetricValues) -> Iterator[tuple[Family, Samples]]:
    """Yield the GPUs with their size and problems, if known, and the VMs that share a GPU or have a whole one."""
    host_gpus = [(host, gpu) for host in reading.inventory.hosts.values() for gpu in host.gpus]
    clusters = {host.ref: cluster_name(host, reading.inventory) or "" for host in reading.inventory.hosts.values()}
    yield GPU, [((host.name, str(gpu.address), clusters[host.ref], gpu.name), 1.0) for host, gpu in host_gpus]
    yield (
        GPU_SIZE,
        [
            ((host.name, str(gpu.address)), float(gpu.memory_mib * _MIB))
            for host, gpu in host_gpus
            if gpu.memory_mib is not None
        ],
    )
    reported = [
        ((host.name, str(gpu.address)), gpu.health.problems) for host, gpu in host_gpus if gpu.health is not None
    ]
    yield GPU_PROBLEMS, [(labels, float(len(problems))) for labels, problems in reported]
    yield GPU_PROBLEM, [((*labels, problem), 1.0) for labels, problems in reported for problem in problems]
    shared: list[tuple[Values, float]] = []
    whole: list[tuple[Values, float]] = []
    for host in reading.inventory.hosts.values():
        _add_holders(host, reading, shared, whole)
    yield VGPU, shared
    yield WHOLE, whole


def _add_holders(
    host: Host, reading: MetricValues, shared: list[tuple[Values, float]], whole: list[tuple[Values, float]]
) -> None:
    """Add a sample for each VM on a GPU of the host: to `whole` if the GPU is passed through, else to `shared`.

    In `shared` a VM has one sample for each profile that is certain on this GPU; if none is, one with an empty profile.
    """
    for state in gpu_states(host, reading.inventory, reading.catalog):
        certain_profiles: dict[str, set[str]] = {}
        for tenant in state.tenants:
            if tenant.certain:
                certain_profiles.setdefault(tenant.vm, set()).add(tenant.profile)
        is_passed_through = state.gpu.passthrough is not None and state.gpu.passthrough.active
        for vm in holders(state.gpu, host, reading.inventory) or ():
            labels = (host.name, str(state.gpu.address), vm.name, vm.ref)
            if is_passed_through:
                whole.append((labels, 1.0))
            else:
                shared += [((*labels, profile), 1.0) for profile in sorted(certain_profiles.get(vm.ref, {""}))]


def _measured_use(reading: MetricValues) -> Iterator[tuple[Family, Samples]]:
    """Yield the newest measurements of VMs and GPUs; without any, no family."""
    if reading.used is None:
        return
    yield MEASURED, [((), reading.used.until.timestamp())]
    samples: dict[str, list[tuple[Values, float]]] = {
        family.name: [] for family, _, _ in (*_GPU_FAMILIES, *_VM_FAMILIES)
    }
    samples[GPU_SLOWED.name] = []
    hosts, vms = reading.inventory.hosts, reading.inventory.vms
    for ref, series in reading.used.averages.items():
        if ref in vms:
            host = reading.inventory.host_of(vms[ref])
            labels: Values = (host.name if host else "", vms[ref].name, ref)
            _add_numbers(series, _VM_FAMILIES, labels, samples)
        elif ref in hosts:
            for address, numbers in numbers_by_gpu(series, hosts[ref]).items():
                labels = (hosts[ref].name, str(address))
                _add_numbers(numbers, _GPU_FAMILIES, labels, samples)
                for counter, reason in _SLOWED_BY.items():
                    if counter in numbers:
                        samples[GPU_SLOWED.name].append(((*labels, reason), float(numbers[counter])))
    families = [family for family, _, _ in (*_GPU_FAMILIES, *_VM_FAMILIES)]
    yield from ((family, samples[family.name]) for family in (*families, GPU_SLOWED))


def _add_numbers(
    numbers: Mapping[str, int],
    families: Iterable[tuple[Family, tuple[str, ...], float]],
    labels: Values,
    samples: dict[str, list[tuple[Values, float]]],
) -> None:
    """Add a sample to each family, with the value of its first counter that was measured; none if none was."""
    for family, counters, unit in families:
        measured = next((numbers[counter] for counter in counters if counter in numbers), None)
        if measured is not None:
            samples[family.name].append((labels, measured * unit))


def _diagnosed_vms(reading: MetricValues) -> Iterator[tuple[Family, Samples]]:
    """Yield the last diagnosis of each VM that still exists: the probability by component, and its time."""
    suspects: list[tuple[Values, float]] = []
    moments: list[tuple[Values, float]] = []
    for ref, diagnosis in reading.diagnoses.items():
        if (vm := reading.inventory.vms.get(ref)) is not None:
            host = reading.inventory.host_of(vm)
            labels = (host.name if host else "", vm.name, ref)
            suspects += [((*labels, component.value), probability) for component, probability in diagnosis.probable]
            moments.append((labels, diagnosis.at.timestamp()))
    yield AT_FAULT, suspects
    yield DIAGNOSED, moments


def _nights(reading: MetricValues) -> Iterator[tuple[Family, Samples]]:
    """Yield the families of the open night, of overdue vCenters, and of past nights: their totals, and the last one."""
    if reading.night is not None:
        yield SUSPENDED, [((), float(reading.night.desktops_away))]
        yield DUE, [((), reading.night.back_by.timestamp())] if reading.night.back_by is not None else []
    yield OVERDUE, [((overdue.vcenter,), float(len(overdue.vms))) for overdue in reading.overdue]
    if reading.history is None:
        return
    nights, changes = reading.history.nights, reading.history.changes
    yield (
        INCIDENTS,
        [
            (("night",), float(sum(len(night.incidents) for night in nights))),
            (("change",), float(sum(len(change.incidents) for change in changes))),
        ],
    )
    if nights:
        yield HARVESTED, [((), 3600.0 * reading.history.harvested.at_least)]
        yield from _last_night(max(nights, key=lambda night: night.begins))


def _last_night(night: PastNight) -> Iterator[tuple[Family, Samples]]:
    """Yield the outcome, begin, end (only if each of its runs has ended) and incidents of a night."""
    yield OUTCOME, [((str(outcome),), float(outcome is night.outcome)) for outcome in _NIGHT_OUTCOMES]
    yield BEGAN, [((), night.begins.timestamp())]
    ends = [run.ends for run in night.runs]
    moments = [end.timestamp() for end in ends if end is not None]
    yield ENDED, [((), max(moments))] if moments and len(moments) == len(ends) else []
    yield LAST_INCIDENTS, [((), float(len(night.incidents)))]


_NIGHT_OUTCOMES: Final = (PastOutcome.DONE, PastOutcome.OPEN, PastOutcome.GIVEN_UP, PastOutcome.NOTHING)


def merged_families(texts: Iterable[str]) -> str:
    """Return one text made of those of several vCenters. Each family is in it once, with the samples of all of
    them.

    >>> print(merged_families(["# HELP a b\\n# TYPE a gauge\\na{v=\\"1\\"} 1.0\\n",
    ...                        "# HELP a b\\n# TYPE a gauge\\na{v=\\"2\\"} 1.0\\n"]), end="")
    # HELP a b
    # TYPE a gauge
    a{v="1"} 1.0
    a{v="2"} 1.0
    """
    families: dict[str, list[str]] = {}
    for text in texts:
        heading = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                heading = line
            elif line.startswith("# TYPE "):
                heading = f"{heading}\n{line}"
            else:
                families.setdefault(heading, []).append(line)
    return "".join(f"{heading}\n" + "".join(f"{line}\n" for line in lines) for heading, lines in families.items())


def written_text(path: str, text: bytes) -> str:
    """Return one line with the path and the number of samples."""
    return f"{path}: {count(_samples(text), 'sample')}"


@printed("metrics", by="gpuops metrics --textfile")
class MetricsDocument(PrintedDocument, frozen=True):
    """A file for node_exporter was written."""

    file: str
    samples: Annotated[int, "lines in it that are no comment"]

    @classmethod
    def of_file(cls, path: str, text: bytes) -> Self:
        return cls(path, _samples(text))


def _samples(text: bytes) -> int:
    return sum(not line.startswith(b"#") for line in text.split(b"\n") if line)
