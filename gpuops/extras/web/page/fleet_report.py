"""The document of a report: the fleet, past nights, idle desktops, free GPUs, findings, and GPU-hours by owner.

Modes and schedulers of GPUs are grouped by settings: a fleet has few combinations, so exceptions stand out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Self

from gpuops.advise.gpu_hours import OwnerShare, Showback
from gpuops.advise.idle import JudgedVm, Use
from gpuops.extras.diagnosis.answer import StoredDiagnosis
from gpuops.extras.diagnosis.case import Component
from gpuops.extras.diagnosis.view import SuspectRecord
from gpuops.extras.observe.stored_gpu_use import StoredUse
from gpuops.extras.web.page.fleet_map import (
    FleetUseRecord,
    FreeSlotsRecord,
    MappedHostRecord,
    MappedVmRecord,
    fleet_map,
)
from gpuops.extras.web.page.measured import MeasuredFleetRecord, measured_record
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.history import GpuHours, PastEvents, PastNight
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.plan.capacity.capacity_request import Capacity
from gpuops.plan.capacity.fleet_room import Fit, FleetPart
from gpuops.plan.doctor.examination import Examination
from gpuops.plan.hosts.scheduler.module_options import Reading, Unread
from gpuops.plan.hosts.scheduler.state import GpuScheduler, HostScheduler, scheduler_of
from gpuops.plan.rotation.ml_queue.team_shares import gpus_of
from gpuops.report.document import DocumentRecord, Moment, Ref, VersionedSiteDocument, printed
from gpuops.report.monitoring.doctor import FindingRecord
from gpuops.report.monitoring.fleet import Fleet, mode, reboot_pending
from gpuops.report.monitoring.inventory import by_size
from gpuops.report.nights.history_rows import HistoryTotalsRecord, NightInFullRecord, PastNightRecord


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
"""The first fields of the record."""


def _settings(gpu_scheduler: GpuScheduler, host: HostScheduler) -> _Settings:
    """Return the first fields of the GPU's record. If its scheduler is unknown, both of its texts are the reason."""
    gpu = gpu_scheduler.gpu
    note = gpu_scheduler.note
    return (
        gpu.name,
        mode(gpu),
        note or _words(gpu_scheduler.configured),
        note or _words(gpu_scheduler.effective),
        reboot_pending(gpu) or gpu_scheduler.reboot_pending,
        host.host.assignment_policy,
        host.driver.version if host.driver else None,
    )


def _words(reading: Reading | None) -> str | None:
    return None if reading is None or isinstance(reading, Unread) else str(reading)


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The sources of a report: one reading of vCenter, and the journal."""

    fleet: Fleet
    examination: Examination
    capacity: Capacity
    nights: PastEvents
    """The requested nights of this vCenter."""
    since: datetime | None
    policy: Policy | None
    idle: Sequence[JudgedVm] | None
    """None = no policy says what is idle."""
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
        idle=None if report.idle is None else [_idle(judged, report) for judged in report.idle],
        showback=ShowbackRecord.from_attributes(
            report.showback, by=str(report.owners), **_hours(report.showback.hours)
        ),
        diagnoses=[_diagnosis(diagnosis, inventory) for diagnosis in slowest_first(report.diagnoses, inventory)],
    )


def slowest_first(diagnoses: Mapping[str, StoredDiagnosis], inventory: Inventory) -> list[StoredDiagnosis]:
    """Return the diagnoses of VMs that still exist: those with the most probable fault first."""

    def order(diagnosis: StoredDiagnosis) -> tuple[float, str, str]:
        worst = max((share for component, share in diagnosis.probable if component is not Component.NONE), default=0.0)
        return -worst, inventory.vms[diagnosis.vm].name, diagnosis.vm

    return sorted((diagnosis for diagnosis in diagnoses.values() if diagnosis.vm in inventory.vms), key=order)


def _diagnosis(diagnosis: StoredDiagnosis, inventory: Inventory) -> ReportedDiagnosisRecord:
    vm = inventory.vms[diagnosis.vm]
    host = inventory.host_of(vm)
    return ReportedDiagnosisRecord.from_attributes(
        diagnosis, vm, vm=vm.name, host=host.name if host is not None else None
    )


def _capacity(capacity: Capacity) -> FleetCapacityRecord:
    return FleetCapacityRecord(
        profiles=[
            _fit(name, capacity.now.fits[name], capacity.after) for name in sorted(capacity.now.fits, key=by_size)
        ],
        whole_gpus=[
            WholeGpuCapacityRecord.from_attributes(slots, name=device.name, label=device.label or None)
            for device, slots in capacity.now.devices.items()
        ],
        desktops_to_suspend=None if capacity.after is None else capacity.desktops,
        suspended_vms=list(capacity.suspended),
    )


def _fit(name: str, fit: Fit, after: FleetPart | None) -> ProfileCapacityRecord:
    later = after.fits.get(name) if after is not None else None
    return ProfileCapacityRecord.from_attributes(
        name=name, now=fit.slots, in_one_vm=fit.on_one_host, after=later and later.slots
    )


def _idle(judged: JudgedVm, report: FleetReport) -> JudgedDesktopRecord:
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
