"""Waiting for tasks over the wire: many by one filter, and whatever breaks the wait but not the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from gpuops.errors import GpuopsError, LoginRefused, OutcomeUnknown, StepFailed, VcenterUnreachable
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import Guest, PowerState
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, SuspendVm
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Question
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.watches import PAUSES_S, TaskWatch, Updates
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long


class Waiting:
    """A session to a simulated vCenter whose watch records its pauses in place of making them."""

    def __init__(self, server: SimServer, session: Connection) -> None:
        self.server = server
        self.session = session
        self.pauses: list[float] = []
        self.watch = session.tasks = TaskWatch(session, Updates(session, pause=self.pauses.append))
        self.inventory: Inventory = session.inventory()

    def ref(self, name: str) -> str:
        return self.inventory.find_vm(name).ref

    def suspend(self, *names: str) -> list[TaskRef]:
        steps = [SuspendVm(self.ref(name)) for name in names]
        return [task for step in steps if (task := self.session.submit(step, self.inventory, "op"))]

    def wait(self, tasks: list[TaskRef], timeout_s: float = 600) -> list[TaskEnd]:
        return list(self.watch.wait(tasks, timeout_s))

    def trouble(self, effect: Effect, method: str, **options: Any) -> None:
        self.server.world.injector.add(Rule(effect, method, **options))

    def collectors(self) -> int:
        """Of our making, on the server."""
        session_objects = [obj for session in self.server.world.sessions for obj in session.objects]
        return sum(obj.wsdl_name == "PropertyCollector" and obj.moid.startswith("session[") for obj in session_objects)

    def hang(self, task: TaskRef) -> Any:
        """The task never ends by itself."""
        world = self.server.world
        hung: Any = world.get(task.ref)
        with world.changed:
            hung.completion.cancel()
        return hung

    @property
    def calls(self) -> int:
        return sum(session.calls for session in self.server.world.sessions)


@pytest.fixture
def waiting_on(serve: Callable[[str], SimServer]) -> Iterator[Callable[[str], Waiting]]:
    opened: list[Waiting] = []

    def start(scenario: str) -> Waiting:
        server = serve(scenario)
        opened.append(Waiting(server, Connection(target_of(server))))
        return opened[-1]

    yield start
    for opened_wait in opened:
        opened_wait.session.close()


@pytest.fixture
def waiting(waiting_on: Callable[[str], Waiting]) -> Waiting:
    return waiting_on("lab")


@pytest.mark.long
def test_a_hundred_tasks_cost_a_handful_of_calls_beyond_their_starts(waiting_on: Callable[[str], Waiting]) -> None:
    waiting = waiting_on("vdi")
    running = [vm.ref for vm in waiting.inventory.vms.values() if vm.power is PowerState.ON]
    assert len(running) > 100, "more than one page of updates"
    before = waiting.calls
    submitted = (waiting.session.submit(PowerOffVm(ref), waiting.inventory, "op") for ref in running)
    tasks = [task for task in submitted if task is not None]
    ends = waiting.wait(tasks)
    assert {end.task for end in ends} == set(tasks)
    assert [end for end in ends if end.error] == []
    assert waiting.calls - before <= len(tasks) + 10


def test_an_end_tells_how_long_it_took(waiting: Waiting) -> None:
    [end] = waiting.wait(waiting.suspend("vdi-01"))
    assert end.error is None
    assert end.duration_s == pytest.approx(16, abs=1)


def test_a_refused_task_ends_in_the_words_of_its_fault(waiting: Waiting) -> None:
    waiting.trouble(Effect.TASK, "PowerOnVM_Task", fault="InsufficientGraphicsResourcesFault")
    task = waiting.session.submit(PowerOnVm(waiting.ref("ml-01")), waiting.inventory, "op")
    assert task is not None
    [end] = waiting.wait([task])
    assert isinstance(end.error, StepFailed)
    assert end.error.message == "ml-01: no graphics resources: no free vGPU slot of that profile on the host"
    assert end.error.hint == "gpuops inventory --hosts shows which VMs use the GPUs"


def test_ends_that_nobody_took_are_told_later(waiting: Waiting) -> None:
    tasks = waiting.suspend("vdi-01", "vdi-02", "vdi-03")
    first = next(iter(waiting.watch.wait(tasks, 600)))
    remaining_ends = waiting.wait([task for task in tasks if task != first.task])
    assert {first.task, *(end.task for end in remaining_ends)} == set(tasks)


@pytest.mark.long
def test_new_tasks_join_those_already_watched(waiting: Waiting) -> None:
    slow = waiting.suspend("vdi-01", "vdi-02")
    hung = waiting.hang(slow[0])
    assert [end.task for end in waiting.wait(slow, 60)] == [slow[1]]
    later_tasks = waiting.suspend("vdi-07")
    assert [end.task for end in waiting.wait([slow[0], *later_tasks], 60)] == later_tasks
    with waiting.server.world.changed:
        waiting.server.world.tasks._end(hung)
    assert [end.task for end in waiting.wait(slow[:1], 60)] == slow[:1]


@pytest.mark.long
def test_a_task_that_never_ends_is_left_out_when_its_time_is_up(waiting: Waiting) -> None:
    tasks = waiting.suspend("vdi-01")
    waiting.hang(tasks[0])
    before = waiting.server.world.clock.now()
    assert waiting.wait(tasks, 60) == []
    assert (waiting.server.world.clock.now() - before).total_seconds() == pytest.approx(60, abs=1)


@pytest.mark.long
def test_no_time_at_all_is_one_look(waiting: Waiting) -> None:
    tasks = waiting.suspend("vdi-01")
    assert waiting.wait(tasks, 0) == []
    assert waiting.wait([], 600) == []


@pytest.mark.long
def test_a_question_ends_the_wait_and_is_named(waiting: Waiting) -> None:
    tasks = waiting.suspend("vdi-01")
    task = waiting.hang(tasks[0])
    with waiting.server.world.changed:
        task.entity.state.question = Question("7", "No space on lab-ds-1. Retry?", (("0", "Retry"),))
        task.entity.touch("runtime")
    [end] = waiting.wait(tasks)
    assert isinstance(end.error, OutcomeUnknown)
    assert end.error.message == "vdi-01: it asks a question: No space on lab-ds-1. Retry?"
    assert "answer it" in end.error.hint


@pytest.mark.long
def test_a_task_that_vcenter_forgot_ends_as_unknown(waiting: Waiting) -> None:
    [end] = waiting.wait([TaskRef("task-424242")])
    assert isinstance(end.error, OutcomeUnknown)
    assert "gone from vCenter" in end.error.message


@pytest.mark.long
def test_a_forgotten_task_does_not_hide_the_others(waiting: Waiting) -> None:
    tasks = [TaskRef("task-424242"), *waiting.suspend("vdi-01")]
    ends = {end.task: end.error for end in waiting.wait(tasks)}
    assert ends.keys() == set(tasks)
    assert ends[tasks[1]] is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("effect", "options"),
    [
        (Effect.EXPIRE, {}),
        (Effect.RESET, {}),
        (Effect.CUT, {}),
        (Effect.HTTP, {"status": 503}),
        (Effect.FAULT, {"fault": "InvalidCollectorVersion"}),
        (Effect.FAULT, {"fault": "RequestCanceled"}),
        (Effect.FAULT, {"fault": "ManagedObjectNotFound"}),
    ],
    ids=["session ends", "reset", "reply cut", "503", "version lost", "cancelled", "collector gone"],
)
@pytest.mark.parametrize("skip", [0, 1], ids=["at the first wait", "in the midst"])
def test_a_broken_wait_is_taken_up_again(waiting: Waiting, effect: Effect, options: dict[str, Any], skip: int) -> None:
    waiting.trouble(effect, "WaitForUpdatesEx", skip=skip, **options)
    tasks = waiting.suspend("vdi-01", "vdi-02")
    assert {end.task: end.error for end in waiting.wait(tasks)} == dict.fromkeys(tasks)
    assert waiting.pauses == []
    assert waiting.collectors() == 1, "the one whose wait broke off is given back"
    waiting.session.close()
    assert waiting.collectors() == 0


@pytest.mark.long
def test_a_wait_that_breaks_off_every_time_is_given_up(waiting: Waiting) -> None:
    tasks = waiting.suspend("vdi-01")
    waiting.hang(tasks[0])
    waiting.trouble(Effect.FAULT, "WaitForUpdatesEx", fault="RequestCanceled", times=None)
    before = waiting.calls
    with pytest.raises(VcenterUnreachable, match="ended 5 waits in a row with an error: RequestCanceled"):
        waiting.wait(tasks)
    assert waiting.pauses == [pause for pause in PAUSES_S if pause]
    assert waiting.calls - before <= 4 * (len(PAUSES_S) + 1), (
        "a collector, its filter, the wait, and the one before away"
    )


@pytest.mark.long
def test_a_login_refused_in_mid_wait_is_said(waiting: Waiting) -> None:
    tasks = waiting.suspend("vdi-01")
    waiting.server.world.sessions.passwords.clear()
    waiting.trouble(Effect.EXPIRE, "WaitForUpdatesEx")
    with pytest.raises(LoginRefused, match="user name or password refused"):
        waiting.wait(tasks)


@pytest.mark.long
def test_a_power_state_without_a_task_is_waited_for(waiting: Waiting) -> None:
    task = waiting.session.submit(PowerOffVm(waiting.ref("vdi-01")), waiting.inventory, "op")
    assert task is not None
    refs = [waiting.ref("vdi-01"), waiting.ref("vdi-06"), "vm-424242"]
    waiting.trouble(Effect.RESET, "WaitForUpdatesEx")
    assert waiting.session.wait_for_power(refs, PowerState.OFF, 600) == set(refs[:2])


@pytest.mark.long
def test_a_guest_is_waited_for_across_a_broken_wait_and_never_longer_than_asked(waiting: Waiting) -> None:
    waiting.trouble(Effect.RESET, "WaitForUpdatesEx")
    running = waiting.session.wait_for_guest(waiting.ref("vdi-01"), 600, address=True)
    assert (running.tools_running, running.address is not None) == (True, True)
    clock = waiting.server.world.clock
    began = clock.now()
    assert waiting.session.wait_for_guest(waiting.ref("bare"), 60, address=False) == Guest(False, None)
    assert 60 <= (clock.now() - began).total_seconds() < 90
    with pytest.raises(GpuopsError, match="vm-424242"):
        waiting.session.wait_for_guest("vm-424242", 60, address=False)


@pytest.mark.long
@pytest.mark.parametrize("asked_first", [True, False], ids=["gone while waiting", "gone before"])
def test_a_vm_that_is_gone_is_not_waited_for(waiting: Waiting, asked_first: bool) -> None:
    world = waiting.server.world
    vm = waiting.session.content.searchIndex.FindByInventoryPath("/lab-dc/vm/misc/snapped")
    vm.Destroy_Task()
    if not asked_first:
        world.clock.advance(600)
    began = world.clock.now()
    assert waiting.session.wait_for_power([waiting.ref("snapped")], PowerState.ON, 3600) == frozenset()
    assert (world.clock.now() - began).total_seconds() < 600


@pytest.mark.long
def test_a_wait_in_slices_costs_a_request_for_each(waiting: Waiting) -> None:
    host = waiting.inventory.find_host("esx-01")
    since = {host.ref: host.booted}
    before = waiting.calls
    for _ in range(30):
        assert waiting.session.hosts.wait_for_boot(since, 20) == frozenset()
    assert waiting.calls - before <= 30 + 5
    waiting.session.host(host.ref).RebootHost_Task(True)
    assert waiting.session.hosts.wait_for_boot(since, 3600) == {host.ref}
    assert waiting.collectors() == 0


@pytest.mark.long
@pytest.mark.parametrize("effect", [Effect.EXPIRE, Effect.RESET])
def test_a_wait_that_breaks_off_between_silent_ones_goes_on(waiting: Waiting, effect: Effect) -> None:
    host = waiting.inventory.find_host("esx-01")
    since = {host.ref: host.booted}
    for _ in range(2 * len(PAUSES_S)):
        waiting.trouble(effect, "WaitForUpdatesEx")
        assert waiting.session.hosts.wait_for_boot(since, 40) == frozenset()
    waiting.session.host(host.ref).RebootHost_Task(True)
    assert waiting.session.hosts.wait_for_boot(since, 3600) == {host.ref}


@pytest.mark.long
def test_another_wait_is_told_how_everything_is(waiting: Waiting) -> None:
    """Also of what the wait before it waited for, and of a VM that went away between the two."""
    on, off = waiting.ref("vdi-01"), waiting.ref("vdi-06")
    assert waiting.session.wait_for_power([on, off], PowerState.OFF, 60) == {off}
    assert waiting.session.wait_for_power([on, off], PowerState.OFF, 60) == {off}
    assert waiting.session.wait_for_power([on], PowerState.OFF, 60) == frozenset()
    began = waiting.server.world.clock.now()
    assert waiting.session.wait_for_power([on, "vm-424242"], PowerState.ON, 3600) == {on}
    assert waiting.server.world.clock.now() == pytest.approx(began, abs=timedelta(seconds=1))
