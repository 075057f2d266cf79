"""`give_way: suspend`: ML VMs are suspended for desktops and resumed when there is room, and a kill loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpuops.api import history, rotate_day
from gpuops.config.policy import parse_policy
from gpuops.execute.rotation.watch import AFTER_FAILURE_S
from gpuops.model.nights.rotation_policy import GivesWayBy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, SetAttribute, ShutDownGuest, SuspendVm
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.sample import mostly_long
from tests.wire.conftest import target_of
from tests.wire.nights.test_watch import CALM_S, KEPT, QUEUE, TEXT, Watched, free_of, small_vdi

SUSPENDING = parse_policy(TEXT.replace(f"calm_s: {CALM_S}", f"calm_s: {CALM_S}, give_way: suspend"), "of the tests")


class Suspending(Watched):
    """A watch that suspends ML VMs when desktops need their GPUs."""

    def inventory(self) -> Inventory:
        with Connection(target_of(self.server)) as connection:
            return connection.inventory()

    def vm(self, name: str) -> Vm:
        return self.inventory().vms[self.ref(name)]

    @property
    def suspended(self) -> set[str]:
        return {vm.name for vm in self.inventory().vms.values() if vm.power is PowerState.SUSPENDED} & QUEUE

    def gives_way(self) -> str:
        """Start a desktop and return the ML VM that is suspended for it."""
        self.calm()
        self.send(PowerOnVm(self.ref("ml-11")))
        [gives] = self.look().look.gives.vms
        return gives.name

    def desktop_goes(self) -> None:
        self.send(PowerOffVm(self.ref("ml-11")))


@pytest.fixture
def suspending_site(tmp_path: Path) -> Iterator[Suspending]:
    with SimServer(small_vdi()) as server:
        yield Suspending(server, tmp_path / "state", SUSPENDING)
        assert server.world.bugs == []


def test_an_ml_vm_gives_way_with_its_memory_and_goes_on_when_there_is_room(suspending_site: Suspending) -> None:
    assert SUSPENDING.spare is not None and SUSPENDING.spare.give_way is GivesWayBy.SUSPEND
    suspending_site.calm()
    boots = {name: suspending_site.vm(name).started_at for name in QUEUE}
    suspending_site.send(PowerOnVm(suspending_site.ref("ml-11")))
    report = suspending_site.look()
    [gives] = report.look.gives.vms
    assert (gives.name != "ml-06", gives.lost_s) == (True, 0.0), "it has the highest priority; none loses work"
    assert [outcome.step for outcome in report.outcomes][:1] == [
        SuspendVm(suspending_site.ref(gives.name), gives_way=True)
    ]
    assert [type(outcome.step) for outcome in report.outcomes] == [SuspendVm, SetAttribute]
    assert free_of(suspending_site.look()) == KEPT, "a suspended one holds no slot"
    assert suspending_site.suspended == {gives.name} and suspending_site.running == suspending_site.owed() == QUEUE - {
        gives.name
    }
    suspending_site.desktop_goes()
    assert suspending_site.look().look.starts == (), "not at once"
    report = suspending_site.look(CALM_S)
    assert report.look.starts == (suspending_site.ref(gives.name),)
    [resumed] = [outcome for outcome in report.outcomes if isinstance(outcome.step, PowerOnVm)]
    assert resumed.verdict is Verdict.DONE
    assert resumed.step == PowerOnVm(suspending_site.ref(gives.name), suspending_site.vm(gives.name).host, resumes=True)
    assert (suspending_site.vm(gives.name).power, suspending_site.vm(gives.name).started_at) == (
        PowerState.ON,
        boots[gives.name],
    ), "no boot"
    assert suspending_site.running == QUEUE == suspending_site.owed() == suspending_site.marked()


@pytest.mark.long
def test_it_gives_way_again_and_a_morning_stops_it_and_leaves_the_suspended(suspending_site: Suspending) -> None:
    name = suspending_site.gives_way()
    suspending_site.desktop_goes()
    suspending_site.look(CALM_S)
    suspending_site.look(CALM_S)
    assert suspending_site.running == QUEUE
    suspended_name = suspending_site.gives_way()
    assert suspending_site.suspended == {suspended_name}
    with Connection(target_of(suspending_site.server)) as connection, suspending_site.site(connection) as site:
        assert rotate_day(suspending_site.policy, site, apply=True).exit_code == 0
        past = history(suspending_site.state_dir).nights
        assert {vm.name for night in past for vm in night.vms if vm.held and vm.held[-1].ends is None} == set()
        assert name in {vm.name for night in past for vm in night.vms}
    assert (suspending_site.running, suspending_site.marked(), suspending_site.owed(), suspending_site.suspended) == (
        set(),
        set(),
        set(),
        {suspended_name},
    )
    suspending_site.desktop_goes()
    suspending_site.going = None
    report = suspending_site.calm()
    assert suspending_site.ref(suspended_name) in report.look.starts, (
        "the journal knows it as ours after the morning, too"
    )


@pytest.mark.long
def test_what_somebody_else_suspends_is_left_alone(suspending_site: Suspending) -> None:
    suspending_site.calm()
    suspending_site.send(SuspendVm(suspending_site.ref("ml-08"), gives_way=True))
    suspending_site.look()
    report = suspending_site.look(CALM_S)
    assert report.look.starts == () and suspending_site.suspended == {"ml-08"}


def test_one_that_somebody_has_resumed_and_suspended_since_is_theirs(suspending_site: Suspending) -> None:
    name = suspending_site.gives_way()
    suspending_site.desktop_goes()
    suspending_site.send(ResumeVm(suspending_site.ref(name)))
    suspending_site.server.world.clock.advance(60)
    suspending_site.send(SuspendVm(suspending_site.ref(name), gives_way=True))
    suspending_site.look(CALM_S)
    assert suspending_site.look(CALM_S).look.starts == ()
    assert suspending_site.suspended == {name}


@pytest.mark.long
def test_one_that_is_powered_off_while_suspended_starts_anew(suspending_site: Suspending) -> None:
    name = suspending_site.gives_way()
    suspending_site.desktop_goes()
    state = next(vm for vm in suspending_site.server.world.by_type("VirtualMachine") if vm.state.name == name)
    suspending_site.send(ResumeVm(suspending_site.ref(name)))
    suspending_site.send(PowerOffVm(suspending_site.ref(name)))
    assert state.state.name == name
    suspending_site.look(CALM_S)
    report = suspending_site.look(CALM_S)
    assert [outcome.step.resumes for outcome in report.outcomes if isinstance(outcome.step, PowerOnVm)] in ([], [False])
    assert suspending_site.running == QUEUE


@pytest.mark.long
def test_where_one_cannot_be_suspended_they_are_stopped_for_a_while(suspending_site: Suspending) -> None:
    suspending_site.calm()
    suspending_site.server.world.injector.add(Rule(Effect.TASK, method="SuspendVM_Task", fault="NoDiskSpace"))
    suspending_site.send(PowerOnVm(suspending_site.ref("ml-11")))
    [failed, *_] = suspending_site.look().outcomes
    assert (type(failed.step), failed.verdict) == (SuspendVm, Verdict.FAILED)
    assert suspending_site.running == QUEUE == suspending_site.marked() == suspending_site.owed(), (
        "it runs on, and is ours"
    )
    [stopped, *_] = suspending_site.look().outcomes
    assert (type(stopped.step), stopped.verdict) == (ShutDownGuest, Verdict.DONE), "desktops come first"
    assert free_of(suspending_site.look()) == KEPT
    suspending_site.send(PowerOnVm(suspending_site.ref("ml-12")))
    [suspended, *_] = suspending_site.look(AFTER_FAILURE_S).outcomes
    assert (type(suspended.step), suspended.verdict) == (SuspendVm, Verdict.DONE)


@pytest.mark.long
def test_one_whose_datastore_has_no_room_is_stopped(suspending_site: Suspending) -> None:
    suspending_site.calm()
    for store in suspending_site.server.world.by_type("Datastore"):
        store.use(store.free_mib - 1024)
    suspending_site.send(PowerOnVm(suspending_site.ref("ml-11")))
    [stopped, *_] = suspending_site.look().outcomes
    assert isinstance(stopped.step, ShutDownGuest)


@pytest.mark.long
@pytest.mark.parametrize("after", range(2))
def test_a_watch_that_is_killed_while_one_gives_way_knows_it_as_its_own(
    suspending_site: Suspending, after: int
) -> None:
    suspending_site.calm()
    suspending_site.send(PowerOnVm(suspending_site.ref("ml-11")))
    assert suspending_site.killed(after, lambda kill: suspending_site.look(60, kill))
    suspending_site.look()
    assert free_of(suspending_site.look()) == KEPT
    assert (
        len(suspending_site.suspended) == 1
        and suspending_site.marked() == suspending_site.owed() == suspending_site.running
    )
    suspending_site.desktop_goes()
    suspending_site.look(CALM_S)
    suspending_site.look(CALM_S)
    assert suspending_site.running == QUEUE == suspending_site.owed() and suspending_site.suspended == set()


@pytest.mark.long
@pytest.mark.parametrize("after", mostly_long(range(3), (0, 1, 2)))
def test_a_watch_that_is_killed_while_one_goes_on_goes_on(suspending_site: Suspending, after: int) -> None:
    suspending_site.gives_way()
    suspending_site.desktop_goes()
    suspending_site.look(1.0)
    if not suspending_site.killed(after, lambda kill: suspending_site.look(CALM_S, kill)):
        assert after == 2, "a mark, and a start"
    suspending_site.calm()
    assert (
        suspending_site.running == QUEUE == suspending_site.marked() == suspending_site.owed()
        and suspending_site.suspended == set()
    )
    with Connection(target_of(suspending_site.server)) as connection, suspending_site.site(connection) as site:
        assert rotate_day(suspending_site.policy, site, apply=True).exit_code == 0
    assert (suspending_site.running, suspending_site.marked(), suspending_site.owed()) == (set(), set(), set())


def test_what_gave_way_is_known_for_weeks(suspending_site: Suspending) -> None:
    name = suspending_site.gives_way()
    suspending_site.desktop_goes()
    with Connection(target_of(suspending_site.server)) as connection, suspending_site.site(connection) as site:
        now = site.clock()
        with site.locked_journal(connection.uuid, alone=True) as journal:
            journal.clock = lambda: now + timedelta(days=30)
            journal.end(journal.begin("attach"))
    suspending_site.look(CALM_S)
    report = suspending_site.look(CALM_S)
    assert report.look.starts == (suspending_site.ref(name),)
