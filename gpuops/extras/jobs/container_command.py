"""The command lines that run a job's container in its guest: podman, apptainer, docker. Pure: lists of words.

Each word is an argument of its own: no shell of gpuops reads one. The image is the first word that is no option, and
what follows it belongs to the container. All three have: the GPU, the root file system read-only, no capabilities, no
network unless the job asks for one (never that of the guest under podman and docker), and only the mounts of the job.

Sources of each option, compared word by word in `tests/plan/jobs/test_container_command.py`:
* NVIDIA Container Toolkit, support for CDI, https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/
  cdi-support.html: `podman run --device nvidia.com/gpu=all --security-opt=label=disable`; the label is SELinux's, which
  keeps a container from the GPU's device files. CDI files lie in /etc/cdi or /var/run/cdi.
* podman-run(1), https://docs.podman.io/en/latest/markdown/podman-run.1.html, and that of 4.3: `--read-only` (with
  `--read-only-tmpfs`, its default, /run, /tmp and /var/tmp can be written), `--cap-drop`, `--env`, `--network=none`,
  `--security-opt=no-new-privileges`, `--mount type=bind,source=,destination=,readonly`; podman-exec(1). Podman 4.3 has
  run with all of them (`tests/wire/workloads/test_job_containers.py`).
* Docker, https://docs.docker.com/reference/cli/docker/container/run/: `--gpus all`, `--read-only`, `--cap-drop`,
  `--env`, `--security-opt`, `--network none`, `--mount type=bind,source=,target=,readonly`; `docker container exec`.
  `--tmpfs PATH[:OPTIONS]`, https://docs.docker.com/engine/storage/tmpfs/: without `exec` nothing in it can be run
  (docker/docs issue 8138), but programs that compile for the GPU at run time need that; podman's /tmp allows it.
* Apptainer, https://apptainer.org/docs/user/latest/cli/apptainer_run.html: `--nv` ("enable Nvidia support"),
  `--containall` ("contain not only file systems, but also PID, IPC, and environment"), `--no-privs` ("drop all
  privileges from root user in container"), `--env`, `--bind SRC:DEST:ro`, and `--no-eval`, without which a shell reads
  the arguments once more. Its images are read-only without an option. `--net --network none` may be asked for by every
  user, https://apptainer.org/docs/user/latest/networking.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from gpuops.extras.jobs.job import ContainerJob, ContainerRuntime, Mount

PREFIX = "gpuops-"
"""Prefix of the name of each container."""
RESUMED = "GPUOPS_JOB_RESUMED"
"""The variable that is set if a job continues from its checkpoint."""
SECRETS = "/run/secrets"
"""Directory of secrets in a container, as podman-run(1), `--secret`, and Docker have it."""


def run_words(
    job: ContainerJob, name: str = "", *, resumed: bool = False, secrets: str = "~/.gpuops-jobs/ATTEMPT/secrets"
) -> tuple[str, ...]:
    """Return the words of the command that runs the job in a container until it ends.

    `name`: the name of the container; "" = `gpuops-JOB`. `resumed`: set the variable `GPUOPS_JOB_RESUMED`. `secrets`:
    the guest's directory with the secret files; the default is a placeholder, for a job without an attempt.
    """
    container_name = name or f"{PREFIX}{job.name}"
    variables = _variables(job) | ({RESUMED: "1"} if resumed else {})
    mounts = (*job.mounts, *(Mount(f"{secrets}/{secret}", f"{SECRETS}/{secret}") for secret in job.secrets))
    match job.runtime:
        case ContainerRuntime.PODMAN:
            words = _podman(job, container_name, mounts)
        case ContainerRuntime.DOCKER:
            words = _docker(job, container_name, mounts)
        case ContainerRuntime.APPTAINER:  # has other options for the variables and the workdir, and none for shm
            return (*_apptainer(job, mounts, variables), f"docker://{job.image}", *job.command)
        case _:
            assert_never(job.runtime)
    words += ["--shm-size", f"{job.shm_size_mib}m"]
    words += ["--workdir", job.workdir] if job.workdir is not None else []
    words += [word for variable, text in variables.items() for word in ("--env", f"{variable}={text}")]
    return (*words, job.image, *job.command)


def checkpoint_words(job: ContainerJob, name: str = "") -> tuple[str, ...]:
    """Return the command that saves the state of the running job; () = it has none."""
    return (job.runtime.value, "exec", name or f"{PREFIX}{job.name}", *job.checkpoint) if job.checkpoint else ()


def _variables(job: ContainerJob) -> dict[str, str]:
    """Return the environment of the job. A task of an array has its index, also under the names of Slurm."""
    if job.task is None:
        return dict(job.env)
    index, size = str(job.task.index), str(job.task.size)
    own = {"GPUOPS_ARRAY_INDEX": index, "GPUOPS_ARRAY_SIZE": size}
    return {**job.env, **own, "SLURM_ARRAY_TASK_ID": index, "SLURM_ARRAY_TASK_COUNT": size}


def _podman(job: ContainerJob, name: str, mounts: Sequence[Mount]) -> list[str]:
    words = ["podman", "run", "--rm", "--name", name, "--device", "nvidia.com/gpu=all"]
    words += ["--security-opt=label=disable", "--security-opt=no-new-privileges", "--cap-drop=all", "--read-only"]
    words += [] if job.network else ["--network=none"]
    return words + _mount_words(mounts, "destination")


def _docker(job: ContainerJob, name: str, mounts: Sequence[Mount]) -> list[str]:
    words = ["docker", "run", "--rm", "--name", name, "--gpus", "all"]
    words += ["--security-opt", "no-new-privileges", "--cap-drop", "ALL", "--read-only"]
    words += ["--tmpfs", "/tmp:exec"]  # noqa: S108 - of the container
    words += [] if job.network else ["--network", "none"]
    return words + _mount_words(mounts, "target")


def _mount_words(mounts: Sequence[Mount], target: str) -> list[str]:
    words = list[str]()
    for mount in mounts:
        end = "" if mount.writable else ",readonly"
        words += ["--mount", f"type=bind,source={mount.source},{target}={mount.target}{end}"]
    return words


def _apptainer(job: ContainerJob, mounts: Sequence[Mount], variables: Mapping[str, str]) -> list[str]:
    # not `--env`: it takes a comma in a value for the begin of the next variable
    words = ["env", *(f"APPTAINERENV_{name}={text}" for name, text in variables.items())] if variables else []
    words += ["apptainer", "run", "--no-eval", "--nv", "--containall", "--no-privs"]
    words += [] if job.network else ["--net", "--network", "none"]
    for mount in mounts:
        words += ["--bind", f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"]
    return words + (["--pwd", job.workdir] if job.workdir is not None else [])
