"""SR-IOV network cards that the deviceChange of a ConfigSpec adds and edits.

Its network is in the ordinary backing; the port that it takes a virtual function of, in sriovBacking, whose id may
begin with `Automatic` (vSphere API, VirtualSriovEthernetCard; the word from memory). Which function it gets is decided
when the VM is powered on. Recorded: the server gives keys from 13031 downwards, whatever a client asks for
(`pci_slot`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyVmomi import vim

from gpuops.sim.inventory import faults
from gpuops.sim.operations.admission.network_admission import AUTOMATIC
from gpuops.sim.operations.vms.hardware_change import assigned_mac, network_of, starts_connected
from gpuops.sim.render.pci import nic_addresses
from gpuops.sim.state.hardware import NetworkCard
from gpuops.sim.state.vm_state import SRIOV, PciDevice, SriovBacking, VmState

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity


def new_card(vm: VmEntity, state: VmState, index: int, device: Any) -> PciDevice:
    """The device that a VirtualSriovEthernetCard adds."""
    key, unit = state.free_pci_slot(sriov=True)
    network = network_of(vm, state.network_cards, index, device.backing, None)
    mac = (device.macAddress if device.addressType != "generated" else None) or assigned_mac(vm)
    card = NetworkCard(key, SRIOV, mac=mac, starts_connected=starts_connected(device, default=True), **network)
    return PciDevice(key, unit, SriovBacking(_port(vm, index, device), card))


def edited_card(vm: VmEntity, state: VmState, index: int, existing: PciDevice, device: Any) -> PciDevice:
    """The device `known` as a VirtualSriovEthernetCard edits it."""
    backing = existing.backing
    assert isinstance(backing, SriovBacking), "it was found as such"
    port = _port(vm, index, device) if device.sriovBacking else backing.physical_function
    network = network_of(vm, state.network_cards, index, device.backing, backing.card) if device.backing else {}
    starts = starts_connected(device, default=backing.card.starts_connected)
    mac = device.macAddress or backing.card.mac
    return replace(
        existing, backing=SriovBacking(port, replace(backing.card, mac=mac, starts_connected=starts, **network))
    )


def _port(vm: VmEntity, index: int, device: Any) -> str:
    """The PCI address of the port that is asked for, or what says that vCenter is to choose it."""
    requested_function = device.sriovBacking and device.sriovBacking.physicalFunctionBacking
    id_ = (requested_function.id if requested_function else "") or AUTOMATIC
    hosts = vm.host().compute_resource().hosts()
    if not id_.lower().startswith(AUTOMATIC) and not any(id_.lower() in nic_addresses(host.state) for host in hosts):
        text = f"No host of the cluster has a network card at {id_}."
        raise faults.device_fault(vim.fault.InvalidDeviceBacking, index, text)
    return id_.lower()
