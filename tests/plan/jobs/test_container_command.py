"""The command lines of container runtimes, word by word as the documentation of each has them."""

from __future__ import annotations

import shlex
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.jobs.container_command import checkpoint_words, run_words
from gpuops.extras.jobs.job import ArrayTask, ContainerJob, ContainerRuntime, Mount

IMAGE = "quay.io/lab/fit@sha256:" + "0" * 64


def job(runtime: ContainerRuntime, *command: str, **options: Any) -> ContainerJob:
    command_line = command or ("python", "fit.py")
    return ContainerJob("fit", IMAGE, command_line, "a40-8q", 4, 8192, timedelta(hours=1), runtime=runtime, **options)


def test_podman_as_its_manual_page_and_that_of_nvidia_have_it() -> None:
    """https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html: `podman run --rm
    --device nvidia.com/gpu=all --security-opt=label=disable ubuntu nvidia-smi -L`; podman-run(1): `podman run [options]
    image [command [arg ...]]`, `--mount type=bind,source=/path/on/host,destination=/path/in/container`, `readonly`."""
    mounts = (Mount("/data/in", "/in"), Mount("/data/out", "/out", writable=True))
    assert list(run_words(job(ContainerRuntime.PODMAN, mounts=mounts))) == [
        *("podman", "run", "--rm", "--name", "gpuops-fit", "--device", "nvidia.com/gpu=all"),
        *("--security-opt=label=disable", "--security-opt=no-new-privileges", "--cap-drop=all", "--read-only"),
        *("--network=none", "--mount", "type=bind,source=/data/in,destination=/in,readonly"),
        *("--mount", "type=bind,source=/data/out,destination=/out", "--shm-size", "4096m", IMAGE, "python", "fit.py"),
    ]


def test_docker_as_its_reference_has_it() -> None:
    """https://docs.docker.com/reference/cli/docker/container/run/: `docker run -it --rm --gpus all ubuntu nvidia-smi`,
    `--read-only`, `--mount type=bind,source=,target=,readonly`; https://docs.docker.com/engine/storage/tmpfs/: `docker
    run --tmpfs <mount-path>[:opts]`, `exec`; https://docs.docker.com/engine/network/drivers/none/: `docker run --rm
    --network none`."""
    assert list(run_words(job(ContainerRuntime.DOCKER, mounts=(Mount("/data/in", "/in"),)))) == [
        *("docker", "run", "--rm", "--name", "gpuops-fit", "--gpus", "all", "--security-opt", "no-new-privileges"),
        *("--cap-drop", "ALL", "--read-only", "--tmpfs", "/tmp:exec", "--network", "none"),
        *("--mount", "type=bind,source=/data/in,target=/in,readonly", "--shm-size", "4096m", IMAGE, "python", "fit.py"),
    ]


def test_apptainer_as_its_manual_page_has_it() -> None:
    """https://apptainer.org/docs/user/latest/cli/apptainer_run.html: `apptainer run [run options...] <container>
    [args...]`, `docker://*`, `-B, --bind`: `src[:dest[:opts]]`, `--no-eval`: "do not shell evaluate env vars or OCI
    container CMD/ENTRYPOINT/ARGS"; networking.html: `--net --network none`, "the only network configuration that can be
    used by non-privileged users"."""
    mounts = (Mount("/data/in", "/in"), Mount("/data/out", "/out", writable=True))
    assert list(run_words(job(ContainerRuntime.APPTAINER, mounts=mounts))) == [
        *("apptainer", "run", "--no-eval", "--nv", "--containall", "--no-privs", "--net", "--network", "none"),
        *("--bind", "/data/in:/in:ro", "--bind", "/data/out:/out:rw"),
        *(f"docker://{IMAGE}", "python", "fit.py"),
    ]


@pytest.mark.parametrize("runtime", list(ContainerRuntime))
def test_a_job_with_a_network_has_never_that_of_the_guest_by_an_option(runtime: ContainerRuntime) -> None:
    words = run_words(job(runtime, network=True))
    assert not [word for word in words if word.startswith(("--net", "--privileged", "--cap-add", "--pid", "--ipc"))]


@pytest.mark.parametrize("runtime", [ContainerRuntime.PODMAN, ContainerRuntime.DOCKER])
def test_a_checkpoint_is_run_in_the_container(runtime: ContainerRuntime) -> None:
    """podman-exec(1), docker container exec: `exec [options] container command [arg ...]`."""
    assert checkpoint_words(job(runtime)) == ()
    assert checkpoint_words(job(runtime, checkpoint=("./save", "--now"))) == (
        *(runtime.value, "exec", "gpuops-fit", "./save", "--now"),
    )


@pytest.mark.parametrize("runtime", list(ContainerRuntime))
def test_one_that_goes_on_is_told_so_before_its_image_and_has_its_own_name(runtime: ContainerRuntime) -> None:
    """podman-run(1), docker run: `--env NAME=VALUE`; apptainer, environment_and_metadata.html: `APPTAINERENV_NAME`."""
    words = run_words(job(runtime), "gpuops-fit-2", resumed=True)
    if runtime is ContainerRuntime.APPTAINER:
        assert words[:3] == ("env", "APPTAINERENV_GPUOPS_JOB_RESUMED=1", "apptainer")
    else:
        assert words[-5:] == ("--env", "GPUOPS_JOB_RESUMED=1", words[-3], "python", "fit.py") and IMAGE in words[-3]
    assert ("gpuops-fit-2" in words) is (runtime is not ContainerRuntime.APPTAINER)
    assert not {"--env", "env"} & {*run_words(job(runtime))}


@pytest.mark.parametrize("runtime", [ContainerRuntime.PODMAN, ContainerRuntime.DOCKER])
def test_environment_secrets_shared_memory_and_directory_of_a_task(runtime: ContainerRuntime) -> None:
    """podman-run(1), docker run: `--shm-size`, `--workdir`, `--env`; Slurm, job_array.html: SLURM_ARRAY_TASK_ID."""
    task = job(
        runtime, env={"LR": "a=b,c", "SLURM_ARRAY_TASK_ID": "x"}, secrets={"HF_TOKEN": "/etc/token"}, shm_mib=2048,
        workdir="/work", task=ArrayTask("fit", 3, 8),
    )  # fmt: skip
    words = run_words(task, secrets="/root/.gpuops-jobs/fit-3-1-1/secrets")
    text = " ".join(words)
    assert "source=/root/.gpuops-jobs/fit-3-1-1/secrets/HF_TOKEN," in text and "=/run/secrets/HF_TOKEN,readonly" in text
    assert "--shm-size 2048m --workdir /work" in text and "/etc/token" not in text
    variables = dict(after.split("=", 1) for word, after in pairwise(words) if word == "--env")
    assert variables == {
        "LR": "a=b,c",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_ARRAY_TASK_COUNT": "8",
        "GPUOPS_ARRAY_INDEX": "3",
        "GPUOPS_ARRAY_SIZE": "8",
    }


def test_the_same_for_apptainer() -> None:
    """apptainer_run.html: `--pwd`, now also `--cwd`; its /dev/shm with `--containall` has no size option."""
    job_of_apptainer = job(ContainerRuntime.APPTAINER, env={"LR": "a=b,c"}, secrets={"T": "/etc/t"}, workdir="/work")
    words = run_words(job_of_apptainer, secrets="/s")
    assert words[:3] == ("env", "APPTAINERENV_LR=a=b,c", "apptainer")
    assert "--bind /s/T:/run/secrets/T:ro --pwd /work docker://" in " ".join(words)


@given(st.sampled_from(ContainerRuntime), st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_whatever_a_command_says_it_is_words_behind_the_image(runtime: ContainerRuntime, command: list[str]) -> None:
    words = run_words(job(runtime, *command))
    assert list(words[-len(command) :]) == command and words[-len(command) - 1].endswith(IMAGE)
    assert words[: -len(command)] == run_words(job(runtime, "x"))[:-1], "nothing before it depends on it"
    assert shlex.split(shlex.join(words)) == list(words)
