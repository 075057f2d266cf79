"""Named snapshots that the cases of this floor are planned on, and the few words they are built from.

`lab` has one host of each kind, small enough to know by heart:

* esx-01  two A100 40 GB in MIG mode, on NUMA nodes 0 and 1; ml-03 runs a 3g.20gb instance on the first
* esx-02  two A40 in same-size mode, on nodes 0 and 1; desk-1..3 run 8q on the first, desk-4 is suspended
* esx-03  no GPU; cpu-01 is registered there
* esx-04  an L40S for vGPUs, two in passthrough with the label `ml`, a T4 in passthrough; ml-08 runs with one L40S
* esx-05  a twin of esx-02 in the same cluster, empty
* esx-06  an L40S in mixed-size mode
`drivers` is the same where each host also tells its driver and module options, as `scheduler` and `doctor` ask it.
Every node has 16 cores and 256 GiB. VMs have 16 vCPUs, 64 GiB and EFI; ml-07 is on esx-01, off and without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from gpuops.catalog import load
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import AssignmentPolicy, GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import (
    Cluster,
    ConfigTarget,
    DeviceBinding,
    Host,
    NumaNode,
    OfferedProfile,
    PassthroughTarget,
)
from gpuops.model.vcenter.host_settings import Custody, DeviceGroup, DeviceGroupMember, HostSettings, SoftwarePackage
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    Firmware,
    GpuDevice,
    OtherPassthrough,
    PowerState,
    VgpuDevice,
    Vm,
)

TAKEN_AT: Final = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
CORES, MEMORY_MIB = 16, 256 * 1024
FIRST, SECOND, THIRD, FOURTH = "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:af:00.0"


@cache
def catalog() -> Catalog:
    return load(everything=True)


def gpu(address: str, board: str, node: int | None = 0, mode: VgpuMode | None = VgpuMode.SAME_SIZE) -> PhysicalGpu:
    """An unused GPU of a board of the catalogue that serves vGPUs."""
    model = catalog().board(board)
    assert model is not None, board
    pci = model.pci_ids[0]
    return PhysicalGpu(
        address=PciAddress.parse(address),
        name=model.name,
        vendor_id=pci.vendor_id,
        device_id=pci.device_id,
        subsystem_id=next(iter(pci.subsystem_ids), None),
        memory_mib=model.framebuffer_mib,
        graphics_type=GraphicsType.SHARED_DIRECT,
        vgpu_mode=mode,
        configured_graphics_type=GraphicsType.SHARED_DIRECT,
        numa_node=node,
        passthrough=Passthrough(capable=True, enabled=False, active=False),
        vms=(),
    )


def whole(address: str, board: str, node: int = 0, label: str | None = None) -> PhysicalGpu:
    """A GPU in passthrough."""
    passthrough = Passthrough(capable=True, enabled=True, active=True, label=label)
    return replace(
        gpu(address, board, node, None), graphics_type=None, configured_graphics_type=None, passthrough=passthrough
    )


def host(name: str, *gpus: PhysicalGpu, cluster: str | None = "domain-c1") -> Host:
    """A host with two NUMA nodes that offers what its GPUs run in their modes."""
    ref = f"host-{name.rsplit('-', 1)[1].lstrip('0')}"
    nodes = tuple(
        NumaNode(node, 2 * CORES, MEMORY_MIB, tuple(gpu.address for gpu in gpus if gpu.numa_node == node))
        for node in (0, 1)
    )
    return Host(
        ref=ref,
        name=name,
        cluster=cluster,
        connected=True,
        in_maintenance=False,
        version="8.0.3",
        memory_mib=2 * MEMORY_MIB,
        cpu_cores=2 * CORES,
        cpu_threads=4 * CORES,
        numa_nodes=nodes,
        gpus=gpus,
        profiles=tuple(
            OfferedProfile(n, *[True] * 4) for n in sorted({n for gpu in gpus for n in offered_profiles(gpu)})
        ),
        assignment_policy=AssignmentPolicy.PERFORMANCE,
    )


def offered_profiles(gpu: PhysicalGpu) -> Iterable[str]:
    board = catalog().board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    assert board is not None, gpu.name
    if gpu.graphics_type is not GraphicsType.SHARED_DIRECT:
        return ()
    mig = gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE
    return (profile.name for profile in board.profiles if profile.mig_backed is mig)


def vm(number: int, name: str, host: str, *devices: str, power: PowerState = PowerState.OFF, **fields: Any) -> Vm:
    """A VM without peculiarities; its devices in short words, see `device`."""
    guest_vm = Vm(
        ref=f"vm-{number}",
        name=name,
        path=f"/dc/vm/{name}",
        instance_uuid=f"uuid-{number}",
        host=f"host-{host}",
        power=power,
        connected=True,
        template=False,
        vcpus=16,
        memory_mib=64 * 1024,
        cpu_usage_mhz=0,
        console_connections=0,
        snapshots=0,
        devices=tuple(device(text, 13000 + index) for index, text in enumerate(devices)),
        extra_config={},
        firmware=Firmware.EFI,
        hardware_version=21,
        cores_per_socket=16,
        cores_per_numa_node=0,
        memory_reservation_mib=64 * 1024 if devices else 0,
        memory_locked=bool(devices),
        cpu_hot_add=False,
        tools_running=power is PowerState.ON,
    )
    return replace(guest_vm, **fields)


def device(text: str, key: int) -> GpuDevice:
    """In words: `vgpu PROFILE [group N]`, `directpath ADDRESS [TYPE]`, `dynamic TYPE[,TYPE] [LABEL]`, `other LABEL`,
    `unreadable LABEL`."""
    kind, model, *extra = text.split()
    match kind:
        case "vgpu":
            return VgpuDevice(key, model, group=int(extra[1]) if extra else None)
        case "directpath":
            vendor, named = _type(extra[0]) if extra else (0x10DE, 0x26B9)
            return DirectPathDevice(key, PciAddress.parse(model), vendor, named, "system-4")
        case "dynamic":
            return DynamicDevice(key, tuple(map(_type, model.split(","))), extra[0] if extra else None)
        case _:
            return OtherPassthrough(key, model, unreadable=kind == "unreadable")


def on_gpu(host: Host, address: str, *vms: str) -> Host:
    """The host with these VMs on one of its GPUs."""
    where = PciAddress.parse(address)
    gpus = tuple(replace(gpu, vms=vms) if gpu.address == where else gpu for gpu in host.gpus)
    return replace(host, gpus=gpus)


def inventory(hosts: Iterable[Host], vms: Iterable[Vm]) -> Inventory:
    return Inventory(
        vcenter="uuid-of-vcenter",
        api_version="8.0.3.0",
        taken_at=TAKEN_AT,
        hosts={host.ref: host for host in hosts},
        vms={vm.ref: vm for vm in vms},
        clusters={"domain-c1": Cluster("domain-c1", "gpu", drs_enabled=True)},
    )


def without_vm(ref: str, world: Inventory) -> Inventory:
    """The same snapshot without this VM, with what is worked out of it so far."""
    remaining = replace(world, vms={vm_ref: vm for vm_ref, vm in world.vms.items() if vm_ref != ref})
    vars(remaining)["worked_out"] = world.worked_out
    return remaining


def lab() -> Inventory:
    mig = VgpuMode.MULTI_INSTANCE
    l40s = 0x26B9
    esx_04 = host(
        "esx-04",
        gpu(FIRST, "l40s"),
        whole(SECOND, "l40s", 1, "ml"),
        whole(THIRD, "l40s", 1, "ml"),
        whole(FOURTH, "t4", 1),
    )
    targets = tuple(PassthroughTarget(g.address, g.name, "system-4", g.vendor_id, g.device_id) for g in esx_04.gpus[1:])
    members = tuple(DeviceGroupMember("nvidiaVgpu", n, profile="nvidia_l40s-48c") for n in (0, 1))
    groups = (DeviceGroup("Nvidia:2@nvidia_l40s-48c%NVLink", members),)
    esx_04 = replace(
        esx_04,
        config_target=ConfigTarget(passthrough=targets, device_groups=groups),
        bindings=(DeviceBinding(PciAddress.parse(SECOND), "vm-8"),),
    )
    assert esx_04.gpus[1].device_id == l40s
    on, suspended = PowerState.ON, PowerState.SUSPENDED
    return inventory(
        [
            on_gpu(host("esx-01", gpu(FIRST, "a100", 0, mig), gpu(SECOND, "a100", 1, mig)), FIRST, "vm-3"),
            on_gpu(host("esx-02", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1)), FIRST, "vm-21", "vm-22", "vm-23"),
            replace(host("esx-03"), profiles=None),
            esx_04,
            host("esx-05", gpu(FIRST, "a40", 0), gpu(SECOND, "a40", 1)),
            host("esx-06", gpu(FIRST, "l40s", 0, VgpuMode.MIXED_SIZE)),
        ],
        [
            vm(7, "ml-07", "1"),
            vm(3, "ml-03", "1", "vgpu grid_a100-3-20c", power=on),
            *(vm(20 + n, f"desk-{n}", "2", "vgpu nvidia_a40-8q", power=on) for n in (1, 2, 3)),
            vm(24, "desk-4", "2", "vgpu nvidia_a40-8q", power=suspended),
            vm(25, "desk-5", "2"),
            vm(1, "cpu-01", "3"),
            vm(8, "ml-08", "4", f"directpath {SECOND} 10de:26b9", power=on),
            vm(9, "ml-09", "4"),
            vm(10, "ml-10", "6"),
        ],
    )


def drivers() -> Inventory:
    """`lab` with what its hosts tell when asked: each with GPUs has NVIDIA's driver 550.90 with no module options."""
    driver = SoftwarePackage("NVD-VGPU-800-Driver", "550.90.05-1OEM.800.1.0.20613240", "NVIDIA")
    settings = HostSettings("", "", True, (driver,), custody=Custody((), False))
    snapshot = lab()
    hosts = [
        replace(
            host,
            settings=settings if host.gpus else replace(settings, has_module=False, packages=()),
            profiles=tuple(replace(offer, suspend=True, migrate=True) for offer in host.profiles or ()),
        )
        for host in snapshot.hosts.values()
    ]
    clusters = {ref: replace(cluster, rules=()) for ref, cluster in snapshot.clusters.items()}
    return replace(snapshot.with_hosts(hosts), clusters=clusters, hot_migrate_enabled=True)


SNAPSHOTS: Final[dict[str, Callable[[], Inventory]]] = {"lab": lab, "drivers": drivers}


def _type(text: str) -> tuple[int, int]:
    vendor, named = text.split(":")
    return int(vendor, 16), int(named, 16)
