"""Passes over a job in a real Podman container of a simulated guest: start, stop, continue, end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpuops import clock
from gpuops.execute.site.guest_work import guest_work
from gpuops.extras.jobs.guest_container import GuestContainers
from gpuops.extras.jobs.job import ContainerJob, JobState, Mount, SubmittedJob
from gpuops.extras.jobs.job_run import JobPass
from gpuops.extras.jobs.job_store import JobStore
from gpuops.extras.jobs.job_turns import JobDeed, JobTurn
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests import guest_commands
from tests.podman_guest import IMAGE, PASSWORD, USER, VM, needs_podman, podman_guest
from tests.waiting import wait_until
from tests.wire.conftest import target_of

pytestmark = needs_podman

WORK = 'if [ "$GPUOPS_JOB_RESUMED" = 1 ]; then echo from $(cat /out/saved); exit 3; fi; echo anew; exec sleep 3600'


@pytest.fixture
def passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[JobDeed]]]:
    """Makes one pass over the jobs of `tmp_path`, in a guest with a directory for what they save."""
    monkeypatch.setattr(guest_commands, "POLLS_S", (0.05,))
    with podman_guest() as guest:
        (guest.home / "out").mkdir()
        login = GuestLogin(USER, Secret(PASSWORD))
        with Connection(replace(target_of(guest.server), guest=login)) as connection:
            inventory = connection.inventory()
            containers, store = GuestContainers(guest_work(connection)), JobStore("vc", tmp_path / "state")
            store.submit([_job(guest.home / "out")], "a@b", _now())

            def run(*, stops: bool = False) -> list[JobDeed]:
                job_pass = JobPass(store, containers, inventory, _now, timedelta(seconds=30), stops=stops)
                jobs = store.read()
                job_pass.run(jobs)
                return job_pass.begin([] if stops else [JobTurn(job, inventory.find_vm(VM)) for job in jobs])

            yield run


def _job(out: Path) -> ContainerJob:
    save = ("sh", "-c", "echo epoch-7 > /out/saved")
    mounts = (Mount(str(out), "/out", writable=True),)
    return ContainerJob(
        "fit", IMAGE, ("sh", "-c", WORK), "a40-8q", 4, 8192, timedelta(hours=1),
        mounts=mounts, checkpoint=save, resumes=1,
    )  # fmt: skip


def _now() -> datetime:
    return clock.wall_clock()


@pytest.mark.long
def test_a_job_goes_on_from_its_checkpoint_the_next_night(passes: Callable[..., list[JobDeed]], tmp_path: Path) -> None:
    store = JobStore("vc", tmp_path / "state")

    def job() -> SubmittedJob:
        return store.read()[0]

    assert [deed.failed for deed in passes()] == [False]
    _passes_until(passes, lambda: store.output(job())[0] == b"anew\n")
    passes(stops=True)
    stopped = job()
    assert (stopped.state, stopped.interruptions, stopped.exit_code) == (JobState.INTERRUPTED, 1, None)
    assert "its checkpoint was made" in stopped.reason
    passes()
    _passes_until(passes, lambda: job().ended)
    ended = job()
    assert (ended.state, ended.exit_code, ended.attempt_name) == (JobState.FAILED, 3, "fit-1-2")
    assert store.output(ended) == (b"anew\nfrom epoch-7\n", 0)


def _passes_until(passes: Callable[..., list[JobDeed]], holds: Callable[[], bool]) -> None:
    wait_until(lambda: holds() or any(deed.failed for deed in passes()), every_s=0.2)
    assert holds()
