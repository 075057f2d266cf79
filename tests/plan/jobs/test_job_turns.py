"""Which job comes next, which VM it gets, and what a policy has against jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, Mount, SubmittedJob
from gpuops.extras.jobs.job_turns import gpus_of_job, job_turns, objections, queue_entries, serving_order, with_owners
from gpuops.model.nights.fair_share import FairShare, Team
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.window import Night
from gpuops.model.workloads.job_rules import JobQuota, JobRules, Submitter
from tests.plan.snapshots import catalog, gpu, host, inventory, vm

NOW = datetime(2026, 11, 9, 20, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
RULES = JobRules(("job-*",), mounts=("/data",))
WHO = Submitter("a", "b")
ENTRY = QueuedVm("job-*", for_jobs=True, minimum_run=timedelta(minutes=15))


def job(number: int, owner: str | None = None, *records: JobRecord, **fields: object) -> SubmittedJob:
    spec = ContainerJob(f"j{number}", "quay.io/lab/fit:2", ("run",), "a40-12q", 2, 4096, 3 * HOUR, owner=owner)
    return SubmittedJob(number, replace(spec, **fields), NOW - HOUR, "a@b", records)  # type: ignore[arg-type]


def world(*names: str) -> Inventory:
    esx = host("esx-01", gpu("0000:3b:00.0", "a40"))
    devices = "vgpu nvidia_a40-12q"
    return inventory([esx], [vm(at, name, "esx-01", devices) for at, name in enumerate((*names, "ml-1"), 1)])


def ran(hours: float, ago: timedelta = timedelta(days=1)) -> tuple[JobRecord, ...]:
    began = NOW - ago
    end = began + hours * HOUR
    return (
        JobRecord(JobEvent.BEGUN, began, vm="gone"),
        JobRecord(JobEvent.STARTED, began),
        JobRecord(JobEvent.ENDED, end, exit_code=0),
    )


def names(jobs: tuple[SubmittedJob, ...]) -> list[str]:
    return [vm_job.job.name for vm_job in jobs]


def test_who_had_less_of_late_is_next_and_priority_counts_among_ones_own() -> None:
    jobs = (
        job(1, "vision", *ran(6)),
        job(2, "vision"),
        job(3, "vision", priority=9),
        job(4, "audio"),
        job(5, "audio"),
    )
    assert names(serving_order(jobs, catalog(), NOW)) == ["j4", "j5", "j3", "j2"]


def test_a_priority_gives_no_advantage_over_an_owner_with_equal_use() -> None:
    jobs = (job(1, "audio"), job(2, "vision"), job(3, "vision", priority=9), job(4, "audio"))
    assert names(serving_order(jobs, catalog(), NOW)) == ["j1", "j3", "j2", "j4"]


def test_a_job_that_waits_for_others_costs_its_owner_no_turn() -> None:
    jobs = (replace(job(1, "vision", priority=9), after=(3,)), job(2, "vision"), job(3, "audio"))
    assert names(serving_order(jobs, catalog(), NOW)) == ["j2", "j3", "j1"]
    turns = {turn.job.number: turn for turn in job_turns(jobs, RULES, world("job-1"), catalog(), NOW)}
    assert (turns[1].vm, turns[1].reason, turns[1].lacks_vm) == (None, "starts after j3 finished", False)


def test_a_weight_of_the_policy_counts() -> None:
    share = FairShare(OwnerKey.parse("by", "tag:team"), teams=(Team("vision", weight=3.0),))
    jobs = (job(1, "audio"), job(2, "vision"), job(3, "vision"), job(4, "vision"), job(5, "audio"))
    assert names(serving_order(jobs, catalog(), NOW, share)) == ["j1", "j2", "j3", "j4", "j5"]
    assert names(serving_order(jobs, catalog(), NOW)) == ["j1", "j2", "j3", "j5", "j4"]


def test_each_job_gets_a_vm_of_its_own_that_it_fits() -> None:
    snapshot = world("job-1", "job-2")
    jobs = (job(1, profile="a40-8q"), job(2), job(3, vcpus=99), job(4), job(5))
    turns = {turn.job.job.name: (turn.vm.name if turn.vm is not None else None) for turn in job_turns(
        jobs, RULES, snapshot, catalog(), NOW)}  # fmt: skip
    assert turns == {"j1": None, "j2": "job-1", "j3": None, "j4": "job-2", "j5": None}
    reasons = {turn.job.job.name: turn.reason for turn in job_turns(jobs, RULES, snapshot, catalog(), NOW)}
    assert "no VM for jobs has one vGPU a40-8q" in reasons["j1"] and "99 vCPUs" in reasons["j3"]
    assert reasons["j5"] == "every VM that it fits has another job"


def test_a_job_with_two_gpus_gets_a_vm_with_two() -> None:
    esx = host("esx-01", gpu("0000:3b:00.0", "a40"), gpu("0000:af:00.0", "a40"))
    vgpu = "vgpu nvidia_a40-48q"
    snapshot = inventory([esx], [vm(1, "job-1", "esx-01", vgpu), vm(2, "job-2", "esx-01", vgpu, vgpu)])
    jobs = (job(1, profile="a40-48q", gpus=2), job(2, profile="a40-48q"), job(3, profile="a40-48q", gpus=3))
    turns = {turn.job.number: turn for turn in job_turns(jobs, RULES, snapshot, catalog(), NOW)}
    assert [turn.vm.name if turn.vm else None for _, turn in sorted(turns.items())] == ["job-2", "job-1", None]
    assert turns[3].reason.startswith("no VM for jobs has 3 vGPUs a40-48q")
    assert gpus_of_job(jobs[0].job, catalog()) == 2.0


def test_why_a_job_waits_for_a_vm_that_no_night_has_started() -> None:
    snapshot = world("job-1")
    [off] = job_turns((job(1),), RULES, snapshot, catalog(), NOW, usable=())
    assert off.reason == "waits until a night starts job-1"
    running = replace(
        snapshot, vms={ref: replace(seen_vm, power=PowerState.ON) for ref, seen_vm in snapshot.vms.items()}
    )
    [on] = job_turns((job(1),), RULES, running, catalog(), NOW, usable=())
    assert on.reason.startswith("job-1 runs already, and no night started it: shut it down")


def test_what_was_interrupted_goes_on_in_its_vm_and_what_may_run_keeps_its_own() -> None:
    snapshot = world("job-1", "job-2")
    by_name = {seen_vm.name: seen_vm for seen_vm in snapshot.vms.values()}
    second = by_name["job-2"].instance_uuid or by_name["job-2"].ref
    first = by_name["job-1"].instance_uuid or by_name["job-1"].ref
    begun = JobRecord(JobEvent.BEGUN, NOW - 20 * HOUR, vm=second, vm_name="job-2")
    stopped = (begun, JobRecord(JobEvent.INTERRUPTED, NOW - 15 * HOUR))
    open_one = JobRecord(JobEvent.BEGUN, NOW - 20 * HOUR, vm=first, vm_name="job-1")
    jobs = (job(1), job(2, None, *stopped, resumes=3), job(3, None, open_one))
    turns = {turn.job.job.name: turn.vm.name if turn.vm else None for turn in job_turns(
        jobs, RULES, snapshot, catalog(), NOW)}  # fmt: skip
    assert turns == {"j3": "job-1", "j1": "job-2", "j2": None}, "j1 has waited longer"
    only = {turn.job.job.name: turn.vm.name if turn.vm else None for turn in job_turns(
        jobs[1:2], RULES, snapshot, catalog(), NOW)}  # fmt: skip
    assert only == {"j2": "job-2"}, "not in job-1, though that comes first"


def test_a_night_is_not_begun_for_a_job_that_it_is_too_short_for() -> None:
    night = Night(NOW.date(), NOW, NOW + 8 * HOUR, NOW + 10 * HOUR, UTC)
    jobs = (job(1), job(2, resumes=1, checkpoint=("s",)), job(3, run_time=90 * HOUR))
    turns = job_turns(jobs, RULES, world("job-1", "job-2", "job-3"), catalog(), NOW)
    queued = queue_entries(turns, ENTRY, RULES, night)
    assert [queued_vm.minimum_run for queued_vm in queued] == [3 * HOUR, timedelta(minutes=15), 8 * HOUR * 0.8]
    assert all(queued_vm.names[0].startswith("moid:") for queued_vm in queued)


def test_quotas_bound_what_waits_and_what_runs() -> None:
    rules = JobRules(
        ("job-*",), mounts=("/data",), quotas={"vision": JobQuota(waiting=2, running=1, profiles=("a40-*",))}
    )
    jobs = tuple(submitted_job.job for submitted_job in (job(1, "vision"), job(2, "vision"), job(3, "vision")))
    assert [objection.available for objection in objections(jobs[:2], rules, (), WHO)] == []
    [owner_objection] = objections(jobs, rules, (), WHO)
    assert "at most 2 allowed, 0 exist, 3 more" in owner_objection.rule
    [stranger] = objections([job(9, "audio").job], rules, (), WHO)
    assert "`quotas` only for vision" in stranger.rule
    [profile] = objections([job(9, "vision", profile="grid_a100-3-20c").job], rules, (), WHO)
    assert "may only use a40-*" in profile.rule
    [mount] = objections([job(9, "vision", mounts=(Mount("/home", "/home"),)).job], rules, (), WHO)
    assert "mounts may lie in /data" in mount.rule
    two = (job(1, "vision"), job(2, "vision"))
    turns = job_turns(two, rules, world("job-1", "job-2"), catalog(), NOW)
    assert [turn.vm is not None for turn in turns] == [True, False]
    assert turns[1].reason == "its owner may run at most 1 at once"


def test_secrets_lie_where_the_policy_allows_it() -> None:
    fit = replace(job(1, "vision").job, secrets={"TOKEN": "/etc/vision/token"})
    for rules, refused in (
        (JobRules(("job-*",)), "secrets /etc/vision/token: no secrets are allowed"),
        (JobRules(("job-*",), secrets=("/etc/vision",)), ""),
        (JobRules(("job-*",), secrets=("/etc/vis",)), "secrets /etc/vision/token: secrets may lie in /etc/vis"),
        (JobRules(("job-*",), secrets=("/etc",), quotas={"vision": JobQuota(secrets=())}), "no secrets are allowed"),
    ):
        assert refused in "".join(objection.rule for objection in objections([fit], rules, (), WHO))
        assert (objections([fit], rules, (), WHO) == ()) is (refused == "")


def test_who_may_submit_for_which_owner() -> None:
    quotas = {"vision": JobQuota(submitters=("ada", "role:vision")), "audio": JobQuota(submitters=("bob", "ada"))}
    rules = JobRules(("job-*",), quotas={**quotas, "open": JobQuota()})
    ada, bob, role = Submitter("ada", "pc"), Submitter("bob", "pc"), Submitter("eve", "pc", "vision")
    of_vision, of_nobody = job(1, "vision").job, job(2).job
    for who, allowed in ((ada, True), (bob, False), (role, True), (Submitter("vision", "pc"), False)):
        assert (objections([of_vision], rules, (), who) == ()) is allowed
        assert objections([job(3, "open").job], rules, (), who) == ()
    [refused] = objections([of_vision], rules, (), bob)
    assert refused.rule == "owner vision: bob@pc is not one of its submitters, ada, role:vision"
    assert [submitted_job.owner for submitted_job in with_owners([of_nobody, of_vision], rules, bob)] == [
        "audio",
        "vision",
    ]
    assert with_owners([of_nobody], rules, role)[0].owner == "vision"
    [two] = objections(with_owners([of_nobody], rules, ada), rules, (), ada)
    assert "without an owner" in two.rule, "she may submit for two"
    for submitter in (ada, role, Submitter("a@domain", "pc")):
        assert Submitter.parse(str(submitter)) == submitter


def test_a_night_asks_its_own_policy_who_may_submit() -> None:
    """The policy that a job was submitted under may have been anybody's."""
    rules = JobRules(("job-*",), quotas={"vision": JobQuota(submitters=("ada",))})
    jobs = (replace(job(1, "vision"), by="bob@pc"), replace(job(2, "vision"), by="ada@pc"))
    turns = {turn.job.number: turn for turn in job_turns(jobs, rules, world("job-1"), catalog(), NOW)}
    assert turns[1].vm is None and "bob@pc is not one of its submitters" in turns[1].reason
    assert turns[2].vm is not None
    assert [queued_job.owner for queued_job in queue_entries(turns.values(), ENTRY, rules, None)] == ["vision"]


def test_a_job_that_may_not_begin_leaves_its_vm_to_the_next() -> None:
    turns = job_turns(
        (job(1), job(2)), RULES, world("job-1"), catalog(), NOW, may_begin=lambda job_turn: job_turn.job.name == "j2"
    )
    assert [(turn.job.job.name, turn.vm is not None) for turn in turns] == [("j1", False), ("j2", True)]
