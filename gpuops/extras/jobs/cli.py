"""`gpuops job`: jobs in containers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.options import CommonOptions, PolicyFile
from gpuops.console.spread import reads_sites, spread
from gpuops.extras.jobs.queue_cli import job_cancel, job_list, job_logs, job_run, job_show, job_submit

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
    from gpuops.extras.jobs.jobs_file import load_jobs, mount_path
    from gpuops.extras.jobs.placing import job_plan as plan
    from gpuops.extras.jobs.view import JobPlanDocument, jobs_text

    jobs = load_jobs(file)
    mounts = tuple(mount_path(path, "--allow-mount") for path in allow_mount or ())
    night = load_policy(policy) if policy is not None else None
    with open_site(common) as site:
        answer = plan(jobs, site, night, mounts)
    remember(common, answer.placements.before)
    output.show(jobs_text(answer, commands=commands), JobPlanDocument.made_of(answer))
    output.leave(answer.exit_code)
