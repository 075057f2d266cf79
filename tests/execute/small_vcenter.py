"""A vCenter of a few VMs in memory: the executor's other side, with a ledger, lost replies and a point to be killed at.

It knows nothing of the planner or of `satisfied`: power states and GPU slots are kept by rules written here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpuops.errors import GpuopsError, NoFreeGpu, OutcomeUnknown, StepFailed, Trouble, VcenterUnreachable
from gpuops.execute.site.saved_inventory import SavedVcenter
from gpuops.model.devices.gpu import GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.measurements.measurement import CounterWindow
from gpuops.model.vcenter.host import Cluster, Datastore, Host, OfferedProfile
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import Guest, PowerState, RunningTask, VgpuDevice, Vm
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.placement.project import project

ON, OFF, SUSPENDED = PowerState.ON, PowerState.OFF, PowerState.SUSPENDED
SLOTS = {"nvidia_a40-24q": 2, "nvidia_a40-48q": 1, "nvidia_a40-48c": 1, "nvidia_a40-12q": 4}
METHODS = {
    SuspendVm: "SuspendVM_Task",
    PowerOnVm: "PowerOnVM_Task",
    ResumeVm: "PowerOnVM_Task",
    PowerOffVm: "PowerOffVM_Task",
    RelocateVm: "RelocateVM_Task",
    ReconfigureVm: "ReconfigVM_Task",
    RunInGuest: "",
}
"""TaskInfo.name: the method that made the task."""
START = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


class Killed(BaseException):
    """What `kill -9` is to a test: nothing of the engine may catch it."""


@dataclass(frozen=True)
class Effect:
    """One line of the ledger."""

    op_id: str
    step: Step
    was: PowerState | None


@dataclass
class _Task:
    step: Step
    op_id: str
    """Empty for one that another login asked for."""
    queued: datetime
    version: str | None = None
    """The changeVersion that the request went by."""
    error: GpuopsError | None = None
    ended: bool = False


@dataclass
class World:
    """The state of the world, as any reader sees it."""

    hosts: dict[str, Host]
    vms: dict[str, Vm]
    datastores: dict[str, Datastore]
    now: datetime = START
    ledger: list[Effect] = field(default_factory=list)
    requests: list[Step] = field(default_factory=list)
    tasks: dict[TaskRef, _Task] = field(default_factory=dict)
    on_gpu: dict[str, tuple[str, int]] = field(default_factory=dict)
    lose_before: set[type] = field(default_factory=set)
    """Kinds of steps whose first request is lost without an error."""
    lose_after: set[type] = field(default_factory=set)
    """Kinds of steps whose first request arrives, and its reply does not."""
    unreachable_for: type | None = None
    down_until: datetime | None = None
    """Nothing answers before then."""
    unreadable: GpuopsError | None = None
    """What a read ends with."""
    failing: dict[str, GpuopsError] = field(default_factory=dict)
    """VM -> the fault its tasks end with."""
    stubborn: set[str] = field(default_factory=set)
    """Guests that do not shut down."""
    hung: set[str] = field(default_factory=set)
    """VMs whose tasks never end."""
    queued: set[str] = field(default_factory=set)
    """VMs whose tasks wait for another task of the same VM, and can be cancelled until they begin."""
    lying: set[str] = field(default_factory=set)
    """VMs whose tasks succeed without an effect."""
    forgotten: bool = False
    """Whether vCenter lists no task as recent any more; its task history has them all."""
    guests_asked: set[str] = field(default_factory=set)
    on_submit: Callable[[Step], None] = lambda step: None
    in_flight_most: int = 0
    reads: int = 0
    """Bulk reads."""
    looks: int = 0
    """Reads of some VMs."""
    attributes: set[str] = field(default_factory=lambda: {"gpuops.rotation"})
    """Custom attributes that are defined."""
    tags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counters: dict[str, dict[str, CounterWindow]] = field(default_factory=dict)
    clusters: dict[str, Cluster] = field(default_factory=dict)

    def tick(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    def snapshot(self) -> Inventory:
        hosts = {ref: replace(host, gpus=self._gpus(host)) for ref, host in self.hosts.items()}
        vms = {ref: replace(vm, tasks=self._running_tasks(ref)) for ref, vm in self.vms.items()}
        return Inventory("vc-uuid", "8.0.3.0", self.now, hosts, vms, dict(self.clusters), dict(self.datastores))

    def _running_tasks(self, vm: str) -> tuple[RunningTask, ...]:
        vm_tasks = self.vms[vm].tasks
        ours = [
            (ref, task)
            for ref, task in self.tasks.items()
            if task.step.vm == vm and not task.ended and not isinstance(task.step, RunInGuest | SetVmDrs)
        ]
        return (*vm_tasks, *(RunningTask(ref.ref, METHODS[type(task.step)], "running") for ref, task in ours))

    def _gpus(self, host: Host) -> tuple[PhysicalGpu, ...]:
        holders = {vm: place for vm, place in self.on_gpu.items() if place[0] == host.ref}
        return tuple(
            replace(gpu, vms=tuple(vm for vm, (_, index) in holders.items() if index == number))
            for number, gpu in enumerate(host.gpus)
        )

    def power(self, name: str) -> PowerState | None:
        return next(vm.power for vm in self.vms.values() if vm.name == name)

    def set(self, ref: str, **changes: object) -> None:
        self.vms[ref] = replace(self.vms[ref], **changes)  # type: ignore[arg-type]

    def finish(self, ref: TaskRef) -> _Task:
        task = self.tasks[ref]
        if not task.ended:
            task.ended = True
            vm = task.step.vm
            task.error = self.failing.get(vm)
            if isinstance(task.step, ReconfigureVm) and task.version != self.vms[vm].change_version:
                task.error = StepFailed("it was changed by somebody else meanwhile")  # ConcurrentAccess
            if task.error is None and vm not in self.lying:
                task.error = self.apply(task.op_id, task.step)
        return task

    def settle(self) -> None:
        """What is in flight ends by itself, whether or not its client lives."""
        for ref, task in self.tasks.items():
            if task.step.vm not in self.hung:
                self.finish(ref)
        for vm in self.guests_asked - self.stubborn:
            if self.vms[vm].power is ON:
                self._set_power(vm, OFF)
        self.guests_asked.clear()

    def apply(self, op_id: str, step: Step) -> GpuopsError | None:
        vm = self.vms[step.vm]
        error = self._allowed(step, vm)
        if error is not None:
            return error
        self.ledger.append(Effect(op_id, step, vm.power))
        match step:
            case SuspendVm():
                self._set_power(step.vm, SUSPENDED)
            case PowerOnVm(host=host) | ResumeVm(host=host):
                self.set(step.vm, host=host or vm.host)
                self._set_power(step.vm, ON)
            case PowerOffVm():
                self._set_power(step.vm, OFF)
            case RelocateVm(host=host):
                self.set(step.vm, host=host)
            case ReconfigureVm(change=change):
                settings = {**(vm.extra_config or {}), **change.extra_config}
                self.set(
                    step.vm,
                    memory_locked=change.memory_locked,
                    extra_config={key: value for key, value in settings.items() if value},
                    change_version=f"{len(self.ledger)} changes",
                )
            case RunInGuest():
                pass
            case SetVmDrs():
                self.clusters = dict(project(step, self.snapshot()).clusters)
            case SetAttribute(name=name, value=value):
                other_attributes = {key: old for key, old in vm.attributes.items() if key != name}
                self.set(step.vm, attributes=other_attributes | ({name: value} if value else {}))
            case _:
                raise AssertionError(step)
        return None

    def _allowed(self, step: Step, vm: Vm) -> GpuopsError | None:
        wrong = StepFailed(f"{vm.name} is {vm.power}: not possible in this state")
        wrong.trouble = Trouble.STATE
        match step:
            case SuspendVm() | PowerOffVm() if vm.power is OFF or (isinstance(step, SuspendVm) and vm.power is not ON):
                return wrong
            case PowerOnVm() | ResumeVm() if vm.power is ON:
                return wrong
            case PowerOnVm(host=host) | ResumeVm(host=host) if self._gpu_for(vm, host or vm.host or "") is None:
                return NoFreeGpu("not enough graphics resources")
            case _:
                return None

    def _gpu_for(self, vm: Vm, host: str) -> int | None:
        """Same-size mode: an empty GPU, or one with room that holds the same profile."""
        [profile] = vm.profiles or ("",)
        if not profile:
            return 0
        for number in range(len(self.hosts[host].gpus)):
            profiles_on_gpu = [self.vms[ref].profiles for ref, place in self.on_gpu.items() if place == (host, number)]
            if all(profiles == (profile,) for profiles in profiles_on_gpu) and len(profiles_on_gpu) < SLOTS[profile]:
                return number
        return None

    def _set_power(self, ref: str, power: PowerState) -> None:
        vm = self.vms[ref]
        if power is ON:
            number = self._gpu_for(vm, vm.host or "")
            assert number is not None
            self.on_gpu[ref] = (vm.host or "", number)
        else:
            self.on_gpu.pop(ref, None)
        self.set(ref, power=power, tools_running=power is ON)


class SmallVcenter(SavedVcenter):
    """Implements `Vcenter` on a world; what it leaves out is as of a saved inventory. `point` is called around every
    effect, and may raise Killed.
    """

    def __init__(self, world: World, point: Callable[[str], None] = lambda name: None) -> None:
        self.world = world
        self.point = point

    @property
    def uuid(self) -> str:
        return "vc-uuid"

    @property
    def applied(self) -> bool | None:
        return None

    def no_way_in(self, hook: RunInGuest) -> str | None:
        return None

    def _reach(self) -> None:
        down_until = self.world.down_until
        if down_until is not None and self.world.now < down_until:
            raise VcenterUnreachable("nothing answers")

    def inventory(self) -> Inventory:
        self._reach()
        self.world.reads += 1
        return self.world.snapshot()

    def with_tags(self, inventory: Inventory, vms: Collection[str] | None = None) -> Inventory:
        selected_vms = inventory.vms if vms is None else vms
        tagged_vms = {
            ref: replace(vm, tags=self.world.tags.get(ref, ()))
            for ref, vm in inventory.vms.items()
            if ref in selected_vms
        }
        return replace(inventory, vms={**inventory.vms, **tagged_vms})

    def with_counters(
        self, inventory: Inventory, vms: Collection[str], names: Collection[str], over_s: int
    ) -> Inventory:
        vms_with_counters = {ref: replace(inventory.vms[ref], counters=self.world.counters.get(ref, {})) for ref in vms}
        return replace(inventory, vms={**inventory.vms, **vms_with_counters})

    def with_drs(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        return replace(inventory, clusters=dict(self.world.clusters))

    def with_creation(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        self._reach()
        return inventory

    def observe(self, inventory: Inventory, vms: Collection[str]) -> Inventory:
        self._reach()
        if self.world.unreadable is not None:
            raise self.world.unreadable
        self.world.looks += 1
        now = self.world.snapshot()
        fresh = {
            ref: replace(now.vms[ref], tags=vm.tags) if ref in vms else vm
            for ref, vm in inventory.vms.items()
            if ref in now.vms
        }
        return replace(inventory, vms=fresh, hosts=now.hosts, datastores=now.datastores, taken_at=now.taken_at)

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        world, kind = self.world, type(step)
        world.on_submit(step)
        self.point(f"before {step}")
        self._reach()
        if world.unreachable_for is kind:
            raise VcenterUnreachable("nothing answers")
        world.requests.append(step)
        if kind in world.lose_before:
            world.lose_before.discard(kind)
            raise OutcomeUnknown("connection reset")
        ref = self.receive(step, op_id, inventory.vms[step.vm].change_version)
        self.point(f"sent, no reply yet: {step}")
        if kind in world.lose_after:
            world.lose_after.discard(kind)
            raise OutcomeUnknown("connection reset")
        return ref

    def receive(self, step: Step, op_id: str, version: str | None = None) -> TaskRef | None:
        """A request arrives."""
        world = self.world
        if isinstance(step, ShutDownGuest):
            if world.vms[step.vm].tools_running is False:
                raise StepFailed("VMware Tools do not run in the guest")
            world.guests_asked.add(step.vm)
            return None
        if isinstance(step, SetAttribute):
            world.apply(op_id, step)
            return None
        ref = TaskRef(f"task-{len(world.tasks) + 1}")
        world.tasks[ref] = _Task(step, op_id, world.tick(), version)
        world.in_flight_most = max(world.in_flight_most, sum(not task.ended for task in world.tasks.values()))
        return ref

    def wait(self, tasks: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
        self._reach()
        for ref in tasks:
            task = self.world.tasks[ref]
            if task.step.vm in self.world.hung | self.world.queued and not task.ended:
                continue
            self.point(f"before the effect of {ref}")
            task = self.world.finish(ref)
            self.point(f"after the effect of {ref}")
            yield TaskEnd(ref, task.error, 1.0)
        self.world.now += timedelta(seconds=timeout_s)

    def withdraw(self, tasks: Sequence[TaskRef]) -> None:
        for task in (self.world.tasks[ref] for ref in tasks):
            if task.step.vm in self.world.queued:
                task.ended, task.error = True, StepFailed("the task was canceled by a user")

    def wait_for_power(self, vms: Collection[str], power: PowerState, timeout_s: float) -> frozenset[str]:
        self.point("waiting for guests")
        for ref in (self.world.guests_asked & set(vms)) - self.world.stubborn:
            if self.world.vms[ref].power is ON:
                self.world._set_power(ref, OFF)
        self.world.now += timedelta(seconds=timeout_s)
        return frozenset(ref for ref in vms if self.world.vms[ref].power is power)

    def wait_for_change(self, timeout_s: float) -> bool:
        """Time passes without news: the caller looks again when the time is up."""
        self.point("waiting for a change")
        self.world.now += timedelta(seconds=timeout_s)
        return False

    def wait_for_guest(self, vm: str, timeout_s: float, *, address: bool) -> Guest:
        return Guest(self.world.vms[vm].tools_running, None)

    def defined_attributes(self) -> frozenset[str]:
        return frozenset(self.world.attributes)

    def define_attribute(self, name: str, op_id: str) -> None:
        self.world.attributes.add(name)

    def find_task(self, step: Step, since: datetime, login: str = "", known: Collection[str] = ()) -> TaskRef | None:
        listed = {} if self.world.forgotten else self.world.tasks
        candidates = [ref for ref, task in listed.items() if task.step == step and task.queued > since]
        return replace(candidates[-1], foreign=not self.world.tasks[candidates[-1]].op_id) if candidates else None

    def started_by_this_login(self, vm: str, since: datetime, login: str = "") -> bool:
        starts = self._starts(vm, since)
        return (True, True) in starts or ((True, False) in starts and (False, True) not in starts)

    def started_by_others(self, vm: str, since: datetime) -> bool:
        return (False, True) in self._starts(vm, since)

    def has_power_task_near(self, vm: str, moment: datetime) -> bool | None:
        self._reach()
        near = (task for task in self.world.tasks.values() if abs(task.queued - moment) <= timedelta(hours=1))
        return any(isinstance(task.step, PowerOnVm | SuspendVm) and task.step.vm == vm for task in near)

    def _starts(self, vm: str, since: datetime) -> set[tuple[bool, bool]]:
        """Whether this login asked for it, and whether it has not failed."""
        self._reach()
        starts = [task for task in self.world.tasks.values() if isinstance(task.step, PowerOnVm) and task.step.vm == vm]
        return {(bool(task.op_id), task.error is None) for task in starts if task.queued > since}


def small_world(*, spread: bool = False) -> World:
    """Two hosts with two A40 each: five desktops of two sizes on the first, a free second; two ML VMs that wait."""
    offered = tuple(OfferedProfile(name, suspend=True) for name in SLOTS)
    hosts = {
        f"host-{number}": Host(
            ref=f"host-{number}",
            name=f"esx-{number:02d}",
            connected=True,
            in_maintenance=False,
            memory_mib=1024 * 1024,
            memory_used_mib=64 * 1024,
            cpu_cores=64,
            datastores=("ds-1",),
            gpus=tuple(_gpu(slot) for slot in range(2)),
            profiles=offered,
        )
        for number in (1, 2)
    }
    vms = [
        *(desktop(number, "nvidia_a40-24q", "host-1") for number in (1, 2)),
        *(desktop(number, "nvidia_a40-12q", "host-1") for number in (3, 4, 5)),
        ml(1, "host-1"),
        ml(2, "host-2"),
    ]
    world = World(
        hosts=hosts,
        vms={vm.ref: vm for vm in vms},
        datastores={"ds-1": Datastore("ds-1", "ssd", free_mib=4 * 1024 * 1024, accessible=True)},
    )
    for vm in vms:
        if vm.power is ON:
            world._set_power(vm.ref, ON)
    return world


def _gpu(slot: int) -> PhysicalGpu:
    return PhysicalGpu(
        address=PciAddress(0, 0x3B + slot * 0x10, 0, 0),
        name="NVIDIA A40",
        vendor_id=0x10DE,
        device_id=0x2235,
        memory_mib=49152,
        graphics_type=GraphicsType.SHARED_DIRECT,
        vgpu_mode=VgpuMode.SAME_SIZE,
        numa_node=slot,
    )


def desktop(number: int, profile: str, host: str) -> Vm:
    return _vm(f"vm-{number}", f"desktop-{number:02d}", "desktops", profile, host, ON)


def ml(number: int, host: str) -> Vm:
    return _vm(f"vm-9{number}", f"ml-{number:02d}", "ml", "nvidia_a40-48c", host, OFF)


def _vm(ref: str, name: str, folder: str, profile: str, host: str, power: PowerState) -> Vm:
    return Vm(
        ref=ref,
        name=name,
        path=f"/dc/vm/{folder}/{name}",
        instance_uuid=f"50{ref}",
        host=host,
        power=power,
        connected=True,
        template=False,
        vcpus=8,
        memory_mib=16384,
        memory_reservation_mib=16384,
        memory_locked=True,
        change_version="0 changes",
        cpu_usage_mhz=50 if power is ON else 0,
        console_connections=0,
        datastores=("ds-1",),
        snapshots=0,
        devices=(VgpuDevice(13000, profile),),
        extra_config={},
        tools_running=power is ON,
    )
