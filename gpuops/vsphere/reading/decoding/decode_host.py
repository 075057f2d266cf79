"""Decodes hosts and clusters of a bulk read: graphics, passthrough, NUMA, PCI devices; DRS and what HA reserves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from gpuops.model.devices.gpu import (
    NVIDIA_VENDOR_ID,
    AssignmentPolicy,
    GraphicsType,
    Passthrough,
    PciAddress,
    PhysicalGpu,
    VgpuMode,
)
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import (
    AdmissionControl,
    Cluster,
    DeviceBinding,
    DrsRule,
    Host,
    NumaNode,
    OfferedProfile,
    RuleKind,
)
from gpuops.vsphere.reading.bulk.pages import (
    ReadObject,
    child,
    children,
    count,
    flag,
    items,
    kind,
    leaf_owner,
    leaf_text,
    leaves,
    leaves_by_name,
    number,
    text,
    texts,
    truth,
    whole,
    word,
)
from gpuops.vsphere.reading.decoding.decode_device import kind_of, may_be_function
from gpuops.vsphere.transport.messages import mebibytes, moment, pci_address, unsigned_short, vocabulary_word


@dataclass(frozen=True, slots=True)
class _Graphics:
    """One HostGraphicsInfo."""

    name: str
    graphics_type: GraphicsType | None
    mode: VgpuMode | None
    memory_mib: int | None
    vms: tuple[str, ...] | None
    vendor: str = ""


_UNLISTED: Final = _Graphics("", None, None, None, None)
"""The values of a GPU that the host's graphics configuration does not list: all unknown."""


@dataclass(frozen=True, slots=True)
class ThinHost:
    """A host before its PCI devices are read, with the graphics and passthrough state of its GPUs."""

    host: Host
    parent: str | None
    graphics: Mapping[PciAddress, _Graphics]
    configured: Mapping[PciAddress, GraphicsType]
    passthrough: Mapping[PciAddress, Passthrough]

    @property
    def has_devices(self) -> bool:
        """Return whether its PCI devices must be read: the host lists a GPU or a device for passthrough."""
        return bool(self.graphics) or bool(self.passed_through)

    @property
    def passed_through(self) -> frozenset[PciAddress]:
        return frozenset(address for address, state in self.passthrough.items() if state.enabled or state.active)


def thin_host(read_object: ReadObject) -> ThinHost:
    """Return the host as the first read has it, which has no PCI devices and so no GPUs."""
    properties = read_object.properties
    config = properties.get("config.graphicsConfig")
    connection = text(properties.get("runtime.connectionState"))
    cpu = properties.get("hardware.cpuInfo")
    host = Host(
        ref=read_object.ref,
        name=read_object.name,
        connected=None if connection is None else connection == "connected",
        in_maintenance=flag(properties.get("runtime.inMaintenanceMode")),
        booted=moment(text(properties.get("runtime.bootTime"))),
        uuid=text(properties.get("hardware.systemInfo.uuid")) or None,
        version=text(properties.get("config.product.version")),
        memory_mib=mebibytes(number(properties.get("hardware.memorySize"))),
        memory_used_mib=number(properties.get("summary.quickStats.overallMemoryUsage")),
        cpu_cores=number(cpu, "numCpuCores"),
        cpu_threads=number(cpu, "numCpuThreads"),
        cpu_mhz=None if (hertz := number(cpu, "hz")) is None else hertz // 1_000_000,
        numa_nodes=_numa_nodes(properties.get("hardware.numaInfo")),
        profiles=_profiles(properties),
        default_graphics_type=word(GraphicsType, config, "hostDefaultGraphicsType"),
        assignment_policy=word(AssignmentPolicy, config, "sharedPassthruAssignmentPolicy"),
        bindings=_bindings(properties.get("config.assignableHardwareBinding")),
        datastores=_datastores(properties.get("datastore"), read_object.unreadable),
        unreadable=read_object.unreadable,
    )
    return ThinHost(
        host,
        parent=text(properties.get("parent")),
        graphics=_graphics(properties.get("config.graphicsInfo")),
        configured=_configured_types(config),
        passthrough=_passthrough(properties.get("config.pciPassthruInfo")),
    )


def host_with_gpus(
    thin: ThinHost,
    devices: tuple[PhysicalGpu | OtherDevice, ...],
    uses: Mapping[PciAddress, tuple[str, ...]] | None = None,
) -> Host:
    """Return the host with its GPUs: `devices` of its PCI list, or its graphics list if the PCI list is not readable.

    Other devices are included if they are passed through, or if they can be and are of a kind that is made for VMs.
    `uses` is what the host uses its devices for; if it is given, all devices that can be passed through are included.
    """
    nodes = {address: node.id for node in thin.host.numa_nodes for address in node.devices}
    listed_addresses = {device.address for device in devices}
    graphics_only_gpus = [
        PhysicalGpu(address, graphics.name, vendor_id=0, device_id=0)
        for address, graphics in thin.graphics.items()
        if address not in listed_addresses
        and graphics.graphics_type is not GraphicsType.BASIC
        and _may_be_nvidia(graphics)
    ]
    pci_gpus = [device for device in devices if isinstance(device, PhysicalGpu)]
    gpus = [_gpu(thin, device, nodes.get(device.address)) for device in (*pci_gpus, *graphics_only_gpus)]
    other_devices = [
        _with_host_state(thin, device, nodes.get(device.address), uses)
        for device in devices
        if isinstance(device, OtherDevice) and _is_listed(thin, device, include_all_kinds=uses is not None)
    ]
    return replace(
        thin.host,
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.address)),
        others=tuple(sorted(other_devices, key=lambda device: device.address)),
    )


def pci_devices(
    read_object: ReadObject, passed_through: Collection[PciAddress] = (), *, include_all: bool = False
) -> tuple[PhysicalGpu | OtherDevice, ...]:
    """Return the GPUs and accelerators in a host's `hardware.pciDevice`, and the devices that are passed through.

    With `include_all` return all devices except bridges. Graphics and passthrough state come from the thin read.
    """
    class_ids = leaves_by_name(read_object.properties.get("hardware.pciDevice"), "classId")
    candidates = (
        class_id
        for code, class_id in class_ids
        if may_be_function(code, for_passthrough=include_all or bool(passed_through))
    )
    decoded = (_pci_device(leaf_owner(class_id), passed_through, include_all=include_all) for class_id in candidates)
    return tuple(device for device in decoded if device is not None)


def _pci_device(
    device: Any, passed_through: Collection[PciAddress], *, include_all: bool
) -> PhysicalGpu | OtherDevice | None:
    """Return the decoded device; None for a virtual function, and for a device that `pci_devices` leaves out."""
    fields = leaves(device)
    address = pci_address(leaf_text(fields.get("id")))
    if address is None:
        return None
    pci_class = unsigned_short(whole(fields.get("classId")))
    vendor = unsigned_short(whole(fields.get("vendorId")))
    subsystem = unsigned_short(whole(fields.get("subDeviceId")))
    name = leaf_text(fields.get("deviceName")) or ""
    kind = kind_of(pci_class, vendor, name, leaf_text(fields.get("deviceClassName")) or "")
    is_gpu_or_accelerator = may_be_function(pci_class, for_passthrough=False)
    if kind is None or not (include_all or address in passed_through or is_gpu_or_accelerator):
        return None
    device_id = unsigned_short(whole(fields.get("deviceId")))
    if vendor == NVIDIA_VENDOR_ID and is_gpu_or_accelerator:
        if subsystem == 0:
            return None  # a virtual function of a GPU, not a GPU (as govc's gpu commands tell them apart)
        return PhysicalGpu(address, name or "GPU", vendor, device_id, subsystem)
    name = name or " ".join(filter(None, [leaf_text(fields.get("vendorName")), kind]))
    return OtherDevice(address, name, kind, vendor, device_id, subsystem or None)


def _may_be_nvidia(graphics: _Graphics) -> bool:
    """Return whether a GPU whose PCI ids this login cannot read may be from NVIDIA: its vendor is NVIDIA or unknown."""
    return not graphics.vendor or "nvidia" in graphics.vendor.lower()


def _is_listed(thin: ThinHost, device: OtherDevice, *, include_all_kinds: bool) -> bool:
    """Return whether the host is shown with this device: it is passed through, or it can be and is made for VMs."""
    state = thin.passthrough.get(device.address)
    if state is None:
        return False
    return state.enabled or state.active or (state.capable and (include_all_kinds or device.kind.made_for_vms))


def _with_host_state(
    thin: ThinHost, device: OtherDevice, numa_node: int | None, uses: Mapping[PciAddress, tuple[str, ...]] | None
) -> OtherDevice:
    """Return the device of the PCI list with what the thin read and `uses` have about it."""
    graphics = thin.graphics.get(device.address, _UNLISTED)
    return replace(
        device,
        memory_mib=graphics.memory_mib,
        numa_node=numa_node,
        passthrough=thin.passthrough.get(device.address),
        carries=None if uses is None else uses.get(device.address, ()),
    )


def _gpu(thin: ThinHost, gpu: PhysicalGpu, numa_node: int | None) -> PhysicalGpu:
    """Return the GPU of the PCI list with its graphics and passthrough state from the thin read."""
    graphics = thin.graphics.get(gpu.address, _UNLISTED)
    # In full and not by replace(), which costs three times as much: a fleet has thousands.
    return PhysicalGpu(
        gpu.address,
        graphics.name or gpu.name,
        gpu.vendor_id,
        gpu.device_id,
        gpu.subsystem_id,
        memory_mib=graphics.memory_mib,
        graphics_type=graphics.graphics_type,
        vgpu_mode=graphics.mode,
        configured_graphics_type=thin.configured.get(gpu.address),
        numa_node=numa_node,
        passthrough=thin.passthrough.get(gpu.address),
        vms=graphics.vms,
    )


def _graphics(device_list: Any) -> dict[PciAddress, _Graphics]:
    """Return the graphics devices by address; without a list of VMs no VM uses the device."""
    graphics_by_address = {}
    for device in items(device_list):
        fields = leaves(device)
        address = pci_address(leaf_text(fields.get("pciId")))
        kib = whole(fields.get("memorySizeInKB"))
        if address is not None:
            graphics_by_address[address] = _Graphics(
                name=leaf_text(fields.get("deviceName")) or "",
                graphics_type=vocabulary_word(GraphicsType, leaf_text(fields.get("graphicsType"))),
                mode=vocabulary_word(VgpuMode, leaf_text(fields.get("vgpuMode"))),
                memory_mib=kib // 1024 if kib else None,
                vms=texts(device, "vm") if "vm" in fields else (),
                vendor=leaf_text(fields.get("vendorName")) or "",
            )
    return graphics_by_address


def _configured_types(config: Any) -> dict[PciAddress, GraphicsType]:
    return {
        address: graphics_type
        for device_type in children(config, "deviceType")
        if (address := pci_address(text(device_type, "deviceId"))) is not None
        and (graphics_type := word(GraphicsType, device_type, "graphicsType")) is not None
    }


def _passthrough(device_list: Any) -> dict[PciAddress, Passthrough]:
    return {
        address: Passthrough(
            capable=bool(truth(fields.get("passthruCapable"))),
            enabled=bool(truth(fields.get("passthruEnabled"))),
            active=bool(truth(fields.get("passthruActive"))),
            label=leaf_text(fields.get("hardwareLabel")),
        )
        for fields in map(leaves, items(device_list))
        if (address := pci_address(leaf_text(fields.get("id")))) is not None
    }


def _numa_nodes(numa_info: Any) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes with their processors, memory and PCI devices; a node without a number is left out."""
    nodes = []
    for numa_node in children(numa_info, "numaNode"):
        node_number = number(numa_node, "typeId")
        # memorySize is 8.0's name for what memoryRangeLength was before (vSphere API, HostNumaNode)
        memory = number(numa_node, "memorySize") or number(numa_node, "memoryRangeLength")
        addresses = (pci_address(text(pci)) for pci in children(numa_node, "pciId"))
        devices = tuple(address for address in addresses if address is not None)
        if node_number is not None:
            nodes.append(NumaNode(node_number, count(numa_node, "cpuID"), mebibytes(memory) or 0, devices))
    return tuple(nodes)


def _profiles(properties: Mapping[str, Any]) -> tuple[OfferedProfile, ...] | None:
    """Return every profile the host can run: those it offers now, and those of its capabilities (vSphere API 6.7).

    While a vGPU runs on a same-size GPU, the host does not offer the other sizes. A plan that first frees the GPU
    must still know them. The GPUs, not this list, show whether a slot is free now.
    """
    offered = properties.get("config.sharedPassthruGpuTypes")
    capabilities = properties.get("config.sharedGpuCapabilities")
    capable_profiles = {
        name: _cached_profile(
            name,
            truth(capability.get("suspendSupported")),
            truth(capability.get("migrateSupported")),
            truth(capability.get("diskSnapshotSupported")),
            truth(capability.get("memorySnapshotSupported")),
        )
        for capability in map(leaves, items(capabilities))
        if (name := leaf_text(capability.get("vgpu")))
    }
    if offered is None:
        # vCenter leaves out an empty list too: a host that lists capabilities supports vGPU and has no free slot now
        return tuple(capable_profiles.values()) if capable_profiles else None
    names = dict.fromkeys(name for profile in items(offered) if (name := text(profile)))
    return (
        *(capable_profiles.pop(name) if name in capable_profiles else OfferedProfile(name) for name in names),
        *capable_profiles.values(),
    )


@lru_cache(maxsize=4096)
def _cached_profile(
    name: str, suspend: bool | None, migrate: bool | None, disk_snapshot: bool | None, memory_snapshot: bool | None
) -> OfferedProfile:
    """Return one shared object for equal profiles of all hosts: a fleet has thousands of them."""
    return OfferedProfile(name, suspend, migrate, disk_snapshot, memory_snapshot)


def _bindings(binding_list: Any) -> tuple[DeviceBinding, ...]:
    return tuple(
        DeviceBinding(address, vm)
        for binding in items(binding_list)
        if (address := pci_address(text(binding, "pciId") or text(binding, "instanceId"))) is not None
        and (vm := text(child(binding, "vm")))
    )


def _datastores(datastore_list: Any, unreadable: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the refs of the datastores, or None if this login cannot read them; vCenter leaves an empty list out."""
    if "datastore" in unreadable:
        return None
    return tuple([ref for datastore in items(datastore_list) if (ref := text(datastore))])


_BETWEEN_VMS: Final = {"ClusterAffinityRuleSpec": RuleKind.TOGETHER, "ClusterAntiAffinityRuleSpec": RuleKind.APART}
_VMS_AND_HOSTS: Final = "ClusterVmHostRuleInfo"


def decode_cluster(read_object: ReadObject, name: str) -> Cluster:
    """Return the cluster of a read of `configurationEx`; properties that this login cannot read are unknown."""
    configuration: Any = read_object.properties.get("configurationEx")
    drs = child(configuration, "drsConfig")
    overrides = [(vm, override) for override in children(configuration, "drsVmConfig") if (vm := text(override, "key"))]
    return Cluster(
        ref=read_object.ref,
        name=name,
        drs_enabled=flag(drs, "enabled"),
        drs_behavior=text(drs, "defaultVmBehavior"),
        drs_overrides=tuple((vm, text(override, "behavior") or "") for vm, override in overrides),
        admission=_admission(child(configuration, "dasConfig")),
        rules=None if configuration is None else tuple(_rules(configuration)),
        drs_excluded=tuple(vm for vm, override in overrides if flag(override, "enabled") is False),
        drs_options=None if drs is None else tuple(_options(drs)),
    )


def _options(drs: Any) -> Iterator[tuple[str, str]]:
    """Yield the advanced options of DRS with their values, which vCenter stores as text."""
    for option in children(drs, "option"):
        if key := text(option, "key"):
            yield key, text(option, "value") or ""


def _admission(das: Any) -> AdmissionControl | None:
    """Return what HA reserves for failures of hosts: dedicated hosts, a number of hosts, or percentages.

    None = it reserves nothing. vCenter before 4.0 has no policy, but `failoverLevel` in dasConfig itself.
    """
    if not (flag(das, "enabled") and flag(das, "admissionControlEnabled")):
        return None
    policy = child(das, "admissionControlPolicy")
    policy_type = "" if policy is None else kind(policy)
    if policy_type == "ClusterFailoverHostAdmissionControlPolicy":
        return AdmissionControl(failover_hosts=texts(policy, "failoverHosts"))
    level = number(das if policy is None else policy, "failoverLevel")
    if policy_type != "ClusterFailoverResourcesAdmissionControlPolicy":
        return AdmissionControl(failover_level=level)
    computed = flag(policy, "autoComputePercentages")
    memory = number(policy, "memoryFailoverResourcesPercent") or None
    cpu = number(policy, "cpuFailoverResourcesPercent") or None
    # if vCenter computes the percentages and does not report them, use the number of tolerated host failures
    is_by_level = computed and memory is None and cpu is None
    return AdmissionControl(memory_percent=memory, cpu_percent=cpu, failover_level=level if is_by_level else None)


def _rules(configuration: Any) -> Iterator[DrsRule]:
    """Yield the enabled rules about the placement of VMs, without rules between groups of VMs (start order)."""
    groups = {
        text(group, "name"): (*texts(group, "vm"), *texts(group, "host")) for group in children(configuration, "group")
    }
    for rule in children(configuration, "rule"):
        if flag(rule, "enabled") is False:
            continue
        rule_type = kind(rule)
        if rule_type in _BETWEEN_VMS:
            vms = texts(rule, "vm")
            yield DrsRule(text(rule, "name") or "", _BETWEEN_VMS[rule_type], vms, mandatory=flag(rule, "mandatory"))
        elif rule_type == _VMS_AND_HOSTS:
            yield _vms_and_hosts(rule, groups)


def _vms_and_hosts(rule: Any, groups: Mapping[str | None, tuple[str, ...]]) -> DrsRule:
    """Return the rule: its VMs must run on the hosts `on` (None = no such limit), and not on the hosts `off`.

    A group that does not exist has no members: the rule then allows no host.
    """
    host_group = text(rule, "affineHostGroupName")
    return DrsRule(
        name=text(rule, "name") or "",
        kind=RuleKind.HOSTS,
        vms=groups.get(text(rule, "vmGroupName"), ()),
        on=None if host_group is None else groups.get(host_group, ()),
        off=groups.get(text(rule, "antiAffineHostGroupName") or "", ()),
        mandatory=flag(rule, "mandatory"),
    )
