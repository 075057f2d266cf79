"""Rolling changes over real SOAP, judged by the simulated vCenter's own ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuops.execute.change import change
from gpuops.execute.journal.sql import SqlStore
from gpuops.execute.site import Site
from gpuops.model.rolling import Displacement, Rolling
from gpuops.model.scheduler import SchedulerPolicy
from gpuops.plan.change.report import ChangeReport
from gpuops.plan.outcome import Verdict
from gpuops.plan.scheduler.change import SetScheduler
from gpuops.sim.server import SimServer
from gpuops.sim.vm_state import Power
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.hosts import HostConnection
from gpuops.vsphere.perform import Performer
from tests.wire.clusters import cluster, desktops
from tests.wire.conftest import target_of

EQUAL = SetScheduler(SchedulerPolicy.EQUAL_SHARE, host="*")
OPTIONS = "NVreg_RegistryDwords=RmPVMRL=0x01"


@dataclass
class Bench:
    """One simulated cluster and one state directory; every call is a login of its own."""

    server: SimServer
    state_dir: Path
    told: list[str] = field(default_factory=list)

    @property
    def world(self) -> World:
        return self.server.world

    def roll(self, request: Any = EQUAL, *, apply: bool = True, **options: Any) -> ChangeReport:
        return self._with(lambda site: change.roll(
            request, "scheduler set", Rolling(**options), site, apply=apply, consent=lambda report: None,
            told=self.told.append,
        ))  # fmt: skip

    def resume(self) -> ChangeReport:
        return self._with(lambda site: change.resume(
            site, apply=True, consent=lambda report: None, told=self.told.append
        ))  # fmt: skip

    def abort(self) -> ChangeReport:
        return self._with(lambda site: change.abort(
            site, apply=True, consent=lambda report: None, told=self.told.append
        ))  # fmt: skip

    def is_open(self) -> bool:
        """Whether the journal holds a change that has not ended."""
        with Connection(target_of(self.server)) as connection:
            return bool(change.status(Site(connection, self.state_dir, self.world.clock.now)).verb)

    def _with(self, act: Callable[[Site], ChangeReport]) -> ChangeReport:
        with Connection(target_of(self.server)) as connection:
            return act(Site(connection, self.state_dir, self.world.clock.now))

    def host(self, name: str) -> Any:
        [host] = [host for host in self.world.by_type("HostSystem") if host.display_name == name]
        return host

    def places(self) -> dict[str, tuple[str, Power]]:
        """Where each VM is, and whether it runs."""
        return {vm.display_name: (vm.host().state.name, vm.state.power) for vm in self.world.by_type("VirtualMachine")}

    def most_down(self) -> int:
        """How many hosts were out of service at once at the most, by the ledger."""
        down: set[str] = set()
        most = 0
        for entry in self.world.ledger:
            if "in_maintenance" in entry.after:
                (down.add if entry.after["in_maintenance"] else down.discard)(entry.name)
            most = max(most, len(down))
        return most


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[World], Bench]]:
    with ExitStack() as stack:

        def begin(world: World) -> Bench:
            return Bench(stack.enter_context(SimServer(world)), tmp_path / "state")

        yield begin


def three() -> World:
    """Three hosts: two and three desktops, and none."""
    return cluster(3, [desktops(1, 2, first=1), desktops(2, 3, first=3)])


def test_a_cluster_is_switched_host_by_host_and_every_vm_is_where_it_was(start: Callable[[World], Bench]) -> None:
    bench = start(three())
    before = bench.places()
    report = bench.roll()
    assert (report.exit_code, [each.verdict for each in report.outcomes]) == (0, [Verdict.DONE] * 3), report.outcomes
    assert bench.places() == before
    assert bench.most_down() == 1
    for host in bench.world.by_type("HostSystem"):
        assert (host.state.loaded_module_options, host.state.in_maintenance) == (OPTIONS, False)
    assert [entry for entry in bench.world.ledger if entry.after.get("power")] == [], "nobody lost its session"


MIXED = [
    desktops(1, 2, first=1),
    desktops(1, 1, first=3, extra_config={"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"}),
    {**desktops(1, 1, first=4), "name": "plain-{:02}", "devices": []},
]
"""Two desktops that can be moved, one that is pinned and must be shut down, and a VM without a GPU."""


def two() -> World:
    """Two hosts, of which one has work."""
    return cluster(2, MIXED)


ONE = SetScheduler(SchedulerPolicy.EQUAL_SHARE, host="esx-01")


class Killed(BaseException):
    """The process is gone."""


class Points:
    """Counts the moments at which a process may be killed, and kills at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, self.last = 0, 0
        for kind, name in (
            (SqlStore, "append"),
            (HostConnection, "submit"),
            (HostConnection, "configure"),
            (Performer, "submit"),
        ):
            monkeypatch.setattr(kind, name, self._around(getattr(kind, name)))

    def _around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            self._point()
            answer = real(*arguments)
            self._point()
            return answer

        return watched

    def _point(self) -> None:
        self.passed += 1
        if self.passed == self.last:
            raise Killed

    def kill_at(self, number: int) -> None:
        self.passed, self.last = 0, number


def check_switched(bench: Bench, before: dict[str, tuple[str, Power]], hosts: int) -> None:
    """Every VM is where it was, every host serves, none was rebooted twice, and no guest was powered off hard."""
    assert bench.places() == before
    for host in bench.world.by_type("HostSystem"):
        assert host.state.in_maintenance is False
    boots = [entry.name for entry in bench.world.ledger if entry.after.get("connection") == "connected"]
    assert sorted(boots) == sorted(set(boots))
    assert len(boots) == hosts
    assert [entry for entry in bench.world.ledger if entry.method == "PowerOffVM_Task"] == []


def kill_and_resume(bench: Bench, points: Points, stride: int, request: Any, **options: Any) -> int:
    """How often the change was killed: after every so many moments, and gone on with each time."""
    kills = 0
    while True:
        points.kill_at(stride + kills % 3)  # the same number again and again would kill before the same effect
        try:
            report = bench.roll(request, **options) if not kills or not bench.is_open() else bench.resume()
        except Killed:
            kills += 1
            continue
        assert report.exit_code == 0, report.outcomes
        return kills


@pytest.mark.parametrize("stride", [11, 17])
def test_a_change_that_is_killed_goes_on(
    start: Callable[[World], Bench], monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    bench = start(two())
    before = bench.places()
    kills = kill_and_resume(bench, Points(monkeypatch), stride, ONE, vms=Displacement.SHUT_DOWN)
    assert kills > 2
    check_switched(bench, before, hosts=1)


@pytest.mark.long
def test_a_change_goes_on_from_every_moment_at_which_it_is_killed(
    start: Callable[[World], Bench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    points, number, killed = Points(monkeypatch), 0, True
    while killed:
        number += 1
        with SimServer(two()) as server:
            bench = Bench(server, tmp_path / str(number))
            before = bench.places()
            points.kill_at(number)
            try:
                killed = bench.roll(ONE, vms=Displacement.SHUT_DOWN).exit_code != 0
            except Killed:
                points.kill_at(0)
                report = bench.resume() if bench.is_open() else bench.roll(ONE, vms=Displacement.SHUT_DOWN)
                assert report.exit_code == 0, (number, report.outcomes)
            check_switched(bench, before, hosts=1)
    assert number > 50
