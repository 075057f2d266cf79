"""Rotation, foresight: a night as it would be at a given moment, if vCenter then looked as it does in a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.window import Night
from gpuops.plan.core.outcome import Report
from gpuops.plan.rotation.bounds import Run
from gpuops.plan.rotation.night import RotateNight
from gpuops.plan.rotation.proof import HostProof, prove
from gpuops.plan.rotation.prospect import Prospect
from gpuops.plan.rotation.setup import lock_vm_wrong
from gpuops.plan.rotation.start import Start


@dataclass(frozen=True, slots=True)
class Win:
    """One ML VM that would run, and what that is worth."""

    start: Start
    run: Run
    gpus: float
    """Whole GPUs that its devices come to: a vGPU that is one of four on its GPU is a quarter."""

    @property
    def gpu_hours(self) -> float | None:
        """None without a window: nobody has said when it ends."""
        if self.run.ends is None:
            return None
        return self.gpus * (self.run.ends - self.run.begins).total_seconds() / 3600


@dataclass(frozen=True, slots=True)
class Foresight:
    """One night, foreseen; nothing is done."""

    at: datetime
    inventory: Inventory
    prospect: Prospect
    wins: tuple[Win, ...]
    proofs: tuple[HostProof, ...]
    """The way back, host by host."""

    @property
    def night(self) -> Night | None:
        return self.prospect.bounds.night

    @property
    def gpu_hours(self) -> float | None:
        """Won in all; None = nobody has said when it ends."""
        hours = [win.gpu_hours for win in self.wins]
        return None if None in hours else sum(each for each in hours if each is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is likely not meant so, and what a night would be refused for that no plan depends on."""
        policy = self.prospect.policy
        wrong = lock_vm_wrong(policy, self.inventory)
        refused = () if wrong is None else (f"{wrong}: no night begins (gpuops rotate init --policy FILE)",)
        return (*self.prospect.plan().warnings, *refused)

    @property
    def report(self) -> Report:
        return Report(None, self.inventory, self.prospect.plan())

    @property
    def exit_code(self) -> int:
        """3 when the night would be refused, and 0: what is left out is named, and no mistake."""
        return 3 if self.prospect.refusals else 0


def foresee_night(request: RotateNight, inventory: Inventory, catalog: Catalog, at: datetime) -> Foresight:
    """The night that would begin at this moment."""
    found = request.may_take(inventory, catalog, at)
    prospect = request.prospect(found, inventory, catalog, at)
    bounds, starts = prospect.bounds, prospect.served.starts
    load = bounds.load(starts)
    wins = tuple(Win(start, bounds.run(start, load), _gpus(start, catalog)) for start in starts)
    desktops = (*bounds.away, *prospect.served.desktops)
    return Foresight(at, inventory, prospect, wins, prove(desktops, request.at_return(bounds, inventory), catalog))


def _gpus(start: Start, catalog: Catalog) -> float:
    profiles = [catalog.profile(device.profile) for device in start.vm.vgpus]
    whole = len(start.vm.devices or ()) - len(profiles)
    return whole + sum(1 / profile.max_per_gpu for profile in profiles if profile is not None)
