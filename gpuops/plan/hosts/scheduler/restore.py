"""Plans that a GPU's scheduler is set back to what it was: by the very options of before, where nothing else in them
has changed meanwhile.

    before   NVreg_A=1                                                          best effort, no entry
    now      NVreg_A=1 NVreg_RegistryDwordsPerDevice=pci=0000:5e:00.0;RmPVMRL=0x01
    restored NVreg_A=1                                                          not ...;RmPVMRL=0x00
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.scheduler import Frequency, SchedulerPolicy, TimeSlices, VgpuScheduler
from gpuops.model.measurements.sharing_measurement import SchedulerBefore
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import hosts_called
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import ConfigureModule, HostStep
from gpuops.plan.hosts.scheduler import module_options
from gpuops.plan.hosts.scheduler.change import SetScheduler


@dataclass(frozen=True, slots=True)
class RestoreScheduler:
    """Have one GPU shared as before, from its host's next boot on."""

    run_kind: ClassVar[str] = "restorescheduler"

    before: SchedulerBefore
    host_name: str

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """The ref of its host. Raises HostNotFound."""
        return self._setting.hosts(inventory)

    def plan(self, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """As `scheduler set` plans it; with the options of before where only this GPU's entry was changed."""
        plan = self._setting.plan(inventory, catalog)
        waves = tuple(replace(wave, steps=tuple(map(self._exact, wave.steps))) for wave in plan.waves)
        return replace(plan, waves=waves)

    @property
    def _setting(self) -> SetScheduler:
        return for_gpu(self.before.scheduler, str(self.before.gpu), self.host_name)

    def _exact(self, step: HostStep) -> HostStep:
        before = self.before
        if isinstance(step, ConfigureModule) and module_options.differs_in(before.options, step.before, before.gpu):
            return replace(step, after=before.options)
        return step


def for_gpu(wanted: VgpuScheduler, gpu: str, host_name: str) -> SetScheduler:
    """The request that sets one GPU of one host to it."""
    time_slice, frequency, averaging = _words(wanted)
    return SetScheduler(
        SchedulerPolicy(wanted.policy),
        time_slice=time_slice,
        frequency=frequency,
        averaging=averaging,
        gpu=(gpu,),
        host=hosts_called(host_name),
    )


def restoring_command(before: SchedulerBefore, host_name: str) -> str:
    """What somebody types to set it back."""
    request = for_gpu(before.scheduler, str(before.gpu), host_name)
    options = (
        ("scheduler", request.scheduler),
        ("time-slice", request.time_slice),
        ("frequency", request.frequency),
        ("averaging", request.averaging),
        ("gpu", before.gpu),
        ("host", host_name),
        ("reboot", "rolling"),
    )
    return "gpuops scheduler set " + " ".join(f"--{name} {value}" for name, value in options if value is not None)


def _words(wanted: VgpuScheduler) -> tuple[str | None, str | None, int | None]:
    """`--time-slice`, `--frequency` and `--averaging` of it."""
    match wanted.slices:
        case TimeSlices(time_slice_ms=length):
            return ("default" if length is None else f"{length}ms"), None, None
        case Frequency(frequency_hz=hertz, averaging=averaging) if hertz is not None:
            return None, f"{hertz}Hz", averaging
        case _:
            return None, None, None
