"""`config` of a VM, and its leaves that bulk readers ask for one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from pyVmomi import vim

from gpuops.sim.render.config_target import guest_name
from gpuops.sim.render.defaults import default
from gpuops.sim.render.devices import Identity, devices
from gpuops.sim.state.host_state import HostState
from gpuops.sim.state.vm_state import BootOptions, VmState

STORED_SETTINGS: Final[Mapping[str, bool | str]] = {
    "alternateGuestName": "",
    "cpuHotRemoveEnabled": False,
    "swapPlacement": "inherit",
    "vPMCEnabled": False,
    "flags.disableAcceleration": False,
    "flags.enableLogging": True,
    "flags.useToe": False,
    "flags.runWithDebugInfo": False,
    "flags.monitorType": "release",
    "flags.htSharing": "any",
    "flags.snapshotDisabled": False,
    "flags.snapshotLocked": False,
    "flags.diskUuidEnabled": False,
    "flags.virtualMmuUsage": "automatic",
    "flags.virtualExecUsage": "hvAuto",
    "flags.snapshotPowerOffBehavior": "powerOff",
    "flags.recordReplayEnabled": False,
    "flags.faultToleranceType": "unset",
    "flags.cbrcCacheEnabled": False,
    "flags.vvtdEnabled": False,
    "flags.vbsEnabled": False,
    "tools.afterPowerOn": True,
    "tools.afterResume": True,
    "tools.beforeGuestStandby": True,
    "tools.beforeGuestShutdown": True,
    "tools.beforeGuestReboot": False,
    "tools.toolsUpgradePolicy": "manual",
    "tools.syncTimeWithHostAllowed": True,
    "tools.syncTimeWithHost": False,
}
"""Settings that have no effect in the simulator and are only stored and read back, with their default values."""
SHARES_PER_CPU = 1000
SHARES_PER_MIB = 10


def config(vm: VmState, host: HostState | None, vm_identity: Identity | None = None) -> Any:
    """Return the complete VirtualMachineConfigInfo of a VM; `host` is the VM's host, whose GPUs set vGPU sizes."""
    settings: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for path, setting in {**STORED_SETTINGS, **dict(vm.settings)}.items():
        group, _, name = path.rpartition(".")  # `flags.useToe` is a field of `flags`, a path without a dot of config
        settings[group][name] = setting
    return default(
        "VirtualMachineConfigInfo",
        changeVersion=vm.change_version,
        modified=vm.changed_at or vm.created_at,
        name=vm.name,
        guestFullName=guest_name(vm),
        version=version(vm),
        uuid=vm.uuid,
        createDate=vm.created_at,
        instanceUuid=vm.instance_uuid,
        template=vm.is_template,
        guestId=vm.guest_id or vm.template.guest_id,
        annotation=vm.annotation,
        managedBy=managed_by(vm),
        files=files(vm),
        tools=vim.vm.ToolsConfigInfo(
            toolsVersion=12416 if vm.template.tools else 0,
            toolsInstallType="guestToolsTypeOpenVMTools" if vm.template.linux else "guestToolsTypeMSI",
            lastInstallInfo=vim.vm.ToolsConfigInfo.ToolsLastInstallInfo(counter=0),
            **settings["tools"],
        ),
        flags=vim.vm.FlagInfo(**settings["flags"]),
        hardware=hardware(vm, host, vm_identity),
        cpuAllocation=cpu_allocation(vm),
        memoryAllocation=memory_allocation(vm),
        latencySensitivity=vim.LatencySensitivity(level=vm.latency),
        memoryHotAddEnabled=vm.memory_hot_add,
        cpuHotAddEnabled=vm.cpu_hot_add,
        extraConfig=extra_config(vm),
        bootOptions=boot_options(vm.boot),
        firmware=vm.firmware,
        memoryReservationLockedToMax=vm.memory_locked,
        nestedHVEnabled=vm.nested_virtualization,
        numaInfo=numa(vm),
        deviceGroups=device_groups(vm),
        fixedPassthruHotPlugEnabled=vm.passthrough_hot_plug,
        **settings[""],
    )


def managed_by(vm: VmState) -> Any:
    """ManagedByInfo of a VM that belongs to another product."""
    if vm.managed_by is None:
        return None
    extension, kind = vm.managed_by
    return vim.ext.ManagedByInfo(extensionKey=extension, type=kind)


def version(vm: VmState) -> str:
    """Return the hardware version, such as `vmx-20`."""
    return f"vmx-{vm.hardware_version:02d}"


def hardware(vm: VmState, host: HostState | None, vm_identity: Identity | None = None) -> Any:
    return default(
        "VirtualHardware",
        numCPU=vm.cpus,
        numCoresPerSocket=vm.cores_per_socket,
        memoryMB=vm.memory_mib,
        device=devices(vm, host, vm_identity),
    )


def extra_config(vm: VmState) -> list[Any]:
    return [vim.option.OptionValue(key=key, value=value) for key, value in vm.extra_config]


def numa(vm: VmState) -> Any:
    """numaInfo; a VM without a setting of its own has automatic nodes."""
    return vim.vm.VirtualNumaInfo(
        coresPerNumaNode=cores_per_numa_node(vm),
        autoCoresPerNumaNode=not vm.cores_per_numa_node,
        vnumaOnCpuHotaddExposed=vm.vnuma_on_hot_add,
    )


def cores_per_numa_node(vm: VmState) -> int:
    """Return the setting, or what the host would choose: at most 64 cores in one node (from memory)."""
    return vm.cores_per_numa_node or min(vm.cpus, 64)


def device_groups(vm: VmState) -> Any:
    """Return the VirtualDeviceGroups; None for a VM without device groups."""
    if not vm.groups:
        return None
    return vim.vm.VirtualDeviceGroups(
        deviceGroup=[
            vim.vm.VirtualDeviceGroups.VendorDeviceGroup(
                groupInstanceKey=key,
                deviceGroupName=name,
                deviceInfo=vim.Description(label=f"PCI device group {key}", summary=name),
            )
            for key, name in vm.groups
        ]
    )


def cpu_allocation(vm: VmState) -> Any:
    return _allocation(vm.cpu_reservation_mhz, vm.cpus * SHARES_PER_CPU)


def memory_allocation(vm: VmState) -> Any:
    return _allocation(vm.reserved_mib, vm.memory_mib * SHARES_PER_MIB)


def resource_config(vm: VmState, entity: Any) -> Any:
    """`resourceConfig`, a ResourceConfigSpec."""
    return vim.ResourceConfigSpec(
        entity=entity,
        changeVersion=vm.change_version,
        cpuAllocation=cpu_allocation(vm),
        memoryAllocation=memory_allocation(vm),
    )


def files(vm: VmState) -> Any:
    folder = f"{vm.home.rpartition('/')[0]}/"
    return vim.vm.FileInfo(
        vmPathName=f"{vm.home}.vmx", snapshotDirectory=folder, suspendDirectory=folder, logDirectory=folder
    )


def boot_options(boot: BootOptions) -> Any:
    """VirtualMachineBootOptions."""
    kinds = vim.vm.BootOptions
    devices = [
        getattr(kinds, f"Bootable{kind}Device")(**({} if key is None else {"deviceKey": key}))
        for kind, key in boot.order
    ]
    return kinds(
        bootDelay=boot.delay_ms,
        enterBIOSSetup=boot.enter_setup,
        efiSecureBootEnabled=boot.secure,
        bootRetryEnabled=boot.retry,
        bootRetryDelay=boot.retry_delay_ms,
        bootOrder=devices,
        networkBootProtocol=boot.network_protocol,
    )


def _allocation(reservation: int, shares: int) -> Any:
    level = vim.SharesInfo(shares=shares, level="normal")
    return default("ResourceAllocationInfo", reservation=reservation, shares=level)
