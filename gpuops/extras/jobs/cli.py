"""`gpuops job`: plans and submits jobs in containers, and looks after those that nights run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, PolicyFile
from gpuops.console.spread import reads_sites, spread
from gpuops.errors import UsageError, report_exit_code
from gpuops.extras.jobs.job import ContainerJob, ContainerRuntime, JobState

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name or number of the job.")]
_FOLLOW_INTERVAL_S: Final = 5.0


@spread
def job_submit(
    common: CommonOptions,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The command, word by word.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Jobs: templates/jobs.yaml.")
    ] = None,
    policy: Annotated[Path | None, PolicyFile] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Image with its registry: quay.io/lab/train:2.")
    ] = None,
    profile: Annotated[str | None, typer.Option(metavar="NAME", help="vGPU profile, such as a40-12q.")] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Run time with the GPU alone: 3h, 90m or 1h30m.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the job; default: that of the image.")
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(metavar="OWNER", help="Owner whose quota it counts for; default: the one you may submit for."),
    ] = None,
    vcpu: Annotated[int | None, typer.Option(metavar="N", help="vCPUs that the job needs; default: 4.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that the job needs; default: 16GiB.")
    ] = None,
    mount: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR[:DIR][:rw]", help="Mount this directory of the guest into the container. May be repeated."
        ),
    ] = None,
    runtime: Annotated[
        ContainerRuntime | None, typer.Option(help="Program that runs the container; default: podman.")
    ] = None,
    network: Annotated[bool, typer.Option("--network", help="Let the container use the network.")] = False,
    priority: Annotated[int | None, typer.Option(metavar="N", help="Among jobs of its owner; default: 0.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Command, run in the container, that saves the state of the job."),
    ] = None,
    resumes: Annotated[
        int | None, typer.Option(metavar="N", help="How often the job may be resumed; default: 0.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="vGPUs of that profile in its VM; default: 1.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment variable. May be repeated.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE", help="File of job run's machine; content in /run/secrets/NAME. May be repeated."
        ),
    ] = None,
    shm: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size of /dev/shm; default: half of --memory.")
    ] = None,
    workdir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the command starts; default: that of the image.")
    ] = None,
    array: Annotated[
        int | None, typer.Option(metavar="N", help="N jobs that differ in SLURM_ARRAY_TASK_ID: 0 to N - 1.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Job or array that must have finished before. May be repeated."),
    ] = None,
) -> None:
    """Submit jobs for the nights of a policy: those of a file, or one by options. They wait for a night; see job list.

    Mounts, profiles and how many an owner may have are those of the policy; without --policy, of the last night's.
    The same job again, while it has not ended, changes nothing.

    \b
    Examples:
      gpuops job submit --image quay.io/lab/train:2 --profile a40-8q --duration 3h -- python train.py
      gpuops job submit --file templates/jobs.yaml --policy templates/policy.yaml
    """
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.extras.jobs.job_queue import job_submit as submit
    from gpuops.extras.jobs.submitted_view import JobSubmitDocument, submission_text

    options = {
        "image": image, "profile": profile, "run_time": duration, "name": name, "owner": owner, "vcpu": vcpu,
        "memory": memory, "mounts": mount, "runtime": runtime, "network": network or None, "priority": priority,
        "checkpoint": checkpoint, "resumes": resumes, "command": command, "gpus": gpus, "env": env, "secrets": secret,
        "shm": shm, "workdir": workdir, "array": array, "after": after,
    }  # fmt: skip
    jobs = _jobs_to_submit(file, options)
    rules = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        submission = submit(jobs, site, rules)
        vcenter = site.vcenter.uuid
    output.show(submission_text(submission), JobSubmitDocument.of_submission(submission, vcenter))
    output.leave(submission.exit_code)


def _jobs_to_submit(file: Path | None, options: Mapping[str, object]) -> tuple[ContainerJob, ...]:
    """Return the jobs in the file, or those that the options describe.

    Raises UsageError if both or neither are given or an option is invalid, PolicyError for an invalid file.
    """
    import shlex

    from gpuops.extras.jobs.jobs_file import (
        jobs_of_options,
        load_jobs,
        mount_of_option,
        name_of_image,
        option_of_key,
        pairs_of_option,
    )

    if file is not None:
        # an option that was not typed is None, or [] if it takes a list; `--priority 0` is typed, although 0 is false
        given_options = [option_of_key(key) for key, setting in options.items() if setting not in (None, [])]
        if given_options:
            hint = "the file has all settings of its jobs"
            raise UsageError(f"--file and {given_options[0]} exclude each other", hint=hint)
        return load_jobs(file)
    missing = next((key for key in ("image", "profile", "run_time", "command") if not options[key]), None)
    if missing is not None:
        hint = "gpuops job submit --help has an example, or use --file"
        raise UsageError(f"a job needs {option_of_key(missing)}", hint=hint)
    settings: dict[str, Any] = {"vcpu": 4, "memory": "16GiB", "name": name_of_image(str(options["image"]))}
    settings |= {key: setting for key, setting in options.items() if setting not in (None, [])}
    if "mounts" in settings:
        settings["mounts"] = [mount_of_option(mount) for mount in settings["mounts"]]
    for key in {"env", "secrets"} & settings.keys():
        settings[key] = pairs_of_option(settings[key], option_of_key(key))
    if "checkpoint" in settings:
        try:
            settings["checkpoint"] = shlex.split(settings["checkpoint"])
        except ValueError as error:
            raise UsageError(f"--checkpoint: {error}", hint="quote the command as for a shell") from error
    if "runtime" in settings:
        settings["runtime"] = settings["runtime"].value
    return jobs_of_options(settings)


@spread
@reads_sites
def job_list(
    common: CommonOptions,
    policy: Annotated[Path | None, PolicyFile] = None,
) -> None:
    """List submitted jobs: how each is, its place among those that wait, and when its VM is expected to start.

    Without --policy it goes by the policy that the last night ran under. Changes nothing.

    \b
    Examples:
      gpuops job list
      gpuops job list --policy templates/policy.yaml --vcenter sim:vdi
    """
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.extras.jobs.job_queue import job_queue
    from gpuops.extras.jobs.submitted_view import JobListDocument, queue_text

    rules = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        listing = job_queue(site, rules)
        vcenter = site.vcenter.uuid
    output.show(queue_text(listing), JobListDocument.of_listing(listing, vcenter))


@spread
@reads_sites
def job_show(common: CommonOptions, job: JobName) -> None:
    """Show one job: its command, its state, and its history. Reads no guest.

    \b
    Example:
      gpuops job show train
    """
    from gpuops.console.opening import open_site
    from gpuops.extras.jobs.job_queue import job_called
    from gpuops.extras.jobs.submitted_view import JobShowDocument, job_text

    with open_site(common) as site:
        submitted = job_called(job, site)
        vcenter = site.vcenter.uuid
    output.show(job_text(submitted), JobShowDocument.from_attributes(vcenter=vcenter, job=submitted))


@spread
def job_logs(
    common: CommonOptions,
    job: JobName,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show new output until the job has ended, or Ctrl-C.")
    ] = False,
) -> None:
    """Show the newest mebibyte of a job's output. If the job runs, gpuops first reads new output from its guest.

    \b
    Examples:
      gpuops job logs train
      gpuops job logs --follow train
    """
    from gpuops import clock
    from gpuops.api.connection import passwords_of
    from gpuops.console.opening import open_site
    from gpuops.extras.clusters.view import ProgramLines
    from gpuops.extras.jobs.job_queue import job_output
    from gpuops.extras.jobs.submitted_view import JobLogsDocument

    if follow and common.format.is_document:
        raise UsageError("--follow cannot be used with --output", hint="leave out one of them")
    with open_site(common) as site:
        output_part, withheld = job_output(job, site), passwords_of(site)
        if common.format.is_document:
            output.show(
                (),
                JobLogsDocument.of_job(
                    output_part.job, output_part.written, output_part.cut_off, site.vcenter.uuid, withheld
                ),
            )
            return
        log = ProgramLines(withheld)
        if output_part.cut_off:
            _print([f"({output_part.cut_off} bytes before this are not kept)"])
        _print(log.add_output(output_part.written))
        if follow and output_part.job.waits:
            output.note(
                (f"{output_part.job.job.name} waits for a night: gpuops job list says when it is expected to start",)
            )
        for _ in clock.rounds((_FOLLOW_INTERVAL_S,)) if follow else ():
            if output_part.job.state is not JobState.RUNNING:
                break
            before, output_part = output_part, job_output(str(output_part.job.number), site)
            _print(log.add_output(output_part.since(before)))
        _print(log.end())


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@spread
def job_cancel(common: CommonOptions, job: JobName) -> None:
    """Cancel a job, or an array. A running job saves its state by its checkpoint command first, and is then stopped.

    \b
    Examples:
      gpuops job cancel train
      gpuops job cancel sweep-3
    """
    from gpuops.console.opening import open_site
    from gpuops.extras.jobs.job_queue import job_cancel as cancel
    from gpuops.extras.jobs.submitted_view import JobCancelDocument, cancel_text

    with open_site(common) as site:
        cancelled, deeds = cancel(job, site)
        vcenter = site.vcenter.uuid
    document = JobCancelDocument.from_attributes(vcenter=vcenter, job=cancelled[0], jobs=cancelled, deeds=deeds)
    output.show(cancel_text(cancelled, deeds), document)
    is_partly = not all(job.ended for job in cancelled) or any(deed.failed for deed in deeds)
    output.leave(report_exit_code(partly=is_partly))


@spread
def job_run(
    common: CommonOptions,
    policy: Annotated[Path, PolicyFile],
    stop: Annotated[
        bool, typer.Option("--stop", help="Start no job: save the state of all running jobs, and stop them.")
    ] = False,
) -> None:
    """Look after jobs once: start those whose VM tonight has started, keep what they write, end what is over.

    Before the window closes it stops what runs, each after its checkpoint. Let a clock call it every five minutes.
    By day it makes the VMs of the policy's template that jobs lack, and removes those that none needs.

    \b
    Examples:
      gpuops job run --policy templates/policy.yaml
      gpuops job run --policy templates/policy.yaml --stop
    """
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site
    from gpuops.extras.jobs.job_queue import run_jobs
    from gpuops.extras.jobs.submitted_view import JobRunDocument, run_text

    rules = load_policy(policy)
    with open_site(common) as site:
        job_pass = run_jobs(rules, site, stop=stop)
        vcenter = site.vcenter.uuid
    output.show(run_text(job_pass), JobRunDocument.from_attributes(job_pass, vcenter=vcenter))
    output.leave(job_pass.exit_code)


job = VerbTable("job", "Plan and submit jobs in containers, and look after those that nights run.")
job.command("submit")(job_submit)
job.command("list")(job_list)
job.command("show")(job_show)
job.command("logs")(job_logs)
job.command("cancel")(job_cancel)
job.command("run")(job_run)


@job.command("plan")
@spread
@reads_sites
def job_plan(
    common: CommonOptions,
    file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="The jobs: templates/jobs.yaml is one.")],
    policy: Annotated[Path | None, PolicyFile] = None,
    allow_mount: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIRECTORY", help="Mounts may lie in it; default: those of the policy, or none. May be repeated."
        ),
    ] = None,
    commands: Annotated[bool, typer.Option("--commands", help="Show the command line of each container.")] = False,
) -> None:
    """Say how many jobs fit on GPUs at once, where, and how long each then takes. Nothing is started or changed.

    With --policy it is about the next night: its desktops are suspended, and each job has its hours. Exit code 3 when
    a job has no place, mounts what it may not, or needs more nights than it may be resumed for.

    \b
    Examples:
      gpuops job plan --file templates/jobs.yaml --allow-mount /data --vcenter sim:lab
      gpuops job plan --file templates/jobs.yaml --allow-mount /data --commands --vcenter sim:lab
    """
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import open_site, remember
    from gpuops.extras.jobs.job_queue import job_plan as plan
    from gpuops.extras.jobs.jobs_file import load_jobs, mount_path
    from gpuops.extras.jobs.view import JobPlanDocument, jobs_text

    jobs = load_jobs(file)
    mounts = tuple(mount_path(path, "--allow-mount") for path in allow_mount or ())
    night = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        answer = plan(jobs, site, night, mounts)
    remember(common, answer.placements.before)
    output.show(jobs_text(answer, commands=commands), JobPlanDocument.made_of(answer))
    output.leave(answer.exit_code)
