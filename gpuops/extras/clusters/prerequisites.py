"""Checks the prerequisites of a cluster in its template and hosts, as rows that pass, fail or are unknown.

Sources: VMware vSphere Networking, "PVRDMA Support" (virtual hardware 13, a 64-bit Linux guest, the RDMA network
adapter as the only uplink of the distributed switch; namespaces from virtual hardware 17, native endpoints from 18),
"Configure an ESXi Host for PVRDMA" (VMkernel adapter and firewall rule) and "Single Root I/O Virtualization";
"DirectPath I/O" for firmware. A host with a failed row gets no VM of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.model.devices.other_device import (
    DistributedPortGroup,
    DistributedSwitch,
    HostRdma,
    Networks,
    OtherDevice,
    PhysicalNic,
)
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Firmware, Vm
from gpuops.model.workloads.cluster import ClusterWish, RdmaKind
from gpuops.plan.hosts.pvrdma import Prerequisite, pvrdma_rows

PVRDMA_HARDWARE: Final = 13
NAMESPACES_HARDWARE: Final = 17
ENDPOINTS_HARDWARE: Final = 18
_LINUX: Final = ("ubuntu", "debian", "rhel", "centos", "fedora", "sles", "opensuse", "asianux", "vmwarePhoton")
"""The prefixes of guest ids of Linux that do not contain `linux`."""


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """The distributed port group of a cluster, and its switch."""

    group: DistributedPortGroup
    switch: DistributedSwitch


def network_of(wish: ClusterWish, networks: Networks) -> ClusterNetwork | Prerequisite | None:
    """Return the port group that the wish names with its switch, or a row with the reason why it cannot be used.

    None if the wish needs no port group.
    """
    if wish.port_group is None:
        return None
    matches = [group for group in networks.port_groups if group.name == wish.port_group]
    if len(matches) != 1:
        known_names = ", ".join(sorted(group.name for group in networks.port_groups)) or "none"
        says = (
            "there are several of that name"
            if matches
            else f"there is no such distributed port group; there: {known_names}"
        )
        return Prerequisite(wish.port_group, "port group", False, says, "name another one in the file: rdma.port_group")
    switch = next((switch for switch in networks.switches if switch.uuid == matches[0].switch), None)
    if switch is None:
        return Prerequisite(
            wish.port_group,
            "port group",
            None,
            "its switch cannot be read",
            "give this login read access to the switch",
        )
    return ClusterNetwork(matches[0], switch)


def template_rows(wish: ClusterWish, template: Vm, made_for: str) -> Iterator[Prerequisite]:
    """Yield the checks of the template. `made_for`: its guest id, such as `ubuntu64Guest`; "" if it cannot be read."""
    name = template.name
    efi = None if template.firmware is None else template.firmware is Firmware.EFI
    firmware_text = {True: "EFI", False: "BIOS, where EFI is needed", None: "its firmware cannot be read"}[efi]
    move = "" if efi else "install the guest of a new template under EFI: one made under BIOS does not start with it"
    yield Prerequisite(name, "firmware", efi, firmware_text, move)
    linux_64 = is_linux_64(made_for) if made_for else None
    guest_text = f"64-bit Linux ({made_for})" if linux_64 else f"{made_for} is not a 64-bit Linux"
    says = guest_text if made_for else "what it was made for cannot be read"
    yield Prerequisite(name, "guest", linux_64, says, "" if linux_64 else "name a template of a 64-bit Linux")
    if wish.rdma is RdmaKind.PVRDMA:
        yield _hardware_row(template)
    if template.devices:
        says, move = "has passthrough devices of its own", "name a template without any"
        yield Prerequisite(name, "devices", False, says, move)


def is_linux_64(made_for: str) -> bool:
    """Return whether the guest id is one of a 64-bit Linux (vSphere API reference, VirtualMachineGuestOsIdentifier)."""
    bits_64 = made_for.removesuffix("Guest").removesuffix("_").endswith("64")
    return bits_64 and ("linux" in made_for.lower() or made_for.startswith(_LINUX))


def _hardware_row(template: Vm) -> Prerequisite:
    """Return the check of the virtual hardware version, for paravirtual RDMA."""
    version = template.hardware_version
    if version is None:
        return Prerequisite(
            template.name, "virtual hardware", None, "it cannot be read", "give this login read access to the template"
        )
    if version < PVRDMA_HARDWARE:
        says = f"vmx-{version}; paravirtual RDMA needs vmx-{PVRDMA_HARDWARE}"
        return Prerequisite(
            template.name, "virtual hardware", False, says, "upgrade it (vSphere Client: Compatibility)"
        )
    missing_features = [
        f"{feature} from vmx-{since}"
        for since, feature in ((NAMESPACES_HARDWARE, "namespaces"), (ENDPOINTS_HARDWARE, "native endpoints"))
        if version < since
    ]
    return Prerequisite(template.name, "virtual hardware", True, "; ".join((f"vmx-{version}", *missing_features)))


def host_rows(
    wish: ClusterWish, host: Host, network: ClusterNetwork | None, networks: Networks, inventory: Inventory
) -> Iterator[Prerequisite]:
    """Yield the checks of the host for the kind of RDMA that the cluster wants; none without RDMA."""
    if wish.rdma is RdmaKind.NONE:
        return
    if wish.rdma is RdmaKind.DIRECTPATH:
        yield _adapter_row(wish, host)
        return
    rdma = networks.hosts.get(host.ref)
    if rdma is None or network is None:
        yield Prerequisite(
            host.name, "network", None, "its network cannot be read", "give this login read access to the host"
        )
        return
    uplinks = network.switch.uplinks.get(host.ref, ())
    if not uplinks:
        says, move = f"has no adapter on switch {network.switch.name}", "add an uplink of it to the switch"
        yield Prerequisite(host.name, "uplink", False, says, move)
        return
    if wish.rdma is RdmaKind.SRIOV:
        yield _sriov_row(host, network, rdma, uplinks, inventory)
        return
    yield from pvrdma_rows(host, rdma, uplinks, network.switch)


def _sriov_row(
    host: Host, network: ClusterNetwork, rdma: HostRdma, uplinks: tuple[str, ...], inventory: Inventory
) -> Prerequisite:
    """Return the check for a free SR-IOV virtual function on the uplinks of the host."""
    free = free_functions(host, network, rdma, inventory)
    uplink_names = ", ".join(uplinks)
    if free is None:
        return Prerequisite(
            host.name, "SR-IOV", None, f"{uplink_names}: its functions cannot be read", "check the adapter on the host"
        )
    if free < 1:
        move = "enable SR-IOV on it, with as many functions as VMs, or free some"
        return Prerequisite(host.name, "SR-IOV", False, f"{uplink_names} has no free virtual function", move)
    return Prerequisite(host.name, "SR-IOV", True, f"{uplink_names}: {free} free virtual functions")


def free_functions(host: Host, network: ClusterNetwork, rdma: HostRdma, inventory: Inventory) -> int | None:
    """Return the number of free virtual functions on the port group's uplinks; None if unknown.

    A VM of this host that is off keeps its functions, because it may be started again.
    """
    nics = [nic for nic in rdma.nics if nic.name in network.switch.uplinks.get(host.ref, ())]
    if not nics:
        return None
    function_count = sum(nic.functions or 0 for nic in nics)
    nics_of_vms = (nic for vm in inventory.vms.values() if vm.host == host.ref for nic in vm.nics or ())
    return function_count - sum(nic.kind == "sriov" and nic.network == network.group.key for nic in nics_of_vms)


def _adapter_row(wish: ClusterWish, host: Host) -> Prerequisite:
    adapters = adapters_of(wish, host)
    if not adapters:
        move = "gpuops host passthrough on gives its adapters to VMs; it may take a reboot"
        return Prerequisite(host.name, "DirectPath I/O", False, f"has no {wish.device} that is passed through", move)
    used_addresses = {binding.address for binding in host.bindings}
    free = [adapter for adapter in adapters if adapter.address not in used_addresses]
    says = f"{len(free)} of {len(adapters)} adapters {wish.device} are free"
    return Prerequisite(
        host.name, "DirectPath I/O", bool(free), says, "" if free else "free one: gpuops inventory --hosts"
    )


def adapters_of(wish: ClusterWish, host: Host) -> tuple[OtherDevice, ...]:
    """Return the network adapters of the wished type that are active for passthrough, sorted by address."""
    vendor, _, number = (wish.device or ":").partition(":")
    if not vendor:
        return ()
    kind = (int(vendor, 16), int(number, 16))
    matches = [device for device in host.others if (device.vendor_id, device.device_id) == kind]
    active = [device for device in matches if device.passthrough is not None and device.passthrough.active]
    return tuple(sorted(active, key=lambda device: device.address))


def uplink_node(host: Host, network: ClusterNetwork, networks: Networks) -> int | None:
    """Return the NUMA node of the port group's uplinks on the host; None if they have several, or it is unknown."""
    rdma = networks.hosts.get(host.ref)
    names = network.switch.uplinks.get(host.ref, ())
    nics: list[PhysicalNic] = [nic for nic in rdma.nics if nic.name in names] if rdma is not None else []
    nodes = {nic.numa_node for nic in nics}
    return next(iter(nodes)) if len(nodes) == 1 else None
