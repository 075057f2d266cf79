"""Powers VMs on and off, suspends and resets them, answers their questions, and moves them as DRS and HA do.

A task checks the power state when it starts; admission happens at the moment the VM would run, so of two power-ons for
one last slot the later one is refused. A suspended VM holds no slot; its resume is an admission like any other.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.call import Call
from gpuops.sim.inventory import faults
from gpuops.sim.operations.host_admission import Admission, admission, place
from gpuops.sim.operations.recording import recorded
from gpuops.sim.state.vm_state import Power, merged_options

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity, VmEntity
    from gpuops.sim.inventory.managed_entity import ManagedEntity


def boot(vm: VmEntity) -> None:
    """Boot the guest now; VMware Tools run after the template's `boot_s` seconds (None = never)."""
    state, booted_at = vm.state, vm.world.clock.now()
    takes_s = state.template.boot_s
    state.boot_time, state.guest_boots = booted_at, takes_s != 0
    if state.boot.enter_setup:  # once (vSphere API, VirtualMachineBootOptions)
        state.boot = replace(state.boot, enter_setup=False)

    def finish_boot() -> None:
        if vm.is_registered and vm.state.boot_time == booted_at:  # else it was stopped or booted again meanwhile
            vm.state.guest_boots = False
            vm.power_changed()

    if takes_s:
        vm.world.clock.schedule(takes_s, finish_boot)


POWER_ON_S: Final = 4.0
POWER_OFF_S: Final = 1.5
RESET_S: Final = 2.0
GUEST_SHUTDOWN_S: Final = 25.0
GUEST_REBOOT_S: Final = 40.0
DATASTORE_GIB_PER_S: Final = 1.0
"""Throughput of one datastore; VMs that suspend or resume at the same time share it."""
CHECKPOINT_TASKS: Final = ("SuspendVM_Task", "PowerOnVM_Task")

_NO_CHECKPOINT = re.compile(r"pcipassthru\d+\.cfg\.enable_(uvm|debugging|profiling)")


def power_on(vm: VmEntity, call: Call, host: Any) -> Any:
    """PowerOnVM_Task: boot a VM that is off, resume one that is suspended."""
    requested_host = vm.world.get(host) if host is not None else None
    resuming = False

    def begin() -> None:
        nonlocal resuming
        resuming = vm.state.power is Power.SUSPENDED
        _refuse_start(vm)
        vm.post(call, "VmResumingEvent" if resuming else "VmStartingEvent")

    def finish() -> None:
        if resuming and vm.state.power is not Power.SUSPENDED:
            raise faults.wrong_power_state(vm.state.power, Power.ON)  # nothing is left to resume, and this is no boot
        with recorded(vm, call):
            chosen, admitted = place(vm, requested_host)
            start(vm, chosen.moid, admitted.seats, admitted.held)
        vm.post(call, "VmPoweredOnEvent")

    def takes_s() -> float:
        return checkpoint_s(vm, vm.state.suspend_file_mib) if vm.state.power is Power.SUSPENDED else POWER_ON_S

    return vm.world.tasks.start(
        call, "PowerOnVM_Task", vm, takes_s, begin=begin, finish=_posting_failure(vm, call, finish)
    )


def power_off(vm: VmEntity, call: Call) -> Any:
    """PowerOffVM_Task: power the VM off without its guest; a suspended VM loses its suspended memory."""

    def begin() -> None:
        vm.refuse_while_question_pending()
        if vm.state.power is Power.OFF:
            raise faults.wrong_power_state(Power.OFF, Power.ON)
        vm.post(call, "VmStoppingEvent")

    return vm.world.tasks.start(
        call, "PowerOffVM_Task", vm, POWER_OFF_S, begin=begin, finish=lambda: stop(vm, call, clean=False)
    )


def suspend(vm: VmEntity, call: Call) -> Any:
    """SuspendVM_Task: write memory and frame buffer to the datastore and free the vGPU slots."""
    size_mib = 0

    def begin() -> None:
        nonlocal size_mib
        size_mib = checkpoint_mib(vm)
        vm.refuse_while_question_pending()
        _require_on(vm)
        if "suspend-refusal" not in vm.world.deviations:  # assumption: suspend-refusal
            require_suspendable(vm)
        _require_space(vm, size_mib)
        vm.post(call, "VmSuspendingEvent")

    return vm.world.tasks.start(
        call,
        "SuspendVM_Task",
        vm,
        lambda: checkpoint_s(vm, checkpoint_mib(vm)),
        begin=begin,
        finish=lambda: _finish_suspend(vm, call, size_mib),
    )


def reset(vm: VmEntity, call: Call) -> Any:
    """ResetVM_Task: boot the guest again; the VM keeps its devices and its places on GPUs."""

    def begin() -> None:
        vm.refuse_while_question_pending()
        _require_on(vm)

    def finish() -> None:
        boot(vm)
        vm.power_changed()
        vm.post(call, "VmResettingEvent")

    return vm.world.tasks.start(call, "ResetVM_Task", vm, RESET_S, begin=begin, finish=finish)


def shut_down_guest(vm: VmEntity, call: Call) -> None:
    """ShutdownGuest: returns at once; the VM is off GUEST_SHUTDOWN_S later, unless its guest ignores the request."""
    _require_tools(vm)
    boot_time = vm.state.boot_time
    vm.post(call, "VmGuestShutdownEvent")

    def stop_guest() -> None:
        if vm.is_registered and vm.state.power is Power.ON and vm.state.boot_time == boot_time:
            stop(vm, call, clean=True)

    if not vm.ignores_shutdown:
        vm.world.clock.schedule(GUEST_SHUTDOWN_S, stop_guest)


def reboot_guest(vm: VmEntity, call: Call) -> None:
    """RebootGuest: returns at once; the guest boots GUEST_REBOOT_S later."""
    _require_tools(vm)
    vm.post(call, "VmGuestRebootEvent")

    def finish_reboot() -> None:
        if vm.is_registered and vm.state.power is Power.ON:
            boot(vm)
            vm.power_changed()

    vm.world.clock.schedule(GUEST_REBOOT_S, finish_reboot)


def stand_by_guest(vm: VmEntity, call: Call) -> None:
    """StandbyGuest: the guest sleeps and keeps its vGPU; the VM stays powered on (standbyAction `powerOnSuspend`)."""
    _require_tools(vm)
    vm.post(call, "VmGuestStandbyEvent")


def terminate(vm: VmEntity, call: Call) -> None:
    """TerminateVM: power the VM off at once, without a task."""
    _require_on(vm)
    stop(vm, call, clean=False)


def stop(vm: VmEntity, call: Call, *, clean: bool) -> None:
    """Power the VM off from any state, free its GPUs and devices, and drop its suspended memory.

    `clean` says whether the guest shut itself down.
    """
    with recorded(vm, call):
        _discard_checkpoint(vm)
        state = vm.state
        state.power, state.seats, state.held = Power.OFF, (), ()
        state.boot_time, state.suspend_time = None, None
        state.clean_power_off, state.question = clean, None
        vm.power_changed()
    vm.post(call, "VmPoweredOffEvent")


def require_suspendable(vm: VmEntity) -> None:
    """Raises InvalidPowerState or NotSupported if the VM cannot be suspended now (the type of fault: from memory).

    A VM cannot be suspended with a DirectPath device (VMware vSphere 8.0 docs), with unified memory, the debugger or
    the profiler of a vGPU (NVIDIA AI Enterprise docs), or with a vGPU profile whose suspendSupported is false.
    """
    _require_on(vm)
    if vm.state.has_fixed_devices:
        raise faults.not_supported("A virtual machine with a passthrough device cannot be suspended.")
    types_without_suspend = vm.host().state.no_suspend
    refused_types = [vgpu.type_name for vgpu in vm.state.vgpus if vgpu.type_name in types_without_suspend]
    if refused_types:
        raise faults.not_supported(
            f"Suspend is not supported for vGPU profile {refused_types[0]} on host {vm.host().name}."
        )
    blocking_option = next(
        (key for key, on in vm.state.extra_config if on == "1" and _NO_CHECKPOINT.fullmatch(key.lower())), ""
    )
    if blocking_option:
        raise faults.not_supported(f"Suspend is not supported while {blocking_option} is set.")


def checkpoint_mib(vm: VmEntity) -> int:
    """Size of the suspended state: the memory, and the frame buffers of the vGPUs."""
    return vm.state.memory_mib + sum(seat.type.framebuffer_mib for seat in vm.state.seats)


def checkpoint_s(vm: VmEntity, size_mib: int) -> float:
    """Return how long the datastore takes to write or read a suspended state of `size_mib`, in seconds.

    Other suspends and resumes that run on the same datastore share its throughput.
    """
    tasks = [task for task in vm.world.tasks.unfinished() if task.name in CHECKPOINT_TASKS and task.entity is not vm]
    running_tasks = [task for task in tasks if not vm.world.tasks.waits(task)]
    other_count = sum(getattr(task.entity, "state", vm.state).datastore == vm.state.datastore for task in running_tasks)
    return size_mib / 1024 / DATASTORE_GIB_PER_S * (1 + other_count)


def _refuse_start(vm: VmEntity) -> None:
    vm.refuse_while_question_pending()
    if vm.state.power is Power.ON:
        raise faults.wrong_power_state(Power.ON, Power.OFF)
    if vm.state.is_template:
        raise faults.not_supported("A template cannot be powered on.")


def start(vm: VmEntity, host: str, seats: Any, held_devices: Any) -> None:
    """Set the VM running on `host` with these vGPU slots and devices; a suspended VM resumes, others boot."""
    state, now = vm.state, vm.world.clock.now()
    if host != state.host:
        vm.register_on(host)
    resumed = state.power is Power.SUSPENDED
    _discard_checkpoint(vm)
    state.power, state.seats, state.held = Power.ON, seats, held_devices
    if not resumed:
        boot(vm)
        # The host writes these at power-on; clients must neither compare nor restore them.
        cookie = {"numa.autosize.cookie": f"{state.cpus}0001", "numa.autosize.vcpu.maxPerVirtualNode": f"{state.cpus}"}
        state.extra_config = merged_options(state.extra_config, cookie)
        state.change, state.changed_at = state.change + 1, now
    vm.power_changed()
    schedule_move_if_deviating(vm)


def _require_space(vm: VmEntity, size_mib: int) -> None:
    store = vm.datastore()
    if store.free_mib < size_mib:
        raise faults.no_disk_space(vm.state.home + ".vmem", store.name)


def _finish_suspend(vm: VmEntity, call: Call, size_mib: int) -> None:
    """Write the suspended memory to the datastore and free the GPUs, or raise the fault of a refusal."""
    # Checked again: while the task ran, the guest may have shut down, or other VMs may have filled the datastore.
    try:
        require_suspendable(vm)
    except vmodl.fault.NotSupported as refusal:
        if "suspend-refusal" not in vm.world.deviations:
            raise
        # the deviation: the host refuses at the end, with another fault than vCenter's check at the beginning
        raise faults.will_not_power_on(refusal.msg) from refusal
    _require_space(vm, size_mib)
    with recorded(vm, call):
        vm.datastore().use(size_mib)
        state = vm.state
        state.power, state.seats, state.held = Power.SUSPENDED, (), ()
        state.suspend_time, state.suspend_file_mib = vm.world.clock.now(), size_mib
        vm.power_changed()
    vm.post(call, "VmSuspendedEvent")
    schedule_move_if_deviating(vm)


def restore_checkpoint(vm: VmEntity, taken_at: datetime) -> None:
    """Set the VM suspended, with memory that was saved at `taken_at`; free its GPUs and devices."""
    _discard_checkpoint(vm)
    state, size_mib = vm.state, checkpoint_mib(vm)
    vm.datastore().use(size_mib)
    state.power, state.seats, state.held, state.question = Power.SUSPENDED, (), (), None
    state.boot_time = state.boot_time or taken_at
    state.suspend_time, state.suspend_file_mib = taken_at, size_mib
    vm.power_changed()


def _discard_checkpoint(vm: VmEntity) -> None:
    if vm.state.suspend_file_mib:
        vm.datastore().use(-vm.state.suspend_file_mib)
        vm.state.suspend_file_mib = 0


def _posting_failure(vm: VmEntity, call: Call, finish: Any) -> Any:
    """Return an effect that calls `finish`; on a fault it posts VmFailedToPowerOnEvent and raises the fault again."""

    def effect() -> None:
        try:
            finish()
        except vmodl.MethodFault as refusal:
            vm.post(call, "VmFailedToPowerOnEvent", reason=refusal)
            raise

    return effect


def _require_on(vm: VmEntity) -> None:
    if vm.state.power is not Power.ON:
        raise faults.wrong_power_state(vm.state.power, Power.ON)


def _require_tools(vm: VmEntity) -> None:
    vm.refuse_while_question_pending()
    _require_on(vm)
    if not vm.state.tools_run:
        raise faults.tools_unavailable()
    vm.world.tasks.refuse_if_busy(vm)


DECISION_S: Final = 1.0


def power_on_all(datacenter: ManagedEntity, call: Call, references: list[Any]) -> Any:
    """Return the task whose result is a ClusterPowerOnVmResult, with one power-on task for each VM attempted."""

    def finish() -> Any:
        result = vim.cluster.PowerOnVmResult()
        for reference in references:
            try:
                vm = datacenter.world.get(reference)
                if vm.state.power is Power.ON:
                    raise faults.wrong_power_state(Power.ON, Power.OFF)
                refusal = datacenter.world.injector.refusal("PowerOnVM_Task", vm)
                if refusal is not None:
                    raise refusal
                task = power_on(vm, call, None)
            except vmodl.MethodFault as fault:
                result.notAttempted.append(vim.cluster.NotAttemptedVmInfo(vm=reference, fault=fault))
            else:
                result.attempted.append(vim.cluster.AttemptedVmInfo(vm=reference, task=task.ref))
        return result

    return datacenter.world.tasks.start(call, "PowerOnMultiVM_Task", datacenter, DECISION_S, finish=finish)


CANCEL = "1"
"""The choice that stops the VM, as in `msg.hbacommon.outofspace` (0 retries)."""


def answer(vm: VmEntity, call: Call, question_id: str, choice: str) -> None:
    """AnswerVM: answer the pending question; the choice that cancels powers the VM off.

    Raises ConcurrentAccess unless the question of this id is pending, InvalidArgument for an unknown choice.
    """
    question = vm.state.question
    if question is None or question.id != question_id:
        raise vim.fault.ConcurrentAccess(msg="The question is no longer pending.")
    if choice not in dict(question.choices):
        raise faults.wrong_argument("answerChoice")
    if choice == CANCEL and vm.state.power is Power.ON:
        stop(vm, call, clean=False)
        return
    with recorded(vm, call):
        vm.state.question = None
        vm.touch("runtime", "summary")


MOVE_AFTER_S: Final = 60.0
"""How long after a suspend or a start a VM is moved, with the deviations `suspended-vm-host` and `drs-vgpu-vms`."""


def move_elsewhere(vm: VmEntity) -> None:
    """Move the VM to the first other host of its cluster that admits it; without one nothing happens."""
    call, source = Call(method="MigrateVM_Task", version=vm.world.api_version), vm.host()
    for target in vm.host().compute_resource().hosts():
        admitted = _admission_on(vm, target)
        if admitted is not None:
            with recorded(vm, call):
                vm.state.seats, vm.state.held = admitted.seats, admitted.held
                vm.register_on(target.moid)
                vm.power_changed()
            if vm.state.power is Power.ON:
                source_argument = vim.event.HostEventArgument(name=source.name, host=source.ref)
                vm.post(call, "DrsVmMigratedEvent", sourceHost=source_argument)
            return


def schedule_move_if_deviating(vm: VmEntity) -> None:
    """Schedule a move, a minute from now, of a vGPU VM just suspended or started, if the deviation is set.

    assumption: suspended-vm-host, assumption: drs-vgpu-vms
    """
    power = vm.state.power
    deviation = "suspended-vm-host" if power is Power.SUSPENDED else "drs-vgpu-vms"

    def move_if_unchanged() -> None:
        if vm.is_registered and vm.state.power is power:
            move_elsewhere(vm)

    if deviation in vm.world.deviations and vm.state.vgpus:
        vm.world.clock.schedule(MOVE_AFTER_S, move_if_unchanged, background=True)


def _admission_on(vm: VmEntity, target: HostEntity) -> Admission | None:
    if target is vm.host() or vm.state.datastore not in target.state.datastores or not target.state.usable:
        return None
    if vm.state.power is not Power.ON:
        return Admission()
    try:
        return admission(vm, target)
    except vmodl.MethodFault:
        return None
