"""The Task object: one operation that is queued, running or ended."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gpuops.sim.core.managed_object import ManagedObject, Methods, prop

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from gpuops.sim.core.call import Call
    from gpuops.sim.core.object_store import ObjectStore
    from gpuops.sim.core.sim_clock import Timer


class TaskState(StrEnum):
    """vSphere API reference, TaskInfo.State."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    ERROR = "error"


# TaskInfo.descriptionId of the methods whose id is not "<type that declares it>.<its vmodl name>".
DESCRIPTION_IDS: Final = {
    "ReconfigureComputeResource_Task": "ComputeResource.reconfigureEx",
    "CloneVM_Task": "VirtualMachine.clone",
}


@cache
def description_id(name: str) -> str:
    """`VirtualMachine.powerOn` for `PowerOnVM_Task`: the declaring type and the method's vmodl name."""
    from pyVmomi import VmomiSupport

    if name in DESCRIPTION_IDS:
        return DESCRIPTION_IDS[name]
    try:
        info = VmomiSupport.GetWsdlMethod("urn:vim25", name).info
    except KeyError:
        return f"Task.{name}"
    return f"{info.type._wsdlName}.{info.name[0].lower()}{info.name[1:]}"


class Task(ManagedObject):
    """A task: its state and times are plain values, `info` is rendered from them."""

    wsdl_name = "Task"
    volatile = True
    world: ObjectStore

    method_table: ClassVar[Methods] = {"CancelTask": lambda self, call: self._cancel(self)}

    def __init__(
        self,
        world: ObjectStore,
        moid: str,
        *,
        call: Call,
        name: str,
        entity: ManagedObject,
        description_id: str = "",
        cancelable: bool = False,
        cancel: Callable[[Task], None],
    ) -> None:
        super().__init__(world, moid)
        self.call = call
        self.name = name
        self.entity = entity
        self.duration_s = 0.0
        """Seconds from its start to its end; set when it starts."""
        self.description_id = description_id
        self.cancelable = cancelable
        self._cancel = cancel
        self.cancelled = False
        self.state = TaskState.QUEUED
        self.queued_at: datetime = world.clock.now()
        self.skew = world.skew
        """The error of vCenter's clock when the task was queued; its times are those of that clock."""
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None
        self.has_asked_question = False
        """Whether the VM asked a question at the task's end; the task then ends a while after the answer."""
        self.error: Any = None
        self.result: Any = None
        self.timers: list[Timer] = []
        self.completion: Timer | None = None
        """The timer that ends it; None = nothing does, as for one that hangs."""
        self.event_chain_id = world.next_number()

    @property
    def may_be_cancelled(self) -> bool:
        """Whether CancelTask is allowed: for a cancelable task, and for any queued one (vSphere API, CancelTask)."""
        return not self.ended and (self.cancelable or self.state is TaskState.QUEUED)

    @property
    def ended(self) -> bool:
        return self.state in (TaskState.SUCCESS, TaskState.ERROR)

    @property
    def progress_percent(self) -> int:
        """0..100: the share of its time that has passed; 100 only after the end."""
        if self.state is TaskState.SUCCESS:
            return 100
        if self.started_at is None or self.duration_s <= 0:
            return 0
        passed_s = ((self.ended_at or self.world.clock.now()) - self.started_at).total_seconds()
        return max(0, min(99, int(100 * passed_s / self.duration_s)))

    def start(self) -> None:
        self.state = TaskState.RUNNING
        self.started_at = self.world.clock.now()
        self.touch("info")

    def end(self, state: TaskState, error: Any = None) -> None:
        self.state = state
        self.error = error
        self.ended_at = self.world.clock.now()
        self.touch("info")

    @prop("info")
    def _info(self) -> Any:
        from pyVmomi import vim

        return vim.TaskInfo(
            key=self.moid,
            task=self.ref,
            name=self._method_name(),
            descriptionId=self.description_id or description_id(self.name),
            entity=self.entity.ref,
            entityName=self.entity.display_name,
            state=self.state.value,
            cancelled=self.cancelled,
            cancelable=self.may_be_cancelled,
            error=self.error,
            result=self._result(),
            progress=self.progress_percent if self.state is TaskState.RUNNING else None,
            reason=vim.TaskReasonUser(userName=self.call.user),
            queueTime=self.queued_at + self.skew,
            startTime=self.started_at + self.skew if self.started_at else None,
            completeTime=self.ended_at + self.skew if self.ended_at else None,
            eventChainId=self.event_chain_id,
            activationId=self.call.operation_id or None,
        )

    def _method_name(self) -> Any:
        """Return the method; None for one that no type table has, because a client could not read its name."""
        from pyVmomi import VmomiSupport

        if not re.fullmatch(r"\w+", self.name):
            return None
        try:
            return VmomiSupport.GetWsdlMethod("urn:vim25", self.name)
        except KeyError:
            return None

    def _result(self) -> Any:
        return self.result.ref if isinstance(self.result, ManagedObject) else self.result
