"""Answers QueryConfigOption with the virtual hardware of a version and the guests that it supports.

The device options are those that clients of GPUs look at; a full vCenter lists some forty kinds.
"""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.inventory import faults
from gpuops.sim.render.defaults import default
from gpuops.sim.render.required_fields import filled

D = vim.vm.device
VERSIONS: Final = ("vmx-17", "vmx-19", "vmx-20", "vmx-21")
NEWEST: Final = "vmx-21"
GUESTS: Final = (
    ("ubuntu64Guest", "linuxGuest", "Ubuntu Linux (64-bit)"),
    ("rhel9_64Guest", "linuxGuest", "Red Hat Enterprise Linux 9 (64-bit)"),
    ("windows11_64Guest", "windowsGuest", "Microsoft Windows 11 (64-bit)"),
    ("windows2019srvNext_64Guest", "windowsGuest", "Microsoft Windows Server 2022 (64-bit)"),
)
DEVICES: Final = (
    D.VirtualPCIPassthroughOption,
    D.VirtualDiskOption,
    D.VirtualVmxnet3Option,
    D.VirtualPCIControllerOption,
    D.ParaVirtualSCSIControllerOption,
)


def config_option(version: str, guests: list[str] | None) -> Any:
    """The VirtualMachineConfigOption of a hardware version; `guests` narrows the list of guest systems."""
    if version not in VERSIONS:
        raise faults.wrong_argument("key")
    shown = [guest for guest in GUESTS if not guests or guest[0] in guests]
    return filled(
        vim.vm.ConfigOption,
        version=version,
        description=f"ESXi 8.0 virtual machine ({version})",
        guestOSDescriptor=[_guest(*guest) for guest in shown],
        guestOSDefaultIndex=0,
        hardwareOptions=_hardware(version),
        capabilities=default("VirtualMachineCapability"),
        supportedMonitorType=["release"],
    )


def descriptors(hosts: list[Any]) -> list[Any]:
    """QueryConfigOptionDescriptor: the hardware versions, the newest one as default."""
    return [
        vim.vm.ConfigOptionDescriptor(
            key=version,
            description=f"ESXi 8.0 virtual machine ({version})",
            host=hosts,
            createSupported=True,
            defaultConfigOption=version == NEWEST,
            runSupported=True,
            upgradeSupported=True,
        )
        for version in VERSIONS
    ]


def _hardware(version: str) -> Any:
    return filled(
        vim.vm.VirtualHardwareOption,
        hwVersion=int(version.removeprefix("vmx-")),
        virtualDeviceOption=[_device(kind) for kind in DEVICES],
        numCPU=[1, 2, 4, 8, 16, 32, 64, 128],
        numCoresPerSocket=_numbers(1, 128, 1),
        memoryMB=vim.option.LongOption(min=4, max=25165824, defaultValue=4096),
        numPCIControllers=_numbers(1, 1, 1),
        numIDEControllers=_numbers(0, 2, 2),
        numUSBControllers=_numbers(0, 1, 0),
        numUSBXHCIControllers=_numbers(0, 1, 0),
        numSIOControllers=_numbers(1, 1, 1),
        numPS2Controllers=_numbers(1, 1, 1),
    )


def _numbers(low: int, high: int, default: int) -> Any:
    return vim.option.IntOption(min=low, max=high, defaultValue=default)


def _device(kind: Any) -> Any:
    name = VmomiSupport.GetWsdlName(kind).removesuffix("Option")
    return filled(kind, type=VmomiSupport.GetWsdlType("urn:vim25", name))


def _guest(guest_id: str, family: str, name: str) -> Any:
    return filled(
        vim.vm.GuestOsDescriptor,
        id=guest_id,
        family=family,
        fullName=name,
        supportedMaxCPUs=768,
        numSupportedPhysicalSockets=64,
        numSupportedCoresPerSocket=64,
        supportedMinMemMB=256,
        supportedMaxMemMB=25165824,
        recommendedMemMB=4096,
        supportedDiskControllerList=[D.ParaVirtualSCSIController],
        recommendedSCSIController=D.ParaVirtualSCSIController,
        recommendedDiskController=D.ParaVirtualSCSIController,
        recommendedDiskSizeMB=65536,
        supportedNumDisks=64,
        recommendedCdromController=D.VirtualIDEController,
        supportedEthernetCard=[D.VirtualVmxnet3],
        recommendedEthernetCard=D.VirtualVmxnet3,
        supportsMemoryHotAdd=True,
        supportsCpuHotAdd=True,
        supportedFirmware=["bios", "efi"],
        recommendedFirmware="efi",
        supportLevel="supported",
        supportedForCreate=True,
        supportsPvscsiControllerForBoot=True,
        supportsSecureBoot=True,
    )
