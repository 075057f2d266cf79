"""What one site says of the requests across sites: which it would start, when, until when, and what is free then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuops.advise.occupancy import gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.fair_share import Team
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.placement.project import project
from gpuops.plan.rotation.ml_queue.gpu_share import free_of, serves_vgpus
from gpuops.plan.rotation.ml_queue.queue_look import QueueLook, Turn
from gpuops.plan.rotation.nights.night_plan import NightPlan


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """One request as one site would serve it in its next night."""

    name: str
    exists: bool
    """Whether there is exactly one such VM."""
    team: str
    """Empty = the policy knows no teams."""
    priority: int
    gpus: float
    model: str
    """Of the GPUs that it needs, as the catalogue calls it; empty = not known."""
    turn: Turn
    starts_at: datetime | None = None
    until: datetime | None = None
    """When desktops are due there; None = nobody has said."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TeamTotal:
    """How one team stands over all sites, as one of them reads it."""

    team: Team
    hours: float = 0.0
    """GPU-hours that it had, by the half-life, and those that what runs may still use."""
    week: float = 0.0
    """Of the last 7 days, each hour whole, and those that what runs may still use."""
    gpus: float = 0.0
    """That its VMs hold now, in all sites."""
    gpus_here: float = 0.0
    """Of these, in this site."""


@dataclass(frozen=True, slots=True)
class SiteOffer:
    """The answer of one site that was read."""

    site: str
    vcenter: str
    at: datetime
    """When the night that was looked at begins, or now where it has begun."""
    run_open: bool
    """Whether a run is under way there, or was cut off: it may still start what it has planned."""
    free_gpus: Mapping[str, float]
    """GPU model -> the GPUs of it that surely nobody holds once all has started that its plan starts."""
    requests: Mapping[str, SiteRequest] = field(default_factory=dict)
    teams: tuple[TeamTotal, ...] = ()
    """None of them where its policy does not count over all sites."""


def offer_in(site: str, found: QueueLook, catalog: Catalog, *, run_open: bool) -> SiteOffer:
    """What the look at the queue of one site says."""
    plan = found.night_plan
    requests = {each.name: each for each in requests_of(found, catalog)}
    shares = plan.shares if plan.shares is not None and plan.shares.rule.across_sites else None
    totals = [
        TeamTotal(
            each.team,
            each.use.decayed + each.coming_hours,
            each.use.week + each.coming_hours,
            each.running_gpus,
            each.running_gpus - each.gpus_elsewhere,
        )
        for each in (shares.standings if shares is not None else ())
    ]
    free = free_after(plan, found.inventory, catalog) if requests else {}
    return SiteOffer(site, found.inventory.vcenter, found.at, run_open, free, requests, tuple(totals))


def requests_of(found: QueueLook, catalog: Catalog) -> Iterator[SiteRequest]:
    """The requests across sites of a queue, in its order."""
    night = found.night_plan.bounds.night
    for place in found.places:
        vm, waits = place.waits.vm, place.waits
        if waits.queued.across_sites:
            yield SiteRequest(
                vm.name if vm is not None else waits.name,
                vm is not None,
                waits.team,
                waits.queued.priority,
                place.gpus or 0.0,
                model_of(vm, catalog) if vm is not None else "",
                place.turn,
                place.starts_at,
                night.back_by if night is not None else None,
                place.reason,
            )


def model_of(vm: Vm, catalog: Catalog) -> str:
    """The GPU model that its vGPUs are of; empty = it has none, or of no known one."""
    boards = (catalog.board_of(profile) for profile in vm.profiles)
    return next((board.key for board in boards if board is not None), "")


def free_after(night_plan: NightPlan, inventory: Inventory, catalog: Catalog) -> dict[str, float]:
    """GPU model -> the GPUs that serve vGPUs and surely nobody holds once the plan is done."""
    after = inventory
    for step in night_plan.plan().steps:
        after = project(step, after, catalog)
    free: dict[str, float] = {}
    for host in after.hosts.values():
        for state in gpu_states(host, after, catalog):
            board = catalog.board_by_pci(state.gpu.vendor_id, state.gpu.device_id, state.gpu.subsystem_id)
            if board is not None and serves_vgpus(state):
                free[board.key] = free.get(board.key, 0.0) + (free_of(state, catalog) or 0.0)
    return free
