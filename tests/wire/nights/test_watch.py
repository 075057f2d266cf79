"""`rotate watch` over real SOAP: slots for desktops stay free, ML VMs stop for desktops, and a kill loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuops.api import Site, rotate_day, rotate_night, rotate_restore, rotate_status, rotate_watch, rotate_watch_look
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.errors import Locked, NotConnected, UsageError, VcenterUnreachable
from gpuops.execute.rotation import rotation_lock
from gpuops.execute.rotation.rotation_lock import WatchState, alone
from gpuops.execute.rotation.watch import Watch
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, SetAttribute, ShutDownGuest, Step
from gpuops.plan.rotation.nights.watch_look import WatchReport
from gpuops.sim.scenario import scenario_file
from gpuops.sim.scenario.build import build, build_declared
from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from tests.sample import mostly_long
from tests.wire.conftest import target_of

KEPT, CALM_S = 7, 300
"""Of the 12 vGPUs a100-3-20c that three hosts have room for."""
TEXT = f"""
version: 1
name: spare
mode: spare-capacity
spare: {{keep_free: {{a100-3-20c: {KEPT}}}, calm_s: {CALM_S}}}
ml:
  queue:
    - {{vm: ml-06, priority: 5}}
    - {{vms: [ml-07, ml-08, ml-09, ml-10], checkpoint: {{every_s: 600}}}}
"""
POLICY: Policy = parse_policy(TEXT, "of the tests")
QUEUE = {f"ml-{number:02}" for number in range(6, 11)}
DESKTOPS = ("ml-11", "ml-12")
"""VMs outside the queue, with a vGPU of the same profile, as users start them."""
NIGHT: Policy = parse_policy(
    """
version: 1
name: night
windows: any
pools: [{name: office, parked: true, select: {folder: vdi}, idle: {cpu_below_mhz: 500}, owner: none}]
ml: {queue: [{vm: ml-06}, {vm: ml-11}]}
""",
    "of the tests",
)


DESKTOPS_AT_WORK = 12


def small_vdi() -> World:
    """The scenario `vdi` with 12 of its 90 desktops in the pool: each look reads every VM."""
    declared, parameters = scenario_file.read("vdi")
    pool, *other_vms = declared.vms
    return build_declared(
        msgspec.structs.replace(declared, vms=(msgspec.structs.replace(pool, count=DESKTOPS_AT_WORK), *other_vms)),
        parameters,
    )


class Killed(BaseException):
    """What `kill -9` is to a run."""


@dataclass
class Watched:
    """A simulated vCenter, and a watch that looks at moments chosen by the test."""

    server: SimServer
    state_dir: Path
    policy: Policy = POLICY
    now_s: float = 0.0
    said: list[str] = field(default_factory=list)
    going: Watch | None = None

    def site(self, connection: Connection) -> Site:
        site = Site(connection, self.state_dir, wall_clock, passed_s=lambda: self.now_s, say=self.said.append)
        site.pause = self.wait
        return site

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def look(self, after_s: float = 60.0, progress: Callable[[Outcome], None] = lambda outcome: None) -> WatchReport:
        """One look of the same watch, so many seconds after the one before."""
        self.now_s += after_s
        with Connection(target_of(self.server)) as connection, self.site(connection) as site:
            site.progress = progress
            state = self.going.state if self.going is not None else WatchState(self.policy.text)
            assert self.policy.spare is not None
            watch = Watch(self.policy, self.policy.spare, site, state)
            if self.going is not None:
                watch.history, watch.tried = self.going.history, self.going.tried
                watch.suspend_failed_s = self.going.suspend_failed_s
            self.going = watch
            return watch.look()

    def calm(self) -> WatchReport:
        """The look that comes after so long a calm that ML VMs may start."""
        self.look()
        return self.look(CALM_S)

    def killed(self, after: int, look: Callable[[Callable[[Outcome], None]], Any]) -> bool:
        """Whether the look was killed when so many steps had ended; the watch that comes next knows nothing of it."""
        ended = iter(range(10**6))

        def kill(outcome: Outcome) -> None:
            if next(ended) == after:
                raise Killed

        with suppress(Killed):
            look(kill)
            return False
        self.going = None
        return True

    def send(self, step: Step) -> None:
        """Do something with another login."""
        with Connection(target_of(self.server)) as connection:
            task = connection.submit(step, connection.inventory(), "somebody-else")
            assert task is not None
            assert [end.error for end in connection.wait([task], 600)] == [None]

    def ref(self, name: str) -> str:
        return next(vm.moid for vm in self.server.world.by_type("VirtualMachine") if vm.name == name)

    @property
    def running(self) -> set[str]:
        """The ML VMs of the queue that run."""
        with Connection(target_of(self.server)) as connection:
            vms = connection.inventory().vms.values()
        return {vm.name for vm in vms if vm.power is PowerState.ON and vm.name in QUEUE}

    def marked(self) -> set[str]:
        with Connection(target_of(self.server)) as connection:
            vms = connection.inventory().vms.values()
        return {vm.name for vm in vms if vm.attributes.get("gpuops.rotation")}

    def owed(self) -> set[str]:
        """The VMs that the journal holds of this watch."""
        with Connection(target_of(self.server)) as connection:
            return {vm.original.name for vm in rotate_status(self.site(connection)).vms}


@pytest.fixture
def watched_site(tmp_path: Path) -> Iterator[Watched]:
    with SimServer(small_vdi()) as server:
        yield Watched(server, tmp_path / "state")
        assert server.world.bugs == []


@pytest.fixture
def full_house(tmp_path: Path) -> Iterator[Watched]:
    """With all desktops of the scenario, so that whatever starts takes the place of others."""
    with SimServer(build("vdi")) as server:
        yield Watched(server, tmp_path / "state")
        assert server.world.bugs == []


def free_of(report: WatchReport) -> int:
    [state] = report.look.states
    return state.free


@pytest.mark.long
def test_ml_vms_start_as_far_as_enough_is_left_for_desktops(watched_site: Watched) -> None:
    assert watched_site.look().look.starts == (), "it is not known yet how many were free"
    assert watched_site.look(CALM_S - 1).look.starts == ()
    report = watched_site.look(1)
    assert len(report.look.starts) == 5 and {outcome.verdict for outcome in report.outcomes} == {Verdict.DONE}
    assert free_of(watched_site.look()) == KEPT
    assert watched_site.running == QUEUE == watched_site.marked() == watched_site.owed()


def test_a_watch_has_one_vm_moved_every_ten_minutes_while_a_window_is_open(tmp_path: Path) -> None:
    policy = parse_policy(f"{TEXT}defrag: {{budget: 9, windows: ['21:00-06:00 UTC']}}\n", "of the tests")
    assert policy.spare is not None
    with SimServer(small_vdi()) as server, Connection(target_of(server)) as connection:
        seconds = count(step=60)
        site = Site(connection, tmp_path, lambda: now, passed_s=lambda: next(seconds))
        watch, calls = Watch(policy, policy.spare, site, WatchState(policy.text)), list[datetime]()

        def make_one_move() -> None:
            calls.append(now)

        night = datetime(2026, 11, 3, 2, tzinfo=UTC)
        for moment in (night + timedelta(hours=10), night):
            now = moment
            for _ in range(20):  # minutes
                watch.move_vm(make_one_move)
        assert calls == [night, night]


@pytest.mark.long
def test_teams_share_what_is_spare(watched_site: Watched) -> None:
    """All are of one team, which may have one GPU: two of its VMs with a half each."""
    shared = "fair_share: {by: 'attribute:gpuops.owner', teams: {research: {at_most: {gpus: 1}}}}\n"
    watched_site.policy = parse_policy(TEXT + shared, "of the tests")
    watched_site.calm()
    assert len(watched_site.running) == 2
    waiting = {choice.subject: choice.reason for choice in watched_site.calm().look.waiting}
    waiting_names = QUEUE - watched_site.running
    assert {waiting[name] for name in waiting_names} == {"team research has 1 of 1 GPUs at once"}
    assert len(watched_site.running) == 2


@pytest.mark.long
def test_one_that_would_take_what_is_kept_waits(watched_site: Watched) -> None:
    watched_site.send(PowerOnVm(watched_site.ref("ml-11")))
    report = watched_site.calm()
    assert len(report.look.starts) == 4
    [waiting] = [waiting_vm for waiting_vm in report.look.waiting if waiting_vm.subject in QUEUE]
    assert waiting.reason == f"vdi-cluster: {KEPT - 1} of grid_a100-3-20c would be left free, {KEPT} are kept"
    assert free_of(watched_site.look()) == KEPT


def test_a_slot_that_comes_and_goes_is_no_room(watched_site: Watched) -> None:
    """Between two looks of a calm a desktop ran for a moment: its slot counts as taken for all of that time."""
    watched_site.look()
    watched_site.send(PowerOnVm(watched_site.ref("ml-11")))
    watched_site.look(100)
    watched_site.send(PowerOffVm(watched_site.ref("ml-11")))
    assert len(watched_site.look(CALM_S - 100).look.starts) == 4, "as many as if it still ran"
    assert free_of(watched_site.look()) == KEPT + 1


@pytest.mark.long
def test_ml_vms_give_way_to_desktops_and_come_back_when_it_is_calm(watched_site: Watched) -> None:
    watched_site.calm()
    watched_site.send(PowerOnVm(watched_site.ref("ml-11")))
    report = watched_site.look()
    [gives] = report.look.gives.vms
    assert gives.name != "ml-06", "it has the highest priority"
    assert [type(outcome.step) for outcome in report.outcomes] == [ShutDownGuest, SetAttribute]
    assert free_of(watched_site.look()) == KEPT
    assert watched_site.running == watched_site.marked() == watched_site.owed() == QUEUE - {gives.name}
    watched_site.send(PowerOffVm(watched_site.ref("ml-11")))
    assert watched_site.look().look.starts == (), "not at once"
    assert watched_site.look(CALM_S).look.starts == (watched_site.ref(gives.name),)
    assert watched_site.running == QUEUE == watched_site.owed()


def test_just_before_a_start_it_is_counted_once_more(watched_site: Watched) -> None:
    """Two desktops start after the plan was made: the starts that would take what is kept are not sent."""
    users = iter(DESKTOPS)

    def desktops_come(outcome: Outcome) -> None:
        if isinstance(outcome.step, SetAttribute):
            watched_site.now_s += 6.0  # a look is shared for 5 s
            for name in users:
                watched_site.send(PowerOnVm(watched_site.ref(name)))

    watched_site.look()
    report = watched_site.look(CALM_S, desktops_come)
    left_out = [
        outcome
        for outcome in report.outcomes
        if isinstance(outcome.step, PowerOnVm) and outcome.verdict is Verdict.SKIPPED
    ]
    assert len(left_out) == 2 and all("would be left free" in skipped.reason for skipped in left_out)
    assert free_of(watched_site.look()) == KEPT


@pytest.mark.long
def test_one_that_is_off_again_has_done_its_work(watched_site: Watched) -> None:
    watched_site.calm()
    watched_site.send(PowerOffVm(watched_site.ref("ml-08")))
    watched_site.look()
    assert watched_site.marked() == watched_site.owed() == QUEUE - {"ml-08"}
    report = watched_site.look(CALM_S)
    assert report.look.starts == () and "its work is done" in next(
        waiting_vm.reason for waiting_vm in report.look.waiting if waiting_vm.subject == "ml-08"
    )
    watched_site.send(PowerOnVm(watched_site.ref("ml-08")))
    watched_site.look()
    watched_site.send(PowerOffVm(watched_site.ref("ml-08")))
    watched_site.look()
    assert watched_site.look(CALM_S).look.starts == (watched_site.ref("ml-08"),), "somebody has started it once"


@pytest.mark.long
def test_what_somebody_else_starts_is_left_alone(watched_site: Watched) -> None:
    watched_site.send(PowerOnVm(watched_site.ref("ml-09")))
    watched_site.calm()
    assert watched_site.running == QUEUE and watched_site.marked() == QUEUE - {"ml-09"}
    for name in DESKTOPS:
        watched_site.send(PowerOnVm(watched_site.ref(name)))
    watched_site.look()
    assert "ml-09" in watched_site.running and len(watched_site.running) == 3


@pytest.mark.long
@pytest.mark.parametrize("after", mostly_long(range(10), (1, 6, 8)))
def test_a_watch_that_is_killed_while_it_starts_goes_on(watched_site: Watched, after: int) -> None:
    watched_site.look()
    assert watched_site.killed(after, lambda kill: watched_site.look(CALM_S, kill))
    watched_site.calm()
    assert watched_site.running == QUEUE == watched_site.marked() == watched_site.owed()
    with Connection(target_of(watched_site.server)) as connection, watched_site.site(connection) as site:
        assert rotate_day(watched_site.policy, site, apply=True).exit_code == 0
    assert (watched_site.running, watched_site.marked(), watched_site.owed()) == (set(), set(), set())


@pytest.mark.long
@pytest.mark.parametrize("after", range(2))
def test_a_watch_that_is_killed_while_one_gives_way_goes_on(watched_site: Watched, after: int) -> None:
    watched_site.calm()
    watched_site.send(PowerOnVm(watched_site.ref("ml-11")))
    assert watched_site.killed(after, lambda kill: watched_site.look(60, kill))
    assert free_of(watched_site.look()) in (KEPT - 1, KEPT)
    assert free_of(watched_site.look()) == KEPT
    assert len(watched_site.running) == 4 and watched_site.marked() == watched_site.owed() == watched_site.running


@pytest.mark.long
def test_a_killed_watch_is_ended_by_a_morning(watched_site: Watched) -> None:
    watched_site.look()
    assert watched_site.killed(7, lambda kill: watched_site.look(CALM_S, kill))
    with Connection(target_of(watched_site.server)) as connection, watched_site.site(connection) as site:
        assert rotate_day(None, site, apply=True).exit_code == 0, "the journal has its policy"
    assert (watched_site.running, watched_site.marked(), watched_site.owed()) == (set(), set(), set())


def test_a_night_that_means_one_of_its_vms_is_refused_beside_it(watched_site: Watched) -> None:
    with Connection(target_of(watched_site.server)) as connection, watched_site.site(connection) as site:
        with pytest.raises(Locked, match="its policy cannot be read"), alone(site, site.clock()):
            rotate_night(NIGHT, site, apply=True)
        watched_site.look()
        with alone(site, site.clock()):
            rotation_lock.keep(site, WatchState(POLICY.text))
            for apply in (False, True):
                with pytest.raises(Locked, match=r"pid \d+ since .* watches ml-06 under policy spare"):
                    rotate_night(NIGHT, site, apply=apply)
            with pytest.raises(Locked, match="watches this vCenter already"):
                rotate_watch(POLICY, site, lambda report: None)
        assert rotate_night(NIGHT, site, apply=False).plan.steps, "without the watch"


@pytest.mark.long
def test_a_watch_does_not_begin_while_a_night_holds_its_vms(watched_site: Watched) -> None:
    with Connection(target_of(watched_site.server)) as connection, watched_site.site(connection) as site:
        assert rotate_night(NIGHT, site, apply=True).changed
        with pytest.raises(Locked, match="has taken ml-06, which policy spare selects too"):
            rotate_watch(POLICY, site, lambda report: None)


@pytest.mark.long
def test_each_command_refuses_the_other_kind_of_policy(watched_site: Watched) -> None:
    with Connection(target_of(watched_site.server)) as connection, watched_site.site(connection) as site:
        with pytest.raises(UsageError, match="has `mode: spare-capacity`: rotate night cannot use it"):
            rotate_night(POLICY, site, apply=True)
        with pytest.raises(UsageError, match="has `mode: suspend-desktops`: rotate watch cannot use it"):
            rotate_watch_look(NIGHT, site)


@pytest.mark.long
def test_it_goes_on_while_vcenter_comes_and_goes(watched_site: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop itself: it looks, waits for a change, says that vCenter is away, and starts what may start."""
    looks: list[WatchReport] = []

    def on_look(report: WatchReport) -> None:
        looks.append(report)
        if report.outcomes:
            raise Killed

    with Connection(target_of(watched_site.server)) as connection, watched_site.site(connection) as site:
        waits = iter([False, True, VcenterUnreachable("no answer"), *[False] * 100])

        def wait_for_change(timeout_s: float) -> bool:
            watched_site.now_s += timeout_s
            next_wait = next(waits)
            if isinstance(next_wait, NotConnected):
                raise next_wait
            return bool(next_wait)

        monkeypatch.setattr(connection, "wait_for_change", wait_for_change)
        with pytest.raises(Killed):
            rotate_watch(POLICY, site, on_look)
    assert watched_site.said == ["no answer; tried again in 30 s"]
    assert watched_site.running == QUEUE and len(looks) < 8


@pytest.mark.long
def test_vcenter_tells_of_what_moves_gpus(watched_site: Watched) -> None:
    with Connection(target_of(watched_site.server)) as connection:
        assert connection.wait_for_change(0.0), "what was read before the first wait may be old"
        assert not connection.wait_for_change(0.0)
        watched_site.send(PowerOnVm(watched_site.ref("ml-11")))
        assert connection.wait_for_change(5.0)
        assert not connection.wait_for_change(0.0)
        world = watched_site.server.world
        with world.lock:
            world.down_until = world.clock.now() + timedelta(hours=1)
        assert connection.wait_for_change(0.0), "it is unknown whether something changed"
        with world.lock:
            world.down_until = world.clock.now()
        assert connection.wait_for_change(5.0), "the first wait after that"
        assert not connection.wait_for_change(0.0)


@pytest.mark.long
@pytest.mark.parametrize("wins", [True, False])
def test_a_user_wins_where_the_policy_says_so(full_house: Watched, wins: bool) -> None:
    text = NIGHT.text.replace("{vm: ml-06}, {vm: ml-11}", "{vm: ml-01}")
    night = parse_policy(f"{text}user_wins: {str(wins).lower()}\n", "of the test")
    with Connection(target_of(full_house.server)) as connection, full_house.site(connection) as site:
        assert rotate_night(night, site, apply=True).changed
        suspended_names = _suspended_names(connection)
        report = rotate_restore(None, site, suspended_names, apply=True)
        power = {vm.name: vm.power for vm in connection.inventory().vms.values()}
    if not wins:
        assert report.exit_code == 4 and power["ml-01"] is PowerState.ON, "no message says that it stops"
        return
    assert report.exit_code == 0
    assert report.plan.because[0] == f"ml-01: is stopped for {', '.join(suspended_names)} (user_wins)"
    assert (power["ml-01"], {power[name] for name in suspended_names}) == (PowerState.OFF, {PowerState.ON})


def _suspended_names(connection: Connection) -> tuple[str, ...]:
    """Names of the desktops that are marked as taken."""
    vms = connection.inventory().vms.values()
    return tuple(sorted(vm.name for vm in vms if "desktop" in vm.attributes.get("gpuops.rotation", "")))
