"""Direct: a simulated vCenter as the executor's port, by calls to its objects; no SOAP, no socket, one thread.

Faults strike here as they do on the wire: the same rules, asked at the same calls, and what a broken connection or a
fault becomes is what `vsphere` makes of it. The engine above is the same code in both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pyVmomi import vim, vmodl

from gpuops.errors import (
    GpuopsError,
    NotConnected,
    OutcomeUnknown,
    Refused,
    StepFailed,
    Trouble,
)
from gpuops.execute.site.saved_inventory import SavedVcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import (
    CloneVm,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.sim.core.call import Call
from gpuops.sim.core.task_object import Task, TaskState, description_id
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
from gpuops.vsphere.faults import translate
from gpuops.vsphere.session import CANCEL_OPERATION
from gpuops.vsphere.writing.lost_replies import DESCRIPTIONS
from gpuops.vsphere.writing.new_vms import _config
from gpuops.vsphere.writing.step_calls import config_spec, override_spec
from tests.nights.world.session import PREFIX, USER, DirectSession, Guests, Lost
from tests.nights.world.showing import Showing

SLICE_S: Final = 20.0

METHODS: Final[Mapping[type[Any], str]] = {
    SuspendVm: "SuspendVM_Task",
    PowerOnVm: "PowerOnVM_Task",
    ResumeVm: "PowerOnVM_Task",
    PowerOffVm: "PowerOffVM_Task",
    RelocateVm: "RelocateVM_Task",
    ShutDownGuest: "ShutdownGuest",
    ReconfigureVm: "ReconfigVM_Task",
    SetVmDrs: "ReconfigureComputeResource_Task",
    SetAttribute: "SetField",
    RunInGuest: "StartProgramInGuest",
}
"""What is called for each kind of step."""


class DirectVcenter(DirectSession, SavedVcenter):
    """Implements `Vcenter`; what no night asks for is as of a saved inventory. `boundary` is called before and after
    each effect: where a run can be killed.
    """

    def __init__(
        self,
        world: World,
        boundary: Callable[[str], None],
        trusted: Callable[[], bool] | None = None,
        showing: Showing | None = None,
        on_request: Callable[[str], None] = lambda op_id: None,
        refused: Callable[[str], None] = lambda fault: None,
        user: str = USER,
    ) -> None:
        """`showing` is what this vCenter showed others before; None = no look yet. `on_request` is called with each op
        id that is sent, and `refused` with the type of the fault in reply.
        """
        super().__init__(world, trusted, user)
        self._showing = showing or Showing(world)
        self._boundary = boundary
        self._asked = on_request
        self._refused = refused
        self._withdrawn: set[str] = set()
        self._uuid: str = world.get("ServiceInstance").instance_uuid
        self._guests = Guests(world, self._change, self._read)
        self._login()

    @property
    def uuid(self) -> str:
        return self._uuid

    @property
    def applied(self) -> bool | None:
        return self._changes.applied

    # --- reading ------------------------------------------------------------------------------------------------

    def no_way_in(self, hook: RunInGuest) -> str | None:
        return None

    def inventory(self) -> Inventory:
        return self._read(lambda: self._showing.inventory(self._user))

    def observe(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        return self._read(lambda: self._showing.observed(inventory, vms))

    def with_counters(
        self, inventory: Inventory, vms: Collection[str], names: Collection[str], over_s: int
    ) -> Inventory:
        raise AssertionError("no policy of these nights goes by counters: they are read over the wire alone")

    def with_drs(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        return self._read(lambda: self._showing.with_drs(inventory))

    def with_creation(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        return self._read(lambda: self._showing.with_creation(inventory, vms))

    def find_task(self, step: Step, since: datetime, login: str = "", known: Collection[str] = ()) -> TaskRef | None:
        description = DESCRIPTIONS.get(type(step))

        def look() -> TaskRef | None:
            vm: Any = self._world.find(step.source if isinstance(step, CloneVm) else step.vm)
            if vm is None:
                return None
            entity = vm.host().compute_resource() if isinstance(step, SetVmDrs) else vm
            lost = [task for task in self._world.tasks.history() if task.entity is entity and not task.ended]
            for candidates in (self._world.tasks.recent(entity), lost):
                alike = [
                    (task.call.user in (self._user, login), task.queued_at + task.skew, task.moid)
                    for task in candidates
                    if (task.description_id or description_id(task.name)) == description
                    and (task.queued_at + task.skew >= since or not task.ended)
                    and task.moid not in known
                ]
                if alike:
                    is_own, _, ref = max(alike)
                    return TaskRef(ref, foreign=not is_own)
            return None

        return None if description is None else self._read(look)

    def started_by_this_login(self, vm: str, since: datetime, login: str = "") -> bool:
        def look() -> bool:
            starts = self._starts(vm, since)
            own_starts = [task for task in starts if task.call.user in (self._user, login)]
            starts_by_others = [task for task in starts if task not in own_starts and task.state is not TaskState.ERROR]
            return any(task.state is not TaskState.ERROR for task in own_starts) or (
                bool(own_starts) and not starts_by_others
            )

        return bool(self._read(look))

    def started_by_others(self, vm: str, since: datetime) -> bool:
        def look() -> bool:
            starts = self._starts(vm, since)
            return any(task.call.user != self._user and task.state is not TaskState.ERROR for task in starts)

        return bool(self._read(look))

    def has_power_task_near(self, vm: str, moment: datetime) -> bool | None:
        def look() -> bool:
            kinds = (DESCRIPTIONS[PowerOnVm], DESCRIPTIONS[SuspendVm])
            return any(
                task.state is not TaskState.ERROR
                and task.entity.moid == vm
                and (task.description_id or description_id(task.name)) in kinds
                and abs(task.queued_at + task.skew - moment) <= timedelta(hours=1)
                for task in self._world.tasks.history()
            )

        return bool(self._read(look))

    def _starts(self, vm: str, since: datetime) -> list[Task]:
        return [
            task
            for task in self._world.tasks.history()
            if task.entity.moid == vm
            and (task.description_id or description_id(task.name)) == DESCRIPTIONS[PowerOnVm]
            and task.queued_at + task.skew >= since
        ]

    # --- changing -----------------------------------------------------------------------------------------------

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        name = step.name if isinstance(step, CloneVm) else inventory.vm(step.vm).name
        self._boundary(f"before {type(step).__name__} {name}")
        self._asked(op_id)
        try:
            return self._submit(step, inventory, op_id)
        except Lost as lost:
            raise OutcomeUnknown(f"{name}: the reply was lost") from lost
        except vmodl.MethodFault as fault:
            self._refused(type(fault).__name__.rpartition(".")[2])
            raise translate(fault, name) from fault
        finally:
            self._boundary(f"after {type(step).__name__} {name}")

    def _submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        if isinstance(step, SetAttribute):
            self._mark(step, op_id)
            return None
        if isinstance(step, SetVmDrs):
            return self._override(step, inventory, op_id)
        if isinstance(step, RunInGuest):
            return self._guests.start(step, op_id)
        if isinstance(step, CloneVm):
            return self._clone(step, op_id)
        if isinstance(step, RemoveVm):
            return self._remove(step, op_id)
        method = METHODS[type(step)]
        power = inventory.vm(step.vm).power
        if isinstance(step, ResumeVm) and power is not PowerState.SUSPENDED:
            raise StepFailed(f"{step.vm}: not suspended: resuming it would boot it")
        if isinstance(step, PowerOffVm) and power is PowerState.SUSPENDED:
            raise StepFailed(f"{step.vm}: powering it off would discard its state")
        arguments = self._arguments(step, inventory)
        task = self._change(
            method, step.vm, lambda call: getattr(self._world.get(step.vm), method)(call, *arguments), op_id
        )
        return TaskRef(task.moid) if isinstance(task, Task) else None

    def _remove(self, step: RemoveVm, op_id: str) -> TaskRef:
        machine: Any = self._read(lambda: self._world.find(step.vm))
        if machine is None or machine.name != step.name or step.notes not in (machine.state.annotation or ""):
            raise Refused(f"{step.name} is not the VM that was made")
        if machine.state.power is not Power.OFF:
            raise Refused(f"{step.name} is not off")
        return TaskRef(self._change("Destroy_Task", step.vm, machine.Destroy_Task, op_id).moid)

    def _clone(self, step: CloneVm, op_id: str) -> TaskRef:
        """Beside its template."""
        source: Any = self._world.get(step.source)
        host: Any = self._world.get(step.host)
        pool = host.compute_resource().pool
        location = vim.vm.RelocateSpec(host=vim.HostSystem(step.host), pool=vim.ResourcePool(pool.moid))
        spec = vim.vm.CloneSpec(location=location, powerOn=False, template=False, config=_config(step))
        folder = vim.Folder(source.state.folder)
        task = self._change(
            "CloneVM_Task", step.source, lambda call: source.CloneVM_Task(call, folder, step.name, spec), op_id
        )
        return TaskRef(task.moid)

    def _override(self, step: SetVmDrs, inventory: Inventory, op_id: str) -> TaskRef:
        cluster = inventory.cluster_of(inventory.vm(step.vm))
        assert cluster is not None
        method, spec = METHODS[SetVmDrs], override_spec(step, exists=cluster.has_override(step.vm))
        task = self._change(
            method, cluster.ref, lambda call: getattr(self._world.get(cluster.ref), method)(call, spec, True), op_id
        )
        return TaskRef(task.moid)

    def _arguments(self, step: Step, inventory: Inventory) -> tuple[Any, ...]:
        match step:
            case ReconfigureVm():
                version = inventory.vm(step.vm).change_version or ""
                return (config_spec(step.change, version, (), inventory.api_version),)
            case PowerOnVm() | ResumeVm():
                return (vim.HostSystem(step.host) if step.host else None,)
            case RelocateVm():
                return (vim.vm.RelocateSpec(host=vim.HostSystem(step.host)), None)
            case _:
                return ()

    def _mark(self, step: SetAttribute, op_id: str) -> None:
        def mark(call: Call) -> None:
            key = self._world.custom_fields.define(step.name)
            self._world.get("CustomFieldsManager").SetField(call, vim.VirtualMachine(step.vm), key, step.value)

        self._change(METHODS[SetAttribute], step.vm, mark, op_id)

    def wait_for_change(self, timeout_s: float) -> bool:
        raise NotImplementedError("a night waits for no change that it did not ask for")

    def defined_attributes(self) -> frozenset[str]:
        return self._read(
            lambda: frozenset(custom_field.name for custom_field in self._world.custom_fields.fields.values())
        )

    # --- waiting ------------------------------------------------------------------------------------------------

    def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
        refs_left, left_s = [task.ref for task in tasks], max(timeout_s, 0.0)
        while refs_left:
            slice_s = min(SLICE_S, left_s)
            ended = self._updates(lambda: self._ended_tasks(refs_left), slice_s)
            if ended is None:
                left_s -= slice_s
                ended = [ref for ref in refs_left if self._asks(ref)]
            for ref in ended:
                refs_left.remove(ref)
                end = self._end(ref)
                self._changes.note_ended(ref, end.error)
                yield end
            if left_s <= 0:
                return

    def withdraw(self, tasks: Sequence[TaskRef]) -> None:
        for task_ref in tasks:
            task = self._task(task_ref.ref)
            if task is None or task.state is not TaskState.QUEUED:
                continue
            self._withdrawn.add(task_ref.ref)  # before: where the reply is lost, it may be cancelled all the same
            try:
                self._change("CancelTask", task_ref.ref, task.CancelTask, f"{CANCEL_OPERATION}{task_ref.ref}")
            except NotConnected:
                raise
            except (Lost, vmodl.MethodFault, GpuopsError):
                continue

    def wait_for_power(self, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
        def vms_in_state() -> frozenset[str]:
            vms_by_ref: dict[str, Any] = {vm: self._world.find(vm) for vm in vms}
            return frozenset(
                ref for ref, vm in vms_by_ref.items() if vm is not None and vm.state.power.value == power.value
            )

        removed_vms = [vm for vm in vms if self._world.find(vm) is None]
        self._updates(lambda: vms_in_state() if len(vms_in_state()) + len(removed_vms) >= len(vms) else None, timeout_s)
        return self._read(vms_in_state)

    def _ended_tasks(self, refs: Sequence[str]) -> list[str] | None:
        ended_refs = [ref for ref in refs if self._has_ended(ref)]
        return ended_refs or None

    def _has_ended(self, ref: str) -> bool:
        if ref.startswith(PREFIX):
            return self._guests.ended(ref)
        task = self._task(ref)
        return task is None or task.ended

    def _task(self, ref: str) -> Any:
        """The task, as long as vCenter knows it."""
        return self._world.find(ref)

    def _asks(self, ref: str) -> bool:
        task = self._task(ref)
        return task is not None and isinstance(task.entity, VirtualMachine) and task.entity.state.question is not None

    def _end(self, ref: str) -> TaskEnd:
        if ref.startswith(PREFIX):
            return self._guests.end(ref)
        task = self._task(ref)
        if task is None:
            return TaskEnd(
                TaskRef(ref), OutcomeUnknown(f"{ref}: vCenter has removed its task, so the result is not known"), None
            )
        if not task.ended:
            return TaskEnd(TaskRef(ref), OutcomeUnknown(f"{task.entity.name}: it asks a question"), None)
        error: GpuopsError | None = None
        if task.state is TaskState.ERROR:
            error = translate(task.error, task.entity.name)
        if ref in self._withdrawn and task.started_at is None:
            error = StepFailed(f"{task.entity.name}: its task was queued")
            error.trouble = Trouble.BUSY
        return TaskEnd(TaskRef(ref), error, (task.ended_at - (task.started_at or task.queued_at)).total_seconds())
