"""Which jobs must have finished before others start: `after` of a job, as Slurm's `afterok`. Pure.

Names become numbers when a job is submitted: those of jobs in the same submission, otherwise of the newest job or
array with that name. A job starts after all of them have finished. If one fails or is cancelled, it never starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

from gpuops.extras.jobs.job import ContainerJob, JobState, SubmittedJob
from gpuops.plan.core.rejection import Rejection, some_names

_NEVER_FINISHES: Final = frozenset({JobState.FAILED, JobState.CANCELLED})


def jobs_named(name: str, submitted: Sequence[SubmittedJob]) -> tuple[SubmittedJob, ...]:
    """Return the newest job with this name, or all tasks of the newest array with it; () if no job has it."""
    named = [job for job in submitted if name in job.job.names]
    if not named:
        return ()
    newest = named[-1]
    if newest.job.name == name or newest.job.task is None:
        return (newest,)
    size = newest.job.task.size
    tasks = {job.job.name: job for job in named if job.job.task is not None and job.job.task.size == size}
    return tuple(tasks.values())


def required_numbers(
    job: ContainerJob, submission: Sequence[SubmittedJob], submitted: Sequence[SubmittedJob]
) -> tuple[int, ...]:
    """Return the numbers of the jobs that `job.after` means. `submission`: the jobs that are submitted with it."""
    numbers = dict[int, None]()
    for name in job.after:
        required = [other for other in submission if name in other.job.names] or jobs_named(name, submitted)
        numbers |= dict.fromkeys(other.number for other in required)
    return tuple(numbers)


def dependency_objections(jobs: Sequence[ContainerJob], submitted: Sequence[SubmittedJob]) -> Iterator[Rejection]:
    """Yield why these jobs could never start: unknown names, jobs that failed, and jobs that wait for each other.

    If a job of the same name was submitted and has not ended, that job keeps its dependencies: those on jobs submitted
    before are not judged again.
    """
    unended = {job.job.name for job in submitted if not job.ended}
    names_of_new = dict[str, list[str]]()  # name of a new job or array -> the names of its jobs
    for job in jobs:
        for name in job.names:
            names_of_new.setdefault(name, []).append(job.name)
    graph = dict[str, set[str]]()  # new job -> the new jobs that it waits for
    for job in jobs:
        for name in job.after:
            if name in names_of_new:
                graph.setdefault(job.name, set()).update(names_of_new[name])
            elif job.name not in unended and (
                job.task is None or job.task.index == 0
            ):  # the first task of an array stands for all
                yield from _objections_to_earlier(job.name, name, jobs_named(name, submitted))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
        reason = f"after: jobs wait for each other: {' after '.join(reversed(circle))}"
        yield Rejection(circle[0], reason, hint="remove one of these `after`")


def _objections_to_earlier(name: str, after: str, earlier: Sequence[SubmittedJob]) -> Iterator[Rejection]:
    if not earlier:
        yield Rejection(name, f"after {after}: no job has this name", hint="gpuops job list shows all jobs")
    for job in earlier:
        if job.state in _NEVER_FINISHES:
            reason = f"after {after}: job {job.job.name} is {job.state}, so this job would never start"
            yield Rejection(name, reason, hint=f"submit {after} again first")
            return


def unmet_dependencies(submitted: Sequence[SubmittedJob]) -> dict[int, str]:
    """Return by number why waiting jobs may not start yet, or never; jobs that may start are left out."""
    by_number = {job.number: job for job in submitted}
    dependent = [job for job in submitted if job.after and job.waits]
    lost = {job.number for job in submitted if job.state in _NEVER_FINISHES}
    # `lost`: numbers of jobs that never finish. A job after one of these never starts, so it is lost too, and so on
    while stuck := [job.number for job in dependent if job.number not in lost and not lost.isdisjoint(job.after)]:
        lost.update(stuck)
    reasons = dict[int, str]()
    for job in dependent:
        required = [by_number[number] for number in job.after if number in by_number]
        unfinished = [other for other in required if other.state is not JobState.FINISHED]
        first_lost = next((other for other in unfinished if other.number in lost), None)
        if first_lost is not None:
            fate = "never starts either" if first_lost.waits else f"is {first_lost.state}"
            reasons[job.number] = f"it never starts: job {first_lost.job.name}, number {first_lost.number}, {fate}"
        elif unfinished:
            names = some_names([other.job.name for other in unfinished])
            reasons[job.number] = f"starts after {names} finished"
    return reasons
