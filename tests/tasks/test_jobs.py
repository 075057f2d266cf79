"""Jobs as tasks: foreseen, submitted, left as they are the second time, shown and cancelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.errors import Refused, UsageError
from gpuops.extras.jobs.tasks import gpu_job, gpu_job_info
from gpuops.tasks.result import TaskResult
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


def names(found: TaskResult) -> list[str]:
    return [each["name"] for each in found.result["jobs"]]


@pytest.mark.long
def test_check_mode_predicts_and_the_second_run_does_nothing(lab: Lab, files: tuple[str, str]) -> None:
    foreseen = submit(lab, files, apply=False)
    assert gpu_job_info(lab.said).result["jobs"] == []
    done = submit(lab, files)
    assert (foreseen.exit_code, done.exit_code) == (0, 0), done.message
    same = ("changed", "diff", "reasons")
    assert {key: done.result[key] for key in same} == {key: foreseen.result[key] for key in same}
    assert done.result["changed"] and [each["after_header"] for each in done.result["diff"]] == ["fit-1", "fit-2"]
    assert [each["number"] for each in foreseen.result["jobs"]] == [0, 0]
    for again in (submit(lab, files, apply=False), submit(lab, files)):
        assert (again.result["changed"], again.result["diff"], names(again)) == (False, [], ["fit-1", "fit-2"])
    assert lab.effects == []


def test_what_the_policy_does_not_let_is_refused_alike_in_check_mode(lab: Lab, files: tuple[str, str]) -> None:
    file = Path(files[0])
    file.write_text(JOBS.replace("run_time: 3h,", "run_time: 3h, mounts: [{source: /secret}],"), encoding="utf-8")
    foreseen, done = submit(lab, files, apply=False), submit(lab, files)
    assert foreseen.result == done.result and (done.exit_code, done.result["changed"]) == (3, False)
    assert "/secret" in done.result["reasons"][0]
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
    assert [each["state"] for each in gpu_job_info(lab.said, name="fit-2").result["jobs"]] == ["queued"]
    done = gpu_job(lab.said, state="cancelled", file=None, name="fit-2", policy=None, apply=True)
    assert (done.result["changed"], done.result["diff"]) == (True, foreseen.result["diff"])
    for apply in (False, True):
        again = gpu_job(lab.said, state="cancelled", file=None, name="fit-2", policy=None, apply=apply)
        assert (again.exit_code, again.result["changed"], again.result["diff"]) == (0, False, [])
    found = gpu_job_info(lab.said).result["jobs"]
    assert {each["name"]: each["state"] for each in found} == {"fit-1": "queued", "fit-2": "cancelled"}
    assert gpu_job_info(lab.said, name="none").result["jobs"] == []


def test_an_array_is_cancelled_whole(lab: Lab, files: tuple[str, str]) -> None:
    Path(files[0]).write_text(JOBS.replace("count: 2", "array: 2"), encoding="utf-8")
    submit(lab, files)
    for apply in (False, True):
        done = gpu_job(lab.said, state="cancelled", file=None, name="fit", policy=None, apply=apply)
        assert (done.result["changed"], len(done.result["diff"])) == (True, 2)
    found = gpu_job_info(lab.said, name="fit").result["jobs"]
    assert [(each["name"], each["state"]) for each in found] == [("fit-0", "cancelled"), ("fit-1", "cancelled")]


def test_what_means_nothing_is_said(lab: Lab, files: tuple[str, str]) -> None:
    for state, file in (("submitted", None), ("cancelled", files[0])):
        with pytest.raises(UsageError, match="needs a file of jobs"):
            gpu_job(lab.said, state, file, None, None, apply=True)
    with pytest.raises(UsageError, match="no job is called 'none'"):
        gpu_job(lab.said, "cancelled", None, "none", None, apply=True)
