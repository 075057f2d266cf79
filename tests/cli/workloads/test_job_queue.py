"""`gpuops job submit`, `list`, `show`, `logs` and `cancel` as typed, on jobs that wait; and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpuops import clock
from gpuops.cli.app import app
from gpuops.execute.journal.journal import os_user
from gpuops.extras.jobs import job_queue
from gpuops.extras.jobs.job import JobEvent, JobRecord, SubmittedJob
from gpuops.extras.jobs.job_queue import JobOutput
from gpuops.model.workloads.job_rules import JobQuota, JobRules
from tests.cli.conftest import LAB_POLICY, Lab
from tests.execute.jobs.test_job_run import FIT, NOW

OPTIONS = ("--image", "quay.io/lab/train:2", "--profile", "a40-8q", "--duration", "3h")
COMMAND = ("--", "python", "a b; $(reboot) '\x1b[31m'")


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """That of the lab, whose ML VMs run jobs."""
    text = Path(LAB_POLICY).read_text(encoding="utf-8")
    jobs = 'ml:\n  jobs: {vms: ["job-*"], mounts: [/data], quotas: {vision: {waiting: 2}}}\n'
    assert "\nml:\n" in text
    path = tmp_path / "policy.yaml"
    path.write_text(text.replace("ml:\n", jobs, 1), encoding="utf-8")
    return str(path)


def pairs(words: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(words[::2], words[1::2], strict=True))


def submit(lab: Lab, *words: str, command: tuple[str, ...] = ("--", "run")) -> Result:
    """`gpuops job submit`, with the command behind all options."""
    return CliRunner().invoke(app, ["job", "submit", *words, "--vcenter", f"sim@{lab.ready}", *command])


def submit_json(lab: Lab, policy: str, *words: str, code: int = 0) -> Any:
    options = [word for pair in pairs(OPTIONS) if pair[0] not in words for word in pair]
    submission = submit(lab, *options, "--policy", policy, "--output", "json", *words)
    assert submission.exit_code == code, submission.output
    return json.loads(submission.stdout)


def list_jobs(lab: Lab, *words: str) -> list[dict[str, Any]]:
    listing = lab.run("job", "list", "--output", "json", *words)
    assert listing.exit_code == 0, listing.output
    return list(json.loads(listing.stdout)["jobs"])


def test_a_job_by_options_waits_is_shown_and_cancelled(lab: Lab, policy: str) -> None:
    submission = submit_json(lab, policy, "--owner", "vision", "--mount", "/data/a:/in:rw")
    assert [job_row["name"] for job_row in submission["submitted"]] == ["train"]
    second_submission = submit_json(lab, policy, "--owner", "vision", "--mount", "/data/a:/in:rw")
    assert (second_submission["submitted"], [job_row["number"] for job_row in second_submission["there"]]) == ([], [1])
    [job] = list_jobs(lab, "--policy", policy)
    assert (job["state"], job["place"], job["next_vm"], job["starts_at"]) == ("queued", 1, None, None)
    assert "no VM for jobs has one vGPU a40-8q" in job["why_not"]
    job_page = lab.run("job", "show", "train")
    assert job_page.exit_code == 0 and "quay.io/lab/train:2" in job_page.stdout
    assert lab.run("job", "logs", "1").stdout == ""
    follows = lab.run("job", "logs", "--follow", "1")
    assert (follows.exit_code, follows.stdout) == (0, "") and "train waits for a night" in follows.stderr
    cancelled = lab.run("job", "cancel", "train")
    assert (cancelled.exit_code, cancelled.stdout) == (0, "train: cancelled\n")
    assert lab.run("job", "cancel", "train").exit_code == 0, "once more changes nothing"
    assert [job_row["state"] for job_row in list_jobs(lab)] == ["cancelled"]
    assert lab.effects == []


def test_a_job_that_a_vm_fits_is_told_when_it_is_expected_to_start(lab: Lab, policy: str) -> None:
    text = Path(policy).read_text(encoding="utf-8")
    queued = "    - vm: ml-06\n      relocate: true\n"
    assert queued in text
    text = text.replace(queued, "").replace('vms: ["job-*"]', "relocate: true, vms: [ml-06]")
    Path(policy).write_text(text, encoding="utf-8")
    night = ("rotate", "night", "--dry-run", "--policy", policy)
    assert "power on ml-06" not in lab.run(*night).stdout, "no job waits for it"
    submit_json(lab, policy, "--owner", "vision", "--profile", "a40-48c")
    [job] = list_jobs(lab, "--policy", policy)
    assert (job["next_vm"], job["why_not"], job["starts_at"] is None) == ("ml-06", "", False)
    assert "power on ml-06" in lab.run(*night).stdout
    assert "ml-06" in lab.run("job", "list", "--policy", policy).stdout
    assert lab.run("job", "run", "--policy", policy).exit_code == 0, "its VM is off: nothing to do"
    assert lab.effects == []
    assert lab.run("rotate", "night", "--policy", policy, "--yes").exit_code == 0
    [job] = list_jobs(lab)
    assert job["why_not"] == "the next `job run` starts it in ml-06"


@pytest.mark.long
def test_while_a_night_is_over_the_next_one_is_told(lab: Lab, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.wall_clock()
    text = Path(policy).read_text(encoding="utf-8").replace("    - vm: ml-06\n      relocate: true\n", "")
    text = text.replace('vms: ["job-*"]', "relocate: true, vms: [ml-06]")
    hours = {
        "opens": now - timedelta(hours=1),
        "closes": now + timedelta(hours=8),
        "back_by": now + timedelta(hours=12),
    }
    times = ", ".join(f'{key}: "{at.astimezone(UTC):%H:%M}"' for key, at in hours.items())
    assert "windows: any" in text
    Path(policy).write_text(text.replace("windows: any", f"windows: [{{zone: UTC, {times}}}]", 1), encoding="utf-8")
    submit_json(lab, policy, "--owner", "vision", "--profile", "a40-48c")
    assert lab.run("rotate", "night", "--policy", policy, "--yes").exit_code == 0
    assert lab.run("rotate", "day", "--policy", policy, "--yes").exit_code == 0
    [job] = list_jobs(lab)
    assert job["why_not"] == "" and datetime.fromisoformat(job["starts_at"]) > now + timedelta(hours=12)


@pytest.mark.long
def test_a_file_is_submitted_whole_or_not_at_all(lab: Lab, policy: str) -> None:
    template = str(Path(__file__).parents[3] / "templates" / "jobs.yaml")
    refused = lab.run("job", "submit", "--file", template, "--policy", policy)
    assert refused.exit_code == 3 and "at most 2 allowed, 0 exist, 4 more" in refused.stdout
    assert "score: without an owner: the policy has `quotas` only for vision" in refused.stdout
    assert list_jobs(lab) == []


@pytest.mark.long
def test_an_owner_has_submitters_whose_jobs_need_not_say_it(lab: Lab, policy: str) -> None:
    text = Path(policy).read_text(encoding="utf-8")
    for submitters, code in (("[nobody-here]", 3), (f"[{os_user()}]", 0)):
        Path(policy).write_text(
            text.replace("{waiting: 2}", f"{{waiting: 2, submitters: {submitters}}}"), encoding="utf-8"
        )
        submission = submit_json(lab, policy, "--owner", "vision", "--name", f"said-{code}", code=code)
        assert len(submission["submitted"]) == (code == 0)
    assert "is not one of its submitters" not in str(list_jobs(lab))
    submission = submit_json(lab, policy)
    assert [job["owner"] for job in submission["submitted"]] == ["vision"]


@pytest.mark.long
def test_only_who_may_submit_for_an_owner_or_has_submitted_a_job_cancels_it(
    lab: Lab, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the policy of the last night: that of a file would be whose it is."""
    submit_json(lab, policy, "--owner", "vision", "--name", "fit")
    rules = JobRules((), quotas={"vision": JobQuota(submitters=("ada", "role:vision"))})
    monkeypatch.setattr(job_queue, "_last_rules", lambda site: rules)
    monkeypatch.setattr("gpuops.execute.journal.journal.os_user", lambda: "eve")
    refused = lab.run("job", "cancel", "fit")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (3, 2)
    assert "job fit: owner vision: eve@" in refused.stderr and "ask ada, role:vision, or " in refused.stderr
    assert [job["state"] for job in list_jobs(lab)] == ["queued"]
    monkeypatch.setattr("gpuops.execute.journal.journal.os_user", lambda: "ada")
    assert lab.run("job", "cancel", "fit").exit_code == 0
    monkeypatch.undo()
    submit_json(lab, policy, "--owner", "vision", "--name", "fit")
    monkeypatch.setattr(job_queue, "_last_rules", lambda site: rules)
    assert lab.run("job", "cancel", "fit").exit_code == 0, "any submitter of the owner may"


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--image", "train"), "--image: "),
        (("--duration", "soon"), "--duration: "),
        (("--mount", "/etc/x"), "--mount: "),
        (("--mount", "/a:/b:/c:rw"), "--mount '/a:/b:/c:rw' has too many colons"),
        (("--resumes", "2"), "`resumes` needs `checkpoint`"),
        (("--checkpoint", "save 'x"), "--checkpoint: "),
        (("--file", "x.yaml"), "--file and "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(lab: Lab, policy: str, words: tuple[str, ...], reason: str) -> None:
    options = [word for pair in pairs(OPTIONS) if pair[0] != words[0] for word in pair]
    refusal = submit(lab, *options, *words, "--policy", policy)
    assert refusal.exit_code == 2 and reason in refusal.stderr, refusal.stderr
    assert len(refusal.stderr.splitlines()) == 2, "an error and a next move"


@pytest.mark.parametrize(
    "option", [("--priority", "0"), ("--resumes", "0"), ("--duration", "3h"), ("--mount", "/data"), ("--name", "")]
)
def test_a_file_of_jobs_takes_no_option_of_a_job(lab: Lab, option: tuple[str, str]) -> None:
    refused = lab.run("job", "submit", "--file", "templates/jobs.yaml", *option)
    assert (refused.exit_code, refused.stderr.splitlines()[0]) == (
        2,
        f"error: --file and {option[0]} exclude each other",
    )


@pytest.mark.long
def test_a_job_needs_a_policy_that_lets_it(lab: Lab) -> None:
    refusal = submit(lab, *OPTIONS)
    assert refusal.exit_code == 2 and "no night in the journal" in refusal.stderr
    refusal = submit(lab, *OPTIONS, "--policy", LAB_POLICY)
    assert refusal.exit_code == 2 and "has no `jobs`" in refusal.stderr
    assert lab.run("job", "show", "nobody").exit_code == 2
    refusal = submit(lab, "--image", "quay.io/lab/a:1", "--policy", LAB_POLICY)
    assert refusal.exit_code == 2 and "a job needs --profile" in refusal.stderr


@pytest.mark.long
def test_what_people_typed_is_printed_harmless(lab: Lab, policy: str) -> None:
    refusal = submit(lab, *OPTIONS, "--policy", policy, "--owner", "vision", command=COMMAND)
    assert refusal.exit_code == 2 and "control character" in refusal.stderr and "\x1b" not in refusal.stderr


def test_what_a_job_wrote_is_followed_whole_and_no_password_of_gpuops_is_shown(
    lab: Lab, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may print whatever it finds: its guest is one that others log in to as well."""
    monkeypatch.setenv("GPUOPS_GUEST_USERNAME", "ops")
    monkeypatch.setenv("GPUOPS_GUEST_PASSWORD", "Kept4now")
    submit_json(lab, policy, "--owner", "vision")
    job = SubmittedJob(
        1, FIT, NOW, "a@b", (JobRecord(JobEvent.BEGUN, NOW, vm="vm-1"), JobRecord(JobEvent.STARTED, NOW))
    )
    ended = job.with_record(JobRecord(JobEvent.ENDED, NOW, exit_code=0))
    looks = [
        JobOutput(job, b"old\nepoch 1 \xc3", 0, 13),  # in the midst of a character
        JobOutput(job, b"epoch 1 \xc3\xa4\nlogin Kept", 4, 25),  # the oldest are not kept any more
        JobOutput(ended, b"login Kept4now\nend", 15, 33),
    ]
    monkeypatch.setattr(job_queue, "job_output", lambda name, site: looks.pop(0) if len(looks) > 1 else looks[0])
    monkeypatch.setattr(clock, "pause", lambda seconds: None)
    logs = lab.run("job", "logs", "train", "--follow")
    assert (logs.exit_code, logs.stderr) == (0, "")
    assert logs.stdout == "old\nepoch 1 \u00e4\nlogin [a password of gpuops, withheld]\nend\n"
    document = json.loads(lab.run("job", "logs", "train", "--output", "json").stdout)
    assert document["lines"] == ["login [a password of gpuops, withheld]", "end"]
    assert lab.run("job", "logs", "train", "--follow", "--output", "json").exit_code == 2


def test_an_array_is_listed_in_one_row_and_cancelled_whole_or_by_task(lab: Lab, policy: str) -> None:
    text = Path(policy).read_text(encoding="utf-8").replace("{waiting: 2}", "{}")
    Path(policy).write_text(text, encoding="utf-8")
    submit_json(lab, policy, "--owner", "vision", "--name", "prep")
    words = (
        "--owner",
        "vision",
        "--name",
        "sweep",
        "--array",
        "4",
        "--after",
        "prep",
        "--env",
        "LR=a=b",
        "--shm",
        "2g",
    )
    jobs = submit_json(lab, policy, *words)["submitted"]
    keys = ("name", "array", "array_index", "array_size", "after", "env", "shm_mib", "gpus", "workdir", "secrets")
    assert [[job[key] for key in keys] for job in jobs] == [
        [f"sweep-{at}", "sweep", at, 4, ["prep"], {"LR": "a=b"}, 2048, 1, None, {}] for at in range(4)
    ]
    table = lab.run("job", "list", "--policy", policy).stdout
    assert "2-5  sweep-[0-3]" in table and "sweep-0, sweep-1, sweep-2 and 1 more: starts after prep finished" in table
    assert "sweep, index 2 of 4" in lab.run("job", "show", "sweep-2").stdout
    assert "sweep is an array of 4 jobs" in lab.run("job", "show", "sweep").stderr
    assert lab.run("job", "cancel", "sweep-1").stdout == "sweep-1: cancelled\n"
    assert "2,4-5  sweep-[0,2-3]" in lab.run("job", "list", "--policy", policy).stdout
    passed = json.loads(lab.run("job", "run", "--policy", policy, "--output", "json").stdout)
    assert [job["name"] for job in passed["waiting"]] == ["prep", "sweep-0", "sweep-2", "sweep-3"]
    cancelled = json.loads(lab.run("job", "cancel", "sweep", "--output", "json").stdout)
    assert [job["name"] for job in cancelled["jobs"]] == ["sweep-0", "sweep-2", "sweep-3"]
    assert {job["state"] for job in list_jobs(lab)} == {"queued", "cancelled"}
    refused = submit(lab, *OPTIONS, "--owner", "vision", "--policy", policy, "--name", "last", "--after", "sweep")
    assert refused.exit_code == 3 and "job sweep-0 is cancelled, so this job would never start" in refused.stdout


def test_why_a_job_does_not_start_in_a_vm_that_somebody_has_started(lab: Lab, policy: str) -> None:
    text = Path(policy).read_text(encoding="utf-8").replace('vms: ["job-*"]', "vms: [vdi-03]")
    Path(policy).write_text(text, encoding="utf-8")
    submit_json(lab, policy, "--owner", "vision", "--memory", "8GiB")
    why = "vdi-03 runs already, and no night started it"
    assert f"train: {why}" in lab.run("job", "run", "--policy", policy).stdout
    assert list_jobs(lab, "--policy", policy)[0]["why_not"].startswith(why)
