"""Rolling changes on a bench: one simulated cluster, its ledger, and a state directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from gpuops.execute.change import rolling_change
from gpuops.execute.site import Site
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from tests.cli.aside import Aside
from tests.wire.conftest import target_of

Answer = TypeVar("Answer")

EQUAL: Final = SetScheduler(SchedulerPolicy.EQUAL_SHARE, host="*")
ONE: Final = SetScheduler(SchedulerPolicy.EQUAL_SHARE, host="esx-01")
OPTIONS: Final = "NVreg_RegistryDwords=RmPVMRL=0x01"


@dataclass
class Bench:
    """One simulated cluster and one state directory; every call is a login of its own."""

    server: SimServer
    state_dir: Path
    told: list[str] = field(default_factory=list)
    aside: Aside = field(init=False)

    def __post_init__(self) -> None:
        self.aside = Aside(self.server, self.state_dir, "GPUOPS_STATE_DIR", self.world.clock.now)

    @property
    def world(self) -> World:
        return self.server.world

    def roll(self, request: Any = EQUAL, *, apply: bool = True, **options: Any) -> ChangeReport:
        words = ("scheduler", "set", "--yes")
        return self.aside.of(words, lambda: self.on_site(lambda site: rolling_change.roll(
            request, "scheduler set", Rolling(**options), site, apply=apply, consent=lambda report: None,
            told=self.told.append,
        )))  # fmt: skip

    def resume(self) -> ChangeReport:
        return self._taken_up("resume", rolling_change.resume)

    def abort(self) -> ChangeReport:
        return self._taken_up("abort", rolling_change.abort)

    def _taken_up(self, verb: str, act: Callable[..., Any]) -> ChangeReport:
        def begin(site: Site) -> ChangeReport:
            report = act(site, apply=True, consent=lambda report: None, told=self.told.append)
            assert isinstance(report, ChangeReport)
            return report

        return self.aside.of(("change", verb, "--yes"), lambda: self.on_site(begin))

    def is_open(self) -> bool:
        """Whether the journal holds a change that has not ended."""
        with Connection(target_of(self.server)) as connection:
            return bool(rolling_change.status(Site(connection, self.state_dir, self.world.clock.now)).verb)

    def on_site(self, act: Callable[[Site], Answer]) -> Answer:
        """What is done in a login of its own."""
        with Connection(target_of(self.server)) as connection:
            return act(Site(connection, self.state_dir, self.world.clock.now))

    def host(self, name: str) -> Any:
        [host] = [host for host in self.world.by_type("HostSystem") if host.display_name == name]
        return host

    def places(self) -> dict[str, tuple[str, Power]]:
        """Where each VM is, and whether it runs."""
        return {vm.display_name: (vm.host().state.name, vm.state.power) for vm in self.world.by_type("VirtualMachine")}

    def most_down(self) -> int:
        """Return the highest number of hosts that were out of service at once, by the ledger."""
        down: set[str] = set()
        most = 0
        for change in self.world.ledger:
            if "in_maintenance" in change.after:
                (down.add if change.after["in_maintenance"] else down.discard)(change.name)
            most = max(most, len(down))
        return most


Start = Callable[[World], Bench]
