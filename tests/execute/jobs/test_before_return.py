"""Whatever hangs or fails in the part of jobs, `rotate day` brings every desktop back, no later than it says.

The guests here are tables; one of them, or the database of jobs, may never answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import repeat
from pathlib import Path
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import Refused
from gpuops.execute.rotation.rotation import rotate_day, rotate_night
from gpuops.execute.runs import NightVms
from gpuops.execute.site import Site
from gpuops.extras.jobs import job_run, nightly
from gpuops.extras.jobs.guest_container import GuestContainers
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, JobState, SubmittedJob
from gpuops.extras.jobs.job_store import JobStore
from gpuops.extras.jobs.nightly import AT_A_TIME, by_owners_of_jobs, run_jobs, side_by_side
from gpuops.model.guests.guest import CheckpointEnd, CommandEnd, RunningCommand
from gpuops.model.nights.history import HeldPeriod, JobTime, PastNight, PastVm
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.model.vcenter.target import Secret
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.returns.return_time import Durations
from tests.execute.jobs.test_job_run import FIT, NOW, TableGuest
from tests.execute.nights import POLICY_TEXT, Night, morning_is_good
from tests.execute.small_vcenter import SmallVcenter

WITH_JOBS = POLICY_TEXT.replace("ml:\n", 'ml:\n  jobs: {vms: ["job-*"], checkpoint_s: 10}\n')
WITHOUT_WINDOW = WITH_JOBS.replace("window:", "# window:")
LIMIT_S = 12.0
"""For what does not hang too: long enough beside other tests, and where a worker imports SQLAlchemy meanwhile."""


HANGS_S = 60.0


@dataclass
class HangingGuest(TableGuest):
    """A guest that never answers for the attempts named here, until the test is over."""

    hangs: set[str] = field(default_factory=set)
    over: Event = field(default_factory=Event)

    def checkpoint(self, vm: Vm, job: ContainerJob, attempt: str, limit: timedelta) -> CheckpointEnd:
        if attempt in self.hangs:
            self.over.wait(HANGS_S)
            raise Refused("it hung")
        return super().checkpoint(vm, job, attempt, limit)


@dataclass
class Morning:
    """A night with two jobs that run in the two ML VMs, and its `rotate day`."""

    night: Night
    guest: HangingGuest
    said: list[str] = field(default_factory=list)

    def begin(self, policy: str, names: tuple[str, ...] = ("fit", "other")) -> None:
        with self.site() as site:
            assert rotate_night(parse_policy(policy, "jobs"), site, apply=True).exit_code == 0
        for name, vm in zip(names, ("vm-91", "vm-92"), strict=False):
            [job] = self.store.submit([replace(FIT, name=name)], "a@b", self.now).added
            job = self.store.add(job, JobRecord(JobEvent.BEGUN, self.now, vm=vm, vm_name=vm))
            self.store.add(job, JobRecord(JobEvent.STARTED, self.now))
            self.guest.running.add(job.attempt_name)

    def day(self, *, asks: bool = False, consent: Callable[[Report], None] | None = None) -> tuple[Report, float]:
        began, now = time.monotonic(), self.now
        with replace(self.site(), clock=lambda: now) as site:
            options: dict[str, Any] = {} if consent is None else {"consent": consent}
            report = rotate_day(None, site, apply=True, asks=asks, **options)
        return report, time.monotonic() - began

    def site(self) -> Site:
        world = self.night.world
        return Site(SmallVcenter(world), self.night.state_dir, world.tick, say=self.said.append)

    @property
    def now(self) -> datetime:
        return self.night.world.now

    @property
    def store(self) -> JobStore:
        return JobStore("vc-uuid", self.night.state_dir)

    @property
    def jobs(self) -> tuple[SubmittedJob, ...]:
        return self.store.read()

    @property
    def states(self) -> list[JobState]:
        return [job.state for job in self.jobs]


@pytest.fixture
def morning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Morning]:
    new_morning = Morning(Night(tmp_path / "state"), HangingGuest())
    monkeypatch.setattr(nightly, "guests_of", lambda site, **_: new_morning.guest)
    # all jobs together have a moment more than a checkpoint, which may take ten seconds at the least
    monkeypatch.setattr(nightly, "END_TIME", timedelta(seconds=LIMIT_S) - timedelta(seconds=10) - job_run.STOP_GRACE)
    monkeypatch.setattr(job_run, "STOP_GRACE", timedelta())
    yield new_morning
    new_morning.guest.over.set()
    for thread in [
        running_thread for running_thread in threading.enumerate() if running_thread.name.startswith("bounded-work-")
    ]:
        thread.join(HANGS_S)  # what it still writes is no other test's
        assert not thread.is_alive()


def test_a_guest_that_hangs_keeps_neither_desktops_nor_other_jobs_waiting(morning: Morning) -> None:
    morning.begin(WITH_JOBS)
    morning.guest.hangs = {"fit-1-1"}
    report, took_s = morning.day()
    assert report.exit_code == 0
    morning_is_good(morning.night)
    assert LIMIT_S <= took_s < HANGS_S
    assert morning.states == [JobState.RUNNING, JobState.INTERRUPTED]
    assert "its checkpoint was made" in morning.jobs[1].reason
    assert any(line.startswith("job fit: its guest has not answered in time") for line in morning.said)


@pytest.mark.long
def test_a_database_that_hangs_keeps_no_desktop_waiting(morning: Morning, monkeypatch: pytest.MonkeyPatch) -> None:
    morning.begin(WITH_JOBS)
    monkeypatch.setattr(nightly, "LOOK", timedelta(seconds=0.5))
    with monkeypatch.context() as patched:
        patched.setattr(JobStore, "read", lambda store: morning.guest.over.wait(HANGS_S))
        report, took_s = morning.day()
    assert report.exit_code == 0 and took_s < HANGS_S
    morning_is_good(morning.night)
    assert "jobs were not stopped before their VMs: the running jobs could not be read within 0 s" in morning.said
    assert morning.states == [JobState.RUNNING, JobState.RUNNING], "they are looked at when their VMs run again"


@pytest.mark.long
def test_an_error_in_the_part_of_jobs_is_told_and_the_return_goes_on(
    morning: Morning, monkeypatch: pytest.MonkeyPatch
) -> None:
    morning.begin(WITH_JOBS)

    def broken(site: Site, **_: object) -> TableGuest:
        raise RuntimeError("a bug")

    monkeypatch.setattr(nightly, "guests_of", broken)
    report, _ = morning.day()
    assert report.exit_code == 0
    morning_is_good(morning.night)
    assert "jobs were not stopped before their VMs: RuntimeError: a bug" in morning.said


@pytest.mark.long
@pytest.mark.parametrize("policy", [WITH_JOBS, WITHOUT_WINDOW], ids=["open window", "no window"])
def test_a_return_before_its_time_lets_jobs_save_their_state_too(morning: Morning, policy: str) -> None:
    morning.begin(policy)
    report, _ = morning.day()
    assert report.exit_code == 0
    assert morning.states == [JobState.INTERRUPTED, JobState.INTERRUPTED], morning.said
    assert morning.guest.saves == 2
    assert [job.resumes_from_checkpoint for job in morning.jobs] == [True, True]


def test_beside_another_run_jobs_run_on_until_the_window_closes_and_are_stopped_from_then_on(
    morning: Morning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the return beside it is refused; after, it may begin at any moment, long before desktops are due."""
    policy = WITH_JOBS.replace('closes: "06:00"', 'closes: "05:00", back_by: "06:00"')
    morning.begin(policy)
    monkeypatch.setattr(nightly, "rotating", lambda *_: "another run")
    night = parse_policy(policy, "jobs").night_at(morning.now)
    assert night is not None and night.closes < night.back_by
    for minutes, states in ((-1, [JobState.RUNNING] * 2), (1, [JobState.INTERRUPTED] * 2)):
        moments = repeat(night.closes + timedelta(minutes=minutes))
        with replace(morning.site(), clock=moments.__next__) as site:
            nightly.stop_and_report(site)
        assert morning.states == states


def test_the_return_begins_earlier_by_the_checkpoint_grace_of_its_night(morning: Morning) -> None:
    """The graces are of the night's policy also after the policy file has lost them."""
    with_grace = WITH_JOBS.replace("{vm: ml-01}", "{vm: ml-01, checkpoint: {grace_s: 3600}}")
    assert with_grace != WITH_JOBS
    morning.begin(with_grace)
    with morning.site() as site, site.journal_to_read(site.vcenter.uuid, returning=True) as journal:
        assert journal is not None
        originals, inventory = NightVms(journal).all(), site.vcenter.inventory()
    begins = [
        nightly.return_begins(parse_policy(text, "jobs"), night_vms, inventory, Durations(), morning.now)
        for text, night_vms in (
            (WITH_JOBS, tuple(replace(original_vm, policy=None) for original_vm in originals)),
            (WITH_JOBS, originals),
            (with_grace, originals),
        )
    ]
    without, of_night, now_too = begins
    assert without is not None and of_night == now_too
    assert of_night is not None and without - of_night > timedelta(minutes=30)


@pytest.mark.parametrize(
    ("at", "refused"),
    [("2026-11-21T04:59", True), ("2026-11-21T05:01", False), ("2026-11-21T06:01", False)],
    ids=["open", "closed", "late"],
)
def test_a_return_beside_another_run_is_refused_until_the_window_closes_and_no_more_however_late(
    morning: Morning, monkeypatch: pytest.MonkeyPatch, at: str, refused: bool
) -> None:
    policy = parse_policy(WITH_JOBS.replace('closes: "06:00"', 'closes: "05:00", back_by: "06:00"'), "jobs")
    monkeypatch.setattr(nightly, "rotating", lambda *_: "another run")
    moments = repeat(datetime.fromisoformat(f"{at}Z"))
    with replace(morning.site(), clock=moments.__next__) as site:
        assert nightly.is_return_refused([policy], site) is refused


@pytest.mark.long
def test_who_is_asked_and_says_no_has_stopped_no_job(morning: Morning) -> None:
    morning.begin(WITH_JOBS)
    states_before: list[list[JobState]] = []

    def refuse(report: Report) -> None:
        states_before.append(morning.states)
        raise Refused("no")

    with pytest.raises(Refused, match="no"):
        morning.day(asks=True, consent=refuse)
    assert states_before == [[JobState.RUNNING] * 2] and morning.states == [JobState.RUNNING] * 2
    report, _ = morning.day(asks=True, consent=lambda report: states_before.append(morning.states))
    assert report.exit_code == 0
    assert states_before[1] == [JobState.RUNNING] * 2 and morning.states == [JobState.INTERRUPTED] * 2


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize("hangs", [False, True])
def test_a_pass_that_stops_does_so_with_all_jobs_at_once(
    morning: Morning, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """Each checkpoint waits for the other one; where one hangs, the other is stopped all the same."""
    morning.begin(WITH_JOBS)
    monkeypatch.setattr(nightly, "CALLED_EVERY", timedelta())
    if hangs:
        morning.guest.hangs = {"fit-1-1"}
    else:
        barrier, save = Barrier(2), TableGuest.checkpoint

        def together(guest: TableGuest, *args: Any) -> CheckpointEnd:
            barrier.wait(30)
            return save(guest, *args)

        monkeypatch.setattr(TableGuest, "checkpoint", together)
    with morning.site() as site:
        job_pass = run_jobs(parse_policy(WITH_JOBS, "jobs"), site, stop=True)
    ended = [JobState.RUNNING if hangs else JobState.INTERRUPTED, JobState.INTERRUPTED]
    assert (job_pass.stopped, job_pass.exit_code, morning.states) == (True, 4 if hangs else 0, ended)
    assert [deed.job.job.name for deed in job_pass.deeds] == ["fit", "other"]


def test_the_vm_of_a_job_that_has_ended_gets_the_next_in_the_same_pass(morning: Morning) -> None:
    morning.begin(WITH_JOBS)
    [profile] = morning.night.world.vms["vm-91"].profiles
    third = replace(FIT, name="third", profile=profile, vcpus=1, memory_mib=1)
    morning.store.submit([third], "a@b", morning.now)
    morning.guest.end("fit-1-1", 0)
    policy = WITH_JOBS.replace('"job-*"', "ml-01, ml-02").replace("{vm: ml-01}, {vm: ml-02}", "")
    with morning.site() as site:
        deeds = run_jobs(parse_policy(policy, "jobs"), site).deeds
    assert morning.states == [JobState.FINISHED, JobState.RUNNING, JobState.RUNNING]
    assert [deed.job.job.name for deed in deeds] == ["fit", "third"]


@pytest.mark.long
def test_works_beside_one_that_hangs_come_to_their_end_and_an_error_of_one_is_raised_then() -> None:
    release, completed_works = Event(), list[int]()

    def hangs() -> None:
        release.wait(30)

    assert not side_by_side([hangs, *[lambda: completed_works.append(1)] * 3], 3)
    release.set()
    assert completed_works == [1, 1, 1]

    def fails() -> None:
        raise Refused("no")

    with pytest.raises(Refused, match="no"):
        side_by_side([fails, *[lambda: completed_works.append(1)] * (2 * AT_A_TIME)], 30)
    assert len(completed_works) == 3 + 2 * AT_A_TIME


@pytest.mark.long
def test_when_no_time_is_left_no_guest_is_asked() -> None:
    """What was left behind in a thread does nothing further."""
    guests, vm = GuestContainers(object(), lambda: 0.0), Vm(ref="vm-1", name="ml-1")  # type: ignore[arg-type]
    asks: list[Callable[[], object]] = [
        lambda: guests.look(vm, "fit-1-1"),
        lambda: guests.output(vm, "fit-1-1", 0, 10),
        lambda: guests.checkpoint(vm, FIT, "fit-1-1", timedelta(seconds=9)),
        lambda: guests.stop(vm, "fit-1-1", timedelta(seconds=9)),
        lambda: guests.clear(vm, "fit-1-1"),
        lambda: guests.start(vm, FIT, "fit-1-1", resume=False),
    ]
    for ask in asks:
        with pytest.raises(Refused, match="no time is left for its guest"):
            ask()


def test_why_a_guest_refused_is_told_without_a_password_of_gpuops() -> None:
    class Port:
        secrets = (Secret("Kept4now"), Secret("x"))

        def start_command(self, *args: str) -> RunningCommand:
            return RunningCommand("vm-1", "ml-1", 1, "/tmp/gpuops-job-1")

        def wait_for_commands(self, commands: Any, timeout_s: float) -> Iterator[CommandEnd]:
            yield CommandEnd("ml-1", None, 9, "first\ncannot log in with Kept4now x\n", "it ended with 9")

    with pytest.raises(Refused, match=r"cannot log in with \[a password of gpuops, withheld\] x"):
        GuestContainers(Port()).look(Vm(ref="vm-1", name="ml-1"), "fit-1-1")  # type: ignore[arg-type]


HOUR = timedelta(hours=1)


def night(name: str, vcenter: str, begins_h: int) -> PastNight:
    """A VM of the same id and uuid in each."""
    period = HeldPeriod(NOW + begins_h * HOUR, NOW + (begins_h + 8) * HOUR)
    vm = PastVm("vm-1", "uuid-1", "job-01", Role.ML, (), 1.0, (period,), closed=True, owner=NotedOwner("folder", "a"))
    return PastNight(name, vcenter, NOW, "night", (), (vm,), ())


def test_each_night_has_the_jobs_of_its_own_vcenter(tmp_path: Path) -> None:
    site = cast(Site, SimpleNamespace(state_dir=tmp_path, journal_url=""))
    store = JobStore("vc-1", tmp_path)
    [job] = store.submit([replace(FIT, owner="b")], "ada@box", NOW).added
    begins, ends = NOW + HOUR, NOW + 3 * HOUR
    for record in (
        JobRecord(JobEvent.BEGUN, begins, "uuid-1", "job-01"),
        JobRecord(JobEvent.STARTED, begins),
        JobRecord(JobEvent.ENDED, ends, exit_code=0),
    ):
        job = store.add(job, record)
    nights = (night("1", "vc-2", 0), night("2", "vc-1", 0), night("3", "vc-2", 0), night("4", "vc-1", 24))
    nights_by_owner = by_owners_of_jobs(nights, site)
    assert [past_night.id for past_night in nights_by_owner] == ["1", "2", "3", "4"]
    assert {past_night.id: past_night.vms[0].jobs for past_night in nights_by_owner if past_night.vms[0].jobs} == {
        "2": (JobTime(NotedOwner("folder", "b"), begins, ends),)
    }
    assert by_owners_of_jobs((), site) == ()
