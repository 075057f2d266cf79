"""Tasks about jobs in containers, which nights run. The modules `gpu_job` and `gpu_job_info` call them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.tasks.connection import ConnectionArguments, open_site
from gpuops.tasks.result import TaskResult, reasons_line

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.model.nights.rotation import Policy
    from gpuops.report.document import Document


def gpu_job(
    connection: ConnectionArguments,
    *,
    submitted: bool,
    file: str | None = None,
    name: str | None = None,
    policy: str | None = None,
    apply: bool,
) -> TaskResult:
    """The jobs of that file, submitted; or the job of that name, cancelled.

    Raises UsageError for a file, or options that mean nothing, and whatever `gpuops job` raises.
    """
    from gpuops.config.jobs_file import load_jobs
    from gpuops.errors import UsageError

    if submitted is (file is None):
        raise UsageError(
            "state=submitted needs a file of jobs, state=cancelled the name of one", hint="templates/jobs.yaml is one"
        )
    jobs = load_jobs(Path(file).expanduser()) if file is not None else ()
    rules = _policy(policy)
    site, warnings = open_site(connection)
    with site:
        if not submitted:
            return _cancelled(str(name), site=site, apply=apply, warnings=warnings)
        from gpuops.api.job_queue import job_submission_foreseen, job_submit
        from gpuops.report.document import as_values
        from gpuops.report.workloads.submitted_jobs import JobSubmitDocument

        found = (job_submit if apply else job_submission_foreseen)(jobs, site, rules)
        document = as_values(JobSubmitDocument.of_submission(found, site.vcenter.uuid))
    reasons = [each.line for each in found.rejections]
    added = [each.job.name for each in found.added] if not reasons else []
    return TaskResult(
        {
            "changed": bool(added),
            "diff": [_difference(each, "", "waits for a night\n") for each in added],
            "reasons": reasons,
            "jobs": [*document["submitted"], *document["there"]],
        },
        found.exit_code,
        reasons_line(reasons, "refused, nothing changed") if reasons else "",
        tuple(warnings),
    )


def gpu_job_info(connection: ConnectionArguments, *, name: str | None = None, policy: str | None = None) -> TaskResult:
    """The jobs of a vCenter in the order in which they are served, or those of this name, which may be none."""
    from gpuops.api.job_queue import job_queue
    from gpuops.report.document import as_values
    from gpuops.report.workloads.submitted_jobs import JobListDocument

    rules = _policy(policy)
    site, warnings = open_site(connection)
    with site:
        document = as_values(JobListDocument.of_listing(job_queue(site, rules), site.vcenter.uuid))
    jobs = [each for each in document["jobs"] if name in (None, each["name"], str(each["number"]))]
    return TaskResult({"changed": False, "jobs": jobs}, warnings=tuple(warnings))


def _policy(file: str | None) -> Policy | None:
    from gpuops.config.policy import load_policy

    return load_policy(Path(file).expanduser()) if file is not None else None


def _cancelled(name: str, *, site: Site, apply: bool, warnings: list[str]) -> TaskResult:
    """One that runs saves its state first; exit code 4 where its VM did not answer, or its checkpoint failed."""
    from gpuops.api.job_queue import job_called, job_cancel, job_to_cancel
    from gpuops.report.document import as_values
    from gpuops.report.workloads.submitted_jobs import SubmittedJobRecord

    before = job_called(name, site)
    after, deeds = job_cancel(name, site) if apply else (job_to_cancel(name, site), ())
    changed = not before.ended and (not apply or after.state is not before.state or after.records != before.records)
    wrong = [deed.what for deed in deeds if deed.failed]
    if apply and not after.ended and not wrong:
        wrong = ["its VM does not answer: it is cancelled by the next pass that reaches it"]
    reasons = [f"{after.job.name}: {each}" for each in wrong]
    end = f"{after.state}\n" if apply else "cancelled\n"
    return TaskResult(
        {
            "changed": changed,
            "diff": [_difference(after.job.name, f"{before.state}\n", end)] if changed else [],
            "reasons": reasons,
            "jobs": [as_values(SubmittedJobRecord.made_of(after))],
        },
        4 if wrong else 0,
        reasons_line(reasons, "partly done") if wrong else "",
        tuple(warnings),
    )


def _difference(job: str, before: str, after: str) -> Document:
    return {"before_header": job, "after_header": job, "before": before, "after": after}
