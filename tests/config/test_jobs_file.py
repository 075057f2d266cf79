"""The file of jobs: the one-line error for each wrong value, and that no hostile text gets through."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from gpuops.errors import PolicyError, UsageError
from gpuops.extras.jobs.job import ArrayTask, ContainerJob, ContainerRuntime, Mount
from gpuops.extras.jobs.jobs_file import load_jobs, mount_path, parse_jobs

TEMPLATE: Final = Path(__file__).parents[2] / "templates" / "jobs.yaml"
DIGEST: Final = "sha256:" + "0" * 64
GOOD: Final = """\
version: 1
jobs:
  - name: fit
    image: quay.io/lab/fit:2
    command: [python, fit.py]
    profile: a40-8q
    vcpu: 4
    memory: 16GiB
    run_time: 1h30m
    mounts: [{source: /data/in}]
"""


def test_the_template() -> None:
    jobs = load_jobs(TEMPLATE)
    assert [job.name for job in jobs] == ["fit-1", "fit-2", "fit-3", "fit-4", "score"]
    assert (jobs[0].busy, jobs[0].resumes, jobs[0].checkpoint) == (0.19, 2, ("python", "save.py"))
    assert jobs[0].mounts == (Mount("/data/images", "/data/images"), Mount("/data/fit", "/out", writable=True))
    assert (jobs[4].runtime, jobs[4].run_time) == (ContainerRuntime.APPTAINER, timedelta(minutes=45))


def test_what_is_not_said() -> None:
    assert parse_jobs(GOOD, "x") == (
        ContainerJob(
            *("fit", "quay.io/lab/fit:2", ("python", "fit.py"), "a40-8q", 4, 16384, timedelta(minutes=90)),
            mounts=(Mount("/data/in", "/data/in"),),
        ),
    )


def test_an_array_has_a_job_for_each_index_and_the_other_keys() -> None:
    keys = "\n    ".join(
        [
            "array: 3",
            "env: {LR: '0.1'}",
            "secrets: {TOKEN: /etc/x}",
            "shm: 2g",
            "workdir: /work",
            "after: prep",
            "gpus: 2",
        ]
    )
    jobs = parse_jobs(GOOD.replace("vcpu: 4", f"vcpu: 4\n    {keys}"), "x")
    assert [(job.name, job.task) for job in jobs] == [(f"fit-{at}", ArrayTask("fit", at, 3)) for at in range(3)]
    assert {(*job.env.items(), *job.secrets.items()) for job in jobs} == {(("LR", "0.1"), ("TOKEN", "/etc/x"))}
    assert {(job.shm_mib, job.shm_size_mib, job.workdir, job.after, job.gpus) for job in jobs} == {
        (2048, 2048, "/work", ("prep",), 2)
    }
    [job] = parse_jobs(GOOD, "x")
    assert job.shm_size_mib == 8192, "half of the memory"


@pytest.mark.parametrize(
    "image",
    [
        *("quay.io/fit", "nvcr.io/nvidia/pytorch:25.01-py3", f"registry.example.com:5000/a/b@{DIGEST}"),
        *("localhost/fit", "registry:5000/a"),
    ],
)
def test_images(image: str) -> None:
    [job] = parse_jobs(GOOD.replace("quay.io/lab/fit:2", f'"{image}"'), "x")
    assert job.image == image


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: fit", "name: Fit", "jobs.0.name: should be a name for VMs too"),
        ("name: fit", "name: --privileged", "jobs.0.name: should be a name for VMs too"),
        ("name: fit", 'name: "a;reboot"', "jobs.0.name: should be a name for VMs too"),
        ("quay.io/lab/fit:2", "fit:2", "jobs.0.image: is no image with its registry"),
        ("quay.io/lab/fit:2", "lab/fit", "jobs.0.image: is no image with its registry"),
        ("quay.io/lab/fit:2", '"--privileged"', "jobs.0.image: is no image with its registry"),
        ("quay.io/lab/fit:2", '"-v.io/a"', "jobs.0.image: is no image with its registry"),
        ("quay.io/lab/fit:2", '"quay.io/a $(reboot)"', "jobs.0.image: is no image with its registry"),
        ("quay.io/lab/fit:2", '"quay.io/a\\e[2J"', "jobs.0.image: is no image with its registry"),
        ("quay.io/lab/fit:2", '"quay.io/a\\n"', "jobs.0.image: is no image with its registry"),
        ("quay.io/lab/fit:2", f"quay.io/{'a' * 500}", "jobs.0.image: should have 500 characters or fewer"),
        ("quay.io/lab/fit:2", "quay.io/lab/fit@sha256:12", "jobs.0.image: has no digest after @"),
        ("quay.io/lab/fit:2", f"quay.io/lab/fit:2@{DIGEST}", "jobs.0.image: has a tag and a digest"),
        ("[python, fit.py]", "python fit.py", "jobs.0.command: should be a list"),
        ("[python, fit.py]", "[]", "jobs.0.command: should not be an empty list"),
        ("[python, fit.py]", '["a\\e[2J"]', "jobs.0.command.0: has a control character in it"),
        ("[python, fit.py]", '["a\\u202e"]', "jobs.0.command.0: has a control character in it"),
        ("[python, fit.py]", f"[{'a' * 5000}]", "jobs.0.command.0: should have 4096 characters or fewer"),
        ("vcpu: 4", "vcpu: 0", "jobs.0.vcpu: should be 1 or more"),
        ("memory: 16GiB", "memory: 16", "jobs.0.memory: should be text"),
        ("memory: 16GiB", "memory: lots", "jobs.0.memory: 'lots' is not a size of memory"),
        ("run_time: 1h30m", "run_time: 3 days", "jobs.0.run_time: is no time to run"),
        ("run_time: 1h30m", 'run_time: "0h"', "jobs.0.run_time: is no time to run"),
        ("run_time: 1h30m", 'run_time: ""', "jobs.0.run_time: should not be empty"),
        ("vcpu: 4", "vcpu: 4\n    busy: 20", "jobs.0.busy: is above 1"),
        ("vcpu: 4", "vcpu: 4\n    runtime: lxc", "jobs.0.runtime: should be 'podman', 'apptainer' or 'docker'"),
        ("vcpu: 4", "vcpu: 4\n    privileged: true", "jobs.0.privileged: unknown key"),
        ("vcpu: 4", "vcpu: 4\n    resumes: 1", "jobs.0: `resumes` needs `checkpoint`"),
        (
            "vcpu: 4",
            "vcpu: 4\n    runtime: apptainer\n    checkpoint: [a]",
            "jobs.0: `checkpoint` is run in the container",
        ),
        ("/data/in", "data", "jobs.0.mounts.0.source: is not a path for a mount"),
        ("/data/in", "/data/../etc", "jobs.0.mounts.0.source: is not a path for a mount"),
        ("/data/in", "/", "jobs.0.mounts.0.source: is not a path for a mount"),
        ("/data/in", '"/data,readonly=false"', "jobs.0.mounts.0.source: is not a path for a mount"),
        ("/data/in", '"/data:/etc"', "jobs.0.mounts.0.source: is not a path for a mount"),
        ("/data/in", '"/data\\n"', "jobs.0.mounts.0.source: is not a path for a mount"),
        ("/data/in", "/run/docker.sock", "jobs.0.mounts.0.source: is below /run"),
        ("{source: /data/in}", "{source: /a, target: /etc/x}", "jobs.0.mounts.0.target: is below /etc"),
        ("{source: /data/in}", "{source: /a}, {source: /b, target: /a}", "jobs.0: mounts /a twice"),
        ("vcpu: 4", "vcpu: 4\n    count: 65", "jobs.0.count: should be 64 or less"),
        ("vcpu: 4", "vcpu: 4\n    count: 2\n    array: 2", "jobs.0: has `count` and `array`"),
        ("vcpu: 4", "vcpu: 4\n    array: 0", "jobs.0.array: should be 1 or more"),
        ("vcpu: 4", "vcpu: 4\n    gpus: 0", "jobs.0.gpus: should be 1 or more"),
        ("vcpu: 4", "vcpu: 4\n    env: [A]", "jobs.0.env: should have keys of its own"),
        ("vcpu: 4", "vcpu: 4\n    env: {A: 1}", "jobs.0.env.A: should be text"),
        ("vcpu: 4", "vcpu: 4\n    env: {a-b: x}", "jobs.0.env.a-b.[key]: does not have the form"),
        ("vcpu: 4", 'vcpu: 4\n    env: {A: "a\\e[2J"}', "jobs.0.env.A: has a control character in it"),
        ("vcpu: 4", "vcpu: 4\n    secrets: {A: token}", "jobs.0.secrets.A: should be an absolute path"),
        ("vcpu: 4", "vcpu: 4\n    secrets: {A: /x/../y}", "jobs.0.secrets.A: should be an absolute path"),
        ("vcpu: 4", "vcpu: 4\n    secrets: {../A: /x}", "jobs.0.secrets.../A.[key]: does not have the form"),
        ("vcpu: 4", "vcpu: 4\n    shm: 2", "jobs.0.shm: should be text"),
        ("vcpu: 4", "vcpu: 4\n    shm: 17g", "jobs.0: `shm` is 17408 MiB and `memory` only 16384 MiB"),
        ("vcpu: 4", "vcpu: 4\n    shm: 2g\n    runtime: apptainer", "jobs.0: apptainer has no option for `shm`"),
        ("vcpu: 4", "vcpu: 4\n    workdir: work", "jobs.0.workdir: should be an absolute path"),
        ("vcpu: 4", "vcpu: 4\n    after: 3", "jobs.0.after: should be a list"),
        ("vcpu: 4", "vcpu: 4\n    task: {}", "jobs.0.task: unknown key"),
    ],
)
def test_a_wrong_value_is_one_line(old: str, new: str, message: str) -> None:
    with pytest.raises(PolicyError) as refused:
        parse_jobs(GOOD.replace(old, new, 1), "jobs.yaml")
    assert refused.value.message.startswith(f"jobs.yaml: {message}")
    assert refused.value.message.isprintable() and "templates/jobs.yaml" in (refused.value.hint or "")


def test_names_are_there_once_also_counted() -> None:
    entry = GOOD.partition("jobs:\n")[2]
    with pytest.raises(PolicyError, match="two jobs have the name 'fit'"):
        parse_jobs(GOOD + entry, "x")
    numbered = entry.replace("name: fit", "name: fit-2")
    with pytest.raises(PolicyError, match="two jobs have the name 'fit-2'"):
        parse_jobs(GOOD.replace("vcpu: 4", "vcpu: 4\n    count: 2") + numbered, "x")
    many = "".join(entry.replace("name: fit", f"name: n{at}\n    count: 64") for at in range(16))
    with pytest.raises(PolicyError, match="has 1024 jobs in all; 1000 is the maximum"):
        parse_jobs("version: 1\njobs:\n" + many, "x")


def test_a_directory_for_mounts() -> None:
    assert mount_path("/data", "--allow-mount") == "/data"
    for wrong in ("/", "data", "/data/..", "/etc", ""):
        with pytest.raises(UsageError, match="--allow-mount"):
            mount_path(wrong, "--allow-mount")
