"""ReconfigVM_Task: applies a spec to a copy of the VM's state, which replaces the state if no field is refused.

A field that is not simulated is refused by name, never ignored.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.inventory import faults
from gpuops.sim.operations import permissions
from gpuops.sim.operations.recording import recorded
from gpuops.sim.operations.vms.device_change import apply_device_changes
from gpuops.sim.operations.vms.hardware_change import hot_plugged
from gpuops.sim.render.config_target import NEWEST, VERSIONS
from gpuops.sim.render.vm_config import STORED_SETTINGS
from gpuops.sim.state.vm_state import Power, VmState, merged_options

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity

RECONFIGURE_S: Final = 1.0
MODELLED_KEYS: Final = re.compile(
    r"(pcipassthru\d+\.(id|deviceid|vendorid|systemid|alloweddevices|customlabel|present|vgpu|virtualdev))"
    r"|memsize|numvcpus|displayname|firmware|annotation|guestos|sched\.mem\.min|sched\.mem\.minsize|virtualhw\.version"
)
"""extraConfig keys behind modelled fields: written there they are ignored silently (vSphere API, ConfigSpec)."""

Setter = Callable[["VmEntity", VmState, Any], None]


def reconfigure(vm: VmEntity, call: Call, spec: Any) -> Any:
    """Return the task that applies a VirtualMachineConfigSpec; on a fault nothing has changed."""
    permissions.require_to_reconfigure(vm, call, spec)

    def finish() -> None:
        vm.refuse_while_question_pending()
        with recorded(vm, call):
            changed = changed_state(vm, spec)
            renamed = changed.name != vm.state.name
            cards, vm.state = vm.state.network_cards, changed
            vm.configuration_changed(renamed=renamed)
            if changed.network_cards != cards:
                vm.networks_changed(cards)
        vm.post(call, "VmReconfiguredEvent", configSpec=spec)

    return vm.world.tasks.start(call, "ReconfigVM_Task", vm, RECONFIGURE_S, finish=finish)


def changed_state(vm: VmEntity, spec: Any) -> VmState:
    """A copy of the VM's state with the spec applied. Raises the vim fault that refuses it."""
    if spec.changeVersion and spec.changeVersion != vm.state.change_version:
        raise faults.stale_change_version()
    fields = [field.name for field in spec._GetPropertyList() if _is_set(getattr(spec, field.name))]
    state = copy.copy(vm.state)
    # device changes are applied below; unlike other fields they always count as a change
    changes = [name for name in fields if name in ("deviceChange", "deviceGroups")]
    for name in fields:
        setter = SETTERS.get(name)
        if setter is None:
            raise faults.not_supported(f"The simulated vCenter does not support VirtualMachineConfigSpec.{name}.")
        before = copy.copy(state)
        setter(vm, state, getattr(spec, name))
        if state != before:  # in every power state a client may send the values that the VM already has
            changes.append(name)
    _refuse_for_power_state(vm.state, changes, spec)
    if spec.deviceChange or spec.deviceGroups:
        apply_device_changes(vm, state, spec.deviceChange, spec.deviceGroups)
    _make_consistent(state)
    state.change, state.changed_at = state.change + 1, vm.world.clock.now()
    return state


def _is_set(value: Any) -> bool:
    return value is not None and value != []


# What may change in which power state (VMware vSphere 8.0 docs; extraConfig of a suspended VM from memory).
CHANGEABLE_IN_ANY_STATE: Final = {"changeVersion", "name", "annotation", "managedBy"}
CHANGEABLE_WHILE_ON: Final = CHANGEABLE_IN_ANY_STATE | {
    "extraConfig",
    "memoryReservationLockedToMax",
    "memoryAllocation",
    "cpuAllocation",
    "latencySensitivity",
}


def _refuse_for_power_state(state: VmState, fields: list[str], spec: Any) -> None:
    """Raises InvalidPowerState if the spec changes a field that cannot be changed while the VM is on or suspended."""
    if state.power is Power.OFF:
        return
    allowed = CHANGEABLE_WHILE_ON if state.power is Power.ON else CHANGEABLE_IN_ANY_STATE
    if state.power is Power.ON:
        # passthrough devices exclude memory hot add
        hot_add = {"numCPUs": state.cpu_hot_add, "memoryMB": state.memory_hot_add and not state.devices}
        allowed = allowed | {name for name, enabled in hot_add.items() if enabled}
        grows = (spec.numCPUs or state.cpus) >= state.cpus and (spec.memoryMB or state.memory_mib) >= state.memory_mib
        allowed = allowed if grows else CHANGEABLE_WHILE_ON
        # disks, network cards and drives can be hot-plugged (VMware vSphere 8.0 docs, virtual hardware), except PVRDMA
        # (VMware, vSphere Networking, "Assign a PVRDMA Adapter to a Virtual Machine")
        if all(hot_plugged(change.device) for change in spec.deviceChange):
            allowed = allowed | {"deviceChange"}
        # boot options apply at the next boot; only Secure Boot needs a VM that is off (VMware vSphere 8.0 docs, "Enable
        # or Disable UEFI Secure Boot for a Virtual Machine")
        if spec.bootOptions and spec.bootOptions.efiSecureBootEnabled in (None, state.boot.secure):
            allowed = allowed | {"bootOptions"}
    if any(name not in allowed for name in fields):
        raise faults.wrong_power_state(state.power, Power.OFF)


def _make_consistent(state: VmState) -> None:
    """Drop removed devices from the boot order and reserve locked memory. Raises InvalidArgument for wrong sizes."""
    if state.boot.order:
        existing_order = tuple(
            boot_device
            for boot_device in state.boot.order
            if boot_device[1] is None or state.hardware.find(boot_device[1]) is not None
        )
        state.boot = replace(state.boot, order=existing_order)
    if state.memory_locked:
        state.memory_reservation_mib = state.memory_mib
    if state.memory_reservation_mib > state.memory_mib:
        raise faults.wrong_argument("memoryAllocation.reservation")
    if state.cores_per_socket and state.cpus % state.cores_per_socket:
        raise faults.wrong_argument("numCoresPerSocket")


def _set_name(vm: VmEntity, state: VmState, name: str) -> None:
    state.rename(vm.world.get(vm.state.folder).checked_name(name, vm))


def _set_managed_by(vm: VmEntity, state: VmState, manager: Any) -> None:
    """Set the extension that manages the VM; an empty key removes it (vSphere API, ManagedByInfo)."""
    state.managed_by = (manager.extensionKey, manager.type or "") if manager.extensionKey else None


def _set_extra_config(vm: VmEntity, state: VmState, options: list[Any]) -> None:
    extra_config = {
        option.key: str(option.value) for option in options if not MODELLED_KEYS.fullmatch(option.key.lower())
    }
    state.extra_config = merged_options(state.extra_config, extra_config)


def _set_memory_mib(vm: VmEntity, state: VmState, memory_mib: int) -> None:
    if memory_mib <= 0 or memory_mib % 4:
        raise faults.wrong_argument("memoryMB")
    state.memory_mib = memory_mib


def _set_cpus(vm: VmEntity, state: VmState, cpus: int) -> None:
    if not 0 < cpus <= vm.host().state.model.threads:
        raise faults.wrong_argument("numCPUs")
    if cpus % state.cores_per_socket:
        state.cores_per_socket = 1
    state.cpus = cpus


def _allocation(name: str, attribute: str) -> Setter:
    """Return the setter that stores the reservation of the spec's allocation `name` in `attribute` of the state."""

    def setter(vm: VmEntity, state: VmState, allocation: Any) -> None:
        # a limit of -1 = unlimited
        if allocation.limit not in (None, -1) or (allocation.shares and allocation.shares.level == "custom"):
            raise faults.not_supported(f"The simulated vCenter supports no limits or custom shares in {name}.")
        if (allocation.reservation or 0) < 0:
            raise faults.wrong_argument(f"{name}.reservation")
        if allocation.reservation is not None:
            setattr(state, attribute, int(allocation.reservation))

    return setter


def _set_guest_id(vm: VmEntity, state: VmState, guest_id: str) -> None:
    """Set the guest id. Raises InvalidArgument for an unknown id (vSphere API, VirtualMachineGuestOsIdentifier)."""
    if guest_id not in vim.vm.GuestOsDescriptor.GuestOsIdentifier.values:
        raise faults.wrong_argument("configSpec.guestId")
    state.guest_id = guest_id


def _set_firmware(vm: VmEntity, state: VmState, firmware: str) -> None:
    if firmware not in ("bios", "efi"):
        raise faults.wrong_argument("firmware")
    state.firmware = firmware


BOOT_FIELDS: Final = {
    "bootDelay": "delay_ms",
    "enterBIOSSetup": "enter_setup",
    "efiSecureBootEnabled": "secure",
    "bootRetryEnabled": "retry",
    "bootRetryDelay": "retry_delay_ms",
    "networkBootProtocol": "network_protocol",
}


def _set_boot_options(vm: VmEntity, state: VmState, options: Any) -> None:
    """Set the given boot options; a boot order without any known device clears it (govmomi, object.BootOrder)."""
    boot_fields = {name: value for field, name in BOOT_FIELDS.items() if (value := getattr(options, field)) is not None}
    if boot_fields.get("delay_ms", 0) < 0 or boot_fields.get("retry_delay_ms", 0) < 0:
        raise faults.wrong_argument("bootOptions.bootDelay")
    if boot_fields.get("network_protocol", "ipv4") not in ("ipv4", "ipv6"):
        raise faults.wrong_argument("bootOptions.networkBootProtocol")
    if options.bootOrder:
        kinds_and_keys = [
            (_BOOTABLE.fullmatch(type(boot_device).__name__), getattr(boot_device, "deviceKey", None))
            for boot_device in options.bootOrder
        ]
        order = tuple((kind[1], key) for kind, key in kinds_and_keys if kind is not None)
        if any(key is not None and state.hardware.find(key) is None for _, key in order):
            raise faults.wrong_argument("bootOptions.bootOrder")  # which fault: from memory
        boot_fields["order"] = order
    state.boot = replace(state.boot, **boot_fields)


_BOOTABLE: Final = re.compile(r".*\.Bootable(\w+)Device")


def _set_virtual_numa(vm: VmEntity, state: VmState, numa: Any) -> None:
    if state.hardware_version < 20:
        raise faults.wrong_argument("virtualNuma", "Virtual NUMA settings need hardware version 20.")
    if numa.coresPerNumaNode is not None:
        state.cores_per_numa_node = numa.coresPerNumaNode or None  # 0 = automatic
    if numa.exposeVnumaOnCpuHotadd is not None:
        state.vnuma_on_hot_add = numa.exposeVnumaOnCpuHotadd


def _store_setting(name: str) -> Setter:
    """Return the setter of a field that has no effect and is only stored, or of an object with such fields."""

    def setter(vm: VmEntity, state: VmState, value: Any) -> None:
        fields = {name: value}
        if isinstance(value, VmomiSupport.DataObject):
            fields = {f"{name}.{field.name}": getattr(value, field.name) for field in value._GetPropertyList()}
        settings = dict(state.settings)
        for path, setting in fields.items():
            if _is_set(setting) and path not in STORED_SETTINGS:
                raise faults.not_supported(f"The simulated vCenter does not support VirtualMachineConfigSpec.{path}.")
            if _is_set(setting):
                settings[path] = setting
        state.settings = tuple(
            sorted((path, setting) for path, setting in settings.items() if setting != STORED_SETTINGS[path])
        )

    return setter


def _set_attribute(attribute: str) -> Setter:
    """Return the setter of a field that is stored unchanged in this attribute of the state."""

    def setter(vm: VmEntity, state: VmState, value: Any) -> None:
        setattr(state, attribute, value)

    return setter


def _handled_elsewhere(vm: VmEntity, state: VmState, value: Any) -> None:
    """Do nothing: `changed_state` and `apply_device_changes` handle these fields."""


SETTERS: Final[dict[str, Setter]] = {
    "changeVersion": _handled_elsewhere,
    "deviceChange": _handled_elsewhere,
    "deviceGroups": _handled_elsewhere,
    "name": _set_name,
    "annotation": _set_attribute("annotation"),
    "managedBy": _set_managed_by,
    "guestId": _set_guest_id,
    "uuid": _set_attribute("uuid"),
    "instanceUuid": _set_attribute("instance_uuid"),
    "numCPUs": _set_cpus,
    "numCoresPerSocket": lambda vm, state, cores: setattr(state, "cores_per_socket", cores or 1),  # 0 = automatic
    "memoryMB": _set_memory_mib,
    "memoryReservationLockedToMax": _set_attribute("memory_locked"),
    "memoryAllocation": _allocation("memoryAllocation", "memory_reservation_mib"),
    "cpuAllocation": _allocation("cpuAllocation", "cpu_reservation_mhz"),
    "cpuHotAddEnabled": _set_attribute("cpu_hot_add"),
    "nestedHVEnabled": _set_attribute("nested_virtualization"),
    "memoryHotAddEnabled": _set_attribute("memory_hot_add"),
    "firmware": _set_firmware,
    "bootOptions": _set_boot_options,
    "virtualNuma": _set_virtual_numa,
    "fixedPassthruHotPlugEnabled": _set_attribute("passthrough_hot_plug"),
    "latencySensitivity": lambda vm, state, value: setattr(state, "latency", str(value.level)),
    "extraConfig": _set_extra_config,
    **{name: _store_setting(name) for name in dict.fromkeys(path.partition(".")[0] for path in STORED_SETTINGS)},
}


UPGRADE_S: Final = 1.0


def upgrade(vm: VmEntity, call: Call, version: str | None) -> Any:
    """Return the task that upgrades to a hardware version, by default to the host's newest (vSphere API,
    VirtualMachine.UpgradeVM_Task)."""

    def begin() -> None:
        _checked_target_version(vm, version)  # raises the faults of a refused upgrade

    def finish() -> None:
        number = _checked_target_version(vm, version)
        with recorded(vm, call):
            vm.state.hardware_version = number
            vm.state.change, vm.state.changed_at = vm.state.change + 1, vm.world.clock.now()
            vm.configuration_changed(renamed=False)
        vm.post(call, "VmUpgradeCompleteEvent", version=f"vmx-{number:02d}")

    return vm.world.tasks.start(call, "UpgradeVM_Task", vm, UPGRADE_S, begin=begin, finish=finish)


def _checked_target_version(vm: VmEntity, version: str | None) -> int:
    """Return the number of the new hardware version. Raises, in the order of vcsim (govmomi, UpgradeVMTask):
    InvalidPowerState, InvalidState, NotSupported for a version that hosts do not have, AlreadyUpgraded."""
    if vm.state.power is not Power.OFF:
        raise faults.wrong_power_state(vm.state.power, Power.OFF)
    if vm.host().state.in_maintenance:
        raise faults.wrong_state(f"The host {vm.host().name} is in maintenance mode.")
    if vm.state.is_template:
        raise faults.wrong_state("The virtual machine is a template.")
    number = version_number(version or NEWEST)
    if number <= vm.state.hardware_version:
        raise vim.fault.AlreadyUpgraded(msg="The virtual hardware of the virtual machine is already up-to-date.")
    return number


def version_number(version: str) -> int:
    """Return the number in a version such as `vmx-20`. Raises NotSupported for a version that hosts do not have."""
    if version not in VERSIONS:
        raise faults.not_supported(f"No host supports the virtual hardware version {version}.")
    return int(version.removeprefix("vmx-"))
