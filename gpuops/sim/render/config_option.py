"""Answers QueryConfigOption with the virtual hardware of a version and the guests that it supports.

The device options are those that clients of GPUs look at; a full vCenter lists some forty kinds. An answer is made once
for a version and a choice of guests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.inventory import faults
from gpuops.sim.render.defaults import default
from gpuops.sim.render.devices import PLACEHOLDERS, devices
from gpuops.sim.render.required_fields import EPOCH, filled
from gpuops.sim.state.vm_state import Template, VmState

D = vim.vm.device
VERSIONS: Final = ("vmx-17", "vmx-19", "vmx-20", "vmx-21")
NEWEST: Final = "vmx-21"
_LINES: Final = (files(__package__) / "guests.tsv").read_text(encoding="utf-8").splitlines()
GUESTS: Final[Mapping[str, tuple[str, str]]] = {
    guest: (family, name) for guest, family, name in (line.split("\t") for line in _LINES if line[0] != "#")
}
"""Family and name of each guest system, by its id."""
_NEW_VM: Final = VmState("", "", "", Template("", "", "", linux=True), "", None, "", "", 1, 4, EPOCH)
"""Its devices are what every VM has."""
DEVICES: Final = (
    D.VirtualPCIPassthroughOption,
    D.VirtualDiskOption,
    D.VirtualVmxnet3Option,
    D.VirtualPCIControllerOption,
    D.ParaVirtualSCSIControllerOption,
)


@cache
def config_option(version: str, guests: frozenset[str] = frozenset()) -> Any:
    """The VirtualMachineConfigOption of a hardware version; `guests` narrows the list of guest systems."""
    if version not in VERSIONS:
        raise faults.wrong_argument("key")
    return filled(
        vim.vm.ConfigOption,
        version=version,
        description=f"ESXi 8.0 virtual machine ({version})",
        guestOSDescriptor=[_guest(guest, *GUESTS[guest]) for guest in GUESTS if not guests or guest in guests],
        guestOSDefaultIndex=0,
        hardwareOptions=_hardware(version),
        defaultDevice=devices(_NEW_VM, None, PLACEHOLDERS),
        capabilities=default("VirtualMachineCapability"),
        supportedMonitorType=["release"],
    )


def guest_name(vm: VmState) -> str:
    """The full name of the guest system that a VM is set up for."""
    return GUESTS[vm.guest_id][1] if vm.guest_id in GUESTS else vm.template.guest_name


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
    number, options = int(version.removeprefix("vmx-")), [_device(kind) for kind in DEVICES]
    return default("VirtualHardwareOption", hwVersion=number, virtualDeviceOption=options)


def _device(kind: Any) -> Any:
    name = VmomiSupport.GetWsdlName(kind).removesuffix("Option")
    return filled(kind, type=VmomiSupport.GetWsdlType("urn:vim25", name))


def _guest(guest_id: str, family: str, name: str) -> Any:
    return default(
        "GuestOsDescriptor",
        id=guest_id,
        family=family,
        fullName=name,
        supportedDiskControllerList=[D.ParaVirtualSCSIController],
        recommendedSCSIController=D.ParaVirtualSCSIController,
        recommendedDiskController=D.ParaVirtualSCSIController,
        recommendedCdromController=D.VirtualIDEController,
        supportedEthernetCard=[D.VirtualVmxnet3],
        recommendedEthernetCard=D.VirtualVmxnet3,
    )
