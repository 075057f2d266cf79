"""What a report says, as one document: of the fleet, of past nights, of what is idle, free or in the way, and whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpuops.advise.diagnosis.answer import StoredDiagnosis
from gpuops.advise.evidence import Use
from gpuops.advise.idle import JudgedVm
from gpuops.advise.showback import Showback
from gpuops.model.measurements.component import Component
from gpuops.model.nights.history import GpuHours, PastEvents, PastNight
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.plan.capacity.fleet_part import Fit, FleetPart
from gpuops.plan.capacity.question import Capacity
from gpuops.plan.doctor.examination import Examination
from gpuops.plan.rotation.ml_queue.gpu_share import gpus_of
from gpuops.report.document import SCHEMA_VERSION, Document, as_values
from gpuops.report.monitoring.diagnosis import stored_document
from gpuops.report.monitoring.fleet import Fleet
from gpuops.report.monitoring.inventory import by_size
from gpuops.report.nights.history_rows import HistoryTotalsRecord, NightInFullRecord, PastNightRecord
from gpuops.report.page.fleet_map import fleet_map
from gpuops.report.page.host_modes import host_modes


@dataclass(frozen=True, slots=True)
class FleetReport:
    """All that a report is made of; every part of it is of the same read of vCenter, or of the journal."""

    fleet: Fleet
    examination: Examination
    capacity: Capacity
    nights: PastEvents
    """The nights of this vCenter that are asked for."""
    since: datetime | None
    policy: Policy | None
    idle: Sequence[JudgedVm] | None
    """None = no policy says what is idle."""
    showback: Showback
    owners: OwnerKey
    diagnoses: Mapping[str, StoredDiagnosis] = field(default_factory=dict)
    """What `gpuops diagnose` last said, by managed object id of a VM."""

    @property
    def last_night(self) -> PastNight | None:
        return self.nights.nights[0] if self.nights.nights else None


def fleet_report_document(found: FleetReport) -> Document:
    """The whole report; null = not known."""
    inventory = found.fleet.inventory
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "report",
        "vcenter": inventory.vcenter,
        "api_version": inventory.api_version,
        "read_at": inventory.taken_at.isoformat(),
        "since": found.since.isoformat() if found.since is not None else None,
        "policy": found.policy.name if found.policy is not None else None,
        **fleet_map(found.fleet, found.policy),
        "capacity": _capacity(found.capacity),
        "modes": host_modes(found.fleet.gpu_hosts, found.fleet.catalog),
        "findings": [
            {"severity": each.severity.value, "subject": each.subject, "reason": each.reason, "fix": each.fix}
            for each in found.examination.findings
        ],
        "totals": as_values(HistoryTotalsRecord.made_of(found.nights)),
        "nights": [as_values(PastNightRecord.made_of(night)) for night in found.nights.nights],
        "last_night": as_values(NightInFullRecord.made_of(found.last_night)) if found.last_night is not None else None,
        "idle": None if found.idle is None else [_idle(each, found) for each in found.idle],
        "showback": _showback(found.showback, found.owners),
        "diagnoses": [
            stored_document(each, inventory.vms[each.vm], inventory)
            for each in slowest_first(found.diagnoses, inventory)
        ],
    }


def slowest_first(diagnoses: Mapping[str, StoredDiagnosis], inventory: Inventory) -> list[StoredDiagnosis]:
    """Those of VMs that are still there: faults before what shows nothing, and the most probable first."""

    def order(each: StoredDiagnosis) -> tuple[float, str, str]:
        worst = max((share for component, share in each.probable if component is not Component.NONE), default=0.0)
        return -worst, inventory.vms[each.vm].name, each.vm

    return sorted((each for each in diagnoses.values() if each.vm in inventory.vms), key=order)


def _capacity(found: Capacity) -> Document:
    return {
        "profiles": [_fit(name, found.now.fits[name], found.after) for name in sorted(found.now.fits, key=by_size)],
        "whole_gpus": [
            {
                "name": device.name,
                "label": device.label or None,
                "at_least": slots.at_least,
                "at_most": slots.at_most,
            }
            for device, slots in found.now.devices.items()
        ],
        "desktops_to_suspend": None if found.after is None else found.desktops,
        "suspended_vms": list(found.suspended),
    }


def _fit(name: str, fit: Fit, after: FleetPart | None) -> Document:
    later = after.fits.get(name) if after is not None else None
    return {
        "name": name,
        "now": {"at_least": fit.slots.at_least, "at_most": fit.slots.at_most},
        "in_one_vm": {"at_least": fit.on_one_host.at_least, "at_most": fit.on_one_host.at_most},
        "after": None if later is None else {"at_least": later.slots.at_least, "at_most": later.slots.at_most},
    }


def _idle(judged: JudgedVm, found: FleetReport) -> Document:
    verdict = judged.verdict
    gpus = gpus_of(judged.vm.profiles, found.fleet.catalog)
    return {
        "ref": judged.vm.ref,
        "name": judged.vm.name,
        "pool": judged.pool,
        "verdict": verdict.use.value,
        "candidate": verdict.use is Use.IDLE,
        "gpus": None if gpus is None else round(gpus, 4),
        "because": verdict.reason,
        "decided_by": verdict.decided_by,
        "idle_for_s": verdict.idle_for_s,
    }


def _showback(found: Showback, key: OwnerKey) -> Document:
    return {
        "by": str(key),
        **_hours(found.hours),
        "owners": [
            {"owner": each.owner or None, "vms": each.vms, **_hours(each.hours), "percent": each.percent}
            for each in found.owners
        ],
    }


def _hours(hours: GpuHours) -> Document:
    """To a ten-thousandth, as in `history`."""
    exact = hours.exact
    return {
        "gpu_hours": None if exact is None else round(exact, 4),
        "gpu_hours_at_least": round(hours.at_least, 4),
    }
