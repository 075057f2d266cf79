"""Jobs as tasks: foreseen, submitted, left as they are the second time, shown and cancelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.errors import Refused, UsageError
from gpuops.extras.jobs.tasks import gpu_job, gpu_job_info
from gpuops.tasks.perform import TaskResult
from tests.tasks.conftest import Lab

pytestmark = pytest.mark.long

JOBS = """version: 1
jobs:
  - {name: fit, image: quay.io/lab/fit:1, command: [python, fit.py], profile: a40-12q, vcpu: 4, memory: 16GiB,
     run_time: 3h, count: 2}
"""
POLICY = (Path(__file__).parents[2] / "gpuops/sim/scenarios/lab-policy.yaml").read_text(encoding="utf-8")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """The jobs, and a policy whose queue takes them."""
    jobs, policy = tmp_path / "jobs.yaml", tmp_path / "policy.yaml"
    jobs.write_text(JOBS, encoding="utf-8")
    policy.write_text(POLICY.replace("\nml:\n", '\nml:\n  jobs: {vms: ["ml-*"]}\n', 1), encoding="utf-8")
    assert "jobs:" in policy.read_text(encoding="utf-8")
    return str(jobs), str(policy)


def submit(lab: Lab, files: tuple[str, str], *, apply: bool = True) -> TaskResult:
    return gpu_job(lab.said, state="submitted", file=files[0], name=None, policy=files[1], apply=apply)


def names(answer: TaskResult) -> list[str]:
    return [job["name"] for job in answer.result["jobs"]]


@pytest.mark.long
def test_check_mode_predicts_and_the_second_run_does_nothing(lab: Lab, files: tuple[str, str]) -> None:
    foreseen = submit(lab, files, apply=False)
    assert gpu_job_info(lab.said).result["jobs"] == []
    submitted = submit(lab, files)
    assert (foreseen.exit_code, submitted.exit_code) == (0, 0), submitted.message
    same = ("changed", "diff", "reasons")
    assert {key: submitted.result[key] for key in same} == {key: foreseen.result[key] for key in same}
    assert submitted.result["changed"] and [diff["after_header"] for diff in submitted.result["diff"]] == [
        "fit-1",
        "fit-2",
    ]
    assert [job["number"] for job in foreseen.result["jobs"]] == [0, 0]
    for repeated in (submit(lab, files, apply=False), submit(lab, files)):
        assert (repeated.result["changed"], repeated.result["diff"], names(repeated)) == (False, [], ["fit-1", "fit-2"])
    assert lab.effects == []


def test_what_the_policy_does_not_let_is_refused_alike_in_check_mode(lab: Lab, files: tuple[str, str]) -> None:
    file = Path(files[0])
    file.write_text(JOBS.replace("run_time: 3h,", "run_time: 3h, mounts: [{source: /secret}],"), encoding="utf-8")
    foreseen, submitted = submit(lab, files, apply=False), submit(lab, files)
    assert foreseen.result == submitted.result and (submitted.exit_code, submitted.result["changed"]) == (3, False)
    assert "/secret" in submitted.result["reasons"][0]
    assert gpu_job_info(lab.said).result["jobs"] == []


def test_another_job_of_that_name_is_refused_alike(lab: Lab, files: tuple[str, str]) -> None:
    submit(lab, files)
    Path(files[0]).write_text(JOBS.replace("fit.py", "other.py"), encoding="utf-8")
    for apply in (False, True):
        with pytest.raises(Refused, match="another job with this name has not ended"):
            submit(lab, files, apply=apply)


def test_one_is_cancelled_once_and_shown(lab: Lab, files: tuple[str, str]) -> None:
    submit(lab, files)
    foreseen = gpu_job(lab.said, state="cancelled", file=None, name="fit-2", policy=None, apply=False)
    assert [job["state"] for job in gpu_job_info(lab.said, name="fit-2").result["jobs"]] == ["queued"]
    cancelled = gpu_job(lab.said, state="cancelled", file=None, name="fit-2", policy=None, apply=True)
    assert (cancelled.result["changed"], cancelled.result["diff"]) == (True, foreseen.result["diff"])
    for apply in (False, True):
        repeated = gpu_job(lab.said, state="cancelled", file=None, name="fit-2", policy=None, apply=apply)
        assert (repeated.exit_code, repeated.result["changed"], repeated.result["diff"]) == (0, False, [])
    jobs = gpu_job_info(lab.said).result["jobs"]
    assert {job["name"]: job["state"] for job in jobs} == {"fit-1": "queued", "fit-2": "cancelled"}
    assert gpu_job_info(lab.said, name="none").result["jobs"] == []


def test_an_array_is_cancelled_whole(lab: Lab, files: tuple[str, str]) -> None:
    Path(files[0]).write_text(JOBS.replace("count: 2", "array: 2"), encoding="utf-8")
    submit(lab, files)
    for apply in (False, True):
        cancelled = gpu_job(lab.said, state="cancelled", file=None, name="fit", policy=None, apply=apply)
        assert (cancelled.result["changed"], len(cancelled.result["diff"])) == (True, 2)
    jobs = gpu_job_info(lab.said, name="fit").result["jobs"]
    assert [(job["name"], job["state"]) for job in jobs] == [("fit-0", "cancelled"), ("fit-1", "cancelled")]


def test_what_means_nothing_is_said(lab: Lab, files: tuple[str, str]) -> None:
    for state, file in (("submitted", None), ("cancelled", files[0])):
        with pytest.raises(UsageError, match="needs a file of jobs"):
            gpu_job(lab.said, state, file, None, None, apply=True)
    with pytest.raises(UsageError, match="no job is called 'none'"):
        gpu_job(lab.said, "cancelled", None, "none", None, apply=True)
