"""Removals of VMs that are cut off at each point of a step, on the scenario `training`: the same call then ends them.

A VM that took the name meanwhile, that somebody took over, or that is another VM under the same id is never removed. A
call that is cut off here ends as by `kill -9`: nothing of gpuops is asked any more, what was sent goes on in vCenter.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest
from pyVmomi import vim

from gpuops.execute.journal.record import Kind
from gpuops.execute.steps.vm_runs import execute_steps, next_removal_step, settled_run, step_failure
from gpuops.extras.clusters.answers import ClusterRemoved
from gpuops.extras.clusters.cluster_members import MarkedVm, marked_vms
from gpuops.extras.clusters.existing import delete_cluster
from gpuops.extras.clusters.run import begin, changing, end, open_runs
from gpuops.model.stored import stored_name
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.step_checks import NOT_MADE
from gpuops.plan.core.steps import PowerOffForRemoval, RemoveVm
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from tests.harness.killing import POINTS, Killed, cut_off
from tests.wire.workloads.training import PVRDMA, Training

KINDS: Final = (stored_name(PowerOffForRemoval), stored_name(RemoveVm))


def one_vm(training: Training) -> MarkedVm:
    training.create(replace(PVRDMA, nodes=1))
    [member] = marked_vms(training.site.vcenter.inventory(), "train")
    return member


def remove_cluster(training: Training) -> ClusterRemoved:
    return delete_cluster("train", training.site, apply=True)


def journal_lines(training: Training) -> list[tuple[Kind, Any]]:
    with training.site.journal_to_read(training.site.vcenter.uuid) as journal:
        assert journal is not None
        return [(record.kind, record.body) for record in journal.records()]


def removals_sent(training: Training) -> int:
    with training.server.world.lock:
        return sum(change.method == "Destroy_Task" for change in training.server.world.ledger)


def check_settled(training: Training) -> None:
    """No run of the cluster is open, and each intent has an outcome."""
    with training.site.journal_to_read(training.site.vcenter.uuid) as journal:
        assert open_runs(journal, "train") == ()
    lines = journal_lines(training)
    intents = [body["op"] for kind, body in lines if kind is Kind.INTENT]
    assert set(intents) == {body["op"] for kind, body in lines if kind is Kind.SETTLED}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(("line", "before"), [point[1:] for point in POINTS], ids=[point[0] for point in POINTS])
@pytest.mark.parametrize("step", KINDS)
def test_a_removal_that_is_cut_off_is_ended_by_the_same_call(
    training: Training, step: str, line: Kind, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, sent = one_vm(training), removals_sent(training)
    cut_off(lambda: remove_cluster(training), step, line, monkeypatch, before=before)
    assert remove_cluster(training).left == ()
    assert member.vm.ref not in training.site.vcenter.inventory().vms
    assert removals_sent(training) == sent + 1
    check_settled(training)


@pytest.mark.parametrize("phase", [Phase.BEFORE, Phase.AFTER], ids=["request lost", "reply lost"])
def test_a_removal_whose_request_or_reply_is_lost_is_done_once(training: Training, phase: Phase) -> None:
    member, sent = one_vm(training), removals_sent(training)
    training.fails(Rule(Effect.RESET, "Destroy_Task", phase=phase, times=1))
    assert remove_cluster(training).left == ()
    assert member.vm.ref not in training.site.vcenter.inventory().vms
    assert removals_sent(training) == sent + 1
    check_settled(training)


def test_a_vm_that_takes_the_name_of_a_removed_one_stays(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    one_vm(training)
    cut_off(lambda: remove_cluster(training), KINDS[1], Kind.SETTLED, monkeypatch, before=True)
    template = training.site.vcenter.vm(training.site.vcenter.inventory().find_vm("trainer").ref)  # type: ignore[attr-defined]
    host = next(iter(training.site.vcenter.inventory().hosts))
    pool = training.site.vcenter.host(host).parent.resourcePool  # type: ignore[attr-defined]
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=pool), powerOn=False, template=False)
    task = template.CloneVM_Task(folder=template.parent, name="train-00", spec=spec)
    assert [task_end.error for task_end in training.site.vcenter.wait([TaskRef(task._moId)], 600.0)] == [None]
    foreign_ref = task.info.result._moId
    answer = remove_cluster(training)
    assert (answer.vms, answer.left) == ((), ())
    assert foreign_ref in training.site.vcenter.inventory().vms
    check_settled(training)
    task = task.info.result.Destroy_Task()
    assert [task_end.error for task_end in training.site.vcenter.wait([TaskRef(task._moId)], 600.0)] == [None]


def test_a_vm_that_somebody_took_over_before_the_request_stays(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its notes were changed after the intent was on disk and before anything was sent."""
    member, sent = one_vm(training), removals_sent(training)
    cut_off(lambda: remove_cluster(training), KINDS[1], Kind.INTENT, monkeypatch, before=False)
    notes = training.replace_notes(member.vm.ref, "mine now")
    answer = remove_cluster(training)
    assert answer.left == (f"train-00: train-00 {NOT_MADE}",)
    assert member.vm.ref in training.site.vcenter.inventory().vms
    assert removals_sent(training) == sent
    training.replace_notes(member.vm.ref, notes)


def test_another_vm_under_the_same_id_stays(training: Training) -> None:
    """The plan saw another instance UUID: after a restore of vCenter from a backup, ids may be those of other VMs."""
    member, sent = one_vm(training), removals_sent(training)
    inventory = training.site.vcenter.inventory()
    planned = inventory.with_vm(replace(inventory.vm(member.vm.ref), instance_uuid="another"))
    with changing(training.site) as journal:
        run = begin(journal, "train", member.marker.id, ())
        for step in (next_removal_step(member.vm, member.marker.notes), RemoveVm(member.vm.ref, member.vm.name, "")):
            outcomes = execute_steps([step], planned, journal, run, training.site)
            assert "is another VM" in step_failure(outcomes[member.vm.ref])
    end(training.site, run)
    assert training.site.vcenter.inventory().vm(member.vm.ref).power is member.vm.power
    assert removals_sent(training) == sent


def test_a_run_that_a_killed_call_left_open_is_settled_by_the_next(training: Training) -> None:
    member, sent = one_vm(training), removals_sent(training)
    inventory = training.site.vcenter.inventory()
    with changing(training.site) as journal:
        with suppress(Killed), settled_run("measure", inventory, journal, training.site) as killed:
            op_id = journal.intend(killed, RemoveVm(member.vm.ref, member.vm.name, member.marker.notes), inventory)
            raise Killed
        with settled_run("measure", inventory, journal, training.site) as run:
            assert journal.open_runs(("measure",)) == (run,)
        assert journal.open_runs(("measure",)) == ()
    [outcome] = [body for kind, body in journal_lines(training) if kind is Kind.SETTLED and body["op"] == op_id]
    assert (outcome["state"], removals_sent(training)) == ("failed", sent), "it never reached vCenter"
