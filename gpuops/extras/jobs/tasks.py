"""Tasks about jobs in containers, which nights run. The modules `gpu_job` and `gpu_job_info` call them."""

from __future__ import annotations

from pathlib import Path

from gpuops.api import Site
from gpuops.errors import UsageError
from gpuops.extras.jobs.job_queue import (
    job_cancel,
    job_queue,
    job_submission_foreseen,
    job_submit,
    jobs_to_cancel,
)
from gpuops.extras.jobs.jobs_file import load_jobs
from gpuops.extras.jobs.submitted_view import JobListDocument, JobSubmitDocument, SubmittedJobRecord
from gpuops.model.nights.rotation_policy import Policy
from gpuops.report.document import Document
from gpuops.tasks.perform import PARTLY, REFUSED, TaskResult, difference, reading, task_result
from gpuops.tasks.task_connection import ConnectionArguments, open_site, policy_of


def gpu_job(
    connection: ConnectionArguments, state: str, file: str | None, name: str | None, policy: str | None, *, apply: bool
) -> TaskResult:
    """Submit the jobs of a file, or cancel the job or array of a name.

    Raises UsageError for an invalid file or arguments that do not fit `state`, and the errors of `gpuops job`.
    """
    submitted = state == "submitted"
    if submitted is (file is None):  # a file without state=submitted, or state=submitted without a file
        raise UsageError(
            "state=submitted needs a file of jobs, state=cancelled the name of one", hint="see templates/jobs.yaml"
        )
    jobs = load_jobs(Path(file).expanduser()) if file is not None else ()
    rules = policy_of(policy)
    site, warnings = open_site(connection)
    with site:
        if not submitted:
            return _cancel_job(str(name), site=site, apply=apply, warnings=warnings)
        submission = (job_submit if apply else job_submission_foreseen)(jobs, site, rules)
        document = JobSubmitDocument.of_submission(submission, site.vcenter.uuid)
    reasons = [rejection.line for rejection in submission.rejections]
    diff = [difference(record.job.name, "", "waits for a night\n") for record in submission.added if not reasons]
    fields = {"changed": bool(diff), "diff": diff, "jobs": [*document.submitted, *document.there]}
    return task_result(fields, submission.exit_code, reasons, warnings, REFUSED if reasons else "")


@reading
def gpu_job_info(site: Site, name: str | None = None, policy: Policy | None = None) -> Document:
    """Return the jobs of a vCenter in the order in which they are served, or those of this name, which may be none."""
    jobs = JobListDocument.of_listing(job_queue(site, policy), site.vcenter.uuid).jobs
    return {"jobs": [job for job in jobs if name in (None, job.name, job.array, str(job.number))]}


def _cancel_job(name: str, *, site: Site, apply: bool, warnings: list[str]) -> TaskResult:
    """Cancel the job with this name, or the tasks of the array; running jobs save their state first.

    Exit code 4 if a VM does not answer or a checkpoint failed. Without `apply` nothing is changed.
    """
    jobs_before = jobs_to_cancel(name, site)
    jobs, deeds = job_cancel(name, site) if apply else (jobs_before, ())
    problem_by_job = {deed.job.job.name: deed.what for deed in deeds if deed.failed}
    diff = []
    for before, after in zip(jobs_before, jobs, strict=True):
        if not before.ended and (not apply or after.records != before.records):
            end = f"{after.state}\n" if apply else "cancelled\n"
            diff.append(difference(after.job.name, f"{before.state}\n", end))
        if apply and not after.ended:
            problem_by_job.setdefault(
                after.job.name, "its VM does not answer: the next gpuops job run that reaches it cancels it"
            )
    fields = {"changed": bool(diff), "diff": diff, "jobs": [SubmittedJobRecord.made_of(job) for job in jobs]}
    reasons = [f"{job}: {reason}" for job, reason in problem_by_job.items()]
    return task_result(fields, 4 if problem_by_job else 0, reasons, warnings, PARTLY)
