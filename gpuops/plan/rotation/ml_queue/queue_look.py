"""The ML queue in the order in which a night or a watch would serve it at one moment, for `gpuops queue`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.ml_queue.ml_vms import WaitingVm
from gpuops.plan.rotation.ml_queue.team_shares import gpus_of_vm
from gpuops.plan.rotation.nights.night_plan import NightPlan


class QueueState(StrEnum):
    """The state of a VM in the queue."""

    STARTS = "starts"
    WAITS = "waits"
    """It may start, but there is no room, or its team has reached its limit."""
    RUNS = "runs"
    NOT_NOW = "not now"
    """It does not start even if there is room: it is not off, cannot be read, or this night started it before."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """One VM of the queue, or an entry that selects no VM."""

    waits: WaitingVm
    place: int | None
    """Its place among the VMs that wait for a start, from 1; None = it does not wait."""
    gpus: float | None
    """The GPUs that its devices amount to; None = there is no such VM."""
    state: QueueState
    starts_at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The queue at one moment, and the plan from which its order comes."""

    at: datetime
    inventory: Inventory
    night_plan: NightPlan
    places: tuple[QueuePlace, ...]


def look_at_queue(
    night_plan: NightPlan,
    inventory: Inventory,
    catalog: Catalog,
    at: datetime,
    starts_at: Mapping[str, datetime] | None = None,
) -> QueueLook:
    """Return the queue of this plan. `starts_at`: VM ref -> when the VM is expected to start, if known."""
    starting = {start.vm.ref for start in night_plan.decision.starts}
    expected_starts, number = starts_at or {}, 0
    places = []
    # one choice for each VM of the queue, in its order
    for waits, choice in zip(night_plan.queue, night_plan.decision.choices, strict=True):
        vm = waits.vm
        state = _state_of(waits, starting)
        is_waiting = state in (QueueState.STARTS, QueueState.WAITS)
        if is_waiting:
            number += 1
        places.append(
            QueuePlace(
                waits,
                number if is_waiting else None,
                gpus_of_vm(vm, catalog) if vm is not None else None,
                state,
                expected_starts.get(vm.ref) if vm is not None and state is QueueState.STARTS else None,
                choice.reason,
            )
        )
    return QueueLook(at, inventory, night_plan, tuple(places))


def _state_of(waits: WaitingVm, starting: set[str]) -> QueueState:
    if waits.runs:
        return QueueState.RUNS
    if waits.vm is None or waits.reason:
        return QueueState.NOT_NOW
    return QueueState.STARTS if waits.vm.ref in starting else QueueState.WAITS
