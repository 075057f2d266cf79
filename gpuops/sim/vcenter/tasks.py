"""Starts tasks, one at a time per VM, ends them with their effect, and removes them ten minutes later.

The methods of managed objects start them; code that answers a read passes the tasks that a client sees to
`pass_polling_time`.

A task of a VM that has one already is queued behind it, or refused (`queues`). The API declares TaskInProgress, "if the
virtual machine is busy", for every `_Task` method of a VM that is simulated, but for RelocateVM_Task, MigrateVM_Task,
Destroy_Task and Rename_Task (pyVmomi's type tables and the API reference), and does not say whether the call ends in it
or nothing does and the task waits. vCenter lets it wait: a reconfiguration stands behind a relocation of eight hours
(github.com/vmware/terraform-provider-vsphere, issue 493). An ESXi host that is asked itself refuses: "Another task is
already in progress" (github.com/vmware/govmomi, issue 953). What has no task, as ShutdownGuest, cannot wait, and is
refused by both.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.core.call import Call
from gpuops.sim.core.sessions import ClientSession
from gpuops.sim.core.sim_clock import ClockMode
from gpuops.sim.core.task_object import Task, TaskState
from gpuops.sim.fault_injection.rule import AwaitingAnswer, must_wait_for_answer, with_lingering_gpus

if TYPE_CHECKING:
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.core.object_store import ObjectStore
    from gpuops.sim.core.sessions import Sessions
    from gpuops.sim.fault_injection.injector import Injector, TaskTrouble

RETIREMENT_S: Final = 600.0
"""How long a finished task stays readable; after that only the state of its object shows what it did."""

MAX_HISTORY: Final = 10_000
"""How many tasks history collectors can find."""

PROGRESS_MARKS: Final = (0.25, 0.5, 0.75)
"""When a running task tells its watchers of progress, as shares of its time."""

POLLS_UNTIL_END: Final = 10
"""A client that reads a task this often sees its end in virtual time, however long the task takes."""

Effect = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The effects and the duration of a task that may be queued behind another one."""

    task: Task
    duration_s: float | Callable[[], float]
    begin: Effect | None
    finish: Effect | None
    exclusive: bool


class Tasks:
    """The task table of a world."""

    def __init__(self, store: ObjectStore, injector: Injector) -> None:
        self._store = store
        self._injector = injector
        self._history: deque[Task] = deque(maxlen=MAX_HISTORY)
        self._unfinished: dict[str, Task] = {}
        """By moid, oldest first. Kept in addition to the long history, because every suspend reads it."""
        self._numbers = itertools.count(101)
        self._of_entity: defaultdict[str, list[Task]] = defaultdict(list)
        self._running: dict[str, Task] = {}
        self._waiting: defaultdict[str, deque[TaskWork]] = defaultdict(deque)
        """By moid of the VM, those behind the one that runs, first come first."""
        self.queues = True
        """Whether a second task of a VM is queued, as in vCenter; if not, it is refused, as by a host."""
        self.hides_busy_tasks = False
        """Whether the refusal of an operation on a busy VM does not name the running task."""

    def start(
        self,
        call: Call,
        name: str,
        entity: ManagedObject,
        duration_s: float | Callable[[], float],
        *,
        begin: Effect | None = None,
        finish: Effect | None = None,
        description_id: str = "",
        cancelable: bool = False,
        exclusive: bool | None = None,
    ) -> Task:
        """Start or queue a task and return it.

        `name` is the WSDL name (`PowerOnVM_Task`). When the task starts, `duration_s` is called if it is a function,
        and `begin` runs; `finish` runs at the end. A vim fault raised by either ends the task in error. The return
        value of `finish` is the task's result. `description_id` defaults to the API's own (`VirtualMachine.powerOn`).

        If the entity has an unfinished exclusive task, another exclusive one is queued, or if `queues` is False refused
        with the vim fault TaskInProgress. Tasks of VMs are exclusive by default.
        """
        if exclusive is None:
            exclusive = entity.wsdl_name == "VirtualMachine"
        if exclusive and not self.queues:
            self.refuse_if_busy(entity)
        task = Task(
            self._store,
            f"task-{next(self._numbers)}",
            call=call,
            name=name,
            entity=entity,
            description_id=description_id,
            cancelable=cancelable,
            cancel=self.cancel,
        )
        self._store.register(task)
        self._history.append(task)
        self._unfinished[task.moid] = task
        self._of_entity[entity.moid].append(task)
        work = TaskWork(task, duration_s, begin, finish, exclusive)
        if exclusive and self.running(entity) is not None:
            self._waiting[entity.moid].append(work)
            self._entity_changed(task)
        else:
            self._begin(work)
        return task

    def _begin(self, work: TaskWork) -> None:
        """Begin a task that no longer waits for another one: run its checks and schedule its end."""
        task = work.task
        task.duration_s = work.duration_s() if callable(work.duration_s) else work.duration_s
        if work.exclusive:
            self._running[task.entity.moid] = task
        trouble = self._injector.trouble_of_task(task)
        if not trouble.queued_s:
            task.start()
        self._entity_changed(task)
        if self._apply(task, self._unless_removed(task, work.begin)):
            task.result = None  # `_apply` stored what `begin` returned; only `finish` returns the task's result
            self._schedule(task, work.finish, trouble)

    def recent(self, entity: ManagedObject) -> list[Task]:
        """The entity's tasks that are running or ended in the last ten minutes, oldest first: its recentTask."""
        return list(self._of_entity.get(entity.moid, ()))

    def running(self, entity: ManagedObject) -> Task | None:
        """Return the exclusive task that runs on this entity, or None; others may be queued behind it."""
        return self._running.get(entity.moid)

    def waits(self, task: Task) -> bool:
        """Whether it is queued behind another task of its entity."""
        return any(work.task is task for work in self._waiting.get(task.entity.moid, ()))

    def unfinished(self) -> list[Task]:
        """All tasks that are queued or running, oldest first."""
        return [task for task in self._unfinished.values() if self._store.find(task.moid) is task]

    def readable(self) -> list[Task]:
        """The tasks whose objects still exist, oldest first."""
        return [task for task in self._history if self._store.find(task.moid) is task]

    def history(self) -> list[Task]:
        """The tasks that a history collector finds, oldest first."""
        return list(self._history)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the tasks that succeeded as JSON values, oldest first, for `load` in a later run."""
        return [
            {
                "moid": task.moid,
                "name": task.name,
                "entity": task.entity.moid,
                "user": task.call.user,
                "operation_id": task.call.operation_id,
                "queued_at": task.queued_at.isoformat(),
                "started_at": task.started_at.isoformat(),
                "ended_at": task.ended_at.isoformat(),
            }
            for task in self._history
            if task.state is TaskState.SUCCESS and task.started_at is not None and task.ended_at is not None
        ]

    def load(self, saved: Iterable[Mapping[str, Any]], sessions: Sessions) -> None:
        """Add tasks of an earlier run to the history. They are no managed objects, and no new task gets their id."""
        for values in saved:
            entity = self._store.find(values["entity"])
            if entity is None:
                continue  # removed since
            session = ClientSession(sessions, "", "", values["user"], "en")
            call = Call(values["name"], "", session, values["operation_id"])
            task = Task(
                self._store, values["moid"], call=call, name=values["name"], entity=entity, cancel=self.cancel,
            )  # fmt: skip
            task.state = TaskState.SUCCESS  # `to_json` saves no other tasks
            moments = (datetime.fromisoformat(values[key]) for key in ("queued_at", "started_at", "ended_at"))
            task.queued_at, task.started_at, task.ended_at = moments
            self._history.append(task)
        highest = max((int(task.moid.rpartition("-")[2]) for task in self._history), default=100)
        self._numbers = itertools.count(highest + 1)

    def forget_history(self) -> None:
        """Make collectors forget all tasks, as after a reinstallation of vCenter."""
        self._history.clear()

    def refuse_if_busy(self, entity: ManagedObject) -> None:
        """Raises vim.fault.TaskInProgress{task} when an exclusive task of this entity has not ended.

        With `hides_busy_tasks` it raises InvalidState instead.
        """
        from pyVmomi import vim

        running_task = self._running.get(entity.moid)
        if running_task is not None:
            if self.hides_busy_tasks:
                raise vim.fault.InvalidState(msg="The operation is not allowed in the current state.")
            raise vim.fault.TaskInProgress(msg="Another task is already in progress.", task=running_task.ref)

    def hasten(self, task: Task, delay_s: float = 0.0) -> None:
        """End a running task `delay_s` from now, sooner than planned."""
        if task.completion is None or task.completion.action is None:
            return
        complete = task.completion.action
        task.completion.cancel()
        task.completion = self._store.clock.schedule(delay_s, complete)

    def pass_polling_time(self, objects: Iterable[ManagedObject]) -> bool:
        """Move virtual time because a client reads these objects; return whether it moved.

        It only moves if an unfinished task is among them, by a tenth (`POLLS_UNTIL_END`) of the longest task's total
        time from request to end. A client that polls therefore sees the end at the tenth read at the latest. A queued
        task counts as the task before it. A task without a known end (it hangs, or waits for an answer) does not move
        time.
        """
        if self._store.clock.mode is not ClockMode.VIRTUAL or not self._unfinished:
            return False
        tasks = [managed for managed in objects if isinstance(managed, Task) and not managed.ended]
        longest = max((self._time_of(task) for task in tasks), default=timedelta())
        if not longest:
            return False
        self._store.clock.advance_to(self._store.clock.now() + longest / POLLS_UNTIL_END)
        return True

    def _time_of(self, task: Task) -> timedelta:
        if self.waits(task):
            task = self._running[task.entity.moid]
        timer = task.completion
        return timer.due - task.queued_at if timer is not None and timer.action is not None else timedelta()

    def cancel(self, task: Task) -> None:
        """End a cancelable or queued task without its effect. Raises vim.fault.InvalidState otherwise."""
        from pyVmomi import vim, vmodl

        if not task.may_be_cancelled:
            raise vim.fault.InvalidState(msg="The task cannot be canceled in its current state.")
        for timer in (*task.timers, *([task.completion] if task.completion else [])):
            timer.cancel()
        task.cancelled = True
        self._end(task, error=vmodl.fault.RequestCanceled(msg="The task was canceled by a user."))

    def forget(self, task: Task) -> None:
        """Remove the task's object; its effect still follows."""
        self._remove_from_queue(task)
        self._of_entity[task.entity.moid] = [
            recent_task for recent_task in self.recent(task.entity) if recent_task is not task
        ]
        if self._store.find(task.moid) is task:
            self._store.unregister(task)
        self._entity_changed(task)

    def _schedule(self, task: Task, finish: Effect | None, trouble: TaskTrouble) -> None:
        """Schedule the task's start, progress and end, changed by the `trouble` that fault rules declare for it."""
        clock, queued_s = self._store.clock, trouble.queued_s
        task.duration_s *= trouble.factor
        if queued_s:
            task.timers.append(clock.schedule(queued_s, task.start))
        for mark in PROGRESS_MARKS:
            at_s = queued_s + mark * task.duration_s
            task.timers.append(clock.schedule(at_s, lambda: task.touch("info.progress"), background=True))
        if trouble.lost_at is not None:
            clock.schedule(queued_s + trouble.lost_at * task.duration_s, lambda: self.forget(task))
        if not trouble.stuck:
            share = trouble.fails_at if trouble.fault is not None else 1.0
            complete = self._completion(task, self._unless_removed(task, finish), trouble)
            task.completion = clock.schedule(queued_s + share * task.duration_s, complete)

    def _unless_removed(self, task: Task, finish: Effect | None) -> Effect:
        """Return `finish`, changed to raise ManagedObjectNotFound if the task's entity was removed meanwhile."""
        from pyVmomi import vmodl

        def effect() -> Any:
            if self._store.find(task.entity.moid) is not task.entity:
                raise vmodl.fault.ManagedObjectNotFound(msg="The object has been deleted.", obj=task.entity.ref)
            return finish() if finish else None

        return effect

    def _completion(self, task: Task, finish: Effect, trouble: TaskTrouble) -> Callable[[], None]:
        """Return the function that ends the task as `trouble` asks: in a fault, before its effect, or after a
        question."""

        def complete() -> None:
            if trouble.fault is not None:
                self._end(task, error=trouble.fault)
            elif trouble.early_s:
                self._store.clock.schedule(trouble.early_s, lambda: self._apply(task, finish))
                self._end(task)
            elif trouble.asks and must_wait_for_answer(self._store, task.entity):
                task.has_asked_question = True
                AwaitingAnswer(self._store, task.entity, complete)
            elif self._apply(task, finish):
                self._end(task)

        return with_lingering_gpus(task, complete, trouble.lingers_s)

    def _apply(self, task: Task, effect: Effect | None) -> bool:
        """Run the effect and store its result in the task; False if it raised, after the task has ended in error."""
        from pyVmomi import vmodl

        try:
            result = effect() if effect else None
        except vmodl.MethodFault as fault:
            self._end(task, error=fault)
            return False
        except Exception as bug:
            self._store.record_bug(bug)
            self._end(task, error=vmodl.fault.SystemError(msg=f"{bug}", reason=f"{type(bug).__name__}: {bug}"))
            return False
        task.result = result
        return True

    def _end(self, task: Task, *, error: Any = None) -> None:
        task.end(TaskState.ERROR if error is not None else TaskState.SUCCESS, error)
        self._unfinished.pop(task.moid, None)
        self._remove_from_queue(task)
        self._entity_changed(task)
        self._store.clock.schedule(RETIREMENT_S, lambda: self.forget(task), background=True)
        if self._running.get(task.entity.moid) is task:
            del self._running[task.entity.moid]
            self._begin_next(task.entity)

    def _begin_next(self, entity: ManagedObject) -> None:
        waiting = self._waiting[entity.moid]
        if waiting:
            self._begin(waiting.popleft())
        else:
            del self._waiting[entity.moid]

    def _remove_from_queue(self, task: Task) -> None:
        """Remove the task from the queue of its entity, if it is queued there."""
        moid = task.entity.moid
        if self.waits(task):
            self._waiting[moid] = deque(work for work in self._waiting[moid] if work.task is not task)

    def _entity_changed(self, task: Task) -> None:
        manager = self._store.find("TaskManager")
        if manager is not None:
            manager.touch("recentTask")
        if self._store.find(task.entity.moid) is task.entity:
            task.entity.touch("recentTask")
