"""New VMs whose requests are cut off at each point of a step, on the scenario `training`: the same call then ends them.

None is made twice or left without its name, and a foreign VM that took the name meanwhile stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest
from pyVmomi import vim

from gpuops.errors import StepFailed
from gpuops.execute.journal.record import Kind
from gpuops.execute.steps.vm_runs import CLONE, clone
from gpuops.extras.clusters.existing import delete_cluster
from gpuops.extras.clusters.run import CLUSTER
from gpuops.model.stored import stored_name
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.steps import CloneVm
from gpuops.plan.vm.clone import Clone
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from tests.harness.killing import POINTS, cut_off
from tests.wire.workloads.test_removals_killed import journal_lines
from tests.wire.workloads.training import DECLARED, PVRDMA, Training

STEP: Final = stored_name(CloneVm)


def one_clone(training: Training) -> None:
    planned, inventory = clone(Clone("single", "trainer"), training.site, apply=True)
    assert planned.existing_vm is not None and inventory.vm(planned.existing_vm.ref).name == "single"


def cluster(training: Training) -> None:
    report = training.create(PVRDMA)
    assert (report.exit_code, report.failed) == (0, "")


CALLS: Final = {"clone": (one_clone, ["single"]), "cluster": (cluster, ["train-00", "train-01"])}


def clones_sent(training: Training) -> int:
    with training.server.world.lock:
        return sum(change.method == "CloneVM_Task" for change in training.server.world.ledger)


def check_settled(training: Training) -> None:
    """No run is open, each intent has an outcome, and no task is that of two intents."""
    with training.site.journal_to_read(training.site.vcenter.uuid) as journal:
        assert journal is not None and journal.open_runs((CLONE, CLUSTER)) == ()
    lines = journal_lines(training)
    intents = [body["op"] for kind, body in lines if kind is Kind.INTENT]
    assert set(intents) == {body["op"] for kind, body in lines if kind is Kind.SETTLED}
    tasks = [body["task"] for kind, body in lines if kind is Kind.SUBMITTED]
    assert len(set(tasks)) == len(tasks)


@pytest.fixture(autouse=True)
def remove_all(training: Training) -> Iterator[None]:
    yield
    training.delete()
    for name in set(training.names()) - set(DECLARED):
        vm = training.site.vcenter.inventory().find_vm(name)
        task = training.site.vcenter.vm(vm.ref).Destroy_Task()  # type: ignore[attr-defined]
        assert [end.error for end in training.site.vcenter.wait([TaskRef(task._moId)], 600.0)] == [None]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(("line", "before"), [point[1:] for point in POINTS], ids=[point[0] for point in POINTS])
@pytest.mark.parametrize(("call", "names"), CALLS.values(), ids=CALLS)
def test_a_new_vm_whose_request_is_cut_off_is_made_once_by_the_same_call(
    training: Training,
    call: Callable[[Training], None],
    names: list[str],
    line: Kind,
    before: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = clones_sent(training)
    cut_off(lambda: call(training), STEP, line, monkeypatch, before=before)
    call(training)
    assert training.names() == sorted([*DECLARED, *names])
    assert clones_sent(training) == sent + len(names)
    check_settled(training)


@pytest.mark.parametrize("phase", [Phase.BEFORE, Phase.AFTER], ids=["request lost", "reply lost"])
@pytest.mark.parametrize(("call", "names"), CALLS.values(), ids=CALLS)
def test_a_new_vm_whose_request_or_reply_is_lost_is_made_once(
    training: Training, call: Callable[[Training], None], names: list[str], phase: Phase
) -> None:
    """Of two clones of a template, the task of the first is not taken for that of the second."""
    sent = clones_sent(training)
    training.fails(Rule(Effect.RESET, "CloneVM_Task", phase=phase, skip=len(names) - 1, times=1))
    call(training)
    assert training.names() == sorted([*DECLARED, *names])
    assert clones_sent(training) == sent + len(names)
    check_settled(training)


def test_a_clone_that_fails_in_vcenter_ends_its_run(training: Training) -> None:
    training.fails(Rule(Effect.TASK, "CloneVM_Task", times=1))
    with pytest.raises(StepFailed):
        one_clone(training)
    check_settled(training)
    one_clone(training)


def test_a_vm_of_somebody_else_that_took_the_name_meanwhile_stays(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(lambda: cluster(training), STEP, Kind.INTENT, monkeypatch, before=False)
    vcenter = training.site.vcenter
    inventory = vcenter.inventory()
    template = vcenter.vm(inventory.find_vm("trainer").ref)  # type: ignore[attr-defined]
    pool = vcenter.host(next(iter(inventory.hosts))).parent.resourcePool  # type: ignore[attr-defined]
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=pool), powerOn=False, template=False)
    task = template.CloneVM_Task(folder=template.parent, name="train-00", spec=spec)
    assert [end.error for end in vcenter.wait([TaskRef(task._moId)], 600.0)] == [None]
    refused = training.create(PVRDMA)
    assert (refused.exit_code, refused.applied) == (3, False)
    assert delete_cluster("train", training.site, apply=True).vms == ()
    assert training.names() == sorted([*DECLARED, "train-00"])
