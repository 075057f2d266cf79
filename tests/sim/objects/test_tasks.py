"""Tasks through real pyVmomi: time, queues, one per VM, faults, history, and waiting for many at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from pyVim.connect import Disconnect
from pyVim.task import WaitForTask
from pyVmomi import vim, vmodl

from gpuops.sim.core.call import Call
from gpuops.sim.scenario import scenario_file
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.server import SimServer
from gpuops.sim.world import World
from tests.sim.lab import Lab, connect
from tests.sim.objects.test_property_collector import Q, object_updates
from tests.sim.small_world import small_world


def machine(si: Any, number: int = 1) -> Any:
    return vim.VirtualMachine(f"vm-{number}", si._stub)


def test_pyvmomi_waits_for_a_task(world: World, si: Any) -> None:
    task = machine(si).PowerOnVM_Task()
    assert task.info.state == "running"
    assert machine(si).runtime.powerState == "poweredOff"
    assert WaitForTask(task, si=si) == "success"
    assert world.get("vm-1").power == "poweredOn"
    took = task.info.completeTime - task.info.queueTime
    assert took == timedelta(seconds=3)


def test_task_info_is_what_a_vcenter_tells(si: Any, server: SimServer) -> None:
    info = machine(si).PowerOnVM_Task().info
    assert info.name.info.wsdlName == "PowerOnVM_Task"
    assert info.descriptionId == "VirtualMachine.powerOn"
    assert (info.entity, info.entityName) == (machine(si), "ml-01")
    assert info.reason.userName == server.username
    assert info.progress == 0
    assert info.completeTime is None


def test_progress_follows_time(world: World, si: Any) -> None:
    task = machine(si).PowerOnVM_Task()
    world.clock.advance(1.5)
    assert 50 <= task.info.progress < 60
    world.clock.advance(10)
    assert (task.info.state, task.info.progress) == ("success", None)


@pytest.mark.long
def test_a_poller_sees_the_end_too(si: Any) -> None:
    task = machine(si).PowerOnVM_Task()
    polls = 0
    while task.info.state == "running":
        polls += 1
        assert polls < 2000
    assert task.info.state == "success"


@pytest.mark.long
def test_a_host_refuses_a_second_task_of_a_vm(world: World, si: Any) -> None:
    world.tasks.queues = False
    task = machine(si).PowerOnVM_Task()
    with pytest.raises(vim.fault.TaskInProgress) as caught:
        machine(si).PowerOnVM_Task()
    assert caught.value.task == task
    machine(si, 2).PowerOnVM_Task()


@pytest.mark.long
def test_a_refused_task_ends_in_its_typed_fault(world: World, si: Any) -> None:
    world.get("vm-1").power = "poweredOn"
    task = machine(si).PowerOnVM_Task()
    info = task.info
    assert info.state == "error"
    assert isinstance(info.error, vim.fault.InvalidPowerState)
    assert (info.error.existingState, info.error.requestedState) == ("poweredOn", "poweredOn")
    with pytest.raises(vim.fault.InvalidPowerState):
        WaitForTask(task, si=si)
    assert list(world.ledger) == []


@pytest.mark.long
def test_the_ledger_names_caller_and_effect(world: World, si: Any, server: SimServer) -> None:
    WaitForTask(machine(si).PowerOnVM_Task(), si=si)
    (entry,) = world.ledger
    assert (entry.user, entry.method, entry.moid, entry.name) == (server.username, "PowerOnVM_Task", "vm-1", "ml-01")
    assert (entry.before, entry.after) == ({"power": "poweredOff"}, {"power": "poweredOn"})
    assert entry.session == si.content.sessionManager.currentSession.key


@pytest.mark.long
def test_the_clients_operation_id_is_kept(world: World, si: Any) -> None:
    si._stub.requestContext = {"operationID": "night-7"}
    task = machine(si).PowerOnVM_Task()
    assert task.info.activationId == "night-7"
    WaitForTask(task, si=si)
    assert [change.operation_id for change in world.ledger] == ["night-7"]


@pytest.mark.long
def test_a_task_whose_object_was_removed_meanwhile_does_nothing(world: World, si: Any) -> None:
    task = machine(si).PowerOnVM_Task()
    world.unregister(world.get("vm-1"))
    world.clock.advance(10)
    assert task.info.state == "error"
    assert isinstance(task.info.error, vmodl.fault.ManagedObjectNotFound)
    assert list(world.ledger) == []
    assert world.bugs == []


@pytest.mark.long
def test_a_task_can_be_cancelled_before_its_end(world: World, si: Any) -> None:
    task = machine(si).PowerOnVM_Task()
    task.CancelTask()
    assert isinstance(task.info.error, vmodl.fault.RequestCanceled)
    assert task.info.cancelled
    world.clock.advance(10)
    assert world.get("vm-1").power == "poweredOff"
    with pytest.raises(vim.fault.InvalidState):
        task.CancelTask()


@pytest.mark.long
def test_ended_tasks_go_away_after_ten_minutes(world: World, si: Any) -> None:
    task = machine(si).PowerOnVM_Task()
    world.clock.advance(4)
    assert machine(si).recentTask == [task]
    assert si.content.taskManager.recentTask == [task]
    world.clock.advance(601)
    assert machine(si).recentTask == []
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        _ = task.info


@pytest.mark.long
def test_task_history_outlives_the_tasks(world: World, si: Any) -> None:
    for number in (1, 2):
        machine(si, number).PowerOnVM_Task()
        world.clock.advance(1000)
    manager = si.content.taskManager
    collector = manager.CreateCollectorForTasks(vim.TaskFilterSpec())
    assert [info.entityName for info in collector.latestPage] == ["ml-02", "ml-01"]
    assert [info.entityName for info in collector.ReadNextTasks(1)] == ["ml-01"]
    assert [info.entityName for info in collector.ReadNextTasks(9)] == ["ml-02"]
    assert collector.ReadNextTasks(9) == []
    by_entity = vim.TaskFilterSpec.ByEntity(entity=machine(si, 2), recursion="self")
    own_collector = manager.CreateCollectorForTasks(vim.TaskFilterSpec(entity=by_entity))
    assert [info.entityName for info in own_collector.latestPage] == ["ml-02"]
    collector.DestroyCollector()


@pytest.mark.long
def test_a_bug_in_an_effect_ends_the_task_and_is_recorded(world: World, si: Any) -> None:
    spec = vim.vm.ConfigSpec(name="new")
    world.get("vm-1").options = None
    task = machine(si).ReconfigVM_Task(spec)
    world.clock.advance(2)
    assert isinstance(task.info.error, vmodl.fault.SystemError)
    assert "TypeError" in task.info.error.reason
    assert len(world.bugs) == 1
    world.bugs.clear()


@pytest.mark.long
def test_two_hundred_tasks_are_awaited_in_a_few_round_trips() -> None:
    with SimServer(small_world(200), tls=False) as server:
        si = connect(server)
        tasks = [machine(si, number).PowerOnVM_Task() for number in range(1, 201)]
        collector = si.content.propertyCollector
        collector.CreateFilter(
            Q.FilterSpec(
                objectSet=[Q.ObjectSpec(obj=task) for task in tasks],
                propSet=[Q.PropertySpec(type=vim.Task, pathSet=["info.state", "info.error"])],
            ),
            False,
        )
        states: dict[str, str] = {}
        version, trips = "", 0
        while sum(state == "success" for state in states.values()) < 200:
            update = collector.WaitForUpdatesEx(version, Q.WaitOptions(maxWaitSeconds=30))
            trips += 1
            version = update.version
            for _, moid, changes in object_updates(update):
                states |= {moid: changes["info.state"]} if "info.state" in changes else {}
        Disconnect(si)
        assert trips <= 10
        assert len(server.world.ledger) == 200


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
