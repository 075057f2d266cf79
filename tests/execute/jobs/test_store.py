"""Jobs in the database: what is submitted is there, once; of two that change a job one loses; output is kept whole."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import update

from gpuops.errors import Refused, StateDamaged
from gpuops.execute.journal import Journal
from gpuops.execute.journal.database import book_table
from gpuops.execute.journal.stores import make_file
from gpuops.extras.jobs import job_store
from gpuops.extras.jobs.job import (
    ArrayTask,
    ContainerJob,
    ContainerRuntime,
    JobEvent,
    JobRecord,
    JobState,
    Mount,
    SubmittedJob,
)
from gpuops.extras.jobs.job_store import JobChanged, JobStore
from gpuops.model.stored import to_stored

NOW = datetime(2026, 11, 2, 20, 0, tzinfo=UTC)
FIT = ContainerJob(
    "fit",
    "quay.io/lab/fit:2",
    ("python", "a b; $(reboot) '"),
    "a40-8q",
    2,
    4096,
    timedelta(hours=3),
    runtime=ContainerRuntime.DOCKER,
    mounts=(Mount("/data", "/in"), Mount("/out", "/out", True)),
    checkpoint=("save", "--now"),
    resumes=2,
    owner="vision",
)


def submit(store: JobStore, *jobs: ContainerJob) -> tuple[SubmittedJob, ...]:
    return store.submit(jobs, "a@b", NOW).added


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> JobStore:
    url = request.getfixturevalue("postgresql").database() if request.param == "postgresql" else ""
    return JobStore("vc", tmp_path, url)


def test_nothing_is_made_by_a_look(tmp_path: Path) -> None:
    assert JobStore("vc", tmp_path / "state").read() == ()
    assert not (tmp_path / "state").exists()


def test_what_is_submitted_is_read_as_it_was(store: JobStore) -> None:
    added = submit(store, FIT, replace(FIT, name="score", mounts=(), checkpoint=(), resumes=0))
    assert replace(store).read() == added
    assert [job.number for job in added] == [1, 2]
    assert replace(store, vcenter="another").read() == ()


def test_the_server_says_as_whom_it_knows_who_submits(store: JobStore) -> None:
    assert (store.role() != "") is (store.url != "")


def test_it_lies_beside_a_journal(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, "vc", lambda: NOW)
    submit(JobStore("vc", tmp_path), FIT)
    journal.end(journal.begin("rotate night"))
    assert len(JobStore("vc", tmp_path).read()) == 1


def test_submitted_again_it_is_there_once(store: JobStore) -> None:
    """After a kill behind the commit the user repeats the command."""
    [first] = submit(store, FIT)
    second_submission = store.submit([FIT], "a@b", NOW)
    assert (second_submission.added, second_submission.existing) == ((), (first,))
    with pytest.raises(Refused, match="has not ended"):
        store.submit([replace(FIT, name="other"), replace(FIT, priority=3)], "a@b", NOW)
    assert store.read() == (first,), "all or none"
    store.add(first, JobRecord(JobEvent.CANCELLED, NOW))
    assert [job.number for job in submit(store, FIT)] == [2]


def test_names_that_a_job_waits_for_become_numbers(store: JobStore) -> None:
    sweep = tuple(replace(FIT, name=f"sweep-{at}", task=ArrayTask("sweep", at, 2)) for at in range(2))
    report = replace(FIT, name="report", after=("sweep", "fit"), env={"A": "b"}, secrets={"T": "/etc/t"})
    submit(store, FIT)
    added = submit(store, report, *sweep)
    assert [job.after for job in added] == [(3, 4, 1), (), ()]
    assert store.read()[1:] == added


def test_a_job_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    store = JobStore("vc", tmp_path)
    [job] = submit(store, FIT)
    body = json.loads(msgspec.json.encode(to_stored(job)))
    del body["after"]
    for key in ("gpus", "env", "secrets", "shm_mib", "workdir", "after", "task"):
        del body["job"][key]
    with closing(make_file(tmp_path)) as database, database.writing() as connection:
        connection.execute(update(book_table).values(body=json.dumps(body)))
    assert store.read() == (job,)


def test_of_two_that_change_it_one_loses(store: JobStore) -> None:
    [job] = submit(store, FIT)
    record = JobRecord(JobEvent.BEGUN, NOW, vm="uuid-1", vm_name="job-1")
    begun = store.add(job, record)
    with pytest.raises(JobChanged):
        store.add(job, replace(record, vm="uuid-2"))
    assert store.read() == (begun,) and begun.attempt is not None and begun.attempt.vm == "uuid-1"
    ended = store.add(begun, JobRecord(JobEvent.ENDED, NOW, exit_code=3, ran=timedelta(minutes=7), reason="x"))
    assert (store.read(), ended.state) == ((ended,), JobState.FAILED)
    with pytest.raises(JobChanged):
        store.add(ended, record)


def test_output_is_kept_whole_and_the_newest_of_much(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = submit(store, FIT)
    job = store.add(job, JobRecord(JobEvent.BEGUN, NOW, vm="uuid"))
    for begins, piece in ((0, b"one "), (4, b"two "), (4, b"two ")):
        store.add_output(job, begins, piece)
    assert (store.output(job), store.output_end(job)) == ((b"one two ", 0), 8)
    monkeypatch.setattr(job_store, "MOST_OUTPUT_BYTES", 10)
    store.add_output(job, 8, b"three ")
    assert (store.output(job), store.output_end(job)) == ((b"two three ", 4), 14)


def test_of_many_that_submit_and_begin_it_at_once_one_does(store: JobStore) -> None:
    """As two jump hosts with one database, whose clocks call `job run` at the same minute."""
    begun = JobRecord(JobEvent.BEGUN, NOW, vm="uuid-1")

    def begin(number: int) -> str:
        [job] = replace(store).submit([FIT], f"a@machine-{number}", NOW).added or replace(store).read()
        try:
            replace(store).add(job, replace(begun, vm_name=f"machine-{number}"))
        except JobChanged:
            return "lost"
        return f"machine-{number}"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(begin, range(8)))
    [job] = store.read()
    assert sorted(outcomes)[:7] == ["lost"] * 7 and job.attempt is not None
    assert job.attempt.vm_name in outcomes and (job.attempt.number, len(job.records)) == (1, 1)


@pytest.mark.parametrize(
    "body", ["null", "5", "[]", '"x"', "{}", "", "{", "[" * 100_000, "9" * 5000, '{"run_time": 1e300}', '{"mounts": 5}']
)
def test_a_row_that_somebody_else_wrote_is_named_and_ends_in_no_error_of_ours(tmp_path: Path, body: str) -> None:
    store = JobStore("vc", tmp_path)
    [job] = submit(store, FIT)
    text = json.loads(msgspec.json.encode(to_stored(job)))
    text["job"] |= json.loads(body) if body.startswith('{"') else {}
    for row in (body, json.dumps(text) if body.startswith('{"') else json.dumps({**text, "job": body})):
        with closing(make_file(tmp_path)) as database, database.writing() as connection:
            connection.execute(update(book_table).values(body=row))
        with pytest.raises(StateDamaged, match="the jobs of this vCenter cannot be read"):
            store.read()
