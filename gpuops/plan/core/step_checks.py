"""Checks a step with facts that were read just before it is sent, because the plan may be minutes old by then.

`is_satisfied` returns whether a step is done; the executor calls it before and after every step. `objection` returns
why a step must not be sent: the VM is not the planned one, the desktop to suspend is not idle, or the step would
destroy the suspended state of a guest. `host_satisfied` and `host_objection` do the same for steps on hosts.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, assert_never

from gpuops.advise.idle import idleness
from gpuops.advise.managed_vms import left_to_manager
from gpuops.model.nights.night_record import Role, parse_marker
from gpuops.model.nights.rotation_policy import IdleRule
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    PowerState,
    VgpuDevice,
    Vm,
    VmDrs,
    is_pin,
    passthru_number,
    pin_key,
)
from gpuops.plan.core.passthru_devices import signature, signatures
from gpuops.plan.core.steps import (
    CloneVm,
    CloseGate,
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    CreationStep,
    HostStep,
    NewDirectPath,
    OpenGate,
    PassthroughChange,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemovalStep,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)


def is_satisfied(step: Step, inventory: Inventory) -> bool:
    """Return whether the step is done according to this snapshot; False if that cannot be read.

    Raises VmNotFound if the VM is not in the snapshot, unless the step makes or removes it.
    """
    if isinstance(step, CreationStep | RemoveVm):
        return _is_made_or_removed(step, inventory)
    vm = inventory.vm(step.vm)
    match step:
        case ReconfigureVm(change=change):
            return _devices_done(change, vm) and _settings_done(change, vm) and not pins_without_device(change, vm)
        case RelocateVm(host=host):
            return vm.host == host
        case PowerOnVm() | ResumeVm():
            # also done if it runs on another host than requested: a second power-on would not move it
            return vm.power is PowerState.ON
        case SuspendVm():
            return vm.power is PowerState.SUSPENDED
        case PowerOffVm() | PowerOffForRemoval() | ShutDownGuest() | RunInGuest():
            return vm.power is PowerState.OFF  # RunInGuest too: a guest that is off has no work to save
        case SetVmDrs(drs=drs):
            return inventory.drs_of(vm) is drs
        case SetAttribute(name=name, value=value):
            # an empty text clears the attribute, and vCenter does not report a cleared one
            return vm.attributes.get(name, "") == value
        case CloseGate() | OpenGate():
            return vm.gate is not None and vm.gate.closed is isinstance(step, CloseGate)
        case _:
            assert_never(step)


def _is_made_or_removed(step: CreationStep | RemoveVm, inventory: Inventory) -> bool:
    """Return whether the new VM exists, or the removed one is gone.

    A VM at the path of the new one is the new one, unless the step sets settings of which that VM has none. One of them
    is enough, because a snapshot does not hold all settings of a VM.
    """
    if isinstance(step, RemoveVm):
        return step.vm not in inventory.vms
    settings = step.settings if isinstance(step, CloneVm) else {}
    return any(
        vm.is_called(step.path)
        and vm.template is False
        and (not settings or bool((vm.extra_config or {}).items() & settings.items()))
        for vm in inventory.vms.values()
    )


def _devices_done(change: VmChange, vm: Vm) -> bool:
    """Return whether the VM has the devices after the change."""
    if not (change.add or change.remove or change.replace_profile):
        return True
    if vm.devices is None:
        return False
    if change.devices_after is not None:
        return signatures(vm.devices) == change.devices_after and not _has_old_entries(change, vm)
    # The plan did not predict all devices: the old ones must be gone, and the new ones must exist.
    profiles = {device.key: device.profile for device in vm.devices if isinstance(device, VgpuDevice)}
    missing = Counter(map(signature, change.add)) - Counter(map(signature, vm.devices))
    return (
        not missing
        and not any(device.key in change.remove for device in vm.devices)
        and all(profiles.get(key) == profile for key, profile in change.replace_profile)
    )


def _has_old_entries(change: VmChange, vm: Vm) -> bool:
    """Return whether a DirectPath entry that the change replaces, with the same address, is still the old one."""
    new_entries = {device.address: device for device in change.add if isinstance(device, NewDirectPath)}
    return bool(change.remove) and any(
        (device.vendor_id, device.device_id, device.system_id.lower())
        != (new_entry.vendor_id, new_entry.device_id, new_entry.system_id.lower())
        for device in vm.devices or ()
        if isinstance(device, DirectPathDevice) and (new_entry := new_entries.get(device.address)) is not None
    )


def pins_without_device(change: VmChange, vm: Vm) -> tuple[str, ...]:
    """Return the pins of the change (extraConfig keys) whose `pciPassthruN` is not a device of the VM.

    N follows from the key that vCenter gives to a new device, and the plan can only predict it. If the prediction was
    wrong, the pin has no effect, and the VM would start with a GPU of any NUMA node.
    """
    if vm.devices is None or not change.add:
        return ()
    pin_keys = {pin_key(passthru_number(device.key)) for device in vm.devices}
    return tuple(key for key, text in change.extra_config.items() if text and is_pin(key) and key not in pin_keys)


def _settings_done(change: VmChange, vm: Vm) -> bool:
    """Return whether the VM has every setting that the change names."""
    requested_and_present = (
        (change.memory_locked, vm.memory_locked),
        (change.memory_reservation_mib, vm.memory_reservation_mib),
        (change.cpu_hot_add, vm.cpu_hot_add),
        (change.cores_per_numa_node, vm.cores_per_numa_node),
    )
    if any(requested is not None and requested != present for requested, present in requested_and_present):
        return False
    present_config = vm.extra_config
    if present_config is None:
        return not change.extra_config
    # an empty text removes the key, so a missing key is as requested then
    return all(present_config.get(key, "") == text for key, text in change.extra_config.items())


GONE: Final = "is gone from vCenter"
STATE_LOST: Final = "is powered off: somebody else discarded its suspended state, so gpuops does not power it on"
POWER_UNKNOWN: Final = "its power state cannot be read: a power-off might discard the guest's memory"
STATE_KEPT: Final = "is suspended: {} would discard the guest's memory"
NOT_MADE: Final = "is not the VM that gpuops created (its name or notes differ): gpuops does not change it"
NOT_OFF: Final = "is not powered off: gpuops does not remove it"


def objection(step: Step, planned: Inventory, now: Inventory, idle: IdleRule | None = None) -> str | None:
    """Return why this step must not be sent now; None = it may be sent.

    `idle`: the rule by which the VM of the step is idle; without it, no desktop is suspended.
    `planned`: the snapshot of the plan; `now`: the one that was read just before.
    Source of the power-off rule: vSphere API, VirtualMachine.PowerOffVM_Task (a suspended VM loses its state).
    """
    if isinstance(step, CreationStep):
        unusable = _unusable_template(step, planned, now) if isinstance(step, CloneVm) else None
        return f"its template {unusable}" if unusable is not None else None
    vm = now.vms.get(step.vm)
    if vm is None:
        return GONE
    not_ours = _not_ours(step, vm, planned.vms.get(step.vm))
    if not_ours is not None:
        return not_ours
    match step:
        case ReconfigureVm() | RelocateVm() | SetAttribute() | SetVmDrs() | CloseGate() | OpenGate():
            return None
        case SuspendVm(gives_way=gives_way):  # an ML VM need not be idle: its work stays in its memory
            return None if gives_way else idleness(vm, idle).objection
        case ResumeVm() | PowerOnVm(resumes=True):
            return STATE_LOST if vm.power is PowerState.OFF else None
        case PowerOnVm():
            return STATE_KEPT.format("a cold boot") if vm.power is PowerState.SUSPENDED else None
        case PowerOffVm() | ShutDownGuest() | RunInGuest():
            return _not_running(step, vm)
        case PowerOffForRemoval() | RemoveVm():
            return _not_removable(step, vm)


def _unusable_template(step: CloneVm, planned: Inventory, now: Inventory) -> str | None:
    """Return why the template cannot be cloned any more, or None."""
    template = now.vms.get(step.source)
    if template is None:
        return GONE
    if not template.template:
        return "is not a template any more"
    return _another_vm(template, planned.vms.get(step.source))


def _not_ours(step: Step, vm: Vm, before: Vm | None) -> str | None:
    """Return why this may be another VM than the planned one (`before`), or who manages it now; None = neither."""
    return _another_vm(vm, before) or (None if _gives_back(step, vm) else left_to_manager(vm))


def _another_vm(vm: Vm, before: Vm | None) -> str | None:
    if vm.instance_uuid is None:
        return "has no readable instance uuid, so it may be another VM"
    if before is not None and before.instance_uuid != vm.instance_uuid:
        return "is another VM than the one planned for: its instance uuid changed"
    return None


def _not_running(step: PowerOffVm | ShutDownGuest | RunInGuest, vm: Vm) -> str | None:
    """Return why a step for a running VM must not be sent: the VM is suspended, or may be."""
    if isinstance(step, RunInGuest):
        return "is suspended: no program runs in it" if vm.power is PowerState.SUSPENDED else None
    if vm.power is None and isinstance(step, PowerOffVm):  # a request to the guest does no harm, a power-off might
        return POWER_UNKNOWN
    return STATE_KEPT.format("a power-off") if vm.power is PowerState.SUSPENDED else None


def _not_removable(step: RemovalStep, vm: Vm) -> str | None:
    """Return why the VM must not be removed: it may not be the one that gpuops created, or it may run."""
    if vm.name != step.name:
        return NOT_MADE
    return NOT_OFF if isinstance(step, RemoveVm) and vm.power is not PowerState.OFF else None


def _gives_back(step: Step, vm: Vm) -> bool:
    """Return whether the step undoes what a night did: it is then also sent to a VM that another product now manages.

    A night that suspended a desktop owes it to its user, and a resume discards nothing. The same holds for its gate,
    its DRS setting and its marker, and for a desktop whose marker shows that a night shut it down. An ML VM that
    another product now manages is not stopped: its work belongs to that product.
    """
    match step:
        case ResumeVm() | OpenGate():
            return True
        case PowerOnVm():
            markers = map(parse_marker, vm.attributes.values())
            return any(marker is not None and marker.role is Role.SHUT_DOWN for marker in markers)
        case SetAttribute(value=value):
            # an empty text clears the marker
            return value == ""
        case SetVmDrs(drs=drs):
            # nights set MANUAL; any other setting is the one from before
            return drs is not VmDrs.MANUAL
        case _:
            return False


def as_it_is_now(step: Step, now: Inventory) -> Step:
    """Return the step, with the present host for a VM that is to be resumed: it may have moved since the plan.

    Source: vSphere API, VirtualMachine.PowerOnVM_Task (a `host` other than the VM's own moves it there).
    """
    vm = now.vms.get(step.vm)
    if isinstance(step, ResumeVm) and step.host is not None and vm is not None and vm.host is not None:
        return ResumeVm(step.vm, vm.host)
    if isinstance(step, PowerOnVm) and step.resumes and vm is not None and vm.host is not None:
        return PowerOnVm(step.vm, vm.host, resumes=True)
    return step


_CHANGED_ELSEWHERE = "{} changed by somebody else since the plan was made"


def host_satisfied(step: HostStep, host: Host) -> bool:
    """Return whether the step is done according to the settings of the host; False if they cannot be read."""
    settings = host.settings or HostSettings()
    match step:
        case ConfigureModule(after=options):
            return settings.module_options == options
        case ConfigureGraphics(after=graphics):
            return settings.graphics == graphics
        case ConfigurePassthrough(devices=devices):
            return _passed_through(devices, settings)
        case ConfigureModes(devices=changes, labels=labels):
            modes = {state.address: state.mode for state in settings.passthrough or ()}
            return all(modes.get(change.address) == change.after for change in changes) and _passed_through(
                labels, settings
            )
        case ConfigureMig(devices=addresses, on=on):
            pending = {state.address: state.pending for state in settings.mig or ()}
            return all(pending.get(address) is on for address in addresses)
        case _:
            assert_never(step)


def _passed_through(devices: tuple[PassthroughChange, ...], settings: HostSettings) -> bool:
    """Return whether DirectPath I/O and the labels of these devices are configured as the changes say."""
    now = {state.address: state for state in settings.passthrough or ()}
    return all(
        (state := now.get(change.address)) is not None
        and state.enabled == change.enabled
        and change.label in (None, state.label or "")
        for change in devices
    )


def host_objection(step: HostStep, host: Host) -> str | None:
    """Return why the step must not be sent now; None = it may be sent.

    A step replaces a complete string or configuration, so it would overwrite a change that was made since the plan.
    """
    if host.connected is not True:
        return "is not connected"
    settings = host.settings or HostSettings()
    match step:
        case ConfigureModule(before=options):
            if settings.module_options is None:
                return "its module options cannot be read"
            return None if settings.module_options == options else _CHANGED_ELSEWHERE.format("its module options were")
        case ConfigureGraphics(before=graphics):
            if settings.graphics is None:
                return "its graphics configuration cannot be read"
            is_unchanged = settings.graphics == graphics
            return None if is_unchanged else _CHANGED_ELSEWHERE.format("its graphics configuration was")
        case ConfigurePassthrough():
            return None if settings.passthrough is not None else "its passthrough devices cannot be read"
        case ConfigureModes(devices=changes):
            modes = {state.address: state.mode for state in settings.passthrough or ()}
            if any(modes.get(change.address) is None for change in changes):
                return "the modes of its devices cannot be read"
            is_changed_elsewhere = any(modes[change.address] not in (change.before, change.after) for change in changes)
            return _CHANGED_ELSEWHERE.format("the mode of a device was") if is_changed_elsewhere else None
        case ConfigureMig():
            return None if settings.mig is not None else "its nvidia-smi does not answer"
        case _:
            assert_never(step)
