"""A simulated host with a free A40 and guests that really run, and what is measured on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuops.api import Site
from gpuops.execute.site.kept_measurement import keep_measurement, load_measurement
from gpuops.extras.sizing.measuring import SharingMeasured, measure
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.measurements.sharing_measurement import PREFIX, MeasureWish, SharingMeasurement
from gpuops.sim.server import SimServer

SCENARIO = str(Path(__file__).parents[3] / "sim" / "guests" / "real_guests.yaml")
GPU = "0000:5e:00.0"
BEST, EQUAL = SchedulerPolicy.BEST_EFFORT, SchedulerPolicy.EQUAL_SHARE


@dataclass
class Lab:
    """A host with a free A40, and a site that reaches it."""

    server: SimServer
    site: Site

    def measure(self, wish: MeasureWish, *, apply: bool = True) -> SharingMeasured:
        plans_shown: list[SharingMeasured] = []
        measured = measure(wish, self.site, apply=apply, consent=plans_shown.append)
        assert len(plans_shown) == (1 if apply and not measured.plan.rejections else 0)
        return measured

    def vms(self) -> list[Any]:
        with self.server.world.lock:
            return [vm for vm in self.server.world.by_type("VirtualMachine") if vm.name.startswith(PREFIX)]

    @property
    def host(self) -> Any:
        [host] = self.server.world.by_type("HostSystem")
        return host

    def set_scheduler(self, word: str) -> None:
        """As it is after a change and a reboot."""
        options = f"NVreg_RegistryDwords=RmPVMRL={word}"
        with self.server.world.lock:
            self.host.state.module_options = self.host.state.loaded_module_options = options

    @property
    def kept(self) -> SharingMeasurement | None:
        return load_measurement(self.site.state_dir, self.site.vcenter.uuid)


def wish(command: str, *counts: int, **options: Any) -> MeasureWish:
    return MeasureWish("golden", "a40-8q", command, counts or (1,), **options)


def keep(lab: Lab, measurement: SharingMeasurement) -> None:
    keep_measurement(lab.site.state_dir, lab.site.vcenter.uuid, measurement)
