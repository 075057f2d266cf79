"""`gpuops job plan` as typed: places, times by what is known, nights, mounts, and that nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.advice.test_size import store_use
from tests.cli.conftest import LAB_POLICY, Lab

TEMPLATE = Path(__file__).parents[3] / "templates" / "jobs.yaml"
PLAN = ("job", "plan", "--file")
JOB = """\
  - name: {name}
    image: quay.io/lab/fit:2
    command: [python, "a b; $(reboot) '"]
    profile: {profile}
    vcpu: 2
    memory: 8GiB
    run_time: 10h
"""


def write_jobs(path: Path, *jobs: str) -> str:
    path.write_text("version: 1\njobs:\n" + "".join(jobs), encoding="utf-8")
    return str(path)


def plan_jobs(lab: Lab, *words: str, code: int = 0) -> dict[str, Any]:
    completed = lab.run(*PLAN, *words, "--output", "json")
    assert completed.exit_code == code, completed.output
    answer: dict[str, Any] = json.loads(completed.stdout)
    assert answer["exit_code"] == code and lab.effects == []
    return answer


def test_the_template(lab: Lab, golden: Callable[[str, str], None]) -> None:
    result = lab.run(*PLAN, str(TEMPLATE), "--allow-mount", "/data", "--commands")
    assert (result.exit_code, result.stderr, lab.effects) == (0, "", [])
    golden("job-plan-lab.txt", result.stdout)


def test_a_job_with_two_gpus_is_on_both_and_as_slow_as_on_the_slower_one(lab: Lab, tmp_path: Path) -> None:
    two = JOB.format(name="two", profile="a40-48c") + "    gpus: 2\n"
    [job] = (answer := plan_jobs(lab, write_jobs(tmp_path / "jobs.yaml", two), "--policy", LAB_POLICY))["jobs"]
    assert (job["gpus"], [gpu["jobs"] for gpu in answer["gpus"]]) == (2, [1, 1])
    assert (job["gpu"], job["takes_s"]) == (answer["gpus"][0]["gpu"], 36_000)


@pytest.mark.long
def test_four_containers_on_quarters_of_a_gpu_take_17_percent_longer(lab: Lab) -> None:
    """VMware, blogs.vmware.com/apps 2018/08 and gpuops/extras/sizing/README.md: 17 % longer, up to 3 times the work."""
    answer = plan_jobs(lab, str(TEMPLATE), "--allow-mount", "/data")
    four = [job for job in answer["jobs"] if job["name"].startswith("fit-")]
    assert len({(job["host"]["name"], job["gpu"]) for job in four}) == 1
    for job in four:
        assert (job["sharers"], job["busy_by"], job["scheduler"]) == (4, "stated", "best-effort")
        assert job["slowdown"]["best-effort"] == pytest.approx(1.17, abs=0.01)
        assert job["takes_s"] == pytest.approx(3 * 3600 * job["slowdown"]["best-effort"])
    assert 4 / four[0]["slowdown"]["best-effort"] > 3
    [gpu] = [gpu for gpu in answer["gpus"] if gpu["jobs"] == 4]
    assert (gpu["most"], gpu["sharers"], gpu["shortest"], gpu["scheduler_known"]) == (4, 4, None, True)
    assert gpu["last_ends_s"]["equal-share"] > gpu["last_ends_s"]["best-effort"]
    [mig] = [job for job in answer["jobs"] if job["name"] == "score"]
    assert set(mig["slowdown"].values()) == {1.0} and mig["takes_s"] == mig["run_time_s"]


@pytest.mark.long
def test_history_comes_before_what_is_stated_and_that_before_the_worst(lab: Lab, tmp_path: Path) -> None:
    store_use(lab, 8, {"vdi-07": 30})
    entry = JOB.format(name="a", profile="a40-12q")
    file = write_jobs(
        tmp_path / "jobs.yaml",
        entry + "    busy: 0.9\n    like: vdi-07\n",
        JOB.format(name="b", profile="a40-12q") + "    busy: 0.9\n    like: ml-07\n",
        JOB.format(name="c", profile="a40-12q"),
    )
    busy_by_name = {job["name"]: (job["busy"], job["busy_by"]) for job in plan_jobs(lab, file)["jobs"]}
    assert busy_by_name["a"] == (pytest.approx(0.3, abs=0.01), "history")
    assert (busy_by_name["b"], busy_by_name["c"]) == ((0.9, "stated"), (1.0, "assumed"))


@pytest.mark.long
def test_vms_that_run_there_anyway_count(lab: Lab, tmp_path: Path) -> None:
    file = write_jobs(tmp_path / "jobs.yaml", JOB.format(name="a", profile="a40-8q") + "    busy: 0.5\n")
    answer = plan_jobs(lab, file)
    [job] = answer["jobs"]
    beside = sum(answer["beside"].values())
    assert job["sharers"] == 1 + beside
    assert beside > 0 and job["slowdown"]["best-effort"] > 1.3, "of them nothing is known: always busy"
    text = lab.run(*PLAN, file).stdout
    assert f"on these GPUs anyway; without a history, and counted as always busy: {beside}" in text


@pytest.mark.long
def test_a_night_has_its_hours_and_its_desktops(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    hours = 'windows:\n  - {opens: "20:00", closes: "04:00", zone: UTC}\n'
    text = Path(LAB_POLICY).read_text(encoding="utf-8")
    assert "windows: any" in text
    policy.write_text(text.replace("windows: any", hours.rstrip()), encoding="utf-8")
    save = "    busy: 0.5\n    checkpoint: [save]\n    resumes: {}\n"
    entry = JOB.format(name="a", profile="a40-48q")
    file = write_jobs(tmp_path / "jobs.yaml", entry + save.format(1))
    answer = plan_jobs(lab, file, "--policy", str(policy))
    [job] = answer["jobs"]
    assert answer["desktops"] > 0 and (job["nights"], job["too_long"]) == (2, False)
    assert (answer["night"]["opens"][11:16], answer["night"]["closes"][11:16]) == ("20:00", "04:00")
    write_jobs(tmp_path / "jobs.yaml", entry + save.format(0))
    assert plan_jobs(lab, file, "--policy", str(policy), code=3)["jobs"][0]["too_long"] is True
    plan = lab.run(*PLAN, file, "--policy", str(policy))
    assert (
        "too long: a: takes 10 h 00 min, a night has 8 h 00 min: 2 nights, and it may be resumed 0 times" in plan.stdout
    )
    at_any_time = plan_jobs(lab, file, "--policy", str(LAB_POLICY))
    assert (at_any_time["night"], at_any_time["jobs"][0]["nights"]) == (None, None)


@pytest.mark.long
def test_more_fit_when_desktops_are_suspended(lab: Lab, tmp_path: Path) -> None:
    jobs = (JOB.format(name=f"a-{at}", profile="a40-48q") for at in range(6))
    file = write_jobs(tmp_path / "jobs.yaml", *jobs)
    now = plan_jobs(lab, file, code=3)
    night = plan_jobs(lab, file, "--policy", str(LAB_POLICY), code=3)
    assert 0 < len(now["jobs"]) < len(night["jobs"])
    assert len(night["jobs"]) + len(night["without_place"]) == 6
    assert all(job["rejections"] for job in night["without_place"])


@pytest.mark.long
def test_mounts_are_those_that_are_allowed(lab: Lab, tmp_path: Path) -> None:
    entry = JOB.format(name="a", profile="a40-8q") + "    mounts: [{source: /data-2/x}]\n"
    file = write_jobs(tmp_path / "jobs.yaml", entry)
    [wrong] = plan_jobs(lab, file, code=3)["forbidden"]
    assert wrong == {"name": "a", "reason": "mounts /data-2/x: no mounts are allowed"}
    [wrong] = plan_jobs(lab, file, "--allow-mount", "/data", code=3)["forbidden"]
    assert wrong["reason"] == "mounts /data-2/x: mounts may lie in /data"
    assert plan_jobs(lab, file, "--allow-mount", "/data", "--allow-mount", "/data-2")["forbidden"] == []
    policy = tmp_path / "policy.yaml"
    rules = '\nml:\n  jobs: {vms: ["job-*"], mounts: [/data-2]}\n'
    policy.write_text(Path(LAB_POLICY).read_text(encoding="utf-8").replace("\nml:\n", rules, 1), encoding="utf-8")
    plan = lab.run(*PLAN, file, "--policy", str(policy), "--output", "json")
    assert json.loads(plan.stdout)["forbidden"] == [], "those of the policy, as for job submit"
    refusal = lab.run(*PLAN, file, "--allow-mount", "../x")
    assert (refusal.exit_code, refusal.stdout) == (2, "") and refusal.stderr.startswith(
        "error: --allow-mount '../x': is not a path"
    )


@pytest.mark.long
def test_a_command_is_quoted_where_it_is_shown(lab: Lab, tmp_path: Path) -> None:
    file = write_jobs(tmp_path / "jobs.yaml", JOB.format(name="a", profile="a40-8q"))
    [job] = plan_jobs(lab, file)["jobs"]
    assert job["command"][-2:] == ["python", "a b; $(reboot) '"]
    plan = lab.run(*PLAN, file, "--commands").stdout
    assert """quay.io/lab/fit:2 python 'a b; $(reboot) '"'"''""" in plan


@pytest.mark.long
@pytest.mark.parametrize(
    ("keys", "code", "reason"),
    [
        ("    like: nobody\n", 2, "nobody"),
        ("    privileged: true\n", 2, "jobs.0.privileged: unknown key"),
    ],
)
def test_a_mistake_is_one_line(lab: Lab, tmp_path: Path, keys: str, code: int, reason: str) -> None:
    refusal = lab.run(*PLAN, write_jobs(tmp_path / "jobs.yaml", JOB.format(name="a", profile="a40-8q") + keys))
    assert (refusal.exit_code, refusal.stdout) == (code, "")
    assert reason in refusal.stderr.splitlines()[0]


@pytest.mark.long
def test_a_profile_that_nobody_offers_has_its_reasons(lab: Lab, tmp_path: Path) -> None:
    answer = plan_jobs(lab, write_jobs(tmp_path / "jobs.yaml", JOB.format(name="a", profile="h900-1q")), code=3)
    [refused] = answer["without_place"]
    assert (answer["jobs"], refused["name"]) == ([], "a") and refused["rejections"]


@pytest.mark.long
def test_who_gets_a_vm_of_the_policy_or_one_of_its_template(lab: Lab, tmp_path: Path) -> None:
    """ml-06 is there and fits; of the template two may be made, and one of that profile is nowhere to be placed."""
    text = Path(LAB_POLICY).read_text(encoding="utf-8")
    policy = tmp_path / "policy.yaml"
    rules = "{vms: [ml-06], relocate: true, template: {name: golden, at_most: 2, prefix: job-}}"
    text = text.replace("    - vm: ml-06\n      relocate: true\n", "")
    policy.write_text(text.replace("\nml:\n", f"\nml:\n  jobs: {rules}\n", 1), encoding="utf-8")
    jobs = [JOB.format(name=f"j{number}", profile="a40-48c").replace("10h", "1h") for number in range(1, 5)]
    file = write_jobs(tmp_path / "jobs.yaml", *jobs)
    plan = lab.run(*PLAN, file, "--policy", str(policy), "--output", "json")
    room = json.loads(plan.stdout)["vms"]
    assert (room["template"], room["there"], room["of_template"]) == ("golden", ["j1"], ["j2", "j3"])
    [waits] = room["without"]
    assert waits["name"] == "j4" and "at most 2 are made" in waits["reason"]
    plan_text = lab.run(*PLAN, file, "--policy", str(policy)).stdout
    assert "of 4 jobs 1 get one that is there, 2 one of template golden" in plan_text
    assert "j4 waits: no VM of template golden is left for it" in plan_text
    assert json.loads(lab.run(*PLAN, file, "--output", "json").stdout)["vms"] is None
    policy.write_text(policy.read_text(encoding="utf-8").replace("name: golden", "name: gold"), encoding="utf-8")
    wrong = lab.run(*PLAN, file, "--policy", str(policy))
    assert wrong.exit_code == 2 and "gold" in wrong.stderr and lab.effects == []
