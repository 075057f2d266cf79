"""Which jobs `after` means, when a job may start, and which dependencies are refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuops.extras.jobs.dependencies import (
    dependency_objections,
    jobs_named,
    required_numbers,
    unmet_dependencies,
)
from gpuops.extras.jobs.job import ArrayTask, ContainerJob, JobEvent, JobRecord, SubmittedJob

NOW = datetime(2026, 11, 9, 20, 0, tzinfo=UTC)
BEGUN = JobRecord(JobEvent.BEGUN, NOW, vm="uuid")
FINISHED = (BEGUN, JobRecord(JobEvent.ENDED, NOW, exit_code=0))
FAILED = (BEGUN, JobRecord(JobEvent.ENDED, NOW, exit_code=1))
CANCELLED = (JobRecord(JobEvent.CANCELLED, NOW),)


def spec(name: str, *after: str) -> ContainerJob:
    return ContainerJob(name, "quay.io/lab/fit:2", ("run",), "a40-8q", 1, 1024, timedelta(hours=1), after=after)


def task(array: str, index: int, size: int, *after: str) -> ContainerJob:
    return replace(spec(f"{array}-{index}", *after), task=ArrayTask(array, index, size))


def submit_job(number: int, job: ContainerJob, *records: JobRecord, after: tuple[int, ...] = ()) -> SubmittedJob:
    return SubmittedJob(number, job, NOW, "a@b", records, after)


def objection_lines(jobs: list[ContainerJob], *earlier: SubmittedJob) -> list[str]:
    return [f"{dependency_objection.line}" for dependency_objection in dependency_objections(jobs, earlier)]


def test_an_array_is_named_as_a_whole_and_the_newest_of_a_name_is_meant() -> None:
    old = [submit_job(number, task("sweep", number - 1, 3), *FAILED) for number in (1, 2, 3)]
    new = [submit_job(4 + index, task("sweep", index, 2)) for index in (0, 1)]
    jobs = [*old, *new]
    assert [named_job.number for named_job in jobs_named("sweep", jobs)] == [4, 5]
    assert [named_job.number for named_job in jobs_named("sweep-1", jobs)] == [5]
    assert [named_job.number for named_job in jobs_named("sweep-2", jobs)] == [3]
    assert jobs_named("other", jobs) == ()
    assert required_numbers(spec("report", "sweep", "sweep-1"), (), jobs) == (4, 5)
    assert required_numbers(spec("report", "sweep"), [submit_job(9, spec("sweep"))], jobs) == (9,)


def test_a_job_starts_when_all_that_it_waits_for_has_finished() -> None:
    sweep = [submit_job(number, task("sweep", number, 2), *FINISHED) for number in (1, 2)]
    assert unmet_dependencies([*sweep, submit_job(3, spec("report"), after=(1, 2))]) == {}
    jobs = [sweep[0], submit_job(2, task("sweep", 1, 2), BEGUN), submit_job(3, spec("report"), after=(1, 2))]
    assert unmet_dependencies(jobs) == {3: "starts after sweep-1 finished"}


def test_after_a_job_that_failed_none_starts_and_each_says_why() -> None:
    for records, state in ((FAILED, "failed"), (CANCELLED, "cancelled")):
        last = submit_job(1, spec("last"), after=(2,))  # the order in a file is free
        jobs = [last, submit_job(2, spec("middle"), after=(3,)), submit_job(3, spec("first"), *records)]
        assert unmet_dependencies(jobs) == {
            1: "it never starts: job middle, number 2, never starts either",
            2: f"it never starts: job first, number 3, is {state}",
        }
    assert unmet_dependencies([submit_job(1, spec("lost"), *CANCELLED, after=(2,)), submit_job(2, spec("x"))]) == {}


def test_unknown_names_circles_and_what_would_never_start_are_refused_in_one_line_each() -> None:
    assert objection_lines([spec("a", "b"), spec("b"), task("s", 0, 2, "a"), task("s", 1, 2, "a")]) == []
    [unknown] = objection_lines([task("s", 0, 2, "nobody"), task("s", 1, 2, "nobody")])
    assert "after nobody: no job has this name" in unknown
    [never] = objection_lines([spec("b", "a")], submit_job(1, spec("a"), *FAILED))
    assert "job a is failed, so this job would never start" in never
    assert objection_lines([spec("b", "a")], submit_job(1, spec("a"), *FAILED), submit_job(2, spec("a"))) == []
    second_job = submit_job(2, spec("b", "a"), after=(1,))
    assert objection_lines([spec("b", "a")], submit_job(1, spec("a"), *FAILED), second_job) == [], (
        "submitted again it changes nothing"
    )
    [circle] = objection_lines([spec("a", "b"), spec("b", "a")])
    assert "wait for each other" in circle and ("a after b after a" in circle or "b after a after b" in circle)
    [objection] = objection_lines([task("s", 0, 2, "s"), task("s", 1, 2, "s")])
    assert "wait for each other" in objection
