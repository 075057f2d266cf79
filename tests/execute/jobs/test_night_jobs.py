"""Past nights with the jobs that ran in them: of each vCenter by its own book."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from gpuops.execute.site import Site
from gpuops.extras.jobs.job import JobEvent, JobRecord
from gpuops.extras.jobs.nightly import by_owners_of_jobs
from gpuops.extras.jobs.store import JobStore
from gpuops.model.nights.history import HeldPeriod, JobTime, PastNight, PastVm
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.owner import NotedOwner
from tests.execute.jobs.test_job_run import FIT, NOW

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
