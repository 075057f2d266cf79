"""Story: some nights in a row with jobs, from one seed: people who submit and cancel, calls of a clock, kills, trouble.

Every call is a process of its own: it may be killed before and after each effect in vCenter, each record of the journal
and of a job, and each call to a guest. The last nights are calm, so that whatever may end does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import msgspec

from gpuops.config.policy import parse_policy
from gpuops.errors import GpuopsError
from gpuops.execute.journal.database import Database, sqlite_engine
from gpuops.execute.rotation.rotation import rotate_day, rotate_night
from gpuops.extras.jobs import job_queue, job_store, nightly
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, JobState, SubmittedJob
from gpuops.extras.jobs.job_store import JobStore
from gpuops.extras.jobs.job_turns import JobVmDeed
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.state.vm_state import Power
from tests.harness.killing import Killed
from tests.nights.jobs.guests import MINUTE, MadeGuests, Work
from tests.nights.playing.place import NightPlace, NightStore, folder_in_memory
from tests.nights.world.direct import DirectVcenter
from tests.nights.world.showing import Showing
from tests.nights.world.worlds import Size, arrange_site, policies_read_quickly

FIRST: Final = datetime(2026, 11, 2, 19, 0, tzinfo=UTC)
DAY: Final = timedelta(days=1)
NIGHTS: Final = 3
CALM: Final = 25
"""Highest number of further nights until all jobs have ended."""
CHECKPOINT: Final = 2 * MINUTE
OWNERS: Final = ("vision", "audio", None)
CALLS: Final = ("start", "look", "output", "checkpoint", "stop", "clear")
RECORDS: Final = (
    JobEvent.BEGUN, JobEvent.STARTED, JobEvent.STOPPING, JobEvent.INTERRUPTED, JobEvent.ENDED, JobEvent.CANCELLED,
)  # fmt: skip
POINTS: Final = frozenset(
    {f"before {call_name}" for call_name in (*CALLS, *RECORDS, "submit")}
    | {f"after {call_name}" for call_name in (*RECORDS, "submit")}
)
"""Where a process must have been killed at least once in many stories."""
VM_POINTS: Final = frozenset(
    {f"{when} {what}" for when in ("before", "after") for what in ("CloneVm", "ReconfigureVm", "RemoveVm")}
)
"""The same of stories whose VMs are made of a template."""
MADE: Final = "ml-made-"
"""How their names begin."""
AT_MOST: Final = 2


def policy_text(*, template: bool = False, keep: bool = False) -> str:
    """The policy: three hours a night."""
    template_settings = (
        {"template": {"name": "golden", "at_most": AT_MOST, "prefix": MADE, "keep": keep}} if template else {}
    )
    return json.dumps(
        {
            "version": 1, "name": "jobs",
            "windows": [{"name": "all", "zone": "UTC", "opens": "20:00", "closes": "23:00", "back_by": "01:00"}],
            "pools": [{"name": "office", "parked": True, "select": {"folder": "vdi", "name": "desktop-*"},
                       "idle": {"cpu_below_mhz": 500}, "owner": {"attribute": "gpuops.owner", "value": "office"}}],
            "ml": {"jobs": {"vms": ["ml-*"], "relocate": True, "checkpoint_s": int(CHECKPOINT.total_seconds()),
                            "minimum_run_minutes": 10, **template_settings},
                   "stop": {"grace_s": 60, "then": "power-off"}},
        }
    )  # fmt: skip


@dataclass
class JobStory:
    """What was played, for the checkers."""

    seed: int
    world: Any
    guests: MadeGuests
    jobs: tuple[SubmittedJob, ...] = ()
    wanted: dict[str, ContainerJob] = field(default_factory=dict)
    """What somebody has submitted for certain."""
    cancelled: set[str] = field(default_factory=set)
    """What somebody wanted to cancel."""
    kills: Counter[str] = field(default_factory=Counter)
    """By the point at which a process was killed."""
    mornings: list[tuple[datetime, list[str], list[str]]] = field(default_factory=list)
    """When a morning was over; the job VMs that ran then, and the desktops that were away."""
    others: frozenset[str] = frozenset()
    """Names of the VMs of the first evening."""
    counts: list[tuple[datetime, list[str], list[str]]] = field(default_factory=list)
    """Of each morning and the end, the VMs that were made and are there, and those of the first evening that are not.
    """
    keep: bool | None = None
    """Whether VMs stay that no job needs; None = none is made."""
    outputs: dict[str, bytes] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


class JobNights:
    """Plays one story."""

    def __init__(self, seed: int, state: Path) -> None:
        self.rng = Random(f"{seed}:jobs")
        self._templated, keep = seed % 2 == 0, Random(f"{seed}:keep").random() < 0.3
        size = Size(self.rng.randint(1, 3), self.rng.randint(4, 8), self.rng.randint(2, 4))
        if self._templated:
            size = Size(size.hosts, size.desktops, 2)  # the template, and one that is there
        declared = arrange_site(seed, size, full=True, relocate=1).declared
        self.world = build_declared(msgspec.structs.replace(declared, start=FIRST), seed=seed)
        for name in ("gpuops.rotation", "gpuops.owner", "gpuops.opt-out"):
            self.world.custom_fields.define(name)
        with policies_read_quickly():
            self.policy = parse_policy(policy_text(template=self._templated, keep=keep), "jobs")
        self._left: int | None = None
        """Points until the process of now is killed; None = it is not, or at the point that is aimed at."""
        self._aimed: str | None = None
        self._specs: dict[str, ContainerJob] = {}
        """By name, what is typed again after a kill."""
        self._state = state
        self._store = NightStore(self._point, lambda: len(self.world.ledger), lambda: False)
        self._showing = Showing(self.world)
        guests = MadeGuests(self.world, {}, Random(f"{seed}:guests"), self._point)
        self.story = JobStory(seed, self.world, guests)
        vms: list[Any] = list(self.world.by_type("VirtualMachine"))
        self.desktops = [vm for vm in vms if vm.name.startswith("desktop-")]
        for vm in self.desktops:
            vm.state.console_connections = 0
        if self._templated:
            golden = next(vm for vm in reversed(vms) if vm.name.startswith("ml-"))
            golden.state.name, golden.state.is_template, golden.state.devices = "golden", True, ()
            golden.touch("name", "config")
            self.story.keep = keep
        self.story.others = frozenset(vm.name for vm in vms)

    def play(self) -> JobStory:
        with self.world.lock, policies_read_quickly(), self._with_points():
            for number in range(NIGHTS):
                self._night(FIRST + number * DAY, troubled=True)
            self.story.guests.troubled = False
            for number in range(NIGHTS, NIGHTS + CALM):
                if all(job.ended for job in self._jobs()):
                    break
                self._process(self._cancel_never_starting, killed=False)
                self._night(FIRST + number * DAY, troubled=False)
            for _ in range(3):  # by day, when all is over
                self.world.clock.advance_to(self.world.clock.now().replace(hour=10) + DAY)
                self._process(self._look_after, killed=False)
            self._count_vms()
            self.story.jobs = self._jobs()
            for job in self.story.jobs:
                self.story.outputs[job.job.name] = self._job_store().output(job)[0]
        return self.story

    def _night(self, evening: datetime, *, troubled: bool) -> None:
        """From the hour before the window opens until desktops are due."""
        calls: list[tuple[datetime, Callable[[NightPlace], object]]] = []
        opens = evening.replace(hour=20)
        calls += [(opens + minute * MINUTE, self._rotate_night) for minute in (0, 20, 90)]
        calls += [
            (opens + minute * MINUTE, self._look_after) for minute in range(5, 155, self.rng.choice([10, 15, 25]))
        ]
        looked_after = self.rng.random() < 0.6  # else no later look stops them, and the return finds them running
        if looked_after:
            calls += [(opens + minute * MINUTE, self._look_after) for minute in range(155, 180, 5)]
        # a machine that was off: then the return comes when desktops need all the time that is left
        late = not looked_after and Random(f"{self.story.seed}:{evening}:late").random() < 0.3
        returns = range(118, 158, 8) if late else range(0, 100, 20)
        calls += [(opens + (180 + minute) * MINUTE, self._rotate_day) for minute in returns]
        if self._templated:
            calls += [(opens + minute * MINUTE, self._look_after_by_day) for minute in (-55, -40, -25, -10, 290)]
        if troubled:
            people = [self._submit, self._submit, self._submit, self._cancel]
            moments = (self.rng.randrange(-40, 200) for _ in range(self.rng.randint(2, 6)))
            calls += [(opens + moment * MINUTE, self.rng.choice(people)) for moment in moments]
        calls.sort(key=lambda call: call[0])
        for at, call in calls:
            if self.world.clock.now() < at:
                self.world.clock.advance_to(at)
            last_ones = at >= opens + 230 * MINUTE and call != self._look_after_by_day
            often = 0.8 if call == self._look_after_by_day else 0.3
            self._process(call, killed=troubled and not last_ones and self.rng.random() < often)
        running = [vm.name for vm in self._vms() if vm.name.startswith("ml-") and vm.state.power is not Power.OFF]
        suspended_names = [vm.name for vm in self.desktops if vm.state.power is not Power.ON]
        self.story.mornings.append((self.world.clock.now(), running, suspended_names))
        self._count_vms()

    def _vms(self) -> list[Any]:
        return list(self.world.by_type("VirtualMachine"))

    def _count_vms(self) -> None:
        names = [vm.name for vm in self._vms()]
        missing_names = sorted(self.story.others - set(names))
        self.story.counts.append(
            (self.world.clock.now(), [name for name in names if name.startswith(MADE)], missing_names)
        )

    def _process(self, call: Callable[[NightPlace], object], *, killed: bool) -> None:
        self._left = self._aimed = None
        if killed and self.rng.random() < 0.6:  # at a point that is named, else at any
            self._aimed = self.rng.choice(sorted(VM_POINTS if call == self._look_after_by_day else POINTS))
        elif killed:
            self._left = self.rng.randint(1, self.rng.choice([4, 12, 40]))
        vcenter = DirectVcenter(self.world, self._point, None, self._showing)
        place = NightPlace.on_one_machine(self.world, vcenter, self._state, self._store)
        place.say = self._note_line
        try:
            call(place)
        except Killed:
            self.world.clock.advance(60)
        except GpuopsError as error:
            self.story.errors.append(f"{type(error).__name__}: {error.message}")
        finally:
            vcenter.close()
            self._left = self._aimed = None

    def _note_line(self, line: str) -> None:
        if line.startswith("jobs were not stopped"):
            self.story.errors.append(f"bug: {line}")
        elif "its checkpoint was made" in line:
            self.story.guests.met["a return saved a job"] += 1
        elif "no time is left" in line:
            self.story.guests.met["a return had no time"] += 1

    def _rotate_night(self, place: NightPlace) -> None:
        rotate_night(self.policy, place, apply=True, unattended=True)

    def _rotate_day(self, place: NightPlace) -> None:
        rotate_day(self.policy, place, apply=True)

    def _look_after(self, place: NightPlace) -> None:
        for deed in job_queue.run_jobs(self.policy, place).vms:
            self.story.guests.met[f"VM {_kind_of_deed(deed)}"] += 1

    def _look_after_by_day(self, place: NightPlace) -> None:
        self._look_after(place)

    def _submit(self, place: NightPlace) -> None:
        """Submit a job; a killed submission is repeated at some time."""
        number = len(self.story.guests.work) + 1
        waiting = [name for name in self.story.guests.work if name not in self.story.wanted]
        name = waiting[0] if waiting else f"job-{number}"
        ended_job = next((job for job in self._jobs() if job.job.name == name and job.ended), None)
        if ended_job is not None:  # it had been submitted before they were killed, as the list shows
            self.story.wanted[name] = ended_job.job
            return
        rng = Random(f"{self.story.seed}:{name}")
        resumes = rng.choice([0, 1, 2, 3])
        needs = rng.randint(10, 170) * MINUTE if not resumes else rng.randint(30, 400) * MINUTE
        spec = ContainerJob(
            name, "quay.io/lab/fit:2", ("run",), "a40-48c", 1, 1024, needs, owner=rng.choice(OWNERS),
            checkpoint=("save",) if resumes else (), resumes=resumes, priority=rng.choice([0, 0, 5]),
        )  # fmt: skip
        self.story.guests.work.setdefault(name, Work(needs, rng.choice([0, 0, 0, 3])))
        earlier = sorted(self.story.wanted)
        after = (earlier[-1],) if earlier and Random(f"{self.story.seed}:{name}:after").random() < 0.2 else ()
        spec = self._specs.setdefault(name, replace(spec, after=after))
        if job_queue.job_submit([spec], place, self.policy).rejections:  # what it waits for has failed
            self.story.guests.met["a dependency refused"] += 1
            spec = self._specs[name] = replace(spec, after=())
            job_queue.job_submit([spec], place, self.policy)
        self.story.wanted[name] = spec

    def _cancel_never_starting(self, place: NightPlace) -> None:
        """As people do who see in the list that a job waits for one that has failed."""
        jobs = {job.job.name: job for job in self._jobs()}
        for job in jobs.values():
            required = [jobs[name].state for name in job.job.after]
            if job.waits and {JobState.FAILED, JobState.CANCELLED} & {*required}:
                self.story.guests.met["a job never started"] += 1
                self.story.cancelled.add(job.job.name)
                job_queue.job_cancel(job.job.name, place)

    def _cancel(self, place: NightPlace) -> None:
        jobs = [job for job in self._jobs() if not job.ended]
        if jobs:
            job = self.rng.choice(jobs)
            self.story.cancelled.add(job.job.name)
            job_queue.job_cancel(job.job.name, place)

    def _job_store(self) -> JobStore:
        vcenter = DirectVcenter(self.world, lambda point: None, None, self._showing)
        try:
            return JobStore(vcenter.uuid, self._state)
        finally:
            vcenter.close()

    def _jobs(self) -> tuple[SubmittedJob, ...]:
        return self._job_store().read()

    def _point(self, call: str) -> None:
        if self._left is not None:
            self._left -= 1
        point = call.split(" ml-")[0].split(" desktop-")[0]
        if self._left == 0 or point == self._aimed:
            self._left = self._aimed = None
            self.story.kills[point] += 1
            raise Killed(call)

    @contextmanager
    def _with_points(self) -> Iterator[None]:
        """Records of jobs are points too, and all guests are made up."""
        add, submit = JobStore.add, JobStore.submit

        def add_record(of_jobs: JobStore, job_before: SubmittedJob, record: JobRecord) -> SubmittedJob:
            self._point(f"before {record.event}")
            job = add(of_jobs, job_before, record)
            self._point(f"after {record.event}")
            return job

        def submit_job(of_jobs: JobStore, *args: Any) -> Any:
            self._point("before submit")
            submission = submit(of_jobs, *args)
            self._point("after submit")
            return submission

        database = KeptDatabase(sqlite_engine(str(self._state / "jobs.sqlite")), "jobs")
        guests = lambda site, **_: self.story.guests  # noqa: E731

        def one_after_the_other(works: Sequence[Callable[[], object]], limit_s: float) -> bool:
            """In the thread of the story, which alone may move its clock."""
            for work in works:
                work()
            return True

        with (
            patch.object(JobStore, "add", add_record),
            patch.object(JobStore, "submit", submit_job),
            patch.object(job_store, "make_file", lambda state_dir: database),
            patch.object(job_store, "file_database", lambda state_dir: database),
            patch.object(nightly, "guests_of", guests),
            patch.object(nightly, "side_by_side", one_after_the_other),
            patch.object(job_queue, "guests_of", guests),
        ):
            yield
        database.engine.dispose()


def _kind_of_deed(deed: JobVmDeed) -> str:
    """What a pass did with a VM, in one word or two."""
    if deed.failed:
        return "refused"
    return deed.what.split(":")[0].split(" ")[0]


class KeptDatabase(Database):
    """One that stays open for all processes of a story: opening it anew would take most of its time."""

    def close(self) -> None:
        """It is closed when the story is over."""


def play(seed: int) -> JobStory:
    with folder_in_memory() as folder:
        return JobNights(seed, folder).play()
