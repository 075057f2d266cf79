"""Invariants of every story with jobs, checked with the made-up guests and the simulator.

JA no job is lost, none is there twice, and in calm nights each comes to an end.
JB none runs twice to its end, and one that did is reported so, with its exit code and its whole output.
JC one that was interrupted goes on at most as often as it says, and from its last checkpoint.
JD no container runs beside another in its VM, nor beside another of its job.
JE in the morning no VM of a job runs, and every desktop does.
JG of VMs that are made of a template there are never more than may be, no other VM is removed, and in the end none is
   left that no job needs, unless they are to stay.
JH none begins before all that it must come after have come to their end with exit code 0.
JF one is called finished only when it came to its end; what is cancelled is not begun again.

`tally` plays many, and says how many nights they were, what struck in them, and what broke.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations, pairwise
from typing import Final

from gpuops.extras.jobs.job import JobEvent, JobState, SubmittedJob
from tests.nights.jobs.guests import MadeContainer, output_until
from tests.nights.jobs.story import AT_MOST, POINTS, VM_POINTS, JobStory, play
from tests.nights.measuring.tally import Summed


def violations(story: JobStory) -> list[str]:
    return [
        *_none_lost(story), *_ends(story), *_goes_on(story), *_alone(story), *_mornings(story), *_states(story),
        *_made_vms(story), *_after(story), *(error for error in story.errors if error.startswith("bug")),
    ]  # fmt: skip


def containers(story: JobStory, job: SubmittedJob) -> list[MadeContainer]:
    return [container for container in story.guests.made if container.job == job.job.name]


def _none_lost(story: JobStory) -> Iterator[str]:
    names = [job.job.name for job in story.jobs]
    for name, spec in story.wanted.items():
        if names.count(name) != 1:
            yield f"JA: {name} is there {names.count(name)} times"
        elif next(job for job in story.jobs if job.job.name == name).job != spec:
            yield f"JA: {name} is not as it was submitted"
    for job in story.jobs:
        if not job.ended:
            yield f"JA: {job.job.name} is {job.state} after calm nights"


def _ends(story: JobStory) -> Iterator[str]:
    for job in story.jobs:
        ended = [finished for finished in containers(story, job) if story.guests.came_to_its_end(finished)]
        if len(ended) > 1:
            yield f"JB: {job.job.name} ran to its end {len(ended)} times"
        if ended and job.exit_code != ended[0].exit_code:
            yield f"JB: {job.job.name} ended with {ended[0].exit_code}, and {job.state} says {job.exit_code}"
        if ended and not story.outputs[job.job.name].endswith(output_until(ended[0], ended[0].ends)):
            yield f"JB: what {job.job.name} wrote is not all there"


def _goes_on(story: JobStory) -> Iterator[str]:
    for job in story.jobs:
        attempts = containers(story, job)
        if len(attempts) > job.job.resumes + 1:
            yield f"JC: {job.job.name} was begun {len(attempts)} times, and may go on {job.job.resumes} times"
        if attempts and attempts[0].resumed:
            yield f"JC: {job.job.name} begins from a checkpoint that it never made"
        for earlier, later in pairwise(attempts):
            if earlier.vm != later.vm:
                yield f"JC: {job.job.name} goes on in another VM than the one that has its files"
        has_checkpoint = any(record.saved for record in job.records)
        if len(attempts) > 1 and attempts[-1].resumed and attempts[-1].progress == timedelta():
            yield f"JC: {job.job.name} goes on from nothing"
        if len(attempts) > 1 and has_checkpoint and not attempts[-1].resumed and _saved_before(job, attempts[-1]):
            yield f"JC: {job.job.name} begins anew, though a checkpoint of it was made"


def _saved_before(job: SubmittedJob, container: MadeContainer) -> bool:
    return any(record.saved and record.at < container.began for record in job.records)


def _alone(story: JobStory) -> Iterator[str]:
    for container, other_container in combinations(story.guests.made, 2):
        if container.vm != other_container.vm and container.job != other_container.job:
            continue
        first, second = sorted((container, other_container), key=lambda container_: container_.began)
        if story.guests.ran_until(first) > second.began:
            yield f"JD: {first.attempt} and {second.attempt} ran at once"


def _mornings(story: JobStory) -> Iterator[str]:
    for at, running, suspended_names in story.mornings:
        if running:
            yield f"JE: {', '.join(running)} run on the morning of {at:%Y-%m-%d %H:%M}"
        if suspended_names:
            yield f"JE: {', '.join(suspended_names)} are away on the morning of {at:%Y-%m-%d %H:%M}"


def _made_vms(story: JobStory) -> Iterator[str]:
    for at, made_vms, missing_vms in story.counts:
        if len(made_vms) > (0 if story.keep is None else AT_MOST) or len(set(made_vms)) < len(made_vms):
            yield f"JG: {', '.join(made_vms)} are there on {at:%Y-%m-%d %H:%M}"
        if missing_vms:
            yield f"JG: {', '.join(missing_vms)} are gone on {at:%Y-%m-%d %H:%M}"
    at, remaining_vms, _ = story.counts[-1]
    if remaining_vms and not story.keep:
        yield f"JG: {', '.join(remaining_vms)} are left on {at:%Y-%m-%d %H:%M}, when all is over"


def _states(story: JobStory) -> Iterator[str]:
    for job in story.jobs:
        attempts = containers(story, job)
        if job.state is JobState.FINISHED and not any(
            story.guests.came_to_its_end(container) for container in attempts
        ):
            yield f"JF: {job.job.name} is finished, and never came to its end"
        cancelled_at = [record.at for record in job.records if record.event is JobEvent.CANCELLED]
        if cancelled_at and any(container.began > cancelled_at[0] for container in attempts):
            yield f"JF: {job.job.name} was begun after it was cancelled"
        if cancelled_at and job.job.name not in story.cancelled:
            yield f"JF: {job.job.name} was cancelled without a request"


def _after(story: JobStory) -> Iterator[str]:
    for job in story.jobs:
        for container, name in ((container, name) for container in containers(story, job) for name in job.job.after):
            earlier = [
                finished
                for finished in story.guests.made
                if finished.job == name and story.guests.came_to_its_end(finished)
            ]
            if not any(finished.exit_code == 0 and finished.ends <= container.began for finished in earlier):
                yield f"JH: {container.attempt} was begun before {name} had finished"


MET: Final = ("a return saved a job", "a return had no time", "checkpoint fails", "checkpoint too slow", "look absent",
       "VM made", "VM has", "VM removed", "a dependency refused", "a job never started")  # fmt: skip
"""What must have happened in many stories, beside kills."""


@dataclass
class JobTally(Summed):
    """What some stories come to."""

    stories: int = 0
    nights: int = 0
    attempts: int = 0
    states: Counter[JobState] = field(default_factory=Counter)
    events: Counter[JobEvent] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def unmet(self) -> set[str]:
        """Points at which no process was killed, and what should have been met and was not."""
        missed = {kind for kind in MET if not self.met[kind]}
        return {point for point in POINTS | VM_POINTS if not self.kills[point]} | missed

    def lines(self) -> list[str]:
        return [
            f"{self.stories} stories, {self.nights} nights, {self.states.total()} jobs, {self.attempts} attempts",
            f"{self.kills.total()} kills at {len(self.kills)} points",
            *(f"  {state.value:12} {number}" for state, number in sorted(self.states.items())),
            *(f"  {event.value:12} {number} records" for event, number in sorted(self.events.items())),
            *(f"  {kind:24} {number}" for kind, number in sorted(self.met.items())),
            "never met: " + (", ".join(sorted(self.unmet())) or "nowhere that is asked for"),
            *(self.violations or ["no invariant was broken"]),
        ]


def tally(seeds: Iterable[int], jobs: int, nights: int | None = None) -> JobTally:
    """What the stories of these seeds come to, in so many processes; no more are begun once `nights` were played."""
    total = JobTally()
    if jobs == 1:
        for part in map(_of, seeds):
            total.add(part)
            if nights is not None and total.nights >= nights:
                break
        return total
    with ProcessPoolExecutor(jobs) as pool:
        waiting = iter(seeds)
        running = {pool.submit(_of, seed) for _, seed in zip(range(jobs), waiting, strict=False)}
        while running:
            future = next(iter(running))
            running.discard(future)
            total.add(future.result())
            if nights is None or total.nights < nights:
                running |= {pool.submit(_of, seed) for _, seed in zip(range(1), waiting, strict=False)}
    return total


def _of(seed: int) -> JobTally:
    story = play(seed)
    return JobTally(
        1, len(story.mornings), len(story.guests.made),
        Counter(job.state for job in story.jobs),
        Counter(record.event for job in story.jobs for record in job.records),
        story.kills, story.guests.met, [f"{seed}: {violation}" for violation in violations(story)],
    )  # fmt: skip
