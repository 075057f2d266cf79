"""The fleet as it is and as it would be: the same requests placed on both, and the same night planned on both.

Example: 3 of 8 requests have a place now, 8 would with two more hosts; a night harvests 12 GPU-hours now, 30 then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import fmean
from typing import Final

from gpuops.errors import UsageError
from gpuops.extras.sizing.what_if.changed_fleet import ChangedFleet, changed_fleet
from gpuops.extras.sizing.what_if.demand import (
    DemandSource,
    FleetDemand,
    Peaks,
    PlacedDemand,
    catalog_names,
    made_up_demand,
    place_demand,
    recorded_demand,
)
from gpuops.model.devices.catalog import Catalog
from gpuops.model.fleet_change import AddHosts, AddVms, ApplyLayout, ChangeGpuMode, ChangeProfile, FleetChange
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, is_gpu
from gpuops.model.workloads.workload import Workload
from gpuops.plan.capacity.gpu_models import board_of, find_board
from gpuops.plan.queue.place import Place
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.preview import preview_night

ARRIVALS: Final = 100
SEEDS: Final = 5


@dataclass(frozen=True, slots=True)
class NightAsked:
    """The night that is planned on both fleets."""

    request: RotateNight
    at: datetime


@dataclass(frozen=True, slots=True)
class NightOutcome:
    """The result of one night on one fleet."""

    desktops: int
    """Desktops that are suspended or shut down."""
    starts: int
    """ML VMs that start."""
    waiting: int
    """ML VMs that do not start."""
    gpu_hours: float | None
    """None = the policy has no window that ends it."""
    refusals: tuple[str, ...] = ()
    """Why there is no night."""


@dataclass(frozen=True, slots=True)
class DrawnFigure:
    """A figure for each draw."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def least(self) -> float:
        return min(self.values)

    @property
    def most(self) -> float:
        return max(self.values)


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """One of the two fleets, with the results of requests and nights on it."""

    fleet: ChangedFleet
    """By the first seed."""
    hosts: int
    """Hosts with GPUs that vCenter reaches."""
    gpus: int
    """The GPUs of these hosts."""
    gpu_memory_mib: int
    """The memory of these GPUs, as far as it is known."""
    running: DrawnFigure
    """Running VMs with GPUs."""
    more_placed: DrawnFigure
    """Added VMs that run."""
    requests: tuple[PlacedDemand, ...]
    """The result of each draw."""
    nights: tuple[NightOutcome, ...]
    """The night for each seed with a different fleet; empty = no policy was given."""


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """Both fleets."""

    inventory: Inventory
    demand: FleetDemand
    unwanted: tuple[str, ...]
    """Added GPU models that no request needs."""
    now: FleetOutcome
    then: FleetOutcome
    night_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A question: all of these changes together."""

    changes: tuple[FleetChange, ...]
    requests: tuple[Workload, ...] = ()
    """The requests of a file; empty = recorded days, or made-up arrivals if nothing is recorded."""
    arrivals: int | None = None
    """How many arrivals to make up, even if days are recorded; None = 100, and only if nothing is recorded."""
    seeds: int = SEEDS
    any_model: bool = False
    """Whether a request without a place may have vGPUs of its size and series of another GPU model."""

    @property
    def named(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the GPU models and the vGPU profiles that the changes name."""
        models = (change.model for change in self.changes if isinstance(change, AddHosts | ChangeGpuMode | ApplyLayout))
        profiles = (change.profile for change in self.changes if isinstance(change, ChangeProfile))
        return tuple(model for model in models if model is not None), tuple(profiles)

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Return refs of the hosts whose QueryConfigTarget the answer needs: those a device group may be on."""
        return Place(self.requests).config_targets(inventory)

    def answer(
        self, inventory: Inventory, catalog: Catalog, night: NightAsked | None = None, peaks: Peaks | None = None
    ) -> WhatIfAnswer:
        """Return the results on both fleets. `peaks`: the recorded days.

        Raises UsageError if nothing is changed, and for a change that is impossible or names something missing.
        """
        if not self.changes:
            hint = "name a change: --add-hosts 2xL40S:8, --lose-host HOST, --vgpu-mode mixedSize, --changes FILE"
            raise UsageError("nothing is changed", hint=hint)
        policy = night.request.policy if night is not None else None
        # only the VMs that are added to a pool differ by the seed
        seeds = range(1, self.seeds + 1) if any(isinstance(change, AddVms) for change in self.changes) else (1,)
        then = [changed_fleet(self.changes, inventory, catalog, policy, seed) for seed in seeds]
        Place(self.requests).check_profiles(then[0].inventory, catalog)
        demand = replace(self._demand(inventory, catalog, peaks or {}), any_model=self.any_model)
        return WhatIfAnswer(
            inventory,
            demand,
            unwanted_models(self.changes, demand, then[0].inventory, catalog),
            _outcome([ChangedFleet(inventory)], demand, catalog, night),
            _outcome(then, demand, catalog, night),
            night.at if night is not None else None,
        )

    def _demand(self, inventory: Inventory, catalog: Catalog, peaks: Peaks) -> FleetDemand:
        if self.requests:
            return FleetDemand(DemandSource.FILE, (self.requests,))
        if peaks and self.arrivals is None:
            recorded = recorded_demand(peaks, inventory)
            if recorded.draws:
                return recorded
        return made_up_demand(inventory, catalog, self.arrivals or ARRIVALS, self.seeds)


def _outcome(
    fleets: Sequence[ChangedFleet], demand: FleetDemand, catalog: Catalog, night: NightAsked | None
) -> FleetOutcome:
    """Return the figures of the fleet now (one snapshot), or after the changes (one snapshot for each seed)."""
    first = fleets[0].inventory
    hosts = [host for host in first.hosts.values() if host.gpus and host.connected is not False]
    gpus = [gpu for host in hosts for gpu in host.gpus]
    boards = [board_of(gpu, catalog) for gpu in gpus]
    # each draw is placed on a fleet; the shorter of the two lists begins again
    pairs = max(len(fleets), len(demand.draws)) if demand.draws else 0
    return FleetOutcome(
        fleet=fleets[0],
        hosts=len(hosts),
        gpus=len(gpus),
        gpu_memory_mib=sum(
            gpu.memory_mib or (board.framebuffer_mib if board is not None else 0)
            for gpu, board in zip(gpus, boards, strict=True)
        ),
        running=DrawnFigure(tuple(_running(fleet.inventory) for fleet in fleets)),
        more_placed=DrawnFigure(tuple(fleet.more_placed for fleet in fleets)),
        requests=tuple(
            place_demand(
                demand,
                demand.draws[number % len(demand.draws)],
                fleets[number % len(fleets)].inventory,
                catalog,
            )
            for number in range(pairs)
        ),
        nights=tuple(_night(fleet.inventory, catalog, night) for fleet in fleets) if night is not None else (),
    )


def unwanted_models(
    changes: Sequence[FleetChange], demand: FleetDemand, then: Inventory, catalog: Catalog
) -> tuple[str, ...]:
    """Return the names of GPU models that are added although no request can use them: a profile belongs to one model.

    Empty if there are no requests, if they may use any model, or if one asks for GPUs without a profile.
    """
    models = [change.model for change in changes if isinstance(change, AddHosts) and change.model is not None]
    workloads = {replace(workload, name="") for draw in demand.draws for workload in draw}
    if not workloads or demand.any_model or any(not workload.vgpus for workload in workloads):
        return ()
    names = {name for workload in workloads for name in catalog_names(workload, then, catalog)}
    requested_boards = {profile.board for name in names if (profile := catalog.profile(name)) is not None}
    boards = {board.key: board.name for board in (find_board(model, catalog) for model in models)}
    return tuple(name for key, name in boards.items() if key not in requested_boards)


def _running(inventory: Inventory) -> int:
    return sum(vm.power is PowerState.ON and any(map(is_gpu, vm.devices or ())) for vm in inventory.vms.values())


def _night(inventory: Inventory, catalog: Catalog, night: NightAsked) -> NightOutcome:
    preview = preview_night(night.request, inventory, catalog, night.at)
    decision = preview.night_plan.decision
    return NightOutcome(
        desktops=len(decision.desktops),
        starts=len(decision.starts),
        waiting=sum(not choice.chosen for choice in decision.choices),
        gpu_hours=preview.gpu_hours,
        refusals=tuple(map(str, preview.night_plan.refusals)),
    )
