"""Decides on which host a VM runs, whether that host can take it, and which devices the VM gets there.

Checks for power-on, resume and vMotion, in this order: the host itself, reservations, memory rule of passthrough
devices, MMIO, RDMA, DirectPath devices and virtual functions, vGPUs, reservations of these. The first refusal is the
fault.

What paravirtual RDMA needs of a VM and its host: VMware, vSphere Networking, "PVRDMA Support": hardware version 13, a
distributed switch, all memory reserved; a VMkernel adapter that is tagged, and on the host one uplink alone of that
switch, with an RDMA device. vMotion goes only to a host that has the same. The fault is from memory.

A VM is powered on on the host that the client names, on its own host, or on one that DRS chooses. In a cluster whose
DRS places VMs by itself, the VM's own host is tried first, then the host with the fewest running VMs (the order is from
memory: real DRS scores hosts by load). Rules that bind (VM-host rules with `mandatory`) hold in any case. When every
host refuses for the same kind of reason, that reason is the fault; otherwise it is NoCompatibleHost.

HA's admission control: VMware vSphere Availability, "vSphere HA Admission Control" (percentages of the cluster's
resources; slots of the largest reservation of a running VM, without those of the largest hosts; dedicated failover
hosts). A VM that reserves no CPU counts with 32 MHz (there too). From memory: which fault a power-on or vMotion to a
dedicated failover host ends in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.errors import UsageError
from gpuops.model.devices.gpu import PciAddress
from gpuops.sim.inventory import faults
from gpuops.sim.operations.reserved_capacity import refuse_over_reservations
from gpuops.sim.render.pci import network_ports
from gpuops.sim.state.gpu_admission import NotAdmitted, RunningVgpu, WantedVgpu, admit
from gpuops.sim.state.host_state import PVRDMA_ADAPTER, HostGpu, HostState, NetworkPort, OtherHostDevice
from gpuops.sim.state.vm_state import (
    PVRDMA,
    DynamicBacking,
    PciDevice,
    Power,
    SriovBacking,
    StaticBacking,
    VgpuBacking,
    VmState,
)

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import ComputeEntity, HostEntity, VmEntity
    from gpuops.sim.state.drs import HaAdmission
    from gpuops.sim.state.hardware import NetworkCard
    from gpuops.sim.state.host_state import HostModel

DEFAULT_MMIO_GIB: Final = 32
"""64-bit MMIO space of a VM that sets none (Dell and VMware notes on large-BAR devices)."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The vGPUs and devices that a VM holds while it runs."""

    seats: tuple[RunningVgpu, ...] = ()
    held: tuple[tuple[int, str], ...] = ()
    """(device key, PCI id) of DirectPath devices."""


def admission(vm: VmEntity, host: HostEntity) -> Admission:
    """Return the devices and vGPU slots that the VM would get on the host. Raises the vim fault of the refusal."""
    _require_host_up(host)
    _require_free_reservations(vm, host)
    _require_reserved_memory(vm.state)
    _refuse_nested_virtualization(vm.state)
    _require_bar_space(vm.state, host.state)
    require_rdma(vm, host)
    seats = _vgpu_seats(vm, host)
    held_devices = _assign_devices(vm, host)
    refuse_over_reservations(vm, host, seats, (pci_id for _, pci_id in held_devices))
    return Admission(seats, held_devices)


def _require_host_up(host: HostEntity) -> None:
    if host.state.connection != "connected":
        raise faults.host_not_connected(host.name)
    if host.state.in_maintenance:
        raise faults.wrong_state("The operation is not allowed in the current state: the host is in maintenance mode.")


def _require_free_reservations(vm: VmEntity, host: HostEntity) -> None:
    """Raises the fault for memory or CPU that the other VMs of the host do not leave free."""
    other_vms = [vm_entity.state for vm_entity in host.running_vms() if vm_entity is not vm]
    if "suspended-vm-memory" in host.world.deviations:  # assumption: suspended-vm-memory
        other_vms += [
            vm_entity.state
            for vm_entity in host.vms()
            if vm_entity.state.power is Power.SUSPENDED and vm_entity is not vm
        ]
    free_mib = host.state.model.memory_mib - sum(vm_state.reserved_mib for vm_state in other_vms)
    if vm.state.reserved_mib > free_mib:
        if "no-memory-fault" in host.world.deviations:  # assumption: no-memory-fault
            raise faults.will_not_power_on("Admission check failed for memory resource.")
        raise faults.no_memory(free_mib, vm.state.reserved_mib)
    free_mhz = host.state.model.capacity_mhz - sum(vm_state.cpu_reservation_mhz for vm_state in other_vms)
    if vm.state.cpu_reservation_mhz > free_mhz:
        raise faults.no_cpu(free_mhz, vm.state.cpu_reservation_mhz)


def _require_reserved_memory(vm: VmState) -> None:
    # Devices write to guest memory by its physical address: ESXi must not move or swap it (VMware vSphere 8.0 docs,
    # "Add a PCI Device to a Virtual Machine"). The fault and its text are from memory.
    if vm.devices and vm.reserved_mib < vm.memory_mib:
        raise faults.will_not_power_on(
            f"Invalid memory setting: memory reservation (sched.mem.min) should be equal to memsize ({vm.memory_mib})."
        )


def _refuse_nested_virtualization(vm: VmState) -> None:
    """Broadcom KB 437651: nested virtualisation excludes vGPUs and passthrough. The fault and its text are assumed."""
    if vm.devices and vm.nested_virtualization:
        raise faults.will_not_power_on("PCI passthrough devices cannot be used with nested hardware virtualization.")


def _require_bar_space(vm: VmState, host: HostState) -> None:
    """Raises unless the VM has EFI and enough 64-bit MMIO space for the memory of its whole GPUs.

    A whole GPU maps its memory as a BAR. The published rule asks for more space than needed (twice the memory, rounded
    up to a power of two). A host refuses only what does not fit, so this check compares with the memory itself.
    """
    static_ids = (device.backing.pci_id for device in vm.devices if isinstance(device.backing, StaticBacking))
    static_devices = [device for device in map(host.device, static_ids) if device is not None]
    needed_gib = sum(device.memory_mib for device in static_devices) >> 10
    if not needed_gib:
        return
    if vm.firmware != "efi":
        raise faults.will_not_power_on("The firmware of the virtual machine cannot map the device's memory (not EFI).")
    size_option = vm.option("pciPassthru.64bitMMIOSizeGB") or str(DEFAULT_MMIO_GIB)
    enabled = (vm.option("pciPassthru.use64bitMMIO") or "").lower() == "true"
    space_gib = int(size_option) if enabled and size_option.isdigit() else DEFAULT_MMIO_GIB
    if needed_gib > space_gib:
        raise faults.will_not_power_on(
            f"PCIPassthru: total number of pages needed for {needed_gib} GB exceeds limit {space_gib} GB."
        )


def _vgpu_seats(vm: VmEntity, host: HostEntity) -> tuple[RunningVgpu, ...]:
    """Return the GPU slots of the VM's vGPUs on the host.

    Raises InsufficientGraphicsResourcesFault if they do not fit; with the deviation `no-gpu-fault`, a GenericVmConfig
    fault.
    """
    wishes = [
        WantedVgpu(device.backing.type_name, _pin(vm.state, device))
        for device in sorted(vm.state.devices, key=lambda device: device.key)
        if isinstance(device.backing, VgpuBacking)
    ]
    if not wishes:
        return ()
    if "vgpu-pin" in host.world.deviations:  # assumption: vgpu-pin
        wishes = [replace(wish, pin=None) for wish in wishes]
    gpus = host.state.for_admission(tuple(seat for seat in host.seats() if seat.vm != vm.moid))
    pools = [gpus]  # all vGPUs must fit in one of these sets of GPUs
    if vm.state.groups:  # the vGPUs of a device group must be on GPUs that NVLink connects
        linked = [{gpu.pci_id for gpu in joined} for joined in host.state.nvlink_sets().values()]
        pools = [[gpu for gpu in gpus if gpu.pci_id in ids] for ids in linked]
    refusals = []
    for pool in pools:
        admitted = admit(vm.moid, wishes, pool, host.state.policy, host.state.deviation)
        if not isinstance(admitted, NotAdmitted):
            return admitted
        refusals.append(str(admitted))
    if "no-gpu-fault" in host.world.deviations:  # assumption: no-gpu-fault
        raise faults.will_not_power_on("Could not initialize plugin 'libnvidia-vgx.so' for vGPU.")
    raise faults.no_graphics("; ".join(refusals) or f"{host.name} has no NVLink peers")


def _pin(vm: VmState, device: PciDevice) -> str | None:
    """The GPU that `pciPassthruN.cfg.gpu-pci-id` names."""
    text = vm.option(f"{device.vmx_name}.cfg.gpu-pci-id")
    if not text:
        return None
    try:
        return str(PciAddress.parse(text))
    except UsageError as unreadable:
        raise faults.will_not_power_on(f"{text} is not a PCI address.") from unreadable


def _assign_devices(vm: VmEntity, host: HostEntity) -> tuple[tuple[int, str], ...]:
    """Return (device key, PCI id) for each DirectPath device and each SR-IOV card of the VM.

    Raises the fault of the first device that the host refuses.
    """
    held_pci_ids = host.held_pci_ids(excluding=vm)
    assignments: list[tuple[int, str]] = []
    # static devices first: a dynamic device could otherwise take the only GPU that a static one names
    fixed_first = sorted(vm.state.devices, key=lambda device: (isinstance(device.backing, DynamicBacking), device.key))
    for device in fixed_first:
        match device.backing:
            case StaticBacking():
                pci_id = _static_device(device.backing, host, held_pci_ids)
            case DynamicBacking():
                pci_id = _dynamic_device(vm, device, host, held_pci_ids)
            case SriovBacking():
                pci_id = free_function(device.backing, host, held_pci_ids)
            case _:
                continue
        held_pci_ids.add(pci_id)
        assignments.append((device.key, pci_id))
    return tuple(assignments)


def _static_device(backing: StaticBacking, host: HostEntity, held_pci_ids: set[str]) -> str:
    """Return the PCI id of the device that a static backing names. Raises GenericVmConfigFault."""
    host_device = host.state.device(backing.pci_id)
    if host_device is None or backing.system_id != host.state.system_id or not _is_the_device(backing, host_device):
        raise faults.will_not_power_on(
            "The systemId does not match the current system or the deviceId and vendorId do not match the device "
            f"currently at {backing.pci_id}."
        )
    if not host_device.passthrough_active:
        raise faults.will_not_power_on(f"Device {backing.pci_id} is not a passthrough device.")
    if host_device.pci_id in held_pci_ids:
        raise faults.will_not_power_on(f"Device {backing.pci_id} is already in use.")
    return host_device.pci_id


def _is_the_device(backing: StaticBacking, host_device: HostGpu | OtherHostDevice) -> bool:
    # The device id is hexadecimal text: a decimal one passes the reconfigure and fails here (govmomi issue 2248).
    # Terraform's provider leaves it empty (terraform-provider-vsphere, PciPassthroughApplyOperation).
    same_device = backing.device_id.lower().removeprefix("0x") in ("", f"{host_device.device_id:x}")
    return same_device and backing.vendor_id & 0xFFFF == host_device.vendor_id


def _dynamic_device(vm: VmEntity, device: PciDevice, host: HostEntity, held_pci_ids: set[str]) -> str:
    backing = device.backing
    assert isinstance(backing, DynamicBacking)
    for host_device in host.state.devices:
        is_allowed = (host_device.vendor_id, host_device.device_id) in backing.allowed
        labelled = backing.label is None or backing.label == host_device.label
        if is_allowed and labelled and host_device.passthrough_active and host_device.pci_id not in held_pci_ids:
            return host_device.pci_id
    raise faults.device_not_available(device.vmx_name, vm.name, host.name)


AUTOMATIC: Final = "automatic"
"""The start of a physical function's id that leaves the choice to vCenter."""


def require_rdma(vm: VmEntity, host: HostEntity) -> None:
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
    """Return why PVRDMA cannot work on the host with the distributed switch of uuid `switch`; None = it can."""
    network = host.state.network
    tagged = str(host.state.options[PVRDMA_ADAPTER])
    if not tagged:
        return f"{PVRDMA_ADAPTER} names no VMkernel adapter of host {host.name}."
    if tagged not in [adapter.device for adapter in network.adapters]:
        return f"{PVRDMA_ADAPTER} of host {host.name} names {tagged}, which the host does not have."
    proxy = next((candidate for candidate in network.proxies if host.world.get(candidate.switch).uuid == switch), None)
    if proxy is None:
        return f"Host {host.name} is not a member of the distributed switch."
    name = host.world.get(proxy.switch).name
    if len(proxy.nics) != 1:
        return f"{name} has {len(proxy.nics)} uplinks on host {host.name}; there must be one."
    [nic] = proxy.nics
    port = _ports_by_name(host).get(nic)
    if port is None or not port.rdma:
        return f"The uplink {nic} of {name} on host {host.name} has no RDMA device."
    return None if port.link else f"The uplink {nic} of {name} on host {host.name} has no link."


def free_function(backing: SriovBacking, host: HostEntity, used_functions: set[str]) -> str:
    """Return the PCI address of a free virtual function for the card. Raises GenericVmConfigFault if none is free."""
    ports = _ports(backing, host)
    if not ports:
        raise faults.will_not_power_on(
            f"Device {backing.physical_function} of host {host.name} has no virtual functions."
        )
    free_id = next((id_ for port in ports for id_ in port.function_ids() if id_ not in used_functions), None)
    if free_id is None:
        raise faults.will_not_power_on(
            f"No virtual function of device {backing.physical_function} of host {host.name} is free."
        )
    return free_id


def _ports(backing: SriovBacking, host: HostEntity) -> list[NetworkPort]:
    """Return the ports whose functions the card can get: the named port, or for `automatic` its network's uplinks."""
    ports = _ports_by_name(host)
    if backing.physical_function.lower().startswith(AUTOMATIC):
        uplinks = uplinks_of(host, backing.card)
        return [port for name, port in ports.items() if name in uplinks and port.functions]
    return [port for port in ports.values() if port.pci_id == backing.physical_function.lower() and port.functions]


def uplinks_of(host: HostEntity, card: NetworkCard) -> tuple[str, ...]:
    """Return the physical adapters of the host that are the uplinks of the card's network."""
    network = host.state.network
    if card.switch:
        return next((proxy.nics for proxy in network.proxies if host.world.get(proxy.switch).uuid == card.switch), ())
    switches = {switch.name: switch.nics for switch in network.switches}
    return next((switches[group.switch] for group in network.groups if group.name == card.network_name), ())


def _ports_by_name(host: HostEntity) -> dict[str, NetworkPort]:
    return {f"vmnic{number}": port for number, port in enumerate(network_ports(host.state))}


_LEAST_MHZ: Final = 32
"""The CPU reservation with which HA counts a VM that reserves less."""


def refuse_over_failover(vm: VmEntity, host: HostEntity) -> None:
    """Raises InsufficientFailoverResourcesFault if vSphere HA's admission control forbids the VM on the host."""
    refuse_failover_host(vm, host)
    cluster = host.compute_resource()
    ha_admission = _active_ha_admission(cluster)
    if ha_admission is None or ha_admission.failover_hosts is not None:
        return  # with failover hosts, `refuse_failover_host` is the complete check
    up_hosts = [
        candidate
        for candidate in cluster.hosts()
        if candidate.state.connection == "connected" and not candidate.state.in_maintenance
    ]
    running = [
        vm.state,
        *(running_vm.state for up_host in up_hosts for running_vm in up_host.running_vms() if running_vm is not vm),
    ]
    if not _admits(ha_admission, [up_host.state.model for up_host in up_hosts], running):
        raise faults.no_failover_resources(vm.name)


def refuse_failover_host(vm: VmEntity, host: HostEntity) -> None:
    """Raises InsufficientFailoverResourcesFault for a host that HA keeps empty: it takes no power-on and no vMotion."""
    ha_admission = _active_ha_admission(host.compute_resource())
    if (
        ha_admission is not None
        and ha_admission.failover_hosts is not None
        and host.moid in ha_admission.failover_hosts
    ):
        raise faults.no_failover_resources(vm.name)


def _active_ha_admission(cluster: ComputeEntity) -> HaAdmission | None:
    return cluster.drs.ha_admission if cluster.drs.ha_enabled else None


def _admits(admission: HaAdmission, hosts: list[HostModel], running: list[VmState]) -> bool:
    """Return whether these running VMs fit on the hosts after the failures that HA reserves resources for."""
    reserved_mib = [vm.reserved_mib for vm in running]
    reserved_mhz = [max(_LEAST_MHZ, vm.cpu_reservation_mhz) for vm in running]
    if admission.memory_percent is not None:
        cpu_percent = admission.memory_percent if admission.cpu_percent is None else admission.cpu_percent
        usable_mib = sum(host.memory_mib for host in hosts) * (100 - admission.memory_percent) // 100
        usable_mhz = sum(host.capacity_mhz for host in hosts) * (100 - cpu_percent) // 100
        return sum(reserved_mib) <= usable_mib and sum(reserved_mhz) <= usable_mhz
    # a slot holds the largest reservation; the hosts with the most slots are the ones that fail
    slot_mib, slot_mhz = max(1, *reserved_mib), max(reserved_mhz)
    slots = sorted(min(host.memory_mib // slot_mib, host.capacity_mhz // slot_mhz) for host in hosts)
    return len(running) <= sum(slots[: len(slots) - admission.failover_level])


def place(vm: VmEntity, requested_host: HostEntity | None) -> tuple[HostEntity, Admission]:
    """Return the host that the VM starts on, and its devices and slots there.

    Raises the fault of the refusal, or NoCompatibleHost if hosts refuse for different reasons.
    """
    current_host = vm.host()
    if requested_host is not None and requested_host.compute_resource() is not current_host.compute_resource():
        raise faults.wrong_argument("host")
    candidates = [requested_host or current_host]
    cluster = current_host.compute_resource()
    if requested_host is None and cluster.places(vm.moid):  # DRS may choose another host
        candidates += sorted((host for host in cluster.hosts() if host is not current_host), key=load_of)
    refusals: list[tuple[Any, Any]] = []
    for host in candidates:
        try:
            refuse_against_rules(vm, host)
            refuse_over_failover(vm, host)
            return host, admission(vm, host)
        except vmodl.MethodFault as refusal:
            refusals.append((host.ref, refusal))
    if len({type(refusal) for _, refusal in refusals}) > 1:
        raise faults.no_compatible_host(refusals)
    raise refusals[0][1]


def load_of(host: HostEntity) -> tuple[int, str]:
    """Return the sort key of hosts for DRS: the number of running VMs, then the name."""
    return len(host.running_vms()), host.name


def refuse_against_rules(vm: VmEntity, host: HostEntity) -> None:
    """Raises VmHostAffinityRuleViolation when a binding rule keeps the VM off the host."""
    if not host.compute_resource().rules_allow(vm.moid, host.moid):
        raise vim.fault.VmHostAffinityRuleViolation(
            msg=f"Virtual machine {vm.name} on host {host.name} violates a VM-Host affinity rule.",
            vmName=vm.name,
            hostName=host.name,
        )
