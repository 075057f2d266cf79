"""Nights that close the gate of a connection broker: real SOAP, the real REST API, judged by the simulator's ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpuops.api import Site, rotate_day, rotate_night, rotate_status
from gpuops.broker.horizon import Horizon
from gpuops.clock import machine_time, set_ahead, wall_clock
from gpuops.config.policy import parse_policy
from gpuops.errors import OutcomeUnknown, UsageError
from gpuops.execute.past.history import history
from gpuops.execute.site.broker_gates import BrokerGates
from gpuops.execute.site.broker_reads import BrokerSessions
from gpuops.model.desktops.broker import DesktopMachine
from gpuops.model.nights.rotation import LATE, Policy
from gpuops.model.vcenter.target import BrokerTarget
from gpuops.plan.core.outcome import Outcome, Report, Verdict
from gpuops.plan.core.steps import CloseGate, OpenGate, ResumeVm, SetAttribute, Step, SuspendVm
from gpuops.plan.rotation.nights.desktops import IN_MAINTENANCE
from gpuops.sim.horizon.pod import Pod, PodSession
from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.sample import mostly_long
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
NIGHTS, MORNINGS = (13, 15, 22, 27, 34, 39), (2, 9, 16, 29)
"""Steps after which the quick suite kills one: of marks, gates, suspends and starts, of stops, resumes and gates."""
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
            found: list[Horizon] = []

            def opened() -> Horizon:
                if not found:
                    found.append(site.closing.enter_context(self.broker(self.target)))
                return found[0]

            site.gates = BrokerGates(opened, BrokerSessions(opened))
            site.progress, site.in_flight = watch, in_flight
            return of(site)

    def night(self, policy: Policy = POLICY, **watched: Any) -> Report:
        return self.run(partial(_night, policy=policy), **watched)

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
        found = {vm.name for _, vm in self.pod.machines() if vm.state.power is Power.SUSPENDED}
        return found - {f"vdi-{number}" for number in range(105, 113)}

    def use(self, name: str, disconnected_for: timedelta | None = None) -> None:
        """Somebody whose login began before the gate was closed has a session now."""
        with self.server.world.lock:
            vm, now = self.vm(name), self.server.world.clock.now()
            gone = now - disconnected_for if disconnected_for is not None else None
            self.pod.sessions[name] = PodSession(name, vm, "S-1-5-21-1", gone or now, gone)

    def nothing_is_left(self) -> None:
        """Every desktop runs, nobody is kept away, nothing is marked, and the journal owes nothing."""
        assert (self.suspended, self.gated) == (set(), set())
        with Connection(target_of(self.server)) as connection:
            vms = connection.inventory().vms.values()
            status = rotate_status(Site(connection, self.state_dir, wall_clock))
        assert [vm.name for vm in vms if vm.attributes.get("gpuops.rotation")] == []
        assert status.vms == ()


def _night(site: Site, policy: Policy) -> Report:
    return rotate_night(policy, site, apply=True)


@pytest.fixture
def vdi(tmp_path: Path) -> Iterator[Gated]:
    world = build("vdi")
    world.desktop_pools = tuple(replace(pool, logins_per_hour=0.0) for pool in world.desktop_pools)
    with SimServer(world) as server:
        served = server.serve_horizon()
        target = BrokerTarget(replace(target_of(server), port=served.port, username=served.username), served.domain)
        yield Gated(server, served.pod, target, tmp_path / "state")
        assert world.bugs == []


def steps_of(report: Report, kind: type[Step]) -> list[str]:
    return [report.before.vm(each.step.vm).name for each in report.outcomes if isinstance(each.step, kind)]


def test_each_desktop_is_gated_before_it_is_suspended_and_given_back_after_it_is_resumed(vdi: Gated) -> None:
    night = vdi.night()
    assert {each.verdict for each in night.outcomes} == {Verdict.DONE}
    taken = vdi.suspended
    assert len(taken) == AT_MOST and vdi.gated == taken
    day = vdi.day()
    assert {each.verdict for each in day.outcomes} == {Verdict.DONE}
    vdi.nothing_is_left()
    for name in taken:
        changes = [entry for entry in vdi.server.ledger if entry.name == name]
        told = [
            "gate" if "gated" in entry.after else entry.after["power"]
            for entry in changes
            if entry.after.keys() & {"gated", "power"} and entry.before.get("power") != entry.after.get("power", "")
        ]
        assert told == ["gate", "suspended", "poweredOn", "gate"], name


def test_the_maintenance_of_somebody_else_is_left_alone(vdi: Gated) -> None:
    """vdi-001 is the first that a night takes here."""
    with vdi.server.world.lock:
        vdi.pod.change_maintenance(vdi.vm("vdi-001"), enter=True)
    night = vdi.night()
    assert "vdi-001" not in vdi.suspended and len(vdi.suspended) == AT_MOST
    reasons = {choice.subject: choice.reason for choice in night.plan.choices}
    assert reasons["vdi-001"] == IN_MAINTENANCE
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), {"vdi-001"})


def test_maintenance_that_begins_after_the_plan_is_not_ours(vdi: Gated) -> None:
    def consent(report: Report) -> None:
        with vdi.server.world.lock:
            vdi.pod.change_maintenance(vdi.vm("vdi-001"), enter=True)

    night = vdi.run(lambda site: rotate_night(POLICY, site, apply=True, consent=consent))
    reasons = {each.reason for each in night.outcomes if night.before.vm(each.step.vm).name == "vdi-001"}
    assert reasons == {IN_MAINTENANCE, f"an earlier step failed: {IN_MAINTENANCE}"}
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), {"vdi-001"})


def test_maintenance_that_begins_after_the_mark_of_a_killed_night_is_not_ours(vdi: Gated) -> None:
    """vdi-001 is marked, and the journal knows that its gate was not closed by the night."""

    def kill(outcome: Outcome) -> None:
        if not isinstance(outcome.step, SetAttribute):
            raise Killed

    with suppress(Killed):
        vdi.night(watch=kill)
    with vdi.server.world.lock:
        gated = vdi.gated
        theirs = next(name for name in ("vdi-001", "vdi-002", "vdi-006", "vdi-007") if name not in gated)
        vdi.pod.change_maintenance(vdi.vm(theirs), enter=True)
    night = vdi.night()
    reasons = {choice.subject: choice.reason for choice in night.plan.choices}
    assert reasons[theirs] == IN_MAINTENANCE and theirs not in vdi.suspended
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), {theirs})


def test_maintenance_that_the_last_look_shows_is_not_ours(vdi: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step here goes by a look of its own; the gates of the first eight are closed when the first has ended."""
    monkeypatch.setattr("gpuops.execute.steps.vm_looks.SHARED_S", -1.0)
    theirs: list[str] = []

    def watch(outcome: Outcome) -> None:
        if isinstance(outcome.step, CloseGate) and not theirs:
            with vdi.server.world.lock:
                marked = [
                    vm for _, vm in vdi.pod.machines() if any(" desktop" in each for each in vm.attributes.values())
                ]
                waiting = next(vm for vm in marked if not vdi.pod.in_maintenance(vm))
                vdi.pod.change_maintenance(waiting, enter=True)
            theirs.append(waiting.name)

    vdi.night(watch=watch)
    [name] = theirs
    assert name not in vdi.suspended and len(vdi.suspended) == AT_MOST - 1
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), {name})


def test_a_gate_that_somebody_opens_keeps_its_desktop(vdi: Gated) -> None:
    opened: list[str] = []

    def watch(outcome: Outcome) -> None:
        if isinstance(outcome.step, CloseGate) and not opened:
            with vdi.server.world.lock:
                opened.append(sorted(vdi.gated - vdi.suspended)[-1])
                vdi.pod.change_maintenance(vdi.vm(opened[0]), enter=False)

    night = vdi.night(watch=watch)
    [told] = [each for each in night.outcomes if isinstance(each.step, SuspendVm) and each.verdict is Verdict.SKIPPED]
    assert (night.before.vm(told.step.vm).name, told.reason) == (opened[0], "its gate at the broker is not closed")
    assert vdi.gated == vdi.suspended
    vdi.day()
    vdi.nothing_is_left()


def test_pools_that_cannot_be_gated_are_kept_with_the_reason(vdi: Gated) -> None:
    night = vdi.night()
    reasons = {choice.subject: choice.reason for choice in night.plan.choices}
    assert reasons["vdi-120"] == "is powered off"
    assert "its power policy keeps machines on" in reasons["vdi-101"] or "opted out" in reasons["vdi-101"]
    assert not vdi.gated & {f"vdi-{number:03}" for number in (*range(91, 97), *range(101, 105))}


def test_without_an_answer_of_the_broker_nothing_is_taken(vdi: Gated) -> None:
    vdi.pod.down = True
    night = vdi.night()
    assert night.outcomes == () and vdi.suspended == set()
    reasons = {choice.reason for choice in night.plan.choices if choice.subject == "vdi-001"}
    assert reasons == {"its sessions are not known: the broker could not be asked"}


def test_a_broker_that_is_away_in_the_morning_keeps_no_desktop_away(vdi: Gated) -> None:
    vdi.night()
    taken = vdi.suspended
    vdi.pod.down = True
    first = vdi.day()
    assert vdi.suspended == set() and vdi.gated == taken
    assert {each.verdict for each in first.outcomes if isinstance(each.step, OpenGate)} == {Verdict.FAILED}
    assert {each.verdict for each in first.outcomes if isinstance(each.step, ResumeVm)} == {Verdict.DONE}
    resumes = [number for number, each in enumerate(first.outcomes) if isinstance(each.step, ResumeVm)]
    gates = [number for number, each in enumerate(first.outcomes) if isinstance(each.step, OpenGate)]
    assert len(gates) == len(taken) and max(resumes) < min(gates), "no desktop waits for the broker"
    vdi.pod.down = False
    second = vdi.day()
    assert set(steps_of(second, OpenGate)) == taken
    vdi.nothing_is_left()


@pytest.mark.sampled(1)
def test_a_session_that_began_before_the_suspend_keeps_the_desktop_and_its_gate_is_opened(vdi: Gated) -> None:
    used: list[str] = []

    def watch(outcome: Outcome) -> None:
        if isinstance(outcome.step, CloseGate) and outcome.verdict is Verdict.DONE and not used:
            used.append(sorted(vdi.gated - vdi.suspended)[-1])
            vdi.use(used[0])

    night = vdi.night(watch=watch)
    [name] = used
    assert name not in vdi.suspended | vdi.gated
    assert name in steps_of(night, OpenGate)
    assert vdi.gated == vdi.suspended
    vdi.day()
    vdi.nothing_is_left()


def test_a_session_that_began_during_the_suspend_has_its_desktop_back_at_once(vdi: Gated) -> None:
    used: list[str] = []
    names = {vm.moid: vm.name for _, vm in vdi.pod.machines()}

    def in_flight(steps: Collection[Step]) -> None:
        suspends = [step.vm for step in steps if isinstance(step, SuspendVm)]
        if suspends and not used:
            used.append(names[suspends[0]])
            vdi.use(used[0])

    night = vdi.night(in_flight=in_flight)
    [name] = used
    [told] = [each for each in night.outcomes if isinstance(each.step, SuspendVm) and names[each.step.vm] == name]
    assert (told.verdict, told.reason) == (
        Verdict.FAILED,
        "a session began while it was being suspended: resumed at once",
    )
    assert name not in vdi.suspended | vdi.gated
    vdi.day()
    vdi.nothing_is_left()


def test_sessions_that_are_disconnected_for_long_keep_no_desktop_where_the_policy_says_so(vdi: Gated) -> None:
    """vdi-001 and vdi-002 are the first that a night takes here. To vdi-002 its user comes back during the suspend."""
    for name, minutes in (("vdi-001", 61), ("vdi-002", 61), ("vdi-003", 55)):
        vdi.use(name, timedelta(minutes=minutes))
    looked = vdi.run(lambda site: rotate_night(POLICY, site, apply=False))
    reasons = {choice.subject: choice.reason for choice in looked.plan.choices}
    assert {reasons[f"vdi-00{number}"] for number in (1, 2, 3)} == {"1 session(s), as the broker tells"}
    back: list[str] = []

    def in_flight(steps: Collection[Step]) -> None:
        if not back and any(isinstance(step, SuspendVm) and step.vm == vdi.vm("vdi-002").moid for step in steps):
            back.append("vdi-002")
            vdi.use("vdi-002")

    allowing = POLICY.text.replace("mhz: 500}", "mhz: 500, disconnected_session_timeout_minutes: 60}")
    night = vdi.night(parse_policy(allowing, "of the tests"), in_flight=in_flight)
    assert back and "vdi-001" in vdi.suspended and not {"vdi-002", "vdi-003"} & (vdi.suspended | vdi.gated)
    reasons = {night.before.vm(each.step.vm).name: each.reason for each in night.outcomes if each.reason}
    assert reasons["vdi-002"] == "a session began while it was being suspended: resumed at once"
    vdi.day()
    vdi.nothing_is_left()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", mostly_long(sorted({*range(1, 40, 6), *NIGHTS}), NIGHTS))
def test_a_night_that_is_killed_leaves_nobody_gated(vdi: Gated, number: int) -> None:
    """After any of its steps; the night that follows and the morning clear up."""
    ended = iter(range(10**6))

    def kill(outcome: Outcome) -> None:
        if next(ended) == number:
            raise Killed

    with suppress(Killed):
        vdi.night(watch=kill)
    if number % 2:
        vdi.night()
    vdi.day()
    vdi.nothing_is_left()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", mostly_long(sorted({*range(1, 40, 6), *MORNINGS}), MORNINGS))
def test_a_morning_that_is_killed_leaves_nobody_gated(vdi: Gated, number: int) -> None:
    vdi.night()
    ended = iter(range(10**6))

    def kill(outcome: Outcome) -> None:
        if next(ended) == number:
            raise Killed

    with suppress(Killed):
        vdi.day(watch=kill)
    vdi.day()
    vdi.nothing_is_left()


class LosesReplies(Horizon):
    """Every second change is made, and its reply lost; the others do not arrive."""

    changes = 0

    def _change(self, path: str, machines: Collection[str]) -> Mapping[str, str]:
        LosesReplies.changes += 1
        if LosesReplies.changes % 2:
            super()._change(path, machines)
        raise OutcomeUnknown("the reply was lost")


def test_lost_replies_of_the_broker_leave_nobody_gated(vdi: Gated) -> None:
    """The last morning is later than any of the lost requests can come."""
    vdi.broker = LosesReplies
    vdi.night()
    assert vdi.suspended <= vdi.gated
    vdi.day()
    vdi.broker = Horizon
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), set())
    set_ahead(wall_clock() - machine_time() + LATE)
    vdi.day()
    vdi.nothing_is_left()


class ComesLate(Horizon):
    """Each request to close a gate is lost, and arrives when `late` is told to let it."""

    late: ClassVar[list[Collection[str]]] = []

    def enter_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        ComesLate.late.append(machines)
        raise OutcomeUnknown("the reply was lost")

    @classmethod
    def let(cls, vdi: Gated) -> None:
        with Horizon(vdi.target) as broker:
            for machines in cls.late:
                broker.enter_maintenance(machines)
        cls.late.clear()


def test_a_gate_that_closes_late_is_opened_again(vdi: Gated) -> None:
    """The night is called off before its requests arrive; each was sent once."""
    ComesLate.late.clear()
    vdi.broker = ComesLate
    night = vdi.night()
    sent = [each for each in night.outcomes if isinstance(each.step, CloseGate) and each.verdict is Verdict.UNKNOWN]
    assert len(sent) == len(ComesLate.late) > 0 and (vdi.suspended, vdi.gated) == (set(), set())
    vdi.broker = Horizon
    vdi.day()
    ComesLate.let(vdi)
    assert len(vdi.gated) == len(sent)
    vdi.day()
    assert vdi.gated == set()
    set_ahead(wall_clock() - machine_time() + LATE)
    vdi.day()
    vdi.nothing_is_left()


class ListsNothing(Horizon):
    """Its list of machines is empty, and each of them is there when it is asked for."""

    def machines(self) -> tuple[DesktopMachine, ...]:
        return ()


def test_a_machine_that_is_missing_from_a_list_is_not_taken_for_gone(vdi: Gated) -> None:
    vdi.night()
    assert vdi.gated
    vdi.broker = ListsNothing
    vdi.day()
    vdi.nothing_is_left()


class AdminIsFaster(Horizon):
    """Somebody puts the machine into maintenance just before the night does, and the broker refuses the second."""

    def enter_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        super().enter_maintenance(machines)
        return dict.fromkeys(machines, "it is in maintenance already")


def test_a_gate_that_is_refused_because_somebody_closed_it_is_theirs(vdi: Gated) -> None:
    vdi.broker = AdminIsFaster
    night = vdi.night()
    theirs = vdi.gated
    assert theirs and vdi.suspended == set()
    assert {each.reason for each in night.outcomes if isinstance(each.step, CloseGate)} == {IN_MAINTENANCE}
    vdi.broker = Horizon
    vdi.day()
    assert vdi.gated == theirs


def test_a_broker_that_fails_keeps_no_night_going_round(vdi: Gated) -> None:
    """It is away from the first gate on: what waits for a gate is given up, and nothing is taken."""
    rounds: list[int] = []

    def watch(outcome: Outcome) -> None:
        if isinstance(outcome.step, CloseGate):
            vdi.pod.down = True

    night = vdi.night(watch=watch, in_flight=lambda steps: rounds.append(len(steps)))
    assert vdi.suspended == set() and len(rounds) < 100
    assert not any(isinstance(each.step, SuspendVm) and each.verdict is Verdict.DONE for each in night.outcomes)
    vdi.pod.down = False
    vdi.day()
    assert vdi.gated == set()


def test_the_journal_lost_the_marker_alone_opens_the_gate(vdi: Gated) -> None:
    vdi.night()
    vdi.state_dir = vdi.state_dir.with_name("another")
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), set())


def test_of_a_parked_pool_a_marker_alone_opens_no_gate(vdi: Gated) -> None:
    """A night has closed none there: that maintenance is somebody else's."""
    text = POLICY.text.replace("parked: false", "parked: true") + "\n"
    other = "  - {name: other, parked: false, select: {name: none}, idle: {cpu_below_mhz: 500}, owner: none}\nml:\n"
    mixed = parse_policy(text.replace("ml:\n", other), "of both kinds")
    assert [pool.gated for pool in mixed.pools] == [False, True]
    vdi.run(partial(_night, policy=mixed))
    [first, *_] = sorted(vdi.suspended)
    assert vdi.gated == set()
    with vdi.server.world.lock:
        vdi.pod.change_maintenance(vdi.vm(first), enter=True)
    vdi.state_dir = vdi.state_dir.with_name("another")
    vdi.run(lambda site: rotate_day(mixed, site, apply=True))
    assert (vdi.suspended, vdi.gated) == (set(), {first})


def test_a_policy_with_a_gate_needs_a_broker(vdi: Gated) -> None:
    with Connection(target_of(vdi.server)) as connection:
        site = Site(connection, vdi.state_dir, wall_clock)
        with pytest.raises(UsageError, match="says `broker: horizon`, and no connection broker is configured"):
            rotate_night(POLICY, site, apply=True)


def test_the_history_tells_when_each_gate_was_closed_and_open_again(vdi: Gated) -> None:
    vdi.night()
    vdi.day()
    [night] = history(vdi.state_dir).nights
    assert len(night.desktops) == AT_MOST
    for vm in night.desktops:
        order = [step.what for step in vm.steps if step.what != "marker"]
        assert order == ["gate", "suspend", "resume", "opening of the gate"]
        assert all(step.done and step.ends is not None and step.begins <= step.ends for step in vm.steps)
