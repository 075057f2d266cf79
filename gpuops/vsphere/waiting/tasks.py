"""Waits for the ends of many tasks with one property filter over all of them.

200 tasks take about ten requests in addition to those that start them; single reads of tasks would take hundreds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, StepFailed, Trouble
from gpuops.model.vcenter.inventory import decode_name
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.vsphere.faults import translate
from gpuops.vsphere.session import CANCEL_OPERATION
from gpuops.vsphere.waiting.updates import PropertyUpdate, Updates

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

SLICE_S: Final = 20.0
"""The longest single wait; after one without news, gpuops checks whether VMs wait for the answer to a question."""

WAIT_FIRST: Final = "wait for the other task of the VM, then run the command again"

PATHS: Final = (
    "info.state",
    "info.error",
    "info.entity",
    "info.entityName",
    "info.queueTime",
    "info.startTime",
    "info.completeTime",
)


class TaskWatch:
    """The tasks of one session; the end of a task is stored until a caller waits for it."""

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
        self._follow([task.ref for task in tasks])
        pending, left_s = dict.fromkeys(task.ref for task in tasks), max(timeout_s, 0.0)
        yield from self._pop_ends(pending)
        while pending:
            slice_s, asked_at = min(SLICE_S, left_s), clock.passed_s()
            news = self._updates.next(slice_s)
            left_s -= max(slice_s if news is None else 0.0, clock.passed_s() - asked_at)
            if news is None:  # vCenter has reported every task that exists, and waits for changes
                self._end_missing_tasks(pending)
                self._end_tasks_with_question(pending)
            with self._session.decoding("a wait for tasks"):
                for update in news or ():
                    self._take(update)
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

    def _follow(self, refs: Sequence[str]) -> None:
        """Watch the tasks that have not ended with one filter, instead of those of an earlier wait."""
        unended = [ref for ref in refs if ref not in self._ends]
        if all(ref in self._running for ref in unended):
            return
        self._running = {ref: self._running.get(ref, {}) for ref in unended}
        self._updates.watch([self._session.managed_object("Task", ref) for ref in unended], PATHS)

    def _pop_ends(self, pending: dict[str, None]) -> Iterator[TaskEnd]:
        for ref in [ref for ref in pending if ref in self._ends]:
            del pending[ref]
            yield self._ends.pop(ref)

    def _take(self, update: PropertyUpdate) -> None:
        task_info = self._running.get(update.ref)
        if task_info is None:
            return  # its end is known already: an update may come twice
        task_info.update(update.properties)
        state = task_info.get("info.state")
        if state == "success":
            self._end(update.ref, None)
        elif state == "error":
            self._end(update.ref, self._error(update.ref, task_info))
        elif update.is_gone:
            self._end(update.ref, OutcomeUnknown(f"{_subject(task_info, update.ref)}: its task is gone from vCenter"))

    def _end(self, ref: str, error: GpuopsError | None) -> None:
        task_info = self._running.pop(ref)
        began = task_info.get("info.startTime") or task_info.get("info.queueTime")
        ended = task_info.get("info.completeTime")
        duration_s = (ended - began).total_seconds() if began and ended else None
        self._session.changes.note_ended(ref, error)
        self._ends[ref] = TaskEnd(TaskRef(ref), error, duration_s)

    def _error(self, ref: str, task_info: dict[str, Any]) -> GpuopsError:
        """Return the error of a task that failed. It is read again if vCenter reported the state without the fault."""
        subject = _subject(task_info, ref)
        fault = task_info.get("info.error")
        if fault is None:
            task = self._session.managed_object("Task", ref)
            fault = self._session.read(lambda: task.info.error, subject=subject)
        if not isinstance(fault, Exception):
            return StepFailed(f"{subject}: vCenter does not say why its task failed")
        error = translate(fault, subject)
        if ref in self._withdrawn and task_info.get("info.startTime") is None:
            error = StepFailed(f"{subject}: its task was queued and did not begin; it was cancelled", hint=WAIT_FIRST)
            error.trouble = Trouble.BUSY
        error.__cause__ = fault
        return error

    def _end_missing_tasks(self, pending: Iterable[str]) -> None:
        """End the tasks that vCenter did not report at first: it reports all tasks of the filter that exist."""
        for ref in [ref for ref in pending if self._running.get(ref) == {}]:
            self._take(PropertyUpdate(ref, {}, is_gone=True))

    def _end_tasks_with_question(self, pending: Iterable[str]) -> None:
        from pyVmomi import vim

        running = {ref: self._running[ref] for ref in pending if ref in self._running}
        entities = {ref: task_info.get("info.entity") for ref, task_info in running.items()}
        vms = {ref: vm._moId for ref, vm in entities.items() if isinstance(vm, vim.VirtualMachine)}
        question_by_vm = questions(self._session, frozenset(vms.values()))
        for ref, vm in vms.items():
            if (question := question_by_vm.get(vm)) is not None:
                message = f"{_subject(running[ref], ref)}: it asks a question: {question}"
                self._end(ref, OutcomeUnknown(message, hint="answer it in the vSphere Client"))


def _subject(task_info: dict[str, Any], ref: str) -> str:
    return decode_name(task_info.get("info.entityName") or ref)


def questions(session: Session, vms: Collection[str]) -> Mapping[str, str]:
    """Return the text of the question (`runtime.question`) by VM, for VMs that wait for an answer.

    gpuops never answers one: a wrong answer loses data.
    """
    read = session.read_properties([session.vm(ref) for ref in vms], ["runtime.question"], skip_removed=True)
    questions_by_vm = {
        ref: question for ref, properties in read.items() if (question := properties.get("runtime.question"))
    }
    with session.decoding("a read of questions"):
        return {ref: str(question.text) for ref, question in questions_by_vm.items()}
