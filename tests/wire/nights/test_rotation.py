"""Nights and mornings over real SOAP, judged by the simulated vCenter's own ledger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpuops.api import Site, rotate_day, rotate_night, rotate_resume, rotate_status
from gpuops.clock import wall_clock
from gpuops.config.policy import load_policy, parse_policy
from gpuops.errors import Locked
from gpuops.execute.rotation.rotation import NOTHING_CUT_OFF
from gpuops.execute.site import agreed
from gpuops.model.nights.rotation_policy import Limits, Policy
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.steps import SetAttribute, SuspendVm
from gpuops.plan.rotation.night_status import RotationStatus
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.core.ledger import Entry
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.outside_events.vm_events import use_desktop
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from gpuops.vsphere.connection import Connection
from tests.cli.aside import Aside
from tests.execute.journals import op_ids
from tests.wire.conftest import target_of

LAB_POLICY = Path(__file__).parents[3] / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"
DESKTOPS = {"vdi-07", "vdi-08", "vdi-09", "vdi-10"}
"""What the lab's policy takes: the four that hold the A40 which ml-09 needs."""
ML = {"ml-01", "ml-06", "ml-09"}

Made = TypeVar("Made")

VDI_POLICY = """
version: 1
name: vdi-night
windows: any
pools:
  - name: office
    parked: true
    select: {folder: vdi, profile: "*-8q"}
    idle: {cpu_below_mhz: 500}
    owner: {attribute: gpuops.owner, value: office}
ml:
  queue: [{vm: ml-01}, {vm: ml-02}, {vm: ml-03}, {vm: ml-04}, {vm: ml-05}, {vm: ml-06}]
"""


@dataclass
class Wire:
    """One simulated vCenter and one state directory; every call is a login of its own."""

    server: SimServer
    state_dir: Path
    policy: Policy
    words: tuple[str, ...] = ("rotate",)
    """Of the commands that would have done the same, for what these advise."""
    aside: Aside = field(init=False)

    def __post_init__(self) -> None:
        self.aside = Aside(self.server, self.state_dir, "GPUOPS_STATE_DIR")

    def night(
        self,
        *,
        apply: bool = True,
        watch: Callable[[Outcome], None] = lambda outcome: None,
        consent: Callable[[Report], None] = agreed,
    ) -> Report:
        def begin(site: Site) -> Report:
            site.progress = watch
            return rotate_night(self.policy, site, apply=apply, consent=consent)

        return self._with(begin)

    def status(self, policy: Policy | None = None) -> RotationStatus:
        return self._with(lambda site: rotate_status(site, policy))

    def day(self) -> Report:
        return self._with(lambda site: rotate_day(self.policy, site, apply=True))

    def resume(self, *, apply: bool = True) -> Report:
        return self._with(lambda site: rotate_resume(site, apply=apply))

    def _with(self, corridor: Callable[[Site], Made]) -> Made:
        def act() -> Made:
            with Connection(target_of(self.server)) as connection:
                return corridor(Site(connection, self.state_dir, wall_clock))

        return self.aside.of(self.words, act)

    def trouble(self, effect: Effect, method: str, **options: Any) -> None:
        self.server.world.injector.add(Rule(effect, method, **options))

    def entries(self) -> list[Entry]:
        return list(self.server.world.ledger)

    def to_power(self, power: str) -> Counter[str]:
        """How often each VM changed into this power state."""
        return Counter(
            entry.name
            for entry in self.entries()
            if entry.after.get("power") == power and entry.before.get("power") != power
        )

    def check_ledger(self) -> None:
        """No suspended state was discarded, every effect has an intent of the same op id, no advice led nowhere."""
        assert self.aside.wrong == []
        assert [
            entry
            for entry in self.entries()
            if (entry.before.get("power"), entry.after.get("power")) == ("suspended", "poweredOff")
        ] == []
        with Connection(target_of(self.server)) as connection:
            vcenter = connection.inventory().vcenter
        assert {entry.operation_id for entry in self.entries()} <= op_ids(self.state_dir, vcenter)

    def check_morning(self) -> None:
        """Each desktop went and came back once, each ML VM came and went once, nothing is marked."""
        self.check_ledger()
        assert self.to_power("suspended") == Counter(DESKTOPS)
        assert self.to_power("poweredOn") == Counter(DESKTOPS | ML)
        assert self.to_power("poweredOff") == Counter(ML)
        with Connection(target_of(self.server)) as connection:
            vms = connection.inventory().vms.values()
        assert {vm.name for vm in vms if vm.attributes.get("gpuops.rotation")} == set()


def test_a_night_and_a_morning_in_the_lab(lab_wire: Wire) -> None:
    assert lab_wire.night().exit_code == 0
    assert lab_wire.to_power("suspended") == Counter(DESKTOPS)
    assert lab_wire.to_power("poweredOn") == Counter(ML)
    assert lab_wire.day().exit_code == 0
    lab_wire.check_morning()
    [moved] = [entry for entry in lab_wire.entries() if entry.method == "RelocateVM_Task"]
    assert moved.name == "ml-06", "and the morning leaves it where it was moved to"


def busy_reasons(report: Report) -> set[str]:
    return {outcome.reason.removeprefix("an earlier step failed: ") for outcome in report.outcomes if outcome.reason}


def test_desktops_that_somebody_begins_to_work_with_while_the_night_goes_on_are_left_alone(lab_wire: Wire) -> None:
    """By remote desktop: no console shows it. The one whose suspend was sent before is the last."""
    lab_wire.policy = replace(lab_wire.policy, limits=Limits(in_flight=1))
    lab_wire.trouble(Effect.HAPPEN, "SuspendVM_Task", phase=Phase.AFTER, happening="vm.used", target="vdi-*")
    report = lab_wire.night()
    assert lab_wire.to_power("suspended").total() == 1
    assert "uses 5200 MHz, idle is below 500" in busy_reasons(report)
    assert report.exit_code == 4
    lab_wire.day()
    assert lab_wire.to_power("poweredOn") == lab_wire.to_power("suspended") + lab_wire.to_power("poweredOff")
    lab_wire.check_ledger()
    with Connection(target_of(lab_wire.server)) as connection:
        vms = connection.inventory().vms.values()
    assert {vm.name for vm in vms if vm.attributes.get("gpuops.rotation")} == set()


@pytest.mark.long
@pytest.mark.parametrize("happening", ["vm.refiled", "datastore.full"])
def test_desktops_that_leave_their_folder_or_whose_datastore_is_filled_are_not_suspended(
    lab_wire: Wire, happening: str
) -> None:
    """The one whose suspend was sent before that is the last."""
    lab_wire.policy = replace(lab_wire.policy, limits=Limits(in_flight=1))
    target = "vdi-*" if happening.startswith("vm") else "*"
    lab_wire.trouble(Effect.HAPPEN, "SuspendVM_Task", phase=Phase.AFTER, happening=happening, target=target)
    report = lab_wire.night()
    assert sum(entry.method == "SuspendVM_Task" for entry in lab_wire.entries()) <= 1
    why = "is in no pool of" if target == "vdi-*" else ": its suspend file needs "
    assert any(why in reason for reason in busy_reasons(report)), busy_reasons(report)


@pytest.mark.long
def test_eight_seconds_into_the_night_everybody_works(lab_wire: Wire) -> None:
    lab_wire.policy = replace(lab_wire.policy, limits=Limits(in_flight=1))
    lab_wire.trouble(Effect.HAPPEN, "*", happening="vm.used", target="vdi-*", at_s=8.0)
    began = lab_wire.server.world.clock.now()
    report = lab_wire.night()
    late = [
        entry.name
        for entry in lab_wire.entries()
        if entry.method == "SuspendVM_Task" and entry.at > began + timedelta(seconds=60)
    ]
    assert late == []
    assert lab_wire.to_power("suspended").total() <= 1, "the one that was in flight"
    assert "uses 5200 MHz, idle is below 500" in busy_reasons(report)


@pytest.mark.long
def test_desktops_that_somebody_works_with_when_the_question_is_answered_are_not_even_marked(lab_wire: Wire) -> None:
    def answer(report: Report) -> None:
        assert report.plan.steps
        for vm in lab_wire.server.world.by_type("VirtualMachine"):
            if vm.name.startswith("vdi-"):
                use_desktop(vm, Rule(Effect.HAPPEN, happening="vm.used"))

    report = lab_wire.night(consent=answer)
    assert "uses 5200 MHz, idle is below 500" in busy_reasons(report)
    assert [entry for entry in lab_wire.entries() if entry.name.startswith("vdi-")] == []


@pytest.mark.long
def test_second_runs_and_dry_runs_leave_no_trace_in_the_ledger(lab_wire: Wire) -> None:
    assert lab_wire.night(apply=False).plan.steps
    assert lab_wire.entries() == []
    lab_wire.night()
    before = lab_wire.entries()
    assert not lab_wire.night().changed
    assert lab_wire.entries() == before
    lab_wire.day()
    before = lab_wire.entries()
    assert not lab_wire.day().changed
    assert lab_wire.entries() == before


@pytest.mark.long
def test_thirty_desktops_make_room_for_five_gpus_and_come_back(
    serve: Callable[[str], SimServer], tmp_path: Path
) -> None:
    wire = Wire(serve("vdi"), tmp_path / "state", parse_policy(VDI_POLICY, "vdi"))
    assert wire.night().exit_code == 0
    suspended = wire.to_power("suspended")
    assert len(suspended) == 30
    assert wire.to_power("poweredOn") == Counter(f"ml-{number:02d}" for number in range(1, 7))
    assert not {f"vdi-{number:03d}" for number in range(91, 121)} & set(suspended), (
        "busy, watched, opted out, not running"
    )
    assert wire.day().exit_code == 0
    back = wire.to_power("poweredOn")
    assert {name: count for name, count in back.items() if name.startswith("vdi")} == dict(suspended)
    wire.check_ledger()


@pytest.mark.long
@pytest.mark.parametrize("phase", list(Phase))
def test_a_lost_reply_of_each_kind_costs_nothing_and_repeats_nothing(lab_wire: Wire, phase: Phase) -> None:
    for method in ("SuspendVM_Task", "PowerOnVM_Task", "SetField", "ShutdownGuest"):
        lab_wire.trouble(Effect.RESET, method, phase=phase, skip=1)
    assert lab_wire.night().exit_code == 0
    assert lab_wire.day().exit_code == 0
    lab_wire.check_morning()


@pytest.mark.long
def test_a_session_that_ends_in_the_night_is_renewed(lab_wire: Wire) -> None:
    lab_wire.trouble(Effect.EXPIRE, "SuspendVM_Task", skip=2)
    assert lab_wire.night().exit_code == 0
    assert lab_wire.day().exit_code == 0
    lab_wire.check_morning()


@pytest.mark.long
def test_a_desktop_that_finds_no_gpu_is_named_and_comes_back_later(lab_wire: Wire) -> None:
    lab_wire.night()
    lab_wire.trouble(
        Effect.TASK, "PowerOnVM_Task", target="vdi-09", fault="InsufficientGraphicsResourcesFault", times=2
    )
    report = lab_wire.day()
    assert report.exit_code == 4
    [failed] = [outcome for outcome in report.outcomes if outcome.verdict is Verdict.FAILED]
    assert report.before.vm(failed.step.vm).name == "vdi-09"
    assert ", then gpuops rotate day" in failed.reason
    with Connection(target_of(lab_wire.server)) as connection:
        status = rotate_status(Site(connection, lab_wire.state_dir, wall_clock))
    assert [mine.original.name for mine in status.away] == ["vdi-09"]
    assert lab_wire.day().exit_code == 0
    lab_wire.check_morning()


@pytest.mark.long
def test_a_full_datastore_keeps_the_desktop_running_and_the_ml_vm_off(lab_wire: Wire) -> None:
    lab_wire.trouble(Effect.TASK, "SuspendVM_Task", target="vdi-08", fault="NoDiskSpace")
    assert lab_wire.night().exit_code == 4
    assert "vdi-08" not in lab_wire.to_power("suspended")
    assert "ml-09" not in lab_wire.to_power("poweredOn")
    assert lab_wire.day().exit_code == 0
    lab_wire.check_ledger()
    assert lab_wire.to_power("poweredOn").keys() >= DESKTOPS - {"vdi-08"}


@pytest.mark.long
def test_status_and_dry_runs_beside_a_live_night(lab_wire: Wire) -> None:
    """Asked when one desktop is suspended, and another still on its way."""
    lab_wire.trouble(Effect.SLOW, "SuspendVM_Task", target="vdi-08", factor=20.0)
    statuses: list[RotationStatus] = []
    planned: list[Report] = []

    def look(outcome: Outcome) -> None:
        if isinstance(outcome.step, SuspendVm) and not statuses:
            statuses.append(lab_wire.status())
            planned.append(lab_wire.night(apply=False))
            with pytest.raises(Locked, match=f"pid {os.getpid()} since .* it is not interrupted"):
                lab_wire.resume(apply=False)

    assert lab_wire.night(watch=look).exit_code == 0
    [status] = statuses
    assert (status.cut_off, status.doing) == (None, "rotate night")
    assert status.under_way is not None
    assert status.under_way.pid == os.getpid()
    where = {mine.original.name: (mine.whereabouts, mine.reason) for mine in status.vms}
    assert where["vdi-08"] == (Whereabouts.CHANGING, "is being suspended")
    assert where["vdi-07"][0] is Whereabouts.AWAY
    assert where["ml-01"][0] is Whereabouts.AWAY, "its own host's desktops are suspended: it waits for no other's"
    [plan] = [report.plan for report in planned]
    assert "until it ends, gpuops would refuse this run" in plan.warnings[-1]
    assert lab_wire.status().under_way is None


@pytest.mark.long
def test_a_dry_resume_shows_what_resume_then_does(lab_wire: Wire) -> None:
    """Cut off while one desktop is on its way: the dry run reads, plans as if it had arrived, and writes nothing."""
    lab_wire.trouble(Effect.SLOW, "SuspendVM_Task", target="vdi-08", factor=20.0)

    class Killed(BaseException):
        """What `kill -9` is to a run."""

    def kill(outcome: Outcome) -> None:
        if isinstance(outcome.step, SuspendVm):
            raise Killed

    with pytest.raises(Killed):
        lab_wire.night(watch=kill)
    journal = (lab_wire.state_dir / "journal.sqlite").read_bytes()
    before = lab_wire.entries()
    foreseen = lab_wire.resume(apply=False)
    assert lab_wire.entries() == before
    assert (lab_wire.state_dir / "journal.sqlite").read_bytes() == journal
    assert any(note.startswith("vdi-08: its suspend is in flight (task-") for note in foreseen.plan.because)
    finished = lab_wire.resume()
    assert finished.exit_code == 0
    assert foreseen.plan.steps == finished.plan.steps != ()
    assert not any(isinstance(step, SetAttribute) for step in finished.plan.steps), "they are marked already"
    assert lab_wire.to_power("poweredOn") == Counter(ML)


@pytest.mark.long
def test_a_suspend_that_outlasts_its_time_is_named_and_not_forgotten(lab_wire: Wire) -> None:
    lab_wire.trouble(Effect.SLOW, "SuspendVM_Task", target="vdi-08", factor=250.0)
    assert lab_wire.night().exit_code == 4
    for _ in range(2):  # each waits for it again, half an hour long
        report = lab_wire.day()
        assert report.exit_code == 4
        [refusal] = [refusal for refusal in report.plan.unmet if refusal.subject == "vdi-08"]
        assert refusal.rule == "is being suspended"
        assert refusal.hint == "wait until its task has ended, then gpuops rotate day"
    while lab_wire.to_power("suspended")["vdi-08"] == 0:
        lab_wire.server.world.clock.advance(600)
    assert [mine.original.name for mine in lab_wire.status().away] == ["vdi-08"]
    assert lab_wire.day().exit_code == 0
    assert lab_wire.to_power("poweredOn")["vdi-08"] == 1


@pytest.mark.long
def test_status_finds_markers_of_another_name_by_the_policy(lab_wire: Wire, tmp_path: Path) -> None:
    text = LAB_POLICY.read_text().replace("marker: gpuops.rotation", "")
    lab_wire.policy = parse_policy(f"{text}\nmarker: site.night\n", "other")
    assert lab_wire.night().exit_code == 0
    lab_wire.state_dir = tmp_path / "another machine"
    blind = lab_wire.status()
    assert (blind.vms, blind.marker, blind.remembered) == ((), "gpuops.rotation", False)
    status = lab_wire.status(lab_wire.policy)
    assert {mine.original.name for mine in status.away} == DESKTOPS | ML
    assert (status.policy, status.marker) == (lab_wire.policy.name, "site.night")


def gpuops(*arguments: str, state_dir: Path, ready: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpuops", *arguments, "--yes", "--vcenter", f"sim@{ready}"],
        env={**os.environ, "GPUOPS_STATE_DIR": str(state_dir)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def exit_of(process: subprocess.Popen[bytes]) -> int:
    _, errors = process.communicate(timeout=100)
    assert b"Traceback" not in errors
    return process.returncode


@pytest.mark.drawn_cases(4)
@pytest.mark.long
@pytest.mark.parametrize("effect", range(1, 17))
def test_kill_9_after_every_effect_of_a_night(tmp_path: Path, effect: int) -> None:
    """`tests/kills` kills real processes, `tests/nights/interrupted/test_kills.py` a night at each of its points."""
    killed_and_resumed(tmp_path, effect, ("rotate", "night", "--policy", str(LAB_POLICY)))


def killed_and_resumed(tmp_path: Path, effect: int, command: tuple[str, ...]) -> None:
    """The process dies in the instant in which its n-th effect happened: after the effect, before the reply."""
    state_dir, ready = tmp_path / "state", tmp_path / "ready.json"
    with SimServer(build("lab")) as server:
        sim_client.write(ready, sim_client.of(server))
        wire = Wire(server, state_dir, load_policy(LAB_POLICY))
        victim = gpuops(*command, state_dir=state_dir, ready=ready)
        kill_at_effect(server, effect, victim)
        assert exit_of(victim) == -signal.SIGKILL
        happened = len(server.world.ledger)
        assert happened >= effect
        assert exit_of(gpuops("rotate", "resume", state_dir=state_dir, ready=ready)) == 0
        assert wire.to_power("poweredOn") == Counter(ML), "the night is as it would have been"
        assert wire.resume().plan == NOTHING_CUT_OFF, "a second resume has nothing to do"
        assert wire.day().exit_code == 0
        wire.check_morning()
        assert server.world.bugs == []


def kill_at_effect(server: SimServer, effect: int, victim: subprocess.Popen[bytes]) -> None:
    ledger = server.world.ledger
    record = ledger.record

    def record_and_kill(*arguments: Any, **keywords: Any) -> Entry:
        entry = record(*arguments, **keywords)
        if entry.sequence == effect:
            with suppress(ProcessLookupError):
                victim.send_signal(signal.SIGKILL)
        return entry

    ledger.record = record_and_kill  # type: ignore[method-assign]
