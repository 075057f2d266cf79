"""A simulated vCenter with its Connection Server, and nights there that close the gates of desktops."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from gpuops.api import Site, rotate_day, rotate_night, rotate_status
from gpuops.broker.horizon import Horizon
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.execute.site.policy_reads import BrokerGates, BrokerSessions
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.target import BrokerTarget
from gpuops.plan.core.plan import Outcome, Report
from gpuops.plan.core.steps import Step
from gpuops.sim.horizon_server import Pod, PodSession
from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

POLICY: Policy = parse_policy(
    """
version: 1
name: vdi-gated
broker: horizon
windows: any
pools:
  - name: office
    parked: false
    select: {folder: vdi, name: "vdi-*", profile: "*-8q"}
    idle: {cpu_below_mhz: 500}
    owner: none
ml:
  queue: [{vm: ml-01}, {vm: ml-02}]
limits: {desktops: 14}
""",
    "of the tests",
)
AT_MOST = 12
"""Desktops that two ML VMs of a whole A40 each need."""


class Killed(BaseException):
    """What `kill -9` is to a run."""


@dataclass
class Gated:
    """A simulated vCenter with its Connection Server, and one state directory; every call logs in anew."""

    server: SimServer
    pod: Pod
    target: BrokerTarget
    state_dir: Path
    broker: type[Horizon] = Horizon

    def run(
        self,
        of: Callable[[Site], Report],
        watch: Callable[[Outcome], None] = lambda outcome: None,
        in_flight: Callable[[Collection[Step]], None] = lambda steps: None,
    ) -> Report:
        with Connection(target_of(self.server)) as connection, Site(connection, self.state_dir, wall_clock) as site:
            horizons: list[Horizon] = []

            def open_horizon() -> Horizon:
                if not horizons:
                    horizons.append(site.closing.enter_context(self.broker(self.target)))
                return horizons[0]

            site.gates = BrokerGates(open_horizon, BrokerSessions(open_horizon))
            site.progress, site.in_flight = watch, in_flight
            return of(site)

    def night(self, policy: Policy = POLICY, **watched: Any) -> Report:
        return self.run(partial(night_under, policy=policy), **watched)

    def day(self, **watched: Any) -> Report:
        return self.run(lambda site: rotate_day(POLICY, site, apply=True), **watched)

    def vm(self, name: str) -> VmEntity:
        return next(vm for vm in self.server.world.by_type("VirtualMachine") if vm.name == name)

    @property
    def gated(self) -> set[str]:
        return {vm.name for _, vm in self.pod.machines() if self.pod.in_maintenance(vm)}

    @property
    def suspended(self) -> set[str]:
        """Those that the scenario did not suspend itself."""
        names = {vm.name for _, vm in self.pod.machines() if vm.state.power is Power.SUSPENDED}
        return names - {f"vdi-{number}" for number in range(105, 113)}

    def use(self, name: str, disconnected_for: timedelta | None = None) -> None:
        """Somebody whose login began before the gate was closed has a session now."""
        with self.server.world.lock:
            vm, now = self.vm(name), self.server.world.clock.now()
            disconnected_at = now - disconnected_for if disconnected_for is not None else None
            self.pod.sessions[name] = PodSession(name, vm, "S-1-5-21-1", disconnected_at or now, disconnected_at)

    def nothing_is_left(self) -> None:
        """Every desktop runs with an open gate and no marker, and the journal has nothing left to return."""
        assert (self.suspended, self.gated) == (set(), set())
        with Connection(target_of(self.server)) as connection:
            vms = connection.inventory().vms.values()
            status = rotate_status(Site(connection, self.state_dir, wall_clock))
        assert [vm.name for vm in vms if vm.attributes.get("gpuops.rotation")] == []
        assert status.vms == ()


def night_under(site: Site, policy: Policy) -> Report:
    return rotate_night(policy, site, apply=True)


def steps_of(report: Report, kind: type[Step]) -> list[str]:
    return [report.before.vm(outcome.step.vm).name for outcome in report.outcomes if isinstance(outcome.step, kind)]
