"""The document of `gpuops report`: the fleet, its use, past nights, idle desktops, free GPUs, findings, and GPU-hours.

Modes and schedulers of GPUs are grouped by settings: a fleet has few combinations, so exceptions stand out. The use of
GPUs and VMs is summed over GPUs, in series that are short enough for a small chart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final, Self

import numpy as np

from gpuops.advise.gpu_hours import OwnerShare, Showback
from gpuops.advise.idle import JudgedVm, Use
from gpuops.extras.diagnosis.answer import StoredDiagnosis
from gpuops.extras.diagnosis.case import Component
from gpuops.extras.diagnosis.view import SuspectRecord
from gpuops.extras.observe.stored_gpu_use import (
    HOURS_PER_STEP,
    FragmentationHistory,
    GpuHistory,
    GpuKey,
    Numbers,
    StoredUse,
)
from gpuops.extras.web.page.fleet_map import (
    FleetUseRecord,
    FreeSlotsRecord,
    MappedHostRecord,
    MappedVmRecord,
    fleet_map,
)
from gpuops.model.devices.catalog import Catalog
from gpuops.model.measurements.measurement import MeasuredUse
from gpuops.model.nights.history import GpuHours, PastEvents, PastNight
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.plan.capacity.capacity_request import Capacity
from gpuops.plan.capacity.fleet_room import Fit, FleetPart
from gpuops.plan.core.scope import cluster_name
from gpuops.plan.doctor.examination import Examination
from gpuops.plan.hosts.scheduler.module_options import Reading, Unread
from gpuops.plan.hosts.scheduler.scheduler_state import GpuScheduler, HostScheduler, scheduler_of
from gpuops.plan.rotation.ml_queue.team_shares import gpus_of
from gpuops.report.document import DocumentRecord, Moment, Ref, VersionedSiteDocument, printed
from gpuops.report.monitoring.doctor_view import FindingRecord
from gpuops.report.monitoring.fleet_view import Fleet, mode, reboot_pending
from gpuops.report.monitoring.inventory_view import by_size
from gpuops.report.nights.history_view import HistoryTotalsRecord, NightInFullRecord, PastNightRecord

MOST_GPUS: Final = 400
"""With more GPUs, only hosts and clusters have a history in the page: the series of 400 GPUs take 1 MB."""

Series = Annotated[list[int | None] | None, "a number for each step; null = not measured, as a whole or in a step"]


class MeasuredGpuRecord(DocumentRecord, frozen=True):
    """What a GPU does in the newest five minutes; null = not measured."""

    utilization_percent: float | None
    memory_used_mib: int | None
    temperature_c: int | None
    power_w: int | None
    power_limit_w: Annotated[int | None, "in force; this and the following by the nvidia-smi of its host"]
    clock_mhz: Annotated[int | None, "of its streaming multiprocessors"]
    ecc_uncorrected: Annotated[int | None, "memory errors since the host's last boot that were not corrected"]
    slowed_by_heat: bool | None
    slowed_by_power: bool | None


class MeasuredVmRecord(DocumentRecord, frozen=True):
    """What a VM uses of its vGPUs in the newest five minutes; null = not measured."""

    utilization_percent: float | None
    memory_used_mib: int | None


class UseSeriesRecord(DocumentRecord, frozen=True):
    """The history of one GPU, or of the GPUs of a host or cluster that were measured."""

    utilization_percent: Annotated[Series, "the mean over GPUs"]
    memory_percent: Annotated[Series, "of the frame buffer; the mean over GPUs"]
    power_w: Annotated[Series, "the sum over GPUs"]
    temperature_c: Annotated[Series, "of the hottest GPU"]
    slowed: Annotated[Series, "how many GPUs were clocked down at a reading, because of heat or for want of power"]


class FragmentationSeriesRecord(DocumentRecord, frozen=True):
    """The history of a cluster's free GPU memory that VMs could not use."""

    percent: Annotated[Series, "of the free memory, what the average VM could not use (F of FGD)"]
    unusable_gpus_percent: Annotated[Series, "of the GPUs with free memory, those that could take no waiting VM"]


class UseHistoryRecord(DocumentRecord, frozen=True):
    """A week of GPU use, by name of the cluster (empty = standalone hosts), by host, and by host and GPU."""

    begin: Moment
    step_s: int
    clusters: dict[str, UseSeriesRecord]
    fragmentation: Annotated[dict[str, FragmentationSeriesRecord], "by name of the cluster, as `clusters`"]
    hosts: Annotated[dict[str, UseSeriesRecord], "by managed object id"]
    gpus: Annotated[
        dict[str, UseSeriesRecord] | None, "by the host's managed object id, a space and the address; null = too many"
    ]


class MeasuredFleetRecord(DocumentRecord, frozen=True):
    """What `gpuops observe` has stored of this vCenter."""

    until: Annotated[Moment, "of the last observation"]
    gpus: Annotated[
        dict[str, MeasuredGpuRecord] | None,
        "by the host's managed object id, a space and the address; null = the last observation is an hour old or more",
    ]
    vms: Annotated[dict[str, MeasuredVmRecord] | None, "by managed object id; null = as above"]
    history: UseHistoryRecord


def measured_record(stored: StoredUse, inventory: Inventory) -> MeasuredFleetRecord:
    """Return the stored numbers of GPUs and VMs that are still in the inventory; None = no recent sample."""
    now = stored.now
    gpus = [(host.ref, gpu.address) for host in inventory.hosts.values() for gpu in host.gpus]
    return MeasuredFleetRecord(
        until=Moment(stored.newest.until.isoformat()),
        gpus=None
        if now is None
        else {_gpu_key(gpu): MeasuredGpuRecord.from_attributes(now.gpus[gpu]) for gpu in gpus if gpu in now.gpus},
        vms=None
        if now is None
        else {
            ref: MeasuredVmRecord(use.utilization_percent, use.memory_used_mib)
            for ref, use in sorted(now.vms.items())
            if ref in inventory.vms and use != MeasuredUse()  # a VM without any number is left out
        },
        history=_history(stored, inventory),
    )


def _gpu_key(gpu: GpuKey) -> str:
    return f"{gpu[0]} {gpu[1]}"


def _history(stored: StoredUse, inventory: Inventory) -> UseHistoryRecord:
    """Return a series for each cluster, host and GPU; none for GPUs if more than `MOST_GPUS` were measured."""
    sizes = {(host.ref, gpu.address): gpu.memory_mib for host in inventory.hosts.values() for gpu in host.gpus}
    gpus_by_host: dict[str, list[GpuKey]] = {}
    gpus_by_cluster: dict[str, list[GpuKey]] = {}
    for gpu in stored.history:
        if gpu in sizes:
            gpus_by_host.setdefault(gpu[0], []).append(gpu)
            gpus_by_cluster.setdefault(cluster_name(inventory.hosts[gpu[0]], inventory) or "", []).append(gpu)

    def series_of(gpus: Iterable[GpuKey]) -> UseSeriesRecord:
        return _series([(stored.history[gpu], sizes[gpu]) for gpu in gpus])

    measured_gpus = sorted((gpu for gpus in gpus_by_host.values() for gpu in gpus), key=_gpu_key)
    return UseHistoryRecord(
        begin=Moment(stored.begin.isoformat()),
        step_s=HOURS_PER_STEP * 3600,
        clusters={name: series_of(gpus) for name, gpus in sorted(gpus_by_cluster.items())},
        fragmentation=_fragmentation(stored, inventory),
        hosts={ref: series_of(gpus) for ref, gpus in sorted(gpus_by_host.items())},
        gpus={_gpu_key(gpu): series_of([gpu]) for gpu in measured_gpus} if len(measured_gpus) <= MOST_GPUS else None,
    )


def _fragmentation(stored: StoredUse, inventory: Inventory) -> dict[str, FragmentationSeriesRecord]:
    """Return by cluster, for each step: the share of free GPU memory that is fragmented, and of free GPUs without use.

    Both shares are in percent, of sums over the hosts of the cluster that are still in the inventory.
    """
    by_cluster: dict[str, list[FragmentationHistory]] = {}
    for ref, history in stored.fragmentation.items():
        if ref in inventory.hosts:
            by_cluster.setdefault(cluster_name(inventory.hosts[ref], inventory) or "", []).append(history)
    return {
        name: FragmentationSeriesRecord(
            percent=_percentages([host.fragmented_mib for host in hosts], [host.free_mib for host in hosts]),
            unusable_gpus_percent=_percentages(
                [host.unusable_gpus for host in hosts if host.unusable_gpus is not None],
                [host.free_gpus for host in hosts if host.unusable_gpus is not None],
            ),
        )
        for name, hosts in sorted(by_cluster.items())
    }


def _percentages(parts: list[Numbers], wholes: list[Numbers]) -> list[int | None] | None:
    """Return for each step the percentage that the sum of the parts is of the sum of the wholes.

    None = not measured, in a step or in all of them. The percentage of a sum of 0 is 0.
    """
    part_sums, whole_sums = _combined(parts, "sum"), _combined(wholes, "sum")
    if part_sums is None or whole_sums is None:
        return None
    pairs = zip(part_sums, whole_sums, strict=True)
    return [None if part is None or whole is None else round(100 * part / max(1, whole)) for part, whole in pairs]


def _series(gpus: list[tuple[GpuHistory, int | None]]) -> UseSeriesRecord:
    """Return the series of these GPUs together; each comes with its memory in MiB, None = unknown."""
    memory = [history.memory_mib / size * 100 for history, size in gpus if history.memory_mib is not None and size]
    return UseSeriesRecord(
        utilization_percent=_combined([history.utilization_percent for history, _ in gpus], "mean"),
        memory_percent=_combined(memory, "mean"),
        power_w=_combined([history.power_w for history, _ in gpus], "sum"),
        temperature_c=_combined([history.temperature_c for history, _ in gpus], "highest"),
        slowed=_combined([history.slowed for history, _ in gpus], "sum"),
    )


def _combined(series: Iterable[Numbers | None], how: str) -> list[int | None] | None:
    """Return a rounded number for each step: the mean, sum or highest (`how`) of the GPUs measured in that step.

    None stands for a step in which no GPU was measured, or for the whole series if there is none.
    """
    measured = [numbers for numbers in series if numbers is not None]
    if not measured:
        return None
    table = np.stack(measured)  # a row for each GPU, a column for each step; NaN = not measured
    is_known = ~np.isnan(table)
    counts = is_known.sum(axis=0)
    sums = np.where(is_known, table, 0).sum(axis=0)
    combined: Mapping[str, Numbers] = {
        "mean": sums / np.maximum(counts, 1),
        "sum": sums,
        "highest": np.where(is_known, table, 0).max(axis=0),
    }
    return [round(float(number)) if count else None for number, count in zip(combined[how], counts, strict=True)]


class HostModeRecord(DocumentRecord, frozen=True):
    """GPUs of the same settings; null = not known."""

    gpu: Annotated[str, "the model"]
    mode: Annotated[str, "what they take now"]
    scheduler: Annotated[str | None, "of their vGPUs, as it is configured"]
    scheduler_in_force: str | None
    reboot_pending: bool | None
    assignment_policy: str | None
    driver: Annotated[str | None, "version of the host's NVIDIA driver"]
    gpus: int
    hosts: Annotated[list[str], "names"]


def host_modes(hosts: Iterable[Host], catalog: Catalog) -> list[HostModeRecord]:
    """Return a record for each combination of settings, with the names of the hosts that have it; null = unknown."""
    names_by_settings: dict[_Settings, list[str]] = {}
    for host in hosts:
        scheduler = scheduler_of(host, catalog)
        for gpu_scheduler in scheduler.gpus:
            names_by_settings.setdefault(_settings(gpu_scheduler, scheduler), []).append(host.name)
    ordered = sorted(names_by_settings.items(), key=lambda group: tuple(map(str, group[0])))
    return [HostModeRecord(*settings, len(names), sorted(set(names))) for settings, names in ordered]


_Settings = tuple[str, str, str | None, str | None, bool | None, str | None, str | None]
"""The first fields of HostModeRecord."""


def _settings(gpu_scheduler: GpuScheduler, host: HostScheduler) -> _Settings:
    """Return the settings of the GPU. If its scheduler is unknown, the texts of both schedulers are the reason."""
    gpu = gpu_scheduler.gpu
    note = gpu_scheduler.note
    return (
        gpu.name,
        mode(gpu),
        note or _scheduler_text(gpu_scheduler.configured),
        note or _scheduler_text(gpu_scheduler.effective),
        reboot_pending(gpu) or gpu_scheduler.reboot_pending,
        host.host.assignment_policy,
        host.driver.version if host.driver else None,
    )


def _scheduler_text(reading: Reading | None) -> str | None:
    return None if reading is None or isinstance(reading, Unread) else str(reading)


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What a report is made of: one read of vCenter, and the files of this machine about it."""

    fleet: Fleet
    examination: Examination
    capacity: Capacity
    nights: PastEvents
    """The requested nights of this vCenter."""
    since: datetime | None
    policy: Policy | None
    idle: Sequence[JudgedVm] | None
    """None = without a policy, no desktop is judged."""
    showback: Showback
    owners: OwnerKey
    diagnoses: Mapping[str, StoredDiagnosis] = field(default_factory=dict)
    """The last answer of `gpuops diagnose`, by managed object id of a VM."""
    measured: StoredUse | None = None
    """None = `gpuops observe` has not measured this vCenter."""

    @property
    def last_night(self) -> PastNight | None:
        return self.nights.nights[0] if self.nights.nights else None


class ProfileCapacityRecord(DocumentRecord, frozen=True):
    """Room for vGPUs of one profile, now and when the desktops of the policy are suspended; null = no policy."""

    name: str
    now: FreeSlotsRecord
    in_one_vm: FreeSlotsRecord
    after: FreeSlotsRecord | None


class WholeGpuCapacityRecord(DocumentRecord, frozen=True):
    """Free GPUs in DirectPath I/O of one kind."""

    name: str
    label: Annotated[str | None, "the hardware label"]
    at_least: int
    at_most: int | None


class FleetCapacityRecord(DocumentRecord, frozen=True):
    """How many more fit, each figure for its profile alone."""

    profiles: list[ProfileCapacityRecord]
    whole_gpus: list[WholeGpuCapacityRecord]
    desktops_to_suspend: Annotated[int | None, "by the night of the policy"]
    suspended_vms: Annotated[list[str], "names of VMs whose GPUs are counted as free"]


class JudgedDesktopRecord(DocumentRecord, frozen=True):
    """Whether a desktop is used, and why that is thought."""

    ref: Ref
    name: str
    pool: str | None
    verdict: Use
    candidate: Annotated[bool, "whether a night could take it for being idle"]
    gpus: Annotated[float | None, "whole GPUs that its vGPUs amount to"]
    because: str
    decided_by: Annotated[str | None, "the source that decides; null = all of them"]
    idle_for_s: float | None


class OwnerShareRecord(DocumentRecord, frozen=True):
    """What the VMs of one owner had."""

    owner: Annotated[str | None, "null = the VM says none, or is not in vCenter any more"]
    vms: int
    gpu_hours: Annotated[float | None, "null = of some it is not certain"]
    gpu_hours_at_least: float
    percent: Annotated[float | None, "of the hours that are certain; all of them add up to 100.00"]

    @classmethod
    def made_of(cls, share: OwnerShare) -> Self:
        return cls.from_attributes(share, owner=share.owner or None, **_hours(share.hours))


class ShowbackRecord(DocumentRecord, frozen=True):
    """GPU-hours of ML VMs in these nights, by owner."""

    by: Annotated[str, "folder, tag:CATEGORY or attribute:NAME"]
    gpu_hours: Annotated[float | None, "null = of some it is not certain"]
    gpu_hours_at_least: float
    owners: Annotated[list[OwnerShareRecord], "the largest first"]


class ReportedDiagnosisRecord(DocumentRecord, frozen=True):
    """What `gpuops diagnose` last said of a VM, and what people found since."""

    id: Annotated[str, "by which it is confirmed or corrected"]
    ref: Ref
    vm: str
    host: str | None
    at: Annotated[Moment, "when that was said, by vCenter's clock"]
    suspects: Annotated[list[SuspectRecord], "the most probable first"]
    found: Annotated[list[Component] | None, "null = it was not confirmed or corrected"]


@printed("report", by="gpuops report")
class ReportDocument(VersionedSiteDocument, frozen=True):
    """The fleet, its past nights, and what needs attention."""

    since: Annotated[Moment | None, "nights that began since then; null = all"]
    policy: Annotated[str | None, "its name"]
    use: FleetUseRecord
    rooms: Annotated[
        list[dict[str, FreeSlotsRecord]],
        "what is free on GPUs, by profile, each combination once; `room` of a GPU is its number",
    ]
    hosts: Annotated[list[MappedHostRecord], "those with GPUs"]
    vms: Annotated[list[MappedVmRecord], "those with a GPU device"]
    measured: Annotated[MeasuredFleetRecord | None, "null = `gpuops observe` has not measured this vCenter"]
    capacity: FleetCapacityRecord
    modes: list[HostModeRecord]
    findings: Annotated[list[FindingRecord], "worst first"]
    totals: HistoryTotalsRecord
    nights: Annotated[list[PastNightRecord], "newest first"]
    last_night: Annotated[NightInFullRecord | None, "the newest of them"]
    idle: Annotated[list[JudgedDesktopRecord] | None, "null = no policy says what is idle"]
    showback: ShowbackRecord
    diagnoses: Annotated[list[ReportedDiagnosisRecord], "what `gpuops diagnose` last said of VMs; worst first"]


def fleet_report_document(report: FleetReport) -> ReportDocument:
    """Return the document of the report; null = not known."""
    inventory = report.fleet.inventory
    return ReportDocument.from_attributes(
        inventory,
        read_at=inventory.taken_at,
        since=report.since,
        policy=report.policy.name if report.policy is not None else None,
        **fleet_map(report.fleet, report.policy),
        measured=None if report.measured is None else measured_record(report.measured, inventory),
        capacity=_capacity(report.capacity),
        modes=host_modes(report.fleet.gpu_hosts, report.fleet.catalog),
        findings=report.examination.findings,
        totals=report.nights,
        nights=report.nights.nights,
        last_night=report.last_night,
        idle=None if report.idle is None else [_judged_desktop(judged, report) for judged in report.idle],
        showback=ShowbackRecord.from_attributes(
            report.showback, by=str(report.owners), **_hours(report.showback.hours)
        ),
        diagnoses=[
            _diagnosis(diagnosis, inventory) for diagnosis in most_probable_fault_first(report.diagnoses, inventory)
        ],
    )


def most_probable_fault_first(diagnoses: Mapping[str, StoredDiagnosis], inventory: Inventory) -> list[StoredDiagnosis]:
    """Return the diagnoses of VMs that still exist: those with the most probable fault first."""

    def sort_key(diagnosis: StoredDiagnosis) -> tuple[float, str, str]:
        highest = max(
            (share for component, share in diagnosis.probable if component is not Component.NONE), default=0.0
        )
        return -highest, inventory.vms[diagnosis.vm].name, diagnosis.vm

    return sorted((diagnosis for diagnosis in diagnoses.values() if diagnosis.vm in inventory.vms), key=sort_key)


def _diagnosis(diagnosis: StoredDiagnosis, inventory: Inventory) -> ReportedDiagnosisRecord:
    vm = inventory.vms[diagnosis.vm]
    host = inventory.host_of(vm)
    return ReportedDiagnosisRecord.from_attributes(
        diagnosis, vm, vm=vm.name, host=host.name if host is not None else None
    )


def _capacity(capacity: Capacity) -> FleetCapacityRecord:
    """Return the free slots by profile, and the free whole GPUs, by model and label."""
    return FleetCapacityRecord(
        profiles=[
            _profile_capacity(name, capacity.now.fits[name], capacity.after)
            for name in sorted(capacity.now.fits, key=by_size)
        ],
        whole_gpus=[
            WholeGpuCapacityRecord.from_attributes(slots, name=device.name, label=device.label or None)
            for device, slots in capacity.now.devices.items()
        ],
        desktops_to_suspend=None if capacity.after is None else capacity.desktops,
        suspended_vms=list(capacity.suspended),
    )


def _profile_capacity(name: str, fit: Fit, after: FleetPart | None) -> ProfileCapacityRecord:
    """Return how many vGPUs of the profile fit now, and `after` the desktops of the policy are suspended."""
    fit_after = after.fits.get(name) if after is not None else None
    return ProfileCapacityRecord.from_attributes(
        name=name, now=fit.slots, in_one_vm=fit.on_one_host, after=fit_after and fit_after.slots
    )


def _judged_desktop(judged: JudgedVm, report: FleetReport) -> JudgedDesktopRecord:
    """Return the record of a desktop with its verdict."""
    verdict = judged.verdict
    gpus = gpus_of(judged.vm.profiles, report.fleet.catalog)
    return JudgedDesktopRecord.from_attributes(
        judged.vm,
        verdict,
        pool=judged.pool,
        verdict=verdict.use,
        candidate=verdict.use is Use.IDLE,
        gpus=None if gpus is None else round(gpus, 4),
        because=verdict.reason,
    )


def _hours(hours: GpuHours) -> dict[str, float | None]:
    """Return the GPU-hours rounded to four decimals, as in `history`."""
    exact = hours.exact
    return {
        "gpu_hours": None if exact is None else round(exact, 4),
        "gpu_hours_at_least": round(hours.at_least, 4),
    }
