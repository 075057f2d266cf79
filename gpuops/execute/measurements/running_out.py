"""Counts running vGPUs by profile at each look, and says from what was counted when a profile runs out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.advise.run_out import RunOut, run_out
from gpuops.execute.measurements.store_reads import MeasurementReads
from gpuops.model.vcenter.vm import PowerState

if TYPE_CHECKING:
    from gpuops.advise.capacity import Slots
    from gpuops.model.vcenter.inventory import Inventory


def running_vgpus(inventory: Inventory) -> Mapping[str, int]:
    """How many vGPUs of each profile that some VM has run now: 0 where all of these VMs are off or suspended."""
    running: Counter[str] = Counter()
    for vm in inventory.vms.values():
        if not vm.template:
            for vgpu in vm.vgpus:
                running[vgpu.profile] += vm.power is PowerState.ON
    return running


def recorded_peaks(store: tuple[Path, str], inventory: Inventory) -> Mapping[str, Mapping[date, int]]:
    """By profile and day, the most vGPUs that ran at once, as far as looks of this vCenter counted them.

    `store`: the state directory and the URL of the store of measurements. Raises StateDamaged.
    """
    found = MeasurementReads.found(*store, inventory.vcenter)
    if found is None:
        return {}
    with found:
        return found.vgpu_peaks()


def run_outs(
    store: tuple[Path, str], inventory: Inventory, fit: Mapping[str, Slots], profile: str | None = None
) -> tuple[RunOut, ...]:
    """When each profile that some VM has, or had in the history, runs out; the first to run out first.

    `store`: the state directory and the URL of the store of measurements. `fit`: how many more fit now, by profile.
    `profile`: of this one alone. Raises UsageError, StateDamaged.
    """
    peaks = recorded_peaks(store, inventory)
    running = running_vgpus(inventory)
    names = {profile} if profile is not None else running.keys() | peaks.keys()
    today = inventory.taken_at.date()
    told = [
        run_out(name, peaks.get(name, {}), running.get(name, 0), fit[name].at_least if name in fit else 0, today)
        for name in names
    ]
    return tuple(sorted(told, key=lambda each: (each.runs_out is None, each.runs_out or today, each.profile)))
