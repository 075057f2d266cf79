"""One pass over jobs, killed before and after each action: the next pass ends in the same state.

The guest here is a table: what was started in it, what runs, what ended how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuops.errors import StepFailed
from gpuops.extras.jobs.guest_container import LOG_LIMIT
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, JobState, SubmittedJob
from gpuops.extras.jobs.job_run import PIECE_BYTES, STOP_GRACE, JobPass
from gpuops.extras.jobs.job_store import JobStore
from gpuops.extras.jobs.job_turns import JobDeed, JobTurn
from gpuops.model.guests.guest import CheckpointEnd, ContainerPhase, ContainerState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from tests.plan.snapshots import gpu, host, inventory, vm

NOW = datetime(2026, 11, 2, 20, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FIT = ContainerJob("fit", "quay.io/lab/fit:2", ("run",), "a40-12q", 2, 4096, 60 * MINUTE, checkpoint=("s",), resumes=2)


class Killed(BaseException):
    """What `kill -9` is to a test."""


@dataclass
class TableGuest:
    """Implements `JobGuests`."""

    point: Callable[[str], None] = lambda what: None
    ended: dict[str, int | None] = field(default_factory=dict)
    """Attempt -> its exit code, of those that have ended."""
    running: set[str] = field(default_factory=set)
    starts: list[tuple[str, bool]] = field(default_factory=list)
    """(attempt, whether it goes on), of those that were begun for the first time."""
    saves: int = 0
    asked: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    graces: list[timedelta] = field(default_factory=list)
    """What each container had between its request to end and its end."""
    written: bytes = b"epoch 1\nepoch 2\n"
    silent: bool = False
    refuses_checkpoint: bool = False
    ends_while_it_saves: bool = False

    def start(self, vm: Vm, job: ContainerJob, attempt: str, *, resume: bool) -> None:
        self._asked("start")
        if attempt not in self.running and attempt not in self.ended and attempt not in self.revoked:
            self.starts.append((attempt, resume))
            self.running.add(attempt)
        self.point("after start")

    def look(self, vm: Vm, attempt: str) -> ContainerState:
        self._asked("look")
        if attempt in self.running:
            return ContainerState(ContainerPhase.RUNNING, began=NOW)
        if attempt in self.ended and attempt not in self.cleared:
            was_asked = attempt in self.asked
            return ContainerState(ContainerPhase.ENDED, self.ended[attempt], NOW, NOW + 10 * MINUTE, was_asked)
        return ContainerState(ContainerPhase.ABSENT)

    def revoke(self, vm: Vm, attempt: str) -> ContainerState:
        self._asked("revoke")
        if attempt not in self.running and attempt not in self.ended:
            self.revoked.add(attempt)
        self.point("after revoke")
        return self.look(vm, attempt)

    def output(self, vm: Vm, attempt: str, offset: int, limit: int) -> bytes:
        self._asked("output")
        return self.written[offset : offset + limit]

    def checkpoint(self, vm: Vm, job: ContainerJob, attempt: str, limit: timedelta) -> CheckpointEnd:
        self._asked("checkpoint")
        if self.refuses_checkpoint:
            raise StepFailed("ml-1: no such program")
        self.saves += 1
        if self.ends_while_it_saves:
            self.end(attempt, 0)
        self.point("after checkpoint")
        return CheckpointEnd(saved=True)

    def stop(self, vm: Vm, attempt: str, grace: timedelta) -> ContainerState:
        self._asked("stop")
        self.graces.append(grace)
        if attempt in self.running:
            self.asked.add(attempt)
            self.end(attempt, 0)  # as programs that catch the signal do
        self.point("after stop")
        return self.look(vm, attempt)

    def clear(self, vm: Vm, attempt: str) -> None:
        self._asked("clear")
        self.cleared.add(attempt)
        self.point("after clear")

    def end(self, attempt: str, exit_code: int | None) -> None:
        self.running.discard(attempt)
        self.ended[attempt] = exit_code

    def _asked(self, event: str) -> None:
        self.point(f"before {event}")
        if self.silent:
            raise StepFailed("ml-1: VMware Tools do not answer")


@dataclass
class Bench:
    """A job, a VM and passes over them, of which one may be killed at a point."""

    store: JobStore
    guest: TableGuest = field(default_factory=TableGuest)
    world: Inventory = field(default_factory=lambda: inventory(
        [host("esx-01", gpu("0000:3b:00.0", "a40"))],
        [vm(1, "ml-1", "esx-01", "vgpu nvidia_a40-12q", power=PowerState.ON)],
    ))  # fmt: skip
    kill_at: int = 0
    points: list[str] = field(default_factory=list)
    deeds: Sequence[JobDeed] = ()

    def __post_init__(self) -> None:
        self.guest.point = self._point

    @property
    def job(self) -> SubmittedJob:
        return self.store.read()[-1]

    def submit(self, job: ContainerJob = FIT) -> None:
        self.store.submit([job], "a@b", NOW)

    def run(self, *, stops: bool = False, until: datetime | None = None, starts: bool = True) -> None:
        job_pass = JobPass(self.store, self.guest, self.world, lambda: NOW, 2 * MINUTE, stops=stops, until=until)
        jobs = self.store.read()
        self.deeds = job_pass.run(jobs)
        if starts and not stops:
            self.deeds = job_pass.begin([JobTurn(job, self.world.vms["vm-1"]) for job in jobs])

    def power(self, state: PowerState) -> None:
        self.world = replace(self.world, vms={"vm-1": replace(self.world.vms["vm-1"], power=state)})

    def _point(self, event: str) -> None:
        self.points.append(event)
        if len(self.points) == self.kill_at:
            raise Killed(event)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    new_bench = Bench(JobStore("vc", tmp_path))
    add = JobStore.add

    def added(store: JobStore, known_job: SubmittedJob, record: JobRecord) -> SubmittedJob:
        new_bench._point(f"before {record.event}")
        job = add(store, known_job, record)
        new_bench._point(f"after {record.event}")
        return job

    monkeypatch.setattr(JobStore, "add", added)
    return new_bench


def finishes(bench: Bench) -> None:
    bench.run()
    bench.guest.end("fit-1-1", 0)
    bench.run()


def fails(bench: Bench) -> None:
    bench.run()
    bench.guest.end("fit-1-1", 3)
    bench.run()


def is_interrupted(bench: Bench) -> None:
    bench.run()
    bench.run(stops=True)


def is_cancelled(bench: Bench) -> None:
    bench.run()
    if not bench.job.cancel_wanted and not bench.job.ended:
        bench.store.add(bench.job, JobRecord(JobEvent.CANCEL, NOW))
    bench.run()


STORIES: dict[Callable[[Bench], None], tuple[JobState, int | None]] = {
    finishes: (JobState.FINISHED, 0),
    fails: (JobState.FAILED, 3),
    is_interrupted: (JobState.INTERRUPTED, None),
    is_cancelled: (JobState.CANCELLED, None),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_killed_anywhere_and_called_again_it_ends_in_the_same_state(
    story: Callable[[Bench], None], tmp_path: Path, bench: Bench
) -> None:
    state, exit_code = STORIES[story]
    bench.submit()
    story(bench)
    whole = list(bench.points)
    assert (bench.job.state, bench.job.exit_code) == (state, exit_code)
    assert len(whole) > 10
    for kill_at in range(1, len(whole) + 1):
        bench.store = JobStore(f"vc-{kill_at}", tmp_path)
        bench.guest = TableGuest()
        bench.points, bench.kill_at = [], kill_at
        bench.guest.point = bench._point
        bench.submit()
        with pytest.raises(Killed):
            story(bench)
        bench.kill_at = 0
        story(bench)
        if story is is_interrupted and bench.job.state is JobState.RUNNING:  # killed while it was stopped, begun anew
            bench.run(stops=True)
        where = f"killed {whole[kill_at - 1]} ({kill_at})"
        begun = [attempt for attempt, _ in bench.guest.starts]
        assert len(set(begun)) == len(begun), where
        if story is not is_interrupted:
            assert (bench.job.state, bench.job.exit_code, begun) == (state, exit_code, ["fit-1-1"]), where
            assert bench.store.output(bench.job)[0] == b"epoch 1\nepoch 2\n", where
        else:
            assert bench.job.state in (JobState.INTERRUPTED, JobState.FAILED), where
            assert len(begun) <= FIT.resumes + 1 and bench.job.interruptions == len(begun), where
        assert not bench.guest.running, where


def test_it_goes_on_from_its_checkpoint_as_often_as_it_says(bench: Bench) -> None:
    bench.submit()
    for night in range(5):
        bench.run()
        bench.run(stops=True)
        assert bench.job.interruptions == min(night + 1, 3)
    assert bench.guest.starts == [("fit-1-1", False), ("fit-1-2", True), ("fit-1-3", True)]
    assert (bench.job.state, bench.guest.saves) == (JobState.FAILED, 3)


def test_an_exit_code_after_a_stop_says_nothing(bench: Bench) -> None:
    """Programs end well when they are asked to end: that is not their work done."""
    bench.submit()
    bench.run()
    bench.run(stops=True)
    assert bench.guest.ended == {"fit-1-1": 0}
    assert (bench.job.state, bench.job.exit_code) == (JobState.INTERRUPTED, None)


@pytest.mark.long
@pytest.mark.parametrize("stopped", [False, True])
def test_the_last_lines_of_a_long_log_are_kept(bench: Bench, stopped: bool) -> None:
    """They tell why it ended, and its guest keeps nothing once that is noted."""
    bench.submit()
    bench.run()
    bench.guest.written = b"x" * LOG_LIMIT + b"\nit failed for this reason\n"
    bench.run()
    assert bench.store.output_end(bench.job) == 4 * PIECE_BYTES, "while it runs a pass is done soon"
    if not stopped:
        bench.guest.end("fit-1-1", 1)
    bench.run(stops=stopped)
    assert bench.store.output(bench.job)[0].endswith(b"\nit failed for this reason\n")


@pytest.mark.long
def test_what_ends_while_it_saves_its_state_has_come_to_its_end(bench: Bench) -> None:
    bench.submit()
    bench.guest.ends_while_it_saves = True
    bench.run()
    bench.run(stops=True)
    assert (bench.job.state, bench.job.exit_code) == (JobState.FINISHED, 0)


@pytest.mark.long
def test_a_checkpoint_that_fails_or_has_no_time_keeps_nothing_from_its_stop(bench: Bench) -> None:
    bench.submit()
    bench.guest.refuses_checkpoint = True
    bench.run()
    bench.run(stops=True)
    assert bench.job.state is JobState.INTERRUPTED and "no such program" in bench.job.reason
    bench.run()
    bench.run(stops=True, until=NOW + timedelta(milliseconds=500))
    assert bench.job.interruptions == 2 and "no time was left for its checkpoint" in bench.job.reason


def test_when_its_time_is_up_a_return_asks_no_guest_any_more(bench: Bench) -> None:
    bench.submit()
    bench.run()
    bench.points.clear()
    bench.run(stops=True, until=NOW)
    assert bench.points == [] and bench.job.state is JobState.RUNNING
    assert "no time is left" in bench.deeds[0].what


@pytest.mark.long
def test_of_a_vm_that_is_off_nothing_is_said_until_it_runs_again(bench: Bench) -> None:
    bench.submit()
    bench.run()
    bench.power(PowerState.OFF)
    bench.run()
    assert not bench.job.ended and not bench.job.waits, "it may have come to its end before"
    bench.guest.end("fit-1-1", None)  # its VM went down under it
    bench.power(PowerState.ON)
    bench.run(starts=False)
    assert bench.job.state == JobState.INTERRUPTED and "went down while it ran" in bench.job.reason


@pytest.mark.long
def test_a_guest_that_does_not_answer_is_told_and_keeps_nobody_waiting(bench: Bench) -> None:
    bench.submit()
    bench.submit(replace(FIT, name="other"))
    bench.run()
    bench.guest.silent = True
    bench.run()
    assert [deed.failed for deed in bench.deeds] == [True, True]
    assert bench.job.state is JobState.RUNNING


@pytest.mark.parametrize("killed", [False, True], ids=["late", "late and killed"])
@pytest.mark.parametrize("cancels", [False, True], ids=["stopped", "cancelled"])
def test_what_another_pass_has_found_not_started_does_not_run_on(bench: Bench, cancels: bool, killed: bool) -> None:
    """A pass begins a job and is slow to ask its guest; another one looks meanwhile, and finds nothing there."""
    bench.submit()
    point = bench.guest.point

    def dies(event: str) -> None:
        if killed and event == "after start":
            raise Killed(event)

    def slow(event: str) -> None:
        if event == "before start":
            bench.guest.point = dies
            if cancels:
                bench.store.add(bench.job, JobRecord(JobEvent.CANCEL, NOW))
            bench.run(stops=not cancels, starts=False)

    bench.guest.point = slow
    with pytest.raises(Killed) if killed else nullcontext():
        bench.run()
    assert bench.job.state is (JobState.CANCELLED if cancels else JobState.QUEUED)
    assert bench.guest.starts == [], "its guest had promised that"
    bench.guest.point = point
    if not cancels:
        bench.run()
        assert bench.guest.starts == [("fit-1-2", False)], "it waited as before"


def test_of_two_passes_at_once_one_leaves_the_job_to_the_other(bench: Bench) -> None:
    bench.submit()
    jobs = bench.store.read()
    bench.run()
    late = JobPass(bench.store, bench.guest, bench.world, lambda: NOW, 2 * MINUTE)
    late.begin([JobTurn(jobs[0], bench.world.vms["vm-1"])])
    assert [deed.what for deed in late.deeds] == ["another gpuops job run is changing it"]
    assert bench.guest.starts == [("fit-1-1", False)]


@pytest.mark.long
def test_what_never_began_in_the_morning_waits_as_before(bench: Bench) -> None:
    bench.submit()
    bench.guest.silent = True
    bench.run()
    assert bench.job.state is JobState.RUNNING, "its guest was asked, and may have done it"
    bench.guest.silent = False
    bench.run(stops=True)
    assert (bench.job.state, bench.job.interruptions, bench.guest.starts) == (JobState.QUEUED, 0, [])


@pytest.mark.long
def test_a_job_whose_vm_is_gone_goes_on_elsewhere(bench: Bench) -> None:
    bench.submit()
    bench.run()
    bench.world = replace(bench.world, vms={})
    bench.run(starts=False)
    assert bench.job.state is JobState.INTERRUPTED and "not in vCenter" in bench.job.reason


@pytest.mark.parametrize(("remaining_s", "grace"), [(None, STOP_GRACE), (10, timedelta(seconds=5)), (3600, STOP_GRACE)])
def test_a_container_has_its_grace_or_half_of_what_is_left(
    bench: Bench, remaining_s: int | None, grace: timedelta
) -> None:
    bench.submit()
    bench.run()
    bench.run(stops=True, until=None if remaining_s is None else NOW + timedelta(seconds=remaining_s))
    assert bench.guest.graces == [grace]
