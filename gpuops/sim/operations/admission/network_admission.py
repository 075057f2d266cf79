"""Whether a host can run a VM with its network cards: paravirtual RDMA, and a virtual function for each SR-IOV card.

What paravirtual RDMA needs of a VM and its host: VMware, vSphere Networking, "PVRDMA Support": hardware version 13, a
distributed switch, all memory reserved; a VMkernel adapter that is tagged, and on the host one uplink alone of that
switch, with an RDMA device. vMotion goes only to a host that has the same. The fault is from memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuops.sim.inventory import faults
from gpuops.sim.render.pci import network_ports
from gpuops.sim.state.host_state import PVRDMA_ADAPTER
from gpuops.sim.state.network_port import NetworkPort
from gpuops.sim.state.vm_state import PVRDMA, SriovBacking

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity, VmEntity
    from gpuops.sim.state.hardware import NetworkCard

AUTOMATIC: Final = "automatic"
"""What the id of a physical function begins with where vCenter is to choose it."""


def may_use_rdma(vm: VmEntity, host: HostEntity) -> None:
    """Raises GenericVmConfigFault where the VM has a PVRDMA card that the host, or its own settings, rule out."""
    cards = [card for card in vm.state.hardware.cards if card.kind == PVRDMA]
    if not cards:
        return
    if vm.state.reserved_mib < vm.state.memory_mib:
        raise faults.will_not_power_on("A PVRDMA network adapter needs all memory of its virtual machine reserved.")
    missing = next((reason for card in cards if (reason := rdma_missing(host, card.switch))), None)
    if missing is not None:
        raise faults.will_not_power_on(f"PVRDMA: {missing}")


def rdma_missing(host: HostEntity, switch: str) -> str | None:
    """What the host has not of what PVRDMA needs on the distributed switch of that uuid; None = it is ready."""
    network = host.state.network
    tagged = str(host.state.options[PVRDMA_ADAPTER])
    if not tagged:
        return f"{PVRDMA_ADAPTER} names no VMkernel adapter of host {host.name}."
    if tagged not in [adapter.device for adapter in network.adapters]:
        return f"{PVRDMA_ADAPTER} of host {host.name} names {tagged}, which it has not."
    proxy = next((candidate for candidate in network.proxies if host.world.get(candidate.switch).uuid == switch), None)
    if proxy is None:
        return f"Host {host.name} is no member of the distributed switch."
    name = host.world.get(proxy.switch).name
    if len(proxy.nics) != 1:
        return f"{name} has {len(proxy.nics)} uplinks on host {host.name}; there must be one."
    [nic] = proxy.nics
    port = _ports_by_name(host).get(nic)
    if port is None or not port.rdma:
        return f"The uplink {nic} of {name} on host {host.name} has no RDMA device."
    return None if port.link else f"The uplink {nic} of {name} on host {host.name} has no link."


def free_function(backing: SriovBacking, host: HostEntity, used_functions: set[str]) -> str:
    """The PCI address of a virtual function that the card gets. Raises GenericVmConfigFault where none is free."""
    ports = _ports(backing, host)
    if not ports:
        raise faults.will_not_power_on(
            f"Device {backing.physical_function} of host {host.name} has no virtual functions."
        )
    free = next((id_ for port in ports for id_ in port.function_ids() if id_ not in used_functions), None)
    if free is None:
        raise faults.will_not_power_on(
            f"No virtual function of device {backing.physical_function} of host {host.name} is free."
        )
    return free


def _ports(backing: SriovBacking, host: HostEntity) -> list[NetworkPort]:
    """The network ports that the card can have a function of; chosen automatically, the uplinks of its network."""
    named = _ports_by_name(host)
    if backing.physical_function.lower().startswith(AUTOMATIC):
        uplinks = uplinks_of(host, backing.card)
        return [port for name, port in named.items() if name in uplinks and port.functions]
    return [port for port in named.values() if port.pci_id == backing.physical_function.lower() and port.functions]


def uplinks_of(host: HostEntity, card: NetworkCard) -> tuple[str, ...]:
    """The physical adapters through which the host takes the card's network out."""
    network = host.state.network
    if card.switch:
        return next((proxy.nics for proxy in network.proxies if host.world.get(proxy.switch).uuid == card.switch), ())
    switches = {switch.name: switch.nics for switch in network.switches}
    return next((switches[group.switch] for group in network.groups if group.name == card.network_name), ())


def _ports_by_name(host: HostEntity) -> dict[str, NetworkPort]:
    return {f"vmnic{number}": port for number, port in enumerate(network_ports(host.state))}
