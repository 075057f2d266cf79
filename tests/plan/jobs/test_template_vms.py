"""Which VMs of a template are missing for jobs, and which are unneeded: only ours, and none with a job's files."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, SubmittedJob
from gpuops.extras.jobs.template_vms import MARKER_KEY, JobVmPlan, job_vm_plan, made_vms, marker_for, marker_of
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.job_rules import JobQuota, JobRules, JobTemplate
from tests.plan.snapshots import catalog, gpu, host, inventory, vm

NOW = datetime(2026, 11, 9, 12, 0, tzinfo=UTC)
TEMPLATE = JobTemplate("golden", 2, "job-")
RULES = JobRules(("job-[0-9][0-9]",), template=TEMPLATE)
A40 = "vgpu nvidia_a40-12q"


def job(number: int, *records: JobRecord, **fields: Any) -> SubmittedJob:
    spec = ContainerJob(f"j{number}", "quay.io/lab/fit:2", ("run",), "a40-12q", 2, 4096, timedelta(hours=3), resumes=1)
    return SubmittedJob(number, replace(spec, **fields), NOW, "a@b", records)


def job_vm(number: int, *devices: str, name: str | None = None, of: SubmittedJob | None = None, **fields: Any) -> Vm:
    """A VM of the template, by default for job 1."""
    called = f"job-{number:02}"
    marker = marker_for(called, of or job(1))
    template_vm = vm(number, name or called, "esx-01", *devices, **fields)
    return replace(template_vm, extra_config={MARKER_KEY: marker.text}, template=False, vcpus=4, memory_mib=8192)


def world(*vms: Vm) -> Inventory:
    return inventory([host("esx-01", gpu("0000:3b:00.0", "a40"))], vms)


def plan_vms(jobs: tuple[SubmittedJob, ...], *vms: Vm, rules: JobRules = RULES) -> JobVmPlan:
    return job_vm_plan(jobs, rules, world(*vms), catalog(), NOW)


def unneeded_names(plan: JobVmPlan) -> list[str]:
    return [unneeded_vm.vm.name for unneeded_vm in plan.unneeded]


def record(event: JobEvent, **fields: Any) -> JobRecord:
    return JobRecord(event, NOW, **fields)


def test_each_job_that_lacks_a_vm_gets_one_as_far_as_there_are_places() -> None:
    plan = plan_vms((job(1), job(2), job(3)), job_vm(1, A40))
    assert [(name, new_job.number) for name, new_job in plan.new] == [("job-02", 2)]
    assert plan.waits[3] == "no VM of template golden is left for it: at most 2 are made"
    assert plan_vms((job(1), job(2)), rules=replace(RULES, template=None)) == JobVmPlan()


def test_a_job_that_may_not_run_gets_none() -> None:
    rules = replace(RULES, quotas={"vision": JobQuota(running=1)})
    plan = plan_vms((job(1), job(2, owner="vision"), job(3, owner="vision")), rules=rules)
    assert [new_job.number for _, new_job in plan.new] == [2]


def test_one_without_its_vgpu_is_for_the_first_job_of_its_size() -> None:
    plan = plan_vms((job(1, vcpus=8), job(2)), job_vm(1))
    assert [(bare_vm.name, waiting_job.number) for bare_vm, waiting_job in plan.bare] == [("job-01", 2)]
    assert [(name, new_job.number) for name, new_job in plan.new] == [("job-02", 1)]
    assert plan.unneeded == ()


def test_a_name_that_somebody_has_is_left_out() -> None:
    plan = plan_vms((job(1),), vm(7, "job-01", "esx-01"))
    assert [name for name, _ in plan.new] == ["job-02"]


ENDED = job(1, record(JobEvent.CANCELLED))


@pytest.mark.parametrize(
    "kept_vm",
    [
        job_vm(1, A40, power=PowerState.ON),
        job_vm(1, A40, power=PowerState.SUSPENDED),
        job_vm(1, A40, power=None),
        job_vm(1, A40, snapshots=1),
        job_vm(1, A40, name="job-02"),
        job_vm(1, A40, name="golden-2"),
        job_vm(1, A40, of=replace(ENDED, by="c@d")),
        replace(job_vm(1, A40), template=True),
        replace(job_vm(1, A40), template=None),
        replace(job_vm(1, A40), extra_config={}),
        replace(job_vm(1, A40), extra_config=None),
    ],
)
def test_only_what_is_ours_and_off_is_removed(kept_vm: Vm) -> None:
    assert unneeded_names(plan_vms((ENDED,), job_vm(1, A40))) == ["job-01"]
    assert unneeded_names(plan_vms((ENDED,), kept_vm)) == []


def test_of_two_that_say_the_same_of_themselves_neither_is_ours() -> None:
    copy = replace(job_vm(2, A40), name="job-01", extra_config=job_vm(1).extra_config)
    assert made_vms(TEMPLATE, (ENDED,), world(job_vm(1, A40), copy)) == ()


def test_the_vm_of_a_job_that_goes_on_or_may_run_stays() -> None:
    begun = record(JobEvent.BEGUN, vm=job_vm(1).ref)
    assert unneeded_names(plan_vms((job(1, begun),), job_vm(1, A40))) == []
    stopped = job(1, begun, record(JobEvent.INTERRUPTED), profile="a40-24q")
    assert unneeded_names(plan_vms((stopped,), job_vm(1, A40))) == []
    assert unneeded_names(plan_vms((job(1, begun, record(JobEvent.ENDED, exit_code=0)),), job_vm(1, A40))) == ["job-01"]


def test_kept_ones_give_way_only_to_a_job_that_needs_their_place() -> None:
    rules = replace(RULES, template=replace(TEMPLATE, keep=True))
    kept_vms = (job_vm(1, A40), job_vm(2, A40))
    assert unneeded_names(plan_vms((ENDED,), *kept_vms, rules=rules)) == []
    plan = plan_vms((ENDED, job(2, profile="a40-24q")), *kept_vms, rules=rules)
    assert unneeded_names(plan) == ["job-01"] and [name for name, _ in plan.new] == ["job-01"]


def test_a_marker_is_read_as_it_was_written() -> None:
    assert marker_of(job_vm(1)) == marker_for("job-01", job(1))
    assert marker_for("job-01", job(1)).id != marker_for("job-01", job(2)).id


def test_a_profile_that_means_nothing_keeps_nobody_else_from_a_vm() -> None:
    jobs = (job(1, profile="a40$(id)"), job(2, profile="nothing-8c"), job(3))
    world = inventory([host("esx-01", gpu("0000:3b:00.0", "a40"))], [])
    plan = job_vm_plan(jobs, RULES, world, catalog(), NOW)
    assert [(name, new_job.job.name) for name, new_job in plan.new] == [("job-01", "j3")]
    assert "'a40$(id)'" in plan.waits[1] and "'nothing-8c'" in plan.waits[2]
