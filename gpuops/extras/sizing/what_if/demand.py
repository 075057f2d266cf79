"""Makes the requests for both fleets, and places them: requests of a file, recorded days, or made-up arrivals.

* a file: its requests, placed as `gpuops place --file` places them, the largest first;
* recorded days: for each profile, as many vGPUs as the peak of the day is above the number that runs now, each in a VM
  of the median size for that profile. Peaks of different profiles may be at different hours;
* made-up arrivals: copies of VMs that run with GPUs now, selected at random by the seed.

Arrivals, recorded or made up, are placed one after another, each without knowledge of the next; none of them leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from statistics import median
from typing import Final

from gpuops.extras.sizing.what_if.changed_fleet import drawn
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, PowerState, VgpuDevice, Vm
from gpuops.model.workloads.workload import Vgpus, Workload
from gpuops.plan.capacity.gpu_models import board_of
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.suspended_vms import with_claims
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.batch.batch_model import expecting_starts
from gpuops.plan.queue.one_by_one import Queue
from gpuops.plan.queue.one_workload import Placed
from gpuops.plan.queue.workload_hosts import choices_of_devices, framebuffer_mib

MOST_DAYS: Final = 28
"""The number of recorded days to place at most, the last ones."""

Peaks = Mapping[str, Mapping[date, int]]
"""By profile and day, the most vGPUs that ran at once."""


class DemandSource(StrEnum):
    """Where requests come from."""

    FILE = "file"
    RECORDED = "recorded days"
    MADE_UP = "made-up arrivals"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FleetDemand:
    """The requests of each recorded day, or of each seed."""

    source: DemandSource
    draws: tuple[tuple[Workload, ...], ...] = ()
    because: str = ""
    """Why there are no requests."""
    any_model: bool = False
    """Whether one without a place may have vGPUs of its size and series of another GPU model."""


@dataclass(frozen=True, slots=True)
class PlacedDemand:
    """The result of one draw on one fleet."""

    asked: int
    waiting: tuple[str, ...]
    """Names of the requests without a place, in the order of placing."""
    placed_mib: int
    """GPU memory of the requests with a place."""
    kinds: Mapping[str, tuple[int, int]]
    """By what requests ask for, `2 x a40-8q`: how many have a place, of how many."""

    @property
    def placed(self) -> int:
        return self.asked - len(self.waiting)


def recorded_demand(peaks: Peaks, inventory: Inventory) -> FleetDemand:
    """Return a draw for each of the last days: a request for each vGPU of its peaks beyond those that run now."""
    running: dict[str, int] = {}
    vms_by_profile: dict[str, list[Vm]] = {}
    for vm in inventory.vms.values():
        for profile in () if vm.template else vm.profiles:
            vms_by_profile.setdefault(profile, []).append(vm)
            running[profile] = running.get(profile, 0) + (vm.power is PowerState.ON)
    typical_requests = {profile: _typical(vms) for profile, vms in vms_by_profile.items()}
    days = sorted({day for peak_by_day in peaks.values() for day in peak_by_day})[-MOST_DAYS:]
    draws = []
    for day in days:
        beyond_running = {
            profile: peak_by_day.get(day, 0) - running.get(profile, 0)
            for profile, peak_by_day in sorted(peaks.items())
            if typical_requests.get(profile) is not None
        }
        arrivals = [
            replace(typical_request, name=f"{profile} {number}", profile=profile)
            for profile, count in beyond_running.items()
            if (typical_request := typical_requests[profile]) is not None
            for number in range(1, count + 1)  # none if fewer ran on that day than now
        ]
        # in a random order that is the same in each call
        draws.append(tuple(sorted(arrivals, key=lambda arrival: drawn(day.toordinal(), arrival.name, 2**32))))
    if not any(draws):
        return FleetDemand(
            DemandSource.NONE, because=f"on none of {len(days)} recorded days did more vGPUs run than now"
        )
    return FleetDemand(DemandSource.RECORDED, tuple(draws))


def _typical(vms: Sequence[Vm]) -> Workload | None:
    """Return a VM of the median size of these; None = no size can be read."""
    cpus = [vm.vcpus for vm in vms if vm.vcpus]
    memory = [vm.memory_mib for vm in vms if vm.memory_mib]
    return Workload("", round(median(cpus)), round(median(memory))) if cpus and memory else None


def made_up_demand(inventory: Inventory, catalog: Catalog, arrivals: int, seeds: int) -> FleetDemand:
    """Return `arrivals` VMs for each seed, copies of those that run with GPUs now."""
    vms = sorted(inventory.vms.values(), key=lambda vm: (vm.name, vm.ref))
    candidates = (_workload(vm, inventory, catalog) for vm in vms if vm.power is PowerState.ON)
    alike = [workload for workload in candidates if workload is not None]
    if not alike:
        return FleetDemand(DemandSource.NONE, because="no VM with a GPU runs that requests could be copies of")
    return FleetDemand(
        DemandSource.MADE_UP,
        tuple(
            tuple(
                replace(alike[drawn(seed, f"arrival {number}", len(alike))], name=f"arrival {number}")
                for number in range(1, arrivals + 1)
            )
            for seed in range(1, seeds + 1)
        ),
    )


def _workload(vm: Vm, inventory: Inventory, catalog: Catalog) -> Workload | None:
    """Return the request for a VM like this one.

    None = it has no GPU, or devices that a request cannot ask for by kind.
    """
    devices = vm.devices or ()
    # a request cannot name the vendor device group that a device belongs to
    if not devices or not vm.vcpus or not vm.memory_mib or any(getattr(device, "group", None) for device in devices):
        return None
    bare = Workload(vm.name, vm.vcpus, vm.memory_mib)
    if len(vm.vgpus) == len(devices):
        counts = {profile: vm.profiles.count(profile) for profile in vm.profiles}
        (first, number), *further = counts.items()
        return replace(
            bare, profile=first, count=number, more=tuple(Vgpus(*profile_and_count) for profile_and_count in further)
        )
    host = inventory.host_of(vm)
    whole = [device for device in devices if isinstance(device, DirectPathDevice | DynamicDevice)]
    at = [device.address if isinstance(device, DirectPathDevice) else device.assigned for device in whole]
    gpus = [host.gpu(address) if host is not None and address is not None else None for address in at]
    models = {board.key for gpu in gpus if gpu is not None and (board := board_of(gpu, catalog)) is not None}
    if len(whole) < len(devices) or None in gpus or len(models) != 1:
        return None
    return replace(bare, gpus=len(whole), model=models.pop())


def place_demand(
    demand: FleetDemand, workloads: Sequence[Workload], inventory: Inventory, catalog: Catalog
) -> PlacedDemand:
    """Return which of these requests, one draw of the demand, find a place. The GPUs of suspended VMs stay theirs.

    On which GPU a host will start a vGPU is not certain; the expected one is used (`advise/occupancy.py`).
    """
    # the first claims show which GPUs are empty even if suspended VMs run; the expected starts are for these
    claimed, _ = with_claims(inventory, catalog)
    world, _ = with_claims(expecting_starts(inventory, claimed), catalog)
    queue = Queue(world, catalog, explain=False, pin=PinPolicy.AUTO, any_reason=False)
    if demand.source is DemandSource.FILE:  # all together, as `gpuops place --file` does
        queue = queue.with_best(workloads)
        workloads = [answer.workload for answer in queue.answers]
    refused_shapes: set[Workload] = set()
    is_placed_by_name = {answer.workload.name: isinstance(answer, Placed) for answer in queue.answers}
    for workload in workloads:
        # a request of a file that was refused above is tried on other models only
        first_choice = () if workload.name in is_placed_by_name else (workload,)
        alternatives = _on_other_models(workload, inventory, catalog) if demand.any_model else ()
        for attempt in () if is_placed_by_name.get(workload.name) else (*first_choice, *alternatives):
            # no VM leaves, so a request that equals a refused one would be refused too
            shape = replace(attempt, name="")
            if shape in refused_shapes:
                continue
            queue = queue.after([attempt])
            if isinstance(queue.answers[-1], Placed):
                break
            refused_shapes.add(shape)
    return _outcome(queue, workloads, catalog)


def _on_other_models(workload: Workload, inventory: Inventory, catalog: Catalog) -> Iterator[Workload]:
    """Yield the same request with a vGPU of the same size and series of each other GPU model here, by name.

    Only for a request with one profile and without affinity to other requests.
    """
    own_profiles = [catalog.profile(name) for name in catalog_names(workload, inventory, catalog)]
    if len(own_profiles) != 1 or own_profiles[0] is None or workload.affinity is not None:
        return
    for name in inventory.offered_profiles:
        candidate = catalog.profile(name)
        if (
            candidate is None
            or candidate.board == own_profiles[0].board
            or candidate.mig_backed is not own_profiles[0].mig_backed
        ):
            continue
        if (candidate.framebuffer_mib, candidate.series) == (own_profiles[0].framebuffer_mib, own_profiles[0].series):
            yield replace(workload, profile=name)


def catalog_names(workload: Workload, inventory: Inventory, catalog: Catalog) -> tuple[str, ...]:
    """Return the profiles that it asks for, by the names that hosts or GPU models have; unknown ones are left out."""
    devices = choices_of_devices(workload, inventory, catalog) if workload.profile else ()
    chosen_devices = (device for choice in devices if not isinstance(choice, Rejection) for device in choice)
    return tuple(dict.fromkeys(device.profile for device in chosen_devices if isinstance(device, VgpuDevice)))


def _outcome(queue: Queue, workloads: Sequence[Workload], catalog: Catalog) -> PlacedDemand:
    placed = {answer.workload.name: answer for answer in queue.answers if isinstance(answer, Placed)}
    kinds: dict[str, tuple[int, int]] = {}  # how many were placed, and how many were requested
    for workload in workloads:
        kind = kind_of(workload)
        placed_count, of = kinds.get(kind, (0, 0))
        kinds[kind] = (placed_count + (workload.name in placed), of + 1)
    return PlacedDemand(
        asked=len(workloads),
        waiting=tuple(workload.name for workload in workloads if workload.name not in placed),
        placed_mib=sum(framebuffer_mib(answer.vm.devices or (), catalog) for answer in placed.values()),
        kinds=dict(sorted(kinds.items())),
    )


def kind_of(workload: Workload) -> str:
    """Return what it asks for: `a40-8q`, `2 x a100-3-20c`, `whole l40s`."""
    return " + ".join(_parts(workload))


def _parts(workload: Workload) -> Iterator[str]:
    for vgpus in workload.vgpus:
        yield vgpus.profile if vgpus.count == 1 else f"{vgpus.count} x {vgpus.profile}"
    if workload.device:
        yield f"GPU {', '.join(map(str, workload.device))}"
    if workload.device_group is not None:
        yield f"group {workload.device_group}"
    if workload.gpus:
        whole = f"whole {workload.model or 'GPU'}"
        yield whole if workload.gpus == 1 else f"{workload.gpus} x {whole}"
