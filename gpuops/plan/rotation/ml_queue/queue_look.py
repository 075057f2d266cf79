"""The ML queue in the order in which a night, or a watch, would take it at a moment, for `gpuops queue`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.ml_queue.gpu_share import gpus_of_vm
from gpuops.plan.rotation.ml_queue.ml_vms import WaitingVm
from gpuops.plan.rotation.nights.night_plan import NightPlan


class Turn(StrEnum):
    """What becomes of a VM of the queue."""

    STARTS = "starts"
    WAITS = "waits"
    """It may start, and there is no room, or its team has what it may have."""
    RUNS = "runs"
    NOT_NOW = "not now"
    """Whatever room there is: it is not off, or cannot be read, or this night has started it before."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """One VM of the queue, or an entry that means none."""

    waits: WaitingVm
    place: int | None
    """Its place among those that wait for a start, from 1 on; None = it is not among them."""
    gpus: float | None
    """What its devices amount to; None = there is no such VM."""
    turn: Turn
    starts_at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class QueueLook:
    """The queue at a moment, and the plan that its order is of."""

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
    """The queue of this plan. `starts_at`: VM ref -> when it is expected to start, where that is known."""
    starting = {start.vm.ref for start in night_plan.decision.starts}
    known, number = starts_at or {}, 0
    places = []
    # one choice for each VM of the queue, in its order
    for waits, choice in zip(night_plan.queue, night_plan.decision.choices, strict=True):
        vm = waits.vm
        turn = _turn(waits, starting)
        stands = turn in (Turn.STARTS, Turn.WAITS)
        number += stands
        places.append(
            QueuePlace(
                waits,
                number if stands else None,
                gpus_of_vm(vm, catalog) if vm is not None else None,
                turn,
                known.get(vm.ref) if vm is not None and turn is Turn.STARTS else None,
                choice.reason,
            )
        )
    return QueueLook(at, inventory, night_plan, tuple(places))


def _turn(waits: WaitingVm, starting: set[str]) -> Turn:
    if waits.runs:
        return Turn.RUNS
    if waits.vm is None or waits.reason:
        return Turn.NOT_NOW
    return Turn.STARTS if waits.vm.ref in starting else Turn.WAITS
