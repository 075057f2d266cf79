"""Counts running vGPUs by profile in each observation, and predicts from the counts when a profile runs out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.api.vms import capacity
from gpuops.extras.observe.run_out import RunOut, run_out
from gpuops.extras.observe.store_reads import MeasurementReads
from gpuops.model.vcenter.vm import PowerState

if TYPE_CHECKING:
    from gpuops.advise.capacity import Slots
    from gpuops.execute.site import Site
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.capacity.capacity_request import CapacityRequest


def running_vgpus(inventory: Inventory) -> Mapping[str, int]:
    """Return the number of running vGPUs by profile; 0 for a profile that only VMs that are off have."""
    running: Counter[str] = Counter()
    for vm in inventory.vms.values():
        if not vm.template:
            for vgpu in vm.vgpus:
                running[vgpu.profile] += vm.power is PowerState.ON  # adds 1 or 0
    return running


def recorded_peaks(store: tuple[Path, str], inventory: Inventory) -> Mapping[str, Mapping[date, int]]:
    """Return the most vGPUs that ran at once, by profile and day, as counted in the observations of this vCenter.

    `store`: the state directory and the URL of the store of measurements. Raises StateDamaged.
    """
    store_reads = MeasurementReads.open_if_exists(*store, inventory.vcenter)
    if store_reads is None:
        return {}
    with store_reads:
        return store_reads.vgpu_peaks()


def run_outs(
    store: tuple[Path, str], inventory: Inventory, free: Mapping[str, Slots], profile: str | None = None
) -> tuple[RunOut, ...]:
    """Return the forecast for each profile that a VM has or had, the one that runs out first at the top.

    `store`: the state directory and the URL of the store of measurements. `free`: how many more fit now, by profile.
    `profile`: only this profile. Raises UsageError, StateDamaged.
    """
    peaks = recorded_peaks(store, inventory)
    running = running_vgpus(inventory)
    profiles = {profile} if profile is not None else running.keys() | peaks.keys()
    today = inventory.taken_at.date()
    predictions = [
        run_out(name, peaks.get(name, {}), running.get(name, 0), free[name].at_least if name in free else 0, today)
        for name in profiles
    ]
    return tuple(
        sorted(
            predictions,
            key=lambda prediction: (prediction.runs_out is None, prediction.runs_out or today, prediction.profile),
        )
    )


def capacity_forecast(request: CapacityRequest, inventory: Inventory, site: Site) -> tuple[RunOut, ...]:
    """Return when each vGPU profile, or the one of the request, runs out by the history of `observe`.

    Raises UsageError for an unknown profile, StateDamaged.
    """
    room = capacity(request, inventory, site)
    free = {name: fit.slots for name, fit in room.now.fits.items()}
    return run_outs(site.measurements_store, inventory, free, room.profile)
