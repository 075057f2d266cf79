"""A second task of a VM is queued behind the first, as vCenter does it, or refused, as a host itself does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyVmomi import vim, vmodl

from gpuops.sim.core.call import Call
from gpuops.sim.scenario import scenario_file
from gpuops.sim.scenario.build import build_declared
from tests.sim.lab import Lab


def reconfigure_vm(lab: Lab, name: str, annotation: str) -> Any:
    return lab.vm(name).ReconfigVM_Task(vim.vm.ConfigSpec(annotation=annotation))


def states(*tasks: Any) -> list[str]:
    return [task.info.state for task in tasks]


@pytest.mark.long
def test_tasks_of_a_vm_run_one_after_the_other(lab: Lab) -> None:
    tasks = [reconfigure_vm(lab, "ml-07", text) for text in ("first", "second", "third")]
    assert states(*tasks) == ["running", "queued", "queued"]
    assert list(lab.vm("ml-07").recentTask) == tasks
    waiting = tasks[1].info
    assert (waiting.startTime, waiting.completeTime, waiting.progress) == (None, None, None)
    assert waiting.cancelable
    assert lab.vm("ml-08").ReconfigVM_Task(vim.vm.ConfigSpec(annotation="x")).info.state == "running"
    lab.run(tasks[2])
    infos = [task.info for task in tasks]
    assert states(*tasks) == ["success"] * 3
    assert [before.completeTime for before in infos[:-1]] == [after.startTime for after in infos[1:]]
    assert max(info.queueTime for info in infos) < infos[0].completeTime
    changes = [change.after["annotation"] for change in lab.world.ledger if change.name == "ml-07"]
    assert changes == ["first", "second", "third"]


def test_what_a_task_needs_is_judged_when_it_starts(lab: Lab) -> None:
    suspend, second_suspend = lab.vm("vdi-01").SuspendVM_Task(), lab.vm("vdi-01").SuspendVM_Task()
    resume = lab.vm("vdi-01").PowerOnVM_Task()
    assert states(suspend, second_suspend, resume) == ["running", "queued", "queued"]
    lab.run(resume)
    assert states(suspend, second_suspend, resume) == ["success", "error", "success"]
    fault = second_suspend.info.error
    assert isinstance(fault, vim.fault.InvalidPowerState)
    assert (fault.existingState, fault.requestedState) == ("suspended", "poweredOn")
    assert "VmResumingEvent" in lab.events("vdi-01")
    took = resume.info.completeTime - resume.info.startTime
    assert took == suspend.info.completeTime - suspend.info.startTime, "as long as its state takes to be read"


def test_a_queued_task_is_cancelled(lab: Lab) -> None:
    first, second, third = (reconfigure_vm(lab, "ml-07", text) for text in ("first", "second", "third"))
    second.CancelTask()
    info = second.info
    assert (info.state, info.cancelled, info.startTime) == ("error", True, None)
    assert isinstance(info.error, vmodl.fault.RequestCanceled)
    with pytest.raises(vim.fault.InvalidState):
        first.CancelTask()
    lab.run(third)
    assert states(first, third) == ["success", "success"]
    assert [change.after["annotation"] for change in lab.world.ledger] == ["first", "third"]
    with pytest.raises(vim.fault.InvalidState):
        second.CancelTask()


def test_a_task_whose_vm_is_gone_when_its_turn_comes_does_nothing(lab: Lab) -> None:
    destroy, late = lab.vm("ml-07").Destroy_Task(), reconfigure_vm(lab, "ml-07", "late")
    lab.run(destroy)
    assert isinstance(late.info.error, vmodl.fault.ManagedObjectNotFound)
    assert [change.method for change in lab.world.ledger] == ["Destroy_Task"]


def test_what_has_no_task_is_refused_meanwhile(lab: Lab) -> None:
    first = reconfigure_vm(lab, "vdi-01", "first")
    with pytest.raises(vim.fault.TaskInProgress) as refused:
        lab.vm("vdi-01").ShutdownGuest()
    assert refused.value.task == first


def test_what_waits_is_lost_when_vcenter_restarts(lab: Lab) -> None:
    reconfigure_vm(lab, "ml-07", "first")
    reconfigure_vm(lab, "ml-07", "second")
    with lab.world.lock:
        lab.world.injector.clear()
        for task in lab.world.tasks.readable():
            lab.world.tasks.forget(task)
    lab.let_pass(60)
    assert [change.after["annotation"] for change in lab.world.ledger] == ["first"]


def test_a_scenario_says_that_a_busy_vm_refuses() -> None:
    declared, parameters = scenario_file.read("lab")
    refusing = build_declared(msgspec.structs.replace(declared, busy="refuse"), parameters)
    vm = next(vm for vm in refusing.by_type("VirtualMachine") if vm.name == "ml-07")
    call = Call(method="ReconfigVM_Task", version=refusing.api_version)
    vm.ReconfigVM_Task(call, vim.vm.ConfigSpec())
    with pytest.raises(vim.fault.TaskInProgress):
        vm.ReconfigVM_Task(call, vim.vm.ConfigSpec())
