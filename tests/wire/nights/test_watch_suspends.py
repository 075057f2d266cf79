"""`give_way: suspend`: ML VMs are suspended for desktops and resumed when there is room, and a kill loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpuops.api import history, rotate_day
from gpuops.config.policy import parse_policy
from gpuops.execute.rotation.watch import AFTER_FAILURE_S
from gpuops.model.nights.rotation import GivesWayBy
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
def watched(tmp_path: Path) -> Iterator[Suspending]:
    with SimServer(small_vdi()) as server:
        yield Suspending(server, tmp_path / "state", SUSPENDING)
        assert server.world.bugs == []


def test_an_ml_vm_gives_way_with_its_memory_and_goes_on_when_there_is_room(watched: Suspending) -> None:
    assert SUSPENDING.spare is not None and SUSPENDING.spare.give_way is GivesWayBy.SUSPEND
    watched.calm()
    boots = {name: watched.vm(name).started_at for name in QUEUE}
    watched.send(PowerOnVm(watched.ref("ml-11")))
    report = watched.look()
    [gives] = report.look.gives.vms
    assert (gives.name != "ml-06", gives.lost_s) == (True, 0.0), "it has the highest priority; none loses work"
    assert [outcome.step for outcome in report.outcomes][:1] == [SuspendVm(watched.ref(gives.name), gives_way=True)]
    assert [type(outcome.step) for outcome in report.outcomes] == [SuspendVm, SetAttribute]
    assert free_of(watched.look()) == KEPT, "a suspended one holds no slot"
    assert watched.suspended == {gives.name} and watched.running == watched.owed() == QUEUE - {gives.name}
    watched.desktop_goes()
    assert watched.look().look.starts == (), "not at once"
    report = watched.look(CALM_S)
    assert report.look.starts == (watched.ref(gives.name),)
    [resumed] = [outcome for outcome in report.outcomes if isinstance(outcome.step, PowerOnVm)]
    assert resumed.verdict is Verdict.DONE
    assert resumed.step == PowerOnVm(watched.ref(gives.name), watched.vm(gives.name).host, resumes=True)
    assert (watched.vm(gives.name).power, watched.vm(gives.name).started_at) == (PowerState.ON, boots[gives.name]), (
        "no boot"
    )
    assert watched.running == QUEUE == watched.owed() == watched.marked()


@pytest.mark.long
def test_it_gives_way_again_and_a_morning_stops_it_and_leaves_the_suspended(watched: Suspending) -> None:
    name = watched.gives_way()
    watched.desktop_goes()
    watched.look(CALM_S)
    watched.look(CALM_S)
    assert watched.running == QUEUE
    suspended_name = watched.gives_way()
    assert watched.suspended == {suspended_name}
    with Connection(target_of(watched.server)) as connection, watched.site(connection) as site:
        assert rotate_day(watched.policy, site, apply=True).exit_code == 0
        past = history(watched.state_dir).nights
        assert {vm.name for night in past for vm in night.vms if vm.held and vm.held[-1].ends is None} == set()
        assert name in {vm.name for night in past for vm in night.vms}
    assert (watched.running, watched.marked(), watched.owed(), watched.suspended) == (
        set(),
        set(),
        set(),
        {suspended_name},
    )
    watched.desktop_goes()
    watched.going = None
    report = watched.calm()
    assert watched.ref(suspended_name) in report.look.starts, "the journal knows it as ours after the morning, too"


@pytest.mark.long
def test_what_somebody_else_suspends_is_left_alone(watched: Suspending) -> None:
    watched.calm()
    watched.send(SuspendVm(watched.ref("ml-08"), gives_way=True))
    watched.look()
    report = watched.look(CALM_S)
    assert report.look.starts == () and watched.suspended == {"ml-08"}


def test_one_that_somebody_has_resumed_and_suspended_since_is_theirs(watched: Suspending) -> None:
    name = watched.gives_way()
    watched.desktop_goes()
    watched.send(ResumeVm(watched.ref(name)))
    watched.server.world.clock.advance(60)
    watched.send(SuspendVm(watched.ref(name), gives_way=True))
    watched.look(CALM_S)
    assert watched.look(CALM_S).look.starts == ()
    assert watched.suspended == {name}


@pytest.mark.long
def test_one_that_is_powered_off_while_suspended_starts_anew(watched: Suspending) -> None:
    name = watched.gives_way()
    watched.desktop_goes()
    state = next(vm for vm in watched.server.world.by_type("VirtualMachine") if vm.state.name == name)
    watched.send(ResumeVm(watched.ref(name)))
    watched.send(PowerOffVm(watched.ref(name)))
    assert state.state.name == name
    watched.look(CALM_S)
    report = watched.look(CALM_S)
    assert [outcome.step.resumes for outcome in report.outcomes if isinstance(outcome.step, PowerOnVm)] in ([], [False])
    assert watched.running == QUEUE


@pytest.mark.long
def test_where_one_cannot_be_suspended_they_are_stopped_for_a_while(watched: Suspending) -> None:
    watched.calm()
    watched.server.world.injector.add(Rule(Effect.TASK, method="SuspendVM_Task", fault="NoDiskSpace"))
    watched.send(PowerOnVm(watched.ref("ml-11")))
    [failed, *_] = watched.look().outcomes
    assert (type(failed.step), failed.verdict) == (SuspendVm, Verdict.FAILED)
    assert watched.running == QUEUE == watched.marked() == watched.owed(), "it runs on, and is ours"
    [stopped, *_] = watched.look().outcomes
    assert (type(stopped.step), stopped.verdict) == (ShutDownGuest, Verdict.DONE), "desktops come first"
    assert free_of(watched.look()) == KEPT
    watched.send(PowerOnVm(watched.ref("ml-12")))
    [suspended, *_] = watched.look(AFTER_FAILURE_S).outcomes
    assert (type(suspended.step), suspended.verdict) == (SuspendVm, Verdict.DONE)


@pytest.mark.long
def test_one_whose_datastore_has_no_room_is_stopped(watched: Suspending) -> None:
    watched.calm()
    for store in watched.server.world.by_type("Datastore"):
        store.use(store.free_mib - 1024)
    watched.send(PowerOnVm(watched.ref("ml-11")))
    [stopped, *_] = watched.look().outcomes
    assert isinstance(stopped.step, ShutDownGuest)


@pytest.mark.long
@pytest.mark.parametrize("after", range(2))
def test_a_watch_that_is_killed_while_one_gives_way_knows_it_as_its_own(watched: Suspending, after: int) -> None:
    watched.calm()
    watched.send(PowerOnVm(watched.ref("ml-11")))
    assert watched.killed(after, lambda kill: watched.look(60, kill))
    watched.look()
    assert free_of(watched.look()) == KEPT
    assert len(watched.suspended) == 1 and watched.marked() == watched.owed() == watched.running
    watched.desktop_goes()
    watched.look(CALM_S)
    watched.look(CALM_S)
    assert watched.running == QUEUE == watched.owed() and watched.suspended == set()


@pytest.mark.long
@pytest.mark.parametrize("after", mostly_long(range(3), (0, 1, 2)))
def test_a_watch_that_is_killed_while_one_goes_on_goes_on(watched: Suspending, after: int) -> None:
    watched.gives_way()
    watched.desktop_goes()
    watched.look(1.0)
    if not watched.killed(after, lambda kill: watched.look(CALM_S, kill)):
        assert after == 2, "a mark, and a start"
    watched.calm()
    assert watched.running == QUEUE == watched.marked() == watched.owed() and watched.suspended == set()
    with Connection(target_of(watched.server)) as connection, watched.site(connection) as site:
        assert rotate_day(watched.policy, site, apply=True).exit_code == 0
    assert (watched.running, watched.marked(), watched.owed()) == (set(), set(), set())


def test_what_gave_way_is_known_for_weeks(watched: Suspending) -> None:
    name = watched.gives_way()
    watched.desktop_goes()
    with Connection(target_of(watched.server)) as connection, watched.site(connection) as site:
        now = site.clock()
        with site.locked_journal(connection.uuid, alone=True) as journal:
            journal.clock = lambda: now + timedelta(days=30)
            journal.end(journal.begin("attach"))
    watched.look(CALM_S)
    report = watched.look(CALM_S)
    assert report.look.starts == (watched.ref(name),)
