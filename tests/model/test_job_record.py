"""What records say of a job: each state and its way there, and that nothing runs twice, is lost or comes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, JobState, SubmittedJob

NOW = datetime(2026, 11, 2, 20, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def job(resumes: int = 0) -> SubmittedJob:
    spec = ContainerJob("fit", "quay.io/lab/fit:2", ("run",), "a40-8q", 2, 4096, 3 * HOUR, resumes=resumes)
    return SubmittedJob(1, spec, NOW, "a@b")


def after(submitted: SubmittedJob, *events: JobEvent, exit_code: int = 0) -> SubmittedJob:
    for event in events:
        code = exit_code if event is JobEvent.ENDED else None
        assert submitted.may_have(event), f"{event} after {submitted.state}"
        submitted = submitted.with_record(JobRecord(event, NOW, vm="uuid", exit_code=code))
    return submitted


B, S, CUT, E = JobEvent.BEGUN, JobEvent.STARTED, JobEvent.INTERRUPTED, JobEvent.ENDED
NOT, STOP, WISH, OVER = JobEvent.NOT_STARTED, JobEvent.STOPPING, JobEvent.CANCEL, JobEvent.CANCELLED


@pytest.mark.parametrize(
    ("events", "exit_code", "state"),
    [
        ((), 0, JobState.QUEUED),
        ((B,), 0, JobState.RUNNING),
        ((B, NOT), 0, JobState.QUEUED),
        ((B, S, STOP), 0, JobState.RUNNING),
        ((B, S, STOP, CUT), 0, JobState.INTERRUPTED),
        ((B, S, STOP, CUT, B, NOT), 0, JobState.INTERRUPTED),
        ((B, S, STOP, CUT, B, S, STOP, CUT), 0, JobState.FAILED),
        ((B, S, E), 0, JobState.FINISHED),
        ((B, E), 3, JobState.FAILED),
        ((B, S, WISH, STOP, OVER), 0, JobState.CANCELLED),
        ((OVER,), 0, JobState.CANCELLED),
    ],
)
def test_states(events: tuple[JobEvent, ...], exit_code: int, state: JobState) -> None:
    after_events = after(job(resumes=1), *events, exit_code=exit_code)
    assert after_events.state is state
    assert after_events.ended is (state in (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED))
    assert after_events.waits is (state in (JobState.QUEUED, JobState.INTERRUPTED))


def test_without_resumes_an_interruption_is_its_end() -> None:
    assert after(job(), B, S, STOP, CUT).state is JobState.FAILED


@given(st.lists(st.sampled_from(list(JobEvent)), max_size=40), st.integers(0, 3))
def test_no_sequence_that_is_let_runs_it_oftener_than_it_says(events: list[JobEvent], resumes: int) -> None:
    replayed = job(resumes)
    for event in events:
        if replayed.may_have(event):
            before = replayed.state
            replayed = replayed.with_record(JobRecord(event, NOW, vm="uuid", exit_code=0 if event is E else None))
            assert event is not B or before is not JobState.RUNNING, "begun while it runs"
    event_names = [record.event for record in replayed.records]
    assert event_names.count(E) <= 1
    assert event_names.count(CUT) <= resumes + 1
    assert event_names.count(B) - event_names.count(NOT) <= resumes + 1
    if replayed.ended:
        assert not any(replayed.may_have(event) for event in JobEvent)


def test_an_attempt_has_a_name_of_its_own_and_knows_what_was_done() -> None:
    first = after(job(2), B, S, STOP, CUT)
    second = after(first, B)
    assert (first.attempt_name, second.attempt_name) == ("fit-1-1", "fit-1-2")
    assert first.attempt is not None and second.attempt is not None
    assert (first.attempt.started, first.attempt.stopping) == (True, True)
    assert (second.attempt.number, second.attempt.started, second.attempt.stopping) == (2, False, False)
