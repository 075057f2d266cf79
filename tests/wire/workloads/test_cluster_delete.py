"""Clusters that are removed, on the scenario `training`: their own VMs, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.errors import Locked
from gpuops.execute.steps.step_executor import SLICE_S
from gpuops.extras.clusters import existing
from gpuops.extras.clusters.answers import ClusterRemoved
from gpuops.extras.clusters.cluster_members import marked_vms, marker_of, removal_refusals
from gpuops.extras.clusters.cluster_runs import running_cluster
from gpuops.extras.clusters.existing import delete_cluster
from gpuops.extras.clusters.run import changing, used_alone
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import Guest, PowerState, VmDrs
from gpuops.model.workloads.cluster import MARKER_KEY
from gpuops.plan.core.steps import SetVmDrs
from gpuops.sim.fault_injection.rule import Effect, Rule
from tests.wire.workloads.training import PVRDMA, SilentGuests, Training

pytestmark = pytest.mark.long

NOT_MADE = "train-00: train-00 is not the VM that gpuops created (its name or notes differ): gpuops does not change it"


def test_a_vm_without_its_notes_is_never_removed(training: Training) -> None:
    training.create(replace(PVRDMA, nodes=1))
    [first] = [vm for vm in training.vms() if vm.name == "train-00"]
    notes = training.replace_notes(first.moid, "mine now")
    removal = delete_cluster("train", training.site, apply=True)
    assert removal.exit_code == 4
    assert removal.left == (NOT_MADE,)
    assert "train-00" in training.names()
    training.replace_notes(first.moid, notes)


def test_overrides_of_drs_are_taken_back_of_vms_that_the_removal_leaves(training: Training) -> None:
    """One has lost its notes, one was renamed, one its marker; the override of a copy is its owner's."""
    training.create(replace(PVRDMA, nodes=4))
    port = training.site.vcenter
    noted, renamed, unmarked, removed_vm = marked_vms(port.inventory(), "train")
    notes = training.replace_notes(noted.vm.ref, "mine now")
    training.reconfigure(renamed.vm.ref, name="mine")
    marker = vim.option.OptionValue(key=MARKER_KEY, value="")
    training.reconfigure(unmarked.vm.ref, extraConfig=[marker])
    before = delete_cluster("train", training.site, apply=False)
    assert ([vm.vm.name for vm in before.vms], before.overrides) == (["train-00", "train-03"], ("mine", "train-02"))
    removed = delete_cluster("train", training.site, apply=True)
    assert removed.left == (NOT_MADE,)
    assert removed.overrides == ("mine", "train-00", "train-02")
    inventory = port.inventory()
    assert removed_vm.vm.ref not in inventory.vms
    assert [cluster.drs_overrides for cluster in inventory.clusters.values()] == [()]
    power = [inventory.vms[marked_vm.vm.ref].power for marked_vm in (noted, renamed, unmarked)]
    assert power == [PowerState.ON] * 3, "they are left as they are"
    training.replace_notes(noted.vm.ref, notes)
    training.reconfigure(renamed.vm.ref, name="train-01")
    back = vim.option.OptionValue(key=MARKER_KEY, value=unmarked.marker.text)
    training.reconfigure(unmarked.vm.ref, extraConfig=[back])


def test_a_vm_that_left_the_cluster_while_the_admin_was_asked_is_asked_about(training: Training) -> None:
    training.create(PVRDMA)
    [first, second] = marked_vms(training.site.vcenter.inventory(), "train")
    questions: list[tuple[list[str], tuple[str, ...]]] = []

    def consent(planned: ClusterRemoved) -> None:
        questions.append(([member.vm.name for member in planned.vms], planned.overrides))
        training.reconfigure(second.vm.ref, name="mine")

    removed = delete_cluster("train", training.site, apply=True, consent=consent)
    assert questions == [(["train-00", "train-01"], ()), (["train-00"], ("mine",))]
    assert ([member.vm.ref for member in removed.vms], removed.left) == ([first.vm.ref], ())
    training.reconfigure(second.vm.ref, name="train-01")


@pytest.mark.parametrize("stays", ["the task fails", "set by a night since"])
def test_an_override_that_stays_is_told_and_the_same_again_takes_it_back(training: Training, stays: str) -> None:
    training.create(replace(PVRDMA, nodes=1))
    port = training.site.vcenter
    [first] = marked_vms(port.inventory(), "train")
    training.reconfigure(first.vm.ref, name="mine")
    if stays == "the task fails":
        training.fails(Rule(Effect.TASK, "ReconfigureComputeResource_Task", times=1))
        removal = delete_cluster("train", training.site, apply=True)
        assert (removal.exit_code, removal.overrides) == (4, ())
        assert removal.left[0].startswith("mine: its override of DRS stays: ")
        assert delete_cluster("train", training.site, apply=True).overrides == ("mine",)
    else:
        with changing(training.site) as journal:
            night = journal.begin("night", night="2026-11-02")
            journal.intend(night, SetVmDrs(first.vm.ref, VmDrs.MANUAL), port.inventory())
        assert delete_cluster("train", training.site, apply=True).overrides == ()
        [overrides] = [dict(cluster.drs_overrides) for cluster in port.inventory().clusters.values()]
        assert overrides[first.vm.ref] == VmDrs.MANUAL
    training.reconfigure(first.vm.ref, name="train-00")


def test_an_override_that_its_owner_sets_after_the_cluster_has_taken_its_own_back_stays(training: Training) -> None:
    training.create(replace(PVRDMA, nodes=1))
    port = training.site.vcenter
    [first] = marked_vms(port.inventory(), "train")
    training.reconfigure(first.vm.ref, name="mine")
    assert delete_cluster("train", training.site, apply=True).overrides == ("mine",)
    task = port.submit(SetVmDrs(first.vm.ref, VmDrs.MANUAL), port.inventory(), "owner")
    assert task is not None and [end.error for end in port.wait([task], 60.0)] == [None]
    assert delete_cluster("train", training.site, apply=True).overrides == ()
    inventory = port.inventory()
    assert inventory.drs_of(inventory.vms[first.vm.ref]) is VmDrs.MANUAL
    training.reconfigure(first.vm.ref, name="train-00")


def test_a_copy_of_the_same_name_keeps_both_until_it_is_renamed(training: Training) -> None:
    training.create(replace(PVRDMA, nodes=1))
    [vm] = [vm for vm in training.vms() if vm.name == "train-00"]
    marked = marked_vms(training.site.vcenter.inventory(), "train")
    assert removal_refusals(marked) == ()
    copy = replace(marked[0], vm=replace(marked[0].vm, ref="vm-9", path="/trn-dc/vm/other/train-00"))
    assert [refusal.subject for refusal in removal_refusals([*marked, copy])] == [
        "/trn-dc/vm/templates/train-00",
        "/trn-dc/vm/other/train-00",
    ]
    renamed = replace(copy.vm, name="mine")
    assert marker_of(renamed) is None
    assert vm.moid == marked[0].vm.ref


def copy_vm(training: Training, name: str) -> Any:
    """Somebody makes a copy of the VM, under the same name in another folder; its managed object."""
    [source] = [vm.vm for vm in marked_vms(training.site.vcenter.inventory(), "train") if vm.vm.name == name]
    vm = training.site.vcenter.vm(source.ref)  # type: ignore[attr-defined]
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(), powerOn=False, template=False)
    task = vm.CloneVM_Task(folder=vm.parent.parent, name=name, spec=spec)
    assert [end.error for end in training.site.vcenter.wait([TaskRef(task._moId)], 600.0)] == [None]
    return task.info.result


@pytest.mark.parametrize("when", ["while clones are waited for", "while VMs are powered off"])
def test_a_copy_that_is_made_during_a_removal_is_not_removed(
    training: Training, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.create(replace(PVRDMA, nodes=1))
    copies: list[Any] = []
    if when == "while clones are waited for":
        monkeypatch.setattr(existing, "wait_for_tasks", lambda *_: copies.append(copy_vm(training, "train-00")))
    else:
        real = training.site.vcenter

        class Copying:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Any:
                ends = list(real.wait(tasks, timeout_s))
                if timeout_s == SLICE_S and training.site.vcenter is not real:
                    training.site.vcenter = real
                    copies.append(copy_vm(training, "train-00"))
                return ends

        training.site.vcenter = Copying()
    removed = delete_cluster("train", training.site, apply=True)
    assert removed.exit_code in (3, 4)
    assert any("same marker" in line for line in (*removed.left, *(str(rejection) for rejection in removed.rejections)))
    [copy] = copies
    assert copy._moId in {vm.moid for vm in training.vms()}
    monkeypatch.undo()
    training.reconfigure(copy._moId, name="mine")
    task = copy.Destroy_Task()
    assert [end.error for end in training.site.vcenter.wait([TaskRef(task._moId)], 600.0)] == [None]


@pytest.mark.parametrize("begins", ["while clones are waited for", "while guests boot"])
def test_vms_that_a_run_of_another_machine_has_begun_to_use_meanwhile_are_not_removed(
    training: Training, begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, used_elsewhere = Site(training.site.vcenter, tmp_path / "elsewhere", wall_clock), ExitStack()

    def runs() -> None:
        used_elsewhere.enter_context(used_alone(elsewhere, running_cluster("train", elsewhere), "cluster run"))

    if begins == "while clones are waited for":
        training.create(PVRDMA)
        monkeypatch.setattr(existing, "wait_for_tasks", lambda *_: runs())
        with used_elsewhere, pytest.raises(Locked, match=r"cluster train is in use: pid .* holds the lease"):
            delete_cluster("train", training.site, apply=True)
    else:

        def tells_nothing(*words: Any, address: bool) -> Guest:
            runs()
            return Guest(None, None)

        monkeypatch.setattr(SilentGuests, "wait_for_guest", tells_nothing)
        port = training.site.vcenter
        training.site.vcenter = SilentGuests(port)
        with used_elsewhere, pytest.raises(Locked, match=r"cluster train is in use: pid .* holds the lease"):
            training.create(PVRDMA)
        training.site.vcenter = port
    inventory = training.site.vcenter.inventory()
    assert [vm.vm.power for vm in marked_vms(inventory, "train")] == [PowerState.ON] * 2
    monkeypatch.undo()


def test_a_name_that_is_longer_than_that_of_a_file_is_the_name_of_no_cluster(training: Training) -> None:
    assert delete_cluster("x" * 300, training.site, apply=True).vms == ()
