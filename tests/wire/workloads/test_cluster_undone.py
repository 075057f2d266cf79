"""Clusters of which something fails on the way, on the scenario `training`: undone, kept or continued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpuops.errors import UsageError
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.steps.step_executor import SLICE_S
from gpuops.execute.steps.vm_runs import next_removal_step
from gpuops.extras.clusters.cluster_members import MarkedVm, marked_vms
from gpuops.extras.clusters.cluster_plan import ClusterPlan
from gpuops.extras.clusters.cluster_runs import running_cluster
from gpuops.extras.clusters.creating import create_cluster
from gpuops.extras.clusters.existing import read_clusters
from gpuops.extras.clusters.run import begin, changing, open_runs
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import Arrangement
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from tests.wire.workloads.training import DECLARED, PVRDMA, SRIOV, SilentGuests, Training


def removal_step_done(port: Vcenter, member: MarkedVm) -> None:
    """The VM is powered off or, if it is off, removed."""
    inventory = port.inventory()
    task = port.submit(next_removal_step(inventory.vm(member.vm.ref), member.marker.notes), inventory, "test")
    assert task is not None and [end.error for end in port.wait([task], 600.0)] == [None]


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "reason"), [("CloneVM_Task", "SystemError"), ("ReconfigVM_Task", "change"), ("PowerOnVM_Task", "start")]
)
def test_what_fails_is_undone_unless_it_is_to_be_kept(training: Training, method: str, reason: str) -> None:
    training.fails(Rule(Effect.TASK, method, skip=1, times=1))
    failed = training.create(PVRDMA)
    assert failed.exit_code == 4
    assert (failed.undone, failed.left, failed.changed) == (True, (), False)
    assert failed.failed
    assert training.names() == DECLARED
    training.fails(Rule(Effect.TASK, method, skip=1, times=1))
    first_run = training.create(PVRDMA, keep=True)
    assert (first_run.exit_code, first_run.undone) == (4, False)
    assert "train-00" in training.names()
    second_run = training.create(PVRDMA)
    assert (second_run.exit_code, second_run.failed) == (0, "")
    assert len(running_cluster("train", training.site).members) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "rule",
    [
        Rule(Effect.LOST, "CloneVM_Task"),
        Rule(Effect.RESET, "CloneVM_Task", phase=Phase.BEFORE),
        Rule(Effect.RESET, "CloneVM_Task", phase=Phase.AFTER),
    ],
    ids=["task gone", "request lost", "reply lost"],
)
def test_a_clone_whose_request_task_or_reply_is_lost_is_there_once(training: Training, rule: Rule) -> None:
    training.fails(rule)
    report = training.create(PVRDMA)
    assert (report.exit_code, report.failed) == (0, "")
    assert training.names() == ["old-trainer", "train-00", "train-01", "trainer"]


@pytest.mark.long
@pytest.mark.parametrize("method", ["CloneVM_Task", "PowerOnVM_Task"])
def test_what_fails_never_removes_a_vm_that_stood_before(training: Training, method: str) -> None:
    training.create(PVRDMA)
    port = training.site.vcenter
    stood, lost = marked_vms(port.inventory(), "train")
    for _ in range(2):
        removal_step_done(port, lost)
    training.fails(Rule(Effect.TASK, method, times=1))
    failed = training.create(PVRDMA)
    assert (failed.exit_code, failed.undone, failed.left) == (4, True, ())
    [member] = marked_vms(port.inventory(), "train")
    assert (member.vm.ref, member.vm.power) == (stood.vm.ref, PowerState.ON)
    with pytest.raises(UsageError, match="of its 2 VMs rank 1 is missing"):
        running_cluster("train", training.site)
    [summary] = read_clusters("train", training.site)
    assert "rank 1 is missing" in summary.problems
    assert training.create(PVRDMA).exit_code == 0
    assert {vm.marker.id for vm in marked_vms(port.inventory(), "train")} == {lost.marker.id}


@pytest.mark.long
def test_a_whole_cluster_whose_guest_tells_nothing_any_more_is_not_removed(training: Training) -> None:
    training.create(PVRDMA)
    port, site = training.site.vcenter, training.site
    members = marked_vms(port.inventory(), "train")
    with changing(site) as journal:  # as a call leaves it that is killed while it waits for guests
        begin(journal, "train", members[0].marker.id, ())
    site.vcenter = SilentGuests(port)
    failed = training.create(PVRDMA)
    assert (failed.exit_code, failed.undone) == (4, False)
    assert "reports no running VMware Tools" in failed.failed
    site.vcenter = port
    assert [vm.vm.power for vm in marked_vms(port.inventory(), "train")] == [PowerState.ON] * 2


@pytest.mark.long
def test_a_vm_that_is_off_and_bound_to_gpus_keeps_them_from_new_ones_of_lower_rank(training: Training) -> None:
    """As a removal that is cut off leaves it: the last VM is there, off, on the node of the network card."""
    wish, port = replace(SRIOV, nodes=3, gpus=2, placement=Arrangement.PACKED), training.site.vcenter
    assert training.create(wish).exit_code == 0
    *earlier_members, last = marked_vms(port.inventory(), "train")
    for member in (*earlier_members, *earlier_members, last):
        removal_step_done(port, member)
    second_run = training.create(wish)
    assert (second_run.exit_code, second_run.failed) == (0, "")
    assert last.vm.ref in {vm.vm.ref for vm in marked_vms(port.inventory(), "train")}


@dataclass
class Watched:
    """The same vCenter: what is to be done while clones, and guests, are waited for."""

    real: Any
    at_clones: Callable[[], None]
    at_guests: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Any:
        if timeout_s == SLICE_S:  # the first wait is that for clones
            self.at_clones()
        return self.real.wait(tasks, timeout_s)

    def wait_for_guest(self, vm: str, timeout_s: float, *, address: bool) -> Any:
        if timeout_s:
            self.at_guests()
        return self.real.wait_for_guest(vm, timeout_s, address=address)


@pytest.mark.long
def test_a_return_begins_while_clones_or_guests_are_waited_for_and_is_waited_for_itself(training: Training) -> None:
    site, returned = training.site, ExitStack()
    happened: list[str] = []

    def returns(when: str) -> None:
        if when not in happened:
            happened.append(when)
            returned.enter_context(site.locked_journal(site.vcenter.uuid, alone=True, returning=True, doing="day"))

    def pause(seconds: float) -> None:
        happened.append("waited")
        returned.close()

    def at_guests() -> None:
        returns("guests")

    site.vcenter = Watched(site.vcenter, lambda: returns("clones"), at_guests)
    site.pause, site.say = pause, happened.append
    new_vm_counts: list[int] = []

    def consent(plan: ClusterPlan) -> None:
        with site.locked_journal(site.vcenter.uuid, alone=True):
            new_vm_counts.append(len(plan.new))

    assert create_cluster(PVRDMA, site, apply=True, keep=False, consent=consent).failed == ""
    returned.close()
    assert new_vm_counts == [2], "the question blocks no rotation, and is asked once"
    waiting_lines = [line for line in happened if line.startswith("waiting: ")]
    assert [line for line in happened if line in ("clones", "waited", "guests")] == ["clones", "waited", "guests"]
    assert len(waiting_lines) == 1, happened
    with site.journal_to_read(site.vcenter.uuid) as journal:
        assert open_runs(journal, "train") == ()
