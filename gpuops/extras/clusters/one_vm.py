"""Plans one VM of a cluster on one host: the steps that give it its GPUs and start it, close to its network card.

A vGPU can be bound to a GPU, so its NUMA node can be guaranteed: the plan is made on a snapshot that shows only the
GPUs on the node of the network card, and binds the VM to them. If they have no room, the VM is placed like any other,
and the row says so. With Dynamic DirectPath I/O the host chooses the GPU, so the node cannot be guaranteed.

Checks the prerequisites of a cluster in its template and hosts, as rows that pass, fail or are unknown.

Sources: VMware vSphere Networking, "PVRDMA Support" (virtual hardware 13, a 64-bit Linux guest, the RDMA network
adapter as the only uplink of the distributed switch; namespaces from virtual hardware 17, native endpoints from 18),
"Configure an ESXi Host for PVRDMA" (VMkernel adapter and firewall rule) and "Single Root I/O Virtualization";
"DirectPath I/O" for firmware. A host with a failed row gets no VM of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.other_device import (
    DistributedPortGroup,
    DistributedSwitch,
    HostRdma,
    Networks,
    OtherDevice,
    PhysicalNic,
)
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, Firmware, PowerState, Vm, VmDrs, pin_key, pins_of
from gpuops.model.workloads.cluster import ClusterWish, RdmaKind
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, SetVmDrs, Step, VmChange
from gpuops.plan.hosts.pvrdma import Prerequisite, pvrdma_rows
from gpuops.plan.placement.host_filters import AFFINITY_KEY
from gpuops.plan.placement.project import project
from gpuops.plan.placement.select import place
from gpuops.plan.placement.vm_demand import PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy

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


@dataclass(frozen=True, slots=True)
class MemberSteps:
    """The steps for one VM, and the snapshot after them."""

    steps: tuple[Step, ...]
    after: Inventory
    says: str
    """The place of its GPU and its network card, as text."""
    warnings: tuple[str, ...] = ()


def member_steps(
    wish: ClusterWish, vm: Vm, card_node: int | None, inventory: Inventory, catalog: Catalog, now: datetime
) -> MemberSteps | tuple[Rejection, ...]:
    """Return the steps that give the VM its GPUs and start it, or all refusals.

    The VM must be in the snapshot, on its host. `card_node`: the NUMA node of its network card, from the port group;
    None if it is unknown or the VM has no card.
    """
    host = inventory.host_of(vm)
    if host is None:
        return (Rejection(vm.name, "its host cannot be read", hint="give this login read access to its host"),)
    if wish.rdma is RdmaKind.DIRECTPATH:
        return _with_whole_adapter(wish, vm, host, inventory, catalog, now)
    plan, is_near = _plan_gpus(wish, vm, card_node, PowerPolicy.ON, inventory, catalog, now)
    if not plan.feasible:
        return plan.rejections
    return _build_member_steps(
        vm, plan.steps, _describe_placement(wish, card_node, is_near=is_near), plan.warnings, inventory, catalog
    )


def _plan_gpus(
    wish: ClusterWish,
    vm: Vm,
    node: int | None,
    power: PowerPolicy,
    inventory: Inventory,
    catalog: Catalog,
    now: datetime,
) -> tuple[Plan, bool]:
    """Return the plan that gives the VM its GPUs, and whether these are certainly on the NUMA node `node`.

    Prefers this node; if its GPUs have no room, plans on all GPUs of the host.
    """
    # without a vGPU profile the VM gets complete GPUs of these PCI types
    types = () if wish.profile is not None else gpu_types(wish, inventory)
    runs = vm.power is PowerState.ON
    if runs:  # a running VM is never stopped for a better place
        power = PowerPolicy.REFUSE
    request = Attach(f"moid:{vm.ref}", profile=wish.profile, count=wish.gpus, device_type=types, power=power, add=True)
    if runs:  # it is near the card if its settings bind it to this node
        return request.plan(inventory, catalog, now), (vm.extra_config or {}).get(AFFINITY_KEY) == str(node)
    if node is not None and wish.profile is not None:
        node_only = only_node(vm, node, inventory)
        near_plan = replace(request, numa=NumaPolicy.REQUIRED).plan(node_only, catalog, now)
        bound = _bind_to_gpus(vm, near_plan, node_only, catalog) if near_plan.feasible else None
        if bound is not None:
            return bound, True
    return request.plan(inventory, catalog, now), False


def _bind_to_gpus(vm: Vm, plan: Plan, node_only: Inventory, catalog: Catalog) -> Plan | None:
    """Return the plan with its vGPUs bound to GPUs of one NUMA node, or None if these have no room.

    `plan` was made on `beside`, in which the host has only the GPUs of that node. Such a plan does not bind its vGPUs,
    because there is no other node; on the real host they could be placed on any GPU.
    """
    changes = [step for step in plan.steps if isinstance(step, ReconfigureVm)]
    with_gpus = _after(tuple(changes), node_only, catalog).vm(vm.ref)
    demands = demands_of(with_gpus.devices or (), pins_of(with_gpus))
    request = Wanted(with_gpus, demands, (with_gpus.host or "",), NumaPolicy.REQUIRED, PinPolicy.AUTO, explain=False)
    placement = place(request, node_only, catalog)
    if not isinstance(placement, Placement):
        return None
    pins = {pin_key(ordinal): str(address) for ordinal, address in placement.seats.items()}
    missing = {key: address for key, address in pins.items() if (with_gpus.extra_config or {}).get(key) != address}
    if not missing:
        return plan
    # all in one change: the VM gets its vGPUs and their bindings by the same request
    first = changes[0] if changes else ReconfigureVm(vm.ref, VmChange())
    change = replace(first.change, extra_config={**first.change.extra_config, **missing})
    other_waves = [wave for wave in plan.waves if not any(isinstance(step, ReconfigureVm) for step in wave.steps)]
    return replace(plan, waves=(Wave(f"reconfigure {vm.name}", (ReconfigureVm(vm.ref, change),)), *other_waves))


def only_node(vm: Vm, node: int, inventory: Inventory) -> Inventory:
    """Return the snapshot in which the VM's host has only the GPUs of this NUMA node."""
    host = inventory.hosts[vm.host or ""]
    return inventory.with_hosts([replace(host, gpus=tuple(gpu for gpu in host.gpus if gpu.numa_node == node))])


def gpu_types(wish: ClusterWish, inventory: Inventory) -> tuple[str, ...]:
    """Return the PCI types of the hosts' GPUs of that model, for example `10de:26b9`; () if no host has one."""
    words = {(wish.model or "").lower()}
    types = {
        f"{gpu.vendor_id:04x}:{gpu.device_id:04x}"
        for host in inventory.hosts.values()
        for gpu in host.gpus
        if words <= set(gpu.name.lower().replace("-", " ").split()) or gpu.name.lower() in words
    }
    return tuple(sorted(types))


def _with_whole_adapter(
    wish: ClusterWish, vm: Vm, host: Host, inventory: Inventory, catalog: Catalog, now: datetime
) -> MemberSteps | tuple[Rejection, ...]:
    """Plan GPUs and a complete network adapter by passthrough; return the steps, or all refusals.

    Chooses the first free adapter that has the GPUs on its NUMA node, else the first free one. A VM that has an adapter
    already keeps it.
    """
    attached = [device for device in vm.devices or () if isinstance(device, DirectPathDevice)]
    attached_addresses = {device.address for device in attached}
    adapters = [device for device in adapters_of(wish, host) if device.address in attached_addresses] or [
        device for device in adapters_of(wish, host) if device.address not in _used_addresses(host, vm, inventory)
    ]
    reasons: tuple[Rejection, ...] = ()
    for strict in (True, False):  # first only plans with the GPUs on the adapter's node, then any
        for adapter in adapters:
            # REFUSE: the adapter is added before the VM starts
            plan, is_near = _plan_gpus(wish, vm, adapter.numa_node, PowerPolicy.REFUSE, inventory, catalog, now)
            if not plan.feasible or (strict and not is_near):
                reasons = reasons or plan.rejections
                continue
            with_gpus = _after(plan.steps, inventory, catalog)
            card = _adapter(vm, adapter.address).plan(with_gpus, catalog, now)
            if not card.feasible:
                reasons = reasons or card.rejections
                continue
            says = f"{adapter.address}, {_describe_placement(wish, adapter.numa_node, is_near=is_near)}"
            return _build_member_steps(
                vm, (*plan.steps, *card.steps), says, (*plan.warnings, *card.warnings), inventory, catalog
            )
    return reasons or (Rejection(host.name, f"has no free network adapter {wish.device}"),)


def _adapter(vm: Vm, address: PciAddress) -> Attach:
    return Attach(f"moid:{vm.ref}", device=(str(address),), add=True, numa=NumaPolicy.NONE, power=PowerPolicy.ON)


def _used_addresses(host: Host, vm: Vm, inventory: Inventory) -> frozenset[PciAddress]:
    """Return the addresses of devices that other VMs of the host have, including VMs that are powered off."""
    held_addresses = {binding.address for binding in host.bindings}
    other_vms = (
        vm_on_host for vm_on_host in inventory.vms.values() if vm_on_host.host == host.ref and vm_on_host.ref != vm.ref
    )
    planned_addresses = {
        device.address
        for vm_on_host in other_vms
        for device in vm_on_host.devices or ()
        if isinstance(device, DirectPathDevice)
    }
    return frozenset(held_addresses | planned_addresses)


def _describe_placement(wish: ClusterWish, node: int | None, *, is_near: bool) -> str:
    if wish.rdma is RdmaKind.NONE:
        return "no RDMA network card"
    if node is None:
        return "NUMA node of the network card not known"
    if is_near:
        return f"GPU and network card on NUMA node {node}"
    card = f"network card on NUMA node {node}"
    return f"{card}, GPUs where the host chooses" if wish.profile is None else f"{card}, no room for the VM beside it"


def _build_member_steps(
    vm: Vm, steps: tuple[Step, ...], says: str, warnings: tuple[str, ...], inventory: Inventory, catalog: Catalog
) -> MemberSteps:
    ordered = tuple(_with_override(vm, steps, inventory))
    return MemberSteps(ordered, _after(ordered, inventory, catalog), says, warnings)


def _with_override(vm: Vm, steps: tuple[Step, ...], inventory: Inventory) -> Iterator[Step]:
    """Yield the steps with the override of DRS before the start, so that DRS never moves the running VM."""
    keeps = keeps_off_drs(vm, inventory)
    if keeps and not any(isinstance(step, PowerOnVm) for step in steps):
        yield SetVmDrs(vm.ref, VmDrs.MANUAL)
    for step in steps:
        if keeps and isinstance(step, PowerOnVm):
            yield SetVmDrs(vm.ref, VmDrs.MANUAL)
        yield step


def keeps_off_drs(vm: Vm, inventory: Inventory) -> bool:
    """Return whether an override must be set so that DRS does not move the VM."""
    cluster = inventory.cluster_of(vm)
    return cluster is not None and cluster.drs_enabled is not False and cluster.drs_of(vm.ref) is not VmDrs.MANUAL


def _after(steps: tuple[Step, ...], inventory: Inventory, catalog: Catalog) -> Inventory:
    for step in steps:
        inventory = project(step, inventory, catalog)
    return inventory
