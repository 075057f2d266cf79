"""VMs that are made of a template for jobs: made once, given their vGPU, removed when nothing needs them, and no other.

A pass that is cut off here ends as by `kill -9`: nothing of gpuops is asked any more, what was sent goes on in vCenter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.config.role_file import load_roles
from gpuops.errors import NoPermission, Refused
from gpuops.execute.rotation.rotation import rotate_day, rotate_night
from gpuops.execute.runs import NightVms
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord
from gpuops.extras.jobs.job_queue import job_cancel, job_queue, job_submit, run_jobs
from gpuops.extras.jobs.job_turns import job_vms
from gpuops.extras.jobs.job_vms import tend_job_vms
from gpuops.extras.jobs.nightly import job_store
from gpuops.extras.jobs.template_vms import MARKER_KEY, marker_for
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.workloads.job_rules import JobRules, JobTemplate
from gpuops.plan.core.steps import RemoveVm
from gpuops.sim.server import SimServer, start
from gpuops.sim.state.vm_state import Power
from gpuops.sim.vcenter.authority import READ_ONLY
from tests.harness.killing import Countdown, Killed
from tests.wire.conftest import target_of
from tests.wire.roles.test_least_privilege import place
from tests.wire.workloads.test_cluster_cut_off import CountedConnection

LAB_POLICY: Final = Path(__file__).parents[3] / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"
TEMPLATE: Final = JobTemplate("golden", 2, "job-")
EVENTS: Final = 40
"""More than a pass has that makes two VMs."""


class Lab:
    """The lab, its policy with a template for jobs, and passes over it."""

    def __init__(self, server: SimServer, connection: CountedConnection, state: Path) -> None:
        self.server, self.state = server, state
        self.site = Site(connection, state, wall_clock)
        self.policy = self.with_template(TEMPLATE)

    def with_template(self, template: JobTemplate) -> Policy:
        section = {"name": template.name, "at_most": template.at_most, "prefix": template.prefix, "keep": template.keep}
        jobs = json.dumps({"relocate": True, "template": section})
        text = LAB_POLICY.read_text(encoding="utf-8")
        policy = parse_policy(text.replace("\nml:\n", f"\nml:\n  jobs: {jobs}\n", 1), "policy.yaml")
        assert policy.jobs == JobRules(template=template, relocate=True)
        return policy

    def submit(self, *names: str, profile: str = "a40-48c", gpus: int = 1) -> None:
        jobs = [
            ContainerJob(
                name, "quay.io/lab/a:1", ("run",), profile, 2, 4096, timedelta(hours=1),
                checkpoint=("save",), resumes=1, gpus=gpus,
            )
            for name in names
        ]  # fmt: skip
        job_submit(jobs, self.site, self.policy)

    def tend(self) -> list[tuple[str, bool]]:
        return [(deed.vm, deed.failed) for deed in tend_job_vms(self.policy, self.site)]

    def vm(self, name: str) -> Any:
        return next(vm for vm in self._all() if vm.name == name)

    def mark(self, name: str, text: str) -> None:
        state = self.vm(name).state
        with self.server.world.lock:
            other_options = {key: value for key, value in dict(state.extra_config).items() if key != MARKER_KEY}
            state.extra_config = tuple({**other_options, MARKER_KEY: text}.items())
            self.vm(name).touch("config")

    def _all(self) -> list[Any]:
        with self.server.world.lock:
            return list(self.server.world.by_type("VirtualMachine"))

    def made(self) -> list[str]:
        """Names of VMs with a marker."""
        return sorted(vm.name for vm in self._all() if MARKER_KEY in dict(vm.state.extra_config))

    def names(self) -> list[str]:
        return sorted(vm.name for vm in self._all())

    def fit(self) -> list[tuple[str, tuple[str, ...]]]:
        """What a night would have for jobs."""
        assert self.policy.jobs is not None
        return [(vm.name, vm.profiles) for vm in job_vms(self.policy.jobs, self.site.vcenter.inventory())]


@pytest.fixture
def countdown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Countdown]:
    countdown = Countdown()
    monkeypatch.setattr(CountedConnection, "countdown", countdown)
    with countdown.of_the_journal():
        yield countdown


@pytest.fixture
def lab(tmp_path: Path, countdown: Countdown) -> Iterator[Lab]:
    with start("lab", clock="virtual") as server, CountedConnection(target_of(server)) as connection:
        yield Lab(server, connection, tmp_path / "state")
        assert server.world.bugs == []


def test_a_job_with_two_gpus_gets_a_vm_with_two_vgpus(lab: Lab) -> None:
    lab.submit("fit", gpus=2)
    assert lab.tend() == [("job-01", False)] * 2
    assert lab.fit() == [("job-01", ("nvidia_a40-48c", "nvidia_a40-48c"))]
    assert lab.tend() == [] and job_queue(lab.site, lab.policy).turns[1].lacks_vm is False
    lab.submit("score", gpus=3)
    assert "no VM for jobs has 3 vGPUs" in job_queue(lab.site, lab.policy).turns[2].reason


@pytest.mark.long
def test_what_waits_gets_a_vm_and_what_nobody_needs_is_removed(lab: Lab) -> None:
    before = lab.names()
    assert lab.tend() == [], "nothing waits"
    lab.submit("fit", "score", "late")
    reasons = job_queue(lab.site, lab.policy).reasons
    assert "waits for job-01, which job run makes of template golden" in reasons[1]
    assert "no VM of template golden is left for it: at most 2" in reasons[3]
    assert lab.tend() == [("job-01", False), ("job-02", False)] * 2
    a40 = ("nvidia_a40-48c",)
    assert lab.fit() == [("job-01", a40), ("job-02", a40)]
    assert all(lab.vm(name).state.power is Power.OFF for name in lab.made())
    assert "no VM of template golden is left" in job_queue(lab.site, lab.policy).reasons[3]
    assert lab.tend() == [], "once more changes nothing"
    job_cancel("fit", lab.site)
    assert lab.tend() == [], "the third job needs it now"
    job_cancel("score", lab.site)
    job_cancel("late", lab.site)
    assert lab.tend() == [("job-01", False), ("job-02", False)]
    assert lab.names() == before


def test_no_other_vm_is_removed(lab: Lab) -> None:
    """One that is on, a copy under another name, one of another list of jobs, one whose notes are another's."""
    lab.submit("fit", "score")
    lab.tend()
    [job, other_job] = job_store(lab.site).read()
    first, second = lab.vm("job-01"), lab.vm("job-02")
    job_cancel("fit", lab.site)
    job_cancel("score", lab.site)
    with lab.server.world.lock:
        first.state.power = Power.ON
        first.touch("runtime")
    lab.mark("job-02", replace(marker_for("job-02", other_job), id="0" * 16).text)
    lab.mark("ml-07", marker_for("job-01", job).text)
    assert lab.tend() == []
    lab.mark("job-02", marker_for("job-02", other_job).text)
    with lab.server.world.lock:
        second.state.annotation = "mine"
        second.touch("config")
    assert lab.tend() == [("job-02", True)], "its notes are somebody else's"
    port: Any = lab.site.vcenter
    with pytest.raises(Refused, match="job-01 is not powered off"):
        port.submit(RemoveVm(first.moid, "job-01", marker_for("job-01", job).notes), port.inventory(), "op")
    assert {"job-01", "job-02", "ml-07"} <= set(lab.names())


@pytest.mark.long
def test_the_vm_of_an_interrupted_job_and_of_one_that_nobody_has_looked_at_stay(lab: Lab) -> None:
    lab.submit("fit", "score")
    lab.tend()
    store = job_store(lab.site)
    for job, vm in zip(store.read(), ("job-01", "job-02"), strict=True):
        uuid = lab.site.vcenter.inventory().find_vm(vm).instance_uuid
        begun = store.add(job, JobRecord(JobEvent.BEGUN, lab.site.clock(), vm=uuid or "", vm_name=vm))
        if vm == "job-01":
            store.add(begun, JobRecord(JobEvent.INTERRUPTED, lab.site.clock()))
    assert lab.tend() == [] and lab.made() == ["job-01", "job-02"]
    job_cancel("fit", lab.site)
    assert lab.tend() == [("job-01", False)] and lab.made() == ["job-02"]


@pytest.mark.long
def test_a_job_that_fits_nowhere_takes_no_place_from_others(lab: Lab) -> None:
    """Its profile is offered, and no host has the memory: the two places are those of the two jobs behind it."""
    vast = ContainerJob("vast", "quay.io/lab/a:1", ("run",), "a40-48c", 2, 4_000_000, timedelta(hours=1), priority=9)
    job_submit([vast, replace(vast, name="vast-2")], lab.site, lab.policy)
    lab.submit("fit", "score")
    reasons = job_queue(lab.site, lab.policy).reasons
    assert "4000000 MiB" in reasons[1] and "4000000 MiB" in reasons[2]
    assert "waits for job-01" in reasons[3] and "waits for job-02" in reasons[4]
    assert lab.tend() == [("job-01", False), ("job-02", False)] * 2
    job_cancel("score", lab.site)
    assert lab.tend() == [("job-02", False)] and lab.tend() == [], "it is not kept for what fits nowhere"


@pytest.mark.long
def test_a_vm_without_its_vgpu_is_not_kept_for_a_job_that_fits_nowhere(lab: Lab) -> None:
    lab.submit("fit")
    lab.tend()
    job_vm = lab.vm("job-01")
    with lab.server.world.lock:
        job_vm.state.devices = ()
        job_vm.touch("config")
    job_cancel("fit", lab.site)
    lab.submit("unfit", profile="a100-40c")
    lab.submit("score")
    assert lab.tend() == [("job-01", False)] and lab.fit() == [("job-01", ("nvidia_a40-48c",))]


@pytest.mark.long
def test_kept_vms_make_room_for_a_job_of_another_profile(lab: Lab) -> None:
    lab.policy = lab.with_template(replace(TEMPLATE, keep=True, at_most=1))
    lab.submit("fit")
    lab.tend()
    job_cancel("fit", lab.site)
    assert lab.tend() == [] and lab.made() == ["job-01"]
    lab.submit("small", profile="a40-8q")
    assert lab.tend() == [("job-01", False)] * 3
    assert lab.fit() == [("job-01", ("nvidia_a40-8q",))]


@pytest.mark.long
def test_nothing_is_made_while_a_vm_of_a_night_is_away_or_another_run_changes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.submit("fit")
    with lab.site.locked_journal(lab.site.vcenter.uuid, alone=True):
        assert lab.tend() == []
    with monkeypatch.context() as patch:
        patch.setattr(NightVms, "all", lambda self: [type("Taken", (), {"taken": True})])
        with lab.site.locked_journal(lab.site.vcenter.uuid, alone=False):
            pass  # there is a journal
        assert lab.tend() == []
    with monkeypatch.context() as night:
        night.setattr(Policy, "night_at", lambda self, now: object())
        assert lab.tend() == []
    assert lab.made() == []
    assert lab.tend() != []


@pytest.mark.long
def test_a_template_that_is_not_there_is_told_and_the_pass_goes_on(lab: Lab) -> None:
    lab.policy = lab.with_template(replace(TEMPLATE, name="gold"))
    lab.submit("fit")
    report = run_jobs(lab.policy, lab.site)
    assert (report.deeds, report.exit_code) == ((), 4)
    assert [(deed.vm, "gold" in deed.what) for deed in report.vms] == [("gold", True)]


def test_a_night_starts_what_was_made_and_nothing_is_removed_before_its_morning(lab: Lab) -> None:
    lab.policy = replace(lab.policy, ml=tuple(queue for queue in lab.policy.ml if queue.for_jobs))
    lab.submit("fit")
    lab.tend()
    rotate_night(lab.policy, lab.site, apply=True)
    assert lab.vm("job-01").state.power is Power.ON
    lab.submit("score")
    assert lab.tend() == [], "a return is due: no VM is made either"
    rotate_day(lab.policy, lab.site, apply=True)
    assert lab.vm("job-01").state.power is Power.OFF
    job_cancel("fit", lab.site)
    job_cancel("score", lab.site)
    assert lab.tend() == [("job-01", False)] and lab.made() == []


@pytest.mark.long
@pytest.mark.parametrize("at", range(1, EVENTS + 1))
@pytest.mark.parametrize("after", [False, True])
def test_cut_off_anywhere_and_done_again(lab: Lab, countdown: Countdown, at: int, after: bool) -> None:
    before = lab.names()
    lab.submit("fit", "score")

    def cut_off() -> None:
        countdown.left, countdown.after = at, after
        with suppress(Killed):
            lab.tend()
        countdown.left = None

    cut_off()
    extra = set(lab.names()) - set(before)
    assert extra == set(lab.made()), "none is without a marker"
    for _ in range(3):
        lab.server.world.clock.advance(600)
        assert [deed.what for deed in tend_job_vms(lab.policy, lab.site) if deed.failed] == []
    assert [profiles for _, profiles in lab.fit()] == [("nvidia_a40-48c",)] * 2
    assert lab.names() == sorted([*before, "job-01", "job-02"]), "none is made twice"
    job_cancel("fit", lab.site)
    job_cancel("score", lab.site)
    cut_off()
    for _ in range(2):
        lab.server.world.clock.advance(600)
        assert [deed.what for deed in tend_job_vms(lab.policy, lab.site) if deed.failed] == []
    assert lab.names() == before


@pytest.mark.long
def test_under_the_roles_of_the_template_alone(lab: Lab) -> None:
    """The account reads everywhere, and may do in the template's folder, and on what VMs use, what the roles say."""
    lab.submit("fit")
    world = lab.server.world
    of_vms, of_others, _ = load_roles(Path(__file__).parents[3] / "templates" / "roles" / "jobs.yaml")
    authority, account = world.authority, lab.server.username
    authority.permit(account, READ_ONLY)
    authority.permit(account, authority.add_role("jobs", of_vms.privileges), place(lab.server, "misc"))
    used = authority.add_role("used", of_others.privileges)
    for kind in ("ClusterComputeResource", "Datastore", "Network"):
        for entity in world.by_type(kind):
            authority.permit(account, used, str(entity.moid))
    assert lab.tend() == [("job-01", False)] * 2
    job_cancel("fit", lab.site)
    assert lab.tend() == [("job-01", False)]
    assert lab.made() == []


JOB_ROLES: Final = load_roles(Path(__file__).parents[3] / "templates" / "roles" / "jobs.yaml")[:2]


NOT_MISSED: Final = {"Network.Assign"}
"""The template of the lab has no network card."""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("privilege", sorted({each for role in JOB_ROLES for each in role.privileges} - NOT_MISSED))
def test_without_one_privilege_of_the_template_something_fails(lab: Lab, privilege: str) -> None:
    """No role grants what nothing needs."""
    lab.submit("fit")
    authority, account = lab.server.world.authority, lab.server.username
    authority.permit(account, READ_ONLY)
    granted = {entity for role in JOB_ROLES for entity in role.privileges} - {privilege}
    authority.permit(account, authority.add_role("jobs", granted), place(lab.server, "misc"))
    for kind in ("ClusterComputeResource", "Datastore", "Network"):
        for entity in lab.server.world.by_type(kind):
            authority.permit(account, authority.add_role(f"used by {entity.moid}", granted), str(entity.moid))
    deeds: list[tuple[str, bool]] = []
    with suppress(NoPermission):
        deeds += lab.tend()
        job_cancel("fit", lab.site)
        deeds += lab.tend()
    assert any(failed for _, failed in deeds) or len(deeds) < 3, f"{privilege} is not needed"
