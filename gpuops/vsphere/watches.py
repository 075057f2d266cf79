"""Waits for the ends of tasks, for states of VMs and hosts, and for any change of them that affects GPUs.

Each wait uses one filter of the PropertyCollector. `WaitForUpdatesEx` is called in slices, so that a silent vCenter
does not delay the caller beyond its limit. If the session ends, or the version of the collector is lost, collector and
filter are made again and report all objects again: a caller must accept the same change twice. pyVim's WaitForTask is
not used: it has no deadline and cannot be cancelled. 200 tasks take about ten requests in addition to those that start
them; single reads of tasks would take hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, StepFailed, Trouble, VcenterUnreachable
from gpuops.model.vcenter.host import has_booted
from gpuops.model.vcenter.inventory import decode_name
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.vsphere.faults import translate
from gpuops.vsphere.session import CANCEL_OPERATION
from gpuops.vsphere.transport import network

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

PAUSES_S: Final = (0.0, 2.0, 10.0, 30.0)
"""Pauses before each new attempt after a broken wait; after the last one the wait fails."""


@dataclass(frozen=True, slots=True)
class PropertyUpdate:
    """A change of one object: its properties by path (None = unset now), and whether it does not exist any more."""

    ref: str
    properties: Mapping[str, Any]
    is_gone: bool = False


class Updates:
    """Reads the changes of one set of objects; `watch` or `follow` selects another set."""

    def __init__(
        self, session: Session, pause: Callable[[float], None] = clock.pause, at_most: int | None = None
    ) -> None:
        """`at_most` is the limit of objects in one answer; None = no limit."""
        self._session = session
        self._pause = pause
        self._at_most = at_most
        self._objects: tuple[Any, ...] = ()
        """The watched objects; empty for a filter that finds its objects itself."""
        self._spec: Callable[[], Any] | None = None
        self._collector: Any = None
        self._filter: Any = None
        self._broken_collectors: list[Any] = []
        """Collectors whose wait broke off, with their filters: they exist as long as the session."""
        self._version = ""
        self._broken_waits = 0
        """How many waits in a row broke off."""
        self._has_filter = False
        """Whether the collector has the filter for these objects."""

    def watch(self, objects: Sequence[Any], paths: Sequence[str]) -> None:
        """Watch these objects, all of one type, from now on; the first report has their present values."""
        from pyVmomi import vmodl

        query = vmodl.query.PropertyCollector

        def spec() -> Any:
            return query.FilterSpec(
                objectSet=[query.ObjectSpec(obj=watched, skip=False) for watched in self._objects],
                propSet=[query.PropertySpec(type=type(self._objects[0]), pathSet=list(paths), all=False)],
                reportMissingObjectsInResults=True,
            )

        self._objects = tuple(objects)
        self._spec, self._has_filter = spec if objects else None, False

    def follow(self, spec: Callable[[], Any]) -> None:
        """Watch the objects that the filter of `spec` finds; `spec` is called again after a lost session."""
        self._objects, self._spec, self._has_filter = (), spec, False

    def next(self, wait_s: float) -> list[PropertyUpdate] | None:
        """Return the changes since the last call as soon as there are any; None = no change within `wait_s` seconds.

        Raises VcenterUnreachable if the wait stays broken.
        """
        updates: list[PropertyUpdate] | None = self._call_with_recovery(lambda: self._wait_for_updates(wait_s))
        return updates

    def close(self) -> None:
        """Destroy the collector, which would otherwise exist as long as the session."""
        if self._collector is not None:
            self._broken_collectors.append(self._collector)
        self._collector = self._filter = None
        self._destroy_broken_collectors()

    def _destroy_broken_collectors(self) -> None:
        if not self._broken_collectors:  # do not import pyVmomi for a session that never waited
            return
        from pyVmomi import vmodl

        while self._broken_collectors:
            with suppress(vmodl.MethodFault, *network.LOST_ERRORS, *network.UNREADABLE_ERRORS):
                self._broken_collectors.pop().DestroyPropertyCollector()

    def _wait_for_updates(self, wait_s: float) -> list[PropertyUpdate] | None:
        """Return the changes in vCenter's next answer; None = no change within `wait_s` seconds, or no objects."""
        from pyVmomi import vmodl

        if self._spec is None:
            return None
        if self._collector is None:
            self._collector = self._session.content.propertyCollector.CreatePropertyCollector()
            self._has_filter = False
        if not self._has_filter:
            self._replace_filter(self._spec)
            self._destroy_broken_collectors()
        options = vmodl.query.PropertyCollector.WaitOptions(
            maxWaitSeconds=math.ceil(wait_s), maxObjectUpdates=self._at_most
        )
        update_set = self._collector.WaitForUpdatesEx(self._version, options)
        if self._version:
            # not at the first answer: it comes at once, so it does not show that waits work again
            self._broken_waits = 0
        if update_set is None:
            return None
        updates = [update for filter_update in update_set.filterSet for update in _property_updates(filter_update)]
        self._version = update_set.version
        return updates

    def _replace_filter(self, spec: Callable[[], Any]) -> None:
        """Create the new filter, then destroy the old one. With version '' all objects of the new one are reported."""
        old, self._filter = self._filter, self._collector.CreateFilter(spec(), False)
        self._version, self._has_filter = "", True
        if old is not None:
            old.DestroyPropertyFilter()

    def _call_with_recovery(self, call: Callable[[], Any]) -> Any:
        """Return the result of the call; [] after a lost session, collector or connection: the caller then calls again.

        If watched objects do not exist any more, return their removals. Raises VcenterUnreachable after the last
        attempt.
        """
        from pyVmomi import vim, vmodl

        logins_before = self._session.logins
        try:
            return call()
        except vim.fault.NotAuthenticated as fault:
            self._drop_collector_and_pause(fault)
            self._session.login_again(logins_before)
        except vmodl.fault.ManagedObjectNotFound as fault:
            removed = [watched for watched in self._objects if fault.obj and watched._moId == fault.obj._moId]
            self._objects = tuple(watched for watched in self._objects if watched not in removed)
            self._drop_collector_and_pause(fault)
            return [PropertyUpdate(str(watched._moId), {}, is_gone=True) for watched in removed]
        except vim.fault.NoPermission as fault:
            raise translate(fault) from fault
        except (vmodl.MethodFault, *network.LOST_ERRORS, *network.UNREADABLE_ERRORS) as error:
            self._drop_collector_and_pause(error)  # tasks continue without this collector
        return []

    def _drop_collector_and_pause(self, error: BaseException) -> None:
        """Drop the collector, and pause before the next call makes a new one.

        Raises VcenterUnreachable after the last pause.
        """
        if self._collector is not None:
            self._broken_collectors.append(self._collector)
        self._collector = self._filter = None
        self._version = ""
        if self._broken_waits == len(PAUSES_S):
            self._broken_waits = 0  # a later call begins with all attempts again
            kind = type(error).__name__.rpartition(".")[2]
            raise VcenterUnreachable(
                f"{self._session.target.address} ended {len(PAUSES_S) + 1} waits in a row with an error: {kind}",
                hint="run the command again when vCenter answers; its tasks continue meanwhile",
            ) from error
        if PAUSES_S[self._broken_waits]:
            self._pause(PAUSES_S[self._broken_waits])
        self._broken_waits += 1


def _property_updates(filter_update: Any) -> Iterator[PropertyUpdate]:
    for update in filter_update.objectSet:
        properties = {
            change.name: change.val if change.op in ("assign", "add") else None for change in update.changeSet
        }
        yield PropertyUpdate(str(update.obj._moId), properties, is_gone=update.kind == "leave")
    for missing_object in filter_update.missingSet:
        yield PropertyUpdate(str(missing_object.obj._moId), {}, is_gone=True)


SLICE_S: Final = 20.0
"""The longest single wait for a state."""


@dataclass(frozen=True, slots=True, eq=False)
class AwaitedState:
    """A state of objects of one type: its properties, and a check whether their values reach a goal."""

    type: str
    paths: tuple[str, ...]
    is_reached: Callable[[Mapping[str, Any], Any], bool]


def _is_back(properties: Mapping[str, Any], before: datetime | None) -> bool:
    """Return whether a host is connected and its boot time is not `before`."""
    booted = properties.get("runtime.bootTime")
    connected = properties.get("runtime.connectionState") == "connected"
    return connected and has_booted(booted.astimezone(UTC) if booted is not None else None, before)


POWER: Final = AwaitedState(
    "VirtualMachine", ("runtime.powerState",), lambda vm, power: vm.get("runtime.powerState") == power
)
TOOLS: Final = AwaitedState(
    "VirtualMachine", ("guest.toolsRunningStatus",), lambda vm, status: vm.get("guest.toolsRunningStatus") == status
)
ADDRESS: Final = AwaitedState(
    "VirtualMachine", ("guest.ipAddress",), lambda vm, has_address: bool(vm.get("guest.ipAddress")) == has_address
)
BOOTED: Final = AwaitedState("HostSystem", ("runtime.connectionState", "runtime.bootTime"), _is_back)
RUNNING: Final = "guestToolsRunning"
"""The goal of `TOOLS`."""


class StateWatch:
    """Waits until objects reach a state, with one property filter over all of them; one wait at a time.

    A wait for objects that have not reached their goals in the previous wait uses its filter again. A wait of an hour
    for a host can so be divided into calls of `wait` that take one request each.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._updates = Updates(session)
        self._state: AwaitedState | None = None
        self._pending: dict[str, object] = {}
        """The goals by object, of the objects in the filter that have not reached them."""
        self._properties: dict[str, dict[str, Any]] = {}
        """The latest properties by object."""

    def close(self) -> None:
        """Stop watching."""
        self._updates.close()
        self._state = None

    def wait(
        self, state: AwaitedState, goals: Mapping[str, object], timeout_s: float
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the objects that reach their goals within `timeout_s`, and those that do not exist any more.

        Objects that do neither are in neither set.
        """
        self._watch_goals(state, goals)
        reached, removed, left_s = set[str](), set[str](), max(timeout_s, 0.0)
        while self._pending:
            slice_s, began_s = min(SLICE_S, left_s), clock.passed_s()
            updates = self._updates.next(slice_s)
            # None: vCenter has waited for the complete slice, even if the clock here stood still (a suspended machine)
            left_s -= max(slice_s if updates is None else 0.0, clock.passed_s() - began_s)
            with self._session.decoding("a wait for a state"):
                for update in updates or ():
                    properties = self._properties.setdefault(update.ref, {})
                    properties.update(update.properties)
                    if update.ref in self._pending and (
                        update.is_gone or state.is_reached(properties, self._pending[update.ref])
                    ):
                        del self._pending[update.ref]
                        (removed if update.is_gone else reached).add(update.ref)
            if left_s <= 0:
                break
        if not self._pending:
            self.close()
        return frozenset(reached), frozenset(removed)

    def _watch_goals(self, state: AwaitedState, goals: Mapping[str, object]) -> None:
        """Keep the filter if the previous wait was for all of these goals; otherwise make a new one."""
        if state is not self._state or not goals.items() <= self._pending.items():
            self._updates.watch([self._session.managed_object(state.type, ref) for ref in goals], state.paths)
            self._state, self._properties = state, {}
        self._pending = dict(goals)


VM_PATHS: Final = ("runtime.powerState", "runtime.host")
HOST_PATHS: Final = ("runtime.connectionState", "runtime.inMaintenanceMode")
MOST_AT_ONCE: Final = 1000
"""Objects in one answer; further ones are in the next answers."""


class ChangeWatch:
    """Waits of one session for any change of a VM or host that affects GPUs.

    One filter watches a ContainerView of all VMs and hosts, so new VMs are included. Without changes a wait takes one
    request.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._updates = Updates(session, at_most=MOST_AT_ONCE)
        self._follows = False

    def wait(self, timeout_s: float) -> bool:
        """Wait until something changes, at most for `timeout_s`, and return whether it did since the last call.

        The first call returns True, because an inventory read before may be old. So does a call after a lost session,
        or one whose wait stays broken off: changes are unknown then. Raises VcenterUnreachable if waits stay broken.
        """
        if not self._follows:
            self._updates.follow(self._filter_of_vms_and_hosts)
            self._follows = True
        deadline_s = clock.passed_s() + timeout_s
        updates = self._updates.next(timeout_s)
        while updates == [] and clock.passed_s() < deadline_s:  # the wait broke off: begin again
            updates = self._updates.next(max(0.0, deadline_s - clock.passed_s()))
        has_changed = updates is not None
        while updates:  # read and drop the other changes: the next call must not return True for them
            updates = self._updates.next(0.0)
        return has_changed

    def _filter_of_vms_and_hosts(self) -> Any:
        """Return a filter for all VMs and hosts, through a view that ends with the session."""
        from pyVmomi import vim, vmodl

        content, query = self._session.content, vmodl.query.PropertyCollector
        view = content.viewManager.CreateContainerView(
            content.rootFolder, [vim.VirtualMachine, vim.HostSystem], recursive=True
        )
        objects_of_view = query.TraversalSpec(name="view", type=vim.view.ContainerView, path="view", skip=False)
        return query.FilterSpec(
            objectSet=[query.ObjectSpec(obj=view, skip=True, selectSet=[objects_of_view])],
            propSet=[
                query.PropertySpec(type=vim.VirtualMachine, pathSet=list(VM_PATHS), all=False),
                query.PropertySpec(type=vim.HostSystem, pathSet=list(HOST_PATHS), all=False),
            ],
        )


TASK_SLICE_S: Final = 20.0
"""The longest single wait; after one without news, gpuops checks whether VMs wait for the answer to a question."""

WAIT_FOR_OTHER_TASK: Final = "wait for the other task of the VM, then run the command again"

TASK_PATHS: Final = (
    "info.state",
    "info.error",
    "info.entity",
    "info.entityName",
    "info.queueTime",
    "info.startTime",
    "info.completeTime",
)


class TaskWatch:
    """Waits for the ends of tasks; the end of a task is stored until a caller waits for that task."""

    def __init__(self, session: Session, updates: Updates | None = None) -> None:
        self._session = session
        self._updates = updates or Updates(session)
        self._running: dict[str, dict[str, Any]] = {}
        """The info so far by task ref, of tasks that have not ended."""
        self._ends: dict[str, TaskEnd] = {}
        """Ends that no caller has received yet."""
        self._withdrawn: set[str] = set()
        """Tasks that gpuops asked vCenter to cancel while they were queued."""

    def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
        """Yield the end of each task within the time.

        If the VM of a task asks a question, the task ends here as OutcomeUnknown with the question; in vCenter it
        continues after an answer. A task that does not exist any more ends as OutcomeUnknown too. The time is the
        duration of the waits in vCenter or the time that passed here, whichever is longer.
        """
        self._watch_unended([task.ref for task in tasks])
        pending, left_s = dict.fromkeys(task.ref for task in tasks), max(timeout_s, 0.0)
        yield from self._pop_ends(pending)
        while pending:
            slice_s, began_s = min(TASK_SLICE_S, left_s), clock.passed_s()
            updates = self._updates.next(slice_s)
            left_s -= max(slice_s if updates is None else 0.0, clock.passed_s() - began_s)
            if updates is None:  # vCenter has reported every task that exists, and waits for changes
                self._end_missing_tasks(pending)
                self._end_tasks_with_question(pending)
            with self._session.decoding("a wait for tasks"):
                for update in updates or ():
                    self._note_update(update)
            yield from self._pop_ends(pending)
            if left_s <= 0:
                return

    def withdraw(self, tasks: Sequence[TaskRef]) -> None:
        """Cancel those tasks that the last `wait` saw as queued. A task that vCenter does not cancel continues.

        vCenter queues a task while the VM has another one, and starts it when that one ends. Raises NotConnected.
        """
        for task_ref in tasks:
            task_info = self._running.get(task_ref.ref, {})
            if task_info.get("info.state") != "queued":
                continue
            self._withdrawn.add(task_ref.ref)  # before the call: if its reply is lost, the task may be cancelled
            task = self._session.managed_object("Task", task_ref.ref)
            try:
                self._session.change(
                    task.CancelTask,
                    subject=_subject(task_info, task_ref.ref),
                    op_id=f"{CANCEL_OPERATION}{task_ref.ref}",
                )
            except NotConnected:
                raise
            except GpuopsError:
                continue  # it has begun meanwhile, or cannot be cancelled now: a later call or its end will show

    def _watch_unended(self, refs: Sequence[str]) -> None:
        """Watch the tasks that have not ended with one filter, instead of those of an earlier wait."""
        unended = [ref for ref in refs if ref not in self._ends]
        if all(ref in self._running for ref in unended):
            return
        self._running = {ref: self._running.get(ref, {}) for ref in unended}
        self._updates.watch([self._session.managed_object("Task", ref) for ref in unended], TASK_PATHS)

    def _pop_ends(self, pending: dict[str, None]) -> Iterator[TaskEnd]:
        for ref in [ref for ref in pending if ref in self._ends]:
            del pending[ref]
            yield self._ends.pop(ref)

    def _note_update(self, update: PropertyUpdate) -> None:
        """Add the properties to the info of the task; if they show that it has ended, store its end."""
        task_info = self._running.get(update.ref)
        if task_info is None:
            return  # its end is known already: an update may come twice
        task_info.update(update.properties)
        state = task_info.get("info.state")
        if state == "success":
            self._store_end(update.ref, None)
        elif state == "error":
            self._store_end(update.ref, self._task_error(update.ref, task_info))
        elif update.is_gone:
            message = f"{_subject(task_info, update.ref)}: vCenter has removed its task, so the result is not known"
            self._store_end(update.ref, OutcomeUnknown(message))

    def _store_end(self, ref: str, error: GpuopsError | None) -> None:
        """Store the end of the task for `wait`; its duration is without the time in the queue, if that is known."""
        task_info = self._running.pop(ref)
        began = task_info.get("info.startTime") or task_info.get("info.queueTime")
        ended = task_info.get("info.completeTime")
        duration_s = (ended - began).total_seconds() if began and ended else None
        self._session.changes.note_ended(ref, error)
        self._ends[ref] = TaskEnd(TaskRef(ref), error, duration_s)

    def _task_error(self, ref: str, task_info: dict[str, Any]) -> GpuopsError:
        """Return the error of a task that failed. It is read again if vCenter reported the state without the fault."""
        subject = _subject(task_info, ref)
        fault = task_info.get("info.error")
        if fault is None:
            task = self._session.managed_object("Task", ref)
            fault = self._session.read(lambda: task.info.error, subject=subject)
        if not isinstance(fault, Exception):
            return StepFailed(
                f"{subject}: its task failed, and vCenter returned no reason",
                hint="look at the task in the vSphere Client",
            )
        error = translate(fault, subject)
        if ref in self._withdrawn and task_info.get("info.startTime") is None:
            error = StepFailed(
                f"{subject}: gpuops cancelled its task, which another task kept waiting", hint=WAIT_FOR_OTHER_TASK
            )
            error.trouble = Trouble.BUSY
        error.__cause__ = fault
        return error

    def _end_missing_tasks(self, pending: Iterable[str]) -> None:
        """End the tasks that vCenter did not report at first: it reports all tasks of the filter that exist."""
        for ref in [ref for ref in pending if self._running.get(ref) == {}]:
            self._note_update(PropertyUpdate(ref, {}, is_gone=True))

    def _end_tasks_with_question(self, pending: Iterable[str]) -> None:
        from pyVmomi import vim

        running = {ref: self._running[ref] for ref in pending if ref in self._running}
        entities = {ref: task_info.get("info.entity") for ref, task_info in running.items()}
        vms = {ref: vm._moId for ref, vm in entities.items() if isinstance(vm, vim.VirtualMachine)}
        question_by_vm = questions(self._session, frozenset(vms.values()))
        for ref, vm in vms.items():
            if (question := question_by_vm.get(vm)) is not None:
                message = f"{_subject(running[ref], ref)}: it asks a question: {question}"
                self._store_end(ref, OutcomeUnknown(message, hint="answer it in the vSphere Client"))


def _subject(task_info: dict[str, Any], ref: str) -> str:
    """Return the name of the VM or host that a task is about; the ref of the task if the name is unknown."""
    return decode_name(task_info.get("info.entityName") or ref)


def questions(session: Session, vms: Collection[str]) -> Mapping[str, str]:
    """Return the text of the question (`runtime.question`) by VM, for VMs that wait for an answer.

    gpuops never answers one: a wrong answer loses data.
    """
    properties_by_vm = session.read_properties(
        [session.vm(ref) for ref in vms], ["runtime.question"], skip_removed=True
    )
    questions_by_vm = {
        ref: question
        for ref, properties in properties_by_vm.items()
        if (question := properties.get("runtime.question"))
    }
    with session.decoding("a read of questions"):
        return {ref: str(question.text) for ref, question in questions_by_vm.items()}
