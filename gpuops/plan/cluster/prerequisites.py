"""What a template and its hosts must have for a cluster, as rows that pass, fail or are unknown.

Sources: VMware vSphere Networking, "PVRDMA Support" (virtual hardware 13, a 64-bit Linux guest, the RDMA network
adapter as the only uplink of the distributed switch; namespaces from virtual hardware 17, native endpoints from 18),
"Configure an ESXi Host for PVRDMA" (VMkernel adapter and firewall rule) and "Single Root I/O Virtualization";
"DirectPath I/O" for firmware. A host with a row that fails takes no VM of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.devices.rdma import DistributedPortGroup, DistributedSwitch, HostRdma, Networks, PhysicalNic
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Firmware, Vm
from gpuops.model.workloads.cluster import ClusterWish, RdmaKind

PVRDMA_HARDWARE: Final = 13
NAMESPACES_HARDWARE: Final = 17
ENDPOINTS_HARDWARE: Final = 18
_LINUX: Final = ("ubuntu", "debian", "rhel", "centos", "fedora", "sles", "opensuse", "asianux", "vmwarePhoton")
"""How ids of Linux guests begin that do not say so."""
LARGEST_ROCE_MTU: Final = 4096
"""Bytes of payload (InfiniBand architecture, path MTU)."""


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """One row; `passed` None = it cannot be told. `next_move` is empty where it passes."""

    subject: str
    check: str
    passed: bool | None
    says: str
    next_move: str = ""

    @property
    def state(self) -> str:
        return {True: "pass", False: "fail", None: "unknown"}[self.passed]


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """The distributed port group that a cluster is to use, and its switch."""

    group: DistributedPortGroup
    switch: DistributedSwitch


def network_of(wish: ClusterWish, networks: Networks) -> ClusterNetwork | Prerequisite | None:
    """The port group that is meant, or the row that says why there is none; None = it needs none."""
    if wish.port_group is None:
        return None
    named = [each for each in networks.port_groups if each.name == wish.port_group]
    if len(named) != 1:
        there = ", ".join(sorted(each.name for each in networks.port_groups)) or "none"
        says = "there are several of that name" if named else f"there is no such distributed port group; there: {there}"
        return Prerequisite(wish.port_group, "port group", False, says, "name another one in the file: rdma.port_group")
    switch = next((each for each in networks.switches if each.uuid == named[0].switch), None)
    if switch is None:
        return Prerequisite(wish.port_group, "port group", None, "its switch cannot be read", "read access to it")
    return ClusterNetwork(named[0], switch)


def template_rows(wish: ClusterWish, template: Vm, made_for: str) -> Iterator[Prerequisite]:
    """What the template must be. `made_for`: its guest id; empty = not known."""
    name = template.name
    efi = None if template.firmware is None else template.firmware is Firmware.EFI
    there = {True: "EFI", False: "BIOS, where EFI is needed", None: "its firmware cannot be read"}[efi]
    move = "" if efi else "install the guest of a new template under EFI: one made under BIOS does not start with it"
    yield Prerequisite(name, "firmware", efi, there, move)
    linux_64 = is_linux_64(made_for) if made_for else None
    told = f"64-bit Linux ({made_for})" if linux_64 else f"{made_for} is no 64-bit Linux"
    says = told if made_for else "what it was made for cannot be read"
    yield Prerequisite(name, "guest", linux_64, says, "" if linux_64 else "name a template of a 64-bit Linux")
    if wish.rdma is RdmaKind.PVRDMA:
        yield _hardware(template)
    if template.devices:
        says, move = "has passthrough devices of its own", "name a template without any"
        yield Prerequisite(name, "devices", False, says, move)


def is_linux_64(made_for: str) -> bool:
    """Whether that guest id is of a 64-bit Linux (vSphere API reference, VirtualMachineGuestOsIdentifier)."""
    bits_64 = made_for.removesuffix("Guest").removesuffix("_").endswith("64")
    return bits_64 and ("linux" in made_for.lower() or made_for.startswith(_LINUX))


def _hardware(template: Vm) -> Prerequisite:
    version = template.hardware_version
    if version is None:
        return Prerequisite(template.name, "virtual hardware", None, "it cannot be read", "read access to the template")
    if version < PVRDMA_HARDWARE:
        says = f"vmx-{version}; paravirtual RDMA needs vmx-{PVRDMA_HARDWARE}"
        return Prerequisite(
            template.name, "virtual hardware", False, says, "upgrade it (vSphere Client: Compatibility)"
        )
    without = [
        f"{what} from vmx-{since}"
        for since, what in ((NAMESPACES_HARDWARE, "namespaces"), (ENDPOINTS_HARDWARE, "native endpoints"))
        if version < since
    ]
    return Prerequisite(template.name, "virtual hardware", True, "; ".join((f"vmx-{version}", *without)))


def host_rows(
    wish: ClusterWish, host: Host, network: ClusterNetwork | None, networks: Networks, inventory: Inventory
) -> Iterator[Prerequisite]:
    """What the host must have for the RDMA network card of the cluster."""
    if wish.rdma is RdmaKind.NONE:
        return
    if wish.rdma is RdmaKind.DIRECTPATH:
        yield _whole_adapters(wish, host)
        return
    rdma = networks.hosts.get(host.ref)
    if rdma is None or network is None:
        yield Prerequisite(host.name, "network", None, "its network cannot be read", "read access to the host")
        return
    uplinks = network.switch.uplinks.get(host.ref, ())
    if not uplinks:
        says, move = f"is no member of switch {network.switch.name} by any adapter", "add an uplink of it to the switch"
        yield Prerequisite(host.name, "uplink", False, says, move)
        return
    if wish.rdma is RdmaKind.SRIOV:
        yield _functions(host, network, rdma, uplinks, inventory)
        return
    yield from pvrdma_rows(host, rdma, uplinks, network.switch)


def pvrdma_rows(
    host: Host, rdma: HostRdma, uplinks: tuple[str, ...], switch: DistributedSwitch
) -> Iterator[Prerequisite]:
    """What the host must have for paravirtual RDMA on a switch that these adapters of it are uplinks of."""
    yield _roce_uplink(host, rdma, uplinks, switch)
    yield _tagged(host, rdma, switch)
    yield _firewall(host, rdma)
    yield _mtu(host, rdma, switch)


def _roce_uplink(host: Host, rdma: HostRdma, uplinks: tuple[str, ...], switch: DistributedSwitch) -> Prerequisite:
    names = f"{', '.join(uplinks)} of switch {switch.name}"
    move = "use a port group of a switch whose uplink is RoCE-capable"
    if len(uplinks) > 1:
        says = f"{names}: the RDMA adapter must be the only uplink, paravirtual RDMA knows no teaming"
        return Prerequisite(host.name, "uplink", False, says, "take the others from the switch")
    devices = [each for each in rdma.devices if each.uplink == uplinks[0]]
    if not devices:
        return Prerequisite(host.name, "uplink", False, f"{names} has no RDMA device", move)
    device = devices[0]
    if not (device.roce_v1 or device.roce_v2):
        return Prerequisite(host.name, "uplink", False, f"{device.name} of {names} does no RoCE", move)
    if device.link_up is False:
        return Prerequisite(host.name, "uplink", False, f"{device.name} of {names} has no link", "look at its cable")
    says = f"{device.name} of {uplinks[0]}, RoCE v{2 if device.roce_v2 else 1}"
    return Prerequisite(host.name, "uplink", True, says)


def _tagged(host: Host, rdma: HostRdma, switch: DistributedSwitch) -> Prerequisite:
    move = "tag a VMkernel adapter on that switch: advanced setting Net.PVRDMAVmknic"
    if rdma.tagged is None:
        return Prerequisite(host.name, "VMkernel adapter", False, "none is tagged for paravirtual RDMA", move)
    adapter = next((each for each in rdma.adapters if each.name == rdma.tagged), None)
    if adapter is None:
        says = f"Net.PVRDMAVmknic names {rdma.tagged}, which is not there"
        return Prerequisite(host.name, "VMkernel adapter", False, says, move)
    if adapter.switch != switch.uuid:
        says = f"{adapter.name}, which is tagged, is not on switch {switch.name}"
        return Prerequisite(host.name, "VMkernel adapter", False, says, move)
    return Prerequisite(host.name, "VMkernel adapter", True, f"{adapter.name} is tagged, on {switch.name}")


def _firewall(host: Host, rdma: HostRdma) -> Prerequisite:
    says = {True: "rule set pvrdma is open", False: "rule set pvrdma is closed", None: "rule set pvrdma is not told"}
    move = "" if rdma.firewall_open else "enable the rule set pvrdma of its firewall"
    return Prerequisite(host.name, "firewall", rdma.firewall_open, says[rdma.firewall_open], move)


def _mtu(host: Host, rdma: HostRdma, switch: DistributedSwitch) -> Prerequisite:
    """A frame of the VMkernel adapter must pass the switch; above 4096 bytes RoCE gains nothing more."""
    adapter = next((each for each in rdma.adapters if each.name == rdma.tagged), None)
    if adapter is None or adapter.mtu is None or switch.mtu is None:
        return Prerequisite(host.name, "MTU", None, "it cannot be read", "look at the switch and the VMkernel adapter")
    says = f"{adapter.name} {adapter.mtu}, switch {switch.name} {switch.mtu}"
    if adapter.mtu > switch.mtu:
        return Prerequisite(host.name, "MTU", False, says, "give the switch the larger one: its frames are cut off")
    small = adapter.mtu < LARGEST_ROCE_MTU
    return Prerequisite(host.name, "MTU", True, f"{says}; 9000 would carry RoCE's largest packets" if small else says)


def _functions(
    host: Host, network: ClusterNetwork, rdma: HostRdma, uplinks: tuple[str, ...], inventory: Inventory
) -> Prerequisite:
    free = free_functions(host, network, rdma, inventory)
    told = ", ".join(uplinks)
    if free is None:
        return Prerequisite(host.name, "SR-IOV", None, f"{told}: its functions cannot be read", "look at the host")
    if free < 1:
        move = "enable SR-IOV on it, with as many functions as VMs, or free some"
        return Prerequisite(host.name, "SR-IOV", False, f"{told} has no free virtual function", move)
    return Prerequisite(host.name, "SR-IOV", True, f"{told}: {free} free virtual functions")


def free_functions(host: Host, network: ClusterNetwork, rdma: HostRdma, inventory: Inventory) -> int | None:
    """Virtual functions of the port group's uplinks that no VM on the host is given; None = not known.

    A VM that is off counts too, if it is of this host: it is to be started again.
    """
    nics = [each for each in rdma.nics if each.name in network.switch.uplinks.get(host.ref, ())]
    if not nics:
        return None
    there = sum(each.functions or 0 for each in nics)
    return there - sum(_functions_of(vm, network) for vm in inventory.vms.values() if vm.host == host.ref)


def _functions_of(vm: Vm, network: ClusterNetwork) -> int:
    return sum(1 for nic in vm.nics or () if nic.kind == "sriov" and nic.network == network.group.key)


def _whole_adapters(wish: ClusterWish, host: Host) -> Prerequisite:
    found = adapters_of(wish, host)
    if not found:
        move = "gpuops passthrough set --state on gives its adapters to VMs; it may take a reboot"
        return Prerequisite(host.name, "DirectPath I/O", False, f"has no {wish.device} that is passed through", move)
    taken = {binding.address for binding in host.bindings}
    free = [each for each in found if each.address not in taken]
    says = f"{len(free)} of {len(found)} adapters {wish.device} are free"
    return Prerequisite(
        host.name, "DirectPath I/O", bool(free), says, "" if free else "free one: gpuops inventory --hosts"
    )


def adapters_of(wish: ClusterWish, host: Host) -> tuple[OtherDevice, ...]:
    """The network adapters of the wanted type that the host gives to VMs now, by address."""
    vendor, _, number = (wish.device or ":").partition(":")
    if not vendor:
        return ()
    kind = (int(vendor, 16), int(number, 16))
    found = [each for each in host.others if (each.vendor_id, each.device_id) == kind]
    active = [each for each in found if each.passthrough is not None and each.passthrough.active]
    return tuple(sorted(active, key=lambda each: each.address))


def uplink_node(host: Host, network: ClusterNetwork, networks: Networks) -> int | None:
    """The NUMA node of the port group's uplinks on the host; None = they are on several, or it is not known."""
    rdma = networks.hosts.get(host.ref)
    names = network.switch.uplinks.get(host.ref, ())
    nics: list[PhysicalNic] = [each for each in rdma.nics if each.name in names] if rdma is not None else []
    nodes = {each.numa_node for each in nics}
    return next(iter(nodes)) if len(nodes) == 1 else None
