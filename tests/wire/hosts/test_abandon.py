"""A host that never comes back: waited for, given up by name, known again under another id; over real SOAP."""

from __future__ import annotations

from typing import Any

import pytest
from pyVmomi import vmodl

from gpuops.api import change_abandon, change_status, doctor
from gpuops.errors import GpuopsError, Refused
from gpuops.execute.runs import no_change_open
from gpuops.execute.site import Site
from gpuops.model.nights.history import Thing
from gpuops.model.vcenter.host_settings import Displacement
from gpuops.plan.core.abandonment import Abandonment
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.scope import Scope
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.operations import maintenance
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from tests.sample import mostly_long
from tests.wire.hosts.clusters import cluster, desktops
from tests.wire.hosts.leaving import added_again, remove_host
from tests.wire.hosts.rolling import EQUAL, ONE, OPTIONS, Bench, Start
from tests.wire.steps.points import Killed, Points

pytestmark = pytest.mark.long

DIES = Rule(Effect.HAPPEN, "RebootHost_Task", "esx-01", happening="host.stays_down", phase=Phase.AFTER)
AFTER_THE_REBOOT = "after HostConnection.submit RebootHost"


def two() -> World:
    """Two hosts, on the first of them two desktops that can be moved and one that must be shut down."""
    pinned = {"extra_config": {"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"}}
    return cluster(2, [desktops(1, 2, first=1), desktops(1, 1, first=3, **pinned)])


def three() -> World:
    return cluster(3, [desktops(1, 2, first=1), desktops(2, 3, first=3)])


def start_with_dead_host(start: Start, world: World | None = None, request: Any = ONE) -> Bench:
    """A change that stopped at esx-01, which does not come back from its reboot."""
    bench = start(world or two())
    bench.world.injector.add(DIES)
    assert bench.roll(request, vms=Displacement.SHUT_DOWN).exit_code == 4
    return bench


def abandon(bench: Bench, thing: Thing, name: str, *, apply: bool = True) -> Abandonment:
    return bench.on_site(lambda site: change_abandon(site, thing, name, apply=apply))


def names_given_up(bench: Bench) -> list[list[str]]:
    """What doctor, and what status, names as given up."""

    def look(site: Site) -> list[list[str]]:
        examination = doctor(site, Scope())
        status = change_status(site)
        return [
            sorted(finding.subject for finding in examination.findings if "was given up" in finding.reason),
            sorted(entry.given.name for entry in status.given_up),
        ]

    return bench.on_site(look)


def test_a_host_that_never_comes_back_is_given_up_and_named_until_it_is_back(start: Start) -> None:
    bench = start_with_dead_host(start)
    reason = bench.abort().outcomes[0].reason
    assert reason.endswith("it stays in maintenance mode; if it never comes back: gpuops change abandon --host esx-01")
    dry_run = abandon(bench, Thing.HOST, "esx-01", apply=False)
    assert bench.is_open(), "a dry run writes nothing"
    with pytest.raises(GpuopsError, match="did not end"):
        bench.on_site(no_open)
    assert dry_run.means == (
        "esx-01 stays as it is (it is not connected); the new setting may or may not be in force on it",
        "vdi-001, vdi-002: not moved back, they stay where they are",
        "vdi-003: shut down for the change, and not started again",
        "gpuops doctor, change status and rotate status name it until it is back",
        "scheduler set has nothing else to do: the change ends, and other changes and nights can run",
    )
    before = len(bench.world.ledger)
    assert abandon(bench, Thing.HOST, "esx-01").applied
    assert len(bench.world.ledger) == before, "nothing is asked of vCenter"
    assert not bench.is_open()
    assert bench.on_site(no_open), "it keeps no night away"
    assert abandon(bench, Thing.HOST, "esx-01").already
    assert names_given_up(bench) == [["esx-01", "vdi-003"]] * 2
    maintenance.boot(bench.host("esx-01"), somebody(bench.world, "PowerButton"))
    assert names_given_up(bench) == [["esx-01", "vdi-003"]] * 2, "it is in maintenance mode"
    bench.host("esx-01").state.in_maintenance = False
    bench.host("esx-01").runtime_changed()
    assert names_given_up(bench) == [["vdi-003"]] * 2
    vm = next(vm for vm in bench.world.by_type("VirtualMachine") if vm.display_name == "vdi-003")
    vm.state.power = Power.ON
    vm.power_changed()
    assert names_given_up(bench) == [[]] * 2


def test_the_change_goes_on_without_the_host_that_was_given_up(start: Start) -> None:
    bench = start_with_dead_host(start, three(), EQUAL)
    abandoned_host = abandon(bench, Thing.HOST, "esx-01")
    assert abandoned_host.left == ("gpuops change resume continues with esx-02; gpuops change abort ends it",)
    assert bench.is_open()
    report = bench.resume()
    assert (report.exit_code, bench.is_open()) == (0, False), report.outcomes
    assert [outcome.reason for outcome in report.outcomes if outcome.reason] == ["was given up: left as it is"]
    assert bench.host("esx-02").state.loaded_module_options == OPTIONS
    assert bench.host("esx-01").state.in_maintenance, "it is left alone"
    assert names_given_up(bench)[0] == ["esx-01"]
    assert bench.roll(EQUAL).exit_code in (0, 3), "another roll is not kept away by it"


def test_a_vm_that_cannot_be_brought_back_is_given_up(start: Start) -> None:
    bench = start(two())
    bench.world.injector.add(Rule(Effect.TASK, "PowerOnVM_Task", "vdi-003", fault="GenericVmConfigFault", times=99))
    assert bench.roll(ONE, vms=Displacement.SHUT_DOWN).exit_code == 4
    assert bench.abort().exit_code == 4
    assert bench.is_open()
    assert abandon(bench, Thing.VM, "vdi-003").means[0].startswith("vdi-003 stays as it is (it is powered off)")
    report = bench.abort()
    assert (report.exit_code, bench.is_open()) == (0, False), report.outcomes
    assert names_given_up(bench) == [["vdi-003"]] * 2


def test_what_no_change_holds_is_not_given_up(start: Start) -> None:
    bench = start_with_dead_host(start)
    with pytest.raises(Refused, match="esx-02 is not an open host of the unfinished change"):
        abandon(bench, Thing.HOST, "esx-02")
    with pytest.raises(Refused, match="vdi-009 was not taken from a host, or is already back"):
        abandon(bench, Thing.VM, "vdi-009")
    abandon(bench, Thing.HOST, "esx-01")
    for thing, name in ((Thing.HOST, "esx-02"), (Thing.VM, "vdi-009")):
        with pytest.raises(Refused, match="no change of hosts is open"):
            abandon(bench, thing, name)


def test_a_host_that_is_gone_from_vcenter_ends_in_a_line_and_can_be_given_up(start: Start) -> None:
    bench = start_with_dead_host(start)
    with bench.world.lock:
        remove_host(bench.host("esx-01"))
    for act in (bench.resume, bench.abort):
        [outcome] = act().outcomes
        assert outcome.reason.startswith("is gone from vCenter; it stays as it is")
    abandon(bench, Thing.HOST, "esx-01")
    assert not bench.is_open()
    assert bench.on_site(lambda site: no_open(site))
    assert names_given_up(bench) == [["esx-01", "vdi-003"]] * 2


def no_open(site: Site) -> bool:
    with site.journal_to_read(site.vcenter.uuid) as journal:
        no_change_open(journal)
    return True


@pytest.mark.parametrize("act", mostly_long(["resume", "abort"], ["resume"]))
def test_a_host_that_was_added_again_under_another_id_is_known_by_its_uuid(start: Start, act: str) -> None:
    bench = start_with_dead_host(start)
    before = dict.fromkeys(bench.places(), Power.ON)
    with bench.world.lock:
        old = bench.host("esx-01")
        vms = remove_host(old)
        maintenance.boot(old_again := added_again(old, vms), somebody(bench.world, "PowerButton"))
    report = getattr(bench, act)()
    assert report.exit_code == 0, report.outcomes
    assert not bench.is_open()
    assert {name: power for name, (_, power) in bench.places().items()} == before
    assert {host for host, _ in bench.places().values()} == {"esx-01"}
    assert not old_again.state.in_maintenance
    reboots = [change for change in bench.world.ledger if change.after.get("connection") == "notResponding"]
    assert len(reboots) == 1, "it is not rebooted again"


@pytest.mark.parametrize("later_s", mostly_long([0, 200], [200]))
def test_abort_waits_for_a_host_that_still_boots(start: Start, monkeypatch: pytest.MonkeyPatch, later_s: float) -> None:
    bench, points = start(two()), Points(monkeypatch)
    before = bench.places()
    points.kill_at_first(AFTER_THE_REBOOT)
    with pytest.raises(Killed):
        bench.roll(ONE, vms=Displacement.SHUT_DOWN)
    bench.world.clock.advance(later_s)
    report = bench.abort()
    assert report.exit_code == 0, report.outcomes
    host = bench.host("esx-01").state
    assert (host.connection, host.in_maintenance, bench.places()) == ("connected", False, before)
    maintenance_ends = [change for change in bench.world.ledger if change.after.get("in_maintenance") is False]
    back = [change for change in bench.world.ledger if change.after.get("connection") == "connected"]
    assert back[0].at < maintenance_ends[0].at, "it leaves maintenance mode once it is back"


def test_abort_leaves_a_dead_host_in_maintenance_mode(start: Start) -> None:
    bench = start_with_dead_host(start)
    for _ in range(2):
        began = bench.world.clock.now()
        report = bench.abort()
        assert [outcome.verdict for outcome in report.outcomes] == [Verdict.FAILED]
        assert bench.host("esx-01").state.in_maintenance
        assert (bench.world.clock.now() - began).total_seconds() < 600, "its hour is over: it is not waited for again"


def test_a_host_that_does_not_respond_takes_no_orders(start: Start) -> None:
    bench = start_with_dead_host(start)
    server = bench.server
    host = bench.host("esx-01")
    order = somebody(server.world, "ChangeOrder")
    with server.world.lock:
        for task in (
            maintenance.leave(host, order),
            maintenance.enter(host, order, 0),
            maintenance.reboot(host, order, force=True),
        ):
            server.world.clock.advance(60)
            assert isinstance(task.error, vmodl.fault.HostNotConnected), task.state
    assert host.state.in_maintenance
