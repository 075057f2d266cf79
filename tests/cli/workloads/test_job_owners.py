"""Jobs of two owners in one VM in one night, as `gpuops report` and `gpuops queue` then count them."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops import clock
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.jobs.job import JobEvent, JobRecord
from gpuops.extras.jobs.job_store import JobStore
from tests.cli.conftest import LAB_POLICY, Lab
from tests.cli.workloads.test_job_queue import submit_json

pytestmark = pytest.mark.long

BY: Final = "attribute:team"


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """That of the lab, whose ml-06 runs jobs, and whose teams share the nights."""
    text = Path(LAB_POLICY).read_text(encoding="utf-8")
    queued = "    - vm: ml-06\n      relocate: true\n"
    assert queued in text
    text = text.replace(queued, "").replace("\nml:\n", "\nml:\n  jobs: {relocate: true, vms: [ml-06]}\n", 1)
    path = tmp_path / "policy.yaml"
    path.write_text(f"{text}\nfair_share: {{by: '{BY}'}}\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def night(lab: Lab, policy: str) -> str:
    """A night of eight hours in which a job of `vision` ran for one hour in ml-06, and then one of `audio` for two; the
    policy."""
    for owner in ("vision", "audio"):
        submit_json(lab, policy, "--owner", owner, "--name", owner, "--profile", "a40-48c")
    assert lab.run("rotate", "night", "--policy", policy, "--yes").exit_code == 0
    began = clock.wall_clock()
    clock.set_ahead(began - clock.machine_time() + timedelta(hours=8))
    _ran(lab, "vision", began + timedelta(hours=1), timedelta(hours=1))
    _ran(lab, "audio", began + timedelta(hours=3), timedelta(hours=2))
    assert lab.run("rotate", "day", "--policy", policy, "--yes").exit_code == 0
    return policy


def _ran(lab: Lab, name: str, begins: datetime, length: timedelta) -> None:
    """Writes what a pass notes of a job that ran in ml-06."""
    inventory = json.loads(lab.run("inventory", "--vms", "-o", "json").stdout)
    [uuid] = [vm["instance_uuid"] for vm in inventory["vms"] if vm["name"] == "ml-06"]
    store = JobStore(inventory["vcenter"], default_state_dir())
    [job] = [submitted_job for submitted_job in store.read() if submitted_job.job.name == name]
    for record in (
        JobRecord(JobEvent.BEGUN, begins, uuid, "ml-06"),
        JobRecord(JobEvent.STARTED, begins),
        JobRecord(JobEvent.ENDED, begins + length, exit_code=0, ran=length),
    ):
        job = store.add(job, record)


def test_each_owner_has_the_hours_of_its_own_jobs(lab: Lab, night: str, tmp_path: Path) -> None:
    lines = tmp_path / "hours.csv"
    report: Any = json.loads(lab.run("report", "--by", BY, "--csv", str(lines), "-o", "json").stdout)
    owners = {owner["owner"]: owner for owner in report["showback"]["owners"]}
    assert owners["audio"]["gpu_hours"] == pytest.approx(2.0)
    assert owners["vision"]["gpu_hours"] == pytest.approx(6.0, abs=0.1), "and what no job used of the VM's time"
    hours: dict[str, float] = defaultdict(float)
    for row in csv.DictReader(lines.read_text(encoding="utf-8").splitlines()):
        hours[row["SubAccountName"]] += float(row["ConsumedQuantity"])
    assert hours["audio"] == pytest.approx(2.0)
    [past] = json.loads(lab.run("history", "-o", "json").stdout)["nights"]
    assert sum(hours.values()) == pytest.approx(past["gpu_hours"], abs=0.01), "none is lost"


def test_fair_share_counts_the_hours_of_each_owners_jobs(lab: Lab, night: str) -> None:
    queue: Any = json.loads(lab.run("queue", "--policy", night, "-o", "json").stdout)
    week = {team["team"]: team["gpu_hours_week"] for team in queue["teams"]}
    assert week["audio"] == pytest.approx(2.0)
    assert week["vision"] == pytest.approx(6.0, abs=0.1)
