"""What undoes a setting on a simulated vCenter: its outside events, and what other users and hosts do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from pyVmomi import vim

from gpuops.hostshell.ssh import CommandResult
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.inventory.entities import HostEntity, VmEntity
from gpuops.sim.operations import cluster_change, device_settings
from gpuops.sim.operations.vms import reconfigure
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from gpuops.sim.outside_events.vms import power_on
from gpuops.sim.world import World
from tests.sim.guests import nvidia_smi


def undo(world: World, action: Mapping[str, Any]) -> None:
    """Do an action of `drifts.yaml`: `do` names it, `at` is a pattern of hosts or VMs, other keys are its arguments."""
    arguments = {key: value for key, value in action.items() if key not in ("do", "at")}
    with world.lock:
        for entity in entities_called(world, action["at"]) if "at" in action else [world]:
            if action["do"] in OUTSIDE_EVENTS:
                OUTSIDE_EVENTS[action["do"]].act(entity, Rule(Effect.HAPPEN, **arguments))
            else:
                ACTIONS[action["do"]](entity, **arguments)


def entities_called(world: World, pattern: str) -> list[Any]:
    """Return the hosts and VMs with such a name, at least one."""
    entities = (*world.by_type("HostSystem"), *world.by_type("VirtualMachine"))
    selected = [entity for entity in entities if fnmatchcase(entity.name, pattern)]
    assert selected, pattern
    return selected


def _set_graphics(
    host: HostEntity, *, policy: str = "", default: str = "", gpu: str = "", graphics: str = "", mode: str = ""
) -> None:
    state = host.state
    config = host.read("config.graphicsConfig")
    devices = [
        vim.host.GraphicsConfig.DeviceType(
            deviceId=device.deviceId,
            graphicsType=graphics if graphics and device.deviceId == gpu else device.graphicsType,
            vgpuMode=mode if mode and device.deviceId == gpu else device.vgpuMode,
        )
        for device in config.deviceType
    ]
    changed = vim.host.GraphicsConfig(
        hostDefaultGraphicsType=default or state.default_graphics_type,
        sharedPassthruAssignmentPolicy=policy or state.policy,
        deviceType=devices,
    )
    device_settings.update_graphics(host, somebody(host.world, "UpdateGraphicsConfig"), changed)


def _set_passthrough(host: HostEntity, *, gpu: str, enabled: bool) -> None:
    config = vim.host.PciPassthruConfig(id=gpu, passthruEnabled=enabled)
    device_settings.update_passthrough(host, somebody(host.world, "UpdatePassthruConfig"), [config])


def _set_label(host: HostEntity, *, gpu: str, label: str) -> None:
    override = vim.host.AssignableHardwareConfig.AttributeOverride(
        instanceId=f"pcie-{gpu}", name="hardwareLabel", value=label
    )
    config = vim.host.AssignableHardwareConfig(attributeOverride=[override])
    device_settings.update_labels(host, somebody(host.world, "UpdateAssignableHardwareConfig"), config)


def _load_options(host: HostEntity, *, options: str) -> None:
    host.state.module_options = host.state.loaded_module_options = options


def _boot_with(host: HostEntity, *, options: str) -> None:
    host.boot = replace(host.boot, options=options)


def _boot_without_driver(host: HostEntity) -> None:
    host.boot = replace(host.boot, driver_late_s=None)


def _start_later(vm: VmEntity, *, after_s: float) -> None:
    vm.world.clock.schedule(after_s, lambda: power_on(vm, Rule(Effect.HAPPEN)))


def _switch_mig(host: HostEntity, *, gpu: str, to: bool) -> None:
    nvidia_smi.answer(host, f"nvidia-smi -i {gpu} -mig {int(to)}")


def _reconfigure(vm: VmEntity, spec: Any) -> None:
    reconfigure.reconfigure(vm, somebody(vm.world, "ReconfigVM_Task"), spec)


def _remove_devices(vm: VmEntity) -> None:
    devices = [device for device in vm.read("config.hardware.device") if device.key in _keys(vm)]
    changes = [vim.vm.device.VirtualDeviceSpec(operation="remove", device=device) for device in devices]
    _reconfigure(vm, vim.vm.ConfigSpec(deviceChange=changes))


def _keys(vm: VmEntity) -> set[int]:
    return {device.key for device in vm.state.devices}


def _set_options(vm: VmEntity, *, options: Mapping[str, str]) -> None:
    extra_config = [vim.option.OptionValue(key=key, value=value) for key, value in options.items()]
    _reconfigure(vm, vim.vm.ConfigSpec(extraConfig=extra_config))


def _set_drs(vm: VmEntity, *, behavior: str = "") -> None:
    """Set the override of the VM; without `behavior` remove it."""
    cluster = vm.host().compute_resource()
    is_new = vm.moid not in cluster.drs.overrides
    operation = "add" if is_new else "edit"
    change = vim.cluster.DrsVmConfigSpec(
        operation=operation if behavior else "remove",
        removeKey=None if behavior else vm.ref,
        info=vim.cluster.DrsVmConfigInfo(key=vm.ref, enabled=True, behavior=behavior) if behavior else None,
    )
    spec = vim.cluster.ConfigSpecEx(drsVmConfigSpec=[change])
    cluster_change.reconfigure(cluster, somebody(vm.world, "ReconfigureComputeResource_Task"), spec, modify=True)


def _set_mark(vm: VmEntity, *, attribute: str, value: str) -> None:
    vm.world.get("CustomFieldsManager").SetField(
        somebody(vm.world, "SetField"), entity=vm.ref, key=_field(vm.world, attribute), value=value
    )


def _remove_attribute(world: World, *, attribute: str) -> None:
    world.get("CustomFieldsManager").RemoveCustomFieldDef(
        somebody(world, "RemoveCustomFieldDef"), key=_field(world, attribute)
    )


def _field(world: World, attribute: str) -> int:
    return next(key for key, field in world.custom_fields.fields.items() if field.name == attribute)


ACTIONS: Final[Mapping[str, Callable[..., None]]] = {
    "graphics": _set_graphics,
    "passthrough": _set_passthrough,
    "label": _set_label,
    "options loaded": _load_options,
    "boots with options": _boot_with,
    "boots without driver": _boot_without_driver,
    "nvidia-smi -mig": _switch_mig,
    "starts when its host is back": _start_later,
    "devices removed": _remove_devices,
    "options of VM": _set_options,
    "drs": _set_drs,
    "mark": _set_mark,
    "attribute removed": _remove_attribute,
}


@dataclass(frozen=True)
class SimulatedSsh:
    """Enters the hosts of a simulated vCenter in this process, in place of `Ssh`."""

    world: World

    def run(self, host: str, command: str, **options: Any) -> CommandResult:
        """Return what the host's nvidia-smi prints. A host that is down prints nothing."""
        with self.world.lock:
            [entity] = entities_called(self.world, host)
            if entity.state.connection != "connected":
                return CommandResult("", "no route to host", 255)
            text, status = nvidia_smi.answer(entity, command)
        return CommandResult(text, "", status)
