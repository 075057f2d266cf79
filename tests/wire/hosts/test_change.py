"""Rolling changes over real SOAP, judged by the simulated vCenter's own ledger."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gpuops.config.date_text import parse_window
from gpuops.execute.change import rolling_change
from gpuops.execute.site import Site
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.vcenter.host_settings import Displacement, Rolling, SharedType
from gpuops.plan.core.plan import Verdict
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.operations import maintenance
from gpuops.sim.operations.vms import power
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from tests.sample import mostly_long
from tests.wire.hosts.clusters import cluster, desktops
from tests.wire.hosts.rolling import EQUAL, ONE, OPTIONS, Bench, Start
from tests.wire.steps.points import Killed, Points

BEST = SetScheduler(SchedulerPolicy.BEST_EFFORT, host="*")


def three() -> World:
    """Three hosts: two and three desktops, and none."""
    return cluster(3, [desktops(1, 2, first=1), desktops(2, 3, first=3)])


def test_a_cluster_is_switched_host_by_host_and_every_vm_is_where_it_was(start: Start) -> None:
    bench = start(three())
    before = bench.places()
    report = bench.roll()
    assert (report.exit_code, [outcome.verdict for outcome in report.outcomes]) == (0, [Verdict.DONE] * 3), (
        report.outcomes
    )
    assert bench.places() == before
    assert bench.most_down() == 1
    for host in bench.world.by_type("HostSystem"):
        assert (host.state.loaded_module_options, host.state.in_maintenance) == (OPTIONS, False)
    assert [change for change in bench.world.ledger if change.after.get("power")] == [], "every session is still open"


@pytest.mark.long
def test_a_host_costs_so_many_reads_of_the_inventory(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large fleet one takes seconds."""
    bench, reads, read = start(cluster(1, [])), list[object](), Connection.inventory

    def count_read(self: Connection) -> Any:
        reads.append(self)
        return read(self)

    monkeypatch.setattr(Connection, "inventory", count_read)
    assert bench.roll(ONE).exit_code == 0
    assert len(reads) <= 12


MIXED = [
    desktops(1, 2, first=1),
    desktops(1, 1, first=3, extra_config={"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"}),
    {**desktops(1, 1, first=4), "name": "plain-{:02}", "devices": []},
]
"""Two desktops that can be moved, one that is pinned and must be shut down, and a VM without a GPU."""


def two() -> World:
    """Two hosts, of which one has work."""
    return cluster(2, MIXED)


def check_switched(bench: Bench, before: dict[str, tuple[str, Power]], hosts: int) -> None:
    """Every VM is where it was, every host serves, none was rebooted twice, and no guest was powered off hard."""
    assert bench.places() == before
    for host in bench.world.by_type("HostSystem"):
        assert host.state.in_maintenance is False
    boots = [change.name for change in bench.world.ledger if change.after.get("connection") == "connected"]
    assert sorted(boots) == sorted(set(boots))
    assert len(boots) == hosts
    assert [change for change in bench.world.ledger if change.method == "PowerOffVM_Task"] == []


def kill_and_resume(bench: Bench, points: Points, stride: int, request: Any, **options: Any) -> int:
    """Kill the change after every so many moments, resume it each time, and return the number of kills."""
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


@pytest.mark.parametrize("stride", [pytest.param(11, marks=pytest.mark.long), 17])
def test_a_change_that_is_killed_goes_on(start: Start, monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    bench = start(two())
    before = bench.places()
    kills = kill_and_resume(bench, Points(monkeypatch), stride, ONE, vms=Displacement.SHUT_DOWN)
    assert kills > 2
    check_switched(bench, before, hosts=1)


PARTS = 4
"""All moments, in so many tests: each is done within minutes on a busy machine too."""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_change_goes_on_from_every_moment_at_which_it_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: int
) -> None:
    points, number, killed = Points(monkeypatch), part + 1 - PARTS, True
    while killed:
        number += PARTS
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


@pytest.mark.parametrize(
    "later_s", mostly_long([0, 200, 2000], [0, 200]), ids=["at once", "while it is down", "when it is back"]
)
def test_a_reboot_that_was_asked_for_before_the_kill_is_not_asked_for_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, later_s: float
) -> None:
    bench, points = start(two()), Points(monkeypatch)
    before = bench.places()
    points.kill_at_first("after HostConnection.submit RebootHost")
    with pytest.raises(Killed):
        bench.roll(ONE, vms=Displacement.SHUT_DOWN)
    bench.world.clock.advance(later_s)
    report = bench.resume()
    assert report.exit_code == 0, report.outcomes
    check_switched(bench, before, hosts=1)


def failing(report: ChangeReport) -> str:
    """What is said of the host at which the change stopped."""
    assert report.exit_code == 4
    assert report.afterwards
    [failed, *skipped] = [outcome for outcome in report.outcomes if outcome.verdict is not Verdict.DONE]
    assert failed.verdict is Verdict.FAILED
    assert {outcome.verdict for outcome in skipped} <= {Verdict.SKIPPED}
    return failed.reason


@pytest.mark.long
def test_who_agreed_to_one_roll_is_asked_again_for_another(start: Start) -> None:
    """While the question waits for its answer a VM stops: what is done now is not what was agreed to."""
    bench = start(three())
    moves_shown: list[frozenset[str]] = []

    def roll(site: Site) -> ChangeReport:
        def consent(report: ChangeReport) -> None:
            moves_shown.append(
                frozenset(departure.vm.name for turn in report.plan.planned_hosts for departure in turn.away)
            )
            with site.locked_journal(site.vcenter.uuid, alone=True, returning=True):  # as a return begins meanwhile
                pass
            if len(moves_shown) == 1:
                vm = next(vm for vm in bench.world.by_type("VirtualMachine") if vm.display_name == "vdi-001")
                power.stop(vm, somebody(bench.world, "PowerOffVM_Task"), clean=True)

        return rolling_change.roll(
            EQUAL, "scheduler set", Rolling(), site, apply=True, consent=consent, told=bench.told.append
        )

    bench.on_site(roll)
    assert len(moves_shown) == 2
    assert moves_shown[0] - moves_shown[1] == {"vdi-001"}


STAYS_DOWN = Rule(Effect.HAPPEN, "RebootHost_Task", "esx-01", happening="host.stays_down", phase=Phase.AFTER)


def test_the_change_stops_at_a_host_that_does_not_come_back_and_goes_on_when_it_does(
    start: Start,
) -> None:
    bench = start(three())
    before = bench.places()
    bench.world.injector.add(STAYS_DOWN)
    report = bench.roll()
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE, Verdict.FAILED, Verdict.SKIPPED]
    assert "did not come back within 60 min of its reboot; it stays in maintenance mode" in failing(report)
    assert report.outcomes[-1].reason == "not begun, because of esx-01"
    assert {bench.places()[name][0] for name in ("vdi-001", "vdi-002")} == {"esx-03"}, "they run elsewhere"
    maintenance.boot(bench.host("esx-01"), somebody(bench.world, "PowerButton"))
    assert [outcome.verdict for outcome in bench.resume().outcomes] == [Verdict.ALREADY, Verdict.DONE, Verdict.DONE]
    check_switched(bench, before, hosts=3)
    assert not bench.is_open()


def test_the_change_stops_at_a_host_whose_options_somebody_sets_back(start: Start) -> None:
    bench = start(three())
    before = bench.places()
    bench.world.injector.add(
        Rule(Effect.HAPPEN, "RebootHost_Task", "esx-01", happening="host.reverted", phase=Phase.AFTER)
    )
    assert "it is back, and its module nvidia was loaded with '', not with" in failing(bench.roll())
    assert bench.host("esx-01").state.in_maintenance
    report = bench.abort()
    assert ([outcome.verdict for outcome in report.outcomes], report.exit_code) == ([Verdict.DONE], 0)
    assert (bench.places(), bench.is_open()) == (before, False)
    assert not bench.host("esx-01").state.in_maintenance
    assert bench.host("esx-02").state.module_options == "", "it was left alone"


@pytest.mark.parametrize(("late_s", "comes"), [(120, True), (0, False)])
def test_a_host_is_waited_for_until_its_driver_lists_its_gpus(start: Start, late_s: int, comes: bool) -> None:
    bench = start(cluster(1, []))
    bench.world.injector.add(
        Rule(Effect.HAPPEN, "RebootHost_Task", happening="host.driverless", phase=Phase.AFTER, for_s=late_s)
    )
    report = bench.roll(ONE)
    if comes:
        assert report.exit_code == 0, report.outcomes
    else:
        assert failing(report).startswith("its driver does not list GPU 0000:3b:00.0 since its reboot")


@pytest.mark.long
def test_a_vm_that_does_not_leave_keeps_its_host_and_the_others_come_back(start: Start) -> None:
    bench = start(three())
    before = bench.places()
    bench.world.injector.add(Rule(Effect.TASK, "RelocateVM_Task", "vdi-002", fault="GenericVmConfigFault", times=1))
    assert "vdi-002 did not leave it" in failing(bench.roll())
    assert bench.places() == before
    assert bench.host("esx-01").state.module_options == ""
    assert bench.resume().exit_code == 0
    check_switched(bench, before, hosts=3)


def test_no_host_is_begun_once_the_window_has_closed(start: Start) -> None:
    bench = start(three())
    window = parse_window("Sat 21:00-21:50 UTC")  # it is half past nine, and a reboot takes ten minutes
    report = bench.roll(window=window)
    verdicts = [outcome.verdict for outcome in report.outcomes]
    assert (verdicts[0], verdicts[-1], report.exit_code) == (Verdict.DONE, Verdict.SKIPPED, 4)
    assert "window Sat 21:00-21:50 UTC: is closed: it opens at 2026-11-14 21:00 UTC" in report.outcomes[-1].reason
    before = len(list(bench.world.ledger))
    assert bench.resume().exit_code == 4
    assert len(list(bench.world.ledger)) == before, "nothing new is begun"
    bench.world.clock.advance(7 * 24 * 3600 - 1500)
    assert bench.resume().exit_code == 0
    closed = bench.roll(window=parse_window("Sun 21:00-22:00 UTC"), request=BEST)
    assert (closed.exit_code, closed.outcomes) == (3, ())


LOST = list(product(Phase, ("EnterMaintenanceMode_Task", "RebootHost_Task", "ExitMaintenanceMode_Task")))


@pytest.mark.long
@pytest.mark.parametrize(
    ("phase", "method"),
    mostly_long(LOST, [*product(Phase, ["RebootHost_Task"]), (Phase.AFTER, "ExitMaintenanceMode_Task")]),
)
def test_a_lost_reply_is_answered_by_looking(start: Start, method: str, phase: Phase) -> None:
    bench = start(two())
    before = bench.places()
    bench.world.injector.add(Rule(Effect.RESET, method, phase=phase))
    report = bench.roll(ONE, vms=Displacement.SHUT_DOWN)
    if report.exit_code:
        assert "the reply was lost" in failing(report)
        assert bench.resume().exit_code == 0
    check_switched(bench, before, hosts=1)


@pytest.mark.long
def test_a_session_that_ends_in_the_middle_is_renewed(start: Start) -> None:
    bench = start(cluster(2, []))
    for method in ("EnterMaintenanceMode_Task", "UpdateModuleOptionString", "RebootHost_Task"):
        bench.world.injector.add(Rule(Effect.EXPIRE, method, times=1))
    report = bench.roll()
    assert report.exit_code == 0, failing(report)
    turn = ["EnterMaintenanceMode_Task", "UpdateModuleOptionString", *["RebootHost_Task"] * 2]  # goes down, comes back
    assert [change.method for change in bench.world.ledger] == [*turn, "ExitMaintenanceMode_Task"] * 2, "nothing twice"


@pytest.mark.long
def test_a_dry_run_writes_nothing_and_a_second_run_finds_nothing(start: Start) -> None:
    bench = start(three())
    assert [len(turns) for turns in bench.roll(apply=False).plan.rounds] == [1, 1, 1]
    assert list(bench.world.ledger) == []
    bench.roll(max_hosts=2)
    assert bench.most_down() == 2
    written = len(list(bench.world.ledger))
    second_run = bench.roll()
    assert (second_run.changed, second_run.exit_code, len(list(bench.world.ledger))) == (False, 0, written)


@pytest.mark.long
def test_a_login_that_may_only_read_is_told_what_it_lacks(start: Start) -> None:
    bench = start(two())
    authority = bench.world.authority
    reads = authority.add_role("reads hosts", ["Host.Config.Settings", "Host.Config.Image"])
    authority.permit(bench.server.username, reads)
    report = bench.roll(ONE, vms=Displacement.SHUT_DOWN)
    refusals = [str(rejection) for rejection in report.plan.rejections]
    assert (report.exit_code, list(bench.world.ledger)) == (3, [])
    assert "esx-01: this login lacks Host.Config.Maintenance" in refusals
    assert "vdi-001: this login lacks Resource.ColdMigrate, Resource.HotMigrate" in refusals
    assert "vdi-003: this login lacks VirtualMachine.Interact.PowerOff, VirtualMachine.Interact.PowerOn" in refusals


def build_sixteen_hosts() -> World:
    """Sixteen hosts, four or five of six slots taken on each but one, by desktops of which three cannot be moved."""
    work = [desktops(host, 4, first=host * 10) for host in range(1, 16)]
    pinned = {"extra_config": {"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"}}
    return cluster(16, [*work, *(desktops(host, 1, first=host * 10 + 5, **pinned) for host in (3, 7, 11))])


EFFECTS = (
    "RelocateVm",
    "ShutDownGuest",
    "EnterMaintenance",
    "ConfigureModule",
    "RebootHost",
    "LeaveMaintenance",
    "PowerOnVm",
    "EndTurn",
)


def killed_at_each_kind_of_moment(bench: Bench, points: Points, request: Any, **options: Any) -> None:
    """Kill the change at the first moment of each kind, and resume it each time."""
    points.kill_at_each_kind()
    kills = kill_and_resume(bench, points, 1 << 20, request, **options)
    assert kills == len(points.kinds or ())
    assert {effect for effect in EFFECTS for kind in points.kinds or () if effect in kind} == set(EFFECTS)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("by_kind", [False, True], ids=["after so many moments", "at each kind of moment"])
def test_sixteen_hosts_under_load_are_switched_two_by_two_whatever_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch, by_kind: bool
) -> None:
    bench, points = start(build_sixteen_hosts()), Points(monkeypatch)
    before = bench.places()
    bench.world.injector.add(Rule(Effect.RESET, "R*_Task", phase=Phase.AFTER, every=29, times=3))
    options: dict[str, Any] = {"vms": Displacement.SHUT_DOWN, "max_hosts": 2}
    if by_kind:
        killed_at_each_kind_of_moment(bench, points, EQUAL, **options)
    else:
        assert kill_and_resume(bench, points, 61, EQUAL, **options) > 8
    check_switched(bench, before, hosts=16)
    assert bench.most_down() == 2
    stopped = {change.name for change in bench.world.ledger if change.after.get("power") == "poweredOff"}
    assert stopped == {"vdi-035", "vdi-075", "vdi-115"}, "no other session was closed"
    assert {host.state.loaded_module_options for host in bench.world.by_type("HostSystem")} == {OPTIONS}


def test_who_is_suspended_there_before_its_turn_keeps_his_host_as_it_is(start: Start) -> None:
    bench = start(three())
    suspended = Rule(
        Effect.HAPPEN, "ExitMaintenanceMode_Task", "vdi-003", happening="vm.suspended", phase=Phase.AFTER, times=1
    )
    bench.world.injector.add(suspended)
    report = bench.roll()
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE, Verdict.DONE, Verdict.SKIPPED]
    assert report.outcomes[-1].reason == "esx-02: vdi-003 is suspended on it with a vGPU"
    state = bench.host("esx-02").state
    assert (state.module_options, state.in_maintenance) == ("", False)


@pytest.mark.long
def test_vms_come_back_in_an_order_in_which_each_finds_its_gpu(start: Start) -> None:
    large = {"devices": [{"vgpu": "nvidia_a40-24q"}]}
    pinned = {"extra_config": {"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"}}
    bench = start(cluster(2, [desktops(1, 1, first=1, **pinned), desktops(1, 2, first=2, **large)], gpus=2))
    before = bench.places()
    report = bench.roll(ONE, vms=Displacement.SHUT_DOWN)
    assert report.exit_code == 0, report.outcomes
    check_switched(bench, before, hosts=1)


@pytest.mark.long
@pytest.mark.parametrize(
    "request_",
    [
        SetPassthrough(True, ("0000:3b:00.0",), None, "esx-01"),
        SetMode(type=SharedType.SHARED, host="esx-01"),
    ],
)
def test_directpath_and_graphics_types_come_into_force_too(start: Start, request_: Any) -> None:
    bench = start(cluster(1, []))
    report = bench.roll(request_)
    assert report.exit_code == 0, report.outcomes
    [gpu] = bench.host("esx-01").state.gpus
    assert (gpu.passthrough_active, gpu.graphics_type) in ((True, "sharedDirect"), (False, "shared"))
