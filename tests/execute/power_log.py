"""When the VMs of the small vCenter changed their power state: what figures of past nights are compared with."""

from __future__ import annotations

from datetime import datetime

import pytest

from gpuops.model.vcenter.vm import PowerState
from tests.execute.small_vcenter import SLOTS, World


class PowerLog:
    """When each VM of a world changed its power state, as the world itself does it."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self.changes: list[tuple[datetime, str, PowerState]] = []
        set_power = World._set_power

        def logged(world: World, ref: str, power: PowerState) -> None:
            self.changes.append((world.now, ref, power))
            set_power(world, ref, power)

        monkeypatch.setattr(World, "_set_power", logged)

    def gpu_hours(self, name: str, state: PowerState) -> float:
        """GPUs times hours in this state, of the VMs named so."""
        since: dict[str, datetime] = {}
        total = 0.0
        for at, ref, power in self.changes:
            vm = self._world.vms[ref]
            if not vm.name.startswith(name):
                continue
            if power is state:
                since.setdefault(ref, at)
            elif ref in since:
                hours = (at - since.pop(ref)).total_seconds() / 3600
                total += hours * sum(1 / SLOTS[profile] for profile in vm.profiles)
        assert not since, "all of it is over"
        return total

    def periods(self, ref: str, state: PowerState) -> list[tuple[datetime, datetime]]:
        """When the VM was in this state, each time from and until."""
        changes_of_vm = [(at, power) for at, changed, power in self.changes if changed == ref]
        after = [at for at, _ in changes_of_vm][1:]
        return [(at, ends) for (at, power), ends in zip(changes_of_vm, after, strict=False) if power is state]

    def suspended(self) -> set[str]:
        return {ref for _, ref, power in self.changes if power is PowerState.SUSPENDED}
